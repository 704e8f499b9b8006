"""Weight files: a round trip, and files that are refused with a reason."""

import hashlib
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from shoal.networks.weights import check_sha256, load_weights


def module(seed: int = 0, width: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.pth"


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_round_trip(path: Path) -> None:
    saved, loaded = module(1), module(2)
    saved[1].running_mean.fill_(3)
    torch.save(saved.state_dict(), path)
    load_weights(loaded, path)
    assert same(saved, loaded)
    load_weights(loaded, str(path))


def test_a_removed_head_is_left_out(path: Path) -> None:
    saved, loaded = module(1), module(2)
    loaded[2] = nn.Identity()
    torch.save(saved.state_dict(), path)
    with pytest.raises(ValueError, match=r"2 unexpected: 2\.weight, 2\.bias$"):
        load_weights(loaded, path)
    load_weights(loaded, path, ["2"])
    assert same(saved[:2], loaded[:2])
    torch.save({k: v for k, v in saved.state_dict().items() if k[0] != "2"}, path)
    load_weights(loaded, path, ["2"])


def test_files_that_count_no_batches(path: Path) -> None:
    saved, loaded = module(1), module(2)
    state = {k: v for k, v in saved.state_dict().items() if "tracked" not in k}
    torch.save(state, path)
    load_weights(loaded, path)
    assert same(saved, loaded)


def test_what_does_not_fit_is_named_and_changes_nothing(path: Path) -> None:
    loaded = module(2)
    torch.save({f"module.{k}": v for k, v in module(1).state_dict().items()}, path)
    first = r"8 missing: 0\.weight, 0\.bias, 1\.weight, 1\.bias, 1\.running_mean, …"
    with pytest.raises(ValueError, match=f"weights of Sequential: {first}; 9 unexpected: module.0"):
        load_weights(loaded, path)
    state = module(1).state_dict()
    state["2.weight"] = torch.zeros(7, 3)
    torch.save(state, path)
    with pytest.raises(ValueError, match=r"1 of another shape: 2\.weight \[7, 3\] for \[2, 3\]"):
        load_weights(loaded, path)
    assert same(loaded, module(2))


def test_truncated_file(path: Path) -> None:
    torch.save(module().state_dict(), path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="cannot be read as a file of tensors"):
            load_weights(module(), path)


class Code:
    ran = False

    def __reduce__(self):
        return setattr, (Code, "ran", True)


def test_code_in_a_file_does_not_run_nor_is_it_advised(path: Path) -> None:
    torch.save({"0.weight": Code()}, path)
    with pytest.raises(ValueError, match="cannot be read as a file of tensors") as caught:
        load_weights(module(), path)
    assert not Code.ran
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {}, "epoch": 3}, "'state_dict' is dict, not a tensor; save model.state"),
        ({}, "holds no state dict"),
        ([torch.zeros(2)], "holds no state dict but list"),
        (torch.zeros(2), "holds no state dict but Tensor"),
    ],
)
def test_other_contents(path: Path, content: object, message: str) -> None:
    torch.save(content, path)
    with pytest.raises(ValueError, match=message):
        load_weights(module(), path)


def test_foreign_files(path: Path) -> None:
    for content in (b"hello", b"PK\x03\x04" + bytes(99), pickle.dumps({"a": 1}, 2), b"\x89PNG\r\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name):
            load_weights(module(), path)
    with pytest.raises(FileNotFoundError, match=r"no weight file at .*absent"):
        load_weights(module(), path.with_name("absent"))
    with pytest.raises(FileNotFoundError, match="no weight file"):
        load_weights(module(), path.parent)


def test_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights.safetensors"
    path.touch()
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        load_weights(module(), path)
    stand_in = ModuleType("safetensors.torch")
    stand_in.load_file = {path: module(1).state_dict()}.__getitem__
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    loaded = module(2)
    load_weights(loaded, path)
    assert same(loaded, module(1))


def test_checksum(path: Path) -> None:
    path.write_bytes(b"weights")
    check_sha256(path, hashlib.sha256(b"weights").hexdigest())
    path.write_bytes(b"weight")
    with pytest.raises(ValueError, match=r"is not the expected file: its sha256 is"):
        check_sha256(path, hashlib.sha256(b"weights").hexdigest())
