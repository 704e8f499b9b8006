"""Image properties: size, light, sharpness, compression and camera, measured as a file is read."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .images import load_image, reason_of, render_image
from .reading import AS_STORED, grey_values, has_more_than_8_bits, orientation_of

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]
# Light is measured on an image of this side, sharpness on a part of this side in full resolution.
SIDE, PART = 64, 256
# EXIF's tags of the camera.
MAKE, MODEL = 271, 272
# Luminance of the JPEG standard's quantisation table, which quality scales (Annex K), summed.
STANDARD = 3688


@dataclass(frozen=True, kw_only=True)
class ImageProperties:
    """Properties of one image that have little to do with what it shows.

    Args:
        width, height: in pixels, upright.
        brightness, contrast: mean and standard deviation of the grey values, 0 to 255.
        sharpness: logarithm of the variance of the Laplacian.
        colour: mean saturation, 0 to 255.
        quality: of JPEG files, 1 to 100, estimated; NaN for others.
        camera: its maker and model according to EXIF, or "".
        format: such as "JPEG".
        turned: whether the EXIF orientation says that it is not stored upright.
        values: some grey values if it has more than 8 bits, else None.
    """

    width: int
    height: int
    brightness: float
    contrast: float
    sharpness: float
    colour: float
    quality: float
    camera: str
    format: str
    turned: bool
    values: Array | None = None

    @property
    def aspect(self) -> float:
        """Width over height."""
        return self.width / self.height


def properties_of(path: Path, values: int) -> ImageProperties | str:
    """Return the properties of a file, or why it cannot be read.

    Args:
        values: how many grey values to keep of an image with more than 8 bits.
    """
    try:
        image = load_image(path)
        if has_more_than_8_bits(image):
            return _of_grey(image, grey_values(image), values)
        return _of_colours(image, render_image(image, path, AS_STORED))
    except (ValueError, OSError) as error:
        return reason_of(path, error)


def _of_colours(image: "Image", colours: "Image") -> ImageProperties:
    from PIL.Image import Resampling

    small = colours.resize((SIDE, SIDE), Resampling.BOX)
    light = np.asarray(small.convert("L"), dtype=np.float32)
    return _properties(
        image,
        light=light,
        part=np.asarray(_middle(colours).convert("L"), dtype=np.float32),
        colour=float(np.asarray(small.convert("HSV"))[..., 1].mean()),
    )


def _of_grey(image: "Image", grey: Array, values: int) -> ImageProperties:
    """Return the properties of an image with more than 8 bits; 16 bits are scaled to 0 to 255."""
    from PIL import Image
    from PIL.Image import Resampling

    scale = 257.0 if grey.dtype.kind == "u" else 1.0
    scaled = Image.fromarray(grey.astype(np.float32) / np.float32(scale))
    spread = np.linspace(0, grey.size - 1, min(values, grey.size)).astype(np.int64)
    return _properties(
        image,
        light=np.asarray(scaled.resize((SIDE, SIDE), Resampling.BOX)),
        part=np.asarray(_middle(scaled)),
        colour=0.0,
        values=grey.ravel()[spread].astype(np.float32),
    )


def _properties(
    image: "Image", light: Array, part: Array, colour: float, values: Array | None = None
) -> ImageProperties:
    orientation = orientation_of(image)
    width, height = image.size if orientation < 5 else image.size[::-1]
    return ImageProperties(
        width=width,
        height=height,
        brightness=float(light.mean()),
        contrast=float(light.std()),
        sharpness=_sharpness(part),
        colour=colour,
        quality=_quality(image),
        camera=_camera(image),
        format=image.format or "",
        turned=orientation > 1,
        values=values,
    )


def _middle(image: "Image") -> "Image":
    wide, high = min(image.width, PART), min(image.height, PART)
    left, top = (image.width - wide) // 2, (image.height - high) // 2
    return image.crop((left, top, left + wide, top + high))


def _sharpness(grey: Array) -> float:
    if min(grey.shape) < 3:
        return 0.0
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    return math.log(float((4 * grey[1:-1, 1:-1] - around).var()) + 1e-3)


def _quality(image: "Image") -> float:
    """Return the quality that libjpeg would have to be asked for, from the quantisation table."""
    tables = getattr(image, "quantization", None)
    if not tables:
        return math.nan
    scale = float(100 * sum(tables[min(tables)]) / STANDARD)
    return 100 - scale / 2 if scale <= 100 else 5000 / scale


def _camera(image: "Image") -> str:
    try:
        exif = image.getexif()
        words = [str(exif.get(tag, "")).strip(" \0") for tag in (MAKE, MODEL)]
    except Exception:  # damaged EXIF must not make an image unreadable
        return ""
    return " ".join(filter(None, words))
