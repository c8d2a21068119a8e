"""The `sumwire` command: options and help; the work is done elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sumwire import __version__, get_threads, kernels
from sumwire.errors import SumwireError

INSTALL = 'pip install "sumwire[lab]"'

try:
    import click
except ModuleNotFoundError as error:
    print(f"sumwire: the command line needs {error.name}: {INSTALL}", file=sys.stderr)
    raise SystemExit(2) from None


class MissingPackage(click.ClickException):
    """An optional package is not installed."""

    exit_code = 2


class Commands(click.Group):
    """Says in one line what a user can mend; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SumwireError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "sumwire"):
                raise
            raise MissingPackage(f"{ctx.invoked_subcommand} needs {package}: {INSTALL}") from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sumwire")
def main() -> None:
    """Add tensors in compressed form: compress once, add small integers, decompress once."""


@main.command()
def info() -> None:
    """Print the version, the kernels and the threads in use."""
    backend = kernels.backend()
    level = f" ({backend.level()})" if hasattr(backend, "level") else ""
    click.echo(f"sumwire  {__version__}")
    click.echo(f"kernels  {backend.NAME}{level}")
    click.echo(f"threads  {get_threads()}")


@main.command(context_settings={"show_default": True})
@click.option("--workload", type=click.Choice(["mlp", "resnet", "gpt"]), default="mlp", help="Model to train.")
@click.option("--workers", type=click.IntRange(min=1), default=4, help="Workers that average their gradients.")
@click.option("--bits", type=click.IntRange(1, 8), default=4, help="Bits a coordinate that a worker sends.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="Of the training and of the codecs.")
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    help="Training steps before the gradients are taken.  [default: the workload's own]",
)
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("demo.svg"),
    help="Where to draw error against bits (.svg, .png or .pdf).",
)
def demo(workload: str, workers: int, bits: int, seed: int, steps: int | None, figure: Path) -> None:
    """Average real gradients and compare size, error and speed.

    Trains a small model, takes every worker's gradient, and averages them in this process with
    Sumwire, with the THC paper's setting, with a uniform table and in fp16. Nothing is downloaded.
    """
    from sumwire.lab.demo import run

    run(workload, workers=workers, bits=bits, seed=seed, steps=steps, figure=figure)
