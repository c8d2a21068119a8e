"""Models with gradients that are sparse, or believed to be: recommendation, language, vision."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sumwire.errors import ConfigError
from sumwire.lab.workloads.base import Workload
from sumwire.lab.workloads.language import Language
from sumwire.lab.workloads.recommend import Recommend
from sumwire.lab.workloads.vision import Vision

# He et al. train with batches of 256: here 64 samples from each of four workers.
WORKLOADS: Mapping[str, Workload] = MappingProxyType({
    workload.name: workload
    for workload in (
        Recommend(
            name="ncf", description="NeuMF with wide embeddings on MovieLens-100k, Adagrad",
            factors=6144, width=1536, tower=(128, 64), batch=64, steps=200,
        ),
        Recommend(
            name="ncf-small", description="NeuMF as published, 64 factors, on MovieLens-100k, Adagrad",
            factors=64, width=256, tower=(256, 128, 64), batch=64, steps=500,
        ),
        Recommend(
            name="ncf-rows", description="NeuMF, 64 factors, on MovieLens-100k expanded to 24 times the rows, Adagrad",
            factors=64, width=256, tower=(256, 128, 64), copies=24, batch=64, steps=200,
        ),
        Language(
            name="lstm", description="LSTM with sampled softmax on the words of Python's library, Adagrad",
            vocabulary=20_000, width=512, batch=8, steps=100,
        ),
        Vision(
            name="vgg", description="VGG-11 with batch norm on 8x8 digits scaled to 16x16, SGD with momentum",
            width=64, hidden=4096, batch=16, steps=60,
        ),
    )
})  # fmt: skip


def find(name: str) -> Workload:
    """
    >>> find("ncf").batch
    64
    """
    if name not in WORKLOADS:
        raise ConfigError(f"no workload {name!r}: choose from {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
