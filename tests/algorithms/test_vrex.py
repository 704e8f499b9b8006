"""V-REx against the variance of risks, written out."""

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch

from .plain import Oracle, Plain, compare, make, make_batches


def oracle(weight: float, warmup: int, decay: float) -> Oracle:
    past: list[Tensor] = []  # u_e of the step before: Σ_k γ^(t−k) R_e^k

    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        if count == warmup:
            plain.forget()
        risks = [plain.risk(batch) for batch in batches]
        sizes = [len(labels) for _, labels in batches]
        pooled = sum(n * r for n, r in zip(sizes, risks, strict=True)) / sum(sizes)
        u = [r + (decay * past[e] if past else 0) for e, r in enumerate(risks)]
        past[:] = [one.detach() for one in u]
        mean = sum(u) / len(u)
        penalty = sum((one - mean) ** 2 for one in u) / len(u)
        loss = pooled + (weight if count >= warmup else 1.0) * penalty
        plain.adam().step(plain.weights, plain.gradients(loss))
        return loss

    return step


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 5), (3,), (1, 2, 3, 1, 2, 4)])
@pytest.mark.parametrize(("weight", "warmup"), [(7.0, 2), (3.0, 0), (5.0, 100)])
@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_vrex(sizes: tuple[int, ...], weight: float, warmup: int, decay: float) -> None:
    algorithm = make(
        "vrex", len(sizes), penalty_weight=weight, warmup_steps=warmup, ema_decay=decay
    )
    compare(algorithm, oracle(weight, warmup, decay), sizes=sizes)


def test_penalty_is_the_spread_of_risks() -> None:
    algorithm = make("vrex", penalty_weight=2.0, warmup_steps=0)
    batches = [(torch.zeros(2, 6, dtype=torch.float64), torch.tensor([e, e])) for e in range(3)]
    terms = algorithm.update(batches)
    assert terms["loss"] == terms["risk"] + terms["penalty"]
    assert terms["penalty"] > 0


def test_a_domain_without_risk_takes_part() -> None:
    algorithm = make("vrex", 2, penalty_weight=1.0, warmup_steps=0)
    risks = torch.tensor([0.0, 2.0], dtype=torch.float64)
    assert algorithm.match.match(risks, present=True) == 1
    batches = make_batches(0, (3, 3))
    with torch.no_grad():  # so sure of class 0 that its loss rounds to zero
        algorithm.model.classifier.weight.zero_()
        algorithm.model.classifier.bias.copy_(torch.tensor([1e3, 0.0, 0.0]))
    batches = [(x, torch.full_like(y, e)) for e, (x, y) in enumerate(batches)]
    terms = algorithm.update(batches)
    assert terms["penalty"] == pytest.approx(500.0**2)
