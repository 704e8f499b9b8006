"""Methods: one file and one line here for each."""

from ..checks import choose
from .base import Algorithm
from .erm import ERM
from .fishr import Fishr
from .iga import IGA
from .vrex import VREx

ALGORITHMS: dict[str, type[Algorithm]] = {
    "erm": ERM,
    "vrex": VREx,
    "iga": IGA,
    "fishr": Fishr,
}


def find(name: str) -> type[Algorithm]:
    """Return the method of this name; an unknown one gets the nearest."""
    return ALGORITHMS[choose("algorithm", name, ALGORITHMS)]
