"""The error that a Lattice will have on Gaussian blocks, before anything is encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sumwire.codec.lattice import table as tables
from sumwire.errors import ConfigError
from sumwire.kernels.lattice.scheme import Scheme

if TYPE_CHECKING:
    from sumwire.codec.lattice.definition import LatticeDefinition


def predicted_nmse(codec: LatticeDefinition, correlation: float) -> float:
    """See `Lattice.predicted_nmse`."""
    if not 0.0 <= correlation <= 1.0:
        raise ConfigError(f"correlation={correlation} is not in 0..1")
    if not codec.rotate:
        raise ConfigError("without rotation the error depends on the tensor: nothing can be predicted")
    width_class, width = codec.nominal_width(codec.family_bits), codec.nominal_width(codec.bits)
    error = tables.mean_error(
        tuple(codec.scheme.tables[width_class, width].values.tolist()),
        codec.nominal_lattice.clip,
        codec.workers,
        correlation=correlation,
        stratified=codec.rounding == "stratified",
    )
    error += dither_error(codec.scheme, width_class) / codec.workers
    return error / tables.mean_power(codec.workers, correlation)


def dither_error(scheme: Scheme, width: int) -> float:
    """Squared error per coordinate, relative to scale^2, of rounding the rotation's input to integers."""
    lattice = scheme.lattices[width]
    assert lattice is not None
    size = 1 << scheme.log_block
    units = lattice.encode_gain / (1 << lattice.dither_bits) / scheme.root(size)
    return 1.0 / 6.0 / units**2
