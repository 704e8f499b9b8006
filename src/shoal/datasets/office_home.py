"""OfficeHome (Venkateswara et al., 2017): 15,588 images, 4 styles, 65 classes."""

from pathlib import Path

from .base import DomainDataset
from .sources import DatasetSource, File

SOURCE = DatasetSource(
    name="office-home",
    classes=65,
    published=15_588,
    terms="fair use, non-commercial research",
    folder="office_home",
    page="https://www.hemanthdv.org/officeHomeDataset.html",
    files=(File(name="OfficeHomeDataset_10072016.zip"),),
    by_hand="it is on Google Drive, which asks for confirmation in a browser",
)


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return OfficeHome from ``root/office_home``, the same in every trial."""
    return SOURCE.load(root)
