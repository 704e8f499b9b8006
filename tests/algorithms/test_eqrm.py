"""EQRM against bisection and finite differences of the quantile."""

import math
from collections.abc import Sequence
from statistics import NormalDist, stdev

import pytest
import torch
from torch import Tensor

from shoal.algorithms import Optimisation
from shoal.algorithms.forward import Batch
from shoal.checks import without_value_checks
from shoal.penalties import quantile

from .plain import Oracle, Plain, compare, make, make_batches
from .stepping import asks_nothing
from .test_irm import searches

NORMAL = NormalDist()
# The example of the facts: bandwidth, quantile and its gradient at α = 0.75.
RISKS, H, Q, SLOPES = (0.2, 0.5, 0.9), 0.298828, 0.827624, (-0.0804, 0.3216, 0.7588)


def bandwidth(risks: Sequence[float]) -> float:
    return 1.06 * stdev(risks) * len(risks) ** -0.2 if len(risks) > 1 else 0.0


def solved(risks: Sequence[float], level: float) -> float:
    """The quantile by two hundred bisections."""
    h = bandwidth(risks)
    if h == 0:
        return risks[0]
    low, high = min(risks) - 9 * h, max(risks) + 9 * h
    for _ in range(200):
        middle = (low + high) / 2
        share = sum(NORMAL.cdf((middle - r) / h) for r in risks) / len(risks)
        low, high = (middle, high) if share < level else (low, middle)
    return (low + high) / 2


def slopes(risks: Sequence[float], level: float, step: float = 1e-5) -> list[float]:
    """The gradient of the quantile by central differences."""
    found = []
    for k in range(len(risks)):
        ends = []
        for sign in (1, -1):
            moved = [r + sign * step * (j == k) for j, r in enumerate(risks)]
            ends.append(solved(moved, level))
        found.append((ends[0] - ends[1]) / (2 * step))
    return found


def gradient(risks: Sequence[float], level: float) -> tuple[float, list[float]]:
    rows = torch.tensor(risks, dtype=torch.float64, requires_grad=True)
    q = quantile(rows, level)
    return float(q.detach()), torch.autograd.grad(q, rows)[0].tolist()


def test_the_known_quantile_and_its_gradient() -> None:
    assert bandwidth(RISKS) == pytest.approx(H, abs=1e-6)
    assert solved(RISKS, 0.75) == pytest.approx(Q, abs=1e-6)
    q, found = gradient(RISKS, 0.75)
    assert q == pytest.approx(Q, abs=1e-6)
    # Not (0.1190, −0.0272, 0.9083), which flows through the end points of a bisection.
    assert found == pytest.approx(SLOPES, abs=5e-5)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.75, 0.99])
@pytest.mark.parametrize(
    "risks", [RISKS, (0.3, 0.1), (5.0, 0.0, 0.2, 0.1, 0.1), (1.0, 1.0, 2.0), (1e-8, 3e-8, 2e-8)]
)
def test_any_quantile_and_its_gradient(risks: tuple[float, ...], level: float) -> None:
    q, found = gradient(risks, level)
    assert q == pytest.approx(solved(risks, level), rel=1e-11)
    assert found == pytest.approx(slopes(risks, level, 1e-5 * max(risks)), abs=2e-5)
    assert sum(found) == pytest.approx(1), "all risks higher by 1, the quantile too"


@pytest.mark.parametrize("risks", [(0.4,), (0.4, 0.4, 0.4), (0.0, 0.0)])
def test_equal_risks_have_their_mean(risks: tuple[float, ...]) -> None:
    q, found = gradient(risks, 0.9)
    assert q == pytest.approx(risks[0])
    assert found == pytest.approx([1 / len(risks)] * len(risks))


def test_what_is_not_finite_stays_so() -> None:
    for wrong in (math.nan, math.inf):
        with without_value_checks():
            assert not quantile(torch.tensor([0.1, wrong, 0.3]), 0.75).isfinite()


def test_what_is_no_vector_of_risks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"risks must be \[E\], one per domain, got \[2, 1\]"):
        quantile(torch.ones(2, 1), 0.5)
    with pytest.raises(TypeError, match="risks must be floating point"):
        quantile(torch.ones(2).long(), 0.5)


