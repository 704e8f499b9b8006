"""Our convolutions, norms and rectifiers have torch's values and first and second derivatives."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import shoal
from shoal.gradients import double_backward
from shoal.gradients.double_backward import FastDoubleBackward, _ConvolutionBackward

CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": (F.conv1d, (2, 3, 7), (4, 3, 3), {"padding": 1}),
    "2d": (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 2), {}),
    "stride": (F.conv2d, (2, 3, 7, 7), (4, 3, 3, 3), {"stride": 2, "padding": (1, 2)}),
    "dilation": (F.conv2d, (2, 3, 8, 8), (4, 3, 2, 2), {"dilation": (2, 1), "stride": (1, 2)}),
    "groups": (F.conv2d, (2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": (F.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "1 x 1": (F.conv2d, (2, 4, 5, 5), (3, 4, 1, 1), {"stride": 2}),
    "3d": (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), {"padding": 1}),
    "same": (F.conv2d, (2, 3, 5, 5), (4, 3, 3, 3), {"padding": "same"}),
    "one image": (F.conv2d, (3, 5, 5), (4, 3, 3, 3), {}),
    "one number": (F.conv2d, (2, 3, 6, 6), (4, 3, 3, 3), {"stride": (2,), "padding": (1,)}),
}


def tensors(x: tuple[int, ...], w: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (x, w, w[:1])
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_both_derivatives(case: str, bias: bool) -> None:
    function, x_shape, w_shape, options = CASES[case]
    leaves = tensors(x_shape, w_shape)[: 3 if bias else 2]

    def ours(*leaves: Tensor) -> Tensor:
        with FastDoubleBackward():
            return function(*leaves, **options).sin()

    found, expected = ours(*leaves), function(*leaves, **options).sin()
    torch.testing.assert_close(found, expected)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    totals = []
    for out in (found, expected):
        first = torch.autograd.grad((out * weights).sum(), leaves, create_graph=True)
        # A different weight for each entry, so that no error cancels.
        total = sum((g * torch.arange(g.numel()).reshape(g.shape).cos()).sum() for g in first)
        totals.append([*first, *torch.autograd.grad(total, leaves, allow_unused=True)])
    for mine, theirs in zip(*totals, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_only_wanted_gradients_are_computed(wanted: tuple[bool, bool]) -> None:
    x, w, _ = tensors((2, 3, 5, 5), (4, 3, 3, 3))
    x.requires_grad_(wanted[0])
    w.requires_grad_(wanted[1])
    leaf = x if wanted[0] else w
    grads = []
    for mode in (True, False):
        if mode:
            with FastDoubleBackward():
                out = F.conv2d(x, w).square()
        else:
            out = F.conv2d(x, w).square()
        (first,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
        grads.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("affine", [True, False])
def test_frozen_batch_norm(affine: bool) -> None:
    norm = nn.BatchNorm2d(3, affine=affine).double().eval()
    nn.init.uniform_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    if affine:
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
    x = tensors((4, 3, 2, 2), (1, 1, 1, 1))[0]
    leaves = [x, *norm.parameters()]
    found = []
    for ours in (True, False):
        if ours:
            with FastDoubleBackward():
                out = norm(x)
        else:
            out = norm(x)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        found.append([out, *first, *second])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_training_batch_norm_is_left_to_torch() -> None:
    norm, twin = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = torch.randn(5, 3)
    with FastDoubleBackward():
        found = norm(x)
    assert torch.equal(found, twin(x))
    assert torch.equal(norm.running_mean, twin.running_mean)


HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


def network() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6).eval()
    nn.init.uniform_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    nn.init.uniform_(norm.weight)
    convs = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2, groups=6, bias=False)
    return nn.Sequential(convs[0], norm, nn.ReLU6(inplace=True), convs[1])


def derivatives(mode: Any, dtype: torch.dtype | None) -> Any:
    """Return the value, and both derivatives as one vector each, under autocast to ``dtype``."""
    net, x = network(), torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    leaves = [x.requires_grad_(), *net.parameters()]
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None), mode:
        out = net(x)
    first = torch.autograd.grad(out.float().square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    return out, *(torch.cat([g.flatten() for g in grads]) for grads in (first, second))


@HALVES
def test_our_derivatives_are_used_under_autocast(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for kind in (double_backward._ConvolutionBackward, double_backward._NormBackward):
        backward = kind.backward
        noting = staticmethod(lambda *a, back=backward, k=kind: calls.append(k) or back(*a))
        monkeypatch.setattr(kind, "backward", noting)
    out, *ours = derivatives(FastDoubleBackward(), dtype)
    assert calls.count(double_backward._ConvolutionBackward) == 2
    assert calls.count(double_backward._NormBackward) == 1
    their_out, *theirs = derivatives(nullcontext(), dtype)
    _, *exact = derivatives(nullcontext(), None)
    with torch.autocast("cpu", dtype), FastDoubleBackward():
        assert network()[:1](torch.randn(1, 3, 8, 8)).dtype == dtype  # with its bias
    assert out.dtype == dtype
    close = 2e-2 if dtype == torch.bfloat16 else 4e-3
    torch.testing.assert_close(out, their_out, rtol=close, atol=close)  # a bias comes after
    for mine, torchs, truth in zip(ours, theirs, exact, strict=True):
        size = truth.norm()
        assert mine.dtype == torch.float32
        assert 0 < (mine - truth).norm() < max(close * size, 1.5 * (torchs - truth).norm())


def test_double_precision_is_not_cast() -> None:
    x, w, _ = tensors((2, 3, 5, 5), (4, 3, 3, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16), FastDoubleBackward():
        assert F.conv2d(x, w).dtype == torch.float64


def test_statistics_of_a_convolutional_network_use_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    backward = _ConvolutionBackward.backward
    monkeypatch.setattr(
        _ConvolutionBackward, "backward", staticmethod(lambda *a: calls.append(1) or backward(*a))
    )
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)).double()
    x, y = torch.randn(6, 2, 5, 5, dtype=torch.float64), torch.arange(6) % 2
    rows = shoal.gradient_mean(net, x, y, torch.arange(6) // 3)
    shoal.spread(rows).backward()
    assert calls


def test_third_derivatives() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)).double()
    x, y = torch.randn(4, 2, 5, 5, dtype=torch.float64), torch.arange(4) % 2
    weights = list(net.parameters())
    found = []
    for ours in (True, False):
        with FastDoubleBackward() if ours else nullcontext():
            loss = F.cross_entropy(net(x), y)
        for _ in range(2):
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            loss = sum(g.square().sum() for g in grads)
        found.append(torch.autograd.grad(loss, weights))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_frozen_batch_norm_keeps_precision_and_eps() -> None:
    norm = nn.BatchNorm2d(3, eps=0.1).eval()
    x = torch.randn(2, 3, 2, 2)
    with FastDoubleBackward():
        assert norm(x.bfloat16()).dtype == torch.bfloat16
        torch.testing.assert_close(norm(x), x / 1.1**0.5)


def test_checkpoints_and_torch_func_are_left_to_torch() -> None:
    x, w = torch.randn(2, 3, 5, 5, requires_grad=True), torch.randn(4, 3, 3, 3)
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2).eval())
    with FastDoubleBackward():
        assert F.conv2d(input=x, weight=w).shape == (2, 4, 3, 3)
        gradient = torch.func.grad(lambda v: F.conv2d(v, w).square().sum())(x)
        assert gradient.shape == x.shape
        assert F.conv2d(x.detach().to(torch.complex64), w.to(torch.complex64)).is_complex()
        out = checkpoint(net, x, use_reentrant=False)
    out.square().sum().backward()  # runs again, outside
    assert x.grad is not None


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ["relu", "relu6", "torch.relu", "method"])
def test_rectifiers_keep_their_values_and_both_derivatives(name: str, inplace: bool) -> None:
    functions: dict[str, Any] = {
        "relu": lambda x: F.relu(x, inplace=inplace),
        "relu6": lambda x: F.relu6(x, inplace=inplace),
        "torch.relu": torch.relu_ if inplace else torch.relu,
        "method": Tensor.relu_ if inplace else Tensor.relu,
    }
    x = torch.linspace(-4, 9, 27, dtype=torch.float64).requires_grad_()
    found = []
    for mode in (FastDoubleBackward(), nullcontext()):
        with mode:
            out = functions[name](x * x.abs() / 3).square()
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * x.cos()).sum(), x)
        found.append((out.detach(), first.detach(), second))
    torch.testing.assert_close(*found)
    at_an_end = found[0][1] == 0
    assert at_an_end.any()
    assert not at_an_end.all()
