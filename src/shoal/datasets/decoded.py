"""Decoded images of one domain: written in one pass over its files, then mapped into memory."""

import hashlib
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..documents import damage_named
from ..files import TENSOR_BYTES, open_file
from ..storage import write_aside
from .base import EVALUATION_SIDE
from .images import planes, read_image
from .reading import Reading

# The paper's random crop: its share of the image's area, and its width over its height.
SCALE = (0.7, 1.0)
RATIO = (3 / 4, 4 / 3)
# The largest shorter side of an image that is stored for training.
TRAINING_SIDE = 256
# Decoded images that wait to be written, for each thread, so that one slow file delays no other.
AHEAD = 8


class Frame(NamedTuple):
    """The stored part of an image, in pixels; the frames of n images are int64 ``[n, 8]``.

    The window ``top`` to ``window_width`` of the original of ``height`` and ``width`` is stored
    with ``stored_height`` and ``stored_width``.
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
    """Return the frame of an image of this size; images are never enlarged.

    Stored sides are at most 489, for any shape of the original.
    """
    top, left, high, wide = _window(height, width)
    stored_height, stored_width = high, wide
    shorter = min(high, wide)
    if shorter > TRAINING_SIDE:
        stored_height = round(high * TRAINING_SIDE / shorter)
        stored_width = round(wide * TRAINING_SIDE / shorter)
    return Frame(
        stored_height=stored_height,
        stored_width=stored_width,
        height=height,
        width=width,
        top=top,
        left=left,
        window_height=high,
        window_width=wide,
    )


def _window(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the part of an image that crops can show: top, left, height and width.

    A crop of the share s of the area and of ratio r is √(s · area · r) wide and √(s · area / r)
    high, both rounded. The smallest crop of the extreme ratio has a shorter side of
    √(0.7 · area · 3/4). An image whose shorter side is below that, which is one of a ratio beyond
    (4/3) / 0.7 ≈ 1.9, has no fitting crop, and training sees only its central crop.
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


class Ragged(NamedTuple):
    """Images of several sizes, each ``[3, h, w]``, one after the other.

    ``pixels`` is uint8 ``[total]``, ``offsets`` int64 ``[n]`` is where each image begins, and
    ``frames`` int64 ``[n, 8]`` has the columns of ``Frame``.
    """

    pixels: Tensor
    offsets: Tensor
    frames: Tensor

    @property
    def largest(self) -> tuple[int, int]:
        """The largest stored height and the largest stored width."""
        height, width = self.frames[:, :2].amax(0).tolist()
        return height, width

    def to(self, device: torch.device) -> "Ragged":
        """Return the images on a device."""
        return Ragged(*(tensor.to(device) for tensor in self))

    def padded(self, indices: Tensor, height: int, width: int) -> Tensor:
        """Return images of a mapped file as uint8 ``[n, 3, H, W]``, padded with zeros.

        For the host: it copies each image once, while ``gather`` needs an index for every pixel.
        """
        found = torch.zeros(len(indices), 3, height, width, dtype=torch.uint8)
        for into, index in zip(found, indices.tolist(), strict=True):
            high, wide = self.frames[index, :2].tolist()
            start = int(self.offsets[index])
            image = self.pixels[start : start + 3 * high * wide]
            into[:, :high, :wide] = image.view(3, high, wide)
        return found


@dataclass(frozen=True, eq=False)
class CachedDomain:
    """Images to evaluate on, uint8 ``[n, 3, 224, 224]``, and images to crop from."""

    evaluation: Tensor
    training: Ragged


class Written(NamedTuple):
    """Size and SHA-256 of a file."""

    size: int
    sha256: str


def file_names(number: int) -> tuple[str, str, str]:
    """Return the files of domain ``number``: evaluation, training and frames."""
    # By number, because a domain can have a name that no file can have.
    return f"{number}.evaluation", f"{number}.training", f"{number}.frames"


def write_domain(
    folder: Path,
    number: int,
    images: Sequence[Path],
    reading: Reading,
    progress: Callable[[int], object],
    workers: int | None,
) -> dict[str, Written]:
    """Decode the images and write the domain's three files; return their sizes and hashes by name.

    Args:
        progress: called after every image with the number of images written.
        workers: threads that decode; by default one per processor.
    """
    evaluation, training, frames = (folder / name for name in file_names(number))
    rows: list[Frame] = []

    def write_images(evaluations: "_HashingFile", trainings: "_HashingFile") -> None:
        decode = partial(_decode, reading=reading)
        for image in _map_in_order(decode, images, workers or os.cpu_count() or 1):
            evaluations.write(image.evaluation)
            trainings.write(image.training)
            rows.append(image.frame)
            progress(len(rows))

    found: dict[str, Written] = {}

    def write(path: Path, content: Callable[["_HashingFile"], object]) -> None:
        def write_hashed(file: IO[bytes]) -> None:
            hashed = _HashingFile(file)
            content(hashed)
            found[path.name] = Written(hashed.size, hashed.digest.hexdigest())

        write_aside(path, write_hashed)

    write(evaluation, lambda first: write(training, lambda second: write_images(first, second)))
    write(frames, lambda file: file.write(torch.tensor(rows, dtype=torch.int64)))
    return found


def map_domain(folder: Path, number: int) -> CachedDomain:
    """Return the domain of these files, mapped: pixels are read when they are used."""
    evaluation, training, frames = (folder / name for name in file_names(number))
    side = EVALUATION_SIDE
    with damage_named(folder, "delete it and build the cache again"):
        table = _map_file(frames).view(torch.int64).view(-1, len(Frame._fields)).clone()
        sizes = 3 * table[:, 0] * table[:, 1]
        return CachedDomain(
            _map_file(evaluation).view(-1, 3, side, side),
            Ragged(_map_file(training), sizes.cumsum(0) - sizes, table),
        )


def _map_file(path: Path) -> Tensor:
    # On some systems a writable mapping must fit into memory. A read-only one need not, and torch
    # warns that it is read-only.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        with open_file(path, TENSOR_BYTES) as file:
            return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r"))


class _DecodedImage(NamedTuple):
    evaluation: Tensor
    training: Tensor
    frame: Frame


def _decode(path: Path, reading: Reading) -> _DecodedImage:
    from PIL.Image import Resampling

    try:
        image = read_image(path, reading)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{error}; repair or remove it and try again (shoal data verify lists all such files)"
        ) from error
    frame = frame_of(image.height, image.width)
    window = image.crop(
        (
            frame.left,
            frame.top,
            frame.left + frame.window_width,
            frame.top + frame.window_height,
        )
    )
    side, stored = EVALUATION_SIDE, (frame.stored_width, frame.stored_height)
    return _DecodedImage(
        planes(image.resize((side, side), Resampling.BILINEAR)),
        # The crop is bilinear, as in DomainBed. A second bilinear filter here would make training
        # images softer than those of evaluation: differences between neighbouring pixels would keep
        # 67 % of their energy; with this filter they keep 96 %.
        planes(window.resize(stored, Resampling.LANCZOS)),
        frame,
    )


def _map_in_order(
    work: Callable[[Path], _DecodedImage], paths: Iterable[Path], workers: int
) -> Iterator[_DecodedImage]:
    """Yield the result of ``work`` for each path, in order; threads are some paths ahead.

    Pillow releases the interpreter's lock while it decodes, so threads use all processors without
    copies between processes.
    """
    waiting: deque[Future[_DecodedImage]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for path in paths:
                waiting.append(pool.submit(work, path))
                if len(waiting) == AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _HashingFile:
    """An open file, with the size and the SHA-256 of the bytes written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, tensor: Tensor) -> None:
        content = tensor.view(torch.uint8).numpy().reshape(-1).data
        self.file.write(content)
        self.digest.update(content)
        self.size += len(content)
