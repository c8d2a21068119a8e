"""Gradients of real models in mid-training, as data-parallel workers compute them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from sumwire.errors import ConfigError
from sumwire.lab.tasks import GPT, build_mlp, build_resnet, digits_data, text_data


@dataclass(frozen=True)
class Workload:
    """A model, its data and its optimizer; after `steps` the model is in mid-training.

    `load` returns inputs and class targets with the sample as first dimension; the last dimension of the model's
    output is the class.
    """

    name: str
    description: str
    steps: int
    batch: int
    load: Callable[[], tuple[Tensor, Tensor]]
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]


def _sgd(rate: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)


def _adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


WORKLOADS: Mapping[str, Workload] = MappingProxyType({
    workload.name: workload
    for workload in (
        Workload(
            "mlp", "MLP 64-256-256-10 on 8x8 digits, SGD with momentum",
            steps=80, batch=32, load=digits_data, model=build_mlp, optimizer=_sgd(0.01),
        ),
        Workload(
            "resnet", "pre-activation ResNet-20 on 8x8 digits, SGD with momentum",
            steps=60, batch=32, load=digits_data, model=build_resnet, optimizer=_sgd(0.005),
        ),
        Workload(
            "gpt", "4-layer byte-level GPT on Python's documentation, AdamW",
            steps=500, batch=16, load=text_data, model=GPT, optimizer=_adamw,
        ),
    )
})  # fmt: skip


def draw_batches(samples: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless epochs of shuffled indices; the incomplete last batch of an epoch is dropped."""
    while True:
        order = torch.randperm(samples, generator=generator)
        yield from order[: samples - samples % batch].reshape(-1, batch).unbind()


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which torch.nn draws initial weights; restore its state on exit."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the caller's GPUs, which this fork does not restore.
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Small models gain nothing from more threads and stall on a busy machine; and the order of sums is fixed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model that `build` makes with this seed."""
    with torch_seed(seed):
        return build()


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def check_sizes(workload: str, workers: int, batch: int, steps: int, samples: int) -> None:
    """Raise `ConfigError` unless every worker gets a batch of its own from these samples."""
    if workers < 1 or batch < 1 or steps < 0:
        raise ConfigError(
            f"cannot take workers={workers}, batch={batch}, steps={steps}: pass workers>=1, batch>=1, steps>=0"
        )
    if workers * batch > samples:
        raise ConfigError(
            f"{workers} disjoint batches of {batch} need {workers * batch} samples: {workload!r} has {samples}; "
            f"lower workers or batch so that workers*batch<={samples}"
        )


def train(
    loss: Callable[[Tensor], Tensor],
    optimizer: Optimizer,
    batches: Iterator[Tensor],
    steps: int,
    on_step: Callable[[int, int], None] | None,
) -> None:
    """Minimize `loss(batch)` for `steps` steps; call `on_step(done, steps)` after each."""
    for step, rows in enumerate(islice(batches, steps), start=1):
        optimizer.zero_grad()
        loss(rows).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if on_step is not None:
            on_step(step, steps)


@one_torch_thread()
def worker_gradients(
    workload: str,
    workers: int,
    *,
    steps: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """Train one model for `steps`, then take each worker's gradient on its own batch.

    A gradient is flat, in the order of `model.parameters()`, and is the gradient of the loss: no momentum, no weight
    decay. Training and workers use the same `batch` size, and the workers' batches are disjoint. Equal seeds give
    equal bytes on one machine; torch's global random state is restored.
    """
    if workload not in WORKLOADS:
        raise ConfigError(f"no workload {workload!r}: choose from {', '.join(WORKLOADS)}")
    chosen = WORKLOADS[workload]
    steps = chosen.steps if steps is None else steps
    batch = chosen.batch if batch is None else batch
    inputs, targets = chosen.load()
    samples = len(inputs)
    check_sizes(workload, workers, batch, steps, samples)
    generator = torch.Generator().manual_seed(seed)
    model = seeded(chosen.model, seed)
    optimizer = chosen.optimizer(model)

    def loss(rows: Tensor) -> Tensor:
        return loss_of(model, inputs[rows], targets[rows])

    train(loss, optimizer, draw_batches(samples, batch, generator), steps, on_step)
    gradients: list[NDArray[np.float32]] = []
    # A new epoch: the rest of the current one may be too short for all workers.
    for rows in islice(draw_batches(samples, batch, generator), workers):
        parts = torch.autograd.grad(loss(rows), list(model.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]).numpy())
    return gradients
