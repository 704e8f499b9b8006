"""Images unlike all in training: how often `shoal predict` says so, at places that were left out.

    python -m benchmarks.unlike_images --data DIR

DIR holds PACS and Office31. Each domain is left out in turn. On its images the words are false
alarms, as far as the place is one where the model is of use; damaged and meaningless images should
get them.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.datasets import image_folders
from shoal.datasets.appearance import Appearance
from shoal.training.pillow import exact_evaluation

from .recording import options, write

SETS = ("PACS", "Office31")
# Images of the left-out domain that are damaged.
DAMAGED = 200


def damaged(images: Tensor) -> dict[str, Tensor]:
    """Return versions of images, uint8 ``[n, 3, H, W]``, by what was done to them."""
    random = torch.Generator().manual_seed(0)
    values = images.float()
    noise = torch.randn(values.shape, generator=random)
    uniform = torch.randint(0, 256, images.shape, generator=random)
    colours = torch.randint(0, 256, (len(images), 3, 1, 1), generator=random)
    found = {
        "one colour": colours.expand(images.shape),
        "noise alone": uniform,
        "a tenth of the light": values / 10,
        "washed out, a tenth of the contrast": 255 - (255 - values) / 10,
        "out of focus, 8 pixels": _blurred(values, 8.0),
        "out of focus, 4 pixels": _blurred(values, 4.0),
        "with noise of 80 levels": values + 80 * noise,
        "upside down": images.flip(2),
        "negative": 255 - values,
    }
    return {name: one.clamp(0, 255).byte() for name, one in found.items()}


def _blurred(images: Tensor, deviation: float) -> Tensor:
    places = torch.arange(-int(3 * deviation), int(3 * deviation) + 1).float()
    weights = (-((places / deviation) ** 2) / 2).exp()
    weights = (weights / weights.sum()).expand(3, 1, 1, -1)
    half = len(places) // 2
    blur = partial(torch.nn.functional.conv2d, groups=3)
    padded = torch.nn.functional.pad(images, (half,) * 4, mode="reflect")
    return blur(blur(padded, weights), weights.transpose(2, 3))


def share(appearance: Appearance, images: Tensor) -> float:
    """Return the share of images that are unlike all in training."""
    return float(np.mean([bool(words) for words in appearance.unusual(images)]))


def leave_out(domains: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return for each domain the shares of its images, and of damaged ones, that get words."""
    found = []
    for name, images in domains.items():
        seen = Appearance.of(other for key, other in domains.items() if key != name)
        some = images[:: max(1, len(images) // DAMAGED)]
        shares = {key: share(seen, one) for key, one in damaged(some).items()}
        found.append({"domain": name, "as they are": share(seen, images), "damaged": shares})
    return found


def read_domains(folder: Path) -> dict[str, Tensor]:
    """Return all images of a data set by domain, as networks see them."""
    dataset = image_folders(folder.name, folder)
    return {
        domain.name: torch.stack([exact_evaluation(path) for path in domain.files])
        for domain in dataset.domains
    }


def main() -> None:
    parser = options((__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with PACS and Office31")
    asked = parser.parse_args()
    sets = {name: leave_out(read_domains(asked.data / name)) for name in SETS}
    for name, rows in sets.items():
        for row in rows:
            damage = ", ".join(f"{key} {100 * one:.0f}" for key, one in row["damaged"].items())
            print(f"{name} {row['domain']}: {100 * row['as they are']:.2f} %; {damage}")
    print(write("unlike_images", asked, {"sets": sets}))


if __name__ == "__main__":
    main()
