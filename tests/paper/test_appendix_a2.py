"""The claims of the appendix on Fishr in the classifier (\\label{appendix:lineartheory})."""

import pytest
import torch
from torch import Tensor

import shoal

SIZES, FEATURES = (6, 9), 4
CLOSE = {"rtol": 1e-12, "atol": 1e-14}


def binary() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    n = sum(SIZES)
    features = torch.randn(n, FEATURES, generator=generator, dtype=torch.float64)
    logits = torch.randn(n, generator=generator, dtype=torch.float64) * 2
    labels = torch.randint(2, (n,), generator=generator)
    domains = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    return features, logits, labels, domains


@pytest.mark.parametrize("column", [False, True], ids=["[n]", "[n, 1]"])
def test_uncentred_variance_in_the_bias_is_the_mean_squared_error(column: bool) -> None:
    """v_e^b = 1/n_e Σ_i (ŷ_i − y_i)² with ŷ = σ(logit), \\label{appendix:lineartheory}."""
    features, logits, labels, domains = binary()
    x = logits[:, None] if column else logits
    v = shoal.head_variance(features, x, labels, domains, centered=False)
    assert v.shape == (2, FEATURES + 1)
    for e in range(2):
        mine = domains == e
        error = (torch.sigmoid(logits[mine]) - labels[mine]) ** 2
        assert torch.allclose(v[e, -1], error.mean(), **CLOSE)


def test_uncentred_variance_in_a_weight_is_the_error_weighted_by_its_squared_feature() -> None:
    """v_e^{w_k} = 1/n_e Σ_i ((ŷ_i − y_i) z_i[k])², \\label{appendix:lineartheory}."""
    features, logits, labels, domains = binary()
    v = shoal.head_variance(features, logits, labels, domains, centered=False)
    for e in range(2):
        mine = domains == e
        error = (torch.sigmoid(logits[mine]) - labels[mine]) ** 2
        for k in range(FEATURES):
            assert torch.allclose(v[e, k], (error * features[mine, k] ** 2).mean(), **CLOSE)


def test_binary_features_give_the_risk_of_the_group_that_has_them() -> None:
    """With z ∈ {0, 1}, the squared error on examples that share a feature."""
    features, logits, labels, domains = binary()
    features = (features > 0).double()
    v = shoal.head_variance(features, logits, labels, domains, centered=False)
    error = (torch.sigmoid(logits) - labels) ** 2
    for e in range(2):
        for k in range(FEATURES):
            group = (domains == e) & (features[:, k] == 1)
            assert torch.allclose(v[e, k], error[group].sum() / SIZES[e], **CLOSE)


def test_matching_the_bias_matches_squared_errors() -> None:
    """The penalty in the bias alone is V-REx with the squared error instead of the likelihood."""
    features, logits, labels, domains = binary()
    nothing = torch.zeros_like(features)
    fishr = shoal.Fishr(2, 1.0, 0.0, warmup_steps=0, centered=False, normalise=False)
    error = (torch.sigmoid(logits) - labels) ** 2
    risks = torch.stack([error[domains == e].mean() for e in range(2)])
    penalty = fishr(nothing, logits, labels, domains)
    assert torch.allclose(penalty, risks.var(unbiased=False), **CLOSE)


def test_uncentred_variance_in_the_biases_of_classes_is_the_brier_score() -> None:
    """The same with softmax: summed over classes it is 1/n_e Σ_i ‖ŷ_i − y_i‖²."""
    features, _, labels, domains = binary()
    classes = 3
    logits = torch.randn(
        len(labels), classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    v = shoal.head_variance(features, logits, labels, domains, centered=False)
    error = torch.softmax(logits, 1) - torch.nn.functional.one_hot(labels, classes)
    for e in range(2):
        expected = error[domains == e].square().sum(1).mean()
        assert torch.allclose(v[e, -classes:].sum(), expected, **CLOSE)


def test_centred_variance_is_the_uncentred_one_minus_the_squared_mean() -> None:
    """Centred and uncentred agree at convergence, where g_e ≈ 0, and only there."""
    features, logits, labels, domains = binary()
    centred = shoal.head_variance(features, logits, labels, domains, unbiased=False)
    uncentred = shoal.head_variance(features, logits, labels, domains, centered=False)
    r = torch.sigmoid(logits) - labels
    for e in range(2):
        mine = domains == e
        ones = torch.ones(SIZES[e], 1, dtype=torch.float64)
        g = r[mine, None] * torch.cat([features[mine], ones], 1)
        assert torch.allclose(centred[e], uncentred[e] - g.mean(0) ** 2, **CLOSE)


@pytest.mark.parametrize("shape", [(2,), (2, 5)])
def test_two_domains_give_a_quarter_of_the_squared_distance(shape: tuple[int, ...]) -> None:
    """Eq. \\ref{eq:fishrreg} with |𝓔| = 2: ‖v_A − v_B‖² / 4."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(shape, generator=generator, dtype=torch.float64)
    distance = (rows[0] - rows[1]).square().sum()
    assert torch.allclose(shoal.spread(rows), distance / 4, **CLOSE)


def test_two_domains_in_fishr() -> None:
    """λ ‖v_A − v_B‖² / 4 on the first call, for any γ."""
    features, logits, labels, domains = binary()
    v = shoal.head_variance(features, logits, labels, domains)
    fishr = shoal.Fishr(2, 8.0, 0.75, warmup_steps=0, normalise=False)
    penalty = fishr(features, logits, labels, domains)
    assert torch.allclose(penalty, 2 * (v[0] - v[1]).square().sum(), **CLOSE)
