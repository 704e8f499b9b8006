"""A run carried out: what it leaves, what it says, and what another go changes."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.algorithms import find
from shoal.datasets import Domain, DomainDataset, splits
from shoal.networks import Network
from shoal.networks.backbones import Features
from shoal.networks.base import Dropout
from shoal.results.records import timing_of
from shoal.runs.execute import execute
from shoal.runs.folder import RunFolder, open_run_folder
from shoal.runs.machine import Machine, processor
from shoal.runs.prepare import cautions_for, prepare
from shoal.runs.run import Run
from shoal.training.checkpoints import Checkpoints
from tests.training.little import watching

from .small import CPU, carry_out, tiny, tiny_run

FILES = ["done", "lock", "model.json", "model.safetensors", "records.jsonl", "run.json"]


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_a_run_leaves(tmp_path: Path) -> None:
    result = carry_out(tmp_path, tiny_run(), every=0.0)
    assert names(tmp_path) == sorted([*FILES, "timing.json"])  # and no checkpoints
    assert lines(tmp_path / "records.jsonl") == [record.to_json() for record in result.records]
    assert [record.step for record in result.records] == [0, 5, 6]
    about = json.loads((tmp_path / "timing.json").read_text())
    assert about["updates"] == 7
    assert about["place"] == "device"
    assert about["machine"] == {
        "device": "cpu",
        "processor": processor(),
        "torch": torch.__version__,
        "python": about["machine"]["python"],
        "threads": torch.get_num_threads(),
    }
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["accuracy"] == result.records[-1].accuracy
    assert card["training_domains"] == ["a", "b"]
    assert card["step"] == 6


def test_records_have_no_time_and_no_machine(tmp_path: Path) -> None:
    """So that two runs can be compared bit for bit, wherever their images lie."""
    found = []
    for where in ("device", "host"):
        path = tmp_path / where
        carry_out(path, tiny_run(), machine={"place": where})
        found.append([(path / name).read_bytes() for name in FILES])
        assert json.loads((path / "timing.json").read_text())["place"] == where
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [None, 3])
def test_micro_batches_are_told(size: int | None, tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run("erm", steps=1), machine={"micro_batch": size})
    assert json.loads((tmp_path / "timing.json").read_text())["micro_batch"] == size


def test_evaluated_is_what_selection_needs(tmp_path: Path) -> None:
    needed = carry_out(tmp_path / "needed", tiny_run()).records[-1].accuracy
    everything = carry_out(tmp_path / "all", tiny_run(evaluate="all")).records[-1].accuracy
    assert {domain: list(found) for domain, found in needed.items()} == {
        "a": ["held_out"],
        "b": ["held_out"],
        "c": ["kept", "held_out"],
    }
    assert all(list(found) == ["kept", "held_out"] for found in everything.values())
    for domain, found in needed.items():
        assert found.items() <= everything[domain].items()


def test_without_test_domains_all_are_trained_on(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run(test_domains=()))
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["training_domains"] == ["a", "b", "c"]
    assert card["test_domains"] == []


def test_all_methods_see_the_same_batches() -> None:
    found = []
    for name in ("erm", "fishr", "dann"):
        _, update = prepare(
            tiny_run(name), find(name), tiny(), None, Machine(device=CPU, step="eager")
        )
        found.append([tensor for _ in range(3) for batch in update.batches() for tensor in batch])
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_every_option_of_the_training_does_something(tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "sgd": {"optimiser": "sgd"},
        "adamw": {"optimiser": "adamw", "weight_decay": 0.1},
        "cosine": {"schedule": "cosine"},
        "clip": {"optimiser": "sgd", "clip": 0.01},  # Adam's steps have their own size
        "balanced": {"balanced": True},
        "bf16": {"precision": "bf16"},
        "holdout": {"holdout": 0.5},
        "trial": {"trial": 1},
    }
    found = {}
    for name, change in changes.items():
        carry_out(tmp_path / name, tiny_run("erm", **change))
        found[name] = (tmp_path / name / "model.safetensors").read_bytes()
    same = {(a, b) for a in found for b in found if a < b and found[a] == found[b]}
    assert not same


# What the model says of every image


@pytest.mark.parametrize("evaluate", ["needed", "all"])
def test_predictions_and_confusion_agree_with_the_accuracies(tmp_path: Path, evaluate: str) -> None:
    run = tiny_run("erm", evaluate=evaluate, steps=12)
    last = carry_out(tmp_path, run, machine={"predictions": True}).records[-1]
    said, dataset = lines(tmp_path / "predictions.jsonl"), tiny()
    table = json.loads((tmp_path / "confusion.json").read_text())
    assert table["classes"] == ["left", "right"]
    places = [(domain, split) for domain, found in last.accuracy.items() for split in found]
    for domain, split in places:
        mine = [line for line in said if (line["domain"], line["split"]) == (domain, split)]
        indices = getattr(splits(dataset, 0)[domain], split)
        assert [line["index"] for line in mine] == indices.tolist()
        for line in mine:
            assert dataset.classes[dataset[domain].labels[line["index"]]] == line["label"]
            assert 0.5 <= line["probability"] <= 1
        right = sum(line["label"] == line["prediction"] for line in mine)
        assert right / len(mine) == pytest.approx(last.accuracy[domain][split])
        counts = table["counts"][domain][split]
        assert sum(map(sum, counts)) == len(mine)
        assert counts[0][0] + counts[1][1] == right
        assert counts[0][1] == sum(
            (line["label"], line["prediction"]) == ("left", "right") for line in mine
        )
    assert len(said) == sum(
        len(getattr(splits(dataset, 0)[domain], split)) for domain, split in places
    )


def test_no_predictions_unless_asked(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run())
    assert not (tmp_path / "predictions.jsonl").exists()
    told: list[str] = []
    carry_out(
        tmp_path, tiny_run(), machine={"predictions": True}, watcher=watching(note=told.append)
    )
    assert told == [f"{tmp_path} is done and was trained without --predictions"]


# A run that is done


def test_a_run_that_is_done_returns_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = carry_out(tmp_path, tiny_run())
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    monkeypatch.setattr("shoal.runs.execute.prepare", None)
    seen: list[Any] = []
    again = carry_out(tmp_path, tiny_run(), watcher=watching(records=seen.append))
    assert again.records == first.records
    assert seen == [list(first.records)]  # curves can be drawn afterwards
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_killed_before_its_checkpoints_were_deleted(tmp_path: Path) -> None:
    run = tiny_run()
    carry_out(tmp_path, run)
    left = Checkpoints(tmp_path / "checkpoints", run.identity)
    left.take(3, {"update": {}, "records": []})
    left.close()
    carry_out(tmp_path, run)
    assert not (tmp_path / "checkpoints").exists()


def test_done_without_records_is_told(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run())
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(ValueError, match="is done but has no records; move it away"):
        carry_out(tmp_path, tiny_run())


# Going on


class Killed(BaseException):
    """As if the process had been killed."""


def killed_after(path: Path, run: Run, step: int) -> None:
    """Carry a run out with checkpoints until this record, and no further."""

    def recorded(records: list[Any]) -> None:
        if records and records[-1].step >= step:
            raise Killed

    with pytest.raises(Killed):
        carry_out(path, run, every=0.0, watcher=watching(records=recorded))


def test_a_damaged_checkpoint_is_told_at_once_and_the_one_before_used(tmp_path: Path) -> None:
    run = tiny_run(steps=12, record_every=3)
    expected = carry_out(tmp_path / "whole", run)
    killed_after(tmp_path / "killed", run, 9)
    *_, newest = sorted((tmp_path / "killed" / "checkpoints").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:1000])
    told: list[str] = []
    began: list[int] = []
    result = carry_out(
        tmp_path / "killed",
        run,
        watcher=watching(note=told.append, records=lambda _: began.append(len(told))),
    )
    assert told == [f"{newest} is truncated or damaged; it is ignored"]
    assert began[0] == 1  # before the first update
    assert result.records == expected.records
    for name in FILES:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_records_beyond_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    run = tiny_run(steps=12, record_every=3)
    expected = carry_out(tmp_path / "whole", run)
    killed_after(tmp_path / "killed", run, 9)
    for path in (tmp_path / "killed" / "checkpoints").glob("step-*"):
        path.unlink()
    assert len(RunFolder(tmp_path / "killed").records()) == 4
    seen: list[int] = []
    result = carry_out(
        tmp_path / "killed", run, watcher=watching(records=lambda r: seen.append(len(r)))
    )
    assert seen[0] == 0
    assert result.records == expected.records


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(ValueError, match="is in use by another process")
    with open_run_folder(tmp_path, tiny_run()), refused:
        carry_out(tmp_path, tiny_run())


def full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_in_the_end_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run()
    expected = carry_out(tmp_path / "whole", run)
    with monkeypatch.context() as patch:
        patch.setattr("shoal.runs.model.write_aside", full)
        with pytest.raises(OSError, match=r"cannot be written: No space .* the same command again"):
            carry_out(tmp_path / "full", run, every=0.0)
    assert not (tmp_path / "full" / "done").exists()
    assert list((tmp_path / "full" / "checkpoints").glob("step-*"))
    result = carry_out(tmp_path / "full", run)
    assert result.records == expected.records
    timing = timing_of(result)
    assert timing is not None and timing.updates < 7


def test_a_full_disk_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shoal.runs.folder.write_text", full)
        with pytest.raises(OSError, match="cannot be written: No space left on device; make room"):
            carry_out(tmp_path, tiny_run())
    assert threading.active_count() < 20
    carry_out(tmp_path, tiny_run())
    assert (tmp_path / "done").exists()


# What a user should know


def with_domain(dataset: DomainDataset, count: int, label: int | None = None) -> DomainDataset:
    """The data set with one more domain of so many images."""
    first = dataset["a"]
    chosen = torch.arange(len(first))
    if label is not None:
        chosen = chosen[first.labels == label]
    chosen = chosen[:count]
    images = torch.as_tensor(first.images)[chosen]
    more = Domain("few", first.labels[chosen], images)
    return replace(dataset, domains=(*dataset.domains, more), order=())


def told(dataset: DomainDataset, features: nn.Module | None = None, **changes: Any) -> list[str]:
    algorithm = find("erm")(Network(features or nn.Flatten(), nn.Linear(2, 2)), 2)
    return cautions_for(replace(tiny_run(), **changes), dataset, algorithm)


def test_notes() -> None:
    assert told(tiny()) == []
    assert told(with_domain(tiny(), 1, 0)) == [
        "the domain 'few' has 1 images to train on, fewer than a batch of 4: images repeat within "
        "a batch",
        "the domain 'few' has 1 images, too few to hold any out: model selection ignores it",
        "the domain 'few' has no images of right",
    ]
    # What is not trained on needs no batch.
    assert told(with_domain(tiny(), 3), test_domains=("few",)) == [
        "the domain 'few' has 3 images, too few to hold any out: model selection ignores it"
    ]
    hparams = {**tiny_run().hparams, "batch_size": 33}
    assert [note.split(",")[0] for note in told(tiny(), hparams=hparams)] == [
        "the domain 'a' has 32 images to train on"
    ]


def test_a_note_on_miro_from_random_weights() -> None:
    dataset, run = tiny(), replace(tiny_run("miro"), protocol=tiny_run().protocol)
    method = find("miro")(Network(nn.Flatten(), nn.Linear(2, 2)), 2)
    (note,) = cautions_for(run, dataset, method)
    assert "MIRO keeps it near them" in note
    trained = replace(run, protocol=replace(run.protocol, weights="imagenet"))
    assert cautions_for(trained, dataset, method) == []


def test_a_note_on_holding_nothing_out() -> None:
    protocol = replace(tiny_run().protocol, holdout=0.0)
    assert told(with_domain(tiny(), 3), protocol=protocol, test_domains=("few",)) == [
        "holdout is 0: nothing is held out, so no rule can select a model"
    ]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("weights", [None, "imagenet"])
def test_a_note_on_statistics_that_stay(
    frozen: bool, norm: type[nn.Module], weights: str | None
) -> None:
    dropout = Dropout(0.0, torch.Generator())
    features = Features(nn.Sequential(nn.Conv2d(2, 2, 3), norm(2)), dropout, frozen)
    protocol = replace(tiny_run().protocol, weights=weights)
    found = told(tiny(), features, protocol=protocol)
    expected = frozen and norm is nn.BatchNorm2d and weights is None
    assert [note[:37] for note in found] == ["the network starts from random weight"] * expected


@pytest.mark.parametrize("test_domains", [("c",), ("few",)])
def test_one_image_in_a_domain(tmp_path: Path, test_domains: tuple[str, ...]) -> None:
    dataset = with_domain(tiny(), 1)
    run = replace(tiny_run(), fingerprint=dataset.fingerprint, test_domains=test_domains)
    noted: list[str] = []
    result = carry_out(tmp_path, run, dataset=dataset, watcher=watching(note=noted.append))
    found = result.records[-1].accuracy
    assert found.get("few", {}).keys() == ({"kept"} if test_domains == ("few",) else set())
    assert any("too few to hold any out" in note for note in noted)


def test_nothing_held_out_at_all(tmp_path: Path) -> None:
    noted: list[str] = []
    result = carry_out(
        tmp_path, tiny_run(holdout=0.0, test_domains=()), watcher=watching(note=noted.append)
    )
    assert noted == ["holdout is 0: nothing is held out, so no rule can select a model"]
    assert result.records[-1].accuracy == {}
    assert json.loads((tmp_path / "model.json").read_text())["accuracy"] == {}


# What is refused before anything is trained


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"test_domains": ("d",)}, "unknown domain of tiny 'd'"),
        ({"test_domains": ("a", "b", "c")}, "no domain of tiny is left"),
        ({"batch_size": 0}, "batch_size must be 1 or more, got 0"),
        ({"network": "resnet"}, "unknown network 'resnet'; did you mean 'resnet50'|'resnet18'"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        carry_out(tmp_path, tiny_run(**changes))
    assert not (tmp_path / "records.jsonl").exists()
    carry_out(tmp_path, tiny_run())  # the folder is free for the next


def test_a_nan_keeps_the_records_of_before(tmp_path: Path) -> None:
    run = tiny_run("erm", lr=1e30, steps=40)
    with pytest.raises(FloatingPointError, match=r"^ERM: \w+ was not finite at step"):
        carry_out(tmp_path, run)
    assert [record.step for record in RunFolder(tmp_path).records()][:1] == [0]
    assert not (tmp_path / "done").exists()


def test_all_options_at_once_go_on_exactly(tmp_path: Path) -> None:
    changes = {"optimiser": "adamw", "schedule": "cosine", "clip": 1.0, "balanced": True}
    run = tiny_run("fishr", record_every=2, precision="bf16", test_domains=("a", "b"), **changes)
    assert carry_out(tmp_path / "whole", run).records
    killed_after(tmp_path / "killed", run, 4)
    carry_out(tmp_path / "killed", run)
    for name in FILES:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_class_is_the_caller_s(tmp_path: Path) -> None:
    """A run names its method; nothing is imported by that name."""
    run = replace(tiny_run("erm"), algorithm="/somewhere/mine.py:Mine")
    machine = Machine(device=CPU, step="eager")
    with open_run_folder(tmp_path, run) as folder:
        execute(run, find("erm"), tiny(), None, folder, machine)
    assert json.loads((tmp_path / "model.json").read_text())["algorithm"] == run.algorithm
