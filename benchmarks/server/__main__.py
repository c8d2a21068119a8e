"""The parameter server: throughput beside iperf3, CPU beside a server that decompresses, latency of many workers.

    python -m benchmarks.server throughput --size 25000000 --rounds 16 --runs 7
    python -m benchmarks.server cpu --size 25000000 --runs 15
    python -m benchmarks.server latency --workers 4,64,1000 --rounds 200

throughput: workers, a process each, have encoded before the clock starts and do not decode; they send frames and drop
what they get, so that it is the server that is measured. iperf3 moves its bytes by the same number of connections,
up and down at the same time, in turns with them. cpu: the same bytes through one shard without its sockets.
latency: a few processes are all workers; every sum is compared, byte by byte, with one made here.
"""

from __future__ import annotations

import argparse
import asyncio

from benchmarks.server.cpu import cpu
from benchmarks.server.latency import latency
from benchmarks.server.throughput import throughput
from sumwire.lab.record import add_option


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    for name, work in {
        "throughput": throughput,
        "cpu": lambda given: asyncio.run(cpu(given)),
        "latency": latency,
    }.items():
        kind = kinds.add_parser(name)
        kind.set_defaults(work=work)
        add_option(kind)
        kind.add_argument("--size", type=int, default=1000 if name == "latency" else 25_000_000, help="coordinates")
        if name == "latency":
            kind.add_argument("--workers", default="4,64,1000")
            kind.add_argument("--processes", type=int, default=4, help="that the workers share")
            kind.add_argument("--rounds", type=int, default=100)
            continue
        kind.add_argument("--ranks", type=int, default=4, help="workers")
        kind.add_argument("--runs", type=int, default=7)
        if name == "throughput":
            kind.add_argument("--rounds", type=int, default=16, help="of a run")
            kind.add_argument("--window", type=int, default=2, help="rounds that a worker has in flight at once")
            kind.add_argument("--seconds", type=float, default=3.0, help="that iperf3 runs")
    given = parser.parse_args()
    given.work(given)


if __name__ == "__main__":
    main()
