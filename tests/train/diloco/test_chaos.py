"""Workers that come and go, and a server that is restarted: short here, for long with `make chaos-sites`."""

from __future__ import annotations

from tests.train.diloco.chaos import WORKERS, Chaos


def test_workers_come_and_go_and_all_have_the_same_parameters() -> None:
    outcome = Chaos(15, 800, 0, print).run(["kill", "stop", "come_back", "restart", "kill", "come_back"])
    assert outcome.different == 0, outcome.report()
    assert outcome.rounds >= 15
    assert outcome.compared > 15 * (WORKERS - 2)
    assert outcome.loss < 1.2, outcome.report()
