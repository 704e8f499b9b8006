"""The demo's page and table."""

from __future__ import annotations

import base64
import copy
import io
import itertools
import math
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.report import demo_page, demo_table

HOSTILE = '<script>alert("x")</script>&\'{{ 7*7 }}'
VOID = {"meta", "link", "br", "img", "input", "hr"}
SVG_LEAVES = {"line", "path", "circle"}


def make_method(name: str, train: float, test: float, gray: float) -> dict[str, Any]:
    steps = list(range(0, 301, 10))
    return {
        "name": name,
        "train": train,
        "test": test,
        "gray": gray,
        "seconds": 9.7,
        "curve": {
            "step": steps,
            "train": [0.5 + (train - 0.5) * s / 300 for s in steps],
            "test": [0.15 if s < 100 else 0.15 + (test - 0.15) * (s - 100) / 200 for s in steps],
            "variance_gap": [1e-3 * math.exp(-s / 40) for s in steps],
            "risk_gap": [1e-2 * math.exp(-s / 80) for s in steps],
        },
    }


def make_digit(digit: int, channel: int, **answers: float) -> dict[str, Any]:
    pixels = [[[0, 0] for _ in range(14)] for _ in range(14)]
    for k in range(3, 11):
        pixels[k][6][channel] = 20 * k
    return {"pixels": pixels, "digit": digit, "label": int(digit < 5), "answers": answers}


@pytest.fixture
def result() -> dict[str, Any]:
    answers = {"ERM": 0.1, "V-REx": 0.7, "Fishr": 0.8}
    return {
        "title": "shoal demo: Colored MNIST",
        "seconds": 38.4,
        "machine": "2 CPU cores",
        "examples": 5000,
        "steps": 300,
        "jump_step": 100,
        "colour_only": 0.10,
        "shape_only": 0.75,
        "methods": [
            make_method("ERM", 0.861, 0.153, 0.712),
            make_method("V-REx", 0.724, 0.625, 0.686),
            make_method("Fishr", 0.707, 0.688, 0.709),
        ],
        "digits": [make_digit(d, d % 2, **answers) for d in range(10)],
    }


