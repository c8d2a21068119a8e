"""From the options of `attach` to a codec. docs/training.md has the evidence for the defaults."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.group.group import Algorithm
from sumwire.aggregate.network.greeting import SCHEME
from sumwire.codec.adaptive import Adaptive
from sumwire.codec.base import Codec
from sumwire.codec.lattice.codec import Lattice
from sumwire.codec.options import switch, whole_number
from sumwire.codec.sketch.codec import Sketch
from sumwire.codec.sparse.codec import Sparse
from sumwire.errors import ConfigError
from sumwire.train.scalars import logger

BITS = 4
ENERGY = 0.5
FEEDBACK = False

CODECS = ("lattice", "sparse", "sketch", "auto")
CodecName = Literal["lattice", "sparse", "sketch", "auto"]


class CodecOptions(TypedDict, total=False):
    """Options of `attach` that decide what gradients are averaged with; the same at every rank.

    total_bits  instead of bits: both directions together
    codec       "lattice" (default); "sparse" or "sketch" (lossless, for gradients that are mostly zeros); "auto"
                (lattice or sparse, whichever is shorter, round by round); or a `Codec` of your own
    feedback    keep what was not sent for the next step (default: see docs/training.md)
    energy      of the Lattice
    seed        of the codec: makes runs repeatable (default: random numbers that nobody can know before, the same at
                all ranks and kept in checkpoints)
    """

    total_bits: int | None
    codec: CodecName | Codec | None
    feedback: bool | None
    energy: float | None
    seed: int | None


class DDPOptions(CodecOptions, total=False):
    """Options of `attach` for DDP; the same at every rank but for `log`.

    warmup        first steps that are sent exactly (default 2)
    fallback      True (default): while compressing takes longer than sending exactly, do the latter; measured in the
                  first compressed step and every 1,000 steps from then on. False: always compress, measure nothing
    exact_below   tensors of at most this many coordinates are sent exactly while that is cheap (default 1024)
    span          coordinates of a round at most, so that large buckets pipeline (default 8M)
    algorithm     of the process group: "auto", "sharded" or "packed" (see `Group`)
    server        "host:port" of a parameter server that joins and adds (docs/server.md), or an open `Link` to it;
                  "udp://host:port/job" of an aggregator in the network (docs/in-network.md), or an open link to that
    job           its name at the server (default: one that nobody else has); a second model of the same process gets
                  "name#2"
    token, tls    as in `sumwire.connect`
    rank, workers  of this process at the server, where processes share no process group but have one each, of one rank:
                  so one that dies can be started again, and takes part again after the next `resync`; needs `job`
    sample_every  steps between measurements of the error of some coordinates; 0: never (default 100)
    log           called as log(name, value, step) after each step, or a TensorBoard writer
    resync        steps after which all ranks take one rank's parameters and buffers (default: never)
    """

    warmup: int
    fallback: bool
    exact_below: int
    span: int
    algorithm: Algorithm
    server: str | Aggregator | None
    job: str | None
    token: str
    tls: ssl.SSLContext | None
    rank: int | None
    workers: int | None
    sample_every: int
    log: Any
    resync: int | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of DDP, checked, with their defaults."""

    bits: int | None = None
    total_bits: int | None = None
    codec: CodecName | Codec | None = None
    feedback: bool | None = None
    energy: float | None = None
    seed: int | None = None
    warmup: int = 2
    fallback: bool = True
    exact_below: int = 1024
    span: int = 1 << 23
    algorithm: Algorithm = "auto"
    server: str | Aggregator | None = None
    job: str | None = None
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    rank: int | None = None
    workers: int | None = None
    sample_every: int = 100
    log: Any = None
    resync: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("warmup", 0), ("exact_below", 0), ("span", 1 << 12), ("sample_every", 0), ("resync", 1)):
            value = getattr(self, name)
            if value is not None and whole_number(name, value) < least:
                raise ConfigError(f"{name}={value} is less than {least}")
        switch("fallback", self.fallback)
        self.choose(2)  # so that a bad option fails here, not in the first backward
        if not isinstance(self.server, str | Aggregator | None):
            raise ConfigError(f'server={self.server!r} is neither "host:port" nor an open Link')
        if self.by_packets and (self.job is not None or self.tls is not None):
            raise ConfigError(
                "packets have neither named jobs nor TLS: omit job and tls; the job's number is in "
                'server="udp://host:port/job"'
            )
        if self.server is not None and self.algorithm != "auto":
            raise ConfigError(f"algorithm={self.algorithm!r} and a server were both given: the server adds, so omit it")
        if self.server is not None and self.codec == "auto":
            raise ConfigError('codec="auto" does not work over a server, which must know the codec: name one')
        given = [name for name in ("job", "token", "tls") if getattr(self, name)]
        if given and not isinstance(self.server, str):
            what = "an open Link, which has its own" if self.server is not None else "no server"
            raise ConfigError(f'{given[0]}=... goes with server="host:port", and there is {what}')
        self._check_rank()
        logger(self.log)

    def _check_rank(self) -> None:
        if self.rank is None and self.workers is None:
            return
        named = self.job is not None or self.by_packets
        if self.rank is None or self.workers is None or not isinstance(self.server, str) or not named:
            raise ConfigError('rank and workers go together, with server="host:port" and a job that all have')
        if not 0 <= whole_number("rank", self.rank) < whole_number("workers", self.workers):
            raise ConfigError(f"rank={self.rank} is not in 0..{self.workers - 1}")

    @property
    def by_packets(self) -> bool:
        """Whether the aggregator is one in the network."""
        return isinstance(self.server, str) and self.server.startswith(SCHEME)

    @property
    def takes_sparse(self) -> bool:
        """Whether gradients of nn.Embedding(sparse=True) can be averaged: a lattice would make them dense."""
        return self.codec == "auto" or self.choose(2).lossless

    def choose(self, workers: int) -> Codec:
        """The codec for this many workers; its `feedback` says whether residuals are kept."""
        return choose_codec(
            workers,
            self.bits,
            {
                "total_bits": self.total_bits,
                "codec": self.codec,
                "feedback": self.feedback,
                "energy": self.energy,
                "seed": self.seed,
            },
        )


