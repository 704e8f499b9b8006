"""ERM: minimise the risk of all training domains together (Vapnik, 1998)."""

from torch import Tensor

from .base import Objective
from .forward import Forward


class ERM(Objective):
    """Minimise the pooled risk: the baseline that every other method has to beat."""

    paper = "Statistical Learning Theory (Vapnik)"
    year = 1998
    capture = "compiled"

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return the mean loss of all examples."""
        return {"loss": forward.risk}
