"""Tables of measured figures say what the results say, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.tables import TABLES
from benchmarks.tables.render import CALCULATED, MARKED, RESULTS, ROOT, files_of, lines_of, pages, render, rendered

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
FILES = {str(file.relative_to(RESULTS).with_suffix("")): file for file in sorted(RESULTS.rglob("*.jsonl"))}


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_the_results(name: str) -> None:
    page = PAGES[name].read_text()
    assert rendered(page) == page, "changed by hand, or out of date: python -m benchmarks.tables writes it anew"
    assert page.count("<!-- table:") == page.count("<!-- end -->") == len(MARKED.findall(page))


def test_a_figure_changed_by_hand_is_found() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    name = "kernels-avx512"
    figure = render(name).splitlines()[2]
    forged = page.replace(figure, re.sub(r"\d", "9", figure))
    assert forged != page
    assert rendered(forged) == page


def test_benchmarks_have_no_table_outside_markers() -> None:
    page = MARKED.sub("", (ROOT / "docs" / "benchmarks.md").read_text())
    assert [line for line in page.splitlines() if line.startswith("|")] == []


def test_every_table_is_shown_and_every_file_is_used() -> None:
    shown = {found[1] for page in PAGES.values() for found in MARKED.findall(page.read_text())}
    assert shown == set(TABLES)
    assert {file for table in TABLES.values() for file in files_of(table)} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_line_says_where_it_comes_from(name: str) -> None:
    for text in FILES[name].read_text().splitlines():
        line = json.loads(text)
        assert line["command"]
        assert line["machine"]
        assert ("published" in line) != ("date" in line)
        assert json.dumps(line, ensure_ascii=False) == text


@pytest.mark.parametrize("name", TABLES)
def test_cells_are_filled(name: str) -> None:
    """A misspelled field would leave its whole column empty."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in render(name).splitlines()[2:]]
    assert len(rows) == len(lines_of(TABLES[name]))
    for column, cells in zip(TABLES[name].columns, zip(*rows, strict=True), strict=True):
        assert any(cells), f"{column!r} has no figure"


@pytest.mark.parametrize("name", [Path(name).name for name in (*FILES, *CALCULATED) if name.startswith("lab/")])
def test_figures_of_the_lab_show_the_results(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from sumwire.lab.experiments import find_shown
    from sumwire.lab.experiments.chart import draw
    from sumwire.lab.experiments.results import lines_of

    drawn = tmp_path / "drawn.svg"
    shown = find_shown(name)
    draw(shown, lines_of(shown, RESULTS / "lab"), drawn)
    published = ROOT / "docs" / "figures" / f"lab-{name}.svg"
    assert drawn.read_text() == published.read_text(), "out of date: make lab writes it anew"
