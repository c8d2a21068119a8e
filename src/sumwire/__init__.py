"""Sumwire adds tensors in compressed form.

Workers compress once, aggregators only add small integers, workers decompress once:

>>> import numpy as np, sumwire
>>> codec = sumwire.Lattice(workers=2, bits=4)
>>> xs = [np.ones(1000, np.float32), np.full(1000, 3, np.float32)]
>>> terms = codec.propose(xs[0]) | codec.propose(xs[1])
>>> total = codec.encode(xs[0], terms, rank=0) + codec.encode(xs[1], terms, rank=1)
>>> bool(abs(codec.decode(total).mean() - 2) < 0.1)
True
"""

from typing import TYPE_CHECKING, Any

from sumwire import dme, errors
from sumwire.aggregate.local import average
from sumwire.codec.algebra import Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import (
    ConfigError,
    FrameError,
    HeadroomError,
    InputError,
    MismatchError,
    NonFiniteError,
    RangeError,
    RoundError,
    SumwireError,
)
from sumwire.kernels.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from sumwire.aggregate.client import AsyncLink, Link, connect
    from sumwire.aggregate.server.server import Server

__version__ = "0.1.0"

__all__ = [
    "AsyncLink",
    "Codec",
    "ConfigError",
    "FrameError",
    "HeadroomError",
    "InputError",
    "Lattice",
    "Link",
    "MismatchError",
    "NonFiniteError",
    "Payload",
    "RangeError",
    "Residual",
    "RoundError",
    "Server",
    "Sketch",
    "Sparse",
    "Sum",
    "SumwireError",
    "Terms",
    "average",
    "connect",
    "dme",
    "errors",
    "get_num_threads",
    "set_num_threads",
]

_LATER = {"Server": "sumwire.aggregate.server.server"} | dict.fromkeys(
    ("AsyncLink", "Link", "connect"), "sumwire.aggregate.client"
)


def __getattr__(name: str) -> Any:
    """The server and its links, when they are first named: they bring asyncio and TLS, which few programs need."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
