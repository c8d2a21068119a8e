"""One-shot mean estimation, k-means and PCA."""

from __future__ import annotations

from benchmarks.tables.table import Table, spread

SCHEMES = (
    "StochasticBinary()",
    "StochasticLevels(16)",
    "Rotated(16)",
    'VariableLength("sqrt")',
    "Sampled(Rotated(16), .5)",
    "Correlated(16)",
    "Drive()",
    "Eden(2)",
    "Eden(4)",
    "Lattice(n, 3)",
    "Lattice(n, 4)",
)
"""Some of those that the lab measures: what tells them apart."""
FITTED = (
    *SCHEMES,
    "StochasticLevels(4)",
    "StochasticLevels(8)",
    "Rotated(4)",
    "Rotated(8)",
    "VariableLength(16)",
    "Correlated(4)",
    "Eden(3)",
    "Lattice(n, 2)",
)


def _error(data: str, clients: int) -> str:
    return f"{{at[{data}, {clients}][error]:.2e}} ±{{at[{data}, {clients}][deviation_percent]:.0f}}%"


def _bound(data: str) -> str:
    return f"{{at[{data}, 10][bound]:.1e}}"


def _variants(file: str, value: str, said: str) -> Table:
    columns = {"scheme": "`{scheme}`"}
    for variant in ("as in paper", "centered"):
        columns[f"bits per value, {variant}"] = f"{{at[{variant}][bits_per_value]:.2f}}"
    for variant, digits in (("as in paper", 2), ("centered", 3)):
        columns[f"{said}, {variant}"] = f"{{at[{variant}][{value}]:.{digits}f}} %"
    return Table(file, columns, {"data": "Fashion-MNIST", "clients": 100, "scheme": FITTED}, ("scheme", "variant"))


TABLES = {
    "dme-eden": Table(
        "dme",
        {
            "bits": "{bits}",
            "encode, ms (GB/s)": "{encode_ms:.0f} ({encode_gb_per_second:.2f})",
            "decode, ms (GB/s)": "{decode_ms:.0f} ({decode_gb_per_second:.2f})",
            "encode, times faster than torch": spread("encode_speedup", ".1f"),
            "decode, times faster": spread("decode_speedup", ".1f"),
            "NMSE normal: ours / torch": "{nmse_normal[ours]:.5f} / {nmse_normal[torch]:.5f}",
            "NMSE t(3): ours / torch": "{nmse_t3[ours]:.5f} / {nmse_t3[torch]:.5f}",
        },
        {"section": "eden"},
    ),
    "dme-schemes": Table(
        "dme",
        {
            "scheme": "`{scheme}`",
            "encode, x memcpy": spread("encode_over_memcpy", ".1f"),
            "decode, x memcpy": spread("decode_over_memcpy", ".1f"),
            "encode GB/s": "{encode_gb_per_second:.2f}",
            "decode GB/s": "{decode_gb_per_second:.2f}",
            "bits per value": "{bits_per_value:.3f}",
            "NMSE": "{nmse:.5f}",
        },
        {"section": "schemes"},
    ),
    "dme-paper-gaussian": Table(
        "lab_dme",
        {
            "scheme": "`{scheme}`",
            "bits per value": "{bits_per_value:.2f}",
            "10 clients": _error("Gaussian", 10),
            "bound, 10 clients": _bound("Gaussian"),
            "100 clients": _error("Gaussian", 100),
        },
        {"data": "Gaussian", "scheme": SCHEMES},
        ("scheme", "measured"),
    ),
    "dme-paper-unbalanced": Table(
        "lab_dme",
        {
            "scheme": "`{scheme}`",
            "bits per value": "{bits_per_value:.2f}",
            "10 clients": _error("unbalanced", 10),
            "bound, 10 clients": _bound("unbalanced"),
            "100 clients": _error("unbalanced", 100),
        },
        {"data": "unbalanced", "scheme": SCHEMES},
        ("scheme", "measured"),
    ),
    "dme-kmeans": _variants("lab_kmeans", "inertia_above_percent", "inertia above uncompressed"),
    "dme-pca": _variants("lab_pca", "variance_lost_percent", "explained variance lost"),
    "estimators": Table(
        "estimators",
        {
            "partitions": "{partitions}",
            "scheme": "`{scheme}`",
            "bits per value": "{bits_per_value:.2f}",
            "inertia": "{inertia_percent:+.3f}%",
            "rounds, KMeans": "{kmeans_rounds}",
            "variance": "{variance_percent:+.3f}%",
            "rounds, PCA": "{pca_rounds}",
        },
    ),
}
