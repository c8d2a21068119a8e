"""The `sumwire` command. Its modules have options and help texts only; the work is done elsewhere."""

from __future__ import annotations

from sumwire import __version__, get_num_threads
from sumwire.cli.base import Commands, click
from sumwire.cli.lab import demo, lab
from sumwire.cli.plan import plan
from sumwire.cli.serve import serve
from sumwire.cli.switch import switch
from sumwire.kernels import backend

__all__ = ["demo", "lab", "main", "plan", "serve", "switch"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sumwire")
def main() -> None:
    """Add tensors in compressed form: compress once, add small integers, decompress once."""


@main.command()
def info() -> None:
    """Print the version, the kernels and the number of threads."""
    click.echo(f"sumwire  {__version__}")
    click.echo(f"kernels  {backend.describe()}")
    click.echo(f"threads  {get_num_threads()}")


for command in (demo, serve, switch, lab, plan):
    main.add_command(command)
