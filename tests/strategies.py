"""Tensors and codecs as hypothesis picks them: awkward sizes, wild scales, exact zeros, denormals."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from sumwire import Lattice

SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 513, 1000, 1024]),
    st.integers(0, 6000),
)
BLOCKS = st.sampled_from([64, 128, 256, 512, 1024, 2048, 4096])


@st.composite
def tensors(draw: st.DrawFn, size: int | None = None) -> NDArray[np.float32]:
    """Float32 noise whose energy varies along it, with zeros, spikes and chosen values put in."""
    n = draw(SIZES) if size is None else size
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.standard_normal(n)
    if draw(st.booleans()):
        x *= np.exp(draw(st.floats(0, 6)) * rng.standard_normal(n // 100 + 1).repeat(100)[:n])
    if draw(st.booleans()):
        x *= 10.0 ** draw(st.integers(-44, 30))
    # Beyond 2**115 a codec refuses them, which has tests of its own.
    x = np.clip(x, -(2.0**112), 2.0**112).astype(np.float32)
    if n and draw(st.booleans()):
        start = draw(st.integers(0, n - 1))
        x[start : start + draw(st.integers(1, n))] = 0
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**100, min_value=-(2.0**100))
    for value in draw(st.lists(finite, max_size=3)) if n else []:
        x[draw(st.integers(0, n - 1))] = value
    return x


@st.composite
def gradients(draw: st.DrawFn, max_workers: int = 6) -> list[NDArray[np.float32]]:
    """One tensor per worker, all of one size."""
    first = draw(tensors())
    return [first] + [draw(tensors(size=first.size)) for _ in range(draw(st.integers(0, max_workers - 1)))]


@st.composite
def codecs(draw: st.DrawFn, workers: int | None = None, **fixed: Any) -> Lattice:
    """Any Lattice whose options make sense together."""
    n = draw(st.sampled_from([1, 2, 3, 4, 8, 10, 30, 200])) if workers is None else workers
    bits = draw(st.integers(1, 8))
    options: dict[str, Any] = {
        "block": draw(BLOCKS),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "rounding": draw(st.sampled_from(["stratified", "independent"])),
        "table": draw(st.sampled_from(["optimal", "uniform"])),
        "rotate": draw(st.sampled_from([True, True, True, False])),
        "widths": draw(st.sampled_from(["energy", "energy", "fixed", (0, bits, 8), (1, bits)])),
        "energy": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "feedback": draw(st.booleans()),
        "unbiased": draw(st.sampled_from([True, True, True, False])),
        "clip": draw(st.sampled_from([None, None, 1 / 32, 1 / 512])),
        "terms": draw(st.sampled_from([None, None, "byte", "exact"])),
    }
    if draw(st.booleans()):
        options["granularity"] = draw(st.integers((1 << bits) - 1, min(1023, 8 << bits)))
    return Lattice(n, bits, **(options | fixed))
