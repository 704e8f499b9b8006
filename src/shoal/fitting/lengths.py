"""How many updates runs get where nobody says: by the time for networks, by the rows for tables."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..sweeps.cost import find_rates, known_rates
from ..sweeps.probe import Rates
from .budget import LEAST
from .leave_one_out import FitWorkspace, groups_of
from .setup import FitSetup
from .verdict import BASELINE

# From what the methods' defaults were made for to what still learns something: a penalty that
# begins late in a short run has hardly begun to help when it ends.
LENGTHS = (5000, 4000, 3000, 2500, 2000, 1500, 1000, 700, 500, 300)
# The share of the time in which each domain is left out once and the model is trained. What is left
# is for images to be decoded, and for what was guessed wrong.
SHARE = 0.7


def length_within(seconds: float, setup: FitSetup, world: FitWorkspace) -> tuple[int, float]:
    """Return how many updates a run should have, and the seconds that a fit then takes at least.

    By a short probe of this machine; all methods are taken to cost what ERM does, as most do. Where
    nothing could be found out, it is what the setup has, and 0 seconds.
    """
    first = groups_of(setup, world, trials=1)[0]
    probed = [run for run in first if run.algorithm == BASELINE]
    alone = replace(world, methods={BASELINE: world.methods[BASELINE]}, cache=None)
    with TemporaryDirectory() as scratch:
        find_rates(Path(scratch), probed, alone, lambda *_: world.dataset)
        found = list(known_rates(Path(scratch)).values())
    if not found:
        return setup.steps, 0.0
    steps = longest(SHARE * seconds, found[0], setup, world)
    return steps, _seconds(found[0], replace(setup, steps=steps), world, LEAST)


def longest(seconds: float, rates: Rates, setup: FitSetup, world: FitWorkspace) -> int:
    """Return the largest of ``LENGTHS`` with which one round fits into the time; else the least."""
    for steps in LENGTHS:
        if _seconds(rates, replace(setup, steps=steps), world) <= seconds:
            return steps
    return LENGTHS[-1]


def _seconds(
    rates: Rates, setup: FitSetup, world: FitWorkspace, domains: int | None = None
) -> float:
    """Return what it takes to leave so many domains out once, or each, and to train the model."""
    runs = [run for group in groups_of(setup, world, trials=1)[:domains] for run in group]
    runs.append(setup.run(world.dataset, BASELINE, world.methods[BASELINE], (), 0))
    return sum(map(rates.seconds, runs))
