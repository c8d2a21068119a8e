"""Small models and their data, and the training tasks of comparisons: optimizer, schedule and target score.

Nothing is downloaded: the images come with scikit-learn, the text with Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sumwire.errors import ConfigError

VOCAB = 256  # the text is bytes
CONTEXT = 64


class BasicBlock(nn.Module):
    """Pre-activation residual block; the shortcut is projected if the block is wider or strided."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        return y + self.shortcut(x)  # type: ignore[no-any-return]


class GPTBlock(nn.Module):
    """Causal self-attention, then an MLP four times as wide, each after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        # (batch, time, 3 * width) -> three of (batch, heads, time, width / heads)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Byte-level decoder with learned positions and an untied output layer."""

    def __init__(self, *, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        for module in self.modules():
            # The scale of GPT-2: torch's default for embeddings, 1, would dominate the first blocks.
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def build_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip


def build_resnet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1, bias=False)]
    inputs = 16
    for outputs, stride in ((16, 1), (32, 2), (64, 2)):
        layers.append(BasicBlock(inputs, outputs, stride))
        layers += [BasicBlock(outputs, outputs, 1) for _ in range(2)]
        inputs = outputs
    layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)]
    return nn.Sequential(*layers)


def digits_data() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)
    # Pixels are counts from 0 to 16.
    return pixels / 8 - 1, torch.tensor(labels, dtype=torch.long)


def text_data() -> tuple[Tensor, Tensor]:
    text = "\n".join(topics[key] for key in sorted(topics)).encode()
    # Windows do not overlap, so disjoint batches share no byte to predict.
    count = (len(text) - 1) // CONTEXT
    stream = torch.tensor(list(text[: count * CONTEXT + 1]))
    return stream[:-1].reshape(count, CONTEXT), stream[1:].reshape(count, CONTEXT)


class Score(NamedTuple):
    """Scores on the held-out samples."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Task:
    """`tests` samples are held out; `batch` is per worker; the model is evaluated after each `every` steps."""

    name: str
    description: str
    load: Callable[[], tuple[Tensor, Tensor]]
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    metric: str
    target: float
    steps: int
    warmup: int
    every: int
    batch: int
    tests: int


class Data(NamedTuple):
    """Shuffled samples, split into training and held-out ones."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


TASKS: Mapping[str, Task] = MappingProxyType({
    task.name: task
    for task in (
        Task(
            "conv", "ResNet-20 on 8x8 digits, SGD with momentum", digits_data, build_resnet,
            lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
            metric="accuracy", target=0.97, steps=150, warmup=10, every=5, batch=8, tests=597,
        ),
        Task(
            "transformer", "3-layer byte-level GPT on Python's documentation, AdamW", text_data,
            lambda: GPT(width=96, layers=3),
            lambda model: AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1),
            # What fp32 reaches after 60 % of its steps (median of seeds 100 to 102).
            metric="loss", target=2.75, steps=200, warmup=20, every=5, batch=4, tests=64,
        ),
    )
})  # fmt: skip


def check_target(task: Task, target: float) -> float:
    """Return the target if it is valid for the task's metric."""
    if task.metric == "accuracy" and not 0 < target <= 1:
        raise ConfigError(f"{target:g} is not an accuracy: give a number above 0 and at most 1 (97 % is 0.97)")
    if not 0 < target < math.inf:
        raise ConfigError(f"{target:g} is not a loss: give a finite number above 0")
    return target


def load(task: Task) -> Data:
    inputs, targets = task.load()
    # Digits come sorted by writer and texts by title. Every seed holds out the same samples.
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    rest, held = order[: -task.tests], order[-task.tests :]
    return Data(inputs[rest], targets[rest], inputs[held], targets[held])


def schedule(task: Task, optimizer: Optimizer, steps: int) -> LambdaLR:
    """Linear warmup, multiplied by a cosine decay that reaches zero at the last step."""
    rise = min(task.warmup, max(1, steps // 4))
    return LambdaLR(optimizer, lambda t: min(1, (t + 1) / rise) * 0.5 * (1 + math.cos(math.pi * min(1, t / steps))))


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> Score:
    model.eval()
    scores = model(data.test_inputs).flatten(0, -2)
    model.train()
    targets = data.test_targets.flatten()
    right = (scores.argmax(-1) == targets).float().mean()
    return Score(right.item(), F.cross_entropy(scores, targets).item())
