"""How the ranks of a collective share a round: which blocks each adds, and how many bytes that moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.parts import LatticeTerms
from sumwire.kernels import lattice as kernels


@dataclass(frozen=True)
class Shards:
    """Blocks edges[r]..edges[r + 1] are added by rank r."""

    edges: tuple[int, ...]
    up: tuple[int, ...]
    """Payload bytes of each shard, as every worker sends them."""
    down: tuple[int, ...]
    """Bytes of each shard's packed sum."""


def cut(terms: LatticeTerms, codec: Lattice, ranks: int) -> Shards:
    """Shards whose packed sums are as equally long as whole blocks allow.

    Sums rather than payloads, because all-gather moves equal shares and pads the shorter ones.
    """
    plan, sizes = terms.plan(codec), terms.sizes
    up = _starts(sizes * plan.widths)
    down = _starts(sizes * kernels.lane_bits(codec.scheme, plan.classes))
    whole = terms.size // codec.block
    wanted = [down[-1] * rank / ranks for rank in range(1, ranks)]
    # Between whole blocks only: the smaller ones behind them may share bytes.
    inner = np.minimum(np.searchsorted(down, wanted), whole)
    edges = [0, *inner.tolist(), len(sizes)]
    return Shards(tuple(edges), _bytes_between(up, edges), _bytes_between(down, edges))


def _starts(bits: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])


def _bytes_between(starts: np.ndarray, edges: list[int]) -> tuple[int, ...]:
    at = -(-starts[edges] // 8)
    return tuple(np.diff(at).tolist())


def even(size: int, ranks: int) -> list[int]:
    """Edges that cut `size` things into `ranks` nearly equal runs."""
    return [size * rank // ranks for rank in range(ranks + 1)]
