"""`sumwire demo`."""

from __future__ import annotations

from typing import Any

from sumwire.cli.base import SEED, checked, click, figure_option


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
