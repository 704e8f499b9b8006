"""What images look like: the numbers against loops in float64, and which images are unlike all."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from shoal.datasets.appearance import LEAST, NAMES, SHARE, Appearance, look


def noise(n: int, low: int, high: int, side: int = 32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n, 3, side, side), generator=generator, dtype=torch.uint8)


def slow_look(image: Any) -> list[float]:
    """Return contrast, sharpness and colour of an image ``[3, H, W]``, every fourth row and column.

    Contrast is of every fourth row; so are the differences along it, and the others are along every
    fourth column.
    """
    pixels = image.astype(float)
    _, height, width = pixels.shape

    def grey(y: int, x: int) -> float:
        red, green, blue = pixels[:, y, x]
        return float(0.299 * red + 0.587 * green + 0.114 * blue)

    values = [grey(y, x) for y in range(0, height, 4) for x in range(width)]
    mean = sum(values) / len(values)
    contrast = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    along = [
        grey(y, x) - (grey(y, x - 1) + grey(y, x + 1)) / 2
        for y in range(0, height, 4)
        for x in range(1, width - 1)
    ]
    across = [
        grey(y, x) - (grey(y - 1, x) + grey(y + 1, x)) / 2
        for x in range(0, width, 4)
        for y in range(1, height - 1)
    ]
    squares = [sum(b * b for b in bends) / len(bends) for bends in (along, across)]
    colours = [
        pixels[:, y, x].max() - pixels[:, y, x].min()
        for y in range(0, height, 4)
        for x in range(0, width, 4)
    ]
    return [contrast, math.sqrt(sum(squares) / 2), sum(colours) / len(colours)]


def test_the_numbers_are_those_of_a_loop() -> None:
    images = torch.cat([noise(5, 0, 256), noise(2, 90, 110)])
    images[1, :, 5:9] = 0  # stripes along one axis only
    images[2, :, :, 5:9] = 0
    images[3, 1] = images[3, 0]
    expected = [slow_look(image.numpy()) for image in images]
    np.testing.assert_allclose(look(images), expected, rtol=1e-5, atol=1e-4)
    # The numbers of an image do not depend on the others.
    np.testing.assert_allclose(look(images[6:]), expected[6:], rtol=1e-5, atol=1e-4)


def test_the_image_of_one_colour_has_no_contrast() -> None:
    image = torch.tensor([200, 100, 50], dtype=torch.uint8)[None, :, None, None].expand(1, 3, 16, 8)
    np.testing.assert_allclose(look(image), [[0, 0, 150]], atol=1e-3)


def test_images_unlike_all_in_training() -> None:
    seen = Appearance.of([noise(300, 60, 200), noise(100, 80, 160)])
    odd = torch.cat([noise(1, 70, 180, seed=1), noise(1, 128, 130)])
    found = seen.unusual(odd)
    assert found[0] == ()
    contrast, sharpness, colour = (float(one) for one in look(odd[1:2])[0])
    low, high = np.expm1([seen.ranges[0].min, seen.ranges[0].max])
    assert found[1][0] == f"contrast is {contrast:.3g}, in training it was {low:.3g} to {high:.3g}"
    assert [words.partition(" ")[0] for words in found[1]] == list(NAMES)
    assert found[1][1].startswith(f"sharpness is {sharpness:.3g}, in training it was ")
    assert found[1][2].startswith(f"colour is {colour:.3g}, in training it was ")


def test_nothing_in_training_is_unlike_it() -> None:
    images = torch.cat([noise(400, 100, 140), noise(1, 0, 256), noise(1, 120, 121)])
    assert Appearance.of([images]).unusual(images) == [()] * len(images)


def grey(deviation: float) -> torch.Tensor:
    """Return a grey image whose values are 100 more or less than this."""
    row = torch.tensor([100 - deviation, 100 + deviation]).repeat(16)
    return row.round().byte().expand(1, 3, 32, 32)


@pytest.mark.parametrize("tint, words", [(3, 0), (14, 1)])
def test_grey_images_may_have_a_tint(tint: int, words: int) -> None:
    seen = Appearance.of([grey(deviation) for deviation in range(20, 60)])
    assert seen.ranges[2].max == 0
    tinted = grey(30).clone()
    tinted[:, 0] += tint
    assert len(seen.unusual(tinted)[0]) == words
    limit = math.expm1(SHARE * LEAST[2])
    assert (tint > limit) == bool(words)


def test_the_limit_is_half_the_width_of_the_middle_beyond_it() -> None:
    """Contrasts of 20 to 59, alike in number: the width of their logarithms is about 1."""
    seen = Appearance.of([grey(deviation) for deviation in range(20, 60)])
    logs = np.log1p(np.arange(20, 60))
    low, high = np.quantile(logs, [0.01, 0.99])
    reach = max(high - low, LEAST[0]) / 2
    limits = np.expm1([low - reach, high + reach])
    for inside in (math.ceil(limits[0]), math.floor(limits[1])):
        assert seen.unusual(grey(inside))[0] == ()
    for outside in (math.floor(limits[0]), math.ceil(limits[1])):
        assert seen.unusual(grey(outside))[0][0].startswith(f"contrast is {outside}, ")


def test_images_that_are_much_alike_leave_room_for_others() -> None:
    """Contrasts of 40 to 44: the width counts as 1, so the limits are 40 / √e and 44 · √e."""
    seen = Appearance.of([grey(deviation) for deviation in range(40, 45)])
    assert [bool(seen.unusual(grey(c))[0]) for c in (23, 26, 69, 76)] == [True, False, False, True]


def test_the_sharpest_image_can_be_in_training() -> None:
    stripes = torch.tensor([0, 255], dtype=torch.uint8).repeat(16).expand(1, 3, 32, 32)
    board = torch.where(torch.arange(32)[:, None] % 2 == 0, stripes, 255 - stripes)
    seen = Appearance.of([board])
    assert Appearance.from_json(seen.as_json()) == seen
    np.testing.assert_allclose(look(board), [[127.5, 255, 0]], rtol=1e-5, atol=1e-4)


def test_a_card_keeps_it() -> None:
    seen = Appearance.of([noise(10, 0, 256)])
    card = json.loads(json.dumps(seen.as_json()))
    assert Appearance.from_json(card) == seen
    for wrong in (math.nan, -1.0, 7.0, 1e300):
        with pytest.raises(ValueError, match="the sharpness of images in training is not possible"):
            Appearance.from_json({**card, "sharpness": {**card["sharpness"], "max": wrong}})
    with pytest.raises(KeyError, match="colour"):
        Appearance.from_json({name: card[name] for name in NAMES[:2]})
