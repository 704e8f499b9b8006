"""Disasters in images: each is told, and what only looks like one is not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal.datasets import image_folders
from shoal.datasets.cache import cache_folder
from shoal.datasets.properties import ImageProperties, properties_of
from shoal.datasets.reading import AS_STORED, ORIENTATION, Reading, Window
from shoal.fitting import image_survey
from shoal.fitting.image_findings import HUGE, Surveyed, find_in_images
from shoal.fitting.inspection import inspect_data
from tests.fitting.made import write_images

DOMAINS, EACH = ("a", "b", "c"), 60
PLAIN = {"width": 640, "height": 480, "quality": float("nan"), "camera": "", "format": "PNG"}


def surveyed(make: Any) -> tuple[list[str], Surveyed]:
    """Return images of three domains and two classes, with properties from (random, domain, y)."""
    random = np.random.RandomState(0)
    properties, labels, domains = [], [], []
    for domain in range(len(DOMAINS)):
        for k in range(EACH):
            label = k % 2
            noise = {
                "brightness": random.normal(120, 20),
                "contrast": random.normal(50, 10),
                "sharpness": random.normal(4, 1),
                "colour": random.normal(80, 20),
                "turned": False,
            }
            properties.append(ImageProperties(**PLAIN | noise | make(random, domain, label)))
            labels.append(label)
            domains.append(domain)
    found = Surveyed(np.array(domains), np.array(labels), properties)
    return [f"{k}.png" for k in range(len(labels))], found


def notes(make: Any, reading: Reading = AS_STORED) -> list[str]:
    paths, found = surveyed(make)
    return find_in_images(DOMAINS, paths, found, reading)


def test_ordinary_images_have_no_notes() -> None:
    assert notes(lambda random, domain, y: {}) == []


LEAKS = {
    "width": lambda random, y: {"width": random.choice([640, 700]) if y else 512},
    "height": lambda random, y: {"height": random.randint(400, 500) + 90 * y},
    "brightness": lambda random, y: {"brightness": random.normal(100 + 90 * y, 20)},
    "contrast": lambda random, y: {"contrast": random.normal(40 + 40 * y, 8)},
    "sharpness": lambda random, y: {"sharpness": random.normal(2 + 3 * y, 0.8)},
    "amount of colour": lambda random, y: {"colour": random.normal(90, 10) * y},
    "JPEG quality": lambda random, y: {"quality": 95 if y else 75, "format": "JPEG"},
    "camera (by EXIF)": lambda random, y: {"camera": "Acme" if y else random.choice(["", "Bell"])},
    "file format": lambda random, y: {"format": "PNG" if y else "JPEG"},
}


@pytest.mark.parametrize("title", LEAKS)
def test_a_property_that_gives_the_class_is_named(title: str) -> None:
    found = [
        one for one in notes(lambda random, domain, y: LEAKS[title](random, y)) if "alone" in one
    ]
    assert found[0].startswith(f"the {title} of an image alone gives the class in "), found
    assert "% of the images within each domain (the most frequent class: 50 %)" in found[0]
    shapes = {"width", "height"}
    assert len(found) == (2 if title in shapes else 1)  # the shape goes with the size


def test_a_leak_of_one_domain_is_told_with_its_name() -> None:
    (note,) = (
        one
        for one in notes(lambda random, domain, y: {"quality": 95.0 if y and domain == 1 else 75.0})
        if "alone" in one
    )
    assert note.startswith("the JPEG quality of an image alone gives the class in 100 % of the")
    assert "in the domain 'b' (the most frequent class: 50 %)" in note


def test_properties_may_differ_between_domains_and_hint_at_the_class() -> None:
    def make(random: np.random.RandomState, domain: int, y: int) -> dict[str, Any]:
        return {
            "width": (640, 800, 512)[domain],
            "camera": ("Acme", "Bell", "")[domain],
            "brightness": random.normal((60, 120, 180)[domain] + 10 * y, 20),
        }

    (note,) = notes(make)
    assert note.startswith(
        "the domain can be told from the size, light and sharpness of the images"
    )
    assert "(chance 33 %)" in note


def test_turned_deep_and_huge_images_are_counted() -> None:
    values = np.zeros(4)
    found = notes(lambda random, domain, y: {"turned": domain == 0, "values": values})
    assert found == ["60 images are turned as the EXIF orientation says"]
    window = Reading(True, Window(112, 1843))
    found = notes(lambda random, domain, y: {"values": values if domain else None}, window)
    assert found == [
        "120 images have more than 8 bits a channel (of 180); the grey values from 112 to 1,843 "
        "are used, in prediction too"
    ]
    paths, some = surveyed(lambda random, domain, y: {})
    some.properties[7] = ImageProperties(  # type: ignore[index]
        **PLAIN | vars(some.properties[7]) | {"width": 12_000, "height": 10_000}
    )
    (note,) = find_in_images(DOMAINS, paths, some, AS_STORED)
    assert note.startswith("1 image has more than 89 megapixels, which takes long to read (the lar")
    assert "7.png, has 120)" in note


def test_huge_is_where_pillow_warns() -> None:
    assert Image.MAX_IMAGE_PIXELS == HUGE


def test_nothing_gives_the_classes_of_pacs_away(data_root: Path) -> None:
    root = data_root / "PACS"
    if not root.is_dir():
        pytest.skip(f"data not present: {root}")
    files = sorted(root.glob("*/*/*"))[::10]
    names = sorted({path.parts[-3] for path in files})
    kinds = sorted({path.parts[-2] for path in files})
    images = Surveyed(
        np.array([names.index(path.parts[-3]) for path in files]),
        np.array([kinds.index(path.parts[-2]) for path in files]),
        [one for path in files if isinstance(one := properties_of(path, 1), ImageProperties)],
    )
    assert len(images.properties) == len(files) > 900
    found = find_in_images(names, [str(path) for path in files], images, AS_STORED)
    assert not [note for note in found if "alone" in note]


# The survey of files


def turn(path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    image = Image.open(path)
    image.load()
    image.save(path, exif=exif)


def test_data_without_flags_keep_their_fingerprint_and_cache(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=2)
    plain = image_folders("data", root)
    found = inspect_data(root).dataset
    assert found.reading == AS_STORED
    assert found.fingerprint == plain.fingerprint
    assert cache_folder(found, tmp_path) == cache_folder(plain, tmp_path)


def test_one_flag_is_followed_and_gives_another_cache(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=2)
    turn(root / "hospital_a/dark/0.png")
    plain = image_folders("data", root)
    found = inspect_data(root)
    assert found.dataset.reading == Reading(upright=True)
    assert found.dataset.fingerprint != plain.fingerprint
    assert cache_folder(found.dataset, tmp_path) != cache_folder(plain, tmp_path)
    assert "1 image is turned as the EXIF orientation says" in found.notes


def test_16_bits_get_one_window_for_all(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=2)
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        values = np.arange(48 * 40).reshape(40, 48) + 1000 * number
        Image.fromarray(values.astype(np.uint16)).save(path)
    found = inspect_data(root, record=tmp_path / "inspection.json")
    assert not found.broken
    window = found.dataset.reading.window
    assert window is not None
    pixels = np.concatenate([np.arange(48 * 40) + 1000 * k for k in range(12)])
    expected = np.percentile(pixels, [0.5, 99.5])
    assert (window.low, window.high) == pytest.approx(tuple(expected), rel=0.02)
    (note,) = (one for one in found.notes if "8 bits" in one)
    assert note.startswith("12 images have more than 8 bits a channel; the grey values from")
    again = inspect_data(root, record=tmp_path / "inspection.json")
    assert again.dataset.reading == found.dataset.reading and again.notes == found.notes


def test_images_are_read_once_and_what_was_found_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, record = write_images(tmp_path / "data", each=10), tmp_path / "inspection.json"
    broken, whole = root / "hospital_a/dark/0.png", (root / "hospital_a/dark/0.png").read_bytes()
    broken.write_bytes(b"\0" * len(whole))
    turn(root / "hospital_b/dark/0.png")
    opened = list[Path]()
    real = image_survey.properties_of

    def counted(path: Path, values: int) -> Any:
        opened.append(path)
        return real(path, values)

    monkeypatch.setattr(image_survey, "properties_of", counted)
    first = inspect_data(root, record=record)
    assert len(opened) == len(set(opened)) == 60
    brightness = "the brightness of an image alone gives the class in 100 % of the images"
    assert any(note.startswith(brightness) for note in first.notes)
    second = inspect_data(root, record=record)
    assert len(opened) == 60
    assert second.notes == first.notes and second.dataset.reading == first.dataset.reading
    assert second.broken == first.broken
    # A file that was repaired can change everything, so all are read again.
    broken.write_bytes(whole)
    third = inspect_data(root, record=record)
    assert len(opened) == 120 and not third.broken
    # A record of an older version knows less.
    old = {"fingerprint": image_folders("data", root).fingerprint, "broken": []}
    record.write_text(json.dumps(old))
    assert inspect_data(root, record=record).notes == third.notes
    assert len(opened) == 180
