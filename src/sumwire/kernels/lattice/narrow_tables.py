"""The quantizers of narrow sums: how a centered lane of a Gaussian block becomes an index of 1 to 8 bits.

Lloyd-Max quantizers in integers. All numbers are constants, because libm must not decide bytes. Levels are odd, and
`unit` of them are a standard deviation, corrected so that the result is unbiased (EDEN: <x, x> / <x, q>).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sumwire.kernels.arrays import Bytes, Ints

CELLS = 64
"""Widths up to 5 look magnitudes up by cell, which one or a few byte shuffles do."""

MAX_MAGNITUDE = 32767
"""Magnitudes are scaled to 15 bits before they are quantized."""


@dataclass(frozen=True)
class Quantizer:
    """One width: magnitude to index, index to level."""

    width: int
    levels: tuple[int, ...]
    """Odd integers, one for each magnitude index; negative coordinates have the same below 0."""
    unit: float
    """Units of `levels` in a standard deviation of the block."""
    error: float
    """Expected squared error of a Gaussian coordinate over its variance."""
    density: int = 0
    """Widths up to 5: cells per standard deviation."""
    cuts: tuple[int, ...] = ()
    """Cells at which the index goes up by one."""
    slopes: tuple[int, ...] = ()
    """Widths from 6 on: cells per standard deviation of the lines whose minimum is the index, with
    `fraction_bits` + 12 fraction bits."""
    offsets: tuple[int, ...] = ()
    """Of these lines, with `fraction_bits` fraction bits."""

    @property
    def by_cell(self) -> bool:
        return bool(self.density)

    @property
    def granularity(self) -> int:
        """Of the lattice on which narrow lanes decode: they are (granularity +- level) / 2, of one payload."""
        return 255 if self.by_cell else MAX_MAGNITUDE

    @property
    def fraction_bits(self) -> int:
        """Of a cell, where lines give it."""
        return 13 - self.width

    @cached_property
    def magnitudes(self) -> Bytes:
        """The index of each cell."""
        return np.searchsorted(np.array(self.cuts, np.int64), np.arange(CELLS), side="right").astype(np.uint8)

    @cached_property
    def level_array(self) -> Ints:
        return np.array(self.levels, np.int64)


# fmt: off
QUANTIZERS = {
    1: Quantizer(
        1,
        levels=(215,),
        unit=171.54518099866215, error=0.570796, density=16,
    ),
    2: Quantizer(
        2,
        levels=(63, 211),
        unit=124.12755695203441, error=0.133166, density=32,
        cuts=(31,),
    ),
    3: Quantizer(
        3,
        levels=(27, 85, 151, 241),
        unit=107.85881283543306, error=0.0358098, density=32,
        cuts=(16, 34, 56),
    ),
    4: Quantizer(
        4,
        levels=(11, 33, 55, 79, 105, 135, 173, 227),
        unit=81.48727432419217, error=0.00963178, density=26,
        cuts=(7, 14, 21, 29, 38, 49, 63),
    ),
    5: Quantizer(
        5,
        levels=(5, 15, 25, 35, 45, 55, 65, 75, 85, 97, 109, 123, 137, 157, 183, 219),
        unit=66.55766243298571, error=0.00258137, density=20,
        cuts=(3, 6, 9, 12, 15, 18, 21, 24, 27, 31, 35, 39, 44, 51, 60),
    ),
    6: Quantizer(
        6,
        levels=(
            299, 897, 1495, 2093, 2693, 3291, 3889, 4487, 5085, 5683, 6281, 6881, 7603, 8357, 9111, 9867, 10621,
            11377, 12131, 12885, 13641, 14489, 15625, 16761, 17897, 19031, 20167, 21469, 23617, 25767, 28267, 32767,
        ),
        unit=8693.75862893209, error=0.000661037,
        slopes=(7620465, 6040184, 4014456, 2120906, 1013117), offsets=(0, 311, 1119, 2242, 3100),
    ),
    7: Quantizer(
        7,
        levels=(
            137, 413, 689, 965, 1241, 1517, 1793, 2069, 2345, 2621, 2897, 3173, 3449, 3725, 4001, 4277, 4553, 4829,
            5105, 5381, 5657, 5933, 6209, 6485, 6761, 7049, 7407, 7765, 8123, 8481, 8839, 9197, 9555, 9913, 10273,
            10631, 10989, 11347, 11705, 12063, 12421, 12779, 13137, 13497, 13855, 14297, 14899, 15499, 16101, 16701,
            17303, 17903, 18505, 19105, 19707, 20307, 20909, 22073, 23359, 24645, 25931, 27215, 29169, 32767,
        ),
        unit=7906.42090197167, error=0.000170914,
        slopes=(7511289, 5786843, 3449263, 1612202, 576014), offsets=(0, 373, 1389, 2581, 3481),
    ),
    8: Quantizer(
        8,
        levels=(
            63, 191, 317, 443, 571, 697, 823, 951, 1077, 1203, 1331, 1457, 1583, 1711, 1837, 1963, 2091, 2217, 2343,
            2471, 2597, 2723, 2851, 2977, 3103, 3231, 3357, 3483, 3611, 3737, 3863, 3991, 4117, 4243, 4371, 4497,
            4623, 4751, 4877, 5003, 5131, 5257, 5383, 5511, 5637, 5763, 5891, 6017, 6143, 6271, 6397, 6523, 6651,
            6777, 6903, 7073, 7245, 7417, 7589, 7761, 7933, 8105, 8277, 8449, 8621, 8793, 8965, 9137, 9309, 9481,
            9653, 9825, 9997, 10169, 10341, 10513, 10685, 10857, 11029, 11201, 11373, 11545, 11717, 11889, 12061,
            12233, 12405, 12577, 12749, 12921, 13093, 13265, 13437, 13609, 13781, 14013, 14331, 14649, 14967, 15285,
            15603, 15921, 16241, 16559, 16877, 17195, 17513, 17831, 18149, 18467, 18785, 19103, 19421, 19739, 20057,
            20375, 20693, 21221, 22021, 22821, 23621, 24421, 25219, 26019, 26819, 27619, 30019, 32767,
        ),
        unit=7196.708567425011, error=4.39539e-05,
        slopes=(7447273, 5484184, 2965430, 1179766, 343210), offsets=(0, 460, 1646, 2911, 3699),
    ),
}
# fmt: on
"""By width."""
