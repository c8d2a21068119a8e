"""What an exchange of gradients costs, and a training step with it: one model for `attach` and for `sumwire plan`.

Averaging N values between n ranks costs each of them, with b-bit payloads and w-bit sums:

    all-reduce        2(n-1) messages of fp32/n          2(n-1)/n * 4N bytes
    payloads, sums    4(n-1) messages (join, b, w bits)  (n-1)/n * N * (b + w)/8 bytes, and the terms both ways
    reduce-scatter    n-1 messages                       (n-1)/n * N * bytes per value
    payloads alone    3(n-1) messages (join, b bits)     (n-1)/n * N * b/8 bytes, and the terms both ways

A step hands its gradients over in buckets, each of which is a round that passes several stages. Stages of different
rounds overlap, what happens within a stage does not. With R rounds an exchange takes

    max(stages) + (sum(stages) - max(stages)) / R, and no less than the CPU time of a host's ranks on its cores.

Where ranks share cores, it takes somewhat longer than either (`exchange_seconds`), and so does computing (`busy`).

`transports.py` says which stages each way of averaging has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sumwire.codec.options import real_number, whole_number

LATENCY = 50e-6
"""Seconds per message, over TCP, which `pays` assumes at every rank: of the CPU, without the link's round trip."""

SEGMENT = 1448
"""Bytes that a TCP segment carries at an MTU of 1500, with time stamps."""
TCP_HEADERS = 66
"""Bytes of Ethernet, IPv4 and TCP in front of them; and of an acknowledgment."""
TCP = 1 + TCP_HEADERS / SEGMENT + TCP_HEADERS / (2 * SEGMENT)
"""Bytes on the wire per byte sent, where both directions are busy: each two segments are acknowledged."""

BUCKET_BYTES = 25 << 20
"""Of DDP's buckets, by default."""
OVERLAP = 2 / 3
"""Share of the compute time in which gradients appear, and exchanges may run beside it: the backward pass."""

BUSY = 0.92
"""Share of the time in which cores that several ranks share are busy, where they are the limit: the rest of it, ranks
wait for one another (median over exchanges at 10 Gbit/s and on loopback in benchmarks/results/exchange.jsonl)."""
BUSY_ALONE = 0.72
"""The same in steps whose exchange is a single round: no other round computes while one waits (steps of one model,
docs/plan.md)."""

SHARPNESS = 3
"""Of the transition between a host's cores and the pipeline of stages as the limit of an exchange."""

MOST_VALUES = 10**13
MOST_RATE = 1e13


@dataclass(frozen=True)
class Link:
    """How fast a host sends and receives, at the same time."""

    rate: float | None
    """Bits per second in each direction; None: no limit but the CPU."""
    round_trip: float = 0.0
    """Seconds."""

    def __post_init__(self) -> None:
        if self.rate is not None:
            real_number("rate", self.rate, 1.0, MOST_RATE)
        real_number("round_trip", self.round_trip, 0.0, 60.0)

    def seconds(self, bits: float) -> float:
        """How long these bits are on the wire."""
        return 0.0 if self.rate is None else bits / self.rate


ETHERNET = Link(1e9)
"""What `pays` assumes, the same at every rank, since all must choose alike: where the choice matters most."""


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in an exchange."""

    messages: int
    trips: int
    """Messages that wait for one another: each takes half a round trip."""
    bits: float

    def seconds(self, link: Link) -> float:
        """With nothing else at the same time, and without headers."""
        return self.messages * LATENCY + self.trips * link.round_trip / 2 + link.seconds(self.bits)


def all_reduce(ranks: int, size: int, value_bits: int = 32) -> Traffic:
    """A ring: everyone's sums of a shard go around, then the total."""
    return Traffic(2 * (ranks - 1), 2 * (ranks - 1), (ranks - 1) / ranks * 2 * value_bits * size)


def reduce_scatter(ranks: int, size: int, value_bits: int = 32) -> Traffic:
    """The first half of an all-reduce."""
    return Traffic(ranks - 1, ranks - 1, (ranks - 1) / ranks * value_bits * size)


def sharded(ranks: int, up: float, down: float, terms: float) -> Traffic:
    """Terms to all, shards of payloads to their owners, sums back to all; bits of each as in `Codec.expected_bits`."""
    alone = ranks == 1
    return Traffic(4 * (ranks - 1), 0 if alone else 3, (ranks - 1) / ranks * (up + down + 2 * terms))


def scattered(ranks: int, up: float, terms: float) -> Traffic:
    """The same without the way back."""
    alone = ranks == 1
    return Traffic(3 * (ranks - 1), 0 if alone else 2, (ranks - 1) / ranks * (up + 2 * terms))


