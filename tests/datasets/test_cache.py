"""Caches of decoded images: contents, refusals, and interrupted builds."""

import fcntl
import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from shoal.datasets import Domain, DomainDataset, decode, decoded, image_folders
from shoal.datasets.cache import (
    ImageCache,
    build,
    cache_folder,
    evaluation_images,
    open_cache,
    open_or_build_cache,
)
from shoal.datasets.decoded import Frame, central_crop, frame_of
from shoal.datasets.reading import Reading
from tests.datasets.pictures import photograph, picture

# Shrunk, and so long that only their middle is ever seen; and stored as they are.
SIZES = {
    "large": [(300, 420), (600, 301), (290, 900)],
    "small": [(30, 50), (224, 224), (8, 8)],
}


@pytest.fixture
def dataset(tmp_path: Path) -> DomainDataset:
    for domain, sizes in SIZES.items():
        for i, (height, width) in enumerate(sizes):
            photograph(tmp_path / "images" / domain / "cat" / f"{i}.png", height, width, i)
    return image_folders("mine", tmp_path / "images")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def files(dataset: DomainDataset, domain: str) -> tuple[Path, ...]:
    return dataset[domain].files


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def planes(image: Image.Image) -> Tensor:
    """Channels of an image, pixel by pixel."""
    return torch.tensor(list(image.tobytes())).view(image.height, image.width, 3).permute(2, 0, 1)


# Frames


def loop_crops(height: int, width: int) -> bool:
    """Whether any crop of the paper's fits, by trying the extreme ones."""
    for share in (0.7 + 1e-12, 0.75, 0.8, 0.9, 1.0):
        for k in range(201):
            ratio = math.exp(math.log(3 / 4) + k / 200 * (math.log(4 / 3) - math.log(3 / 4)))
            area = share * height * width
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                return True
    return False


