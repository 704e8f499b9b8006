"""Colour jitter and grayscale of a whole batch, with the parameters of each image given.

Images are three channels ``[n, h, w]`` in 0 … 1: kept apart, everything here is arithmetic on
pixels, which a compiler makes one pass of; only contrast looks at a whole image.
"""

import torch
from torch import Tensor

Channels = tuple[Tensor, Tensor, Tensor]

# The order of factors, and how an order of operations names them.
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def jitter(channels: Channels, factors: Tensor, order: Tensor) -> Channels:
    """Return the images with other colours.

    Args:
        factors: ``[n, 4]``, of brightness, contrast and saturation (1 changes nothing), and the
            part of a full turn that is added to the hue.
        order: int64 ``[n, 4]``, the operations in the order in which each image gets them.
    """
    turn_slot = (order == HUE).long().argmax(1, keepdim=True)
    contrast_slot = (order == CONTRAST).long().argmax(1, keepdim=True)
    places = torch.arange(3, device=order.device)
    before = places < turn_slot
    kinds = torch.where(before, order[:, :3], order[:, 1:])
    ratios, shifts = factors.gather(1, kinds), factors[:, HUE]
    # Contrast needs the mean of the image as it is when its turn comes: what is done before is
    # done twice, first for that alone with everything else left neutral.
    early = torch.where(before, places, places + 1) < contrast_slot
    early_shifts = torch.where((turn_slot < contrast_slot)[:, 0], shifts, 0)
    means = torch.zeros_like(shifts)
    seen = _walk(channels, kinds, torch.where(early, ratios, 1), before, early_shifts, means)
    return _walk(channels, kinds, ratios, before, shifts, gray(seen).mean((1, 2)))


def _walk(
    channels: Channels,
    kinds: Tensor,
    ratios: Tensor,
    before: Tensor,
    shifts: Tensor,
    means: Tensor,
) -> Channels:
    """Return the images after the blends before the turn of hues, the turn, and the other blends.

    ``kinds``, ``ratios`` and ``before`` are ``[n, 3]``: each blend is done on one side of the turn,
    and left neutral on the other.
    """
    for slot in range(3):
        ratio = torch.where(before[:, slot], ratios[:, slot], 1)
        channels = _blend(channels, kinds[:, slot], ratio, means)
    channels = turn(channels, shifts)
    for slot in range(3):
        ratio = torch.where(before[:, slot], 1, ratios[:, slot])
        channels = _blend(channels, kinds[:, slot], ratio, means)
    return channels


def _blend(channels: Channels, kinds: Tensor, ratios: Tensor, means: Tensor) -> Channels:
    """Return ratio · image + (1 − ratio) · target, clamped: three operations differ in the target.

    It is black for brightness, the image's mean grey for contrast, and its grey for saturation.
    """
    kind, ratio = kinds.view(-1, 1, 1), ratios.view(-1, 1, 1)
    flat = torch.where(kind == CONTRAST, means.view(-1, 1, 1), 0)
    target = (1 - ratio) * torch.where(kind == SATURATION, gray(channels), flat)
    red, green, blue = ((ratio * channel + target).clamp(0, 1) for channel in channels)
    return red, green, blue


def turn(channels: Channels, shifts: Tensor) -> Channels:
    """Return the images with their hue turned by ``shifts`` ``[n]``, 1 for a full turn.

    Saturation and value stay, and with them the largest and the smallest channel of a pixel.
    """
    red, green, blue = channels
    largest = red.maximum(green).maximum(blue)
    spread = largest - red.minimum(green).minimum(blue)
    size = torch.where(spread > 0, spread, 1)
    # In sixths of a turn, from red.
    hue = torch.where(
        largest == red,
        (green - blue) / size,
        torch.where(largest == green, 2 + (blue - red) / size, 4 + (red - green) / size),
    )
    hue = hue + 6 * shifts.view(-1, 1, 1)

    def channel(start: int) -> Tensor:
        place = (hue + start).remainder(6)
        return largest - spread * place.minimum(4 - place).clamp(0, 1)

    return channel(5), channel(3), channel(1)


def gray(channels: Channels) -> Tensor:
    """Return the luma that Pillow calls "L", ``[n, h, w]``."""
    red, green, blue = channels
    return 0.299 * red + 0.587 * green + 0.114 * blue


def grayscale(channels: Channels, chosen: Tensor) -> Channels:
    """Return the images, those in gray that are ``chosen``, bool ``[n]``."""
    luma, chosen = gray(channels), chosen.view(-1, 1, 1)
    red, green, blue = (torch.where(chosen, luma, channel) for channel in channels)
    return red, green, blue
