"""Feed mangled frames to the parser: `python -m tests.wire.fuzz SECONDS [SEED]`.

Every mangled frame must either be refused with a `SumwireError`, or give an object that writes the
very same bytes again and can be added and decoded. Neither may take more memory than a small multiple
of the honest frames. Half of the frames get a matching CRC, so that the checks behind it are reached.
"""

from __future__ import annotations

import random
import re
import struct
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass

import numpy as np

from sumwire import Codec, Lattice, SumwireError, Terms, kernels
from sumwire.codec.lattice_parts import LatticeTerms
from sumwire.codec.sketch import Sketch
from sumwire.codec.sparse import Sparse
from sumwire.wire.frame import Frame, parse, to_bytes
from sumwire.wire.header import HEADER_SIZE
from sumwire.wire.limits import Kind

# By docs/format.md, not by the code's own layout: name -> (offset, struct format).
FIELDS = {
    "magic": (0, "4s"),
    "version": (4, "B"),
    "kind": (5, "B"),
    "codec": (6, "B"),
    "bits": (7, "B"),
    "flags": (8, "H"),
    "rank": (10, "H"),
    "count": (12, "I"),
    "fingerprint": (16, "8s"),
    "round_id": (24, "Q"),
    "size": (32, "Q"),
    "digest": (40, "Q"),
    "lo": (48, "I"),
    "hi": (52, "I"),
    "length": (56, "Q"),
    "reserved": (64, "I"),
    "crc": (68, "I"),
}

MEMORY_LIMIT = 1 << 20
"""Bytes that one mangled frame may make the reader allocate; honest ones here have up to 6 KB."""


def read_field(raw: bytes, name: str) -> int | bytes:
    offset, form = FIELDS[name]
    value: int | bytes = struct.unpack_from("<" + form, raw, offset)[0]
    return value


def forge(raw: bytes, *, body: bytes | None = None, fix_crc: bool = True, **fields: int | bytes) -> bytes:
    """The frame with other fields, or another body (its length follows), and a matching CRC."""
    out = bytearray(raw)
    if body is not None:
        out[HEADER_SIZE:] = body
        fields = {"length": len(body), **fields}
    for name, value in fields.items():
        offset, form = FIELDS[name]
        struct.pack_into("<" + form, out, offset, value)
    if fix_crc and len(out) >= HEADER_SIZE:
        crc = kernels.crc32c(np.frombuffer(out, np.uint8)[: HEADER_SIZE - 4])
        crc = kernels.crc32c(np.frombuffer(out, np.uint8)[HEADER_SIZE:], crc)
        struct.pack_into("<I", out, HEADER_SIZE - 4, crc)
    return bytes(out)


@dataclass(frozen=True)
class Receiver:
    """Who reads the frames: a codec, and the terms that were agreed on."""

    codec: Codec
    terms: Terms

    def read(self, raw: bytes) -> str:
        """Parse it, use it, and write it again; says what it was."""
        frame = parse(raw)
        item = self.open(frame)
        assert to_bytes(item, round_id=frame.round_id) == raw
        if isinstance(item, Terms):
            joined = item | self.terms
            assert not isinstance(joined, LatticeTerms) or np.isfinite(joined.scales).all()
        else:
            missing = {} if isinstance(self.codec, Sketch) else {"missing": "zero"}
            mean = self.codec.decode(self.codec.add([item]), **missing)
            # Lossless codecs carry NaN and Inf, and mangled bytes may spell them.
            assert not isinstance(self.codec, Lattice) or np.isfinite(mean).all()
        return f"{frame.tag.name} {frame.kind.name}".lower()

    def open(self, frame: Frame):
        if frame.kind is Kind.TERMS:
            return frame.terms(self.codec, self.terms.shape)
        return (frame.payload if frame.kind is Kind.PAYLOAD else frame.sum)(self.codec, self.terms)


def honest() -> list[tuple[Receiver, list[bytes]]]:
    """Frames of every codec and kind."""
    return [*_lattices(), *_sparses(), *_sketches()]


