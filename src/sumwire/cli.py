"""The `sumwire` command: options and help; the work is done elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from sumwire import __version__, get_num_threads
from sumwire.errors import ConfigError, SumwireError
from sumwire.kernels import backend

INSTALL = 'pip install "sumwire[lab]"'

try:
    import click
    from click.core import ParameterSource
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
    click.echo(f"sumwire  {__version__}")
    click.echo(f"kernels  {backend.describe()}")
    click.echo(f"threads  {get_num_threads()}")


def _checked(parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def _rate(ctx: click.Context, param: click.Parameter, text: str) -> float | None:
    from sumwire.lab.plan import parse_rate

    return cast("float | None", _checked(lambda: parse_rate(text)))


def _methods(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    from sumwire.lab.methods import parse_methods

    return cast("tuple[str, ...]", _checked(lambda: parse_methods(text, ctx.params["bits"])))


def _target(ctx: click.Context, param: click.Parameter, target: float | None) -> float | None:
    from sumwire.lab.tasks import TASKS, check_target

    if target is not None:
        _checked(lambda: check_target(TASKS[ctx.params["workload"]], target))
    return target


FIGURE = click.Path(dir_okay=False, writable=True, path_type=Path)
SEED = click.IntRange(0, 2**32 - 1)
FILE = click.Path(exists=True, dir_okay=False)


# Eager options are read first: what others mean depends on them.
@main.command(context_settings={"show_default": True})
@click.option("--rate", callback=_rate, default="100Mbit", help="Of links: 100Mbit, 1Gbit, 10Gbit, ... or unshaped.")
@click.option("--workers", type=click.IntRange(2, 64), default=4, help="Processes that train together.")
@click.option("--bits", type=click.IntRange(1, 8), default=4, is_eager=True, help="Bits a coordinate of plain sumwire.")
@click.option(
    "--methods",
    callback=_methods,
    default="fp32,fp16,powersgd-1,sumwire",
    help="Who competes, in this order: fp32, fp16, powersgd-<rank>, sumwire[-<bits>], sumwire-total-<bits>.",
)
@click.option(
    "--workload",
    type=click.Choice(["conv", "transformer"]),
    default="conv",
    is_eager=True,
    help="ResNet on digits, or GPT on text.",
)
@click.option("--seed", type=SEED, default=0, help="Of weights and batches, the same for all methods.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Training steps of every method.  [default: the workload's own]"
)
@click.option(
    "--target",
    type=float,
    callback=_target,
    help="Accuracy (conv) or loss (transformer).  [default: the workload's own]",
)
@click.option(
    "--figure", type=FIGURE, default=Path("demo.svg"), help="Where to draw score against time (.svg, .png or .pdf)."
)
def demo(bits: int, **options: Any) -> None:
    """Race to a target accuracy over slow links.

    Starts real worker processes, in network namespaces whose links are held to a rate, and trains a model
    with plain DDP, with torch's compression hooks and with Sumwire. Nothing is downloaded, and no privileges
    are needed; where namespaces are refused, links stay unshaped and the table says so.
    """
    from sumwire.lab.demo import run

    run(**options)


@main.command(context_settings={"show_default": True})
@click.option("--workers", type=click.IntRange(1, 65536), required=True, help="Workers of every job.")
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=4650, help="Of the first shard; the others follow.")
@click.option("--shards", type=click.IntRange(1, 64), default=1, help="Processes that share every tensor.")
@click.option("--quorum", type=click.IntRange(min=1), help="Workers that a round waits for.  [default: all]")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), help="Seconds: then those who are there do.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, help="Seconds: then it fails.")
@click.option("--scale-cap", type=click.FloatRange(min=1), help="Times the median of workers' scales.  [default: any]")
@click.option("--first-round", type=click.IntRange(0, 2**63 - 1), help="That jobs begin at.  [default: a random one]")
@click.option("--token", envvar="SUMWIRE_TOKEN", default="", help="That workers must show: better by the environment.")
@click.option("--token-file", type=FILE, help="A file whose first line is the token.")
@click.option("--require-token", is_flag=True, help="Do not start without a token.")
@click.option("--tls-cert", type=FILE, help="Certificate of this server: TLS is on.")
@click.option("--tls-key", type=FILE, help="Its key.")
@click.option("--tls-ca", type=FILE, help="Workers need certificates of this authority (mutual TLS).")
@click.option("--memory", type=click.IntRange(min=1), default=4096, help="MiB that all rounds may hold at a shard.")
@click.option("--max-size", type=click.IntRange(1), default=1 << 32, help="Coordinates of a tensor.")
@click.option(
    "--max-frame", type=click.IntRange(1, 4096), default=256, help="MiB that a Sketch or a share of a Sparse may have."
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="Where /, /metrics, /healthz and /stats are.")
@click.option("--http-host", default="127.0.0.1", help="Address that these listen on.")
@click.option("--http-name", "http_names", multiple=True, help="A further name that browsers may call the page by.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="Of the log, on stderr.")
@click.option(
    "--log-level", type=click.Choice(["info", "warning", "error"]), default="info", help="The least it tells."
)
@click.pass_context
def serve(
    context: click.Context,
    /,
    memory: int,
    max_frame: int,
    token: str,
    token_file: str | None,
    require_token: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    **options: Any,
) -> None:
    """Add workers' payloads: the parameter server.

    Joins terms and adds payloads of any codec, for any number of jobs, and never decompresses. Workers use
    sumwire.connect("host:port", ...) or attach(model, server="host:port"). Ends with Ctrl-C or SIGTERM.
    """
    from sumwire.aggregate.server.run import read_token, run

    if context.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        click.echo("warning: --token can be read in the list of processes; use SUMWIRE_TOKEN or --token-file", err=True)
    if token_file is not None:
        if context.get_parameter_source("token") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--token and --token-file were both given")
        token = read_token(token_file)
    if require_token and not token:
        raise click.UsageError("--require-token, but there is none: set SUMWIRE_TOKEN, or give a --token-file")
    if (tls_cert is None) != (tls_key is None) or (tls_ca is not None and tls_cert is None):
        raise click.UsageError("--tls-cert and --tls-key go together, and --tls-ca needs both")
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key, tls_ca)
    run(tls=tls, token=token, memory=memory << 20, max_frame=max_frame << 20, **options)


@main.group(cls=Commands)
def lab() -> None:
    """Run smaller experiments."""


@lab.command(context_settings={"show_default": True})
@click.option("--workload", type=click.Choice(["mlp", "resnet", "gpt"]), default="mlp", help="Model to train.")
@click.option("--workers", type=click.IntRange(min=1), default=4, help="Workers that average their gradients.")
@click.option("--bits", type=click.IntRange(1, 8), default=4, help="Bits a coordinate that a worker sends.")
@click.option("--seed", type=SEED, default=0, help="Of the training and of the codecs.")
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    help="Training steps before the gradients are taken.  [default: the workload's own]",
)
@click.option(
    "--figure", type=FIGURE, default=Path("codecs.svg"), help="Where to draw error against bits (.svg, .png or .pdf)."
)
def codecs(**options: Any) -> None:
    """Average real gradients in one process and compare size, error and speed.

    Trains a small model, takes every worker's gradient, and averages them with Sumwire, with the THC paper's
    setting, with a uniform table and in fp16.
    """
    from sumwire.lab.codecs import run

    run(**options)


def _workload(ctx: click.Context, param: click.Parameter, name: str) -> str:
    from sumwire.lab.workloads import find

    return cast(str, _checked(lambda: find(name)).name)


@lab.command(context_settings={"show_default": True})
@click.option(
    "--workload", callback=_workload, default="ncf-small", help="ncf, ncf-small, ncf-rows, lstm or vgg: what to train."
)
@click.option("--batch", type=click.IntRange(min=1), help="Samples of each worker.  [default: the workload's own]")
@click.option("--steps", type=click.IntRange(min=0), help="Training steps before gradients are taken.")
@click.option("--seed", type=SEED, default=0, help="Of the training.")
def densities(workload: str, **options: Any) -> None:
    """Train a model and tell how many of its gradients' values are not zero.

    Of one worker, and in the union of 4 and of 16: what a lossless sum has to carry.
    """
    from sumwire.lab.workloads.density import run

    run(workload, **options)


CLIENTS = click.option(
    "--clients",
    type=click.IntRange(1, 10_000),
    multiple=True,
    default=(10, 100),
    callback=lambda ctx, param, counts: tuple(dict.fromkeys(counts)),
    help="How many; may be given more than once.",
)


@lab.command(context_settings={"show_default": True})
@click.option("--dimension", type=click.IntRange(16, 1 << 20), default=1024, help="Coordinates of a vector.")
@CLIENTS
@click.option("--rounds", type=click.IntRange(min=1), default=10, help="Means, of vectors drawn anew.")
@click.option("--seed", type=SEED, default=0, help="Of the vectors and of the schemes.")
@click.option(
    "--figure", type=FIGURE, default=Path("mean.svg"), help="Where to draw error against bits (.svg, .png or .pdf)."
)
def mean(**options: Any) -> None:
    """Estimate a mean by every scheme and compare error and bits.

    Each client sends one vector: Gaussian, or unbalanced, with one coordinate that is much larger. Errors are shown
    beside published bounds.
    """
    from sumwire.lab.mean.estimation import run

    run(**options)


def _rows_options(rounds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What k-means and PCA are asked alike."""
    options = (
        click.option(
            "--data", type=click.Choice(["digits", "fashion-mnist"]), default="digits", help="Images to take."
        ),
        click.option(
            "--path",
            type=click.Path(path_type=Path),
            help="Folder of Fashion-MNIST's idx files.  [default: that of Debian's dataset-fashion-mnist]",
        ),
        click.option("--rows", type=click.IntRange(min=10), help="Take only the first so many images.  [default: all]"),
        CLIENTS,
        click.option(
            "--centred/--as-in-paper",
            default=None,
            help="Send differences to what all know already, or sums as they are.  [default: both]",
        ),
        click.option("--rounds", type=click.IntRange(min=1), default=rounds, help="Of a fit, at most."),
        click.option(
            "--repeats", type=click.IntRange(min=1), default=1, help="Fits of every scheme, from other starts."
        ),
        click.option("--seed", type=SEED, default=0, help="Of the starts and of the schemes."),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@lab.command(context_settings={"show_default": True})
@_rows_options(rounds=10)
@click.option(
    "--figure", type=FIGURE, default=Path("kmeans.svg"), help="Where to draw inertia against bits (.svg, .png or .pdf)."
)
def kmeans(**options: Any) -> None:
    """Cluster images over clients that send compressed sums, by every scheme.

    Ten centres, 1024 pixels by padding; inertia is compared with an uncompressed run from the same first centres.
    """
    from sumwire.lab.mean.clustering import run

    run(**options)


@lab.command(context_settings={"show_default": True})
@_rows_options(rounds=20)
@click.option("--components", type=click.IntRange(1, 64), default=4, help="How many to find; the paper has one.")
@click.option(
    "--figure", type=FIGURE, default=Path("pca.svg"), help="Where to draw error against bits (.svg, .png or .pdf)."
)
def pca(**options: Any) -> None:
    """Find principal components over clients that send compressed products, by every scheme.

    1024 pixels by padding; the first component and the variance explained are compared with exact ones.
    """
    from sumwire.lab.mean.components import run

    run(**options)
