"""What the training cache keeps of an image: which window of the original, and at which size."""

from typing import NamedTuple

# The paper's random crop: its share of the image's area, and its width over its height.
SCALE = (0.7, 1.0)
RATIO = (3 / 4, 4 / 3)
# Sides of stored images: of evaluation both, of training the shorter one at most.
EVALUATION_SIDE = 224
TRAINING_SIDE = 256


class Frame(NamedTuple):
    """How an image was stored, in pixels: one row of frames, which are int64 ``[n, 8]``.

    The window ``top`` to ``window_width`` was cut out of the original of ``height`` and ``width``
    and stored with ``stored_height`` and ``stored_width``.
    """

    stored_height: int
    stored_width: int
    height: int
    width: int
    top: int
    left: int
    window_height: int
    window_width: int


def frame_of(height: int, width: int) -> Frame:
    """Return how an image of this size is stored; it is never enlarged.

    Stored sides are 489 at most, whatever the original's shape.
    """
    top, left, high, wide = _window(height, width)
    shorter = min(high, wide)
    if shorter <= TRAINING_SIDE:
        return Frame(high, wide, height, width, top, left, high, wide)
    stored_height, stored_width = (round(side * TRAINING_SIDE / shorter) for side in (high, wide))
    return Frame(stored_height, stored_width, height, width, top, left, high, wide)


def _window(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the part that crops can show: top, left, height and width.

    A crop of s of the area and of ratio r is √(s · area · r) wide and √(s · area / r) high, both
    rounded. The shorter side of the image is too short for any where that of the smallest crop of
    the extreme ratio is longer, √(0.7 · area · 3/4): beyond a ratio of (4/3) / 0.7 ≈ 1.9 every try
    fails, and such an image is only ever seen through the central crop.
    """
    least_side = (SCALE[0] * RATIO[0] * height * width) ** 0.5
    if least_side <= min(height, width) + 0.5:  # a side that is rounded down fits as well
        return 0, 0, height, width
    return central_crop(height, width)


def central_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the largest central part of an allowed ratio: top, left, height and width."""
    high, wide = height, width
    if width / height < RATIO[0]:
        high = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        wide = round(height * RATIO[1])
    return (height - high) // 2, (width - wide) // 2, high, wide
