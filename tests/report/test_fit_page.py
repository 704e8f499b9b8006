"""The page of a fit: every text is escaped, nothing is fetched, and it fits a telephone."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.report.fit_page import chart, effects_chart, fit_page
from tests.report.browser import Browser

EVIL = "<script>alert('x')</script>&"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="


def cell(mean: float, error: float | None = 1.0, short: bool = False) -> dict[str, Any]:
    return {"mean": mean, "error": error, "trials": 3, "short": short}


def content(**changes: Any) -> dict[str, Any]:
    domains = ["north", EVIL, "a_domain_with_a_very_long_name_that_does_not_fit_anywhere"]

    def method(name: str, mean: float, difference: Any) -> dict[str, Any]:
        return {
            "name": name,
            "cells": [cell(mean), cell(mean - 20, None), None],
            "average": cell(mean),
            "worst": None,
            "inside": 96.0,
            "calibration": 0.05,
            "difference": difference,
            "drawn": True,
        }

    gain = {"mean": 2.5, "error": 0.5, "wins": 5, "pairs": 6}
    wrong = {"label": "cat", "prediction": EVIL, "probability": 0.987, "what": EVIL, "row": ""}

    def by_class(name: str, recall: float) -> dict[str, Any]:
        shares = {"recall": recall, "precision": None, "auroc": 0.875}
        return {"name": name, "examples": 1234, **shares, "recalls": [recall, None, 1.0]}

    effects = [
        {"domain": name, "effect": effect, "error": 0.1}
        for name, effect in zip(domains, (1.5, 1.2, -0.9), strict=True)
    ]
    return {
        "title": f"data {EVIL}",
        "kind": "images",
        "metric": {"title": "accuracy", "unit": " %", "digits": 1, "most": 100},
        "half_weight": 30,
        "short": False,
        "baseline": "erm",
        "deploy": "fishr",
        "sure": "likely",
        "sentences": ["Deploy fishr.", f"Because {EVIL}."],
        "domains": domains,
        "methods": [method("erm", 70.0, None), method("fishr", 72.5, gain)],
        "guess": {
            "name": "most frequent class",
            "cells": [cell(41.5, None), cell(43.5, None), None],
            "average": cell(42.5, None),
            "worst": cell(41.5, None),
            "beaten": True,
        },
        "classes": {
            "domains": domains,
            "rows": [by_class("cat", 0.815), by_class(EVIL, 0.25)],
            "confusion": [[1000, 234], [0, 1234]],
        },
        "unstable": [{"name": f"x1, {EVIL}", "rows": effects}],
        "shifts": {
            "rows": [{"name": EVIL, "diversity": 0.712, "correlation": 0.034}],
            "mean": {"diversity": 0.712, "correlation": 0.034},
            "notes": [f"left out: {EVIL}"],
        },
        "adaptation": {
            "offered": "T3A",
            "metric": "accuracy",
            "names": ["prior correction", "T3A"],
            "rows": [{"name": "<b>first</b>", "before": 61.04, "gains": [-2.25, 3.5]}],
            "means": [{"mean": -2.25, "error": 0.5}, {"mean": 3.5, "error": 1.25}],
        },
        "monitor": {
            "used": "threshold",
            "estimators": ["threshold", "confidence"],
            "rows": [{"name": EVIL, "accuracy": 0.815, "estimates": [0.8, 0.95]}],
        },
        "data": {
            "classes": ["cat", EVIL, *(f"class {k}" for k in range(45))],
            "rows": [
                {"name": name, "counts": [3, 0, *[1] * 45], "total": 1234} for name in domains
            ],
            "total": 3702,
            "notes": [f"note {EVIL}"],
            "broken": [{"path": EVIL, "why": "no image"}],
            "broken_count": 1,
            "columns": [],
            "left_out": [],
        },
        "mistakes": [
            {
                "method": name,
                "domain": EVIL,
                "examples": 20,
                "wrong": 7,
                "confusions": [{"label": "cat", "prediction": EVIL, "times": 4}],
                "shown": [wrong | {"picture": PIXEL}] * 7,
            }
            for name in ("erm", "fishr")
        ],
        "measured": " (networks after the last update)",
        "how": [("Network", EVIL)],
        "failures": [f"fishr: {EVIL}"],
        "onnx": True,
    } | changes


def test_every_text_is_escaped_and_nothing_is_fetched() -> None:
    page = fit_page(content())
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)[^"']*["']""", page)
    assert "default-src 'none'" in page


