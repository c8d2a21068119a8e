"""The stages of an exchange over each transport, for `cost_model`: what it computes, and what it sends.

dense        a ring all-reduce of fp32, bf16 or fp16 values, as DDP's own
over_group   payloads to the owners of shards, sums back: `Group`
over_server  payloads to one server, sums back: `sumwire serve`
by_packets   the same through a switch that adds: `sumwire switch`
"""

from __future__ import annotations

from typing import Literal

from sumwire.aggregate.cost_model import TCP, Job, Link, Machine, Stage, Traffic, all_reduce, sharded
from sumwire.aggregate.protocol.packet import HEADER, OUTER
from sumwire.codec.lattice.codec import Lattice
from sumwire.errors import ConfigError

Dense = Literal["fp32", "bf16", "fp16"]

CONTENTION = 1.1
"""How much longer a link takes that several others send to at once (docs/training.md: 4 MB at 100 Mbit/s)."""

BODY = 1408
"""Bytes that a packet carries at an MTU of 1500."""
PACKETS = 1 + (14 + OUTER + HEADER) / BODY
"""Bytes on the wire per byte of a body."""
PACKET_SECONDS = 3.9e-6
"""CPU of a switch per packet that it adds in TC (benchmarks/results/switch.jsonl)."""
SWITCH_CORES = 2

DENSE_COPIES = 1
"""Of gradients: into DDP's buckets."""
CODED_COPIES = 2
"""Out of them again, too."""


def dense(job: Job, link: Link, machine: Machine, kind: Dense = "fp32") -> list[Stage]:
    """All-reduce, in pieces that are sent while others are added."""
    kinds = {"fp32": (32, 0.0, 0.0), "bf16": (16, machine.cast, machine.bf16), "fp16": (16, machine.cast, machine.fp16)}
    if kind not in kinds:
        raise ConfigError(f"kind={kind!r} is none of {', '.join(kinds)}: gradients are all-reduced in one of these")
    if job.workers == 1:
        return []
    value_bits, cast, adding = kinds[kind]
    traffic = all_reduce(job.workers, job.values, value_bits)
    cpu = machine.all_reduce * traffic.bits / 8 + (cast + adding * (1 - 1 / job.workers)) * job.values
    wire = link.seconds(traffic.bits * TCP)
    return [
        Stage("copy", cpu=1e-9 * (DENSE_COPIES * machine.copy * job.values + machine.step)),
        _adding(traffic, job, link, machine, cpu=cpu, wire=wire, overlaps=True),
    ]


def over_group(job: Job, link: Link, machine: Machine, codec: Lattice) -> list[Stage]:
    """On a process group: every rank adds its shard."""
    if job.workers == 1:
        return []
    up, down, terms = codec.expected_bits(job.values)
    traffic = sharded(job.workers, up, down, terms)
    adding = machine.exchange * traffic.bits / 8 + machine.add * job.values
    adding += _narrowing(machine, codec) * job.values / job.workers
    wire = link.seconds(traffic.bits * TCP) * (CONTENTION if job.workers > 2 else 1.0)
    return [
        *_before(job, machine, codec),
        _adding(traffic, job, link, machine, cpu=adding, wire=wire),
        *_after(job, machine),
    ]


def over_server(job: Job, link: Link, machine: Machine, codec: Lattice, server: Link | None = None) -> list[Stage]:
    """By one parameter server, with cores like a worker's; so is its link unless told."""
    if job.workers == 1:
        return []
    up, down, terms = codec.expected_bits(job.values)
    up, down = up + terms, down + terms
    at_server, n = server or link, job.workers
    # Both directions at once: sums come back while later payloads are on their way.
    wire = TCP * CONTENTION * max(link.seconds(max(up, down)), at_server.seconds(n * max(up, down)))
    bytes_at_server = n * (up + down) / 2 / 8
    adding = machine.exchange * bytes_at_server + (n * machine.add + _narrowing(machine, codec)) * job.values
    at_server_cpu = 1e-9 * adding / job.cores
    traffic = Traffic(4, 4, up)
    return [
        *_before(job, machine, codec),
        _adding(traffic, job, link, machine, cpu=machine.exchange * (up + down) / 16, wire=max(wire, at_server_cpu)),
        *_after(job, machine),
    ]


def by_packets(job: Job, link: Link, machine: Machine, codec: Lattice) -> list[Stage]:
    """Through a switch on the path: every port is as fast as a worker's link, and sums stay exact."""
    if job.workers == 1:
        return []
    carried = codec.for_network()
    up, down, terms = carried.expected_bits(job.values)
    # Words of 64 bits hold whole lanes.
    up, down = up + terms, down / carried.sum_bits * 64 / (64 // carried.sum_bits) + terms
    wire = PACKETS * link.seconds(max(up, down))
    at_switch = job.workers * max(up, down) / 8 / BODY * PACKET_SECONDS / SWITCH_CORES
    traffic = Traffic(2, 4, up)
    return [
        *_before(job, machine, codec),
        _adding(traffic, job, link, machine, cpu=machine.exchange * (up + down) / 16, wire=max(wire, at_switch)),
        *_after(job, machine),
    ]


def _before(job: Job, machine: Machine, codec: Lattice) -> list[Stage]:
    encode = machine.propose + machine.encode + (machine.residual if codec.feedback else 0.0)
    return [
        Stage("copy", cpu=1e-9 * (CODED_COPIES * machine.copy * job.values + machine.step)),
        Stage("encode", cpu=1e-9 * encode * job.values),
        # Of all threads, each of which has a part of it.
        Stage("round", cpu=1e-9 * machine.round * job.rounds),
    ]


def _after(job: Job, machine: Machine) -> list[Stage]:
    return [Stage("decode", cpu=1e-9 * machine.decode * job.values)]


def _narrowing(machine: Machine, codec: Lattice) -> float:
    return 0.0 if codec.narrow_bits is None else machine.narrow


def _adding(
    traffic: Traffic, job: Job, link: Link, machine: Machine, *, cpu: float, wire: float, overlaps: bool = False
) -> Stage:
    """The stage that sends and adds; `cpu` in nanoseconds, without that of messages."""
    messages, trips = job.rounds * traffic.messages, job.rounds * traffic.trips
    return Stage("add", 1e-9 * (cpu + messages * machine.message), wire, trips * link.round_trip / 2, overlaps)
