from collections.abc import Iterator
from dataclasses import replace

import pytest

from sumwire.errors import ConfigError
from sumwire.lab.comparison import Point, Run, Settings, compare, find_task, record
from sumwire.lab.links import Network, links, parse_rate
from sumwire.lab.methods import label, parse_methods
from sumwire.lab.workloads import find

WORKERS, STEPS, EVERY = 2, 6, 2
METHODS = ("fp32", "fp16", "powersgd-1", "sumwire-4", "bf16", "peer-qgz-4")
RING = 4 * 271_994
"""Bytes that each of two ranks sends for ResNet-20's gradients in a ring."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with links(WORKERS, 1e9) as network:
        yield network


@pytest.fixture(scope="module")
def seen() -> list[tuple[str, int]]:
    return []


@pytest.fixture(scope="module")
def runs(network: Network, seen: list[tuple[str, int]]) -> dict[str, Run]:
    task = replace(find_task("conv"), every=EVERY)
    found = compare(
        network, task, METHODS, steps=STEPS, watch=lambda run: seen.append((run.method, run.points[-1].step))
    )
    return {run.method: run for run in found}


def test_methods_run_in_turn_and_are_evaluated_in_between(runs: dict[str, Run], seen: list[tuple[str, int]]) -> None:
    assert tuple(runs) == METHODS
    for run in runs.values():
        assert [point.step for point in run.points] == [0, 2, 4, 6]
        assert run.points[0].seconds == run.points[0].sent == 0
        assert sorted(point.seconds for point in run.points) == [point.seconds for point in run.points]
    # After the last evaluation, ranks report whether their weights are identical.
    assert seen == [(method, step) for method in METHODS for step in (0, 2, 4, 6, 6)]


def test_methods_start_from_the_same_weights_and_see_the_same_batches(runs: dict[str, Run]) -> None:
    assert len({run.points[0].loss for run in runs.values()}) == 1
    # PowerSGD, peers and Sumwire all send the first two steps uncompressed.
    exact = [runs[method].points[1].loss for method in ("fp32", "powersgd-1", "sumwire-4", "peer-qgz-4")]
    assert exact == pytest.approx([exact[0]] * 4, rel=1e-3)
    assert len({run.points[-1].loss for run in runs.values()}) == len(METHODS)


def test_ranks_end_with_the_same_bits(runs: dict[str, Run]) -> None:
    assert all(run.identical is True for run in runs.values())


def test_codecs_say_what_they_take_and_hooks_of_torch_do_not(runs: dict[str, Run]) -> None:
    timed = {method: run.codec_ms or 0.0 for method, run in runs.items()}
    assert {method for method, spent in timed.items() if spent > 0} == {"sumwire-4", "peer-qgz-4"}


def test_bytes_are_those_on_the_wire(runs: dict[str, Run], network: Network) -> None:
    # Headers, acknowledgements and DDP's broadcast of buffers are included if an interface counts.
    extra = 1.25 if network.shaped else 1.0
    assert RING <= runs["fp32"].step_bytes <= extra * RING
    for method in ("fp16", "bf16"):
        assert RING / 2 <= runs[method].step_bytes <= extra * RING / 2
    assert 8.25 / 64 * RING < runs["peer-qgz-4"].step_bytes < RING / 6
    assert runs["powersgd-1"].step_bytes < RING / 10
    assert 4 / 32 * RING < runs["sumwire-4"].step_bytes < RING / 3


def test_ranks_read_the_plan_that_was_written() -> None:
    settings = Settings(
        "conv",
        ("fp32", "sumwire-4"),
        steps=5,
        every=2,
        seed=3,
        interface=None,
        aggregator="udp://10.0.0.1/1",
        token="x",
    )
    assert Settings.loads(settings.dumps()) == settings


def point(step: int, seconds: float, accuracy: float, loss: float = 0.0) -> Point:
    return Point(step, seconds, 100.0 * step, accuracy, loss)


def test_the_target_is_reached_at_the_first_evaluation_past_it() -> None:
    run = Run("fp32", [point(0, 0, 0.1, 3.0), point(5, 1, 0.9, 2.0), point(10, 2, 0.8, 1.0), point(15, 3, 0.95, 1.5)])
    reached = run.reached("accuracy", 0.9)
    assert reached is not None
    assert reached.step == 5
    reached = run.reached("loss", 1.5)
    assert reached is not None
    assert reached.step == 10
    assert run.reached("accuracy", 0.96) is None
    untrained = Run("fp32", [point(0, 0, 0.1)])
    assert untrained.reached("accuracy", 0.1) is None


def test_steps_are_medians_over_intervals_of_any_length() -> None:
    run = Run("fp32", [point(0, 0, 0), point(5, 50, 0), point(10, 60, 0), point(12, 62, 0)])
    assert run.step_seconds == 2
    assert run.step_bytes == 100


def test_reports_become_runs() -> None:
    runs: dict[str, Run] = {}
    fields = {"step": 0, "seconds": 0.0, "sent": 0.0, "accuracy": 0.1, "loss": 2.3}
    record(runs, {"method": "fp32", **fields})
    run = record(runs, {"method": "fp32", "identical": False})
    assert runs == {"fp32": run}
    assert run == Run("fp32", [Point(0, 0.0, 0.0, 0.1, 2.3)], identical=False)


@pytest.mark.parametrize(
    ("text", "rate"), [("100Mbit", 100e6), ("1Gbit", 1e9), ("2.5 gbit/s", 2.5e9), ("unshaped", None)]
)
def test_rates(text: str, rate: float | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "100", "1kbit", "-1Mbit", "0.5Mbit", "1000Gbit", "fast"])
def test_bad_rates_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a rate: write 100Mbit"):
        parse_rate(text)


def test_plain_sumwire_takes_the_bits_given() -> None:
    assert parse_methods("fp32, sumwire,sumwire-total-8", bits=3) == ("fp32", "sumwire-3", "sumwire-total-8")
    assert [label(method) for method in METHODS] == [
        "fp32", "fp16 hook", "PowerSGD rank 1", "Sumwire, 4-bit", "bf16 hook", "peer qgz-4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no method ''"),
        ("fp32,,fp16", "no method ''"),
        ("bf8", "choose from fp32, fp16, bf16, powersgd-<rank>"),
        ("bf16-4", "no method 'bf16-4'"),
        ("peer-nothing", "no method 'peer-nothing': peers that run over links are peer-fp32, peer-fp16"),
        ("peer-powersgd-1", "no method 'peer-powersgd-1'"),
        ("peer-", "no method 'peer-'"),
        ("qgz-4", "peer-<name>"),
        ("powersgd", "no method 'powersgd'"),
        ("powersgd-0", "no method"),
        ("fp32-4", "no method"),
        ("sumwire-9", "sumwire accepts 1 to 8"),
        ("sumwire,sumwire-4", "'sumwire-4' is listed twice"),
    ],
)
def test_bad_methods_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_methods(text, bits=4)


@pytest.mark.parametrize(("workload", "target"), [("conv", 97), ("conv", 0), ("transformer", 0), ("transformer", -1)])
def test_impossible_targets_are_refused(workload: str, target: float) -> None:
    with pytest.raises(ConfigError, match=f"{target} is not"):
        find(workload).check_target(target)
