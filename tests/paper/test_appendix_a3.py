"""The tangent kernel and the Fisher matrix have the same spectrum (\\label{appendix:ntk})."""

import pytest
import torch
from torch import Tensor, nn

from shoal.curvature import head_roots, head_tangent_spectra, network_roots, spectra
from tests.curvature import small
from tests.oracles import autograd, curvature

CLOSE = {"rtol": 1e-8, "atol": 1e-11}


def largest(matrix: Tensor, count: int) -> Tensor:
    return torch.linalg.eigvalsh(matrix).flip(0)[:count]


def weights_of(model: nn.Module) -> list[Tensor]:
    return list(model.parameters())


def test_gram_matrix_and_empirical_fisher_have_the_same_eigenvalues() -> None:
    """GGᵀ and GᵀG = F̃ share them; those beyond the smaller side are zero."""
    inputs, labels, _ = small.examples()
    model = small.relu_mlp()
    g = autograd.individual_gradients(model, inputs, labels).detach()
    rank = min(g.shape)
    torch.testing.assert_close(largest(g @ g.mT, rank), largest(g.mT @ g, rank), **CLOSE)
    assert largest(g.mT @ g, g.shape[1])[rank:].abs().max() < 1e-10


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_fisher_matrix_is_the_tangent_kernel_weighted_by_the_loss(outputs: int) -> None:
    """Non-zero eigenvalues of F = JᵀΛJ and of Λ^½ J Jᵀ Λ^½, Λ = diag(p) − ppᵀ of each example."""
    inputs, _, _ = small.examples()
    model = small.relu_mlp(outputs)
    logits = model(inputs).detach()
    if outputs == 1:
        p = torch.sigmoid(logits)
        inner = (p * (1 - p))[:, :, None]
    else:
        p = torch.softmax(logits, 1)
        inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    values, vectors = torch.linalg.eigh(inner)
    halves = vectors @ torch.diag_embed(values.clamp(min=0).sqrt()) @ vectors.mT
    jacobians = curvature.jacobians(model, inputs, weights_of(model))
    rows = (halves @ jacobians).flatten(0, 1)
    fisher = curvature.fisher(model, inputs, weights_of(model)) * len(inputs)
    count = min(*rows.shape)
    torch.testing.assert_close(largest(rows @ rows.mT, count), largest(fisher, count), **CLOSE)


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("make", [small.relu_mlp, small.tanh_mlp])
def test_spectra_of_networks_agree_with_dense_matrices(make: object, outputs: int) -> None:
    """λ_max, its share of the trace and the step limit, of F_e and of K_e, from Gram matrices."""
    inputs, labels, domains = small.examples(classes=max(outputs, 2))
    model = make(outputs)  # type: ignore[operator]
    fisher = spectra(network_roots(model, inputs, labels, domains, chunk_size=4))
    tangent = spectra(network_roots(model, inputs, labels, domains, kind="tangent"))
    for e, (one, other) in enumerate(zip(fisher, tangent, strict=True)):
        mine = inputs[domains == e]
        check(one, curvature.fisher(model, mine, weights_of(model)))
        rows = curvature.jacobians(model, mine, weights_of(model)).flatten(0, 1)
        check(other, rows @ rows.mT / len(mine))


def test_spectra_of_convolutions() -> None:
    inputs, labels, domains = small.examples((1, 3, 3))
    model = small.group_norm()
    found = spectra(network_roots(model, inputs, labels, domains))
    for e, one in enumerate(found):
        check(one, curvature.fisher(model, inputs[domains == e], weights_of(model)))


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_spectra_of_a_head(outputs: int) -> None:
    torch.manual_seed(0)
    head = nn.Linear(4, outputs).double()
    features, labels, domains = small.examples(classes=max(outputs, 2))
    fisher = spectra(head_roots(features, head(features).detach(), labels, domains))
    tangent = head_tangent_spectra(features, outputs, domains, top=1)
    for e, (one, other) in enumerate(zip(fisher, tangent, strict=True)):
        mine = features[domains == e]
        check(one, curvature.fisher(head, mine, weights_of(head)))
        rows = curvature.jacobians(head, mine, weights_of(head)).flatten(0, 1)
        check(other, rows @ rows.mT / len(mine), 1)


def check(found: dict[str, object], matrix: Tensor, count: int = 5) -> None:
    values = largest(matrix, count)
    trace = float(matrix.trace())
    assert found["largest"] == pytest.approx(values.tolist(), rel=1e-8, abs=1e-11)
    assert found["trace"] == pytest.approx(trace)
    assert found["share"] == pytest.approx(float(values[0]) / trace)
    assert found["step_limit"] == pytest.approx(2 / float(values[0]))
