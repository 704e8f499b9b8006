"""DomainBed's words: its names are taken as ours, its options and indices answered with ours."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms import ALGORITHMS, find
from shoal.algorithms.hparams import draw, own_names
from shoal.catalogue import (
    DATASETS,
    DATASETS_NOT_HERE,
    METHODS,
    METHODS_NOT_HERE,
    own_dataset,
    own_method,
)
from shoal.cli import COMMANDS, build_parser, main
from shoal.cli.domainbed import (
    ACTIONS,
    OPTIONS,
    RULES,
    SCRIPTS,
    SETTINGS,
    THEIRS,
    answers,
    dataset_name,
)
from shoal.datasets import SOURCES, load_dataset
from shoal.datasets import find as find_dataset
from shoal.fitting.candidates import _grid
from shoal.fitting.classifier import DomainClassifier
from shoal.fitting.setup import check_settings, find_method, hparams_for, settings_of
from shoal.results.selection import ALL_RULES
from shoal.sweeps.plan import read_plan
from tests.fitting.made import write_images
from tests.report.made_up import make_run, write_run
from tests.results.test_domainbed import accuracies, record
from tests.runs.small import squares

Output = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("no_probe")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def refused(capsys: Output, command: str) -> str:
    """Return what a command prints that stops at its options."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert ended.value.code == 2
    return capsys.readouterr().err


# Names


def test_its_names_are_ours() -> None:
    for name, method in METHODS.items():
        assert own_method(method.class_name) == own_method(name) == name
        assert find(method.class_name) is ALGORITHMS[name]
    for name, facts in DATASETS.items():
        assert own_dataset(facts.domainbed) == own_dataset(name) == name
        assert find_dataset(facts.domainbed) is find_dataset(name)
    assert own_method("IB_ERM+swad") == "ib-erm+swad"
    assert own_method("my.module:ERM") == "my.module:ERM"


def test_a_run_by_its_names_is_the_same_run(tmp_path: Path) -> None:
    small = "--trials 1 --draws 2 --plan-only --out"
    ours = "sweep --algorithms erm irm ib-erm --datasets colored-mnist"
    theirs = "sweep --algorithms ERM IRM IB_ERM --datasets ColoredMNIST"
    for command, out in ((ours, "ours"), (theirs, "theirs")):
        assert main(f"{command} {small} {out}".split()) == 0
    first, second = (read_plan(tmp_path / out) for out in ("ours", "theirs"))
    assert [run.identity for run in first] == [run.identity for run in second]
    assert {run.algorithm for run in second} == {"erm", "irm", "ib-erm"}


def test_data_commands_take_its_names(tmp_path: Path, capsys: Output) -> None:
    assert main(["data", "download", "RotatedMNIST"]) == 0
    assert "rotated-mnist comes with shoal" in capsys.readouterr().out
    assert main(["data", "cache", "ColoredMNIST"]) == 0
    assert "colored-mnist comes decoded" in capsys.readouterr().out
    assert main(["data", "verify", "PACS", "--data", str(tmp_path)]) == 2
    assert "shoal data download pacs" in capsys.readouterr().err
    command = "reproduce ablation-ema --out out --dataset OfficeHome --rows SAM"
    assert main(command.split()) == 2
    assert "unknown row 'sam'" in capsys.readouterr().err


def test_models_are_selected_by_its_names(tmp_path: Path, capsys: Output) -> None:
    write_run(tmp_path / "sweep", make_run("pacs", "vrex", ("photo",), 0, 0))
    command = "select sweep --rule test-domain --out out --datasets PACS --algorithms"
    assert main([*command.split(), "VREx"]) == 1  # chosen, but made up without weights
    assert "1 of 1 models were not kept" in capsys.readouterr().err
    assert main([*command.split(), "IRM"]) == 2
    assert "unknown method of these runs 'irm'" in capsys.readouterr().err


def test_hyperparameters_by_its_names(capsys: Output) -> None:
    command = "hparams IRM --dataset PACS --draw 3 --json --set"
    for settings in ("irm_lambda=7 resnet_dropout=0.1", "penalty_weight=7 dropout=0.1"):
        assert main([*command.split(), *settings.split()]) == 0
    text = capsys.readouterr().out
    first, second = (json.loads(part) for part in re.split(r"(?<=})\n(?={)", text))
    assert first == second and first["penalty_weight"] == 7
    assert main([*command.split(), "irm_lambda=7", "penalty_weight=8"]) == 2
    assert "penalty_weight is set twice" in capsys.readouterr().err
    assert main([*command.split(), "vrex_lambda=7"]) == 2
    assert "unknown hyperparameter 'vrex_lambda'" in capsys.readouterr().err


