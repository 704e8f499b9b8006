"""Crops: boxes against a plain loop, resampling against Pillow's and against sums in float64."""

import math
import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from shoal.datasets.decoded import Frame, Ragged, frame_of
from shoal.randomness import Draws
from shoal.training import augmentation
from shoal.training.augmentation import crop, draw_boxes, gather
from tests.datasets.pictures import photograph

# Pillow rounds twice, to whole grey levels; we do not at all.
PILLOW = 1.0 + 1e-3


def frames_of(*sizes: tuple[int, int]) -> Tensor:
    return torch.tensor([frame_of(*size) for size in sizes])


def whole(height: int, width: int) -> Tensor:
    """The frame of an image that was stored as it is."""
    return torch.tensor([Frame(height, width, height, width, 0, 0, height, width)])


def ragged(*images: Tensor) -> Ragged:
    frames = torch.cat([whole(image.shape[1], image.shape[2]) for image in images])
    sizes = torch.tensor([image.numel() for image in images])
    pixels = torch.cat([image.reshape(-1) for image in images])
    return Ragged(pixels, sizes.cumsum(0) - sizes, frames)


def noise(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator)


# Gathering


def test_gathered_images_are_the_padded_ones_with_their_edges_repeated() -> None:
    images = [noise(5, 7), noise(2, 3), noise(9, 1), noise(4, 4)]
    indices = torch.tensor([2, 0, 0, 3, 1])
    found = gather(ragged(*images), indices, 9, 8)
    assert found.dtype == torch.uint8 and found.shape == (5, 3, 9, 8)
    for got, index in zip(found, indices.tolist(), strict=True):
        image = images[index]
        for row in range(9):
            for column in range(8):
                y, x = min(row, image.shape[1] - 1), min(column, image.shape[2] - 1)
                assert torch.equal(got[:, row, column], image[:, y, x])
    host = ragged(*images).padded(indices, 9, 8)
    for a, b, index in zip(found, host, indices.tolist(), strict=True):
        _, height, width = images[index].shape
        assert torch.equal(a[:, :height, :width], b[:, :height, :width])


# Boxes


def loop_box(
    height: int, width: int, uniform: Callable[[], float], below: Callable[[int], int]
) -> tuple[int, int, int, int]:
    """RandomResizedCrop with scale (0.7, 1) and ratio (3/4, 4/3), one image at a time."""
    area = height * width
    for _ in range(10):
        target = area * (0.7 + 0.3 * uniform())
        ratio = math.exp(math.log(3 / 4) + uniform() * (math.log(4 / 3) - math.log(3 / 4)))
        wide, high = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return below(height - high + 1), below(width - wide + 1), high, wide
    high, wide = height, width
    if width / height < 3 / 4:
        high = round(width / (3 / 4))
    elif width / height > 4 / 3:
        wide = round(height * (4 / 3))
    return (height - high) // 2, (width - wide) // 2, high, wide


def floor_below(uniform: Callable[[], float], n: int) -> int:
    return math.floor(uniform() * n)


SIZES = [
    *[(227, 227), (480, 640), (640, 480), (375, 500), (300, 540), (540, 300), (100, 189)],
    *[(100, 191), (200, 1000), (1000, 200), (1, 1), (1, 2), (2, 3), (3, 2), (7, 5), (1, 90)],
    *[(3000, 4000), (40, 54), (31, 57)],
]


def test_boxes_are_those_of_a_loop_over_the_same_numbers() -> None:
    frames = frames_of(*SIZES * 40)
    draws = Draws("boxes", 1)
    numbers = deepcopy(draws).uniform(22 * len(frames)).view(-1, 22).tolist()
    found = draw_boxes(frames, draws)
    assert found.dtype == torch.int64 and found.shape == (len(frames), 4)
    for got, row, (height, width) in zip(found.tolist(), numbers, SIZES * 40, strict=True):
        tries = [number for pair in zip(row[:10], row[10:20], strict=True) for number in pair]
        uniform, corner = iter(tries).__next__, iter(row[20:]).__next__
        expected = loop_box(height, width, uniform, partial(floor_below, corner))
        assert tuple(got) == expected


