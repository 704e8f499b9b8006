"""Images in files: decoded one by one, verified all together, and searched for duplicates."""

import hashlib
import io
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .base import DomainDataset

if TYPE_CHECKING:
    from PIL.Image import Image

# The number of images of each domain, or of all domains together if no more is published.
Published = Mapping[str, int] | int
# Images that wait for a thread at a time: a million futures at once take a gigabyte.
WAITING = 1024


def read_image(path: Path) -> "Image":
    """Return the image in RGB; raise ValueError if the file is not an image, or truncated.

    DomainBed reads the existing part of a truncated file, and trains on the grey rest.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "images are read by Pillow, which is not installed: pip install 'shoal[images]'",
            name="PIL",
        ) from error
    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content)) as image:
            mode = image.mode
            # Pillow would clip 16 bits to 255, which gives a white image.
            found = None if mode[0] in "IF" else image.convert("RGB")
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise ValueError(
            f"cannot read {path}: it has more than {most} megapixels; make it smaller"
        ) from error
    except UnidentifiedImageError as error:
        raise ValueError(
            f"cannot read {path}: not an image file, or its header is damaged"
        ) from error
    except Exception as error:  # Pillow raises all kinds of errors on damaged files
        raise ValueError(f"cannot read {path}: damaged or truncated ({error})") from error
    if found is None:
        raise ValueError(
            f"cannot read {path}: it has more than 8 bits a channel (Pillow's {mode!r}); convert "
            "it to 8 bits"
        )
    return found


def image_size(path: Path) -> tuple[int, int] | None:
    """Return width and height according to the header; None if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.size
    except Exception:  # ``read_image`` reports the reason
        return None


def planes(image: "Image") -> Tensor:
    """Return an RGB image as uint8 ``[3, H, W]``."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def decode(path: Path) -> Tensor:
    """Return the image as uint8 RGB ``[3, H, W]``; raise as ``read_image`` does."""
    return planes(read_image(path))


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
    files = [
        (domain.name, path)
        for domain in dataset.domains
        if not domain.in_memory
        for path in domain.files
    ]
    broken: list[Broken] = []
    done = 0
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for start in range(0, len(files), WAITING):
            some = files[start : start + WAITING]
            for (domain, path), why in zip(
                some, pool.map(why_broken, (path for _, path in some)), strict=True
            ):
                if why is not None:
                    broken.append(Broken(domain, path, why))
                done += 1
                if progress is not None:
                    progress(done, len(files))
    counts = dataset.counts()
    differences = _differences(counts, published)
    return Verification(tuple(broken), counts, differences, dataset.missing_classes())


def why_broken(path: Path) -> str | None:
    """Return why an image cannot be read, without its path; None if it can."""
    try:
        decode(path)
    except ValueError as error:
        return str(error).removeprefix(f"cannot read {path}: ")
    except OSError as error:
        if path.is_symlink():
            return f"it links to {os.readlink(path)}: {error.strerror}"
        return error.strerror or str(error)
    return None


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
            sizes.setdefault(path.stat().st_size, []).append(place)
    found: dict[str, list[tuple[Path, str, str]]] = {}
    for places in sizes.values():
        if len(places) > 1:  # only these need to be read
            for place in places:
                digest = hashlib.sha256(place[0].read_bytes()).hexdigest()
                found.setdefault(digest, []).append(place)
    groups = [places for places in found.values() if len(places) > 1]
    return [Copies(*(tuple(part) for part in zip(*places, strict=True))) for places in groups]
