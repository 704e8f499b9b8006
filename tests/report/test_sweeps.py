"""Sweeps as tables: what a rule chose, beside published cells; also of runs that DomainBed made."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.protocol.records import Finished, Measured
from shoal.report.sweeps import chapters

DOMAINS = ("+90%", "+80%", "-90%")


def run(algorithm: str, test: str, trial: int, accuracy: float, draw: int = 0) -> Finished:
    values = {
        domain: {"kept": accuracy, "held_out": accuracy} if domain == test else {"held_out": 0.7}
        for domain in DOMAINS
    }
    measured = Measured(0, values, {domain: {"kept": 0.1, "held_out": 0.2} for domain in DOMAINS})
    return Finished("colored-mnist", algorithm, (test,), trial, draw, {}, (measured,))


def sweep() -> list[Finished]:
    return [
        run(algorithm, test, trial, base + trial / 100)
        for algorithm, base in (("fishr", 0.6), ("erm", 0.5))
        for test in DOMAINS
        for trial in range(3)
    ]


def test_a_chapter_has_averages_domains_and_published_cells() -> None:
    (chapter,) = chapters(sweep(), ["test-domain"])
    whole, compared, domains = chapter.tables
    assert [line.name for line in whole.lines] == ["erm", "fishr"]  # the baseline first
    assert [(line.cells[0].text, line.cells[0].error) for line in whole.lines] == [
        ("51.0", "0.5"),
        ("61.0", "0.5"),
    ]
    # 51.0 ± 0.47 against the paper's 57.8 ± 0.2, 61.0 ± 0.47 against 68.8 ± 1.4
    assert [line.cells[0].text for line in compared.lines] == ["−13.3", "−5.3"]
    assert domains.columns == DOMAINS and domains.summary == ("Avg",)
    assert any(line.startswith("fishr less erm, paired: +10.0 ± 0.0") for line in chapter.lines)
    assert any("9 won and 0 lost, p = 0.004 by the sign test" in line for line in chapter.lines)
    assert any("61.0 ± 0.5 % on the worst domain" in line for line in chapter.lines)
    assert not any("without colored-mnist" in line for line in chapter.lines)


def test_unequally_many_draws_are_told_before_the_tables() -> None:
    more = [
        run("fishr", test, trial, 0.1, draw)
        for test in DOMAINS
        for trial in (0, 1)
        for draw in (1, 2)
    ]
    (chapter,) = chapters([*sweep(), *more], ["test-domain"])
    (caution,) = chapter.cautions
    assert "colored-mnist: chosen of unequally many draws (fishr 1 to 3, erm 1)" in caution
    (even,) = chapters(sweep(), ["test-domain"])
    assert even.cautions == ()


def test_one_trial_has_no_error_and_no_difference_no_minus() -> None:
    runs = [run("fishr", test, 0, 0.5 - 1e-5) for test in DOMAINS]
    runs += [run("erm", test, 0, 0.5) for test in DOMAINS]
    (chapter,) = chapters(runs, ["test-domain"])
    assert any("fishr: 50.0 % on the worst domain" in line for line in chapter.lines)
    assert any(line.startswith("fishr less erm, paired: +0.0 ± 0.0") for line in chapter.lines)


def test_the_average_without_colored_mnist() -> None:
    """As in the paper's text; a method that lacks a data set has none."""
    other = [replace(one, dataset="other") for one in sweep() if one.algorithm == "erm"]
    third = [replace(one, dataset="other", algorithm="irm") for one in sweep()[:9]]
    (chapter,) = chapters([*sweep(), *other, *third], ["test-domain"])
    (line,) = (line for line in chapter.lines if "without colored-mnist" in line)
    assert line == "Average without colored-mnist: irm 61.0, erm 51.0"


def test_rules_without_their_runs_have_no_chapter() -> None:
    found = chapters(sweep(), ["leave-one-domain-out", "training-domain"])
    assert [chapter.rule for chapter in found] == ["training-domain"]


def test_a_missing_test_domain_leaves_no_average() -> None:
    (chapter,) = chapters(
        [one for one in sweep() if one.test_domains != ("+80%",)], ["test-domain"]
    )
    assert chapter.tables[0].lines[0].cells[0].text == "–"
    assert "colored-mnist, erm: not all test domains in all trials, no average" in chapter.lines


def write(root: Path, one: Finished) -> None:
    folder = root / f"{one.algorithm}-{one.test_domains[0]}-{one.trial}"
    folder.mkdir(parents=True)
    keys = ("dataset", "algorithm", "test_domains", "trial", "draw", "hparams")
    (folder / "run.json").write_text(json.dumps({key: getattr(one, key) for key in keys}))
    (folder / "records.jsonl").write_text(json.dumps(vars(one.measured[0])) + "\n")
    (folder / "done").touch()


def check_latex(text: str) -> None:
    """Assert that every table can be set: as many cells as columns, and labels of their own."""
    tables = text.split(r"\begin{table}")[1:]
    for one in tables:
        columns = re.search(r"begin\{tabular\}\{(\w+)\}", one)[1]  # type: ignore[index]
        for row in one.split(r"\toprule")[1].split("\n"):
            if row.strip().endswith(r"\\"):
                wide = sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d+)\}", row))
                assert len(re.split(r"(?<!\\)&", row)) + wide == len(columns)
        for first, last in re.findall(r"cmidrule\(\w+\)\{(\d+)-(\d+)\}", one):
            assert int(first) <= int(last) <= len(columns)
        marked = r"\underline" in one.split(r"\label")[1] or r"\textbf{6" in one
        assert marked <= (r"\textbf{First}" in one)
    labels = re.findall(r"label\{(.*?)\}", text)
    assert len(tables) > 1 and len(set(labels)) == len(labels) == len(tables)
    assert all(re.fullmatch(r"[A-Za-z0-9_:.+-]+", label) for label in labels)


@pytest.mark.parametrize("kind", ["terminal", "markdown", "latex", "json"])
def test_the_command_shows_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in sweep():
        write(tmp_path / "sweep", one)
    assert main(["report", str(tmp_path / "sweep"), "--format", kind, "--rule", "test-domain"]) == 0
    told = capsys.readouterr().out
    assert "61.0" in told and "fishr" in told
    if kind == "json":
        assert json.loads(told)[0]["rule"] == "test-domain"
    if kind == "latex":
        check_latex(told)
    file = tmp_path / "table.txt"
    assert main(["report", str(tmp_path / "sweep"), "--format", kind, "--out", str(file)]) == 0
    assert "61.0" in file.read_text()


def test_folders_of_domainbed_are_read_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = {"dataset": "ColoredMNIST", "algorithm": "ERM", "trial_seed": 0, "hparams_seed": 0}
    for env in range(3):
        values = {f"env{i}_{split}_acc": 0.25 for i in range(3) for split in ("in", "out")}
        record = {"step": 0, "hparams": {}, "args": args | {"test_envs": [env]}} | values
        (tmp_path / str(env)).mkdir()
        (tmp_path / str(env) / "results.jsonl").write_text(json.dumps(record) + "\n")
    assert main(["report", str(tmp_path), "--rule", "test-domain"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "25.0" in told and "calibration error not recorded" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "takes folders, or --published: one of the two"),
        (("--published", "{}"), "takes folders, or --published: one of the two"),
        (("{}",), "no finished run in"),
        (("{}/none",), "there is no folder"),
        (("--published", "--rule", "calibrated"), "the paper has no table for the rule calibrated"),
    ],
)
def test_what_cannot_be_shown_is_said(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(text.format(tmp_path) for text in arguments)]) == 2
    assert said in capsys.readouterr().err
