"""A trained model as files: the same predictions, and nothing in a file that can do harm."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shoal.algorithms import ALGORITHMS, find
from shoal.algorithms.base import Algorithm
from shoal.algorithms.optimiser import Optimiser
from shoal.datasets import Domain, splits
from shoal.results.records import CARD, MODEL, Record
from shoal.runs import model
from shoal.runs.machine import Machine
from shoal.runs.model import measure
from shoal.runs.prepare import prepare
from shoal.runs.run import Run
from shoal.training.batches import scaled

from .small import CPU, carry_out, squares, tiny, tiny_run

RECORD = Record(
    step=2,
    accuracy={"a": {"held_out": 0.5}},
    calibration_error={"a": {"held_out": 0.1}},
)


def trained(run: Run, steps: int = 3) -> Algorithm:
    """Return the run's method after a few updates."""
    machine = Machine(device=CPU, step="eager")
    _, update = prepare(run, find(run.algorithm), tiny(), None, machine)
    for _ in range(steps):
        update()
    return update.algorithm


def save(folder: Path, algorithm: Algorithm, run: Run) -> None:
    model.save(folder, algorithm, run, (1, 8, 8), ("left", "right"), ("a", "b"), RECORD)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run = tiny_run("erm")
    save(folder, trained(run), run)
    return folder


def copied(saved: Path, to: Path) -> Path:
    for name in (MODEL, CARD):
        (to / name).write_bytes((saved / name).read_bytes())
    return to


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_comes_back(name: str, tmp_path: Path) -> None:
    # At its default τ SAND-mask trains nothing.
    run = tiny_run(name, **({"tau": 0.5} if name == "sand-mask" else {}))
    algorithm = trained(run)
    save(tmp_path, algorithm, run)
    found = model.load(tmp_path, CPU)
    assert type(found.algorithm) is type(algorithm)
    assert not found.algorithm.training
    assert found.run == run
    assert found.classes == ("left", "right")
    images = scaled(torch.as_tensor(tiny()["c"].images))
    algorithm.eval()
    with torch.no_grad():
        fresh = model.build(run, find(name), (1, 8, 8), 2, 2, None, CPU).eval().predict(images)
        expected, logits = algorithm.predict(images), found.algorithm.predict(images)
    assert torch.equal(logits, expected)
    assert not torch.equal(fresh, expected)


@pytest.mark.parametrize("name", ["fishr", "sagnet", "dann", "irm"])
def test_what_is_saved_is_what_predictions_need(name: str, tmp_path: Path) -> None:
    run = tiny_run(name)
    algorithm = trained(run)
    save(tmp_path, algorithm, run)
    found = load_file(tmp_path / MODEL)
    assert {f"model.{key}" for key in algorithm.model.state_dict()} <= set(found)
    optimisers = [k for k, part in algorithm.named_modules() if isinstance(part, Optimiser)]
    assert optimisers
    assert not any(key.startswith((*optimisers, "variances", "means")) for key in found)


def test_a_copy_of_the_initial_network_is_not_saved(tmp_path: Path) -> None:
    run = tiny_run("miro")
    algorithm = trained(run)
    save(tmp_path, algorithm, run)
    assert any(key.startswith("initial.") for key in algorithm.state_dict())
    assert not any(key.startswith("initial.") for key in load_file(tmp_path / MODEL))


def test_the_card(saved: Path) -> None:
    card = json.loads((saved / CARD).read_text())
    run = tiny_run("erm")
    assert card == {
        "schema": 1,
        "algorithm": "erm",
        "classes": ["left", "right"],
        "training_domains": ["a", "b"],
        "test_domains": ["c"],
        "shape": [1, 8, 8],
        "hparams": dict(run.hparams),
        "step": 2,
        "accuracy": RECORD.accuracy,
        "calibration_error": RECORD.calibration_error,
        "sha256": hashlib.sha256((saved / MODEL).read_bytes()).hexdigest(),
        "run": run.canonical(),
    }


def test_the_file_itself_can_be_named(saved: Path) -> None:
    found = model.load(saved / MODEL, CPU)
    assert found.run.algorithm == "erm"


def test_a_variant_comes_back(tmp_path: Path) -> None:
    run = replace(tiny_run("fishr"), algorithm="fishr-no-ema")
    _, update = prepare(run, find("fishr"), tiny(), None, Machine(device=CPU, step="eager"))
    save(tmp_path, update.algorithm, run)
    assert type(model.load(tmp_path, CPU).algorithm) is find("fishr")


# Files that are not as they should be


@pytest.mark.parametrize("name", [MODEL, CARD])
def test_a_missing_file(saved: Path, tmp_path: Path, name: str) -> None:
    (copied(saved, tmp_path) / name).unlink()
    with pytest.raises(ValueError, match=f"there is no {name} in {tmp_path}; has the run ended"):
        model.load(tmp_path, CPU)


