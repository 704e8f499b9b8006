"""Sweeps as tables: what a rule chose, beside published cells; also of runs that DomainBed made."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli import main
from shoal.protocol.ranking import Mark
from shoal.protocol.records import Finished, Measured
from shoal.protocol.run import Protocol
from shoal.report.benchmark import NETWORKS, Departure, departures, network_of
from shoal.report.grid import Entry
from shoal.report.published import published_benchmark
from shoal.report.sweep_notes import not_compared
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
    (whole, compared), (domains, compared_domains) = chapter.tables, chapter.by_domain
    assert [line.name for line in whole.lines] == ["erm", "fishr"]  # the baseline first
    assert [(line.cells[0].text, line.cells[0].error) for line in whole.lines] == [
        ("51.0", "0.5"),
        ("61.0", "0.5"),
    ]
    # 51.0 ± 0.47 against the paper's 57.8 ± 0.2, 61.0 ± 0.47 against 68.8 ± 1.4
    cells = [(line.cells[0].text, line.cells[0].error) for line in compared.lines]
    assert cells == [("57.8", "0.2 (−13.3)"), ("68.8", "1.4 (−5.3)")]
    # By domain ERM's are DomainBed's, and Fishr's of the paper's ablation.
    assert compared_domains.columns == domains.columns and len(compared_domains.lines) == 2
    assert [line.cells[2].text for line in compared_domains.lines] == ["28.7", "58.9"]
    assert domains.columns == DOMAINS and domains.summary == ("Avg", "Worst", "ECE")
    assert domains.smallest == ("ECE",) and not domains.ranked and whole.ranked
    (paired,) = chapter.paired
    assert [line.name for line in paired.lines] == ["fishr less erm"]
    texts = [(one.text, one.error) for one in paired.lines[0].cells]
    assert texts == [("+10.0", "0.0"), ("9", ""), ("9", ""), ("0", ""), ("0.004", "")]
    assert not any("without colored-mnist" in line for line in chapter.lines)


def test_worst_domain_and_calibration_are_columns() -> None:
    """Against NumPy: the worst domain of each trial, its errors' mean; then over trials."""
    accuracies = {"erm": [[0.9, 0.5, 0.7], [0.4, 0.8, 0.9]], "fishr": [[0.6] * 3, [0.7] * 3]}
    errors = {"erm": [[0.1, 0.2, 0.6], [0.2, 0.2, 0.2]], "fishr": [[0.3] * 3, [0.1] * 3]}
    runs = []
    for name, trials in accuracies.items():
        for trial, values in enumerate(trials):
            for place, (test, value) in enumerate(zip(DOMAINS, values, strict=True)):
                one = run(name, test, trial, value)
                error = {test: {"kept": errors[name][trial][place]}}
                measured = (replace(one.measured[0], calibration_error=error),)
                runs.append(replace(one, measured=measured))
    (chapter,) = chapters(runs, ["test-domain"])
    by_domain = chapter.by_domain[0]
    for line in by_domain.lines:
        worst = 100 * np.array(accuracies[line.name]).min(1)
        error = 100 * np.array(errors[line.name]).mean(1)
        for entry, values in zip(line.summary[1:], (worst, error), strict=True):
            assert entry.text == f"{values.mean():.1f}"
            assert entry.error == f"{values.std() / np.sqrt(2):.1f}"
    erm, fishr = by_domain.lines
    # The larger worst accuracy and the smaller error are first.
    assert [one.mark for one in fishr.summary[1:]] == [Mark(1), Mark(1)]
    assert [one.mark for one in erm.summary[1:]] == [Mark(2), Mark(2)]


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


def test_unequally_many_trials_are_told_before_the_tables() -> None:
    def cautions(*left_out: tuple[str, str, int]) -> tuple[str, ...]:
        runs = [
            one
            for one in sweep()
            if (one.algorithm, one.test_domains[0], one.trial) not in left_out
        ]
        (chapter,) = chapters(runs, ["test-domain"])
        return chapter.cautions

    (caution,) = cautions(*(("fishr", test, 2) for test in DOMAINS))
    assert caution.startswith("colored-mnist: unequally many trials (fishr 2, erm 3). ")
    (caution,) = cautions(("fishr", "+80%", 0))
    assert "unequally many trials (fishr 2 to 3, erm 3)" in caution


