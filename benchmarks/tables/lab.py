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
LOSS_METHODS = (
    "no feedback, no resync",
    "no feedback, resync each 10 steps",
    "feedback, no resync",
    "feedback, resync each 10 steps",
)
STAGES = ("compute", "encode", "exchange", "add", "decode", "whole step")

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
    "lab-training": Table(
        "lab/training",
        {"method": "{method}", "both": "{at[gpt-small][total_bits]:.2f}"}
        | {
            heading: f"{{at[{name}][worse]:+z.4f}} (to {{at[{name}][highest][worse]:+z.4f}})"
            for name, heading in (("gpt-small", "loss, GPT, worse by"), ("cnn", "accuracy, CNN, worse by"))
        },
        {"workload": ("gpt-small", "cnn"), "workers": 4},
        pivot=("method", "workload"),
        over="seed",
    ),
    "lab-ablation": Table(
        "lab/ablation",
        {
            "variant": "{method}",
            "up": "{at[gpt-small][up_bits]:.2f}",
            "down": "{at[gpt-small][down_bits]:.2f}",
            "loss, GPT, worse by": "{at[gpt-small][worse]:+z.4f}",
            "NMSE of a round": "{at[gpt-small][nmse]:.4f}",
            "of all rounds": "{at[gpt-small][late_nmse]:.5f}",
            "accuracy, CNN, worse by": "{at[cnn][worse]:+z.4f}",
            "NMSE of a round, CNN": "{at[cnn][nmse]:.4f}",
            "of all rounds, CNN": "{at[cnn][late_nmse]:.5f}",
        },
        {"workload": ("gpt-small", "cnn"), "workers": 4},
        pivot=("method", "workload"),
        over="seed",
    ),
    "lab-loss": Table(
        "lab/loss",
        {"lost in each direction": "{loss_percent:.1f} %"}
        | {method: f"{{at[{method}][worse]:+z.4f}} ({{at[{method}][spread]:.3f}})" for method in LOSS_METHODS},
        {"workload": "gpt-small", "workers": 4},
        pivot=("loss_percent", "method"),
        over="seed",
    ),
    "lab-drift": Table(
        "lab/drift",
        {
            "case": "{case}",
            "steps": "{step}",
            "residual by gradient": "{at[residual by gradient][value]:.3f}",
            "parameters apart by": "{at[parameters apart by][value]:.5f}",
            "accuracy": "{score:.4f}",
        },
        {"step": (100, 1000, 10_000)},
        pivot=("case+step", "quantity"),
        over="seed",
    ),
    "lab-stages": Table(
        "lab/stages",
        {"transport": "{transport}", "values": "{values:,}"} | {stage: f"{{at[{stage}][ms]:.2f}}" for stage in STAGES},
        pivot=("transport+values", "stage"),
    ),
}