def test_numbers_and_verdict_are_there() -> None:
    page = fit_page(content())
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "Deploy fishr." in text
    assert "+2.5 ± 0.5" in text
    assert "72.5 ± 1.0" in text
    assert "7 of 20 wrong" in text
    assert "99&nbsp;%" in text
    assert "1 unreadable file was skipped" in text
    assert '<section class="verdict likely">' in page
    assert page.count('<tr class="deploy">') == 1


def test_shifts_stand_in_a_table_where_they_were_measured() -> None:
    page = fit_page(content())
    section = page.partition('<section id="shifts">')[2].partition("</section>")[0]
    cells = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in section.split("<tr>")[2:]]
    assert [row[1:] for row in cells] == [["0.71", "0.03"], ["0.71", "0.03"]]
    assert cells[0][0].startswith("&lt;script") and cells[1][0] == "average"
    assert "IRM, V-REx and Fishr" in section and "Left out: &lt;script" in section
    assert 'id="shifts"' not in fit_page(content(shifts=None))


def test_the_guess_stands_below_the_methods() -> None:
    page = fit_page(content())
    row = re.findall(r"<tr[^>]*>.*?</tr>", page.partition('id="unstable"')[0], re.DOTALL)[-1]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip()
    assert text == "most frequent class 42.5 – 41.5 – – 41.5 43.5 –"
    assert "verdict useless" not in page
    unbeaten = fit_page(content(guess=content()["guess"] | {"beaten": False}))
    assert '<section class="verdict useless">' in unbeaten


def test_a_domain_where_the_model_is_worse_than_a_constant_is_red() -> None:
    made = content(short=True)
    assert 'class="short"' not in fit_page(made)
    made["methods"][1]["cells"][1] = cell(52.5, None, short=True)
    page = fit_page(made)
    assert page.count('<td class="short">52.5</td>') == 1
    assert '<section class="verdict useless">' in page
    assert "Red: worse than the domain's own most frequent class" in page
    assert "Red:" not in fit_page(content())


def test_scores_that_are_no_percentages() -> None:
    made = content(metric={"title": "AUROC", "unit": "", "digits": 3, "most": 1})
    for one in (*made["methods"], made["guess"]):
        for each in filter(None, (*one["cells"], one["average"], one["worst"])):
            each["mean"], each["error"] = each["mean"] / 100, None
        one["inside"] = 0.96
    page = fit_page(made)
    assert "<h2>AUROC on an unseen domain</h2>" in page
    assert "<td>0.725</td>" in page
    ticks = re.findall(r'class="tick"[^>]*>([^<]+)<', chart(made))
    assert {"0.5", "1"} <= set(ticks) and not any("%" in tick for tick in ticks)
    made["metric"] = {"title": "log-loss", "unit": "", "digits": 3, "most": None}
    xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', chart(made))]
    assert max(xs) <= 760 and min(xs) >= 96


def test_a_table_shows_rows_and_columns() -> None:
    made = content(kind="table")
    made["data"] |= {"columns": ["age (number)"], "left_out": ["id"], "broken_count": 0}
    for one in made["mistakes"]:
        change = {"picture": None, "what": "row 7", "row": f"age 41, {EVIL}"}
        one["shown"] = [shown | change for shown in one["shown"]]
    page = fit_page(made)
    assert "row 7: cat" in page
    assert page.count("age 41, &lt;script&gt;") == 14
    assert "age (number)" in page
    assert "different in most rows: id" in page
    assert "<img" not in page


def test_the_chart_has_a_mark_for_every_number() -> None:
    wide, narrow = re.findall(r"<svg.*?</svg>", chart(content()))
    for drawing, left, right in ((wide, 170, 760), (narrow, 96, 330)):
        assert drawing.count("<circle") == 2 * 2 + 2  # two domains, their average
        assert drawing.count('stroke-width="2"') == 2 + 2  # one trial has no error
        xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawing)]
        assert all(left <= x <= right for x in xs)
        # 72.5 and 70.0: the better one is further to the right.
        assert xs[1] > xs[0]
        ticks = [float(x) for x in re.findall(r'class="tick" x="([\d.]+)"', drawing)]
        assert min(b - a for a, b in pairwise(ticks)) >= 50


def test_more_methods_than_colours_have_other_shapes() -> None:
    made = content()
    many = [made["methods"][k % 2] | {"name": f"method {k}"} for k in range(30)]
    drawn = chart(made | {"methods": many})
    legend = drawn.partition('class="legend"')[2]
    marks = re.findall(r'<i class="(\w+)" style="background:(#\w+)"', legend)
    assert len(set(marks)) == 30
    drawing = re.findall(r"<svg.*?</svg>", drawn)[0]
    assert drawing.count("<circle") == 3 * 12
    assert drawing.count("<rect x=") == 3 * 18
    assert drawing.count("rotate(45") == 3 * 6


