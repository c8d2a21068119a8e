"""A word-level LSTM language model with sampled softmax: gradients touch the rows of words that were seen or drawn.

The text is the source of Python's own library, so that nothing is downloaded, or any other by path.
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
from sumwire.lab.workloads.base import Data, Workload, judging

UNKNOWN = 0
"""Word 0 stands for all that are not in the vocabulary; the others are in order of frequency."""

SUFFIXES = (".py", ".txt", ".md", ".rst")

# Letters, single digits, single signs: an identifier is several words.
_WORD = re.compile(r"[^\W\d_]+|\d|[^\w\s]")


class WordModel(nn.Module):
    """Embedding, LSTM, and an output layer of which training computes only some rows.

    Called with inputs and targets it gives the sampled softmax loss, called with inputs the scores of all words.
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
        """Cross-entropy whose normalizer is estimated from words drawn for the whole batch, by importance sampling."""
        # Zipf's law: floor(exp(uniform)) has word k with probability log(1 + 1/(k+1)) / log(words+1).
        uniform = torch.rand(self.samples, dtype=torch.float64)
        drawn = ((uniform * math.log(self.words + 1)).exp().long() - 1).clamp_(max=self.words - 1)
        rows = torch.cat([targets, drawn])
        weights, biases = self.output(rows), self.bias(rows).squeeze(-1)
        count = len(targets)
        right = (states * weights[:count]).sum(-1) + biases[:count]
        wrong = states @ weights[count:].T + biases[count:] - self._log_expected(drawn)
        # The target is in the sum already.
        wrong = wrong.masked_fill(drawn == targets[:, None], -math.inf)
        loss: Tensor = (torch.cat([right[:, None], wrong], 1).logsumexp(1) - right).mean()
        return loss

    def _log_expected(self, words: Tensor) -> Tensor:
        """How often words are drawn."""
        return torch.log(self.samples * torch.log1p(1 / (words + 1.0)) / math.log(self.words + 1))


@dataclass(frozen=True, kw_only=True)
class Language(Workload):
    """The next word of a text."""

    vocabulary: int
    """Words at most; those that come once are left to `UNKNOWN`."""
    width: int
    layers: int = 1
    samples: int = 512
    """Words drawn for each batch."""
    context: int = 32
    tests: int = 256
    """Windows held out."""
    sparse: bool = False
    """Whether torch represents gradients of embeddings as sparse tensors; their values are the same."""
    path: Path | None = None
    """A text, or a folder of texts; None: Python's library."""
    metric = "loss"

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
        # Windows do not overlap; files are in order of name, so shuffle them. Every seed holds out the same.
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
        # Leaves alone what has no gradient, so that sparse and dense tensors train alike.
        return Adagrad(model.parameters(), lr=0.01)

    def score(self, model: nn.Module, data: Data) -> float:
        with judging(model):
            # The scores of all words at all places would take gigabytes.
            pairs = zip(data.test_inputs.unbind(), data.test_targets.unbind(), strict=True)
            losses = [F.cross_entropy(model(inputs[None])[0], targets) for inputs, targets in pairs]
        return torch.stack(losses).mean().item()


def read_words(path: Path) -> Iterator[str]:
    """The words of a file, or of a folder's texts in order of name; installed packages and tests are left out."""
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
    """Numbers from 1 for the most frequent words, so many at most with `UNKNOWN`, of those that come twice."""
    counts = sorted(((-count, word) for word, count in Counter(words).items() if count > 1))
    return {word: number for number, (_, word) in enumerate(counts[: vocabulary - 1], start=1)}