@pytest.mark.parametrize("damage", [lambda c: c[:-8], lambda c: b"", lambda c: c + b"x"])
def test_a_damaged_model(saved: Path, tmp_path: Path, damage: Any) -> None:
    path = copied(saved, tmp_path) / MODEL
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"is damaged, or not a safetensors file; copy it again"):
        model.load(tmp_path, CPU)


def test_what_to_do_about_a_damaged_model_depends_on_who_made_it(
    saved: Path, tmp_path: Path
) -> None:
    (copied(saved, tmp_path) / CARD).write_text("{")
    with pytest.raises(ValueError, match="or run the 'shoal fit' command again"):
        model.load(tmp_path, CPU)
    (tmp_path / "run.json").touch()
    with pytest.raises(ValueError, match=f"delete {tmp_path} and run the command that"):
        model.load(tmp_path, CPU)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"there is no folder {tmp_path}/nothing$"):
        model.load(tmp_path / "nothing", CPU)


def with_card(folder: Path, **changes: Any) -> Path:
    card = json.loads((folder / CARD).read_text())
    content = (folder / MODEL).read_bytes()
    card |= {"sha256": hashlib.sha256(content).hexdigest()} | changes
    (folder / CARD).write_text(json.dumps(card))
    return folder


def test_a_file_of_another_kind(saved: Path, tmp_path: Path) -> None:
    (copied(saved, tmp_path) / MODEL).write_bytes(b"x" * 100)
    with_card(tmp_path)
    with pytest.raises(ValueError, match=r"damaged, or not a safetensors file; copy"):
        model.load(tmp_path, CPU)


@pytest.mark.parametrize("content", ["[]", '"card"', '{"schema": 2}', "{}"])
def test_a_card_of_another_kind(saved: Path, tmp_path: Path, content: str) -> None:
    (copied(saved, tmp_path) / CARD).write_text(content)
    with pytest.raises(ValueError, match=r"model.json is not a card of this version .*; copy it"):
        model.load(tmp_path, CPU)


def test_a_card_that_is_no_json(saved: Path, tmp_path: Path) -> None:
    (copied(saved, tmp_path) / CARD).write_text("{")
    with pytest.raises(ValueError, match=r"model.json is not valid JSON .*; copy it"):
        model.load(tmp_path, CPU)


@pytest.mark.parametrize("change", ["more", "fewer", "another shape"])
def test_tensors_that_do_not_fit(saved: Path, tmp_path: Path, change: str) -> None:
    path = copied(saved, tmp_path) / MODEL
    tensors = load_file(path)
    if change == "more":
        tensors["model.third"] = torch.zeros(2)
    elif change == "fewer":
        del tensors["model.classifier.bias"]
    else:
        tensors["model.classifier.bias"] = torch.zeros(3)
    save_file(tensors, path)
    with_card(tmp_path)
    named = "model.third" if change == "more" else "model.classifier.bias"
    with pytest.raises(ValueError, match=f"does not fit ERM: .* {named}$"):
        model.load(tmp_path, CPU)


def test_an_unknown_method(saved: Path, tmp_path: Path) -> None:
    run = tiny_run("erm").canonical() | {"algorithm": "emr"}
    with_card(copied(saved, tmp_path), run=run)
    with pytest.raises(ValueError, match="algorithm 'emr'; did you mean 'erm'"):
        model.load(tmp_path, CPU)


def test_a_file_imports_nothing(saved: Path, tmp_path: Path) -> None:
    """A card that names a module is refused; the method is given by whoever loads it."""
    (tmp_path / "harm.py").write_text("raise AssertionError('imported')")
    run = tiny_run("erm").canonical() | {"algorithm": f"{tmp_path}/harm.py:ERM"}
    with_card(copied(saved, tmp_path), run=run)
    with pytest.raises(ValueError, match=r"own method .*harm.py:ERM, which a file must not im"):
        model.load(tmp_path, CPU)
    assert type(model.load(tmp_path, CPU, find("erm")).algorithm) is find("erm")


def test_another_method_than_the_run_s(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"MTL has other hyperparameters|does not fit MTL"):
        model.load(saved, CPU, find("mtl"))
    assert type(model.load(saved, CPU, find("vrex")).algorithm) is find("vrex")  # the same network


def test_a_card_means_that_both_files_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("erm")
    algorithm = trained(run, 0)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, algorithm, run)
    assert (tmp_path / MODEL).exists()
    assert not (tmp_path / CARD).exists()


# Networks at the beginning


