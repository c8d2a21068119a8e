"""Stages of a step, measured by real ranks."""

from __future__ import annotations

from sumwire.lab.experiments import find
from sumwire.lab.experiments.stages import TRANSPORTS


def test_a_step_over_a_server_has_all_its_stages() -> None:
    point = {"transport": "server", "workers": 2, "width": 64, "rounds": 2, "seed": 0}
    rows = {row["stage"]: row for row in find("stages").measure(point)}
    assert set(rows) == {"compute", "encode", "exchange", "decode", "whole step"}
    assert all(row["values"] == 4 * 64**2 and row["ms"] > 0 for row in rows.values())


def test_every_transport_is_measured() -> None:
    for points in (find("stages").quick, find("stages").full):
        assert {point["transport"] for point in points} == set(TRANSPORTS)
