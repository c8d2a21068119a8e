"""The examples of docs/in-network.md, with addresses and a number of workers that exist here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from sumwire import Server
from sumwire.aggregate.network.aggregator import PacketAggregator
from tests.aggregate.network.netting import SECRET, aggregating, job

PAGE = Path(__file__).parents[3] / "docs/in-network.md"


def test_the_examples_run() -> None:
    code, of_a_rack = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    with aggregating(1) as aggregator:
        code = code.replace('"udp://10.0.0.254:4660/1", "a-long-random-word"', repr((aggregator.address, SECRET)))
        found: dict[str, Any] = {}
        exec(code.replace("workers=4", "workers=1").replace("Lattice(4,", "Lattice(1,"), found)
    assert found["mean"].shape == (100_000,)
    assert found["codec"].widths == (0, 1, 2, 4, 8)
    jobs = [job(1, number=1), job(1, number=2, quorum=1)]
    with PacketAggregator(jobs, port=0) as below, Server(workers=1, token="spine") as root:
        places = {"udp://10.0.0.254:4660/1": f"{below.address}/1", "root:4650": root.address}
        others = {"a-long-random-word": SECRET, "rank=2, workers=8, ranks=(0, 3)": "rank=0, workers=1, ranks=(0, 0)"}
        for written, here in (places | others).items():
            assert written in of_a_rack
            of_a_rack = of_a_rack.replace(written, here)
        exec(of_a_rack, found)
    assert np.corrcoef(found["mean"], found["gradient"])[0, 1] > 0.9
