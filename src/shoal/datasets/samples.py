"""Sample images: a few small ones of every domain, for pages."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..documents import damage_named, read_json
from .base import Domain, DomainDataset
from .cache import MANIFEST
from .decoded import map_domain
from .images import read_image
from .reading import Reading

if TYPE_CHECKING:
    from PIL.Image import Image

# The longer side of a large image, in pixels.
SIDE = 112
# Images of a domain, at most.
EACH = 8


class Sample(NamedTuple):
    """An image as a file: the name of its class ("" if unknown), its format and its bytes."""

    label: str
    kind: str
    content: bytes


def samples(dataset: DomainDataset, most: int) -> dict[str, list[Sample]]:
    """Return images of every domain, of the same classes in all of them.

    Args:
        most: the number of images of all domains together; with more domains than that, the first
            ones are shown.
    """
    shown = dataset.domains[:most]
    number = min(EACH, most // len(shown))
    classes = _spread(len(dataset.classes), number)
    per_class = number // len(classes)
    found = {}
    for domain in shown:
        places = [
            place
            for label in classes
            for place in torch.nonzero(domain.labels == label)[:per_class, 0].tolist()
        ]
        found[domain.name] = [
            Sample(
                dataset.classes[domain.labels[place]],
                *_encode(_image(domain, place, dataset.reading)),
            )
            for place in places
        ]
    return found


def cached_samples(folder: Path, most: int) -> dict[str, list[Sample]]:
    """Return images of a cache, which does not store their classes; none if there is no cache."""
    if not (folder / MANIFEST).is_file():
        return {}
    with damage_named(folder / MANIFEST, "delete it and build the cache again"):
        names = list(read_json(folder / MANIFEST)["domains"])[:most]
    found = {}
    for place, name in enumerate(names):
        images = map_domain(folder, place).evaluation
        few = _spread(len(images), min(EACH, most // len(names)))
        found[name] = [Sample("", *_encode(_from_tensor(images[k]))) for k in few]
    return found


def _spread(count: int, number: int) -> list[int]:
    """Return up to ``number`` of the first ``count`` numbers, evenly spaced."""
    return sorted({k * count // min(count, number) for k in range(min(count, number))})


def _image(domain: Domain, place: int, reading: Reading) -> "Image":
    if domain.in_memory:
        return _from_tensor(domain.tensor[place])
    return read_image(domain.files[place], reading)


def _from_tensor(image: Tensor) -> "Image":
    """Return uint8 ``[C, H, W]`` in colour: one channel is grey, two are red and green."""
    from PIL import Image

    channels = list(image)
    if len(channels) == 2:
        channels.append(torch.zeros_like(channels[0]))
    three = torch.stack(channels[:3] if len(channels) >= 3 else channels[:1] * 3, -1)
    return Image.fromarray(three.numpy())


def _encode(image: "Image") -> tuple[str, bytes]:
    """Return the format and the bytes of a small file; tiny images keep every pixel."""
    kind = "png" if max(image.size) <= SIDE // 2 else "jpeg"
    options: Mapping[str, int] = {} if kind == "png" else {"quality": 80}
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, kind, **options)
    return kind, file.getvalue()
