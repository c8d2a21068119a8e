"""Rounds pass the stages in order and side by side; a failure ends all that follow, and nothing waits for ever."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from sumwire import Codec, Lattice, Residual, RoundError, Sketch, Sparse, average
from sumwire.aggregate.base import Aggregator
from sumwire.aggregate.local import Local
from sumwire.aggregate.round import Round
from sumwire.aggregate.rounds import IN_FLIGHT, RoundsInFlight, SettingsCheck
from sumwire.codec.rows.codec import Rows
from sumwire.codec.rows.rows import RowSlices


class Steps:
    """Takes a round's place, and does as told."""

    def __init__(self, number: int, **stages: Callable[[int], object]) -> None:
        self.number, self.seen, self._stages = number, list[str](), stages

    def _pass(self, name: str) -> None:
        self.seen.append(name)
        if name in self._stages:
            self._stages[name](self.number)

    def agree(self) -> None:
        self._pass("agree")

    def compress(self) -> None:
        self._pass("compress")

    def add(self) -> None:
        self._pass("add")

    def gather(self) -> None:
        self._pass("gather")

    def decode(self) -> int:
        self._pass("decode")
        return self.number


def alone(codec: Codec | None = None) -> Local:
    return Local.create(1, codec or Sparse(1))[0]


@contextmanager
def running(*aggregators: Aggregator) -> Iterator[list[RoundsInFlight]]:
    with ExitStack() as stack:
        rounds = [RoundsInFlight(aggregator) for aggregator in aggregators]
        for each in rounds:
            stack.callback(each.end, 20)
        yield rounds


def fails_at(number: int, text: str = "no") -> Callable[[int], None]:
    def fail(here: int) -> None:
        if here == number:
            raise ValueError(text)

    return fail


def test_rounds_leave_in_the_order_in_which_they_came() -> None:
    ended: list[int] = []
    with running(alone()) as (rounds,):
        every = [Steps(k) for k in range(100)]
        for steps in every:
            rounds.submit(steps).add_done_callback(lambda done: ended.append(done.result()))  # type: ignore[arg-type]
    assert ended == list(range(100))
    assert all(steps.seen == ["agree", "compress", "add", "gather", "decode"] for steps in every)


def test_stages_work_at_the_same_time() -> None:
    meet = threading.Barrier(5)
    stage_of = {0: "decode", 1: "gather", 2: "add", 3: "compress", 4: "agree"}
    with running(alone()) as (rounds,):
        futures = [rounds.submit(Steps(k, **{name: lambda _: meet.wait(10)})) for k, name in stage_of.items()]
        assert [future.result(10) for future in futures] == [0, 1, 2, 3, 4]


def test_one_round_computes_at_a_time() -> None:
    """None is proposed while another one is encoded; terms are joined meanwhile."""
    encoding, overlapped = threading.Event(), list[bool]()

    class Slow(Lattice):
        def propose(self, x: Any) -> Any:
            overlapped.append(encoding.is_set())
            return super().propose(x)

        def encode(self, x: Any, *args: Any, **options: Any) -> Any:
            encoding.set()
            threading.Event().wait(0.1)
            encoding.clear()
            return super().encode(x, *args, **options)

    codec = Slow(1, 4)
    aggregator = alone(codec)
    with running(aggregator) as (rounds,):
        every = [Round(aggregator, np.ones(9, np.float32), codec, round_id=k) for k in range(3 * IN_FLIGHT)]
        for future in [rounds.submit(each) for each in every]:
            future.result(10)
    assert overlapped == [False] * 3 * IN_FLIGHT


@pytest.mark.parametrize("stage", ["agree", "compress", "add", "gather", "decode"])
def test_after_a_failure_it_and_all_later_ones_get_its_error(stage: str) -> None:
    go = threading.Event()
    with running(alone()) as (rounds,):
        futures = [rounds.submit(Steps(k, decode=lambda _: go.wait(10)) if k < 2 else Steps(k, **{stage: fails_at(2)}))
                   for k in range(5)]  # fmt: skip
        if stage == "agree":
            with pytest.raises(ValueError, match="no"):
                futures[2].result(10)  # while the rounds before it are still in flight
        go.set()
        assert [str(future.exception(10)) for future in futures] == ["None", "None", "no", "no", "no"]
        assert str(rounds.error) == "no"
        later = Steps(9)
        assert str(rounds.submit(later).exception(10)) == "no"
        assert later.seen == []


def test_an_error_that_is_kept_keeps_no_round() -> None:
    def fail(_: int) -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("then") from error

    with running(alone()) as (rounds,):
        steps = Steps(0, add=fail)
        gone = weakref.ref(steps)
        assert isinstance(rounds.submit(steps).exception(10), ValueError)
        rounds.close()
        del steps
        assert isinstance(rounds.error, ValueError)
        assert rounds.error.__traceback__ is not None  # it still says where
        assert gone() is None