@pytest.mark.parametrize(
    "size", [(227, 227), (300, 400), (300, 500), (300, 560), (560, 300), (200, 600)]
)
def test_boxes_are_distributed_as_the_loop_s(size: tuple[int, int]) -> None:
    """Quantiles of shares, ratios and corners, and how often no try fits, of 20,000 each."""
    n, (height, width) = 20_000, size
    found = draw_boxes(frames_of(size).expand(n, -1), Draws("boxes", *size)).double()
    source = random.Random(0)
    looped = torch.tensor(
        [loop_box(height, width, source.random, source.randrange) for _ in range(n)]
    ).double()

    def features(boxes: Tensor) -> Tensor:
        top, left, high, wide = boxes.T
        rows = (top + 0.5) / (height - high + 1), (left + 0.5) / (width - wide + 1)
        return torch.stack([high * wide / (height * width), (wide / high).log(), *rows])

    for got, expected in zip(features(found), features(looped), strict=True):
        # The largest gap between two distribution functions (Kolmogorov and Smirnov, 0.1 %).
        values = torch.cat([got, expected]).sort().values
        steps = [torch.searchsorted(x.sort().values, values, right=True) for x in (got, expected)]
        gap = (steps[0] - steps[1]).abs().max() / n
        assert gap < 1.95 * math.sqrt(2 / n)


def test_boxes_lie_in_what_is_stored() -> None:
    sizes = [(h, w) for h in (1, 2, 5, 50, 255, 300) for w in (1, 2, 3, 60, 97, 256, 487, 700)]
    frames = frames_of(*sizes * 50)
    boxes = draw_boxes(frames, Draws("inside"))
    first, last = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    window = frames[:, 4:6], frames[:, 4:6] + frames[:, 6:8]
    assert (boxes[:, 2:] > 0).all()
    assert (first >= window[0]).all() and (last <= window[1]).all()
    lost = (frames[:, 6:8] != frames[:, 2:4]).any(1)
    assert lost.any() and torch.equal(boxes[lost], frames[lost, 4:])


def test_an_image_s_box_depends_on_its_place_alone() -> None:
    """Not on how many others there are, nor on their shapes; and each call counts one draw."""
    one, other = Draws("a"), Draws("a")
    many = draw_boxes(frames_of(*SIZES), one)
    few = draw_boxes(frames_of(*SIZES[:3], (9, 9)), other)
    assert torch.equal(many[:3], few[:3])
    assert one.count.item() == other.count.item() == 1
    assert not torch.equal(draw_boxes(frames_of(*SIZES), one), many)


# Resampling


def pillow(image: Tensor, box: tuple[int, int, int, int], size: int) -> Tensor:
    """Cut out, then resized."""
    top, left, height, width = box
    cut = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    cut = cut.crop((left, top, left + width, top + height))
    found = cut.resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(found)).permute(2, 0, 1).float()


@pytest.mark.parametrize(
    "size", [(227, 227), (256, 341), (489, 256), (60, 100), (224, 224), (1, 1), (3, 300), (256, 7)]
)
def test_crops_are_pillow_s(size: tuple[int, int]) -> None:
    """Enlarged and shrunk, drawn boxes and arbitrary ones, in noise and to every size."""
    height, width = size
    image = noise(*size)
    frame = whole(*size)
    source = random.Random(1)
    boxes = [(0, 0, *size), (height - 1, width - 1, 1, 1)]
    boxes += draw_boxes(frame.expand(4, -1), Draws("x")).tolist()
    for _ in range(6):
        high, wide = source.randint(1, height), source.randint(1, width)
        boxes.append(
            (source.randint(0, height - high), source.randint(0, width - wide), high, wide)
        )
    n = len(boxes)
    for side in (224, 40):
        found = crop(image.expand(n, -1, -1, -1), frame.expand(n, -1), torch.tensor(boxes), side)
        assert found.dtype == torch.float32 and found.shape == (n, 3, side, side)
        expected = torch.stack([pillow(image, box, side) for box in boxes])
        assert (found - expected).abs().max() <= PILLOW


