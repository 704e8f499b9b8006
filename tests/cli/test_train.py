"""``shoal train`` and ``shoal eval``: from options to a table, and how they say what is wrong."""

import fcntl
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from shoal.algorithms import find
from shoal.algorithms.hparams import draw
from shoal.cli import main, progress
from shoal.cli.loading import report_resizing
from shoal.cli.progress import run_progress
from shoal.datasets import DATASETS, load_dataset
from shoal.networks import NETWORKS, Network, draw_weights, registry
from shoal.networks.base import IMAGENET
from shoal.results.records import Record
from shoal.runs import model
from shoal.runs.folder import RunFolder
from shoal.training.watcher import Progress
from tests.datasets.pictures import photograph
from tests.runs.small import squares

Output = pytest.CaptureFixture[str]
MEMORY = ("--dataset", "tiny", "--network", "mnist-cnn", "--steps", "5", "--record-every", "2")
MEMORY += ("--set", "batch_size=4", "--device", "cpu")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder to work in, a wide terminal, and a data set that differs from trial to trial."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("SHOAL_DATA", "SHOAL_CACHE"):
        monkeypatch.delenv(name, raising=False)

    def load(_: Path | None, trial: int) -> Any:
        return squares((20 + trial, 25, 15), "tiny", side=8)

    monkeypatch.setitem(DATASETS, "tiny", load)


def train(*arguments: object, test: tuple[str, ...] = ("c",)) -> int:
    given = (*MEMORY, *(("--test-domain", *test) if test else ()), *arguments)
    return main(["train", *map(str, given)])


def refused(capsys: Output, *arguments: object, **more: Any) -> str:
    """Return what a command says that ends with an error, a single line."""
    assert train(*arguments, **more) == 2
    err = capsys.readouterr().err
    assert err.startswith("shoal: ")
    assert err.count("\n") == 1
    return err.removeprefix("shoal: ").removesuffix("\n")


def words(out: str) -> list[str]:
    """Return the lines of a table with single spaces."""
    return [" ".join(line.split()) for line in out.splitlines() if line.strip()]


def run_of(folder: Path | str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / "run.json").read_text())
    return found


# What comes out


