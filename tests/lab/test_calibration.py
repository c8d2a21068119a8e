"""Calibrations are measured, kept and found again; one that is damaged or not from here is refused with a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sumwire import ConfigError, __version__
from sumwire.aggregate.cost_model import Machine
from sumwire.cli import main
from sumwire.lab import calibrate as measuring
from sumwire.lab import calibrate_ranks
from sumwire.lab.calibrate import calibrate
from sumwire.lab.calibration import DEFAULT, cache_path, load, save
from sumwire.lab.links import Network
from sumwire.lab.plan import plan
from sumwire.lab.record import machine as machine_name
from tests import ranks

HERE = replace(DEFAULT, name=machine_name(), encode=0.123)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sumwire" / "calibration.json"


def measured(rank: int, n: int, what: str, values: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(1)
    return calibrate_ranks.measure(what, values, repeats)


def launch_cheaply(
    network: Network, module: str, arguments: list[str], *, on_line: Callable[[dict[str, float]], None], timeout: float
) -> None:
    """Ranks forked from a process that has imported torch, instead of torchrun's."""
    assert module == calibrate_ranks.__name__
    what, *numbers = arguments
    on_line(ranks.run(len(network.hosts), measured, what, *map(int, numbers))[0])


@given(
    st.builds(
        Machine, name=st.just(machine_name()), **{each.name: st.floats(0.01, 10) for each in fields(Machine)[1:-3]},
        message=st.floats(1e4, 1e6), round=st.floats(1e4, 1e7), step=st.floats(1e4, 1e7),
    )
)  # fmt: skip
def test_costs_are_found_in_what_ranks_measured(machine: Machine) -> None:
    """Times that a machine with known costs would have."""
    costs = {name: getattr(machine, name) for name in measuring._AS_MEASURED}
    costs |= {"fp32": 4 * machine.all_reduce, "with_residual": machine.propose + machine.encode + machine.residual}
    for kind in ("bf16", "fp16"):
        costs[kind] = machine.cast + 2 * machine.all_reduce + getattr(machine, kind) / 2
    values = machine.propose + machine.encode + machine.add + machine.decode

    def steps(ranks: int) -> dict[str, float]:
        ring, peers, size = 2 * (ranks - 1), ranks - 1, calibrate_ranks.FEW_VALUES
        plain = machine.step + ring * machine.message + machine.all_reduce * 4 * size * ring / ranks
        coded = machine.step + machine.round + 4 * peers * machine.message + values * size
        return {"plain": plain, "coded": coded}

    found = measuring.machine_of(costs, steps(4), steps(8))
    for name, cost in asdict(found).items():
        assert name == "name" or cost == pytest.approx(getattr(machine, name), rel=1e-3, abs=1e-6), name


def test_the_command_measures_and_a_plan_uses_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "launch", launch_cheaply)
    monkeypatch.setattr(measuring.calibrate, "__kwdefaults__", {"values": 1 << 14, "repeats": 1})
    result = CliRunner().invoke(main, ["plan", "--calibrate"], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert str(path) in result.output
    saved = json.loads(path.read_text())
    assert (saved["version"], saved["costs"]["name"]) == (__version__, machine_name())
    found = load()
    assert found is not None
    costs = asdict(found)
    for name in ("propose", "encode", "add", "decode", "all_reduce", "exchange"):
        assert costs[name] > 0
    planned = plan(1e6, workers=4, rate=1e9)
    assert (planned.machine, planned.calibrated) == (found, True)


def test_what_was_saved_is_read_back(path: Path) -> None:
    assert load() is None
    assert not plan(1e6, workers=4, rate=1e9).calibrated
    assert save(HERE) == path
    assert load() == HERE
    assert list(path.parent.iterdir()) == [path]  # nothing else is left there


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for told in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", told)
        assert cache_path() == tmp_path / ".cache" / "sumwire" / "calibration.json"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"version": "1"}',
        '{"version": "1", "costs": 3}',
        '{"version": "1", "costs": {"name": "x"}}',
        json.dumps({"version": __version__, "costs": asdict(HERE) | {"encode": "fast"}}),
        json.dumps({"version": __version__, "costs": asdict(HERE) | {"encode": -1}}),
        json.dumps({"version": __version__, "costs": asdict(HERE) | {"more": 1}}),
        json.dumps({"version": __version__, "costs": asdict(HERE)})[:-20],
    ],
)
def test_a_damaged_file_is_refused_with_a_remedy(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"calibration.json is damaged \(.+\): measure again with .* --calibrate"):
        load()


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="damaged"):
        load()


@pytest.mark.parametrize("change", [{"version": "0.0.1"}, {"costs": asdict(HERE) | {"name": "another CPU"}}])
def test_one_of_another_version_or_machine_is_refused(path: Path, change: dict[str, object]) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"version": __version__, "costs": asdict(HERE)} | change))
    with pytest.raises(ConfigError, match=r"(0\.0\.1|another CPU).*measure again"):
        load()


def test_where_nothing_can_be_saved_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        save(HERE)


@pytest.mark.parametrize(("options", "message"), [({"values": 1}, "values=1"), ({"repeats": 0}, "repeats=0")])
def test_bad_sizes_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibrate(**options)
