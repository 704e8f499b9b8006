"""DomainBed's exact image path: the original file, resized or augmented by Pillow alone.

Pillow rounds to whole grey levels after every operation and resamples the original once; the
batched path does neither. A test bounds the difference.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..datasets.base import EVALUATION_SIDE
from ..datasets.images import planes, read_image
from ..datasets.reading import AS_STORED, Reading
from .augmentation import BRIGHTNESS, CONTRAST, HUE, SATURATION, ImageParameters

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE = (EVALUATION_SIDE, EVALUATION_SIDE)


def exact_evaluation(path: Path, reading: Reading = AS_STORED) -> Tensor:
    """Return the image at 224 × 224 whatever its shape, uint8 ``[3, 224, 224]``."""
    from PIL.Image import Resampling

    return planes(read_image(path, reading).resize(SIZE, Resampling.BILINEAR))


def exact_training(path: Path, parameters: ImageParameters, reading: Reading = AS_STORED) -> Tensor:
    """Return the image augmented with the parameters of one image, uint8 ``[3, 224, 224]``."""
    from PIL.Image import Resampling, Transpose

    image = read_image(path, reading)
    top, left, height, width = parameters.boxes.tolist()
    image = image.crop((left, top, left + width, top + height)).resize(SIZE, Resampling.BILINEAR)
    if bool(parameters.flipped):
        image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
    factors = parameters.factors.tolist()
    for kind in parameters.order.tolist():
        image = _adjust(image, kind, factors[kind])
    if bool(parameters.grayed):
        image = image.convert("L").convert("RGB")
    return planes(image)


def _adjust(image: "Image", kind: int, factor: float) -> "Image":
    from PIL import ImageEnhance

    if kind == HUE:
        return _shift_hue(image, factor)
    enhance = {
        BRIGHTNESS: ImageEnhance.Brightness,
        CONTRAST: ImageEnhance.Contrast,
        SATURATION: ImageEnhance.Color,
    }[kind]
    return enhance(image).enhance(factor)


def _shift_hue(image: "Image", shift: float) -> "Image":
    from PIL import Image

    hue, saturation, value = image.convert("HSV").split()
    # Whole steps of 1/255 of a turn, rounded towards 0, modulo 256: as in torchvision.
    turned = (np.asarray(hue) + np.int64(int(shift * 255))).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")
