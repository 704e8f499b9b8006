"""Sweeps as tables: what a rule chose, beside published cells; also of runs that DomainBed made."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms import ALGORITHMS
from shoal.catalogue import DATASETS as ORDER
from shoal.catalogue import METHODS
from shoal.cli import main
from shoal.datasets import DATASETS
from shoal.report.grid import GridEntry
from shoal.report.page import page_data
from shoal.report.sweep import rule_reports
from shoal.results.aggregation import Mark
from shoal.results.records import Failure, Record, RunResult
from shoal.sweeps.plan import with_search

DOMAINS = ("+90%", "+80%", "-90%")


def run(algorithm: str, test: str, trial: int, accuracy: float, draw: int = 0) -> RunResult:
    values = {
        domain: {"kept": accuracy, "held_out": accuracy} if domain == test else {"held_out": 0.7}
        for domain in DOMAINS
    }
    measured = Record(
        step=0,
        accuracy=values,
        calibration_error={domain: {"kept": 0.1, "held_out": 0.2} for domain in DOMAINS},
    )
    return RunResult(
        dataset="colored-mnist",
        algorithm=algorithm,
        test_domains=(test,),
        trial=trial,
        draw=draw,
        hparams={},
        records=(measured,),
    )


def sweep() -> list[RunResult]:
    return [
        run(algorithm, test, trial, base + trial / 100)
        for algorithm, base in (("fishr", 0.6), ("erm", 0.5))
        for test in DOMAINS
        for trial in range(3)
    ]


def test_a_chapter_has_averages_domains_and_published_cells() -> None:
    (chapter,) = rule_reports(drawn(), ["test-domain"])
    (whole, compared), (domains, compared_domains) = chapter.tables, chapter.by_domain
    assert [line.name for line in whole.lines] == ["ERM", "Fishr"]  # the baseline first
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
    assert [line.name for line in paired.lines] == ["Fishr minus ERM"]
    texts = [(one.text, one.error) for one in paired.lines[0].cells]
    counts = [("9", ""), ("9", ""), ("0", ""), ("0.004", "")]
    assert texts == [("+10.0", "0.0"), *counts, ("+10.0", "0.0"), ("3", "")]
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
                measured = (replace(one.records[0], calibration_error=error),)
                runs.append(replace(one, records=measured))
    (chapter,) = rule_reports(runs, ["test-domain"])
    by_domain = chapter.by_domain[0]
    for line in by_domain.lines:
        worst = 100 * np.array(accuracies[line.key]).min(1)
        error = 100 * np.array(errors[line.key]).mean(1)
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
    (chapter,) = rule_reports([*sweep(), *more], ["test-domain"])
    (caution,) = chapter.cautions
    assert (
        "colored-mnist: the methods have different numbers of draws (ERM 1, Fishr 1 to 3)"
        in caution
    )
    (even,) = rule_reports(sweep(), ["test-domain"])
    assert even.cautions == ()


def test_unequally_many_trials_are_told_before_the_tables() -> None:
    def cautions(*left_out: tuple[str, str, int]) -> tuple[str, ...]:
        runs = [
            one
            for one in sweep()
            if (one.algorithm, one.test_domains[0], one.trial) not in left_out
        ]
        (chapter,) = rule_reports(runs, ["test-domain"])
        return chapter.cautions

    (caution,) = cautions(*(("fishr", test, 2) for test in DOMAINS))
    told = "the methods have different numbers of trials"
    assert caution.startswith(f"colored-mnist: {told} (ERM 3, Fishr 2). ")
    (caution,) = cautions(("fishr", "+80%", 0))
    assert f"{told} (ERM 3, Fishr 2 to 3)" in caution


def averaged(*rows: str) -> list[RunResult]:
    """Return the sweep with averages of each run, as rows of their own."""
    found = []
    for one in sweep():
        found.append(one)
        found += [replace(one, algorithm=f"{one.algorithm}+{row}") for row in rows]
    return found


def test_averages_that_some_runs_did_not_record() -> None:
    """Said once, before the tables, and no advice to finish a sweep that is complete."""
    (whole,) = rule_reports(averaged("sma", "half"), ["test-domain"])
    assert whole.cautions == () and len(whole.rows) == 6
    without = [
        one
        for one in averaged("sma", "half")
        if not ("+" in one.algorithm and one.trial == 2 and one.test_domains != ("+80%",))
        and one.algorithm != "erm+half"
    ]
    (chapter,) = rule_reports(without, ["test-domain"])
    assert chapter.cautions == (
        "colored-mnist: ERM + SMA, Fishr + SMA, Fishr + second half: not recorded by 2 of 9 runs",
    )
    names = [line.name for line in chapter.tables[0].lines]
    assert names == ["ERM", "ERM + SMA", "Fishr", "Fishr + SMA", "Fishr + second half"]
    (line,) = (line for line in chapter.about if "no average" in line)
    assert line.startswith("colored-mnist: ERM + SMA, Fishr + SMA, Fishr + second half lack test")


def test_averages_of_a_method_that_is_not_finished_are_not_listed_again() -> None:
    runs = [one for one in averaged("sma", "swad") if one.test_domains != ("+80%",)]
    (chapter,) = rule_reports(runs, ["test-domain"])
    (line,) = (line for line in chapter.about if "no average" in line)
    assert line.startswith("colored-mnist: ERM, Fishr, with their averages, lack test domains in")


def test_a_draw_that_diverged_has_no_averages_either(tmp_path: Path) -> None:
    more = [replace(one, draw=1) for one in averaged("sma")]
    lost = more.pop(1)
    more.pop(0)
    assert (lost.algorithm, lost.draw) == ("fishr+sma", 1)
    failed = failure(tmp_path, replace(lost, algorithm="fishr"), "FloatingPointError")
    (chapter,) = rule_reports([*averaged("sma"), *more], ["test-domain"], failed=[failed])
    assert chapter.cautions == ()
    tried = {choice.draws for choice in chapter.choices}
    assert tried == {2}
    assert sum(choice.failed for choice in chapter.choices) == 2


def with_reversed(inside: float, kept: float = 0.95, others: bool = True) -> tuple[str, ...]:
    """Return the cautions where one draw of trial 1 turns against what it was trained on.

    The others are right on 70 % there.
    """
    runs = sweep()
    place = next(n for n, one in enumerate(runs) if one.trial == 1)
    splits = {"+90%": {"kept": kept, "held_out": 0.95}, "+80%": {"held_out": inside}}
    turned = (runs[place].records[0], Record(step=100, accuracy=splits))
    reversed_ = replace(runs[place], draw=1, records=turned)
    more = [replace(one, draw=1) for n, one in enumerate(runs) if n != place]
    if not others:
        runs, more = [one for n, one in enumerate(runs) if n != place], []
        reversed_ = replace(reversed_, draw=0)
    (chapter,) = rule_reports([*runs, *more, reversed_], ["test-domain"])
    return chapter.cautions


def test_what_may_be_right_by_chance_is_told_before_the_tables() -> None:
    (caution,) = with_reversed(0.46)
    assert caution.startswith("colored-mnist: the accuracy on the test domain can be luck, ")
    assert caution.endswith("of the best other draw: Fishr on +90%, trial 1")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("inside", "told"), [(0.3, True), (0.6, False)])  # the other has 0.7
def test_a_draw_without_a_number_is_not_the_best(first: bool, inside: float, told: bool) -> None:
    runs = [one for one in sweep() if one.test_domains == ("+90%",) and one.trial == 1]
    nan = replace(
        runs[0],
        draw=-1 if first else 2,
        records=(Record(step=0, accuracy={"+90%": {}}),),
    )
    assert math.isnan(nan.last_inside)
    splits = {"+90%": {"kept": 0.95, "held_out": 0.95}, "+80%": {"held_out": inside}}
    turned = replace(runs[0], draw=1, records=(Record(step=0, accuracy=splits),))
    given = [nan, *runs, turned] if first else [*runs, turned, nan]
    (chapter,) = rule_reports(given, ["test-domain"])
    assert any("can be luck" in caution for caution in chapter.cautions) is told


def test_what_is_not_best_by_chance() -> None:
    assert with_reversed(0.47) == ()  # two thirds of 0.7
    assert with_reversed(0.46, kept=0.4) == ()  # not right on the test domain either
    assert with_reversed(0.46, others=False) == ()  # it was better itself, and there is no other


def test_test_domains_that_a_method_lacks_are_told_before_the_tables() -> None:
    runs = [one for one in sweep() if (one.algorithm, one.test_domains) != ("fishr", ("+80%",))]
    (chapter,) = rule_reports(runs, ["test-domain"])
    (caution,) = chapter.cautions
    assert caution.startswith("colored-mnist: Fishr lacks test domains that others have (+80%): ")
    more = [replace(one, algorithm="irm") for one in runs if one.algorithm == "fishr"]
    (chapter,) = rule_reports([*runs, *more], ["test-domain"])
    (caution,) = chapter.cautions
    assert caution.startswith("colored-mnist: IRM, Fishr lack test domains that others have (+80%)")


PAPER = {"steps": 5001, "network": None, "weights": None, "precision": "bf16"}


def drawn(draws: int = 20, **protocol: object) -> list[RunResult]:
    """Return the sweep with a protocol and so many draws, all alike."""
    return [
        replace(one, draw=draw, protocol=PAPER | protocol)
        for one in sweep()
        for draw in range(draws)
    ]


def test_a_sweep_as_the_papers_is_compared() -> None:
    (chapter,) = rule_reports(drawn(), ["test-domain"])
    _, compared = chapter.tables
    cells = [line.cells[0].error for line in compared.lines]
    assert cells == ["0.2 (−13.3)", "1.4 (−5.3)"]
    assert chapter.about == (
        "Trained on colored-mnist: mnist-cnn with random weights, 5,001 steps, bf16, 3 trials, "
        "20 draws",
    )
    assert chapter.lines[:1] == chapter.about


def test_what_is_not_as_the_papers_is_not_compared_and_it_is_said_why() -> None:
    ours = [one for one in drawn(1, steps=300, network="mlp") if one.trial == 0]
    (chapter,) = rule_reports(ours, ["training-domain"])
    assert len(chapter.tables) == len(chapter.by_domain) == 1
    assert chapter.lines[:2] == chapter.about
    trained, why = chapter.about
    assert trained == (
        "Trained on colored-mnist: mlp with random weights, 300 steps, bf16, 1 trial, 1 draw"
    )
    assert why == (
        "Not compared with published cells: colored-mnist: ERM, Fishr (network mlp instead of "
        "mnist-cnn, steps 300 instead of 5001, draws 1 instead of 20)"
    )
    (chapter,) = rule_reports(ours, ["calibrated"])  # of which the paper has no table
    assert chapter.about == (trained,)


def test_only_methods_as_in_the_paper_are_compared() -> None:
    runs = [one for one in drawn() if one.algorithm == "erm" or one.draw < 5]
    runs += [replace(one, algorithm="mine") for one in drawn(1) if one.algorithm == "erm"]
    (chapter,) = rule_reports(runs, ["test-domain"])
    (_, compared), (_, by_domain) = chapter.tables, chapter.by_domain
    assert {line.name: line.cells[0].error for line in compared.lines} == {"ERM": "0.2 (−13.3)"}
    assert [line.name for line in by_domain.lines] == ["ERM"]
    trained, why = chapter.about
    assert trained.endswith(", 3 trials, 20 draws of ERM, 5 draws of Fishr, 1 draw of mine")
    assert why.endswith("cells: colored-mnist: Fishr (draws 5 instead of 20)")


def test_remarks_stand_beside_the_published_cells_that_they_are_of() -> None:
    others = [
        replace(one, algorithm=name)
        for one in drawn()
        for name in ("mtl", "dann", "cdann", "arm", "fish")
        if one.algorithm == "erm" and (name != "arm" or one.draw == 0)
    ]
    (chapter,) = rule_reports([*drawn(), *others], ["test-domain"])
    _, why, *found = chapter.about
    assert "ARM" in why  # of too few draws: its published cells are not shown
    assert found == [
        "Published cells of DANN, CDANN: the gradient penalty before its correction of August 2022",
        "Published cells of MTL: the embedding was overwritten by noise (DomainBed#159)",
        "Published cells of Fish: from its authors; no results by domain were published",
    ]
    (chapter,) = rule_reports([*drawn(), *others], ["leave-one-domain-out", "calibrated"])
    assert not any("Published" in line for line in chapter.lines)
    (chapter,) = rule_reports(drawn(), ["test-domain"])  # of which there are none
    assert not any("Published" in line for line in chapter.lines)


def test_data_sets_of_one_setup_are_told_together() -> None:
    """A file of weights goes by its hash; a user's own network by shape has no name."""
    weights = {"weights": "0123456789abcdef"}
    runs = [replace(one, dataset=name) for name in ("one", "two") for one in drawn(1, **weights)]
    runs += [replace(one, dataset="pacs") for one in drawn(1, weights="imagenet")]
    (chapter,) = rule_reports([*runs, *sweep()], ["calibrated"])
    end = "3 trials, 1 draw"
    assert chapter.about[:1] == (
        f"Trained on colored-mnist: network, weights and precision not recorded, last step 0, {end}"
        f"; on pacs: resnet50 with ImageNet weights, 5,001 steps, bf16, {end}; on one, two: the "
        "network of the inputs' shape with the weights of the file 01234567, 5,001 steps, bf16, "
        f"{end}",
    )