def test_a_sweep_takes_hyperparameters_by_its_names(tmp_path: Path) -> None:
    small = "sweep --algorithms fishr --datasets colored-mnist --trials 1 --draws 2 --plan-only"
    for settings, out in (("lambda=5", "theirs"), ("penalty_weight=5", "ours")):
        assert main(f"{small} --set {settings} --out {out}".split()) == 0
    first, second = (read_plan(tmp_path / out) for out in ("ours", "theirs"))
    assert [run.identity for run in first] == [run.identity for run in second]
    assert {run.hparams["penalty_weight"] for run in second} == {5.0}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_name_of_a_hyperparameter_means_two(name: str) -> None:
    """A key of one field that is the name of another would set the wrong one."""
    kind = ALGORITHMS[name].Hparams
    fields = kind.__dataclass_fields__
    keys = {one: field.metadata["key"] for one, field in fields.items()}
    assert len(set(keys.values())) == len(keys)
    assert not [key for one, key in keys.items() if key != one and key in keys]
    given = {key: str(getattr(draw(kind, "small", 0, 0), one)) for one, key in keys.items()}
    assert list(own_names(kind, given)) == list(keys)


def test_a_fit_takes_hyperparameters_by_its_names() -> None:
    irm, vrex = find_method("irm"), find_method("vrex")
    settings = {"irm_lambda": "3", "lr": "0.1"}
    check_settings(settings, {"irm": irm, "vrex": vrex})
    assert settings_of(irm, settings) == {"penalty_weight": "3", "lr": "0.1"}
    assert settings_of(vrex, settings) == {"lr": "0.1"}
    assert hparams_for(irm, "small", 100, settings)["penalty_weight"] == 3
    with pytest.raises(ValueError, match="unknown hyperparameter 'rdm_lambda'"):
        check_settings({"rdm_lambda": "1"}, {"irm": irm})


def test_what_is_set_by_its_name_is_not_varied() -> None:
    class Setup:
        settings: dict[str, str]

        def hparams(self, method: Any) -> dict[str, float]:
            return {"penalty_weight": 2.0, "lr": 1.0}

    setup: Any = Setup()
    setup.settings = {}
    assert [*_grid(find_method("irm"), setup)[1]] == ["penalty_weight"]
    setup.settings = {"irm_lambda": "2"}
    assert [*_grid(find_method("irm"), setup)[1]] == ["lr"]


def test_the_classifier_takes_its_names() -> None:
    ours, theirs = (
        DomainClassifier(name, steps=10, hparams=hparams)
        for name, hparams in (("irm", {"penalty_weight": 3}), ("IRM", {"irm_lambda": 3}))
    )
    dataset = squares((4, 4), "tiny", side=28)
    first, second = (one._run(dataset, find_method(one.algorithm), 0, 10) for one in (ours, theirs))
    assert first.identity == second.identity and second.algorithm == "irm"


def test_a_folder_of_that_name_stays_a_folder(tmp_path: Path, capsys: Output) -> None:
    write_images(tmp_path / "PACS", 2, ("a", "b"))
    assert dataset_name("PACS") == "PACS" and dataset_name("VLCS") == "vlcs"
    assert load_dataset("PACS", None).names == ("a", "b")
    command = "sweep --algorithms ERM --datasets PACS --trials 1 --draws 1 --plan-only --out out"
    assert main(command.split()) == 0
    assert (
        "PACS is a folder here and is read as your own images; the published data set is pacs"
        in (capsys.readouterr().err)
    )
    assert {run.dataset for run in read_plan(tmp_path / "out")} == {"PACS"}


def test_what_is_not_here_is_not_taken_for_another(capsys: Output) -> None:
    assert main(["hparams", "TRM", "--dataset", "PACS"]) == 2
    assert "TRM of DomainBed is not among the methods" in capsys.readouterr().err
    assert main(["train", "--dataset", "SVIRO"]) == 2
    assert "SVIRO of DomainBed is not among the published data sets" in capsys.readouterr().err
    assert not {*METHODS_NOT_HERE} & {one.class_name for one in METHODS.values()}
    assert not {*DATASETS_NOT_HERE} & {one.domainbed for one in DATASETS.values()}


