"""What racks contribute is checked like payloads: who is in it, how many, and that it can be added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sumwire import Codec, FrameError, Lattice, Sketch, Sparse
from sumwire.aggregate.server.job_aggregator import JobAggregator
from sumwire.aggregate.server.options import Rules
from sumwire.aggregate.server.rack import UPSTREAM, RackAggregator
from sumwire.wire import control
from sumwire.wire.frame import Frame, describe, parse, to_bytes
from tests.aggregate.server.world import split, tensor

WORKERS, SIZE = 4, 300


class Root:
    """An aggregator with two racks of two workers, and the terms of round 0 joined."""

    def __init__(self, codec: Codec, **rules: Any) -> None:
        self.codec, self.xs = codec, [tensor(rank, 0, SIZE) for rank in range(WORKERS)]
        self.aggregator = JobAggregator(Rules(WORKERS, **rules))
        self.aggregator.learn(describe(codec))
        for rank in (0, 2):
            self.aggregator.greet(rank, 0, 0.0, span=2)
        proposals = [codec.propose(x) for x in self.xs]
        self.terms = proposals[0] | proposals[1] | proposals[2] | proposals[3]
        if codec.agrees:
            for rank in (0, 2):
                self.aggregator.frame(rank, parse(to_bytes(self.terms, round_id=0)), 0.0)

    def total(self, *ranks: int) -> Any:
        return self.codec.add([self.codec.encode(self.xs[rank], self.terms, rank=rank) for rank in ranks])

    def contribute(self, rank: int, ranks: tuple[int, ...], total: Any) -> list[control.Control | Frame]:
        """What the rack that begins at `rank` is told when it contributes a sum as that of `ranks`."""
        frame = parse(to_bytes(total))
        holds = control.Holds(0, frame.lo, frame.hi, control.write_ranks(ranks, WORKERS))
        sends = self.aggregator.told(rank, holds, 0.0) + self.aggregator.frame(rank, frame, 0.0)
        return [message for send in sends if rank in send.ranks for message in split(send.pieces)]


@pytest.mark.parametrize("codec", [Lattice(WORKERS, 4, block=64), Sketch(WORKERS)])
def test_racks_add_up_to_all_workers(codec: Codec) -> None:
    root = Root(codec)
    assert root.contribute(0, (0, 1), root.total(0, 1)) == []
    assert root.contribute(0, (0, 1), root.total(0, 1)) == []  # once more: it is not added again
    [result] = root.contribute(2, (2, 3), root.total(2, 3))
    assert isinstance(result, Frame)
    assert b"".join(result.pieces()) == to_bytes(root.total(0, 1, 2, 3).narrow())
    assert root.aggregator.duplicates == 1


def test_those_whom_a_rack_does_without_are_named() -> None:
    root = Root(Lattice(WORKERS, 4, block=64))
    root.contribute(0, (1,), root.total(1))
    note, result = root.contribute(2, (2, 3), root.total(2, 3))
    assert isinstance(note, control.Expired)
    assert isinstance(result, Frame)
    assert (control.read_ranks(note.ranks), result.count) == ({0}, 3)


def test_the_quorum_counts_workers_not_racks() -> None:
    root = Root(Lattice(WORKERS, 4, block=64), quorum=2)
    assert root.contribute(0, (1,), root.total(1)) == []  # one worker is no quorum of two
    assert root.contribute(2, (2, 3), root.total(2, 3)) != []


BAD = {
    "a narrow sum": (lambda root: ((0, 1), root.total(0, 1).narrow()), "a narrow sum, which cannot be added"),
    "too many": (lambda root: ((0, 1), root.total(0, 1, 2)), "a sum of 3 payloads, and names 2 workers"),
    "too few": (lambda root: ((0, 1), root.total(0)), "a sum of 1 payloads, and names 2 workers"),
}


@pytest.mark.parametrize("what", BAD)
def test_contributions_that_do_not_fit_are_refused(what: str) -> None:
    make, said = BAD[what]
    root = Root(Lattice(WORKERS, 4, block=64, down_bits=3.0))
    (ranks, total) = make(root)  # type: ignore[no-untyped-call]
    failed = [each for each in root.contribute(0, ranks, total) if isinstance(each, control.Failed)]
    assert "the rack of workers 0..1 takes no part" in failed[0].reason
    assert said in failed[0].reason


def test_a_sketch_names_its_workers_itself() -> None:
    root = Root(Sketch(WORKERS))
    failed = [each for each in root.contribute(0, (0, 1), root.total(2, 3)) if isinstance(each, control.Failed)]
    assert "names 2 workers" in failed[0].reason


@pytest.mark.parametrize("ranks", [(1, 2), (2, 3), ()])
def test_a_rack_speaks_for_its_own_workers_only(ranks: tuple[int, ...]) -> None:
    root = Root(Lattice(WORKERS, 4, block=64))
    with pytest.raises(FrameError, match=r"the rack of workers 0..1 names workers"):
        root.contribute(0, ranks, root.total(0, 1))
    payload = root.codec.encode(root.xs[2], root.terms, rank=2)
    with pytest.raises(FrameError, match="it may only speak for itself"):
        root.aggregator.frame(0, parse(to_bytes(payload)), 0.0)


def test_payloads_that_only_the_root_can_add_are_passed_on() -> None:
    """Floats are added in rank order: a rack's sum of them would round twice."""
    codec = Sparse(WORKERS)
    rack = RackAggregator(Rules(WORKERS, ranks=(0, 2)))
    rack.learn(describe(codec))
    root, span = Root(codec), codec.parts(SIZE, 0, 1)[0]
    for rank in (0, 1):
        payload = codec.encode(root.xs[rank], codec.empty_terms((SIZE,)), rank=rank)
        sends = rack.frame(rank, parse(to_bytes(payload.part(*span))), 0.0)
    [up] = [send for send in sends if UPSTREAM in send.ranks]
    first, second, holds = split(up.pieces)
    assert [first.rank, second.rank] == [0, 1]  # type: ignore[union-attr]
    assert isinstance(holds, control.Holds)


def test_a_rack_of_listeners_gets_the_result() -> None:
    """Nobody there takes part, as after a restart of them all; they are told what the others agreed on."""
    codec = Lattice(WORKERS, 4, block=64)
    rack, root = RackAggregator(Rules(WORKERS, ranks=(0, 2))), Root(codec, quorum=2)
    rack.learn(describe(codec))
    for rank in (0, 1):
        rack.greet(rank, 0, 0.0)
        sends = rack.abstain(rank, control.Abstain(0, "it is behind"), 0.0)
    [up] = [send for send in sends if UPSTREAM in send.ranks]
    [note] = split(up.pieces)
    assert isinstance(note, control.Abstain)
    root.contribute(2, (2, 3), root.total(2, 3))
    down = [each for send in root.aggregator.abstain(0, note, 0.0) for each in split(send.pieces)]
    heard = [each for message in down for send in rack.from_upstream(message, 0.0) if 1 in send.ranks
             for each in split(send.pieces)]  # fmt: skip
    kinds = [type(each).__name__ if not isinstance(each, Frame) else each.kind.name for each in heard]
    assert kinds[-2:] == ["Expired", "NARROW"]
    assert "TERMS" in kinds
    assert np.all([each.round_id == 0 for each in heard])  # type: ignore[union-attr]
