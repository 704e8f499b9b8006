"""The shift meter: its integrals against slow ones and known answers, and whole measurements."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.datasets.base import Domain, DomainDataset
from shoal.fitting import shift_meter
from shoal.fitting.fit import fit
from shoal.fitting.shift_meter import (
    Examples,
    Shift,
    class_counts,
    class_densities,
    integrate,
    kernel_covariance,
    measure_shift,
    measure_shifts,
    sample,
    shift_of_features,
    standardiser,
    train_network,
)
from shoal.randomness import stream
from tests.fitting.made import write_table

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


def normal(*shape: int, name: str = "normal") -> Tensor:
    return torch.randn(*shape, generator=stream("test", name), dtype=torch.float64)


def slow_integrals(p: Tensor, q: Tensor, shares: Tensor) -> tuple[float, float]:
    """Return both shifts by the published sums, sample by sample."""
    diversity = correlation = 0.0
    for p_y, q_y in zip(p.tolist(), q.tolist(), strict=True):
        whole_p = sum(s * a for s, a in zip(shares.tolist(), p_y, strict=True))
        whole_q = sum(s * b for s, b in zip(shares.tolist(), q_y, strict=True))
        density = (whole_p + whole_q) / 2
        if whole_p < 1e-12 or whole_q < 1e-12:
            diversity += (math.sqrt(whole_p) - math.sqrt(whole_q)) ** 2 / density / 2
        if whole_p > 5e-4 and whole_q > 5e-4:
            for share, a, b in zip(shares.tolist(), p_y, q_y, strict=True):
                gap = a * math.sqrt(whole_q / whole_p) + b * math.sqrt(whole_p / whole_q)
                correlation += share * (gap - 2 * math.sqrt(a * b)) / density / 2
    return diversity / len(p), correlation / len(p)


def test_integrals_equal_the_published_sums() -> None:
    # Densities from 1e-15 to 1, so that every threshold is crossed by some samples.
    p, q = (10.0 ** (-15 * (5 * normal(300, 3, name=side)).sigmoid()) for side in "pq")
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found = integrate(p, q, shares)
    assert found == pytest.approx(slow_integrals(p, q, shares), rel=1e-12)
    assert found.diversity > 0.01 and found.correlation > 0.001


def test_thresholds_are_the_published_ones() -> None:
    def shift(p: float, q: float) -> Shift:
        return integrate(
            torch.tensor([[2 * p, 0.0]]).double(), torch.tensor([[0.0, 2 * q]]).double(), HALF
        )

    assert shift(1.0, 0.9e-12).diversity == pytest.approx(1.0, abs=1e-5)
    assert shift(1.0, 1.1e-12) == (0.0, 0.0)
    assert shift(1.0, 4e-4) == (0.0, 0.0)
    # Opposite classes at one point: 1/2 · 2 √(p q) / s.
    expected = math.sqrt(6e-4) / ((1 + 6e-4) / 2)
    assert shift(1.0, 6e-4) == pytest.approx((0.0, expected))


@pytest.mark.parametrize("agree", [(0.85, 0.1), (0.9, 0.9), (1.0, 0.0)])
def test_integrals_of_a_colour_that_follows_the_class(agree: tuple[float, float]) -> None:
    """Two colours of equal mass: ½ Σ_y (√p(y|z) − √q(y|z))², and 1 where all is reversed."""
    a, b = agree
    densities = [
        torch.tensor([[one, 1 - one], [1 - one, one]], dtype=torch.float64) for one in agree
    ]
    expected = ((a**0.5 - b**0.5) ** 2 + ((1 - a) ** 0.5 - (1 - b) ** 0.5) ** 2) / 2
    assert integrate(*densities, HALF) == pytest.approx((0.0, expected), abs=1e-12)


def test_integral_over_two_gaussians() -> None:
    """Classes N(−1, 1) and N(1, 1) on one side, and exchanged on the other, by quadrature."""
    x = torch.linspace(-30, 30, 60_001, dtype=torch.float64)
    first, second = (torch.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (-1.0, 1.0))
    mixture = (first + second) / 2
    inside = mixture > 5e-4
    gaps = (first / mixture).sqrt() - (second / mixture).sqrt()
    expected = float(torch.trapezoid((mixture * gaps.square())[inside] / 2, x[inside]))
    # Samples of the mixture by its quantiles, as Monte Carlo without noise.
    steps = torch.cumsum(mixture, 0) * (x[1] - x[0])
    at = torch.searchsorted(steps, (torch.arange(20_000) + 0.5) / 20_000)
    p = torch.stack([first[at], second[at]], 1)
    found = integrate(p, p.flip(1), HALF)
    assert found.diversity == 0.0
    assert found.correlation == pytest.approx(expected, abs=1e-3)
    assert 0.3 < expected < 0.7


def test_densities_equal_a_sum_of_gaussians() -> None:
    covariance = np.array([[0.5, 0.2], [0.2, 0.3]])
    examples = Examples(normal(6, 2), torch.tensor([3, 5, 3, 3, 5, 5]))
    samples = 2 * normal(1500, 2, name="samples")
    present = torch.tensor([3, 5])
    root = torch.linalg.cholesky(torch.tensor(covariance))
    found = class_densities(samples, examples, present, root)
    for j in (0, 7, 1234):
        for c, label in enumerate((3, 5)):
            kernels = []
            for centre in examples.vectors[examples.labels == label].numpy():
                away = samples[j].numpy() - centre
                exponent = -away @ np.linalg.inv(covariance) @ away / 2
                kernels.append(
                    math.exp(exponent) / (2 * math.pi * math.sqrt(np.linalg.det(covariance)))
                )
            assert float(found[j, c]) == pytest.approx(sum(kernels) / 3, rel=1e-10)


def test_kernels_have_the_covariance_within_classes() -> None:
    labels = torch.arange(60) % 2
    p, q = (Examples(normal(60, 3, name=side), labels) for side in "pq")
    apart = [one.vectors[labels == y].numpy() for one in (p, q) for y in (0, 1)]
    within = np.mean([np.cov(part.T) for part in apart], 0)
    found = kernel_covariance(p, q)
    assert found.numpy() == pytest.approx(60 ** (-2 / 7) * within, abs=1e-5)
    # Where the classes and the sides are does not matter.
    moved = Examples(q.vectors + 100 + 10 * labels[:, None], labels)
    assert torch.allclose(kernel_covariance(p, moved), found)


def features(
    p_centres: Tensor, q_centres: Tensor, p_labels: Tensor, q_labels: Tensor
) -> tuple[Examples, Examples]:
    """Return examples that stand close around their centres."""
    p, q = (
        Examples(centres + 0.1 * normal(*centres.shape, name=side), labels)
        for side, centres, labels in (("p", p_centres, p_labels), ("q", q_centres, q_labels))
    )
    return p, q


def test_features_with_known_shifts() -> None:
    labels = torch.arange(400) % 2
    line = torch.zeros(400, 2, dtype=torch.float64)

    def shift(*given: Tensor) -> Shift:
        return shift_of_features(*features(*given), stream("test"))

    same = shift(line, line, labels, labels)
    assert same.diversity < 0.01 and same.correlation < 0.02
    apart = shift(line, line + 5, labels, labels)
    assert apart == pytest.approx((1.0, 0.0), abs=1e-9)
    # One class is elsewhere in Q: half of q is alone there, (√p − √q)² / 2 = 1/4. Where P has both
    # classes, Q has one: √(p q) [(√½ − 1)² + √½²] / 2 with p = 1 and q = ½.
    moved = line + 5 * labels[:, None]
    expected = math.sqrt(0.5) * (1 - math.sqrt(0.5))
    assert shift(line, moved, labels, labels) == pytest.approx((0.25, expected), abs=0.02)
    # Places 0 and 2 stand for the class: exchanged, and then in a quarter of the examples.
    place = line + 2 * labels[:, None]
    assert shift(place, place, labels, 1 - labels) == pytest.approx((0.0, 1.0), abs=0.03)
    quarter = torch.where(torch.arange(400) % 8 < 2, 1 - labels, labels)
    expected = 1 - math.sqrt(0.75)
    assert shift(place, place, labels, quarter) == pytest.approx((0.0, expected), abs=0.02)


def test_features_that_are_the_same_everywhere_have_no_shift() -> None:
    labels = torch.arange(40) % 2
    one = Examples(torch.ones(40, 8, dtype=torch.float64), labels)
    assert shift_of_features(one, one, stream("test")) == (0.0, 0.0)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One measurement instead of three, to be quick."""
    monkeypatch.setattr(shift_meter, "REPEATS", 1)