def test_all_methods_begin_alike() -> None:
    """With what data set, trial and test domains say, in any order, and nothing else."""

    def weights(name: str = "erm", **changes: Any) -> torch.Tensor:
        run = tiny_run(name, **changes)
        algorithm = model.build(run, find(name), (1, 8, 8), 2, 2, None, CPU)
        return torch.cat([p.detach().flatten() for p in algorithm.model.features.parameters()])

    first = weights()
    for other in ("fishr", "irm", "dann"):
        assert torch.equal(weights(other), first)
    assert torch.equal(weights(lr=0.5, steps=9, batch_size=7, draw=3), first)
    assert not torch.equal(weights(trial=1), first)
    assert not torch.equal(weights(test_domains=("b",)), first)
    both = weights(test_domains=("a", "b"))
    assert torch.equal(weights(test_domains=("b", "a")), both)


def test_what_a_network_is_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    real = model.for_data

    def for_data(*arguments: Any, generator: torch.Generator, **named: Any) -> Any:
        seen.append((*arguments, named))
        return real((2, 8, 8), 2, name="mnist-cnn", generator=generator)

    monkeypatch.setattr(model, "for_data", for_data)
    changes = {"network": "resnet50", "frozen_statistics": False, "dropout": 0.5}
    model.build(tiny_run("arm", **changes), find("arm"), (1, 8, 8), 3, 2, Path("file.pt"), CPU)
    expected = {
        "extra_channels": 1,
        "dropout": 0.5,
        "name": "resnet50",
        "weights": Path("file.pt"),
        "frozen_statistics": False,
    }
    assert seen == [((1, 8, 8), 3, expected)]


def test_safetensors_is_asked_for_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"safetensors, .*: pip install 'shoal\[cli\]'"):
        carry_out(tmp_path, tiny_run())
    assert not (tmp_path / "records.jsonl").exists()


def test_the_order_of_test_domains_does_not_matter_to_anything(tmp_path: Path) -> None:
    found = []
    for order in (("a", "c"), ("c", "a")):
        path = tmp_path / "".join(order)
        carry_out(path, tiny_run("fishr", test_domains=order))
        found.append([(path / name).read_bytes() for name in ("records.jsonl", "model.json")])
        found[-1].append((path / MODEL).read_bytes())
    assert found[0] == found[1]


# On data


@pytest.mark.parametrize("name", ["erm", "arm", "mtl"])
def test_measured_on_all_images(name: str, tmp_path: Path) -> None:
    """As in the run's last record, where kept and held out are taken together."""
    run = tiny_run(name, evaluate="all", steps=9)
    result = carry_out(tmp_path, run)
    dataset, found = tiny(), model.load(tmp_path, CPU)
    measured = measure(found, dataset, None, dataset.names)
    assert list(measured) == ["a", "b", "c"]
    for domain, values in measured.items():
        assert values["images"] == len(dataset[domain])
        if name == "erm":  # others say something else in other company
            split, accuracy = splits(dataset, 0)[domain], result.records[-1].accuracy[domain]
            right = accuracy["kept"] * len(split.kept)
            right += accuracy["held_out"] * len(split.held_out)
            assert values["accuracy"] == pytest.approx(right / len(dataset[domain]))


def test_images_are_mixed_for_methods_that_look_at_them_together(tmp_path: Path) -> None:
    """Files come class by class; a set of one class would be told another context."""
    run = tiny_run("mtl", steps=1)
    carry_out(tmp_path, run)
    found = model.load(tmp_path, CPU)
    dataset = tiny()
    first = dataset["a"]
    order = first.labels.argsort(stable=True).repeat_interleave(4)
    images = torch.as_tensor(first.images)[order]
    sorted_by_class = replace(
        dataset, domains=(Domain("a", first.labels[order], images),), order=()
    )
    seen: list[float] = []
    predict = found.algorithm.predict

    def spy(inputs: torch.Tensor) -> torch.Tensor:
        right = inputs[:, 0, 1:3, 4:6].mean((1, 2)) > inputs[:, 0, 1:3, 1:3].mean((1, 2))
        seen.append(float(right.float().mean()))
        return predict(inputs)

    found.algorithm.predict = spy  # type: ignore[method-assign]
    measure(found, sorted_by_class, None, ["a"])
    assert len(seen) == 3
    assert all(0.2 < share < 0.8 for share in seen)


def test_classes_in_another_order(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run("erm", steps=9))
    found, dataset = model.load(tmp_path, CPU), tiny()
    turned = replace(
        dataset,
        classes=("right", "left"),
        domains=tuple(replace(domain, labels=1 - domain.labels) for domain in dataset.domains),
    )
    assert measure(found, turned, None, ["c"]) == measure(found, dataset, None, ["c"])


def test_data_that_does_not_fit(saved: Path) -> None:
    found = model.load(saved, CPU)
    with pytest.raises(ValueError, match=r"takes inputs of shape \[1, 8, 8\], those of squares"):
        measure(found, squares(), None, ["a"])
    strange = replace(tiny(), classes=("left", "up"))
    with pytest.raises(ValueError, match="does not know: up; it knows left, right"):
        measure(found, strange, None, ["a"])
    with pytest.raises(ValueError, match="domain of tiny 'z'"):
        measure(found, tiny(), None, ["z"])
