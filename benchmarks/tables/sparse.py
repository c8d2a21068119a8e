"""Lossless sums of sparse tensors: bytes, kernels, sketches, training steps."""

from __future__ import annotations

from benchmarks.tables.table import RUNS, Table, spread

CELLS = ("1.20", "1.23", "1.26", "1.30", "1.40")
DENSITIES = ("0.1 %", "1 %", "3 %", "10 %", "30 %", "50 %", "90 %")


def _bytes(section: str, *first: str) -> Table:
    named = {"law": "{law}", "size": "{size:,}"}
    columns = {
        **{name: named[name] for name in first},
        "n": "{workers}",
        "own": "{own_percent:sig}",
        "union": "{union_percent:sig}",
        "ours": "{percent_of_dense[sparse]:sig}",
        "ours, padded": "{percent_of_dense[sparse, padded]:sig}",
        "LHC's best": "{percent_of_dense[lhc]:sig}",
        "ours / LHC": "{over_lhc:.3f}",
    }
    shown = {"density_percent": (0.1, 1, 30)} if section == "other laws" else {}
    return Table("sparse_bytes", columns, {"section": section, **shown})


def _steps(workload: str) -> Table:
    columns = {
        "": "{method}",
        "ms/step": "{ms_per_step[median]:.0f}",
        "lowest - highest": "{ms_per_step[lowest]:.0f} - {ms_per_step[highest]:.0f}",
        "fp32 / it": spread("fp32_over_it"),
        "MB per step and rank": "{mb_per_step_and_rank:.2f}",
        "ranks bit-equal": "{ranks_bit_equal}",
        "loss": "{loss:.4f}",
    }
    return Table("sparse_training", columns, {"section": "main", "workload": workload, "link": "1 Gbit/s"})


TABLES = {
    "sparse-index": Table(
        "sparse_bytes",
        {"density": "{law}", **{density: f"{{at[{density}][bits_per_entry]:.2f}}" for density in DENSITIES}},
        {"section": "index"},
        ("law", "density"),
    ),
    "sparse-methods": Table(
        "sparse_bytes",
        {
            "n": "{workers}",
            "own": "{own_percent:sig}",
            "union": "{union_percent:sig}",
            "Sparse": "{percent_of_dense[sparse]:sig}",
            "compaction": "{percent_of_dense[compaction]:sig}",
            "Sketch, predicted": "{percent_of_dense[sketch, predicted]:sig}",
            "Sketch, joined": "{percent_of_dense[sketch, joined]:sig}",
            "LHC's best": "{percent_of_dense[lhc]:sig}",
        },
        {"section": "zipf", "density_percent": (0.1, 1, 10)},
    ),
    "sparse-bytes": _bytes("zipf"),
    "sparse-bytes-laws": _bytes("other laws", "law"),
    "sparse-bytes-missed": _bytes("where it fails", "law", "size"),
    "sparse-kernels": Table(
        "sparse_kernels",
        {"one thread, x memcpy unless said": "{what}", **RUNS},
        {"section": "kernels"},
    ),
    "sparse-scale": Table(
        "sparse_scale",
        {
            "step, per payload": "{step}",
            "n": "{workers:,}",
            "x dense sum, median of 3": "{over_dense_sum[median]:.2f}",
            "lowest": "{over_dense_sum[lowest]:.2f}",
            "highest": "{over_dense_sum[highest]:.2f}",
            "x n = 64": "{over_64_workers:.2f}",
            "bar": "{bar}",
        },
    ),
    "sketch-peels": Table(
        "sketch",
        {
            "support": "{support}",
            **{f"{n} cells per non-zero": f"{{at[{n}][peeled]}} ({{at[{n}][percent]}} %)" for n in CELLS},
        },
        {"section": "peels"},
        ("support", "cells_per_nonzero"),
    ),
    "sketch-steps": Table(
        "sketch",
        {
            "step": "{step}",
            "ms": "{ms:.1f}",
            "ns per non-zero": "{ns_per_nonzero:.1f}",
            "GB/s of non-zero float32": "{gb_per_second:.2f}",
            "x memcpy of the tensor": "{over_memcpy:.2f}",
        },
        {"section": "steps"},
    ),
    "sparse-steps-ncf": _steps("ncf"),
    "sparse-steps-ncf-rows": _steps("ncf-rows"),
    "sparse-steps-lstm": _steps("lstm"),
    "sparse-steps-vgg": _steps("vgg"),
    "sparse-steps-other": Table(
        "sparse_training",
        {
            "workload": "{workload}",
            "run": "{run}",
            "": "{method}",
            "ms/step": "{ms_per_step[median]}",
            "fp32 / it": "{fp32_over_it[median]:.2f}",
        },
        {"section": "other runs"},
    ),
}
