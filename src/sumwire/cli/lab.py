"""`sumwire demo`, and the small experiments of `sumwire lab`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sumwire.cli.base import SEED, Commands, checked, click, figure_option, json_option


def _rate(ctx: click.Context, param: click.Parameter, text: str) -> float | None:
    from sumwire.lab.links import parse_rate

    return checked(lambda: parse_rate(text))


def _methods(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    from sumwire.lab.methods import parse_methods

    return checked(lambda: parse_methods(text, ctx.params["bits"]))


def _target(ctx: click.Context, param: click.Parameter, target: float | None) -> float | None:
    from sumwire.lab.tasks import TASKS, check_target

    return None if target is None else checked(lambda: check_target(TASKS[ctx.params["workload"]], target))


# Eager options are parsed first, because other options depend on them.
@click.command(context_settings={"show_default": True})
@click.option("--rate", callback=_rate, default="100Mbit", help="Link rate: 100Mbit, 1Gbit, 10Gbit, ... or unshaped.")
@click.option("--workers", type=click.IntRange(2, 64), default=4, help="Number of worker processes.")
@click.option(
    "--bits", type=click.IntRange(1, 8), default=4, is_eager=True, help="Bits per coordinate of the method sumwire."
)
@click.option(
    "--methods",
    callback=_methods,
    default="fp32,fp16,powersgd-1,sumwire",
    help="Methods to compare, in order: fp32, fp16, powersgd-<rank>, sumwire[-<bits>], sumwire-total-<bits>.",
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
    namespaces are not permitted, links stay unshaped, and the table says so.
    """
    from sumwire.lab.demo import run

    run(**options)


@click.group(cls=Commands)
def lab() -> None:
    """Run small experiments."""


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
    help="Model to train: ncf, ncf-small, ncf-rows, lstm or vgg.",
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