def oracle(level: float, warmup: int, lr: float, later: float) -> Oracle:
    def update(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        risks = [plain.risk(batch) for batch in batches]
        loss = sum(risks) / len(risks)
        if step == warmup:
            plain.forget()
        if step >= warmup:
            values = [float(risk.detach()) for risk in risks]
            weights = slopes(values, level) if len(risks) > 1 else [1.0]
            parts = zip(weights, risks, values, strict=True)
            loss = solved(values, level) + sum(w * (r - value) for w, r, value in parts)
        adam = plain.adam(lr=later if step >= warmup else lr, weight_decay=0.1)
        adam.step(plain.weights, plain.gradients(loss))
        return loss

    return update


@pytest.mark.parametrize("warmup", [0, 2, 100])
@pytest.mark.parametrize("sizes", [(4, 6, 5), (3, 3), (5,)])
def test_eqrm(sizes: Sequence[int], warmup: int) -> None:
    """A new Adam with its own rate begins with the quantile."""
    lr, later = 1 / 128, 1 / 1024  # exact in float32, the precision of a rate that changes
    settings = {"lr": lr, "lr_after_warmup": later, "quantile": 0.8, "warmup_steps": warmup}
    algorithm = make("eqrm", len(sizes), **settings, weight_decay=0.1)
    compare(algorithm, oracle(0.8, warmup, lr, later), sizes=sizes, tolerance=1e-7)


def test_the_rate_changes_once_and_adam_begins_anew() -> None:
    """Adam's first step is as long as its rate, in every weight with a gradient."""
    algorithm = make("eqrm", lr=0.01, lr_after_warmup=0.002, warmup_steps=3)
    longest, counts = [], []
    for step in range(6):
        before = [p.detach().clone() for p in algorithm.model.parameters()]
        algorithm.update(make_batches(step))
        gaps = [
            (p.detach() - q).abs().max()
            for p, q in zip(algorithm.model.parameters(), before, strict=True)
        ]
        longest.append(float(max(gaps)))
        counts.append(int(algorithm.optimiser.count_0))
    assert counts == [1, 2, 3, 1, 2, 3]
    assert longest[0] == pytest.approx(0.01, rel=1e-3)
    assert longest[3] == pytest.approx(0.002, rel=1e-3)
    assert max(longest[3:]) < 0.003


def test_without_warm_up_the_later_rate_is_the_only_one() -> None:
    algorithm = make("eqrm", lr=0.01, lr_after_warmup=0.0, warmup_steps=0)
    before = [p.detach().clone() for p in algorithm.model.parameters()]
    for step in range(2):
        algorithm.update(make_batches(step))
    after = algorithm.model.parameters()
    assert all(torch.equal(p, q) for p, q in zip(after, before, strict=True))


def test_a_schedule_multiplies_both_rates() -> None:
    algorithm = make("eqrm", lr=0.01, lr_after_warmup=0.002, warmup_steps=1)
    algorithm.optimise(Optimisation(schedule="cosine", steps=2))
    algorithm.update(make_batches(0))
    before = [p.detach().clone() for p in algorithm.model.parameters()]
    algorithm.update(make_batches(1))  # at t = 1 of 2 a cosine is ½
    after = algorithm.model.parameters()
    gaps = [(p.detach() - q).abs().max() for p, q in zip(after, before, strict=True)]
    assert float(max(gaps)) == pytest.approx(0.001, rel=1e-3)


def test_one_domain_is_erm_all_along() -> None:
    one, other = make("eqrm", 1, warmup_steps=2, lr_after_warmup=0.01), make("erm", 1)
    for step in range(2):
        batches = make_batches(step, (5,))
        torch.testing.assert_close(one.update(batches)["loss"], other.update(batches)["loss"])
    terms = one.update(make_batches(2, (5,)))
    assert terms["loss"] == terms["quantile"]
    torch.testing.assert_close(terms["quantile"], terms["risk"])


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    asks_nothing(make("eqrm", warmup_steps=2))


def test_hyperparameters_are_those_of_domainbed() -> None:
    assert searches("eqrm") == {
        "eqrm_quantile": (0.75, "U(0.5, 0.99)"),
        "eqrm_burnin_iters": (2500, "int(10^U(2.5, 3.5))"),
        "eqrm_lr": (1e-6, "10^U(-7, -5)"),
    }
