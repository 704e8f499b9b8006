"""Colours: every operation in every order, against one image and one pixel at a time."""

import colorsys
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.training.augmentation import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    Channels,
    flip,
    gray,
    grayscale,
    jitter,
    turn,
)

ORDERS = list(itertools.permutations((BRIGHTNESS, CONTRAST, SATURATION, HUE)))


def loop_turn(image: Tensor, shift: float) -> Tensor:
    """The hue of every pixel, turned by way of the standard library."""
    pixels = []
    for red, green, blue in image.reshape(3, -1).T.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        pixels.append(colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value))
    return torch.tensor(pixels, dtype=image.dtype).T.reshape(image.shape)


def loop_gray(image: Tensor) -> Tensor:
    return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def loop_jitter(image: Tensor, factors: list[float], order: tuple[int, ...]) -> Tensor:
    """One image ``[3, h, w]``, one operation after the other."""
    for kind in order:
        factor = factors[kind]
        if kind == BRIGHTNESS:
            image = (image * factor).clamp(0, 1)
        elif kind == CONTRAST:
            mean = loop_gray(image).mean()
            image = (mean + (image - mean) * factor).clamp(0, 1)
        elif kind == SATURATION:
            luma = loop_gray(image)
            image = (luma + (image - luma) * factor).clamp(0, 1)
        else:
            image = loop_turn(image, factor)
    return image


def random_images(n: int, side: int = 6, seed: int = 0) -> Tensor:
    """Some pixels gray, black or white, and some images mostly bright, so that clamps act."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n, 3, side, side, generator=generator, dtype=torch.float64)
    images[1::3] = 1 - 0.2 * images[1::3]
    images[:, :, 0, 0] = 0.5
    images[:, :, 0, 1] = 0
    images[:, :, 0, 2] = 1
    images[:, 1, 1, 0] = images[:, 0, 1, 0]  # two channels share the largest value
    return images


def random_factors(n: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    factors = torch.rand(n, 4, generator=generator, dtype=torch.float64) * 0.6 - 0.3
    factors[:, :HUE] += 1
    return factors


def split(images: Tensor) -> Channels:
    red, green, blue = images.unbind(1)
    return red, green, blue


def test_every_order_against_one_image_at_a_time() -> None:
    n = 2 * len(ORDERS)
    images, factors, order = random_images(n), random_factors(n), torch.tensor(ORDERS * 2)
    found = torch.stack(jitter(split(images), factors, order), 1)

    def looped(orders: list[tuple[int, ...]]) -> Tensor:
        each = zip(images, factors.tolist(), orders * 2, strict=True)
        return torch.stack([loop_jitter(*one) for one in each])

    assert (found - looped(ORDERS)).abs().max() < 1e-12
    # The order matters, and the clamps do: or else this would have shown nothing.
    assert (found - looped(ORDERS[::-1])).abs().max() > 0.05
    assert ((found == 0) | (found == 1)).any()


def test_an_image_s_neighbours_play_no_part() -> None:
    images, factors, order = random_images(24), random_factors(24), torch.tensor(ORDERS)
    together = torch.stack(jitter(split(images), factors, order), 1)
    alone = torch.stack(jitter(split(images[5:6]), factors[5:6], order[5:6]), 1)
    assert (together[5:6] - alone).abs().max() < 1e-14


def test_neutral_factors_change_nothing() -> None:
    images = random_images(24).float()
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(24, -1)
    found = torch.stack(jitter(split(images), factors, torch.tensor(ORDERS)), 1)
    assert (found - images).abs().max() < 1e-6


def test_a_turn_is_the_standard_library_s() -> None:
    images = random_images(9)
    shifts = torch.linspace(-1.3, 1.3, 9, dtype=torch.float64)
    found = torch.stack(turn(split(images), shifts), 1)
    expected = [loop_turn(*one) for one in zip(images, shifts.tolist(), strict=True)]
    assert (found - torch.stack(expected)).abs().max() < 1e-12


def test_a_third_of_a_turn_moves_the_channels() -> None:
    images = random_images(2)
    red, green, blue = split(images)
    found = turn((red, green, blue), torch.tensor([1 / 3, 1 / 3], dtype=torch.float64))
    for got, expected in zip(found, (blue, red, green), strict=True):
        assert (got - expected).abs().max() < 1e-12


def test_flat_and_nearly_flat_pixels_stay_finite() -> None:
    images = torch.full((1, 3, 2, 2), 0.5)
    images[:, 1, 0, 0] += 1e-8
    images[:, 2, 0, 1] += 6e-8
    found = torch.stack(turn(split(images), torch.tensor([0.3])), 1)
    assert (found - 0.5).abs().max() < 1e-6


def test_grayscale_and_flip_take_those_that_are_chosen() -> None:
    images = random_images(4)
    chosen = torch.tensor([True, False, False, True])
    found = torch.stack(grayscale(split(images), chosen), 1)
    mirrored = flip(images, chosen)
    for i, is_chosen in enumerate(chosen.tolist()):
        luma = loop_gray(images[i]).expand(3, -1, -1)
        assert torch.allclose(found[i], luma if is_chosen else images[i], rtol=0, atol=1e-14)
        columns = list(range(6))[:: -1 if is_chosen else 1]
        assert torch.equal(mirrored[i], images[i][:, :, columns])
    assert gray(split(images)).shape == (4, 6, 6)


@pytest.fixture(scope="module")
def functional(torchvision: Any) -> Any:
    from torchvision.transforms import functional

    return functional


def test_torchvision_agrees(functional: Any) -> None:
    """On tensors, where its luma has 0.2989 for 0.299."""
    images, factors = random_images(24).float(), random_factors(24).float()
    found = torch.stack(jitter(split(images), factors, torch.tensor(ORDERS)), 1)
    adjust = {
        BRIGHTNESS: functional.adjust_brightness,
        CONTRAST: functional.adjust_contrast,
        SATURATION: functional.adjust_saturation,
        HUE: functional.adjust_hue,
    }
    for i, order in enumerate(ORDERS):
        expected = images[i]
        for kind in order:
            expected = adjust[kind](expected, factors[i, kind].item())
        assert (found[i] - expected).abs().max() < 1e-3