def coloured(name: str, n: int, agree: float, away: float = 0.0) -> Domain:
    """Return a domain whose first column agrees with the class in a share of the rows."""
    draws = stream("coloured", name)
    labels = torch.randint(2, (n,), generator=draws)
    vectors = torch.randn(n, 6, generator=draws) + away
    agrees = torch.rand(n, generator=draws) < agree
    vectors[:, 0] = torch.where(agrees, labels, 1 - labels).float()
    return Domain(name, labels, vectors)


def examples_of(domain: Domain) -> Examples:
    return Examples(domain.tensor, domain.labels)


def test_a_correlation_that_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = (examples_of(coloured(name, 1000, agree)) for name, agree in (("p", 0.85), ("q", 0.1)))
    found = measure_shift(p, q)
    assert found.diversity < 0.02
    # 0.341 by the colour alone.
    assert 0.25 < found.correlation < 0.45
    once = [Shift(0.1, 0.2), Shift(0.2, 0.4), Shift(0.6, 0.6)]
    monkeypatch.setattr(shift_meter, "_measure_once", lambda *_: once.pop())
    assert measure_shift(p, q) == pytest.approx((0.3, 0.4))


@pytest.mark.usefixtures("once")
def test_the_same_data_and_name_give_the_same_numbers() -> None:
    p, q = (examples_of(coloured(name, 300, 0.85)) for name in "pq")
    found = measure_shift(p, q)
    torch.rand(3)
    assert measure_shift(p, q) == found
    assert measure_shift(p, q, "another stream") != found


