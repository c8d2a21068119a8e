"""Every kind of tensor can be encoded and decoded, and errors name what cannot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from sumwire import InputError, NonFiniteError, RangeError
from sumwire.dme import Correlated, Eden, MeanScheme, Rotated, StochasticLevels, VariableLength
from tests.dme import RANGED, VECTORS, Vector, energy, every_scheme, round_trip, vector


@every_scheme
def test_every_dtype_is_sent_as_its_float32(scheme: MeanScheme) -> None:
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = vector("gaussian", 100)
    for array in (
        x.astype(np.float16),
        x.astype(np.float64),
        x.astype(">f4"),
        x.astype(ml_dtypes.bfloat16),
        torch.from_numpy(x),
        torch.from_numpy(x).to(torch.float64),
        torch.from_numpy(x).to(torch.float16),
        torch.from_numpy(x).to(torch.bfloat16),
        torch.nn.Parameter(torch.from_numpy(x)),
        x.tolist(),
    ):
        plain = array.detach().float().numpy() if hasattr(array, "detach") else np.asarray(array).astype(np.float32)
        message = scheme.encode(array, rank=3, round_id=4)
        assert message == scheme.encode(plain, rank=3, round_id=4)
        assert scheme.decode(message).dtype == np.float32


@every_scheme
def test_every_layout_is_sent_in_row_major_order(scheme: MeanScheme) -> None:
    x = vector("gaussian", 120).reshape(10, 12)
    for array in (np.asfortranarray(x), x.T, x[::2], x[:, ::-3], x[3:7, 2:5], x.reshape(2, 5, 1, 12), x.ravel()[::7]):
        message = scheme.encode(array)
        assert message == scheme.encode(np.ascontiguousarray(array))
        assert scheme.decode(message).shape == array.shape
        flat = round_trip(scheme, array.ravel())
        assert np.array_equal(scheme.decode(message).ravel(), flat)


@every_scheme
def test_one_element_and_none(scheme: MeanScheme) -> None:
    for value in (0.0, -0.0, 2.5, -1e-30, 1e-44, 2.0**90):
        for x in (np.float32(value), np.array(value, np.float32), np.full((1, 1, 1), value, np.float32)):
            y = round_trip(scheme, x)
            assert y.shape == np.shape(x)
            assert y == pytest.approx(np.asarray(x), rel=2e-3)  # 1/p, and the accuracy of a float32 scale
    for shape in ((0,), (3, 0, 2), (0, 0)):
        y = round_trip(scheme, np.empty(shape, np.float32))
        assert y.shape == shape
        assert y.dtype == np.float32


@pytest.mark.parametrize("scheme", [*RANGED, VariableLength(), VariableLength(16)], ids=repr)
def test_constant_vectors_are_exact(scheme: MeanScheme) -> None:
    for value in (0.0, 1.0, -0.1, 3e-41, -(2.0**90), 1e-20):
        x = np.full(77, value, np.float32)
        assert np.array_equal(round_trip(scheme, x), x)


@every_scheme
def test_zeros_are_exact(scheme: MeanScheme) -> None:
    assert not round_trip(scheme, np.zeros(1000, np.float32)).any()


@pytest.mark.parametrize("scheme", [StochasticLevels(2), StochasticLevels(64), Correlated(9)], ids=repr)
@given(x=VECTORS)
def test_a_coordinate_moves_by_less_than_a_step(scheme: StochasticLevels, x: Vector) -> None:
    if not x.size:
        return
    y = round_trip(scheme, x).astype(np.float64)
    step = (float(x.max()) - float(x.min())) / (scheme.k - 1)
    assert (np.abs(y - x) <= step * (1 + 1e-6) + 2.0**-22 * np.abs(x).max()).all()
    assert x.min() <= y.min()
    assert y.max() <= float(x.max()) + 2.0**-22 * np.abs(x).max()


@every_scheme
@given(x=VECTORS)
@settings(max_examples=8)
def test_anything_finite_decodes_to_something_finite(scheme: MeanScheme, x: Vector) -> None:
    y = round_trip(scheme, x, rank=1, round_id=2**64 - 1)
    assert y.shape == x.shape
    assert np.isfinite(y).all()


@every_scheme
def test_at_the_largest_magnitude(scheme: MeanScheme) -> None:
    """No overflow anywhere: 2**90 times a vector of signs decodes to 2**90 times as much."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], 2000).astype(np.float32)
    for x in (np.ones(2000, np.float32), signs):
        assert np.array_equal(round_trip(scheme, x * np.float32(2.0**90)), round_trip(scheme, x) * 2.0**90)


@every_scheme
def test_denormals_are_lifted(scheme: MeanScheme) -> None:
    """A tiny vector decodes to what a plain one does, 2**90 times smaller."""
    tiny = (vector("gaussian", 300) * 1e-40).astype(np.float32)
    assert np.abs(tiny).max() < np.finfo(np.float32).tiny
    plain = (tiny.astype(np.float64) * 2.0**90).astype(np.float32)
    got, expected = round_trip(scheme, tiny), round_trip(scheme, plain).astype(np.float64) * 2.0**-90
    assert np.abs(got - expected).max() <= 2.0**-149
    assert scheme.encode(tiny)[4] == 1
    assert scheme.encode(plain)[4] == 0
    assert len(scheme.encode(tiny)) == len(scheme.encode(plain))


@pytest.mark.parametrize("scheme", [StochasticLevels(16), Rotated(16), Eden(4), VariableLength()], ids=repr)
def test_relative_error_does_not_depend_on_the_scale(scheme: MeanScheme) -> None:
    x = vector("gaussian", 500)
    errors = []
    for power in (-140, -100, -65, -64, -63, -10, 0, 60, 87):
        scaled = (x * 2.0**power).astype(np.float32)
        error = round_trip(scheme, scaled).astype(np.float64) - scaled
        errors.append(np.square(error * 2.0**-power).sum() / energy(x))
    np.testing.assert_allclose(errors, errors[6], rtol=0.02)


@every_scheme
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(scheme: MeanScheme, value: float) -> None:
    for d, at in ((1, 0), (20, 13), (70_000, 69_999)):
        x = np.zeros(d, np.float32)
        x[at] = value
        with pytest.raises(NonFiniteError, match=f"flat index {at}") as caught:
            scheme.encode(x)
        assert (caught.value.index, caught.value.count) == (at, 1)


@every_scheme
def test_values_beyond_the_limits_are_refused(scheme: MeanScheme) -> None:
    x = np.ones(50)
    for value in (1.0001 * 2.0**90, -(2.0**91), 3e38):
        x[7] = value
        with pytest.raises(RangeError, match=r"limit is 2\*\*90"):
            scheme.encode(x.astype(np.float32))
    x[7] = 1e39  # a float64 beyond float32
    with pytest.raises(NonFiniteError, match="index 7"):
        scheme.encode(x)


@every_scheme
def test_what_is_no_float_tensor_is_refused(scheme: MeanScheme) -> None:
    for x in (np.arange(4), np.ones(3, bool), np.ones(3, np.complex64), "text", np.ma.masked_array([1.0])):
        with pytest.raises(InputError):
            scheme.encode(x)
