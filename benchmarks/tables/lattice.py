"""Speed and accuracy of the lattice codec."""

from __future__ import annotations

from benchmarks.tables.table import RUNS, Table


def _kernels(level: str) -> Table:
    columns = {"one thread, x memcpy unless said": "{what}", **RUNS}
    return Table("kernels", columns, {"section": "kernels", "level": level})


def _accuracy(section: str, columns: dict[str, str], pivot: tuple[str, str] | None = None) -> Table:
    return Table("accuracy", columns, {"section": section}, pivot)


def _real(model: str) -> str:
    return f"{{at[{model}][nmse]:.5f}} ({{at[{model}][factor]:.1f}}x)"


TABLES = {
    "kernels-avx512": _kernels("avx512"),
    "kernels-avx2": _kernels("avx2"),
    "accuracy-gaussian": _accuracy(
        "gaussian",
        {
            "n": "{workers}",
            "correlation": "{correlation:.1f}",
            "paper's b=4 g=30 p=1/32": "{nmse[paper]:.5f}",
            "same, stratified": "{nmse[paper, stratified]:.5f}",
            "g=60 p=1/512": "{nmse[g=60, p=1/512]:.5f}",
            "default": "{nmse[default]:.5f}",
            "default, predicted": "{nmse[default, predicted]:.5f}",
        },
    ),
    "accuracy-both-directions": _accuracy(
        "both directions",
        {
            "n": "{workers}",
            "bits in all": "{total_bits}",
            "thc, 4 up": "{nmse[thc]:.5f}",
            "default, 4 up": "{nmse[default]:.5f}",
            "total_bits, split": "{bits_up} up + {bits_down} down",
            "total_bits, error": "{nmse[total_bits]:.5f}",
            "thc / total_bits": "{factor}x",
        },
    ),
    "accuracy-real": _accuracy(
        "real gradients",
        {"codec": "`{codec}`", **{model: _real(model) for model in ("mlp", "resnet", "gpt")}},
        ("codec", "model"),
    ),
    "accuracy-gpt-parts": _accuracy(
        "parts of the gpt",
        {
            "part": "{part}",
            "coordinates": "{coordinates:,}",
            "share of energy": "{energy_percent}%",
            "thc": "{nmse[thc]:.5f}",
            "default": "{nmse[default]:.5f}",
            "factor": "{factor}x",
        },
    ),
    "accuracy-improvements": _accuracy(
        "improvements",
        {
            "improvement": "{improvement}",
            "measured on": "{measured_on}",
            "with it": "{nmse[with]:.5f}",
            "without it": "{nmse[without]:.5f}",
            "factor": "{factor}x",
        },
    ),
    "accuracy-loss": _accuracy(
        "loss",
        {
            "n": "{workers}",
            "correlation": "{correlation:.1f}",
            "one round: without": "{one_round[without]:.5f}",
            "one round: with": "{one_round[with]:.5f}",
            "40 rounds added up: without": "{forty_rounds[without]:.5f}",
            "40 rounds added up: with": "{forty_rounds[with]:.5f}",
            "factor": "{factor:.1f}x",
        },
    ),
}