def test_only_images_that_no_crop_fits_lose_their_ends() -> None:
    lost = 0
    for height in (1, 2, 3, 7, 40, 199, 200, 256, 257, 700):
        for width in {round(height * r / 100) for r in range(100, 260)} | {height + 1}:
            frame, turned = frame_of(height, width), frame_of(width, height)
            whole = (frame.window_height, frame.window_width) == (height, width)
            assert whole or not loop_crops(height, width), (height, width)
            # Rounding lets a few longer ones pass.
            assert whole == (width / height < 1.905) or width - 1.905 * height < 3
            assert turned[::2] == frame[1::2] and turned[1::2] == frame[::2]
            if not whole:
                lost += 1
                assert (frame.top, frame.left) == (0, (width - frame.window_width) // 2)
                assert frame.window_width == round(height * 4 / 3)
    assert lost > 100


def test_stored_sides_are_bounded_and_keep_the_aspect() -> None:
    longest = 0
    for height in range(200, 3000, 37):
        for width in range(200, 3000, 41):
            frame = frame_of(height, width)
            stored = frame.stored_height, frame.stored_width
            window = frame.window_height, frame.window_width
            assert min(stored) == min(256, *window)
            for a, b in zip(stored, window, strict=True):
                assert abs(a - b * min(stored) / min(window)) <= 0.5
            longest = max(longest, *stored)
    assert 487 < longest <= 489
    assert max(frame_of(256, 489)[:2]) == 489


def test_the_central_crop_has_an_allowed_ratio() -> None:
    assert central_crop(100, 100) == (0, 0, 100, 100)
    assert central_crop(100, 133) == (0, 0, 100, 133)
    assert central_crop(100, 200) == (0, 33, 100, 133)
    assert central_crop(200, 100) == (33, 0, 133, 100)
    assert central_crop(1, 1000) == (0, 499, 1, 1)


# Contents


def test_evaluation_is_pillow_at_224(dataset: DomainDataset, folder: Path) -> None:
    cache = build(dataset, folder)
    for name in dataset.names:
        images = cache[name].evaluation
        assert images.dtype == torch.uint8 and images.shape == (3, 3, 224, 224)
        for found, path in zip(images, files(dataset, name), strict=True):
            expected = Image.open(path).resize((224, 224), Image.Resampling.BILINEAR)
            assert torch.equal(found.long(), planes(expected))


def test_training_images_are_stored_one_by_one(dataset: DomainDataset, folder: Path) -> None:
    cache = build(dataset, folder)
    small, large = cache["small"].training, cache["large"].training
    assert small.frames.tolist() == [[h, w, h, w, 0, 0, h, w] for h, w in SIZES["small"]]
    assert small.largest == (224, 224)
    assert small.offsets.tolist() == [0, 3 * 30 * 50, 3 * 30 * 50 + 3 * 224 * 224]
    assert small.pixels.numel() == 3 * (30 * 50 + 224 * 224 + 8 * 8)
    padded = small.padded(torch.tensor([2, 0, 2]), 240, 230)
    assert padded.shape == (3, 3, 240, 230)
    for found, index in zip(padded, (2, 0, 2), strict=True):
        expected = decode(files(dataset, "small")[index])
        _, height, width = expected.shape
        assert torch.equal(found[:, :height, :width], expected)
        assert found.sum() == expected.sum()  # and zeros around
    assert large.frames.tolist() == [
        [256, 358, 300, 420, 0, 0, 300, 420],
        [341, 256, 600, 301, 99, 0, 401, 301],
        [256, 342, 290, 900, 0, 256, 290, 387],
    ]
    for index, path in enumerate(files(dataset, "large")):
        frame = Frame(*large.frames[index].tolist())
        right, bottom = frame.left + frame.window_width, frame.top + frame.window_height
        window = Image.open(path).crop((frame.left, frame.top, right, bottom))
        size = frame.stored_width, frame.stored_height
        expected = planes(window.resize(size, Image.Resampling.LANCZOS))
        found = large.padded(torch.tensor([index]), *large.largest)[0]
        assert torch.equal(found[:, : frame.stored_height, : frame.stored_width].long(), expected)


def test_nothing_depends_on_the_threads(dataset: DomainDataset, tmp_path: Path) -> None:
    made = []
    for workers in (1, 3):
        build(dataset, tmp_path / str(workers), workers=workers)
        made.append(content(tmp_path / str(workers)))
    assert made[0] == made[1]


def test_order_is_kept_over_many_images(tmp_path: Path, folder: Path) -> None:
    for i in range(60):
        side = 400 if i % 7 == 0 else 8  # some take longer than others
        picture(tmp_path / "images" / "one" / "cat" / f"{i:02}.png", (i, 2 * i, 0), side)
    cache = build(image_folders("mine", tmp_path / "images"), folder, workers=4)
    assert cache["one"].evaluation[:, 0, 0, 0].tolist() == list(range(60))


def test_progress_counts_every_image(dataset: DomainDataset, folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    build(dataset, folder, lambda *call: calls.append(call))
    assert calls == [(i, 6) for i in range(1, 7)]
    build(dataset, folder, lambda *call: calls.append(call))
    assert len(calls) == 6


def test_the_manifest_holds_sizes_and_hashes(dataset: DomainDataset, folder: Path) -> None:
    build(dataset, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["fingerprint"] == dataset.fingerprint and manifest["name"] == "mine"
    found = {k: v for domain in manifest["domains"].values() for k, v in domain.items()}
    assert len(found) == 6
    for name, written in found.items():
        data = (folder / name).read_bytes()
        assert written == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_opening_maps_what_was_built_and_writes_nothing(
    dataset: DomainDataset, folder: Path
) -> None:
    built = build(dataset, folder)
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = open_cache(dataset, folder)
        build(dataset, folder)
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == before
    assert (opened.name, opened.fingerprint) == ("mine", dataset.fingerprint)
    assert list(opened.domains) == list(dataset.names)
    for name in dataset.names:
        assert torch.equal(opened[name].evaluation, built[name].evaluation)
        for found, expected in zip(opened[name].training, built[name].training, strict=True):
            assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="unknown domain of mine 'larg'; did you mean 'large'"):
        opened["larg"]


# Images that changed


def bitmaps(root: Path, colour: tuple[int, int, int]) -> Path:
    """Two domains of files whose sizes do not depend on their content."""
    for domain in ("one", "two"):
        picture(root / domain / "cat" / "0.bmp", colour)
    return root


def colours(cache: ImageCache) -> dict[str, int]:
    return {name: int(domain.evaluation[0, 0, 0, 0]) for name, domain in cache.domains.items()}


def test_an_image_that_changed_is_decoded_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = bitmaps(tmp_path / "images", (10, 0, 0))
    before = image_folders("mine", root)
    build(before, folder)
    changed = picture(root / "two" / "cat" / "0.bmp", (90, 0, 0))
    after = image_folders("mine", root)
    assert after.fingerprint == before.fingerprint  # so that a run keeps its name
    with pytest.raises(ValueError, match="lacks two: not decoded yet, or changed since; build it"):
        open_cache(after, folder)
    read: list[Path] = []
    monkeypatch.setattr(decoded, "read_image", spy(read))
    assert colours(build(after, folder)) == {"one": 10, "two": 90}
    assert read == [changed]
    open_cache(image_folders("mine", root), folder, check=True)


def test_a_cache_that_does_not_know_its_files_is_made_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = image_folders("mine", bitmaps(tmp_path / "images", (10, 0, 0)))
    build(dataset, folder)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sources"]
    path.write_text(json.dumps(manifest))
    read: list[Path] = []
    monkeypatch.setattr(decoded, "read_image", spy(read))
    build(dataset, folder)
    assert len(read) == 2


def test_equal_folders_with_other_images_share_no_cache(tmp_path: Path) -> None:
    found, places = [], []
    for number, colour in enumerate(((10, 0, 0), (90, 0, 0))):
        root = bitmaps(tmp_path / str(number) / "images", colour)
        for path in root.rglob("*.bmp"):
            os.utime(path, ns=(0, 0))  # as an archive unpacks them
        dataset = image_folders("images", root)
        places.append(cache_folder(dataset, tmp_path))
        found.append(colours(build(dataset, tmp_path / "cache")))
        assert colours(build(dataset, places[-1])) == found[-1]
    assert found == [{"one": 10, "two": 10}, {"one": 90, "two": 90}]
    assert places[0] != places[1]
    # The path of the folder does not matter either.
    moved = image_folders("images", shutil.copytree(tmp_path / "0", tmp_path / "2") / "images")
    assert cache_folder(moved, tmp_path) == places[0]
    (tmp_path / "link").symlink_to(tmp_path / "0")
    linked = image_folders("images", tmp_path / "link" / "images")
    assert cache_folder(linked, tmp_path) == places[0]
    assert colours(open_cache(linked, places[0])) == found[0]


# Refusals


def refused(dataset: DomainDataset, folder: Path, match: str) -> None:
    for use in (build, open_cache):
        with pytest.raises(ValueError, match=match):
            use(dataset, folder)


def test_images_in_memory_need_no_cache(folder: Path) -> None:
    domain = Domain("one", torch.tensor([0]), torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    refused(DomainDataset("mine", ("a",), (domain,)), folder, "in memory already.* no cache")
    assert not folder.exists()


def test_another_data_set_is_refused(dataset: DomainDataset, folder: Path, tmp_path: Path) -> None:
    build(dataset, folder)
    before = content(folder)
    picture(tmp_path / "images" / "large" / "cat" / "9.png")
    refused(image_folders("mine", tmp_path / "images"), folder, "another cache: its fingerprint is")
    refused(image_folders("yours", tmp_path / "images"), folder, "its name is 'mine', yours needs")
    assert content(folder) == before


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"schema": 0}, "another cache: its schema is 0, mine needs 1"),
        ({"training_side": 300}, "its training_side is 300, mine needs 256; give another folder"),
        ({"domains": 3}, "manifest.json is damaged; delete it"),
        ({"domains": {"small": {"0.training": 3}}}, "manifest.json is damaged; delete it"),
    ],
)
def test_a_strange_manifest_is_refused(
    dataset: DomainDataset, folder: Path, change: dict[str, object], match: str
) -> None:
    build(dataset, folder)
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refused(dataset, folder, match)