def test_what_was_set_is_told_and_not_compared() -> None:
    runs = [replace(one, hparams={"lr": 0.01}) for one in drawn(record_every=300)]
    (chapter,) = rule_reports(with_search(runs), ["test-domain"])
    assert len(chapter.tables) == 1
    trained, why = chapter.about
    assert trained.endswith("bf16, a record every 300 steps, lr set to 0.01, 3 trials, 20 draws")
    assert "(record every 300 instead of 100, lr 0.01 instead of what the search draws)" in why
    probed = [replace(one, protocol={**one.protocol, "start": "linear-probe"}) for one in runs]
    (chapter,) = rule_reports(probed, ["test-domain"])
    assert "with random weights, the head from a linear probe, 5,001 steps" in chapter.about[0]
    assert "start linear-probe instead of network" in chapter.about[1]
    mild = [replace(one, set_hparams={"search": "mild"} if one.draw else {}) for one in runs]
    (chapter,) = rule_reports(mild, ["test-domain"])
    assert ", a record every 300 steps, mild search, 3 trials, " in chapter.about[0]
    assert ", search mild instead of DomainBed's)" in chapter.about[1]
    some = [
        one if (one.draw, one.algorithm) == (7, "fishr") else replace(one, hparams={})
        for one in runs
    ]
    (chapter,) = rule_reports(with_search(some), ["test-domain"])  # also where it is not chosen
    assert ", lr of Fishr set to 0.01, " in chapter.about[0]
    assert "lr 0.01 instead of what the search draws" in chapter.about[1]


