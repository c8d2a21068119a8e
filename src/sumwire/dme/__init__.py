"""Distributed mean estimation: one vector per client, few bits, no prior agreement between clients.

The schemes of Suresh et al. 2017 (`StochasticBinary`, `StochasticLevels`, `Rotated`, `VariableLength`,
`Sampled`), and later schemes (`Correlated`, `Drive`, `Eden`). All have the same methods `encode`, `decode`, `bits`
and `bound`; docs/dme.md compares them. Their messages cannot be added: where clients can agree on a range first,
`lattice` returns a codec whose payloads can.

>>> import numpy as np, sumwire
>>> xs = [np.random.default_rng(k).standard_normal(1024).astype(np.float32) for k in range(10)]
>>> mean = sumwire.dme.estimate(sumwire.dme.Rotated(16), xs)
>>> bool(np.square(mean - np.mean(xs, axis=0)).sum() < sumwire.dme.Rotated(16).bound(1024, 10) * 1024)
True
"""

from sumwire.dme.eden import Drive, Eden
from sumwire.dme.estimate import estimate
from sumwire.dme.levels import Correlated, StochasticBinary, StochasticLevels
from sumwire.dme.rotated import Rotated
from sumwire.dme.sampled import Sampled
from sumwire.dme.scheme import MeanScheme
from sumwire.dme.variable import VariableLength

__all__ = [
    "Correlated",
    "Drive",
    "Eden",
    "MeanScheme",
    "Rotated",
    "Sampled",
    "StochasticBinary",
    "StochasticLevels",
    "VariableLength",
    "estimate",
]
