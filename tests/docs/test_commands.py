"""Commands of the documents: every one runs, on small data and with few updates."""

import re
import shlex
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.cli import main
from shoal.datasets import DATASETS, DomainDataset
from shoal.experiments import colored_mnist, demo, linear, overhead
from shoal.experiments.colored_mnist import Setup
from shoal.networks import Network, registry
from shoal.networks.small import mnist_cnn
from shoal.runs.run import Run
from shoal.sweeps.attempt import attempt
from shoal.sweeps.status import RunState
from tests.docs.test_documents import DOCUMENTS, ELSEWHERE, ROOT, commands
from tests.fitting.made import write_images
from tests.results.test_domainbed import accuracies, record
from tests.runs.small import squares

pytestmark = pytest.mark.usefixtures("no_probe", "quick_figures")

NAMES = {
    "colored-mnist": ("+90%", "+80%", "-90%"),
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
    "office-home": ("Art", "Clipart", "Product", "RealWorld"),
}
# The runs of a sweep that are trained, at most.
MOST = 2
FEW = "--steps 2 --network mnist-cnn --weights none"
# Options that make a command small, by its first words.
SMALLER = {
    "sweep --algorithms erm --datasets pacs --data DIR --search mild": (
        "--steps 2 --trials 1 --draws 2 --precision float32 --set batch_size=4"
    ),
    "train": f"{FEW} --record-every 1 --precision float32 --device cpu --set batch_size=4",
    "sweep": "--steps 2 --trials 1 --draws 1 --precision float32 --set batch_size=4",
    "reproduce ablation-batch": "--steps 2 --trials 1 --precision float32",
    "reproduce ablation": f"{FEW} --trials 1 --draws 1 --precision float32",
    "reproduce overhead": "--network mnist-cnn --size 28 --batch 2 --rounds 2",
    "reproduce colored-mnist": "--restarts 1",
    "diagnose": "--images 6 --device cpu",
    "eval": "--device cpu",
}
# Commands that are parsed only, and why.
READ = {
    "shoal data download domainnet": "fetches gigabytes",
    "shoal data verify pacs": "needs the files of PACS",
    "shoal data cache pacs": "needs the files of PACS",
    "shoal fit": "runs in test_own_data.py",
    "shoal predict": "runs in test_own_data.py",
    "shoal monitor": "runs in test_own_data.py",
}


def small(name: str) -> DomainDataset:
    """Return squares with the domains of a benchmark."""
    made = squares((9, 8, 9, 8)[: len(NAMES[name])], name)
    domains = zip(made.domains, NAMES[name], strict=True)
    renamed = tuple(replace(domain, name=called) for domain, called in domains)
    return DomainDataset(name, made.classes, renamed)


def coarse(channels: int, classes: int, generator: torch.Generator) -> Network:
    """Return the network for 28 × 28 images, on images shrunk to a sixteenth."""
    network = mnist_cnn(channels, classes, generator)
    network.features.insert(0, nn.AvgPool2d(4))
    return network


def run_first(out: Path, runs: Sequence[Run], world: Any, *_: object) -> Counter[RunState]:
    """Run the first run of some methods and draws in this process, which has the small data."""
    first = {(run.algorithm, run.draw): run for run in reversed(runs)}
    for run in list(first.values())[-MOST:]:
        assert attempt(run, world, out, world.machine()) is RunState.DONE
    return Counter({RunState.DONE: len(runs)})


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put small stand-ins in place of the data and files that the documents name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("shoal.sweeps.local.run_locally", run_first)
    monkeypatch.setattr(registry, "mnist_cnn", coarse)
    for name in NAMES:
        monkeypatch.setitem(DATASETS, name, lambda root, trial, name=name: small(name))
    tiny = {"examples": 16, "hidden": 6, "jump_step": 2, "updates": 4}
    monkeypatch.setattr(colored_mnist, "Setup", lambda **more: Setup(**tiny | more))
    monkeypatch.setattr(demo, "SETUP", Setup(**tiny))
    monkeypatch.setattr(linear, "GRIDS", dict.fromkeys(linear.GRIDS, (100.0, 1000.0, 3)))
    monkeypatch.setattr(linear, "STEPS", 3)
    monkeypatch.setattr(linear.train, "__defaults__", (5,))
    monkeypatch.setattr(overhead, "WARM", 0)
    domains = ("hospital-a", "hospital-b", "hospital-c")
    for folder in ("path/to/photos", "path/to/PACS", "path/to/images", "DATA"):
        write_images(tmp_path / folder, 2, domains)
    images = sorted(Path("DATA").rglob("*.png"))
    rows = [f"{image},{image.parts[2]},{image.parts[1]}\n" for image in images]
    Path("images.csv").write_text("".join(["path,class,domain\n", *rows]))
    Path("my_methods.py").write_text(
        "from shoal.algorithms.erm import ERM\n\n\nclass Mine(ERM):\n    paper = 'none'\n"
    )
    output = tmp_path / "domainbed/output/1"
    output.mkdir(parents=True)
    (output / "results.jsonl").write_text(record(0, accuracies(0.5, 0.4)))


def train(dataset: str, test_domain: str, out: str) -> None:
    command = f"train --dataset {dataset} --test-domain={test_domain} --out {out}"
    assert main(smaller(command.split())) == 0


def smaller(words: list[str]) -> list[str]:
    """Return the words of a command and the options that make it small; the last option counts."""
    command = " ".join(words)
    more = next((v.split() for k, v in SMALLER.items() if command.startswith(k)), [])
    if "train --dataset path/" in command or "train --dataset DATA" in command:
        more += ["--network", "efficientnet-lite0"]  # for photographs
    return [word.replace("${SLURM_ARRAY_TASK_ID}", "1") for word in words] + more


PAGES = [path for path in DOCUMENTS if commands(path) and path.name not in ELSEWHERE]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.usefixtures("surroundings")
def test_commands_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.name == "diagnose.md":
        train("colored-mnist", "-90%", "RUN")
        train("DATA", "hospital-c", "MODEL")
    for archive in re.findall(r"^ *tar xzf (\S+) -C out$", path.read_text("utf-8"), re.MULTILINE):
        with tarfile.open(ROOT / archive) as records:
            records.extractall("out", filter="data")
    for command in commands(path):
        if not command.startswith(tuple(READ)):
            words = smaller(shlex.split(command, comments=True)[1:])
            assert main(words) == 0, f"{command}: {capsys.readouterr().err}"
