"""GroupDRO against its weights in plain numbers."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch

from .plain import Plain, compare, make, make_batches, tiny
from .stepping import asks_nothing
from .test_irm import searches


def oracle(
    eta: float, num_domains: int, weight_decay: float = 0.0
) -> Callable[[Plain, list[Batch], int], Tensor]:
    q = [1.0] * num_domains

    def update(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        risks = [plain.risk(batch) for batch in batches]
        for m, risk in enumerate(risks):
            q[m] *= math.exp(eta * float(risk.detach()))
        total = sum(q)
        for m in range(num_domains):
            q[m] /= total
        loss = sum(weight * risk for weight, risk in zip(q, risks, strict=True))
        adam = plain.adam(weight_decay=weight_decay)
        adam.step(plain.weights, plain.gradients(loss))
        return loss

    return update


@pytest.mark.parametrize("eta", [0.01, 3.0])
@pytest.mark.parametrize("sizes", [(5,), (6, 3), (4, 6, 5), (1, 2, 9)])
def test_groupdro(sizes: Sequence[int], eta: float) -> None:
    algorithm = make("groupdro", len(sizes), eta=eta, weight_decay=0.1)
    compare(algorithm, oracle(eta, len(sizes), weight_decay=0.1), sizes=sizes)
    assert float(algorithm.q.sum()) == pytest.approx(1)


def test_weights_follow_the_product_of_all_steps() -> None:
    algorithm = make("groupdro", eta=0.5)
    plain, exponents = Plain(algorithm), torch.zeros(3, dtype=torch.float64)
    for step in range(4):
        batches = make_batches(step)
        plain.weights = dict(algorithm.model.named_parameters())
        exponents += torch.tensor([0.5 * float(plain.risk(batch).detach()) for batch in batches])
        algorithm.update(batches)
        torch.testing.assert_close(algorithm.q, exponents.exp() / exponents.exp().sum())
    risks = [float(plain.risk(batch).detach()) for batch in batches]
    assert float(algorithm(batches)["worst"].detach()) == pytest.approx(max(risks))


def test_one_domain_is_erm() -> None:
    one, other = make("groupdro", 1, eta=0.1), make("erm", 1)
    for step in range(3):
        batches = make_batches(step, (5,))
        torch.testing.assert_close(one.update(batches)["loss"], other.update(batches)["loss"])


def test_a_large_risk_does_not_overflow() -> None:
    model = tiny()
    with torch.no_grad():
        model.classifier.weight *= 1e6
    algorithm = make("groupdro", model=model, eta=1.0)
    assert float(algorithm(make_batches(0))["worst"].detach()) > 800  # exp overflows from 710 on
    algorithm.check(algorithm.update(make_batches(1)))
    assert float(algorithm.q.max()) == pytest.approx(1)
    assert algorithm.q.isfinite().all()


def forward_with(*risks: float) -> Any:
    return SimpleNamespace(risks=torch.tensor(risks))


def test_a_weight_that_became_tiny_can_come_back() -> None:
    algorithm = make("groupdro", 2, eta=1.0)
    for _ in range(4):
        algorithm.objective(forward_with(0.0, 100.0))
    assert algorithm.q[0].log().item() == pytest.approx(-400)  # zero in float32, for good
    for _ in range(5):
        algorithm.objective(forward_with(100.0, 0.0))
    assert algorithm.q.tolist() == pytest.approx([1.0, 0.0])


def test_weights_follow_the_formula_where_float32_stops_above_zero() -> None:
    """As ``docs/fidelity.md`` says of DomainBed's product in float32, which ours must outlast."""
    algorithm, risks = make("groupdro", 2, eta=0.1), torch.tensor([0.0, 1.0])
    theirs, fallen, stopped = torch.ones(2), 1500, 0
    for step in range(fallen):
        algorithm.objective(forward_with(*risks.tolist()))
        before, grown = theirs, theirs * (0.1 * risks).exp()
        theirs = grown / grown.sum()
        stopped = step if theirs[0] != before[0] else stopped
    assert theirs[0].item() == pytest.approx(7e-45, rel=0.01)
    assert 1000 < stopped < 1040
    assert algorithm.q[0].log().item() == pytest.approx(-0.1 * fallen, rel=1e-6)
    for _ in range(fallen):
        grown = theirs * (0.1 * risks.flip(0)).exp()
        theirs = grown / grown.sum()
    assert theirs[0] > 0.99  # it came back


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_does_not_enter_the_weights(wrong: float) -> None:
    algorithm = make("groupdro", eta=1.0)
    algorithm.update(make_batches(0))
    before = algorithm.q.clone()
    terms = algorithm.objective(forward_with(1.0, wrong, 1.0))
    assert torch.equal(algorithm.q, before)
    assert not terms["loss"].isfinite()


def test_evaluation_leaves_the_weights_alone() -> None:
    algorithm = make("groupdro", eta=1.0).eval()
    before = algorithm.q.clone()
    algorithm(make_batches(0))
    assert torch.equal(algorithm.q, before)


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    algorithm = make("groupdro")
    assert "q" in algorithm.state_dict()
    asks_nothing(algorithm)


def test_all_state_is_on_the_device_of_the_network() -> None:
    state = make("groupdro", model=tiny().to("meta")).state_dict()
    assert {name for name, tensor in state.items() if not tensor.is_meta} == set()


def test_hyperparameters_are_those_of_domainbed() -> None:
    assert searches("groupdro") == {"groupdro_eta": (0.01, "10^U(-3, -1)")}
