"""shoal: classifiers that keep working on a domain they never saw."""

from .micro_batches import in_micro_batches
from .penalties import spread
from .regularizers import Fishr
from .statistics import (
    covariance_spread,
    gradient_mean,
    gradient_variance,
    head_variance,
    losses_and_variance,
)

__version__ = "0.1.0"

__all__ = [
    "Fishr",
    "covariance_spread",
    "gradient_mean",
    "gradient_variance",
    "head_variance",
    "in_micro_batches",
    "losses_and_variance",
    "spread",
]
