"""The README's example does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np


def test_ten_lines() -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, flags=re.S) if "import numpy" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(code.replace("1_000_000", "20_000"), names)  # the NumPy reference runs this too
    exact = np.mean(names["xs"], axis=0)
    error = np.square(names["mean"] - exact).sum() / np.square(exact).sum()
    assert error < 0.02
    assert names["payloads"][0].nbytes <= 20_000 // 2
