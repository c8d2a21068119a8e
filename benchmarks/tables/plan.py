"""Predictions of `sumwire plan` beside what was measured."""

from __future__ import annotations

from benchmarks.tables.table import Table

TABLES = {
    "plan-share": Table(
        "plan",
        {
            "measured": "{source}",
            "points": "{points}",
            "within 20 %": "{within}",
            "share": "{percent:.0f} %",
        },
        {"section": "share"},
    ),
    "plan-points": Table(
        "plan",
        {
            "": "{source}",
            "link": "{link}",
            "what": "{contender}",
            "measured, ms": "{measured_ms:.0f}",
            "predicted, ms": "{predicted_ms:.0f}",
            "predicted / measured": "{ratio:.2f}",
            "note": "{note}",
        },
        {"section": "points", "source": ("exchange", "time_to_target", "quoted")},
    ),
}
