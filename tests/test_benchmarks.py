"""Benchmarks run to their end, on small tensors, and tables can be made of what they record; figures do not matter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.tables import TABLES, render

from sumwire.lab.record import Record, spread

ROOT = Path(__file__).parents[1]


def test_make_runs_every_command_that_the_docs_publish_figures_of() -> None:
    rules = re.sub(r" \$\(call json,\w+\)", "", (ROOT / "Makefile").read_text())
    rules = re.sub(
        r"\t\$\(call LAB,([a-z_ ]+)\)",
        lambda found: "\n".join(f"\tsumwire lab run {name} --full" for name in found[1].split()),
        rules,
    )
    rules = re.sub(r"\$\((ONE|BENCH)\)", "python -m", rules).replace("$(BIN)/", "")
    made = {line.strip() for line in rules.splitlines() if line.startswith("\t")}
    published = []
    for page in (ROOT / "docs").glob("*.md"):
        found = re.findall(r"`(?:OMP_NUM_THREADS=1 )?((?:python -m benchmarks|sumwire lab)[^`]*)`", page.read_text())
        published += [(page.name, command) for command in found]
    assert len(published) > 15
    for page, command in published:
        # Prose may name a command without its options; a page that publishes its figures gives them.
        known = command in made or (page != "benchmarks.md" and any(line.startswith(command) for line in made))
        assert known, f"{page} has figures of {command!r}, which neither make bench nor bench-training runs"


def test_make_records_what_every_table_is_made_of() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recorded = set(re.findall(r"\$\(call json,(\w+)\)", makefile))
    for names in re.findall(r"\$\(call LAB,([a-z_ ]+)\)", makefile):
        recorded |= {f"lab/{name}" for name in names.split()}
    recorded |= {"chaos", "sites_chaos"}  # by make chaos and make chaos-sites
    assert recorded == {file for table in TABLES.values() for file in render.files_of(table)}
    assert recorded == render.IDENTITY.keys()
    assert render.CALCULATED.keys() == {table.file for table in TABLES.values()} - recorded


@pytest.mark.parametrize("file", render.IDENTITY)
def test_fields_of_identity_exist(file: str) -> None:
    """A misspelled one would make measurements supersede each other."""
    lines = [json.loads(line) for line in (render.RESULTS / f"{file}.jsonl").read_text().splitlines()]
    optional = {"quorum"}
    assert set(render.IDENTITY[file]) - optional <= {field for line in lines for field in line}
    transcribed = [line for line in lines if "published" in line]
    keys = {tuple(line.get(field) for field in render.IDENTITY[file]) for line in transcribed}
    assert len(keys) == len(transcribed)


def test_lines_of_several_seeds_become_their_mean_and_spread() -> None:
    lines = [
        {"seed": 0, "method": "a", "worse": 1.0, "nmse": 2.0, "metric": "loss", "diverged": False},
        {"seed": 1, "method": "a", "worse": 3.0, "metric": "loss", "diverged": True},
        {"seed": 0, "method": "b", "worse": 5.0},
    ]
    first, other = render.together(lines, ["method"])
    assert (first["worse"], first["lowest"]["worse"], first["highest"]["worse"], first["lines"]) == (2, 1, 3, 2)
    assert first["metric"] == "loss"
    assert "nmse" not in first  # one seed lacks it
    assert other["worse"] == 5


NEEDS_IPERF3 = pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")


@pytest.mark.parametrize(
    ("arguments", "table", "rows"),
    [
        ("benchmarks.sparse_scale --size 2000 --runs 1 --workers 64 70", "sparse-scale", 6),
        ("benchmarks.server cpu --size 20000 --runs 1", "server-cpu", 2),
        ("benchmarks.server latency --workers 3 --rounds 4 --processes 2 --size 100", "server-latency", 2),
        (
            "benchmarks.sites --workers 2 --every 2 --steps 4 --seeds 1 --width 32 --layers 1 --batch 4 --target 9 "
            "--methods fp32,2+feedback,ddp-fp16,ddp-powersgd-4,ddp-sumwire-4",
            "sites-seconds",
            5,
        ),
        pytest.param(
            "benchmarks.server throughput --size 20000 --rounds 2 --runs 1 --seconds 1",
            "server-throughput",
            5,
            marks=NEEDS_IPERF3,
        ),
    ],
)
def test_runs_to_its_end_and_a_table_can_be_made_of_it(
    arguments: str, table: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    results = tmp_path / f"{TABLES[table].file}.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", *arguments.split(), "--json", str(results)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| " in done.stdout
    shown = render.render(table)
    assert len(shown.splitlines()) == 2 + rows
    for column in zip(*(line.split("|")[1:-1] for line in shown.splitlines()), strict=True):
        assert any(cell.strip() for cell in column[2:]), f"{column[0]!r} is empty"
    for line in map(json.loads, results.read_text().splitlines()):
        assert line["command"] == f"OMP_NUM_THREADS=1 python -m {arguments}"
        assert {"date", "version", "machine", "seed"} <= line.keys()


def test_the_newest_line_of_a_measurement_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    record = Record(tmp_path / "sparse_scale.jsonl", seed=0)
    for step, figure in (("encode", 1.0), ("add", 2.0), ("encode", 3.0)):
        record.add(step=step, workers=64, over_dense_sum=spread([figure]))
    first, second = render.render("sparse-scale").splitlines()[2:]
    assert first.startswith("| encode | 64 | 3.00 |")
    assert second.startswith("| add | 64 | 2.00 |")