def test_one_trial_has_no_error_and_no_difference_no_minus() -> None:
    runs = [run("fishr", test, 0, 0.5 - 1e-5) for test in DOMAINS]
    runs += [run("erm", test, 0, 0.5) for test in DOMAINS]
    (chapter,) = rule_reports(runs, ["test-domain"])
    *_, fishr = chapter.by_domain[0].lines
    assert fishr.name == "Fishr" and [one.text for one in fishr.summary] == ["50.0", "50.0", "10.0"]
    assert [one.error for one in fishr.summary] == ["", "", ""]
    assert chapter.paired[0].lines[0].cells[0] == GridEntry("0.0", "0.0")


def test_the_average_without_colored_mnist() -> None:
    """As in the paper's text; a method that lacks a data set has none."""
    other = [replace(one, dataset="other") for one in sweep() if one.algorithm == "erm"]
    third = [replace(one, dataset="other", algorithm="irm") for one in sweep()[:9]]
    (chapter,) = rule_reports([*sweep(), *other, *third], ["test-domain"])
    (line,) = (line for line in chapter.about if "without colored-mnist" in line)
    assert line == "Average without colored-mnist: IRM 61.0, ERM 51.0"


def test_rules_without_their_runs_have_no_chapter() -> None:
    found = rule_reports(sweep(), ["leave-one-domain-out", "training-domain"])
    assert [chapter.rule for chapter in found] == ["training-domain"]