def loop_weights(low: float, high: float, side: int, size: int) -> list[list[float]]:
    """The triangle of one axis, over the pixels that the box touches."""
    step = (high - low) / size
    support = max(step, 1.0)
    rows = []
    for i in range(size):
        centre = low + (i + 0.5) * step
        row = [
            max(0.0, 1 - abs(x + 0.5 - centre) / support)
            if math.floor(low) <= x < math.ceil(high)
            else 0.0
            for x in range(side)
        ]
        rows.append([weight / sum(row) for weight in row])
    return rows


@pytest.mark.parametrize("original", [(40, 60), (401, 599), (33, 50)])
def test_crops_of_a_shrunk_image_are_sums_over_it(original: tuple[int, int]) -> None:
    """Boxes are given in the original's pixels, and fall between those that were stored."""
    stored, window = (20, 30), (original[0] - 3, original[1] - 5)
    image = noise(*stored)
    frame = torch.tensor([[*stored, *original, 2, 4, *window]])
    boxes = [(2, 4, *window), (5, 11, window[0] - 7, window[1] - 9), (9, 10, 13, 17)]
    padded = torch.zeros(3, 3, 25, 33, dtype=torch.uint8)
    padded[:, :, :20, :30] = image
    found = crop(padded, frame.expand(3, -1), torch.tensor(boxes), 16)
    for got, (top, left, high, wide) in zip(found, boxes, strict=True):
        weights = []
        for i, (start, length) in enumerate(((top - 2, high), (left - 4, wide))):
            scale = stored[i] / window[i]
            rows = loop_weights(start * scale, (start + length) * scale, stored[i], 16)
            weights.append(torch.tensor(rows, dtype=torch.float64))
        expected = weights[0] @ image.double() @ weights[1].T
        assert (got - expected).abs().max() < 1e-3


def test_padding_plays_no_part() -> None:
    image = noise(100, 130)
    frames = frames_of((100, 130)).expand(5, -1)
    boxes = draw_boxes(frames, Draws("x"))
    expected = crop(image.expand(5, -1, -1, -1), frames, boxes)
    padded = noise(140, 131).repeat(5, 1, 1, 1)
    padded[:, :, :100, :130] = image
    assert (crop(padded, frames, boxes) - expected).abs().max() < 1e-3
    gathered = gather(ragged(image), torch.zeros(5, dtype=torch.int64), 140, 131)
    assert (crop(gathered, frames, boxes) - expected).abs().max() < 1e-3


def test_half_precision_costs_less_than_a_third_of_a_grey_level(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = photograph(tmp_path / "a.png", 256, 341)
    image = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
    for images in (image, noise(256, 341), torch.full_like(image, 255)):
        frames = frames_of((256, 341)).expand(4, -1)
        boxes = draw_boxes(frames, Draws("x"))
        expected = crop(images.expand(4, -1, -1, -1), frames, boxes)
        monkeypatch.setattr(augmentation, "_precision", lambda device: torch.float16)
        found = crop(images.expand(4, -1, -1, -1), frames, boxes)
        monkeypatch.undo()
        assert found.dtype == torch.float32
        assert 0 < (found - expected).abs().max() < 0.3  # measured: 0.23


def test_autocast_costs_nothing() -> None:
    image = noise(80, 80).expand(2, -1, -1, -1)
    frames = frames_of((80, 80)).expand(2, -1)
    boxes = draw_boxes(frames, Draws("x"))
    expected = crop(image, frames, boxes)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(crop(image, frames, boxes), expected)
