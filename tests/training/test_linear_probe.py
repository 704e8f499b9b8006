"""The linear probe against scikit-learn, autograd and a loop over ridges; what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import ALGORITHMS, find
from shoal.algorithms.erm import ERM
from shoal.networks import MLP
from shoal.training import linear_probe
from shoal.training.evaluation import HeadPass
from shoal.training.linear_probe import (
    LinearProbe,
    check_probed,
    fit_probe,
    head_objective,
    minimise,
    plain_head,
)

CLASSES, WIDTH = 4, 6


def examples(seed: int, n: int = 150, spread: float = 3.0) -> HeadPass:
    """Return features of unequal scales, whose class shows through noise."""
    draws = torch.Generator().manual_seed(seed)
    features = torch.randn(n, WIDTH, generator=draws, dtype=torch.float64)
    noise = spread * torch.randn(n, CLASSES, generator=draws, dtype=torch.float64)
    labels = (2 * features[:, :CLASSES] + noise).argmax(1)
    scales = torch.tensor([0.1, 1.0, 1.0, 5.0, 1.0, 2.0], dtype=torch.float64)
    return HeadPass(3 + features * scales, torch.empty(0), labels)


def with_ridge(ridge: float, monkeypatch: pytest.MonkeyPatch, *parts: HeadPass) -> LinearProbe:
    monkeypatch.setattr(linear_probe, "USUAL", ridge)
    return fit_probe(parts, [], CLASSES)


def deviation(*parts: HeadPass) -> Tensor:
    """Return the deviation over all features where domains weigh alike."""
    mean = torch.stack([part.features.mean(0) for part in parts]).mean(0)
    squares = [(part.features - mean).square().mean() for part in parts]
    return torch.stack(squares).mean().sqrt()


@pytest.mark.parametrize("ridge", [0.1, 1e-3])
def test_the_loss_is_that_of_scikit_learn(ridge: float) -> None:
    from sklearn.linear_model import LogisticRegression

    part = examples(0)
    inputs = (part.features - part.features.mean(0)) / part.features.std(0, correction=0)
    shares = torch.full((len(inputs),), 1 / len(inputs), dtype=torch.float64)
    objective = head_objective(inputs, part.labels, shares, CLASSES, ridge)
    found = minimise(objective, inputs.new_zeros(CLASSES * (WIDTH + 1)))
    theirs = LogisticRegression(C=1 / (ridge * len(inputs)), tol=1e-9, max_iter=10_000)
    theirs.fit(inputs.numpy(), part.labels.numpy())
    head = torch.from_numpy(np.hstack([theirs.coef_, theirs.intercept_[:, None]]))
    assert objective(found)[0] == pytest.approx(objective(head.flatten())[0], abs=1e-7)


def test_value_and_gradient_are_those_of_autograd() -> None:
    part = examples(1, n=9)
    shares = torch.rand(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    point = torch.randn(CLASSES * (WIDTH + 1), dtype=torch.float64, requires_grad=True)
    head = point.view(CLASSES, WIDTH + 1)
    logits = part.features @ head[:, :WIDTH].T + head[:, WIDTH]
    losses = nn.functional.cross_entropy(logits, part.labels, reduction="none")
    expected = (losses * shares).sum() + 0.3 / 2 * (head[:, :WIDTH] ** 2).sum()
    (gradient,) = torch.autograd.grad(expected, point)
    found = head_objective(part.features, part.labels, shares, CLASSES, 0.3)(point.detach())
    assert found[0] == pytest.approx(float(expected.detach()), rel=1e-12)
    assert torch.allclose(found[1], gradient, atol=1e-12)


def test_the_head_is_stationary_on_features_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over domains of their risks, and a ridge on weights times the deviation."""
    parts = examples(2), examples(3, n=40)
    found = with_ridge(0.02, monkeypatch, *parts)
    scaled = (found.weight * deviation(*parts)).requires_grad_()
    bias = found.bias.clone().requires_grad_()
    weight = scaled / deviation(*parts)
    risks = [
        nn.functional.cross_entropy(part.features @ weight.T + bias, part.labels) for part in parts
    ]
    loss = (risks[0] + risks[1]) / 2 + 0.02 / 2 * scaled.square().sum()
    for slope in torch.autograd.grad(loss, (scaled, bias)):
        assert slope.abs().max() < 1e-4