def test_test_domains_that_a_method_lacks_are_told_before_the_tables() -> None:
    runs = [one for one in sweep() if (one.algorithm, one.test_domains) != ("fishr", ("+80%",))]
    (chapter,) = chapters(runs, ["test-domain"])
    (caution,) = chapter.cautions
    assert caution.startswith(
        "colored-mnist: fishr lacks test domains that others have (+80%), so "
    )


PAPER = {"steps": 5001, "network": None, "weights": None, "precision": "bf16"}


def drawn(draws: int = 20, **protocol: object) -> list[Finished]:
    """Return the sweep with a protocol and so many draws, all alike."""
    return [
        replace(one, draw=draw, protocol=PAPER | protocol)
        for one in sweep()
        for draw in range(draws)
    ]


def test_a_sweep_as_the_papers_is_compared() -> None:
    (chapter,) = chapters(drawn(), ["test-domain"])
    _, compared = chapter.tables
    cells = [line.cells[0].error for line in compared.lines]
    assert cells == ["0.2 (−13.3)", "1.4 (−5.3)"]
    assert chapter.about == (
        "Trained on colored-mnist: mnist-cnn with drawn weights, 5,001 steps, bf16, 3 trials, "
        "20 draws",
    )
    assert chapter.lines[:1] == chapter.about


def test_what_is_not_as_the_papers_is_not_compared_and_it_is_said_why() -> None:
    ours = [one for one in drawn(1, steps=300, network="mlp") if one.trial == 0]
    (chapter,) = chapters(ours, ["training-domain"])
    assert len(chapter.tables) == len(chapter.by_domain) == 1
    assert chapter.lines[:2] == chapter.about
    trained, why = chapter.about
    assert trained == (
        "Trained on colored-mnist: mlp with drawn weights, 300 steps, bf16, 1 trial, 1 draw"
    )
    assert why == (
        "Not compared with the published cells: colored-mnist: fishr, erm (network mlp instead of "
        "mnist-cnn, steps 300 instead of 5001, draws 1 instead of 20)"
    )
    (chapter,) = chapters(ours, ["calibrated"])  # of which the paper has no table
    assert chapter.about == (trained,)


def test_only_methods_as_in_the_paper_are_compared() -> None:
    runs = [one for one in drawn() if one.algorithm == "erm" or one.draw < 5]
    runs += [replace(one, algorithm="mine") for one in drawn(1) if one.algorithm == "erm"]
    (chapter,) = chapters(runs, ["test-domain"])
    (_, compared), (_, by_domain) = chapter.tables, chapter.by_domain
    assert {line.name: line.cells[0].error for line in compared.lines} == {"erm": "0.2 (−13.3)"}
    assert [line.name for line in by_domain.lines] == ["erm"]
    trained, why = chapter.about
    assert trained.endswith(", 3 trials, 1 to 20 draws")
    assert why.endswith("cells: colored-mnist: fishr (draws 5 instead of 20)")


def test_remarks_stand_beside_the_published_cells_that_they_are_of() -> None:
    others = [
        replace(one, algorithm=name)
        for one in drawn()
        for name in ("mtl", "dann", "cdann", "arm", "fish")
        if one.algorithm == "erm" and (name != "arm" or one.draw == 0)
    ]
    (chapter,) = chapters([*drawn(), *others], ["test-domain"])
    _, why, *found = chapter.about
    assert "arm" in why  # of too few draws: its published cells are not shown
    assert found == [
        "Published cells of dann, cdann: the gradient penalty before its correction of August 2022",
        "Published cells of mtl: the embedding was overwritten by noise (DomainBed#159)",
        "Published cells of fish: from its authors; no results by domain were published",
    ]
    (chapter,) = chapters([*drawn(), *others], ["leave-one-domain-out", "calibrated"])
    assert not any("Published" in line for line in chapter.lines)
    (chapter,) = chapters(drawn(), ["test-domain"])  # of which there are none
    assert not any("Published" in line for line in chapter.lines)


