"""One domain's decoded images: written in one pass over its files, then mapped into memory."""

import hashlib
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..storage import write_aside
from .frames import EVALUATION_SIDE, Frame, frame_of
from .images import planes, read_image

# Decoded images that wait to be written, for each thread: one slow file holds up no other.
AHEAD = 8


class Ragged(NamedTuple):
    """Images of several sizes, each ``[3, h, w]``, one behind the other.

    ``pixels`` is uint8 ``[total]``, ``offsets`` int64 ``[n]`` says where each image begins, and
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
        """Return images of a mapped file as uint8 ``[n, 3, H, W]``, with zeros around.

        For the host: one copy per image, where ``gather`` would make an index for every pixel.
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
    # By number, because a domain may have a name that no file can have.
    return f"{number}.evaluation", f"{number}.training", f"{number}.frames"


def write_domain(
    folder: Path,
    number: int,
    images: Sequence[Path],
    told: Callable[[int], object],
    workers: int | None,
) -> dict[str, Written]:
    """Decode the images and write the domain's three files; return what they hold, by file name.

    Args:
        told: called after every image with how many were written.
        workers: threads that decode; by default as many as there are processors.
    """
    evaluation, training, frames = (folder / name for name in file_names(number))
    rows: list[Frame] = []

    def write_images(evaluations: "_Hashed", trainings: "_Hashed") -> None:
        for stored in _in_order(_stored, images, workers or os.cpu_count() or 1):
            evaluations.write(stored.evaluation)
            trainings.write(stored.training)
            rows.append(stored.frame)
            told(len(rows))

    found: dict[str, Written] = {}

    def write(path: Path, content: Callable[["_Hashed"], object]) -> None:
        def write_hashed(file: IO[bytes]) -> None:
            hashed = _Hashed(file)
            content(hashed)
            found[path.name] = Written(hashed.size, hashed.digest.hexdigest())

        write_aside(path, write_hashed)

    write(evaluation, lambda first: write(training, lambda second: write_images(first, second)))
    write(frames, lambda file: file.write(torch.tensor(rows, dtype=torch.int64)))
    return found


def map_domain(folder: Path, number: int) -> CachedDomain:
    """Return the domain of these files; what is not looked at is not read."""
    evaluation, training, frames = (folder / name for name in file_names(number))
    table = _mapped(frames).view(torch.int64).view(-1, len(Frame._fields)).clone()
    sizes = 3 * table[:, 0] * table[:, 1]
    side = EVALUATION_SIDE
    return CachedDomain(
        _mapped(evaluation).view(-1, 3, side, side),
        Ragged(_mapped(training), sizes.cumsum(0) - sizes, table),
    )


def _mapped(path: Path) -> Tensor:
    # A mapping that could be written to would have to fit into memory on some systems; this one
    # may be larger, and torch warns that it cannot be written to.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="r"))


class _Stored(NamedTuple):
    evaluation: Tensor
    training: Tensor
    frame: Frame


def _stored(path: Path) -> _Stored:
    from PIL.Image import Resampling

    try:
        image = read_image(path)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{error}; mend or remove it and try again (shoal data verify names all such files)"
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
    return _Stored(
        planes(image.resize((side, side), Resampling.BILINEAR)),
        # The crop brings DomainBed's bilinear blur. Bilinear here as well, training images would be
        # softer than those of evaluation: differences between neighbouring pixels would keep 67 %
        # of their energy; with this filter they keep 96 %.
        planes(window.resize(stored, Resampling.LANCZOS)),
        frame,
    )


def _in_order(
    work: Callable[[Path], _Stored], paths: Iterable[Path], workers: int
) -> Iterator[_Stored]:
    """Yield what ``work`` makes of each path, in order; threads are some paths ahead.

    Pillow holds no lock while it decodes, so threads use all processors, and nothing is copied
    from one process to another.
    """
    waiting: deque[Future[_Stored]] = deque()
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


class _Hashed:
    """A file that knows the size and the SHA-256 of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, tensor: Tensor) -> None:
        content = tensor.view(torch.uint8).numpy().reshape(-1).data
        self.file.write(content)
        self.digest.update(content)
        self.size += len(content)
