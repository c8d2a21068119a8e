"""Published models have the tensors of `SHAPES`, and all of them get gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sumwire.lab.workloads.published import BERT, CLASSES, VGG19, ResNet50
from sumwire.lab.workloads.reproducible import reproducible
from sumwire.lab.workloads.shapes import SHAPES

NETWORKS: dict[str, type[nn.Module]] = {"resnet-50": ResNet50, "vgg-19": VGG19, "bert-base": BERT}


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_the_shapes_in_their_order(name: str) -> None:
    with torch.device("meta"):
        model = NETWORKS[name]()
    assert [tuple(parameter.shape) for parameter in model.parameters()] == list(SHAPES[name])


@pytest.mark.parametrize("network", [ResNet50, VGG19])
@pytest.mark.parametrize(("channels", "pixels"), [(1, 32), (3, 64), (3, 224)])
def test_images_of_any_size_get_a_score_for_every_class(network: type[nn.Module], channels: int, pixels: int) -> None:
    with torch.device("meta"):
        assert network()(torch.zeros(2, channels, pixels, pixels)).shape == (2, CLASSES)


def test_every_tensor_of_resnet_gets_a_gradient() -> None:
    with reproducible(0):
        model = ResNet50()
        model(torch.randn(2, 1, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_all_of_bert_gets_a_gradient_but_what_no_row_has() -> None:
    tokens = torch.randint(5, (3, 8), generator=torch.Generator().manual_seed(0))
    scored = torch.zeros(3, 8, dtype=torch.bool)
    scored[0, 2] = scored[2, 5:] = True
    with reproducible(0):
        model = BERT(words=20, places=10, width=64, layers=2)
        words, follows = model(tokens, scored)
        assert (words.shape, follows.shape) == ((4, 20), (3, 2))
        (words.logsumexp(1).sum() + follows.logsumexp(1).sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert model.word.weight.grad is not None
    assert model.word.weight.grad.any(1).all()  # words that are in no row are scored, too
    assert model.place.weight.grad is not None
    assert model.place.weight.grad.any(1).tolist() == [True] * 8 + [False] * 2
    only_pooled = torch.autograd.grad(model(tokens, scored)[1].logsumexp(1).sum(), model.pooler.weight)
    assert only_pooled[0].any()
