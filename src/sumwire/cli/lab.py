"""`sumwire demo`, and the small experiments of `sumwire lab`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sumwire.cli.base import SEED, Commands, checked, click, figure_option, json_option
from sumwire.kernels.threads import get_num_cores


def _rate(ctx: click.Context, param: click.Parameter, text: str) -> float | None:
    from sumwire.lab.links import parse_rate

    return checked(lambda: parse_rate(text))


_METHODS = {
    (False, False): "fp32,fp16,powersgd-1,sumwire",
    (False, True): "fp32,fp16,sumwire,switch",
    (True, False): "fp32,sumwire,diloco-32,diloco",
    (True, True): "fp32,sumwire,diloco-32,diloco",
}
"""Compared by default: across sites, over a switch."""
_SITES = {"rate": "10Mbit", "workload": "transformer", "steps": 200, "every": 20}
"""Other defaults, across sites."""


def _of_sites(ctx: click.Context, param: click.Parameter, sites: bool) -> bool:
    if sites:
        ctx.default_map = {**(ctx.default_map or {}), **_SITES}
    return sites


def _methods(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    from sumwire.lab.methods import parse_methods

    given = text or _METHODS[ctx.params["sites"], ctx.params["switch"]]
    return checked(lambda: parse_methods(given, ctx.params["bits"]))


def _target(ctx: click.Context, param: click.Parameter, target: float | None) -> float | None:
    from sumwire.lab.workloads import find

    return None if target is None else checked(lambda: find(ctx.params["workload"]).check_target(target))


# Eager options are parsed first, because other options depend on them.
@click.command(context_settings={"show_default": True})
@click.option(
    "--sites",
    is_flag=True,
    is_eager=True,
    callback=_of_sites,
    help="Workers are sites with slow links between them: compares DDP with DiLoCo, which exchanges every --every "
    "steps. Defaults are then --rate 10Mbit, --workload transformer and --steps 200.",
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    help="Steps from one evaluation, and from one exchange of DiLoCo, to the next.  [default: depends on the workload; "
    "with --sites 20]",
)
@click.option("--rate", callback=_rate, default="100Mbit", help="Link rate: 100Mbit, 1Gbit, 10Gbit, ... or unshaped.")
@click.option("--workers", type=click.IntRange(2, 64), default=4, help="Number of worker processes.")
@click.option(
    "--bits", type=click.IntRange(1, 8), default=4, is_eager=True, help="Bits per coordinate of the method sumwire."
)
@click.option(
    "--switch",
    is_flag=True,
    is_eager=True,
    help="Join the hosts through a switch that adds in the kernel. Needs root; see docs/in-network.md.",
)
@click.option(
    "--methods",
    callback=_methods,
    default="",
    help="Methods to compare, in order: fp32, fp16, bf16, powersgd-<rank>, sumwire[-<bits>], sumwire-total-<bits>, "
    "diloco[-<bits>], peer-<name> (published schemes, see docs/lab.md); with --switch also switch[-<bits>].  "
    "[default: fp32,fp16,powersgd-1,sumwire; with --switch fp32,fp16,sumwire,switch; with --sites "
    "fp32,sumwire,diloco-32,diloco]",
)
@click.option(
    "--workload",
    type=click.Choice(["conv", "transformer"]),
    default="conv",
    is_eager=True,
    help="ResNet on digits, or GPT on text.",
)
@click.option("--seed", type=SEED, default=0, help="Seed of weights and batches, the same for all methods.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Training steps of every method.  [default: depends on the workload]"
)
@click.option(
    "--target",
    type=float,
    callback=_target,
    help="Target accuracy (conv) or loss (transformer).  [default: depends on the workload]",
)
@figure_option("demo.svg", "score over time")
def demo(bits: int, **options: Any) -> None:
    """Compare the time to a target accuracy over slow links.

    Starts real worker processes in network namespaces with rate-limited links, and trains a model with plain DDP,
    with torch's compression hooks and with Sumwire. Nothing is downloaded and no privileges are needed. Where
    namespaces are not permitted, links stay unshaped, and the table says so; --switch then ends with the reason.
    """
    from sumwire.lab.demo import run

    run(**options)


@click.group(cls=Commands)
def lab() -> None:
    """Run experiments: the papers' evaluations, on this machine.

    "list", "run" and "report" are for experiments that are kept as results; the others print and draw at once.
    """


@lab.command("list")
def list_experiments() -> None:
    """List experiments that "run" knows, and what "report" calculates from them, with the question of each."""
    from sumwire.lab.experiments import NAMES, SUMMARIES, find, find_summary

    width = max(map(len, (*NAMES, *SUMMARIES)))
    for name in NAMES:
        experiment = find(name)
        count = f"{len(experiment.quick)} quick, {len(experiment.full)} full points"
        click.echo(f"{name:<{width}} {experiment.question} ({count})")
    for name in SUMMARIES:
        summary = find_summary(name)
        click.echo(f"{name:<{width}} {summary.question} (from {', '.join(summary.sources)})")


RESULTS = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("lab-results"),
    help="Folder of result files, one for each experiment.",
)


def _experiments(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    from sumwire.lab.experiments import NAMES, find

    chosen = NAMES if "all" in names else tuple(dict.fromkeys(names))
    return tuple(checked(lambda: find(name)).name for name in chosen)  # noqa: B023


@lab.command("run", context_settings={"show_default": True})
@click.argument("names", nargs=-1, required=True, callback=_experiments, metavar="NAME...")
@click.option("--full/--quick", default=False, help="All points of the docs, or enough for a rough answer.")
@click.option("--again", is_flag=True, help="Measure also what has results.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=get_num_cores,
    show_default="the number of cores",
    help="Points that are measured at the same time; times are always measured alone.",
)
@RESULTS
def run_experiments(names: tuple[str, ...], full: bool, again: bool, jobs: int, results: Path) -> None:
    """Measure experiments by NAME, or "all", each point in a process of its own.

    Results are appended as JSON lines. A run that was stopped goes on where it was.
    """
    from rich.console import Console

    from sumwire.lab.experiments.run import run

    run(names, results, full=full, again=again, jobs=jobs, console=Console(highlight=False))


@lab.command("report", context_settings={"show_default": True})
@RESULTS
@click.option(
    "--out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("report.html"),
    help="File for the page.",
)
@click.option("--figures", type=click.Path(file_okay=False, path_type=Path), help="Folder for an SVG of each chart.")
def report_experiments(results: Path, out: Path, figures: Path | None) -> None:
    """Write one page with charts and tables of all results. It works without a network."""
    from sumwire.lab.experiments.report import write

    names = write(results, out, figures)
    click.echo(f"{out}: {', '.join(names)}")


@lab.command(context_settings={"show_default": True})
@click.option("--workload", type=click.Choice(["mlp", "resnet", "gpt"]), default="mlp", help="Model to train.")
@click.option("--workers", type=click.IntRange(min=1), default=4, help="Workers that average their gradients.")
@click.option("--bits", type=click.IntRange(1, 8), default=4, help="Bits per coordinate that a worker sends.")
@click.option("--seed", type=SEED, default=0, help="Seed of training and codecs.")
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    help="Training steps before gradients are taken.  [default: depends on the workload]",
)
@figure_option("codecs.svg", "error over bits")
def codecs(**options: Any) -> None:
    """Average real gradients in one process and compare size, error and speed.

    Trains a small model, takes the gradient of every worker, and averages them with Sumwire, with the setting of the
    THC paper, with a uniform table and in fp16.
    """
    from sumwire.lab.codecs import run

    run(**options)


def _workload(ctx: click.Context, param: click.Parameter, name: str) -> str:
    from sumwire.lab.workloads import find

    return checked(lambda: find(name)).name


@lab.command(context_settings={"show_default": True})
@click.option(
    "--workload",
    callback=_workload,
    default="ncf-small",
    help="Model to train: ncf, ncf-small, ncf-rows, lstm, vgg or any other workload.",
)
@click.option("--batch", type=click.IntRange(min=1), help="Samples per worker.  [default: depends on the workload]")
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    help="Training steps before gradients are taken.  [default: depends on the workload]",
)
@click.option("--seed", type=SEED, default=0, help="Seed of the training.")
def densities(workload: str, **options: Any) -> None:
    """Train a model and measure how many values of its gradients are non-zero.

    For one worker, and for the union of 4 and of 16 workers: what a lossless sum has to carry.
    """
    from sumwire.lab.workloads.density import run

    run(workload, **options)


CLIENTS = click.option(
    "--clients",
    type=click.IntRange(1, 10_000),
    multiple=True,
    default=(10, 100),
    callback=lambda ctx, param, counts: tuple(dict.fromkeys(counts)),
    help="Number of clients; may be given more than once.",
)


@lab.command(context_settings={"show_default": True})
@click.option("--dimension", type=click.IntRange(16, 1 << 20), default=1024, help="Coordinates of a vector.")
@CLIENTS
@click.option("--rounds", type=click.IntRange(min=1), default=10, help="Rounds, each with new vectors.")
@click.option("--seed", type=SEED, default=0, help="Seed of vectors and schemes.")
@json_option()
@figure_option("dme.svg", "error over bits")
def dme(**options: Any) -> None:
    """Estimate a mean with every scheme and compare error and bits.

    Each client sends one vector: Gaussian, or unbalanced, with one coordinate that is much larger. The table shows
    errors beside published bounds.
    """
    from sumwire.lab.dme.estimation import run

    run(**options)


def _rows_options(rounds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that k-means and PCA share."""
    options = (
        click.option("--data", type=click.Choice(["digits", "fashion-mnist"]), default="digits", help="Data set."),
        click.option(
            "--path",
            type=click.Path(path_type=Path),
            help="Folder with the idx files of Fashion-MNIST.  [default: that of Debian's dataset-fashion-mnist]",
        ),
        click.option("--rows", type=click.IntRange(min=10), help="Use only the first images.  [default: all]"),
        CLIENTS,
        click.option(
            "--centered/--as-in-paper",
            default=None,
            help="Send differences from what everyone already knows, or plain sums.  [default: both]",
        ),
        click.option("--rounds", type=click.IntRange(min=1), default=rounds, help="Maximum rounds of a fit."),
        click.option(
            "--repeats", type=click.IntRange(min=1), default=1, help="Fits per scheme, from different starts."
        ),
        click.option("--seed", type=SEED, default=0, help="Seed of starts and schemes."),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@lab.command(context_settings={"show_default": True})
@_rows_options(rounds=10)
@json_option()
@figure_option("kmeans.svg", "inertia over bits")
def kmeans(**options: Any) -> None:
    """Cluster images over clients that send compressed sums, with every scheme.

    Ten centers, images padded to 1024 pixels; inertia is compared with an uncompressed run from the same first centers.
    """
    from sumwire.lab.dme.clustering import run

    run(**options)


@lab.command(context_settings={"show_default": True})
@_rows_options(rounds=20)
@click.option("--components", type=click.IntRange(1, 64), default=4, help="Number of components; the paper finds one.")
@json_option()
@figure_option("pca.svg", "error over bits")
def pca(**options: Any) -> None:
    """Find principal components over clients that send compressed products, with every scheme.

    Images are padded to 1024 pixels; the first component and the explained variance are compared with exact ones.
    """
    from sumwire.lab.dme.components import run

    run(**options)
