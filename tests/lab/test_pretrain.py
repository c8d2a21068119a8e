"""What published models are trained on before their gradients are recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sumwire
from sumwire.lab.workloads.data import UNSCORED
from sumwire.lab.workloads.language import number_words, read_words
from sumwire.lab.workloads.pretrain import PRETRAINED
from sumwire.lab.workloads.published import BERT
from sumwire.lab.workloads.reproducible import reproducible
from sumwire.lab.workloads.shapes import SHAPES

# The options of a variant are those of its class, which `replace` cannot see.
change: Any = replace

TEXT = Path(sumwire.__file__).parent / "codec"
WORDS, CONTEXT = 300, 16
BERT_TASK = change(
    PRETRAINED["bert-base"], rate=2e-3, vocabulary=WORDS, context=CONTEXT, path=TEXT,
    network=lambda: BERT(words=WORDS, places=CONTEXT, width=64, layers=1),
)  # fmt: skip


def test_every_published_model_is_trained() -> None:
    assert list(PRETRAINED) == list(SHAPES)
    assert all(workload.name == name for name, workload in PRETRAINED.items())


def test_rows_of_text_have_masked_words_and_second_halves_that_may_follow() -> None:
    data = BERT_TASK.load(0)
    words = list(read_words(TEXT))
    numbers = number_words(words, WORDS - 2)
    stream = [numbers.get(word, 0) for word in words]
    rows = {tuple(stream[start + 1 : start + CONTEXT]) for start in range(0, len(stream), CONTEXT)}

    assert data.inputs.shape == data.targets.shape
    assert (data.inputs[:, 0] == WORDS - 2).all()
    masked = data.inputs == WORDS - 1
    assert masked[:, 1:].float().mean().item() == pytest.approx(0.15, abs=0.01)
    assert torch.equal(masked[:, 1:], data.targets[:, 1:] != UNSCORED)
    text = torch.where(masked, data.targets, data.inputs)[:, 1:]
    follows = data.targets[:, 0]
    assert follows.float().mean().item() == pytest.approx(0.5, abs=0.05)
    # Two rows of one file may end alike.
    right = torch.tensor([tuple(row) in rows for row in text.tolist()])
    assert right[follows == 1].all()
    assert right[follows == 0].float().mean() < 0.02


def test_loss_counts_masked_words_and_halves() -> None:
    data = BERT_TASK.load(0)
    scored: list[torch.Tensor] = []

    class Sure(torch.nn.Module):
        """Knows the words, and says that every second half follows."""

        def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scored.append(places)
            known = torch.nn.functional.one_hot(targets[places], WORDS) * 100.0
            return known, torch.tensor([[0.0, 100.0]]).expand(len(tokens), 2)

    targets = data.targets[:8]
    found = BERT_TASK.loss(Sure(), data.inputs[:8], targets)
    assert torch.equal(scored[0], data.inputs[:8] == WORDS - 1)
    assert found.item() == pytest.approx(100 * (targets[:, 0] == 0).float().mean().item())


def test_bert_learns() -> None:
    data = BERT_TASK.load(0)
    with reproducible(0):
        model = BERT_TASK.model(data)
        before = BERT_TASK.score(model, data)
        optimizer = BERT_TASK.optimizer(model)
        for rows in torch.arange(320).split(16):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            BERT_TASK.loss(model, data.inputs[rows], data.targets[rows]).backward()
            optimizer.step()
        assert BERT_TASK.score(model, data) < 0.95 * before


def test_images_are_read_from_the_folder_that_is_there(tmp_path: Path) -> None:
    task = change(PRETRAINED["vgg-19"], preferred=tmp_path / "missing", pixels=40)
    data = task.load(0)
    assert data.inputs.shape[1:] == (1, 40, 40)
    assert data.sizes == (10,)
    assert task.source == "digits at 40x40 pixels"
    assert change(task, preferred=tmp_path).source == f"{tmp_path.name} at 40x40 pixels"
    assert BERT_TASK.source == "codec, 16 words per row"


def test_classes_without_images_keep_gradients() -> None:
    task = PRETRAINED["resnet-50"]
    scores = torch.full((2, 1000), -50.0)
    scores[:, :10] = 0
    scores.requires_grad_()
    task.loss(torch.nn.Identity(), scores, torch.tensor([0, 1])).backward()
    assert scores.grad is not None
    assert torch.allclose(scores.grad[:, 10:], torch.tensor(-0.1 / 1000 / 2))
