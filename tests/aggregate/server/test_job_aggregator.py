"""The aggregator's law, in every order of arrival that hypothesis can think of."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire import FrameError, Lattice, MismatchError, Sparse
from sumwire.aggregate.protocol import HISTORY
from sumwire.aggregate.server.job_aggregator import JobAggregator
from sumwire.aggregate.server.memory import Memory
from sumwire.aggregate.server.options import MAX_OPEN, MAX_OPENED, Rules
from sumwire.aggregate.server.round import Send
from sumwire.codec.algebra import FOLLOW_UP
from sumwire.wire import control
from sumwire.wire.frame import describe, parse, to_bytes
from sumwire.wire.limits import Kind
from tests.aggregate.server.world import World, codec_of, split, tensor

KINDS = st.sampled_from(["lattice", "narrow", "sparse", "sketch"])
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def worlds(draw: st.DrawFn, **fixed: object) -> World:
    workers = draw(st.integers(1, 10))
    rules: dict[str, object] = {
        "quorum": draw(st.none() | st.integers(1, workers)),
        "deadline": draw(st.none() | st.just(1.0)),
        "timeout": 10.0,
    }
    if rules["quorum"] is not None and "quorum" not in fixed:
        rules["linger"] = draw(st.sampled_from([0.0, 0.5]))
    rng = random.Random(draw(SEEDS))
    size = draw(st.sampled_from([0, 1, 7, 64, 200, 1000]))
    return World(Rules(workers, **(rules | fixed)), codec_of(draw(KINDS), workers), size, draw(st.integers(1, 3)), rng)


@given(world=worlds(), trouble=st.booleans())
def test_every_sum_is_of_distinct_workers_whatever_comes_when(world: World, trouble: bool) -> None:
    for _ in range(60):
        if trouble and world.rng.random() < 0.05:
            world.abstain(world.rng.randrange(world.rules.workers), world.rng.choice(world.rounds))
        if world.rng.random() < 0.1:
            world.tick(world.rng.choice([0.01, 0.6, 1.1]))
        if world.mail:
            world.step()
    world.drain()
    for r in world.rounds:
        _check_end(world, r)
    assert not trouble or world.aggregator.held >= 0
    # Once all are past these rounds, nothing is left of them.
    for rank in range(world.rules.workers):
        world.aggregator.greet(rank, HISTORY + len(world.rounds) + 1, world.now)
    assert world.aggregator.held == 0


def _check_end(world: World, r: int) -> None:
    """The same for all, and not before it must be."""
    ends = [world.seen[rank, r] for rank in range(world.rules.workers)]
    if any(seen.failed for seen in ends):
        assert all(seen.failed for seen in ends)
        reason = ends[0].failed.reason
        abstainers = [rank for rank, seen in enumerate(ends) if seen.abstained]
        assert any(f"worker {rank} " in reason for rank in abstainers), reason
        return
    for span in world.spans:
        assert len({seen.sums[span] for seen in ends}) == 1
        missing = control.read_ranks(ends[0].without[span].ranks) if span in ends[0].without else set()
        count = world.rules.workers - len(missing)
        if world.rules.deadline is None:
            assert count >= world.rules.needed
        if world.rules.deadline is None and world.rules.quorum is None:
            assert count == world.rules.workers


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(world=worlds(quorum=None, deadline=None), restarts=st.integers(1, 3))
def test_rounds_complete_over_restarts(world: World, restarts: int) -> None:
    for _ in range(restarts):
        for _ in range(world.rng.randrange(80)):
            if world.mail:
                world.step()
        world.restart()
    world.drain()
    for r in world.rounds:
        assert all(seen.failed is None for (_, at), seen in world.seen.items() if at == r)
        _check_end(world, r)


def test_sums_from_before_a_restart_count_though_an_older_round_is_summed_first() -> None:
    """The worker has the sums of rounds 1 and 2, not of 0; it returns them after the payload of round 0."""
    world = World(Rules(1, timeout=10.0), codec_of("sketch", 1), 1, 3, random.Random(127))
    for _ in range(world.rng.randrange(80)):
        world.step()
    assert [len(world.seen[0, r].sums) for r in world.rounds] == [0, 1, 1]
    world.restart()
    world.drain()
    assert all(seen.failed is None for seen in world.seen.values())


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(world=worlds(), seed=SEEDS)
def test_a_payload_is_added_once(world: World, seed: int) -> None:
    order = random.Random(seed)
    while world.mail and order.random() < 0.99:
        rank, message = world.mail.pop(order.randrange(len(world.mail)))
        world.hand_in(rank, message)
        before = world.aggregator.held
        world.hand_in(rank, message)
        assert world.aggregator.held <= before


def _two(rules: Rules | None = None, **options: object) -> tuple[JobAggregator, Lattice]:
    aggregator, codec = JobAggregator(rules or Rules(2, **options)), Lattice(2, 4, block=64)
    aggregator.learn(describe(codec))
    return aggregator, codec


def _terms(codec: Lattice, rank: int, r: int, size: int = 100):
    return parse(to_bytes(codec.propose(tensor(rank, r, size)), round_id=r))


def _said(sends) -> list[tuple[frozenset[int], object]]:
    return [(send.ranks, message) for send in sends for message in split(send.pieces)]


def test_a_timeout_names_the_missing_workers_and_the_round() -> None:
    aggregator, codec = _two(timeout=5.0)
    aggregator.frame(0, _terms(codec, 0, 7), 0.0)
    assert aggregator.tick(4.9) == []
    ((ranks, failed),) = _said(aggregator.tick(5.0))
    assert ranks == {0}
    assert (failed.round_id, failed.missing) == (7, [1])
    assert failed.reason == "workers 1 sent nothing for 5 s"
    ((ranks, again),) = _said(aggregator.frame(1, _terms(codec, 1, 7), 6.0))
    assert (ranks, again) == ({1}, failed)
    assert aggregator.held == 0


def test_another_size_fails_the_round_and_says_whose() -> None:
    aggregator, codec = _two()
    aggregator.frame(0, _terms(codec, 0, 3), 0.0)
    said = _said(aggregator.frame(1, _terms(codec, 1, 3, size=99), 0.0))
    assert {rank for ranks, _ in said for rank in ranks} == {0, 1}
    assert "worker 1: it sends a tensor of 99 values, the round is of 100: all workers must" in said[0][1].reason


def test_another_family_fails_the_round() -> None:
    aggregator, codec = _two()
    other = Sparse(2)
    aggregator.learn(describe(other))
    aggregator.frame(0, _terms(codec, 0, 3), 0.0)
    x = tensor(1, 3, 100)
    payload = other.encode(x, other.propose(x), rank=1, round_id=3)
    reason = _said(aggregator.frame(1, parse(to_bytes(payload)), 0.0))[0][1].reason
    assert "worker 1: codec: it has Sparse, the round has Lattice: all workers must pass" in reason


def test_what_is_finished_cannot_be_failed() -> None:
    aggregator, codec = _two(quorum=1)
    terms = codec.propose(tensor(0, 0, 100))
    aggregator.frame(0, _terms(codec, 0, 0), 0.0)
    aggregator.frame(0, parse(to_bytes(codec.encode(tensor(0, 0, 100), terms, rank=0))), 0.0)
    assert aggregator.finished == 1
    for sends in (
        aggregator.frame(1, _terms(codec, 1, 0, size=99), 0.0),
        aggregator.agreed(1, _terms(codec, 1, 0), 0.0),
        aggregator.frame(
            1, parse(to_bytes(codec.encode(tensor(1, 0, 100), codec.propose(tensor(1, 0, 100)), rank=1))), 0
        ),
    ):
        assert all(ranks == {1} for ranks, _ in _said(sends))
    said = [message for _, message in _said(aggregator.ask(0, 0, 0.0))]
    assert not any(isinstance(message, control.Failed) for message in said)
    assert (aggregator.finished, aggregator.failed) == (1, 0)


def test_old_rounds_are_over_and_say_where_the_job_is() -> None:
    aggregator, codec = _two(quorum=1)
    for r in range(HISTORY + 3):
        aggregator.frame(0, _terms(codec, 0, r), 0.0)
        x = tensor(0, r, 100)
        aggregator.frame(0, parse(to_bytes(codec.encode(x, codec.propose(x), rank=0, round_id=r))), 0.0)
    ((_, failed),) = _said(aggregator.frame(1, _terms(codec, 1, 1), 0.0))
    assert failed.next_round == HISTORY + 3
    assert "is over" in failed.reason
    said = [message for _, message in _said(aggregator.ask(1, HISTORY, 0.0))]
    assert any(isinstance(message, control.Expired) for message in said), "a recent one is still to be had"


@pytest.mark.parametrize("how", ["it comes", "it leaves", "it abstains", "time passes"])
def test_with_its_quorum_a_round_lingers_for_those_who_are_connected(how: str) -> None:
    """Both for terms and for payloads; rank 3, which is not connected, is not waited for."""
    aggregator, codec = JobAggregator(Rules(4, quorum=2, linger=5.0)), Lattice(4, 4, block=64)
    aggregator.learn(describe(codec))
    for rank in range(3):
        aggregator.greet(rank, 0, 0.0)
    xs = [tensor(rank, 0, 100) for rank in range(3)]
    terms = codec.propose(xs[0]) | codec.propose(xs[1]) | codec.propose(xs[2])
    frames = {
        "terms": [_terms(codec, rank, 0) for rank in range(3)],
        "payloads": [parse(to_bytes(codec.encode(xs[rank], terms, rank=rank))) for rank in range(3)],
    }
    now = 0.0
    for what in frames if how == "it comes" else ["terms"]:
        for rank in range(2):
            assert not _said(aggregator.frame(rank, frames[what][rank], now)), "it did not wait for rank 2"
        assert not _said(aggregator.tick(now + 4.9))
        if how == "it comes":
            assert _said(aggregator.frame(2, frames[what][2], now + 4.9))
        elif how == "it leaves":
            aggregator.leave(2)
            assert _said(aggregator.tick(now + 4.9))
        elif how == "it abstains":
            assert _said(aggregator.abstain(2, control.Abstain(0, "no"), now + 4.9))
        else:
            assert _said(aggregator.tick(now + 5.0))
        now += 4.9
    assert aggregator.finished == (how == "it comes")


def test_a_round_does_not_linger_for_those_who_only_watch() -> None:
    aggregator, codec = JobAggregator(Rules(3, quorum=1, linger=5.0)), Lattice(3, 4, block=64)
    aggregator.learn(describe(codec))
    for rank in range(3):
        aggregator.greet(rank, 0, 0.0)
    for r in (0, 1):
        x = tensor(0, r, 100)
        payload = parse(to_bytes(codec.encode(x, codec.propose(x), rank=0, round_id=r)))
        waits = r == 0  # a job that begins waits for all who are there
        for frame, now in ((_terms(codec, 0, r), 10.0 * r), (payload, 10.0 * r + 5)):
            assert bool(_said(aggregator.frame(0, frame, now))) != waits
            assert bool(_said(aggregator.tick(now + 5))) == waits
    assert aggregator.finished == 2


def test_workers_far_ahead_end_what_nobody_will_finish() -> None:
    aggregator, codec = JobAggregator(Rules(3, quorum=2)), Lattice(3, 4, block=64)
    aggregator.learn(describe(codec))
    aggregator.frame(0, _terms(codec, 0, 0), 0.0)
    assert aggregator.greet(1, 500, 0.0, "before") == [], "one worker's word ended the others' round"
    ((ranks, failed),) = _said(aggregator.greet(2, 501, 0.0, "before"))
    assert (ranks, failed.round_id, failed.next_round) == ({0}, 0, 500)


@pytest.mark.parametrize("rules", [{}, {"deadline": 1.0}, {"quorum": 2}])
def test_one_worker_cannot_leave_the_others_behind(rules: dict[str, object]) -> None:
    """Neither by what it says in its greeting, nor by rounds that it goes through alone."""
    aggregator, codec = JobAggregator(Rules(3, **rules)), Lattice(3, 4, block=64)
    aggregator.learn(describe(codec))
    for rank in (0, 1):
        aggregator.greet(rank, 0, 0.0)
    aggregator.greet(2, (1 << 63) - 1, 0.0, "before")
    for r in range(1 << 60, (1 << 60) + 3 * HISTORY):
        x = tensor(2, r, 100)
        aggregator.frame(2, _terms(codec, 2, r), 0.0)
        aggregator.tick(2.0)
        aggregator.frame(2, parse(to_bytes(codec.encode(x, codec.propose(x), rank=2, round_id=r))), 2.0)
        aggregator.tick(4.0)
    sends = [send for rank in (0, 1) for send in aggregator.frame(rank, _terms(codec, rank, 5), 5.0)]
    assert not any(isinstance(message, control.Failed) for _, message in _said(sends))
    assert any(round_id == 5 for round_id in aggregator._rounds)
    assert aggregator.held < 3 * HISTORY * 1000, "its rounds pile up"


@pytest.mark.parametrize("rules", [{}, {"deadline": 1.0}, {"quorum": 2}])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_lone_round_that_fails_far_ahead_leaves_nobody_behind(workers: int, rules: dict[str, object]) -> None:
    aggregator, codec = JobAggregator(Rules(workers, **rules)), Lattice(workers, 4, block=64)
    aggregator.learn(describe(codec))
    for rank in range(workers):
        aggregator.greet(rank, 0, 0.0)
    far, liar = 1 << 62, workers - 1
    aggregator.frame(liar, _terms(codec, liar, far), 0.0)
    aggregator.frame(liar, _terms(codec, liar, far, size=99), 0.0)
    assert aggregator.failed == 1
    said = _said(aggregator.frame(0, _terms(codec, 0, 5), 0.0))
    assert not any(isinstance(message, control.Failed) for _, message in said)


def _restarted(rules: Rules, *positions: int) -> tuple[JobAggregator, Lattice]:
    aggregator, codec = JobAggregator(rules), Lattice(rules.workers, 4, block=64)
    aggregator.learn(describe(codec))
    for rank, position in enumerate(positions):
        aggregator.greet(rank, position, 0.0, "before")
    return aggregator, codec


def _summed(aggregator: JobAggregator, codec: Lattice, r: int, ranks: range, now: float = 0.0) -> list[object]:
    """What workers get when these go through a round."""
    sends = [send for rank in ranks for send in aggregator.frame(rank, _terms(codec, rank, r), now)]
    terms = next(message for _, message in _said(sends) if not isinstance(message, control.Status)).terms(codec, (100,))
    for rank in ranks:
        payload = codec.encode(tensor(rank, r, 100), terms, rank=rank, round_id=r)
        sends += aggregator.frame(rank, parse(to_bytes(payload)), now)
    return [message for _, message in _said(sends)]


def test_after_a_restart_later_sums_are_nobodys_to_return() -> None:
    aggregator, codec = _restarted(Rules(3), 10, 10, 10)
    terms, x = codec.propose(np.ones(100, np.float32)), np.full(100, -0.5, np.float32)
    for r in (500, 10):
        if r == 10:
            _summed(aggregator, codec, 10, range(3))  # and with it, what was before the restart is over
        forged = codec.add([codec.encode(x, terms, rank=rank, round_id=r + 1) for rank in range(3)]).narrow()
        aggregator.agreed(2, parse(to_bytes(terms, round_id=r + 1)), 0.0)
        assert aggregator.frame(2, parse(to_bytes(forged)), 0.0) == []


def test_a_worker_that_claims_to_have_a_sum_does_not_keep_a_quorum_from_making_it() -> None:
    aggregator, codec = _restarted(Rules(3, quorum=2), 10, 10, 1 << 62)
    assert any(getattr(m, "kind", None) is Kind.NARROW for m in _summed(aggregator, codec, 500, range(2))), (
        "it was not then"
    )
    aggregator, codec = _restarted(Rules(3, quorum=2), 10, 10, 11)
    assert not any(getattr(m, "kind", None) is Kind.NARROW for m in _summed(aggregator, codec, 10, range(2))), (
        "wait for it"
    )
    assert any(getattr(m, "kind", None) is Kind.NARROW for _, m in _said(aggregator.tick(5.0))), "but not for ever"
    aggregator, codec = _restarted(Rules(3, quorum=2), 10, 10, 11)
    aggregator.frame(0, _terms(codec, 0, 10), 0.0)
    aggregator.abstain(2, control.Abstain(10, "it gave up"), 0.0)
    assert any(getattr(m, "kind", None) is Kind.NARROW for m in _summed(aggregator, codec, 10, range(2)))


@pytest.mark.parametrize("positions", [(40, 40), (40,)])
def test_a_new_worker_that_came_first_is_called_to_where_the_others_are(positions: tuple[int, ...]) -> None:
    workers = len(positions) + 1
    aggregator, codec = _restarted(Rules(workers))
    newcomer = workers - 1
    aggregator.greet(newcomer, 0, 0.0)
    aggregator.frame(newcomer, _terms(codec, newcomer, 5000), 0.0)
    said = [m for rank, at in enumerate(positions) for _, m in _said(aggregator.greet(rank, at, 0.0, "before"))]
    (failed,) = [message for message in said if isinstance(message, control.Failed)]
    assert (failed.round_id, failed.next_round) == (5000, 40)
    assert aggregator.next_round == 40


def test_a_capped_join_is_not_to_be_had_from_elsewhere() -> None:
    aggregator, codec = _two(scale_cap=2.0)
    terms = codec.propose(np.full(100, 1000, np.float32))
    with pytest.raises(FrameError, match="this server caps scales"):
        aggregator.agreed(1, parse(to_bytes(terms)), 0.0)


@pytest.mark.parametrize("known", ["", "before"])
def test_a_sum_of_ones_own_making_is_ignored(known: str) -> None:
    """Without a restart, and also where one worker alone speaks of one."""
    aggregator, codec = _two()
    aggregator.greet(0, 0, 0.0)
    aggregator.greet(1, 9, 0.0, known)
    for rank in (0, 1):
        aggregator.frame(rank, _terms(codec, rank, 0), 0.0)
    terms = codec.propose(tensor(0, 0, 100)) | codec.propose(tensor(1, 0, 100))
    x = np.full(100, -0.2, np.float32)
    forged = codec.add([codec.encode(x, terms, rank=rank) for rank in (0, 1)]).narrow()
    assert aggregator.frame(1, parse(to_bytes(forged)), 0.0) == []
    payloads = [codec.encode(tensor(rank, 0, 100), terms, rank=rank) for rank in (0, 1)]
    said = [_said(aggregator.frame(rank, parse(to_bytes(payload)), 0.0)) for rank, payload in enumerate(payloads)]
    (total,) = [message for _, message in said[1]]
    assert total.sum(codec, terms).packed().tobytes() == codec.add(payloads).narrow().packed().tobytes()


def test_workers_that_disagree_on_a_sum_fail_its_round(caplog: pytest.LogCaptureFixture) -> None:
    for same in (True, False):
        aggregator, codec = JobAggregator(Rules(3)), Lattice(3, 4, block=64)
        aggregator.learn(describe(codec))
        terms, x = codec.propose(np.ones(100, np.float32)), np.full(100, 0.5, np.float32)
        sums = [codec.add([codec.encode(x * sign, terms, rank=rank) for rank in range(3)]).narrow() for sign in (1, -1)]
        for rank, position in ((0, 1), (1, 1), (2, 0)):
            aggregator.greet(rank, position, 0.0, "before")
        aggregator.agreed(2, parse(to_bytes(terms)), 0.0)
        assert aggregator.frame(0, parse(to_bytes(sums[0])), 0.0) == [], "the other one has it, too"
        ((ranks, end),) = _said(aggregator.frame(1, parse(to_bytes(sums[0 if same else 1])), 0.0))
        assert 2 in ranks
        if same:
            assert end.sum(codec, terms).packed().tobytes() == sums[0].packed().tobytes()
            assert "took over the sum of 3 workers" in caplog.text
        else:
            assert "worker 1 returns another sum" in end.reason


def test_nobody_can_be_missing_who_does_not_exist() -> None:
    aggregator, codec = _two()
    aggregator.frame(0, _terms(codec, 0, 0), 0.0)
    with pytest.raises(FrameError, match=r"rank 9 is not in 0\.\.1"):
        aggregator.expired(1, control.Expired(0, 0, 3, control.write_ranks({9}, 10)))


def test_payloads_before_their_terms_are_forgotten() -> None:
    aggregator, codec = _two()
    x = tensor(0, 0, 100)
    payload = parse(to_bytes(codec.encode(x, codec.propose(x), rank=0)))
    assert aggregator.frame(0, payload, 0.0) == []
    assert (aggregator.open_rounds, aggregator.held) == (0, 0)
    aggregator.frame(0, _terms(codec, 0, 0), 0.0)
    assert aggregator.frame(0, payload, 0.0) == []


def test_an_unknown_family_is_asked_for() -> None:
    aggregator = JobAggregator(Rules(2))
    codec = Lattice(2, 4, block=64)
    ((ranks, which),) = _said(aggregator.frame(0, _terms(codec, 0, 0), 0.0))
    assert (ranks, which) == ({0}, control.Which(codec.family))


def test_nobody_speaks_for_another() -> None:
    aggregator, codec = _two()
    x = tensor(1, 0, 100)
    with pytest.raises(FrameError, match="it may only speak for itself"):
        aggregator.frame(0, parse(to_bytes(codec.encode(x, codec.propose(x), rank=1))), 0.0)


def test_a_codec_for_other_workers_is_refused_before_it_is_built() -> None:
    with pytest.raises(MismatchError, match="built for 3 workers, the server has 2: build it with workers=2, or start"):
        JobAggregator(Rules(2)).learn(describe(Lattice(3)))


def test_abstentions_wait_for_their_round_but_not_for_ever() -> None:
    aggregator, codec = _two()
    for r in range(2 * MAX_OPEN):
        assert aggregator.abstain(1, control.Abstain(r, "NaN" + 9999 * "!"), 0.0) == []
    assert len(aggregator._early) == MAX_OPEN
    kept = [note for who in aggregator._early.values() for note in who.values()]
    assert len(kept) == MAX_OPENED
    assert max(len(note.reason) for note in kept) <= control.MAX_REASON
    said = _said(aggregator.frame(0, _terms(codec, 0, 2 * MAX_OPEN - 1), 0.0))
    assert "worker 1 takes no part: NaN" in said[0][1].reason
    assert len(aggregator._early) == 0 or max(aggregator._early) < 2 * MAX_OPEN - 1


def test_what_a_worker_says_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    aggregator, codec = _two()
    aggregator.frame(0, _terms(codec, 0, 3), 0.0)
    aggregator.abstain(1, control.Abstain(3, "NaN\n2026-01-01 INFO all is well \x1b[2J"), 0.0)
    (line,) = caplog.messages
    assert line.startswith("job default: round 3 failed: worker 1 takes no part: NaN\\n2026")
    assert line.isprintable()


def test_a_second_exchange_has_the_place_of_its_round() -> None:
    aggregator, codec = _two(timeout=5.0)
    second = 7 | FOLLOW_UP

    def finish(r: int) -> list[Send]:
        sends: list[Send] = []
        terms = codec.propose(np.ones(100, np.float32))
        for rank in range(2):
            sends += aggregator.agreed(rank, parse(to_bytes(terms, round_id=r)), 0.0)
            sends += aggregator.frame(
                rank, parse(to_bytes(codec.encode(np.ones(100), terms, rank=rank, round_id=r))), 0.0
            )
        return sends

    finish(7)
    aggregator.frame(0, _terms(codec, 0, second), 0.0)
    assert aggregator.next_round == 7
    assert aggregator.oldest == (0.0, 7)
    for r in range(8, 7 + HISTORY):  # which must not end it ...
        finish(r)
    assert aggregator.open_rounds == 1
    said = _said(finish(7 + HISTORY))  # ... until its round is over, too
    assert any(isinstance(message, control.Failed) and message.round_id == second for _, message in said)
    assert aggregator.open_rounds == 0
    assert aggregator._rounds.keys() == set(range(8, 8 + HISTORY))
    assert aggregator.next_round == 8 + HISTORY
    assert _said(aggregator.ask(1, second, 0.0))[0][1].next_round == 8 + HISTORY


def test_lanes_are_counted_before_they_are_allocated() -> None:
    codec, size = Lattice(3, 1, widths="fixed", block=64), 100_000
    memory = Memory(1 << 30)
    aggregator = JobAggregator(Rules(3), memory=memory)
    aggregator.learn(describe(codec))
    x = np.ones(size, np.float32)
    terms = codec.propose(x)
    for rank in range(3):
        proposal = parse(to_bytes(terms))
        assert aggregator.cost(proposal) >= terms.layout(codec).lanes_at.nbytes
        aggregator.frame(rank, proposal, 0.0)
    payload = parse(to_bytes(codec.encode(x, terms, rank=0)))
    assert aggregator.cost(payload) >= payload.length + size
    aggregator.frame(0, payload, 0.0)
    assert memory.used == aggregator.held >= payload.length + size
    assert aggregator.cost(payload) == payload.length, "a second one adds to the same lanes"
    aggregator.close()
    assert memory.used == 0


def test_workers_must_agree_on_the_form_of_sums() -> None:
    aggregator = JobAggregator(Rules(2))
    aggregator.learn(describe(Lattice(2, 4, down_bits=5)))
    aggregator.learn(describe(Lattice(2, 4, down_bits=5).with_bits(2)))
    with pytest.raises(MismatchError, match=r"form of sums differs \('down_bits=5.0' and 'down_bits=exact'\)"):
        aggregator.learn(describe(Lattice(2, 4, down_bits="exact")))
