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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sumwire import dme, errors
from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.local import Local, average
from sumwire.codec.algebra import Payload, Sum, Terms
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.residual import Residual
from sumwire.codec.rows.codec import Rows
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import (
    BehindError,
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
    from sumwire import estimators, train
    from sumwire.aggregate.client import AsyncLink, Link
    from sumwire.aggregate.connect import connect
    from sumwire.aggregate.group.group import Group
    from sumwire.aggregate.server.server import Server

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "AsyncLink",
    "BehindError",
    "Codec",
    "ConfigError",
    "FrameError",
    "Group",
    "HeadroomError",
    "InputError",
    "Lattice",
    "Link",
    "Local",
    "MismatchError",
    "NonFiniteError",
    "Payload",
    "RangeError",
    "Residual",
    "RoundError",
    "Rows",
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
    "estimators",
    "get_num_threads",
    "set_num_threads",
    "train",
]

_MODULES = ("estimators", "train")
_LATER = {
    "AsyncLink": "sumwire.aggregate.client",
    "Group": "sumwire.aggregate.group.group",
    "Link": "sumwire.aggregate.client",
    "Server": "sumwire.aggregate.server.server",
    "connect": "sumwire.aggregate.connect",
}


def __getattr__(name: str) -> Any:
    """What brings torch, scikit-learn, asyncio or TLS, when it is first named: few programs need it all."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
