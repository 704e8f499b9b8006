"""IB-ERM and IB-IRM against loops over the features of each domain."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch
from shoal.fitting.setup import hparams_for

from .plain import Oracle, Plain, compare, make, make_batches
from .stepping import asks_nothing
from .test_irm import irm_penalty, pooled_risk, searches


def variance(plain: Plain, batches: list[Batch]) -> Tensor:
    """The mean over domains, then over features, of the unbiased variance."""
    means = []
    for inputs, _ in batches:
        features = plain.features(inputs)
        n, of_features = len(features), []
        for column in features.T:
            gaps = [(one - sum(column) / n) ** 2 for one in column]
            of_features.append(sum(gaps) / max(n - 1, 1))
        means.append(sum(of_features) / len(of_features))
    return sum(means) / len(means)


def oracle(
    bottleneck: tuple[float, int], irm: tuple[float, int] | None, weight_decay: float = 0.1
) -> Oracle:
    """With λ and warm-up of each part; without IRM it is IB-ERM."""

    def update(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        loss = pooled_risk(plain, batches)
        if step >= bottleneck[1]:
            loss = loss + bottleneck[0] * variance(plain, batches)
        if irm is not None:
            loss = loss + (irm[0] if step >= irm[1] else 1.0) * irm_penalty(plain, batches)
        if step in (bottleneck[1], irm[1] if irm else None):
            plain.forget()
        plain.adam(weight_decay=weight_decay).step(plain.weights, plain.gradients(loss))
        return loss

    return update


@pytest.mark.parametrize("warmup_steps", [0, 2, 100])
@pytest.mark.parametrize("sizes", [(4, 6, 5), (4, 4), (1, 3, 2), (1,)])
def test_ib_erm(sizes: Sequence[int], warmup_steps: int) -> None:
    algorithm = make(
        "ib-erm", len(sizes), penalty_weight=20.0, warmup_steps=warmup_steps, weight_decay=0.1
    )
    compare(algorithm, oracle((20.0, warmup_steps), None), sizes=sizes)


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1), (2, 2), (0, 2), (2, 0), (0, 0)])
def test_ib_irm_with_two_warm_ups(first: int, second: int) -> None:
    """Adam begins anew at the end of each."""
    settings = {"penalty_weight": 30.0, "warmup_steps": first}
    settings |= {"bottleneck_weight": 20.0, "bottleneck_warmup_steps": second}
    algorithm = make("ib-irm", **settings, weight_decay=0.1)
    compare(algorithm, oracle((20.0, second), (30.0, first)), steps=6)


@pytest.mark.parametrize("sizes", [(5,), (4, 4), (7, 1, 2)])
def test_ib_irm_for_any_number_of_domains_and_sizes(sizes: Sequence[int]) -> None:
    settings = {"penalty_weight": 30.0, "warmup_steps": 1}
    settings |= {"bottleneck_weight": 20.0, "bottleneck_warmup_steps": 2}
    algorithm = make("ib-irm", len(sizes), **settings, weight_decay=0.1)
    compare(algorithm, oracle((20.0, 2), (30.0, 1)), sizes=sizes)


def test_a_known_variance() -> None:
    """Rows (1, 0) and (3, 4) have variances 2 and 8; a domain of one example has none."""
    from shoal.statistics import feature_variance

    features = torch.tensor([[1.0, 0.0], [3.0, 4.0], [9.0, 9.0]])
    assert feature_variance(features, (2, 1)).tolist() == [[2.0, 8.0], [0.0, 0.0]]


def test_without_the_variance_it_is_irm() -> None:
    ib, irm = make("ib-irm", bottleneck_weight=0.0, warmup_steps=2), make("irm", warmup_steps=2)
    for step in range(5):
        loss = ib.update(make_batches(step))["loss"]
        torch.testing.assert_close(loss, irm.update(make_batches(step))["loss"])


def test_terms_add_up() -> None:
    algorithm = make("ib-irm", warmup_steps=0, bottleneck_warmup_steps=0)
    terms = algorithm(make_batches(0))
    assert list(terms) == ["loss", "risk", "penalty", "variance"]
    torch.testing.assert_close(terms["loss"], terms["risk"] + terms["penalty"] + terms["variance"])


@pytest.mark.parametrize("name", ["ib-erm", "ib-irm"])
def test_a_step_asks_nothing_and_keeps_its_addresses(name: str) -> None:
    asks_nothing(make(name, warmup_steps=2))


def test_both_warm_ups_are_shorter_in_a_shorter_run() -> None:
    method = (type(make("ib-irm")), {})
    found = hparams_for(method, "small", 1000, {})
    assert found["warmup_steps"] == found["bottleneck_warmup_steps"] == 100
    assert (
        hparams_for(method, "small", 1000, {"bottleneck_warmup_steps": "7"})[
            "bottleneck_warmup_steps"
        ]
        == 7
    )


def test_hyperparameters_are_those_of_domainbed() -> None:
    own = {
        "ib_lambda": (100.0, "10^U(-1, 5)"),
        "ib_penalty_anneal_iters": (500, "int(10^U(0, 4))"),
    }
    assert searches("ib-erm") == own
    assert searches("ib-irm") == own | searches("irm")
