"""The command ``shoal``: what it prints and writes, and its error messages."""

import functools
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.algorithms import ALGORITHMS, VARIANTS
from shoal.algorithms.hparams import searches
from shoal.catalogue import DATASETS, title_of
from shoal.cli import main
from shoal.experiments import colored_mnist, demo, restarts
from shoal.experiments.colored_mnist import METHODS, TABLES, Setup, Training

REPRODUCE = ("reproduce", "colored-mnist")
SIZES = {"examples": 50, "hidden": 8, "updates": 4, "jump_step": 2}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the experiment's setup tiny; --flip and --precision still apply."""
    monkeypatch.setattr(colored_mnist, "Setup", functools.partial(Setup, **SIZES))


@pytest.fixture
def never_train(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(restarts, "run", refuse)


def stopped(*arguments: str) -> int | str | None:
    """Return the exit status of a command that argparse ends."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped("--version") == 0
    assert capsys.readouterr().out == f"shoal {shoal.__version__}\n"


def test_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "shoal"], capture_output=True, text=True, timeout=100, check=False
    )
    assert found.returncode == 2  # the status of main is the status of the process
    assert found.stdout.startswith("usage: shoal ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), ("demo", "reproduce", "hparams", "list", "--version", "under three minutes")),
        (("demo", "--help"), ("--out",)),
        (("reproduce", "--help"), ("colored-mnist", "table:cmnistend")),
        (
            (*REPRODUCE, "--help"),
            ("--methods", "--restarts", "--flip", "--device", "--precision", "--out", "list"),
        ),
        (
            ("hparams", "--help"),
            ("--dataset", "--trial", "--draw", "--set", "--json", "file.py:Class", "10^U(1, 5)"),
        ),
        (("list", "--help"), ("algorithms", "--json")),
    ],
    ids=" ".join,
)
def test_help(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped(*arguments) == 0
    out = capsys.readouterr().out
    for word in words:
        assert word in out


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: shoal" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "arguments",
    [
        ("train",),
        ("reproduce",),
        ("reproduce", "cifar"),
        (*REPRODUCE, "--flip", "0.5"),
        ("hparams", "fishr"),
        ("hparams", "fishr", "--dataset", "pacs", "--draw", "-1"),
        ("hparams", "fishr", "--dataset", "pacs", "--trial", "1.5"),
        ("hparams", "--dataset", "pacs"),
    ],
    ids=" ".join,
)
def test_arguments_that_do_not_exist_are_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped(*arguments) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.usefixtures("never_train")
def test_list_of_methods(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*REPRODUCE, "--methods", "list", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for key, method in METHODS.items():
        assert [line for line in lines if line.split()[0] == key] == [f"{key:28} {method.name}"]
    for label, keys in TABLES.items():
        (line,) = [line for line in lines if line.split()[0] == label]
        assert all(key in line for key in keys)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("never_train")
@pytest.mark.parametrize(
    ("name", "nearest"), [("fisher-omega", "fishr-omega"), ("table:cmnist25", "table:cmnist_25")]
)
def test_an_unknown_method_gets_the_nearest_name(
    name: str, nearest: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*REPRODUCE, "--methods", "erm", name, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"shoal: unknown method '{name}'; did you mean '{nearest}'?")
    assert all(key in err for key in [*METHODS, *TABLES])
    assert out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("never_train")
@pytest.mark.parametrize("restarts", ["0", "-3", "two", "1.5"])
def test_bad_restarts(restarts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped(*REPRODUCE, f"--restarts={restarts}") == 2
    err = capsys.readouterr().err
    assert "--restarts" in err and restarts in err
    assert "_positive" not in err  # the name of a function helps nobody


@pytest.mark.usefixtures("never_train")
def test_cuda_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1", "mps"):
        assert main([*REPRODUCE, "--device", device, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert "no such GPU" in err and "--device cpu" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("never_train")
@pytest.mark.parametrize("device", ["gpu", "meta", "xpu", ""])
def test_an_unknown_device(device: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Including devices of torch that the experiment does not run on."""
    assert main([*REPRODUCE, "--device", device, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert f"unknown device '{device}'" in err and "auto, cpu, cuda" in err


# Hyperparameters, and lists


def hparams(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the configuration that the command prints as JSON."""
    assert main(["hparams", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize(
    ("dataset", "number", "golden"),
    [
        (
            "colored-mnist",
            "1",
            {
                "batch_size": 372,
                "lr": 1.1906162909279594e-4,
                "penalty_weight": 809.251247284292,
                "warmup_steps": 4072,
                "ema_decay": 0.9129082782560279,
            },
        ),
        (
            "colored-mnist",
            "5",
            {
                "batch_size": 39,
                "lr": 2.3968517445719083e-4,
                "penalty_weight": 8089.489683014979,
                "warmup_steps": 4264,
                "ema_decay": 0.9269723464224017,
                "weight_decay": 0.0,
            },
        ),
        (
            "rotated-mnist",
            "18",
            {
                "batch_size": 455,
                "lr": 3.872163578520407e-5,
                "penalty_weight": 8999.069388942098,
                "warmup_steps": 3236,
                "ema_decay": 0.9637224084602755,
            },
        ),
        (
            "terra-incognita",
            "1",
            {
                "batch_size": 39,
                "lr": 2.7028930742148706e-05,
                "weight_decay": 0.00044832883881609976,
                "dropout": 0.5,
                "penalty_weight": 809.251247284292,
                "ema_decay": 0.9129082782560279,
                "warmup_steps": 4072,
            },
        ),
    ],
)
def test_hparams_are_domainbeds(
    dataset: str, number: str, golden: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same values for hparams_seed and trial_seed, to the last digit."""
    found = hparams(capsys, "fishr", "--dataset", dataset, "--trial", "0", "--draw", number)
    assert {name: found[name] for name in golden} == golden


def test_hparams_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    small = hparams(capsys, "fishr", "--dataset", "colored-mnist")
    assert small == hparams(capsys, "fishr", "--dataset", "rotated-mnist", "--draw", "0")
    assert (small["lr"], small["batch_size"], small["penalty_weight"]) == (1e-3, 64, 1000.0)
    assert (small["centered"], small["parameters"]) == (True, "classifier")
    for name in ("vlcs", "pacs", "office-home", "terra-incognita", "domainnet"):
        large = hparams(capsys, "fishr", "--dataset", name)
        assert (large["lr"], large["batch_size"]) == (5e-5, 32)
    sizes = [
        hparams(capsys, "erm", "--dataset", name, "--draw", str(number))["batch_size"]
        for name in ("domainnet", "pacs")
        for number in (3, 5, 9)
    ]
    assert sizes[:3] != sizes[3:]  # DomainNet has a range of its own
    trials = [
        hparams(capsys, "erm", "--dataset", "pacs", "--trial", trial, "--draw", "1")["lr"]
        for trial in ("0", "1")
    ]
    assert trials[0] != trials[1]


def test_hparams_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hparams", "vrex", "--dataset", "pacs", "--draw", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "V-REx on PACS: trial 0, draw 2"
    found = hparams(capsys, "vrex", "--dataset", "pacs", "--draw", "2")
    for name, search in {"lr": "10^U(-5, -3.5)", "batch_size": "int(2^U(3, 5.5))"}.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert f"{found[name]:g}" in line and search in line
    (number,) = [k for k, line in enumerate(lines) if line.split()[:1] == ["penalty_weight"]]
    assert f"{found['penalty_weight']:g}" in lines[number] and "10^U(-1, 5)" in lines[number]
    assert "λ, from warmup_steps on" in lines[number]
    assert lines[number + 1].split() == ["vrex_lambda"]
    assert any("vrex_penalty_anneal_iters" in line for line in lines)
    (line,) = [line for line in lines if line.split()[:1] == ["ema_decay"]]
    assert line.split()[1:3] == ["0", "–"], "what no search touches"


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_table_fits(
    name: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name, key, value or search is broken or cut off."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["hparams", name, "--dataset", "pacs", "--draw", "4"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= int(columns) for line in out.splitlines())
    found = hparams(capsys, name, "--dataset", "pacs", "--draw", "4")
    declared = searches(ALGORITHMS[name].Hparams, "pacs")
    for f in fields(ALGORITHMS[name].Hparams):
        value = found[f.name]
        assert f.name in out and f.metadata["key"] in out
        assert (f"{value:g}" if isinstance(value, float) else str(value)) in out
        search = declared[f.name].distribution.text
        # A list of values can go on in the next line.
        parts = search.split() if search.startswith("{") else [search]
        shown = all(part in out for part in parts)
        assert shown or search == str(value) or float(search) == value


def test_a_setting_is_a_value_or_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    """table:v15 of the paper: a wider search for λ, by hyperparameters alone."""
    draw = ("fishr", "--dataset", "office-home", "--trial", "2", "--draw", "3")
    plain = hparams(capsys, *draw)
    share = (math.log10(plain["penalty_weight"]) - 1) / 3
    wide = hparams(capsys, *draw, "--set", "penalty_weight=10^U(1, 5)", "batch_size=8")
    assert wide.pop("penalty_weight") == pytest.approx(10 ** (1 + 4 * share), rel=1e-12)
    assert plain.pop("penalty_weight") and wide == plain | {"batch_size": 8}
    found = hparams(capsys, *draw, "--set", "lr=1", "--set", "parameters=a,b", "centered=false")
    assert (found["lr"], found["parameters"], found["centered"]) == (1.0, "a,b", False)
    found = hparams(
        capsys, "fishr", "--dataset", "pacs", "--set", "penalty_weight=10^U(1, 5)", "lr=0.5"
    )
    assert (found["penalty_weight"], found["lr"]) == (1000.0, 0.5)  # draw 0 is the defaults
    assert main(["hparams", *draw, "--set", "penalty_weight=10^U(1,5)", "dropout={0, 0.25}"]) == 0
    out = capsys.readouterr().out
    assert "10^U(1, 5)" in out and "{0, 0.25}" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("fisher",), "unknown algorithm 'fisher'; did you mean 'fishr'? One of: "),
        (("fishr", "--dataset", "pac"), "unknown data set 'pac'; did you mean 'pacs'? One of: "),
        (("fishr", "--set", "penaltyweight=1"), "did you mean 'penalty_weight'? One of: "),
        (("fishr", "--set", "lr"), "--set takes name=value, got 'lr'"),
        (("fishr", "--set", "lr=1", "lr=2"), "--set has lr twice: '1' and '2'"),
        (("fishr", "--set", "lr=fast"), "lr: expected a number, or a search such as 10^U(1, 5)"),
        (("fishr", "--set", "warmup_steps=U(0, 9)"), "write int(U(0, 9))"),
        (("fishr", "--set", "lr="), "got ''"),
    ],
    ids=" ".join,
)
def test_wrong_hparams(
    arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = () if "--dataset" in arguments else ("--dataset", "colored-mnist")
    assert main(["hparams", *arguments, *known]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("shoal: ") and why in err


def test_list_of_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "algorithms"]) == 0
    methods, variants = capsys.readouterr().out.split("Variants of the paper's ablations")
    lines = methods.splitlines()
    for name, kind in ALGORITHMS.items():
        (number,) = [k for k, line in enumerate(lines) if line.split()[:1] == [name]]
        summary = (kind.__doc__ or "").splitlines()[0]
        assert lines[number].strip().split(maxsplit=3)[1:] == [
            title_of(name),
            str(kind.year),
            summary,
        ]
        assert lines[number + 1].strip() == kind.paper
    for name, variant in VARIANTS.items():
        assert f"  {name} " in variants
        assert variant.summary in variants
    assert "fishr with mean_weight=1000 ~ 10^U(1, 4)" in variants
    assert main(["list", "algorithms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows[len(ALGORITHMS) :]] == list(VARIANTS)
    assert rows[-1] == {"name": "fishr-phi", **asdict(VARIANTS["fishr-phi"])}
    assert rows[: len(ALGORITHMS)] == [
        {
            "name": name,
            "paper": kind.paper,
            "year": kind.year,
            "summary": (kind.__doc__ or "").splitlines()[0],
        }
        for name, kind in ALGORITHMS.items()
    ]


def test_hparams_of_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["hparams", "fishr-iga", "--dataset", "colored-mnist", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["mean_weight"] == 1000
    assert main([*command, "--draw", "5"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["penalty_weight"] == 8089.489683014979
    assert 10 < drawn["mean_weight"] < 10_000
    assert main([*command, "--set", "mean_weight=7"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_weight"] == 7


def test_default_and_search_of_one_hyperparameter(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["hparams", "vrex", "--dataset", "pacs", "--json"]
    assert main([*command, "--set", "ema_decay=0.95 ~ U(0.9, 0.99)"]) == 0
    assert json.loads(capsys.readouterr().out)["ema_decay"] == 0.95
    assert main([*command, "--draw", "1", "--set", "ema_decay=0.95 ~ U(0.9, 0.99)"]) == 0
    assert json.loads(capsys.readouterr().out)["ema_decay"] == 0.9129082782560279
    assert main([*command, "--set", "ema_decay=0.95 ~ 0.9"]) == 2
    assert "ema_decay: after ~ a search is expected, got '0.9'" in capsys.readouterr().err


def test_list_without_a_name_prints_what_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "shoal list algorithms" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ["algorithms", "datasets"]
    assert main(["list", "algoritms"]) == 2
    assert "unknown list 'algoritms'; did you mean 'algorithms'?" in capsys.readouterr().err


def test_list_of_datasets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["list", "datasets"]) == 0
    told = capsys.readouterr().out
    assert main(["list", "datasets", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert [*rows] == [*DATASETS]
    assert rows["pacs"] == {
        "name": "pacs",
        "domainbed": "PACS",
        "domains": ["art_painting", "cartoon", "photo", "sketch"],
        "classes": 7,
        "images": 9991,
        "source": "by hand: https://dali-dl.github.io/project_iccv2017.html",
        "terms": "no licence stated",
    }
    for name, row in rows.items():
        (line,) = [line for line in told.splitlines() if line.split()[:1] == [name]]
        assert ", ".join(row["domains"]) in line
        assert line.split()[-2:] == [f"{row['classes']:,}", f"{row['images']:,}"]
        assert row["source"] in told
    assert rows["colored-mnist"]["source"].endswith("come with shoal")


# Whole runs


def reproduce(out: Path, *more: str) -> int:
    return main([*REPRODUCE, "--device", "cpu", "--restarts", "2", "--out", str(out), *more])


@pytest.mark.usefixtures("tiny")
def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(tmp_path, "--methods", "erm", "fishr-omega") == 0
    out, err = capsys.readouterr()
    assert "table:cmnist_25, 25 % of labels flipped" in out
    assert "table:cmnistend, 25 % of labels flipped" in out
    assert "69.5 ± 1.0" in out  # the paper's cell
    assert f"Written: {tmp_path / 'results-flip0.25'}.json and .md" in out
    assert "erm: restart 1, step 4 of 4" in err

    written = json.loads((tmp_path / "results-flip0.25.json").read_text())
    assert written["restarts"] == 2
    assert written["precision"] == "float32"
    assert written["command"] and written["device"] and written["torch"] == torch.__version__
    rows = {row["method"]: row for row in written["tables"]["table:cmnist_25"]}
    assert rows["irm"]["cells"]["test"] is None
    for method in ("erm", "fishr-omega"):
        found = [
            json.loads((tmp_path / "records" / f"{method}-flip0.25-{restart:02d}.json").read_text())
            for restart in (0, 1)
        ]
        for column in ("train", "test", "gray"):
            cell = rows[method]["cells"][column]
            values = [100 * record[column] for record in found]
            assert cell["mean"] == pytest.approx(sum(values) / 2)
            assert cell["std"] == pytest.approx(abs(values[0] - values[1]) / 2)
            assert cell["count"] == 2

    page = (tmp_path / "results-flip0.25.md").read_text()
    assert page.count("| Method | Runs |") == 2
    assert f"{rows['erm']['cells']['test']['mean']:.1f} ± " in page
    assert "not run" in page


@pytest.mark.usefixtures("tiny")
def test_a_second_run_trains_nothing_and_prints_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reproduce(tmp_path, "--methods", "vrex") == 0
    first = capsys.readouterr().out
    files = {name: (tmp_path / name).read_bytes() for name in ("results-flip0.25.json",)}
    monkeypatch.setattr(restarts, "Training", None)
    assert reproduce(tmp_path, "--methods", "vrex") == 0
    assert capsys.readouterr().out == first
    assert all((tmp_path / name).read_bytes() == content for name, content in files.items())


@pytest.mark.usefixtures("tiny")
def test_without_flips_and_by_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    plain = restarts.run

    def run(methods: list[str], count: int, setup: Setup, *rest: Any) -> None:
        asked.append((methods, count, setup.flip, setup.tf32))
        plain(["vrex"], 1, setup, *rest)

    monkeypatch.setattr(restarts, "run", run)
    assert reproduce(tmp_path, "--flip", "0") == 0
    assert asked == [(list(TABLES["table:cmnist_0"]), 2, 0.0, False)]
    out = capsys.readouterr().out
    assert "table:cmnist_0, 0 % of labels flipped" in out
    assert "table:cmnist_25" not in out
    assert (tmp_path / "results-flip0.json").exists()
    # A method that is in two tables is trained once.
    assert reproduce(tmp_path, "--methods", "erm", "table:cmnist_25", "table:cmnistend") == 0
    assert asked[1][0] == list(
        dict.fromkeys(("erm", *TABLES["table:cmnist_25"], *TABLES["table:cmnistend"]))
    )
    assert reproduce(tmp_path / "tf32", "--precision", "tf32") == 0
    assert asked[2] == (list(TABLES["table:cmnist_25"]), 2, 0.25, True)


@pytest.mark.usefixtures("tiny")
def test_a_folder_of_another_setup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(tmp_path, "--methods", "erm") == 0
    capsys.readouterr()
    assert reproduce(tmp_path, "--methods", "erm", "--precision", "tf32") == 2
    err = capsys.readouterr().err
    assert str(tmp_path) in err and "choose another --out" in err


@pytest.mark.usefixtures("tiny")
def test_an_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert reproduce(tmp_path / "file", "--methods", "erm") == 2
    err = capsys.readouterr().err
    assert err.startswith("shoal: ") and str(tmp_path / "file") in err


@pytest.mark.usefixtures("tiny")
def test_ctrl_c_and_resuming(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Training.step

    def step(self: Training) -> None:
        if self.done == 3:
            raise KeyboardInterrupt
        plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", step)
        assert reproduce(tmp_path, "--methods", "irm") == 130
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == "shoal: interrupted; the same command resumes from here"
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    steps = count_steps(monkeypatch)
    assert reproduce(tmp_path, "--methods", "irm") == 0
    assert len(steps) == 1 + 4
    assert reproduce(tmp_path / "other", "--methods", "irm") == 0
    for name in ("irm-flip0.25-00.json", "irm-flip0.25-01.json"):
        mine, theirs = (
            json.loads((folder / "records" / name).read_text())
            for folder in (tmp_path, tmp_path / "other")
        )
        assert mine | {"seconds": 0} == theirs | {"seconds": 0}


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    plain: Callable[[Training], None] = Training.step

    def step(self: Training) -> None:
        steps.append(self.done)
        plain(self)

    monkeypatch.setattr(Training, "step", step)
    return steps


@pytest.mark.usefixtures("tiny")
def test_the_name_of_the_folder_is_printed_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets are not markup, and a long name is not broken into lines."""
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "runs[bold]" / ("a-long-name" * 6)
    assert reproduce(out, "--methods", "erm", "--restarts", "1") == 0
    assert str(out) in capsys.readouterr().out


# The demo


@pytest.fixture
def tiny_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run", functools.partial(demo.run, setup=Setup(**SIZES)))


@pytest.mark.usefixtures("tiny_demo")
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert page.lstrip().startswith("<!DOCTYPE html>")
    out = capsys.readouterr().out
    assert all(name in out for name in ("ERM", "V-REx", "Fishr", "Test, reversed colours"))
    assert str(tmp_path / "page" / "index.html") in out


def test_ctrl_c_in_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps nothing, so it must not promise to resume."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    err = capsys.readouterr().err
    assert "interrupted" in err
    assert "resumes" not in err


def test_file_names_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(content, "utf-8", write_through=True))
    assert main(["predict", str(tmp_path / os.fsdecode(b"caf\xe9")), "a.png"]) == 2
    assert content.getvalue().endswith(b"/caf\\xe9\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["fot"], "unknown 'fot'; did you mean 'fit'?"),
        (["data", "cach"], "unknown 'cach'; did you mean 'cache'?"),
        (
            ["fit", "x", "--trian", "head"],
            "shoal fit: error: unrecognized arguments: --trian",
        ),
        (["fit", "x", "--trian", "head"], "did you mean '--train'?"),
        (["report", "x", "--nothing"], "shoal report: error: unrecognized arguments: --nothing\n"),
        (["data", "cache", "x", "--nothing"], "shoal data cache: error: unrecognized"),
    ],
)
def test_the_nearest_command_or_option_is_suggested(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


HEAVY = ("torch", "numpy", "matplotlib", "rich", "jinja2")
LOADED = """
import sys
from shoal.cli import main

try:
    status = main({arguments!r})
except SystemExit as stopped:
    status = stopped.code
assert not status, status
print("loaded:", *[name for name in {heavy!r} if name in sys.modules])
"""


def loaded_by(*arguments: str) -> set[str]:
    """Return the heavy packages that a command imports, in a process of its own."""
    code = LOADED.format(arguments=list(arguments), heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_starts_at_once() -> None:
    """In processor time, which a busy machine changes little: 0.1 s, and with torch 1.7 s."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "shoal", "--help"], capture_output=True, check=True)
    after = os.times()
    seconds = after.children_user + after.children_system
    assert seconds - before.children_user - before.children_system < 0.6


@pytest.mark.parametrize("arguments", [("--help",), ("train", "--help"), ("fit", "--help")])
def test_help_loads_no_heavy_package(arguments: tuple[str, ...]) -> None:
    """It would take a second or more before the first line."""
    assert loaded_by(*arguments) == set()
