"""Who has less error at equal bits: every scheme's error, by that of Sumwire at the same bits in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, geometric_mean

import numpy as np

from sumwire.lab.experiments.accuracy import TOTALS
from sumwire.lab.experiments.base import Chart, Row, Summary

LEAST = min(TOTALS) - 0.5
MOST = max(TOTALS) + 1
"""Bits in both directions between which schemes are compared with ours."""


def calculate(sources: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    """A row for each scheme and workload: the geometric mean of its ratios over all points, and their spread.

    The logarithm of our error is interpolated. Schemes with more bits than ours can spend are compared with our most.
    """
    points: dict[str, list[Row]] = {}
    for line in sources["accuracy"]:
        points.setdefault(str(line["point"]), []).append(line)
    ratios: dict[tuple[str, str], list[float]] = {}
    bits_of: dict[tuple[str, str], list[float]] = {}
    abouts: dict[tuple[str, str], Row] = {}
    for lines in points.values():
        ours = [(line["total_bits"], line["nmse"]) for line in lines if line["scheme"] == "Sumwire"]
        # Of several at the same bits, because no more could be spent, the best one.
        bits, errors = np.array(sorted(dict(sorted(ours, reverse=True)).items())).T
        for line in lines:
            if line["scheme"] == "Sumwire" or not LEAST <= line["total_bits"] <= MOST:
                continue
            equal = np.exp(np.interp(line["total_bits"], bits, np.log(errors)))
            key = (line["name"], line["workload"])
            ratios.setdefault(key, []).append(float(line["nmse"] / equal))
            bits_of.setdefault(key, []).append(line["total_bits"])
            abouts[key] = {field: line[field] for field in ("name", "scheme", "workload", "addable")}
    for key, found in ratios.items():
        yield abouts[key] | {
            "total_bits": fmean(bits_of[key]),
            "ratio": geometric_mean(found),
            "lowest": min(found),
            "highest": max(found),
            "points": len(found),
            "ahead": sum(each > 1 for each in found),
        }


SUMMARY = Summary(
    name="equal_bits",
    title="Error at equal bits",
    question="How many times the error of Sumwire at the same bits does each scheme have?",
    sources=("accuracy",),
    calculate=calculate,
    columns={
        "scheme": "{name}", "workload": "{workload}", "both": "{total_bits:.2f}", "adds": "{addable}",
        "times our error": "{ratio:.2f}", "from": "{lowest:.2f}", "to": "{highest:.2f}",
        "we are ahead at": "{ahead} of {points}",
    },
    chart=Chart(
        x="total_bits", y="ratio", series="scheme", panel="workload", x_label="bits per value, both directions",
        y_label="times the error of Sumwire", log_y=True, x_digits=1,
    ),
    notes="Above 1, Sumwire has less error. Geometric means over three times in training with 4 workers, one with 8, "
    "and 3 seeds; one round from a fresh state. Bits are those that are sent. Schemes with fewer than 5.5 or more than "
    "17 bits in both directions are not compared; those with more bits than Sumwire can spend, with all it can spend: "
    "no coordinate takes more than 8.",
)  # fmt: skip
