"""Real gradients of real models in mid-training, as data-parallel workers see them.

Nothing is downloaded: the images come with scikit-learn, the text with Python.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pydoc_data.topics import topics
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from sumwire.errors import ConfigError

VOCAB = 256  # the text is bytes
CONTEXT = 64


@dataclass(frozen=True)
class Workload:
    """A model, its data and its optimizer; `steps` is where it is in mid-training.

    `load` returns inputs and class targets with the sample as first dimension;
    the model's last dimension is the class.
    """

    name: str
    description: str
    steps: int
    batch: int
    load: Callable[[], tuple[Tensor, Tensor]]
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]


class BasicBlock(nn.Module):
    """Pre-activation residual block; a wider or strided one projects its shortcut."""

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
    """Causal self-attention, then a four times wider MLP, each behind a LayerNorm."""

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
            # GPT-2's scale: torch's own for embeddings, 1, drowns the first blocks.
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def _mlp() -> nn.Module:
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


def _sgd(rate: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)


def _adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


WORKLOADS: Mapping[str, Workload] = MappingProxyType({
    workload.name: workload
    for workload in (
        Workload(
            "mlp", "MLP 64-256-256-10 on 8x8 digits, SGD with momentum",
            steps=80, batch=32, load=digits_data, model=_mlp, optimizer=_sgd(0.01),
        ),
        Workload(
            "resnet", "pre-activation ResNet-20 on 8x8 digits, SGD with momentum",
            steps=60, batch=32, load=digits_data, model=build_resnet, optimizer=_sgd(0.005),
        ),
        Workload(
            "gpt", "4-layer byte-level GPT on Python's documentation, AdamW",
            steps=500, batch=16, load=text_data, model=GPT, optimizer=_adamw,
        ),
    )
})  # fmt: skip


def draw_batches(samples: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Epochs of shuffled indices, without end; an epoch's short last batch is left."""
    while True:
        order = torch.randperm(samples, generator=generator)
        yield from order[: samples - samples % batch].reshape(-1, batch).unbind()


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    # torch.nn draws initial weights from the global generator. Not torch.manual_seed:
    # it would also reseed the caller's GPUs, which this fork does not restore.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small models gain nothing from more, and stall on a busy machine; sums keep one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


@_one_thread()
def worker_gradients(
    workload: str,
    workers: int,
    *,
    steps: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """Train one model for `steps`, then take each worker's gradient on its own batch.

    A gradient is flat, in the order of `model.parameters()`, and is the loss's alone:
    no momentum, no weight decay. Training and workers use the same `batch`; the
    workers' batches are disjoint. Equal seeds give equal bytes on one machine; torch's
    global random state is left as it was.
    """
    if workload not in WORKLOADS:
        raise ConfigError(f"no workload {workload!r}: choose from {', '.join(WORKLOADS)}")
    chosen = WORKLOADS[workload]
    steps = chosen.steps if steps is None else steps
    batch = chosen.batch if batch is None else batch
    if workers < 1 or batch < 1 or steps < 0:
        raise ConfigError(
            f"cannot take workers={workers}, batch={batch}, steps={steps}: pass workers>=1, batch>=1, steps>=0"
        )
    inputs, targets = chosen.load()
    samples = len(inputs)
    if workers * batch > samples:
        raise ConfigError(
            f"{workers} disjoint batches of {batch} need {workers * batch} samples: "
            f"{workload!r} has {samples}; lower workers or batch so that "
            f"workers*batch<={samples}"
        )

    generator = torch.Generator().manual_seed(seed)
    model = seeded(chosen.model, seed)
    optimizer = chosen.optimizer(model)
    batches = draw_batches(samples, batch, generator)
    for step, rows in enumerate(islice(batches, steps), start=1):
        optimizer.zero_grad()
        loss = loss_of(model, inputs[rows], targets[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if on_step is not None:
            on_step(step, steps)

    gradients: list[NDArray[np.float32]] = []
    # A new shuffle: what is left of the epoch may be too short for all workers.
    for rows in islice(draw_batches(samples, batch, generator), workers):
        loss = loss_of(model, inputs[rows], targets[rows])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]).numpy())
    return gradients
