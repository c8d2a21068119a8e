"""The Sketch codec: how often peeling gives the exact sum, and how fast it is, against its load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from sumwire.codec.sketch.codec import Sketch
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.sketching import SUPPORTS, completes, tensor
from sumwire.lab.timing import against

LOADS = (1.10, 1.15, 1.20, 1.22, 1.23, 1.24, 1.26, 1.30, 1.40)
"""Cells per non-zero. With three cells for each coordinate, large peels get stuck below 1.23."""
DENSITY = 0.05
"""Of every support."""


def measure(point: Point) -> Iterator[Row]:
    name, nonzeros, trials = str(point["support"]), int(point["nonzeros"]), int(point["trials"])
    seed, repeats = int(point["seed"]), int(point["repeats"])
    make, rng = SUPPORTS[name], np.random.default_rng(seed)
    supports = [make(nonzeros, rng) for _ in range(trials)]
    x = tensor(make(round(DENSITY * int(point["values"])), rng), rng)
    dense = np.empty_like(x)
    for load in LOADS:
        peeled = sum(completes(support, load, trials * seed + trial) for trial, support in enumerate(supports))
        codec = Sketch(1, rows_per_nonzero=load, seed=seed)
        terms = codec.propose(x)
        payload = codec.encode(x, terms, rank=0)
        row: Row = {
            "load": load,
            "peeled_percent": 100 * peeled / trials,
            "bytes_percent": 100 * payload.nbytes / x.nbytes,
            "nonzero_percent": 100 * np.count_nonzero(x) / x.size,
        }
        timed: dict[str, Callable[[], object]] = {"encode": lambda: codec.encode(x, terms, rank=0)}  # noqa: B023
        # A peel that gets stuck ends early: its time says nothing.
        if not codec.follow_up(codec.add([payload])):
            timed["decode"] = lambda: codec.decode(payload)  # noqa: B023
        for verb, call in timed.items():
            timing = against(lambda: np.copyto(dense, x), call, repeats)
            row |= {f"{verb}_memcpy": timing.ratio, f"{verb}_ms": 1e3 * timing.seconds}
        yield row


def _points(supports: tuple[str, ...], nonzeros: int, trials: int, values: int, seeds: int) -> list[Point]:
    return [
        {
            "support": support,
            "nonzeros": nonzeros,
            "trials": trials,
            "values": values,
            "repeats": 5 if seeds == 1 else 9,
            "seed": seed,
        }
        for support, seed in product(supports, range(seeds))
    ]


EXPERIMENT = Experiment(
    name="sketch",
    title="Sketches",
    question="How many cells does exact peeling need for a non-zero, and what does a sketch cost beside a memcpy?",
    quick=_points(("random", "rows of 128"), 10_000, 20, 1 << 20, 1),
    full=_points(tuple(SUPPORTS), 50_000, 200, 1 << 24, 3),
    measure=measure,
    timed=True,
    columns={
        "support": "{support}", "seed": "{seed}", "cells per non-zero": "{load:.2f}",
        "peeled": "{peeled_percent:.1f} %", "of trials": "{trials}", "bytes of dense": "{bytes_percent:.1f} %",
        "encode, x memcpy": "{encode_memcpy:.2f}", "decode, x memcpy": "{decode_memcpy:.2f}",
    },
    chart=Chart(
        x="load", y="peeled_percent", series="support", panel="nonzeros", x_label="cells per non-zero",
        y_label="peels without leftovers, %",
    ),
    notes=f"{DENSITY:.0%} of values are non-zero. Every trial has new places and hashes; a peel either gives all "
    "values exactly or says that it got stuck. Times: medians on one thread, of the larger tensor, beside a memcpy of "
    "the dense tensor, timed in turn with it and neither in a cache. Decoding is not timed where its peel gets stuck.",
)  # fmt: skip
