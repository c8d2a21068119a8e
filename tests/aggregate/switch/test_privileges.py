"""What is missing is named: capabilities by bit, user namespace, kernel version."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from sumwire.aggregate.switch import privileges
from sumwire.aggregate.switch.privileges import missing

FULL = "CapEff:\t000001ffffffffff\n"
ROOT = "         0          0 4294967295\n"


@pytest.fixture
def proc(tmp_path):
    def make(status: str = FULL, uid_map: str = ROOT):
        (tmp_path / "status").write_text("Name:\tpython\n" + status)
        (tmp_path / "uid_map").write_text(uid_map)
        return tmp_path

    return make


def test_nothing_is_missing(proc):
    assert missing(proc(), "6.12.1-amd64") == []


@pytest.mark.parametrize(("bit", "name"), [(12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")])
def test_a_capability(proc, bit, name):
    (found,) = missing(proc(f"CapEff:\t{0x1FFFFFFFFFF & ~(1 << bit):016x}\n"), "6.12.1")
    assert f"lacks {name} (bit {bit}) in CapEff" in found


def test_a_user_namespace(proc):
    (found,) = missing(proc(uid_map="0 1000 1\n"), "6.12.1")
    assert "user namespace (uid_map: 0 1000 1)" in found


@pytest.mark.parametrize("release", ["6.8.0-generic", "5.15", "unknown"])
def test_an_old_kernel(proc, release):
    (found,) = missing(proc(), release)
    assert f"Linux {release} is too old: 6.9" in found


def test_an_error_that_nothing_explains_names_itself(monkeypatch):
    monkeypatch.setattr(privileges, "missing", list)
    assert "EBUSY" in str(privileges.failure("attach", errno.EBUSY))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to give privileges up")
def test_the_command_says_what_is_missing(tmp_path):
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["10.0.0.1"]\n')
    command = [
        sys.executable,
        "-m",
        "sumwire",
        "switch",
        "--ports",
        "lo",
        "--address",
        "127.0.0.1",
        "--jobs",
        str(jobs),
    ]
    dropped = ["setpriv", "--bounding-set=-bpf", "--inh-caps=-bpf", *command]
    done = subprocess.run(dropped, capture_output=True, text=True)
    if "setpriv" in done.stderr or "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert "CAP_BPF (bit 39)" in done.stderr
    assert done.returncode == 1


def test_an_unknown_port_is_named(tmp_path):
    from click.testing import CliRunner

    from sumwire.cli import main

    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["10.0.0.1"]\n')
    done = CliRunner().invoke(
        main, ["switch", "--ports", "nosuch", "--address", "127.0.0.1", "--jobs", str(jobs), "--log-level", "error"]
    )
    assert "no network device 'nosuch' here: there are lo" in done.output
