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


def _both_directions(*data: str) -> Table:
    columns = {
        "n": "{workers}",
        "bits in all": "{total_bits}",
        **({"gradients": "{data}"} if len(data) > 1 else {}),
        "exact sums: up + down": "{exact_split}",
        "error": "{nmse[exact]:.5f}",
        "narrow sums: up + down": "{narrow_split}",
        "its error": "{nmse[narrow]:.5f}",
        "factor": "{factor:.1f}x",
    }
    return Table("accuracy", columns, {"section": "both directions", "data": data})


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
            "default, exact sums": "{nmse[exact]:.5f}",
            "exact sums, predicted": "{nmse[exact, predicted]:.5f}",
            "default": "{nmse[default]:.5f}",
            "default, predicted": "{nmse[default, predicted]:.5f}",
        },
    ),
    "accuracy-both-directions": _both_directions("noise"),
    "accuracy-both-directions-real": _both_directions("resnet", "gpt"),
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
