"""Published models in plain torch, with the parameters of `SHAPES` in its order: to record their gradients from.

ResNet-50 (with the stride in 3x3 convolutions, as torchvision has it), VGG-19 without batch norm, and BERT-base.
Images may be gray, and of any size from 32x32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 1000


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions; the first block of a stage projects its shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, *, project: bool) -> None:
        super().__init__()
        self.reduce = _normed(inputs, width, 1)
        self.convolve = _normed(width, width, 3, stride)
        self.widen = _normed(width, 4 * width, 1)
        self.shortcut: nn.Module = _normed(inputs, 4 * width, 1, stride) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.widen(F.relu(self.convolve(F.relu(self.reduce(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        inputs = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, 1 if block else stride, project=not block))
                inputs = 4 * width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
        self.layers = nn.Sequential(*layers)
        _initialize_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.expand(-1, 3, -1, -1))  # type: ignore[no-any-return]


class VGG19(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        # What 224x224 pixels give; smaller images are repeated.
        layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
        inputs *= 7 * 7
        for outputs in (4096, 4096):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(0.5)]
            inputs = outputs
        self.layers = nn.Sequential(*layers, nn.Linear(inputs, CLASSES))
        _initialize_convolutions(self)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.expand(-1, 3, -1, -1))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Self-attention, then an MLP four times as wide, each followed by a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        # (batch, time, width) -> (batch, heads, time, width / heads)
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout.p if self.training else 0.0)
        x = self.norm1(x + self.dropout(self.output(mixed.transpose(1, 2).flatten(-2))))
        return self.norm2(x + self.dropout(self.narrow(F.gelu(self.wide(x)))))  # type: ignore[no-any-return]


class BERT(nn.Module):
    """The encoder and pooler of BERT-base, and heads that have no parameters of their own.

    Masked words are scored by the word embeddings; whether the second half follows the first, by the two segment
    embeddings, from the pooled state of the first place. (BERT has a matrix for that, a further layer and a bias for
    words; `SHAPES` does not.)
    """

    def __init__(self, *, words: int = 30522, places: int = 512, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.place = nn.Embedding(places, width)
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.Sequential(*(Layer(width, width // 64) for _ in range(layers)))
        self.pooler = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of all words at the places where `scored` is true, and of the two answers for each row of tokens."""
        count = tokens.shape[1]
        second = (torch.arange(count, device=tokens.device) >= count // 2).long()
        x = self.word(tokens) + self.place.weight[:count] + self.segment(second)
        x = self.layers(self.dropout(self.norm(x)))
        follows = torch.tanh(self.pooler(x[:, 0])) @ self.segment.weight.T
        return x[scored] @ self.word.weight.T, follows


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def _initialize_convolutions(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
