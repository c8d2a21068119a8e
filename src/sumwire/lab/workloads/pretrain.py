"""Training of published models from random weights, to record their gradients: small images, and Python's own texts."""

from __future__ import annotations

import platform
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

from sumwire.lab.images import FASHION
from sumwire.lab.workloads.base import Data, Workload, evaluating
from sumwire.lab.workloads.data import UNSCORED
from sumwire.lab.workloads.language import UNKNOWN, number_words, read_words
from sumwire.lab.workloads.published import BERT, VGG19, ResNet50
from sumwire.lab.workloads.vision import Vision

HELD = 64
"""Rows of text that are held out."""
MASKED = 0.15
"""The share of words to guess."""


@dataclass(frozen=True, kw_only=True)
class Pretraining(Workload, ABC):
    """A published model that is trained from random weights."""

    @property
    @abstractmethod
    def source(self) -> str:
        """What it is trained on."""


@dataclass(frozen=True, kw_only=True)
class Images(Vision, Pretraining):
    """Images of ten classes, of which the model knows a thousand."""

    network: Callable[[], nn.Module]

    @property
    def source(self) -> str:
        return f"{self.folder.name if self.folder else 'digits'} at {self.pixels}x{self.pixels} pixels"

    def model(self, data: Data) -> nn.Module:
        return self.network()

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        # Without smoothing, the gradients of 990 rows of the last layer would vanish within a few steps.
        return F.cross_entropy(model(inputs), targets, label_smoothing=0.1)


@dataclass(frozen=True, kw_only=True)
class MaskedWords(Pretraining):
    """Masked words, and whether the second half of a row follows the first, as for BERT.

    A row is [CLS] and words of two halves. Its first target says whether its second half follows; the others are the
    masked words.
    """

    network: Callable[[], nn.Module] = BERT
    vocabulary: int = 30522
    context: int = 128
    path: Path | None = None
    """A text file or a folder of texts; None: Python's standard library."""
    rate: float = 1e-4
    """Of learning."""
    metric: str = "loss"

    @property
    def source(self) -> str:
        text = self.path.name if self.path else f"the library of Python {platform.python_version()}"
        return f"{text}, {self.context} words per row"

    def load(self, seed: int) -> Data:
        first, mask = self.vocabulary - 2, self.vocabulary - 1
        words = list(read_words(self.path or Path(sysconfig.get_path("stdlib"))))
        numbers = number_words(words, self.vocabulary - 2)
        stream = torch.tensor([numbers.get(word, UNKNOWN) for word in words])
        random = torch.Generator().manual_seed(seed)
        half = self.context // 2
        rows = stream[: len(stream) // self.context * self.context].reshape(-1, self.context)
        rows = rows[torch.randperm(len(rows), generator=random)]
        follows = torch.rand(len(rows), generator=random) < 0.5
        # Rows are in random order, so any other one's second half does not follow.
        tails = torch.where(follows[:, None], rows[:, half:], rows.roll(1, 0)[:, half:])
        text = torch.cat([rows[:, :half], tails], 1)
        text[:, 0] = first
        masked = torch.rand(text.shape, generator=random) < MASKED
        masked[:, 0] = False
        targets = text.masked_fill(~masked, UNSCORED)
        targets[:, 0] = follows.long()
        inputs = text.masked_fill(masked, mask)
        return Data(inputs[HELD:], targets[HELD:], inputs[:HELD], targets[:HELD], (len(numbers) + 3,))

    def model(self, data: Data) -> nn.Module:
        return self.network()

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        masked = targets != UNSCORED
        masked[:, 0] = False
        words, follows = model(inputs, masked)
        return F.cross_entropy(words, targets[masked]) + F.cross_entropy(follows, targets[:, 0])

    def optimizer(self, model: nn.Module) -> Optimizer:
        return AdamW(model.parameters(), lr=self.rate, weight_decay=0.01)

    def score(self, model: nn.Module, data: Data) -> float:
        with evaluating(model):
            return self.loss(model, data.test_inputs, data.test_targets).item()


_ALL: tuple[Pretraining, ...] = (
    Images(
        name="resnet-50", description="ResNet-50, SGD with momentum", network=ResNet50,
        preferred=FASHION, pixels=64, batch=32, steps=200, rate=0.002,
    ),
    Images(
        name="vgg-19", description="VGG-19 without batch norm, SGD with momentum", network=VGG19,
        preferred=FASHION, pixels=64, batch=32, steps=30, rate=0.003,
    ),
    MaskedWords(
        name="bert-base", description="BERT-base, masked words and next halves of rows, AdamW", batch=8, steps=30,
    ),
)  # fmt: skip

PRETRAINED: Mapping[str, Pretraining] = MappingProxyType({workload.name: workload for workload in _ALL})
"""By the names in `SHAPES`."""
