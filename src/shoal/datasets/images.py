"""Images in files: decoded one by one, verified all together, and searched for duplicates."""

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..files import IMAGE_BYTES, UnfitFile, open_file, read_bytes
from .base import DomainDataset
from .reading import AS_STORED, Reading, orientation_of

if TYPE_CHECKING:
    from PIL.Image import Image

Found = TypeVar("Found")
# The number of images of each domain, or of all domains together if no more is published.
Published = Mapping[str, int] | int
# The formats that are decoded, by their names in Pillow. It knows others, and gives some of them to
# programs such as Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
NO_MEMORY = "there is too little memory to decode it"
# Images that wait for a thread at a time: a million futures at once take a gigabyte.
WAITING = 1024


def read_image(path: Path, reading: Reading = AS_STORED) -> "Image":
    """Return the image in RGB; raise ValueError if the file is not an image, or truncated.

    DomainBed reads the existing part of a truncated file, and trains on the grey rest.
    """
    return render_image(load_image(path), path, reading)


def load_image(path: Path) -> "Image":
    """Return the image as it is stored, with all its pixels; raise as ``read_image`` does."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "images are read by Pillow, which is not installed: pip install 'shoal[images]'",
            name="PIL",
        ) from error
    content = read_bytes(path, IMAGE_BYTES)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise ValueError(
            f"cannot read {path}: it has more than {most} megapixels; make it smaller"
        ) from error
    except UnidentifiedImageError as error:
        raise ValueError(
            f"cannot read {path}: not an image file, or its header is damaged"
        ) from error
    except MemoryError as error:
        raise ValueError(f"cannot read {path}: {NO_MEMORY}") from error
    except Exception as error:  # Pillow raises all kinds of errors on damaged files
        raise ValueError(f"cannot read {path}: damaged or truncated ({error})") from error
    return image


def render_image(image: "Image", path: Path, reading: Reading) -> "Image":
    """Return a loaded image in RGB; ``path`` is for the error."""
    try:
        found = reading.render(image)
    except MemoryError as error:
        raise ValueError(f"cannot read {path}: {NO_MEMORY}") from error
    except Exception as error:  # some modes cannot be converted
        raise ValueError(f"cannot read {path}: {error}") from error
    if found is None:
        # Pillow would clip 16 bits to 255, which gives a white image.
        raise ValueError(
            f"cannot read {path}: it has more than 8 bits a channel (Pillow's {image.mode!r}); "
            "convert it to 8 bits"
        )
    return found


@contextmanager
def _header(path: Path) -> Iterator["Image"]:
    """Yield an image of which only the header is read."""
    from PIL import Image

    with open_file(path, IMAGE_BYTES) as file, Image.open(file, formats=FORMATS) as image:
        yield image


def is_turned(path: Path) -> bool:
    """Return whether the EXIF orientation of a file says that it is not stored upright."""
    try:
        with _header(path) as image:
            return orientation_of(image) > 1
    except Exception:  # ``read_image`` reports the reason
        return False


def image_size(path: Path) -> tuple[int, int] | None:
    """Return width and height according to the header; None if it cannot be read."""
    try:
        with _header(path) as image:
            return image.size
    except Exception:  # ``read_image`` reports the reason
        return None


def planes(image: "Image") -> Tensor:
    """Return an RGB image as uint8 ``[3, H, W]``."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def decode(path: Path, reading: Reading = AS_STORED) -> Tensor:
    """Return the image as uint8 RGB ``[3, H, W]``; raise as ``read_image`` does."""
    image = read_image(path, reading)
    try:
        return planes(image)
    except MemoryError as error:
        raise ValueError(f"cannot read {path}: {NO_MEMORY}") from error


class Broken(NamedTuple):
    """A file that cannot be read, and why."""

    domain: str
    path: Path
    why: str


class Difference(NamedTuple):
    """A count that differs from the published one; ``domain`` is "all" for a total."""

    domain: str
    found: int
    published: int


@dataclass(frozen=True)
class Verification:
    """The findings of ``verify``: unreadable files, and counts of images by domain and class."""

    broken: tuple[Broken, ...]
    counts: dict[str, dict[str, int]]
    differences: tuple[Difference, ...]
    missing_classes: dict[str, tuple[str, ...]]

    @property
    def good(self) -> bool:
        """Whether every image can be read and every count is the published one."""
        return not self.broken and not self.differences


