"""Double compression in training: where it ends if gradients are decompressed and compressed again on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sumwire import Lattice
from sumwire.lab.experiments.base import Chart, Experiment, Point, Row
from sumwire.lab.experiments.hops import BITS, chain, server
from sumwire.lab.experiments.traces import Floats
from sumwire.lab.experiments.trainings import Build, lattice, peer, points, rows, training
from sumwire.lab.simulate import Exchange, Method


class Recompressed(Method):
    """A way of averaging that decompresses on the way, with fresh random numbers in every round.

    Its messages are payloads of the codec for one worker, up and down, whose bits are calculated for tensors without
    blocks of zeros; a ring's, with (n - 1) / n of a tensor in either phase, are counted as those of a whole tensor, as
    in `sumwire.lab.peers`.
    """

    def __init__(self, average: Callable[[Sequence[Floats], int], Floats], seed: int) -> None:
        self._average, self._seed = average, seed
        self._rounds = 0

    def average(self, xs: Sequence[Floats]) -> Exchange:
        self._rounds += 1
        mean = self._average(xs, 100_000 * self._seed + self._rounds)
        size = xs[0].size
        up, _, terms = Lattice(1, BITS, widths="fixed").expected_bits(size)
        bits = (up + terms) / size
        return Exchange((mean,), bits, bits)


def measure(point: Point) -> Iterator[Row]:
    seed = int(point["seed"])
    methods: dict[str, Build] = {
        "fp32": peer("fp32", point),
        "added compressed, exact sums": lattice(point, bits=BITS, widths="fixed", down_bits="exact"),
        "added compressed, narrow sums": lattice(point, bits=BITS, widths="fixed"),
        "decompressed at a server": lambda size: Recompressed(server, seed),
        "decompressed at every hop of a ring": lambda size: Recompressed(chain, seed),
    }
    yield from rows(training(point), methods)


EXPERIMENT = Experiment(
    name="hops_training",
    title="Double compression in training",
    question="How much worse does training end with schemes that decompress and compress again on the way?",
    quick=points(("perceptron",), (2, 8), 1, steps=40, metric="loss"),
    full=points(("gpt-small",), (2, 4, 8, 16, 32), 3, steps=60, metric="loss")
    + points(("perceptron",), (2, 4, 8, 16, 32), 3, steps=100, metric="loss"),
    measure=measure,
    columns={
        "workload": "{workload}", "workers": "{workers}", "seed": "{seed}", "method": "{method}",
        "up": "{up_bits:.2f}", "down": "{down_bits:.2f}", "metric": "{metric}", "score": "{score:.4f}",
        "worse than fp32 by": "{worse:+.4f}", "NMSE": "{nmse:.5f}", "diverged": "{diverged}",
    },
    chart=Chart(
        x="workers", y="worse", series="method", panel="workload", x_label="workers (hops of the ring)",
        y_label="worse than fp32 by", log_x=True,
    ),
    notes=f"The same {BITS}-bit quantizer everywhere, with fixed widths and without feedback, so that only the order "
    "of operations differs. Losses are of held-out samples. Every worker has as many samples in a step, however many "
    "workers there are.",
)  # fmt: skip
