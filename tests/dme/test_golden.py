"""Golden bytes, the same from every backend.

Regenerate them with `python -m tests.dme.test_golden`, and only while no release has gone out.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire.dme import MeanScheme, Rotated, StochasticLevels, VariableLength
from sumwire.kernels import backend
from tests import ON_REFERENCE
from tests.dme import SCHEMES, VECTORS, Vector, every_scheme

SHAPE = (3, 25)
GOLDEN = {
    "StochasticBinary(seed=0, k=2)": ("d128783b00020319c80101000090c00000b040d8c20ebef5ae25e52901555e2abf"),
    "StochasticLevels(seed=7, k=3)": (
        "2729f2ef00020319c80101000090c00000b04084611865198528866156659466086519421816968ddf72"
    ),
    "StochasticLevels(seed=0, k=16)": (
        "2ab2609300020319c80101000090c00000b040a0f4398ec1064a9fe3286ca0f5398dc2064b9fe3276cb0f4397dc1064b"
        "9fe3286cb0f5397d02772a7ad2"
    ),
    "Rotated(seed=0, k=5, block=64)": (
        "487aaf8e00020319c80101000008c10000d040e1f5d6c091a54b40304662c0f30435c00000604000006040da92695b06"
        "6ddb262de3266ed2964d5bb2710b234912258dd8a67004000fd48377"
    ),
    "VariableLength(seed=0, k='sqrt')": (
        "800a4d1600020319c80101000090c06aa81d421094fbff3b18b0dcddf4edf791be7b1b04b13c7b96b5ef36faf91a16"
    ),
    "VariableLength(seed=0, k=16)": (
        "52f3feed00020319c80101000090c06aa81d42c21494ff66f4dc5516fbd7d6d76948b35b112e33e9e28b9c816c81280fff0941"
    ),
    "Sampled(seed=0, scheme=Rotated(seed=0, k=4, block=4096), p=0.999)": (
        "1d87c94d00020319c80101000008c10000d040e1f5d6c091a54b40304662c0f30435c000006040000060406aa99ab4aa"
        "26efada6781afa76a9bae6a8b603fc717cba"
    ),
    "Correlated(seed=0, k=6, workers=3)": (
        "7692bf3d00020319c80101000090c00000b04058ba50a04075a94061eac281c2d2a50a05a60b150a54172e14a82e14009acbba5c"
    ),
    "Drive(block=4096, seed=0)": ("6567f8c100020319c8010122e1a340d6cb8d402f318140015f8c408e562b062a25d470b703bbe25a43"),
    "Eden(bits=3, block=128, seed=9)": (
        "48ea799300020319c8010103b74e4006704040926d3e40a92594406359e31eaf706a596b1cdb6122dfd2aec4a845b736"
        "c2c8da89cc545101804d3ff9"
    ),
}


def written() -> dict[str, str]:
    x = (np.arange(75, dtype=np.float32) * 7 % 11 - 4.5).reshape(SHAPE)
    return {repr(scheme): scheme.encode(x, rank=1, round_id=200).hex() for scheme in SCHEMES}


def use_reference(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backend, "name", lambda: "reference")


def test_bytes_are_golden() -> None:
    assert written() == GOLDEN


def test_bytes_of_the_reference_are_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    use_reference(monkeypatch)
    assert written() == GOLDEN


@every_scheme
def test_golden_bytes_are_read(scheme: MeanScheme) -> None:
    assert scheme.decode(bytes.fromhex(GOLDEN[repr(scheme)])).shape == SHAPE


@every_scheme
@given(x=VECTORS, rank=st.integers(0, 5), round_id=st.integers(0, 2**64 - 1))
@settings(max_examples=1 if ON_REFERENCE else 8)
def test_backends_write_and_read_the_same(scheme: MeanScheme, x: Vector, rank: int, round_id: int) -> None:
    x = np.where(x == 0, np.float32(1e-30), x)  # zeros have their own test
    message = scheme.encode(x, rank=rank, round_id=round_id)
    y = scheme.decode(message)
    with pytest.MonkeyPatch.context() as patch:
        use_reference(patch)
        assert scheme.encode(x, rank=rank, round_id=round_id) == message
        assert scheme.decode(message).tobytes() == y.tobytes()


@pytest.mark.parametrize(
    ("scheme", "values"),
    [(StochasticLevels(4), [0.0, -0.0, 1.0]), (Rotated(4), [0.0, 0.0]), (VariableLength(), [-0.0, 0.0, 1.0])],
    ids=repr,
)
def test_backends_agree_on_zeros(scheme: MeanScheme, values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated block of zeros has zeros of both signs, so this is not a rare case."""
    x = np.array(values, np.float32)
    messages = [scheme.encode(x, round_id=r) for r in range(4)]
    use_reference(monkeypatch)
    assert [scheme.encode(x, round_id=r) for r in range(4)] == messages


if __name__ == "__main__":
    for name, text in written().items():
        print(f'    "{name}": (')
        for at in range(0, len(text), 96):
            print(f'        "{text[at : at + 96]}"')
        print("    ),")