@pytest.mark.usefixtures("once")
def test_inputs_that_only_one_side_has() -> None:
    p, q = examples_of(coloured("p", 1000, 0.85)), examples_of(coloured("q", 1000, 0.85, away=8.0))
    p.vectors[3, 2] = math.nan
    found = measure_shift(p, q)
    assert found.diversity > 0.9 and found.correlation < 0.02


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("more", [1, 3])
def test_random_halves_of_one_pool_have_no_shift(more: int) -> None:
    """On average over pools of two or six classes; some of the classes are random."""
    found = []
    for number in range(3):
        pool = coloured(f"pool {number}", 3000, 0.85)
        random = torch.randint(more, (3000,), generator=stream("classes", number))
        labels = more * pool.labels + random
        halves = (Examples(pool.tensor[k::2], labels[k::2]) for k in range(2))
        found.append(measure_shift(*halves))
    assert max(np.mean(found, 0)) <= 0.02


def test_both_sides_get_the_same_number_of_every_class() -> None:
    counts = [(40, 30), (4, 50), (0, 9), (12, 600)]
    p, q = (
        Examples(normal(sum(n), 2, name=str(side)), torch.arange(4).repeat_interleave(n))
        for side, n in enumerate(torch.tensor(counts).T)
    )
    found = class_counts(p, q)
    assert found.tolist() == [30, 0, 0, 12]  # 4 are fewer than 5
    seen, new = sample(p, found, stream("sample"))
    assert seen.labels.bincount().tolist() == [24, 0, 0, 10]
    assert new.labels.bincount().tolist() == [6, 0, 0, 2]
    rows = {tuple(row) for row in torch.cat([seen.vectors, new.vectors]).tolist()}
    assert len(rows) == 42 and rows <= {tuple(row) for row in p.vectors.tolist()}
    # A cap keeps the shares, and no class falls below 5.
    assert class_counts(p, q, 21).tolist() == [15, 0, 0, 6]
    assert class_counts(p, q, 14).tolist() == [10, 0, 0, 5]


