"""Peers: what their papers promise, and bits that are those of their arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sumwire.lab.peers import Peer
from sumwire.lab.peers.base import Vector


def gradients(workers: int, size: int, seed: int = 0, related: float = 0.5) -> list[Vector]:
    """Gaussian tensors with this correlation between workers."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(size)
    own, shared = np.sqrt(1 - related), np.sqrt(related)
    return [(own * rng.standard_normal(size) + shared * common).astype(np.float32) for _ in range(workers)]


def exact(tensors: list[Vector]) -> NDArray[np.float64]:
    return np.asarray(np.mean(tensors, axis=0, dtype=np.float64))


def nmse(peer: Peer, tensors: list[Vector]) -> float:
    """Error of one round, relative to the energy of the mean."""
    target = exact(tensors)
    return float(np.square(peer.average(tensors).mean - target).sum() / np.square(target).sum())
