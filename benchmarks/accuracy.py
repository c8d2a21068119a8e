"""Error of the mean: compared with prototypes, on real gradients, and without each improvement.

python -m benchmarks.accuracy
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache, reduce
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire import Lattice, Residual, average
from sumwire.lab.gradients import worker_gradients
from sumwire.lab.record import Record, add_option

Floats = NDArray[np.float32]


def nmse(codec: Lattice, xs: Sequence[Floats], rounds: int = 3) -> float:
    """Squared error of the mean over its power, averaged over rounds."""
    mean = np.mean(xs, axis=0, dtype=np.float64)
    errors = [np.square(average(codec, xs, round_id=r) - mean).sum() for r in range(rounds)]
    return float(np.mean(errors) / np.square(mean).sum())


def gaussian(workers: int, correlation: float, size: int = 1 << 17, seed: int = 0) -> list[Floats]:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(size)
    own, shared = np.sqrt(1 - correlation), np.sqrt(correlation)
    return [(shared * common + own * rng.standard_normal(size)).astype(np.float32) for _ in range(workers)]


@cache
def real(workload: str) -> tuple[Floats, ...]:
    return tuple(worker_gradients(workload, 8))


def table(title: str, head: str) -> None:
    print(f"\n### {title}\n\n| {head} |\n|" + "---|" * (head.count("|") + 1), flush=True)


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{c:.5f}" if isinstance(c, float) else str(c) for c in cells) + " |", flush=True)


EXACT: dict[str, Any] = {"down_bits": "exact"}
PAPER: dict[str, Any] = EXACT | {"granularity": 30, "clip": 1 / 32, "widths": "fixed", "block": 4096}
PAPER |= {"unbiased": False, "terms": "exact"}
FINER: dict[str, Any] = EXACT | {"granularity": 60, "clip": 1 / 512, "widths": "fixed", "block": 4096}


def on_noise(record: Record) -> None:
    table(
        "Gaussian gradients, 4 bits up",
        "n | correlation | paper's b=4 g=30 p=1/32 | same, stratified | g=60 p=1/512 | default, exact sums | predicted "
        "| default | predicted",
    )
    for workers in (4, 10, 30):
        for correlation in (0.0, 0.9):
            xs = gaussian(workers, correlation)
            exact, default = Lattice(workers, 4, **EXACT), Lattice(workers, 4)
            errors = {
                "paper": nmse(Lattice(workers, 4, rounding="independent", **PAPER), xs),
                "paper, stratified": nmse(Lattice(workers, 4, **PAPER), xs),
                "g=60, p=1/512": nmse(Lattice(workers, 4, **FINER), xs),
                "exact": nmse(exact, xs),
                "exact, predicted": float(exact.predicted_nmse(correlation=correlation)),
                "default": nmse(default, xs),
                "default, predicted": float(default.predicted_nmse(correlation=correlation)),
            }
            row(workers, str(correlation), *errors.values())
            record.add(section="gaussian", workers=workers, correlation=correlation, nmse=errors)


def both_directions(record: Record) -> None:
    """The best split of a total into payloads and exact sums, and what narrow sums make of the same total."""
    table(
        "Both directions counted",
        "n | total bits | exact sums | narrow | N(0, 1), unrelated | factor | resnet | factor | gpt | factor",
    )
    for workers in (4, 8, 16, 64):
        data = {"noise": tuple(gaussian(workers, 0.0))}
        if workers <= 8:
            data |= {name: real(name)[:workers] for name in ("resnet", "gpt")}
        for total in range(8, 15):
            ours = Lattice(workers, total_bits=total)
            before = exact_split(workers, total)
            splits = (f"{before.bits} + {before.sum_bits}", f"{ours.bits} + {ours.narrow_bits or ours.sum_bits:g}")
            cells: list[str] = []
            for name, xs in data.items():
                good, bad = nmse(ours, xs), nmse(before, xs)
                cells += [f"{bad:.5f} -> {good:.5f}", f"{bad / good:.1f}x"]
                about: dict[str, Any] = {"workers": workers, "total_bits": total, "data": name}
                about |= {"exact_split": splits[0], "narrow_split": splits[1]}
                record.add(section="both directions", **about, nmse={"exact": bad, "narrow": good}, factor=bad / good)
            row(workers, total, *splits, *cells)


def exact_split(workers: int, total: int) -> Lattice:
    """Of all ways to send exact sums within a total, the one of least predicted error."""
    return Lattice(workers, total_bits=total, **EXACT)


def on_gradients(record: Record) -> None:
    codecs = {
        "`Lattice.thc(8)`": Lattice.thc(8),
        "`Lattice.uniform(8)`": Lattice.uniform(8),
        '`Lattice(8, 4, widths="fixed")`': Lattice(8, 4, widths="fixed"),
        "`Lattice(8, 4, energy=0.5)`": Lattice(8, 4, energy=0.5),
        '`Lattice(8, 4, down_bits="exact")`': Lattice(8, 4, **EXACT),
        "`Lattice(8, 4)`": Lattice(8, 4),
        "`Lattice(8, 4, widths=(0, 2, 4, 8))`": Lattice(8, 4, widths=(0, 2, 4, 8)),
        "`Lattice(8, 3)`": Lattice(8, 3),
        "`Lattice(8, total_bits=10)`": Lattice(8, total_bits=10),
        "`Lattice(8, total_bits=12)`": Lattice(8, total_bits=12),
    }
    table("Real gradients in mid-training, 8 workers: NMSE (improvement over thc)", "codec | mlp | resnet | gpt")
    base = {w: nmse(codecs["`Lattice.thc(8)`"], real(w)) for w in ("mlp", "resnet", "gpt")}
    for name, codec in codecs.items():
        errors = {w: nmse(codec, real(w)) for w in base}
        row(name, *(f"{e:.5f} ({base[w] / e:.1f}x)" for w, e in errors.items()))
        about: dict[str, Any] = {"section": "real gradients", "workers": 8, "codec": name.strip("`")}
        for model, error in errors.items():
            record.add(**about, model=model, nmse=error, factor=base[model] / error)


def inside_the_gpt(record: Record) -> None:
    """The origin of its large factor: a few coordinates hold most of the energy."""
    xs = real("gpt")
    embeddings, head = (256 + 64) * 128, 256 * 128
    parts = {
        "whole": slice(None),
        "embeddings only": slice(0, embeddings),
        "without embeddings and output layer": slice(embeddings, xs[0].size - head),
    }
    table("Parts of the gpt, each by itself", "part | coordinates | share of energy | thc | default | factor")
    whole = sum(float(np.square(x, dtype=np.float64).sum()) for x in xs)
    for name, part in parts.items():
        ys = [np.ascontiguousarray(x[part]) for x in xs]
        share = sum(float(np.square(y, dtype=np.float64).sum()) for y in ys) / whole
        thc, ours = nmse(Lattice.thc(8), ys), nmse(Lattice(8, 4), ys)
        row(name, f"{ys[0].size:,}", f"{share:.0%}", thc, ours, f"{thc / ours:.1f}x")
        record.add(
            section="parts of the gpt",
            workers=8,
            part=name,
            coordinates=ys[0].size,
            energy_percent=round(100 * share),
            nmse={"thc": thc, "default": ours},
            factor=round(thc / ours, 1),
        )


def without_each(record: Record) -> None:
    """The error without one of the improvements."""
    table("The error with and without each improvement", "improvement | measured on | with it | without it | factor")
    pairs: list[tuple[str, str, float, float]] = []
    for workload in ("resnet", "gpt"):
        xs, best = real(workload), nmse(Lattice(8, 4, **EXACT), real(workload))
        pairs += [
            ("1 stratified rounding", workload, best, nmse(Lattice(8, 4, rounding="independent", **EXACT), xs)),
            (
                "2 lattice and range for n",
                workload,
                best,
                nmse(Lattice(8, 4, granularity=30, clip=1 / 32, **EXACT), xs),
            ),
        ]
    similar = gaussian(30, 0.9)
    pairs.append(
        ("2 lattice and range for n", "30 similar workers", nmse(Lattice(30, 4, **EXACT), similar),
         nmse(Lattice(30, 4, granularity=30, clip=1 / 32, **EXACT), similar))
    )  # fmt: skip
    pairs.append(("3 one scale per block", "a layer 100x smaller", *quiet_layer()))
    with_it, without = (lossy(8, 0.5, feedback=feedback)[1] for feedback in (True, False))
    pairs.append(("4 loss-aware feedback", "8 workers, 10 % of blocks lost, 40 rounds added up", with_it, without))
    pairs.append(("5 lanes follow n", "32 workers, thc", *carrying()))
    for workload in ("resnet", "gpt"):
        xs = real(workload)
        pairs.append(
            ("6 bits follow the energy", workload, nmse(Lattice(8, 4, **EXACT), xs),
             nmse(Lattice(8, 4, widths="fixed", **EXACT), xs))
        )  # fmt: skip
    xs = tuple(gaussian(4, 0.0))
    split = exact_split(4, 12)
    pairs.append(("7 both directions counted", "12 bits, n=4", nmse(split, xs), nmse(Lattice(4, 4, **EXACT), xs)))
    for workload in ("resnet", "gpt"):
        xs = real(workload)
        pairs.append(
            ("8 narrow sums", f"{workload}, 10 bits, n=8", nmse(Lattice(8, total_bits=10), xs),
             nmse(exact_split(8, 10), xs))
        )  # fmt: skip
    for name, where, good, bad in pairs:
        row(name, where, good, bad, f"{bad / good:.2f}x")
        record.add(
            section="improvements",
            improvement=name,
            measured_on=where,
            nmse={"with": good, "without": bad},
            factor=round(bad / good, 2),
        )


def quiet_layer() -> tuple[float, float]:
    """Relative error of a small layer next to a large one."""
    layers = np.repeat([1, 0.01], 1 << 16).astype(np.float32)
    xs = [x * layers for x in gaussian(4, 0.0)]
    quiet = slice(1 << 16, None)
    mean = np.mean(xs, axis=0)[quiet]

    def error(block: int) -> float:
        codec = Lattice(4, 4, widths="fixed", block=block, **EXACT)
        return float(np.square(average(codec, xs)[quiet] - mean).sum() / np.square(mean).sum())

    return error(512), error(1 << 17)


LOSS, ROUNDS = 0.1, 40


def lossy(workers: int, correlation: float, *, feedback: bool) -> tuple[float, float]:
    """NMSE of the mean of one round, and of the sum of the means of all rounds, if blocks of workers get lost.

    With feedback, lost blocks and rounding errors are sent later, and sums are divided by `workers`; without, by
    their counts.
    """
    codec = Lattice(workers, 4, feedback=feedback)
    memories, loss = [Residual(codec) for _ in range(workers)], np.random.default_rng(1)
    means, truths, single = [], [], []
    for round_id in range(ROUNDS):
        xs = gaussian(workers, correlation, size=1 << 14, seed=round_id)
        sent = [memory.correct(x) for memory, x in zip(memories, xs, strict=True)] if feedback else xs
        terms = reduce(or_, map(codec.propose, sent))
        arrived = []
        for rank, (memory, x) in enumerate(zip(memories, xs, strict=True)):
            keys: Any = {"rank": rank, "round_id": round_id}
            payload = memory.encode(terms, **keys) if feedback else codec.encode(x, terms, **keys)
            for block in range(len(payload.widths)):
                part = payload.part(block, block + 1)
                if loss.random() >= LOSS:
                    arrived.append(part)
                elif feedback:
                    memory.lost(part)
        total = codec.add(arrived)
        means.append(codec.decode(total, missing="zero", divide_by="workers" if feedback else "count"))
        truths.append(np.mean(xs, axis=0, dtype=np.float64))
        single.append(float(np.square(means[-1] - truths[-1]).sum() / np.square(truths[-1]).sum()))
    off, truth = np.sum(means, axis=0, dtype=np.float64) - np.sum(truths, axis=0), np.sum(truths, axis=0)
    return float(np.mean(single)), float(np.square(off).sum() / np.square(truth).sum())


def under_loss(record: Record) -> None:
    table(
        f"4 bits, {LOSS:.0%} of all blocks lost: with and without loss-aware feedback",
        f"n | correlation | one round: without | with | sum of {ROUNDS} rounds: without | with | factor",
    )
    for workers in (1, 4, 8, 16):
        for correlation in (0.0, 0.5, 0.9):
            one, all_ = lossy(workers, correlation, feedback=False)
            one_kept, all_kept = lossy(workers, correlation, feedback=True)
            row(workers, str(correlation), one, one_kept, all_, all_kept, f"{all_ / all_kept:.1f}x")
            record.add(
                section="loss",
                workers=workers,
                correlation=correlation,
                bits=4,
                lost_percent=100 * LOSS,
                one_round={"without": one, "with": one_kept},
                forty_rounds={"without": all_, "with": all_kept},
                factor=all_ / all_kept,
            )


def projection(codec: Lattice, xs: Sequence[Floats], rounds: int = 4) -> float:
    """Length of the mean's estimate along the exact mean, relative to that."""
    mean = np.mean(xs, axis=0, dtype=np.float64)
    along = [float(np.vdot(average(codec, xs, round_id=r), mean)) for r in range(rounds)]
    return float(np.mean(along) / float(np.vdot(mean, mean)))


