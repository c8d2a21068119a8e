"""What a round does that fails: nothing of its tensor is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sumwire import Codec, Lattice, RoundError
from sumwire.aggregate.local import Local
from sumwire.aggregate.round import Round
from sumwire.codec.stacked import Stacked

ROWS, SIZE = 2, 1500


class Broken:
    """An aggregator that fails when it is told to."""

    def __init__(self, codec: Codec) -> None:
        self._inner, self.fails = Local.create(1, codec)[0], ""

    def __getattr__(self, name: str) -> Any:
        if name == self.fails:
            raise RoundError(f"{name}: a peer is gone")
        return getattr(self._inner, name)


@pytest.mark.parametrize("fails", ["join", "add_shard"])
def test_a_reduce_scatter_that_fails_gives_everything_back_to_the_residual(fails: str) -> None:
    codec = Stacked(Lattice(1, 2, feedback=True), rows=ROWS)
    aggregator: Any = Broken(codec)
    residual, rng = codec.residual(), np.random.default_rng(1)
    given, arrived = np.zeros((ROWS, SIZE)), np.zeros((ROWS, SIZE))
    for number in range(5):
        x: NDArray[np.float32] = rng.standard_normal((ROWS, SIZE)).astype(np.float32)
        given += x
        step = Round(aggregator, x, codec, round_id=number, residual=residual)
        aggregator.fails = fails if number in (1, 2) else ""
        if aggregator.fails:
            with pytest.raises(RoundError, match="a peer is gone"):
                step.reduce_scatter()
        else:
            mean = step.reduce_scatter()
            assert mean is not None
            arrived += mean
        assert residual is not None
        kept = np.stack([row["value"] for row in residual.state_dict()["rows"]])
        np.testing.assert_allclose(arrived + kept.reshape(ROWS, SIZE), given, atol=1e-4)
