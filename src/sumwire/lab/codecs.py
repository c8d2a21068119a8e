"""`sumwire lab codecs`: average real gradients in one process, and compare codecs by size, error and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from sumwire import Lattice, set_num_threads
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.lab.codecs_report import Cost, Report, Row, cost_table, draw, speed_table, summary
from sumwire.lab.display import check_path, progress_bars
from sumwire.lab.gradients import worker_gradients
from sumwire.lab.workloads import find
from sumwire.lab.workloads.reproducible import one_torch_thread

ROUNDS = 4
"""Every NMSE is a mean over this many rounds."""

SPEED_BYTES = 16 << 20
"""Minimum tensor size for measuring speed: smaller tensors measure call overhead."""

CURVE_BITS = range(1, 9)

_REPEATS = 9
_TIME_LIMIT = 1.0
"""Seconds after which three repetitions are enough."""

Gradients = Sequence[NDArray[np.float32]]


class Candidate(NamedTuple):
    """A codec and its name in tables."""

    label: str
    code: str
    codec: Lattice


def run(workload: str, *, workers: int, bits: int, seed: int, steps: int | None, figure: Path) -> None:
    """Train, measure, print the tables and draw the figure."""
    check_path(figure)
    console = Console(highlight=False)
    with progress_bars(console) as progress:
        training = progress.add_task(f"training {workload}", total=None)
        measuring = progress.add_task("measuring", total=len(CURVE_BITS) + 5)
        gradients = worker_gradients(
            workload,
            workers,
            steps=steps,
            seed=seed,
            on_step=lambda done, total: progress.update(training, completed=done, total=total),
        )
        report = measure(workload, gradients, bits=bits, seed=seed, tick=lambda: progress.advance(measuring))
    draw(report, figure)
    for table in (cost_table(report), speed_table(report)):
        console.print("", table, "", sep="\n")
    console.print(f"Error against bits: {figure}", soft_wrap=True)
    console.print(summary(report), style="bold", soft_wrap=True)


def measure(
    workload: str, gradients: Gradients, *, bits: int, seed: int = 0, tick: Callable[[], None] = lambda: None
) -> Report:
    """Measure everything in the report; call `tick` after every codec of the table and every point of the curves."""
    workers = len(gradients)
    with one_thread():
        memcpy = memcpy_speed(gradients)
        rows = []
        for label, code, codec in candidates(workers, bits, seed):
            rows.append(Row(label, code, cost(codec, gradients), speed(codec, gradients)))
            tick()
        fp16 = Row("fp16", "cast, mean, cast", fp16_cost(gradients), fp16_speed(gradients))
        tick()
    mine, same_bits, thc, uniform = rows
    return Report(
        workload=find(workload).description,
        workers=workers,
        coordinates=gradients[0].size,
        sumwire=mine,
        same_bits=same_bits,
        thc=thc,
        uniform=uniform,
        fp16=fp16,
        curves=curves(gradients, seed, tick),
        memcpy=memcpy,
        speed_bytes=tile(gradients[0]).nbytes,
    )


def candidates(workers: int, bits: int, seed: int) -> tuple[Candidate, Candidate, Candidate, Candidate]:
    """Sumwire, Sumwire with the total bits of the paper, the paper, and a uniform table."""
    if bits == 4:
        thc = Candidate("THC paper's setting", f"Lattice.thc({workers})", Lattice.thc(workers, seed=seed))
    else:
        thc = Candidate(f"THC recipe, {bits}-bit", "Lattice.thc(...)", recipe(workers, bits, seed=seed))
    total = thc.codec.bits + thc.codec.sum_bits
    return (
        Candidate(f"Sumwire, {bits}-bit", f"Lattice({workers}, {bits})", Lattice(workers, bits, seed=seed)),
        Candidate(
            f"Sumwire, {total} bits total",
            f"Lattice({workers}, total_bits={total})",
            Lattice(workers, total_bits=total, seed=seed),
        ),
        thc,
        Candidate(
            f"uniform, {bits}-bit", f"Lattice.uniform({workers}, {bits})", Lattice.uniform(workers, bits, seed=seed)
        ),
    )


def recipe(workers: int, bits: int, *, seed: int) -> Lattice:
    """The paper's setting applied to other widths, with lanes as narrow as possible."""
    return Lattice.thc(workers, bits, lane_bits=None, seed=seed)


def split(workers: int, bits: int, *, seed: int) -> Lattice:
    """Sumwire with the total bits of the uniform table at this width."""
    uniform = Lattice.uniform(workers, bits)
    return Lattice(workers, total_bits=uniform.bits + uniform.sum_bits, seed=seed)


