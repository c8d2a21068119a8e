import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from time import monotonic, sleep
from typing import Any

import pytest

from sumwire.errors import ConfigError, SumwireError
from sumwire.lab.launch import LaunchError, launch, report
from sumwire.lab.links import Network, links

PATIENCE = 200

Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Makes modules of source text; when the test ends, none of them may be running anymore."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    name = f"ranks_of_{tmp_path.name}"

    def write(source: str) -> str:
        (tmp_path / f"{name}.py").write_text(dedent(source))
        return name

    yield write
    assert not running(name)


@pytest.fixture
def loopback() -> Iterator[Network]:
    with links(workers=2, rate=None) as network:
        yield network


@pytest.fixture
def shaped() -> Iterator[Network]:
    with links(workers=2, rate=100e6) as network:
        if not network.shaped:
            pytest.skip(network.note)
        yield network


def running(name: str) -> list[str]:
    """Agents and ranks of a module: all have its name among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if name in command:
            found.append(" ".join(command))
    return found


def ignore(_: dict[str, Any]) -> None:
    pass


def test_ranks_on_shaped_hosts_add_and_report(shaped: Network, module: Module) -> None:
    name = module("""
        import time, torch, torch.distributed as dist
        from sumwire.lab.launch import report
        dist.init_process_group("gloo")
        x = torch.full((250_000,), dist.get_rank() + 1.0)
        start = time.perf_counter()
        dist.all_reduce(x)
        report(rank=dist.get_rank(), sums=x.unique().tolist(), seconds=time.perf_counter() - start)
        dist.destroy_process_group()
    """)
    lines: list[dict[str, Any]] = []
    launch(shaped, name, [], on_line=lines.append, timeout=PATIENCE)
    assert sorted((line["rank"], line["sums"]) for line in lines) == [(0, [3.0]), (1, [3.0])]
    # Each of two ranks sends and receives 1 MB: 80 ms at 100 Mbit/s, if it uses the links.
    assert all(line["seconds"] > 0.06 for line in lines)


def test_ranks_on_this_machine_get_arguments_and_report_in_order(loopback: Network, module: Module) -> None:
    name = module("""
        import os, sys
        from sumwire.lab.launch import report
        print("noise" * 100_000)
        for step in range(50):
            report(rank=int(os.environ["RANK"]), of=os.environ["WORLD_SIZE"], step=step, arguments=sys.argv[1:],
                   threads=os.environ["OMP_NUM_THREADS"], padding="x" * 10_000)
    """)
    lines: list[dict[str, Any]] = []
    launch(loopback, name, ["--bits", "4", "two words"], on_line=lines.append, timeout=PATIENCE)
    for rank in range(2):
        assert [line["step"] for line in lines if line["rank"] == rank] == list(range(50))
    for line in lines:
        assert (line["of"], line["threads"]) == ("2", "1")
        assert line["arguments"] == ["--bits", "4", "two words"]
        assert line["padding"] == "x" * 10_000


def test_the_rank_that_failed_first_is_blamed(shaped: Network, module: Module) -> None:
    # Rank 0 fails as well, in consequence, and torchrun may see it first.
    name = module("""
        import os, socket
        address = (os.environ["MASTER_ADDR"], 5001)
        if os.environ["RANK"] == "0":
            peer, _ = socket.create_server(address).accept()
            assert peer.recv(1), "my peer is gone"
        while True:
            try:
                peer = socket.create_connection(address)
                break
            except ConnectionRefusedError:
                pass
        raise ValueError("a wrong number")
    """)
    with pytest.raises(LaunchError, match=rf"(?s)^rank 1 of {name} ended with exit code 1:\n.*ValueError: a wrong n"):
        launch(shaped, name, [], on_line=ignore, timeout=PATIENCE)


def test_a_killed_rank_is_named_with_its_signal_and_takes_the_others_along(loopback: Network, module: Module) -> None:
    name = module("""
        import os, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        time.sleep(1000)
    """)
    with pytest.raises(SumwireError, match=f"rank 1 of {name} was killed by SIGKILL:\n.it wrote nothing to stderr"):
        launch(loopback, name, [], on_line=ignore, timeout=PATIENCE)


def test_ranks_that_take_too_long_are_stopped(loopback: Network, module: Module) -> None:
    name = module("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)")
    with pytest.raises(
        LaunchError, match=f"2 ranks of {name} did not finish within 1 s and were stopped; raise the timeout"
    ):
        launch(loopback, name, [], on_line=ignore, timeout=1)


SLEEPER = """
    import os, signal, sys, time
    from sumwire.lab.launch import report
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report(rank=os.environ["RANK"])
    time.sleep(1000)
"""


def test_an_interrupt_stops_ranks_that_ignore_signals(shaped: Network, module: Module) -> None:
    def interrupt(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(shaped, module(SLEEPER), [], on_line=interrupt, timeout=PATIENCE)


def test_ranks_end_when_their_launcher_is_killed(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    name = module(SLEEPER)
    launcher = f"""
        from sumwire.lab.launch import launch
        from sumwire.lab.links import links
        with links(workers=2, rate=100e6) as network:
            launch(network, {name!r}, [], on_line=lambda _: print("up", flush=True), timeout={PATIENCE})
    """
    with subprocess.Popen([sys.executable, "-c", dedent(launcher)], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        assert running(name)
        run.send_signal(signal.SIGKILL)
    deadline = monotonic() + 60
    while running(name) and monotonic() < deadline:
        sleep(0.01)


def test_a_module_that_is_not_there_is_named_and_ours_run_nothing_of_the_current_directory(
    loopback: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('this is not json')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError) as caught:
        launch(loopback, "sumwire.lab.no_such_module", [], on_line=ignore, timeout=PATIENCE)
    assert "this is not json" not in str(caught.value)
    assert re.search("No module named '?sumwire.lab.no_such_module", str(caught.value))


def test_report_without_a_launcher_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUMWIRE_REPORT", raising=False)
    report(rank=0)


def test_a_launch_that_cannot_start_is_refused(loopback: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="timeout=0 is not positive: ranks need some seconds"):
        launch(loopback, "module", [], on_line=ignore, timeout=0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package util-linux"):
        launch(loopback, "module", [], on_line=ignore, timeout=1)