def test_data_sets_of_one_setup_are_told_together() -> None:
    """A file of weights goes by its hash; a user's own network by shape has no name."""
    weights = {"weights": "0123456789abcdef"}
    runs = [replace(one, dataset=name) for name in ("one", "two") for one in drawn(1, **weights)]
    runs += [replace(one, dataset="pacs") for one in drawn(1, weights="imagenet")]
    (chapter,) = chapters([*runs, *sweep()], ["calibrated"])
    end = "3 trials, 1 draw"
    assert chapter.about[:1] == (
        "Trained on one, two: the network of the inputs' shape with the weights of the file "
        f"01234567, 5,001 steps, bf16, {end}; on pacs: resnet50 with ImageNet weights, 5,001 "
        "steps, bf16, "
        f"{end}; on colored-mnist: network, weights, steps and precision not recorded, {end}",
    )


def made(dataset: str, **protocol: Any) -> Finished:
    given = asdict(Protocol(**protocol))
    return Finished(dataset, "erm", ("a",), 0, 0, {}, (), protocol=given)


@pytest.mark.parametrize(
    "run",
    [
        made("pacs", weights="imagenet"),
        made("domainnet", weights="imagenet", network="resnet50", precision="bf16"),
        made("colored-mnist", record_every=300, images="exact", evaluate="all"),
        made("rotated-mnist", network="mnist-cnn"),
    ],
)
def test_runs_as_behind_the_published_cells(run: Finished) -> None:
    assert departures(run, 20) == []


@pytest.mark.parametrize(
    ("run", "draws", "said"),
    [
        (
            made("pacs", weights="imagenet", network="resnet18"),
            20,
            ["network resnet18 instead of resnet50"],
        ),
        (
            made("rotated-mnist", network="wide-resnet"),
            20,
            ["network wide-resnet instead of mnist-cnn"],
        ),
        (
            made("vlcs", steps=300),
            1,
            [
                "weights none instead of imagenet",
                "steps 300 instead of 5001",
                "draws 1 instead of 20",
            ],
        ),
        (made("colored-mnist", holdout=0.1), 20, ["holdout 0.1 instead of 0.2"]),
        (made("colored-mnist", augment=False), 20, ["augment off instead of on"]),
        (made("colored-mnist", balanced=True), 20, ["balanced on instead of off"]),
        (
            made("colored-mnist", frozen_statistics=False),
            20,
            ["frozen statistics off instead of on"],
        ),
        (made("colored-mnist", optimiser="sgd"), 20, ["optimiser sgd instead of adam"]),
        (made("colored-mnist", schedule="cosine"), 20, ["schedule cosine instead of constant"]),
        (made("colored-mnist", clip=1), 20, ["clip 1.0 instead of none"]),
    ],
)
def test_what_is_not_as_behind_the_published_cells(
    run: Finished, draws: int, said: list[str]
) -> None:
    (line,) = not_compared({("set", "erm"): departures(run, draws)})
    assert line == f"Not compared with the published cells: set: erm ({', '.join(said)})"


def test_a_reason_is_said_once_with_all_its_values() -> None:
    def departed(**draws: tuple[int, ...]) -> dict[tuple[str, str], list[Departure]]:
        return {
            ("pacs", name): [Departure("draws", count, 20) for count in counts]
            for name, counts in draws.items()
        }

    def why(found: dict[tuple[str, str], list[Departure]]) -> str:
        (line,) = not_compared(found)
        return line.partition("cells: ")[2]

    assert why(departed(erm=(3, 1, 3))) == "pacs: erm (draws 1 to 3 instead of 20)"
    several = departed(erm=(1,), irm=(5, 2))
    assert why(several) == "pacs: erm, irm (draws 1 to 5 instead of 20)"
    several[("pacs", "irm")].append(Departure("network", "resnet18", "resnet50"))
    several[("pacs", "irm")].append(Departure("network", "vit", "resnet50"))
    assert why(several) == (
        "pacs: erm (draws 1 instead of 20); pacs: irm (draws 2 to 5 instead of 20, "
        "network resnet18 or vit instead of resnet50)"
    )


