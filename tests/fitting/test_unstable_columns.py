"""Unstable columns: the score test against slow loops, its size and power, and what is flagged."""

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.nn.functional import one_hot

from benchmarks.tables import CLASS, SITE, Table, interactions, spurious, varying_size
from benchmarks.unstable_columns import STABLE, Simulation, draw
from shoal.fitting import unstable_columns as module
from shoal.fitting.pooled_regression import RIDGE, SCALE, PooledRegression, contrasts
from shoal.fitting.unstable_columns import (
    SIGNIFICANCE,
    ColumnStability,
    DomainScores,
    GroupEffects,
    unstable_columns,
)

Data = tuple[Tensor, Tensor, Tensor, Mapping[str, Sequence[int]]]


def regression(classes: int = 3, freed: Sequence[int] = (), rows: int = 25) -> PooledRegression:
    """A fitted regression of three domains with three groups, the second of two values."""
    random = torch.Generator().manual_seed(0)
    sizes = (rows, 2 * rows, rows)
    x = torch.randn(sum(sizes), 4, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (sum(sizes),), generator=random)
    labels = torch.where(x[:, 0] > 0.5, torch.zeros_like(labels), labels)
    x = torch.cat([part - part.mean(0) for part in x.split(sizes)])
    values = list(x.split([1, 2, 1], 1))
    model = PooledRegression(values, one_hot(labels, classes).double(), sizes)
    model.fit(freed)
    return model


def slow_test(model: PooledRegression, tested: slice, freed: slice | None) -> tuple[float, int]:
    """The score test with every parameter written out, and its information row by row.

    It moves: all shared effects, an intercept in every domain, the contrasts of the logarithms of
    scales, the effects in every domain of what is freed, and the contrasts between domains of the
    tested effects. The last ones are tested.
    """
    between, basis = contrasts(len(model.sizes)), contrasts(model.targets.shape[1])
    num_domains, columns, width = model.own.shape
    own = [] if freed is None else [(num_domains, freed.stop - freed.start, width)]
    shapes = [
        (columns, width),
        (num_domains, width),
        (num_domains - 1,),
        *own,
        (num_domains - 1, tested.stop - tested.start, width),
    ]
    sizes = [math.prod(shape) for shape in shapes]
    domains = torch.arange(num_domains).repeat_interleave(torch.tensor(model.sizes))

    def logits(parameters: Tensor) -> Tensor:
        parts = [p.reshape(s) for p, s in zip(parameters.split(sizes), shapes, strict=True)]
        effects = model.effects() + parts[0]
        changes = torch.zeros_like(effects)
        if freed is not None:
            changes[:, freed] = parts[3]
        changes[:, tested] = torch.einsum("ek,kqc->eqc", between, parts[-1])
        scales = (model.log_scales + between @ parts[2]).exp()
        effects = (effects + changes) * scales[:, None, None]
        intercepts = model.intercepts + parts[1]
        found = [x @ effects[e] + intercepts[e] for x, e in zip(model.x, domains, strict=True)]
        return torch.stack(found) @ basis.T

    start = torch.zeros(sum(sizes), dtype=torch.float64)
    slopes = jacobian(logits, start)  # [n, C, parameters]
    score, information = torch.zeros(sum(sizes)).double(), torch.zeros(2 * (sum(sizes),)).double()
    for slope, p, target in zip(slopes, logits(start).softmax(1), model.targets, strict=True):
        score += slope.T @ (target - p)
        information += slope.T @ (torch.diag(p) - p[:, None] * p) @ slope
    scales = slice(sum(sizes[:2]), sum(sizes[:3]))
    score[scales] -= between.T @ model.log_scales / SCALE**2
    information[scales, scales] += torch.eye(num_domains - 1).double() / SCALE**2

    kept = torch.ones(sum(sizes), dtype=torch.bool)
    if freed is not None:  # its shared effect and its own ones are the same parameters
        kept[: sizes[0]] = (
            kept[: sizes[0]]
            .reshape(columns, width)
            .index_fill(0, torch.arange(columns)[freed], False)
            .flatten()
        )
    inside = torch.arange(sum(sizes)) >= sum(sizes[:-1])
    nuisance = kept & ~inside
    cross = torch.linalg.solve(information[nuisance][:, nuisance], information[nuisance][:, inside])
    u = score[inside] - cross.T @ score[nuisance]
    v = information[inside][:, inside] - cross.T @ information[nuisance][:, inside]
    return float(u @ torch.linalg.solve(v, u)), int(inside.sum())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("tested", [0, 1])
