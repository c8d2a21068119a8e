"""Calls of every GPU kernel, in every configuration: what `gpu_compile` compiles and `gpu` measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_

import numpy as np
import torch

import sumwire
from sumwire.codec.lattice.coding import keys
from sumwire.codec.lattice.narrow import segments_of
from sumwire.codec.lattice.terms import LatticeTerms
from sumwire.kernels import lattice as host
from sumwire.kernels.triton import lattice, sparse

ROUND = 7
SPARSE_BLOCK = 1 << 12
MOST_PAYLOADS = 8


@dataclass(frozen=True)
class Case:
    """One call of a kernel on tensors of one device."""

    name: str
    call: Callable[[], object]
    moved: float
    """Bytes that must cross the memory bus per value: what a roofline counts."""


class Workload:
    """A codec, the gradients of its workers, and what a round makes of them."""

    def __init__(self, codec: sumwire.Lattice, size: int, device: str, dtype: torch.dtype = torch.float32) -> None:
        rng = np.random.default_rng(0)
        self.codec, self.size, self.blocks = codec, size, codec.blocks(size)
        loud = np.repeat(np.exp2(rng.uniform(-3, 3, -(-size // 64))), 64)[:size]
        grads = [
            (rng.standard_normal(size) * loud).astype(np.float32) for _ in range(min(codec.workers, MOST_PAYLOADS))
        ]
        self.x = torch.from_numpy(grads[0]).to(device, dtype)
        own = [torch.from_numpy(grad).to(dtype) for grad in grads]
        proposed = [codec.propose(grad) for grad in own]
        terms: LatticeTerms = reduce(or_, proposed)
        self.terms, self.layout = terms, terms.layout(codec)
        payloads = [codec.encode(grad, terms, rank=rank, round_id=ROUND) for rank, grad in enumerate(own)]
        self.payloads = [torch.from_numpy(payload.data).to(device) for payload in payloads]
        self.lanes = torch.from_numpy(codec.add(payloads).lanes).to(device)
        self.keys = keys(codec.seed, ROUND, 0, codec.workers, codec.rounding == "stratified")
        self.counts = np.full(self.blocks, len(grads), np.int32)
        self.out = torch.empty(size, device=device)

    def _bytes(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.uint8, device=self.x.device)

    def lattice_cases(self) -> list[Case]:
        """All Lattice kernels on this workload."""
        codec, terms, layout, n = self.codec, self.terms, self.layout, self.blocks
        scheme, scales, classes = codec.scheme, terms.scales, layout.classes
        payload, residual = self._bytes(layout.payload_bytes), torch.empty(self.size, device=self.x.device)
        item, up = self.x.element_size(), layout.payload_bytes / self.size
        lanes, packed = len(self.lanes) / self.size, self._bytes((int(layout.packed_at[-1]) + 7) // 8)
        thin = len(packed) / self.size
        encode = partial(lattice.encode, scheme, self.x, scales, classes, layout.widths, self.keys, payload)
        parts = [(data, layout.widths) for data in self.payloads]
        other = self.lanes.clone()
        mean = (self.counts, scales, classes, self.keys.sign, self.out, 0, n)
        found = [
            Case("measure", partial(lattice.measure, self.x, scheme, np.empty(n, np.float32), 0, n), item),
            Case("encode", partial(encode, None, 0, n), item + up),
            Case("encode, residual", partial(encode, residual, 0, n), item + up + 4),
            Case(
                f"add {len(parts)} payloads",
                partial(lattice.add, scheme, self.size, classes, other, parts, True, 0, n),
                len(parts) * up + lanes,
            ),
            Case(
                "add to lanes",
                partial(lattice.add, scheme, self.size, classes, other, parts[:1], False, 0, n),
                up + 2 * lanes,
            ),
            Case(
                "add lanes",
                partial(lattice.add_lanes, scheme, self.size, classes, other, self.lanes, 0, n),
                3 * lanes,
            ),
            Case(
                "pack lanes",
                partial(lattice.pack_lanes, scheme, self.size, classes, self.lanes, packed, 0, n),
                lanes + thin,
            ),
            Case(
                "unpack lanes",
                partial(lattice.unpack_lanes, scheme, self.size, classes, packed, other, 0, n),
                lanes + thin,
            ),
            Case("decode", partial(lattice.decode, scheme, self.lanes, *mean), lanes + 4),
            Case("decode packed", partial(lattice.decode_packed, scheme, packed, *mean), thin + 4),
        ]
        return found + (self._narrow_cases(lanes) if codec.narrow_bits is not None else [])

    def _narrow_cases(self, lanes: float) -> list[Case]:
        codec, scheme, scales, classes, n = (
            self.codec, self.codec.scheme, self.terms.scales, self.layout.classes, self.blocks
        )  # fmt: skip
        segments = segments_of(self.terms, codec)
        coarse, fine = np.empty(n, np.uint8), np.empty(n, np.uint8)
        data, widths = np.empty(int(segments.bytes_at[-1]), np.uint8), np.empty(n, np.uint8)
        host_lanes = self.lanes.cpu().numpy()
        host.narrow(
            scheme, self.size, classes, scales, self.counts, host_lanes, segments, coarse, fine, data, 0, n
        )  # fmt: skip
        host.narrow_widths(scheme, self.size, classes, scales, coarse, segments, widths, 0, n)
        made = [torch.from_numpy(array).to(self.x.device) for array in (coarse, fine, data)]
        again = [tensor.clone() for tensor in made]
        down = len(data) / self.size
        return [
            Case(
                "narrow",
                partial(
                    lattice.narrow, scheme, self.size, classes, scales, self.counts, self.lanes, segments, again[0],
                    again[1], again[2], 0, n,
                ),
                2 * lanes + down,
            ),
            Case(
                "decode narrow",
                partial(
                    lattice.decode_narrow, scheme, made[0], made[1], widths, made[2], segments, self.counts, scales,
                    classes, self.keys.sign, self.out, 0, n,
                ),
                down + 4,
            ),
        ]  # fmt: skip


def sparse_cases(size: int, device: str, dtype: torch.dtype = torch.float32, density: float = 0.1) -> list[Case]:
    """All Sparse kernels on a tensor of this density."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal(size, dtype=np.float32) * (rng.random(size) < density)).to(device, dtype)
    starts = np.arange(0, size, SPARSE_BLOCK, dtype=np.int64)
    words = torch.zeros(-(-size // 64), dtype=torch.int64, device=device)
    values, out = torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, device=device)
    item, bitmap = x.element_size(), 1 / 8
    found = [
        Case("scan", partial(sparse.scan, x, starts, SPARSE_BLOCK, words), item + bitmap),
        Case(
            "compact",
            partial(sparse.compact, x, starts, SPARSE_BLOCK, words, values),
            2 * bitmap + 2 * item * density,
        ),
    ]
    if dtype == torch.float32:
        for divisor in (1.0, 4.0):
            expand = partial(sparse.expand, words, values, starts, SPARSE_BLOCK, out, divisor)
            found.append(Case(f"expand / {divisor:g}", expand, 2 * bitmap + 4 * density + 4))
    return found


def cases(*, quick: bool) -> list[Case]:
    """Every kernel, on tensors of a few blocks, in every configuration that compiles differently."""
    size = 3 * 2048 + 2047

    def of(codec: sumwire.Lattice, dtype: torch.dtype = torch.float32) -> list[Case]:
        return Workload(codec, size, "cpu", dtype).lattice_cases()

    found = of(sumwire.Lattice(4)) + sparse_cases(size, "cpu")
    if quick:
        return found
    for block in (64, 128, 256, 1024, 2048):
        found += of(sumwire.Lattice(4, block=block))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        found += [case for case in of(sumwire.Lattice(4), dtype) if case.name.startswith(("measure", "encode"))]
        found += sparse_cases(size, "cpu", dtype)
    found += of(sumwire.Lattice(4, rotate=False)) + of(sumwire.Lattice(60000, 8))  # lanes of 24 bits
    return found + large_cases()


def large_cases() -> list[Case]:
    """Blocks that go in parts: the smallest and the largest, without narrow sums as in the paper and with them."""
    small, large = 1 << 12, 1 << 20
    found = [
        case
        for codec in (
            sumwire.Lattice(4, block=small),
            sumwire.Lattice.thc(4),
            sumwire.Lattice.thc(4, block=small, rotate=False),
            sumwire.Lattice(60000, 8, block=small),
        )
        for case in Workload(codec, codec.block, "cpu").lattice_cases()
    ]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        work = Workload(sumwire.Lattice.thc(4), large, "cpu", dtype)
        found += [case for case in work.lattice_cases() if case.name.startswith(("measure", "encode"))]
    return found