def test_a_run(capsys: Output) -> None:
    assert train("--out", "run") == 0
    out, err = capsys.readouterr()
    records = [json.loads(line) for line in Path("run/records.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 2, 4]
    last = records[-1]["accuracy"]
    lines = words(out)
    assert lines[0] == "Fishr on tiny, after 5 updates"
    assert lines[1] == "Domain kept 80 % held out 20 % error kept error held out"
    assert lines[3].startswith(f"a – {100 * last['a']['held_out']:.1f} – ")
    shown = " ".join(f"{100 * last['c'][split]:.1f}" for split in ("kept", "held_out"))
    assert lines[5].startswith(f"c (test) {shown} ")
    assert lines[6] == "Accuracy in %, and expected calibration error; –: not evaluated."
    assert re.fullmatch(
        r"5 updates in \d+\.\d s, evaluations \d+\.\d s, preparation \d+\.\d s",
        out.splitlines()[-3],
    )
    assert out.splitlines()[-2:] == [
        "Records, model and card: run",
        "Models of averages: run/averages/sma, run/averages/half",
    ]
    # Without a terminal there is a line in the end, at least.
    assert re.fullmatch(
        r"Fishr on tiny: step 5 of 5, [\d,]+ images/s, 0:00:00 left, "
        r"loss [\d.e-]+; a \d+%, b \d+%, c \d+%\n",
        err,
    )
    assert (Path("run") / "model.safetensors").exists()


@pytest.mark.parametrize("columns", ["80", "100"])
def test_the_table_fits(columns: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert train("--out", "run", "--holdout", "0.3") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "kept 70 %" in out
    assert "held out 30 %" in out


def test_json(capsys: Output) -> None:
    assert train("--out", "run", "--json") == 0
    out = capsys.readouterr().out
    assert json.loads(out) == json.loads(Path("run/records.jsonl").read_text().splitlines()[-1])


def test_the_same_command_again(capsys: Output) -> None:
    assert train("--out", "run") == 0
    capsys.readouterr()
    written = [path for path in Path("run").iterdir() if path.name != "lock"]
    before = {path: path.stat().st_mtime_ns for path in written}
    assert train("--out", "run") == 0
    out, err = capsys.readouterr()
    assert "This run was already done." in out
    assert err == ""
    assert {path: path.stat().st_mtime_ns for path in written} == before
    assert train("--out", "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4


def test_a_folder_by_default(capsys: Output) -> None:
    """One for each run; the order of test domains makes no other."""
    for test in (("c", "a"), ("a", "c"), ("a", "c", "a")):
        assert train(test=test) == 0
    (folder,) = Path("out/runs").iterdir()
    assert re.fullmatch(r"tiny-fishr-a\+c-t0-d0-[0-9a-f]{8}", folder.name)
    assert run_of(folder)["test_domains"] == ["a", "c"]
    assert capsys.readouterr().out.count("This run was already done.") == 2
    assert train("--trial", 1, test=()) == 0
    assert any(path.name.startswith("tiny-fishr-all-t1-d0-") for path in Path("out/runs").iterdir())


def test_a_domain_that_looks_like_an_option(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colored MNIST has one; no equals sign is needed."""
    dataset = squares((20, 25, 15), "colours", side=8)
    names = ("+90%", "+80%", "-90%")
    domains = tuple(replace(d, name=n) for d, n in zip(dataset.domains, names, strict=True))
    coloured = replace(dataset, domains=domains, order=())
    monkeypatch.setitem(DATASETS, "colours", lambda *_: coloured)
    assert train("--dataset", "colours", "--out", "one", test=("-90%",)) == 0
    assert train("--dataset", "colours", "--out", "two", test=("-90%", "+80%")) == 0
    assert run_of("two")["test_domains"] == ["+80%", "-90%"]
    assert main(["eval", "one", "--dataset", "colours", "--domain", "-90%", "+90%"]) == 0
    assert "-90%" in capsys.readouterr().out


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--trial 2 --draw 3 --precision bf16 --no-augment --holdout 0.25 --evaluate all"
    options += " --optimiser adamw --schedule cosine --clip 2 --balanced --train-batch-norm"
    options += " --algorithm irm --set lr=0.02 warmup_steps=2 --out run --steps 3 --place host"
    assert train(*options.split()) == 0
    run = run_of("run")
    expected = vars(draw(find("irm").Hparams, "large", 2, 3))
    expected |= {"lr": 0.02, "warmup_steps": 2, "batch_size": 4}
    assert run["hparams"] == expected
    assert (run["algorithm"], run["trial"], run["draw"]) == ("irm", 2, 3)
    assert run["protocol"] == {
        "steps": 3,
        "record_every": 2,
        "holdout": 0.25,
        "network": "mnist-cnn",
        "weights": None,
        "precision": "bf16",
        "images": "cached",
        "augment": False,
        "balanced": True,
        "frozen_statistics": False,
        "optimiser": "adamw",
        "schedule": "cosine",
        "clip": 2.0,
        "evaluate": "all",
    }
    assert json.loads(Path("run/timing.json").read_text())["place"] == "host"
    record = json.loads(Path("run/records.jsonl").read_text().splitlines()[-1])
    assert all(list(found) == ["kept", "held_out"] for found in record["accuracy"].values())


def test_records_as_often_as_domainbed_s(capsys: Output) -> None:
    arguments = ["--dataset", "tiny", "--network", "mnist-cnn", "--steps", "1", "--out", "run"]
    assert main(["train", *arguments, "--set", "batch_size=2"]) == 0
    assert run_of("run")["protocol"]["record_every"] == 300  # of a set that nobody knows


def test_a_variant(capsys: Output) -> None:
    assert train("--algorithm", "fishr-no-ema", "--out", "run") == 0
    assert run_of("run")["algorithm"] == "fishr-no-ema"
    assert run_of("run")["hparams"]["ema_decay"] == 0
    assert main(["eval", "run", "--dataset", "tiny"]) == 0


def test_predictions(capsys: Output) -> None:
    assert train("--out", "run", "--predictions") == 0
    assert len(Path("run/predictions.jsonl").read_text().splitlines()) == 4 + 5 + 15
    assert json.loads(Path("run/confusion.json").read_text())["classes"] == ["left", "right"]


def test_weights_that_a_rule_may_choose(capsys: Output) -> None:
    assert train("--out", "run", "--keep-best", "leave-one-domain-out", "calibrated") == 0
    out = capsys.readouterr().out
    for step in (0, 2):
        folder = Path(f"run/kept/step-{step:07d}")
        assert f"Weights that a rule can choose: {folder}" in out
        assert main(["eval", str(folder), "--dataset", "tiny", "--device", "cpu"]) == 0
    assert not Path("run/kept/step-0000004").exists()  # the last are the run's own
    assert train("--out", "plain") == 0 and not Path("plain/kept").exists()
    with pytest.raises(SystemExit):
        train("--keep-best", "best")


def test_models_of_averages(capsys: Output) -> None:
    assert train("--out", "run", "--average", "half", "--keep-best", "leave-one-domain-out") == 0
    out = capsys.readouterr().out
    assert "Models of averages: run/averages/half\n" in out
    assert "Weights that a rule can choose: run/averages/half/kept/step-0000002" in out
    assert not Path("run/averages/sma").exists()
    assert main(["eval", "run/averages/half", "--dataset", "tiny", "--device", "cpu"]) == 0
    assert "Fishr + second half: run/averages/half on tiny" in capsys.readouterr().out
    command = ["diagnose", "run/averages/half", "tiny", "--device", "cpu", "--json", "found.json"]
    assert main(command) == 0
    assert "Fishr + second half: run/averages/half on tiny" in capsys.readouterr().out
    assert json.loads(Path("found.json").read_text())["algorithm"] == "fishr+half"
    assert train("--out", "none", "--average", "none") == 0 and not Path("none/averages").exists()


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def test_tensorboard(capsys: Output) -> None:
    """Also of a run that is done, whose curves are drawn anew and not lost."""
    assert train("--out", "run", "--tensorboard") == 0
    records = [json.loads(line) for line in Path("run/records.jsonl").read_text().splitlines()]
    first = curves(Path("run/tensorboard"))
    assert first["terms/loss"] == [
        (record["step"], pytest.approx(record["terms"]["loss"])) for record in records
    ]
    assert first["accuracy/c/kept"] == [
        (record["step"], pytest.approx(record["accuracy"]["c"]["kept"])) for record in records
    ]
    assert "calibration_error/a/held_out" in first
    assert train("--out", "run", "--tensorboard") == 0
    assert curves(Path("run/tensorboard")) == first


def test_tensorboard_that_is_not_installed(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    told = refused(capsys, "--out", "run", "--tensorboard")
    assert told.endswith("(tensorboard): pip install 'shoal[tensorboard]'")


def test_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    benchmark = torch.backends.cudnn.benchmark
    try:
        assert train("--out", "run", "--deterministic") == 0
    finally:
        torch.backends.cudnn.benchmark = benchmark
    assert asked == [True]


# Words that are not known


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--dataset", "tinny"), "unknown data set 'tinny'; did you mean 'tiny'? One of: "),
        (("--algorithm", "fisher"), "unknown algorithm 'fisher'; did you mean 'fishr'? One of: "),
        (("--network", "mnist-cn"), "unknown network 'mnist-cn'; did you mean 'mnist-cnn'? One "),
        (("--set", "learning_rate=1"), "unknown hyperparameter 'learning_rate'"),
        (("--set", "penalty_weigth=1"), "unknown hyperparameter 'penalty_weigth'; did you mean "),
        (("--set", "lr=fast"), "lr: expected a number, or a search such as"),
        (("--set", "lr"), "--set takes name=value, got 'lr'"),
        (("--set", "lr=1", "lr=2"), "--set has lr twice: '1' and '2'"),
        (("--set", "batch_size=5"), "--set has batch_size twice: '4' and '5'"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--holdout", "1"), "holdout must be 0 or more and below 1, got 1.0"),
        (("--clip", "0"), "clip must be a norm above 0"),
        (("--weights", "missing.pt"), "--weights: there is no file missing.pt; write imagenet, "),
        (("--weights", "imagenet"), "the network mnist-cnn begins with drawn weights"),
        (("--dataset", "no/folder"), "no such folder: no/folder; folder needs its images at "),
        (("--dataset", "no.csv"), "no.csv"),
    ],
)
def test_what_is_not_known(capsys: Output, arguments: tuple[str, ...], told: str) -> None:
    assert told in refused(capsys, "--out", "run", *arguments)
    # And the folder is free for a better one.
    assert train("--out", "run") == 0


def test_test_domains_that_are_not_there(capsys: Output) -> None:
    assert refused(capsys, test=("d",)) == "unknown domain of tiny 'd'. One of: a, b, c"
    assert refused(capsys, test=("all",)) == "unknown domain of tiny 'all'. One of: a, b, c"
    assert refused(capsys, test=("a", "b", "c")) == (
        "no domain of tiny is left: all of them are test domains"
    )
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--steps", "0"),
        ("--steps", "many"),
        ("--trial", "-1"),
        ("--draw", "1.5"),
        ("--precision", "fp8"),
        ("--optimiser", "adm"),
        ("--evaluate", "some"),
    ],
)
def test_options_that_make_no_sense(capsys: Output, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        train(*arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_batches_of_no_images(capsys: Output) -> None:
    given = [word for word in MEMORY if word not in ("--set", "batch_size=4")]
    assert main(["train", *given, "--set", "batch_size=0"]) == 2
    assert capsys.readouterr().err == (
        "shoal: batch_size must be a whole number in [1, ∞), got 0\n"
    )


# What goes wrong on the way


def test_a_loss_that_is_not_finite(capsys: Output) -> None:
    told = refused(capsys, "--out", "run", "--algorithm", "erm", "--set", "lr=1e30", "--steps", 60)
    assert re.match(r"ERM: \w+ was not finite at step \d+, and no later step has moved", told)
    assert not Path("run/done").exists()
    assert Path("run/records.jsonl").read_text().count("\n") >= 1


def test_interrupted(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.runs.execute.execute", interrupt)
    assert train("--out", "run") == 130
    assert capsys.readouterr().err == "shoal: interrupted; the same command starts again\n"


def test_interrupted_after_a_checkpoint(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    real = RunFolder.write_records

    def write(folder: RunFolder, records: list[dict[str, Any]]) -> None:
        real(folder, records)
        if len(records) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_records", write)
    assert train("--out", "run", "--checkpoint-every", 0) == 130
    told = "shoal: interrupted; the same command resumes from its checkpoint"
    assert capsys.readouterr().err.splitlines()[-1] == told


def test_another_run_s_folder(capsys: Output) -> None:
    assert train("--out", "run") == 0
    capsys.readouterr()
    told = refused(capsys, "--out", "run", "--set", "lr=0.5", "--trial", "1")
    assert told.startswith("run is the folder of another run (fingerprint ")
    assert "trial 0, not 1" in told
    assert told.endswith("; choose another --out")


def test_a_folder_that_is_in_use(capsys: Output) -> None:
    Path("run").mkdir()
    with Path("run/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = refused(capsys, "--out", "run")
    assert told == "run is in use by another process; wait for it, or choose another --out"


def test_a_disk_that_is_full(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    told = refused(capsys, "--out", "run")
    assert told == (
        "run/run.json cannot be written: No space left on device; make room or make the "
        "folder writable, then run the same command again to resume"
    )


def test_a_package_that_does_not_work(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ImportError("torchvision:resnet50 needs torchvision: pip install 'shoal[vision]'")

    monkeypatch.setattr(model, "for_data", fail)
    assert refused(capsys, "--out", "run").startswith("torchvision:resnet50 needs torchvision: pip")


def test_a_device_that_is_full(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Any:
        def execute(*_: Any, **__: Any) -> None:
            raise error

        return execute

    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")
    monkeypatch.setattr("shoal.runs.execute.execute", fail(full))
    told = refused(capsys, "--out", "run")
    assert told == "CUDA out of memory; try a smaller batch, or --place host"
    monkeypatch.setattr("shoal.runs.execute.execute", fail(RuntimeError("of the method")))
    with pytest.raises(RuntimeError, match="of the method"):  # with all its lines, to be mended
        train("--out", "run")


# A method of one's own


OWN = """
from dataclasses import dataclass
import numpy as np
from torch import Tensor
from shoal.algorithms.base import Objective
from shoal.algorithms.forward import Forward
from shoal.algorithms.hparams import Hparams, fixed

@dataclass(frozen=True)
class MineHparams(Hparams):
    strength: int = fixed(VALUE, key="strength", help="of it")

class Mine(Objective):
    paper, year = "none", 2024
    Hparams = MineHparams

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        return {"loss": self.hparams.strength * forward.risk}
"""


def own(folder: str, value: str = "2") -> str:
    path = Path(folder) / "mine.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(OWN.replace("VALUE", value))
    return f"{path}:Mine"


@pytest.fixture
def clean_modules() -> Iterator[None]:
    before, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(before):
        if name.startswith("shoal_own"):
            del sys.modules[name]
    sys.path[:] = path


def test_one_s_own_method(capsys: Output, clean_modules: None) -> None:
    """By its file's name, wherever that lies; and a model of it imports nothing by itself."""
    method = own("here")
    assert train("--algorithm", method, "--out", "run") == 0
    name = run_of("run")["algorithm"]
    assert re.fullmatch(r"mine\.py:Mine@[0-9a-f]{8}", name)
    assert run_of("run")["hparams"]["strength"] == 2
    capsys.readouterr()
    assert train("--algorithm", own("there"), "--out", "run") == 0
    assert "This run was already done." in capsys.readouterr().out
    assert main(["eval", "run", "--dataset", "tiny"]) == 2
    assert capsys.readouterr().err == (
        f"shoal: the model was trained with your own method {name}, which a file must not import; "
        "name it with --algorithm\n"
    )
    assert main(["eval", "run", "--dataset", "tiny", "--algorithm", method]) == 0
    told = refused(capsys, "--algorithm", own("changed", "3"), "--out", "run")
    assert "is the folder of another run (algorithm" in told  # other code is another method


def test_hyperparameters_that_cannot_be_saved(capsys: Output, clean_modules: None) -> None:
    told = refused(capsys, "--algorithm", own("here", "np.int64(2)"), "--out", "run")
    assert told == (
        "the hyperparameter strength must be a bool, int, float or str, because it is saved as "
        "JSON, got int64"
    )
    assert not Path("run").exists()


# A trained model


def test_eval(capsys: Output) -> None:
    assert train("--out", "run", "--trial", 3, "--evaluate", "all") == 0
    capsys.readouterr()
    assert main(["eval", "run", "--dataset", "tiny", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {domain: row["images"] for domain, row in found.items()} == {"a": 23, "b": 25, "c": 15}
    last = json.loads(Path("run/records.jsonl").read_text().splitlines()[-1])["accuracy"]
    kept, held_out = 12, 3
    both = (last["c"]["kept"] * kept + last["c"]["held_out"] * held_out) / (kept + held_out)
    assert found["c"]["accuracy"] == pytest.approx(both)
    assert main(["eval", "run/model.safetensors", "--dataset", "tiny", "--domain", "c"]) == 0
    lines = words(capsys.readouterr().out)
    assert lines[:2] == [
        "Fishr: run/model.safetensors on tiny",
        "Domain images accuracy % calibration error",
    ]
    accuracy, error = found["c"]["accuracy"], found["c"]["calibration_error"]
    assert lines[3:] == [f"c 15 {100 * accuracy:.1f} {error:.3f}"]
    assert main(["eval", "run", "--dataset", "tiny"]) == 0
    names = [line.partition(" 2")[0] for line in words(capsys.readouterr().out)[3:5]]
    assert names == ["a (trained on)", "b (trained on)"]
    assert main(["eval", "run", "--dataset", "tiny", "--json", "--trial", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["a"]["images"] == 20


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere", "--dataset", "tiny"), "there is no folder nowhere"),
        (("run", "--dataset", "tinny"), "did you mean 'tiny'?"),
        (("run", "--dataset", "tiny", "--domain", "x"), "unknown domain of tiny 'x'"),
        (
            ("run", "--dataset", "other"),
            "the model takes inputs of shape [1, 8, 8], those of other",
        ),
    ],
)
def test_eval_that_cannot_be(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.setitem(DATASETS, "other", lambda *_: squares((9,), "other", side=14))
    assert train("--out", "run", "--steps", 1) == 0
    capsys.readouterr()
    assert main(["eval", *arguments]) == 2
    assert told in capsys.readouterr().err


# Folders of images


@pytest.fixture
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network for images of 224 × 224 that takes no time: ``--network small``."""
    real = model.for_data

    def build() -> Network:
        features = nn.Sequential(nn.AvgPool2d(28), nn.Flatten(), nn.Linear(3 * 64, 5), nn.Tanh())
        return Network(features, nn.Linear(5, 2), IMAGENET)

    def for_data(shape: Any, classes: int, *, generator: torch.Generator, **rest: Any) -> Network:
        if rest["name"] != "small":
            return real(shape, classes, generator=generator, **rest)
        assert tuple(shape) == (3, 224, 224)
        return draw_weights(build, generator)

    monkeypatch.setattr(model, "for_data", for_data)
    monkeypatch.setitem(NETWORKS, "small", "224 × 224 images")
    monkeypatch.setattr(registry, "DRAWN", (*registry.DRAWN, "small"))


def images(root: Path = Path("set"), each: int = 5) -> Path:
    for number, domain in enumerate(("art", "photo")):
        for kind in ("cat", "dog"):
            for k in range(each):
                photograph(root / domain / kind / f"{k}.png", 20 + 9 * k, 30, 10 * number + k)
    return root


def train_images(*arguments: object, root: str = "./set") -> int:
    given = ("--dataset", root, "--network", "small", "--weights", "none", "--out", "run")
    given += ("--steps", "3", "--record-every", "2", "--cache", "cache", "--set", "batch_size=2")
    return main(["train", *given, *map(str, arguments)])


@pytest.mark.parametrize(
    "more", [(), ("--place", "device"), ("--no-augment",), ("--exact", "--evaluate", "all")]
)
def test_images_of_one_s_own(capsys: Output, small_network: None, more: tuple[str, ...]) -> None:
    images()
    assert train_images("--test-domain", "photo", "--predictions", *more) == 0
    out, _ = capsys.readouterr()
    assert "photo (test)" in out
    assert run_of("run")["dataset"] == "set"
    assert run_of("run")["protocol"]["images"] == ("exact" if "--exact" in more else "cached")
    lines = [json.loads(line) for line in Path("run/predictions.jsonl").read_text().splitlines()]
    mine = [line for line in lines if line["domain"] == "photo"]
    assert sorted((line["label"], line["file"]) for line in mine) == [
        (kind, f"{k}.png") for kind in ("cat", "dog") for k in range(5)
    ]
    assert main(["eval", "run", "--dataset", "set", "--cache", "cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["photo"]["images"] == 10


def test_images_on_the_host_and_on_the_device(small_network: None) -> None:
    """The same run, bit for bit, wherever they lie."""
    images()
    found = []
    for place in ("host", "device"):
        assert train_images("--test-domain", "photo", "--place", place, "--out", place) == 0
        found.append((Path(place) / "records.jsonl").read_bytes())
        found.append((Path(place) / "model.safetensors").read_bytes())
    assert found[:2] == found[2:]


def test_a_name_before_a_folder(capsys: Output, small_network: None) -> None:
    """``tiny`` is the data set, ``./tiny`` a folder beside."""
    images(Path("tiny"))
    assert train("--out", "named") == 0
    assert train_images(root="./tiny") == 0
    assert run_of("named")["fingerprint"] != run_of("run")["fingerprint"]
    images(Path("mine"))
    assert train_images("--out", "other", root="mine") == 0


def damaged(capsys: Output, *arguments: object) -> str:
    assert train_images(*arguments) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("shoal: ")
    return err.removeprefix("shoal: ")


def test_a_truncated_image(capsys: Output, small_network: None) -> None:
    path = photograph(images() / "art" / "cat" / "z.jpg", 90, 80)
    path.write_bytes(path.read_bytes()[:900])
    assert damaged(capsys).startswith("cannot read set/art/cat/z.jpg: ")
    path.unlink()
    assert train_images() == 0  # into the same folder


def test_text_that_is_called_an_image(capsys: Output, small_network: None) -> None:
    (images() / "photo" / "dog" / "notes.png").write_text("these are notes")
    told = damaged(capsys)
    assert told.startswith("cannot read set/photo/dog/notes.png: not an image file")


def test_an_empty_class_folder(capsys: Output, small_network: None) -> None:
    (images() / "photo" / "horse").mkdir()
    assert damaged(capsys) == ("class folders without a file: set/photo/horse; fill or remove them")


def test_a_class_in_one_domain_only(capsys: Output, small_network: None) -> None:
    photograph(images() / "photo" / "dog" / "9.png", 30, 30)
    for path in Path("set/art/dog").iterdir():
        path.unlink()
    Path("set/art/dog").rmdir()
    assert train_images("--test-domain", "photo") == 0
    assert "shoal: the domain 'art' has no images of dog\n" in capsys.readouterr().err


def test_one_class_in_all(capsys: Output, small_network: None) -> None:
    for domain in images().iterdir():
        shutil.rmtree(domain / "dog")
    told = "only one class (cat) was found in set; expected <domain>/<class>/<file>, or a table"
    assert damaged(capsys).startswith(told)
    assert not Path("run").exists()
    given = ["--algorithms", "erm", "--datasets", "./set", "--out", "sweep", "--cache", "cache"]
    assert main(["sweep", *given]) == 2
    assert told in capsys.readouterr().err


def test_a_network_that_has_no_weights(capsys: Output) -> None:
    images()
    given = ["train", "--dataset", "./set", "--network", "mnist-cnn", "--cache", "cache"]
    given += ["--steps", "1", "--set", "batch_size=2", "--test-domain", "photo"]
    assert main([*given, "--weights", "imagenet", "--out", "other"]) == 2
    told = capsys.readouterr().err
    assert "the network mnist-cnn begins with drawn weights and has no others, got 'imag" in told
    assert "; drop --weights, or give --weights none" in told
    assert not Path("cache").exists() and not Path("other").exists()  # nothing was decoded for it
    assert main([*given, "--out", "run"]) == 0
    assert "batch norm" not in capsys.readouterr().err  # it has none
    assert run_of("run")["protocol"]["weights"] is None


def test_one_image_in_a_domain(capsys: Output, small_network: None) -> None:
    photograph(images() / "lonely" / "cat" / "0.png", 30, 30)
    assert train_images("--test-domain", "photo") == 0
    out, err = capsys.readouterr()
    assert "the domain 'lonely' has 1 images, too few to hold any out" in err
    assert "the domain 'lonely' has 1 images to train on, fewer than a batch of 2" in err
    assert "lonely" not in out  # nothing of it can be measured


def test_a_batch_larger_than_a_domain(capsys: Output, small_network: None) -> None:
    images()
    given = ["--dataset", "./set", "--network", "small", "--weights", "none", "--out", "run"]
    given += ["--steps", "1", "--cache", "cache", "--set", "batch_size=9"]
    assert main(["train", *given]) == 0
    assert (
        "shoal: the domain 'art' has 8 images to train on, fewer than a batch of 9: images repeat "
        "within a batch\n"
    ) in capsys.readouterr().err


def test_a_real_network(capsys: Output) -> None:
    """EfficientNet-Lite0 with weights of ImageNet, on images of one's own; the only slow one."""
    images(each=2)
    given = ["--dataset", "./set", "--network", "efficientnet-lite0", "--out", "run"]
    given += ["--steps", "1", "--cache", "cache", "--set", "batch_size=1", "--test-domain", "art"]
    assert main(["train", *given]) == 0
    assert run_of("run")["protocol"]["weights"] == "imagenet"
    record = json.loads(Path("run/records.jsonl").read_text())
    capsys.readouterr()
    assert main(["eval", "run", "--dataset", "set", "--cache", "cache", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["art"]["accuracy"] == record["accuracy"]["art"]["kept"]  # four, none held out


# The live line


def at(done: int, **changes: Any) -> Progress:
    record = Record(
        step=done,
        terms={"loss": 0.12345},
        accuracy={"art_painting": {"held_out": 0.5}, "sketch": {"kept": 0.25, "held_out": 1.0}},
    )
    values = {"done": done, "steps": 5001, "rate": 2345.6, "seconds_left": 3725.0, "record": record}
    return Progress(**values | changes)


def screen(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal(columns: int, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with run_progress("fishr on [pacs]") as shown:
        shown.show(at(0, seconds_left=None, rate=0.0, record=None))
        shown.show(at(150))
        print("shoal: a note", file=sys.stderr)
    shown = screen(capsys.readouterr().err)
    assert "shoal: a note\n" in shown
    *_, bar, record = shown.rstrip().splitlines()
    assert re.fullmatch(
        r"\s*fishr on \[pacs\] [━╸╺ ]+ +150/5001 2,346 images/s, 1:02:05 left", bar.rstrip()
    )
    assert record.strip() == "loss 0.123; art_painting 50%, sketch 25%"
    assert all(len(line.rstrip()) <= columns for line in re.split(r"[\r\n]", shown))


def test_a_terminal_at_the_very_beginning(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anyone knows how many steps there are."""
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with run_progress("fishr on pacs"):
        pass
    assert "preparing" in screen(capsys.readouterr().err)


def test_without_a_terminal(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line every quarter of a minute, and one in the end."""
    clock = ModuleType("clock")
    now = [0.0]
    clock.monotonic = lambda: now[0]  # type: ignore[attr-defined]
    monkeypatch.setattr(progress, "time", clock)
    with run_progress("fishr on pacs") as shown:
        for seconds, done in ((1, 0), (14, 100), (16, 200), (20, 300), (32, 400), (33, 5001)):
            now[0] = float(seconds)
            shown.show(at(done))
    lines = capsys.readouterr().err.splitlines()
    assert [int(re.findall(r"step (\d+)", line)[0]) for line in lines] == [200, 400, 5001]
    assert lines[0] == (
        "fishr on pacs: step 200 of 5001, 2,346 images/s, 1:02:05 left, "
        "loss 0.123; art_painting 50%, sketch 25%"
    )


def test_records_without_a_loss_or_an_accuracy(capsys: Output) -> None:
    with run_progress("x") as shown:
        shown.show(at(5001, record=Record(step=5000, accuracy={})))
        shown.show(at(5001, record=None, seconds_left=None))
    assert capsys.readouterr().err.count("x: step 5001 of 5001") == 2


# Small images in files


@pytest.mark.usefixtures("no_probe")
def test_a_network_for_small_images_gets_those_of_files_resized(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works at 224 × 224, and says so: nothing else would show that 28 × 28 were enlarged."""
    for domain, kind in product("ab", "xy"):
        photograph(tmp_path / "small" / domain / kind / "0.png", 28, 28)
    dataset = load_dataset("small", None)
    report_resizing(dataset, "mnist-cnn")
    told = capsys.readouterr().err
    assert "mnist-cnn is made for 28 × 28 images, and gets these at 224 × 224" in told
    assert "tensors in Python" in told
    for network in (None, "resnet50", "efficientnet-lite0", "timm:resnet18"):
        report_resizing(dataset, network)
    report_resizing(squares((4, 4), "tiny", side=28), "mnist-cnn")
    assert capsys.readouterr().err == ""
    assert main(["train", "--dataset", "small", "--network", "wide-resnet"]) == 2
    told = capsys.readouterr().err
    assert "wide-resnet is made for 32 × 32 images, and gets these at 224 × 224" in told
    assert "wide-resnet takes 32 × 32 images, got 224 × 224" in told
    sweep = "sweep --algorithms erm --datasets small --network mnist-cnn --plan-only --out out"
    assert main(sweep.split()) == 0
    assert "mnist-cnn is made for 28 × 28 images" in capsys.readouterr().err
