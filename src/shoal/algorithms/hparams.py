"""Hyperparameters: typed and frozen, each declared once with its defaults and its search.

A draw reproduces DomainBed's random search. Every hyperparameter has its own stream, seeded by its
name in DomainBed (``key``): a new one never changes the others, and methods that share a
hyperparameter share its draws. Draw 0 is the defaults.

Values and searches can be given as text, a search in the notation in which it is printed. Every
value is checked, from any source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from ..catalogue import DATASETS, SCALES, SEARCHES, scale_of
from ..choices import choose
from ..randomness import domainbed_hash
from .distributions import (
    Distribution,
    choice,
    constant,
    holds,
    parse_distribution,
    parse_value,
    power,
    uniform,
    whole,
    whole_power,
)

__all__ = [
    "SCALES",
    "WARMUPS",
    "Hparams",
    "Search",
    "choice",
    "constant",
    "defaults",
    "domainbed_hash",
    "draw",
    "fixed",
    "hparam",
    "later",
    "own_names",
    "power",
    "search_settings",
    "searches",
    "uniform",
    "values_for_run",
    "whole",
    "whole_power",
]

# The hyperparameters that end a warm-up; few methods have one, and IB-IRM has both.
WARMUPS = ("warmup_steps", "bottleneck_warmup_steps")

_KINDS = {"bool": bool, "int": int, "float": float, "str": str}
_EXPECTED: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
}


@dataclass(frozen=True)
class Search:
    """The default and the distribution of one hyperparameter at one scale."""

    default: Any
    distribution: Distribution


def hparam(
    default: Any,
    distribution: Distribution,
    allowed: str | Sequence[str] | None = None,
    *,
    key: str,
    help: str,
    large: tuple[Any, Distribution] | None = None,
    domainnet: tuple[Any, Distribution] | None = None,
    datasets: Mapping[str, tuple[Any, Distribution]] | None = None,
) -> Any:
    """Declare a hyperparameter.

    Args:
        default, distribution: for small images (28 × 28), and for others unless given below.
        allowed: the interval of a number; by default ``[0, ∞)``, or ``(-∞, ∞)`` if a default or a
            search goes below 0. Or the values of a text; by default any.
        key: its name in DomainBed, which seeds its stream.
        help: one line of documentation.
        large: default and distribution for large images (224 × 224).
        domainnet: the same for DomainNet; by default as ``large``.
        datasets: the same for single data sets, by their names in the catalogue.
    """
    small = Search(default, distribution)
    at_large = Search(*large) if large else small
    searches = {
        "small": small,
        "large": at_large,
        "domainnet": Search(*domainnet) if domainnet else at_large,
    }
    own = {choose("data set", name, DATASETS): Search(*s) for name, s in (datasets or {}).items()}
    every = [*searches.values(), *own.values()]
    numbers = [s.default for s in every if isinstance(s.default, (int, float))]
    if allowed is None:
        drawn = any(search.distribution.negative for search in every)
        below = drawn or min(numbers, default=0) < 0
        allowed = "(-∞, ∞)" if below else "[0, ∞)"
    for number in numbers:
        if not isinstance(allowed, str) or not holds(allowed, number):
            raise ValueError(f"the default of {key} is {number}, which is not in {allowed}")
    metadata = {"key": key, "help": help, "searches": searches, "datasets": own, "allowed": allowed}
    return field(default=default, metadata=metadata)


def fixed(value: Any, allowed: str | Sequence[str] | None = None, *, key: str, help: str) -> Any:
    """Declare an option that no search changes."""
    return hparam(value, constant(value), allowed, key=key, help=help)


def later(value: Any, allowed: str | Sequence[str] | None = None, *, key: str, help: str) -> Any:
    """Declare an option added later: at its default it is not part of a run, whose name stays."""
    metadata = fixed(value, allowed, key=key, help=help).metadata
    return field(default=value, metadata={**metadata, "later": True})


@dataclass(frozen=True)
class Hparams:
    """The hyperparameters of every method."""

    lr: float = hparam(
        1e-3,
        power(10, -4.5, -2.5),
        key="lr",
        help="learning rate of the optimiser",
        large=(5e-5, power(10, -5, -3.5)),
    )
    weight_decay: float = hparam(
        0.0,
        constant(0.0),
        key="weight_decay",
        help="weight decay of the optimiser",
        large=(0.0, power(10, -6, -2)),
    )
    batch_size: int = hparam(
        64,
        whole_power(2, 3, 9),
        "[1, ∞)",
        key="batch_size",
        help="examples of each training domain in a step",
        large=(32, whole_power(2, 3, 5.5)),
        domainnet=(32, whole_power(2, 3, 5)),
    )
    dropout: float = hparam(
        0.0,
        choice(0.0, 0.1, 0.5),
        "[0, 1)",
        key="resnet_dropout",
        help="dropout before the classifier of a ResNet; small images have none",
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            _check(f, getattr(self, f.name))


H = TypeVar("H", bound=Hparams)


def searches(
    kind: type[Hparams], scale: str, settings: Mapping[str, str] | None = None
) -> dict[str, Search]:
    """Return default and distribution of each hyperparameter at a scale.

    Args:
        scale: small, large or domainnet; or a data set of the catalogue, for which a method can
            have searches of its own.
        settings: text by name. A value holds in every draw; a search replaces the distribution and
            keeps the default; ``value ~ search`` gives both. An unknown name raises.
    """
    size = _size(scale)
    declared = {f.name: f for f in _declared_fields(kind)}
    found = {
        name: f.metadata["datasets"].get(scale, f.metadata["searches"][size])
        for name, f in declared.items()
    }
    for name, text in (settings or {}).items():
        f = declared[choose("hyperparameter", name, declared)]
        found[name] = _parse_setting(f, found[name].default, text)
    return found


def own_names(kind: type[Hparams], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by the names here, where DomainBed's name (``key``) is given instead.

    Unknown names stay as they are: ``searches`` refuses them.
    """
    names = {f.metadata["key"]: f.name for f in _declared_fields(kind)}
    found: dict[str, str] = {}
    for name, text in settings.items():
        own = name if name in names.values() else names.get(name, name)
        if own in found:
            raise ValueError(
                f"{own} is set twice, here and by DomainBed's name: {found[own]!r} and {text!r}"
            )
        found[own] = text
    return found


