"""Cosines, norms, distances and gaps equal their definitions."""

import math
from dataclasses import replace

import torch

from shoal.curvature import Diagonals, chain, gaps, network_diagonals, pairs
from tests.curvature import small


def random_diagonals() -> Diagonals:
    generator = torch.Generator().manual_seed(0)

    def rows(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    return Diagonals(
        sizes=(4, 5, 6),
        risks=rows(3),
        mean=rows(3, 7),
        variance=rows(3, 7),
        empirical=rows(3, 7),
        fisher=rows(3, 7),
        hessian=rows(3, 7),
    )


def dot(a: torch.Tensor, b: torch.Tensor) -> float:
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def test_chain_of_a_domain() -> None:
    d = random_diagonals()
    found = chain(d, 1)
    h, f, u, v, g = (rows[1] for rows in (d.hessian, d.fisher, d.empirical, d.variance, d.mean))
    for name, (a, b) in {
        "cosine:hessian:fisher": (h, f),
        "cosine:fisher:empirical": (f, u),
        "cosine:empirical:variance": (u, v),
        "cosine:hessian:variance": (h, v),
    }.items():
        assert math.isclose(found[name], dot(a, b) / math.sqrt(dot(a, a) * dot(b, b)))
    assert math.isclose(found["norm:fisher"], math.sqrt(dot(f, f)))
    assert math.isclose(found["trace:empirical"], sum(u.tolist()))
    assert math.isclose(found["gradient"], dot(g, g) / sum(v.tolist()))


def test_pairs_of_domains() -> None:
    d = random_diagonals()
    found = pairs(d)
    assert list(found) == [(0, 1), (0, 2), (1, 2)]
    a, b = d.hessian[0], d.hessian[2]
    assert math.isclose(found[0, 2]["hessian"], dot(a - b, a - b))
    cosine = dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))
    assert math.isclose(found[0, 2]["cosine:hessian"], cosine)
    assert math.isclose(found[0, 2]["norms:hessian"], (dot(a, a) - dot(b, b)) ** 2)
    assert math.isclose(found[1, 2]["risk"], float(d.risks[1] - d.risks[2]) ** 2)


def test_gaps_of_two_domains_are_a_quarter_of_their_distance() -> None:
    inputs, labels, domains = small.examples()
    two = domains < 2
    d = network_diagonals(small.relu_mlp(), inputs[two], labels[two], domains[two])
    found, apart = gaps(d), pairs(d)[0, 1]
    for kind in ("risk", "variance", "hessian"):
        assert math.isclose(found[kind], apart[kind] / 4)
    cosines = [chain(d, e)["cosine:hessian:variance"] for e in range(2)]
    assert math.isclose(found["cosine"], sum(cosines) / 2)


def test_gaps_ignore_absent_domains() -> None:
    inputs, labels, domains = small.examples()
    two = domains < 2
    data = inputs[two], labels[two], domains[two]
    with_absent = network_diagonals(small.relu_mlp(), *data, num_domains=3)
    assert gaps(with_absent) == gaps(network_diagonals(small.relu_mlp(), *data))


def test_a_domain_without_curvature_is_present() -> None:
    """It has examples, although its row is zero."""
    d = random_diagonals()
    flat = replace(d, hessian=torch.stack([0 * d.hessian[0], *d.hessian[1:]]))
    middle = flat.hessian.mean(0)
    expected = sum(dot(row - middle, row - middle) for row in flat.hessian) / 3
    assert math.isclose(gaps(flat)["hessian"], expected)
