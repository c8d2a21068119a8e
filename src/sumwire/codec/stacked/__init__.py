"""A codec for every row of a tensor: what a reduce-scatter averages."""

from sumwire.codec.stacked.codec import Stacked
from sumwire.codec.stacked.parts import StackedResidual

__all__ = ["Stacked", "StackedResidual"]