def test_standardised_inputs() -> None:
    by = torch.tensor([[1.0, 7.0, 0.0], [3.0, 7.0, math.nan], [5.0, 7.0, 4.0]])
    scaled = standardiser(by)(torch.tensor([[3.0, 9.0, math.nan], [5.0, 7.0, 4.0], [1e9, 0.0, 2]]))
    # The constant column is dropped, and two columns are left.
    expected = torch.tensor([[0.0, 0.0], [math.sqrt(1.5), 1.0], [5.0, 0.0]]) / math.sqrt(2)
    assert torch.allclose(scaled, expected)


def test_training_follows_the_published_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    weights: list[Tensor] = []
    step = torch.optim.SGD.step

    def note(optimiser: torch.optim.SGD) -> None:
        group = optimiser.param_groups[0]
        assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-4)
        step(optimiser)
        rates.append(group["lr"])
        weights.append(group["params"][0].detach().clone())

    monkeypatch.setattr(torch.optim.SGD, "step", note)
    monkeypatch.setattr(shift_meter, "UPDATES", 20)
    labels = torch.arange(70) % 2
    p, q = (Examples(normal(70, 3, name=side).float(), labels) for side in "pq")
    before = torch.get_rng_state()
    network = train_network(p, q, 2, stream("train"))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(rates) == 20  # ten epochs of two batches
    assert rates[0] == 0.05 and rates[5] == pytest.approx(0.0375)
    assert rates[10:] == [0.025] * 10
    mean = torch.stack(weights[10:]).mean(0)
    assert torch.allclose(next(network.parameters()), mean, atol=1e-6)
    assert network(p.vectors).shape == (70, 8)


@pytest.mark.usefixtures("once")
def test_each_domain_against_the_others() -> None:
    domains = [coloured("a", 400, 0.85), coloured("b", 400, 0.85), coloured("c", 400, 0.1)]
    few = coloured("few", 100, 0.85)
    dataset = DomainDataset("made", ("no", "yes"), (*domains, few))
    found = measure_shifts(dataset)
    assert found is not None
    assert list(found.domains) == ["a", "b", "c"]
    correlations = [one.correlation for one in found.domains.values()]
    assert max(correlations) == correlations[2] > 0.2
    assert found.mean.correlation == pytest.approx(sum(correlations) / 3)
    assert found.notes == (
        "domains with fewer than 250 examples of classes that the others have too are left out: "
        "few",
    )


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift_meter, "measure_shift", lambda *_: Shift(0.1, 0.2))
    domains = [coloured(f"d{k}", 300 + k, 0.85) for k in range(14)]
    rare = domains[13].labels.clone()
    rare[:3] = 2
    domains[13] = Domain("d13", rare, domains[13].tensor)
    dataset = DomainDataset("made", ("no", "yes", "rare"), tuple(domains))
    found = measure_shifts(dataset)
    assert found is not None and list(found.domains) == [f"d{k}" for k in range(2, 14)]
    assert found.notes == (
        "only the 12 largest of 14 domains are measured",
        "classes with fewer than 5 examples in a domain or in the others are left out there: rare",
    )


def test_nothing_to_measure() -> None:
    small = DomainDataset("small", ("no", "yes"), (coloured("a", 60, 0.9), coloured("b", 60, 0.9)))
    assert measure_shifts(small) is None
    assert measure_shifts(small.without(["b"])) is None
    with pytest.raises(ValueError, match=r"share .* a shift needs 250"):
        measure_shift(*map(examples_of, small.domains))
    images = Domain("i", torch.zeros(3, dtype=torch.int64), torch.zeros(3, 1, 2, 2).byte())
    with pytest.raises(ValueError, match="measured on vectors, and pictures has images"):
        measure_shifts(DomainDataset("pictures", ("no",), (images,)))


@pytest.mark.usefixtures("own_folder", "once")
def test_the_page_of_a_fit_shows_the_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.fitting.fit.onnx_missing", lambda: "onnx")
    for rows, shown in ((300, True), (30, False)):
        table = write_table(Path(f"{rows}.csv"), rows)
        out = Path(f"out-{rows}")
        fit(table, out=out, only=["erm"], steps=10, runs=3)
        assert ('<section id="shifts">' in (out / "report.html").read_text()) == shown
