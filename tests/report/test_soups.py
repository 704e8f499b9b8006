"""Tables of soups: names of rows, the check of the basin in words, means over test domains."""

from dataclasses import replace

import pytest

from shoal.report.soups import soup_lines, soup_sheet, summary_sheets
from shoal.results.soups import Soup, SoupRow, best_alpha


def row(kind: str, test: float, validation: float = 0.8, **more: object) -> SoupRow:
    given = {"draws": (0, 1), "calibration_error": 0.1} | more
    return SoupRow(kind=kind, test=test, validation=validation, **given)  # type: ignore[arg-type]


PLAIN = Soup(
    name="pacs-erm-sketch-t0-best",
    key="k",
    dataset="pacs",
    algorithm="erm",
    test_domain="sketch",
    trial=0,
    of="best",
    rows=(
        row("member", 0.5, 0.7, draws=(0,)),
        row("member", 0.6, 0.9, draws=(1,)),
        row("mean", 0.55),
        row("best", 0.6, 0.9, draws=(1,)),
        row("uniform", 0.65, 0.785, model="uniform"),
        row("greedy", 0.64, draws=(1, 0), model="greedy"),
        row("ensemble", 0.66),
    ),
    why="the head is random",
)
PROBED = replace(
    PLAIN,
    why=None,
    rows=(
        *PLAIN.rows,
        row("interpolated", 0.3, 0.5, alpha=0.0, draws=()),
        row("interpolated", 0.67, 0.79, alpha=0.5),
        row("interpolated", 0.68, 0.81, alpha=0.8, model="interpolated"),
        row("interpolated", 0.65, 0.785, alpha=1.0),
    ),
)


def test_rows_have_names() -> None:
    sheet = soup_sheet(PROBED)
    assert sheet.title == ("ERM on pacs, weights of the best record, test domain sketch, trial 0")
    assert [line[0] for line in sheet.rows] == [
        "draw 0",
        "draw 1",
        "mean of the members",
        "best by validation: draw 1",
        "uniform soup",
        "greedy soup of 2",
        "ensemble",
        "start: linear probe",
        "interpolated, α = 0.8 by validation",
        "interpolated, α = 0.5",
    ]
    assert tuple(sheet.rows[-2]) == ("interpolated, α = 0.8 by validation", "81.0", "68.0", "0.100")
    assert len(soup_sheet(PLAIN).rows) == 7
    assert "average SWAD" in soup_sheet(replace(PLAIN, of="swad")).title


def test_the_basin_is_told() -> None:
    share, greedy, why, models = soup_lines(PLAIN, "out/soups/x")
    assert share == (
        "The members share a basin of the loss: the uniform soup is right on 78.5 % of what is "
        "held out, its members on 80.0 % on average."
    )
    assert greedy == "In the greedy soup, in this order: draws 1, 0."
    assert why == "No interpolation: the head is random."
    assert models == "Models in out/soups/x: uniform, greedy"
    fallen = tuple(
        replace(one, validation=0.775) if one.kind == "uniform" else one for one in PROBED.rows
    )
    share, *others, models = soup_lines(replace(PROBED, rows=fallen), "x")
    assert share.startswith("The members do not share a basin of the loss: ")
    assert "--search mild and --start linear-probe" in share
    assert len(others) == 1 and models.endswith("uniform, greedy, interpolated")


def test_the_best_alpha() -> None:
    rows = [
        row("interpolated", 0.1, 0.3, alpha=0.1),
        row("interpolated", 0.9, 0.1 + 0.2, alpha=0.4),
    ]
    assert best_alpha(rows) is rows[1]  # equal up to rounding, so the larger
    assert PROBED.chosen is not None and PROBED.chosen.alpha == 0.8
    assert PLAIN.chosen is None
    assert PLAIN.fall == pytest.approx(0.015)


def shifted(domain: str, trial: int, by: float) -> Soup:
    rows = tuple(replace(one, test=one.test + by) for one in PROBED.rows)
    return replace(PROBED, test_domain=domain, trial=trial, rows=rows)


def test_means_over_trials_and_test_domains() -> None:
    soups = [
        shifted("sketch", 0, 0.0),
        shifted("photo", 0, 0.2),
        shifted("sketch", 1, 0.1),
        shifted("photo", 1, 0.2),
    ]
    (sheet,) = summary_sheets(soups)
    assert sheet.head == ("Model", "sketch", "photo", "Avg")
    assert sheet.note == "Test accuracy in %, mean ± standard error over 2 trials."
    found = {line[0]: line[1:] for line in sheet.rows}
    # The deviation of 0.65 and 0.75 is 0.05, over √2; of the averages 0.75 and 0.8 half of it.
    assert tuple(found["uniform soup"]) == ("70.0 ± 3.5", "85.0 ± 0.0", "77.5 ± 1.8")
    assert list(found) == [
        "mean of the members",
        "best by validation",
        "uniform soup",
        "greedy soup",
        "ensemble",
        "interpolated, α by validation",
        "interpolated, α = 0.5",
    ]
    (sheet,) = summary_sheets(soups[:-1])  # the average needs every test domain
    assert {line[0]: tuple(line[1:]) for line in sheet.rows}["ensemble"] == (
        "71.0 ± 3.5",
        "86.0",
        "76.0",
    )
    assert list(summary_sheets(soups[:1])) == []


def test_a_soup_comes_back_from_its_file() -> None:
    assert Soup.from_json(PROBED.to_json()) == PROBED
