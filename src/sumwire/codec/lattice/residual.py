"""Error feedback: what a payload cannot hold is added to the next tensor."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.algebra import Payload, Terms
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.lattice.coding import decode_part
from sumwire.codec.lattice.parts import LatticePayload
from sumwire.codec.options import differences, same
from sumwire.codec.tensors import (
    Tensor,
    add_arrays,
    all_finite,
    as_float32,
    beside,
    buffer,
    flatten,
    on_host,
    shape_of,
)
from sumwire.errors import ConfigError, MismatchError, RoundError
from sumwire.kernels.arrays import to_float32


class Residual:
    """One worker's memory of what was not sent, for one tensor that is averaged round after round.

    Parameters
    ----------
    codec : Lattice
        The codec that encodes the corrected tensors.

    Notes
    -----
    Law: after every round, the sum of all tensors that were corrected equals all that arrived plus the residual, up to
    float32 rounding. Over n workers: n times the sum of all means plus all residuals equals all that workers ever
    corrected, whatever is lost, if sums are decoded with divide_by="workers". Cost: two tensors of memory, one addition
    per round. It lies where its tensors do: on a GPU, as torch tensors, if they are read there.

    Examples
    --------
    >>> codec = Lattice(workers=1, bits=2)
    >>> memory = Residual(codec)
    >>> x = np.linspace(-1, 1, 1000, dtype=np.float32)
    >>> terms = codec.propose(memory.correct(x))        # join it with the other workers' here
    >>> payload = memory.encode(terms, rank=0, round_id=1)
    >>> bool(np.allclose(codec.decode(payload) + memory.value, x, atol=1e-6))
    True
    """

    def __init__(self, codec: Lattice) -> None:
        self.codec = codec
        self._value: NDArray[np.float32] | None = None
        self._corrected: NDArray[np.float32] | None = None
        self._shape: tuple[int, ...] = ()
        self._pending = False
        self._rank = -1

    @property
    def empty(self) -> bool:
        """Whether nothing was ever corrected with it."""
        return self._value is None

    @property
    def value(self) -> NDArray[np.float32]:
        """What has not been sent so far, in the tensor's shape."""
        if self._value is None:
            raise RoundError("the residual is empty: call correct(x) first")
        return self._value.reshape(self._shape)

    def fits(self, x: Tensor) -> bool:
        """Whether it is empty, or of tensors of this shape."""
        return self.empty or self._shape == shape_of(x)

    def correct(self, x: Tensor) -> NDArray[np.float32]:
        """x plus the residual: propose, join and `encode` this instead of x.

        Parameters
        ----------
        x : array or tensor
            This round's tensor, of the same shape in every round.

        Returns
        -------
        ndarray of float32, or a tensor of it on x's GPU
            In a buffer that `encode` overwrites. The residual itself is unchanged, so a NaN in x, which `propose`
            refuses, never gets into it.
        """
        flat, shape = flatten(x, on_device=True)
        if self._value is None or self._corrected is None:
            self._value, self._corrected = (buffer(None, len(flat), np.float32, flat) for _ in range(2))
            self._value[:] = 0
            self._shape = shape
        same("shape", self._shape, shape, "correct with this residual")
        # Elsewhere only after a checkpoint, which is in host memory, was loaded.
        self._value, self._corrected = beside(self._value, flat), beside(self._corrected, flat)
        add_arrays(as_float32(flat), self._value, out=self._corrected)
        self._pending = True
        return self._corrected.reshape(shape)

    def encode(
        self, terms: Terms, *, rank: int, round_id: int = 0, out: NDArray[np.uint8] | None = None
    ) -> LatticePayload:
        """The payload of the corrected tensor; what it does not hold becomes the residual.

        Parameters
        ----------
        terms : LatticeTerms
            All workers' terms for their corrected tensors, joined. Where they were capped, the residual also keeps what
            exceeds them.
        rank, round_id, out
            As for `Lattice.encode`.

        Raises
        ------
        RoundError
            There was no `correct` since the last `encode`.
        """
        if not self._pending or self._corrected is None:
            raise RoundError("nothing to encode: call correct(x), propose and join before encode")
        excess = None
        if getattr(terms, "capped", False):
            fitted = self.codec.fit(self._corrected.reshape(self._shape), terms).reshape(-1)
            excess = self._corrected - fitted
            self._corrected[:] = fitted
        self._pending = False  # should encoding fail, the corrected tensor is overwritten: correct again
        payload = self.codec.encode_in_place(
            self._corrected.reshape(self._shape), terms, rank=rank, round_id=round_id, out=out
        )
        if excess is not None:
            self._corrected += excess
        self._value, self._corrected, self._rank = self._corrected, self._value, payload.rank
        return payload

    def lost(self, payload: Payload) -> None:
        """Take back a payload (or the `part` of it) that did not arrive, so that it is sent again.

        Call it once per part; it may be late, after the next `correct`. Cost: decoding that part.
        """
        same("shape", self._shape, payload.shape, "take back")
        same("rank", self._rank, payload.rank, "take back")
        where, values = decode_part(self.codec, payload)
        assert self._value is not None
        self._value[where] += values
        if self._pending and self._corrected is not None:
            self._corrected[where] += values

    def unsent(self, x: Tensor) -> None:
        """Keep a corrected tensor of which nothing was sent, unless it holds NaN or Inf."""
        flat = as_float32(flatten(x, on_device=True)[0])
        if self._value is None or not all_finite(flat):
            return
        self._value += beside(flat, self._value)
        self._pending = False

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything needed to continue from here, for torch.save and torch.load."""
        value: Any = None if self._value is None else on_host(self._value).copy()
        torch = sys.modules.get("torch")
        if torch is not None and value is not None:
            value = torch.from_numpy(value)
        return {
            "family": self.codec.family,
            "codec": self.codec.description(),
            "shape": self._shape,
            "rank": self._rank,
            "value": value,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, which must come from a residual of the same codec family."""
        if set(state) - {"codec"} != {"family", "shape", "rank", "value"}:
            raise ConfigError(f"not a residual's state: it has keys {sorted(state)}, not family, rank, shape, value")
        if state["family"] != self.codec.family:
            names = ("this residual", "the state")
            why = differences(self.codec.description(), state.get("codec", {}), names=names) if "codec" in state else ""
            raise MismatchError(
                f"cannot load this residual: codec family differs ({why or 'see the options it was saved with'}); use "
                "the codec of the residual that was saved"
            )
        shape = tuple(int(extent) for extent in state["shape"])
        value = corrected = None
        if state["value"] is not None:
            value = to_float32(flatten(state["value"])[0]).copy()
            if value.size != math.prod(shape):
                raise ConfigError(f"not a residual's state: {value.size} values for shape {shape}")
            if not np.isfinite(value).all():
                raise ConfigError("not a residual's state: it holds NaN or Inf")
            corrected = np.empty_like(value)
        self._value, self._corrected, self._shape, self._rank = value, corrected, shape, int(state["rank"])
        self._pending = False
