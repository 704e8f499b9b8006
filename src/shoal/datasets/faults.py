"""What is wrong with the files of a data set, collected over all of it and told together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# How many of the files at fault a message names.
NAMED = 10


def is_image(path: Path) -> bool:
    """Return whether the suffix is an image's; what is inside is another matter."""
    return path.suffix.lower() in SUFFIXES


def some(items: Sequence[object]) -> str:
    """Return the first ten items as text, and how many more there are."""
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(map(str, items[:NAMED])) + more


def expected_at(root: Path) -> str:
    """Return where images are expected below ``root``, as text."""
    return f"{root}/<domain>/<class>/<file>"


@dataclass
class Faults:
    """Files and folders that are not as expected; those of ``unused`` do no harm."""

    absent: list[str] = field(default_factory=list)
    barren: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def check(self, root: Path) -> None:
        """Raise on the first kind of fault that folders can have, naming ten."""
        if self.misplaced:
            raise ValueError(f"expected {expected_at(root)}, found {some(self.misplaced)}")
        if self.empty:
            raise ValueError(
                f"class folders without a file: {some(self.empty)}; fill or remove them"
            )
        if self.strange:
            raise ValueError(
                f"no images by their suffix: {some(self.strange)}; remove them, or convert them "
                f"to one of {', '.join(SUFFIXES)}"
            )

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield path and reason of every fault."""
        for paths, why in (
            (self.absent, "no such domain folder"),
            (self.barren, "a domain without images"),
            (self.misplaced, "not at <domain>/<class>/<file>"),
            (self.empty, "a class folder without a file"),
            (self.strange, "no image by its suffix"),
            (self.missing, "listed, but not there"),
            (self.changed, "recorded other file names or sizes than there are now"),
        ):
            yield from ((path, why) for path in paths)
