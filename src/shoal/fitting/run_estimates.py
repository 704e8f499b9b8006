"""Estimates from runs: what finished runs with a held-out domain recorded, as plain values."""

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean

import torch

from ..catalogue import BASELINES, title_of
from ..datasets import DomainDataset, splits
from ..results.metrics import METRICS, class_shares, constant_score
from ..results.records import HELD_OUT, KEPT, RunResult
from .estimates import Candidate, Estimates, by_simplicity

# Runs record accuracies.
METRIC = "accuracy"
BASELINE = "erm"
LOGISTIC_REGRESSION = "logistic-regression"


def estimates_of(
    runs: Sequence[RunResult],
    dataset: DomainDataset,
    holdout: float,
    methods: Iterable[str],
    failed: Collection[tuple[str, str]] = (),
    *,
    frozen: bool = False,
) -> Estimates:
    """Return the estimates of methods from their runs, each by its last record.

    Args:
        holdout: the share of each domain that the runs held out.
        methods: all that were planned.
        failed: runs that failed, as method and domain.
        frozen: whether runs train a head on frozen features.
    """
    candidates = [Candidate(name, title_of(name), _family(name, frozen)) for name in methods]
    scores: dict[str, dict[str, list[float]]] = {}
    errors: dict[str, dict[str, list[float]]] = {}
    inside: dict[str, list[float]] = {}
    for run in runs:
        (domain,), name = run.test_domains, run.algorithm
        whole = _on_whole_domain(run, dataset, holdout)
        scores.setdefault(name, {}).setdefault(domain, []).append(whole)
        parts = run.last.calibration_error.get(domain, {})
        error = parts.get(KEPT, parts.get(HELD_OUT, math.nan))
        errors.setdefault(name, {}).setdefault(domain, []).append(error)
        inside.setdefault(name, []).extend(_inside(run))
    classes, metric = len(dataset.classes), METRICS[METRIC]
    labels = {domain.name: domain.labels.numpy() for domain in dataset.domains}
    others = {
        name: torch.cat([one.labels for one in dataset.domains if one.name != name]).numpy()
        for name in dataset.names
    }
    return Estimates(
        candidates=tuple(sorted(candidates, key=by_simplicity)),
        metric=METRIC,
        examples={domain.name: len(domain) for domain in dataset.domains},
        scores=scores,
        inside={name: fmean(values) for name, values in inside.items() if values},
        calibration_errors=errors,
        guess={
            name: constant_score(metric, class_shares(others[name], classes), labels[name])
            for name in dataset.names
        },
        majority={
            name: constant_score(metric, class_shares(labels[name], classes), labels[name])
            for name in dataset.names
        },
        chance={name: metric.chance(labels[name], classes) for name in dataset.names},
        failed=frozenset(failed),
    )


def _family(method: str, frozen: bool) -> str:
    """Return the family of a method, one of ``FAMILIES``."""
    if method in BASELINES:
        return "logistic regression" if method == LOGISTIC_REGRESSION else "trees"
    if method == BASELINE:
        return "head" if frozen else "erm"
    return "penalty"


def _on_whole_domain(run: RunResult, dataset: DomainDataset, holdout: float) -> float:
    """Return the accuracy on all examples of the held-out domain."""
    (name,) = run.test_domains
    parts = splits(dataset, run.trial, holdout)[name]
    sizes = {KEPT: len(parts.kept), HELD_OUT: len(parts.held_out)}
    right = sum(n * run.last.of(name, split) for split, n in sizes.items() if n)
    return right / sum(sizes.values())


def _inside(run: RunResult) -> list[float]:
    """Return the accuracies on held-out examples of the training domains."""
    found = [
        parts[HELD_OUT]
        for name, parts in run.last.accuracy.items()
        if name not in run.test_domains and HELD_OUT in parts
    ]
    return [value for value in found if not math.isnan(value)]
