"""Reading: how an image file becomes 8-bit RGB: its orientation, and its window of grey values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]
# The grey values below and above these percentiles become black and white.
PERCENTILES = (0.5, 99.5)
# EXIF's tag of the orientation, and its value for images that are stored upright.
ORIENTATION, UPRIGHT = 274, 1


@dataclass(frozen=True)
class Window:
    """The grey values that become black (``low``) and white (``high``)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"a window must go from a number to a larger one, got {self.low} to {self.high}"
            )

    def __call__(self, values: Array) -> Array:
        """Return the values as uint8: 0 up to ``low``, 255 from ``high`` on, linear between."""
        scaled = (values.astype(np.float64) - self.low) * (255 / (self.high - self.low))
        found: Array = np.rint(scaled.clip(0, 255)).astype(np.uint8)
        return found

    @staticmethod
    def of(samples: Sequence[Array]) -> "Window":
        """Return the window between the ``PERCENTILES`` of some grey values of several images."""
        low, high = np.percentile(np.concatenate(samples).astype(np.float64), PERCENTILES).tolist()
        return Window(low, high if high > low else low + 1)


@dataclass(frozen=True)
class Reading:
    """How image files are read.

    Args:
        upright: whether images are turned as their EXIF orientation says.
        window: of images with more than 8 bits a channel; None refuses them.
    """

    upright: bool = False
    window: Window | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the reading as plain values, for the card of a model."""
        found: dict[str, Any] = {"orientation": "exif" if self.upright else "as stored"}
        if self.window is not None:
            found["window"] = {"low": self.window.low, "high": self.window.high}
        return found

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Reading":
        """Return the reading that ``as_json`` wrote; older cards say nothing of it."""
        window = values.get("window")
        return Reading(
            upright=values.get("orientation") == "exif",
            window=None if window is None else Window(window["low"], window["high"]),
        )

    def render(self, image: "Image") -> "Image | None":
        """Return an image in 8-bit RGB; None if it has more than 8 bits and there is no window."""
        from PIL import Image

        if has_more_than_8_bits(image):
            if self.window is None:
                return None
            grey = self.window(grey_values(image))
            found = Image.fromarray(grey).convert("RGB")
        else:
            found = image.convert("RGB")
        return turn(found, orientation_of(image)) if self.upright else found


# As in DomainBed: orientations are ignored, and more than 8 bits are refused.
AS_STORED = Reading()


def has_more_than_8_bits(image: "Image") -> bool:
    """Return whether Pillow would clip the grey values of an image to 255 as it makes it RGB."""
    return image.mode[0] in "IF"


def grey_values(image: "Image") -> Array:
    """Return the grey values ``[H, W]`` of an image with more than 8 bits."""
    values = np.asarray(image)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("some of its grey values are not finite")
    return values


def orientation_of(image: "Image") -> int:
    """Return the EXIF orientation, 1 to 8; 1 if there is none or it cannot be read.

    Pillow itself turns a TIFF as it loads it, so those are always upright.
    """
    if image.format == "TIFF":
        return UPRIGHT
    try:
        found = image.getexif().get(ORIENTATION, UPRIGHT)
    except Exception:  # damaged EXIF must not make an image unreadable
        return UPRIGHT
    return int(found) if found in range(1, 9) else UPRIGHT


def turn(image: "Image", orientation: int) -> "Image":
    """Return the image upright."""
    from PIL.Image import Transpose

    ways = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(ways[orientation]) if orientation in ways else image
