"""k-means on a Dask cluster: rows stay on the workers, which send their clusters' sums in 4 bits a value.

python examples/kmeans_dask.py --rows 400000

The cluster is two processes of this machine; give --scheduler host:port for a real one, whose workers have sumwire.
"""

import argparse

import dask.array as da
import numpy as np
from distributed import Client

from sumwire.estimators import KMeans

FEATURES, CLUSTERS = 128, 16


def around(noise: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """Rows near one middle after the other."""
    return noise + middles[np.arange(len(noise)) % len(middles)]


def make_rows(count: int, chunks: int) -> da.Array:
    """Dask makes the rows where they are needed: they never are in this process."""
    middles = np.random.default_rng(0).normal(size=(CLUSTERS, FEATURES))
    noise = da.random.default_rng(1).normal(size=(count, FEATURES), chunks=(-(-count // chunks), FEATURES))
    return noise.map_blocks(around, middles)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--scheduler", help="of a running cluster; without it, one is started here")
    args = parser.parse_args()

    options = {} if args.scheduler else {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with Client(args.scheduler, **options) as client:
        rows = make_rows(args.rows, args.chunks).persist()
        for name, scheme in (("float64", None), ("4 bits", "auto")):
            model = KMeans(CLUSTERS, scheme=scheme, client=client, random_state=0).fit(rows)
            print(
                f"{name}: inertia {model.inertia_:.6g} after {model.n_iter_} rounds, "
                f"{model.bits_sent_ / 8e6:.2f} MB sent, {model.bits_per_value_:.2f} bits a value"
            )
        sizes = da.bincount(model.labels_, minlength=CLUSTERS)  # labels are lazy, as they may outgrow this machine
        print("rows per cluster:", *sizes.compute())


if __name__ == "__main__":
    main()
