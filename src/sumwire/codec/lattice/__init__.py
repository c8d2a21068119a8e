"""Lossy sums of any tensors, at a few bits per coordinate: the THC paper's idea, improved."""

from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.residual import Residual

__all__ = ["Lattice", "Residual"]