def test_the_nearest_name_in_any_case(capsys: Output) -> None:
    assert main(["hparams", "GROUPDRo", "--dataset", "PACS"]) == 2
    assert "unknown algorithm 'GROUPDRo'; did you mean 'groupdro'?" in capsys.readouterr().err


# Options


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (
            "train --data_dir=/d --algorithm ERM --dataset PACS --test_envs 0 --hparams_seed 3",
            [
                "--data_dir: use --data DIR",
                "--test_envs 0: domains have names here: env 0 of PACS is art_painting; use "
                "--test-domain art_painting",
                "--hparams_seed: use --draw K",
            ],
        ),
        (
            "train --dataset=OfficeHome --test-domains 0 3",
            ["env 0 of OfficeHome is Art, env 3 of OfficeHome is Real World; use --test-domain Art "
             "'Real World'"],
        ),
        (
            "train --dataset PACS --test_envs=9",
            ["the envs are 0 to 3; use --test-domain with some of: art_painting, "],
        ),
        (
            "train --data-dir /d --dataset PACS --test-envs 1",
            ["--data_dir: use --data DIR", "env 1 of PACS is cartoon"],
        ),
        (
            """train --dataset PACS --hparams '{"irm_lambda": 10, "lr": 1e-4}'""",
            ["--hparams: use --set irm_lambda=10 lr=0.0001"],
        ),
        ("train --dataset PACS --hparams x", ["--hparams: use --set NAME=VALUE"]),
        ("train --dataset mine --test_envs 0", ["some of: the names of the folders"]),
        (
            "sweep launch --n_hparams 5 --test_envs 0",
            [f"launch: {ACTIONS['launch']}", "--n_hparams: use --draws N", "left out in turn"],
        ),
        (
            "report --input_dir out --latex",
            ["--input_dir: give the folder alone", "--latex: use --format latex"],
        ),
    ],
)  # fmt: skip
def test_its_options_are_answered(command: str, lines: list[str], capsys: Output) -> None:
    told = refused(capsys, command)
    for line in lines:
        assert line in told


def test_environments_of_a_folder_are_its_folders(capsys: Output) -> None:
    for name in ("c", "a", "b"):
        Path("PACS", name).mkdir(parents=True)
    told = refused(capsys, "train --dataset PACS --test_envs 2 0")
    assert "env 2 of PACS is c, env 0 of PACS is a; use --test-domain c a" in told


def test_its_scripts_and_rules_are_answered(capsys: Output) -> None:
    told = refused(capsys, "collect_results --input_dir out")
    assert "collect_results of DomainBed is 'shoal report DIR' here" in told
    told = refused(capsys, "report out --rule oracle")
    assert "oracle of DomainBed is 'test-domain' here" in told


def test_every_script_and_rule_here_exists() -> None:
    assert {told.split()[1] for told in SCRIPTS.values()} <= set(COMMANDS)
    assert set(RULES.values()) <= set(ALL_RULES)


def test_other_options_are_refused_as_before(capsys: Output) -> None:
    told = refused(capsys, "train --dataset pacs --test-domains photo")
    assert "unrecognized arguments: --test-domains photo; did you mean '--test-domain'?" in told
    assert answers(["launch", "--out", "x"], {"--out"}, action=False) == []
    # Values whose ends are names of its options.
    assert answers(["--out", "myseed", "autask"], {"--out"}, action=False) == []


def options_of(command: str) -> set[str]:
    commands: Any = build_parser([command])._subparsers
    return set(commands._group_actions[0].choices[command]._option_string_actions)


def test_every_answer_names_an_option_that_exists() -> None:
    known = {option for command in ("train", "sweep", "report") for option in options_of(command)}
    for told in (*OPTIONS.values(), *SETTINGS.values()):
        assert set(re.findall(r"--[\w-]+", told)) <= known
    assert not OPTIONS.keys() & known


def test_hyperparameters_that_are_options_here(capsys: Output) -> None:
    assert main(["hparams", "erm", "--dataset", "pacs", "--set", "resnet18=True"]) == 2
    assert "resnet18 of DomainBed is no hyperparameter here: use --network resnet18" in (
        capsys.readouterr().err
    )


