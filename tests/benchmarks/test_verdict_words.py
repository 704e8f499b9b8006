"""The simulated error rates of the verdict's words: a small simulation, and the committed one."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import verdict_words
from benchmarks.recording import RESULTS
from benchmarks.verdict_words import rates, scores, sizes

PAGE = RESULTS.parents[1] / "docs" / "benchmarks.md"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads((RESULTS / "verdict_words.json").read_text())  # type: ignore[no-any-return]


def test_from_the_command_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"verdict_words --domains 2 4 6 --others 1 2 --times 4 --out {tmp_path}"
    monkeypatch.setattr(sys, "argv", command.split())
    verdict_words.main()
    found = json.loads((tmp_path / "verdict_words.json").read_text())
    assert len(found["error_rates"]) == 3 * 2 * 3
    assert len(found["power"]) == 3 * 2 * 2
    assert {one["domains"] for one in found["interval"]} == {4, 6}
    assert all(one["probably"] == 0 for one in found["error_rates"] if one["domains"] == 2), (
        "two domains have no words"
    )


def test_scores_are_as_told() -> None:
    random = np.random.default_rng(0)
    examples = np.full(2000, 400)
    made = scores(random, examples, 3, "normal", 0.02)
    gaps = made[1:] - made[0]
    assert gaps.mean(1) == pytest.approx([0, 0, 0.02], abs=0.004)
    assert np.abs(np.round(made * 400) - made * 400).max() < 1e-9
    assert np.corrcoef(gaps[0], gaps[1])[0, 1] == pytest.approx(0.5, abs=0.1)
    assert {len(str(n)) for n in sizes(random, 500)} == {1, 2, 3, 4}


def test_a_difference_that_all_can_see_is_found() -> None:
    found = rates(np.random.default_rng(0), 8, 1, 20, gain=0.3)
    assert found["said_clearly"] == found["deployed"] == 100


def test_no_word_is_used_more_often_than_it_may_be(committed: dict[str, Any]) -> None:
    """Differences are symmetric here. Three standard errors are allowed for, of 176 rates."""
    times = committed["times"]
    for one in committed["error_rates"]:
        if one["shape"] == "skewed":
            continue
        for word, most in (("probably", 10), ("clearly", 5)):
            error = np.sqrt(most * (100 - most) / times)
            assert one[word] <= most + 3 * error, one


def test_the_interval_holds_nine_in_ten(committed: dict[str, Any]) -> None:
    assert {one["domains"] for one in committed["interval"]} == set(range(3, 13))
    assert all(one["inside"] >= 89 for one in committed["interval"])


def test_the_page_shows_what_was_simulated(committed: dict[str, Any]) -> None:
    text = PAGE.read_text("utf-8").partition("## The words of `shoal fit`")[2].partition("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| (\d+) \|(.*)\|$", text, re.MULTILINE):
        found[int(line[0])] = [float(cell) for cell in line[1].split("|")]
    assert set(found) == {3, 4, 5, 6, 8, 12}

    def pick(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
        (row,) = [row for row in rows if all(row[key] == wanted[key] for key in wanted)]
        return row

    for domains, cells in found.items():
        expected = []
        for others in (1, 5):
            row = pick(committed["error_rates"], domains=domains, others=others, shape="normal")
            expected += [row["probably"], row["clearly"]]
        for others in (1, 5):
            for gain in (0.02, 0.05):
                row = pick(committed["power"], domains=domains, others=others, gain=gain)
                expected.append(row["said"])
        row = pick(committed["interval"], domains=domains, shape="normal")
        assert cells == [*expected, row["inside"]], domains
