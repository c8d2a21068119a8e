"""Tests mirror src/sumwire."""

from sumwire.kernels import backend

ON_REFERENCE = backend.name() == "reference"
"""Statistics then take fewer rounds, and lists fewer cases: NumPy is some twenty times slower, with the same bytes."""