def choose_codec(workers: int, bits: int | None, options: CodecOptions, *, sums_travel: bool = True) -> Codec:
    """The codec that options ask for, for this many workers; for a reduce-scatter, whose sums stay where they are."""
    codec, feedback = options.get("codec"), options.get("feedback")
    seed = options.get("seed")
    if feedback is not None:
        switch("feedback", feedback)
    if isinstance(codec, str) and codec not in CODECS:
        raise ConfigError(f"codec={codec!r} is not one of {', '.join(CODECS)}, nor a Codec")
    own: Codec | None = codec if isinstance(codec, Codec) else None
    if codec == "sparse":
        own = Sparse(workers, seed=seed or 0)
    elif codec == "sketch":
        own = Sketch(workers, seed=seed or 0)
    elif codec is not None and not isinstance(codec, str | Codec):
        raise ConfigError(f"codec={codec!r} is not one of {', '.join(CODECS)}, nor a Codec")
    if own is not None:
        what = "a codec that loses nothing" if own.lossless else "a codec that has its own"
        _refuse(what, bits=bits, total_bits=options.get("total_bits"), energy=options.get("energy"))
        if feedback is not None and feedback != own.feedback:
            raise ConfigError(
                f"feedback={feedback} does not go with a {type(own).__name__} codec whose feedback is {own.feedback}: "
                f"omit it, or build the codec with feedback={feedback}"
            )
        return own
    lattice = _lattice(workers, bits, options, sums_travel)
    if codec != "auto":
        return lattice
    if feedback:
        raise ConfigError('feedback=True has no meaning beside codec="auto", which may lose nothing: drop one of them')
    return Adaptive(lattice, Sparse(workers, seed=seed or 0))


def _lattice(workers: int, bits: int | None, options: CodecOptions, sums_travel: bool) -> Lattice:
    total_bits, energy, feedback = options.get("total_bits"), options.get("energy"), options.get("feedback")
    budget: dict[str, Any] = {"bits": BITS} if total_bits is None else {"total_bits": total_bits}
    if not sums_travel:
        budget["down_bits"] = "exact"
    if bits is not None:
        budget["bits"] = bits
    return Lattice(
        workers,
        energy=ENERGY if energy is None else energy,
        seed=options.get("seed") or 0,
        feedback=FEEDBACK if feedback is None else feedback,
        **budget,
    )


def _refuse(beside: str, **options: object) -> None:
    """Refuse options that have no meaning beside another."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} has no meaning beside {beside}: drop one of them")
