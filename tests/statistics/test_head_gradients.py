"""Gradients in a linear classifier of the risk and of its variances, against autograd."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import shoal
from shoal.gradients.sources import Form
from shoal.statistics import head_gradients

E, FEATURES, CLASSES = 3, 4, 3
EXACT = {"rtol": 1e-10, "atol": 1e-14}
# In no order; domain 2 has one example only and is absent in the last.
DOMAINS = [[0, 2, 1, 0, 1, 2, 2, 0, 1], [0, 2, 1, 0, 1, 1, 0, 0, 1]]


def labels_of(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind == "soft":
        return torch.rand(9, CLASSES, generator=generator, dtype=torch.float64)
    return torch.randint(2 if kind == "binary" else CLASSES, (9,), generator=generator)


@pytest.mark.parametrize("domains", DOMAINS)
@pytest.mark.parametrize("kind", ["classes", "soft", "binary"])
@pytest.mark.parametrize(
    "options", [{}, {"unbiased": False}, {"centered": False}, {"bias": False}], ids=str
)
def test_equal_to_autograd(domains: list[int], kind: str, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = 1 if kind == "binary" else CLASSES
    bias = options.get("bias", True)
    z = torch.randn(9, FEATURES, generator=generator, dtype=torch.float64) + 0.5
    weight = torch.randn(outputs, FEATURES, generator=generator, dtype=torch.float64)
    offset = torch.zeros(outputs, dtype=torch.float64)
    c = torch.randn(E, outputs * (FEATURES + bias), generator=generator, dtype=torch.float64)
    ids, labels = torch.tensor(domains), labels_of(kind)
    weights = [weight.requires_grad_(), offset.requires_grad_()][: 1 + bias]

    logits = z @ weight.T + offset
    if kind == "binary":
        risk = F.binary_cross_entropy_with_logits(logits[:, 0], labels.double())
    else:
        risk = F.cross_entropy(logits, labels)
    rows = shoal.head_variance(z, logits, labels, ids, num_domains=E, **options)
    expected = [
        torch.cat([g.flatten() for g in torch.autograd.grad(value, weights, retain_graph=True)])
        for value in (risk, (c * rows).sum())
    ]
    form = Form(options.get("centered", True), options.get("unbiased", True))
    found = head_gradients(z, logits.detach(), labels, ids, c, form=form, bias=bias)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)
