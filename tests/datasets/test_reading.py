"""Reading of images: orientation, windows of 16 bits, and what stays as it always was."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from shoal.datasets import DomainDataset, decode, image_folders
from shoal.datasets.cache import build, cache_folder
from shoal.datasets.images import is_turned
from shoal.datasets.reading import AS_STORED, ORIENTATION, Reading, Window
from shoal.training.pillow import exact_evaluation

UPRIGHT = Reading(upright=True)
WINDOWED = Reading(window=Window(1000, 3000))


def photo(path: Path, orientation: int | None = None) -> Path:
    """Write a JPEG of 24 × 16 that no turn and no flip leaves as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[:8], pixels[:, :8, 2] = (200, 40, 0), 250
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(path, quality=95, exif=exif)
    return path


def scan(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint16)).save(path)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_pillow_would(tmp_path: Path, orientation: int) -> None:
    path = photo(tmp_path / "a.jpg", orientation)
    stored = Image.open(path)
    expected = torch.from_numpy(np.array(ImageOps.exif_transpose(stored))).permute(2, 0, 1)
    assert torch.equal(decode(path, UPRIGHT), expected)
    assert torch.equal(decode(path), torch.from_numpy(np.array(stored)).permute(2, 0, 1))
    assert is_turned(path) is (orientation > 1)
    small = ImageOps.exif_transpose(stored).resize((224, 224), Image.Resampling.BILINEAR)
    found = exact_evaluation(path, UPRIGHT)
    assert torch.equal(found, torch.from_numpy(np.array(small)).permute(2, 0, 1))


@pytest.mark.parametrize("orientation", [None, 0, 9])
def test_what_is_no_orientation_turns_nothing(tmp_path: Path, orientation: int | None) -> None:
    path = photo(tmp_path / "a.jpg", orientation)
    assert torch.equal(decode(path, UPRIGHT), decode(path))
    assert not is_turned(path)


def test_damaged_exif_does_not_make_an_image_unreadable(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.jpg", 6)
    content = path.read_bytes()
    start = content.index(b"Exif\0\0") + 6
    path.write_bytes(content[:start] + b"\xff" * 12 + content[start + 12 :])
    assert torch.equal(decode(path, UPRIGHT), decode(path))
    assert not is_turned(path)


def test_a_tiff_is_turned_once(tmp_path: Path) -> None:
    """Pillow turns a TIFF as it loads it, so it is the same however it is read."""
    path = tmp_path / "a.tif"
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)).save(path, exif=exif)
    assert decode(path).shape == (3, 3, 2)
    assert torch.equal(decode(path, UPRIGHT), decode(path))
    assert not is_turned(path)


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_a_window_scales_the_grey_values_of_16_bits(tmp_path: Path, name: str) -> None:
    path = scan(tmp_path / name, np.array([[0, 1000, 1004, 2000, 3000, 65535]]))
    # (v − 1000) · 255 / 2000, rounded, between 0 and 255.
    expected = torch.tensor([[0, 0, 1, 128, 255, 255]], dtype=torch.uint8).expand(3, 1, 6)
    assert torch.equal(decode(path, WINDOWED), expected)
    with pytest.raises(ValueError, match=r"a\.\w+: it has more than 8 bits a channel"):
        decode(path)


def test_a_window_takes_other_byte_orders_and_floats(tmp_path: Path) -> None:
    values = np.array([[1000.0, 2000.0, 3000.0]])
    Image.fromarray(values.astype(np.float32)).save(tmp_path / "float.tif")
    Image.fromarray(values.astype(np.int32)).save(tmp_path / "int.tif")
    Image.fromarray(values.astype(">u2")).save(tmp_path / "big.tif")
    for path in tmp_path.iterdir():
        assert decode(path, WINDOWED)[0].tolist() == [[0, 128, 255]], path
    Image.fromarray(np.array([[np.nan, 1]], np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match=r"cannot read .*: some of its grey values are not finite"):
        decode(tmp_path / "float.tif", WINDOWED)


def test_a_window_leaves_8_bits_alone(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.jpg")
    assert torch.equal(decode(path, WINDOWED), decode(path))


def test_a_window_lies_between_percentiles_of_all_images() -> None:
    first, second = np.arange(1001.0), np.arange(1001.0) + 3000
    both = np.percentile(np.concatenate([first, second]), [0.5, 99.5])
    found = Window.of([first, second])
    assert (found.low, found.high) == pytest.approx(tuple(both))
    assert Window.of([np.full(5, 7)]) == Window(7, 8)  # one value everywhere
    for low, high in ((2, 2), (3, 2), (0, float("inf")), (float("nan"), 1)):
        with pytest.raises(ValueError, match="a window must go from a number to a larger one"):
            Window(low, high)


@pytest.mark.parametrize("reading", [AS_STORED, UPRIGHT, WINDOWED, Reading(True, Window(0.25, 8))])
def test_a_card_keeps_the_reading(reading: Reading) -> None:
    assert Reading.from_json(json.loads(json.dumps(reading.as_json()))) == reading


def test_cards_of_older_versions_read_as_stored() -> None:
    assert Reading.from_json({"kind": "images", "size": "any; resized to 224 × 224"}) == AS_STORED


@pytest.fixture
def dataset(tmp_path: Path) -> DomainDataset:
    for domain, orientation in (("a", None), ("b", 6)):
        photo(tmp_path / "set" / domain / "x" / "0.jpg", orientation)
    return image_folders("set", tmp_path / "set")


def test_as_stored_the_fingerprint_is_the_one_of_yesterday(tmp_path: Path) -> None:
    for domain in "ab":
        path = tmp_path / domain / "x" / "0.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\0" * 7)
    found = image_folders("set", tmp_path)
    assert found.fingerprint.startswith("a3eace955706e02aedeae90b70a610b0")
    assert replace(found, reading=Reading()).fingerprint == found.fingerprint


def test_another_reading_is_another_cache(dataset: DomainDataset, tmp_path: Path) -> None:
    readings = [AS_STORED, UPRIGHT, WINDOWED, Reading(window=Window(1000, 3001))]
    sets = [replace(dataset, reading=reading) for reading in readings]
    assert len({one.fingerprint for one in sets}) == len(sets)
    folders = [cache_folder(one, tmp_path / "cache") for one in sets]
    assert len(set(folders)) == len(sets)
    plain, upright = (build(one, folder) for one, folder in zip(sets[:2], folders, strict=False))
    assert torch.equal(upright["a"].evaluation, plain["a"].evaluation)
    assert not torch.equal(upright["b"].evaluation, plain["b"].evaluation)
    assert torch.equal(upright["b"].evaluation[0], exact_evaluation(dataset["b"].files[0], UPRIGHT))
    # Stored as 24 × 16, and 16 × 24 upright.
    assert plain["b"].training.frames[0, :2].tolist() == [16, 24]
    assert upright["b"].training.frames[0, :2].tolist() == [24, 16]
    with pytest.raises(ValueError, match="another cache: its fingerprint"):
        build(sets[1], folders[0])
