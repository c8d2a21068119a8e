"""One Dask cluster for all tests: its workers take seconds to import everything."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from distributed import LocalCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    # Any port: the usual one may be taken by another cluster on this machine.
    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster
