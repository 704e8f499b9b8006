"""What is wrong with the files of a data set, collected over all of it and told together."""

import mimetypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# What other programs leave in folders, beside hidden files.
LITTER = ("__macosx", "desktop.ini", "thumbs.db")
# How many of the files at fault a message names.
NAMED = 10


def is_image(path: Path) -> bool:
    """Return whether the suffix is an image's; what is inside is another matter."""
    return path.suffix.lower() in SUFFIXES


def may_be_image(path: Path) -> bool:
    """Return whether the suffix is that of some image, also of one that cannot be read here."""
    return is_image(path) or (mimetypes.guess_type(path.name)[0] or "").startswith("image/")


def is_litter(name: str) -> bool:
    """Return whether a file or folder is another program's business: hidden, or known as such."""
    return name.startswith(".") or name.lower() in LITTER


def some(items: Sequence[object]) -> str:
    """Return the first ten items as text, and how many more there are."""
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(map(str, items[:NAMED])) + more


def expected_at(root: Path) -> str:
    """Return where images are expected below ``root``, as text."""
    return f"{root}/<domain>/<class>/<file>"


@dataclass
class Faults:
    """Files and folders that are not as expected; those of ``unused`` do no harm.

    ``shallow`` are images outside of class folders, ``deep`` are folders within them.
    """

    absent: list[str] = field(default_factory=list)
    barren: list[str] = field(default_factory=list)
    shallow: list[str] = field(default_factory=list)
    deep: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def check(self, root: Path) -> None:
        """Raise on all faults that folders can have, naming ten of each kind."""
        told = []
        if self.shallow:
            told.append(
                f"expected {expected_at(root)}, found images that are in no class folder: "
                f"{some(self.shallow)}; if the folders are classes, the level of domains above "
                "them is missing"
            )
        if self.deep:
            outer = sorted({root / Path(path).relative_to(root).parts[0] for path in self.deep})
            told.append(
                f"expected {expected_at(root)}, found folders in class folders: {some(self.deep)}; "
                "if all images are a level deeper, as below train and test, give one of "
                f"{some(outer)}, or list all in a .csv file"
            )
        if self.empty:
            told.append(f"class folders without a file: {some(self.empty)}; fill or remove them")
        if self.strange:
            told.append(
                f"no images by their suffix: {some(self.strange)}; remove them, or convert them "
                f"to one of {', '.join(SUFFIXES)}"
            )
        if told:
            raise ValueError(". Also: ".join(told))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield path and reason of every fault."""
        for paths, why in (
            (self.absent, "no such domain folder"),
            (self.barren, "a domain without images"),
            (sorted(self.shallow + self.deep), "not at <domain>/<class>/<file>"),
            (self.empty, "a class folder without a file"),
            (self.strange, "no image by its suffix"),
            (self.missing, "listed, but not there"),
            (self.changed, "recorded other file names or sizes than there are now"),
        ):
            yield from ((path, why) for path in paths)
