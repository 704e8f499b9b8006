"""Candidates: what a fit compares, each method with its defaults and other settings; its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms.base import Algorithm
from ..catalogue import BASELINES, title_of
from ..runs.run import Run
from ..sweeps.plan import MethodChoice
from .baselines import BALANCED_DOMAINS, CLASSES, Baseline
from .estimates import Candidate, by_simplicity
from .frozen_features import works_frozen
from .paired import weights_of
from .setup import FitSetup, FitWorkspace, settings_of
from .stable_columns import StableColumns

PLAIN = "erm"
LOGISTIC_REGRESSION = "logistic-regression"
# What else is tried of a method, times its default: of the first of these that it has.
FACTORS = {"penalty_weight": (0.1, 10.0), "eta": (0.1, 10.0), "lr": (0.3, 3.0)}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A candidate, and how its runs are made.

    Args:
        method: the name of its runs.
        draw: the place in a baseline's grid.
        settings: hyperparameters that differ from the defaults, as text.
        base: the key of the candidate with the defaults; that of this one, if it has them.
        setup: of its runs.
        head: the key of the head that stands for it until there is time for the whole network.
        fitted: whether it is a baseline, which is fitted at once to all rows.
        random: whether another trial is another model.
    """

    candidate: Candidate
    method: str
    draw: int = 0
    settings: Mapping[str, str]
    base: str
    setup: FitSetup
    head: str | None = None
    fitted: bool = False
    random: bool = True

    @property
    def key(self) -> str:
        return self.candidate.key

    def domain_weights(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how much domains of so many rows count in training."""
        if not self.fitted:
            return np.ones(len(sizes))
        alike = CLASSES[self.method].grid[self.draw].get(BALANCED_DOMAINS, False)
        return weights_of(sizes) if alike else sizes.astype(np.float64)


def recipes_of(methods: Mapping[str, MethodChoice], setup: FitSetup) -> tuple[Recipe, ...]:
    """Return the recipes of all candidates, the simplest first.

    What the user has set is not varied.
    """
    found = [
        recipe
        for number, part in enumerate(setup.parts)
        for name, method in methods.items()
        if _trains(method[0], part)
        for recipe in _recipes(name, method, part, after_heads=number > 0)
    ]
    return tuple(sorted(found, key=lambda one: by_simplicity(one.candidate)))


@dataclass(frozen=True)
class CandidateSettings:
    """The hyperparameters of a candidate, and what else is tried of it if there is time."""

    candidate: Candidate
    usual: Mapping[str, Any]
    others: tuple[Mapping[str, str], ...]


def settings_of_candidates(
    recipes: Sequence[Recipe], methods: Mapping[str, MethodChoice]
) -> tuple[CandidateSettings, ...]:
    """Return the settings of every candidate, with its defaults and with others."""
    found = []
    for one in (recipe for recipe in recipes if recipe.key == recipe.base):
        others = tuple(each.settings for each in recipes if each.base == one.base and each != one)
        usual = one.setup.hparams_of(methods[one.method], one.draw)
        found.append(CandidateSettings(one.candidate, usual, others))
    return tuple(found)


def _trains(method: type[Algorithm], setup: FitSetup) -> bool:
    """Return whether a method can be trained in this part of a fit."""
    if setup.frozen:
        return works_frozen(method)
    return setup.kind == "table" or not issubclass(method, Baseline)


def _recipes(name: str, method: MethodChoice, setup: FitSetup, after_heads: bool) -> list[Recipe]:
    """Return the recipes of a method, the one with its defaults first."""
    kind, family = method[0], family_of(name, setup.frozen)
    fitted = issubclass(kind, Baseline)
    base, usual = name, title_of(name)
    if after_heads:
        base, usual = f"{name} whole", f"{usual} (whole network)"
    found = []
    for place, settings in enumerate(_grid(method, setup) if setup.searches else [{}]):
        told = ", ".join(f"{one} {value}" for one, value in settings.items())
        key = "".join([base, *(f" {one}={value}" for one, value in settings.items())])
        title = f"{usual} ({told})" if told else usual
        found.append(
            Recipe(
                candidate=Candidate(key, title, family, variant=bool(settings)),
                method=name,
                draw=place if fitted else 0,
                settings=settings,
                base=base,
                setup=setup,
                head=name if after_heads else None,
                fitted=fitted,
                random=not issubclass(kind, Baseline) or kind.random,
            )
        )
    return found


def family_of(name: str, frozen: bool) -> str:
    """Return how simple a method is, as one of ``FAMILIES``."""
    if name in BASELINES:
        return "logistic regression" if name == LOGISTIC_REGRESSION else "trees"
    if name != PLAIN:
        return "penalty"
    return "head" if frozen else "erm"


def _grid(method: MethodChoice, setup: FitSetup) -> list[dict[str, str]]:
    """Return what differs from the defaults, as text; the defaults themselves come first."""
    kind, named = method
    if issubclass(kind, Baseline):
        first = kind.grid[0]
        return [
            {one: f"{value:g}" for one, value in settings.items() if value != first.get(one)}
            for settings in kind.grid
        ]
    # Ten times zero would be the same run again.
    defaults = {one: value for one, value in setup.hparams(method).items() if value}
    given = {*named, *settings_of(method, setup.settings)}
    free = (one for one in FACTORS if one in defaults.keys() - given)
    varied = next(free, None)
    if varied is None:
        return [{}]
    values = [float(f"{factor * defaults[varied]:.3g}") for factor in FACTORS[varied]]
    return [{}, *({varied: f"{value:g}"} for value in values)]


@dataclass(frozen=True)
class RunMaker:
    """Makes the runs of candidates.

    Args:
        stable: finds the unstable columns of a table; None for images.
        policy: whether these are left out of every run, found anew for the domains it trains on.
    """

    workspace: FitWorkspace
    stable: StableColumns | None
    policy: bool

    def run(self, recipe: Recipe, tests: tuple[str, ...], trial: int) -> Run:
        """Return the run of a candidate that leaves these domains out."""
        return self._make(recipe, tests, trial, self.policy)

    def without_unstable(self, recipe: Recipe, tests: tuple[str, ...], trial: int) -> Run:
        """Return the same run without the unstable columns, whatever the policy."""
        return self._make(recipe, tests, trial, True)

    def split(self, recipe: Recipe) -> Run:
        """Return the run of a baseline on an ordinary split of all domains."""
        return self._make(recipe, (), 0, self.policy, split=True)

    def _make(
        self,
        recipe: Recipe,
        tests: tuple[str, ...],
        trial: int,
        without: bool,
        split: bool = False,
    ) -> Run:
        data = self.workspace.inputs(recipe.setup.frozen)
        if without and self.stable is not None:
            data = self.stable.dataset_without(tests)
        method = self.workspace.methods[recipe.method]
        return recipe.setup.run(
            data, recipe.method, method, tests, trial, recipe.draw, recipe.settings, split=split
        )
