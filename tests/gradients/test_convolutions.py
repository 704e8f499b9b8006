"""Individual gradients of depthwise convolutions, against a loop over examples."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.gradients.convolutions import DepthwiseGradients

LAYOUTS = (torch.contiguous_format, torch.channels_last)
CASES: dict[str, dict[str, Any]] = {
    "even padding": {"kernel_size": 3, "padding": 1, "stride": 2},
    "no padding": {"kernel_size": (3, 2)},
    "other padding on each axis": {"kernel_size": 5, "padding": (2, 1)},
    "uneven padding": {"kernel_size": 4, "padding": "same"},
    "dilated": {"kernel_size": 3, "padding": 2, "dilation": 2},
    "two outputs of an input": {"kernel_size": 3, "padding": 1, "multiplier": 2},
}


def make_case(
    case: dict[str, Any], layout: torch.memory_format, dtype: torch.dtype = torch.float64
) -> tuple[nn.Conv2d, Tensor, Tensor]:
    """Return a convolution of 3 channels, its input and a gradient of its output."""
    case = dict(case)
    outputs = 3 * case.pop("multiplier", 1)
    torch.manual_seed(0)
    module = nn.Conv2d(3, outputs, groups=3, bias=False, dtype=torch.float64, **case)
    z = torch.randn(4, 3, 7, 6, dtype=torch.float64)
    r = torch.randn(module(z).shape, dtype=torch.float64)
    return module, z.to(dtype, memory_format=layout), r.to(dtype, memory_format=layout)


def one_by_one(module: nn.Conv2d, z: Tensor, r: Tensor) -> Tensor:
    """Return g_i from one backward for each example."""
    return torch.stack(
        [
            torch.autograd.grad((module(z[[i]]) * r[[i]]).sum(), module.weight, create_graph=True)[
                0
            ].flatten()
            for i in range(len(z))
        ]
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients(case: dict[str, Any], layout: torch.memory_format) -> None:
    module, z, r = make_case(case, layout)
    z.requires_grad_(), r.requires_grad_()
    expected = one_by_one(module, z, r)
    c = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, (z, r), c)
    source = DepthwiseGradients(module)
    torch.testing.assert_close(source.individual([z, r]), expected)
    g, vjp = source.forward_and_vjp([z, r], None)
    torch.testing.assert_close(g, expected)
    torch.testing.assert_close(vjp(c), wanted)
    # Also with a cached g, and with a gradient in only one of the two.
    torch.testing.assert_close(source.forward_and_vjp([z, r], g)[1](c), wanted)
    d_z, d_r = source.forward_and_vjp([z.detach(), r], g)[1](c)
    assert d_z is None
    torch.testing.assert_close(d_r, wanted[1])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gradients_have_the_memory_format_of_their_tensors(layout: torch.memory_format) -> None:
    """Sums of gradients in another memory format are several times slower on a GPU."""
    module, z, r = make_case(CASES["even padding"], layout, torch.bfloat16)
    g, vjp = DepthwiseGradients(module).forward_and_vjp(
        [z.requires_grad_(), r.requires_grad_()], None
    )
    assert g.dtype == torch.float32
    for of, found in zip((z, r), vjp(g), strict=True):
        assert found is not None
        assert (found.dtype, found.stride()) == (of.dtype, of.stride())


def test_statistics_of_bf16_images_are_not_rounded() -> None:
    module, z, r = make_case(CASES["even padding"], torch.channels_last, torch.bfloat16)
    expected = one_by_one(module, z.double(), r.double()).detach()
    found = DepthwiseGradients(module).values([z, r])
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