def curves(gradients: Gradients, seed: int, tick: Callable[[], None]) -> dict[str, list[Cost]]:
    """Cost and error of every codec for every uplink width."""
    workers = len(gradients)
    builders: dict[str, Callable[[int], Lattice]] = {
        "default": partial(Lattice, workers, seed=seed),
        "fixed": partial(Lattice, workers, widths="fixed", seed=seed),
        "split": partial(split, workers, seed=seed),
        "thc": partial(recipe, workers, seed=seed),
        "uniform": partial(Lattice.uniform, workers, seed=seed),
    }
    found: dict[str, list[Cost]] = {name: [] for name in builders}
    for bits in CURVE_BITS:
        for name, build in builders.items():
            found[name].append(cost(build(bits), gradients))
        tick()
    return found


def cost(codec: Lattice, gradients: Gradients) -> Cost:
    """What a worker sends and receives, and the error of the mean over `ROUNDS` rounds."""
    size, exact = gradients[0].size, exact_mean(gradients)
    terms = join(codec, gradients)
    errors = []
    for round_id in range(ROUNDS):
        payloads = [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(gradients)]
        total = codec.add(payloads).narrow()
        errors.append(nmse(codec.decode(total), exact))
    sent = (payloads[0].nbytes, total.nbytes, 2 * terms.nbytes)
    up, down, agreed = (8 * nbytes / size for nbytes in sent)
    return Cost(up, down, agreed, fmean(errors))


def fp16_cost(gradients: Gradients) -> Cost:
    """Every worker casts to fp16; the mean is computed in fp32 and cast to fp16."""
    mean = np.asarray(np.mean([x.astype(np.float16) for x in gradients], axis=0, dtype=np.float32))
    return Cost(16.0, 16.0, 0.0, nmse(mean.astype(np.float16), exact_mean(gradients)))


def exact_mean(gradients: Gradients) -> NDArray[np.float64]:
    return np.asarray(np.mean(gradients, axis=0, dtype=np.float64))


def nmse(estimate: NDArray[np.floating], exact: NDArray[np.float64]) -> float:
    return float(np.sum((estimate - exact) ** 2) / np.sum(exact**2))


def join(codec: Lattice, gradients: Iterable[NDArray[np.float32]]) -> LatticeTerms:
    return reduce(or_, (codec.propose(x) for x in gradients))


def speed(codec: Lattice, gradients: Gradients) -> dict[str, float]:
    """Throughput of each verb in bytes of fp32 tensor per second, with reused buffers."""
    x = tile(gradients[0])
    terms = join(codec, map(tile, gradients))
    payloads = [codec.encode(tile(one), terms, rank=rank) for rank, one in enumerate(gradients)]
    total = codec.add(payloads)
    narrow = total.narrow()
    data, lanes, mean = np.empty_like(payloads[0].data), np.empty_like(total.lanes), np.empty_like(x)
    seconds = {
        "propose": clock(lambda: codec.propose(x)),
        # Joining is idempotent: the terms are equal, but their widths must be derived again, as in every round.
        "encode": clock(lambda: codec.encode(x, terms | terms, rank=0, out=data)),
        "add": clock(lambda: codec.add(payloads, out=lanes)) / len(payloads),
        "decode": clock(lambda: codec.decode(narrow, out=mean)),
    }
    return {verb: x.nbytes / taken for verb, taken in seconds.items()}


def fp16_speed(gradients: Gradients) -> dict[str, float]:
    x = torch.from_numpy(tile(gradients[0]))
    half, mean = x.half(), torch.empty_like(x)
    return {
        "encode": x.nbytes / clock(lambda: half.copy_(x)),
        "decode": x.nbytes / clock(lambda: mean.copy_(half)),
    }


def memcpy_speed(gradients: Gradients) -> float:
    x = tile(gradients[0])
    copy = np.empty_like(x)
    return x.nbytes / clock(lambda: np.copyto(copy, x))


def tile(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x repeated until it has at least `SPEED_BYTES`."""
    return np.tile(x, -(-SPEED_BYTES // x.nbytes))


def clock(work: Callable[[], object]) -> float:
    """Median seconds over several repetitions, after one warm-up call."""
    work()
    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < _REPEATS and sum(taken) < _TIME_LIMIT):
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return median(taken)


@contextmanager
def one_thread() -> Iterator[None]:
    chosen = set_num_threads(1)
    try:
        with one_torch_thread():
            yield
    finally:
        set_num_threads(chosen)
