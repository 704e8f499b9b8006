"""The order of tables and pages: methods as the paper has them, data sets as the benchmark has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = ["DATASETS", "METHODS", "by_method", "in_order"]

METHODS = (
    "erm",
    "irm",
    "groupdro",
    "mixup",
    "mldg",
    "coral",
    "mmd",
    "dann",
    "cdann",
    "mtl",
    "sagnet",
    "arm",
    "vrex",
    "rsc",
    "and-mask",
    "sand-mask",
    "iga",
    "fish",
    "fishr",
)
DATASETS = (
    "colored-mnist",
    "rotated-mnist",
    "vlcs",
    "pacs",
    "office-home",
    "terra-incognita",
    "domainnet",
)


class MethodOnDataset(Protocol):
    """Something of a method on a data set."""

    @property
    def dataset(self) -> str: ...
    @property
    def algorithm(self) -> str: ...


P = TypeVar("P", bound=MethodOnDataset)
OrderKey = tuple[int, str]


def in_order(some: Iterable[P]) -> list[P]:
    """Return runs, or what else is of a data set and a method, by these; others come by name."""
    return sorted(some, key=lambda one: (_place(one.dataset, DATASETS), by_method(one)))


def by_method(one: MethodOnDataset) -> OrderKey:
    """Return where the method of a run, or of what else has one, stands among all."""
    return _place(one.algorithm, METHODS)


def _place(name: str, known: tuple[str, ...]) -> OrderKey:
    return (known.index(name) if name in known else len(known), name)
