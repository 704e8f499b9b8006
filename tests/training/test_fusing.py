"""Compiled group norms: torch's values and gradients, and images that stay as they lie."""

import pytest
import torch
from torch import Tensor, nn

from shoal.training.step import fuse

LAYOUTS = {"rows": torch.contiguous_format, "channels last": torch.channels_last}


def network(dtype: torch.dtype, affine: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 8, eps=0.1, affine=affine)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), norm, nn.Conv2d(8, 4, 3))
    if affine:
        nn.init.uniform_(norm.weight, -2, 2)
        nn.init.uniform_(norm.bias, -2, 2)
    return layers.to(dtype)


def value_and_gradients(layers: nn.Module, of: nn.Module, images: Tensor) -> list[Tensor]:
    found = layers(images)
    return [found, *torch.autograd.grad(found.square().sum(), list(of.parameters()))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("affine", [True, False])
def test_a_compiled_group_norm_is_torchs(affine: bool, layout: str) -> None:
    plain, fused = network(torch.float64, affine), network(torch.float64, affine)
    fuse(fused)
    images = torch.randn(5, 3, 6, 7, dtype=torch.float64).to(memory_format=LAYOUTS[layout])
    expected = value_and_gradients(plain, plain, images)
    found = value_and_gradients(torch.compile(fused, backend="aot_eager"), fused, images)
    for mine, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-10, atol=1e-10)


def test_a_compiled_group_norm_of_vectors_is_torchs() -> None:
    norm, vectors = nn.GroupNorm(2, 8), torch.randn(5, 8)
    expected = norm(vectors)
    fuse(norm)
    torch.testing.assert_close(torch.compile(norm, backend="aot_eager")(vectors), expected)


def test_compiled_images_stay_channels_last() -> None:
    norm = network(torch.float32)[2]
    fuse(norm)
    images = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    compiled = torch.compile(norm, backend="aot_eager")
    assert compiled(images).is_contiguous(memory_format=torch.channels_last)
    assert type(norm) is nn.GroupNorm  # what is known of its gradients holds


def test_eager_group_norms_are_torchs_bit_for_bit() -> None:
    plain, fused = network(torch.float32), network(torch.float32)
    fuse(fused)
    images = torch.randn(2, 3, 6, 6)
    assert torch.equal(plain(images), fused(images))


@pytest.mark.parametrize("cast", [True, False])
def test_half_precision_is_normalised_in_float32(cast: bool) -> None:
    """To what type it is rounded afterwards is torch's choice."""
    norm = nn.GroupNorm(1, 2, dtype=torch.float32 if cast else torch.bfloat16)
    images = (1000 + 8 * torch.randn(3, 2, 5, 5)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        expected = norm(images)
        fuse(norm)
        found = torch.compile(norm, backend="aot_eager")(images)
    assert found.dtype == expected.dtype
    precise = nn.GroupNorm(1, 2)(images.float())
    near = 1e-4 if found.dtype == torch.float32 else 1e-2
    assert (found - precise).abs().max() < near
