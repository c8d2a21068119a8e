"""What is drawn from a recording has its sizes and correlations; recordings that are shipped fit their models."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sumwire.errors import ConfigError
from sumwire.lab.workloads import recorded
from sumwire.lab.workloads.recorded import LOWEST, PER_OCTAVE, RUN, Floats, Recording, load, record, recorded_gradient
from sumwire.lab.workloads.shapes import SHAPES

# Runs cross the ends of all tensors but the first, one tensor is within a run, and the last run is short.
SIZES = (4 * RUN, 20 * RUN + 100, 7, 12 * RUN + 300, 30)
TOTAL = sum(SIZES)
ENDS = np.cumsum((0, *SIZES))
RUNS = -(-TOTAL // RUN)
TRUE = (0.0, 0.9, 0.5, 0.3, 1.0)


def truth(workers: int, correlations: tuple[float, ...] = TRUE) -> list[Floats]:
    """Gradients whose scale changes from run to run over many octaves; runs 2 and 3 and the last 5 whole are zero."""
    random = np.random.default_rng(1)
    scales = np.exp2(random.uniform(-20, 0, RUNS))
    scales[[2, 3, *range(RUNS - 6, RUNS - 1)]] = 0
    shared = random.standard_normal(TOTAL)
    alike = np.repeat(correlations, SIZES)
    each = [np.sqrt(alike) * shared + np.sqrt(1 - alike) * random.standard_normal(TOTAL) for _ in range(workers)]
    return [(values * np.repeat(scales, RUN)[:TOTAL]).astype(np.float32) for values in each]


def rms(gradients: list[Floats]) -> np.ndarray:
    """Of each run, over all gradients."""
    squares = np.square(np.stack(gradients).astype(np.float64)).mean(0)
    return np.sqrt([squares[start : start + RUN].mean() for start in range(0, TOTAL, RUN)])


def correlation(gradients: list[Floats], tensor: int) -> float:
    part = slice(ENDS[tensor], ENDS[tensor + 1])
    squares = np.mean([np.vdot(one[part], one[part]) for one in gradients])
    return float(np.mean([np.vdot(one[part], other[part]) for one, other in combinations(gradients, 2)]) / squares)


@pytest.fixture(scope="module")
def seen() -> list[Floats]:
    return truth(4)


@pytest.fixture(scope="module")
def recording(seen: list[Floats]) -> Recording:
    return record(seen, SIZES)


def test_scales_are_the_nearest_steps(seen: list[Floats], recording: Recording) -> None:
    exact, scales = rms(seen), recording.scales
    assert recording.codes.shape == (RUNS,)
    assert np.array_equal(scales == 0, exact == 0)
    assert (scales == 0).sum() == 7
    octaves = np.log2(scales[exact > 0] / exact[exact > 0])
    assert np.abs(octaves).max() <= 0.5001 / PER_OCTAVE


def test_correlations_are_averages_over_pairs(seen: list[Floats], recording: Recording) -> None:
    exact = [correlation(seen, tensor) for tensor in range(len(SIZES))]
    assert recording.correlations.dtype == np.float32
    assert recording.correlations == pytest.approx(exact, abs=1e-5)
    assert recording.correlations[[1, 4]] == pytest.approx([0.9, 1], abs=0.1)


def test_drawn_gradients_have_the_scales_of_every_run(recording: Recording) -> None:
    drawn = [recording.draw(SIZES, worker, seed=3) for worker in range(40)]
    found, scales = rms(drawn), recording.scales
    some = scales > 0
    # The mean square of 512 values or more has an error of 6 %, less what workers have of their own.
    assert found[some] / scales[some] == pytest.approx(1, abs=0.15)
    for one in drawn:
        bits = one.view(np.uint32).reshape(-1)
        zeros = np.repeat(~some, RUN)[:TOTAL]
        assert not bits[zeros].any()  # not even the sign of zero
        assert one[~zeros].all()


def test_drawn_gradients_have_the_correlation_of_every_tensor() -> None:
    scales = np.full(RUNS, 100, np.uint8)
    recording = Recording(scales, np.array(TRUE, np.float32))
    for workers in ((0, 1), (7, 4000), (2, 3)):
        pair = [recording.draw(SIZES, worker, seed=0) for worker in workers]
        for tensor, (size, asked) in enumerate(zip(SIZES, TRUE, strict=True)):
            assert correlation(pair, tensor) == pytest.approx(asked, abs=max(5 / math.sqrt(size), 1e-6))
    # Beyond [0, 1] is rounding.
    beyond = Recording(scales, np.array([-0.1, 1.1, 0, 0, 0], np.float32))
    pair = [beyond.draw(SIZES, worker, seed=0) for worker in (0, 1)]
    assert correlation(pair, 0) == pytest.approx(0, abs=0.1)
    assert correlation(pair, 1) == pytest.approx(1, abs=1e-6)


def test_a_recording_of_what_is_drawn_is_the_same(recording: Recording) -> None:
    again = record((recording.draw(SIZES, worker, seed=5) for worker in range(4)), SIZES)
    some = recording.codes > 0
    assert np.array_equal(again.codes > 0, some)
    # The short run has fewer values to tell its scale by.
    assert np.abs(again.codes.astype(int) - recording.codes)[some][:-1].max() <= 2
    long = [0, 1, 3]
    assert again.correlations[long] == pytest.approx(recording.correlations[long], abs=0.15)


def test_worker_and_seed_decide_every_byte(recording: Recording) -> None:
    first, again = (recording.draw(SIZES, 3, seed=0) for _ in range(2))
    assert first.dtype == np.float32
    assert first.tobytes() == again.tobytes()
    for worker, seed in ((2, 0), (3, 1)):
        assert not np.array_equal(first, recording.draw(SIZES, worker, seed=seed))


def test_codes_end_at_the_limits_and_never_turn_into_zero() -> None:
    scales = np.array([0, 2.0 ** (LOWEST - 60), 2.0**LOWEST, 2.0**40], np.float32)
    found = record([np.repeat(scales, RUN)] * 2, (4 * RUN,))
    assert found.codes.tolist() == [0, 1, 1, 255]


@pytest.mark.parametrize("count", [0, 1])
def test_one_gradient_has_no_correlation(count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} gradients have no correlation: record those of 2 workers or more"):
        record([np.ones(5, np.float32)] * count, (5,))


@pytest.mark.parametrize("model", SHAPES)
def test_shipped_recordings_fit_their_models(model: str) -> None:
    found, values = load(model), sum(math.prod(shape) for shape in SHAPES[model])
    assert len(found.codes) == math.ceil(values / RUN)
    assert len(found.correlations) == len(SHAPES[model])
    assert 0.01 < found.correlations.max() <= 1
    assert len(np.unique(found.codes)) > 50
    # Scales within the range of codes, but for what is nothing but rounding errors.
    assert (found.codes == 255).sum() == 0
    assert (found.codes == 1).mean() < 1e-3
    losses = found.about["losses"]
    assert (found.about["model"], len(losses)) == (model, found.about["steps"])
    assert np.mean(losses[-5:]) < 0.9 * losses[0]


def test_recordings_together_are_small() -> None:
    folder = Path(recorded.__file__).parent / recorded.FOLDER
    assert {path.name for path in folder.iterdir()} == {f"{model}.npz" for model in SHAPES}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1e6


def test_workers_of_a_published_model_differ() -> None:
    first, other = (recorded_gradient("resnet-50", worker) for worker in (0, 1))
    assert len(first) == 25_557_032
    assert not np.array_equal(first, other)
    largest = max(range(len(SHAPES["resnet-50"])), key=lambda tensor: math.prod(SHAPES["resnet-50"][tensor]))
    ends = np.cumsum([0, *(math.prod(shape) for shape in SHAPES["resnet-50"])])
    one, two = (gradient[ends[largest] : ends[largest + 1]] for gradient in (first, other))
    asked = load("resnet-50").correlations.clip(0, 1)[largest]
    assert np.vdot(one, two) / math.sqrt(np.vdot(one, one) * np.vdot(two, two)) == pytest.approx(asked, abs=0.02)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recordings, for a model of `SIZES`."""
    monkeypatch.setattr(recorded, "FOLDER", str(tmp_path))
    monkeypatch.setattr(recorded, "SHAPES", {"small": tuple((size,) for size in SIZES)})
    return tmp_path


