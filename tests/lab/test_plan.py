"""`sumwire plan`: recommendations that follow from predictions, and the command that prints them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.plan import published
from benchmarks.tables.render import newest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sumwire import ConfigError
from sumwire.cli import main
from sumwire.lab.calibration import DEFAULT
from sumwire.lab.plan import MARGIN, Plan, parameters_of, plan


def planned(parameters: float = 25e6, **options: Any) -> Plan:
    given = {"workers": 8, "rate": 1e9, "compute": 0.2, "cores": 8, "machine": DEFAULT} | options
    return plan(parameters, **given)


def test_on_a_slow_link_it_recommends_to_compress_and_on_a_fast_one_not() -> None:
    """Where codecs are slow and the network costs no CPU, as with NCCL."""
    machine = replace(DEFAULT, encode=5.0, all_reduce=0.01, cast=2.0)
    slow, fast = planned(machine=machine, compute=0.3), planned(machine=machine, compute=0.3, rate=100e9)
    assert slow.recommended.name == "4 bits"
    assert fast.recommended.name == "fp32"
    assert 1e9 < slow.break_even() < 100e9
    assert slow.break_even() == fast.break_even()
    assert "below" in "\n".join(slow.reasons())


@pytest.mark.parametrize(("rate", "compute"), [(1e9, 0.3), (10e9, 0.2), (None, 0.2), (1e9, 1000.0), (1e8, 3.0)])
def test_of_equally_fast_ones_the_most_exact_is_recommended(rate: float | None, compute: float) -> None:
    found = planned(rate=rate, compute=compute)
    names = ("fp32", "bf16", "8 bits", "4 bits")
    fastest = min(found.step(name) for name in names)
    assert found.recommended.name == next(name for name in names if found.step(name) <= fastest * (1 + MARGIN))


def test_where_training_would_mostly_wait_it_recommends_diloco() -> None:
    assert planned(rate=20e6).recommended.every == 100
    assert "worth less" in "\n".join(planned(rate=20e6).reasons())
    assert planned(rate=20e6, compute=0.0).recommended.every == 1  # no compute time was given: exchanges alone


def test_a_switch_is_mentioned_where_it_saves_much() -> None:
    found = planned(workers=30, rate=1e8, compute=2.0)
    assert found.step("4 bits, switch") < found.step("4 bits, server")
    assert ("switch that adds" in "\n".join(found.reasons())) == (
        found.step("4 bits, switch") < 0.9 * found.step(found.recommended.name)
    )


def test_one_worker_has_nothing_to_exchange() -> None:
    found = planned(workers=1)
    assert {each.step for each in found.predictions.values()} == {0.2}
    assert found.recommended.name == "fp32"
    assert found.reasons() == ["One worker exchanges nothing."]


@settings(max_examples=15)
@given(st.integers(10**4, 10**9), st.sampled_from([2, 4, 8]), st.floats(0, 1), st.floats(1, 20), st.floats(0.001, 1))
def test_at_the_break_even_rate_both_take_as_long(
    values: int, workers: int, compute: float, encode: float, all_reduce: float
) -> None:
    machine = replace(DEFAULT, encode=encode, all_reduce=all_reduce)
    found = planned(values, workers=workers, compute=compute, machine=machine)
    rate = found.break_even()
    if 0 < rate < math.inf:
        assert found.step("4 bits", rate) == pytest.approx(found.step("fp32", rate), rel=1e-6)
        assert found.step("4 bits", 1.01 * rate) >= found.step("fp32", 1.01 * rate)
    elif rate:
        assert found.step("4 bits", 1e12) < found.step("fp32", 1e12)
    else:
        assert found.step("4 bits", 1e6) >= found.step("fp32", 1e6)


def test_a_module_counts_by_the_parameters_that_need_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Linear(20, 3))
    assert parameters_of(model) == 10 * 20 + 20 + 20 * 3 + 3
    model[0].requires_grad_(False)
    assert planned(model).job.values == 63  # type: ignore[arg-type]
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameters that need gradients"):
        planned(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": 0}, "parameters=0"),
        ({"parameters": 1.5}, "parameters=1.5"),
        ({"parameters": "many"}, "parameters='many'"),
        ({"workers": 0}, "workers=0"),
        ({"rate": -1.0}, "rate=-1.0"),
        ({"server_rate": 0.0}, "rate=0.0"),
        ({"every": 1}, "every=1"),
        ({"compute": math.inf}, "compute=inf"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**options)


def test_an_unknown_option_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="choose from fp32, bf16"):
        planned().step("fp64")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sumwire" / "calibration.json"


def test_the_command_prints_a_table_reasons_and_draws(cache: Path, tmp_path: Path) -> None:
    figure = tmp_path / "out.svg"
    arguments = ["--parameters", "25e6", "--workers", "8", "--rate", "1Gbit", "--compute", "200", "--cores", "8"]
    result = CliRunner().invoke(main, ["plan", *arguments, "--figure", str(figure)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for text in ("25,000,000 parameters, 8 workers", "fp32", "bf16", "8 bits, switch", "DiLoCo, 4 bits", "out.svg"):
        assert text in result.output
    assert "Recommended: attach(model, bits=4)" in result.output
    assert "4 bits against bf16: faster on" in result.output
    assert "not measured here" in result.output
    drawn = figure.read_text()
    assert drawn.lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give the model's --parameters"),
        ("--parameters 0", "Invalid value for '--parameters'"),
        ("--parameters 25e6 --rate fast", "Invalid value for '--rate'"),
        ("--parameters 25e6 --server-rate fast", "Invalid value for '--server-rate'"),
        ("--parameters 25e6 --server-rate unshaped", "Invalid value for '--server-rate'"),
        ("--parameters 25e6 --workers 0", "Invalid value for '--workers'"),
        ("--parameters 25e6 --compute -1", "Invalid value for '--compute'"),
        ("--parameters 25e6 --overlap 2", "Invalid value for '--overlap'"),
        ("--parameters 25e6 --figure plan.txt", "ends in .svg"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_bad_options_are_named(arguments: str, message: str) -> None:
    result = CliRunner().invoke(main, ["plan", *arguments.split()])
    assert result.exit_code in (1, 2)
    assert message in result.output


def test_a_damaged_calibration_is_one_line_with_a_remedy(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text('{"version": ')
    result = CliRunner().invoke(main, ["plan", "--parameters", "1000"])
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert "--calibrate" in result.stderr
    assert result.stderr.count("\n") == 1


def test_recorded_errors_are_those_of_this_model() -> None:
    """docs/plan.md publishes them: after a change of the model, run `python -m benchmarks.plan` again."""
    recorded = {
        (line["source"], line["link"], line["contender"]): line["predicted_ms"]
        for line in newest("plan")
        if line["section"] == "points" and line["source"] not in ("here", "true sizes", "small models")
    }
    points = published()
    found = {(point.source, point.link, point.contender): point.predicted for point in points}
    assert recorded == pytest.approx(found, rel=1e-6)
    counted = [point for point in points if not point.fitted]
    assert sum(point.within for point in counted) >= 0.8 * len(counted)
