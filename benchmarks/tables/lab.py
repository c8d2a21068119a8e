"""Tables of docs/lab.md: results of `sumwire lab run`."""

from __future__ import annotations

from benchmarks.tables.table import Table

METHODS = (
    "added compressed, exact sums",
    "added compressed, narrow sums",
    "decompressed at a server",
    "decompressed at every hop of a ring",
)
CODECS = ("Sumwire, 4 bits", "Sumwire, 4 bits, exact sums", "Sumwire, 2 bits", "THC", "uniform, 4 bits")

TABLES: dict[str, Table] = {
    "lab-hops": Table(
        "lab/hops",
        {"workers": "{workers}"} | {method: f"{{at[{method}][nmse]:.5f}}" for method in METHODS},
        {"seed": 0, "correlation": 0.5},
        pivot=("workers", "method"),
    ),
    "lab-scale": Table(
        "lab/scale",
        {"workers": "{workers}"}
        | {codec: f"{{at[{codec}][nmse]:.6f}} ({{at[{codec}][down_bits]:.1f}} down)" for codec in CODECS},
        {"seed": 0, "correlation": 0.5},
        pivot=("workers", "scheme"),
    ),
    "lab-accuracy": Table(
        "lab/accuracy",
        {
            "scheme": "{name}",
            "both, MLP": "{at[mlp][total_bits]:.2f}",
            "NMSE, MLP": "{at[mlp][nmse]:.5f}",
            "both, ResNet": "{at[resnet][total_bits]:.2f}",
            "NMSE, ResNet": "{at[resnet][nmse]:.5f}",
        },
        {"seed": 0, "workers": 4},
        pivot=("name", "workload"),
    ),
}
