"""Schemes that experiments compare in training: how each is simulated, and its name among real ranks."""

from __future__ import annotations

from dataclasses import dataclass

from sumwire import Lattice
from sumwire.lab.experiments.base import Point
from sumwire.lab.experiments.trainings import Build, lattice, peer
from sumwire.lab.simulate import ByCodec
from sumwire.train.options import ENERGY


@dataclass(frozen=True)
class Scheme:
    """One way of averaging gradients, by the names that tables and methods over links have for it."""

    label: str
    over_links: str = ""
    """Name in `sumwire.lab.methods`; empty: it does not run there."""

    @property
    def ours(self) -> bool:
        return self.label.startswith("Sumwire")

    def build(self, point: Point) -> Build:
        """The simulated method, for a point's workers and seed.

        >>> method = SCHEMES[-1].build({"workers": 2, "seed": 0})(64)
        >>> type(method).__name__
        'ByPeer'
        """
        if self.label in _LATTICES:
            return lattice(point, energy=ENERGY, **_LATTICES[self.label])
        workers, seed = int(point["workers"]), int(point["seed"])
        if self.label in _THC:
            return lambda size: ByCodec(Lattice.thc(workers, seed=seed, feedback=_THC[self.label]))
        if self.label == _UNIFORM:
            return lambda size: ByCodec(Lattice.uniform(workers, bits=4, seed=seed))
        return peer(self.label, point)


_TOTALS = (6, 8, 10, 12, 16)
_LATTICES: dict[str, dict[str, int | bool]] = {
    "Sumwire, 4 bits up": {"bits": 4},
    "Sumwire, 2 bits up": {"bits": 2},
    "Sumwire, 2 up, feedback": {"bits": 2, "feedback": True},
} | {f"Sumwire, {total} bits": {"total_bits": total} for total in _TOTALS}
_THC = {"THC": False, "THC, feedback": True}
_UNIFORM = "uniform"

BASE = "fp32"
"""What others are compared with."""
SCHEMES: tuple[Scheme, ...] = (
    Scheme(BASE, BASE),
    *(Scheme(f"Sumwire, {total} bits", f"sumwire-total-{total}") for total in _TOTALS),
    Scheme("Sumwire, 4 bits up", "sumwire-4"),
    Scheme("Sumwire, 2 bits up", "sumwire-2"),
    Scheme("Sumwire, 2 up, feedback"),
    Scheme("THC"),
    Scheme("THC, feedback"),
    Scheme(_UNIFORM),
    *(Scheme(name, name) for name in ("bf16", "powersgd-1", "powersgd-2", "powersgd-4")),
    *(
        Scheme(name, f"peer-{name}")
        for name in (
            "topk-10%", "dgc-1%", "terngrad", "qsgd-4-owner", "ef-sign-double", "fp8-rows", "qgz-4", "loco-4-4",
            "sdp4bit-4", "mxfp4", "mxfp6", "dynamiq-any-5",
        )
    ),
    Scheme("recompressed-4"),
)  # fmt: skip
"""`BASE` first. One or two settings of each peer: of several at about the same bits, that with the least error in
"accuracy"."""
