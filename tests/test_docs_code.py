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
import shlex
import subprocess
import sys
import tomllib
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
LAUNCHED = "--standalone --nproc-per-node {ranks}"


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
    # In this process: workers of their own would import everything first. tests/estimators has those.
    options = {"processes": False, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with distributed.Client(n_workers=2, threads_per_worker=1, **options) as client:
        yield {"X": X, "w": np.arange(len(X)) % 3, "client": client, "dask_array": da.from_array(X, chunks=(100, 16))}


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


@pytest.mark.skipif(ON_REFERENCE, reason="training says nothing new about kernels")
def test_scripts(tmp_path: Path) -> None:
    """One test for all of them, because they share what was imported."""
    pytest.importorskip("torch")
    with Launcher("sumwire.train", "torch.nn.parallel", "torch.distributed.fsdp") as launcher:
        for block in BLOCKS:
            if block.ranks:
                run_script(block, launcher, tmp_path)


def run_script(block: Block, launcher: Launcher, folder: Path) -> None:
    code = block.code
    with ExitStack() as stack:
        if block.setting.endswith("server"):
            server = stack.enter_context(sumwire.Server(block.ranks, token=token(block)))
            code = code.replace(ADDRESS, server.address)
        script = folder / "script.py"
        script.write_text(code)
        done = launcher.run(block.ranks, script, cwd=folder)
    assert not done.failed, f"{block.name}: {done.stderr}"
    printed = len(re.findall(r"^print", block.code, flags=re.M))
    assert len(done.stdout.splitlines()) == printed * block.ranks, f"{block.name} printed:\n{done.stdout}"


def test_blocks_that_other_tests_run() -> None:
    elsewhere = [block for block in BLOCKS if block.setting.startswith("by ")]
    for block in elsewhere:
        test = (ROOT / re.match(r"by ([\w/.]+\.py)", block.setting)[1]).read_text()  # type: ignore[index]
        assert f'"{block.page}"' in test, f"{block.name} says that a test runs it, which does not name the page"
    assert len(elsewhere) <= 3  # a server, a switch and a rack, which need a network to run in


def test_every_block_runs_somewhere() -> None:
    left_out = [block.name for block in BLOCKS if block.verb == "not run"]
    assert left_out == []
    for block in BLOCKS:
        known = block.setting in IN_PROCESS or block.ranks or block.setting.startswith("by ")
        assert known, f"{block.name} has a comment that no test understands: {block.setting!r}"


PROSE = ("README.md", "CONTRIBUTING.md", "benchmarks/results/README.md", "examples/README.md", "deploy/README.md")


def shell_lines() -> Iterator[Any]:
    """Of all pages but deploy/README.md, which changes the system."""
    for path in (*(ROOT / name for name in PROSE[:-1]), *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), flags=re.S):
            for line in re.sub(r" *\\\n *", " ", block).splitlines():
                command = line.partition("#")[0].strip()
                yield pytest.param(command, id=f"{path.relative_to(ROOT)}: {command}")


@pytest.mark.parametrize("line", list(shell_lines()))
def test_shell_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs as far as it can without hours, a network or a second machine: none is of an unknown kind."""
    words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
    match words:
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.M)
        case ["pip", "install", _]:
            assert extras(line)
        case ["torchrun", *options, "train.py"]:  # test_scripts runs it with the block above
            assert " ".join(options) == LAUNCHED.format(ranks=2)
        case ["python", "-m", "benchmarks.tables", *options]:
            run_module(["benchmarks.tables", *options, *([] if options else ["--check"])])
        case ["python", "-m", module, *options]:  # their figures take long: options must be known
            shown = run_module([module, "--help"])
            assert {word for word in options if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown))
        case ["sumwire", "serve", *options]:
            pytest.importorskip("click")
            from sumwire.cli import serve

            monkeypatch.chdir(tmp_path)
            for name in re.findall(r"\S+\.pem", line):
                Path(name).touch()
            assert serve.make_context("serve", options).params["workers"] in (4, 8)
        case ["sumwire", "switch", *options]:
            pytest.importorskip("click")
            from sumwire.cli.switch import switch

            monkeypatch.chdir(tmp_path)
            Path("jobs.toml").touch()
            assert switch.make_context("switch", options).params["mode"] in ("tc", "user")
        case ["sumwire", "demo", *options]:
            pytest.importorskip("click")
            from sumwire.cli.lab import demo

            assert demo.make_context("demo", options).params["methods"]
        case ["sumwire", "plan", *options]:
            pytest.importorskip("click")
            from sumwire.cli import plan

            params = plan.make_context("plan", options).params
            assert params["parameters"] or params["calibrate"]
        case ["sumwire", "lab", command, *options]:
            pytest.importorskip("click")
            from sumwire.cli import lab

            lab.commands[command].make_context(command, options)
        case _:
            raise AssertionError(f"no test knows how to run {line!r}")


def run_module(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def extras(text: str) -> set[str]:
    """Extras that commands of pip install, from this tree."""
    return {extra for group in re.findall(r'"\.\[([\w,]+)\]"', text) for extra in group.split(",")}


def test_extras_exist_and_are_installed_from_the_tree() -> None:
    """While no index has it, `pip install "sumwire[...]"` would fail; and the README lists every extra."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [*(ROOT / name for name in PROSE), *(ROOT / "docs").glob("*.md")]
    for path in [*pages, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]:
        text = path.read_text()
        assert not re.search(r'pip install "?sumwire', text), path
        assert extras(text) <= known.keys(), path
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text().partition("## Train")[0], flags=re.M)
    assert sorted(listed) == sorted(known)


def test_every_page_begins_with_an_example() -> None:
    """Purpose first, then code, before any section."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        opening = path.read_text().partition("\n## ")[0]
        assert re.match(r"# .+\n\n\S", opening), f"{path.name} does not begin with what it is for"
        assert "```" in opening, f"{path.name} has no example before its first section"