def test_a_domain_by_its_index(capsys: Output) -> None:
    assert (
        main(["train", "--dataset", "ColoredMNIST", "--algorithm", "ERM", "--test-domain", "2"])
        == 2
    )
    told = "unknown domain of colored-mnist '2': domains have names here, and number 2 is '-90%'"
    assert told in capsys.readouterr().err
    rotated = load_dataset("RotatedMNIST", None)
    assert rotated["0"].name == "0" and rotated["15"].name == "15"
    with pytest.raises(ValueError, match="number 3 is '45'"):
        rotated["3"]
    with pytest.raises(ValueError, match="unknown domain of rotated-mnist '6'"):
        rotated["6"]


# The guide

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "domainbed.md"


def test_the_guide_has_every_option_and_name() -> None:
    guide = GUIDE.read_text("utf-8")
    for word in (*OPTIONS, *ACTIONS, *SETTINGS, *THEIRS):
        assert f"`{word}" in guide, word
    for name, facts in DATASETS.items():
        folder = f"`{SOURCES[name].folder}`" if SOURCES[name].folder else "–"
        row = (facts.domainbed, f"`{name}`", folder, ", ".join(facts.domains))
        assert f"| {' | '.join(row)} |" in guide
    spelled = {name: one.class_name for name, one in METHODS.items()}
    for name, theirs in spelled.items():
        if theirs.lower() != name:
            assert f"`{theirs}`" in guide and f"`{name}`" in guide


def test_the_answer_in_the_guide_is_the_one_that_comes(capsys: Output) -> None:
    command, answer = re.findall(r"^    \$ shoal (.+)\n    (.+)$", GUIDE.read_text("utf-8"), re.M)[
        0
    ]
    assert answer in refused(capsys, command)


# Folders


def test_commands_that_need_models_refuse_its_folders(tmp_path: Path, capsys: Output) -> None:
    for seed in range(2):
        (job := tmp_path / "sweep" / f"job{seed}").mkdir(parents=True)
        lines = [
            record(step, accuracies(0.5 + seed / 10, 0.4), hparams_seed=seed) for step in (0, 300)
        ]
        (job / "results.jsonl").write_text("".join(lines))
        (job / "done").write_text("done")
        (job / "model.pkl").write_bytes(b"never read")
    assert main(["select", "sweep", "--rule", "training-domain", "--out", "out"]) == 2
    told = capsys.readouterr().err
    assert "2 runs of DomainBed, whose models are pickles, which shoal never opens" in told
    assert "'shoal report sweep' prints what each rule chooses" in told
    assert not (tmp_path / "out").exists()
    for command in ("status", "soup"):
        assert main([command, "sweep"]) == 2
        assert capsys.readouterr().err == told
    (tmp_path / "home").mkdir()
    (tmp_path / "sweep").rename(tmp_path / "home" / "sweep")
    assert main(["status", "home"]) == 2  # any folder: it may be too large to be searched
    assert "is not the folder of a sweep or a fit" in capsys.readouterr().err
    (tmp_path / "home" / "sweep").rename(tmp_path / "sweep")
    assert main(["report", "sweep", "--rule", "training-domain", "--format", "json"]) == 0
    assert "vrex" in capsys.readouterr().out
    write_run(tmp_path / "sweep", make_run("pacs", "erm", ("photo",), 0, 0))
    main(["select", "sweep", "--rule", "training-domain", "--out", "out"])
    assert "2 runs of DomainBed are left out" in capsys.readouterr().err


def test_its_names_choose_among_runs(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "job").mkdir()
    for name, method in (("a", "VREx"), ("b", "ERM")):
        (job := tmp_path / "job" / name).mkdir()
        lines = [
            record(0, accuracies(0.5, 0.4), algorithm=method, trial_seed=trial) for trial in (0, 1)
        ]
        (job / "results.jsonl").write_text("".join(lines))
    assert (
        main(
            [
                "report",
                "job",
                "--rule",
                "training-domain",
                "--compare",
                "VREx",
                "ERM",
                "--format",
                "markdown",
            ]
        )
        == 0
    )
    assert main(["report", "job", "--compare", "VREx", "IRM"]) == 2
    assert "unknown method of these runs 'irm'" in capsys.readouterr().err
