"""Messages: the arrays of a payload one after another, and a byte that says whether they mean anything."""

from __future__ import annotations

import numpy as np

from sumwire.lab.peers.base import Parts, Vector
from sumwire.lab.peers.quantizer import Layout, Quantizer
from sumwire.lab.wired.wire import Bytes

_FINITE, _NOT_FINITE = 0, 1


class Format:
    """Bytes of messages of a number of values, which may be 0.

    The last byte is not published: it says that the sender had NaN or Inf, of which quantizers make plausible numbers.

    >>> from sumwire.lab.peers.casts import CastQuantizer
    >>> form = Format(CastQuantizer("fp16"), 2)
    >>> form.nbytes, form.read(form.write((np.array([1, 2], np.float16),)))
    (5, (array([1., 2.], dtype=float16),))
    >>> form.read(form.write(None)) is None
    True
    """

    def __init__(self, quantizer: Quantizer, size: int) -> None:
        self.quantizer = quantizer
        self.size = size
        self._layout: Layout = quantizer.layout(size) if size else []
        self.nbytes = sum(kind.itemsize * count for kind, count in self._layout) + 1

    def write(self, parts: Parts | None) -> Bytes:
        """The message of these arrays; None: of a sender that has a value that is not finite."""
        if parts is None:
            message = np.zeros(self.nbytes, np.uint8)
            message[-1] = _NOT_FINITE
            return message
        status = np.array([_FINITE], np.uint8)
        return np.concatenate([*(np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts), status])

    def read(self, message: Bytes) -> Parts | None:
        """The arrays, or None if the sender had a value that is not finite."""
        if message[-1] != _FINITE:
            return None
        parts, start = [], 0
        for kind, count in self._layout:
            stop = start + kind.itemsize * count
            # A copy, so that it is aligned.
            parts.append(message[start:stop].copy().view(kind))
            start = stop
        return tuple(parts)

    def values(self, parts: Parts) -> Vector:
        return self.quantizer.decode(parts, self.size) if self.size else np.empty(0, np.float32)
