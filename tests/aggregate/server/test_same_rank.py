"""Processes that claim one rank: forks of one link, and a worker that is killed and started again."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from sumwire import Link, RoundError, Sparse
from tests.aggregate.server.serving import linked, serving

FORKS = """
import os, sys
import numpy as np, sumwire
link = sumwire.connect(sys.argv[1], rank=0, workers=2, timeout=20, retry=0.1)
if sys.argv[2] == "open":
    link.open()
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        try:
            line = f"averaged {link.average(np.ones(9, np.float32), codec=sumwire.Sparse(2))[0]}"
        except sumwire.RoundError as error:
            line = str(error)
        os.write(1, line.encode() + b"\\n")  # at once, or lines of two processes would mix
        link.close()
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""
"""A link that is made before processes fork, which all use it."""

WORKER = """
import sys, time
import numpy as np, sumwire
link = sumwire.connect(sys.argv[1], rank=0, workers=2, timeout=20, retry=0.1).open()
print("here", flush=True)
while True:
    print(link.average(np.ones(9, np.float32), codec=sumwire.Sparse(2))[0], flush=True)
"""

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")


async def run(code: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=subprocess.PIPE, limit=1 << 20
    )


def said(caplog: pytest.LogCaptureFixture, words: str) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


@needs_fork
def test_forks_of_one_link_do_not_take_the_rank_from_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever comes first takes part; the other one is told so, and does not try again."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with serving(2) as site:
            forks = await run(FORKS, site.address, "lazy")
            assert forks.stdout is not None
            first = (await asyncio.wait_for(forks.stdout.readline(), 60)).decode()
            assert "rank 0 of job 'default' is taken by another live process" in first
            assert "give every worker a rank of its own" in first
            async with linked(site, 2, ranks=[1]) as (other,):
                assert (await other.average(3 * np.ones(9, np.float32), codec=Sparse(2)))[0] == 2
            assert (await asyncio.wait_for(forks.stdout.readline(), 60)).decode().strip() == "averaged 2.0"
            assert await asyncio.wait_for(forks.wait(), 60) == 0

    asyncio.run(main())
    assert len(said(caplog, "worker 0 at")) == 1  # nobody was ever "back"
    assert 1 <= len(said(caplog, "is refused")) <= 3


@needs_fork
def test_forks_of_a_link_that_is_open_are_told_to_open_their_own() -> None:
    async def main() -> None:
        async with serving(2) as site:
            forks = await run(FORKS, site.address, "open")
            output, _ = await asyncio.wait_for(forks.communicate(), 60)
            lines = output.decode().splitlines()
            assert len(lines) == 2
            assert all("was forked: open a link in each process, with a rank of its own" in line for line in lines)

    asyncio.run(main())


def test_a_worker_that_was_killed_gets_in_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its successor is another process, and the server may not have noticed yet."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with serving(2) as site, linked(site, 2, ranks=[1]) as (other,):
            for _ in range(3):
                worker = await run(WORKER, site.address)
                assert worker.stdout is not None
                assert (await asyncio.wait_for(worker.stdout.readline(), 60)).decode().strip() == "here"
                mean = await asyncio.wait_for(other.average(3 * np.ones(9, np.float32), codec=Sparse(2)), 60)
                assert mean[0] == 2
                worker.send_signal(signal.SIGKILL)
                await worker.wait()

    asyncio.run(main())
    assert len(said(caplog, "worker 0 at")) == 3
    assert said(caplog, "is refused") == []


def test_two_links_of_one_process_with_one_rank() -> None:
    async def main() -> None:
        async with serving(2) as site:
            first = Link(site.address, rank=0, workers=2, retry=0.1)
            second = Link(site.address, rank=0, workers=2, retry=0.1)
            await asyncio.to_thread(first.open)
            with pytest.raises(RoundError, match="rank 0 of job 'default' is taken by another live process"):
                await asyncio.to_thread(second.open)
            await asyncio.to_thread(first.close)

    asyncio.run(main())
