"""Small tensors under random schemes: the interpreter takes about a tenth of a second per block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import Lattice
from sumwire.kernels.lattice import reference
from sumwire.kernels.lattice.blocks import block_sizes, payload_bytes
from sumwire.kernels.lattice.lanes import lane_bits, lane_bytes
from sumwire.kernels.lattice.scheme import Keys

DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64,
}  # fmt: skip
KEYS = st.builds(Keys, *[st.integers(0, 2**32 - 1)] * 3, st.integers(0, 65535))


class Case:
    """One tensor under one scheme, with classes and widths drawn at random, and two payloads."""

    def __init__(self, codec: Lattice, tail: int, whole: int, kind: str, exponent: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.codec, self.scheme = codec, codec._family.scheme_for_all
        size = whole * codec.block + tail % codec.block
        x = rng.standard_normal(size) * np.repeat(np.exp2(rng.uniform(-4, 4, -(-size // 32))), 32)[:size]
        x[rng.random(size) < 0.01] *= 50  # few coordinates with most of the energy
        x[: size // 5 * (seed % 3 == 0)] = 0
        # float16 must hold them; and the interpreter loses bits of bfloat16 that float32 has as a denormal.
        least, most = {"float16": (-200, 2), "bfloat16": (-100, 200)}.get(kind, (-200, 200))
        self.tensor = torch.from_numpy(x * 2.0 ** min(max(exponent, least), most))
        self.tensor = self.tensor.to(DTYPES[kind])
        bits = self.tensor.view(torch.uint16) if kind == "bfloat16" else self.tensor
        self.x: NDArray[Any] = bits.numpy()
        self.size, self.sizes = size, block_sizes(size, self.scheme.log_block)
        self.blocks = len(self.sizes)
        self.scales = np.empty(self.blocks, np.float32)
        reference.measure(self.x, self.scheme, self.scales, 0, self.blocks)
        self.scales *= rng.choice(np.array([1, 1, 1.5, 30], np.float32), self.blocks)
        known = np.array([cls for cls, spec in enumerate(self.scheme.lattices) if spec], np.uint8)
        self.classes = np.where(self.scales > 0, rng.choice(known, self.blocks), np.uint8(0)).astype(np.uint8)
        narrower = {int(c): [w for cls, w in self.scheme.tables if cls == c] for c in known}
        self.widths = np.array([rng.choice(narrower[int(c)]) if c else 0 for c in self.classes], np.uint8)
        self.payload_bytes = payload_bytes(self.sizes, self.widths)
        self.lane_bytes = int(lane_bytes(self.scheme, self.sizes, self.classes).sum())
        self.packed_bytes = payload_bytes(self.sizes, lane_bits(self.scheme, self.classes))
        self.counts = np.full(self.blocks, 2, np.int32)

    def payload(self, keys: Keys) -> NDArray[np.uint8]:
        out = np.empty(self.payload_bytes, np.uint8)
        bad = reference.encode(
            self.scheme, self.x, self.scales, self.classes, self.widths, keys, out, None, 0, self.blocks
        )
        assert bad == -1
        return out

    def lanes(self, *keys: Keys) -> NDArray[np.uint8]:
        """Of payloads with these keys."""
        out = np.empty(self.lane_bytes, np.uint8)
        parts = [(self.payload(each), self.widths) for each in keys]
        reference.add(self.scheme, self.size, self.classes, out, parts, True, 0, self.blocks)
        return out


def codecs(**fixed: Any) -> st.SearchStrategy[Lattice]:
    """Lattices of all block sizes that a program holds; mostly small ones, which are faster."""
    options: dict[str, Any] = {
        "workers": st.sampled_from([2, 4, 30, 3000]),
        "bits": st.integers(1, 8),
        "block": st.sampled_from([64, 64, 128, 256, 512, 1024, 2048]),
        "rotate": st.sampled_from([True, True, True, False]),
        "widths": st.sampled_from(["energy", "fixed"]),
    }
    return st.builds(Lattice, **{**options, **{name: st.just(value) for name, value in fixed.items()}})


def large_codecs(**fixed: Any) -> st.SearchStrategy[Lattice]:
    """Lattices of blocks that go in parts; every other one as in the paper."""
    block = st.sampled_from([4096, 4096, 8192, 1 << 15])
    paper = {"workers": st.sampled_from([2, 4]), "bits": st.integers(2, 4), "block": block}
    return st.one_of(
        codecs(**fixed | {"block": 4096}),
        codecs(**fixed | {"block": 8192}),
        st.builds(Lattice.thc, **paper),
        st.builds(Lattice.uniform, **paper),
    )


def cases(**fixed: Any) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        codecs(**fixed),
        tail=st.sampled_from([0, 1, 3, 7, 13, 64, 37, 21, 130]),
        whole=st.integers(0, 2),
        kind=st.sampled_from(list(DTYPES)),
        exponent=st.sampled_from([0, 0, 9, -140, 60]),
        seed=st.integers(0, 2**16),
    )


def large_cases(**fixed: Any) -> st.SearchStrategy[Case]:
    """One whole block at most, and smaller ones, some of which go in parts, too."""
    return st.builds(
        Case,
        large_codecs(**fixed),
        tail=st.sampled_from([0, 130, 37, 2048 + 13, 4096 + 2048 + 64]),
        whole=st.just(1),
        kind=st.sampled_from(list(DTYPES)),
        exponent=st.sampled_from([0, 0, 9, -140, 60]),
        seed=st.integers(0, 2**16),
    )


BOTH = pytest.mark.parametrize("sizes", [cases, large_cases], ids=["small", "large"])
"""A test of small blocks, and one of large ones."""


def held(array: NDArray[Any]) -> torch.Tensor:
    """A copy, as a kernel gets it."""
    return torch.from_numpy(array.copy())


def same(mine: torch.Tensor, expected: NDArray[Any]) -> bool:
    """Bit for bit."""
    return mine.numpy().tobytes() == expected.tobytes()
