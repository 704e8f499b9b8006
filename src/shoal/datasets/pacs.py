"""PACS (Li et al., 2017): 9,991 images, 4 styles, 7 classes."""

from pathlib import Path

from .base import DomainDataset
from .sources import DatasetSource, File

SOURCE = DatasetSource(
    name="pacs",
    classes=7,
    published={"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929},
    terms="no licence stated",
    folder="PACS",
    page="https://dali-dl.github.io/project_iccv2017.html",
    files=(
        File(
            name="PACS.zip",
            page="https://drive.google.com/uc?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd",
        ),
    ),
    by_hand="it is on Google Drive, which asks for confirmation in a browser",
)


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return PACS from ``root/PACS``, the same in every trial."""
    return SOURCE.load(root)