class Page(HTMLParser):
    """Reads a page: its tags with attributes, its text, and whether every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG_LEAVES
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def test_page_is_self_contained(result: dict[str, Any]) -> None:
    page = demo_page(result)
    assert page.lstrip().startswith("<!DOCTYPE html>")
    assert not re.search(r"https?:|//\w|@import|url\(|<script|<iframe|\son\w+=", page)
    read = Page(page)
    assert read.open == []
    for tag, attributes in read.tags:
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, name)


def test_page_has_all_numbers_and_words(result: dict[str, Any]) -> None:
    text = " ".join(Page(demo_page(result)).text.replace("\xa0", " ").split())
    for method in result["methods"]:
        for key in ("train", "test", "gray"):
            assert f"{100 * method[key]:.1f} %" in text
    for words in (
        *("10 %", "75 %", "38.4 s", "2 CPU cores", "5 000 examples", "300 steps", "λ jumps"),
        *("colour only", "shape only", "shoal reproduce colored-mnist", result["title"]),
        "Correct answers on these 10, judged by the digit’s shape: ERM 5, V-REx 5, Fishr 5.",
    ):
        assert words in text, words
    assert text.index("15.3 %") < text.index("68.8 %") < text.index("62.5 %")  # the headline first


def test_answers_are_judged_by_shape(result: dict[str, Any]) -> None:
    result["digits"] = [make_digit(3, 0, ERM=0.2, Fishr=0.9), make_digit(5, 1, ERM=0.9, Fishr=0.1)]
    result["digits"][0]["label"] = 0  # flipped in the data; the digit is still a 3
    text = re.sub(r"\s+", " ", Page(demo_page(result)).text)
    assert "a red 3, so 0–4 ERM 80 % 5–9 ✗wrong Fishr 90 % 0–4 ✓right" in text
    assert "a green 5, so 5–9 ERM 90 % 0–4 ✗wrong Fishr 90 % 5–9 ✓right" in text
    assert "ERM 0, V-REx 0, Fishr 2." in text


def test_an_answer_that_is_not_finite_is_wrong(result: dict[str, Any]) -> None:
    result["digits"] = [make_digit(3, 0, ERM=math.nan)]
    assert "none ✗wrong" in re.sub(r"\s+", " ", Page(demo_page(result)).text)


def test_digits_are_png_of_the_pixels(result: dict[str, Any]) -> None:
    result["digits"] = [make_digit(3, 0), make_digit(4, 1)]
    images = [attributes for tag, attributes in Page(demo_page(result)).tags if tag == "img"]
    assert [image["alt"] for image in images] == ["a red 3", "a green 4"]
    for image, channel in zip(images, (0, 1), strict=True):
        png = base64.b64decode((image["src"] or "").removeprefix("data:image/png;base64,"))
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", png[16:24]) == (14, 14)
        size = struct.unpack(">I", png[33:37])[0]
        lines = zlib.decompress(png[41 : 41 + size])
        assert len(lines) == 14 * (1 + 3 * 14)
        line = lines[5 * 43 : 6 * 43]  # the sixth line, with its filter byte
        assert line[0] == 0
        assert line[1 + 3 * 6 + channel] == 100
        assert sum(line) == 100


def test_charts_have_text_for_those_who_do_not_see_them(result: dict[str, Any]) -> None:
    charts = [
        attributes["aria-label"] or ""
        for tag, attributes in Page(demo_page(result)).tags
        if tag == "svg" and "aria-hidden" not in attributes
    ]
    assert len(charts) == 5
    assert "15.3\xa0% in test" in charts[0] and "jumps at step 100" in charts[0]
    assert "gradient variances" in charts[3] and "Fishr 5.5e-07" in charts[3]


def test_hostile_names_are_escaped(result: dict[str, Any]) -> None:
    result["title"] = result["machine"] = HOSTILE
    result["methods"][0]["name"] = HOSTILE
    for digit in result["digits"]:
        digit["answers"][HOSTILE] = 0.9
    page = demo_page(result)
    assert "<script" not in page
    read = Page(page)
    assert read.open == []
    assert read.text.count(HOSTILE) > 10
    assert any(HOSTILE in (attributes.get("aria-label") or "") for _, attributes in read.tags)


@pytest.mark.parametrize("length", [0, 1])
def test_short_curves(result: dict[str, Any], length: int) -> None:
    for method in result["methods"]:
        method["curve"] = {key: values[:length] for key, values in method["curve"].items()}
    read = Page(demo_page(result))
    assert sum(tag == "circle" for tag, _ in read.tags) == length * (3 * 2 + 2 * 3)


def test_curves_with_holes_and_zeros(result: dict[str, Any]) -> None:
    curve = result["methods"][0]["curve"]
    curve["test"][3], curve["train"][4] = math.nan, None
    curve["variance_gap"] = [0.0] * len(curve["step"])
    curve["risk_gap"][5] = math.inf
    page = demo_page(result)
    assert Page(page).open == []
    assert not re.search(r'(?:d|cx|cy|x|y|y1)="[^"]*(?:nan|inf)', page)
    for method in result["methods"]:
        method["curve"]["variance_gap"] = [0.0] * len(method["curve"]["step"])
    assert "no value above zero" in Page(demo_page(result)).text


def test_all_that_is_drawn_lies_in_its_chart(result: dict[str, Any]) -> None:
    result["methods"][0]["curve"]["variance_gap"][-1] = 1e-30
    result["steps"] = 100  # fewer than the curves have
    for path in re.findall(r' d="(M[^"]+)"', demo_page(result)):
        for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path):
            assert 0 <= float(x) <= 440 and 0 <= float(y) <= 290


def test_labels_at_the_ends_do_not_cover_each_other(result: dict[str, Any]) -> None:
    page = demo_page(result)  # all gap curves are the same here
    ends = [float(y) for y in re.findall(r'class="ends".*? y="([\d.]+)"', page)]
    assert len(ends) == 6
    for chart in (ends[:3], ends[3:]):
        assert min(b - a for a, b in itertools.pairwise(chart)) >= 14


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 10, 39, 99, 301, 500, 5001])
def test_steps_of_any_number(result: dict[str, Any], steps: int) -> None:
    result["steps"] = steps
    result["jump_step"] = steps // 3
    for method in result["methods"]:
        method["curve"] = {k: [steps if k == "step" else 0.5] for k in method["curve"]}
    page = demo_page(result)
    assert Page(page).open == []
    chart = page[page.index('viewBox="0 0 340') :].split("</svg>")[0]
    ticks = re.findall(r'class="tick"[^>]*>([^<]*)<', chart)
    numbers = [tick for tick in ticks if tick.isdigit()]
    assert 2 <= len(numbers) <= 6
    assert numbers == sorted(set(numbers), key=int)


def test_wrong_results_are_refused(result: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one method or more"):
        demo_page(result | {"methods": []})
    with pytest.raises(ValueError, match="different names"):
        demo_page(result | {"methods": [result["methods"][0]] * 2})
    short = copy.deepcopy(result)
    short["methods"][1]["curve"]["test"].pop()
    with pytest.raises(ValueError, match="'V-REx' has 31 steps but 30 values of 'test'"):
        demo_page(short)


def test_other_methods_and_one_method(result: dict[str, Any]) -> None:
    result["methods"] = [make_method("IRM", 0.71, 0.66, 0.67)]
    text = Page(demo_page(result)).text.replace("\xa0", " ")
    assert "66.0 %" in text and "1 method," in text


def test_table_for_the_terminal(result: dict[str, Any]) -> None:
    result["methods"][0]["name"] = "[red]ERM"
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=False).print(demo_table(result))
    text = out.getvalue().replace("\xa0", " ")
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "86.1 %" in lines["[red]ERM"] and "71.2 %" in lines["[red]ERM"]
    assert lines["[red]ERM"].count("█") == 3  # 15.3 % of twenty
    assert lines["Fishr"].count("█") == 14
    assert "68.8 %" in lines["Fishr"] and lines["Fishr"].count("┊") == 1
    assert "10 %" in text and "75 %" in text


def test_page_in_a_browser(result: dict[str, Any], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium")
    (tmp_path / "page.html").write_text(demo_page(result), encoding="utf-8")
    picture = tmp_path / "page.png"
    subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,2600"),
            *(f"--screenshot={picture}", (tmp_path / "page.html").as_uri()),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    png = picture.read_bytes()
    assert struct.unpack(">II", png[16:24]) == (1200, 2600)
    # A blank picture of this size takes some 10 kB.
    assert len(png) > 60_000
