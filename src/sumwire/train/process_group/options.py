"""What groups of backend "sumwire" compress, and with which codec."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from sumwire.codec.base import Codec
from sumwire.codec.options import whole_number
from sumwire.codec.stacked import Stacked
from sumwire.errors import ConfigError
from sumwire.train.options import CodecName, CodecOptions, choose_codec

MIN_SIZE = 1 << 16
"""Statistics of a batch norm, metrics and losses are smaller; DDP's buckets and most FSDP units are larger."""


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """Options of a process group of backend "sumwire"; the same at every rank, which is checked.

    Parameters
    ----------
    bits
        Bits per coordinate that a rank sends (default 4).
    total_bits
        Instead of bits: both directions together.
    codec
        "lattice" (default), "sparse", "sketch", "auto" or a `Codec`, as in `attach`. A reduce-scatter is compressed
        with the first two only.
    energy
        Of the Lattice.
    seed
        Makes runs repeatable (default: random numbers that nobody can know before, the same at all ranks). Groups of
        the same ranks and seed have the same random numbers.
    min_size
        Tensors with fewer coordinates are reduced exactly.
    groups
        Compress in groups with one of these descriptions only: the `group_desc` of `new_group`, "mesh_dp" of a mesh's
        dimension "dp", "default_pg" of the whole world (default: in all).

    Examples
    --------
    >>> GroupOptions(bits=4, min_size=100_000).min_size
    100000
    >>> dist.new_group(backend="sumwire", pg_options=GroupOptions(bits=4))   # doctest: +SKIP
    """

    bits: int | None = None
    total_bits: int | None = None
    codec: CodecName | Codec | None = None
    energy: float | None = None
    seed: int | None = None
    min_size: int = MIN_SIZE
    groups: Collection[str] | None = None

    def __post_init__(self) -> None:
        if whole_number("min_size", self.min_size) < 1:
            raise ConfigError(f"min_size={self.min_size} is less than 1: there is nothing to compress in less")
        named = () if self.groups is None else self.groups
        if isinstance(named, str) or not all(isinstance(name, str) for name in named):
            raise ConfigError(f"groups={self.groups!r} are not names: pass a tuple of group descriptions, or omit it")
        if self.choose(2).feedback:
            raise ConfigError(
                "a process group cannot keep residuals, since nothing tells which tensor is which: build the codec "
                "without feedback, or use sumwire.train.attach"
            )

    def choose(self, ranks: int) -> Codec:
        """The codec of an all-reduce between `ranks` ranks."""
        return self._choose(ranks, sums_travel=True)

    def choose_rows(self, ranks: int) -> Stacked | None:
        """The codec of a reduce-scatter between `ranks` ranks; None if this kind takes more than one exchange."""
        codec = self._choose(ranks, sums_travel=False)
        return None if codec.follows_up or self.codec == "auto" else Stacked(codec, ranks)

    def _choose(self, ranks: int, *, sums_travel: bool) -> Codec:
        asked: CodecOptions = {
            "total_bits": self.total_bits, "codec": self.codec, "energy": self.energy, "seed": self.seed
        }  # fmt: skip
        codec = choose_codec(ranks, self.bits, asked, sums_travel=sums_travel)
        # One of the user's own was built for the ranks of one group.
        return codec if codec.workers == ranks else type(codec)(**codec.options() | {"workers": ranks})

    @property
    def settings(self) -> dict[str, Any]:
        """What ranks compare, beside the codec."""
        return {"min_size": self.min_size, "groups": self.groups and sorted(self.groups), "seed": self.seed}


def make_options(**options: Any) -> GroupOptions:
    """`GroupOptions`, with an error that names what there is if one is not known."""
    known = asdict(GroupOptions()).keys()
    for name in options.keys() - known:
        raise ConfigError(f"{name!r} is not an option of a process group; there are {', '.join(known)}")
    return GroupOptions(**options)