@pytest.mark.parametrize("text", ["", "[]", "{", '"text"'])
def test_a_damaged_manifest_is_named(dataset: DomainDataset, folder: Path, text: str) -> None:
    build(dataset, folder)
    (folder / "manifest.json").write_text(text)
    refused(dataset, folder, "manifest.json is not valid JSON|another cache: its schema is None")


def test_without_a_cache_one_is_asked_for(dataset: DomainDataset, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no cache of mine in .*cache: build it first"):
        open_cache(dataset, folder)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["evaluation", "training", "frames"])
@pytest.mark.parametrize("damage", [shorten, change_a_byte, Path.unlink])
def test_damage_is_named_and_mended(
    dataset: DomainDataset,
    folder: Path,
    kind: str,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(dataset, folder)
    before = content(folder)
    path = folder / f"1.{kind}"
    damage(path)
    word = "is missing" if damage is Path.unlink else "damaged"
    with pytest.raises(ValueError, match=rf"1\.{kind}.* {word}.*; build the cache again"):
        open_cache(dataset, folder, check=True)
    if damage is change_a_byte:
        open_cache(dataset, folder)  # sizes alone are looked at
    path.unlink(missing_ok=True)
    read: list[Path] = []
    monkeypatch.setattr(decoded, "read_image", spy(read))
    build(dataset, folder)
    assert sorted(read) == sorted(files(dataset, "small"))
    assert content(folder) == before


def spy(read: list[Path]) -> Callable[[Path, Reading], Image.Image]:
    original = decoded.read_image

    def read_image(path: Path, reading: Reading) -> Image.Image:
        read.append(path)
        return original(path, reading)

    return read_image


# Builds that do not come to an end


@pytest.mark.parametrize("fault", ["cut off", "gone"])
def test_a_broken_image_is_named_and_finished_domains_are_kept(
    dataset: DomainDataset, folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files(dataset, "small")[1]
    good = whole.read_bytes()
    _ = dataset.fingerprint
    if fault == "gone":
        whole.unlink()
    else:
        whole.write_bytes(good[: len(good) // 2])
    with pytest.raises(ValueError, match=rf"{whole}.*; repair or remove it and try again"):
        build(dataset, folder)
    kept = {f"0.{kind}" for kind in ("evaluation", "training", "frames")}
    assert set(content(folder)) == {*kept, "manifest.json", ".lock"}
    with pytest.raises(ValueError, match=r"cache lacks small: not decoded yet.*; build it"):
        open_cache(dataset, folder)
    whole.write_bytes(good)
    read: list[Path] = []
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(decoded, "read_image", spy(read))
    build(dataset, folder, lambda *call: calls.append(call))
    assert sorted(read) == sorted(files(dataset, "small"))
    assert calls == [(4, 6), (5, 6), (6, 6)]
    open_cache(dataset, folder, check=True)


def test_an_interrupt_leaves_no_half_file(dataset: DomainDataset, folder: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(dataset, folder, stop)
    assert not [name for name in content(folder) if name.startswith((".1", "1"))]
    build(dataset, folder)
    open_cache(dataset, folder, check=True)


def test_what_a_killed_build_left_is_removed(dataset: DomainDataset, folder: Path) -> None:
    folder.mkdir()
    (folder / ".1.training.77.abcd").write_bytes(b"half")
    (folder / "1.training").write_bytes(b"moved, and then killed")
    (folder / "notes.txt").write_text("mine")
    build(dataset, folder)
    assert ".1.training.77.abcd" not in content(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    open_cache(dataset, folder, check=True)


def test_a_full_disk_ends_with_a_message(
    dataset: DomainDataset, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"no space is left for the cache of mine in .*cache; make"):
        build(dataset, folder)
    assert set(content(folder)) == {".lock"}
    monkeypatch.undo()
    build(dataset, folder)


def test_other_faults_of_a_disk_come_through(
    dataset: DomainDataset, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        build(dataset, folder)


def test_a_cache_is_opened_or_built(dataset: DomainDataset, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    for _ in range(2):
        cache = open_or_build_cache(dataset, tmp_path / "root", lambda *call: calls.append(call))
        assert cache is not None and cache.fingerprint == dataset.fingerprint
    assert calls == [(done, 6) for done in range(1, 7)]
    assert cache_folder(dataset, tmp_path / "root").is_dir()
    for name in dataset.names:
        assert torch.equal(evaluation_images(dataset[name], cache), cache[name].evaluation)
        with pytest.raises(ValueError, match=f"{name!r} are files: a cache is needed"):
            evaluation_images(dataset[name], None)
    vectors = Domain("n", torch.tensor([0]), torch.ones(1, 5))
    in_memory = DomainDataset("d", ("a",), (vectors,))
    assert open_or_build_cache(in_memory, tmp_path / "other") is None
    assert not (tmp_path / "other").exists()
    assert evaluation_images(vectors, None) is vectors.images


def test_two_builds_do_not_collide(dataset: DomainDataset, folder: Path) -> None:
    refusals: list[str] = []

    def second(done: int, total: int) -> None:
        with pytest.raises(OSError) as refusal:
            build(dataset, folder)
        refusals.append(str(refusal.value))

    build(dataset, folder, second)
    assert refusals == [f"another process builds a cache in {folder}; wait for it"] * 6
    open_cache(dataset, folder, check=True)
    # Whoever finds it finished need not wait.
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert isinstance(build(dataset, folder), ImageCache)


def test_pacs_is_cached_as_it_is_decoded(data_root: Path, tmp_path: Path) -> None:
    root = data_root / "PACS"
    if not root.is_dir():
        pytest.skip(f"data not present: {root}")
    paths = [sorted((root / "photo" / kind).iterdir())[0] for kind in ("dog", "guitar")]
    domain = Domain("photo", torch.tensor([0, 1]), tuple(paths))
    dataset = DomainDataset("pacs", ("dog", "guitar"), (domain,))
    cached = build(dataset, tmp_path)["photo"]
    for index, path in enumerate(paths):
        found = cached.training.padded(torch.tensor([index]), *cached.training.largest)[0]
        assert torch.equal(found, decode(path))
