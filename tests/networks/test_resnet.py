"""ResNets: those of torchvision bit for bit; weights by name and file; other packages' networks."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError

import pytest
import torch
from torch import nn

from shoal.algorithms import find
from shoal.networks import backbone, resnet
from shoal.networks.backbones import check_backbone
from shoal.networks.base import IMAGENET, build_seeded
from shoal.networks.resnets import ResNet
from shoal.randomness import stream

IMAGES = torch.randn(2, 3, 64, 64, generator=stream("images"))
DEPTHS = (("resnet18", 18), ("resnet50", 50))


@pytest.mark.parametrize(
    ("depth", "whole", "width"), [(18, 11_689_512, 512), (50, 25_557_032, 2048)]
)
def test_counts_and_shapes(depth: int, whole: int, width: int) -> None:
    net = resnet(depth, 3, 7, generator=stream("x"))
    assert sum(p.numel() for p in net.features.parameters()) == whole - (width + 1) * 1000
    assert sum(p.numel() for p in net.classifier.parameters()) == (width + 1) * 7
    assert net.features(IMAGES).shape == (2, width)
    assert net(IMAGES).shape == (2, 7)
    assert net.preprocessing == IMAGENET == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_statistics_are_frozen_and_affine_weights_are_not() -> None:
    net = resnet(18, 3, 3, 0.1, generator=stream("x"))
    norms = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert len(norms) == 20
    before = {name: value.clone() for name, value in net.state_dict().items()}
    method = find("erm")(net, 2)
    method.train()
    assert not any(norm.training for norm in norms.values())
    assert net.features.network.layer1.training
    method.update([(IMAGES, torch.tensor([0, 1])), (IMAGES, torch.tensor([1, 2]))])
    after = net.state_dict()
    for name in norms:
        for part in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.equal(after[f"{name}.{part}"], before[f"{name}.{part}"])
        for part in ("weight", "bias"):
            assert not torch.equal(after[f"{name}.{part}"], before[f"{name}.{part}"])


def test_statistics_that_follow_the_batches() -> None:
    net = resnet(18, 3, 3, frozen_statistics=False, generator=stream("x"))
    net(IMAGES)
    assert int(net.features.network.bn1.num_batches_tracked) == 1


@pytest.mark.parametrize("channels", [1, 4, 5])
def test_other_channels(channels: int) -> None:
    three = resnet(18, 3, 2, generator=stream("x")).features.network.conv1
    net = resnet(18, channels, 2, generator=stream("x"))
    conv = net.features.network.conv1
    assert conv.weight.shape == (64, channels, 7, 7) and conv.bias is None
    assert (conv.stride, conv.padding) == ((2, 2), (3, 3))
    for i in range(channels):
        assert torch.equal(conv.weight[:, i], three.weight[:, i % 3])
    assert net(torch.randn(2, channels, 64, 64)).shape == (2, 2)


def test_draws() -> None:
    before = torch.get_rng_state()
    one, same, other = (resnet(18, 3, 2, 0.5, generator=stream("net", seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name]), name
    assert torch.equal(one.features(IMAGES), same.features(IMAGES))
    network = one.features.network
    assert not torch.equal(network.conv1.weight, other.features.network.conv1.weight)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    # As torchvision draws them: kaiming normal by fan_out.
    conv = network.layer4[1].conv2.weight
    assert float(conv.detach().std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def test_dropout() -> None:
    net = resnet(18, 3, 2, 0.5, generator=stream("x"))
    without = resnet(18, 3, 2, generator=stream("x"))
    expected = without.features(IMAGES)
    assert 0.4 < float((net.features(IMAGES) == 0).double().mean()) < 0.6
    assert torch.equal(net.eval().features(IMAGES), expected)
    assert torch.equal(net.classifier.weight, without.classifier.weight)


@pytest.mark.parametrize("depth", [18, 50])
def test_they_are_torchvisions_bit_for_bit(torchvision: Any, depth: int) -> None:
    ours = build_seeded(lambda: ResNet(depth), stream("x"))
    theirs = build_seeded(getattr(torchvision.models, f"resnet{depth}"), stream("x"))
    theirs.fc = nn.Identity()
    weights = theirs.state_dict()
    assert list(ours.state_dict()) == list(weights)
    assert all(torch.equal(value, weights[name]) for name, value in ours.state_dict().items())
    for mode in (True, False):
        assert torch.equal(ours.train(mode)(IMAGES), theirs.train(mode)(IMAGES))


def test_weights_from_a_file(tmp_path: Path) -> None:
    whole = build_seeded(lambda: ResNet(18), stream("w")).eval()
    for part in whole.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-0.1, 0.1)
    path = tmp_path / "resnet18.pth"
    head = {"fc.weight": torch.ones(1000, 512), "fc.bias": torch.ones(1000)}
    torch.save(whole.state_dict() | head, path)
    net = resnet(18, 3, 2, weights=path, generator=stream("x"))
    assert torch.equal(net.features(IMAGES), whole(IMAGES))  # in training: frozen, no dropout
    four = resnet(18, 4, 2, weights=str(path), generator=stream("x"))
    assert torch.equal(four.features.network.conv1.weight[:, 3], whole.conv1.weight[:, 0])
    # The head is drawn for any weights.
    drawn = resnet(18, 3, 2, generator=stream("x"))
    assert torch.equal(net.classifier.weight, drawn.classifier.weight)
    with pytest.raises(ValueError, match=r"weights of ResNet: \d+ missing: layer1.0.conv3.weight"):
        resnet(50, 3, 2, weights=path, generator=stream("x"))
    with pytest.raises(ValueError, match="unknown weights of resnet18 'imagenet1k'; did you mean"):
        resnet(18, 3, 2, weights="imagenet1k", generator=stream("x"))
    with pytest.raises(FileNotFoundError, match=r"no weight file at .*other\.pth"):
        resnet(18, 3, 2, weights=tmp_path / "other.pth", generator=stream("x"))


def test_imagenet_weights_are_the_first_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    networks = {name: build_seeded(lambda d=d: ResNet(d), stream(name)) for name, d in DEPTHS}

    def fetch(url: str, path: str, digits: str, progress: bool) -> None:
        name = url.rpartition("/")[2]
        assert name.endswith(f"-{digits}.pth") and Path(path).name == name
        asked.append(name)
        torch.save(networks[name.partition("-")[0]].state_dict(), path)

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for _ in range(2):  # the second time from the file
        net = resnet(18, 3, 2, weights="imagenet", generator=stream("x"))
    assert torch.equal(net.features.network.conv1.weight, networks["resnet18"].conv1.weight)
    resnet(50, 3, 2, weights="imagenet", generator=stream("x"))
    resnet(50, 3, 2, weights="IMAGENET1K_V2", generator=stream("x"))
    assert asked == ["resnet18-f37072fd.pth", "resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth"]


def test_no_way_to_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: Any, **__: Any) -> Any:
        raise URLError("no route")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    before = torch.get_rng_state()
    with pytest.raises(ConnectionError, match=r"resnet18 could not be .*copy .*checkpoints"):
        resnet(18, 3, 2, weights="imagenet", generator=stream("x"))
    assert torch.equal(torch.get_rng_state(), before)


def test_depths() -> None:
    with pytest.raises(ValueError, match="depth must be 18 or 50, got 34"):
        resnet(34, 3, 2, generator=stream("x"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnt34", "unknown model torchvision:resnt34; did you mean torchvision:resnet34"),
        ("squeezenet1_1", "no linear head"),
        ("googlenet", "more than one head"),
    ],
)
@pytest.mark.filterwarnings("ignore:The default weight initialization")
def test_models_that_cannot_be_used(
    torchvision: Any, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, *_, **__: tensor)  # slow
    with pytest.raises(ValueError, match=message):
        backbone(f"torchvision:{name}", 3, 2, generator=stream("x"))


@pytest.mark.parametrize(
    ("name", "width"), [("mobilenet_v3_small", 1024), ("shufflenet_v2_x0_5", 1024)]
)
def test_other_models(torchvision: Any, name: str, width: int) -> None:
    before = torch.get_rng_state()
    net = backbone(f"torchvision:{name}", 4, 3, generator=stream("x"))
    images = torch.randn(2, 4, 64, 64, generator=stream("images"))
    assert net.features(images).shape == (2, width)
    assert torch.equal(net(images), net(images))  # nothing random is left
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenet_v2"])
def test_nothing_else_draws_in_training(torchvision: Any, name: str) -> None:
    net = backbone(f"torchvision:{name}", 3, 3, 0.5, generator=stream("x"))
    before = torch.get_rng_state()
    net.train()(IMAGES)
    assert torch.equal(torch.get_rng_state(), before)


def test_timm(timm: Any, tmp_path: Path) -> None:
    net = backbone("timm:resnet18", 4, 3, 0.5, generator=stream("x"))
    same = backbone("timm:resnet18", 4, 3, 0.5, generator=stream("x"))
    images = torch.randn(2, 4, 64, 64, generator=stream("images"))
    assert net(images).shape == (2, 3)
    assert torch.equal(net.features.network.conv1.weight, same.features.network.conv1.weight)
    assert net.preprocessing == IMAGENET
    assert backbone("timm:mobilenetv3_small_050", 3, 2, generator=stream("x"))(IMAGES).ndim == 2
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "w.pth")
    backbone("timm:resnet18", 3, 2, weights=tmp_path / "w.pth", generator=stream("x"))
    with pytest.raises(ValueError, match="timm:botnet50ts_256 has no pretrained weights; give"):
        check_backbone("timm:botnet50ts_256", "imagenet")
    check_backbone("timm:botnet50ts_256")
    check_backbone("timm:resnet18.a1_in1k", "imagenet")
    with pytest.raises(ValueError, match="did you mean timm:resnet18"):
        backbone("timm:resnt18", 3, 2, generator=stream("x"))


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18"])
def test_without_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"{name} needs {package}, which is not installed: pip install 'shoal\[vision\]'"
    with pytest.raises(ImportError, match=message):
        backbone(name, 3, 2, generator=stream("x"))


class Broken(ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")


def test_beside_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", Broken("torchvision"))
    with pytest.raises(ImportError, match=r"built for another torch .*nms does not exist"):
        backbone("torchvision:resnet18", 3, 2, generator=stream("x"))
