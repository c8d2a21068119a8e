"""What is merged: `Terms` join with `|`, payloads and sums add with `+`.

    terms   = terms_0 | terms_1 | ...         # JOIN: idempotent, commutative, associative
    total   = payload_0 + payload_1 + ...     # ADD: commutative, associative, exact

`base.py` has the codec that makes and reads them.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sumwire.codec.options import same, same_family
from sumwire.codec.tensors import Tensor

if TYPE_CHECKING:
    from sumwire.codec.base import Codec
    from sumwire.codec.streams import Stream

Shape = tuple[int, ...]
Span = tuple[int, int]
"""Units lo..hi."""
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Missing = Literal["raise", "zero"]
DivideBy = Literal["count", "workers"]

MAX_WORKERS = 1 << 16
MAX_ROUND = (1 << 64) - 1
FOLLOW_UP = 1 << 63
"""Bit of a round's id that marks its second exchange, where a codec needs one."""


@dataclass(frozen=True, eq=False)
class Terms(ABC):
    """What all workers agree on before a round. `a | b` joins them.

    Attributes
    ----------
    codec : Codec
        The codec that proposed them; any member of its family can encode under them.
    shape : tuple of int
        Shape of the tensor.

    Notes
    -----
    Law: joining is idempotent, commutative and associative, so duplicates are harmless and order does not matter.
    Terms are an array of `words` that join element by element, by maximum or bitwise OR: any transport that can do
    that can join terms.

    Examples
    --------
    >>> from sumwire import Lattice
    >>> codec = Lattice(workers=2)
    >>> a, b = codec.propose(np.ones(600, np.float32)), codec.propose(np.full(600, 3, np.float32))
    >>> (a | b) == (b | a) == (a | b | b)
    True
    """

    codec: Codec
    shape: Shape

    joined_by: ClassVar[Literal["max", "or"]] = "max"

    @property
    @abstractmethod
    def words(self) -> NDArray[Any]:
        """What is joined, as signed integers (int32 or int64); empty if there is nothing to agree on."""

    @abstractmethod
    def with_words(self, words: NDArray[Any]) -> Self:
        """These terms with the joined words."""

    @property
    def bases(self) -> NDArray[np.int32] | None:
        """What `codes` are relative to, which joins by maximum; None if `words` are the shortest form of all."""
        return None

    def codes(self, bases: NDArray[np.int32]) -> Bytes:
        """These terms in short: bytes that join by maximum, if all workers count from the joined bases."""
        raise NotImplementedError

    def with_codes(self, bases: NDArray[np.int32], codes: Bytes) -> Self:
        """These terms with joined bases and codes: what joining their words gives, too."""
        raise NotImplementedError

    def join_codes(self, bases: NDArray[np.int32], codes: Bytes) -> Self:
        """Everyone's terms, joined, from a row of bases and of codes for each worker."""
        return reduce(operator.or_, (self.with_codes(*row) for row in zip(bases, codes, strict=True)))

    def as_capped(self) -> Self:
        """These terms, marked as lowered by an aggregator, so that workers scale their tensors down to them."""
        return self

    @staticmethod
    def join_capped(proposals: Sequence[Any], cap: float) -> Any:
        """All workers' terms joined so that no single worker raises them above `cap` times the median."""
        return reduce(operator.or_, proposals)

    @property
    def choice(self) -> str:
        """Which codec was chosen by these terms, where there is a choice; empty if not."""
        return ""

    @property
    def encodable(self) -> bool:
        """False if some worker cannot encode its tensor (NaN, Inf): all see it, and average the tensor exactly."""
        return True

    def __or__(self, other: Self) -> Self:
        if not isinstance(other, Terms):
            return NotImplemented
        same_family(self.codec, other.codec, "join terms")
        same("shape", self.shape, other.shape, "join terms")
        for terms in (self, other):
            if not terms.encodable:
                return terms
        join = np.maximum if self.joined_by == "max" else np.bitwise_or
        return self.with_words(join(self.words, other.words))

    @cached_property
    def size(self) -> int:
        """Coordinates of the tensor."""
        return math.prod(self.shape)

    @property
    @abstractmethod
    def digest(self) -> int:
        """64 bits that two terms share exactly when they are equal (up to a collision)."""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, without the frame's header."""
        return self.words.nbytes if self.encodable else 0

    @property
    def memory(self) -> int:
        """Bytes in memory, which may be more than on the wire."""
        return self.nbytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Terms):
            return NotImplemented
        mine = (self.codec.family, self.shape, self.digest)
        return mine == (other.codec.family, other.shape, other.digest)

    def __hash__(self) -> int:
        return hash((self.codec.family, self.shape, self.digest))


