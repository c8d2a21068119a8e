"""Tables of docs/in-network.md."""

from __future__ import annotations

from benchmarks.tables.table import Table, spread

TABLES: dict[str, Table] = {
    "switch-stress": Table(
        "switch",
        {
            "aggregator": "{aggregator}",
            "workers": "{workers}",
            "quorum": "{quorum}",
            "chunks": "{chunks:,}",
            "wrong sums": "{wrong}",
            "packets lost": "{lost:,}",
            "doubled": "{doubled:,}",
            "reordered": "{reordered:,}",
            "sent again": "{resent:,}",
            "results without their receiver": "{late:,}",
            "expired": "{expired:,}",
        },
        {"section": "stress"},
    ),
    "switch-throughput": Table(
        "switch",
        {
            "aggregator": "{aggregator}",
            "workers": "{workers}",
            "packets per second": spread("packets_per_second", ",.0f"),
            "x user": spread("ratio"),
        },
        {"section": "throughput"},
    ),
    "switch-rate": Table(
        "switch",
        {
            "aggregator": "{aggregator}",
            "workers": "{workers}",
            "us of CPU per packet": spread("microseconds_per_packet"),
            "packets per core, x user": spread("ratio", ".1f"),
        },
        {"section": "rate"},
    ),
    "switch-loss": Table(
        "switch",
        {
            "method": "{aggregator}",
            "packets lost": "{loss_percent:g} %",
            "trainings": "{seeds}",
            "accuracy, mean ± deviation": "{accuracy[mean]:.2%} ± {accuracy[deviation]:.2%}",
            "each": "{accuracy[samples]:.2%}",
            "ms/step": "{ms_per_step:.0f}",
            "ranks end with equal weights": "{ranks_agree}",
        },
        {"section": "loss"},
    ),
}
