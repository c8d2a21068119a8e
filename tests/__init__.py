"""Tests mirror src/sumwire."""

from sumwire import kernels

ON_REFERENCE = kernels.backend().NAME == "reference"
"""Statistics then take fewer rounds, and lists fewer cases: NumPy is some twenty times slower, with the same bytes."""
