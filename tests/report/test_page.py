"""The page of a sweep, without a browser: its data, its safety, its size and its time."""

import base64
import io
import json
import re
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.cli import main
from shoal.cli.samples import samples_of
from shoal.datasets import colored_mnist, image_folders
from shoal.datasets.cache import build, cache_folder
from shoal.datasets.samples import samples
from shoal.report import page as page_curves
from shoal.report.page import SCALE, page_data, sweep_page
from shoal.report.sweep import against_each, rule_reports
from shoal.results.averages import AVERAGES_FILE, averages_as_text, with_averages
from shoal.results.records import Record, RunResult, failures, read_runs, timing_of
from shoal.results.selection import ALL_RULES, choose_runs
from tests.report.made_up import DOMAINS, make_run, make_sweep, write_failure, write_run
from tests.runs.small import squares

HOSTILE = "</script><script>window.hostile = 1</script><img src=x onerror=alert(1)>&{{ 7*7 }}\u2028"


def data_of(page: str) -> dict[str, Any]:
    """Return the page's block of JSON, found as a browser finds it."""
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    found: dict[str, Any] = json.loads(block[1])
    return found


def test_the_page_needs_nothing_else() -> None:
    page = sweep_page(make_sweep(draws=1), ALL_RULES)
    assert page.startswith("<!DOCTYPE html>")
    addresses = set(re.findall(r"https?://[\w./]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nothing fetches
    assert not re.search(r"@import|url\(|<iframe|\son\w+=|\ssrc=", page)
    assert set(re.findall(r'href="([^"]*)"', page)) >= {"data:,", "#leaderboard", "#selection"}
    assert all(link[0] == "#" or link == "data:," for link in re.findall(r'href="([^"]*)"', page))


def test_its_numbers_are_those_of_the_tables() -> None:
    runs = make_sweep(pairs=True)
    shown = data_of(sweep_page(runs, ALL_RULES))["chapters"]
    expected = rule_reports(runs, ALL_RULES)
    assert [one["rule"] for one in shown] == list(ALL_RULES)
    for got, want in zip(shown, expected, strict=True):
        grids = [got["leaderboard"], *got["published"], *got["by_domain"]]
        for grid, table in zip(grids, [*want.tables, *want.by_domain], strict=True):
            assert grid["title"] == table.title
            assert grid["columns"] == [*table.columns, *table.summary]
            assert [grid["columns"][place] for place in grid["smallest"]] == [*table.smallest]
            for line, row in zip(grid["lines"], table.lines, strict=True):
                assert line["name"] == row.key
                assert line["cells"] == [
                    [entry.text, entry.error, entry.mark.place, entry.mark.worse]
                    for entry in (*row.cells, *row.summary)
                ]
        assert got["about"] == list(want.about) != []
        others = against_each(choose_runs(runs, want.rule))
        assert list(got["paired"]) == list(others) == ["erm", "groupdro", "coral", "fishr"]
        for name, table in others.items():
            cells = [[cell[:2] for cell in line["cells"]] for line in got["paired"][name]["lines"]]
            assert cells == [[[e.text, e.error] for e in line.cells] for line in table.lines]
    assert shown[0]["leaderboard"]["lines"] != shown[1]["leaderboard"]["lines"]


@pytest.mark.parametrize("rule", ALL_RULES)
def test_it_says_what_was_chosen_and_where_each_run_is_read(rule: str) -> None:
    runs = make_sweep(algorithms=("erm", "fishr"), datasets=("colored-mnist",), pairs=True)
    (chapter,) = page_data(runs, [rule])["chapters"]
    choices = rule_reports(runs, [rule])[0].choices
    assert len(chapter["chosen"]) == len(choices) == 2 * 3 * 3
    for chosen, choice in zip(chapter["chosen"], choices, strict=True):
        assert runs[chosen["run"]] is choice.run
        assert chosen["score"] == pytest.approx(choice.score, abs=1e-5)
        assert chosen["inside"] == round(choice.inside * SCALE)
        assert (chosen["draws"], chosen["records"]) == (5, 11)  # a record every 100 steps
        assert chosen["record"] == 1 + choice.step // 100
        assert chapter["readings"][chosen["run"]] == [choice.step, round(choice.accuracy * SCALE)]
    for run, reading in zip(runs, chapter["readings"], strict=True):
        if len(run.test_domains) == 2:
            assert reading is None
            continue
        (at,) = [one for one in run.records if one.step == reading[0]]
        assert reading[1] == round(at.accuracy[run.test_domains[0]]["kept"] * SCALE)
        if rule == "test-domain":
            assert reading[0] == 1000
        if rule == "training-domain":
            others = [
                domain for domain in DOMAINS["colored-mnist"] if domain != run.test_domains[0]
            ]
            means = [sum(m.accuracy[d]["held_out"] for d in others) for m in run.records]
            assert at is run.records[means.index(max(means))]


def test_the_chosen_run_is_read_where_all_draws_say() -> None:
    def run(draw: int, *records: tuple[float, float]) -> RunResult:
        measured = tuple(
            Record(
                step=k,
                accuracy={"a": {"held_out": value}, "t": {"kept": 0.1 * k}},
                calibration_error={"a": {"held_out": e}},
            )
            for k, (value, e) in enumerate(records)
        )
        return RunResult(
            dataset="data",
            algorithm="erm",
            test_domains=("t",),
            trial=0,
            draw=draw,
            hparams={},
            records=measured,
        )

    # Alone, draw 0 is read at step 0; draw 1 puts that out of reach of the best accuracy.
    first, second = run(0, (0.800, 0.01), (0.803, 0.02)), run(1, (0.806, 0.5))
    alone = page_data([first], ["calibrated"])["chapters"][0]
    assert alone["readings"] == [[0, 0]]
    both = page_data([first, second], ["calibrated"])["chapters"][0]
    assert [one["run"] for one in both["chosen"]] == [0]
    assert both["readings"] == [[1, 1000], [0, 0]]


def test_curves_are_the_records() -> None:
    run = make_run("pacs", "fishr", ("photo",), 0, 3)
    found = page_data([run], ["test-domain"])
    (shown,) = found["runs"]
    assert found["steps"][shown["steps"]] == tuple(100 * k for k in range(11))
    for k, one in enumerate(run.records):
        for domain, splits in one.accuracy.items():
            for split, value in splits.items():
                assert shown["accuracy"][domain][split][k] / SCALE == pytest.approx(value, abs=5e-5)
        assert shown["terms"]["loss"][k] == pytest.approx(one.terms["loss"], rel=1e-3)
    assert shown["warmup"] == 300
    assert shown["hparams"] == run.hparams


def test_gaps_are_the_records_and_may_be_missing_in_some() -> None:
    run = make_run("colored-mnist", "fishr", ("-90%",), 0, 1)
    first, *others = run.records
    run = replace(run, records=(replace(first, extra={}), *others))
    without = make_run("pacs", "fishr", ("photo",), 0, 1)
    shown, bare = page_data([run, without], ["test-domain"])["runs"]
    assert bare["gaps"] == {}
    assert list(shown["gaps"]) == ["risk", "variance"]
    for name, values in shown["gaps"].items():
        assert values[0] is None
        assert values[1:] == [pytest.approx(one.gaps[name], rel=1e-3) for one in others]


def test_warm_up_by_domainbeds_name_and_none() -> None:
    run = make_run("pacs", "erm", ("photo",), 0, 0)
    named = replace(run, hparams={"irm_penalty_anneal_iters": 7, "lr": 1.0})
    shown = page_data([run, replace(named, draw=1)], ["test-domain"])["runs"]
    assert [one["warmup"] for one in shown] == [None, 7]


def test_many_records_are_thinned_and_ends_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_curves, "MOST_VALUES", 11 * 5)  # 8 accuracies and 3 terms
    found = page_data([make_run("pacs", "erm", ("photo",), 0, 0, records=101)], ["test-domain"])
    assert found["steps"] == [(0, 2500, 5000, 7500, 10000)]
    assert len(found["runs"][0]["terms"]["loss"]) == 5


def test_what_is_no_number_is_null() -> None:
    nan, domains = float("nan"), DOMAINS["colored-mnist"]
    values = {domain: {"kept": 0.5, "held_out": 0.5} for domain in domains}
    records = [
        Record(step=0, accuracy=values, terms={"loss": nan}),
        Record(
            step=1,
            accuracy=values | {"+90%": {"held_out": nan}},
            calibration_error={},
            terms={"loss": float("inf")},
        ),
        Record(step=2, accuracy=values),
    ]
    hparams = {"lr": float("inf"), "layers": (1, 2)}
    run = RunResult(
        dataset="colored-mnist",
        algorithm="erm",
        test_domains=("-90%",),
        trial=0,
        draw=0,
        hparams=hparams,
        records=tuple(records),
    )
    (shown,) = data_of(sweep_page([run], ALL_RULES))["runs"]
    assert shown["terms"]["loss"] == [None, None, None]
    assert shown["accuracy"]["+90%"] == {"kept": [5000, None, 5000], "held_out": [5000, None, 5000]}
    assert shown["hparams"] == {"lr": "inf", "layers": "(1, 2)"}


def hostile_sweep() -> list[RunResult]:
    """Return runs in which every name that users give would be a script."""
    found = []
    for run in make_sweep(datasets=("colored-mnist",), draws=2):
        measured = tuple(
            replace(
                one,
                accuracy={HOSTILE + name: value for name, value in one.accuracy.items()},
                calibration_error={},
                terms={HOSTILE: 1.0},
            )
            for one in run.records
        )
        test = tuple(HOSTILE + name for name in run.test_domains)
        hparams = {HOSTILE: HOSTILE + str(run.draw), "lr": run.hparams["lr"]}
        algorithm = "erm" if run.algorithm == "erm" else HOSTILE + run.algorithm
        found.append(
            replace(
                run,
                dataset=HOSTILE,
                algorithm=algorithm,
                test_domains=test,
                hparams=hparams,
                records=measured,
            )
        )
    return found


def test_hostile_names_stay_data(tmp_path: Path) -> None:
    write_failure(tmp_path, make_run("pacs", "irm", ("photo",), 0, 0), HOSTILE)
    page = sweep_page(hostile_sweep(), ALL_RULES, failures([tmp_path]))
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page and "window.hostile = 1\\u003c" in page
    found = data_of(page)
    assert found["runs"][0]["dataset"] == HOSTILE
    assert found["failures"][0]["reason"] == HOSTILE


def test_costs_and_failures_are_read_from_folders(tmp_path: Path) -> None:
    sweep = make_sweep(algorithms=("erm",), datasets=("pacs",), trials=1, draws=3)
    written = [write_run(tmp_path, run) for run in sweep]
    write_failure(tmp_path, make_run("pacs", "irm", ("photo",), 2, 1), "too hot")
    assert written[0].path is not None
    (written[0].path / "timing.json").unlink()
    (written[1].path or tmp_path).joinpath("failed.json").write_text('{"reason": "before"}')
    runs, failed = read_runs([tmp_path]), failures([tmp_path])
    assert {run.records[0].terms["loss"] for run in runs} == {2.0}
    assert [timing_of(run) for run in runs].count(None) == 1
    (one,) = failed  # the run that is done has not failed
    assert (one.algorithm, one.test_domains, one.trial, one.draw) == ("irm", ("photo",), 2, 1)
    assert one.reason == "too hot"
    found = page_data(runs, ["test-domain"], failed)
    (cost,) = found["costs"]
    # 4 test domains × 3 draws, less one of draw 0: updating takes 80 + draw seconds, the rest 10
    assert cost["runs"] == 11 and cost["updates"] == 11_000
    assert cost["total"] == pytest.approx(11 * 90 + 4 * 1 + 4 * 2)
    assert cost["seconds"] == pytest.approx(cost["total"] / 11, abs=1e-3)
    assert cost["machines"] == ["device cpu, threads 1"]
    assert found["failures"][0]["folder"] == str(one.path)


def test_averages_are_rows_but_no_runs(tmp_path: Path) -> None:
    """They take no time of their own, and a curve that begins late has no end of a warm-up."""
    sweep = make_sweep(algorithms=("erm", "fishr"), datasets=("pacs",), trials=1, draws=1)
    for run in (write_run(tmp_path, run) for run in sweep):
        lines = [
            replace(one, extra={"average": "half", "updates": [0, one.step]})
            for one in run.records[5:]
        ]
        (run.path or tmp_path).joinpath(AVERAGES_FILE).write_text(averages_as_text(lines))
    rows = with_averages(read_runs([tmp_path]))
    found = page_data(rows, ["test-domain"])
    assert [(cost["method"], cost["runs"]) for cost in found["costs"]] == [("erm", 4), ("fishr", 4)]
    assert found["averages"] == ["erm+half", "fishr+half"]
    assert {run["warmup"] for run in found["runs"] if run["method"] == "fishr"} == {0}
    assert {run["warmup"] for run in found["runs"] if run["method"] == "fishr+half"} == {None}
    assert "<title>Sweep of 8 runs</title>" in sweep_page(rows, ["test-domain"])


def test_runs_without_folders_have_no_cost() -> None:
    assert page_data(make_sweep(draws=1), ["test-domain"])["costs"] == []


def test_rules_without_their_runs_are_said() -> None:
    with pytest.raises(
        ValueError, match="leave-one-domain-out cannot choose among these 84 runs: "
    ):
        sweep_page(make_sweep(draws=1), ["leave-one-domain-out"])


def write_images(root: Path) -> None:
    """Write three domains of three classes, a large image of one colour in each."""
    from PIL import Image

    for domain, red in zip(("day", "dusk", "night"), (250, 120, 20), strict=True):
        for kind, green in zip(("cat", "cow", "dog"), (0, 90, 180), strict=True):
            folder = root / domain / kind
            folder.mkdir(parents=True)
            Image.new("RGB", (300, 260), (red, green, 90)).save(folder / "1.png")


def image_of(address: str) -> Any:
    """Return an image of the page."""
    from PIL import Image

    head, _, content = address.partition(",")
    assert head in ("data:image/png;base64", "data:image/jpeg;base64")
    image = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")
    assert max(image.size) <= 112
    return image


@pytest.mark.parametrize("source", ["folder", "cache"])
def test_sample_images_are_those_of_the_data(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    write_images(tmp_path / "data" / "fields")
    dataset = image_folders("fields", tmp_path / "data" / "fields")
    places = tmp_path / "data", tmp_path / "cache"
    if source == "cache":
        build(dataset, cache_folder(dataset, places[1]))
        places = tmp_path / "not here", places[1]
    run = replace(make_run("pacs", "erm", ("photo",), 0, 0), dataset="fields")
    run = replace(run, fingerprint=dataset.fingerprint)
    found = samples_of([run], Namespace(data=places[0], cache=places[1]))["fields"]
    assert list(found) == ["day", "dusk", "night"]
    for red, images in zip((250, 120, 20), found.values(), strict=True):
        assert [name for name, _ in images] == (
            ["cat", "cow", "dog"] if source == "folder" else ["", "", ""]
        )
        for green, (_, address) in zip((0, 90, 180), images, strict=True):
            assert image_of(address).getpixel((50, 50)) == pytest.approx((red, green, 90), abs=4)
    assert capsys.readouterr().err == ""
    other = replace(run, fingerprint="f" * 64)
    assert samples_of([other], Namespace(data=places[0], cache=places[1])) == {}
    told = "has changed since the runs were trained" if source == "folder" else "--data"
    assert told in capsys.readouterr().err


def test_sample_images_of_drawn_digits_are_those_of_the_trial(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    dataset = colored_mnist.load(None, 2)
    run = replace(make_run("colored-mnist", "erm", ("-90%",), 2, 0), fingerprint="")
    nowhere = Namespace(data=tmp_path, cache=tmp_path)
    found = samples_of([run], nowhere)["colored-mnist"]
    assert [label for label, _ in found["+90%"]] == ["5-9"] * 4 + ["0-4"] * 4
    assert samples_of([replace(run, fingerprint=dataset.fingerprint)], nowhere) != {}
    digits = dataset["-90%"]
    places = [*(digits.labels == 0).nonzero()[:4, 0], *(digits.labels == 1).nonzero()[:4, 0]]
    for place, (_, address) in zip(places, found["-90%"], strict=True):
        red, green = digits.tensor[place]
        expected = torch.stack([red, green, torch.zeros_like(red)], -1)
        assert np.array_equal(np.array(image_of(address)), expected.numpy())


def test_many_domains_have_fewer_images_each() -> None:
    pytest.importorskip("PIL")
    found = samples(squares((9, 8, 7, 6, 5)), 12)
    assert [len(images) for images in found.values()] == [2] * 5
    assert list(samples(squares((9, 8, 7)), 2)) == ["a", "b"]
    page = page_data(
        make_sweep(draws=1), ["test-domain"], samples={"pacs": {"photo": [("x", "y")]}}
    )
    assert page["samples"] == {"pacs": {"photo": [("x", "y")]}}


def test_the_command_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in make_sweep(algorithms=("erm", "fishr"), trials=2, draws=1):
        write_run(tmp_path / "sweep", run)
    write_failure(tmp_path / "sweep", make_run("pacs", "irm", ("photo",), 0, 0), "too hot")
    monkeypatch.chdir(tmp_path)
    arguments = ["report", "sweep", "--format", "html"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "wrote report.html\n"
    found = data_of((tmp_path / "report.html").read_text("utf-8"))
    assert len(found["runs"]) == 2 * 7 * 2 and len(found["failures"]) == 1
    assert main([*arguments, "--rule", "training-domain", "--out", "new/page.html"]) == 0
    found = data_of((tmp_path / "new" / "page.html").read_text("utf-8"))
    assert [one["rule"] for one in found["chapters"]] == ["training-domain"]
    capsys.readouterr()
    assert main(["report", "--published", "--format", "html"]) == 2
    assert "--format html needs folders with runs, not --published" in capsys.readouterr().err


def test_runs_that_tables_cannot_tell_apart_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in make_sweep(algorithms=("erm",), datasets=("pacs",), trials=1, draws=1):
        write_run(tmp_path / "short", run)
        write_run(tmp_path / "long", run)
    assert main(["report", str(tmp_path / "short")]) == 0
    assert capsys.readouterr().err == ""
    assert main(["report", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert (
        "some draws have more than one run (4 in total)" in told
        and "report sweeps of different protocols separately" in told
    )
    for kind in ("markdown", "latex", "json", "html"):  # which are kept without what was said
        out = tmp_path / kind
        assert main(["report", str(tmp_path), "--format", kind, "--out", str(out)]) == 0
        caution = (
            "pacs: some draws have more than one run (4 of ERM; they differ in nothing), and rules"
        )
        assert out.read_text("utf-8").count(caution) == 3, kind


def test_two_thousand_runs_in_ten_seconds_and_fifteen_megabytes(tmp_path: Path) -> None:
    """In processor time, which a busy machine changes little."""
    methods = ["erm", "fishr", *(f"method-{k}" for k in range(12))]
    for run in make_sweep(methods, ["pacs"], trials=3, draws=12, records=51):
        write_run(tmp_path, run)
    start = time.process_time()
    runs = read_runs([tmp_path])
    page = sweep_page(runs, ALL_RULES, failures([tmp_path]))
    seconds = time.process_time() - start
    assert len(runs) == 2016
    assert len(page.encode()) < 15e6
    assert seconds < 10
