"""Residuals, stacked rows and sparse payloads of torch tensors, by the GPU's kernels: the bits of the host's."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire import Lattice, Residual, Sparse
from sumwire.codec.stacked import Stacked
from sumwire.kernels import backend
from tests.gpu.cases import DTYPES

pytest.importorskip("triton", reason='Triton is not installed: pip install ".[gpu]"')

FEW = settings(settings.get_profile("interpreter"))
SHAPE = (2, 64 + 8)
"""Rows, and values of each."""


@pytest.fixture(autouse=True, scope="module")
def on_device() -> Any:
    """Torch tensors of the CPU stand in for a GPU's, NumPy arrays for the host's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "takes", lambda tensor: True)
        yield


def gradients(seed: int, kind: str) -> tuple[torch.Tensor, Any]:
    """The same values in both."""
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(DTYPES[kind])
    if kind == "bfloat16":
        return x, x.float().numpy()  # which holds them all
    return x, x.numpy()


@FEW
@given(
    bits=st.integers(1, 4),
    kinds=st.lists(st.sampled_from(list(DTYPES)), min_size=2, max_size=2),
    lose=st.sampled_from(["nothing", "a part", "all"]),
    stack=st.booleans(),
)
def test_residuals(bits: int, kinds: list[str], lose: str, stack: bool) -> None:
    """Two rounds, of which something of the first is lost, with a checkpoint in between."""
    plain = Lattice(2, bits, block=64, feedback=True)
    codec: Any = Stacked(plain, SHAPE[0]) if stack else plain
    mine, host = codec.residual(), codec.residual()
    for number, kind in enumerate(kinds):
        made = []
        for x, memory in zip(gradients(number, kind), (mine, host), strict=True):
            terms = codec.propose(memory.correct(x))
            made.append(memory.encode(terms, rank=1, round_id=number))
        edges = codec.edges(made[0].terms, 1)
        assert isinstance(made[0].cut(edges)[0], torch.Tensor)
        np.testing.assert_array_equal(made[0].cut(edges)[0].numpy(), made[1].cut(edges)[0])
        if number == 0:
            for memory, payload in zip((mine, host), made, strict=True):
                if lose == "a part":
                    memory.lost(payload.part(0, 1))
                elif lose == "all":
                    memory.lost(payload)
            again = codec.residual()
            again.load_state_dict(mine.state_dict())
            mine = again
    mine.unsent(gradients(9, kinds[0])[0])
    host.unsent(gradients(9, kinds[0])[1])
    assert mine.state_dict().keys() == host.state_dict().keys()
    for kept, right in zip(values(mine), values(host), strict=True):
        assert kept.numpy().tobytes() == right.numpy().tobytes()


def values(residual: Any) -> list[torch.Tensor]:
    state = residual.state_dict()
    return [row["value"] for row in state.get("rows", [state])]


@pytest.mark.parametrize(
    "codec",
    [
        Lattice.thc(2),
        Lattice.uniform(2, block=1 << 13),
        Lattice(60000, 8, block=1 << 12, seed=3),
        Lattice.thc(2, block=1 << 12, rotate=False),
    ],
    ids=["thc", "uniform", "narrow", "not rotated"],
)
def test_a_round_of_blocks_beyond_a_program(codec: Lattice) -> None:
    """Of the paper's blocks, only the smaller ones at the end of a tensor: the interpreter is slow."""
    size = min(codec.block, 1 << 15) + (1 << 12) + 2048 + 37
    xs = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    found = []
    for own in (xs, [x.numpy() for x in xs]):
        terms = codec.propose(own[0]) | codec.propose(own[1])
        payloads = [codec.encode(x, terms, rank=rank, round_id=3) for rank, x in enumerate(own)]
        total = codec.add(payloads)
        down = total.narrow()
        found.append([terms.scales, *(each.data for each in payloads), total.lanes, total.packed(), down.packed()])
        found[-1].append(codec.decode(down))
    assert isinstance(found[0][-1], torch.Tensor)
    for mine, right in zip(*found, strict=True):
        assert np.asarray(mine).tobytes() == right.tobytes()


def test_residuals_of_blocks_beyond_a_program() -> None:
    codec = Lattice.thc(2, block=1 << 12, feedback=True)
    x = torch.randn((1 << 12) + 100, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    mine, host = codec.residual(), codec.residual()
    for number in range(2):
        for memory, own in ((mine, x), (host, x.float().numpy())):
            memory.encode(codec.propose(memory.correct(own)), rank=1, round_id=number)
        assert isinstance(mine.value, torch.Tensor)
        assert mine.value.numpy().tobytes() == host.value.tobytes()


def test_a_residual_lies_where_its_tensors_do() -> None:
    memory = Residual(Lattice(1, 4, block=64, feedback=True))
    assert isinstance(memory.correct(torch.ones(3)), torch.Tensor)
    assert isinstance(memory.value, torch.Tensor)
    memory.unsent(torch.tensor([1.0, float("nan"), 1.0]))
    memory.unsent(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float16))
    assert memory.value.tolist() == [2, 3, 4]


@pytest.mark.parametrize(("kind", "own"), [("float32", True), ("bfloat16", False)])
def test_stacked_rows(kind: str, own: bool) -> None:
    """A reduce-scatter of two ranks, in one process: row 1 of both."""
    codec = Stacked(Lattice(2, 4, block=64), SHAPE[0])
    pairs = [gradients(rank, kind) for rank in range(2)]
    means = []
    for xs in zip(*pairs, strict=True):
        terms = codec.propose(xs[0]) | codec.propose(xs[1])
        parts: list[Any] = []
        for rank, x in enumerate(xs):
            room = codec.payload_room(terms, 4)
            out: Any = torch.empty(room, dtype=torch.uint8) if isinstance(x, torch.Tensor) else np.empty(room, np.uint8)
            payload = codec.encode(x, terms, rank=rank, round_id=5, out=out if own else None)
            data, sizes = payload.cut((0, 1, 2))
            parts.append(codec.read_payload(terms, data[sizes[0] :], rank=rank, round_id=5, lo=1, hi=2))
        means.append(codec.decode(codec.add(parts)))
    assert isinstance(means[0], torch.Tensor)
    assert means[0].shape == (1, SHAPE[1])
    assert means[0].numpy().tobytes() == means[1].tobytes()


@FEW
@given(
    kind=st.sampled_from(["float32", "float16", "bfloat16"]),
    densities=st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=2, max_size=2),
)
def test_sparse(kind: str, densities: list[float]) -> None:
    codec = Sparse(2, block=64)
    both = []
    for on_device in (True, False):
        with patch.object(backend, "takes", lambda _, on_device=on_device: on_device):
            payloads = []
            for rank, density in enumerate(densities):
                x = gradients(rank, kind)[0].view(-1)
                x[torch.rand(len(x), generator=torch.Generator().manual_seed(rank)) >= density] = 0
                payloads.append(codec.encode(x, codec.propose(x), rank=rank, round_id=1))
            out: Any = torch.full((len(x),), np.nan) if on_device else None
            mean = codec.decode(codec.add(payloads), out=out)
            assert isinstance(mean, torch.Tensor) == on_device
            both.append([(each.kind, each.sizes, each.data.tobytes()) for each in payloads])
            both[-1].append(np.asarray(mean).tobytes())
    assert both[0] == both[1]
