"""Which tensors a Lattice takes: shapes, dtypes, libraries, extreme values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sumwire import InputError, Lattice, NonFiniteError, RangeError, average
from sumwire.kernels import backend


def roundtrip(codec: Lattice, x: Any, round_id: int = 0) -> NDArray[np.float32]:
    return codec.decode(codec.encode(x, codec.propose(x), rank=0, round_id=round_id))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (), (2, 3, 5), (1000,), (513,), (7, 64)])
def test_any_shape_comes_back(shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), dtype=np.float32)
    codec = Lattice(2, 8)
    mean = average(codec, [x, x])
    assert mean.shape == shape
    assert np.abs(mean - x).max(initial=0) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_dtypes_and_libraries(dtype: str, library: str) -> None:
    exact = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    codec = Lattice(2, 6)
    x: Any
    if library == "torch":
        x = torch.from_numpy(exact).to(getattr(torch, dtype))
        as_float32 = x.float().numpy()
    else:
        x = exact.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        as_float32 = x.astype(np.float32)
    assert codec.propose(x) == codec.propose(as_float32)
    terms = codec.propose(x)
    payload = codec.encode(x, terms, rank=1)
    assert payload.data.tobytes() == codec.encode(as_float32, terms, rank=1).data.tobytes()
    mean = average(codec, [x, x])
    assert mean.dtype == x.dtype
    assert type(mean) is type(x)
    assert tuple(mean.shape) == (40, 50)


def test_non_contiguous_and_foreign_byte_order() -> None:
    base = np.random.default_rng(0).standard_normal((60, 80)).astype(np.float32)
    codec = Lattice(1, 5)
    plain = base[::2, ::-1].copy()
    expected = codec.encode(plain, codec.propose(plain), rank=0).data.tobytes()
    strided: list[Any] = [base[::2, ::-1], torch.from_numpy(base).flip(1)[::2], plain.astype(">f4")]
    for x in strided:
        assert codec.encode(x, codec.propose(x), rank=0).data.tobytes() == expected
    bf16 = torch.from_numpy(base).to(torch.bfloat16).t()[::3]
    assert codec.propose(bf16) == codec.propose(bf16.contiguous().float().numpy())


def test_gradients_that_require_grad_are_read() -> None:
    x = torch.ones(100, requires_grad=True)
    assert Lattice(1, 4).propose(x).shape == (100,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_non_finite_is_refused_with_place_and_count(value: float, dtype: str) -> None:
    x = np.ones(5000, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    codec = Lattice(2, 4)
    terms = codec.propose(x)
    x[[1234, 4999]] = value
    for call in (lambda: codec.propose(x), lambda: codec.encode(x, terms, rank=0)):
        with pytest.raises(NonFiniteError, match="2 of 5000 values.*at flat index 1234; nothing was encoded") as caught:
            call()
        assert (caught.value.index, caught.value.count) == (1234, 2)


def test_float64_beyond_float32_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="1e\\+300.*flat index 3"):
        Lattice(1, 4).propose(np.array([1.0, 2.0, 3.0, 1e300]))


def test_the_largest_values_are_refused_rather_than_overflow() -> None:
    codec = Lattice(1, 4, block=64)
    with pytest.raises(RangeError, match=r"block 1 \(from flat index 64\).*scale the tensor down"):
        codec.propose(np.array([1.0] * 64 + [3e38] * 64, np.float32))
    big = np.full(300, 2.0**115, np.float32)
    assert np.isfinite(roundtrip(Lattice(1, 1), big)).all()


def test_denormals_survive() -> None:
    codec = Lattice(1, 8)
    x = (np.random.default_rng(0).standard_normal(2000) * 1e-42).astype(np.float32)
    mean = np.mean([roundtrip(codec, x, r).astype(np.float64) for r in range(50)], axis=0)
    assert np.square(mean - x).sum() < 0.01 * np.square(x.astype(np.float64)).sum()
    single = np.zeros(1024, np.float32)
    single[5] = 1e-45
    assert codec.propose(single).scales.max() > 0


def test_results_do_not_depend_on_flush_to_zero() -> None:
    codec = Lattice(1, 8)
    x = (np.random.default_rng(0).standard_normal(2000) * 1e-40).astype(np.float32)
    expected = roundtrip(codec, x).tobytes()
    if backend.name() != "native":
        pytest.skip("NumPy does as it is told")
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        assert roundtrip(codec, x).tobytes() == expected
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("x", [np.arange(5), np.ones(3, complex), torch.arange(5), np.array(["a"]), "abc", [None]])
def test_wrong_dtypes_are_refused(x: Any) -> None:
    with pytest.raises(InputError, match="cannot be encoded: use float32, float16, bfloat16 or float64"):
        Lattice(1, 4).propose(x)


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(InputError, match="masked array cannot be encoded"):
        Lattice(1, 4).propose(np.ma.masked_array(np.ones(3, np.float32), [0, 1, 0]))
    with pytest.raises(InputError, match="meta device has no values to encode: load or create them on the CPU first"):
        Lattice(1, 4).propose(torch.ones(3, device="meta"))
    with pytest.raises(InputError, match="make it dense first"):
        Lattice(1, 4).propose(torch.ones(3).to_sparse())
