"""Methods: one file and one line here for each."""

from ..checks import choose
from .and_mask import ANDMask
from .arm import ARM
from .base import Algorithm
from .cdann import CDANN
from .coral import CORAL
from .dann import DANN
from .erm import ERM
from .fish import Fish
from .fishr import Fishr
from .groupdro import GroupDRO
from .iga import IGA
from .irm import IRM
from .mixup import Mixup
from .mldg import MLDG
from .mmd import MMD
from .mtl import MTL
from .optimiser import Optimisation
from .rsc import RSC
from .sagnet import SagNet
from .sand_mask import SANDMask
from .variants import VARIANTS, Variant
from .vrex import VREx

__all__ = ["ALGORITHMS", "VARIANTS", "Algorithm", "Optimisation", "Variant", "find"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "erm": ERM,
    "irm": IRM,
    "groupdro": GroupDRO,
    "mixup": Mixup,
    "mldg": MLDG,
    "coral": CORAL,
    "mmd": MMD,
    "dann": DANN,
    "cdann": CDANN,
    "mtl": MTL,
    "sagnet": SagNet,
    "arm": ARM,
    "vrex": VREx,
    "rsc": RSC,
    "and-mask": ANDMask,
    "sand-mask": SANDMask,
    "iga": IGA,
    "fish": Fish,
    "fishr": Fishr,
}


def find(name: str) -> type[Algorithm]:
    """Return the method of this name; an unknown one gets the nearest, and nothing is imported."""
    return ALGORITHMS[choose("algorithm", name, ALGORITHMS)]
