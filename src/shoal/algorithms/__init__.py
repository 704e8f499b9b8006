"""Methods: one file here and one line in ``shoal.catalogue`` for each.

Everything that a method of one's own imports is here, too.
"""

from importlib import import_module

from ..catalogue import METHODS, module_of
from ..choices import choose
from .base import Algorithm, Objective, Penalised, UpdateAlgorithm
from .distributions import Distribution
from .forward import Batch, Forward
from .hparams import (
    Hparams,
    choice,
    constant,
    fixed,
    hparam,
    power,
    uniform,
    whole,
    whole_power,
)
from .optimiser import Optimisation, Optimiser
from .variants import VARIANTS, Variant

__all__ = [
    "ALGORITHMS",
    "VARIANTS",
    "Algorithm",
    "Batch",
    "Distribution",
    "Forward",
    "Hparams",
    "Objective",
    "Optimisation",
    "Optimiser",
    "Penalised",
    "UpdateAlgorithm",
    "Variant",
    "choice",
    "constant",
    "find",
    "fixed",
    "hparam",
    "power",
    "uniform",
    "whole",
    "whole_power",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    name: getattr(import_module(f".{module_of(name)}", __name__), facts.class_name)
    for name, facts in METHODS.items()
}


def find(name: str) -> type[Algorithm]:
    """Return the method of this name; an unknown name raises with the nearest one."""
    return ALGORITHMS[choose("algorithm", name, ALGORITHMS)]
