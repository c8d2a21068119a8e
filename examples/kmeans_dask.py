"""k-means on a Dask cluster: rows stay on the workers, which send the sums of their clusters with 4 bits per value.

python examples/kmeans_dask.py --rows 400000

The cluster is two processes on this machine. For a real cluster whose workers have sumwire, give --scheduler host:port.
"""

import argparse

import dask.array as da
import numpy as np
from distributed import Client

from sumwire.estimators import KMeans

FEATURES, CLUSTERS = 128, 16


def around(noise: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Rows around the centers, each center in turn."""
    return noise + centers[np.arange(len(noise)) % len(centers)]


def make_rows(count: int, chunks: int) -> da.Array:
    """Dask creates the rows on the workers; they are never in this process."""
    centers = np.random.default_rng(0).normal(size=(CLUSTERS, FEATURES))
    noise = da.random.default_rng(1).normal(size=(count, FEATURES), chunks=(-(-count // chunks), FEATURES))
    return noise.map_blocks(around, centers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--scheduler", help="address of a running cluster; by default, one is started here")
    args = parser.parse_args()

    options = {} if args.scheduler else {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with Client(args.scheduler, **options) as client:
        rows = make_rows(args.rows, args.chunks).persist()
        for name, scheme in (("float64", None), ("4 bits", "auto")):
            model = KMeans(CLUSTERS, scheme=scheme, client=client, random_state=0).fit(rows)
            print(
                f"{name}: inertia {model.inertia_:.6g} after {model.n_iter_} rounds, "
                f"{model.bits_sent_ / 8e6:.2f} MB sent, {model.bits_per_value_:.2f} bits per value"
            )
        sizes = da.bincount(model.labels_, minlength=CLUSTERS)  # labels are lazy, because they may not fit this machine
        print("rows per cluster:", *sizes.compute())


if __name__ == "__main__":
    main()
