"""DomainBed's own records: names, splits and selection as if the runs were ours."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal import catalogue
from shoal.algorithms import ALGORITHMS
from shoal.cli.report import finished_runs
from shoal.datasets import DATASETS, SOURCES
from shoal.results.domainbed import read_domainbed
from shoal.results.selection import choose_runs


def record(step: int, accuracies: dict[str, float], **args: Any) -> str:
    given = {
        "dataset": "PACS",
        "algorithm": "VREx",
        "test_envs": [2],
        "trial_seed": 1,
        "hparams_seed": 4,
    } | args
    values = {"step": step, "loss": 0.1, "hparams": {"lr": 5e-5}, "args": given, "mem_gb": 1.0}
    return json.dumps(values | accuracies) + "\n"


def accuracies(held_out: float, test: float) -> dict[str, float]:
    found = {f"env{i}_out_acc": held_out for i in (0, 1, 3)}
    found |= {f"env{i}_in_acc": 1.0 for i in (0, 1, 3)}
    return found | {"env2_in_acc": test, "env2_out_acc": test + 0.01}


def test_records_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    lines = record(0, accuracies(0.5, 0.6)) + record(300, accuracies(0.7, 0.8))
    (tmp_path / "job" / "results.jsonl").write_text(lines + record(0, accuracies(0.9, 0.7)))
    (run,) = read_domainbed(tmp_path)
    assert (run.dataset, run.algorithm, run.test_domains) == ("pacs", "vrex", ("photo",))
    assert (run.trial, run.draw, run.hparams) == (1, 4, {"lr": 5e-5})
    assert [measured.step for measured in run.records] == [0, 300]
    first = run.records[0]
    assert (first.of("photo", "kept"), first.of("sketch", "held_out")) == (0.7, 0.9)
    (choice,) = choose_runs([run], "training-domain")
    assert (choice.step, choice.accuracy) == (0, 0.7)
    (choice,) = choose_runs([run], "test-domain")
    assert (choice.step, choice.accuracy) == (300, 0.8)


def test_what_a_killed_run_left_is_read(tmp_path: Path) -> None:
    whole = record(0, accuracies(0.5, 0.6)) + "\n" + record(300, accuracies(0.7, 0.8))
    (tmp_path / "results.jsonl").write_text(whole + whole[:70])
    (run,) = read_domainbed(tmp_path)
    assert [measured.step for measured in run.records] == [0, 300]
    (tmp_path / "results.jsonl").write_text(whole[:70])
    assert read_domainbed(tmp_path) == []


def renamed(values: dict[str, float]) -> dict[str, float]:
    return {f"fd_{key}": value for key, value in values.items()}


@pytest.mark.parametrize("poor", [{}, renamed(accuracies(0.1, 0.1)), {"env2_in_acc": 0.1}])
def test_records_without_the_test_environments_do_not_count(
    poor: dict[str, float], tmp_path: Path
) -> None:
    good = record(0, accuracies(0.5, 0.6)) + record(300, accuracies(0.7, 0.8))
    (tmp_path / "results.jsonl").write_text(record(600, poor) + good + record(300, poor))
    (run,) = read_domainbed(tmp_path)
    assert [(one.step, one.of("photo", "kept")) for one in run.records] == [(0, 0.6), (300, 0.8)]


def test_a_later_record_with_fewer_accuracies_does_not_count(tmp_path: Path) -> None:
    alone = {"env2_in_acc": 0.1, "env2_out_acc": 0.1}
    (tmp_path / "results.jsonl").write_text(record(0, accuracies(0.5, 0.6)) + record(0, alone))
    (run,) = read_domainbed(tmp_path)
    assert run.inside == (0.5,)


@pytest.mark.parametrize(
    ("values", "came"), [({"loss": 0.1}, "none"), (renamed({"env2_in_acc": 0.1}), "fd_env2_in_acc")]
)
def test_a_file_without_the_test_environments_is_named(
    values: dict[str, float], came: str, tmp_path: Path
) -> None:
    (tmp_path / "results.jsonl").write_text(2 * record(0, values))
    wrong = (
        rf"no record in {tmp_path}/results\.jsonl has .*expected env2_in_acc, env2_out_acc, "
        rf"got {came} in the last record; .*move the file away"
    )
    with pytest.raises(ValueError, match=wrong):
        read_domainbed(tmp_path)


def test_data_sets_that_we_do_not_have_are_read_by_number(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(record(0, accuracies(0.5, 0.6), dataset="SVIRO"))
    (run,) = read_domainbed(tmp_path)
    assert (run.dataset, run.test_domains) == ("sviro", ("env2",))
    assert run.records[0].of("env2", "kept") == 0.6


@pytest.mark.parametrize(
    ("values", "args", "wrong"),
    [
        ({}, {"test_envs": [7]}, "pacs has 4 domains, got environment 7"),
        ({"env4_in_acc": 0.5}, {}, "pacs has 4 domains, got environment 4"),
        ({"env0_in_acc": None}, {}, "env0_in_acc must be a share between 0 and 1, got None"),
        ({"env0_in_acc": 50.0}, {}, r"env0_in_acc must be a share between 0 and 1, got 50\.0"),
        ({"step": float("inf")}, {}, "expected a whole number, got inf"),
        ({"hparams": None}, {}, "hparams must be an object, got None"),
        ({}, {"trial_seed": 0.5}, r"expected a whole number, got 0\.5"),
        ({}, {"algorithm": None}, "the algorithm must be a name, got None"),
        ({}, {"dataset": 5}, "the dataset must be a name, got 5"),
        ({}, {"test_envs": None}, "NoneType"),
        ({}, {"trial_seed": None}, "NoneType"),
    ],
)
def test_a_record_that_cannot_be_is_named(
    values: dict[str, Any], args: dict[str, Any], wrong: str, tmp_path: Path
) -> None:
    (tmp_path / "results.jsonl").write_text(record(0, values, **args))
    with pytest.raises(ValueError, match=rf"line 1 is not a record .*{wrong}.* move the file"):
        read_domainbed(tmp_path)


def test_a_file_with_several_runs_has_them_all(tmp_path: Path) -> None:
    other = {"env0_in_acc": 0.3, "env0_out_acc": 0.4} | {f"env{i}_out_acc": 0.9 for i in (1, 2, 3)}
    lines = record(0, accuracies(0.5, 0.6)) + record(0, other, algorithm="IRM", test_envs=[0])
    lines += record(300, accuracies(0.7, 0.8)) + record(300, accuracies(0.1, 0.2), hparams_seed=5)
    (tmp_path / "results.jsonl").write_text(lines, "utf-8-sig")
    first, second, third = read_domainbed(tmp_path)
    assert (first.algorithm, first.draw) == ("vrex", 4)
    assert first.inside == pytest.approx((0.5, 0.7))
    assert (second.algorithm, second.test_domains) == ("irm", ("art_painting",))
    assert second.records[0].of("art_painting", "kept") == 0.3
    assert (third.algorithm, third.draw) == ("vrex", 5)
    assert third.inside == pytest.approx((0.1,))
    named_twice = finished_runs([tmp_path, tmp_path])
    assert [run.draw for run in named_twice] == [4, 4, 5]


def test_a_mean_over_fewer_domains_does_not_compete(tmp_path: Path) -> None:
    poor = accuracies(0.9, 0.1)
    del poor["env3_out_acc"]
    lines = record(0, poor) + record(300, accuracies(0.7, 0.8))
    (tmp_path / "results.jsonl").write_text(lines)
    (run,) = read_domainbed(tmp_path)
    assert [measured.step for measured in run.records] == [300]


@pytest.mark.parametrize("line", ["{", "[]", '{"step": 0}'])
def test_a_line_that_is_no_record_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(record(0, {}) + line + "\n")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 2 is not a record of DomainBed"):
        read_domainbed(tmp_path)


def test_all_its_data_sets_and_methods_have_a_name_here() -> None:
    # Those that DomainBed does not have come after its own.
    theirs = "ColoredMNIST RotatedMNIST VLCS PACS OfficeHome TerraIncognita DomainNet"
    assert [facts.domainbed for facts in catalogue.DATASETS.values()][:7] == theirs.split()
    assert [*catalogue.DATASETS] == [*DATASETS]
    theirs = (
        "ERM IRM GroupDRO Mixup MLDG CORAL MMD DANN CDANN MTL SagNet ARM VREx RSC ANDMask SANDMask "
        "IGA Fish Fishr"
    )
    assert [facts.class_name for facts in catalogue.METHODS.values()][:19] == theirs.split()
    assert [*catalogue.METHODS] == [*ALGORITHMS]


def test_domains_are_those_of_the_data_sets() -> None:
    for name, facts in catalogue.DATASETS.items():
        assert tuple(SOURCES[name].domains) == facts.domains
