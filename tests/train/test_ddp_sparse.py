"""Gradients that are mostly zeros: lossless in DDP, chosen by hand or by density."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sumwire import ConfigError, InputError, Lattice, MismatchError, Sparse
from sumwire.train import DDPState, attach, hook
from tests import ranks

ROWS, WIDTH = 3000, 16


class Net(nn.Module):
    """Words to classes: an embedding whose gradients have few rows, and a dense part."""

    def __init__(self, sparse: bool = False, hidden: int = 200) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.dense = nn.Sequential(nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, 5))

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.dense(self.embedding(words).mean(1))
        return result


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, ROWS, (8, 6), generator=generator), torch.randint(0, 5, (8,), generator=generator)


def local_gradients(net: nn.Module, rank: int, step: int) -> dict[str, Tensor]:
    words, targets = batch(rank, step)
    net.zero_grad()
    nn.functional.cross_entropy(net(words), targets).backward()
    found = {name: p.grad for name, p in net.named_parameters()}
    net.zero_grad()
    return {
        name: g.to_dense() if g.layout != torch.strided else g.clone() for name, g in found.items() if g is not None
    }


def values(net: nn.Module) -> list[NDArray[np.float32]]:
    return [p.detach().numpy().copy() for p in net.parameters()]


def in_rank_order(gradients: list[Tensor]) -> Tensor:
    total = gradients[0].clone()
    for each in gradients[1:]:
        total += each
    return total / len(gradients)


def trains(rank: int, n: int, sparse: bool, options: dict[str, Any]) -> tuple[list[NDArray[np.float32]], list[str]]:
    net = Net(sparse)
    model = DistributedDataParallel(net, bucket_cap_mb=0.05)
    # DDP puts everything into one bucket at first.
    state = attach(model, warmup=2, fallback=False, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(5):
        # What the mean must be, by the law: each rank works out all ranks' gradients.
        twin = Net()
        twin.load_state_dict(net.state_dict())
        every = [local_gradients(twin, r, step) for r in range(n)]
        optimizer.zero_grad()
        words, targets = batch(rank, step)
        nn.functional.cross_entropy(model(words), targets).backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.layout == (torch.sparse_coo if sparse and "embedding" in name else torch.strided)
            warm = step >= 2 or (sparse and "embedding" in name)
            if warm and ("embedding" in name or options["codec"] == "sparse"):
                expected = in_rank_order([each[name] for each in every])
                assert torch.equal(parameter.grad.to_dense(), expected)
        optimizer.step()
    choices = [span.choice for bucket in state.start().layout.buckets for span in bucket.spans]
    state.close()
    return values(net), choices


@pytest.mark.parametrize("sparse", [False, True], ids=["dense layout", "sparse layout"])
@pytest.mark.parametrize("options", [{"codec": "sparse"}, {"codec": "auto"}, {"codec": "auto", "sample_every": 2}])
def test_the_mean_has_the_bits_of_the_sum_in_rank_order(sparse: bool, options: dict[str, Any]) -> None:
    results = ranks.run(3, trains, sparse, options)
    for parameters, choices in results:
        assert all(np.array_equal(a, b) for a, b in zip(parameters, results[0][0], strict=True))
        assert choices == results[0][1]
    if options["codec"] == "auto" and not sparse:  # small dense tensors ride with the embedding
        assert results[0][1] == ["Sparse"]


def poisoned(rank: int, n: int) -> NDArray[np.float32]:
    net = Net()
    model = DistributedDataParallel(net)
    attach(model, codec="sparse", warmup=0, fallback=False)
    loss = model(torch.tensor([[rank]])).sum()
    (loss * (float("inf") if rank == 1 else 1.0)).backward()
    assert net.embedding.weight.grad is not None
    return net.embedding.weight.grad.numpy()


def test_what_is_not_finite_stays_where_it_is() -> None:
    results = ranks.run(3, poisoned)
    for gradient in results:
        assert np.isfinite(gradient[0]).all()
        assert not np.isfinite(gradient[1]).any()
        assert not gradient[3:].any()
        assert gradient.tobytes() == results[0].tobytes()


def resumes(rank: int, n: int) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    def run(state_dict: Any, weights: Any, steps: range) -> tuple[list[NDArray[np.float32]], Any, Any]:
        net = Net()
        if weights is not None:
            net.load_state_dict(weights)
        model = DistributedDataParallel(net, bucket_cap_mb=0.05)
        state = attach(model, codec="auto", warmup=2, fallback=False, sample_every=0)
        if state_dict is not None:
            state.load_state_dict(state_dict)
        for step in steps:
            net.zero_grad()
            words, targets = batch(rank, step)
            nn.functional.cross_entropy(model(words), targets).backward()
            with torch.no_grad():
                for p in net.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
        saved = state.state_dict()
        state.close()
        return values(net), saved, {name: value.clone() for name, value in net.state_dict().items()}

    whole, _, _ = run(None, None, range(8))
    _, saved, weights = run(None, None, range(5))
    again, _, _ = run(saved, weights, range(5, 8))
    return whole, again


def test_a_restart_keeps_what_was_picked() -> None:
    for whole, again in ranks.run(2, resumes):
        assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))


def trained(rank: int, saved: Any, **options: Any) -> tuple[DDPState, int]:
    """A state after a step, or three, and the bytes of the last."""
    net = Net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.05)
    state = attach(model, warmup=2, fallback=False, sample_every=0, **options)
    if saved is not None:
        state.load_state_dict(saved)
    for step in range(1 if saved is not None else 3):
        net.zero_grad()
        model(batch(rank, step)[0]).sum().backward()
    return state, state.statistics.sent


def other_settings(rank: int, n: int) -> tuple[int, int, str]:
    saved, sparse = trained(rank, None, codec="auto")
    _, lattice = trained(rank, None, bits=4)
    try:
        trained(rank, saved.state_dict(), bits=4)
    except MismatchError as error:
        return sparse, lattice, str(error)
    return sparse, lattice, ""


def test_auto_is_shorter_and_a_checkpoint_does_not_overrule_the_codec() -> None:
    for sparse, lattice, said in ranks.run(2, other_settings):
        assert lattice > 1.2 * sparse
        assert "the state has Adaptive, this codec has Lattice" in said


def says(rank: int, n: int) -> list[str]:
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    log = logging.getLogger("sumwire.train.ddp.round")
    log.addHandler(Keep())
    log.setLevel(logging.INFO)
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.05)
    attach(model, codec="auto", warmup=2, fallback=False)
    for step in range(3):
        model.zero_grad()
        model(batch(rank, step)[0]).sum().backward()
    return records


def test_rank_0_says_what_was_picked() -> None:
    first, other = ranks.run(2, says)
    assert any("Sparse" in text for text in first)
    assert not other


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"codec": "zip"}, "lattice, sparse, sketch, auto"),
        ({"codec": "sparse", "bits": 4}, "bits=4"),
        ({"codec": Sparse(2), "feedback": True}, "feedback=True"),
        ({"codec": "auto", "feedback": True}, "feedback=True"),
        ({"codec": Lattice(2), "energy": 0.5}, "energy=0.5"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DDPState(**options)


def lattice_of_sparse(rank: int, n: int) -> str:
    model = DistributedDataParallel(Net(sparse=True))
    model.register_comm_hook(DDPState(bits=4, warmup=0), hook)  # by hand: `attach` would not even begin
    try:
        model(batch(rank, 0)[0]).sum().backward()
    except (InputError, RuntimeError) as error:
        return str(error)
    return ""


def test_a_lattice_refuses_the_sparse_layout() -> None:
    for said in ranks.run(2, lattice_of_sparse):
        assert 'codec="sparse"' in said
