"""A word-level LSTM language model with sampled softmax: gradients are non-zero for words in the batch or the sample.

The default text is the source of Python's standard library, so that nothing is downloaded.
"""

from __future__ import annotations

import math
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adagrad, Optimizer

from sumwire.errors import ConfigError
from sumwire.lab.workloads.base import Data, Workload, evaluating

UNKNOWN = 0
"""Index of all words outside the vocabulary; the other words are ordered by frequency."""

SUFFIXES = (".py", ".txt", ".md", ".rst")

# Runs of letters, single digits, single symbols: an identifier is several words.
_WORD = re.compile(r"[^\W\d_]+|\d|[^\w\s]")


class WordModel(nn.Module):
    """Embedding, LSTM, and an output layer of which training computes only some rows.

    Called with inputs and targets, it returns the sampled softmax loss; with inputs only, the scores of all words.
    """

    def __init__(self, words: int, *, width: int, layers: int, samples: int, sparse: bool = False) -> None:
        super().__init__()
        self.words, self.samples = words, samples
        self.embedding = nn.Embedding(words, width, sparse=sparse)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.output = nn.Embedding(words, width, sparse=sparse)
        self.bias = nn.Embedding(words, 1, sparse=sparse)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.normal_(self.output.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        states: Tensor = self.lstm(self.embedding(inputs))[0]
        if targets is None:
            return states @ self.output.weight.T + self.bias.weight.squeeze(-1)
        return self._sampled(states.flatten(0, 1), targets.flatten())

    def _sampled(self, states: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with a normalizer estimated by importance sampling; a batch shares the sampled words."""
        # Zipf's law: floor(exp(uniform)) gives word k with probability log(1 + 1/(k+1)) / log(words+1).
        uniform = torch.rand(self.samples, dtype=torch.float64)
        drawn = ((uniform * math.log(self.words + 1)).exp().long() - 1).clamp_(max=self.words - 1)
        rows = torch.cat([targets, drawn])
        weights, biases = self.output(rows), self.bias(rows).squeeze(-1)
        count = len(targets)
        right = (states * weights[:count]).sum(-1) + biases[:count]
        wrong = states @ weights[count:].T + biases[count:] - self._log_expected(drawn)
        # The target is already in the sum.
        wrong = wrong.masked_fill(drawn == targets[:, None], -math.inf)
        loss: Tensor = (torch.cat([right[:, None], wrong], 1).logsumexp(1) - right).mean()
        return loss

    def _log_expected(self, words: Tensor) -> Tensor:
        """Log of the expected number of draws of each word."""
        return torch.log(self.samples * torch.log1p(1 / (words + 1.0)) / math.log(self.words + 1))


@dataclass(frozen=True, kw_only=True)
class Language(Workload):
    """Prediction of the next word of a text."""

    vocabulary: int
    """Maximum number of words; words that occur once become `UNKNOWN`."""
    width: int
    layers: int = 1
    samples: int = 512
    """Words sampled per batch."""
    context: int = 32
    tests: int = 256
    """Number of held-out windows."""
    sparse: bool = False
    """Whether torch represents gradients of embeddings as sparse tensors; their values are the same."""
    path: Path | None = None
    """A text file or a folder of texts; None: Python's standard library."""
    metric: str = "loss"

    def load(self, seed: int) -> Data:
        words = list(read_words(self.path or Path(sysconfig.get_path("stdlib"))))
        count = (len(words) - 1) // self.context
        if count < 2 * self.tests:
            raise ConfigError(
                f"{self.path} has {len(words)} words, {2 * self.tests * self.context + 1} are needed: give more text "
                f"in files that end in {', '.join(SUFFIXES)}, or lower tests or context"
            )
        numbers = number_words(words, self.vocabulary)
        stream = torch.tensor([numbers.get(word, UNKNOWN) for word in words[: count * self.context + 1]])
        # Windows do not overlap. Files are sorted by name, so shuffle. Every seed holds out the same windows.
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        inputs = stream[:-1].reshape(count, -1)[order]
        targets = stream[1:].reshape(count, -1)[order]
        test = slice(count - self.tests, None)
        rest = slice(0, count - self.tests)
        return Data(inputs[rest], targets[rest], inputs[test], targets[test], (len(numbers) + 1,))

    def model(self, data: Data) -> nn.Module:
        (words,) = data.sizes
        return WordModel(words, width=self.width, layers=self.layers, samples=self.samples, sparse=self.sparse)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return model(inputs, targets)  # type: ignore[no-any-return]

    def optimizer(self, model: nn.Module) -> Optimizer:
        # Adagrad does not change rows without gradient, so that sparse and dense gradients train alike.
        return Adagrad(model.parameters(), lr=0.01)

    def score(self, model: nn.Module, data: Data) -> float:
        with evaluating(model):
            # The scores of all words at all positions would take gigabytes.
            pairs = zip(data.test_inputs.unbind(), data.test_targets.unbind(), strict=True)
            losses = [F.cross_entropy(model(inputs[None])[0], targets) for inputs, targets in pairs]
        return torch.stack(losses).mean().item()


def read_words(path: Path) -> Iterator[str]:
    """The words of a file, or of the texts in a folder, sorted by name, without installed packages and tests."""
    if path.is_dir():
        skipped = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
        found = (file.relative_to(path) for file in path.rglob("*") if file.suffix in SUFFIXES)
        files = sorted(file for file in found if not skipped & set(file.parts))
    else:
        path, files = path.parent, [Path(path.name)]
    for file in files:
        try:
            text = (path / file).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"cannot read the text {path / file} ({error}): give another path") from error
        yield from _WORD.findall(text.lower())


def number_words(words: list[str], vocabulary: int) -> dict[str, int]:
    """Indices from 1 for the most frequent words that occur more than once; at most `vocabulary` with `UNKNOWN`."""
    counts = sorted(((-count, word) for word, count in Counter(words).items() if count > 1))
    return {word: number for number, (_, word) in enumerate(counts[: vocabulary - 1], start=1)}
