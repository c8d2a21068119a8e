"""Batches, weights and dropout that a seed decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed torch's global generator and use one thread, so that results repeat; restore both on exit."""
    with torch_seed(seed), one_torch_thread():
        yield
