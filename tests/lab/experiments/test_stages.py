"""Stages of a step, at one rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from sumwire import Lattice
from sumwire.aggregate.group.group import Group
from sumwire.lab.experiments import find
from sumwire.lab.experiments.stages import TRANSPORTS
from sumwire.lab.experiments.stages_rank import measure


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_step_has_all_its_stages() -> None:
    codec = Lattice(1, 4)
    aggregator = Group(codec)
    stages = measure(64, 2, codec, aggregator)
    aggregator.close()
    assert set(stages) == {"compute", "encode", "exchange", "add", "decode", "whole step"}
    assert all(ms > 0 for ms in stages.values())
    assert set(measure(64, 1, codec, None)) == {"compute", "exchange", "whole step"}


def test_every_transport_is_measured() -> None:
    for points in (find("stages").quick, find("stages").full):
        assert {point["transport"] for point in points} == set(TRANSPORTS)
