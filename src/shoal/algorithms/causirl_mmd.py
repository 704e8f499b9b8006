"""CausIRL with MMD: the same distribution in two random mixes (Chevalley et al., 2022)."""

from torch import Tensor

from ..penalties import mmd_between
from .causirl import PAPER, CausIRL


class CausIRL_MMD(CausIRL):
    """Match the features' distributions of two random mixes of the domains."""

    paper = PAPER
    year = 2022
    capture = "compiled"

    def distance(self, features: Tensor, groups: Tensor) -> Tensor:
        """Return the squared maximum mean discrepancy of the groups."""
        return mmd_between(features, groups)