def test_domains_weigh_alike_whatever_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = examples(4), examples(5)
    twice = HeadPass(other.features.repeat(3, 1), other.logits, other.labels.repeat(3))
    alike = with_ridge(0.01, monkeypatch, one, other)
    again = with_ridge(0.01, monkeypatch, one, twice)
    assert torch.allclose(alike.weight, again.weight, atol=1e-4)
    pooled = HeadPass(
        torch.cat([one.features, twice.features]), one.logits, torch.cat([one.labels, twice.labels])
    )
    assert not torch.allclose(alike.weight, with_ridge(0.01, monkeypatch, pooled).weight, atol=1e-2)


def test_classes_weigh_alike_in_balanced_runs() -> None:
    part = examples(6)
    rare = part.labels == 0
    more = HeadPass(
        torch.cat([part.features, *[part.features[rare]] * 4]),
        part.logits,
        torch.cat([part.labels, *[part.labels[rare]] * 4]),
    )
    balanced = [fit_probe([one], [], CLASSES, balanced=True).bias for one in (part, more)]
    assert torch.allclose(balanced[0], balanced[1], atol=1e-3)
    plain = [fit_probe([one], [], CLASSES).bias for one in (part, more)]
    assert not torch.allclose(plain[0], plain[1], atol=0.1)


@pytest.mark.parametrize(("spread", "n"), [(0.1, 150), (3.0, 150), (30.0, 30)])
def test_the_ridge_is_chosen_by_what_is_held_out(
    spread: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = [examples(7, n, spread), examples(8, n, spread)]
    held_out = [examples(9, 200, spread), examples(10, 50, spread)]
    losses: dict[float, Any] = {}
    for ridge in linear_probe.RIDGES:
        head = with_ridge(ridge, monkeypatch, *trained)
        each = [
            nn.functional.cross_entropy(part.features @ head.weight.T + head.bias, part.labels)
            for part in held_out
        ]
        losses[ridge] = float(torch.stack(each).mean())
    found = fit_probe(trained, held_out, CLASSES)
    assert found.ridge == min(losses, key=losses.__getitem__)
    assert found.loss == pytest.approx(losses[found.ridge], abs=1e-3)
    right = [
        float(
            ((part.features @ found.weight.T + found.bias).argmax(1) == part.labels).double().mean()
        )
        for part in held_out
    ]
    assert found.accuracy == pytest.approx(sum(right) / 2)


def test_different_noise_has_different_ridges() -> None:
    """Or the test above would show nothing."""
    found = {
        fit_probe([examples(7, n, spread)], [examples(9, 200, spread)], CLASSES).ridge
        for spread, n in ((0.1, 150), (30.0, 30))
    }
    assert len(found) == 2


def test_constant_features_have_no_weight() -> None:
    part = examples(11)
    part.features[:, 2] = 7.3
    found = fit_probe([part], [examples(12)], CLASSES)
    assert found.weight[:, 2].abs().max() < 1e-6
    assert found.weight.abs().max() > 0.01
    part.features.fill_(7.3)
    found = fit_probe([part], [examples(12)], CLASSES)
    assert found.weight.abs().max() == 0
    frequency = part.labels.bincount() / len(part.labels)
    assert torch.allclose(found.bias.softmax(0), frequency.double(), atol=1e-4)


def test_float32_is_enough() -> None:
    part = examples(13)
    precise = fit_probe([part], [], CLASSES)
    found = fit_probe([HeadPass(part.features.float(), part.logits, part.labels)], [], CLASSES)
    assert found.weight.dtype == torch.float32
    assert torch.allclose(found.weight.double(), precise.weight, atol=1e-3)


def test_rounding_ends_the_search() -> None:
    """In float32 the gradient of many features never gets as small as is asked for."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 500, generator=draws) * torch.logspace(-3, 2, 500)
    labels = torch.randint(3, (300,), generator=draws)
    asked = 0

    def objective(point: Tensor) -> tuple[float, Tensor]:
        nonlocal asked
        asked += 1
        return plain(point)

    plain = head_objective(inputs, labels, torch.full((300,), 1 / 300), 3, 1e-4)
    found = minimise(objective, torch.zeros(3 * 501))
    assert asked < 2000
    precise = head_objective(inputs.double(), labels, torch.full((300,), 1 / 300).double(), 3, 1e-4)
    best = precise(minimise(precise, found.double()))[0]
    assert precise(found.double())[0] == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_with_more_than_features_are_refused(name: str) -> None:
    if name in ("arm", "mtl"):
        with pytest.raises(ValueError, match=f"cannot start {find(name).__name__}: its classifier"):
            check_probed(find(name))
    else:
        check_probed(find(name))


def test_a_classifier_of_two_layers_is_refused() -> None:
    method = ERM(MLP(3, 4, 2), num_domains=2)
    assert plain_head(method) is method.model.classifier
    method.model.classifier = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="one linear layer with a bias, got Sequential"):
        plain_head(method)
