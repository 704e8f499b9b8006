"""What a run starts from: a fitted head, the same for all draws, kept and never fitted twice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from shoal.algorithms import find
from shoal.cli import main
from shoal.datasets import splits
from shoal.runs import start
from shoal.runs.machine import Machine
from shoal.runs.model import load
from shoal.runs.prepare import prepare
from shoal.runs.run import Protocol
from shoal.sweeps.plan import Sweep, runs_of
from shoal.training.linear_probe import LinearProbe, fit_probe
from tests.runs.small import CPU, carry_out, squares, tiny, tiny_run
from tests.runs.test_execute import Killed
from tests.sweeps.workspaces import Squares
from tests.training.little import watching

PROBED = {"start": "linear-probe"}


def head_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "start.safetensors")


def test_training_starts_with_the_head_that_was_kept(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run("erm", lr=0.0, steps=2, **PROBED))
    found = load(tmp_path, CPU).algorithm.state_dict()
    for name, tensor in head_of(tmp_path).items():
        assert torch.equal(found[f"model.classifier.{name}"], tensor)
    plain = tmp_path / "plain"
    carry_out(plain, tiny_run("erm", lr=0.0, steps=2))
    other = load(plain, CPU).algorithm.state_dict()
    assert not torch.equal(other["model.classifier.weight"], found["model.classifier.weight"])
    features = [key for key in found if key.startswith("model.features.")]
    assert features and all(torch.equal(other[key], found[key]) for key in features)
    assert not list(plain.glob("start.*"))


def test_the_probe_is_of_the_kept_images_of_the_training_domains(tmp_path: Path) -> None:
    """Its gradient is zero on them: no other domain, image or augmentation has a part in it."""
    run, dataset = tiny_run("erm", steps=1, trial=1, **PROBED), tiny()
    carry_out(tmp_path, run)
    card = json.loads((tmp_path / "start.json").read_text())
    _, update = prepare(run, find("erm"), dataset, None, Machine(device=CPU, step="eager"))
    model: Any = update.algorithm.model.eval()
    model.classifier.load_state_dict(head_of(tmp_path))
    parts = splits(dataset, 1)
    risks, held_out, deviations = [], [], []
    for name in ("a", "b"):
        images, labels = dataset[name].tensor.float() / 255, dataset[name].labels
        kept, out = parts[name]
        with torch.no_grad():
            features = model.features(images)
        risks.append(nn.functional.cross_entropy(model.classifier(features[kept]), labels[kept]))
        held_out.append(nn.functional.cross_entropy(model.classifier(features[out]), labels[out]))
        deviations.append(features[kept])
    mean = torch.stack([one.mean(0) for one in deviations]).mean(0)
    variance = torch.stack([(one - mean).square().mean() for one in deviations]).mean()
    weight = model.classifier.weight
    loss = sum(risks) / 2 + card["ridge"] / 2 * (weight.square() * variance).sum()
    slopes = torch.autograd.grad(loss, weight)[0] / variance.sqrt()
    assert slopes.abs().max() < 1e-2
    assert float(torch.stack(held_out).sum().detach() / 2) == pytest.approx(
        card["held_out_loss"], abs=1e-4
    )


@pytest.mark.parametrize("algorithm", ["erm", "fishr", "dann", "sagnet"])
def test_all_draws_and_methods_of_a_trial_start_alike(algorithm: str, tmp_path: Path) -> None:
    first = carry_out(tmp_path / "first", tiny_run("erm", steps=1, **PROBED))
    other = {"lr": 1e-5, "weight_decay": 1e-3, "batch_size": 7, "steps": 1}
    run = tiny_run(algorithm, **{**other, **PROBED})
    carry_out(tmp_path / "other", run, machine={"place": "host"})
    assert first.path is not None
    assert (tmp_path / "other" / "start.safetensors").read_bytes() == (
        first.path / "start.safetensors"
    ).read_bytes()
    carry_out(tmp_path / "trial", tiny_run(algorithm, steps=1, trial=1, **PROBED))
    assert not torch.equal(head_of(tmp_path / "trial")["weight"], head_of(first.path)["weight"])


def test_a_run_that_resumes_does_not_fit_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[LinearProbe] = []

    def counted(*args: Any) -> LinearProbe:
        fits.append(fit_probe(*args))
        return fits[-1]

    monkeypatch.setattr(start, "fit_probe", counted)
    run = tiny_run("fishr", **PROBED)
    told: list[str] = []
    carry_out(tmp_path / "whole", run, watcher=watching(note=told.append))
    assert len(fits) == 1 and "the head starts from a linear probe (ridge " in told[1]
    assert f"right on {fits[0].accuracy:.1%} of what is held out" in told[1]
    assert "random weights: a linear probe fits the little by which such features vary" in told[0]

    def recorded(records: list[Any]) -> None:
        if records and records[-1].step >= 5:
            raise Killed

    with pytest.raises(Killed):
        carry_out(tmp_path / "killed", run, 0.0, watcher=watching(records=recorded))
    assert len(fits) == 2
    checkpoints = list((tmp_path / "killed" / "checkpoints").iterdir())
    assert checkpoints
    for path in checkpoints:  # without any, training starts again from what was kept
        path.unlink()
    carry_out(tmp_path / "killed", run, 0.0)
    assert len(fits) == 2
    for name in ("records.jsonl", "model.safetensors", "start.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_damaged_head_is_named(tmp_path: Path) -> None:
    run = tiny_run("erm", steps=1, **PROBED)
    carry_out(tmp_path, run)
    (tmp_path / "done").unlink()
    (tmp_path / "start.safetensors").write_bytes(b"nothing")
    with pytest.raises(
        ValueError, match=r"start.safetensors is damaged, or not a safetensors file"
    ):
        carry_out(tmp_path, run)


def test_nothing_held_out(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run("erm", steps=1, holdout=0.0, **PROBED))
    card = json.loads((tmp_path / "start.json").read_text())
    assert card == {"start": "linear-probe", "ridge": 0.01}


def test_methods_that_cannot_start_so_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(
        algorithms=("erm", "mtl"), datasets=("squares",), protocol=Protocol(start="linear-probe")
    )
    with pytest.raises(ValueError, match="a linear probe cannot start MTL"):
        runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    command = [
        "train",
        "--dataset",
        "no-such-data",
        "--algorithm",
        "arm",
        "--start",
        "linear-probe",
    ]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    assert "a linear probe cannot start ARM" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
