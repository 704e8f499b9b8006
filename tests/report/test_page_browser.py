"""The page of a sweep in a real browser: it renders, sorts, filters, switches rules and fits."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.report import comparable
from shoal.report.page import sweep_page
from shoal.results.records import failures, read_runs
from shoal.results.selection import ALL_RULES, choose_runs
from tests.report.browser import Browser
from tests.report.made_up import make_run, make_sweep, write_failure, write_run
from tests.report.test_page import HOSTILE, hostile_sweep

BOARD = "#leaderboard-table"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


AS_PUBLISHED = {
    "pacs": {"steps": 5001, "weights": "imagenet", "record_every": 300},
    "colored-mnist": {"steps": 5001, "record_every": 100},
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    # vrex has no cell on one of the two data sets, and coral fewer draws on the other
    for run in [*make_sweep(pairs=True), *make_sweep(["vrex"], ["pacs"])]:
        if (run.algorithm, run.draw) != ("coral", 4) or run.dataset == "colored-mnist":
            write_run(folder / "sweep", replace(run, protocol=AS_PUBLISHED[run.dataset]))
    reason = "FloatingPointError: the loss is nan; " + "lower the learning rate, " * 20
    write_failure(folder / "sweep", make_run("pacs", "irm", ("photo",), 0, 0), reason)
    sweeps = [folder / "sweep"]
    path = folder / "page.html"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparable, "DRAWS", 5)
        path.write_text(sweep_page(read_runs(sweeps), ALL_RULES, failures(sweeps)), "utf-8")
    return path


@pytest.fixture(autouse=True)
def no_complaints(browser: Browser) -> Iterator[None]:
    browser.errors.clear()
    yield
    browser.ask("Runtime.evaluate", expression="1")  # what was said before it has arrived
    assert browser.errors == []


def column(browser: Browser, box: str, number: int) -> list[str]:
    """Return the texts of a column's cells that are to be seen, from above."""
    found: list[str] = browser.value(
        f"[...document.querySelectorAll('{box} tbody tr')].filter(row => row.offsetHeight > 0)"
        f".map(row => row.children[{number}].querySelector('.number').textContent)"
    )
    return found


