"""The second exchange of a Sketch: what could not be peeled, each value in a lane of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sumwire.codec.algebra import Floats, FollowUp, Sum
from sumwire.codec.sketch.parts import Peeled, SketchSum
from sumwire.codec.tensors import Tensor

if TYPE_CHECKING:
    from sumwire.codec.sketch.codec import Sketch


class SketchFollowUp(FollowUp):
    """All workers of a round have the same sum, so they find the same leftovers."""

    def __init__(self, codec: Sketch, peeled: Peeled) -> None:
        self._codec, self._peeled = codec, peeled
        self.terms = codec.second_terms(peeled)
        self.ranks = frozenset(peeled.total.ranks)

    def pick(self, x: Tensor) -> Tensor:
        return self._codec.pick(x, self._peeled.leftovers)

    def decode(self, total: Sum, *, out: Floats | None = None) -> Floats:
        assert isinstance(total, SketchSum)
        return self._codec.complete(self._peeled, total, out=out)