def test_a_missing_test_domain_leaves_no_average() -> None:
    (chapter,) = rule_reports(
        [one for one in sweep() if one.test_domains != ("+80%",)], ["test-domain"]
    )
    assert chapter.tables[0].lines[0].cells[0].text == "–"
    assert chapter.by_domain[0].lines[0].summary == (GridEntry(), GridEntry(), GridEntry())
    (line,) = (line for line in chapter.about if "no average" in line)
    assert line.startswith(
        "colored-mnist: ERM, Fishr lack test domains in some trials, so there is no average over "
        "trials, worst domain or calibration error. "
    )


def test_the_average_of_a_row_stands_where_trials_are_unequal() -> None:
    """As DomainBed's: by test domain the mean of the cells, over trials only of whole ones."""
    runs = [one for one in sweep() if (one.test_domains, one.trial) != (("+80%",), 2)]
    (chapter,) = rule_reports(runs, ["test-domain"])
    assert [line.cells[0].text for line in chapter.tables[0].lines] == ["–", "–"]
    assert [line.summary[0].text for line in chapter.by_domain[0].lines] == ["50.8", "60.8"]
    assert any("by test domain, Avg is the mean of the row" in line for line in chapter.about)


def test_a_number_that_is_none_leaves_the_others_alone() -> None:
    runs = [*sweep(), *(replace(one, algorithm="irm") for one in sweep()[:9])]
    at = next(n for n, one in enumerate(runs) if (one.algorithm, one.trial) == ("fishr", 1))
    splits = {"+90%": {"kept": math.nan, "held_out": 0.9}, "+80%": {"held_out": 0.7}}
    runs[at] = replace(runs[at], records=(Record(step=0, accuracy=splits),))
    (chapter,) = rule_reports(runs, ["test-domain"])
    erm, irm, fishr = chapter.by_domain[0].lines
    assert [one.text for one in fishr.cells] == ["–", "61.0", "61.0"]
    assert [one.text for one in fishr.summary] == ["–", "–", "–"]
    assert [one.text for one in erm.summary] == ["51.0", "51.0", "10.0"]
    assert [line.cells[0].text for line in chapter.tables[0].lines] == ["51.0", "61.0", "–"]
    assert irm.cells[0].mark == Mark(1)
    assert [line.cells[1].text for line in chapter.paired[0].lines] == ["9", "8"]
    (line,) = (line for line in chapter.about if "not a number" in line)
    assert line == (
        "colored-mnist: no cell and no average, because the accuracy is not a number: Fishr on "
        "+90%, trial 1"
    )
    assert not any("test domains in some trials" in line for line in chapter.about)


