"""A run with averages: the run itself stays as it is; averages have their own file and models."""

import os
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import shoal
from shoal.cli.options import averages_of
from shoal.datasets import splits
from shoal.networks import Network
from shoal.networks.backbones import with_head
from shoal.networks.base import draw_weights
from shoal.results.averages import AVERAGES_FILE, read_averages, with_averages
from shoal.results.records import read_runs
from shoal.runs.model import load
from shoal.training.averages import STATISTICS
from tests.training.little import watching

from .killing import content
from .small import CPU, carry_out, tiny, tiny_run
from .test_execute import Killed

ALL = ("sma", "half", "swad")
RUN = {"steps": 124, "record_every": 40}


def with_batch_norm(shape: Any, classes: int, *, generator: torch.Generator, **_: Any) -> Network:
    """Return a network whose batch norm follows the data."""

    def build() -> nn.Module:
        layers = [nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())

    return with_head(draw_weights(build, generator), 16, classes, 0.0, False, None, generator)


@pytest.fixture
def few_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train that network, quickly."""
    monkeypatch.setattr("shoal.runs.model.for_data", with_batch_norm)
    monkeypatch.setattr("shoal.training.averages.STATISTICS", 2)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("few_weights")
def test_averages_change_no_byte_of_the_run(tmp_path: Path) -> None:
    carry_out(tmp_path / "plain", tiny_run(**RUN))
    carry_out(tmp_path / "averaged", tiny_run(**RUN), machine={"averages": ALL})
    for name in ("records.jsonl", "run.json", "model.safetensors", "model.json"):
        plain, averaged = (tmp_path / one / name for one in ("plain", "averaged"))
        assert plain.read_bytes() == averaged.read_bytes(), name
    assert not (tmp_path / "plain" / AVERAGES_FILE).exists()
    found = read_averages(tmp_path / "averaged")
    assert [one.extra["average"] for one in found if one.step == 123] == list(ALL)
    # SWAD does not start while the loss keeps falling, as here.
    assert found[-1].extra == {
        "average": "swad",
        "updates": [121, 123],
        "converged": False,
        "t_s": None,
        "t_e": None,
    }
    rows = with_averages(read_runs([tmp_path / "averaged"]))
    assert [row.algorithm for row in rows] == ["fishr", *(f"fishr+{name}" for name in ALL)]


@pytest.mark.parametrize("follows", [False, True])
def test_every_average_is_a_model_of_its_own(
    tmp_path: Path, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predictions are those that were recorded, also where batch norm follows the data."""
    if follows:
        monkeypatch.setattr("shoal.runs.model.for_data", with_batch_norm)
    machine = {"averages": ALL, "predictions": True}
    carry_out(tmp_path, tiny_run("erm", **RUN, lr=1e-2), machine=machine)
    logits, dataset = load_file(tmp_path / "logits.safetensors"), tiny()
    kept = splits(dataset, 0)["c"].kept
    images, own = torch.as_tensor(dataset["c"].images)[kept], load(tmp_path, CPU)
    records = {one.extra["average"]: one for one in read_averages(tmp_path)}
    for name in ALL:
        model = load(tmp_path / "averages" / name, CPU)
        assert model.row == f"erm+{name}" and own.row == "erm"
        entries = {key: value for key, value in records[name].extra.items() if key != "average"}
        assert model.card["average"] == {"name": name, **entries}
        assert model.card["accuracy"] == records[name].accuracy
        assert model.card["step"] == 123
        with torch.no_grad():
            found = model.algorithm.predict(images.float() / 255)
        if follows:  # over so many batches, and not those of training
            (norm,) = (m for m in model.algorithm.modules() if isinstance(m, nn.BatchNorm2d))
            assert norm.num_batches_tracked == STATISTICS != RUN["steps"]
        stored = logits[f"{name}/c/kept"]
        torch.testing.assert_close(found.half(), stored, rtol=2e-3, atol=2e-3)
        assert not torch.equal(stored, logits["last/c/kept"])
        probabilities = shoal.load(tmp_path / "averages" / name, "cpu").probabilities(images)
        torch.testing.assert_close(probabilities, found.softmax(1))


def test_a_damaged_model_of_an_average_names_the_run(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run("erm"), machine={"averages": ("half",)})
    (tmp_path / "averages" / "half" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=rf"is damaged, .* or delete {tmp_path} and run the comm"):
        load(tmp_path / "averages" / "half", CPU)