def _lattices() -> list[tuple[Receiver, list[bytes]]]:
    """With lanes of every memory width."""
    rng = np.random.default_rng(5)
    out = []
    for codec in (
        Lattice(2, 4, block=64, energy=1.0, widths="energy", seed=7),
        Lattice(4, 4, block=64, widths="fixed", granularity=30, lane_bits=16),
        Lattice(300, 8, block=64, energy=1.0, widths="energy", feedback=True),
    ):
        loud = np.repeat([0.0, 1.0, 1e-3, 50.0, 2.0], 160)[:743]
        xs = [(rng.standard_normal(743) * loud).astype(np.float32) for _ in range(2)]
        terms = codec.propose(xs[0]) | codec.propose(xs[1])
        assert isinstance(terms, LatticeTerms)
        payloads = [codec.encode(x, terms, rank=rank, round_id=9) for rank, x in enumerate(xs)]
        few = codec.with_bits(2).encode(xs[0], terms, rank=0, round_id=9)
        total = codec.add(payloads)
        items = [terms, *payloads, few, payloads[0].part(2, 7), payloads[0].part(3, 3)]
        items += [total, total.part(1, 9), payloads[0] + payloads[1].part(2, 7)]
        out.append((Receiver(codec, terms), [to_bytes(item) for item in items]))
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
        out.append((Receiver(codec, terms), [to_bytes(item) for item in items]))
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
        out.append((Receiver(codec, terms), [to_bytes(item, round_id=9) for item in items]))
    return out


def _odd_number(rng: random.Random, now: int, bits: int) -> int:
    """Numbers that parsers trip over, near and far."""
    near = now + rng.choice([-8, -4, -2, -1, 1, 2, 4, 8])
    edge = (1 << rng.randrange(bits + 1)) - rng.randrange(2)
    return rng.choice([0, 1, near, edge, rng.getrandbits(bits)]) & ((1 << bits) - 1)


def mangle(rng: random.Random, raw: bytes, others: list[bytes]) -> bytes:
    """One to three random changes."""
    out = raw
    for _ in range(rng.choice([1, 1, 2, 3])):
        way = rng.choice(["field", "field", "field", "bit", "word", "cut", "grow", "splice"])
        if way == "field" and len(out) >= HEADER_SIZE:
            name = rng.choice(list(FIELDS))
            now, (_, form) = read_field(out, name), FIELDS[name]
            bits = 8 * struct.calcsize(form)
            value: int | bytes = rng.randbytes(bits // 8) if isinstance(now, bytes) else _odd_number(rng, now, bits)
            out = forge(out, fix_crc=False, **{name: value})
        elif way in ("bit", "word") and out:
            at = rng.randrange(len(out))
            bad = bytes([out[at] ^ 1 << rng.randrange(8)]) if way == "bit" else rng.choice([b"\xff", b"\0"]) * 4
            out = (out[:at] + bad + out[at + len(bad) :])[: len(out)]
        elif way == "cut":
            out = out[: rng.randrange(len(out) + 1)]
        elif way == "grow":
            out += rng.randbytes(rng.choice([1, 4, 64]))
        elif way == "splice":
            other = rng.choice(others)
            at = rng.choice([HEADER_SIZE, rng.randrange(len(other) + 1)])
            out = out[:at] + other[at:]
        if rng.random() < 0.5 and len(out) > HEADER_SIZE:  # let the length agree again
            out = forge(out, fix_crc=False, length=len(out) - HEADER_SIZE)
    return forge(out) if rng.random() < 0.5 else out


def _gist(message: str) -> str:
    """The first words of a message, without its numbers."""
    return " ".join(re.sub(r"b(['\"]).*?\1|\S*\d\S*|\bnan\b|-?\binf\b", "~", message).split()[:5])


def run(seconds: float, seed: int = 0) -> Counter[str]:
    """Fuzz for so long; returns how often each outcome came up."""
    rng = random.Random(seed)
    receivers = honest()
    everything = [raw for _, frames in receivers for raw in frames]
    outcomes: Counter[str] = Counter()
    for receiver, frames in receivers:  # fills caches, which are no part of the memory under test
        for raw in frames:
            receiver.read(raw)
        if isinstance(receiver.codec, Lattice) and isinstance(receiver.terms, LatticeTerms):
            for bits in range(1, receiver.codec.family_bits + 1):
                receiver.terms.plan(receiver.codec.with_bits(bits))
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            receiver, frames = rng.choice(receivers)
            raw = mangle(rng, rng.choice(frames), everything)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            try:
                outcomes[f"valid {receiver.read(raw)}"] += 1
            except SumwireError as error:
                outcomes[_gist(str(error))] += 1
            except BaseException:
                print(f"seed {seed}: not refused properly: {raw.hex()}", file=sys.stderr)
                raise
            used = tracemalloc.get_traced_memory()[1] - before
            assert used < MEMORY_LIMIT, f"{used} bytes allocated for {raw.hex()}"
    finally:
        if not tracing:
            tracemalloc.stop()
    return outcomes


if __name__ == "__main__":
    seconds, seed = (float(sys.argv[1]) if sys.argv[1:] else 60.0), int(sys.argv[2]) if sys.argv[2:] else time.time_ns()
    found = run(seconds, seed)
    for outcome, times in found.most_common():
        print(f"{times:9}  {outcome}")
    print(f"{found.total():9}  frames, seed {seed}: only refusals and faithful objects")
