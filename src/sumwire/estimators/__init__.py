"""k-means and PCA with scikit-learn's interface, over partitions that send compressed vectors.

    KMeans(n_clusters=8)                        # rows in this process, in 8 partitions
    KMeans(n_clusters=8, client=client)         # partitions on the workers of a Dask cluster
    PCA(n_components=8, scheme=sumwire.Lattice(workers=100, bits=3), partitions=100)

docs/estimators.md describes what partitions send and what it costs. Needs scikit-learn; Dask is optional.
"""

from sumwire.estimators.kmeans import KMeans
from sumwire.estimators.pca import PCA

__all__ = ["PCA", "KMeans"]