def verify(
    dataset: DomainDataset,
    published: Published | None = None,
    progress: Callable[[int, int], object] | None = None,
    workers: int | None = None,
) -> Verification:
    """Return the files that cannot be read, and the differences from the published counts.

    Args:
        progress: called after every image with the number of images read, and of all images.
        workers: threads that read; by default one per processor.
    """
    work = partial(why_broken, reading=dataset.reading)
    found = look_at_files(dataset, work, progress, workers)
    broken = [Broken(domain, path, why) for domain, path, why in found if why is not None]
    counts = dataset.counts()
    differences = _differences(counts, published)
    return Verification(tuple(broken), counts, differences, dataset.missing_classes())


def look_at_files(
    dataset: DomainDataset,
    work: Callable[[Path], Found],
    progress: Callable[[int, int], object] | None = None,
    workers: int | None = None,
) -> Iterator[tuple[str, Path, Found]]:
    """Yield the domain, the path and ``work(path)`` of every file, in order.

    Args:
        progress: called after every file with the number of files done, and of all files.
        workers: threads that work; by default one per processor.
    """
    files = [
        (domain.name, path)
        for domain in dataset.domains
        if not domain.in_memory
        for path in domain.files
    ]
    done = 0
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for start in range(0, len(files), WAITING):
            some = files[start : start + WAITING]
            results = pool.map(work, (path for _, path in some))
            for (domain, path), found in zip(some, results, strict=True):
                yield domain, path, found
                done += 1
                if progress is not None:
                    progress(done, len(files))


def why_broken(path: Path, reading: Reading = AS_STORED) -> str | None:
    """Return why an image cannot be read, without its path; None if it can."""
    try:
        decode(path, reading)
    except (ValueError, OSError) as error:
        return reason_of(path, error)
    return None


def reason_of(path: Path, error: ValueError | OSError) -> str:
    """Return why an image cannot be read, without its path, from the error that it raised."""
    if isinstance(error, OSError):
        if path.is_symlink():
            return f"it links to {os.readlink(path)}: {error.strerror or error}"
        return error.strerror or str(error)
    return str(error).removeprefix(f"cannot read {path}: ")


def _differences(
    counts: dict[str, dict[str, int]], published: Published | None
) -> tuple[Difference, ...]:
    if published is None:
        return ()
    found = {domain: sum(classes.values()) for domain, classes in counts.items()}
    if isinstance(published, int):
        found, published = {"all": sum(found.values())}, {"all": published}
    both = [
        Difference(domain, found.get(domain, 0), published.get(domain, 0))
        for domain in dict.fromkeys([*published, *found])
    ]
    return tuple(line for line in both if line.found != line.published)


class Copies(NamedTuple):
    """Files with the same content, and the domain and class of each."""

    paths: tuple[Path, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def across(self) -> bool:
        """Whether they are in more than one domain."""
        return len(set(self.domains)) > 1

    @property
    def contradict(self) -> bool:
        """Whether they are of more than one class."""
        return len(set(self.classes)) > 1


def find_copies(dataset: DomainDataset) -> list[Copies]:
    """Return the files with the same content, byte for byte; none if images are in memory."""
    sizes: dict[int, list[tuple[Path, str, str]]] = {}
    for domain in dataset.domains:
        if domain.in_memory:
            continue
        for path, label in zip(domain.files, domain.labels.tolist(), strict=True):
            place = (path, domain.name, dataset.classes[label])
            with suppress(OSError):  # a link that leads nowhere has no copy
                sizes.setdefault(path.stat().st_size, []).append(place)
    found: dict[str, list[tuple[Path, str, str]]] = {}
    for places in sizes.values():
        if len(places) > 1:  # only these need to be read
            for place in places:
                with suppress(OSError, UnfitFile), open_file(place[0], IMAGE_BYTES) as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    found.setdefault(digest, []).append(place)
    groups = [places for places in found.values() if len(places) > 1]
    return [Copies(*(tuple(part) for part in zip(*places, strict=True))) for places in groups]
