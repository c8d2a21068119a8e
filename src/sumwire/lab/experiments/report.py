"""One page with all results: charts to point at, tables, and where each figure comes from. It needs no network."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from sumwire.errors import ConfigError
from sumwire.lab.experiments import REPORTED, find_shown
from sumwire.lab.experiments.base import Shown, Summary
from sumwire.lab.experiments.chart import draw, panels
from sumwire.lab.experiments.results import count_points, lines_of
from sumwire.lab.experiments.table import cells


def write(folder: Path, out: Path, figures: Path | None) -> list[str]:
    """The page of all experiments with results, and a figure of each if there is a folder for them; their names."""
    experiments = {name: find_shown(name) for name in REPORTED}
    found = {name: lines for name, shown in experiments.items() if (lines := lines_of(shown, folder))}
    if not found:
        raise ConfigError(f"no results in {folder}: measure first, with: sumwire lab run --results {folder} all")
    for path in (out.parent, *([figures] if figures else [])):
        if not path.is_dir():
            raise ConfigError(f"cannot write to {str(path)!r}: there is no such directory, create it first")
    data = {name: _data(experiments[name], lines) for name, lines in found.items()}
    body = "".join(_section(experiments[name], lines) for name, lines in found.items())
    template = files("sumwire.lab.experiments").joinpath("report.html").read_text(encoding="utf-8")
    # In a script element, only "</" could end it.
    text = template.replace("<!--sections-->", body).replace("/*data*/null", json.dumps(data).replace("</", "<\\/"))
    out.write_text(text, encoding="utf-8")
    if figures is not None:
        for name, lines in found.items():
            draw(experiments[name], lines, figures / f"lab-{name}.svg")
    return list(found)


def _data(experiment: Shown, lines: list[dict[str, Any]]) -> dict[str, Any]:
    chart = experiment.chart
    return {
        "panels": panels(experiment, lines),
        "x": chart.x_label,
        "y": chart.y_label,
        "logX": chart.log_x,
        "logY": chart.log_y,
        "stacked": chart.stacked,
    }


def _section(experiment: Shown, lines: list[dict[str, Any]]) -> str:
    heading = "".join(f"<th>{escape(name)}</th>" for name in experiment.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells(experiment, lines)
    )
    if isinstance(experiment, Summary):
        sources = [f"calculated from the results of {', '.join(experiment.sources)}"]
        count = f"{len(lines)} rows"
    else:
        sources = sorted(set(map(_source, lines)))
        count = f"{len(lines)} measurements at {count_points(lines)} points"
    return (
        f'<section id="{experiment.name}"><h2>{escape(experiment.title)}</h2>'
        f"<p><strong>{escape(experiment.question)}</strong></p><p>{escape(experiment.notes)}</p>"
        f'<div class="charts" data-experiment="{experiment.name}"></div>'
        f"<details><summary>{count}</summary>"
        f'<div class="scroll"><table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div></details>'
        f'<p class="source">{"<br>".join(map(escape, sources))}</p></section>'
    )


def _source(line: dict[str, Any]) -> str:
    return f"{line['command']} ({line['date']}, {line['machine']}, {_versions(line)})"


def _versions(line: dict[str, Any]) -> str:
    return ", ".join([f"sumwire {line['version']}", *(f"{k} {v}" for k, v in line["versions"].items())])