@pytest.mark.parametrize("freed", [None, 2])
def test_the_score_test_is_that_of_slow_loops(classes: int, tested: int, freed: int | None) -> None:
    model = regression(classes, [] if freed is None else [freed])
    scores = DomainScores(*model.scores_and_informations())
    flat = [slice((classes - 1) * p.start, (classes - 1) * p.stop) for p in model.places]
    if freed is not None:
        scores = scores.without(flat[freed])
    statistic, freedom = scores.heterogeneity(flat[tested])
    place = None if freed is None else model.places[freed]
    expected, parameters = slow_test(model, model.places[tested], place)
    assert statistic == pytest.approx(expected, rel=1e-5)
    assert freedom == parameters == 2 * (classes - 1) * (2 if tested == 1 else 1)


def test_the_fit_is_where_penalties_and_scores_balance() -> None:
    model = regression(freed=[2])
    scores, _ = model.scores_and_informations()
    shared, own = scores[:, :8].sum(0).reshape(4, 2), scores[:, 6:8].reshape(3, 1, 2)
    ridge = model.ridge * (2 * model.log_scales).exp().mean()
    assert torch.allclose(shared, ridge * model.shared, atol=0.02)
    assert torch.allclose(own, RIDGE * model.own[:, 3:], atol=0.02)
    assert model.own[:, :3].abs().max() == 0
    assert float(model.log_scales.sum()) == pytest.approx(0, abs=1e-9)
    assert model.targets.T @ torch.ones(len(model.x)).double() == pytest.approx(
        model.log_probabilities().exp().sum(0), abs=0.05
    ), "intercepts give every class its share"


def test_few_rows_for_many_columns_have_a_larger_ridge() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, 40, generator=random, dtype=torch.float64)
    targets = one_hot((torch.rand(200, generator=random) < 0.5).long(), 2).double()
    model = PooledRegression([x], targets, (100, 100))
    model.fit_ridge()
    assert model.ridge > 20
    assert model.log_probabilities().exp().max() < 0.9


