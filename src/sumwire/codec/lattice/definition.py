"""What a Lattice codec is: its options, the family that follows from them, and its place in that family."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

from sumwire.codec.base import Codec
from sumwire.codec.lattice import family as families
from sumwire.codec.lattice.narrow import added_error
from sumwire.codec.lattice.options import MIN_BLOCK, corrects, log2_block, plain_integers, resolve_options
from sumwire.codec.options import whole_number
from sumwire.errors import ConfigError
from sumwire.kernels.lattice.scheme import MAX_BITS, LatticeSpec, Scheme

Widths = Literal["energy", "fixed"] | tuple[int, ...]


@dataclass(frozen=True)
class LatticeDefinition(Codec):
    """The options of a `Lattice`, whose docstring explains them, and what follows from them alone."""

    workers: int
    bits: int = None  # type: ignore[assignment]  # 4, unless total_bits says otherwise
    total_bits: int | None = field(default=None, kw_only=True)
    granularity: int | None = field(default=None, kw_only=True)
    clip: float | None = field(default=None, kw_only=True)
    table: Literal["optimal", "uniform"] = field(default="optimal", kw_only=True)
    rounding: Literal["stratified", "independent"] = field(default="stratified", kw_only=True)
    rotate: bool = field(default=True, kw_only=True)
    block: int = field(default=512, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    lane_bits: int | None = field(default=None, kw_only=True)
    widths: Widths = field(default="energy", kw_only=True)
    energy: float = field(default=1.0, kw_only=True)
    feedback: bool = field(default=False, kw_only=True)
    unbiased: bool = field(default=True, kw_only=True)
    down_bits: float | Literal["exact"] | None = field(default=None, kw_only=True)
    terms: Literal["byte", "exact"] = field(default=None, kw_only=True)  # type: ignore[arg-type]  # see options.py
    family_bits: int = field(default=None, kw_only=True, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, value in resolve_options(self).items():
            object.__setattr__(self, name, value)
        if self.headroom < self.workers or self.lane_bits not in (None, self.sum_bits):
            raise ConfigError(
                f"lane_bits={self.lane_bits} is too narrow: {self.workers} workers with bits={self.family_bits} "
                f"need {self.sum_bits}; use wider lanes or fewer bits"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Options only: what follows from them is solved again, and cached.
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def thc(cls, workers: int, bits: int = 4, **options: Any) -> Self:
        """The THC paper's setting: b=4, g=30, p=1/32, independent rounding, blocks of 2**20 coordinates.

        Parameters
        ----------
        workers : int
            Payloads that a sum must have room for.
        bits : int
            Index bits per coordinate; the granularity scales with 2**bits.
        **options
            Other options of `Lattice`; they replace the paper's.
        """
        workers, bits = plain_integers(workers, bits)
        setting: dict[str, Any] = {
            "granularity": max((1 << bits) - 1, (30 << bits) >> 4),
            "clip": 1 / 32,
            "rounding": "independent",
            "block": 1 << 20,
            "widths": "fixed",
            "down_bits": "exact",
            "terms": "exact",
            "unbiased": False,
        }
        setting |= options
        # The paper sends bytes down.
        steps = whole_number("granularity", setting["granularity"])
        setting.setdefault("lane_bits", max(8, (steps * workers).bit_length()))
        return cls(workers, bits, **setting)

    @classmethod
    def uniform(cls, workers: int, bits: int = 4, **options: Any) -> Self:
        """The paper's uniform homomorphic compression: as `thc`, evenly spaced values, lanes no wider than needed."""
        workers, bits = plain_integers(workers, bits)
        setting: dict[str, Any] = {"granularity": (1 << bits) - 1, "table": "uniform", "lane_bits": None}
        return cls.thc(workers, bits, **(setting | options))

    def with_bits(self, bits: int) -> Self:
        """A codec of the same family that spends fewer bits, so that its payloads still add with this one's.

        Raises
        ------
        ConfigError
            `bits` is more than the family was built with.

        Examples
        --------
        >>> from sumwire import Lattice
        >>> Lattice(4, 4).with_bits(2).family == Lattice(4, 4).family
        True
        """
        least = self.least_width if isinstance(self.widths, tuple) else 1
        if not least <= whole_number("bits", bits) <= self.family_bits:
            raise ConfigError(
                f"with_bits({bits}) is not in {least}..{self.family_bits}: build the codec that all share with "
                f"bits={bits} and give the others fewer"
            )
        return replace(self, bits=bits)

    # The family

    @cached_property
    def _family(self) -> families.Family:
        options = families.FamilyOptions(
            workers=self.workers,
            budget=self.family_bits,
            bits=self.nominal_width(self.family_bits),
            lane_bits=self.lane_bits,
            granularity=self.granularity,
            clip=self.clip,
            even=self.table == "uniform" or not self.rotate,
            stratified=self.rounding == "stratified",
            rotate=self.rotate,
            log_block=log2_block(self.block, MIN_BLOCK),
            seed=self.seed,
            ladder=self.allowed_widths,
            restricted=isinstance(self.widths, tuple),
            energy=round(self.energy * 256),
            floor=0 if self.feedback else 1,
            unbiased=self.corrects,
            byte_terms=self.byte_terms,
        )
        return families.build(options)

    @property
    def family(self) -> str:
        return self._family.name

    def description(self) -> dict[str, Any]:
        # Members that spend fewer bits, and sums of another form, are of the same family.
        found = super().description() | {"bits": self.family_bits}
        return {name: value for name, value in found.items() if name not in ("total_bits", "family_bits", "down_bits")}

    @property
    def headroom(self) -> int:
        return self._family.headroom

    @property
    def member(self) -> int:
        return self.bits

    def with_member(self, member: int) -> Self:
        return self if member == self.bits else self.with_bits(member)

    @property
    def sum_form(self) -> str:
        return f"down_bits={self.down_bits}"

    @cached_property
    def scheme(self) -> Scheme:
        """Lattices and tables as the kernels see them."""
        return self.scheme_of_family(self.bits == self.family_bits)

    def scheme_of_family(self, equal: bool) -> Scheme:
        """The scheme for payloads of members that all spend `family_bits`; or, if not `equal`, of any members."""
        return self._family.scheme if equal else self._family.scheme_for_all

    @property
    def corrects(self) -> bool:
        """Whether blocks are corrected for what clamping takes from them."""
        return corrects(self.unbiased, self.rotate, self.feedback)

    @property
    def byte_terms(self) -> bool:
        """Whether a byte holds the scale of a block."""
        return self.terms == "byte"

    # Widths

    @cached_property
    def allowed_widths(self) -> tuple[int, ...]:
        """Widths that a block may get, in bits; 0 sends nothing."""
        if self.widths == "energy":
            return tuple(range(MAX_BITS + 1))
        if self.widths == "fixed":
            return (0, self.family_bits)
        return tuple(sorted({0, *self.widths}))

    @cached_property
    def least_width(self) -> int:
        """The smallest width that sends anything."""
        return min(width for width in self.allowed_widths if width)

    def nominal_width(self, bits: int) -> int:
        """The width that blocks of average energy get from a budget of `bits` per coordinate."""
        return max(w for w in self.allowed_widths if w <= bits) if isinstance(self.widths, tuple) else bits

    @property
    def narrow_bits(self) -> float | None:
        """Bits per value of narrow sums; None if sums go down as lanes."""
        return None if isinstance(self.down_bits, str) else self.down_bits

    @property
    def nominal_lattice(self) -> LatticeSpec:
        """The lattice of blocks of average energy."""
        lattice = self._family.scheme.lattices[self.nominal_width(self.family_bits)]
        assert lattice is not None
        return lattice

    @property
    def sum_bits(self) -> int:
        """Width of a sum lane, in blocks of `bits` bits."""
        return self.nominal_lattice.lane_bits

    def blocks(self, size: int) -> int:
        """How many blocks, and so scales, a tensor of `size` coordinates has.

        >>> from sumwire import Lattice
        >>> Lattice(4, block=512).blocks(1025)     # the tail is cut into powers of two
        3
        """
        whole, rest = divmod(size, 1 << self.scheme.log_block)
        return whole + rest.bit_count()

    def predicted_nmse(self, *, correlation: float = 0.0) -> float:
        """Expected squared error of the mean over its power, for Gaussian blocks of equal energy: up and down.

        Parameters
        ----------
        correlation : float
            Correlation between the coordinates of two workers, in 0..1.

        Raises
        ------
        ConfigError
            The codec does not rotate, so the error depends on the tensor.

        Examples
        --------
        >>> from sumwire import Lattice
        >>> 0.015 < Lattice(4, 4).predicted_nmse() < 0.016
        True
        """
        up = families.predicted_nmse(self, correlation)
        down = 0.0 if self.narrow_bits is None else added_error(self.narrow_bits, self.sum_bits)
        # Narrowing adds its share of the power of the sum, errors included; unbiased, so nothing else.
        return up + (1 + up) * down


def _rebuild(cls: type[LatticeDefinition], options: dict[str, Any]) -> LatticeDefinition:
    """A codec from its options: what pickle and copy call."""
    return cls(**options)
