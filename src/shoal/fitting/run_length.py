"""Run length: as many updates as there is time for, from a short probe."""

from dataclasses import replace

from ..runs.run import Run
from ..sweeps.cost import Rates
from ..sweeps.probe import probe_rates
from .candidates import PLAIN
from .folds import folds_of
from .setup import FitSetup, FitWorkspace

# Numbers of updates to choose from, from those that the methods' defaults are meant for down to the
# fewest that still learn: a penalty that starts late in a short run hardly helps before it ends.
LENGTHS = (5000, 4000, 3000, 2500, 2000, 1500, 1000, 700, 500, 300)
# Updates from which on a second method is worth more than a longer run of the first.
ENOUGH = 1000
# The share of the time for holding each domain out once and training the model. The rest is for
# decoding images and for errors of the estimate.
SHARE = 0.7


def length_within(seconds: float, setup: FitSetup, workspace: FitWorkspace) -> tuple[int, float]:
    """Return the number of updates for each run, and the least seconds that the fit then takes.

    A short probe times ERM on this machine, or the first method if ERM is not compared; all are
    assumed to cost the same, as most do. If the probe fails, return the setup's number of updates
    and 0 seconds.
    """
    name = PLAIN if PLAIN in workspace.methods else next(iter(workspace.methods))
    alone = replace(workspace, methods={name: workspace.methods[name]}, cache=None)
    found = probe_rates(_round(setup, alone)[:1], alone, lambda *_: workspace.dataset)
    if not found:
        return setup.steps, 0.0
    (rates,) = found.values()
    steps = longest(SHARE * seconds, rates, setup, workspace)
    if steps < ENOUGH:
        # Better one method at a useful length than several that are too short.
        steps = min(ENOUGH, longest(SHARE * seconds, rates, setup, alone))
    return steps, _seconds(rates, replace(setup, steps=steps), alone)


def longest(seconds: float, rates: Rates, setup: FitSetup, workspace: FitWorkspace) -> int:
    """Return the largest of ``LENGTHS`` with which one round fits into the time, or the smallest.

    A round leaves each fold out once with every method, and trains the model.
    """
    for steps in LENGTHS:
        if _seconds(rates, replace(setup, steps=steps), workspace) <= seconds:
            return steps
    return LENGTHS[-1]


def _seconds(rates: Rates, setup: FitSetup, workspace: FitWorkspace) -> float:
    """Return the seconds to leave each fold out once and train the model."""
    return sum(map(rates.seconds, _round(setup, workspace)))


def _round(setup: FitSetup, workspace: FitWorkspace) -> list[Run]:
    """Return the runs of every method with each fold left out once, and one on all domains."""
    left_out = [fold.domains for fold in folds_of(workspace.dataset)]
    return [
        setup.run(workspace.dataset, name, method, tests, 0)
        for name, method in workspace.methods.items()
        for tests in left_out
    ] + [setup.run(workspace.dataset, *next(iter(workspace.methods.items())), (), 0)]
