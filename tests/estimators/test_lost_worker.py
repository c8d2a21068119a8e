"""A worker that dies between two rounds: rows that Dask can recompute, and rows that are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from sumwire import Lattice, RoundError
from sumwire.estimators import KMeans
from sumwire.estimators.exchange import Exchange
from tests.estimators.data import CLUSTERS, blobs

ROWS = blobs()
MODEL = {"n_clusters": CLUSTERS, "init": ROWS[:CLUSTERS] + 1, "scheme": Lattice(8, 4), "random_state": 0}


@pytest.fixture
def client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A cluster of two workers, one of which is killed in the second round, while it has a share of it."""
    exact, calls = Exchange.exact, []

    def kill(self: Exchange, shares: Any) -> Any:
        calls.append(shares)
        if len(calls) == 3:
            client.gather(client.map(lambda share: None, shares.items))
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        return exact(self, shares)

    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        monkeypatch.setattr(Exchange, "exact", kill)
        yield client
        assert len(calls) >= 3


def test_chunks_of_a_dask_array_are_made_again(client: Client) -> None:
    rows = da.from_array(ROWS, chunks=(150, 32))
    there = KMeans(client=client, **MODEL).fit(rows)
    here = KMeans(**MODEL).fit(ROWS)
    assert there.cluster_centers_.tobytes() == here.cluster_centers_.tobytes()
    assert (there.bits_sent_, there.n_iter_) == (here.bits_sent_, here.n_iter_)


def test_rows_that_were_sent_there_are_lost(client: Client) -> None:
    with pytest.raises(RoundError, match=r"a worker was lost.*Fit again, or pass X as a dask.array"):
        KMeans(client=client, **MODEL).fit(np.array(ROWS))