def test_a_round_that_is_done_is_kept_by_nobody() -> None:
    with running(alone()) as (rounds,):
        steps = Steps(0)
        gone, future = weakref.ref(steps), rounds.submit(steps)
        del steps
        assert future.result(10) == 0  # type: ignore[comparison-overlap]
        rounds.submit(Steps(1)).result(10)  # now every thread is done with the first
        assert gone() is None


def test_a_callback_that_raises_stops_nothing() -> None:
    logging.getLogger("concurrent.futures").disabled = True
    try:
        with running(alone()) as (rounds,):
            for error in (ValueError, SystemExit):
                hold = threading.Event()
                first = rounds.submit(Steps(0, agree=lambda _, hold=hold: hold.wait(10)))  # type: ignore[misc]
                first.add_done_callback(lambda _, error=error: (_ for _ in ()).throw(error("bad callback")))  # type: ignore[misc]
                hold.set()
                assert rounds.submit(Steps(1)).result(10) == 1  # type: ignore[comparison-overlap]
    finally:
        logging.getLogger("concurrent.futures").disabled = False


def test_a_round_cannot_be_canceled() -> None:
    """The other workers count on it; and a canceled future would fail all later rounds."""
    hold = threading.Event()
    with running(alone()) as (rounds,):
        first, second = rounds.submit(Steps(0, agree=lambda _: hold.wait(10))), rounds.submit(Steps(1))
        assert not second.cancel()
        hold.set()
        try:
            assert (first.result(10), second.result(10)) == (0, 1)
        except CancelledError:
            pytest.fail("canceled")


def test_what_is_closed_takes_no_more() -> None:
    rounds = RoundsInFlight(alone())
    last = rounds.submit(Steps(0))
    rounds.close()
    rounds.close()
    assert last.result(0) == 0  # type: ignore[comparison-overlap]
    with pytest.raises(RoundError, match="closed"):
        rounds.submit(Steps(0))


def test_closing_waits_no_longer_than_told() -> None:
    hold = threading.Event()
    rounds = RoundsInFlight(alone())
    stuck = rounds.submit(Steps(0, add=lambda _: hold.wait(30)))
    start = threading.Event()
    ended = threading.Thread(target=lambda: (rounds.close(0.2), start.set()))
    ended.start()
    assert start.wait(5)
    assert not stuck.done()
    hold.set()
    rounds.close()
    assert stuck.done()


@pytest.mark.parametrize("lent", [False, True])
def test_whoever_opened_an_aggregator_closes_it(lent: bool) -> None:
    class Closed(Local):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    (aggregator,) = Closed.create(1, Sparse(1))
    rounds = RoundsInFlight(aggregator, lent=lent)
    last = rounds.submit(Steps(0))
    rounds.end(None)
    assert last.done()
    assert aggregator.closed == (0 if lent else 1)  # type: ignore[attr-defined]


def test_ending_gives_up_on_rounds_that_wait_for_another_worker() -> None:
    left, right = Local.create(2, Lattice(2))
    rounds = RoundsInFlight(left)
    futures = [rounds.submit(Round(left, np.ones(10, np.float32), left.codec, round_id=k)) for k in range(9)]
    rounds.end(0.1)
    for future in futures:
        with pytest.raises(RoundError, match="worker 0 has left"):
            future.result(10)
    rounds.close()
    right.close()


def test_an_aggregator_that_fails_to_end_a_round_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Local):
        def end_round(self, round_id: int, error: BaseException | None = None) -> None:
            raise OSError("the line is dead")

    (aggregator,) = Broken.create(1, Sparse(1))
    with running(aggregator) as (rounds,), caplog.at_level(logging.CRITICAL + 1):
        futures = [rounds.submit(Round(aggregator, np.ones(3), aggregator.codec, round_id=k)) for k in range(3)]
        for future in futures:
            assert isinstance(future.exception(10), OSError)


def test_rounds_borrow_memory_and_give_it_back() -> None:
    """As many buffers as may be in flight, which only grow, whatever the number of rounds."""
    codec, x = Lattice(1, 4), np.ones(5000, np.float32)
    aggregator = alone(codec)
    with running(aggregator) as (rounds,):
        seen = []
        for k in range(30):
            each = Round(aggregator, x, codec, round_id=k)
            rounds.submit(each).result(10)
            seen.append(each.workspace.buffers)
        assert len({id(buffers) for buffers in seen}) == IN_FLIGHT
        assert all(2500 <= buffers.nbytes < 10_000 for buffers in seen)
        failing = Round(aggregator, np.array([1], np.int64), codec, round_id=99)
        assert rounds.submit(failing).exception(10) is not None
    assert rounds._free.qsize() == IN_FLIGHT


