"""Feature files: written and read back, refused if damaged, and swept with linear heads."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shoal.cli import main
from shoal.datasets import Domain, DomainDataset, load_dataset, splits
from shoal.datasets.features import ABOUT, load_features, write_features
from shoal.randomness import stream
from shoal.results.records import read_runs

CLASSES = ("no", "yes")


def vectors(sizes: tuple[int, ...] = (30, 20, 25)) -> DomainDataset:
    domains = []
    for name, n in zip(("north", "süd", "west"), sizes, strict=True):
        x = torch.randn(n, 4, generator=stream("features", name))
        domains.append(Domain(name, (x[:, 0] > 0).long(), x))
    return DomainDataset("birds-net", CLASSES, tuple(domains))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "birds.safetensors"
    write_features(path, vectors())
    found = load_dataset(str(path), None)
    assert (found.name, found.classes, found.names) == ("birds-net", CLASSES, vectors().names)
    assert found.fingerprint == vectors().fingerprint and found.kind == "vectors"
    mine, theirs = (splits(one, 1, 0.2) for one in (found, vectors()))
    assert all(torch.equal(mine[name].kept, theirs[name].kept) for name in mine)


@pytest.mark.parametrize(
    ("about", "tensors", "wrong"),
    [
        (None, {}, "no feature file"),
        ({"name": "x", "classes": CLASSES, "domains": ["a"]}, {}, "no feature file"),
        ({"name": "x", "classes": ["no"], "domains": ["a"]}, {"labels/0": [0, 1]}, "damaged"),
        ({"name": "x", "classes": CLASSES, "domains": ["a"]}, {"nan": [1]}, "not finite"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, about: dict[str, object] | None, tensors: dict[str, list[int]], wrong: str
) -> None:
    content = {"other": torch.zeros(1)}
    if tensors:
        x = torch.full((2, 3), float("nan")) if "nan" in tensors else torch.zeros(2, 3)
        content = {"features/0": x, "labels/0": torch.tensor([0, 1])}
    path = tmp_path / "x.safetensors"
    save_file(content, path, None if about is None else {ABOUT: json.dumps(about)})
    with pytest.raises(ValueError, match=f"{path}.*{wrong}"):
        load_features(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="damaged, or no feature file"):
        load_features(path)
    with pytest.raises(FileNotFoundError, match="there is no feature file"):
        load_features(tmp_path / "y.safetensors")


@pytest.mark.usefixtures("no_probe")
def test_a_sweep_trains_linear_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_features(tmp_path / "birds.safetensors", vectors())
    given = ["--datasets", "birds.safetensors", "--draws", "1", "--trials", "1", "--steps", "40"]
    command = ["sweep", "--algorithms", "erm", *given, "--out", "out", "--set", "lr=0.1"]
    assert main([*command, "--average", "none"]) == 0
    runs = read_runs([Path("out")])
    assert len(runs) == 3
    for run in runs:
        assert run.protocol["network"] == "linear" and run.protocol["weights"] is None
        (test,) = run.test_domains
        assert run.records[-1].accuracy[test]["kept"] > 0.8
    assert main(["report", "out", "--rule", "test-domain"]) == 0


@pytest.mark.parametrize("method", ["ARM", "URM", "mtl"])
def test_a_method_that_trains_no_head_is_refused_before_all_work(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cli.test_sweep import of_images

    command = [method if word == "erm" else word for word in of_images(tmp_path)]
    assert main([*command, "--train", "head", "--plan-only"]) == 2
    told = capsys.readouterr().err
    assert f"{method.upper()} does not work on frozen features" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_probe")
def test_heads_on_images_share_one_feature_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The features are computed once, and a plan says that no published number compares."""
    from tests.cli.test_sweep import of_images

    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    asked = []

    def compute(dataset: DomainDataset, *_: object) -> dict[str, torch.Tensor]:
        asked.append(dataset.name)
        return {one.name: torch.ones(len(one), 3) for one in dataset.domains}

    monkeypatch.setattr("shoal.fitting.frozen_features.compute_features", compute)
    command = [*of_images(tmp_path), "--train", "head", "--plan-only", "--cache", str(tmp_path)]
    for _ in range(2):
        assert main(command) == 0
    assert asked == ["photos"]
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert {run["dataset"] for run in plan} == {"photos-efficientnet-lite0"}
    assert {run["protocol"]["network"] for run in plan} == {"linear"}
    capsys.readouterr()
    asked_for = ["data", "features", str(tmp_path / "photos"), "--out"]
    assert main([*asked_for, str(tmp_path / "f.safetensors"), "--cache", str(tmp_path)]) == 0
    found = load_features(tmp_path / "f.safetensors")
    assert found.name == "photos-efficientnet-lite0" and found.input_shape == (3,)
    assert main([*asked_for, "f.bin"]) == 2
    assert "must be a .safetensors file" in capsys.readouterr().err
