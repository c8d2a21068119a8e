"""Double compression: what it costs to decompress, add and compress again on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.traces import Floats, mean_by, nmse, noise, noise_points
from sumwire.lab.simulate import true_mean

SIZE = 1 << 16
ROUNDS = 3
BITS = 4


def chain(xs: Sequence[Floats], seed: int) -> Floats:
    """A ring's reduction: each worker decodes what it gets, adds its own, and encodes the sum again."""
    codec = Lattice(1, BITS, seed=seed, widths="fixed")
    total = xs[0]
    for hop, x in enumerate(xs[1:], start=1):
        total = mean_by(codec, [total], round_id=hop) + x
    return mean_by(codec, [total], round_id=len(xs)) / np.float32(len(xs))


def server(xs: Sequence[Floats], seed: int) -> Floats:
    """A parameter server that decodes every payload, averages, and encodes the mean."""
    codec = Lattice(1, BITS, seed=seed, widths="fixed")
    decoded = [mean_by(codec, [x], round_id=worker) for worker, x in enumerate(xs)]
    return mean_by(codec, [true_mean(decoded).astype(np.float32)], round_id=len(xs))


def added(xs: Sequence[Floats], seed: int) -> Floats:
    """Compressed once, added, decompressed once."""
    return mean_by(Lattice(len(xs), BITS, seed=seed, widths="fixed", down_bits="exact"), xs)


def narrowed(xs: Sequence[Floats], seed: int) -> Floats:
    """The default: integers are added, and their sum is narrowed once for the way down."""
    return mean_by(Lattice(len(xs), BITS, seed=seed, widths="fixed"), xs)


METHODS: dict[str, Callable[[Sequence[Floats], int], Floats]] = {
    "added compressed, exact sums": added,
    "added compressed, narrow sums": narrowed,
    "decompressed at a server": server,
    "decompressed at every hop of a ring": chain,
}


def measure(point: Point) -> Iterator[Row]:
    workers, seed = int(point["workers"]), int(point["seed"])
    xs = noise(workers, SIZE, float(point["correlation"]), seed)
    exact = true_mean(xs)
    for name, method in METHODS.items():
        error = np.mean([nmse(method(xs, 1000 * seed + r), exact) for r in range(ROUNDS)])
        yield {"method": name, "nmse": float(error)}


EXPERIMENT = Experiment(
    name="hops",
    title="Double compression",
    question="How much error do schemes add that decompress and compress again on the way?",
    quick=noise_points((2, 4, 8), 1),
    full=noise_points((2, 4, 8, 16, 32), 3),
    measure=measure,
    columns={
        "workers": "{workers}", "correlation": "{correlation}", "seed": "{seed}", "method": "{method}",
        "NMSE": "{nmse:.6f}",
    },
    chart=Chart(
        x="workers", y="nmse", series="method", panel="correlation", x_label="workers", y_label="NMSE of the mean",
        log_x=True, log_y=True,
    ),
    notes=f"The same {BITS}-bit quantizer everywhere, with fixed widths, so that only the order of "
    "operations differs. Exact sums take more bits down, the more workers there are.",
)  # fmt: skip
