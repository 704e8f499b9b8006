"""Roots of heads against dense matrices; alignment and dominance equal their definitions."""

import pytest
import torch
from torch import Tensor, nn

from shoal.curvature import (
    alignment,
    dominance,
    head_roots,
    head_tangent_spectra,
    inconsistency,
    network_roots,
    of_matrices,
    roots,
    spectra,
)
from tests.curvature import small
from tests.oracles import curvature

CLOSE = {"rtol": 1e-8, "atol": 1e-11}


def head(outputs: int = 3) -> tuple[nn.Linear, tuple[Tensor, Tensor, Tensor, Tensor]]:
    torch.manual_seed(0)
    layer = nn.Linear(4, outputs).double()
    features, labels, domains = small.examples(classes=max(outputs, 2))
    return layer, (features, layer(features).detach(), labels, domains)


def matrices(layer: nn.Module, inputs: Tensor, domains: Tensor) -> Tensor:
    weights = list(layer.parameters())
    found = [curvature.fisher(layer, inputs[domains == e], weights) for e in range(3)]
    return torch.stack(found)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_dense_matrices_of_a_head(outputs: int) -> None:
    layer, given = head(outputs)
    expected = matrices(layer, given[0], given[3])
    found = head_roots(*given)
    torch.testing.assert_close(found.matrices, expected, **CLOSE)
    torch.testing.assert_close(found.diagonal, expected.diagonal(dim1=1, dim2=2), **CLOSE)
    without = head_roots(*given, bias=False)
    kept = 4 * outputs
    torch.testing.assert_close(without.matrices, expected[:, :kept, :kept], **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_gram_matrix_of_a_head_agrees_with_dense_matrices(
    outputs: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, given = head(outputs)
    dense = head_roots(*given, bias=bias)
    monkeypatch.setattr(roots, "DENSE", 0)
    found = head_roots(*given, bias=bias)
    assert found.matrices is None and found.weights == dense.weights
    torch.testing.assert_close(found.diagonal, dense.diagonal, **CLOSE)
    _same(found, dense)


@pytest.mark.parametrize("make", [small.relu_mlp, small.tanh_mlp, small.UsedTwice])
def test_gram_matrix_of_a_network_agrees_with_dense_matrices(make: object) -> None:
    inputs, labels, domains = small.examples()
    model: nn.Module = make()  # type: ignore[operator]
    dense = of_matrices(matrices(model, inputs, domains))
    found = network_roots(model, inputs, labels, domains, chunk_size=4)
    torch.testing.assert_close(found.diagonal, dense.diagonal, **CLOSE)
    _same(found, dense)


def _same(found: roots.Roots, dense: roots.Roots) -> None:
    risks = torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64)
    ours, theirs = (inconsistency(one, risks, 0.1, floor=1e-3) for one in (found, dense))
    assert ours.floor == pytest.approx(theirs.floor)
    assert ours.small_enough == theirs.small_enough
    for pair, score in theirs.pairs.items():
        assert ours.pairs[pair].curvature == pytest.approx(score.curvature, rel=1e-6)
        assert ours.pairs[pair].floored == score.floored
    aligned = alignment(dense, 2)
    for pair, values in alignment(found, 2).items():
        assert values == pytest.approx(aligned[pair], rel=1e-6)
    energies = [one["energy"] for one in dominance(dense)]
    assert [one["energy"] for one in dominance(found)] == pytest.approx(energies)


def test_a_domain_without_examples_is_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (features, logits, labels, domains) = head(3)
    given = (features, logits, labels, 2 * (domains > 0))
    dense = head_roots(*given, num_domains=3)
    monkeypatch.setattr(roots, "DENSE", 0)
    found = head_roots(*given, num_domains=3)
    assert found.sizes[1] == 0
    _same(found, dense)
    flat = {"largest": [0.0] * 5, "trace": 0.0, "share": 0.0, "step_limit": None}
    assert spectra(found)[1] == spectra(dense)[1] == flat
    assert head_tangent_spectra(features, 3, given[3])[1] == flat


def test_inconsistency_is_the_generalised_eigenvalue() -> None:
    layer, given = head(3)
    dense = matrices(layer, given[0], given[3])
    risks = torch.zeros(3, dtype=torch.float64)
    found = inconsistency(of_matrices(dense), risks, 0.1, floor=1e-3)
    largest = float(torch.linalg.eigvalsh(dense).max())
    for (a, b), score in found.pairs.items():
        values, vectors = torch.linalg.eigh(dense[a])
        inverse = vectors @ torch.diag(1 / values.clamp(min=1e-3 * largest)) @ vectors.mT
        ratio = torch.linalg.eigvals(inverse @ dense[b]).real.max()
        assert score.curvature == pytest.approx(0.1 * float(ratio), rel=1e-8)


def test_alignment_of_known_eigenvectors() -> None:
    one = torch.diag(torch.tensor([5.0, 3.0, 1.0, 0.0], dtype=torch.float64))
    same, swapped = 2 * one, torch.diag(torch.tensor([3.0, 5.0, 0.0, 1.0], dtype=torch.float64))
    angle = torch.tensor(0.3, dtype=torch.float64)
    turn = torch.eye(4, dtype=torch.float64)
    turn[0, 0] = turn[2, 2] = angle.cos()
    turn[0, 2], turn[2, 0] = -angle.sin(), angle.sin()
    found = alignment(of_matrices(torch.stack([one, same, swapped, turn @ one @ turn.mT])), 2)
    assert found[0, 1] == pytest.approx({"first": 1.0, "subspace": 1.0})
    assert found[0, 2] == pytest.approx({"first": 0.0, "subspace": 1.0}, abs=1e-7)
    turned = {"first": float(angle.cos()), "subspace": (float(angle.cos()) ** 2 + 1) / 2}
    assert found[0, 3] == pytest.approx(turned)


def test_dominance_of_a_diagonal_and_of_a_full_matrix() -> None:
    diagonal = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    ones = torch.ones(3, 3, dtype=torch.float64)
    some = torch.tensor([[4.0, 1.0, 1.0], [1.0, 1.5, 1.0], [1.0, 1.0, 2.0]], dtype=torch.float64)
    found = dominance(of_matrices(torch.stack([diagonal, ones, some])))
    assert found[0] == pytest.approx({"energy": 1.0, "rows": 1.0})
    assert found[1] == pytest.approx({"energy": 1 / 3, "rows": 0.0})
    assert found[2] == pytest.approx({"energy": 22.25 / 28.25, "rows": 2 / 3})


def test_a_gram_matrix_that_is_too_large_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "DENSE", 0)
    monkeypatch.setattr(roots, "LARGEST", 10)
    with pytest.raises(ValueError, match="63 rows, more than 10; pass fewer examples"):
        head_roots(*head(3)[1])


@pytest.mark.parametrize("name", ["epsilon", "floor"])
def test_epsilon_and_floor_must_be_above_zero(name: str) -> None:
    values = {"epsilon": 0.1, "floor": 0.1} | {name: 0.0}
    with pytest.raises(ValueError, match=f"{name} must be above 0, got 0"):
        inconsistency(head_roots(*head(3)[1]), torch.zeros(3), **values)
