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
from sumwire.lab.experiments.stages_rank import LAYERS
from sumwire.lab.launch import launch
from sumwire.lab.links import links

TRANSPORTS = ("fp32 all-reduce", "process group", "server", "packets")
SECRET = "of an experiment on this machine"


@contextmanager
def _aggregator(transport: str, workers: int) -> Iterator[tuple[str, str]]:
    """Address and token of what adds, if that is a process of its own."""
    if transport == "server":
        with Server(workers=workers) as server:
            yield server.address, ""
    elif transport == "packets":
        job = JobOptions(number=0, secret=SECRET, peers=("127.0.0.1",) * workers)
        with PacketAggregator([job], port=0) as aggregator:
            yield aggregator.address, SECRET
    else:
        yield "", ""


def measure(point: Point) -> Iterator[Row]:
    transport, workers, width, rounds = (point[key] for key in ("transport", "workers", "width", "rounds"))
    found: list[dict[str, Any]] = []
    with links(int(workers), None) as network, _aggregator(str(transport), int(workers)) as (address, token):
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
    question="How long do the stages of a step take on each transport, over loopback?",
    quick=_points((256,), 10, 1),
    full=_points((128, 512, 2048), 10, 1),
    measure=measure,
    columns={
        "transport": "{transport}", "values": "{values:,}", "run": "{seed}", "stage": "{stage}", "ms": "{ms:.2f}",
    },
    chart=Chart(
        x="values", y="ms", series="stage", panel="transport", x_label="values of the gradient", y_label="ms",
        log_x=True, log_y=True,
    ),
    notes="Four ranks on one machine; means over ranks and steps. An exchange is sending, receiving and waiting for "
    "others; over a server and by packets, also adding, which the aggregator does. Ranks share the machine's cores: "
    "where there are fewer than ranks, each waits for the others' stages, too.",
)  # fmt: skip
