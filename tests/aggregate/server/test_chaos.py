"""A few seconds of chaos; `python -m tests.aggregate.server.chaos` does it for as long as you like."""

from __future__ import annotations

import asyncio

from tests.aggregate.server import chaos


def test_no_sum_is_wrong_in_chaos(monkeypatch) -> None:
    monkeypatch.setattr(chaos, "KILL_EVERY", 0.05)  # which is to say, after every 10 rounds
    outcome = asyncio.run(chaos._run(30, 280.0, seed=1))
    assert outcome.ends["WRONG"] == 0, outcome.report()
    assert len(outcome.right | outcome.failures.keys()) == 30, outcome.report()
    # Workers are killed by the clock: a busy machine loses more rounds.
    assert len(outcome.right) > 15, outcome.report()
    assert outcome.kills
    assert outcome.restarts == 2
    assert outcome.proxy["dropped"]
    assert outcome.proxy["duplicated"]


def test_with_a_quorum_sums_are_of_those_they_name_and_nothing_is_lost(monkeypatch) -> None:
    monkeypatch.setattr(chaos, "KILL_EVERY", 0.05)  # which is to say, after every 10 rounds
    outcome = asyncio.run(chaos._run(24, 280.0, seed=2, quorum=2, restarts=2))
    assert outcome.ends["WRONG"] == 0, outcome.report()
    # Rounds may fail for all: two whose processes were killed may have tensors that the terms do not cover any more.
    assert len(outcome.right | outcome.failures.keys()) == 24, outcome.report()
    # How many a restart takes along depends on how many are in flight just then.
    assert len(outcome.right) > 12, outcome.report()
    assert outcome.partial
    assert outcome.back
    assert outcome.kills
    assert outcome.restarts == 2
