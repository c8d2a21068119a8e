"""Reports: summaries, and stacked bars in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sumwire.cli import main
from sumwire.errors import ConfigError
from sumwire.lab.experiments import NAMES, REPORTED, SUMMARIES, find, find_shown, find_summary
from sumwire.lab.experiments.base import Row
from sumwire.lab.experiments.results import Results
from tests.aggregate.server import browser
from tests.lab.experiments.test_chart import SHOWN, SPENT, stages

CHROMIUM = browser.find()


def report(folder: Path) -> str:
    """The page of these results."""
    page = folder / "report.html"
    result = CliRunner().invoke(
        main, ["lab", "report", "--results", str(folder), "--out", str(page), "--figures", str(folder)]
    )
    assert result.exit_code == 0, result.output
    return page.read_text()


def keep(folder: Path, name: str, lines: list[Row]) -> None:
    Results(folder, name).append({"workload": "perceptron", "workers": 4, "seed": 0}, lines)


TRAINED: list[Row] = [
    {"method": "fp32", "scheme": "fp32", "over_links": "fp32", "scores": [(5, 0.5), (10, 0.75)], "total_bits": 64.0}
    | {"up_bits": 32.0, "down_bits": 32.0, "metric": "accuracy", "score": 0.75, "worse": 0.0, "nmse": 0.0}
    | {"diverged": False}
]
TIMED: list[Row] = [{"method": "fp32", "scheme": "fp32", "where": "here", "rate": 1e9, "ms": 100.0, "both_bits": 64.0}]


def test_a_summary_is_shown_once_all_its_sources_have_results(tmp_path: Path) -> None:
    sources = find_summary("sweep").sources
    for source, field in zip(sources, ("nmse", "worse"), strict=True):
        assert not (tmp_path / "lab-sweep.svg").exists()
        about = {"bits": 2, "clip": 1.5, field: 0.25, "granularity": 3, "training": "perceptron"}
        keep(tmp_path, source, [about | {"choice": choice} for choice in ("solver", "g = 3")])
        text = report(tmp_path)
    assert re.findall(r'<section id="(\w+)">', text) == ["sweep", *sources]
    assert f"calculated from the results of {', '.join(sources)}" in text
    assert text.count("<td>g = 3, clamped at 1.50</td>") == 2
    assert (tmp_path / "lab-sweep.svg").exists()


def test_a_summary_may_join_results_of_several_experiments(tmp_path: Path) -> None:
    keep(tmp_path, "training", TRAINED)
    keep(tmp_path, "throughput", TIMED)
    assert "<td>0.50</td>" in report(tmp_path)


def test_summaries_are_listed_with_their_sources_and_found_by_name() -> None:
    listed = CliRunner().invoke(main, ["lab", "list"]).output
    assert set(REPORTED) == {*NAMES, *SUMMARIES}
    for name in SUMMARIES:
        found = find_summary(name)
        assert found.name == name
        assert find_shown(name) == found
        assert set(found.sources) <= set(NAMES)
        (line,) = (line for line in listed.splitlines() if line.startswith(f"{name} "))
        assert line.endswith(f"{found.question} (from {', '.join(found.sources)})")
    assert find_shown("stages") == find("stages")
    with pytest.raises(ConfigError, match="no summary 'stages': choose from equal_bits, time_to_target, sweep"):
        find_summary("stages")
    # Nothing is measured for a summary.
    result = CliRunner().invoke(main, ["lab", "run", "sweep"])
    assert result.exit_code != 0
    assert "no experiment 'sweep'" in " ".join(result.output.split())


@pytest.fixture
def page(tmp_path: Path) -> Path:
    keep(tmp_path, "stages", stages())
    keep(tmp_path, "training", TRAINED)
    report(tmp_path)
    return tmp_path / "report.html"


def test_the_page_knows_which_charts_are_stacked(page: Path) -> None:
    (data,) = re.findall(r"^const DATA = (.*);$", page.read_text(), re.MULTILINE)
    charts: dict[str, Any] = json.loads(data)
    assert {name: chart["stacked"] for name, chart in charts.items()} == {"stages": True, "training": False}
    assert list(charts["stages"]["panels"]["values: 1000"]) == list(SHOWN)
    assert page.read_text().count("<td>whole step</td>") == len(SPENT)


@pytest.fixture
def tab(page: Path, request: pytest.FixtureRequest) -> Iterator[browser.Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    with browser.Browser(CHROMIUM, dark=getattr(request, "param", False)) as tab:
        tab.ask("Page.navigate", url=page.as_uri())
        tab.until("document.querySelectorAll('#stages svg rect').length === 7")
        yield tab
        assert tab.errors == []


BOXES = """[...document.querySelectorAll('#stages svg rect')].map(r =>
    ['x', 'y', 'width', 'height'].map(k => Number(r.getAttribute(k))))"""


def test_bars_stand_on_each_other_and_hidden_ones_leave_no_gap(tab: browser.Browser) -> None:
    boxes = tab.evaluate(BOXES)
    group = [box for box in boxes if box[0] == max(x for x, *_ in boxes)]
    assert len(group) == 3
    (_, y, _, height), *above = group
    for _, next_y, _, next_height in above:
        assert next_y + next_height == pytest.approx(y)
        y = next_y
    assert [box[3] / height for box in group] == pytest.approx([1, 2, 1.6])
    tab.evaluate("document.querySelector('#stages .legend button').click()")
    left = tab.evaluate(BOXES)
    assert len(left) == 4
    assert sum(y + height == pytest.approx(240) for _, y, _, height in left) == 3


def test_pointing_at_a_bar_shows_its_share(tab: browser.Browser) -> None:
    x, y = tab.evaluate(
        "(r => { r.scrollIntoView({ block: 'center' }); const b = r.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })(document.querySelectorAll('#stages svg rect')[4])"
    )
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tip = tab.until("document.querySelector('#stages .tip').textContent")
    assert tip == "fp32 all-reduce, exchange: 4 of 5.5"


@pytest.mark.parametrize("tab", [False, True], indirect=True, ids=["light", "dark"])
def test_the_page_follows_the_color_scheme(tab: browser.Browser, request: pytest.FixtureRequest) -> None:
    paper, ink = tab.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    darker, lighter = (paper, ink) if "dark" in request.node.callspec.id else (ink, paper)
    assert max(map(int, re.findall(r"\d+", darker))) < 64 < 192 < min(map(int, re.findall(r"\d+", lighter)))
    card = "getComputedStyle(document.querySelector('#stages figure')).backgroundColor"
    fills = "[...document.querySelectorAll('#stages svg rect')].map(r => getComputedStyle(r).fill)"
    assert tab.evaluate(card) not in tab.evaluate(fills)
    assert len(set(tab.evaluate(fills))) == len(SHOWN)