@pytest.mark.usefixtures("few_weights")
def test_a_killed_run_ends_with_the_same_averages(tmp_path: Path) -> None:
    carry_out(tmp_path / "whole", tiny_run(**RUN), machine={"averages": ALL})
    for kill in (30, 70, 100):

        def die(progress: object, at: int = kill) -> None:
            if progress.done > at:  # type: ignore[attr-defined]
                raise Killed

        with pytest.raises(Killed):
            carry_out(
                tmp_path / "killed",
                tiny_run(**RUN),
                every=0.0,
                machine={"averages": ALL},
                watcher=watching(progress=die),
            )
    carry_out(tmp_path / "killed", tiny_run(**RUN), every=0.0, machine={"averages": ALL})
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


@pytest.mark.usefixtures("few_weights")
def test_a_kill_between_any_two_writes_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("erm", lr=1e-3)
    machine = {"averages": ALL, "keep_best": ("training-domain", "leave-one-domain-out")}
    replace, writer = os.replace, threading.main_thread()
    carry_out(tmp_path / "whole", run, machine=machine)
    expected = content(tmp_path / "whole")
    models = {file for file in expected if file.endswith("model.json")}
    assert models == {
        "model.json",
        "kept/step-0000000/model.json",
        "kept/step-0000005/model.json",
        "averages/sma/model.json",
        "averages/sma/kept/step-0000005/model.json",
        "averages/half/model.json",
        "averages/half/kept/step-0000005/model.json",
    }
    for last in count():
        written = 0

        def move(source: Any, target: Any, last: int = last) -> None:
            nonlocal written
            if threading.current_thread() is writer:  # checkpoints have a thread of their own
                if written == last:
                    raise Killed
                written += 1
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", move)
            try:
                carry_out(tmp_path / f"{last}", run, every=0.0, machine=machine)
                break
            except Killed:
                pass
        if last % 2:  # it can also die of a kill that leaves a file half written
            (tmp_path / f"{last}" / "averages" / "sma").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{last}" / "averages" / "sma" / ".model.json.1.0123abcd").touch()
        carry_out(tmp_path / f"{last}", run, every=0.0, machine=machine)
        assert content(tmp_path / f"{last}") == expected, last
    assert last > 20


@pytest.mark.usefixtures("few_weights")
def test_averages_that_a_run_loses_leave_nothing(tmp_path: Path) -> None:
    """A run that stopped with averages and resumes without them has no row of half its records."""

    def die(records: list[Any]) -> None:
        if records and records[-1].step >= 80:
            raise Killed

    machine = {"averages": ALL, "keep_best": ("leave-one-domain-out",)}
    with pytest.raises(Killed):
        carry_out(tmp_path, tiny_run(**RUN), 0.0, machine=machine, watcher=watching(records=die))
    assert (tmp_path / AVERAGES_FILE).exists() and (tmp_path / "averages" / "half").is_dir()
    machine["averages"] = ("sma",)
    with pytest.raises(Killed):
        carry_out(tmp_path, tiny_run(**RUN), 0.0, machine=machine, watcher=watching(records=die))
    assert {one.extra["average"] for one in read_averages(tmp_path)} == {"sma"}
    carry_out(tmp_path, tiny_run(**RUN))
    assert not (tmp_path / AVERAGES_FILE).exists()
    assert not list((tmp_path / "averages").glob("*"))


def test_a_finished_run_stays_valid_without_averages(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run(**RUN))
    carry_out(tmp_path, tiny_run(**RUN), machine={"averages": ALL})
    assert not (tmp_path / AVERAGES_FILE).exists()


def test_logits_of_the_last_weights_and_of_averages(tmp_path: Path) -> None:
    machine = {"averages": ("half",), "predictions": True}
    result = carry_out(tmp_path, tiny_run(**RUN), machine=machine)
    logits = load_file(tmp_path / "logits.safetensors")
    averages = {one.step: one for one in read_averages(tmp_path)}
    for name, record in (("last", result.records[-1]), ("half", averages[123])):
        for domain, measured in record.accuracy.items():
            for split, accuracy in measured.items():
                right = logits[f"{name}/{domain}/{split}"].float().argmax(1)
                labels = logits[f"labels/{domain}/{split}"]
                assert float((right == labels).double().mean()) == pytest.approx(accuracy)
    logit_types = {value.dtype for key, value in logits.items() if not key.startswith("labels/")}
    assert logit_types == {torch.float16}
    assert not any(key.startswith("swad/") for key in logits)


@pytest.mark.parametrize(
    ("words", "names"),
    [(["all"], ALL), (["none"], ()), (["swad", "sma", "swad"], ("swad", "sma"))],
)
def test_the_option(words: list[str], names: tuple[str, ...]) -> None:
    assert averages_of(words) == names


def test_none_goes_alone() -> None:
    with pytest.raises(ValueError, match="--average none goes alone, got none sma"):
        averages_of(["none", "sma"])
