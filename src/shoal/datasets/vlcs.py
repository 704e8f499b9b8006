"""VLCS (Fang et al., 2013): 10,729 images, 4 collections, 5 classes."""

from pathlib import Path

from .base import DomainDataset
from .sources import DatasetSource, File

SOURCE = DatasetSource(
    name="vlcs",
    classes=5,
    published={"Caltech101": 1_415, "LabelMe": 2_656, "SUN09": 3_282, "VOC2007": 3_376},
    terms="those of Caltech101, LabelMe, SUN09 and PASCAL VOC 2007",
    folder="VLCS",
    page="https://github.com/facebookresearch/DomainBed/issues/165",
    files=(File(name="VLCS.tar.gz"),),
    by_hand="its own page is gone, and people share copies",
)


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return VLCS from ``root/VLCS``, the same in every trial."""
    return SOURCE.load(root)