def test_the_network_of_a_users_own_data_is_not_known() -> None:
    assert network_of(made("mine")) is None
    assert network_of(made("mine", network="resnet18")) == "resnet18"
    assert network_of(made("colored-mnist")) == "mnist-cnn"


def test_runs_without_a_protocol_depart_in_nothing() -> None:
    assert departures(sweep()[0], 1) == []


def test_every_published_data_set_has_its_network() -> None:
    assert set(NETWORKS) == set(published_benchmark("test-domain").columns)


def test_one_trial_has_no_error_and_no_difference_no_minus() -> None:
    runs = [run("fishr", test, 0, 0.5 - 1e-5) for test in DOMAINS]
    runs += [run("erm", test, 0, 0.5) for test in DOMAINS]
    (chapter,) = chapters(runs, ["test-domain"])
    *_, fishr = chapter.by_domain[0].lines
    assert fishr.name == "fishr" and [one.text for one in fishr.summary] == ["50.0", "50.0", "10.0"]
    assert [one.error for one in fishr.summary] == ["", "", ""]
    assert chapter.paired[0].lines[0].cells[0] == Entry("0.0", "0.0")


def test_the_average_without_colored_mnist() -> None:
    """As in the paper's text; a method that lacks a data set has none."""
    other = [replace(one, dataset="other") for one in sweep() if one.algorithm == "erm"]
    third = [replace(one, dataset="other", algorithm="irm") for one in sweep()[:9]]
    (chapter,) = chapters([*sweep(), *other, *third], ["test-domain"])
    (line,) = (line for line in chapter.about if "without colored-mnist" in line)
    assert line == "Average without colored-mnist: irm 61.0, erm 51.0"


def test_rules_without_their_runs_have_no_chapter() -> None:
    found = chapters(sweep(), ["leave-one-domain-out", "training-domain"])
    assert [chapter.rule for chapter in found] == ["training-domain"]


def test_a_missing_test_domain_leaves_no_average() -> None:
    (chapter,) = chapters(
        [one for one in sweep() if one.test_domains != ("+80%",)], ["test-domain"]
    )
    assert chapter.tables[0].lines[0].cells[0].text == "–"
    assert chapter.by_domain[0].lines[0].summary == (Entry(), Entry(), Entry())
    (line,) = (line for line in chapter.about if "no average" in line)
    assert line == "colored-mnist: no average of fishr, erm: not all test domains in all trials"


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
    if kind == "terminal":  # a title is as wide as the terminal, whatever its table is
        assert "\nDomainBed in the paper, models selected on the test domain; in brackets " in told
    if kind != "latex":
        assert "Trained on colored-mnist: network, weights," in told
    if kind == "json":
        assert json.loads(told)[0]["rule"] == "test-domain"
    if kind == "latex":
        check_latex(told)
    file = tmp_path / "table.txt"
    assert main(["report", str(tmp_path / "sweep"), "--format", kind, "--out", str(file)]) == 0
    assert "61.0" in file.read_text()


def test_marks_are_told_where_they_are_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in sweep():
        write(tmp_path / "sweep", one)
    assert main(["report", str(tmp_path / "sweep")]) == 0
    assert "Marks:" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["report", str(tmp_path / "sweep")]) == 0
    told = capsys.readouterr().out
    assert told.count("Marks: \x1b[1mfirst\x1b[0m, \x1b[4msecond\x1b[0m") == 1


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
    assert "erm 25.0 25.0 25.0 25.0 25.0 – " in told
    assert "calibration error in %, the mean over the domains, – where it was not rec" in told


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
