"""Small data of three domains to fit a model to: a table, and folders of images."""

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from shoal.fitting.setup import FitSetup

DOMAINS = ("hospital_a", "hospital_b", "hospital_c")


def write_table(path: Path, rows: int = 40, domains: tuple[str, ...] = DOMAINS) -> Path:
    """Write a table whose class is whether ``size`` is above 5, with a shift between domains."""
    draw = random.Random(0)
    lines = ["domain,size,shade,colour,class"]
    for number, domain in enumerate(domains):
        for _ in range(rows):
            size = draw.uniform(0, 10)
            shade = "" if draw.random() < 0.1 else f"{draw.gauss(number, 1):.2f}"
            colour = draw.choice(["red", "green"])
            lines.append(f"{domain},{size:.2f},{shade},{colour},{'big' if size > 5 else 'small'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_images(root: Path, each: int = 6, domains: tuple[str, ...] = DOMAINS) -> Path:
    """Write 48 × 40 images, dark or bright by class, each different."""
    noise = np.random.RandomState(0)
    for number, domain in enumerate(domains):
        for kind, level in (("dark", 40), ("bright", 190)):
            for k in range(each):
                pixels = noise.randint(0, 50, (40, 48, 3)) + level
                pixels[..., number % 3] //= 2
                path = root / domain / kind / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


def table_setup(steps: int = 40, settings: Mapping[str, str] | None = None) -> FitSetup:
    """Return the setup of a fit to a table."""
    return FitSetup(
        dataset="t",
        fingerprint="f",
        kind="table",
        trained="all",
        backbone=None,
        steps=steps,
        precision="float32",
        settings=settings or {},
    )
