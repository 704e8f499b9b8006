"""Kernels for a GPU: equal to torch's layers, value and gradient; used only where they apply."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from shoal.gradients.double_backward import twice_differentiable
from shoal.networks import efficientnet_lite0, mobilenet_v2, resnet
from shoal.networks.gpu_kernels import (
    depthwise,
    first_convolution,
    norm_activation,
    relu_group_norm,
)
from shoal.randomness import stream

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

# Side of the filter, padding (left, right, top, bottom; None where the convolution pads), channels,
# height and width: one tile and several, with channels and columns that do not fill them.
CONVOLUTIONS = [
    (3, (0, 1, 0, 1), 96, 12, 14),
    (5, (1, 2, 1, 2), 144, 35, 70),
    (3, (2, 1, 0, 1), 33, 9, 8),
    (3, None, 24, 17, 19),
    (5, None, 16, 7, 40),
    (3, None, 8, 1, 2),
    (5, (2, 1, 1, 2), 40, 70, 7),
]
ACTIVATIONS = [nn.ReLU6(), nn.ReLU(), None]
KERNELS = (
    "_FirstConvolutionBackward",
    "_NormActivationBackward",
    "_ReLUGroupNormBackward",
    "_StridedDepthwiseBackward",
    "_WholeDepthwiseBackward",
)


def images(*shape: int) -> Tensor:
    found = torch.randn(*shape, generator=stream("kernels", *shape)).cuda()
    return found.contiguous(memory_format=torch.channels_last).requires_grad_()


def random_norm(channels: int) -> nn.BatchNorm2d:
    norm, draws = nn.BatchNorm2d(channels), stream("norm", channels)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2, generator=draws)
        norm.bias.normal_(generator=draws)
        norm.running_mean.normal_(generator=draws)
        norm.running_var.uniform_(0.2, 3, generator=draws)
    return norm.cuda().eval()


def padded(side: int, padding: tuple[int, ...], channels: int) -> nn.Sequential:
    layer = nn.Conv2d(channels, channels, side, 2, groups=channels, bias=False)
    return nn.Sequential(nn.ZeroPad2d(padding), layer).cuda()


def kernel_of(output: Tensor) -> bool:
    """Return whether the output comes from a kernel of ours."""
    return type(output.grad_fn).__name__ in KERNELS


def compare(
    ours: Tensor,
    plain: Tensor,
    weights: list[Tensor],
    draw: Callable[..., Tensor] = torch.randn,
) -> None:
    """Compare values and gradients; in float64 the plain ones are the truth.

    Args:
        draw: returns the gradient of the output.
    """
    torch.testing.assert_close(ours.double(), plain, rtol=1e-5, atol=1e-5)
    slopes = draw(ours.shape, generator=stream("slopes")).cuda()
    found = torch.autograd.grad(ours, weights, slopes)
    truth = torch.autograd.grad(plain, weights, slopes.double())
    for ours, plain in zip(found, truth, strict=True):
        assert ours.dtype == torch.float32
        error = torch.linalg.vector_norm(ours - plain) / torch.linalg.vector_norm(plain)
        assert error < 1e-6


@needs_gpu
@pytest.mark.parametrize(("side", "padding", "channels", "height", "width"), CONVOLUTIONS)
def test_a_strided_depthwise_convolution(
    side: int, padding: tuple[int, ...] | None, channels: int, height: int, width: int
) -> None:
    x, around = images(3, channels, height, width), side // 2
    layer: nn.Module
    if padding is None:
        layer = nn.Conv2d(channels, channels, side, 2, around, groups=channels, bias=False).cuda()
        weight, padding = layer.weight, (around,) * 4
    else:
        layer = padded(side, padding, channels)
        weight = layer[1].weight
    ours = depthwise(layer, x)
    assert kernel_of(ours) and ours.is_contiguous(memory_format=torch.channels_last)
    pad = torch.nn.functional.pad(x.double(), padding)
    plain = torch.nn.functional.conv2d(pad, weight.double(), stride=2, groups=channels)
    compare(ours, plain, [x, weight])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("side", [3, 5])
def test_a_depthwise_convolution_with_a_stride_of_one(
    side: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16, with numbers so small and whole that nothing is rounded."""
    if device == "cpu":
        monkeypatch.setattr("shoal.networks.gpu_kernels._apply_to", lambda *_: True)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=stream("whole", *shape)).float().to(device)

    layer = nn.Conv2d(12, 12, side, padding=side // 2, groups=12, bias=False).to(device)
    with torch.no_grad():
        layer.weight.copy_(whole(12, 1, side, side))
    x = whole(1, 12, 6, 9).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    ours = depthwise(layer, x)
    assert kernel_of(ours)
    weight, slopes = layer.weight, whole(1, 12, 6, 9)
    plain = torch.nn.functional.conv2d(x.double(), weight.double(), padding=side // 2, groups=12)
    assert torch.equal(ours.double(), plain)
    found = torch.autograd.grad(ours, [x, weight], slopes.to(ours.dtype))
    truth = torch.autograd.grad(plain, [x, weight], slopes.double())
    assert all(map(torch.equal, found, truth))


# Channels, outputs, side of the filter, the padding of either layer, height and width.
FIRST = [
    (3, 32, 3, (0, 1, 0, 1), 0, (20, 300)),
    (3, 32, 3, None, 1, (33, 31)),
    (3, 64, 7, None, 3, (21, 40)),
    (1, 16, 5, (2, 1, 1, 2), 0, (9, 8)),
]


@needs_gpu
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize(("channels", "outputs", "side", "padding", "own", "sides"), FIRST)
def test_the_convolution_of_images(
    channels: int,
    outputs: int,
    side: int,
    padding: tuple[int, ...] | None,
    own: int,
    sides: tuple[int, int],
    stored: str,
) -> None:
    """In bf16, with numbers so small and whole that nothing is rounded."""

    def whole(*shape: int, most: int = 2) -> Tensor:
        draws = stream("first", *shape)
        return torch.randint(-most, most + 1, shape, generator=draws).float().cuda()

    layer = nn.Conv2d(channels, outputs, side, 2, own, bias=False).cuda()
    x = whole(2, channels, *sides).to(getattr(torch, stored))
    x = x.contiguous(memory_format=torch.channels_last)
    for layout in (torch.contiguous_format, torch.channels_last):
        layer = layer.to(memory_format=layout)
        with torch.no_grad():
            layer.weight.copy_(whole(*layer.weight.shape, most=1))
        both = layer if padding is None else nn.Sequential(nn.ZeroPad2d(padding), layer)
        with torch.autocast("cuda", torch.bfloat16):
            ours = first_convolution(both, x)
            theirs = first_convolution(both, x.clone().requires_grad_())
        assert kernel_of(ours) and not kernel_of(theirs)
        assert ours.is_contiguous(memory_format=torch.channels_last)
        pad = torch.nn.functional.pad(x.double(), padding or (0, 0))
        plain = torch.nn.functional.conv2d(pad, layer.weight.double(), stride=2, padding=own)
        assert ours.dtype == torch.bfloat16 and torch.equal(ours, plain.to(ours.dtype))
        slopes = whole(*plain.shape)
        (found,) = torch.autograd.grad(ours, layer.weight, slopes.to(ours.dtype))
        (truth,) = torch.autograd.grad(plain, layer.weight, slopes.double())
        assert torch.equal(found, truth)
    assert not kernel_of(first_convolution(layer, x.float()))  # torch's own precision
    handle = layer.register_forward_hook(lambda *_: None)
    with torch.autocast("cuda", torch.bfloat16):
        assert not kernel_of(first_convolution(layer, x))
    handle.remove()


@needs_gpu
@pytest.mark.parametrize("many", [0, 10**6])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize(("channels", "side"), [(36, 5), (32, 40), (1, 3), (144, 20)])
def test_a_frozen_norm_with_its_activation(
    channels: int,
    side: int,
    activation: nn.Module | None,
    adds: bool,
    many: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.networks.gpu_kernels.MANY", many)
    x, norm = images(4, channels, side, side + 1), random_norm(channels)
    added = 3 * images(4, channels, side, side + 1).detach().roll(1, 0) if adds else None
    if added is not None:
        added = added.contiguous(memory_format=torch.channels_last).requires_grad_()
    ours = norm_activation(norm, activation, x, added)
    assert kernel_of(ours)
    shape = (1, -1, 1, 1)
    rate = (norm.running_var.double() + norm.eps).rsqrt()
    plain = (x.double() - norm.running_mean.view(shape)) * rate.view(shape)
    plain = plain * norm.weight.double().view(shape) + norm.bias.double().view(shape)
    plain = plain if added is None else plain + added.double()
    plain = plain if activation is None else activation(plain)
    # Above 0, so that the sums over pixels do not cancel, which would amplify every rounding.
    given = [x, norm.weight, norm.bias, *([] if added is None else [added])]
    compare(ours, plain, given, torch.rand)


@needs_gpu
@pytest.mark.parametrize(("channels", "groups", "side"), [(64, 8, 28), (128, 8, 14), (24, 3, 5)])
def test_a_relu_with_its_group_norm(channels: int, groups: int, side: int) -> None:
    norm, draws = nn.GroupNorm(groups, channels), stream("group norm", channels)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2, generator=draws)
        norm.bias.normal_(generator=draws)
    norm.cuda()
    x = images(5, channels, side, side).detach().contiguous().requires_grad_()
    ours = relu_group_norm(nn.ReLU(), norm, x)
    assert kernel_of(ours)
    weight, bias = norm.weight.double(), norm.bias.double()
    plain = nn.functional.group_norm(x.double().relu(), groups, weight, bias, norm.eps)
    compare(ours, plain, [x, norm.weight, norm.bias])
    with torch.autocast("cuda", torch.bfloat16):
        half = relu_group_norm(nn.ReLU(), norm, x.bfloat16())
    assert half.dtype == torch.float32 and kernel_of(half)
    last = images(5, channels, side, side)
    assert not kernel_of(relu_group_norm(nn.ReLU(), norm, last))


@needs_gpu
def test_where_they_do_not_apply_the_layers_run_themselves() -> None:
    x, norm, layers = images(2, 8, 6, 6), random_norm(8), padded(3, (0, 1, 0, 1), 8)

    def used(inputs: Tensor = x) -> list[bool]:
        found = norm_activation(norm, nn.ReLU6(), inputs), depthwise(layers, inputs)
        return [kernel_of(output) for output in found]

    assert used() == [True, True]
    assert used(x.detach().contiguous().requires_grad_()) == [False, False]
    norm.double(), layers.double()
    assert used(x.double()) == [False, False]
    norm.float(), layers.float()
    with twice_differentiable(layers):
        assert used() == [False, False]
    norm.train()
    assert used() == [False, True]
    norm.eval()
    handles = [part.register_forward_hook(lambda *_: None) for part in (norm, layers[1])]
    assert used() == [False, False]
    for handle in handles:
        handle.remove()
    with pytest.raises(RuntimeError, match="once_differentiable"):
        total = norm_activation(norm, None, x).square().sum()
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        slope.sum().backward()


def gradients_of(network: nn.Module, images: Tensor, half: bool = False) -> list[Tensor]:
    """Return the gradient of every weight."""
    device = images.device.type
    with torch.autocast(device, torch.bfloat16, enabled=half):
        logits = network(images)
    labels = torch.arange(len(images), device=device) % 5
    loss = nn.functional.cross_entropy(logits.to(images.dtype), labels)
    found = torch.autograd.grad(loss, list(network.parameters()))
    return [one.double().cpu() for one in found]


def distance(found: list[Tensor], truth: list[Tensor]) -> float:
    """Return the relative error of a weight's gradient, its mean over all weights."""
    norm = torch.linalg.vector_norm
    errors = [norm(one - other) / norm(other) for one, other in zip(found, truth, strict=True)]
    return float(torch.stack(errors).mean())


@needs_gpu
@pytest.mark.parametrize("name", ["efficientnet-lite0", "mobilenet-v2", "resnet50"])
def test_a_whole_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 and in bf16 as near to float64 on a CPU as the layers of torch are."""
    draws = stream("whole")
    if name == "resnet50":
        network = resnet(50, 3, 5, generator=draws)
    elif name == "mobilenet-v2":
        network = mobilenet_v2(3, 5, generator=draws)
    else:
        network = efficientnet_lite0(5, pretrained=False, generator=draws)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d) and name != "resnet50":
            part.running_var.fill_(0.35)  # smaller ones amplify every rounding
    inputs = torch.randn(6, 3, 64, 64, generator=stream("inputs"))
    truth = gradients_of(deepcopy(network).double(), inputs.double())
    network = network.cuda().to(memory_format=torch.channels_last)
    inputs = inputs.cuda().contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    ours = [gradients_of(network, inputs, half) for half in (False, True)]
    monkeypatch.setattr("shoal.networks.gpu_kernels.triton", None)
    plain = [gradients_of(network, inputs, half) for half in (False, True)]
    for mine, theirs in zip(ours, plain, strict=True):
        assert not all(map(torch.equal, mine, theirs))
        errors = [distance(one, truth) for one in (mine, theirs)]
        # A rectifier that one rounding moves over its corner changes a gradient by some 1e-4.
        assert errors[0] < max(1.5 * errors[1], 1e-3)
        assert errors[1] < 0.4


@needs_gpu
def test_the_same_bits_every_time() -> None:
    x, norm, layers = images(64, 32, 56, 56), random_norm(32), padded(3, (0, 1, 0, 1), 32)
    last = nn.Conv2d(32, 32, 5, padding=2, groups=32, bias=False).cuda()

    def gradients() -> list[Tensor]:
        out = depthwise(layers, norm_activation(norm, nn.ReLU6(), x))
        out = depthwise(last, out.bfloat16())
        weights = [x, norm.weight, norm.bias, layers[1].weight, last.weight]
        return list(torch.autograd.grad(out.square().sum(), weights))

    first = gradients()
    assert all(map(torch.equal, first, gradients()))

    stem, pixels = nn.Conv2d(3, 32, 3, 2, 1, bias=False).cuda(), images(64, 3, 56, 56).detach()

    def gradient() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = first_convolution(stem, pixels)
        return torch.autograd.grad(out.float().square().sum(), stem.weight)[0]

    assert torch.equal(gradient(), gradient())
