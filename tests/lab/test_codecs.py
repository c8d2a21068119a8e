from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

import sumwire
from sumwire.errors import ConfigError
from sumwire.kernels import backend
from sumwire.lab import codecs, codecs_report, display
from sumwire.lab.gradients import worker_gradients

WORKERS = 4


@pytest.fixture(scope="module")
def gradients() -> list[NDArray[np.float32]]:
    whole = worker_gradients("mlp", WORKERS, steps=10)
    if backend.name() != "reference":
        return whole
    # The first layer and some of the second, and its quiet end: the reference is a hundred times slower.
    return [np.concatenate([x[:24_000], x[-2600:]]) for x in whole]


@pytest.fixture(scope="module")
def report(gradients: list[NDArray[np.float32]]) -> Iterator[codecs_report.Report]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "SPEED_BYTES", 1 << 16)
        patch.setattr(codecs, "CURVE_BITS", (2, 4))
        patch.setattr(codecs, "ROUNDS", 2)
        yield codecs.measure("mlp", gradients, bits=4)


def test_bits_are_those_of_payloads_sums_and_terms(report: codecs_report.Report) -> None:
    thc, size = report.thc.cost, report.coordinates
    assert (thc.up, thc.down) == pytest.approx((4, 8), abs=0.01)
    mine = report.sumwire.cost
    assert 3.9 < mine.up <= 4
    assert 2 * 8 / 512 <= mine.terms < 0.035  # the tail has smaller blocks
    assert mine.bits == mine.up + mine.down + mine.terms
    assert (mine.up * size / 8).is_integer()


def test_same_bits_means_within_two_percent_of_the_paper(report: codecs_report.Report) -> None:
    assert report.same_bits.cost.bits == pytest.approx(report.thc.cost.bits, rel=0.02)


def test_sumwire_beats_the_paper_and_fp16_beats_all(report: codecs_report.Report) -> None:
    nmse = {row.label: row.cost.nmse for row in report.rows}
    assert report.sumwire.cost.nmse < report.thc.cost.nmse / 2
    assert report.same_bits.cost.nmse < report.sumwire.cost.nmse
    assert report.thc.cost.nmse <= report.uniform.cost.nmse * 1.05
    assert min(nmse, key=lambda label: nmse[label]) == "fp16"


def test_speeds_are_positive_and_fp16_has_no_add(report: codecs_report.Report) -> None:
    assert report.memcpy > 0
    for row in report.rows:
        assert all(speed > 0 for speed in row.speed.values())
    assert set(report.thc.speed) == set(codecs_report.VERBS)
    assert set(report.fp16.speed) == {"encode", "decode"}
    assert report.speed_bytes >= 1 << 16


def test_curves_fall_with_bits(report: codecs_report.Report) -> None:
    assert set(report.curves) == {"default", "fixed", "split", "thc", "uniform"}
    for few, many in report.curves.values():
        assert few.bits < many.bits
        assert few.nmse > many.nmse


def test_seed_decides_every_error(gradients: list[NDArray[np.float32]]) -> None:
    few = [x[:5000] for x in gradients]

    def errors(seed: int) -> list[float]:
        return [codecs.cost(entry.codec, few).nmse for entry in codecs.candidates(WORKERS, 4, seed)]

    assert errors(3) == errors(3)
    assert all(np.not_equal(errors(3), errors(4)))


def test_the_paper_is_the_published_one_at_four_bits_only() -> None:
    thc = {bits: codecs.candidates(WORKERS, bits, 0)[2].codec for bits in range(1, 9)}
    assert thc[4] == sumwire.Lattice.thc(WORKERS)
    assert thc[5].granularity == 60
    assert thc[5].sum_bits == (60 * WORKERS).bit_length()


def test_threads_are_restored() -> None:
    sumwire.set_num_threads(3)
    try:
        with codecs.one_thread():
            assert sumwire.get_num_threads() == 1
        assert sumwire.get_num_threads() == 3
    finally:
        sumwire.set_num_threads(None)


def test_figure_is_svg_and_equal_data_gives_equal_bytes(report: codecs_report.Report, tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    codecs_report.draw(report, first)
    codecs_report.draw(report, second)
    assert ElementTree.parse(first).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert first.read_bytes() == second.read_bytes()


def test_figure_may_be_png(report: codecs_report.Report, tmp_path: Path) -> None:
    codecs_report.draw(report, tmp_path / "codecs.png")
    assert (tmp_path / "codecs.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "message"), [("codecs.doc", "ends in .svg"), ("no/codecs.svg", "no directory")])
def test_unusable_figure_paths_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        display.check_path(tmp_path / name)


def test_tables_fit_a_terminal_of_80_columns(report: codecs_report.Report) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(codecs_report.cost_table(report), codecs_report.speed_table(report))
    text = captured.get()
    for row in report.rows:
        assert sum(line.startswith(row.label) for line in text.splitlines()) == 2
        assert row.code in text
    assert "…" not in text


def test_summary_tells_the_truth_either_way(report: codecs_report.Report) -> None:
    cost = report.thc.cost
    worse = replace(report, same_bits=replace(report.same_bits, cost=replace(cost, nmse=3 * cost.nmse)))
    assert codecs_report.summary(worse).startswith("Same bytes (+0.0%), 3.0x more error than the THC paper's setting")
    larger = replace(report, same_bits=replace(report.same_bits, cost=replace(cost, up=2 * cost.bits)))
    assert "x the bytes, 1.0x less error" in codecs_report.summary(larger)
