"""gradient_mean: Eq. 1 for every domain, against a loop of autograd over examples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import shoal
from tests.oracles import autograd as oracle

# Unsorted, imbalanced: three, four and two examples.
DOMAINS = torch.tensor([1, 0, 2, 1, 0, 1, 2, 1, 0])
N, C = len(DOMAINS), 3
LABELS = torch.arange(N) % C


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, *shape, generator=generator, dtype=torch.float64)


class Attention(nn.Module):
    """A network with attention: the fused kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.attention(x, x, x, need_weights=False)[0].mean(1))


def mlp() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.PReLU(), nn.Linear(5, C)), normal(4)


def cnn() -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(2, 3, 2), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, C)]
    return nn.Sequential(*layers), normal(2, 3, 3)


def attention() -> tuple[nn.Module, Tensor]:
    return Attention(), normal(3, 4)


Make = Callable[[], tuple[nn.Module, Tensor]]


def build(make: Make) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, inputs = make()
    return model.double(), inputs


@pytest.mark.parametrize("chunk_size", [None, 1, 2, N + 1])
@pytest.mark.parametrize("make", [mlp, cnn, attention], ids=lambda make: make.__name__)
def test_agrees_with_the_loop_and_with_finite_differences(
    make: Make, chunk_size: int | None
) -> None:
    model, x = build(make)
    g = oracle.individual_gradients(model, x, LABELS)
    leaves = list(model.parameters())

    def ours() -> Tensor:
        return shoal.gradient_mean(model, x, LABELS, DOMAINS, chunk_size=chunk_size)

    oracle.same_function(ours(), oracle.mean(g, DOMAINS), leaves)
    cotangent = oracle.random_like(torch.empty(3, g.shape[1], dtype=torch.float64))

    def function() -> Tensor:
        return (ours() * cotangent).sum()

    exact, differences = oracle.directional(function, leaves)
    assert exact == pytest.approx(differences, **oracle.DIFFERENCES)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_absent_domains_have_rows_of_zeros(chunk_size: int | None) -> None:
    model, x = build(mlp)
    domains = torch.tensor([2, 0, 2, 2, 0, 3, 2, 0, 2])  # none in 1 and 4, a single one in 3
    g = oracle.individual_gradients(model, x, LABELS)
    ours = shoal.gradient_mean(model, x, LABELS, domains, num_domains=5, chunk_size=chunk_size)
    oracle.same_function(ours, oracle.mean(g, domains, 5), list(model.parameters()))
    assert torch.equal(ours[[1, 3, 4]], torch.zeros_like(ours[[1, 3, 4]]))


def test_a_single_domain_gives_the_gradient_of_the_risk() -> None:
    model, x = build(mlp)
    risk = F.cross_entropy(model(x), LABELS)
    truth = oracle.gradient_of(risk, list(model.parameters()))
    ours = shoal.gradient_mean(model, x, LABELS, torch.zeros_like(DOMAINS))
    oracle.same_function(ours, truth[None], list(model.parameters()))


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize(
    ("parameters", "places"),
    [("3", [3, 4]), (["3.bias", "0.weight"], [0, 4]), ("2.weight", [2])],
)
def test_parameters_choose_columns(
    parameters: Any, places: list[int], chunk_size: int | None
) -> None:
    model, x = build(mlp)
    weights = list(model.parameters())
    g = oracle.individual_gradients(model, x, LABELS, [weights[k] for k in places])
    ours = shoal.gradient_mean(model, x, LABELS, DOMAINS, parameters, chunk_size=chunk_size)
    oracle.same_function(ours, oracle.mean(g, DOMAINS), weights)


def test_frozen_and_unused_weights() -> None:
    model, x = build(mlp)
    model[0].weight.requires_grad_(False)
    model.spare = nn.Parameter(torch.ones(2, dtype=torch.float64))
    model.forward = lambda x: model[3](model[2](model[1](model[0](x))))
    trainable = [p for p in model.parameters() if p.requires_grad]
    g = oracle.individual_gradients(model, x, LABELS, trainable)
    for chunk_size in (None, 2):
        ours = shoal.gradient_mean(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
        oracle.same_function(ours, oracle.mean(g, DOMAINS), trainable)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_gradient_in_inputs_that_require_it(chunk_size: int | None) -> None:
    model, x = build(mlp)
    x.requires_grad_()
    g = oracle.individual_gradients(model, x, LABELS)
    ours = shoal.gradient_mean(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
    oracle.same_function(ours, oracle.mean(g, DOMAINS), [x, *model.parameters()])


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_custom_loss(chunk_size: int | None) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.smooth_l1_loss(logits, labels, reduction="none").sum(1)

    model, x = build(mlp)
    targets = normal(C)
    g = oracle.individual_gradients(model, x, targets, loss=loss)
    ours = shoal.gradient_mean(model, x, targets, DOMAINS, loss=loss, chunk_size=chunk_size)
    oracle.same_function(ours, oracle.mean(g, DOMAINS), list(model.parameters()))


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_backward_repeats_the_masks_of_active_dropout(chunk_size: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, C)).double()
    x = normal(4)
    cotangent = oracle.random_like(torch.empty(3, 30 + 7 * C, dtype=torch.float64))

    def function() -> Tensor:
        torch.manual_seed(3)
        g = shoal.gradient_mean(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
        torch.manual_seed(11)
        return (g * cotangent).sum()

    exact, differences = oracle.directional(function, list(model.parameters()))
    assert exact == pytest.approx(differences, **oracle.DIFFERENCES)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_weight_norm_has_a_true_gradient(chunk_size: int | None) -> None:
    # Differentiating torch._weight_norm twice gives a wrong result (torch 2.13).
    torch.manual_seed(0)
    layer = parametrizations.weight_norm(nn.Linear(4, 5))
    model, x = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, C)).double(), normal(4)
    leaves = list(model.parameters())
    size = sum(p.numel() for p in leaves)
    cotangent = oracle.random_like(torch.empty(3, size, dtype=torch.float64))

    def function() -> Tensor:
        g = shoal.gradient_mean(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
        return (g * cotangent).sum()

    exact, differences = oracle.directional(function, leaves)
    assert exact == pytest.approx(differences, **oracle.DIFFERENCES)


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_float64_stays_and_the_rest_is_float32(
    given: torch.dtype, expected: torch.dtype, chunk_size: int | None
) -> None:
    model, x = build(mlp)
    model.to(given)
    g = shoal.gradient_mean(model, x.to(given), LABELS, DOMAINS, chunk_size=chunk_size)
    assert g.dtype == expected
    g.sum().backward()
    assert all(p.grad.dtype == given for p in model.parameters())


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_without_grad_no_graph_is_left(chunk_size: int | None) -> None:
    model, x = build(mlp)
    expected = shoal.gradient_mean(model, x, LABELS, DOMAINS).detach()
    with torch.no_grad():
        g = shoal.gradient_mean(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
    assert not g.requires_grad
    torch.testing.assert_close(g, expected, **oracle.VALUE)
    assert all(p.grad is None for p in model.parameters())
