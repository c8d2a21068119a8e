"""Published models by the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

Shape = tuple[int, ...]


def _resnet50() -> Iterator[Shape]:
    def normed(outputs: int, inputs: int, kernel: int) -> Iterator[Shape]:
        yield from ((outputs, inputs, kernel, kernel), (outputs,), (outputs,))

    yield from normed(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from normed(width, inputs, 1)
            yield from normed(width, width, 3)
            yield from normed(4 * width, width, 1)
            if not block:
                yield from normed(4 * width, inputs, 1)
            inputs = 4 * width
    yield from ((1000, inputs), (1000,))


def _vgg19() -> Iterator[Shape]:
    inputs = 3
    for outputs, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            yield from ((outputs, inputs, 3, 3), (outputs,))
            inputs = outputs
    for outputs, inputs in ((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)):
        yield from ((outputs, inputs), (outputs,))


def _bert_base() -> Iterator[Shape]:
    width, wide = 768, 3072
    norm: tuple[Shape, ...] = ((width,), (width,))
    yield from ((30522, width), (512, width), (2, width), *norm)
    for _ in range(12):
        for _ in range(4):  # query, key, value, output
            yield from ((width, width), (width,))
        yield from (*norm, (wide, width), (wide,), (width, wide), (width,), *norm)
    yield from ((width, width), (width,))


SHAPES: Mapping[str, tuple[Shape, ...]] = MappingProxyType(
    {"resnet-50": tuple(_resnet50()), "vgg-19": tuple(_vgg19()), "bert-base": tuple(_bert_base())}
)
"""Tensors of each model, in its order."""
