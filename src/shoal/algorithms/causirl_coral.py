"""CausIRL with CORAL: the same mean and covariance in two random mixes (Chevalley et al., 2022)."""

from torch import Tensor

from ..penalties import pairwise
from ..statistics import group_moments
from .causirl import PAPER, CausIRL


class CausIRL_CORAL(CausIRL):
    """Match the features' means and covariances of two random mixes of the domains."""

    paper = PAPER
    year = 2022
    capture = "compiled"

    def distance(self, features: Tensor, groups: Tensor) -> Tensor:
        """Return CORAL's distance: the mean squares of μ_0 − μ_1 and Cov_0 − Cov_1."""
        return pairwise(group_moments(features, groups, 2))
