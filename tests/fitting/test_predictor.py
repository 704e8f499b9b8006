"""Predictions in order and in threads, checked ONNX files, and names of networks."""

import sys
import threading
from pathlib import Path
from types import ModuleType

import onnxruntime
import pytest
import torch
from torch import nn

from shoal.algorithms import find
from shoal.fitting import onnx_export
from shoal.fitting.onnx_export import write_onnx
from shoal.fitting.predictor import Predictor, in_threads
from shoal.networks import Network
from shoal.networks.base import IMAGENET
from shoal.networks.registry import backbone_name
from shoal.runs.machine import one_thread
from shoal.runs.model import Model
from tests.fitting.made import write_images

CPU = torch.device("cpu")


def small(**card: object) -> Predictor:
    """Return a model of one convolution for large images, with their normalisation."""
    torch.manual_seed(0)
    features = nn.Sequential(
        nn.Conv2d(3, 4, 16, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    algorithm = find("erm")(Network(features, nn.Linear(4, 3), IMAGENET), 2)
    card = {"shape": [3, 224, 224], "classes": ["a", "b", "c"], **card}
    return Predictor(Model(algorithm.eval(), card))


def images(n: int = 5) -> torch.Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, 3, 224, 224), generator=draws, dtype=torch.uint8)


def test_probabilities_are_those_of_normalised_images() -> None:
    predictor, pixels = small(), images()
    mean, std = (torch.tensor(row)[:, None, None] for row in IMAGENET)
    with torch.no_grad():
        network = predictor.module.algorithm.model
        expected = network((pixels.double() / 255 - mean).float() / std).softmax(-1)
    torch.testing.assert_close(predictor.probabilities(pixels), expected, atol=1e-5, rtol=1e-4)


def test_a_temperature_of_the_card_scales_the_logits(tmp_path: Path) -> None:
    pixels = images()
    plain, softer = small().probabilities(pixels), small(temperature=2.5)
    torch.testing.assert_close(
        softer.probabilities(pixels), (plain.log() / 2.5).softmax(-1), atol=1e-6, rtol=1e-5
    )
    assert write_onnx(tmp_path / "model.onnx", softer, pixels) < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {"inputs": pixels.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), softer.probabilities(pixels))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "warm", True, None])
def test_a_temperature_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"temperature in model\.json must be a number above 0"):
        small(temperature=value)


def test_files_are_answered_in_their_order(tmp_path: Path) -> None:
    paths = sorted(write_images(tmp_path).rglob("*.png"))
    paths.insert(3, tmp_path / "none.png")
    found = small().predict(paths)
    assert [one.source for one in found] == list(map(str, paths))
    assert [k for k, one in enumerate(found) if one.error] == [3]
    again = [small().predict(path)[0] for path in paths if path.exists()]
    answered = [one for one in found if one.error is None]
    for one, alone in zip(answered, again, strict=True):
        assert one.label == alone.label
        assert one.probability == pytest.approx(alone.probability, abs=1e-5)


def test_a_model_of_small_images_takes_no_files(tmp_path: Path) -> None:
    predictor = small()
    predictor.card = {"shape": [1, 28, 28]}
    with pytest.raises(ValueError, match=r"takes inputs of shape \[1, 28, 28\]"):
        predictor.predict(["a.png"])


def test_threads_keep_the_order_and_put_the_number_back() -> None:
    before, names = torch.get_num_threads(), set[str]()

    def work(k: int) -> int:
        names.add(threading.current_thread().name)
        assert torch.get_num_threads() == 1
        return k * k

    torch.set_num_threads(3)
    try:
        assert list(in_threads(work, range(50), CPU)) == [k * k for k in range(50)]
        assert torch.get_num_threads() == 3
        with one_thread():
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert len(names) <= 3


def test_an_error_in_a_thread_is_raised() -> None:
    def work(k: int) -> int:
        if k == 3:
            raise ValueError("three")
        return k

    with pytest.raises(ValueError, match="three"):
        list(in_threads(work, range(10), CPU))


def test_an_onnx_file_is_compared_with_the_model(tmp_path: Path) -> None:
    predictor, pixels = small(), images(4)
    assert write_onnx(tmp_path / "m.onnx", predictor, pixels) < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    one = session.run(None, {"inputs": images(7).numpy()})[0]  # another number of images
    expected = predictor.probabilities(images(7))
    torch.testing.assert_close(torch.from_numpy(one), expected, atol=1e-5, rtol=1e-4)


def test_an_onnx_file_that_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "_export", lambda p, x, path: path.write_bytes(b"x"))
    monkeypatch.setattr(onnx_export, "_run", lambda c, x: small().probabilities(x) + 0.001)
    with pytest.raises(ValueError, match=r"differ from the model's by 0\.001"):
        write_onnx(tmp_path / "m.onnx", small(), images(2))
    assert not (tmp_path / "m.onnx").exists()


def test_names_of_backbones() -> None:
    assert backbone_name("efficientnet-lite0") == "efficientnet-lite0"
    assert backbone_name("timm:anything") == "timm:anything"
    with pytest.raises(ValueError, match=r"unknown backbone 'nonsense'.*efficientnet-lite0"):
        backbone_name("nonsense")


def test_a_bare_name_is_looked_for_in_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, listed, names in (
        ("torchvision", "torchvision.models", ["mobilenet_v3_small", "resnet34"]),
        ("timm", "timm", ["resnet34", "vit_tiny"]),
    ):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        module = ModuleType(listed)
        module.list_models = lambda names=names: names  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, listed, module)
    assert backbone_name("mobilenet_v3_small") == "torchvision:mobilenet_v3_small"
    assert backbone_name("resnet34") == "torchvision:resnet34"
    assert backbone_name("vit_tiny.augreg_in21k") == "timm:vit_tiny.augreg_in21k"
    with pytest.raises(ValueError, match=r"did you mean 'resnet34'\? .* of torchvision and timm"):
        backbone_name("resnet_34")
