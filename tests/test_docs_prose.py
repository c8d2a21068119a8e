"""Pages that a person can read, and whose links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WRITTEN = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "deploy/README.md", "examples/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
WIDTH = 120


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("page", names(WRITTEN))
def test_lines_fit_the_eye(page: str) -> None:
    """Tables and single long words (a command, a link) may be longer."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.S)
    long = [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith(("|", "`", "!"))]
    assert long == []


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", names([*WRITTEN, ROOT / "benchmarks/results/README.md"]))
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
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
    assert [path for path in named if not (ROOT / path).exists()] == []
    packages = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "src/sumwire").glob("*/__init__.py")}
    assert packages <= named


def test_native_files_are_told_apart() -> None:
    """Every file of native/ in one row of the table below the tree, and no row without a file."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("In `native/`")[2].partition("\n\nImports")[0]
    patterns = [re.findall(r"`([\w*.]+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    found = {pattern: {path.name for path in (ROOT / "native").glob(pattern)} for row in patterns for pattern in row}
    assert [pattern for pattern, files in found.items() if not files] == []
    declared = {"scalar.h", "sparse.h"}  # named beside sumwire.h
    assert set().union(*found.values()) | declared == {path.name for path in (ROOT / "native").iterdir()}
