"""shoal: classifiers that keep working on a domain they never saw."""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .fitting import DomainClassifier, load

__version__ = "0.1.0"

__all__ = [
    "DomainClassifier",
    "Fishr",
    "covariance_spread",
    "gradient_mean",
    "gradient_variance",
    "head_variance",
    "in_micro_batches",
    "load",
    "losses_and_variance",
    "spread",
]


def __getattr__(name: str) -> Any:
    # On first use: whoever has a training loop of their own needs none of it.
    if name in ("DomainClassifier", "load"):
        from . import fitting

        return getattr(fitting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
