from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from sumwire.cli import main
from sumwire.lab.comparison import Point, Run
from sumwire.lab.demo import Comparison, draw, summary, table

NOTE = "4 hosts in network namespaces, links limited to 100 Mbit/s by tbf"


def run(method: str, step_seconds: float, step_bytes: float, reaches: int | None = None) -> Run:
    """Accuracy jumps to 98 % after `reaches` steps."""
    points = [
        Point(step, step * step_seconds, step * step_bytes, 0.98 if reaches and step >= reaches else 0.9, 1.0)
        for step in range(0, 101, 10)
    ]
    return Run(method, points, identical=True)


FP32, FP16 = run("fp32", 0.2, 1_740_000, 50), run("fp16", 0.12, 870_000, 50)
SUMWIRE = run("sumwire-4", 0.05, 300_000, 60)


def comparison(*runs: Run, shaped: bool = True, note: str = NOTE) -> Comparison:
    return Comparison("ResNet-20 on 8x8 digits", "accuracy", 0.97, 4, shaped, note, runs)


def printed(shown: Comparison) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table(shown))
    return captured.get()


def test_a_whole_demo_on_unshaped_links(tmp_path: Path) -> None:
    figure = tmp_path / "out.svg"
    size = ("--rate", "unshaped", "--workers", "2", "--steps", "6", "--target", "0.01")
    options = ("--bits", "3", "--methods", "fp32,sumwire", "--figure", str(figure))
    result = CliRunner().invoke(main, ["demo", *size, *options])
    assert result.exit_code == 0, result.output
    for text in ("Links are unshaped: no rate was requested", "UNSHAPED", "fp32", "Sumwire, 3-bit", "calculated"):
        assert text in result.output
    assert result.output.count("6/6") == 2
    assert "Sumwire, 3-bit reached 1.0%" in result.output
    assert ElementTree.parse(figure).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_demo_of_sites_shows_bytes_too(tmp_path: Path) -> None:
    figure = tmp_path / "out.svg"
    size = ("--rate", "unshaped", "--workers", "2", "--steps", "4", "--every", "2", "--target", "9")
    result = CliRunner().invoke(
        main, ["demo", "--sites", *size, "--methods", "diloco-32,diloco", "--figure", str(figure)]
    )
    assert result.exit_code == 0, result.output
    rows = {line.split("  ")[0]: line.split()[-6:] for line in result.output.splitlines()}
    exact, ours = (float(rows[name][-2].replace(",", "")) for name in ("DiLoCo, fp32", "DiLoCo, Sumwire 4-bit"))
    assert 5 < exact / ours < 9  # per step: 32 bits for 2 workers, and 4.6
    assert "byte-level GPT" in result.output
    assert "different weights" not in result.output
    assert "Loss against seconds and megabytes" in result.output
    *_, width, height = map(float, ElementTree.parse(figure).getroot().attrib["viewBox"].split())
    assert width > 2 * height  # one panel beside the other


def test_the_table_has_a_row_for_every_method_and_fits_80_columns() -> None:
    rows = {line.split("  ")[0]: line.split()[-6:] for line in printed(comparison(FP32, FP16, SUMWIRE)).splitlines()}
    assert rows["fp32"] == ["10.0", "100%", "50", "200", "1,740", "98.0%"]
    assert rows["fp16 hook"] == ["6.0", "60%", "50", "120", "870", "98.0%"]
    assert rows["Sumwire, 4-bit"] == ["3.0", "30%", "60", "50", "300", "98.0%"]


def test_who_does_not_arrive_has_no_time() -> None:
    text = printed(comparison(FP32, run("powersgd-1", 0.04, 60_000)))
    assert next(line for line in text.splitlines() if line.startswith("Power")).split()[-6:-3] == ["never", "-", "-"]


def test_the_table_says_when_links_were_not_shaped_or_ranks_differ() -> None:
    assert "UNSHAPED" not in printed(comparison(FP32))
    assert "different weights" not in printed(comparison(FP32))
    text = " ".join(printed(comparison(replace(FP32, identical=False), shaped=False)).split())
    assert "UNSHAPED" in text
    assert "calculated" in text
    assert "Ranks ended with different weights: fp32." in text


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (
            (FP32, FP16, SUMWIRE),
            "Sumwire, 4-bit reached 97.0% in 3.0 s, 3.3x sooner than fp32, 2.0x sooner than fp16 hook.",
        ),
        (
            (FP32, SUMWIRE, run("powersgd-4", 0.04, 1, 30)),
            "Sumwire, 4-bit reached 97.0% in 3.0 s, 3.3x sooner than fp32, 2.5x later than PowerSGD rank 4; "
            "so PowerSGD rank 4 was first, in 1.2 s.",
        ),
        (
            (SUMWIRE, run("powersgd-1", 0.04, 1), run("powersgd-2", 0.0505, 1, 60)),
            "Sumwire, 4-bit reached 97.0% in 3.0 s, PowerSGD rank 1 never, as soon as PowerSGD rank 2.",
        ),
        ((FP32, run("sumwire-1", 0.1, 1)), "fp32 was first to 97.0%, in 10.0 s; Sumwire did not reach it."),
        ((FP32, FP16), "fp16 hook was first to 97.0%, in 6.0 s."),
        ((SUMWIRE,), "Sumwire, 4-bit reached 97.0% in 3.0 s."),
        ((run("fp32", 1, 1),), "No method reached 97.0%: give more --steps or an easier --target."),
    ],
)
def test_summary_tells_the_truth_either_way(runs: tuple[Run, ...], sentence: str) -> None:
    assert summary(comparison(*runs)) == sentence


def test_summary_warns_of_unshaped_links() -> None:
    assert summary(comparison(FP32, SUMWIRE, shaped=False)).endswith("this says little about slow networks.")


def test_figure_is_svg_and_equal_data_gives_equal_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    shown = comparison(FP32, FP16, run("powersgd-1", 0.04, 1), SUMWIRE, run("sumwire-2", 0.04, 1, 70))
    for path in (first, second):
        draw(shown, path)
    assert ElementTree.parse(first).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert first.read_bytes() == second.read_bytes()


def test_figure_of_losses_may_be_png(tmp_path: Path) -> None:
    draw(replace(comparison(FP32), metric="loss", target=0.5), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
