"""What every rank of tests/ranks.py begins with: tables that are solved, and imports that are never garbage."""

from __future__ import annotations

import gc

import numpy.ma  # which numpy.testing imports when it is first called
import numpy.testing  # noqa: F401

from sumwire import Lattice

for workers in (1, 2, 3, 4, 8):
    for bits in (2, 3, 4, 6, 8):
        Lattice(workers, bits)
    Lattice(workers, 4, table="uniform", energy=0.5)
    Lattice(workers, total_bits=12)

# Or the collector of each rank would visit, and so copy, all that ranks have in common.
gc.collect()
gc.freeze()
