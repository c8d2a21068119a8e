"""Charts with stacked bars, as data and as figures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sumwire.lab.experiments import find
from sumwire.lab.experiments.base import Chart, Row
from sumwire.lab.experiments.chart import draw, panels

STAGES = find("stages")
SPENT = {
    "server": {"compute": 1.0, "exchange": 5.0, "whole step": 7.0},
    "fp32 all-reduce": {"compute": 1.5, "exchange": 4.0, "whole step": 6.0},
    "process group": {"compute": 1.25, "encode": 2.0, "exchange": 2.5, "whole step": 6.5},
}
"""Milliseconds of stages; names are in no order of the alphabet."""
SHOWN = ("compute", "exchange", "encode")


def stages() -> list[Row]:
    return [
        {"transport": transport, "values": 1000, "seed": 0, "stage": stage, "ms": ms}
        for transport, spent in SPENT.items()
        for stage, ms in spent.items()
    ]


def test_bars_keep_their_order_and_omitted_series_are_only_in_the_table() -> None:
    (curves,) = panels(STAGES, stages()).values()
    assert tuple(curves) == SHOWN
    assert curves["compute"] == [(name, ms, ms, ms) for name, ms in zip(SPENT, (1.0, 1.5, 1.25), strict=True)]
    assert [x for x, *_ in curves["encode"]] == ["process group"]


def test_bars_of_several_seeds_are_means_and_numbers_are_names() -> None:
    lines = [{"transport": 8, "values": 1, "stage": "add", "ms": ms} for ms in (1.0, 3.0)]
    assert panels(STAGES, lines) == {"values: 1": {"add": [("8", 2.0, 1.0, 3.0)]}}


@pytest.mark.parametrize("stacked", [True, False])
def test_omitted_series_and_rows_without_a_figure_are_not_drawn(stacked: bool) -> None:
    chart = Chart("x", "y", "name", "panel", "x", "y", stacked=stacked, omitted=("b", "c"), x_most=5)
    shown = replace(STAGES, chart=chart)
    lines = [{"x": 1, "y": 2, "name": name, "panel": 0} for name in "abc"]
    lines += [{"x": 1, "name": "without y", "panel": 0}, {"y": 1, "name": "without x", "panel": 0}]
    assert list(panels(shown, lines)["panel: 0"]) == ["a"]


def bars(path: Path) -> list[tuple[float, float, float]]:
    """Left edge, top and bottom of the bars in an SVG, in which y grows downwards."""
    found = []
    for x, top, bottom in re.findall(
        r'<path d="M ([\d.]+) ([\d.]+) \nL [\d.]+ [\d.]+ \nL [\d.]+ ([\d.]+) \nL [^z]*z\n" clip-path', path.read_text()
    ):
        low, high = sorted((float(top), float(bottom)), reverse=True)
        found.append((float(x), high, low))
    return found


def test_a_figure_stacks_a_bar_for_each_stage_on_the_one_below(tmp_path: Path) -> None:
    draw(STAGES, stages(), tmp_path / "stages.svg")
    found = bars(tmp_path / "stages.svg")
    assert len(found) == sum(len(set(spent) & set(SHOWN)) for spent in SPENT.values())
    places = sorted({x for x, _, _ in found})
    assert len(places) == len(SPENT)
    for place, spent in zip(places, SPENT.values(), strict=True):
        column = [(top, bottom) for x, top, bottom in found if x == place]
        expected = [spent[stage] for stage in SHOWN if stage in spent]
        per_ms = (column[0][1] - column[0][0]) / expected[0]
        assert [bottom - top for top, bottom in column] == pytest.approx([ms * per_ms for ms in expected], abs=0.01)
        assert [bottom for _, bottom in column[1:]] == pytest.approx([top for top, _ in column[:-1]], abs=0.01)
