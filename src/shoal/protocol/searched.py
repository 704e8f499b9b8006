"""What the random search draws for a run, by which hyperparameters that were set are told apart."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..algorithms import ALGORITHMS, VARIANTS
from ..algorithms.hparams import SCALE_OF, draw, plain
from .records import Finished
from .run import scale_of


def searched(run: Finished) -> Mapping[str, Any] | None:
    """Return the hyperparameters of the run's draw where none is set.

    None where the method is not of the registry, on a user's own data, for which ``shoal fit``
    has other defaults, or where how the run was made was not written down, as by DomainBed.
    """
    if not run.protocol or run.dataset not in SCALE_OF:
        return None
    return _drawn(run.algorithm, scale_of(run.dataset), run.trial, run.draw)


@cache
def _drawn(algorithm: str, scale: str, trial: int, number: int) -> Mapping[str, Any] | None:
    variant = VARIANTS.get(algorithm)
    method = ALGORITHMS.get(variant.algorithm if variant else algorithm)
    if method is None:
        return None
    return plain(draw(method.Hparams, scale, trial, number, variant.settings if variant else None))
