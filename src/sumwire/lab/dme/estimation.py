"""`sumwire lab dme`: each client sends one vector; compare the error of the mean and the bits sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sumwire import Lattice
from sumwire.dme import MeanScheme
from sumwire.lab.display import check_path, plain_table, progress_bar
from sumwire.lab.dme.schemes import Entry, Line, Panel, all_schemes, draw
from sumwire.lab.images import Rows
from sumwire.lab.record import Record
from sumwire.wire.frame import to_bytes

KINDS = ("gaussian", "unbalanced")

_CAPTION = (
    "bits: sent by a client, per coordinate, including headers and terms. ±: standard deviation over rounds. "
    "Drive is Eden(1). Lattice: for n clients, payloads can be added without decoding."
)


@dataclass(frozen=True)
class Estimate:
    """Result of one scheme: squared error of the mean over the mean squared norm of the vectors, in each round."""

    entry: Entry
    kind: str
    clients: int
    bits: float
    """Total bits per coordinate that a client sent on average."""
    errors: tuple[float, ...]
    bound: float | None

    @property
    def error(self) -> float:
        return fmean(self.errors)

    @property
    def spread(self) -> float:
        """Standard deviation of the error over rounds."""
        return float(np.std(self.errors))


def run(
    *, dimension: int, clients: Sequence[int], rounds: int, seed: int, figure: Path, results: Path | None = None
) -> None:
    """Measure, print the tables, draw the figure and append to the results."""
    check_path(figure)
    out = Console(highlight=False)
    with progress_bar(out, "averaging", len(KINDS) * len(clients) * len(all_schemes(1))) as tick:
        found = measure(dimension, clients, rounds, seed, tick)
    panels = [
        [panel([e for e in found if (e.kind, e.clients) == (kind, n)], f"{kind} vectors, {n} clients") for n in clients]
        for kind in KINDS
    ]
    title = f"Error of the mean of vectors with {dimension:,} coordinates"
    draw(panels, figure, title, f"{rounds} rounds, seed {seed}")
    for kind in KINDS:
        out.print("", table([e for e in found if e.kind == kind], kind), "", sep="\n")
    out.print(f"Error against bits: {figure}", soft_wrap=True)
    last = [e for e in found if e.kind == "unbalanced" and e.clients == clients[-1]]
    out.print(summary(last), style="bold", soft_wrap=True)
    record = Record(results, seed=seed)
    for e in found:
        name = "Gaussian" if e.kind == "gaussian" else e.kind
        record.add(
            dimension=dimension,
            rounds=rounds,
            scheme=e.entry.label,
            data=name,
            clients=e.clients,
            measured=f"{name}, {e.clients}",
            bits_per_value=e.bits,
            error=e.error,
            deviation_percent=100 * e.spread / e.error,
            bound=e.bound,
        )


def measure(
    dimension: int, clients: Sequence[int], rounds: int, seed: int = 0, tick: Callable[[], None] = lambda: None
) -> list[Estimate]:
    """Every scheme on every kind of vectors, with new vectors in each round; call `tick` after each."""
    found = []
    for kind in KINDS:
        for n in clients:
            for entry in all_schemes(n, seed):
                # The same vectors for every scheme, drawn again, because all rounds at once may exceed memory.
                drawn = (vectors(kind, n, dimension, np.random.default_rng([seed, n, k])) for k in range(rounds))
                found.append(_estimate(entry, kind, drawn))
                tick()
    return found


def _estimate(entry: Entry, kind: str, drawn: Iterable[Rows]) -> Estimate:
    errors, bits = [], []
    for round_id, xs in enumerate(drawn):
        mean, nbytes = send(entry.scheme, xs, round_id)
        exact = xs.mean(axis=0, dtype=np.float64)
        errors.append(float(np.square(mean - exact).sum() / np.square(xs, dtype=np.float64).sum() * len(xs)))
        bits.append(8 * nbytes / xs.size)
    clients, dimension = xs.shape
    bound = entry.scheme.bound(dimension, clients) if isinstance(entry.scheme, MeanScheme) else None
    return Estimate(entry, kind, clients, fmean(bits), tuple(errors), bound)


def send(scheme: MeanScheme | Lattice, xs: Rows, round_id: int) -> tuple[NDArray[np.floating], int]:
    """The estimated mean, and the bytes that all clients sent; for a lattice, terms and payloads in frames."""
    if isinstance(scheme, MeanScheme):
        messages = [scheme.encode(x, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]
        mean = np.zeros(xs.shape[1])
        for message in messages:
            mean += scheme.decode(message) / np.float64(len(xs))
        return mean, sum(map(len, messages))
    proposals = [scheme.propose(x) for x in xs]
    terms = reduce(or_, proposals)
    payloads = [scheme.encode(x, terms, rank=rank, round_id=round_id) for rank, x in enumerate(xs)]
    frames = [to_bytes(own, round_id=round_id) for own in proposals] + [to_bytes(payload) for payload in payloads]
    return scheme.decode(scheme.add(payloads)), sum(map(len, frames))


def table(found: Sequence[Estimate], kind: str) -> Table:
    """One row per scheme; error and bound for every number of clients."""
    title = f"{kind.capitalize()} vectors: error of the mean over the mean squared norm"
    shown = plain_table(title, "scheme", "bits", caption=_CAPTION)
    counts = list(dict.fromkeys(e.clients for e in found))
    for n in counts:
        shown.add_column(f"{n} clients", justify="right", no_wrap=True)
        shown.add_column("bound", justify="right", no_wrap=True)
    for label in dict.fromkeys(e.entry.label for e in found):
        own = [e for e in found if e.entry.label == label]
        cells = [text for e in own for text in (f"{e.error:.2e} ±{e.spread / e.error:.0%}", _write(e.bound))]
        shown.add_row(label, f"{fmean(e.bits for e in own):.2f}", *cells)
    return shown


def _write(bound: float | None) -> str:
    return "-" if bound is None else f"{bound:.1e}"


def panel(found: Sequence[Estimate], title: str) -> Panel:
    """Errors, and bounds as dotted lines."""
    lines = []
    for family in dict.fromkeys(e.entry.family for e in found):
        own = [e for e in found if e.entry.family == family]
        bits = [e.bits for e in own]
        bounds = [e.bound for e in own if e.bound is not None]
        if len(bounds) == len(own):
            lines.append(Line(family, bits, bounds, dotted=True))
        lines.append(Line(family, bits, [e.error for e in own], ranges=[(min(e.errors), max(e.errors)) for e in own]))
    return Panel(title, "squared error / mean squared norm", lines)


def summary(found: Sequence[Estimate]) -> str:
    """What rotation gains when one coordinate is large, and the best scheme with as many bits."""
    errors = {e.entry.label: e for e in found}
    plain, rotated = errors["StochasticLevels(16)"], errors["Rotated(16)"]
    best = min((e for e in found if e.bits <= rotated.bits), key=lambda e: e.error)
    sentence = (
        f"Unbalanced vectors, {plain.clients} clients, 16 levels: rotation reduces the error to "
        f"{rotated.error / plain.error:.2g} of that without"
    )
    if best is rotated:
        return f"{sentence}; no scheme does better with {rotated.bits:.2f} bits."
    return f"{sentence}; with no more bits, {best.entry.label} reaches {best.error / rotated.error:.2g} of that."


def vectors(kind: str, clients: int, dimension: int, random: np.random.Generator) -> Rows:
    """One vector per client, with coordinates from N(0, 1); the last coordinate of unbalanced ones is from N(100, 1).

    >>> (vectors("unbalanced", 2, 3, np.random.default_rng(0)) > 90).tolist()
    [[False, False, True], [False, False, True]]
    """
    drawn = random.standard_normal((clients, dimension), dtype=np.float32)
    if kind == "unbalanced":
        drawn[:, -1] += 100
    return drawn