def text(browser: Browser, selector: str) -> str:
    found: str = browser.value(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


def count(browser: Browser, selector: str) -> int:
    found: int = browser.value(f"document.querySelectorAll({json.dumps(selector)}).length")
    return found


def test_every_section_has_something(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    assert "5 methods, 2 data sets, 3 trials" in text(browser, "#summary")
    for box, rows in (
        (BOARD, 5),
        ("#published", 5),
        # On pacs coral has too few draws, and of fishr none is published by domain.
        ("#domains-tables", 4 + 4 + 5 + 3),
        ("#cost-table", 4 + 5),
        ("#failures-table", 1),
        ("#selection-table", 4 * 7 * 3 + 4 * 3),
    ):
        assert count(browser, f"{box} tbody tr") == rows, box
    assert count(browser, "#hparams-chart circle") == 3 * 3 * 5
    assert count(browser, "#hparams-chart circle.selected") == 3 * 3
    assert count(browser, "#curves-chart path") == 6  # kept and held out of three domains
    assert count(browser, "#terms svg") == 3
    assert count(browser, f"{BOARD} tr.baseline") == 1
    assert text(browser, f"{BOARD} tr.baseline th") == "ERM"
    assert "pacs: the methods have different numbers of draws" in text(browser, "#cautions p")
    assert browser.value("document.querySelector('#failures-advice').offsetHeight") > 0
    assert "--retry-failed" in text(browser, "#failures-advice")
    assert text(browser, "#about p").startswith("Trained on colored-mnist: ")
    assert browser.value("!document.querySelector('main').innerHTML.includes('NaN')")


def test_a_heading_sorts_and_sorts_back(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    *average, gap = column(browser, BOARD, 3)
    assert average == sorted(average, key=float, reverse=True) and gap == "–"
    *before, last = column(browser, BOARD, 0)
    browser.click(f"{BOARD} th[data-column='3'] button")
    assert column(browser, BOARD, 0) == [*before[::-1], last]
    assert text(browser, f"{BOARD} th[aria-sort='ascending']") == "Avg"
    browser.click(f"{BOARD} th[data-column='0'] button")
    assert column(browser, BOARD, 0) == ["CORAL", "ERM", "Fishr", "GroupDRO", "V-REx"]
    browser.click(f"{BOARD} th[data-column='0'] button")
    assert column(browser, BOARD, 0) == ["V-REx", "GroupDRO", "Fishr", "ERM", "CORAL"]


FIRST = "#published > :first-child"  # of the tables of published cells


def test_numbers_sort_as_numbers_and_gaps_come_last(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    for descending in (True, False):
        browser.click("#published th[data-column='2'] button")
        values = [float(one) for one in column(browser, FIRST, 2)]
        assert values == sorted(values, reverse=descending)
    for _ in ("descending", "ascending"):
        browser.click(f"{BOARD} th[data-column='1'] button")
        *others, last = column(browser, BOARD, 1)
        assert last == "–" and "–" not in others
    domains = "#domains-tables > :first-child"  # three domains and their average, then these
    for place, heading, descending in ((5, "Worst", True), (6, "ECE", False)):
        assert text(browser, f"{domains} th[data-column='{place}']") == heading
        browser.click(f"{domains} th[data-column='{place}'] button")
        values = [float(one) for one in column(browser, domains, place)]
        assert values == sorted(values, reverse=descending) and len(set(values)) > 1
    browser.click("#selection-table th[data-column='5'] button")
    steps = [int(one.replace(",", "")) for one in column(browser, "#selection-table", 5)]
    assert steps == sorted(steps)
    records = [f"{1 + step // 100} of 11" for step in steps]
    assert column(browser, "#selection-table", 6) == records
    draws = set(column(browser, "#selection-table", 4))
    # coral has four draws on pacs, all others five
    assert draws <= {f"{k} (of 5)" for k in range(5)} | {f"{k} (of 4)" for k in range(4)}
    assert {draw.partition(" ")[2] for draw in draws} == {"(of 5)", "(of 4)"}


def test_the_filter_hides_rows_in_all_tables(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    browser.click("#filter")
    browser.type("RO")
    for box in (BOARD, "#domains-tables", "#cost-table", "#selection-table"):
        assert set(column(browser, box, 0)) == {"GroupDRO"}, box
    assert column(browser, "#failures-table", 0) == []
    # Also in what is drawn afterwards.
    browser.click(f"{BOARD} th[data-column='1'] button")
    assert column(browser, BOARD, 0) == ["GroupDRO"]
    browser.click("#rules button:nth-child(2)")
    assert column(browser, BOARD, 0) == ["GroupDRO"]


def test_a_filter_that_nothing_matches_says_so(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    browser.click("#filter")
    browser.type("irm")  # which has failed, and nothing else
    told = "document.querySelector('{} .empty').textContent"
    assert browser.value(told.format(BOARD)) == "No matching method is in this table."
    assert column(browser, "#failures-table", 0) == ["IRM"]
    browser.type("s")
    for box in (BOARD, "#domains-tables", "#paired-table", "#failures-table", "#gaps-charts"):
        assert browser.value(told.format(box)) == "No method matches “irms”.", box
        heads = f"[...document.querySelectorAll('{box} thead')].some(head => head.offsetHeight)"
        assert not browser.value(heads), box
    assert "Not recorded" not in text(browser, "#gaps")
    browser.click("#rules button:nth-child(2)")
    assert column(browser, BOARD, 0) == []
    browser.value("filter_ = document.querySelector('#filter'), filter_.value = ''")
    browser.value("filter_.dispatchEvent(new Event('input'))")
    assert len(column(browser, BOARD, 0)) == 5
    assert not browser.value(f"document.querySelector('{BOARD} .empty').offsetHeight")


def test_what_it_is_sorted_by_is_seen_on_a_telephone(browser: Browser, page: Path) -> None:
    def heads() -> list[str]:
        found: list[str] = browser.value(
            f"[...document.querySelectorAll('{BOARD} thead th')].map(head => head.textContent)"
        )
        return found

    browser.open(page, 390)
    assert heads()[:2] == ["Method", "Avg"] and len(heads()) == 7
    sorted_by = f"document.querySelector('{BOARD} th[aria-sort=descending]')"
    assert browser.value(f"{sorted_by}.textContent") == "Avg"
    assert browser.value(f"{sorted_by}.getBoundingClientRect().right") < 390
    *average, _ = column(browser, BOARD, 1)
    assert average == sorted(average, key=float, reverse=True)
    browser.resize(1280)
    browser.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert heads()[3] == "Avg" and column(browser, BOARD, 3)[:4] == average


def test_it_is_dark_where_that_is_preferred(browser: Browser, page: Path) -> None:
    def lightness(selector: str, of: str) -> float:
        shown = browser.value(f"getComputedStyle(document.querySelector('{selector}')).{of}")
        return sum(map(int, re.findall(r"\d+", shown)[:3])) / 765

    for scheme in ("dark", "light"):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.ask("Emulation.setEmulatedMedia", features=media)
        browser.open(page, 1280)
        paper, ink = lightness("body", "backgroundColor"), lightness("body", "color")
        curve = lightness("#curves-chart path", "stroke")
        assert (paper < 0.2 and ink > 0.8) if scheme == "dark" else (paper == 1 and ink < 0.2)
        assert abs(curve - paper) > 0.4
    browser.ask("Emulation.setEmulatedMedia", features=[])


def test_the_rule_changes_numbers_choices_and_words(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    seen = []
    for index, rule in enumerate(ALL_RULES, 1):
        browser.click(f"#rules button:nth-child({index})")
        assert text(browser, "#rules button[aria-pressed=true]") == rule
        assert rule in text(browser, "#selection-title")
        seen.append(
            (
                text(browser, "#words"),
                *column(browser, BOARD, 3),
                *column(browser, "#selection-table", 4),
            )
        )
    assert len(set(seen)) == len(ALL_RULES)


def test_any_method_is_compared_with_all_others(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    methods = {"ERM", "Fishr", "CORAL", "GroupDRO", "V-REx"}
    other = "document.querySelector('#paired-other')"
    assert browser.value(f"{other}.value") == "erm"
    assert set(column(browser, "#paired-table", 0)) == methods - {"ERM"}
    values = [float(one.replace("−", "-")) for one in column(browser, "#paired-table", 1)]
    assert values == sorted(values, reverse=True)
    fishr = column(browser, "#paired-table", 0).index("Fishr")
    to_erm = values[fishr]
    browser.value(f"({other}.value = 'fishr', {other}.dispatchEvent(new Event('change')))")
    assert set(column(browser, "#paired-table", 0)) == methods - {"Fishr"}
    shown = dict(zip(*(column(browser, "#paired-table", k) for k in (0, 1)), strict=True))
    assert float(shown["ERM"].replace("−", "-")) == -to_erm != 0
    # It stays chosen under another rule.
    browser.click("#rules button:nth-child(2)")
    assert browser.value(f"{other}.value") == "fishr"
    after = dict(zip(*(column(browser, "#paired-table", k) for k in (0, 1)), strict=True))
    assert after.keys() == shown.keys() and after != shown
    assert "sign test" in text(browser, "#differences") and "ECE" in text(browser, "#further")


def test_choosers_lead_to_other_charts(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    assert "selected" in browser.value(
        "document.querySelector('#curves-choosers [data-chooser=Draw]').selectedOptions[0].text"
    )

    def choose(box: str, name: str, value: str) -> None:
        browser.value(
            f"(() => {{ const e = document.querySelector('{box} [data-chooser=\"{name}\"]');"
            f"e.value = '{value}'; e.dispatchEvent(new Event('change')); return e.value; }})()"
        )

    assert "warm-up ends" not in text(browser, "#curves-chart")
    choose("#curves-choosers", "Data set", "pacs")
    choose("#curves-choosers", "Method", "fishr")
    choose("#curves-choosers", "Draw", "3")
    assert count(browser, "#curves-chart path") == 8
    assert "warm-up ends" in text(browser, "#curves-chart")
    browser.hover("#curves-chart svg")
    assert text(browser, "#curves-readout").startswith("Step 500: art_painting, kept")
    choose("#hparams-choosers", "Method", "fishr")
    for name in ("lr", "dropout", "augment", "penalty_weight"):
        choose("#hparams-choosers", "Hyperparameter", name)
        assert name in text(browser, "#hparams-chart")
        assert count(browser, "#hparams-chart circle") == 3 * 3 * 5
    choose("#hparams-choosers", "Test domain", "+80%")
    assert count(browser, "#hparams-chart circle") == 3 * 5
    browser.hover("#hparams-chart circle:last-child")
    assert "+80%, trial" in text(browser, "#hparams-readout")
    assert "selected" in text(browser, "#hparams-readout")


def test_gaps_of_selected_runs_and_what_is_not_recorded(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    assert count(browser, "#gaps-charts svg") == 3  # colored-mnist comes first, without a Hessian
    assert count(browser, "#gaps-charts path") == 3 * 4
    assert count(browser, "#gaps-legend span") == 4
    browser.hover("#gaps-charts div:nth-child(3) svg")
    told = text(browser, "#gaps-readout")
    assert told.startswith("gradient variance, spread at step 500: ") and "ERM 1e-5" in told
    browser.click("#filter")
    browser.type("fishr")
    assert count(browser, "#gaps-charts path") == 3 and text(browser, "#gaps-legend") == "Fishr"
    browser.value(
        "(() => { const e = document.querySelector('#gaps-choosers [data-chooser=\"Data set\"]');"
        "e.value = 'pacs'; e.dispatchEvent(new Event('change')); })()"
    )
    assert text(browser, "#gaps-charts").count("Not recorded by these runs") == 2
    # The gap in accuracy is that of the records.
    browser.hover("#gaps-charts div:nth-child(1) svg")
    run = next(
        choice.run
        for choice in choose_runs(make_sweep(["fishr"], ["pacs"]), "test-domain")
        if (choice.test_domain, choice.trial) == ("art_painting", 0)
    )
    values = [run.records[5].of(name, "held_out") for name in ("cartoon", "photo", "sketch")]
    shown = float(text(browser, "#gaps-readout").rpartition(" ")[2])
    assert shown == pytest.approx(100 * (max(values) - min(values)), abs=0.02)


def test_sample_images_are_shown_or_said_to_be_missing(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    browser.open(page, 1280)
    assert "shoal report --data" in text(browser, "#samples-rows")
    address = "data:image/gif;base64,R0lGODlhAQABAIAAAAUEBAAAACwAAAAAAQABAAACAkQBADs="
    images = {"pacs": {"photo": [("dog", address), (HOSTILE, address)], "sketch": [("", address)]}}
    path = tmp_path / "page.html"
    path.write_text(sweep_page(make_sweep(draws=1), ALL_RULES, samples=images), "utf-8")
    browser.open(path, 390)
    assert browser.value("[...document.images].every(one => one.naturalWidth === 1)")
    assert count(browser, "#samples-rows img") == 3 and count(browser, "figcaption") == 2
    assert browser.value("typeof window.hostile") == "undefined"
    assert browser.value("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, page: Path, width: int, tmp_path: Path
) -> None:
    browser.open(page, width)
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.value("document.documentElement.scrollWidth") <= width
    outside = browser.value(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg'))"
        ".filter(e => e.getBoundingClientRect().right > window.innerWidth + 1)"
        ".map(e => e.tagName + '#' + e.id)"
    )
    assert outside == []
    if width == 390:  # a wide table scrolls in its own box
        assert browser.value(
            f"(e => e.scrollWidth > e.clientWidth)(document.querySelector('{BOARD}'))"
        )
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


@pytest.mark.parametrize("box", [BOARD, FIRST, "#domains-tables", "#paired-table"])
def test_numbers_stand_one_above_the_other(browser: Browser, page: Path, box: str) -> None:
    """Also where one has no error, an error is longer, or a cell is missing or marked."""
    browser.open(page, 1280)
    spreads = browser.value(
        f"[...document.querySelectorAll('{box} table')].flatMap(table => {{"
        "const rows = [...table.tBodies[0].rows];"
        "return [...rows[0].cells].slice(1).map((_, place) => {"
        "const ends = rows.map(row => {"
        "const digits = document.createRange();"  # without the arrow after them
        "digits.selectNode(row.cells[place + 1].querySelector('.number').firstChild);"
        "return digits.getBoundingClientRect().right; });"
        "return Math.max(...ends) - Math.min(...ends); }); })"
    )
    assert len(spreads) > 1 and max(spreads) < 0.5


def test_charts_follow_the_width(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    width = "document.querySelector('#curves-chart svg').viewBox.baseVal.width"
    assert browser.value(width) > 1000
    browser.resize(390)
    frames = "requestAnimationFrame(() => requestAnimationFrame(() => done()))"
    browser.value(f"new Promise(done => {frames})")
    assert browser.value(width) < 390


@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    path.write_text(sweep_page(hostile_sweep(), ALL_RULES), "utf-8")
    browser.open(path, width)
    assert browser.value("typeof window.hostile") == "undefined"
    assert count(browser, "img") == 0 and count(browser, "script") == 2
    assert HOSTILE + "fishr" in column(browser, BOARD, 0)
    assert browser.value("document.documentElement.scrollWidth") <= width


def test_one_run_is_enough(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run = make_run("pacs", "fishr", ("photo",), 0, 0, records=1)
    path.write_text(sweep_page([run], ALL_RULES), "utf-8")
    browser.open(path, 390)
    assert text(browser, "h1") == "Sweep of 1 run"
    assert "All hyperparameters of these runs are equal." in text(browser, "#hparams-chart")
    assert "no other method" in text(browser, "#paired-table")
    assert "No run failed" in text(browser, "#failures-table")
    assert browser.value("document.querySelector('#failures-advice').offsetHeight") == 0
    assert "recorded its time" in text(browser, "#cost-table")
    assert count(browser, "#curves-chart path") == 8
    # Four domains after the average, which comes first on a narrow screen.
    assert column(browser, "#domains-tables", 4) == column(browser, "#selection-table", 9)
    assert column(browser, "#selection-table", 8) == [f"{100 * run.inside[0]:.1f}"]


def test_a_table_that_goes_on_fades_out(browser: Browser, page: Path) -> None:
    """On a phone a column's edge may lie where the table is cut: nothing else says it goes on."""

    def fades(box: str) -> bool:
        # Two frames: what was scrolled or sized is looked at in the first.
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        browser.value(frames)
        found: str = browser.value(f"getComputedStyle(document.querySelector('{box}')).maskImage")
        return found != "none"

    browser.open(page, 1280)
    assert not fades(BOARD) and not fades("#domains-tables .scroll")
    browser.resize(375)
    assert fades(BOARD) and fades("#domains-tables .scroll") and fades("#failures-table")
    browser.value(f"document.querySelector('{BOARD}').scrollLeft = 9999")
    assert not fades(BOARD)
    browser.value(f"document.querySelector('{BOARD}').scrollLeft = 0")
    assert fades(BOARD)


def test_durations_have_no_sixtieth_second(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    found = [browser.value(f"duration({seconds})") for seconds in (59.9, 119.7, 3599.8, 5400)]
    assert found == ["59.9 s", "2 min 0 s", "1.0 h", "1.5 h"]
