"""Neural collaborative filtering on MovieLens-100k: NeuMF, with non-zero gradients only for users and items of a batch.

He et al., "Neural Collaborative Filtering" (2017). The ratings come with the package recbole, which is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adagrad, Optimizer

from sumwire.errors import ConfigError
from sumwire.lab.workloads.base import Data, Workload, evaluating

VARIABLE = "SUMWIRE_ML100K"
"""Environment variable with the path of the ratings."""

NEGATIVES = 4
"""Unrated items per rating, drawn once."""

CANDIDATES = 100
"""A test ranks a user's last item among this many, the others unrated; it is a hit if it is in the first `TOP`."""
TOP = 10

Integers = NDArray[np.int64]


class NeuMF(nn.Module):
    """The product of two embeddings, concatenated with an MLP over two others; one logit per pair."""

    def __init__(
        self, users: int, items: int, *, factors: int, width: int, tower: Sequence[int], sparse: bool = False
    ) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(users, factors, sparse=sparse)
        self.item_factors = nn.Embedding(items, factors, sparse=sparse)
        self.user_features = nn.Embedding(users, width, sparse=sparse)
        self.item_features = nn.Embedding(items, width, sparse=sparse)
        layers: list[nn.Module] = []
        for inputs, outputs in zip((2 * width, *tower), tower, strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.tower = nn.Sequential(*layers)
        self.head = nn.Linear(factors + tower[-1], 1)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.01)

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = pairs.unbind(-1)
        product = self.user_factors(users) * self.item_factors(items)
        features = torch.cat([self.user_features(users), self.item_features(items)], dim=-1)
        return self.head(torch.cat([product, self.tower(features)], dim=-1)).squeeze(-1)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Recommend(Workload):
    """Prediction of which items a user has rated."""

    factors: int
    """Width of the embeddings that are multiplied."""
    width: int
    """Width of the embeddings that enter the MLP."""
    tower: tuple[int, ...]
    sparse: bool = False
    """Whether torch represents gradients of embeddings as sparse tensors; their values are the same."""
    copies: int = 1
    """Multiplier of users, items and ratings; see `expand`."""
    path: Path | None = None
    """File of ratings; None: from the environment variable, otherwise from recbole."""
    metric: str = f"hit rate at {TOP}"

    def load(self, seed: int) -> Data:
        ratings = read_ratings(self.path or find_ratings())
        users, items = (int(ratings[:, column].max()) + 1 for column in (0, 1))
        random = np.random.default_rng(seed)
        rest, last = leave_one_out(ratings)
        liked = expand(rest, self.copies, users, items, random)
        sizes = (self.copies * users, self.copies * items)
        # A test positive must not be drawn as a negative, nor a training positive as a test negative.
        known = np.unique(np.concatenate([_keys(liked, sizes[1]), _keys(last, sizes[1])]))
        disliked = draw_others(np.repeat(liked[:, 0], NEGATIVES), known, sizes[1], random)
        others = draw_others(np.repeat(last[:, 0], CANDIDATES - 1), known, sizes[1], random)
        tests = np.concatenate([last[:, None], others.reshape(len(last), -1, 2)], axis=1)
        return Data(
            # int32 halves the memory: there may be many copies.
            torch.from_numpy(np.concatenate([liked, disliked]).astype(np.int32)),
            torch.cat([torch.ones(len(liked)), torch.zeros(len(disliked))]),
            torch.from_numpy(tests.astype(np.int32)),
            torch.zeros(len(tests), dtype=torch.long),
            sizes,
        )

    def model(self, data: Data) -> nn.Module:
        users, items = data.sizes
        return NeuMF(users, items, factors=self.factors, width=self.width, tower=self.tower, sparse=self.sparse)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(inputs), targets)

    def optimizer(self, model: nn.Module) -> Optimizer:
        # Adagrad does not change rows without gradient, so that sparse and dense gradients train alike.
        return Adagrad(model.parameters(), lr=0.02)

    def score(self, model: nn.Module, data: Data) -> float:
        with evaluating(model):
            # Wide embeddings of all candidates at once would take gigabytes.
            parts = data.test_inputs.split(32)  # type: ignore[no-untyped-call]
            logits = torch.cat([model(pairs) for pairs in parts])
        # Ties count against the model.
        better = (logits[:, 1:] >= logits[:, :1]).sum(1)
        return (better < TOP).float().mean().item()


def find_ratings() -> Path:
    """Path of ml-100k.inter."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    spec = find_spec("recbole")
    for folder in spec.submodule_search_locations or () if spec else ():
        return Path(folder, "dataset_example", "ml-100k", "ml-100k.inter")
    raise ConfigError(
        "the MovieLens-100k ratings come with the package recbole, which is not installed: "
        f"pip install --no-deps recbole, or give the path of ml-100k.inter (or u.data) in {VARIABLE}"
    )


def read_ratings(path: Path) -> Integers:
    """Rows of user, item and time; users and items numbered from 0. File columns: user, item, rating, time."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        lines = lines[1:] if lines and lines[0].startswith("user_id") else lines
        if not lines:
            raise ValueError("it is empty")
        table = np.loadtxt(lines, np.int64, delimiter="\t", usecols=(0, 1, 3))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read MovieLens ratings from {path} ({error}): give ml-100k.inter of recbole or u.data of "
            f"MovieLens in {VARIABLE}"
        ) from error
    for column in (0, 1):
        table[:, column] = np.unique(table[:, column], return_inverse=True)[1]
    return table


def leave_one_out(ratings: Integers) -> tuple[Integers, Integers]:
    """All pairs of user and item except the last of each user, and those last pairs."""
    order = np.lexsort((ratings[:, 1], ratings[:, 2], ratings[:, 0]))
    pairs = ratings[order, :2]
    last = np.append(pairs[1:, 0] != pairs[:-1, 0], True)
    return pairs[~last], pairs[last]


def expand(pairs: Integers, copies: int, users: int, items: int, random: np.random.Generator) -> Integers:
    """Repeat every pair `copies` times, each time between random copies of its user and its item.

    Ratings of few users say little about tables with many rows, so MLPerf expands MovieLens, too. Users and
    items keep their shares of the ratings.
    """
    if copies == 1:
        return pairs
    many = np.tile(pairs, (copies, 1))
    many[:, 0] += users * random.integers(0, copies, len(many))
    many[:, 1] += items * random.integers(0, copies, len(many))
    return many


def draw_others(users: Integers, known: Integers, items: int, random: np.random.Generator) -> Integers:
    """For each user a random item, such that the pair is not known."""
    pairs = np.stack([users, random.integers(0, items, len(users))], axis=1)
    wrong = np.arange(len(pairs))
    while len(wrong := wrong[_among(_keys(pairs[wrong], items), known)]):
        pairs[wrong, 1] = random.integers(0, items, len(wrong))
    return pairs


def _keys(pairs: Integers, items: int) -> Integers:
    return pairs[:, 0] * items + pairs[:, 1]


def _among(keys: Integers, known: Integers) -> NDArray[np.bool_]:
    places = np.searchsorted(known, keys)
    return np.asarray(known[np.minimum(places, len(known) - 1)] == keys)
