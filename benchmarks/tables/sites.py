"""DiLoCo across sites: loss, bytes and seconds; and a run whose workers come and go."""

from __future__ import annotations

from benchmarks.tables.table import Table

RATES = ("10 Mbit/s", "100 Mbit/s")

TABLES = {
    "sites-loss": Table(
        "sites",
        {
            "workers": "{workers}",
            "H": "{every}",
            "method": "{label}",
            "seeds": "{seeds}",
            "loss, mean": "{loss[mean]:.3f}",
            "lowest to highest": "{loss[lowest]:.3f} to {loss[highest]:.3f}",
            "over fp32": "{percent_of_fp32[mean]:+.2f} %",
            "each seed": "{percent_of_fp32[samples]:+.2f} %",
        },
        {"section": "methods", "batch": 4, "method": ("fp32", "4", "2", "4+feedback", "2+feedback")},
    ),
    "sites-seconds": Table(
        "sites",
        {
            "workers": "{workers}",
            "H": "{every}",
            "method": "{label}",
            "bytes per token": "{bytes_per_token:,.0f}",
            **{f"s per exchange, {rate}": f"{{round_seconds[{rate}]:.2f}}" for rate in RATES},
            **{f"s to the loss, {rate}": f"{{seconds_to[{rate}][median]:.1f}}" for rate in RATES},
            "reached it": "{reached} of {seeds}",
        },
        {"section": "methods", "batch": 4},
    ),
    "sites-chaos": Table(
        "sites_chaos",
        {
            "undisturbed": "{calm}",
            "seed": "{seed}",
            "outer rounds": "{rounds}",
            "killed": "{kill}",
            "stopped": "{stop}",
            "server restarts": "{restart}",
            "digests compared": "{compared}",
            "rounds with different ones": "{different}",
            "loss": "{loss:.4f}",
        },
    ),
}
