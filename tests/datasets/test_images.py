"""Decoding, and verifying a whole data set: damage is named, counts are compared."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shoal.datasets import Domain, DomainDataset, decode, image_folders, verify
from tests.datasets.pictures import picture, tree


def noise(path: Path, side: int = 64) -> Path:
    pixels = np.random.RandomState(0).randint(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def cut(path: Path, part: float = 0.5) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    return path


def test_channels_rows_and_columns(tmp_path: Path) -> None:
    pixels = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = decode(tmp_path / "a.png")
    assert found.dtype == torch.uint8 and found.is_contiguous()
    assert torch.equal(found, torch.from_numpy(pixels).permute(2, 0, 1))
    found += 1  # it is the caller's own


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (4, 3), (255, 255, 255)).convert(mode).save(path)
    assert decode(path).tolist() == torch.full((3, 3, 4), 255).tolist()


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "tif"])
def test_cut_off_images_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = noise(tmp_path / f"a.{suffix}")
    assert decode(path).shape == (3, 64, 64)
    with pytest.raises(ValueError, match=rf"cannot read .*a\.{suffix}: "):
        decode(cut(path))


def test_a_jpeg_cut_near_its_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="truncated"):
        decode(cut(noise(tmp_path / "a.jpg"), 0.95))


@pytest.mark.parametrize("content", [b"", b"this is no image", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot read .*a\.png: not an image file"):
        decode(path)


def test_sixteen_bits_are_refused_and_not_cut_to_white(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 3000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png: it has more than 8 bits a channel"):
        decode(tmp_path / "a.png")


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'shoal\[images\]'"):
        decode(tmp_path / "a.png")
    (tmp_path / "one" / "cat").mkdir(parents=True)
    (tmp_path / "one" / "cat" / "a.png").touch()
    with pytest.raises(ModuleNotFoundError, match="Pillow"):
        verify(image_folders("mine", tmp_path))


def test_verify_finds_nothing_wrong_with_a_good_tree(tmp_path: Path) -> None:
    dataset = image_folders("mine", tree(tmp_path))
    calls: list[tuple[int, int]] = []
    found = verify(dataset, {"photo": 3, "sketch": 4}, lambda *call: calls.append(call), workers=2)
    assert found.good
    assert found.broken == () and found.differences == () and found.missing_classes == {}
    assert found.counts == {"photo": {"cat": 2, "dog": 1}, "sketch": {"cat": 1, "dog": 3}}
    assert calls == [(i, 7) for i in range(1, 8)]


def test_verify_names_every_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.datasets.images.WAITING", 2)
    root = tree(tmp_path)
    text = root / "photo" / "dog" / "fake.png"
    text.write_text("a text file")
    jpeg = cut(noise(root / "sketch" / "cat" / "b.jpg"))
    gone = root / "sketch" / "dog" / "d.png"
    dataset = image_folders("mine", root)
    gone.unlink()
    calls: list[int] = []
    found = verify(dataset, progress=lambda done, total: calls.append(done))
    assert not found.good
    assert [(line.domain, line.path) for line in found.broken] == [
        ("photo", text),
        ("sketch", jpeg),
        ("sketch", gone),
    ]
    # The path is in a field of its own.
    assert [line.why for line in found.broken][::2] == [
        "not an image file, or its header is damaged",
        "No such file or directory",
    ]
    assert found.broken[1].why.startswith("damaged or truncated (image file is truncated")
    assert found.differences == ()
    assert calls == list(range(1, 10))


def test_verify_compares_counts_and_names_missing_classes(tmp_path: Path) -> None:
    root = tree(tmp_path)
    picture(root / "extra" / "emu" / "a.png")
    dataset = image_folders("mine", root)
    found = verify(dataset, {"photo": 3, "sketch": 5, "paint": 9})
    assert found.differences == (("sketch", 4, 5), ("paint", 0, 9), ("extra", 1, 0))
    assert not found.broken and not found.good
    assert found.missing_classes["extra"] == ("cat", "dog")
    assert verify(dataset, 8).good
    assert verify(dataset, 9).differences == (("all", 8, 9),)


def test_verify_of_images_in_memory_counts_only() -> None:
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    domain = Domain("one", torch.tensor([0, 1, 1]), images)
    found = verify(DomainDataset("mine", ("a", "b"), (domain,)), {"one": 3})
    assert found.good and found.counts == {"one": {"a": 1, "b": 2}}
