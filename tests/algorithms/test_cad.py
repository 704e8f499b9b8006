"""CAD and CondCAD against sums over pairs of examples, written out."""

import math

import pytest
import torch
from torch import Tensor

from shoal.algorithms.domain_bottleneck import BottleneckHparams, bottleneck
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import draw

from .plain import Oracle, Plain, compare, domainbed_stream, make, make_batches
from .stepping import asks_nothing

Z = [(1.0, 0.0), (0.8, 0.1), (0.0, 1.0), (0.1, 0.9), (0.5, 0.5), (0.4, -0.3)]
LABELS, DOMAINS = [0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 1, 0]


def written_out(
    z: Tensor,
    labels: list[int],
    domains: list[int],
    temperature: float,
    conditional: bool,
    flipped: bool,
    own: float = 0.0,
) -> Tensor:
    """The bottleneck, example by example; ``own`` is added to the wanted weights of each."""
    n, found = len(z), []
    for i in range(n):
        alike = [j for j in range(n) if j != i and labels[j] == labels[i]]
        candidates = alike if conditional else [j for j in range(n) if j != i]
        wanted = [j for j in candidates if (domains[j] != domains[i]) == flipped]
        if not alike or not wanted:
            continue
        weight = {j: torch.exp((z[i] * z[j]).sum() / temperature) for j in candidates}
        share = (sum(weight[j] for j in wanted) + own) / sum(weight.values())
        found.append((-1 if flipped else 1) * temperature / 0.07 * share.log())
    return sum(found) / len(found) if found else 0 * z.sum()


GOLDEN = [(False, True, 0.470203), (True, True, 0.215957), (True, False, -6.288221)]


@pytest.mark.parametrize(("conditional", "flipped", "expected"), GOLDEN)
def test_golden_values(conditional: bool, flipped: bool, expected: float) -> None:
    z = torch.tensor(Z, dtype=torch.float64)
    found = bottleneck(
        z, torch.tensor(LABELS), torch.tensor(DOMAINS), 0.1, conditional, flipped=flipped
    )
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_domainbeds_cad_that_is_not_flipped_counts_each_example_itself() -> None:
    """It adds e⁰ for the example itself to the share of its own domain, which ours does not."""
    z = torch.tensor(Z, dtype=torch.float64)
    theirs = written_out(z, LABELS, DOMAINS, 0.1, False, False, own=1.0)
    assert float(theirs) == pytest.approx(-4.970838, abs=1e-6)
    ours = bottleneck(z, torch.tensor(LABELS), torch.tensor(DOMAINS), 0.1, False, flipped=False)
    assert float(ours) == pytest.approx(-5.143740, abs=1e-6)


def oracle(
    weight: float, temperature: float, conditional: bool, flipped: bool, normalised: bool
) -> Oracle:
    def step(plain: Plain, batches: list[Batch], _: int) -> Tensor:
        inputs = torch.cat([x for x, _ in batches])
        labels = torch.cat([y for _, y in batches])
        domains = [e for e, (_, y) in enumerate(batches) for _ in y]
        z = plain.features(inputs)
        risk = plain.risk((inputs, labels))
        if normalised:
            z = torch.stack([one / (one**2).sum() ** 0.5 for one in z])
        penalty = written_out(z, labels.tolist(), domains, temperature, conditional, flipped)
        loss = risk + weight * penalty
        plain.adam(weight_decay=0.1).step(plain.weights, plain.gradients(loss))
        return loss

    return step


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 5), (3,), (1, 2, 3, 1, 2, 4), (1, 1), (1,)])
@pytest.mark.parametrize("name", ["cad", "condcad"])
def test_by_pairs_of_examples(name: str, sizes: tuple[int, ...]) -> None:
    algorithm = make(name, len(sizes), penalty_weight=0.7, temperature=0.5, weight_decay=0.1)
    compare(algorithm, oracle(0.7, 0.5, name == "condcad", True, False), sizes=sizes)


@pytest.mark.parametrize(("flipped", "normalised"), [(False, False), (True, True)])
@pytest.mark.parametrize("name", ["cad", "condcad"])
def test_its_options(name: str, flipped: bool, normalised: bool) -> None:
    options = {"flipped": flipped, "normalised": normalised}
    algorithm = make(name, penalty_weight=0.7, temperature=0.1, weight_decay=0.1, **options)
    compare(algorithm, oracle(0.7, 0.1, name == "condcad", **options))


@pytest.mark.parametrize("conditional", [False, True])
def test_without_another_domain_it_is_zero_and_its_gradient_finite(conditional: bool) -> None:
    z = torch.tensor(Z, dtype=torch.float64, requires_grad=True)
    labels, domains = torch.tensor(LABELS), torch.zeros(6, dtype=torch.int64)
    found = bottleneck(z, labels, domains, 0.1, conditional)
    (slope,) = torch.autograd.grad(found, z)
    assert found == 0
    assert torch.equal(slope, torch.zeros_like(z))


def test_a_share_that_underflows_keeps_its_gradient() -> None:
    """In float32, of features so long that exp(z_i · z_j / T) of the far ones is zero."""
    z = torch.tensor([[30.0, 0.0], [30.0, 1.0], [0.0, 30.0], [1.0, 30.0]], requires_grad=True)
    domains, labels = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.int64)
    found = bottleneck(z, labels, domains, 0.1, False)
    (slope,) = torch.autograd.grad(found, z)
    # The nearest of the own domain has 9000, that of the other 300 and 600 in turn.
    assert float(found.detach()) == pytest.approx((9000 - 450) / 0.07 * 0.1, rel=1e-4)
    assert slope.isfinite().all() and slope.abs().min() > 0


def test_an_example_without_another_of_its_label_has_no_loss_of_its_own() -> None:
    z = torch.tensor(Z, dtype=torch.float64)
    labels, domains = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor(DOMAINS)
    for conditional in (False, True):
        expected = written_out(z, labels.tolist(), DOMAINS, 0.1, conditional, True)
        assert bottleneck(z, labels, domains, 0.1, conditional) == pytest.approx(float(expected))


def test_half_precision_does_not_reach_the_similarities() -> None:
    algorithm = make("cad", penalty_weight=1.0)
    algorithm.float()
    batches = [(x.float(), y) for x, y in make_batches(0)]
    with torch.autocast("cpu", torch.bfloat16):
        terms = algorithm.update(batches)
    assert terms["penalty"].dtype == torch.float32
    assert math.isfinite(terms["penalty"])


@pytest.mark.parametrize("name", ["cad", "condcad"])
def test_a_step_asks_nothing_and_keeps_its_addresses(name: str) -> None:
    asks_nothing(make(name))


def test_hparams_are_domainbeds() -> None:
    fields = BottleneckHparams.__dataclass_fields__
    keys = {name: f.metadata["key"] for name, f in fields.items()}
    assert keys["penalty_weight"] == "lmbda" and keys["temperature"] == "temperature"
    assert BottleneckHparams() == BottleneckHparams(penalty_weight=0.1, temperature=0.1)
    weights = [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0]
    for number in range(1, 10):
        found = draw(BottleneckHparams, "large", 0, number)
        assert found.penalty_weight == domainbed_stream("lmbda", number).choice(weights)
        assert found.temperature == domainbed_stream("temperature", number).choice([0.05, 0.1])
        assert found.flipped and not found.normalised
