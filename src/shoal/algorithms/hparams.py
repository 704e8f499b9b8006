"""Hyperparameters: typed and frozen, each declared once with its defaults and its search.

A draw reproduces DomainBed's random search: every hyperparameter has a stream of its own, seeded
by its name there (``key``), so that adding one never changes the others and all methods share the
draws of what they share. Draw 0 is the defaults.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

from ..checks import choose

SCALES = ("small", "large", "domainnet")


@dataclass(frozen=True)
class Distribution:
    """A search distribution: how to draw, and how to say it."""

    text: str
    draw: Callable[[np.random.RandomState], Any]


def constant(value: Any) -> Distribution:
    """Return the distribution that is always ``value``."""
    return Distribution(f"{value:g}" if isinstance(value, float) else str(value), lambda _: value)


def uniform(low: float, high: float) -> Distribution:
    """Return U(low, high)."""
    return Distribution(f"U({low:g}, {high:g})", lambda r: float(r.uniform(low, high)))


def whole(low: float, high: float) -> Distribution:
    """Return int(U(low, high))."""
    return Distribution(f"int(U({low:g}, {high:g}))", lambda r: int(r.uniform(low, high)))


def power(base: int, low: float, high: float) -> Distribution:
    """Return base^U(low, high)."""
    text = f"{base}^U({low:g}, {high:g})"
    return Distribution(text, lambda r: float(base ** r.uniform(low, high)))


def whole_power(base: int, low: float, high: float) -> Distribution:
    """Return int(base^U(low, high))."""
    text = f"int({base}^U({low:g}, {high:g}))"
    return Distribution(text, lambda r: int(base ** r.uniform(low, high)))


def choice(*values: Any) -> Distribution:
    """Return one of ``values``, each as often as another."""
    text = "{" + ", ".join(str(value) for value in values) + "}"
    return Distribution(text, lambda r: values[int(r.choice(len(values)))])


@dataclass(frozen=True)
class Search:
    """The default and the distribution of one hyperparameter at one scale."""

    default: Any
    distribution: Distribution


def hparam(
    default: Any,
    distribution: Distribution,
    *,
    key: str,
    help: str,
    large: tuple[Any, Distribution] | None = None,
    domainnet: tuple[Any, Distribution] | None = None,
) -> Any:
    """Declare a hyperparameter.

    Args:
        default, distribution: for small images (28 × 28), and for all where nothing else is said.
        key: its name in DomainBed, which seeds its stream.
        help: one line of documentation.
        large: default and distribution for large images (224 × 224).
        domainnet: the same for DomainNet; like the other large ones by default.
    """
    small = Search(default, distribution)
    at_large = Search(*large) if large else small
    searches = {
        "small": small,
        "large": at_large,
        "domainnet": Search(*domainnet) if domainnet else at_large,
    }
    return field(default=default, metadata={"key": key, "help": help, "searches": searches})


def fixed(value: Any, *, key: str, help: str) -> Any:
    """Declare an option that a search leaves alone."""
    return hparam(value, constant(value), key=key, help=help)


@dataclass(frozen=True)
class Hparams:
    """What every method has."""

    lr: float = hparam(
        1e-3,
        power(10, -4.5, -2.5),
        key="lr",
        help="learning rate of Adam",
        large=(5e-5, power(10, -5, -3.5)),
    )
    weight_decay: float = hparam(
        0.0,
        constant(0.0),
        key="weight_decay",
        help="weight decay of Adam",
        large=(0.0, power(10, -6, -2)),
    )
    batch_size: int = hparam(
        64,
        whole_power(2, 3, 9),
        key="batch_size",
        help="examples of each training domain in a step",
        large=(32, whole_power(2, 3, 5.5)),
        domainnet=(32, whole_power(2, 3, 5)),
    )
    dropout: float = hparam(
        0.0,
        choice(0.0, 0.1, 0.5),
        key="resnet_dropout",
        help="dropout before the classifier of a ResNet; small images have none",
    )


H = TypeVar("H", bound=Hparams)


def defaults(kind: type[H], scale: str) -> H:
    """Return the default hyperparameters at a scale: small, large or domainnet."""
    choose("scale", scale, SCALES)
    return kind(**{f.name: _search(f, scale).default for f in _declared(kind)})


def draw(kind: type[H], scale: str, trial: int, number: int) -> H:
    """Return draw ``number`` of a trial, as DomainBed's hparams_seed and trial_seed give it."""
    if trial < 0 or number < 0:
        raise ValueError(f"trial and draw must be 0 or more, got {trial} and {number}")
    if number == 0:
        return defaults(kind, scale)
    choose("scale", scale, SCALES)
    seed = domainbed_hash(number, trial)
    values = {}
    for f in _declared(kind):
        stream = np.random.RandomState(domainbed_hash(seed, f.metadata["key"]))
        values[f.name] = _search(f, scale).distribution.draw(stream)
    return kind(**values)


def override(hparams: H, settings: Mapping[str, str]) -> H:
    """Return ``hparams`` with values given as text; an unknown name gets the nearest one."""
    known = {f.name: f for f in _declared(type(hparams))}
    values = {}
    for name, text in settings.items():
        choose("hyperparameter", name, known)
        values[name] = _parse(name, text, type(getattr(hparams, name)))
    return replace(hparams, **values)


def domainbed_hash(*arguments: Any) -> int:
    """Return DomainBed's seed of its arguments: the MD5 of their tuple's text, modulo 2³¹."""
    return int(hashlib.md5(str(arguments).encode()).hexdigest(), 16) % 2**31


def _declared(kind: type[Hparams]) -> list[Field[Any]]:
    found = list(fields(kind))
    for f in found:
        if "searches" not in f.metadata or f.default is MISSING:
            raise TypeError(
                f"{kind.__name__}.{f.name} has no default or no search; declare it with hparam(...)"
            )
    return found


def _search(f: Field[Any], scale: str) -> Search:
    search: Search = f.metadata["searches"][scale]
    return search


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        words = {"true": True, "false": False}
        if text.lower() not in words:
            raise ValueError(f"{name} must be true or false, got {text!r}")
        return words[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} must be a {kind.__name__}, got {text!r}") from None