def rows(rank: int, number: int) -> RowSlices:
    rng = np.random.default_rng((rank, number))
    numbers = np.sort(rng.choice(50, 20, replace=False))
    return RowSlices((50, 3), numbers, rng.standard_normal((20, 3)).astype(np.float32))


def vector(rank: int, number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng((rank, number)).standard_normal(700).astype(np.float32)


@pytest.mark.parametrize(
    "codec", [Lattice(2, 4), Sparse(2), Sketch(2), Sketch(2, rows_per_nonzero=0.3), Rows(2), None], ids=str
)
def test_a_worker_that_decodes_late_gets_the_same(codec: Codec | None) -> None:
    """The other one uses its memory, in which its payloads were, for further rounds."""
    make: Any = rows if isinstance(codec, Rows) else vector
    fast, slow = Local.create(2, codec or Sparse(2))
    hold = threading.Event()

    class Late(Round):
        def decode(self) -> Any:
            hold.wait(10)
            return super().decode()

    with running(fast, slow) as (left, right):
        late = [right.submit(Late(slow, make(1, k), codec, round_id=k)) for k in range(IN_FLIGHT + 3)]
        early = [left.submit(Round(fast, make(0, k), codec, round_id=k)) for k in range(IN_FLIGHT + 3)]
        early[IN_FLIGHT - 1].result(10)
        threading.Event().wait(0.1)  # so that it encodes one more
        hold.set()
        for k, (one, other) in enumerate(zip(early, late, strict=True)):
            expected: Any = average(codec or Sparse(2), [make(0, k), make(1, k)], round_id=k)
            for found in (one.result(10), other.result(10)):
                if isinstance(codec, Rows):
                    np.testing.assert_array_equal(found.numbers, expected.numbers)
                    found, expected_values = found.values, expected.values
                else:
                    expected_values = expected
                np.testing.assert_array_equal(found, expected_values)


def test_what_was_encoded_but_never_sent_is_back_in_the_residual() -> None:
    codec = Lattice(2, 2, feedback=True)
    xs, memories = [vector(0, k) for k in range(3)], [Residual(codec) for _ in range(3)]
    go = threading.Event()

    class Waits(Round):
        def add(self) -> None:
            go.wait(10)
            super().add()

    left, right = Local.create(2, codec)
    with running(left) as (rounds,):
        futures = [
            rounds.submit(Waits(left, x, codec, round_id=k, residual=memory))
            for k, (x, memory) in enumerate(zip(xs, memories, strict=True))
        ]
        rounds_agree = ThreadPoolExecutor(1).submit(_agree_to, right, codec, 3)
        rounds_agree.result(10)
        right.close()  # before anything was added
        go.set()
        for future in futures:
            assert isinstance(future.exception(10), RoundError)
    for x, memory in zip(xs, memories, strict=True):
        np.testing.assert_allclose(memory.value, x, atol=1e-5)


def _agree_to(worker: Local, codec: Codec, rounds: int) -> None:
    for k in range(rounds):
        worker.join(codec.propose(vector(1, k)), round_id=k)


def test_settings_are_checked_in_their_turn() -> None:
    class Checks(Local):
        seen: Any = None

        def check_settings(self, settings: Any) -> None:
            self.seen = settings

    (aggregator,) = Checks.create(1, Sparse(1))
    with running(aggregator) as (rounds,):
        rounds.submit(SettingsCheck(aggregator, {"a": 1})).result(10)
        assert aggregator.seen == {"a": 1}  # type: ignore[attr-defined]


def test_it_knows_its_own_threads() -> None:
    with running(alone()) as (rounds,):
        here: list[bool] = []
        rounds.submit(Steps(0, add=lambda _: here.append(rounds.runs_here))).result(10)
        assert here == [True]
        assert not rounds.runs_here


def test_what_can_be_averaged_ahead_waits_for_no_payload() -> None:
    """While a round before is being added, an exact one is averaged already; and it is not averaged twice."""

    class Ahead(Local):
        def average_ahead(self, x: Any, **_: Any) -> Any:
            ahead.set()
            return x + 1

        def average_exactly(self, x: Any, **_: Any) -> Any:
            raise AssertionError("averaged twice")

    ahead = threading.Event()
    (aggregator,) = Ahead.create(1, Sparse(1))
    with running(aggregator) as (rounds,):
        first = rounds.submit(Steps(0, add=lambda _: ahead.wait(10)))
        second = rounds.submit(Round(aggregator, np.ones(3, np.float32), None, round_id=1))
        np.testing.assert_array_equal(second.result(10), [2, 2, 2])
        assert ahead.is_set()
        assert first.result(10) == 0  # type: ignore[comparison-overlap]
