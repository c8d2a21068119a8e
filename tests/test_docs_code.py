"""Every Python block of README.md and docs/ runs as it is written.

The blocks of a page share a namespace, in order. A comment in front of a block says where else it runs:

    <!-- run: server -->               every rank of its job, against a real server
    <!-- run: torchrun 2 -->           a script of its own, on two ranks
    <!-- run: torchrun 2, server -->   the same, against a real server
    <!-- run: by tests/x.py, ... -->   that test runs it, because it needs more than this one has
    <!-- not run: reason -->           nowhere

All that is replaced is the server's address, and the rank of each worker.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sumwire
from tests import ON_REFERENCE
from tests.torchrun import Launcher

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?:<!-- (run|not run): ([^>]*) -->\n)?```python\n(.*?)```", flags=re.S)
ADDRESS = "server:4650"


@dataclass(frozen=True)
class Block:
    page: str
    number: int
    verb: str
    setting: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.number}"

    @property
    def ranks(self) -> int:
        """How many ranks torchrun starts; 0 if it does not run this."""
        found = re.match(r"torchrun (\d+)", self.setting)
        return int(found[1]) if found else 0


def blocks() -> Iterator[Block]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, (verb, setting, code) in enumerate(BLOCK.findall(path.read_text())):
            yield Block(str(path.relative_to(ROOT)), number, verb, setting, code)


BLOCKS = list(blocks())
IN_PROCESS = ("", "server")
PAGES = sorted({block.page for block in BLOCKS if block.verb != "not run" and block.setting in IN_PROCESS})


def vectors() -> dict[str, Any]:
    xs = [np.random.default_rng(rank).standard_normal(1024).astype(np.float32) for rank in range(10)]
    return {"x": xs[3], "xs": xs}


@contextmanager
def rows() -> Iterator[dict[str, Any]]:
    da, distributed = pytest.importorskip("dask.array"), pytest.importorskip("distributed")
    rng = np.random.default_rng(0)
    centers = 100 * rng.standard_normal((10, 16))
    # Clusters apart and variances that fall: every round of a cluster takes time, and this needs few.
    X = (centers[np.arange(400) % 10] + rng.standard_normal((400, 16))) * 2.0 ** -np.arange(16)
    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with distributed.Client(n_workers=2, threads_per_worker=1, **options) as client:
        yield {"X": X, "client": client, "dask_array": da.from_array(X, chunks=(100, 16))}


GIVEN: dict[str, Callable[[ExitStack], dict[str, Any]]] = {
    "docs/dme.md": lambda _: vectors(),
    "docs/estimators.md": lambda stack: stack.enter_context(rows()),
}
"""What a page's first example takes as given: tensors, a cluster."""

ON_THESE_KERNELS = [page for page in PAGES if not (ON_REFERENCE and page == "docs/estimators.md")]
"""Fitting models on the reference takes minutes and says nothing new about it: `make test` leaves that out, too."""


@pytest.mark.parametrize("page", ON_THESE_KERNELS)
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        names = GIVEN[page](stack) if page in GIVEN else {}
        for block in BLOCKS:
            if block.page != page or block.setting not in IN_PROCESS:
                continue
            if block.setting == "server":
                names |= run_workers(block, names)
            else:
                exec(compile(block.code, block.name, "exec"), names)


def run_workers(block: Block, names: dict[str, Any]) -> dict[str, Any]:
    """The block as every rank of its job; what the first one then has."""
    (workers,) = {int(number) for number in re.findall(r"workers=(\d+)", block.code)}
    assert "rank=0" in block.code
    with sumwire.Server(workers, token=token(block)) as server, ThreadPoolExecutor(workers) as threads:
        code = block.code.replace(ADDRESS, server.address)

        def work(rank: int) -> dict[str, Any]:
            own = dict(names)
            exec(compile(code.replace("rank=0", f"rank={rank}"), block.name, "exec"), own)
            return own

        done = list(threads.map(work, range(workers)))
    assert all(np.array_equal(own["mean"], done[0]["mean"]) for own in done)
    return done[0]


def token(block: Block) -> str:
    (written,) = re.findall(r'\btoken ?= ?"([^"]+)"', block.code)
    return str(written)


def scripts() -> list[Any]:
    return [pytest.param(block, id=block.name) for block in BLOCKS if block.ranks]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    pytest.importorskip("torch")
    with Launcher() as launcher:
        yield launcher


@pytest.mark.skipif(ON_REFERENCE, reason="training says nothing new about kernels")
@pytest.mark.parametrize("block", scripts())
def test_script(block: Block, launcher: Launcher, tmp_path: Path) -> None:
    code = block.code
    with ExitStack() as stack:
        if block.setting.endswith("server"):
            server = stack.enter_context(sumwire.Server(block.ranks, token=token(block)))
            code = code.replace(ADDRESS, server.address)
        script = tmp_path / "script.py"
        script.write_text(code)
        done = launcher.run(block.ranks, script, cwd=tmp_path)
    assert not done.failed, done.stderr
    printed = len(re.findall(r"^print", block.code, flags=re.M))
    assert len(done.stdout.splitlines()) == printed * block.ranks


def test_blocks_that_other_tests_run() -> None:
    elsewhere = [block for block in BLOCKS if block.setting.startswith("by ")]
    for block in elsewhere:
        test = (ROOT / re.match(r"by ([\w/.]+\.py)", block.setting)[1]).read_text()  # type: ignore[index]
        assert f'"{block.page}"' in test, f"{block.name} says that a test runs it, which does not name the page"
    assert len(elsewhere) <= 1


def test_every_block_runs_somewhere() -> None:
    left_out = [block.name for block in BLOCKS if block.verb == "not run"]
    assert left_out == []
    for block in BLOCKS:
        known = block.setting in IN_PROCESS or block.ranks or block.setting.startswith("by ")
        assert known, f"{block.name} has a comment that no test understands: {block.setting!r}"


def shell_lines() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), flags=re.S):
            for line in block.replace("\\\n", " ").splitlines():
                yield path.name, line.partition("#")[0].strip()


def test_commands_of_shell_blocks_exist() -> None:
    """They are not run, but what they name is there: targets of make, and options of sumwire."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    seen = 0
    for page, line in shell_lines():
        if made := re.match(r"make ([a-z-]+)", line):
            assert made[1] in targets, f"{page}: {line}"
        if called := re.search(r"\bsumwire ([a-z]+)(.*)", line):
            shown = subprocess.run(
                [sys.executable, "-m", "sumwire", called[1], "--help"], capture_output=True, text=True, check=False
            )
            assert shown.returncode == 0, f"{page}: {line}"
            assert set(re.findall(r"--[a-z-]+", called[2])) <= set(re.findall(r"--[a-z-]+", shown.stdout))
        seen += bool(made or called)
    assert seen > 5


def test_every_page_begins_with_an_example() -> None:
    """Purpose first, then code, before any section."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        opening = path.read_text().partition("\n## ")[0]
        assert re.match(r"# .+\n\n\S", opening), f"{path.name} does not begin with what it is for"
        assert "```" in opening, f"{path.name} has no example before its first section"
