"""All workloads by name."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sumwire.errors import ConfigError
from sumwire.lab.images import FASHION
from sumwire.lab.workloads.base import Workload
from sumwire.lab.workloads.classify import Classify, adamw, sgd
from sumwire.lab.workloads.data import digits_data, masked_data, text_data
from sumwire.lab.workloads.language import Language
from sumwire.lab.workloads.models import GPT, build_bert, build_mlp, build_net, build_resnet
from sumwire.lab.workloads.recommend import Recommend
from sumwire.lab.workloads.trace import Trace
from sumwire.lab.workloads.vision import VGG, ResNet

_ALL: tuple[Workload, ...] = (
    # Compared over links, to a target.
    Classify(
        name="conv", description="ResNet-20 on 8x8 digits, SGD with momentum",
        samples=digits_data, network=build_resnet, optimize=sgd(0.05),
        batch=8, steps=150, warmup=10, tests=597, target=0.97,
    ),
    Classify(
        name="transformer", description="3-layer byte-level GPT on Python's documentation, AdamW",
        samples=text_data, network=lambda: GPT(width=96, layers=3), optimize=adamw(2e-3),
        # What fp32 reaches after 60 % of its steps (median of seeds 100 to 102).
        batch=4, steps=200, warmup=20, tests=64, metric="loss", target=2.75,
    ),
    # Trained by many methods in one process: 2 to 20 ms for the step of one worker on one core.
    Classify(
        name="cnn", description="ResNet of three blocks on 8x8 digits, SGD with momentum",
        samples=digits_data, network=build_net, optimize=sgd(0.05),
        batch=8, steps=160, warmup=10, tests=597,
    ),
    ResNet(
        name="cnn-small",
        description="ResNet of three blocks on Fashion-MNIST if it is installed, otherwise digits, at 16x16, SGD with "
        "momentum",
        preferred=FASHION, batch=8, steps=160, warmup=10, rate=0.05,
    ),
    VGG(
        name="vgg-small",
        description="narrow VGG-11 on Fashion-MNIST if it is installed, otherwise digits, at 16x16, SGD with momentum",
        width=8, hidden=128, preferred=FASHION, batch=8, steps=160, warmup=10, rate=0.02,
    ),
    Classify(
        name="gpt-small", description="2-layer byte-level GPT on Python's documentation, AdamW",
        samples=text_data, network=lambda: GPT(width=64, layers=2), optimize=adamw(2e-3),
        batch=2, steps=400, warmup=40, tests=512, metric="loss",
    ),
    Classify(
        name="bert", description="2-layer byte-level encoder of masked text, Python's documentation, AdamW",
        samples=masked_data, network=build_bert, optimize=adamw(2e-3),
        batch=4, steps=400, warmup=40, tests=256, metric="loss",
    ),
    Recommend(
        name="ncf-tiny", description="NeuMF, 8 factors, on MovieLens-100k, Adagrad",
        factors=8, width=16, tower=(32, 16), batch=256, steps=300,
    ),
    Language(
        name="lstm-small", description="LSTM with sampled softmax on the words of Python's documentation, Adagrad",
        vocabulary=2000, width=48, samples=128, batch=4, steps=200, tests=64, path=Path(pydoc_data.topics.__file__),
    ),
    Classify(
        name="perceptron", description="MLP 64-256-256-10 on 8x8 digits, held-out samples, SGD with momentum",
        samples=digits_data, network=build_mlp, optimize=sgd(0.05), batch=8, steps=150, warmup=10, tests=597,
    ),
    # Their gradients are taken in mid-training.
    Classify(
        name="mlp", description="MLP 64-256-256-10 on 8x8 digits, SGD with momentum",
        samples=digits_data, network=build_mlp, optimize=sgd(0.01), batch=32, steps=80,
    ),
    Classify(
        name="resnet", description="pre-activation ResNet-20 on 8x8 digits, SGD with momentum",
        samples=digits_data, network=build_resnet, optimize=sgd(0.005), batch=32, steps=60,
    ),
    Classify(
        name="gpt", description="4-layer byte-level GPT on Python's documentation, AdamW",
        samples=text_data, network=GPT, optimize=adamw(1e-3), batch=16, steps=500, metric="loss",
    ),
    # Gradients are sparse, or believed to be.
    # He et al. train with batches of 256: here 64 samples from each of four workers.
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
    VGG(
        name="vgg", description="VGG-11 with batch norm on 8x8 digits scaled to 16x16, SGD with momentum",
        width=64, hidden=4096, batch=16, steps=60, rate=0.002,
    ),
    # Exchanges at true sizes.
    Trace(name="trace-resnet-50", description="the tensors of ResNet-50, recorded gradients, SGD", shapes="resnet-50"),
    Trace(name="trace-vgg-19", description="the tensors of VGG-19, recorded gradients, SGD", shapes="vgg-19"),
    Trace(name="trace-bert-base", description="the tensors of BERT-base, recorded gradients, SGD", shapes="bert-base"),
)  # fmt: skip

WORKLOADS: Mapping[str, Workload] = MappingProxyType({workload.name: workload for workload in _ALL})

TARGETS = tuple(workload.name for workload in _ALL if workload.target is not None)
"""Those that comparisons over links train to a target."""
DENSE = ("mlp", "resnet", "gpt")
SPARSE = ("ncf", "ncf-small", "ncf-rows", "lstm", "vgg")
"""Those whose gradients are measured as dense vectors, and by their non-zero values."""
TRACES = ("trace-resnet-50", "trace-vgg-19", "trace-bert-base")
"""Those whose steps are nothing but an exchange."""
TRAINED = ("gpt-small", "cnn-small", "ncf-tiny", "lstm-small", "vgg-small", "bert")
"""Those that experiments train by many methods; "perceptron" is for long runs and many workers."""


def find(name: str) -> Workload:
    """
    >>> find("ncf").batch
    64
    """
    if name not in WORKLOADS:
        raise ConfigError(f"no workload {name!r}: choose from {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
