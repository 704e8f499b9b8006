"""Image files for tests: small ones of one flat colour, and one like a photograph."""

from pathlib import Path

import numpy as np
from PIL import Image

TREE = {
    "photo": {"cat": ["a.png", "b.png"], "dog": ["a.png"]},
    "sketch": {"cat": ["a.png"], "dog": ["c.png", "d.png", "e.png"]},
}


def picture(path: Path, colour: tuple[int, int, int] = (200, 100, 50), side: int = 8) -> Path:
    """Write one image, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), colour).save(path)
    return path


def tree(root: Path, content: dict[str, dict[str, list[str]]] = TREE) -> Path:
    """Write ``root/domain/class/file`` images and return ``root``."""
    for domain, classes in content.items():
        for kind, files in classes.items():
            for file in files:
                picture(root / domain / kind / file)
    return root


def photograph(path: Path, height: int, width: int, seed: int = 0) -> Path:
    """Write colours with a photograph's spectrum, amplitudes falling with 1/frequency."""
    random = np.random.RandomState(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    frequency[0, 0] = 1 / max(height, width)

    def texture() -> np.ndarray:
        noise = np.fft.fft2(random.randn(height, width))
        found = np.fft.ifft2(noise / frequency).real
        return found / max(found.std(), 1e-9)

    light = texture()
    pixels = np.stack([128 + 45 * light + 20 * texture() for _ in range(3)], -1)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return path