def test_files_keep_a_recording_and_equal_ones_have_equal_bytes(folder: Path, recording: Recording) -> None:
    kept = Recording(recording.codes, recording.correlations, {"steps": 3, "data": "ä"})
    for name in ("small", "again"):
        kept.save(folder / f"{name}.npz")
    found = load("small")
    assert (folder / "small.npz").read_bytes() == (folder / "again.npz").read_bytes()
    assert found.about == {"steps": 3, "data": "ä"}
    assert np.array_equal(found.codes, recording.codes)
    assert np.array_equal(found.correlations, recording.correlations)
    assert np.array_equal(recorded_gradient("small", 2, seed=9), recording.draw(SIZES, 2, seed=9))


def test_unknown_models_are_named() -> None:
    with pytest.raises(ConfigError, match="no shapes of 'other': choose from resnet-50, vgg-19, bert-base"):
        recorded_gradient("other", 0)


GOOD: dict[str, Any] = {
    "codes": np.zeros(RUNS, np.uint8),
    "correlations": np.zeros(len(SIZES), np.float32),
    "about": np.array(json.dumps({})),
}
REMEDY = "install Sumwire anew, or record them with `python -m sumwire.lab.workloads.record_trace small`"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("codes", np.zeros(RUNS + 1, np.uint8)),
        ("codes", np.zeros(RUNS, np.float32)),
        ("codes", np.array([None] * RUNS)),
        ("correlations", np.zeros(len(SIZES) - 1, np.float32)),
        ("correlations", np.full(len(SIZES), np.nan, np.float32)),
        ("correlations", None),
        ("about", np.array("{")),
    ],
)
def test_recordings_with_a_bad_field_are_refused(folder: Path, field: str, value: Any) -> None:
    fields = {name: kept for name, kept in {**GOOD, field: value}.items() if kept is not None}
    np.savez_compressed(folder / "small.npz", **fields)
    with pytest.raises(ConfigError, match=f"recorded gradients of 'small'.*{REMEDY}"):
        load("small")


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "changed", "text", "array"])
def test_damaged_files_are_refused(folder: Path, damage: str) -> None:
    path = folder / "small.npz"
    np.savez_compressed(path, **GOOD)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(changed) // 2] ^= 0xFF
    contents = {"empty": b"", "short": whole[: len(whole) // 2], "changed": bytes(changed), "text": b"not a recording"}
    if damage in contents:
        path.write_bytes(contents[damage])
    elif damage == "array":
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3))
    else:
        path.unlink()
    with pytest.raises(ConfigError, match=f"recorded gradients of 'small'.*{REMEDY}"):
        load("small")
