"""Candidates: what a fit compares, each method with its defaults and a few other settings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ..catalogue import BASELINES, title_of
from ..sweeps.plan import MethodChoice
from .baselines import Baseline
from .estimates import Candidate, by_simplicity
from .setup import FitSetup

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
        fitted: whether it is a baseline, which is fitted at once to all rows.
        random: whether another trial is another model.
    """

    candidate: Candidate
    method: str
    draw: int = 0
    settings: Mapping[str, str]
    base: str
    fitted: bool = False
    random: bool = True

    @property
    def key(self) -> str:
        return self.candidate.key


def recipes_of(methods: Mapping[str, MethodChoice], setup: FitSetup) -> tuple[Recipe, ...]:
    """Return the recipes of all candidates, the simplest first.

    What the user has set is not varied.
    """
    found = []
    for name, method in methods.items():
        family = family_of(name, setup.frozen)
        variants = _grid(method, setup) if setup.searches else [(0, {})]
        for draw, settings in variants:
            changed = _changed(method, draw) if draw else settings
            key = "".join([name, *(f" {one}={value}" for one, value in changed.items())])
            told = ", ".join(f"{one} {value}" for one, value in changed.items())
            title = f"{title_of(name)} ({told})" if told else title_of(name)
            fitted = issubclass(method[0], Baseline)
            found.append(
                Recipe(
                    candidate=Candidate(key, title, family),
                    method=name,
                    draw=draw,
                    settings=settings,
                    base=name,
                    fitted=fitted,
                    random=not issubclass(method[0], Baseline) or method[0].random,
                )
            )
    return tuple(sorted(found, key=lambda one: by_simplicity(one.candidate)))


def family_of(name: str, frozen: bool) -> str:
    """Return how simple a method is, as one of ``FAMILIES``."""
    if name in BASELINES:
        return "logistic regression" if name == LOGISTIC_REGRESSION else "trees"
    if name != PLAIN:
        return "penalty"
    return "head" if frozen else "erm"


def _grid(method: MethodChoice, setup: FitSetup) -> list[tuple[int, dict[str, str]]]:
    """Return draws and settings, the defaults first."""
    kind, named = method
    if issubclass(kind, Baseline):
        return [(draw, {}) for draw in range(len(kind.grid))]
    fixed = {*named, *setup.settings}
    declared = {one.name for one in fields(kind.Hparams)}
    varied = next((one for one in FACTORS if one in declared - fixed), None)
    if varied is None:
        return [(0, {})]
    default = setup.hparams(method)[varied]
    others = [{varied: f"{factor * default:.3g}"} for factor in FACTORS[varied]]
    return [(0, {}), *((0, one) for one in others)]


def _changed(method: MethodChoice, draw: int) -> dict[str, str]:
    """Return the settings of a baseline's draw that differ from its defaults, as text."""
    kind = method[0]
    if not issubclass(kind, Baseline):
        raise TypeError(f"{kind.__name__} has no grid of draws")
    first = kind.grid[0]
    return {one: f"{value:g}" for one, value in kind.grid[draw].items() if value != first.get(one)}