def test_no_column_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all effects are equal, χ² has its mean, and any table is significant in 5 %.

    Prevalence and columns shift. Without intercepts, without Holm (12 columns) or with E instead of
    E − 1 degrees of freedom, the bounds do not hold.
    """
    kind = Simulation(rows=(150, 250, 200, 300), classes=3, columns=12, prevalence=0.4, shift=0.5)
    tables, significant, statistics = 80, 0, list[float]()
    tests, test = list[tuple[float, int]](), DomainScores.heterogeneity

    def noting(scores: DomainScores, place: slice) -> tuple[float, int]:
        tests.append(test(scores, place))
        return tests[-1]

    monkeypatch.setattr(DomainScores, "heterogeneity", noting)
    for seed in range(tables):
        tests.clear()
        found = unstable_columns(*draw(kind, seed))
        significant += any(group.p <= SIGNIFICANCE for group in found.groups)
        first = tests[: kind.columns]  # of all columns, before any has effects of its own
        assert {freedom for _, freedom in first} == {6 - 2 * len(found.absent)}
        statistics += [] if found.absent else [statistic for statistic, _ in first]
    assert len(statistics) >= 12 * 78
    # The standard error of the mean of 960 values of χ² with 6 degrees of freedom is 0.11.
    assert sum(statistics) / len(statistics) == pytest.approx(6, abs=0.35)
    assert significant <= 10, "5 % of 80, and three standard errors"


def test_hospitals_like_those_of_heart_disease_have_no_unstable_column() -> None:
    flagged = [bool(unstable_columns(*draw(STABLE["hospitals"], k)).flagged) for k in range(40)]
    assert sum(flagged) <= 6, "5 % of 40, and three standard errors"


def table_data(table: Table, without: str | None = None) -> Data:
    names = [name for name in table if name not in (SITE, CLASS)]
    rows = torch.tensor([site != without for site in table[SITE]])
    numbers = {site: k for k, site in enumerate(sorted({*table[SITE]} - {without}))}
    sites = torch.tensor([numbers.get(site, -1) for site in table[SITE]])
    labels = torch.tensor([int(value == "yes") for value in table[CLASS]])
    vectors = torch.tensor([table[name] for name in names]).T
    return vectors[rows], labels[rows], sites[rows], {name: [k] for k, name in enumerate(names)}


def group_of(found: ColumnStability, name: str) -> GroupEffects:
    return next(group for group in found.groups if name in group.names)


@pytest.mark.parametrize("without", [None, "site 5", "site 1"])
def test_the_spurious_column_is_found(without: str | None) -> None:
    """Also among the four sites that agree, where its sign is the same and its size is not."""
    data = table_data(spurious(), without)
    found = unstable_columns(*data)
    assert found.flagged == ("x07",)
    column = group_of(found, "x07")
    assert column.turns == (without != "site 5")
    agreement = (0.95, 0.90, 0.85, 0.80, 0.10)
    expected = [math.log(p / (1 - p)) for k, p in enumerate(agreement, 1) if f"site {k}" != without]
    for effect, error, truth in zip(
        column.effects.values(), column.errors.values(), expected, strict=True
    ):
        assert effect == pytest.approx(truth, abs=4 * error)
        assert error < 0.15
    assert found.remaining(data[3]) == [k for k in range(30) if k != 7]
    others = [group for group in found.groups if group.names != ("x07",)]
    assert sum(group.p <= SIGNIFICANCE for group in others) <= 1


def test_a_column_of_stable_sign_and_slightly_varying_size_is_kept() -> None:
    found = unstable_columns(*table_data(varying_size()))
    column = group_of(found, "x07")
    assert found.flagged == ()
    assert column.p < 1e-6, "it differs, but by little"
    assert column.spread / column.mean == pytest.approx(0.158, abs=0.05)


def test_a_table_of_interactions_has_no_unstable_column() -> None:
    assert unstable_columns(*table_data(interactions())).flagged == ()


def test_noisy_labels_of_a_domain_are_a_scale_and_not_unstable_columns() -> None:
    noisy = Simulation(rows=(3000,) * 4, columns=8, strength=1.0, noise=0.5)
    found = unstable_columns(*draw(noisy, 1))
    assert found.flagged == ()
    assert list(found.scales.values()) == sorted(found.scales.values(), reverse=True)
    assert found.scales[3] < 0.7 < 1.3 < found.scales[0]


@pytest.mark.parametrize("classes", [2, 4])
def test_a_column_that_turns_is_found_among_noisy_and_correlated_ones(classes: int) -> None:
    turning = Simulation(
        rows=(400,) * 5,
        classes=classes,
        effects=(1.0, 1.0, 1.0, 1.0, -1.0),
        noise=0.3,
        correlation=0.7,
        missing=0.1,
    )
    found = unstable_columns(*draw(turning, 3))
    assert found.flagged == ("x0",)
    assert group_of(found, "x0").turns


def made(rows: int = 500, domains: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Three columns with an effect of 1; the sign of the first one's turns in the last domain."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows * domains, 3, generator=random, dtype=torch.float64)
    domain = torch.arange(rows * domains) % domains
    sign = torch.where(domain == domains - 1, -1.0, 1.0)
    odds = x[:, 0] * sign + x[:, 1] + x[:, 2]
    labels = (torch.rand(len(x), generator=random) < odds.sigmoid()).long()
    return x, labels, domain


def test_correlated_columns_count_as_one() -> None:
    x, labels, domains = made()
    noise = torch.randn(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.cat([x, -2 * x[:, :1] + 0.4 * noise[:, None] + domains[:, None]], 1)
    found = unstable_columns(x, labels, domains, {name: [k] for k, name in enumerate("abcd")})
    assert [group.names for group in found.groups] == [("a", "d"), ("b",), ("c",)]
    assert found.flagged == ("a", "d")
    effects = list(group_of(found, "a").effects.values())
    assert min(effects[:3]) > 0.6 and effects[3] < -0.6, "in the direction of the first column"


def test_a_column_that_only_correlates_with_the_unstable_one_is_kept() -> None:
    """Alone it would be found too; with so many rows both p-values are 0."""
    x, labels, domains = made(rows=24_000)
    x[:, 2] = 0.8 * x[:, 0] + 0.6 * x[:, 2]
    found = unstable_columns(x, labels, domains, {"c": [2], "a": [0], "b": [1]})
    assert found.flagged == ("a",)
    assert group_of(found, "a").p == 0
    assert group_of(found, "c").p > 0.01
    alone = unstable_columns(x, labels, domains, {"c": [2], "b": [1]})
    assert alone.flagged == ("c",) and group_of(alone, "c").p == 0


def test_a_few_extreme_rows_do_not_decide() -> None:
    x, labels, domains = made()
    odd = ((domains == 1) & (labels == 0)).nonzero()[:3, 0]
    x[odd, 1] = 1e6
    found = unstable_columns(x, labels, domains, {name: [k] for k, name in enumerate("abc")})
    assert found.flagged == ("a",)
    assert group_of(found, "b").mean == pytest.approx(1, abs=0.2)


def test_an_unstable_category_is_found_and_its_unknown_values_are_not() -> None:
    x, labels, domains = made()
    values = (x[:, 0] > 0.5).long() + (x[:, 0] > -0.5).long()
    vectors = torch.cat([one_hot(values, 3).double(), x[:, 1:]], 1)
    vectors[::50, :3] = 0
    columns = {"a": range(3), "b": [3], "c": [4]}
    found = unstable_columns(vectors, labels, domains, columns)
    assert found.flagged == ("a",)
    assert group_of(found, "a").turns
    assert found.remaining(columns) == [3, 4]


def test_a_column_that_a_domain_lacks_has_no_effect_there() -> None:
    x, labels, domains = made()
    x[domains == 1, 1] = torch.nan
    x[::7, 0] = torch.nan
    x[3, 2] = torch.inf
    vectors = torch.cat([x, x.isnan().double()[:, :1], torch.full((len(x), 1), 4.0)], 1)
    columns = {"a": [0, 3], "b": [1], "c": [2], "constant": [4]}
    found = unstable_columns(vectors, labels, domains, columns)
    assert list(group_of(found, "b").effects) == [0, 2, 3]
    assert list(group_of(found, "c").effects) == [0, 1, 2, 3]
    assert [group.names for group in found.groups] == [("a",), ("b",), ("c",)]
    assert found.flagged == ("a",)
    assert found.remaining(columns) == [1, 2, 4]


def test_domains_with_few_rows_of_a_class_take_no_part() -> None:
    x, labels, domains = made()
    few = (domains == 2) & (labels == 1)
    labels[few.nonzero()[9:, 0]] = 0
    columns = {name: [k] for k, name in enumerate("abc")}
    found = unstable_columns(x, labels, domains, columns)
    assert found.absent == {2: "fewer than 10 rows of a class"}
    assert list(found.scales) == list(group_of(found, "a").effects) == [0, 1, 3]
    labels[few.nonzero()[9, 0]] = 1
    assert unstable_columns(x, labels, domains, columns).absent == {}
    # A class that only one domain has keeps out its rows, and not the other domains.
    labels[(domains == 0).nonzero()[:40, 0]] = 2
    found = unstable_columns(x, labels, domains, columns)
    assert found.absent == {} and found.flagged == ("a",)


def test_nothing_can_be_tested() -> None:
    x, labels, domains = made()
    columns = {"a": [0]}
    one = unstable_columns(x, labels, torch.zeros_like(domains), columns)
    assert one.note == "fewer than two domains have 10 rows of every class" and not one.groups
    same = unstable_columns(x, torch.zeros_like(labels), domains, columns)
    assert same.note == "fewer than two classes have 10 rows in more than half of the domains"
    constant = unstable_columns(torch.ones_like(x), labels, domains, columns)
    assert constant.note == "no column varies within the domains"
    assert unstable_columns(x[:0], labels[:0], domains[:0], columns).note == "there are no rows"
    with pytest.raises(ValueError, match="one entry for every row, got 2000, 1999 and 2000"):
        unstable_columns(x, labels[1:], domains, columns)


def test_order_and_units_do_not_matter() -> None:
    x, labels, domains = made()
    columns = {name: [k] for k, name in enumerate("abc")}
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    one = unstable_columns(x, labels, domains, columns)
    units = torch.tensor([1000.0, 0.01, 1.0]).double()
    moved = x[order] * units + domains[order, None]
    other = unstable_columns(moved, labels[order], domains[order], columns)
    assert one.flagged == other.flagged == ("a",)
    for a, b in zip(one.groups, other.groups, strict=True):
        assert b.p == pytest.approx(a.p, rel=1e-3)
        assert list(b.effects.values()) == pytest.approx(list(a.effects.values()), abs=1e-3)
    assert unstable_columns(x, labels, domains, columns) == one


def test_a_domain_that_can_be_separated_does_no_harm() -> None:
    x, labels, domains = made(rows=100)
    separated = domains == 1
    labels[separated] = (x[separated, 1] > 0).long()
    found = unstable_columns(x, labels, domains, {name: [k] for k, name in enumerate("abc")})
    assert all(math.isfinite(group.p) and math.isfinite(group.spread) for group in found.groups)
    assert all(abs(effect) < 20 for group in found.groups for effect in group.effects.values())
    assert "a" in found.flagged


def test_many_rows_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels, domains = made(rows=2000)
    columns = {name: [k] for k, name in enumerate("abc")}
    whole = group_of(unstable_columns(x, labels, domains, columns), "b")
    monkeypatch.setattr(module, "MOST_ROWS", 2000)
    found = unstable_columns(x, labels, domains, columns)
    sampled = group_of(found, "b")
    assert found.flagged == ("a",)
    assert sampled.errors[0] / whole.errors[0] == pytest.approx(2, rel=0.2)


def test_of_very_many_columns_the_most_suspicious_are_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, labels, domains = made()
    monkeypatch.setattr(module, "MOST_NUMBERS", 4 * 2**2)
    found = unstable_columns(x, labels, domains, {name: [k] for k, name in enumerate("cab")})
    assert len(found.groups) == 2
    assert found.flagged == ("c",)
    # One that is too wide by itself keeps no other out.
    wide = {"wide": [0, 1], "narrow": [2]}
    monkeypatch.setattr(module, "MOST_NUMBERS", 4)
    found = unstable_columns(x, labels.int(), domains, wide)
    assert [group.names for group in found.groups] == [("narrow",)]
    found = unstable_columns(x, labels, domains, {"wide": [0, 1]})
    assert found.note.startswith("there are too many") and not found.groups


def test_the_spread_is_that_of_the_effects_without_their_errors() -> None:
    effects = torch.tensor([[1.0], [2.0], [4.0], [5.0]]).double()
    error = 0.25
    covariance = error * torch.eye(4).double().reshape(4, 1, 4, 1)
    expected = math.sqrt(float(effects.var(correction=1)) - error)
    assert module._spread(effects, covariance) == pytest.approx(expected)
    assert module._spread(effects, 100 * covariance) == 0


def judged(effects: Sequence[float], error: float, p: float = 0.001) -> GroupEffects:
    number = len(effects)
    covariance = error**2 * torch.eye(number).double().reshape(number, 1, number, 1)
    values = torch.tensor(effects).double()[:, None]
    own = module.OwnEffects(values, covariance, list(range(number)))
    return module._judge(("a",), p, range(number), own)


@pytest.mark.parametrize(
    ("effects", "p", "flagged", "turns"),
    [
        ((-1.3, -1.0, -0.7), 0.001, True, False),  # its deviation is 0.3 of its mean
        ((-1.2, -1.0, -0.8), 0.001, False, False),
        ((-1.3, -1.0, -0.7), 0.06, False, False),
        ((1.0, 1.0, -1.0), 0.05, True, True),
        ((0.04, 0.04, -0.04), 0.001, False, True),  # matters to nobody
    ],
)
def test_what_is_flagged(effects: tuple[float, ...], p: float, flagged: bool, turns: bool) -> None:
    found = judged(effects, 0.01, p)
    assert (found.flagged, found.turns) == (flagged, turns)
    assert found.mean == pytest.approx(sum(effects) / len(effects), abs=1e-3)
    assert list(found.effects.values()) == pytest.approx(effects)


def plain_groups(near: Tensor) -> list[list[int]]:
    """Group as long as there are neighbours: the one with the most of them, and these."""
    near, groups = near.clone(), list[list[int]]()
    while near.any():
        members = near[near.sum(1).argmax()].nonzero()[:, 0].tolist()
        near[members], near[:, members] = False, False
        groups.append(members)
    return sorted(groups)


@pytest.mark.parametrize("seed", range(8))
def test_groups_are_those_of_a_slow_loop(seed: int) -> None:
    """Some columns are close copies of others, in chains, and some have several positions."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(80, 40, generator=random, dtype=torch.float64)
    for k in range(1, 40):
        if torch.rand(1, generator=random) < 0.6:
            x[:, k] = x[:, k - 1] + 0.35 * x[:, k]
    widths = torch.randint(1, 3, (20,), generator=random).tolist()
    parts = x[:, : sum(widths)].split(widths, 1)
    values = {f"c{k}": module._whiten(part - part.mean(0)) for k, part in enumerate(parts)}
    found = module._group_columns(values)
    near = torch.tensor(
        [
            [
                float((a.T @ b / 80).square().sum())
                > module.CORRELATION**2 * min(a.shape[1], b.shape[1])
                for b in values.values()
            ]
            for a in values.values()
        ]
    )
    assert [[int(name[1:]) for name in names] for names in found] == plain_groups(near)
    assert max(map(len, found)) > 1


def test_too_many_columns_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels, domains, columns = table_data(spurious(2000))
    monkeypatch.setattr(module, "MOST_POSITIONS", vectors.shape[1])
    assert unstable_columns(vectors, labels, domains, columns).groups
    monkeypatch.setattr(module, "MOST_POSITIONS", vectors.shape[1] - 1)
    found = unstable_columns(vectors, labels, domains, columns)
    assert not found.groups and "more than 29 columns" in found.note


def test_the_first_step_of_the_optimiser_imports_nothing_more() -> None:
    code = """
import sys, torch
from shoal.fitting.pooled_regression import import_optimiser
import_optimiser()
known, x = set(sys.modules), torch.zeros(1, requires_grad=True)
optimiser = torch.optim.LBFGS([x])
optimiser.zero_grad()
optimiser.step(lambda: (x - 1).square().sum())
print(len(set(sys.modules) - known))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) < 5
