"""Networks on small images: a ResNet, and a VGG, whose gradients are partly zero by ReLU and dropout."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from sumwire.errors import ConfigError
from sumwire.lab.images import read_idx
from sumwire.lab.workloads.base import Data, Workload, evaluating
from sumwire.lab.workloads.data import digits_data
from sumwire.lab.workloads.models import build_net

PIXELS = 16
"""Rows and columns that images are scaled to, unless told otherwise.

With 8, the last kernels would see one pixel and much padding.
"""

HELD = 2000
"""Samples that are held out at most: scoring more would take longer than training."""

# VGG-11 (configuration A) with its pooling adapted to 16x16. Multiples of `width`; 0 is a pooling layer.
_LAYERS = (1, 0, 2, 0, 4, 4, 0, 8, 8, 8, 8, 0)


@dataclass(frozen=True, kw_only=True)
class Vision(Workload, ABC):
    """Image classification; without a folder, of the digits of scikit-learn."""

    path: Path | None = None
    """A folder with the idx files of MNIST (gzipped or not)."""
    preferred: Path | None = None
    """Such a folder that is read if it exists."""
    rate: float
    """Of learning."""
    pixels: int = PIXELS
    metric: str = "accuracy"

    @property
    def folder(self) -> Path | None:
        """The folder that is read; None: the digits of scikit-learn."""
        return self.preferred if self.path is None and self.preferred and self.preferred.is_dir() else self.path

    def load(self, seed: int) -> Data:
        images, labels = digits_data() if self.folder is None else read_idx_folder(self.folder)
        images = F.interpolate(images, size=(self.pixels, self.pixels), mode="bilinear", align_corners=False)
        # Digits come sorted by writer. Every seed holds out the same samples.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        held = min(len(images) // 6, HELD)
        rest, test = order[:-held], order[-held:]
        return Data(images[rest], labels[rest], images[test], labels[test], (int(labels.max()) + 1,))

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=self.rate, momentum=0.9)

    def score(self, model: nn.Module, data: Data) -> float:
        with evaluating(model):
            parts = data.test_inputs.split(256)  # type: ignore[no-untyped-call]
            found = torch.cat([model(images).argmax(-1) for images in parts])
        return (found == data.test_targets).float().mean().item()


@dataclass(frozen=True, kw_only=True)
class ResNet(Vision):
    """Three wide residual blocks."""

    def model(self, data: Data) -> nn.Module:
        return build_net(*data.sizes, stride=2)


@dataclass(frozen=True, kw_only=True)
class VGG(Vision):
    """VGG-11: mostly fully connected weights."""

    width: int
    """Channels of the first convolution; the last convolutions have eight times as many."""
    hidden: int
    """Width of the two fully connected layers."""
    dropout: float = 0.5

    def model(self, data: Data) -> nn.Module:
        (classes,) = data.sizes
        layers: list[nn.Module] = []
        inputs = 1
        for share in _LAYERS:
            if share:
                outputs = share * self.width
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
                inputs = outputs
            else:
                layers.append(nn.MaxPool2d(2))
        layers.append(nn.Flatten())
        for outputs in (self.hidden, self.hidden):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(self.dropout)]
            inputs = outputs
        return nn.Sequential(*layers, nn.Linear(inputs, classes))


def read_idx_folder(folder: Path) -> tuple[Tensor, Tensor]:
    """Pixels in -1..1 and labels of the training set."""
    pixels, labels = (_read_idx(folder, f"train-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        raise ConfigError(
            f"{folder} has images of shape {pixels.shape} and labels of shape {labels.shape}: "
            "give a folder whose files belong together"
        )
    return torch.from_numpy(pixels / np.float32(127.5) - 1)[:, None], torch.from_numpy(labels.astype(np.int64))


def _read_idx(folder: Path, name: str) -> NDArray[np.uint8]:
    plain = folder / name
    return read_idx(plain if plain.exists() else folder / f"{name}.gz")