def test_nothing_is_chosen_without_a_number_to_choose_by() -> None:
    def without(one: RunResult) -> RunResult:
        return replace(one, records=(Record(step=0, accuracy={"+90%": {"kept": 0.9}}),))

    runs = [one for draw in (0, 1) for one in (replace(run, draw=draw) for run in sweep())]
    some = [without(one) if one.algorithm == "fishr" and one.trial else one for one in runs]
    (chapter,) = rule_reports(some, ["test-domain"])
    assert [line.cells[0].text for line in chapter.tables[0].lines] == ["51.0", "60.0"]
    (line,) = (line for line in chapter.about if "nothing was chosen" in line)
    assert line.startswith(
        "colored-mnist: nothing was chosen, because no draw has a score that is "
    )
    assert "Fishr on +90%, trials 1, 2; Fishr on +80%, trials 1, 2; Fishr on -90%" in line
    every = [without(one) if one.algorithm == "fishr" else one for one in runs]
    (chapter,) = rule_reports(every, ["test-domain"])
    *_, fishr = chapter.by_domain[0].lines
    assert fishr.name == "Fishr" and {one.text for one in (*fishr.cells, *fishr.summary)} == {"–"}
    assert rule_reports([without(one) for one in runs], ["test-domain"]) == []


def test_methods_and_data_sets_have_the_order_of_the_paper() -> None:
    """Whatever the folders of the runs are called; others come after them, by name."""
    assert [*ALGORITHMS] == [*METHODS] and [*DATASETS] == [*ORDER]
    names = ["mine", "fishr", "fishr-plain", "coral", "erm", "and-mask"]
    runs = [
        replace(one, algorithm=name, dataset=data)
        for data in ("own", "domainnet", "colored-mnist", "pacs")
        for name in names
        for one in sweep()[:9]
        if (data, name) != ("colored-mnist", "coral")
    ]
    ordered = ["erm", "coral", "and-mask", "fishr", "fishr-plain", "mine"]
    (chapter,) = rule_reports(runs, ["test-domain"])
    assert [line.key for line in chapter.tables[0].lines] == ordered
    assert chapter.tables[0].columns == ("colored-mnist", "pacs", "domainnet", "own")
    assert [table.title.partition(",")[0] for table in chapter.by_domain] == [
        "colored-mnist",
        "pacs",
        "domainnet",
        "own",
    ]
    first, *_ = chapter.by_domain
    assert [line.key for line in first.lines] == [name for name in ordered if name != "coral"]
    assert [line.key for line in chapter.paired[0].lines] == [f"{o} less erm" for o in ordered[1:]]
    places = [(one.test_domain, one.trial) for one in chapter.choices[:9]]
    assert places == [(domain, trial) for domain in DOMAINS for trial in range(3)]
    page = page_data(runs, ["test-domain"])
    assert list(page["chapters"][0]["paired"]) == ordered
    assert list(dict.fromkeys(run["dataset"] for run in page["runs"])) == list(page["domains"])


