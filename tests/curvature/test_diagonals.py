"""Every diagonal against dense matrices, computed one example after the other in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.curvature import (
    Diagonals,
    head_diagonals,
    head_hessian_diagonal,
    hessian_diagonal,
    network_diagonals,
)
from tests.curvature import small
from tests.oracles import autograd, curvature

CLOSE = {"rtol": 1e-8, "atol": 1e-11}

NETWORKS = {
    "relu": (small.relu_mlp, (4,)),
    "two logits": (lambda: small.relu_mlp(2), (4,)),
    "one logit": (lambda: small.relu_mlp(1), (4,)),
    "convolutions": (small.relu_convolutions, (1, 3, 3)),
    "tanh": (small.tanh_mlp, (4,)),
    "tanh, one logit": (lambda: small.tanh_mlp(1), (4,)),
    "group norm": (small.group_norm, (1, 3, 3)),
    "used twice": (small.UsedTwice, (4,)),
}


def classes_of(model: nn.Module) -> int:
    *_, last = (m for m in model.modules() if isinstance(m, nn.Linear))
    return max(last.out_features, 2)


def check(found: Diagonals, model: nn.Module, data: tuple[Tensor, Tensor, Tensor]) -> None:
    inputs, labels, domains = data
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients = autograd.individual_gradients(model, inputs, labels).detach()
    torch.testing.assert_close(found.variance, autograd.variance(gradients, domains), **CLOSE)
    uncentred = autograd.variance(gradients, domains, centered=False)
    torch.testing.assert_close(found.empirical, uncentred, **CLOSE)
    torch.testing.assert_close(found.mean, autograd.mean(gradients, domains), **CLOSE)
    for e in range(len(small.SIZES)):
        mine = domains == e
        risk = curvature.risk(model, inputs[mine], labels[mine])
        torch.testing.assert_close(found.risks[e], risk.detach(), **CLOSE)
        fisher = curvature.fisher(model, inputs[mine], weights)
        torch.testing.assert_close(found.fisher[e], fisher.diagonal(), **CLOSE)
        hessian = curvature.hessian(risk, weights)
        torch.testing.assert_close(found.hessian[e], hessian.diagonal(), **CLOSE)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_diagonal_of_a_network(name: str, chunk_size: int | None) -> None:
    make, shape = NETWORKS[name]
    model = make()
    data = small.examples(shape, classes_of(model))
    check(network_diagonals(model, *data, chunk_size=chunk_size), model, data)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_every_diagonal_of_a_head(outputs: int) -> None:
    torch.manual_seed(0)
    head = nn.Linear(4, outputs).double()
    data = small.examples((4,), max(outputs, 2))
    features, labels, domains = data
    logits = head(features).detach()
    check(head_diagonals(features, logits, labels, domains), head, data)
    alone = head_hessian_diagonal(features, logits, labels, domains)
    assert torch.equal(alone, head_diagonals(features, logits, labels, domains).hessian)
    without = head_diagonals(features, logits, labels, domains, bias=False)
    assert torch.equal(without.hessian, alone[:, :-outputs])


@pytest.mark.parametrize("method", ["func", "backpack"])
def test_other_methods_give_the_same_hessian(method: str, request: pytest.FixtureRequest) -> None:
    if method == "backpack":
        request.getfixturevalue("backpack")
    model = small.tanh_mlp()
    data = small.examples()
    exact = hessian_diagonal(model, *data)
    found = hessian_diagonal(model, *data, method=method, chunk_size=4)
    torch.testing.assert_close(found, exact, **CLOSE)
    assert all(p.grad is None for p in model.parameters())


def test_backpack_follows_features_and_classifier(backpack: Any) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = list(small.tanh_mlp())
            self.features, self.classifier = nn.Sequential(*layers[:2]), layers[2]

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.classifier(self.features(inputs))
            return out

    data = small.examples()
    found = hessian_diagonal(Network(), *data, method="backpack")
    torch.testing.assert_close(found, hessian_diagonal(small.tanh_mlp(), *data), **CLOSE)
    head = hessian_diagonal(Network(), *data, "classifier", method="backpack")
    assert torch.equal(head, found[:, -12:])


def test_gauss_newton_is_not_the_hessian_of_a_curved_network() -> None:
    model = small.tanh_mlp()
    data = small.examples()
    exact = hessian_diagonal(model, *data)
    approximate = hessian_diagonal(model, *data, method="gauss-newton")
    assert not torch.allclose(exact, approximate, rtol=1e-2)
    # The last layer enters linearly.
    torch.testing.assert_close(exact[:, 15:], approximate[:, 15:], **CLOSE)


def test_many_curved_weights_raise_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.curvature.network.MOST_SINGLE", 10)
    with pytest.raises(ValueError, match=r"not piecewise linear in 0.weight, 0.bias.*gauss-newton"):
        hessian_diagonal(small.tanh_mlp(), *small.examples())
    hessian_diagonal(small.tanh_mlp(), *small.examples(), parameters="2")


def test_float32_and_soft_targets() -> None:
    model, (inputs, labels, domains) = small.relu_mlp(), small.examples()
    exact = network_diagonals(model, inputs, labels, domains)
    single = network_diagonals(copy.deepcopy(model).float(), inputs.float(), labels, domains)
    assert single.hessian.dtype == torch.float32
    torch.testing.assert_close(single.hessian.double(), exact.hessian, rtol=1e-3, atol=1e-5)
    soft = torch.nn.functional.one_hot(labels, 3).double()
    torch.testing.assert_close(
        network_diagonals(model, inputs, soft, domains).variance, exact.variance, **CLOSE
    )
    with pytest.raises(ValueError, match="sum to 1"):
        network_diagonals(model, inputs, 2 * soft, domains)


def test_a_domain_with_one_example_is_absent() -> None:
    model, (inputs, labels, _) = small.relu_mlp(), small.examples()
    domains = torch.zeros(len(labels), dtype=torch.long)
    domains[0] = 2
    found = network_diagonals(model, inputs, labels, domains, num_domains=4)
    for row in (found.risks, found.hessian, found.variance, found.empirical, found.fisher):
        assert row[0].any() and not row[1:].any()
    assert not hessian_diagonal(model, inputs, labels, domains)[2].any()


def test_an_unknown_method_raises_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'backpack'"):
        hessian_diagonal(small.relu_mlp(), *small.examples(), method="backpak")