def test_many_methods_are_told_apart() -> None:
    made = content()
    many = [made["methods"][k % 2] | {"name": f"method {k}"} for k in range(12)]
    drawn = chart(made | {"methods": many})
    legend = drawn.partition('class="legend"')[2]
    assert len(set(re.findall(r"background:(#\w+)", legend))) == 12
    # The marks of a domain stay apart from each other, and from those of the next one.
    drawing = re.findall(r"<svg.*?</svg>", drawn)[0]
    ys = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', drawing)]
    assert len(ys) == 3 * 12
    assert min(b - a for a, b in pairwise(ys[:12])) >= 5
    assert min(ys[12:24]) - max(ys[:12]) > 5


def test_other_settings_stand_in_the_table_alone() -> None:
    made = content()
    other = made["methods"][1] | {"name": "fishr (λ 9)", "drawn": False}
    page = fit_page(made | {"methods": [*made["methods"], other]})
    assert chart(made | {"methods": [*made["methods"], other]}) == chart(made)
    assert page.count("fishr (λ 9)") == 1


def test_without_any_score_nothing_is_drawn() -> None:
    made = content()
    guess = made["guess"] | {"cells": [], "beaten": None}
    nothing: dict[str, Any] = {"classes": None, "unstable": [], "mistakes": [], "monitor": None}
    nothing["adaptation"] = None
    empty = content(domains=[], methods=[], guess=guess, **nothing)
    assert chart(empty) == ""
    page = fit_page(empty)
    assert "<svg" not in page
    assert not re.search('id="(classes|unstable|monitor)"', page)


def test_classes_have_their_scores() -> None:
    page = fit_page(content()).partition('id="classes"')[2].partition("</section>")[0]
    rows = [
        re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip()
        for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)
    ]
    assert "cat 1,234 81.5 – 0.875 81.5 – 100.0" in rows
    assert "cat 1,000 234" in rows
    assert '<td class="right">1,000</td>' in page and '<td class="none">0</td>' in page
    many = content(classes=content()["classes"] | {"confusion": None})
    assert "Confusion" not in fit_page(many)


def test_estimates_without_labels_stand_beside_the_accuracy() -> None:
    page = fit_page(content()).partition('id="monitor"')[2].partition("</section>")[0]
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", page)
    assert cells[:4] == ["Domain", "accuracy", "by threshold, used", "by confidence"]
    assert cells[5:] == ["81.5", "80.0", "95.0"]


def test_adaptations_stand_with_what_they_did_to_each_domain() -> None:
    page = fit_page(content()).partition('id="adaptation"')[2].partition("</section>")[0]
    assert "T3A is offered" in page and "--adapt" in page
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", page)
    assert cells[:4] == ["Domain", "accuracy", "prior correction", "T3A, offered"]
    assert cells[4:8] == ["&lt;b&gt;first&lt;/b&gt;", "61.0", "-2.2", "+3.5"]
    refused = content()
    refused["adaptation"] |= {"offered": None}
    assert "None is offered" in fit_page(refused)


def test_unstable_columns_are_drawn_by_domain() -> None:
    wide, narrow = re.findall(r"<svg.*?</svg>", effects_chart(content()["unstable"][0]))
    for drawing, left, right in ((wide, 170, 760), (narrow, 96, 330)):
        xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawing)]
        assert len(xs) == 3 and xs[0] > xs[1] > xs[2]
        assert all(left < x < right for x in xs)
        (zero,) = re.findall(r'class="zero" x1="([\d.]+)"', drawing)
        assert xs[1] > float(zero) > xs[2]
        # Two errors to each side: 0.4 of the 2.4 between the first and the last.
        bar = re.findall(r'x1="([\d.]+)" x2="([\d.]+)"[^>]*stroke-width="2"', drawing)[0]
        width = float(bar[1]) - float(bar[0])
        assert abs(width - 0.4 / 2.4 * (xs[0] - xs[2])) < 0.5
    assert "&lt;script&gt;" in wide


def test_it_fits_the_window(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(fit_page(content()))
    browser = Browser(tmp_path / "profile")
    try:
        for width in (390, 1200):
            browser.open(path, width)
            assert browser.value("document.documentElement.scrollWidth") <= width
            shown = "[...document.querySelectorAll('.chart svg')].map(e => e.clientWidth)"
            drawn = [one for one in browser.value(shown) if one]
            assert len(drawn) == 2 and max(drawn) <= width  # scores, and a column's effects
            assert browser.value("document.querySelectorAll('figure img').length") == 14
        assert browser.errors == []
    finally:
        browser.close()