@dataclass(frozen=True, eq=False)
class Addend(ABC):
    """What Payload and Sum share: both can be added, and know which round they belong to."""

    codec: Codec
    terms: Terms
    round_id: int

    addable: ClassVar[bool] = True
    """False for a narrow sum, which can only be decoded."""

    @property
    def shape(self) -> Shape:
        """Shape of the tensor."""
        return self.terms.shape

    def __add__(self, other: Payload | Sum) -> Sum:
        if not isinstance(other, Addend):
            return NotImplemented
        return self.codec.add([self, other])

    def __radd__(self, other: object) -> Any:
        # So that the builtin sum() works, which starts from 0.
        return self if other == 0 and isinstance(other, int) else NotImplemented

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the wire, without the frame's header."""

    @abstractmethod
    def part(self, lo: int, hi: int) -> Self:
        """Units lo..hi alone, without copying where possible."""


@dataclass(frozen=True, eq=False)
class Payload(Addend):
    """One worker's addable integers. Adding two gives a `Sum`.

    Attributes
    ----------
    codec : Codec
        The codec that encoded it.
    terms : Terms
        The joined terms it was encoded under.
    round_id : int
        The round it belongs to; payloads of different rounds do not add.
    rank : int
        The worker that sent it, so that an aggregator can detect a duplicate.

    Notes
    -----
    Law: adding is commutative, associative and exact. A payload beyond the codec's headroom raises `HeadroomError`
    instead of wrapping a lane.
    """

    rank: int

    @property
    def value_kind(self) -> int:
        """Number of the format of its values, where workers may use different ones."""
        return 0

    @property
    def count(self) -> int:
        """Payloads in it, as in a `Sum`."""
        return 1

    @abstractmethod
    def cut(self, edges: Sequence[int]) -> tuple[Bytes, tuple[int, ...]]:
        """Cut into runs of units.

        Parameters
        ----------
        edges : sequence of int
            Run k has units edges[k]..edges[k + 1], as `Codec.edges` gives them.

        Returns
        -------
        data : ndarray of uint8
            The bytes of all runs, one after another.
        sizes : tuple of int
            Bytes of each run.
        """

    def streams(self, *, by_unit: bool) -> list[Stream] | None:
        """Runs of lanes and words that merge element by element; None if the codec has no such form.

        `by_unit`: sums may be without some workers, so that every unit needs words, and a count, of its own.
        """
        return None

    def summands(self, out: NDArray[np.int32] | None = None) -> NDArray[Any] | None:
        """int32 or float32 numbers whose plain SUM over the workers is the sum; None if the codec has no such form."""
        return None


@dataclass(frozen=True, eq=False)
class Sum(Addend):
    """Payloads added. Adding more gives another `Sum`.

    Attributes
    ----------
    codec, terms, round_id
        As of its payloads.
    count : int
        Payloads in the sum; where parts were lost, the most that any unit holds.
    late : tuple of (int, int)
        Units lo..hi that were summed without the payload of the worker that holds this sum.
    """

    count: int
    late: tuple[Span, ...] = field(default=(), kw_only=True)

    @abstractmethod
    def packed(self, out: Bytes | None = None) -> Bytes:
        """The bytes that travel down, without the frame's header; at the front of `out` where the codec uses it."""

    @property
    def storage(self) -> Any:
        """An array or tensor of the memory that it lies in, if that may be a GPU's."""
        return None

    @property
    def contributors(self) -> frozenset[int] | None:
        """Ranks of the workers in it, if the sum itself says so."""
        return None

    def narrow(self) -> Sum:
        """This sum as it travels down, once nothing more is added to it: itself, unless the codec has a shorter form.

        Law: every owner's part narrows to the same bits, whoever owns it; the result decodes, and cannot be added.
        """
        return self

    def narrow_packed(self, out: Bytes | None = None) -> Bytes:
        """`narrow().packed(out)`, in one pass if the codec has one."""
        return self.narrow().packed(out)


class FollowUp(ABC):
    """A second exchange that a sum needs before it can be decoded: another, smaller round under known terms."""

    terms: Terms
    ranks: frozenset[int]
    """Workers that are in the sum: only they take part."""

    @abstractmethod
    def pick(self, x: Tensor) -> Tensor:
        """What this worker has to send of its tensor."""

    @abstractmethod
    def decode(self, total: Sum, *, out: Floats | None = None) -> Floats:
        """The mean, from the sum of the second exchange."""


class ErrorFeedback(Protocol):
    """What a round asks of a `Residual`, or of several that belong together."""

    @property
    def codec(self) -> Codec: ...

    def correct(self, x: Tensor) -> Floats: ...

    def encode(self, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> Payload: ...

    def lost(self, payload: Payload) -> None: ...

    def unsent(self, x: Tensor) -> None: ...


def runs_of(lo: int, hi: int, step: int) -> list[Span]:
    """lo..hi in runs of `step`."""
    return list(pairwise([*range(lo, hi, step), hi])) if lo < hi else []
