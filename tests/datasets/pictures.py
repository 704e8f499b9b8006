"""Small image files for tests, one flat colour each."""

from pathlib import Path

from PIL import Image

TREE = {
    "photo": {"cat": ["a.png", "b.png"], "dog": ["a.png"]},
    "sketch": {"cat": ["a.png"], "dog": ["c.png", "d.png", "e.png"]},
}


def picture(path: Path, colour: tuple[int, int, int] = (200, 100, 50), side: int = 8) -> Path:
    """Write one image; its folders are made."""
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