def clamped(record: Record) -> None:
    table("Clamping, correlation 0.5, fixed width", "n | bits | projection | unbiased=False | NMSE | unbiased=False")
    for workers in (4, 16):
        xs = gaussian(workers, 0.5, size=1 << 19)
        for bits in (1, 2, 3, 4):
            codecs = [Lattice(workers, bits, widths="fixed", unbiased=flag, **EXACT) for flag in (True, False)]
            lengths, errors = [projection(c, xs) for c in codecs], [nmse(c, xs) for c in codecs]
            row(workers, bits, *lengths, *errors)
            record.add(section="clamping", workers=workers, bits=bits, projection=lengths, nmse=errors)


def carrying() -> tuple[float, float]:
    """Lanes as wide as 32 workers need, and 8-bit lanes that wrap, as in the published code."""
    xs = gaussian(32, 0.9, size=1 << 14)
    codec = Lattice.thc(32, block=1 << 14)
    mean = np.mean(xs, axis=0, dtype=np.float64)
    terms = codec.propose(xs[0])
    for x in xs[1:]:
        terms = terms | codec.propose(x)
    total = codec.add([codec.encode(x, terms, rank=r) for r, x in enumerate(xs)])
    power = np.square(mean).sum()
    right = np.square(codec.decode(total) - mean).sum() / power
    total.lanes.view(np.uint16)[...] &= 255
    return float(right), float(np.square(codec.decode(total) - mean).sum() / power)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_option(options)
    record = Record(options.parse_args().json, seed=0)
    for part in (on_noise, both_directions, on_gradients, inside_the_gpt, without_each, clamped, under_loss):
        part(record)


if __name__ == "__main__":
    main()
