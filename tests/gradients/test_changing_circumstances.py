"""Changes between calls, or between a forward and its backward, are noticed or harmless."""

import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from shoal.gradients.precision import rounding
from tests.oracles import autograd as oracle

N, E = 9, 3
DOMAINS = torch.arange(N) % E
LABELS = torch.arange(N) % 2


def truth(model: nn.Module, inputs: Tensor) -> Tensor:
    losses = []
    for i in range(N):
        losses.append(F.cross_entropy(model(inputs[i : i + 1]), LABELS[i : i + 1]))
    rows = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    g = torch.stack([torch.cat([p.flatten() for p in row]) for row in rows])
    return torch.stack([g[e == DOMAINS].var(0) for e in range(E)])


class Clips(nn.Module):
    """A convolution on clips [n, t, 2, L] whose frames are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(2, 3, 2), nn.Linear(3, 2)

    def forward(self, clips: Tensor) -> Tensor:
        frames = torch.tanh(self.conv(clips.flatten(0, 1))).mean(-1)
        return self.head(frames.unflatten(0, clips.shape[:2]).mean(1))


def test_frames_instead_of_examples_are_noticed_on_every_call() -> None:
    torch.manual_seed(0)
    model = Clips().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for frames in (1, 1, 3, 3, 1, 2):
            clips = torch.randn(N, frames, 2, 5, dtype=torch.float64)
            v = shoal.gradient_variance(model, clips, LABELS, DOMAINS)
            torch.testing.assert_close(v, truth(model, clips), **oracle.VALUE)


def mlp(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 2)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("statistic", [shoal.gradient_variance, shoal.gradient_mean])
@pytest.mark.parametrize("changed", ["weights", "inputs"])
def test_a_change_before_the_second_pass_is_an_error(
    changed: str, statistic: Callable[..., Tensor]
) -> None:
    model, inputs = mlp(), torch.randn(N, 4, dtype=torch.float64)
    domains = DOMAINS.sort().values  # so that the examples are not copied
    value = statistic(model, inputs, LABELS, domains, chunk_size=2).square().sum()
    with torch.no_grad():
        (model[0].weight if changed == "weights" else inputs).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_the_second_pass_runs_in_the_mode_of_the_first() -> None:
    model, inputs = mlp(dropout=0.5), torch.randn(N, 4, dtype=torch.float64)

    def gradient(switch: bool) -> Tensor:
        torch.manual_seed(1)
        model.train()
        v = shoal.gradient_variance(model, inputs, LABELS, DOMAINS, chunk_size=2)
        model.train(not switch)
        (found,) = torch.autograd.grad(v.square().sum(), [model[0].weight])
        assert model.training is not switch
        return found

    torch.testing.assert_close(gradient(True), gradient(False))


def test_freezing_a_layer_between_the_passes_is_harmless() -> None:
    model, inputs = mlp(), torch.randn(N, 4, dtype=torch.float64)
    v = shoal.gradient_variance(model, inputs, LABELS, DOMAINS, chunk_size=2)
    model[0].requires_grad_(False)
    v.square().sum().backward()
    assert model[3].weight.grad is not None


class Scaled(nn.Module):
    """A weight that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 2)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(inputs)) * self.scale)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_statistics_of_a_half_precision_network_are_float32(chunk_size: int | None) -> None:
    torch.manual_seed(0)
    model, inputs = Scaled(), torch.randn(N, 4)
    exact = shoal.gradient_variance(model.double(), inputs.double(), LABELS, DOMAINS, "scale")
    model.bfloat16()
    options = {"parameters": "scale", "chunk_size": chunk_size}
    v = shoal.gradient_variance(model, inputs.bfloat16(), LABELS, DOMAINS, **options)
    assert v.dtype == torch.float32
    assert float((v.double() - exact).norm() / exact.norm()) < 0.1


def test_a_batch_that_overflows_does_not_change_the_check_of_layers() -> None:
    model, inputs = mlp(), torch.randn(N, 4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (1.0, float("inf"), 1.0, float("inf"), 1.0, 1.0):

            def loss(logits: Tensor, labels: Tensor, scale: float = scale) -> Tensor:
                return F.cross_entropy(logits, labels, reduction="none") * scale

            shoal.gradient_variance(model, inputs, LABELS, DOMAINS, loss=loss)


def test_a_gradient_that_is_zero_by_construction_gives_no_warning() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(24, 2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shoal.gradient_variance(model, torch.randn(N, 2, 8), LABELS, DOMAINS)


def test_inference_mode_raises_with_its_name() -> None:
    model, inputs = mlp(), torch.randn(N, 4, dtype=torch.float64)
    for statistic in (shoal.gradient_variance, shoal.gradient_mean, shoal.covariance_spread):
        with torch.inference_mode(), pytest.raises(RuntimeError, match=r"use torch\.no_grad"):
            statistic(model, inputs, LABELS, DOMAINS)


def test_a_first_call_in_inference_mode_does_not_spoil_training() -> None:
    fishr = shoal.Fishr(E, warmup_steps=0)
    z, logits = torch.randn(N, 4), torch.randn(N, 2)
    with torch.inference_mode():
        fishr(z, logits, LABELS, DOMAINS)
    fishr(z.requires_grad_(), logits, LABELS, DOMAINS).backward()
    assert fishr.steps == 2


def test_a_data_parallel_wrapper_is_unwrapped() -> None:
    model, inputs = mlp(), torch.randn(N, 4, dtype=torch.float64)
    wrapped = shoal.gradient_variance(nn.DataParallel(model), inputs, LABELS, DOMAINS, "0")
    plain = shoal.gradient_variance(model, inputs, LABELS, DOMAINS, "0")
    assert torch.equal(wrapped, plain)


def test_rows_of_half_precision_are_matched_in_float32() -> None:
    fishr = shoal.Fishr(E, warmup_steps=0)
    penalty = fishr.match(torch.rand(E, 4).bfloat16())
    assert penalty.dtype == fishr.v_bar.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_newer_precision_setting_is_respected(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("no newer precision setting")
    monkeypatch.setattr(shoal.statistics.network, "DENSE", 0)
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        model, inputs = mlp().to(dtype), torch.randn(N, 4, dtype=dtype)
        shoal.covariance_spread(model, inputs, LABELS, DOMAINS).backward()
        assert matmul.fp32_precision == "tf32"
        # The answer for a GPU, which needs no GPU.
        there = SimpleNamespace(dtype=dtype, device=torch.device("cuda"))
        assert rounding(there) == ("tf32" if dtype == torch.float32 else None)
    finally:
        matmul.fp32_precision = before
