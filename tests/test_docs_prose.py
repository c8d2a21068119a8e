"""Pages that a person can read, and whose links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WIDTH = 120
PENDING = {
    "docs/dme.md": "long lines: being rewritten elsewhere",
    "docs/estimators.md": "long lines: being rewritten elsewhere",
    "docs/figures/dme-": "renamed from mean- elsewhere",
    "src/sumwire/aggregate/base.py": "the aggregators get one interface elsewhere",
    "src/sumwire/cli": "split by command elsewhere",
}
"""Pages and link targets that another change brings, and why they are left out until then."""


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("page", [name for name in names(WRITTEN) if name not in PENDING])
def test_lines_fit_the_eye(page: str) -> None:
    """Tables and single long words (a command, a link) may be longer."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.S)
    long = [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith(("|", "`", "!"))]
    assert long == []


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", names([*WRITTEN, ROOT / "benchmarks/results/README.md", ROOT / "examples/README.md"]))
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        if str(found.relative_to(ROOT)).startswith(tuple(PENDING)) and found.suffix == ".svg":
            continue
        assert found.exists(), f"{page} links to {target}, which is not there"
        assert not anchor or anchor in anchors(found), f"{page} links to {link}, which has no such heading"


def tree() -> set[str]:
    """Paths that the tree in CONTRIBUTING.md names: those of a line, below the folders that it is indented under."""
    (block,) = re.findall(r"## The tree.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.S)
    paths, above = set(), {0: ""}
    for line in block.splitlines():
        indent = len(line) - len(line.lstrip())
        parent = above[max(level for level in above if level <= indent)]
        named = [parent + name for name in re.split(r" {2,}", line.strip()) if re.fullmatch(r"[\w/]+/|\w+\.py", name)]
        paths |= set(named)
        above = {level: path for level, path in above.items() if level <= indent} | {indent + 2: named[0]}
    return paths


def test_the_tree_is_the_one_that_is_there() -> None:
    named = {path.rstrip("/") for path in tree()}
    assert [path for path in named - set(PENDING) if not (ROOT / path).exists()] == []
    packages = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "src/sumwire").glob("*/__init__.py")}
    assert packages <= named
