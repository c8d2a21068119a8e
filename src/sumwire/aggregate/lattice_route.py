"""The lossy routes: a `Lattice` payload, summed in one of two ways (ways.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sumwire.aggregate.group.communicator import Wire
from sumwire.aggregate.round import Round, Route
from sumwire.aggregate.ways import Trip, Way
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.options import LARGEST_SCALE
from sumwire.codec.lattice.parts import LatticeTerms
from sumwire.errors import NonFiniteError, RangeError

SAMPLE = 1 << 18
"""Coordinates of which a sampled round measures the error."""

_NO_VALUES = np.empty(0, np.float32)


@dataclass(eq=False)
class _Luggage:
    kept: torch.Tensor | None = None
    """The exact positions' own values."""
    truth: NDArray[np.float32] | None = None
    trip: Trip | None = None


class LatticeRoute(Route):
    """Law: every rank gets the bits of `sumwire.average`. A tensor that some rank cannot encode goes the plain way."""

    def __init__(self, codec: Lattice, way: Way) -> None:
        self.codec = codec
        self._way = way

    def join(self, job: Round, wire: Wire) -> None:
        bag = job.luggage = _Luggage()
        with job.meter.time("encode"):
            source = job.host if job.residual is None else torch.from_numpy(job.residual.correct(job.host))
            exact = self._take_exact(job, bag, source)
            if job.sampled:
                bag.truth = (source[:SAMPLE].float() / wire.ranks).numpy()
            scales = self._scales(source, exact)
        with job.meter.time("exchange"):
            sent = wire.max(scales.view(np.int32))
        if not bool((scales <= LARGEST_SCALE).all()):
            self._go_plain(job, bag)
            return
        with job.meter.time("encode"):
            terms = LatticeTerms(self.codec, tuple(source.shape), scales)
            out = job.take("payload", terms.payload_bytes(self.codec))
            keys: Any = {"rank": wire.rank, "round_id": job.round_id, "out": out}
            if job.residual is None:
                payload = self.codec.encode(source, terms, **keys)
            else:
                payload = job.residual.encode(terms, **keys)
                if job.exact is not None:
                    job.residual.value[job.exact.numpy()] = 0  # noise of zeros: their values are sent apart
        assert job.buffers is not None
        kept = job.residual is not None
        bag.trip = Trip(self.codec, job.buffers, terms, payload, exact, job.meter, kept, sent)

    def _take_exact(self, job: Round, bag: _Luggage, source: torch.Tensor) -> NDArray[np.float32]:
        """The values that are sent as they are; the codec sees zeros there."""
        if job.exact is None:
            return _NO_VALUES
        bag.kept = job.host[job.exact]
        source[job.exact] = 0
        return bag.kept.float().numpy()

    def _scales(self, source: torch.Tensor, exact: NDArray[np.float32]) -> NDArray[np.float32]:
        """This rank's terms; NaN, which wins every maximum, where it has none to offer."""
        try:
            if source.dtype == torch.float64 and np.isinf(exact).any():
                raise NonFiniteError("beyond float32", index=0, count=1)
            return self.codec.propose(source).scales.copy()
        except (NonFiniteError, RangeError):
            return np.full(self.codec.blocks(source.numel()), np.nan, np.float32)

    def _go_plain(self, job: Round, bag: _Luggage) -> None:
        """Some rank has no terms: all take this tensor as it is, and its residual is not touched."""
        job.algorithm = "plain"
        if job.residual is None and job.exact is not None:
            assert bag.kept is not None
            job.tensor[job.exact] = bag.kept.to(job.tensor.device)

    def exchange(self, job: Round, wire: Wire) -> None:
        bag: _Luggage = job.luggage
        assert bag.trip is not None
        self._way.exchange(bag.trip, wire)
        if job.residual is not None:
            for part in bag.trip.late:
                job.residual.lost(part)
        if bag.truth is not None:
            bag.trip.sent += wire.sum(bag.truth)

    def decode(self, job: Round) -> None:
        bag: _Luggage = job.luggage
        assert bag.trip is not None
        with job.meter.time("decode"):
            mean = job.mean_buffer()
            self._way.decode(bag.trip, mean)
            if bag.truth is not None:
                job.meter.sample(mean[: len(bag.truth)], bag.truth)
            job.hand_over(mean)
            if job.exact is not None:
                exact = bag.trip.exact / np.float32(self.codec.workers)
                job.tensor[job.exact] = torch.from_numpy(exact).to(job.tensor)
        job.meter.count(job.tensor, bag.trip.sent, self.codec.workers)
