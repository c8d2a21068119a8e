"""A Scheme as kernels see it: rows of numbers by width class, and tables, on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray

from sumwire.kernels.lattice.scheme import ENERGY_STEPS, MAX_BITS, MAX_LOG_BLOCK, Scheme
from sumwire.kernels.triton.launch import upload

CLASSES = tl.constexpr(MAX_BITS + 1)
"""Rows of all tables, by width class."""
STEPS = tl.constexpr(ENERGY_STEPS)
"""Columns of `corrections`."""

# Columns of `ints`.
GRANULARITY = tl.constexpr(0)
FRACTION_BITS = tl.constexpr(1)
ROTATION_BITS = tl.constexpr(2)
HALF_RANGE = tl.constexpr(3)
LANE_BYTES = tl.constexpr(4)
LANE_BITS = tl.constexpr(5)
DITHER_BITS = tl.constexpr(6)
INTS = tl.constexpr(8)

# Columns of `floats`.
SHRINK = tl.constexpr(0)
ENERGY_GAIN = tl.constexpr(1)
DECODE_GAIN = tl.constexpr(2)
FLOATS = tl.constexpr(4)

LOGS = tl.constexpr(MAX_LOG_BLOCK + 1)
"""Columns of `limits`, `gains` and `roots`: by the logarithm of a block's size."""


@dataclass(frozen=True)
class DeviceScheme:
    """Tensors that kernels index by width class, and by class and index width."""

    ints: torch.Tensor
    floats: torch.Tensor
    limits: torch.Tensor
    """Largest sum of squares of a block, by class and size."""
    gains: torch.Tensor
    """encode_gain / root, by class and size."""
    roots: torch.Tensor
    corrections: torch.Tensor
    cells: torch.Tensor
    """By lattice cell: the index below, its value and the gap above, in one word of 8, 16 and 16 bits."""
    values: torch.Tensor
    """Lattice value of each index."""
    cells_at: torch.Tensor
    values_at: torch.Tensor
    """Where the tables of (class, width) begin in `cells` and `values`."""
    widest_lane: int
    """In bits."""


def device_scheme(scheme: Scheme, like: torch.Tensor) -> DeviceScheme:
    """The scheme on the device of `like`, made once."""
    key = f"triton {like.device}"
    known = scheme.native.get(key)
    if not isinstance(known, DeviceScheme):
        known = scheme.native.setdefault(key, _made(scheme, like))
        assert isinstance(known, DeviceScheme)
    return known


def _made(scheme: Scheme, like: torch.Tensor) -> DeviceScheme:
    ints = np.zeros((CLASSES.value, INTS.value), np.int64)
    floats = np.zeros((CLASSES.value, FLOATS.value))
    limits, gains = np.zeros((CLASSES.value, LOGS.value), np.int64), np.zeros((CLASSES.value, LOGS.value))
    roots = np.array([scheme.root(1 << log) for log in range(LOGS.value)])
    corrections = np.zeros((CLASSES.value, STEPS.value), np.int32)
    for cls, spec in enumerate(scheme.lattices):
        if spec is None:
            continue
        ints[cls, :7] = (
            spec.granularity, spec.fraction_bits, spec.rotation_bits, spec.half_range, spec.lane_bytes,
            spec.lane_bits, spec.dither_bits,
        )  # fmt: skip
        floats[cls, :3] = spec.shrink, spec.energy_gain, spec.decode_gain
        corrections[cls] = spec.corrections
        for log in range(scheme.log_block + 1):
            limits[cls, log] = scheme.square_limit(1 << log, cls)
            gains[cls, log] = spec.encode_gain / scheme.root(1 << log)
    cells: list[NDArray[np.int64]] = []
    values: list[NDArray[np.int32]] = []
    cells_at, values_at = np.zeros((2, CLASSES.value, CLASSES.value), np.int32)
    for (cls, width), table in scheme.tables.items():
        cells_at[cls, width] = sum(len(each) for each in cells)
        values_at[cls, width] = sum(len(each) for each in values)
        lower = table.lower.astype(np.int64)
        cells.append(lower | table.values[lower].astype(np.int64) << 8 | table.gap[lower].astype(np.int64) << 24)
        values.append(table.values.astype(np.int32))
    arrays: dict[str, NDArray[Any]] = {
        "ints": ints, "floats": floats, "limits": limits, "gains": gains, "roots": roots, "corrections": corrections,
        "cells": np.concatenate(cells), "values": np.concatenate(values), "cells_at": cells_at, "values_at": values_at,
    }  # fmt: skip
    tensors = {name: upload(array, like) for name, array in arrays.items()}
    return DeviceScheme(**tensors, widest_lane=int(scheme.lane_bits.max()))


def widest_plane(bits: int) -> int:
    """The largest power of two up to a width, which is the widest plane of any narrower one."""
    return 1 << bits.bit_length() - 1
