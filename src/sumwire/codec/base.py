"""The interface of a codec: four verbs, and everything else that an aggregator may ask.

    terms   = codec.propose(x)                # what workers must agree on first
    terms   = terms_0 | terms_1 | ...         # JOIN
    payload = codec.encode(x, terms, ...)     # one worker's addable integers
    total   = payload_0 + payload_1 + ...     # ADD
    mean    = codec.decode(total)             # once, at each worker

Aggregators call these methods only, so none needs to know which codec it carries. A tensor is cut into *units* (blocks
of a Lattice, shards of a Sparse tensor, words of a Sketch, rows of a stack); `lo..hi` always counts units.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from sumwire.codec.algebra import (
    MAX_ROUND,
    Addend,
    Bytes,
    DivideBy,
    Floats,
    FollowUp,
    Missing,
    Payload,
    Shape,
    Span,
    Sum,
    Terms,
)
from sumwire.codec.options import describe_options, option_values, rank_of, same, same_family, whole_number
from sumwire.codec.streams import Merged
from sumwire.codec.tensors import Tensor, give_back, size_of
from sumwire.errors import ConfigError, InputError, MismatchError


class Codec(ABC):
    """How tensors become payloads that add. Immutable, hashable, built for a number of workers.

    Each codec states its law, bits per value, bias and headroom. Members of a `family` may spend different numbers of
    bits; their payloads still add.
    """

    workers: int
    feedback: bool = False
    """Whether every worker keeps a residual."""

    lossless: ClassVar[bool] = False
    """Whether sums are exact, so that a residual would have nothing to keep."""
    agrees: ClassVar[bool] = True
    """Whether there are terms to agree on; if not, a round begins with its payloads."""
    follows_up: ClassVar[bool] = False
    """Whether a sum may need a second exchange."""
    may_share_whole_payloads: ClassVar[bool] = False
    """Whether `shares_whole_payloads` may be true."""
    adds_at_once: ClassVar[bool] = True
    """Whether payloads are added to the sum as they arrive; if not, they are kept until all are there."""
    payloads_on_host: ClassVar[bool] = False
    """Whether payloads lie in the host's memory, also those of tensors that stay on a GPU."""
    work_per_byte: ClassVar[float] = 1.0
    """How long adding a byte of payload takes, relative to the slowest codec."""

    # Which codec it is

    @property
    @abstractmethod
    def family(self) -> str:
        """Names everything that must agree for payloads to add: equal names, addable payloads."""

    @property
    @abstractmethod
    def headroom(self) -> int:
        """How many payloads a sum can take before a lane would wrap; at least `workers`."""

    @property
    def member(self) -> int:
        """Number that tells members of a family apart, which spend different numbers of bits."""
        return 0

    def with_member(self, member: int) -> Self:
        """The member of this family that another worker uses."""
        same("member of the codec family", self.member, member, "use this codec")
        return self

    @property
    def sum_form(self) -> str:
        """How sums travel down, if there is a choice: all workers must agree on it, beside the family."""
        return ""

    def options(self) -> dict[str, Any]:
        """Options from which a reader can build this codec again; those that have their default may be missing."""
        return option_values(self)

    def description(self) -> dict[str, Any]:
        """What its family follows from, in plain values by name: for checkpoints, and for `options.differences`."""
        return describe_options(self)

    # The four verbs

    @abstractmethod
    def propose(self, x: Tensor) -> Terms:
        """What this worker needs the others to agree on, to be joined with their terms by `|`."""

    @abstractmethod
    def encode(self, x: Tensor, terms: Terms, *, rank: int, round_id: int = 0, out: Bytes | None = None) -> Payload:
        """This worker's payload.

        Parameters
        ----------
        x : array or tensor
            NumPy array, ml_dtypes array or torch CPU tensor.
        terms : Terms
            All workers' terms, joined.
        rank : int
            This worker, in 0..workers-1: no two workers of a round may share it.
        round_id : int
            Which round of the job; with the codec's seed it decides all randomness.
        out : ndarray of uint8, optional
            At least `payload_room` bytes to write the payload to, instead of fresh memory.

        Raises
        ------
        MismatchError
            The terms are another family's, of another shape, or do not cover x.
        ConfigError
            `rank` or `round_id` is out of range.
        """

    def add(self, parts: Iterable[Addend], *, out: Bytes | None = None) -> Sum:
        """Add any number of payloads and sums at once: what `+` does, in one pass.

        Parameters
        ----------
        parts : iterable of Payload and Sum
            Of one round, under the same terms.
        out : ndarray of uint8, optional
            `memory` bytes, contiguous, to write the lanes to.

        Raises
        ------
        MismatchError
            They are of different families, shapes, rounds or terms, or a rank is in them twice.
        HeadroomError
            There are more payloads than a lane can hold.
        """
        parts = list(parts)
        if not parts:
            raise ConfigError("nothing to add: pass at least one payload or sum")
        first = parts[0]
        for part in parts:
            name = type(part).__name__
            if not isinstance(part, Addend):
                raise InputError(f"a {name} cannot be added: pass payloads and sums")
            if not part.addable:
                raise MismatchError(f"a {name} cannot be added, as it was quantized again: first add, then narrow")
            same_family(self, part.codec, "add")
            same("shape", first.shape, part.shape, "add")
            same("round", first.round_id, part.round_id, "add")
            if part.terms is not first.terms:
                same("terms", first.terms.digest, part.terms.digest, "add")
        return self._add(parts, out)

    @abstractmethod
    def _add(self, parts: Sequence[Any], out: Bytes | None) -> Sum: ...

    @abstractmethod
    def decode(
        self,
        total: Sum | Payload,
        *,
        out: Floats | None = None,
        missing: Missing = "raise",
        divide_by: DivideBy = "count",
    ) -> Floats:
        """The mean of the tensors in the sum, in their shape.

        Parameters
        ----------
        total : Sum or Payload
            What all workers' payloads added up to.
        out : ndarray of float32, optional
            As many elements as the tensor has, contiguous, to write the mean to.
        missing : {"raise", "zero"}
            What to do about units of which no payload arrived: raise `RoundError`, or take them as zero.
        divide_by : {"count", "workers"}
            "count" divides each unit by the payloads that arrived: right if what is missing is gone. "workers" divides
            by all workers: right if a `Residual` keeps what is missing, since it then arrives later with this weight.

        Raises
        ------
        RoundError
            Units are missing, or a codec that proves its values found them corrupt.
        """

    # Around the verbs

    def stays_on_device(self, x: Tensor) -> bool:
        """Whether this codec's kernels read x where it lies, on a GPU; otherwise it must be copied to the host."""
        return False

    def accepts(self, x: Tensor) -> bool:
        """Whether this codec can encode tensors of x's dtype at all."""
        return True

    def refuse(self, shape: Shape) -> Terms:
        """Terms of a worker that cannot encode its tensor: whatever is joined with them is not `encodable`."""
        raise InputError(f"a {type(self).__name__} codec encodes any tensor: there is nothing to refuse")

    def empty_terms(self, shape: Shape) -> Terms:
        """The terms of any tensor of this shape, where there is nothing to agree on."""
        raise InputError(f"a {type(self).__name__} codec has terms to agree on: propose and join them")

    def payload_room(self, terms: Terms, itemsize: int) -> int:
        """Bytes that `encode` may need in `out` for a tensor whose values have `itemsize` bytes."""
        return 0

    def to_tensor(self, mean: Any, like: Tensor, out: Tensor | None) -> Tensor:
        """A decoded mean as the library, dtype and shape of `like`; or in `out`."""
        return give_back(mean, like, out)

    def follow_up(self, total: Sum) -> FollowUp | None:
        """The second exchange that this sum needs, if any; the same at every worker of the round."""
        return None

    def residual(self) -> Any:
        """A fresh `Residual` for one tensor, if this codec keeps one; else None."""
        return None

    # Owners that each add a run of units: cut payloads, read them, pack sums, read those

    def for_owners(self, count: int) -> Codec:
        """This codec where `count` owners add: one that cuts tensors into enough units."""
        return self

    @abstractmethod
    def edges(self, terms: Terms, shards: int) -> tuple[int, ...]:
        """Where to cut a tensor for `shards` owners: owner k adds units edges[k]..edges[k + 1]."""

    def payload_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...] | None:
        """Bytes of each run of a payload, if they follow from the terms; None: lengths must travel first."""
        return None

    def sum_sizes(self, terms: Terms, edges: Sequence[int]) -> tuple[int, ...] | None:
        """Bytes of each run of a packed sum, once narrow, if they follow from the terms; None: lengths travel first."""
        return None

    @abstractmethod
    def read_payload(
        self, terms: Terms, data: Bytes, *, rank: int, round_id: int, lo: int, hi: int, kind: int = 0
    ) -> Addend:
        """Units lo..hi of a trusted peer's payload, from the bytes that its `cut` gave. Frames check what they read."""

    @abstractmethod
    def read_sum(self, terms: Terms, parts: Sequence[tuple[Span, Bytes]], *, count: int, round_id: int) -> Sum:
        """A whole sum from the packed sums of its owners, narrow where the codec narrows, in order."""

    def side_by_side(self, parts: Sequence[Sum]) -> Sum:
        """Sums of different units of one round, as one sum."""
        return self.add(parts)

    def shares_whole_payloads(self, terms: Terms, lengths: Sequence[int]) -> bool:
        """Whether everyone's payload to everyone is less than shards to their owners and sums back."""
        return False

    # Transports that can only SUM numbers

    def for_plain_sums(self) -> Codec:
        """This codec where a transport can only sum: one whose payloads have `summands`, if there is one."""
        return self

    def read_summands(self, terms: Terms, values: NDArray[Any], *, count: int, round_id: int) -> Sum:
        """A whole sum from the SUM of all workers' `summands`."""
        raise InputError(f"a {type(self).__name__} codec has no form that a plain SUM adds")

    # Networks, where packets are merged element by element on their way

    def for_network(self, unit_bytes: int | None = None) -> Codec:
        """This codec where packets are merged: one whose payloads have `streams`, if there is one.

        Where packets may be missing, `unit_bytes` is what one holds of a sum: no unit may be longer.
        """
        return self

    def read_streams(
        self, terms: Terms, merged: Sequence[Merged], *, rank: int, round_id: int, ranks: Sequence[int] | None = None
    ) -> Sum | None:
        """A whole sum from everyone's `streams`, merged, as worker `rank` got them; None: merge whole payloads.

        `ranks` are the workers in every unit, where that is known: members and counts then mean nothing.
        """
        raise InputError(f"a {type(self).__name__} codec has no form that merges element by element")

    # Servers, whose shards each add some runs of units

    @abstractmethod
    def parts(self, size: int, shard: int, shards: int) -> list[Span]:
        """The runs of units that one of the server's shards adds, each a frame of its own."""

    @abstractmethod
    def coordinates(self, size: int, lo: int, hi: int) -> int:
        """How many values units lo..hi hold, at least approximately: for statistics."""

    @abstractmethod
    def memory(self, size: int, terms: Terms | None, lo: int, hi: int) -> int:
        """Bytes that the sum of units lo..hi takes in memory beside its payloads; at most, while terms are unknown."""

    # What a round will cost

    def expected_bits(self, size: int) -> tuple[float, float, float] | None:
        """Bits of a payload, of its sum and of the terms of `size` typical coordinates; None if unpredictable."""
        return None

    def plain_bytes(self, x: Tensor, workers: int) -> int:
        """What each worker would send of this tensor in an uncompressed ring all-reduce."""
        return 2 * size_of(x) * int(x.itemsize) * (workers - 1) // workers

    @property
    def alignment(self) -> int:
        """Cutting a long tensor into rounds at multiples of this loses nothing."""
        return 1

    def check_rank(self, rank: int, round_id: int) -> tuple[int, int]:
        """Refuse a rank or round that the codec was not built for; both as plain integers."""
        return rank_of(self.workers, rank), whole_number("round_id", round_id, 0, MAX_ROUND)
