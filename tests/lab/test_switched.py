"""Training over a switch that adds packets in the kernel: `sumwire demo --switch`, and links that lose packets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from sumwire.cli import main
from sumwire.errors import ConfigError
from sumwire.lab import testbed
from sumwire.lab.comparison import compare, find_task
from sumwire.lab.links import links
from sumwire.lab.methods import label
from sumwire.lab.switched import switched_links
from sumwire.lab.testbed import Impairment
from tests.aggregate.switch.packets import REASON

needs_bpf = pytest.mark.skipif(bool(REASON), reason=REASON)

DEMO = ("demo", "--switch", "--rate", "unshaped", "--workers", "2", "--steps", "3", "--target", "0.01")


@needs_bpf
def test_a_whole_demo_over_a_switch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Over links that lose packets, so that all methods that average in the network run in the same processes."""
    bad = partial(switched_links, impairment=Impairment(loss=0.01), deadline=0.1)
    monkeypatch.setattr("sumwire.lab.demo.switched_links", bad)
    figure = tmp_path / "out.svg"
    result = CliRunner().invoke(main, [*DEMO, "--methods", "fp32,switch,lossy,resync", "--figure", str(figure)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    for said in (
        "2 hosts in network namespaces, unshaped links, with 1.0% loss",
        "joined through a switch that adds in the kernel (TC)",
        "UNSHAPED",
    ):
        assert said in text
    rows = {line.partition("  ")[0]: line.split()[-6:] for line in result.output.splitlines() if "%" in line}
    for name in ("fp32", "switch-4", "lossy-4", "resync-4"):
        seconds, _, steps, ms, *_, accuracy = rows[label(name)]
        # All steps together may round to 0.0 s on a fast machine, one of them not to 0 ms.
        assert (float(seconds) >= 0, float(ms) > 0, steps, accuracy[-1]) == (True, True, "3", "%")
    assert figure.read_text().count("<svg") == 1


def test_without_privileges_the_demo_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(testbed, "missing", lambda: ["CAP_BPF is missing: run as root"])
    result = CliRunner().invoke(main, [*DEMO, "--figure", str(tmp_path / "out.svg")])
    assert result.exit_code == 1
    assert "no testbed here: CAP_BPF is missing: run as root" in result.output


def test_methods_that_need_a_switch_are_refused_without_one() -> None:
    with links(2, None) as network, pytest.raises(ConfigError, match=r"there is no switch in it: add --switch"):
        compare(network, find_task("conv"), ["switch-4"])
