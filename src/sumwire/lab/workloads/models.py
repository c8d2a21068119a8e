"""Small networks of the families that papers train: perceptron, ResNet, decoder and encoder transformers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from sumwire.lab.workloads.data import CONTEXT, VOCAB


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
    """Self-attention, then an MLP four times as wide, each after a LayerNorm."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
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
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.project(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Byte-level decoder with learned positions and an untied output layer; an encoder, like BERT, if not causal."""

    def __init__(
        self, *, width: int = 128, layers: int = 4, heads: int = 4, causal: bool = True, tokens: int = VOCAB
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads, causal=causal) for _ in range(layers)))
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


def build_net(classes: int = 10, *, stride: int = 1) -> nn.Module:
    """A ResNet of three wide blocks; larger images want a stride in front of them."""
    layers: list[nn.Module] = [nn.Conv2d(1, 24, 3, stride, padding=1, bias=False)]
    layers += [BasicBlock(24, 24, 1), BasicBlock(24, 48, 2), BasicBlock(48, 96, 2), nn.BatchNorm2d(96), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes))


def build_bert() -> nn.Module:
    return GPT(width=64, layers=2, causal=False, tokens=VOCAB + 1)
