"""Samples that come with scikit-learn and Python, so that nothing is downloaded."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from sklearn.datasets import load_digits
from torch import Tensor

VOCAB = 256  # the text is bytes
CONTEXT = 64
UNSCORED = -100
"""Target of places that have none; torch's cross-entropy skips it."""


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


def masked_data() -> tuple[Tensor, Tensor]:
    """Windows of the text with 15 % of bytes replaced by a mask, as for BERT; only these have targets."""
    text, _ = text_data()
    masked = torch.rand(text.shape, generator=torch.Generator().manual_seed(0)) < 0.15
    return text.masked_fill(masked, VOCAB), text.masked_fill(~masked, UNSCORED)
