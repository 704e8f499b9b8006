"""Cells, averages and paired comparisons, against values worked out by hand."""

import math
from dataclasses import replace

import pytest

from shoal.results.aggregation import TrialMean, compare, compare_over_domains, rows_of
from shoal.results.records import RunResult
from shoal.results.selection import Choice


def choice(trial: int, domain: str, accuracy: float, algorithm: str = "erm") -> Choice:
    run = RunResult(
        dataset="set",
        algorithm=algorithm,
        test_domains=(domain,),
        trial=trial,
        draw=0,
        hparams={},
        records=(),
    )
    error = accuracy / 10
    return Choice(run=run, step=0, score=0.0, accuracy=accuracy, calibration_error=error, draws=1)


def test_three_trials_as_domainbed_prints_them() -> None:
    cell = TrialMean.of([0.1, 0.2, 0.3])
    assert f"{100 * cell.mean:.1f} +/- {100 * cell.error:.1f}" == "20.0 +/- 4.7"


def test_an_average_is_over_domains_first_and_trials_then() -> None:
    found = [choice(0, "a", 0.2), choice(0, "b", 0.6), choice(1, "a", 0.4), choice(1, "b", 0.4)]
    (row,) = rows_of(found, {"set": ["a", "b"]})
    assert row.domains["a"].mean == pytest.approx(0.3)
    assert row.domains["b"].error == pytest.approx(0.1 / math.sqrt(2))
    assert row.average is not None and row.worst is not None and row.calibration_error is not None
    assert (row.average.mean, row.average.error) == pytest.approx((0.4, 0.0))
    assert (row.worst.mean, row.worst.error) == pytest.approx((0.3, 0.1 / math.sqrt(2)))
    assert row.calibration_error.mean == pytest.approx(0.04)


def test_a_missing_domain_leaves_no_average() -> None:
    found = [choice(0, "a", 0.2), choice(0, "b", 0.6), choice(1, "a", 0.4)]
    (row,) = rows_of(found, {"set": ["a", "b"]})
    assert row.average is None and row.domains["b"].trials == 1
    (row,) = rows_of(found[:2], {"set": ["a", "b", "c"]})
    assert row.average is None and "c" not in row.domains


def test_an_accuracy_that_is_not_a_number_leaves_no_average() -> None:
    found = [choice(0, "a", 0.2), choice(0, "b", math.nan)]
    (row,) = rows_of(found, {"set": ["a", "b"]})
    assert row.average is row.worst is row.calibration_error is None
    assert row.domains["a"].mean == 0.2 and math.isnan(row.domains["b"].mean)


def test_a_pair_needs_two_numbers() -> None:
    found = [choice(t, "a", 0.5, "erm") for t in range(3)]
    found += [choice(t, "a", math.nan if t == 1 else 0.6, "fishr") for t in range(3)]
    result = compare(found, "fishr", "erm")
    assert (result.pairs, result.wins) == (2, 2) and result.difference == pytest.approx(0.1)


def test_a_comparison_is_paired() -> None:
    found = [choice(t, "a", 0.5 + t / 10, "erm") for t in range(3)]
    found += [choice(t, "a", 0.52 + t / 10 + (t == 2) / 100, "fishr") for t in range(3)]
    found += [choice(7, "a", 0.0, "fishr")]  # the other has no such trial
    result = compare(found, "fishr", "erm")
    assert (result.pairs, result.wins) == (3, 3)
    assert result.difference == pytest.approx(0.07 / 3)
    gaps = [0.02, 0.02, 0.03]
    mean = sum(gaps) / 3
    assert result.error == pytest.approx(math.sqrt(sum((g - mean) ** 2 for g in gaps) / 2 / 3))
    assert compare(found, "erm", "fishr").difference == pytest.approx(-result.difference)
    with pytest.raises(ValueError, match="needs two or more"):
        compare(found[:1], "fishr", "erm")


def test_trials_of_a_domain_are_averaged_before_domains_are_compared() -> None:
    """Twelve pairs of four domains are four, and two on a domain weigh as much as three."""
    gaps = {"a": [0.1, 0.3, 0.2], "b": [-0.1, 0.05], "c": [0.0, 0.0, 0.0], "d": [-0.1, -0.1, -0.1]}
    found = []
    for domain, own in gaps.items():
        for trial, gap in enumerate(own):
            found.append(choice(trial, domain, 0.5 + 0.1 * trial, "erm"))
            found.append(choice(trial, domain, 0.5 + 0.1 * trial + gap, "fishr"))
    found.append(choice(2, "b", 0.9, "erm"))  # the other has no such trial
    found.append(choice(1, "e", 0.9, "fishr"))
    result = compare_over_domains(found, "fishr", "erm")
    means = [0.2, -0.025, 0.0, -0.1]
    mean = sum(means) / 4
    assert result.difference == pytest.approx(mean)
    assert result.error == pytest.approx(math.sqrt(sum((m - mean) ** 2 for m in means) / 3 / 4))
    assert (result.pairs, result.wins, result.losses) == (4, 1, 2)
    assert compare(found, "fishr", "erm").pairs == 11
    with pytest.raises(ValueError, match=r"over domains needs two or more .* erm, got 1"):
        compare_over_domains([one for one in found if one.test_domain == "a"], "fishr", "erm")


def test_domains_of_two_data_sets_are_two() -> None:
    found = [choice(0, "a", value, name) for name, value in (("erm", 0.5), ("fishr", 0.6))]
    found += [replace(one, run=replace(one.run, dataset="other")) for one in found]
    assert compare_over_domains(found, "fishr", "erm").pairs == 2


@pytest.mark.parametrize(
    ("won", "lost", "equal", "p"),
    # 2 Σ_{k ≤ min} C(n, k) / 2ⁿ: 2 · 1/16; 2 · (1 + 9)/512; two sides that meet; nothing to count.
    [(4, 0, 0, 0.125), (1, 8, 3, 20 / 512), (2, 2, 0, 1.0), (0, 0, 2, 1.0)],
)
def test_the_sign_test(won: int, lost: int, equal: int, p: float) -> None:
    gaps = [0.1] * won + [-0.2] * lost + [0.0] * equal
    found = [choice(t, "a", 0.5, "erm") for t in range(len(gaps))]
    found += [choice(t, "a", 0.5 + gap, "fishr") for t, gap in enumerate(gaps)]
    result = compare(found, "fishr", "erm")
    assert (result.wins, result.losses, result.pairs) == (won, lost, len(gaps))
    assert result.p == pytest.approx(p)
