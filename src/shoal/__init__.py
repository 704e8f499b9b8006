"""shoal: train image and table classifiers that hold up at sites they have never seen.

Public names and modules are imported on first use, so that reading records and printing help load
no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .fitting import DomainClassifier, load
    from .fitting.fit import fit
    from .micro_batches import in_micro_batches
    from .penalties import spread
    from .regularizers import Fishr
    from .statistics import (
        covariance_spread,
        fisher_diagonal,
        gradient_mean,
        gradient_noise_scale,
        gradient_norms,
        gradient_similarity,
        gradient_variance,
        head_variance,
        losses_and_variance,
    )
    from .weight_average import WeightAverage

__all__ = [
    "DomainClassifier",
    "Fishr",
    "WeightAverage",
    "__version__",
    "covariance_spread",
    "fisher_diagonal",
    "fit",
    "gradient_mean",
    "gradient_noise_scale",
    "gradient_norms",
    "gradient_similarity",
    "gradient_variance",
    "head_variance",
    "in_micro_batches",
    "load",
    "losses_and_variance",
    "spread",
]

# Where each public name is defined.
_HOMES = {
    "DomainClassifier": "fitting",
    "Fishr": "regularizers",
    "covariance_spread": "statistics",
    "fisher_diagonal": "statistics",
    "fit": "fitting.fit",
    "gradient_mean": "statistics",
    "gradient_noise_scale": "statistics",
    "gradient_norms": "statistics",
    "gradient_similarity": "statistics",
    "gradient_variance": "statistics",
    "head_variance": "statistics",
    "in_micro_batches": "micro_batches",
    "load": "fitting",
    "losses_and_variance": "statistics",
    "WeightAverage": "weight_average",
    "spread": "penalties",
}

# The public modules, so that ``import shoal`` is enough for ``shoal.networks.Standardise``.
_MODULES = (
    "algorithms",
    "curvature",
    "datasets",
    "fitting",
    "networks",
    "penalties",
    "randomness",
    "reference",
    "regularizers",
    "statistics",
    "vision",
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any = import_module(f".{_HOMES.get(name, name)}", __name__)
    value = getattr(value, name) if name in _HOMES else value
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