def failure(folder: Path, one: RunResult, kind: str = "FloatingPointError") -> Failure:
    path = folder / f"{one.algorithm}-{one.test_domains[0]}-{one.trial}-{one.draw}"
    path.mkdir(parents=True)
    (path / "failed.json").write_text(json.dumps({"kind": kind, "reason": "it is so"}))
    return Failure(
        dataset=one.dataset,
        algorithm=one.algorithm,
        test_domains=one.test_domains,
        trial=one.trial,
        draw=one.draw,
        reason="it is so",
        path=path,
    )


def test_a_draw_that_failed_by_itself_was_tried(tmp_path: Path) -> None:
    wrong = [one for one in drawn() if (one.algorithm, one.draw) == ("fishr", 3)][:2]
    runs = [one for one in drawn() if one not in wrong]
    failed = [failure(tmp_path, one) for one in wrong]
    (chapter,) = rule_reports(runs, ["test-domain"], failed=failed)
    assert chapter.cautions == () and len(chapter.tables) == len(chapter.by_domain) == 2
    assert chapter.about[0].endswith(", 3 trials, 20 draws")
    (line,) = (line for line in chapter.about if "count as tried" in line)
    assert line == (
        "colored-mnist: draws whose loss was not finite count as tried and were not chosen "
        "(2 of Fishr, over all test domains and trials)"
    )
    # Those that wait, or lacked memory, are still to come.
    waiting = [failure(tmp_path / "other", one, "OutOfMemoryError") for one in wrong]
    for others in ([], waiting):
        (chapter,) = rule_reports(runs, ["test-domain"], failed=others)
        (caution,) = chapter.cautions
        assert "different numbers of draws (ERM 20, Fishr 19 to 20)" in caution
        assert "Fishr (draws 19 instead of 20)" in chapter.about[1]


