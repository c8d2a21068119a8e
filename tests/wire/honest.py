"""Frames of every codec and kind, and who reads them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sumwire import Codec, Lattice, Payload, SumwireError, Terms
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.codec.rows.codec import Rows
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.snapshot import NOTHING, Snapshot
from sumwire.codec.sparse.codec import Sparse
from sumwire.wire.frame import Frame, parse, to_bytes
from sumwire.wire.limits import Kind
from tests.wire.rows_samples import table


@dataclass(frozen=True)
class Receiver:
    """Who reads the frames: a codec, and the terms that were agreed on."""

    codec: Codec
    terms: Terms
    mine: Payload
    """Of its own, to add to what it receives."""

    def read(self, raw: bytes) -> str:
        """Parse it, use it, and write it again; says what it was."""
        frame = parse(raw)
        item = self.open(frame)
        assert to_bytes(item, round_id=frame.round_id) == raw
        if isinstance(item, Terms):
            joined = item | self.terms
            assert joined.encodable == item.encodable
            assert not isinstance(joined, LatticeTerms) or np.isfinite(joined.scales).all() == joined.encodable
        elif not item.addable:
            self.check(self.codec.decode(item, missing="zero"))
        else:
            missing = {} if isinstance(self.codec, Sketch) else {"missing": "zero"}
            self.check(self.codec.decode(self.codec.add([item]), **missing))
            with suppress(SumwireError):  # it may be of another round, or have no room for one more
                self.check(self.codec.decode(self.codec.add([item, self.mine]), **missing))
        return f"{frame.tag.name} {frame.kind.name}".lower()

    def check(self, mean: NDArray[np.float32]) -> None:
        # Lossless codecs carry NaN and Inf, and mangled bytes may spell them.
        assert not isinstance(self.codec, Lattice) or np.isfinite(mean).all()

    def open(self, frame: Frame):
        if frame.kind is Kind.TERMS:
            return frame.terms(self.codec, self.terms.shape)
        return (frame.payload if frame.kind is Kind.PAYLOAD else frame.sum)(self.codec, self.terms)


def honest() -> list[tuple[Receiver, list[bytes]]]:
    """Frames of every codec and kind."""
    return [*_lattices(), *_sparses(), *_sketches(), *_rows(), *_snapshots()]


def _lattices() -> list[tuple[Receiver, list[bytes]]]:
    """With lanes of every memory width, and terms of both forms."""
    rng = np.random.default_rng(5)
    out = []
    for codec in (
        Lattice(2, 4, block=64, energy=1.0, widths="energy", seed=7),
        Lattice(4, 4, block=64, widths="fixed", granularity=30, lane_bits=16),
        Lattice(300, 8, block=64, energy=1.0, widths="energy", feedback=True),
        Lattice(3, 4, block=64, down_bits=3.5),
        Lattice(2, 3, block=64, terms="exact"),
    ):
        loud = np.repeat([0.0, 1.0, 1e-3, 50.0, 2.0], 160)[:743]
        xs = [(rng.standard_normal(743) * loud).astype(np.float32) for _ in range(2)]
        terms = codec.propose(xs[0]) | codec.propose(xs[1])
        assert isinstance(terms, LatticeTerms)
        payloads = [codec.encode(x, terms, rank=rank, round_id=9) for rank, x in enumerate(xs)]
        few = codec.with_bits(2).encode(xs[0], terms, rank=0, round_id=9)
        total = codec.add(payloads)
        items = [terms, codec.refuse(terms.shape), *payloads, few, payloads[0].part(2, 7), payloads[0].part(3, 3)]
        items += [total, total.part(1, 9), payloads[0] + payloads[1].part(2, 7)]
        if codec.narrow_bits is not None:
            items += [total.narrow(), items[-1].narrow(), total.narrow(5).part(total.hi, total.hi)]
        out.append((Receiver(codec, terms, payloads[1]), [to_bytes(item) for item in items]))
    return out


def _sparses() -> list[tuple[Receiver, list[bytes]]]:
    """With indexes coded in every way, and values of two widths."""
    rng = np.random.default_rng(6)
    out = []
    for codec in (Sparse(2, block=64), Sparse(5, seed=3)):
        density = np.repeat([0.0, 0.02, 0.1, 0.6, 1.0], 160)[:743]
        xs = [(rng.standard_normal(743) * (rng.random(743) < density)).astype(np.float32) for _ in range(2)]
        terms = codec.propose(xs[0])
        payloads = [codec.encode(x, terms, rank=rank, round_id=9) for rank, x in enumerate(xs)]
        half = codec.encode(xs[0].astype(np.float16), terms, rank=0, round_id=9)
        total = codec.add(payloads)
        items = [terms, *payloads, half, half.part(0, 1), payloads[0].part(1, 1)]
        items += [total, total.part(1, 2), payloads[0] + payloads[1].part(1, 2)]
        out.append((Receiver(codec, terms, payloads[1]), [to_bytes(item) for item in items]))
    return out


def _sketches() -> list[tuple[Receiver, list[bytes]]]:
    """With a bitmap, a Bloom filter and plain lanes; with escapes and without."""
    rng = np.random.default_rng(7)
    out = []
    for codec, size, filled in ((Sketch(2), 743, 40), (Sketch(3, block=4), 20_000, 20), (Sketch(2), 50, 40)):
        xs = []
        for _ in range(2):
            x = np.zeros(size, np.float32)
            x[rng.choice(size, filled, replace=False)] = rng.standard_normal(filled)
            xs.append(x)
        xs[1][:3] = np.inf, 1e-38, -np.nan
        terms = codec.propose(xs[0]) | codec.propose(xs[1])
        payloads = [codec.encode(x, terms, rank=rank, round_id=9) for rank, x in enumerate(xs)]
        items = [terms, *payloads, payloads[0] + payloads[1], codec.add(payloads[:1])]
        out.append((Receiver(codec, terms, payloads[1]), [to_bytes(item, round_id=9) for item in items]))
    return out


def _rows() -> list[tuple[Receiver, list[bytes]]]:
    """With values of two widths, rows of no values, and numbers of 8 bytes."""
    out = []
    for codec, shape in ((Rows(2), (60, 3)), (Rows(3, shards=7), (200, 1)), (Rows(2), (40, 0))):
        xs = [table(*shape, seed) for seed in range(2)]
        terms = codec.propose(xs[0])
        payloads = [codec.encode(x, terms, rank=rank, round_id=9) for rank, x in enumerate(xs)]
        half = codec.encode(table(*shape, 0, "float16"), terms, rank=0, round_id=9)
        total = codec.add(payloads)
        items = [terms, *payloads, half, half.part(0, 1), payloads[0].part(1, 1)]
        items += [total, total.part(1, 2), total.part(1, 1), payloads[0] + payloads[1].part(1, 2)]
        out.append((Receiver(codec, terms, payloads[1]), [to_bytes(item) for item in items]))
    codec, large = Rows(2), table(90, 2, 5)._replace(shape=(1 << 33, 2))
    terms = codec.propose(large)
    payload = codec.encode(large, terms, rank=1, round_id=9)
    items = [terms, payload, codec.add([payload])]
    out.append((Receiver(codec, terms, payload), [to_bytes(item) for item in items]))
    return out


def _snapshots() -> list[tuple[Receiver, list[bytes]]]:
    """With words, and without."""
    codec, words = Snapshot(3), np.arange(-9, 9, dtype=np.int32)
    out = []
    for terms in (codec.propose(words), codec.propose(np.full(18, NOTHING))):
        payloads = [codec.encode(words, terms, rank=rank, round_id=9) for rank in range(2)]
        items = [terms, *payloads, codec.add(payloads), codec.add(payloads[:1])]
        out.append((Receiver(codec, terms, payloads[1]), [to_bytes(item, round_id=9) for item in items]))
    return out
