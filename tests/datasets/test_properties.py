"""Properties of images: measured as a person would, and never a reason to refuse a file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.datasets.properties import ImageProperties, properties_of
from shoal.datasets.reading import ORIENTATION
from tests.datasets.pictures import photograph

MAKE, MODEL = 271, 272


def measured(path: Path, values: int = 64) -> ImageProperties:
    found = properties_of(path, values)
    assert isinstance(found, ImageProperties), found
    return found


def test_size_light_and_colour(tmp_path: Path) -> None:
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 40:] = 200
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = measured(tmp_path / "a.png")
    assert (found.width, found.height, found.aspect) == (80, 40, 2.0)
    assert found.brightness == pytest.approx(100, abs=1)
    assert found.contrast == pytest.approx(100, abs=1)
    assert (found.colour, found.format, found.camera, found.turned) == (0, "PNG", "", False)
    assert np.isnan(found.quality) and found.values is None
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red.png")
    assert measured(tmp_path / "red.png").colour == 255


def test_sharpness_is_that_of_the_laplacian(tmp_path: Path) -> None:
    path = photograph(tmp_path / "a.png", 300, 400)
    grey = np.asarray(Image.open(path).convert("L"), dtype=np.float64)
    part = grey[22 : 22 + 256, 72 : 72 + 256]
    laplacian = [
        4 * part[y, x] - part[y - 1, x] - part[y + 1, x] - part[y, x - 1] - part[y, x + 1]
        for y in range(1, 255)
        for x in range(1, 255)
    ]
    found = measured(path).sharpness
    assert found == pytest.approx(np.log(np.var(laplacian) + 1e-3), rel=1e-5)
    Image.open(path).resize((100, 75)).resize((400, 300)).save(tmp_path / "soft.png")
    assert measured(tmp_path / "soft.png").sharpness < found - 1
    Image.new("L", (2, 90)).save(tmp_path / "thin.png")
    assert measured(tmp_path / "thin.png").sharpness == 0


@pytest.mark.parametrize("quality", [30, 50, 75, 90, 95])
def test_the_quality_of_a_jpeg_is_found_again(tmp_path: Path, quality: int) -> None:
    image = Image.open(photograph(tmp_path / "a.png", 64, 64))
    image.save(tmp_path / "a.jpg", quality=quality)
    assert measured(tmp_path / "a.jpg").quality == pytest.approx(quality, abs=1)


def test_camera_and_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[MAKE], exif[MODEL], exif[ORIENTATION] = "Acme \0", "X100", 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    found = measured(tmp_path / "a.jpg")
    assert (found.camera, found.turned) == ("Acme X100", True)
    assert (found.width, found.height) == (20, 30)  # upright


def test_16_bits_are_measured_and_some_of_their_values_kept(tmp_path: Path) -> None:
    values = np.arange(60 * 50, dtype=np.uint16).reshape(60, 50) * 20
    Image.fromarray(values).save(tmp_path / "a.png")
    found = measured(tmp_path / "a.png", 100)
    assert found.values is not None and len(found.values) == 100
    assert (found.values.min(), found.values.max()) == (0, values.max())
    assert found.brightness == pytest.approx(values.mean() / 257, rel=0.01)
    assert len(measured(tmp_path / "a.png", 10_000).values) == values.size  # type: ignore[arg-type]
    small = replace(found, values=None)
    assert (small.width, small.height, small.colour) == (50, 60, 0)


def test_what_cannot_be_read_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    assert properties_of(tmp_path / "a.png", 1) == "not an image file, or its header is damaged"
    assert properties_of(tmp_path / "gone.png", 1) == "No such file or directory"
    Image.fromarray(np.array([[np.inf]], np.float32)).save(tmp_path / "a.tif")
    assert properties_of(tmp_path / "a.tif", 1) == "some of its grey values are not finite"