def test_a_method_whose_draws_all_failed_has_finished(tmp_path: Path) -> None:
    wrong = [one for one in drawn() if one.algorithm == "fishr" and one.test_domains == ("+80%",)]
    runs = [one for one in drawn() if one not in wrong]
    failed = [failure(tmp_path, one) for one in wrong]
    (chapter,) = rule_reports(runs, ["test-domain"], failed=failed)
    assert chapter.cautions == ()
    why = "nothing was chosen, because no draw has a score that is a number"
    assert f"colored-mnist: {why}: Fishr on +80%, trials 0, 1, 2" in chapter.about
    # Half of them are no end of it.
    (chapter,) = rule_reports(runs, ["test-domain"], failed=failed[::2])
    assert "different numbers of draws (ERM 20, Fishr 10 to 20)" in chapter.cautions[0]
    # Nothing is known of those that are not there.
    (chapter,) = rule_reports(runs, ["test-domain"])
    assert "Fishr lacks test domains that others have (+80%)" in chapter.cautions[0]


def test_runs_that_are_there_twice_are_told_and_not_compared() -> None:
    twice = [one for one in drawn(steps=300, precision="float32") if one.algorithm == "erm"]
    (chapter,) = rule_reports([*drawn(), *twice], ["test-domain"])
    (caution,) = chapter.cautions
    assert caution == (
        "colored-mnist: some draws have more than one run (180 of ERM; they differ in steps: 5001 "
        "or 300, precision: bf16 or float32), and rules choose between them, so the numbers mix "
        "protocols. Report such sweeps separately"
    )
    trained, why = chapter.about
    assert "5,001 steps, bf16, or mnist-cnn with random weights, 300 steps, float32" in trained
    assert trained.endswith("20 draws in 40 runs of ERM, 20 draws of Fishr")
    assert "ERM (runs 40 instead of one per draw, steps 300 instead of 5001)" in why
    assert [line.name for line in chapter.tables[1].lines] == ["Fishr"]
    copies = [one for one in drawn() if one.algorithm == "erm" and one.trial == 0]
    (chapter,) = rule_reports([*drawn(), *copies], ["test-domain"])
    assert "more than one run (60 of ERM; they differ in nothing)" in chapter.cautions[0]
    others = [replace(one, fingerprint="new", hparams={"lr": 1.0}) for one in copies]
    (chapter,) = rule_reports([*drawn(), *others], ["test-domain"])
    assert "they differ in hyperparameters, their data)" in chapter.cautions[0]


def write(root: Path, one: RunResult) -> None:
    folder = root / f"{one.algorithm}-{one.test_domains[0]}-{one.trial}"
    folder.mkdir(parents=True)
    keys = ("dataset", "algorithm", "test_domains", "trial", "draw", "hparams")
    (folder / "run.json").write_text(json.dumps({key: getattr(one, key) for key in keys}))
    (folder / "records.jsonl").write_text(json.dumps(one.records[0].to_json()) + "\n")
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
    assert "61.0" in told and ("fishr" if kind == "json" else "Fishr") in told
    if kind != "latex":
        assert "Trained on colored-mnist: network, weights " in told
    if kind == "terminal":
        assert "\ncolored-mnist, by test domain" in told
    if kind == "json":
        assert json.loads(told)["rules"][0]["rule"] == "test-domain"
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
    assert "ERM 25.0 25.0 25.0 25.0 25.0 – " in told
    assert "calibration error in %, the mean over the domains, – if it was not recorded" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either folders or --published"),
        (("--published", "{}"), "give either folders or --published"),
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
