"""PowerSGD: the tensor as a matrix, and that as a product of two thin ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.options import whole_number
from sumwire.errors import ConfigError
from sumwire.lab.peers.base import MAX_SIZE, Outcome, Peer, Vector, bits_of, mean_of, near_square

Matrix = NDArray[np.float32]


class PowerSGD(Peer):
    """One step of power iteration per round, with a warm start and error feedback.

    Published setting: ranks 1, 2 and 4; P = mean of M Q, made orthonormal; Q = mean of M^T P; the mean is P Q^T; Q
    starts the next round, and each worker keeps its M - P Q^T. Simplifications: the whole tensor is a single matrix, of
    the `shape` given or else nearly square, where the paper has one per layer and sends vectors as they are; QR instead
    of Gram-Schmidt, which spans the same. Where P and Q would be no smaller than the tensor, it is sent as float32.

    Bits: 32 * rank * (rows + columns) / size, up and down; both P and Q can be added, each by an all-reduce.

    >>> peer = PowerSGD(2, 64, rank=1)
    >>> outcome = peer.average([np.ones(64, np.float32), np.full(64, 3, np.float32)])
    >>> bool(np.allclose(outcome.mean, 2)), outcome.bits
    (True, 16.0)
    """

    paper = "Vogels et al., PowerSGD: practical low-rank gradient compression, NeurIPS 2019, 1905.13727"
    addable = True

    def __init__(
        self, workers: int, size: int, *, rank: int = 2, shape: tuple[int, int] | None = None, seed: int = 0
    ) -> None:
        super().__init__(workers, size, seed=seed)
        self.rank = whole_number("rank", rank, 1, 1 << 20)
        rows, columns = near_square(self.size) if shape is None else shape
        self.rows = whole_number("rows", rows, 1, MAX_SIZE)
        self.columns = whole_number("columns", columns, 1, MAX_SIZE)
        if shape is not None and self.rows * self.columns != self.size:
            raise ConfigError(f"shape={shape} has {self.rows * self.columns} values, not size={size}")
        self.compresses = self.rank * (self.rows + self.columns) < self.size
        self.unbiased = not self.compresses
        self.name = f"powersgd-{self.rank}"
        kept = self.workers if self.compresses else 0
        self.residuals = np.zeros((kept, self.size), np.float32)
        self.start: Matrix = self.rng.standard_normal((self.columns, self.rank), dtype=np.float32)

    def held_back(self) -> Vector:
        return mean_of(self.residuals) if len(self.residuals) else super().held_back()

    def _average(self, tensors: Sequence[Vector]) -> Outcome:
        if not self.compresses:
            return Outcome(mean_of(tensors), 32.0, 32.0)
        corrected = [x + residual for x, residual in zip(tensors, self.residuals, strict=True)]
        left: Matrix = mean_of(self._matrix(x) @ self.start for x in corrected)
        basis = np.linalg.qr(left)[0]
        right = mean_of(self._matrix(x).T @ basis for x in corrected)
        self.start = right
        mean = np.ascontiguousarray((basis @ right.T).reshape(-1)[: self.size])
        for residual, x in zip(self.residuals, corrected, strict=True):
            np.subtract(x, mean, out=residual)
        bits = self._per_value(bits_of((left, right)))
        return Outcome(mean, bits, bits)

    def _matrix(self, x: Vector) -> Matrix:
        missing = self.rows * self.columns - self.size
        return np.concatenate([x, np.zeros(missing, np.float32)]).reshape(self.rows, self.columns)