def break_even(saved_bits: float, codec_seconds: float) -> float:
    """The link rate, in bits per second, above which compressing takes longer than it saves."""
    return saved_bits / codec_seconds if codec_seconds > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the work of an exchange costs one core, in nanoseconds: per value, or as said below."""

    name: str
    propose: float
    encode: float
    add: float
    """Of one payload's value."""
    narrow: float
    decode: float
    residual: float
    """Of encoding with error feedback, beyond `encode`."""
    copy: float
    """Into buckets, or out of them."""
    cast: float
    """To 16 bits and back, with memory for them, as torch's hooks do."""
    bf16: float
    """Of adding a value of 16 bits in software, beyond what its bytes cost."""
    fp16: float
    all_reduce: float
    """Per byte: sending and receiving it, and the addition."""
    exchange: float
    """Per byte that our collectives send: and receiving as much."""
    message: float
    """Of sending one to a rank and receiving one from it, beyond their bytes."""
    round: float
    """Of a round beyond its values, bytes and messages: threads that hand it on, and Python."""
    step: float
    """Of DDP, in a step, beyond copying gradients."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "name":
                real_number(name, value, 0.0, 1e9)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained, and on how many workers."""

    values: int
    """Parameters of the model: gradients of a step."""
    workers: int
    compute: float = 0.0
    """Seconds of a step without any exchange."""
    ranks_per_host: int = 1
    cores: int = 1
    """Of a host: its ranks share them."""
    overlap: float = OVERLAP

    def __post_init__(self) -> None:
        whole_number("values", self.values, 1, MOST_VALUES)
        whole_number("workers", self.workers, 1, 1 << 16)
        whole_number("ranks_per_host", self.ranks_per_host, 1, 1 << 10)
        whole_number("cores", self.cores, 1, 1 << 12)
        real_number("compute", self.compute, 0.0, 1e6)
        real_number("overlap", self.overlap, 0.0, 1.0)

    @property
    def rounds(self) -> int:
        """Buckets of a step."""
        return max(1, math.ceil(4 * self.values / BUCKET_BYTES))

    @property
    def shares_cores(self) -> bool:
        """Whether ranks outnumber the cores of their host."""
        return self.ranks_per_host > self.cores

    @property
    def busy(self) -> float:
        """Share of the time in which cores are busy, where they are the limit."""
        if not self.shares_cores:
            return 1.0
        return BUSY if self.rounds > 1 else BUSY_ALONE


@dataclass(frozen=True)
class Stage:
    """What one thread does for all rounds of a step, in seconds: one round after the other."""

    name: str
    cpu: float = 0.0
    """Of one core of this rank's host."""
    wire: float = 0.0
    latency: float = 0.0
    overlaps: bool = False
    """Whether CPU and wire work at the same time, on small pieces of a round."""

    def seconds(self) -> float:
        """On a core of its own."""
        return self.latency + (max(self.cpu, self.wire) if self.overlaps else self.cpu + self.wire)


@dataclass(frozen=True)
class Prediction:
    """Seconds of a training step, and of its parts, each as if it ran alone: they overlap."""

    step: float
    compute: float
    exchange: float
    """From the first bucket to the last mean, beside no compute."""
    stages: tuple[Stage, ...]

    @property
    def wire(self) -> float:
        return sum(stage.wire for stage in self.stages)

    @property
    def latency(self) -> float:
        return sum(stage.latency for stage in self.stages)

    def cpu(self, name: str) -> float:
        """CPU seconds of "copy", "encode", "add" (with those of sending and receiving), "decode" or "round"."""
        return sum(stage.cpu for stage in self.stages if stage.name == name)


def exchange_seconds(stages: Sequence[Stage], job: Job) -> float:
    """How long the rounds of a step take, if all gradients are there.

    The cores of a host are a limit, and so is the pipeline of stages. Where ranks share cores, some compute while
    others wait for the network: both limits together cost more than either, and less than their sum.
    """
    times = [stage.seconds() for stage in stages]
    slowest = max(times, default=0.0)
    pipeline = slowest + (sum(times) - slowest) / job.rounds
    host = sum(stage.cpu for stage in stages) * job.ranks_per_host / job.cores / job.busy
    if not job.shares_cores:
        return max(host, pipeline)
    return float((host**SHARPNESS + pipeline**SHARPNESS) ** (1 / SHARPNESS))


def predict(stages: Sequence[Stage], job: Job, *, every: int = 1) -> Prediction:
    """A step with this exchange after every `every` steps: beside the backward pass if after each, otherwise alone."""
    whole_number("every", every, 1, 10**6)
    exchange = exchange_seconds(stages, job)
    if every > 1:
        return Prediction(job.compute + exchange / every, job.compute, exchange, tuple(stages))
    # Ranks that share cores do not end their backward passes together.
    compute = job.compute / job.busy if stages else job.compute
    last = exchange / job.rounds  # of the bucket that is there only when the backward pass ends
    # Until the first bucket is full, nothing can be sent.
    beside = compute * job.overlap * (1 - 1 / job.rounds)
    step = max(compute + last, compute - beside + exchange)
    return Prediction(step, job.compute, exchange, tuple(stages))


def crossing(
    first: Callable[[float], float], second: Callable[[float], float], low: float = 1e5, high: float = 1e12
) -> float:
    """The highest rate in low..high up to which `first` takes less time; 0 if it never does, inf if it always does.

    >>> round(crossing(lambda rate: 2 + 1e6 / rate, lambda rate: 1 + 3e6 / rate))
    2000000
    """
    points = 400
    rates = [float(high * (low / high) ** (k / points)) for k in range(points + 1)]
    found = next((k for k, rate in enumerate(rates) if first(rate) < second(rate)), None)
    if found is None:
        return 0.0
    if found == 0:
        return math.inf
    pays, not_any_more = rates[found], rates[found - 1]
    for _ in range(60):
        middle = math.sqrt(pays * not_any_more)
        if first(middle) < second(middle):
            pays = middle
        else:
            not_any_more = middle
    return pays
