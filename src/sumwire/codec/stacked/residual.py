"""Error feedback of stacked rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Bytes, Payload, Terms
from sumwire.codec.options import same
from sumwire.codec.stacked.parts import StackedPayload
from sumwire.codec.tensors import Tensor

if TYPE_CHECKING:
    from sumwire.codec.stacked.codec import Stacked


class StackedResidual:
    """A residual for every row."""

    def __init__(self, codec: Stacked) -> None:
        self.codec = codec
        self._rows = [codec.codec.residual() for _ in range(codec.rows)]

    def fits(self, x: Tensor) -> bool:
        """Whether it is empty, or of tensors of this shape."""
        return all(row.empty or row.value.shape == tuple(x.shape[1:]) for row in self._rows)

    def correct(self, x: Tensor) -> NDArray[np.float32]:
        return np.stack([residual.correct(row) for residual, row in zip(self._rows, x, strict=True)])

    def encode(self, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> StackedPayload:
        return self.codec.encode_rows(
            lambda row, its, where: self._rows[row].encode(its, rank=rank, round_id=round_id + row, out=where),
            terms,
            rank=rank,
            round_id=round_id,
            out=out,
        )

    def lost(self, payload: Payload) -> None:
        assert isinstance(payload, StackedPayload)
        for row, part in zip(range(payload.lo, payload.hi), payload.rows, strict=True):
            self._rows[row].lost(part)

    def unsent(self, x: Tensor) -> None:
        for residual, row in zip(self._rows, x, strict=True):
            residual.unsent(row)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [row.state_dict() for row in self._rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        same("number of rows", len(self._rows), len(state["rows"]), "load this residual")
        for row, kept in zip(self._rows, state["rows"], strict=True):
            row.load_state_dict(kept)