def _size(scale: str) -> str:
    """Return the scale that a scale or a data set has."""
    return scale_of(scale) if scale in DATASETS else choose("scale", scale, SCALES)


# DiWA's search (Ramé et al., 2022): small enough for runs to end in one basin of the loss.
_MILD = {
    "lr": choice(1e-5, 3e-5, 5e-5),
    "weight_decay": choice(1e-4, 1e-6),
    "dropout": choice(0.0, 0.1, 0.5),
}


def search_settings(kind: type[Hparams], scale: str, search: str) -> dict[str, str]:
    """Return the settings for ``draw`` that turn DomainBed's search into another.

    The mild search draws learning rate, weight decay and dropout from a few values. Everything else
    stays at the method's default, which is also draw 0.

    Args:
        search: "domainbed", which needs no settings, or "mild".
    """
    if choose("search", search, SEARCHES) == "domainbed":
        return {}
    if _size(scale) == "small":
        raise ValueError(
            "the mild search is for large images and pretrained networks: its learning rates, at "
            "most 5e-05, are too small for small images; leave out --search mild"
        )
    return {
        name: (_MILD[name] if name in _MILD else constant(found.default)).text
        for name, found in searches(kind, scale).items()
    }


def defaults(kind: type[H], scale: str) -> H:
    """Return the default hyperparameters at a scale or for a data set, as in ``searches``."""
    return draw(kind, scale, trial=0, number=0)


def draw(
    kind: type[H], scale: str, trial: int, number: int, settings: Mapping[str, str] | None = None
) -> H:
    """Return draw ``number`` of a trial, as in DomainBed with this hparams_seed and trial_seed.

    ``settings`` are values and searches as text, as in ``searches``. A search draws from the
    hyperparameter's own stream, so nothing else changes.
    """
    if trial < 0 or number < 0:
        raise ValueError(f"trial and draw must be 0 or more, got {trial} and {number}")
    found = searches(kind, scale, settings)
    if number == 0:
        return kind(**{name: search.default for name, search in found.items()})
    seed = domainbed_hash(number, trial)
    values = {}
    for f in fields(kind):
        stream = np.random.RandomState(domainbed_hash(seed, f.metadata["key"]))
        values[f.name] = found[f.name].distribution.draw(stream)
    return kind(**values)


def values_for_run(hparams: Hparams) -> dict[str, Any]:
    """Return the values by name for a run; an option declared ``later`` only if it is changed.

    A run is named by the hash of these values.
    """
    return {
        f.name: getattr(hparams, f.name)
        for f in fields(hparams)
        if "later" not in f.metadata or getattr(hparams, f.name) != f.default
    }


def _declared_fields(kind: type[Hparams]) -> list[Field[Any]]:
    found = list(fields(kind))
    for f in found:
        if "searches" not in f.metadata or f.default is MISSING:
            raise TypeError(
                f"{kind.__name__}.{f.name} has no default or no search; declare it with hparam(...)"
            )
        if _kind(f) is None:
            raise TypeError(
                f"{kind.__name__}.{f.name} must be one of {', '.join(_KINDS)}, got {f.type}"
            )
    for name, value in vars(kind).items():
        if isinstance(value, Field):
            raise TypeError(
                f"{kind.__name__}.{name} is not a field; decorate {kind.__name__} with "
                "@dataclass(frozen=True)"
            )
    return found


def _kind(f: Field[Any]) -> type | None:
    # By name: with postponed annotations a field has the text of its type.
    return _KINDS.get(f.type if isinstance(f.type, str) else getattr(f.type, "__name__", ""))


def _check(f: Field[Any], value: Any) -> None:
    """Raise unless a value is of the field's kind and allowed."""
    kind = _kind(f)
    if kind is None or "allowed" not in f.metadata:
        return  # reported by _declared_fields
    accepted, wanted = _EXPECTED[kind]
    right = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
    if kind in (int, float):
        wanted = f"{wanted} in {f.metadata['allowed']}"
        right = right and holds(f.metadata["allowed"], value)
    if not right:
        raise ValueError(f"{f.name} must be {wanted}, got {value!r}")
    if kind is str and not isinstance(f.metadata["allowed"], str):
        choose(f.name, value, f.metadata["allowed"])


def _parse_setting(f: Field[Any], default: Any, text: str) -> Search:
    """Return the search that the text of a setting means for a field."""
    kind = _kind(f)
    first, both, second = text.partition("~")
    try:
        distribution = parse_distribution(second if both else text, kind)
        if distribution is not None:
            return Search(parse_value(first.strip(), kind) if both else default, distribution)
        if both:
            raise ValueError(f"after ~ a search is expected, got {second.strip()!r}")
        value = parse_value(text.strip(), kind)
    except ValueError as error:
        raise ValueError(f"{f.name}: {error}") from None
    return Search(value, constant(value))
