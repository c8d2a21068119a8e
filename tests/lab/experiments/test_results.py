"""Lines of results: whole points count, whatever stopped their writer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sumwire.errors import ConfigError
from sumwire.lab.experiments import results as module
from sumwire.lab.experiments.results import Results, count_points, key_of

A, B = {"workers": 2, "seed": 0}, {"workers": 4, "seed": 1}


@pytest.fixture
def found(tmp_path: Path) -> Results:
    return Results(tmp_path, "hops")


def test_lines_have_the_point_what_was_measured_and_on_what(found: Results) -> None:
    found.append(B, [{"method": "a", "nmse": 0.5}, {"method": "b", "nmse": 0.25}])
    first, second = found.lines()
    assert (first["method"], second["method"], second["nmse"], second["workers"], second["seed"]) == (
        "a",
        "b",
        0.25,
        4,
        1,
    )
    assert {"python", "numpy"} <= set(first["versions"])
    assert {"command", "date", "version", "machine"} <= set(first)
    assert found.done() == {key_of(B)}
    assert key_of({"seed": 1, "workers": 4}) == key_of(B)
    assert count_points(found.lines()) == 1


def test_no_file_has_no_lines(found: Results) -> None:
    assert (found.lines(), found.done()) == ([], set())


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_half_a_point_does_not_count_and_its_rest_is_overwritten(found: Results, kept: int) -> None:
    found.append(A, [{"nmse": 1.0}])
    before = found.path.read_bytes()
    found.append(B, [{"nmse": 2.0}, {"nmse": 3.0}])
    lines = found.path.read_bytes()[len(before) :].splitlines(keepends=True)
    found.path.write_bytes(before + lines[0] + lines[1][:kept])
    assert found.done() == {key_of(A)}
    found.append(B, [{"nmse": 4.0}, {"nmse": 5.0}])
    assert [line["nmse"] for line in found.lines()] == [1.0, 4.0, 5.0]


def test_a_point_that_was_measured_again_supersedes_the_first(found: Results) -> None:
    found.append(A, [{"nmse": 1.0}, {"nmse": 2.0}])
    found.append(A, [{"nmse": 3.0}])
    assert [line["nmse"] for line in found.lines()] == [3.0]


def test_results_of_another_version_are_shown_but_measured_again(
    found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    found.append(A, [{"nmse": 1.0}])
    monkeypatch.setattr(module, "__version__", "99.0")
    assert len(found.lines()) == 1
    assert found.done() == set()


@pytest.mark.parametrize("line", ["nothing", "[]", "{}", json.dumps({"point": {}, "row": 0, "rows": 1})])
def test_a_line_that_is_no_result_is_named(found: Results, line: str) -> None:
    found.append(A, [{"nmse": 1.0}])
    with found.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*hops.jsonl is not a result"):
        found.lines()
