"""Methods: one file here and one line in ``shoal.catalogue.METHODS`` each.

Everything that a new method imports is here as well.
"""

from importlib import import_module

from ..catalogue import METHODS, METHODS_NOT_HERE, module_of, own_method
from ..choices import choose
from ..randomness import Draws
from ..regularizers import Match, Warmup
from .base import Algorithm, Capture, Objective, Penalised, UpdateAlgorithm
from .distributions import (
    Distribution,
    choice,
    constant,
    power,
    uniform,
    whole,
    whole_power,
)
from .forward import Batch, Forward
from .hparams import Hparams, fixed, hparam, later
from .optimiser import Optimisation, Optimiser
from .variants import VARIANTS, Variant

__all__ = [
    "ALGORITHMS",
    "VARIANTS",
    "Algorithm",
    "Batch",
    "Capture",
    "Distribution",
    "Draws",
    "Forward",
    "Hparams",
    "Match",
    "Objective",
    "Optimisation",
    "Optimiser",
    "Penalised",
    "UpdateAlgorithm",
    "Variant",
    "Warmup",
    "choice",
    "constant",
    "find",
    "fixed",
    "hparam",
    "later",
    "power",
    "uniform",
    "whole",
    "whole_power",
]

# Last: a method's file can import all of the above from this package.
#: The methods: a class for each name of ``shoal list algorithms``.
ALGORITHMS: dict[str, type[Algorithm]] = {
    name: getattr(import_module(f".{module_of(name)}", __name__), facts.class_name)
    for name, facts in METHODS.items()
}


def find(name: str) -> type[Algorithm]:
    """Return the method of this name or of DomainBed's; for an unknown one, raise the nearest."""
    if name in METHODS_NOT_HERE:
        raise ValueError(
            f"{name} of DomainBed is not among the methods: see 'shoal list algorithms'"
        )
    return ALGORITHMS[choose("algorithm", own_method(name), ALGORITHMS)]
