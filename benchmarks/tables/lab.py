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

ACCURACY = {
    "resnet": "ResNet", "cnn-small": "CNN", "vgg-small": "VGG", "gpt": "GPT", "bert": "BERT", "ncf-small": "NCF",
    "lstm-small": "LSTM",
}  # fmt: skip
TRAINED = {
    "gpt-small": "GPT, loss", "bert": "BERT, loss", "lstm-small": "LSTM, loss", "cnn-small": "CNN, accuracy",
    "vgg-small": "VGG, accuracy", "ncf-tiny": "NCF, hits",
}  # fmt: skip
TRACES = {"trace-resnet-50": "ResNet-50", "trace-vgg-19": "VGG-19", "trace-bert-base": "BERT-base"}
SUPPORTS = ("random", "rows of 128")
SPARSE = ("Sparse", "Sparse, padded", "paper's best", "compaction")
SPARSE_MODELS = {"ncf": "NCF", "lstm": "LSTM"}
SCALED = ("Sumwire, 4 bits", "Sumwire, 4 bits, exact sums", "Sumwire, 2 bits", "THC", "uniform, 4 bits")


def _to_target(workers: int, rate: float) -> Table:
    return Table(
        "lab/time_to_target",
        {"method": "{method}", "both": "{at[gpt-small][both_bits]:.1f}"}
        | {heading.partition(",")[0]: f"{{at[{name}][seconds]:.2f}}" for name, heading in TRAINED.items()},
        {"workers": workers, "rate": rate},
        pivot=("method", "workload"),
        over="seed",
    )


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
    "lab-equal-bits": Table(
        "lab/equal_bits",
        {"scheme": "{name}", "both": "{total_bits:.1f}", "can be added": "{addable}"}
        | {heading: f"{{at[{name}][ratio]:.2f}}" for name, heading in ACCURACY.items()},
        pivot=("name", "workload"),
    ),
    "lab-accuracy": Table(
        "lab/accuracy",
        {"budget": "{name}"}
        | {
            heading: f"{{at[{name}][nmse]:.1e}} at {{at[{name}][total_bits]:.1f}}" for name, heading in ACCURACY.items()
        },
        {"scheme": "Sumwire", "part": 1.0, "workers": 4},
        pivot=("name", "workload"),
        over="seed",
    ),
    "lab-training": Table(
        "lab/training",
        {"method": "{method}", "both": "{at[gpt-small][total_bits]:.2f}"}
        | {heading: f"{{at[{name}][worse]:+z.4f}}" for name, heading in TRAINED.items()},
        {"workers": 4},
        pivot=("method", "workload"),
        over="seed",
    ),
    "lab-training-spread": Table(
        "lab/training",
        {
            "workload": "{workload}",
            "workers": "{workers}",
            "metric": "{metric}",
            "fp32, mean": "{score:.4f}",
            "lowest": "{lowest[score]:.4f}",
            "highest": "{highest[score]:.4f}",
        },
        {"method": "fp32"},
        over="seed",
    ),
    "lab-training-8": Table(
        "lab/training",
        {"method": "{method}", "both": "{at[gpt-small][total_bits]:.2f}"}
        | {heading: f"{{at[{name}][worse]:+z.4f}}" for name, heading in TRAINED.items()},
        {"workers": 8},
        pivot=("method", "workload"),
        over="seed",
    ),
    "lab-target": _to_target(4, 100e6),
    "lab-target-8": _to_target(8, 100e6),
    "lab-target-1g": _to_target(4, 1e9),
    "lab-target-5g": _to_target(4, 5e9),
    "lab-throughput": Table(
        "lab/throughput",
        {"method": "{label}"}
        | {
            f"{model}, {rate}": f"{{at[{place}][ms]:,.0f}} ({{at[{place}][over_fp32]:.2f}}x)"
            for name, model in TRACES.items()
            for rate in ("1 Gbit/s", "5 Gbit/s")
            for place in (f"{name}, {rate}, 4 workers",)
        },
        {"workload": tuple(TRACES)},
        pivot=("method", "where"),
    ),
    "lab-sweep": Table(
        "lab/sweep",
        {
            "in": "{measured}",
            "workload": "{workload}",
            "bits": "{bits}",
            "solver": "{solver:.5f}",
            "best of the sweep": "{best:.5f}",
            "choices that are no better": "{wins_percent:.0f} % of {others:.0f}",
        },
        over="seed",
    ),
    "lab-scale-training": Table(
        "lab/scale_training",
        {"workload": "{workload}", "workers": "{workers}"}
        | {method: f"{{at[{method}][worse]:+z.4f}}" for method in SCALED},
        pivot=("workload+workers", "method"),
        over="seed",
    ),
    "lab-hops-training": Table(
        "lab/hops_training",
        {"workload": "{workload}", "workers": "{workers}"}
        | {method: f"{{at[{method}][worse]:+z.4f}}" for method in METHODS},
        pivot=("workload+workers", "method"),
        over="seed",
    ),
    "lab-stragglers": Table(
        "lab/stragglers",
        {"late": "{late}", "quorum": "{quorum_percent:.0f} %", "time of a step": "{time:.2f}"}
        | {
            name: f"{{at[{flag}][worse]:+z.4f}} (to {{at[{flag}][highest][worse]:+z.4f}})"
            for name, flag in (("without feedback", "False"), ("with feedback", "True"))
        },
        pivot=("late+quorum_percent", "feedback"),
        over="seed",
    ),
    "lab-installed": Table(
        "lab/installed",
        {
            "package": "{package}",
            "version": "{package_version}",
            "scheme": "{scheme}",
            "both": "{total_bits:.2f}",
            "NMSE": "{nmse:.1e}",
            "note": "{note}",
        },
        {"workload": "resnet", "workers": 4},
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
            "accuracy, CNN, worse by": "{at[cnn-small][worse]:+z.4f}",
            "NMSE of a round, CNN": "{at[cnn-small][nmse]:.4f}",
            "of all rounds, CNN": "{at[cnn-small][late_nmse]:.5f}",
        },
        {"workload": ("gpt-small", "cnn-small"), "workers": 4},
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
    "lab-sparse": Table(
        "lab/sparse",
        {"Mbit/s": "{mbit}", "method": "{method}"}
        | {
            f"{heading}, {what}": f"{{at[{name}][{field}]:.{digits}f}}"
            for name, heading in SPARSE_MODELS.items()
            for what, field, digits in (("% of dense", "percent_of_dense", 1), ("x fp32", "speedup", 2))
        },
        pivot=("mbit+method", "workload"),
        over="seed",
    ),
    "lab-sparse-bytes": Table(
        "lab/sparse_bytes",
        {
            "tensors": "{tensors}",
            "workers": "{workers}",
            "non-zero": "{own_percent:.2f} %",
            "any": "{union_percent:.1f} %",
        }
        | {method: f"{{at[{method}][percent_of_dense]:.2f}}" for method in SPARSE},
        {"workers": (4, 16)},
        pivot=("tensors+workers", "method"),
        over="seed",
    ),
    "lab-sketch": Table(
        "lab/sketch",
        {
            "cells per non-zero": "{load:.2f}",
            **{support: f"{{at[{support}][peeled_percent]:.1f}} %" for support in SUPPORTS},
            "encode, x memcpy": "{at[random][encode_memcpy]:.2f}",
            "decode, x memcpy": "{at[random][decode_memcpy]:.2f}",
        },
        pivot=("load", "support"),
        over="seed",
    ),
    "lab-stages": Table(
        "lab/stages",
        {"transport": "{transport}", "values": "{values:,.0f}"}
        | {stage: f"{{at[{stage}][ms]:.2f}}" for stage in STAGES},
        pivot=("transport+values", "stage"),
        over="seed",
    ),
}
