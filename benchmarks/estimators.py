"""KMeans and PCA with several schemes, on scikit-learn's digits: bits per value, and the loss against none.

python -m benchmarks.estimators
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from sklearn.datasets import load_digits

from sumwire import Lattice, dme
from sumwire.estimators import PCA, KMeans
from sumwire.lab.record import Record, add_option

SCHEMES: dict[str, Callable[[int], Any]] = {
    "None": lambda _: None,
    "Eden(4)": lambda _: dme.Eden(4),
    "Eden(3)": lambda _: dme.Eden(3),
    "Eden(2)": lambda _: dme.Eden(2),
    "Drive()": lambda _: dme.Drive(),
    "Rotated(16)": lambda _: dme.Rotated(16),
    "Correlated(16)": lambda _: dme.Correlated(16),
    "Lattice(P, 4)": lambda partitions: Lattice(partitions, 4),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--partitions", type=int, nargs="+", default=(10, 100))
    options.add_argument("--schemes", nargs="+", choices=SCHEMES, default=[*SCHEMES], help="None always comes first")
    add_option(options)
    given = options.parse_args()
    rows, record = load_digits().data, Record(given.json, seed=0)
    print(
        "| partitions | scheme | bits per value | inertia | rounds, KMeans | variance | rounds, PCA |\n|" + "---|" * 7
    )
    for count in given.partitions:
        base: tuple[float, float] | None = None
        for name in dict.fromkeys(["None", *given.schemes]):
            settings: dict[str, Any] = {"scheme": SCHEMES[name](count), "partitions": count, "random_state": 0}
            means, components = KMeans(10, init=rows[:10], **settings).fit(rows), PCA(10, **settings).fit(rows)
            found = (means.inertia_, float(components.explained_variance_.sum()))
            base = base or found
            more, less = (100 * (own / best - 1) for own, best in zip(found, base, strict=True))
            bits, rounds = means.bits_per_value_, (means.n_iter_, components.n_iter_)
            print(
                f"| {count} | `{name}` | {bits:.2f} | {more:+.3f}% | {rounds[0]} | {less:+.3f}% | {rounds[1]} |",
                flush=True,
            )
            record.add(
                data="scikit-learn's digits",
                partitions=count,
                scheme=name,
                bits_per_value=bits,
                inertia_percent=more,
                kmeans_rounds=rounds[0],
                variance_percent=less,
                pca_rounds=rounds[1],
            )


if __name__ == "__main__":
    main()
