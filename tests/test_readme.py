"""The README's examples have ten lines and do what they say; tests/test_docs_code.py runs them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(word: str) -> str:
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", README, flags=re.S) if word in code)
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    return str(code)


def test_codec_in_ten_lines() -> None:
    code = block("import numpy")
    names: dict[str, Any] = {}
    exec(code.replace("1_000_000", "20_000"), names)  # the NumPy reference runs this too
    exact = np.mean(names["xs"], axis=0)
    error = np.square(names["mean"] - exact).sum() / np.square(exact).sum()
    assert error < 0.02
    assert names["payloads"][0].nbytes <= 20_000 // 2


def test_training_in_ten_lines() -> None:
    assert "sumwire.train.attach(model, bits=4)" in block("import torch")


def test_sections_come_in_the_order_that_a_newcomer_needs() -> None:
    assert README.startswith("# Sumwire\n\n**Sumwire adds tensors in compressed form")
    assert README.index("figures/idea.svg") < README.index("\n## ")
    assert re.findall(r"^## (.*)", README, flags=re.M) == [
        "Install",
        "Train",
        "What it gains",
        "When not to use it",
        "The codec in ten lines",
        "Comparison",
        "Documentation",
    ]
