"""Individual gradients of bf16 tensors: products of bf16 numbers, statistics in float32."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.gradients import collect, materialised
from shoal.gradients.convolutions import ConvolutionGradients
from shoal.gradients.domains import SortedDomains
from shoal.gradients.layers import FrozenNormGradients
from shoal.gradients.materialised import MaterialisedGradients

CONVOLUTIONS = {
    "1 x 1": nn.Conv2d(6, 4, 1, bias=False),
    "1 x 1, stride": nn.Conv2d(6, 4, 1, stride=2, bias=False),
    "3 x 3": nn.Conv2d(6, 4, 3, stride=2, padding=1, bias=False),
    "groups": nn.Conv2d(6, 4, 3, groups=2, bias=False),
    "one sided": nn.Conv1d(6, 4, 2, padding="same", bias=False),
}
CASES = [(name, last) for name in CONVOLUTIONS for last in (False, True) if name != "one sided"]
CASES += [("one sided", False), ("norm", False), ("norm", True)]
# Equal and unequal domains take different code paths.
GROUPS = [(3, 3), (4, 2)]


def make(name: str, last: bool) -> tuple[MaterialisedGradients, list[Tensor]]:
    """Return a source, and z and r in bf16 that are nearly the same for all examples."""
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(6).eval() if name == "norm" else CONVOLUTIONS[name]
    if isinstance(layer, nn.BatchNorm2d):
        nn.init.uniform_(layer.running_mean)
        nn.init.uniform_(layer.running_var, 0.5, 2.0)
    z = torch.randn(1, 6, 7) if name == "one sided" else torch.randn(1, 6, 7, 7)
    z = (z + 0.1 * torch.randn(6, *z.shape[1:])).bfloat16()
    shape = layer(z[:1].float()).shape
    r = (torch.randn(shape) + 0.1 * torch.randn(6, *shape[1:])).bfloat16()
    pair = [t.contiguous(memory_format=torch.channels_last) if last else t for t in (z, r)]
    source = FrozenNormGradients(layer) if name == "norm" else ConvolutionGradients(layer)
    return source, [t.requires_grad_() for t in pair]


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("sizes", GROUPS)
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("as_on_a_gpu", [True, False])
@pytest.mark.parametrize(("name", "last"), CASES)
def test_moments_are_those_of_double_precision(
    name: str,
    last: bool,
    as_on_a_gpu: bool,
    centered: bool,
    sizes: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (materialised, materialised):
        monkeypatch.setattr(module, "in_one_pass", lambda g, centered: centered and as_on_a_gpu)
    source, tensors = make(name, last)
    groups = SortedDomains(sizes, torch.device("cpu"))
    g = source.individual([t.detach().double() for t in tensors])
    parts = g.split(sizes)
    mean = torch.stack([part.mean(0) for part in parts])
    deviations = [part - row * centered for part, row in zip(parts, mean, strict=True)]
    expected = mean, torch.stack([part.square().sum(0) for part in deviations])
    found = source.moments(tensors, groups, centered)
    for ours, truth in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert distance(ours, truth) < 1e-5  # gradients in bf16 would be 1e-2 away


@pytest.mark.parametrize("sizes", GROUPS)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize(("name", "last"), CASES)
def test_cotangents_are_bf16_and_differ_by_its_rounding_alone(
    name: str, last: bool, centered: bool, keep: bool, sizes: tuple[int, ...]
) -> None:
    source, tensors = make(name, last)
    groups = SortedDomains(sizes, torch.device("cpu"))
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    c = torch.rand(2, source.size, dtype=torch.float64)
    mean = source.moments(doubles, groups, True)[0] if centered else None
    kept = source.cached(tensors, groups) if keep else None
    found = source.pull_back(
        tensors, groups, c.float(), None if mean is None else mean.float(), kept
    )
    g = source.individual(doubles)
    held = 0 if mean is None else groups.expand(mean)
    truth = torch.autograd.grad((groups.expand(c) * (g - held).square()).sum() / 2, doubles)
    for ours, true, tensor in zip(found, truth, tensors, strict=True):
        assert ours is not None
        assert ours.dtype == torch.bfloat16
        assert ours.shape == tensor.shape
        assert distance(ours, true) < 1e-2
    if last and name != "groups":
        assert found[1].is_contiguous(memory_format=torch.channels_last)  # as r is


def test_autocast_passes_bf16_to_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """No float32 copy of the activations is made, and no weight falls back on torch.func."""
    monkeypatch.setattr(collect, "individual_gradients", None)
    seen: dict[type, set[Any]] = {}
    for kind in (ConvolutionGradients, FrozenNormGradients):

        def noting(
            self: MaterialisedGradients, tensors: Any, *rest: Any, kind: Any = kind, **how: Any
        ) -> Any:
            seen.setdefault(kind, set()).update(t.dtype for t in tensors)
            assert not torch.is_autocast_enabled("cpu"), "products would be rounded"
            return MaterialisedGradients.moments(self, tensors, *rest, **how)

        monkeypatch.setattr(kind, "moments", noting, raising=False)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(36, 2)
    ).eval()
    images, labels, domains = torch.randn(6, 3, 5, 5), torch.arange(6) % 2, torch.arange(6) // 3
    with torch.autocast("cpu", torch.bfloat16):
        rows = shoal.gradient_variance(model, images, labels, domains)
    assert rows.dtype == torch.float32
    assert seen == {kind: {torch.bfloat16} for kind in (ConvolutionGradients, FrozenNormGradients)}
