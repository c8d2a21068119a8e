"""`sumwire lab codecs`: workers average real gradients in one process; what it costs and what it buys."""

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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sumwire import Lattice, set_num_threads
from sumwire.codec.lattice.parts import LatticeTerms
from sumwire.lab.figures import Cost, Report, Row, check_path, cost_table, draw, speed_table, take_away
from sumwire.lab.gradients import WORKLOADS, worker_gradients

ROUNDS = 4
"""Every NMSE is the mean of so many rounds."""

SPEED_BYTES = 16 << 20
"""Speeds are those of a tensor at least this large: smaller ones measure the calls."""

CURVE_BITS = range(1, 9)

_REPEATS = 9
_PATIENCE = 1.0
"""Seconds after which three repetitions must do."""

Gradients = Sequence[NDArray[np.float32]]


class Contender(NamedTuple):
    """A codec, and how the tables call it."""

    label: str
    code: str
    codec: Lattice


def run(workload: str, *, workers: int, bits: int, seed: int, steps: int | None, figure: Path) -> None:
    """Train, measure, print and draw."""
    check_path(figure)
    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
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
    console.print(take_away(report), style="bold", soft_wrap=True)


def measure(
    workload: str, gradients: Gradients, *, bits: int, seed: int = 0, tick: Callable[[], None] = lambda: None
) -> Report:
    """All that is shown; calls `tick` after every codec of the table and every point of the curves."""
    workers = len(gradients)
    with one_thread():
        memcpy = memcpy_speed(gradients)
        rows = []
        for label, code, codec in contenders(workers, bits, seed):
            rows.append(Row(label, code, cost(codec, gradients), speed(codec, gradients)))
            tick()
        fp16 = Row("fp16", "cast, mean, cast", fp16_cost(gradients), fp16_speed(gradients))
        tick()
    mine, same_bits, thc, uniform = rows
    return Report(
        workload=WORKLOADS[workload].description,
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


def contenders(workers: int, bits: int, seed: int) -> tuple[Contender, Contender, Contender, Contender]:
    """Sumwire, Sumwire with as many bits in all as the paper, the paper, and a uniform table."""
    if bits == 4:
        thc = Contender("THC paper's setting", f"Lattice.thc({workers})", Lattice.thc(workers, seed=seed))
    else:
        thc = Contender(f"THC recipe, {bits}-bit", "Lattice.thc(...)", recipe(workers, bits, seed=seed))
    total = thc.codec.bits + thc.codec.sum_bits
    return (
        Contender(f"Sumwire, {bits}-bit", f"Lattice({workers}, {bits})", Lattice(workers, bits, seed=seed)),
        Contender(
            f"Sumwire, {total} bits in all",
            f"Lattice({workers}, total_bits={total})",
            Lattice(workers, total_bits=total, seed=seed),
        ),
        thc,
        Contender(
            f"uniform, {bits}-bit", f"Lattice.uniform({workers}, {bits})", Lattice.uniform(workers, bits, seed=seed)
        ),
    )


def recipe(workers: int, bits: int, *, seed: int) -> Lattice:
    """The paper's setting carried over to other widths, with lanes as narrow as they can be."""
    return Lattice.thc(workers, bits, lane_bits=None, seed=seed)


def split(workers: int, bits: int, *, seed: int) -> Lattice:
    """Sumwire with as many bits in all as the uniform table needs at this width."""
    uniform = Lattice.uniform(workers, bits)
    return Lattice(workers, total_bits=uniform.bits + uniform.sum_bits, seed=seed)


def curves(gradients: Gradients, seed: int, tick: Callable[[], None]) -> dict[str, list[Cost]]:
    """What every number of bits up costs and buys."""
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
    """What a worker sends and gets, and the error of the mean over some rounds."""
    size, exact = gradients[0].size, exact_mean(gradients)
    terms = join(codec, gradients)
    errors = []
    for round_id in range(ROUNDS):
        payloads = [codec.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(gradients)]
        total = codec.add(payloads)
        errors.append(nmse(codec.decode(total), exact))
    sent = (payloads[0].nbytes, total.nbytes, 2 * terms.nbytes)
    up, down, agreed = (8 * nbytes / size for nbytes in sent)
    return Cost(up, down, agreed, fmean(errors))


def fp16_cost(gradients: Gradients) -> Cost:
    """Every worker casts, the mean is taken in fp32 and cast again."""
    mean = np.asarray(np.mean([x.astype(np.float16) for x in gradients], axis=0, dtype=np.float32))
    return Cost(16.0, 16.0, 0.0, nmse(mean.astype(np.float16), exact_mean(gradients)))


def exact_mean(gradients: Gradients) -> NDArray[np.float64]:
    return np.asarray(np.mean(gradients, axis=0, dtype=np.float64))


def nmse(estimate: NDArray[np.floating], exact: NDArray[np.float64]) -> float:
    return float(np.sum((estimate - exact) ** 2) / np.sum(exact**2))


def join(codec: Lattice, gradients: Iterable[NDArray[np.float32]]) -> LatticeTerms:
    return reduce(or_, (codec.propose(x) for x in gradients))


def speed(codec: Lattice, gradients: Gradients) -> dict[str, float]:
    """Bytes of fp32 tensor per second of each verb, in reused buffers."""
    x = tile(gradients[0])
    terms = join(codec, map(tile, gradients))
    payloads = [codec.encode(tile(one), terms, rank=rank) for rank, one in enumerate(gradients)]
    total = codec.add(payloads)
    data, lanes, mean = np.empty_like(payloads[0].data), np.empty_like(total.lanes), np.empty_like(x)
    seconds = {
        "propose": clock(lambda: codec.propose(x)),
        # Joining is idempotent: equal terms, but their widths must be derived anew, as in every round.
        "encode": clock(lambda: codec.encode(x, terms | terms, rank=0, out=data)),
        "add": clock(lambda: codec.add(payloads, out=lanes)) / len(payloads),
        "decode": clock(lambda: codec.decode(total, out=mean)),
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
    """x after x, to at least `SPEED_BYTES`."""
    return np.tile(x, -(-SPEED_BYTES // x.nbytes))


def clock(work: Callable[[], object]) -> float:
    """Median seconds of some repetitions, after one to warm up."""
    work()
    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < _REPEATS and sum(taken) < _PATIENCE):
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return median(taken)


@contextmanager
def one_thread() -> Iterator[None]:
    chosen, torch_threads = set_num_threads(1), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        set_num_threads(chosen)
        torch.set_num_threads(torch_threads)
