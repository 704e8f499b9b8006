"""MobileNetV2: torchvision's bit for bit; weights by name, from a file and from a package."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.networks import for_data, mobilenet_v2, mobilenets
from shoal.networks.base import IMAGENET, build_seeded
from shoal.networks.mobilenets import PACKAGE, VERSIONS, MobileNetV2
from shoal.networks.registry import check_network
from shoal.randomness import stream

IMAGES = torch.randn(2, 3, 64, 64, generator=stream("images"))


def test_counts_and_shapes() -> None:
    net = mobilenet_v2(3, 7, 0.3, generator=stream("x"))
    assert sum(p.numel() for p in net.features.parameters()) == 3_504_872 - 1281 * 1000
    assert net.features(IMAGES).shape == (2, 1280)
    assert net(IMAGES).shape == (2, 7)
    assert net.preprocessing == IMAGENET
    assert (net.features.frozen_statistics, net.features.dropout.rate) == (True, 0.3)
    four = mobilenet_v2(4, 7, generator=stream("x")).features.network.features[0][0].weight
    assert torch.equal(four[:, 3], net.features.network.features[0][0].weight[:, 0])


def test_it_is_torchvisions_bit_for_bit(torchvision: Any) -> None:
    ours = build_seeded(MobileNetV2, stream("x"))
    theirs = build_seeded(torchvision.models.mobilenet_v2, stream("x"))
    theirs.classifier = nn.Identity()
    weights = theirs.state_dict()
    assert list(ours.state_dict()) == list(weights)
    assert all(torch.equal(value, weights[name]) for name, value in ours.state_dict().items())
    for mode in (True, False):
        assert torch.equal(ours.train(mode)(IMAGES), theirs.train(mode)(IMAGES))
    versions = {w.name: w for w in torchvision.models.MobileNet_V2_Weights}
    assert {k: v.url.rpartition("/")[2] for k, v in versions.items()} == VERSIONS


def test_stages() -> None:
    net = build_seeded(MobileNetV2, stream("x")).eval()
    *outputs, features = net.stages(IMAGES)
    shapes = [(32, 32), (24, 16), (32, 8), (96, 4), (320, 2)]
    assert [(out.shape[1], out.shape[2]) for out in outputs] == shapes
    assert net.stage_widths == tuple(channels for channels, _ in shapes)
    assert torch.equal(features, net(IMAGES))
    for layer, out in zip((0, 3, 6, 13, 17), outputs, strict=True):
        assert torch.equal(out, net.features[: layer + 1](IMAGES))


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file like torchvision's, with a head."""
    weights = build_seeded(MobileNetV2, stream("w")).state_dict()
    head = {"classifier.1.weight": torch.ones(1000, 1280), "classifier.1.bias": torch.ones(1000)}
    path = tmp_path / PACKAGE / "weights" / VERSIONS["IMAGENET1K_V1"]
    path.parent.mkdir(parents=True)
    torch.save(weights | head, path)
    (tmp_path / PACKAGE / "__init__.py").touch()
    return path, weights


STEM = "features.0.0.weight"


def stem(weights: Any) -> torch.Tensor:
    net = for_data((3, 224, 224), 2, name="mobilenet-v2", weights=weights, generator=stream("x"))
    return net.features.network.state_dict()[STEM]


def test_weights_from_a_file(published: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, weights = published
    assert torch.equal(stem(path), weights[STEM])
    assert not torch.equal(stem(None), weights[STEM])
    with pytest.raises(ValueError, match="unknown weights of mobilenet-v2 'imagenet1k'; did you"):
        check_network((3, 224, 224), "mobilenet-v2", "imagenet1k")


def test_weights_from_the_package(
    published: tuple[Path, dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, weights = published
    monkeypatch.syspath_prepend(path.parents[2])
    with pytest.raises(ValueError, match="is not the expected file"):
        stem("imagenet")
    monkeypatch.setattr(mobilenets, "check_sha256", lambda *_: None)
    assert torch.equal(stem("imagenet"), weights[STEM])
    assert torch.equal(stem("IMAGENET1K_V1"), weights[STEM])


def test_weights_are_fetched_without_the_package(
    published: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, weights = published
    asked = []

    def fetch(url: str, to: str, digits: str, progress: bool) -> None:
        asked.append((url.rpartition("/")[2], digits))
        Path(to).write_bytes(path.read_bytes())

    monkeypatch.setattr(mobilenets, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for version in ("imagenet", "IMAGENET1K_V1", "IMAGENET1K_V2"):
        assert torch.equal(stem(version), weights[STEM])
    expected = [(VERSIONS["IMAGENET1K_V1"], "b0353104"), (VERSIONS["IMAGENET1K_V2"], "7ebf99e0")]
    assert asked == expected
