"""Where a step's time goes: compute, encode, exchange, add, decode, on each transport."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from statistics import fmean
from typing import Any

from sumwire.aggregate.network.aggregator import PacketAggregator
from sumwire.aggregate.protocol.job import JobOptions
from sumwire.aggregate.server.server import Server
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.stages_rank import LAYERS, WHOLE
from sumwire.lab.launch import launch
from sumwire.lab.links import Network, links
from sumwire.lab.switched import switched_links

TRANSPORTS = ("fp32 all-reduce", "process group", "server", "packets", "switch")
SECRET = "of an experiment on this machine"


@contextmanager
def _network(transport: str, workers: int) -> Iterator[tuple[Network, str, str]]:
    """Where ranks run, and address and token of what adds, if that is not they."""
    if transport == "switch":
        # Not the loopback device, but links between network namespaces, without a limit.
        with switched_links(workers, None) as network:
            yield network, network.aggregator, network.token
        return
    with links(workers, None) as network:
        if transport == "server":
            with Server(workers=workers) as server:
                yield network, server.address, ""
        elif transport == "packets":
            job = JobOptions(number=0, secret=SECRET, peers=("127.0.0.1",) * workers)
            with PacketAggregator([job], port=0) as aggregator:
                yield network, aggregator.address, SECRET
        else:
            yield network, "", ""


def measure(point: Point) -> Iterator[Row]:
    transport, workers, width, rounds = (point[key] for key in ("transport", "workers", "width", "rounds"))
    found: list[dict[str, Any]] = []
    with _network(str(transport), int(workers)) as (network, address, token):
        arguments = [str(transport), address, token, str(width), str(rounds)]
        launch(network, "sumwire.lab.experiments.stages_rank", arguments, on_line=found.append, timeout=600)
    values = LAYERS * int(width) ** 2
    for stage in found[0]["stages"]:
        yield {"values": values, "stage": stage, "ms": fmean(rank["stages"][stage] for rank in found)}


def _points(widths: tuple[int, ...], rounds: int, seeds: int) -> list[Point]:
    return [
        {"transport": transport, "workers": 4, "width": width, "rounds": rounds, "seed": seed}
        for width, transport, seed in product(widths, TRANSPORTS, range(seeds))
    ]


EXPERIMENT = Experiment(
    name="stages",
    title="Where the time goes",
    question="How long do the stages of a step take on each transport?",
    quick=_points((256,), 10, 1),
    full=_points((128, 512, 2048), 10, 3),
    measure=measure,
    timed=True,
    columns={
        "transport": "{transport}", "values": "{values:,}", "run": "{seed}", "stage": "{stage}", "ms": "{ms:.2f}",
    },
    chart=Chart(
        x="transport", y="ms", series="stage", panel="values", x_label="transport", y_label="ms", stacked=True,
        omitted=(WHOLE,),
    ),
    notes="Four ranks on one machine, over its loopback device; over a switch, which adds in the kernel, by links "
    "between network namespaces without a limit. Means over ranks and steps. An exchange is sending, receiving and "
    "waiting for others; over a server, by packets and over a switch, also adding, which the aggregator does. Ranks "
    "share the machine's cores: where there are fewer than ranks, each waits for the others' stages, too.",
)  # fmt: skip
