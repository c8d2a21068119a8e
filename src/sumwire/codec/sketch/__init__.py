"""Lossless sums of sparse tensors in one round of fixed size: Count Sketch over exact integers."""

from sumwire.codec.sketch.codec import Sketch

__all__ = ["Sketch"]
