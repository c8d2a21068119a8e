"""The parameter server: throughput, CPU, latency, chaos."""

from __future__ import annotations

from benchmarks.tables.table import Table, spread

TABLES = {
    "server-throughput": Table(
        "server_throughput",
        {
            "": "{what}",
            "GB/s through the server, in + out": spread("gb_per_second"),
            "of iperf3, %": spread("percent_of_iperf3", ".0f"),
            "rounds/s": spread("rounds_per_second", ".1f"),
            "server CPU, ns per value": spread("cpu_ns_per_value"),
            "user": "{user_ns:.2f}",
            "system": "{system_ns:.2f}",
        },
        {"section": "rates"},
    ),
    "server-cpu": Table(
        "server_cpu",
        {
            "": "{what}",
            "series": "{series}",
            "ours": spread("ours_ns", ".3f"),
            "decompress, add, recompress": spread("decompressing_ns", ".3f"),
            "ratio": spread("ratio", ".1f"),
        },
    ),
    "server-cpu-tcp": Table(
        "server_throughput", {"": "{what}", "ratio": spread("cpu_ratio", ".1f")}, {"section": "ratio"}
    ),
    "server-latency": Table(
        "server_latency",
        {
            "workers": "{workers:,}",
            "how": "{how}",
            "p50, ms": "{p50_ms:.2f}",
            "p99, ms": "{p99_ms:.2f}",
            "slowest, ms": "{slowest_ms:.2f}",
            "rounds/s": "{rounds_per_second:.1f}",
            "messages/s at the server, in + out": "{messages_per_second:,.0f}",
        },
    ),
    "chaos": Table(
        "chaos",
        {
            "means checked": "{means_checked:,}",
            "wrong": "{wrong_means}",
            "rounds failed": "{failed_rounds}",
            "messages lost": "{messages_lost:,}",
            "doubled": "{messages_doubled:,}",
            "connections cut": "{connections_cut}",
            "workers killed": "{workers_killed}",
            "restarts": "{restarts}",
            "seconds": "{seconds:.0f}",
        },
        {"quorum": None},
    ),
}
