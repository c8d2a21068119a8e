"""Feed mangled frames and control messages to their readers: `python -m tests.wire.fuzz SECONDS [SEED]`.

Whatever is fed must either be refused with a `SumwireError`, or give an object that writes the very same bytes again
and can be used. Neither may take more memory than a small multiple of what honest bytes take. Three targets take turns:

bytes      frames with blind changes, half of them with a matching CRC
structure  frames whose fields and bodies change together, all with a matching CRC
control    control messages with odd fields, all with a matching CRC
"""

from __future__ import annotations

import random
import re
import struct
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from sumwire import Lattice, SumwireError
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.wire.control import Word
from sumwire.wire.header import HEADER_SIZE
from tests.wire import fuzz_control, fuzz_frames
from tests.wire.forging import FIELDS, forge, read_field
from tests.wire.fuzz_frames import odd_number
from tests.wire.honest import Receiver, honest

MEMORY_LIMIT = 1 << 20
"""Bytes that one mangled frame may make the reader allocate; honest ones here have up to 6 KB."""

SOLVER_LIMIT = 1 << 27
"""The same for a control message, which may have 64 KiB of JSON and ask for tables to be solved."""

Read = Callable[[bytes], str]
Receivers = list[tuple[Receiver, list[bytes]]]


def mangle(rng: random.Random, raw: bytes, others: list[bytes]) -> bytes:
    """One to three random changes."""
    out = raw
    for _ in range(rng.choice([1, 1, 2, 3])):
        way = rng.choice(["field", "field", "field", "bit", "word", "cut", "grow", "splice"])
        if way == "field" and len(out) >= HEADER_SIZE:
            name = rng.choice(list(FIELDS))
            now, (_, form) = read_field(out, name), FIELDS[name]
            bits = 8 * struct.calcsize(form)
            value: int | bytes = rng.randbytes(bits // 8) if isinstance(now, bytes) else odd_number(rng, now, bits)
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


def _blind(receivers: Receivers) -> Callable[[random.Random], tuple[bytes, Read]]:
    everything = [raw for _, frames in receivers for raw in frames]

    def make(rng: random.Random) -> tuple[bytes, Read]:
        receiver, frames = rng.choice(receivers)
        return mangle(rng, rng.choice(frames), everything), receiver.read

    return make


def _structure(receivers: Receivers) -> Callable[[random.Random], tuple[bytes, Read]]:
    def make(rng: random.Random) -> tuple[bytes, Read]:
        receiver, frames = rng.choice(receivers)
        return fuzz_frames.mutate(rng, receiver, rng.choice(frames)), receiver.read

    return make


def _control(receivers: Receivers) -> Callable[[random.Random], tuple[bytes, Read]]:
    messages, frames = fuzz_control.messages(), _structure(receivers)

    def make(rng: random.Random) -> tuple[bytes, Read]:
        if rng.random() < 0.1:
            return fuzz_control.seal(Word.AGREED, frames(rng)[0]), fuzz_control.read
        return fuzz_control.mutate(rng, rng.choice(messages)), fuzz_control.read

    return make


TARGETS = {
    "bytes": (_blind, MEMORY_LIMIT),
    "structure": (_structure, MEMORY_LIMIT),
    "control": (_control, SOLVER_LIMIT),
}


def _gist(message: str) -> str:
    """The first words of a message, without its numbers."""
    return " ".join(re.sub(r"b(['\"]).*?\1|\S*\d\S*|\bnan\b|-?\binf\b", "~", message[:120]).split()[:5])


def run(turns: Iterable[object], seed: int = 0, *, targets: Iterable[str] = TARGETS) -> Counter[str]:
    """Feed each target once in every turn; returns how often each outcome came up."""
    rng = random.Random(seed)
    receivers = honest()
    _fill_caches(receivers)
    makers = [(TARGETS[name][0](receivers), TARGETS[name][1]) for name in targets]
    outcomes: Counter[str] = Counter()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        for _ in turns:
            for make, limit in makers:
                outcomes[_feed(*make(rng), limit, seed)] += 1
    finally:
        if not tracing:
            tracemalloc.stop()
    return outcomes


def _feed(raw: bytes, read: Read, limit: int, seed: int) -> str:
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    try:
        outcome = f"valid {read(raw)}"
    except SumwireError as error:
        outcome = _gist(str(error))
    except BaseException:
        print(f"seed {seed}: not refused properly: {raw.hex()}", file=sys.stderr)
        raise
    used = tracemalloc.get_traced_memory()[1] - before
    assert used < limit, f"{used} bytes allocated for {raw.hex()}"
    return outcome


def _fill_caches(receivers: Receivers) -> None:
    """They are no part of the memory under test."""
    for receiver, frames in receivers:
        for raw in frames:
            receiver.read(raw)
        if isinstance(receiver.codec, Lattice) and isinstance(receiver.terms, LatticeTerms):
            for bits in range(1, receiver.codec.family_bits + 1):
                receiver.terms.layout(receiver.codec.with_bits(bits))


def lasting(seconds: float) -> Iterator[None]:
    """Turns for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


if __name__ == "__main__":
    seconds, seed = (float(sys.argv[1]) if sys.argv[1:] else 60.0), int(sys.argv[2]) if sys.argv[2:] else time.time_ns()
    found = run(lasting(seconds), seed)
    for outcome, times in found.most_common():
        print(f"{times:9}  {outcome}")
    print(f"{found.total():9}  frames and messages, seed {seed}: only refusals and faithful objects")
