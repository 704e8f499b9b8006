"""Ranks, their means, marks and averages: by hand, and against the paper's ranking columns."""

import math

import pytest

from shoal.reference import BENCHMARKS, published, published_table
from shoal.results.aggregation import Mark, average, marks, one_decimal, ranking, ranks


def test_equal_numbers_share_the_best_place() -> None:
    assert ranks({"a": 70.0, "b": 80.0, "c": 80.0, "d": 90.0}) == {"d": 1, "b": 2, "c": 2, "a": 4}
    places = ranks({"a": 2.0, "b": 3.0, "c": 2.0}, smallest_first=True)
    assert places == {"a": 1, "c": 1, "b": 3}
    assert ranks({}) == {}


def test_places_are_those_of_the_printed_numbers() -> None:
    assert ranks({"a": 70.04, "b": 69.96}) == {"a": 1, "b": 1}  # both 70.0
    assert ranks({"a": 70.06, "b": 70.04}) == {"a": 1, "b": 2}
    assert ranks({"a": -0.04, "b": 0.04}) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.04, "0.0"),
        (0.04, "0.0"),
        (-0.05, "-0.1"),  # the double lies below −0.05
        (0.25, "0.2"),  # a true half goes to the even digit
        (0.75, "0.8"),
        (70.45, "70.5"),  # the double lies above 70.45
        (100.0, "100.0"),
        (-1.26, "-1.3"),
    ],
)
def test_one_decimal(value: float, text: str) -> None:
    assert one_decimal(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_rank(value: float) -> None:
    with pytest.raises(ValueError, match=r"^fishr has (nan|inf), which has no rank"):
        ranks({"erm": 50.0, "fishr": value})


def test_three_means_of_ranks() -> None:
    found = ranking([1, 2, 4, 8])
    assert found.arithmetic == 3.75
    assert found.geometric == pytest.approx((1 * 2 * 4 * 8) ** (1 / 4))
    assert found.median == 3
    assert ranking([1, 12, 3, 6, 2, 2, 2]).median == 2


def test_marks_say_first_second_and_worse_than_the_baseline() -> None:
    found = marks({"erm": 60.0, "a": 80.0, "b": 70.0, "c": 60.04, "d": 59.9}, "erm")
    assert found == {
        "a": Mark(1),
        "b": Mark(2),
        "c": Mark(),
        "erm": Mark(),
        "d": Mark(worse=True),
    }
    # Two firsts leave no second; a second may be worse than a first baseline.
    assert marks({"a": 9.0, "b": 9.0, "c": 8.0}, "erm") == {"a": Mark(1), "b": Mark(1), "c": Mark()}
    assert marks({"erm": 9.0, "c": 8.0}, "erm") == {"erm": Mark(1), "c": Mark(2, worse=True)}


def test_marks_of_ranks_take_the_smallest_first() -> None:
    found = marks({"erm": 9.14, "a": 3.9, "b": 9.06, "c": 9.2}, "erm", smallest_first=True)
    assert found == {"a": Mark(1), "erm": Mark(2), "b": Mark(2), "c": Mark(worse=True)}


def test_average_with_and_without() -> None:
    values = {"colored-mnist": 10.0, "vlcs": 70.0, "pacs": 80.0}
    assert average(values) == pytest.approx(160 / 3)
    assert average(values, {"colored-mnist"}) == 75.0
    with pytest.raises(ValueError, match="needs one data set or more, got pacs"):
        average({"pacs": 1.0}, {"pacs"})


@pytest.mark.parametrize("rule", BENCHMARKS)
def test_the_papers_ranking_columns(rule: str) -> None:
    table = published_table(BENCHMARKS[rule], rule)
    places = {
        column: ranks({method: row.cells[column][0] for method, row in table.rows.items()})
        for column in table.columns
    }
    for method, row in table.rows.items():
        found = ranking([places[column][method] for column in table.columns])
        assert one_decimal(found.arithmetic) == one_decimal(row.ranking["arithmetic"]), method
        assert one_decimal(found.geometric) == one_decimal(row.ranking["geometric"]), method
        assert found.median == row.ranking["median"], method


def test_fishrs_ranks_by_hand() -> None:
    """Facts of the paper: first on Colored MNIST, mean 3.86, geometric 2.83, median 2."""
    table = published_table(BENCHMARKS["test-domain"], "test-domain")
    places = [
        ranks({method: row.cells[column][0] for method, row in table.rows.items()})["fishr"]
        for column in table.columns
    ]
    assert places == [1, 12, 3, 5, 2, 2, 2]
    found = ranking(places)
    assert round(found.arithmetic, 2) == 3.86
    assert round(found.geometric, 2) == 2.83
    assert found.median == 2


def test_the_papers_average_without_colored_mnist() -> None:
    table = published_table(BENCHMARKS["test-domain"], "test-domain")
    said = published(table.label)["without_colored_mnist"]
    without = {
        method: average({c: cell[0] for c, cell in row.cells.items()}, {"colored-mnist"})
        for method, row in table.rows.items()
    }
    best = sorted(without, key=lambda method: -without[method])[: len(said)]
    assert {method: float(one_decimal(without[method])) for method in best} == said
    assert best == list(said)
