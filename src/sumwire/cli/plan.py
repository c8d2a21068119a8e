"""`sumwire plan`: what a training step would take, and what to choose."""

from __future__ import annotations

from typing import Any

from sumwire.cli.base import checked, click, figure_option


def _rate(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    from sumwire.lab.links import parse_rate

    rate = None if text is None else checked(lambda: parse_rate(text))
    if param.name == "server_rate" and text is not None and rate is None:
        raise click.BadParameter("a server's link has a rate: write 10Gbit or 100Gbit, say")
    return rate


def _parameters(ctx: click.Context, param: click.Parameter, number: float | None) -> int | None:
    from sumwire.lab.plan import parameters_of

    return None if number is None else checked(lambda: parameters_of(number))


def _seconds(ctx: click.Context, param: click.Parameter, milliseconds: float) -> float:
    return milliseconds / 1e3


@click.command(context_settings={"show_default": True})
@click.option("--parameters", type=float, callback=_parameters, help="Parameters of the model: 25e6, say.")
@click.option("--workers", type=click.IntRange(1, 65536), default=4, help="Ranks that average.")
@click.option(
    "--rate", callback=_rate, default="1Gbit", help="Rate of each host's link: 100Mbit, 1Gbit, ... or unshaped."
)
@click.option(
    "--round-trip",
    type=click.FloatRange(0, 60_000),
    callback=_seconds,
    default=0.1,
    help="Milliseconds from one host to another and back.",
)
@click.option(
    "--compute",
    type=click.FloatRange(0, 1e9),
    callback=_seconds,
    default=0.0,
    help="Milliseconds of a step without exchange; 0: exchanges alone.",
)
@click.option("--ranks-per-host", type=click.IntRange(1, 1024), default=1, help="Ranks that share a host's cores.")
@click.option("--cores", type=click.IntRange(1, 4096), help="Cores of a host.  [default: those of this machine]")
@click.option(
    "--overlap",
    type=click.FloatRange(0, 1),
    default=round(2 / 3, 3),
    help="Share of the compute time that exchanges may run beside: the backward pass.",
)
@click.option("--every", type=click.IntRange(2, 10**6), default=100, help="Steps between exchanges of DiLoCo.")
@click.option("--server-rate", callback=_rate, help="Rate of a parameter server's link: 10Gbit, ...  [default: --rate]")
@click.option("--calibrate", is_flag=True, help="Measure what exchanges cost this machine, and remember it.")
@figure_option("plan.svg", "step time over link rate")
def plan(**options: Any) -> None:
    """Predict the time of a training step, and recommend how to average.

    For all-reduce in fp32 and bf16, for Sumwire over a process group, a server and a switch, and for DiLoCo, from a
    cost model of this machine: --calibrate measures it once. Nothing is trained or sent.
    """
    from sumwire.lab.plan_report import run

    if options["parameters"] is None and not options["calibrate"]:
        raise click.UsageError("give the model's --parameters (25e6, say), or --calibrate")
    run(**options)
