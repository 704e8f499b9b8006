"""Estimates from runs: scores of finished runs on the domains that they left out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from ..datasets import DomainDataset, splits
from ..datasets.base import HOLDOUT
from ..results.metrics import (
    METRICS,
    calibration_error,
    class_shares,
    constant_score,
)
from ..results.records import HELD_OUT, KEPT, RunResult
from ..runs.folder import LOGITS
from ..runs.run import Run
from ..storage import read_safetensors
from .candidates import Recipe
from .estimates import Estimates, Labels, Predictions
from .folds import Fold

# The weights that a run ends with; averages have the names of ``catalogue.AVERAGES``.
LAST = "last"


@dataclass(frozen=True)
class RunPredictions:
    """The predictions of a finished run, read once from its file of logits.

    Args:
        by_split: log-probabilities and labels by domain and split.
    """

    by_split: Mapping[tuple[str, str], Predictions]

    @staticmethod
    def read(folder: Path, domains: Iterable[str], weights: str = LAST) -> "RunPredictions | None":
        """Return the predictions of a run on these domains; None if it wrote none."""
        path = folder / LOGITS
        if not path.exists():
            return None
        tensors = read_safetensors(path)
        found = {}
        for domain in domains:
            for split in (KEPT, HELD_OUT):
                logits = tensors.get(f"{weights}/{domain}/{split}")
                if logits is not None and len(logits):
                    labels = tensors[f"labels/{domain}/{split}"].numpy()
                    logs = logits.double().log_softmax(-1).numpy()
                    found[domain, split] = Predictions(logs, labels)
        return RunPredictions(found)

    def of(self, domains: Iterable[str], splits: Sequence[str] = (KEPT, HELD_OUT)) -> Predictions:
        """Return the predictions on these splits of these domains together."""
        found = [self.by_split[d, s] for d in domains for s in splits if (d, s) in self.by_split]
        if not found:
            return Predictions(np.zeros((0, 0)), np.zeros(0, np.int64))
        return Predictions(
            np.concatenate([one.log_probabilities for one in found]),
            np.concatenate([one.labels for one in found]),
        )


class RunEstimates:
    """Makes estimates from finished runs; a run's files are read once.

    Args:
        recipes: of all candidates that are planned, the simplest first.
        metric, judge: as in ``Estimates``.
    """

    def __init__(
        self,
        dataset: DomainDataset,
        folds: Sequence[Fold],
        recipes: Sequence[Recipe],
        metric: str = "accuracy",
        judge: str = "mean",
    ) -> None:
        self.dataset, self.folds, self.recipes = dataset, folds, tuple(recipes)
        self.metric, self.judge, self.measure = metric, judge, METRICS[metric]
        self._scored: dict[tuple[Path | None, str], _ScoredRun] = {}

    def __call__(
        self,
        runs: Iterable[tuple[str, RunResult]],
        failed: Iterable[tuple[str, Run]] = (),
    ) -> Estimates:
        """Return the estimates of candidates.

        Args:
            runs: finished ones, each with the key of its candidate.
            failed: runs that failed, likewise.
        """
        scores: dict[str, dict[str, list[float]]] = {}
        errors: dict[str, dict[str, list[float]]] = {}
        pairs: dict[str, dict[tuple[str, str], float]] = {}
        inside: dict[str, list[float]] = {}
        learned: dict[str, list[bool]] = {}
        predictions: dict[str, dict[str, Predictions]] = {}
        for key, run in runs:
            out, found = self._left_out(run), self._score(run)
            if len(out) == 2:
                for one, other in (out, out[::-1]):
                    pairs.setdefault(key, {})[one.name, other.name] = found.scores[other.name]
                continue
            inside.setdefault(key, []).append(found.inside)
            if found.learned is not None:
                learned.setdefault(key, []).append(found.learned)
            if not out:
                continue
            (fold,) = out
            scores.setdefault(key, {}).setdefault(fold.name, []).append(found.scores[fold.name])
            errors.setdefault(key, {}).setdefault(fold.name, []).append(found.calibration_error)
            if found.predictions is not None:
                predictions.setdefault(key, {}).setdefault(fold.name, found.predictions)
        known = {key: [one for one in mine if math.isfinite(one)] for key, mine in inside.items()}
        collapsed = {key for key, mine in learned.items() if sum(mine) * 2 < len(mine)}
        tried = [one.candidate for one in self.recipes if self._is_tried(one, scores)]
        keys = {one.key for one in tried}
        return Estimates(
            candidates=tuple(tried),
            metric=self.metric,
            judge=self.judge,
            examples={fold.name: len(self._labels[fold.name]) for fold in self.folds},
            scores={key: mine for key, mine in scores.items() if key in keys},
            pairs=pairs,
            inside={key: fmean(mine) for key, mine in known.items() if mine},
            # If nothing can be learned, all candidates are left to say so.
            collapsed=frozenset(collapsed if collapsed != set(scores) else ()),
            calibration_errors=errors,
            guess={fold.name: self._guess(fold) for fold in self.folds},
            majority={fold.name: self._majority(fold) for fold in self.folds},
            chance={
                name: self.measure.chance(labels, len(self.dataset.classes))
                for name, labels in self._labels.items()
            },
            failed=frozenset(
                (key, fold.name) for key, run in failed for fold in self._left_out(run)
            ),
            predictions=predictions,
        )

    def _is_tried(self, recipe: Recipe, scores: Mapping[str, Mapping[str, object]]) -> bool:
        """Return whether a candidate is part of the comparison: other settings only if complete."""
        return recipe.key == recipe.base or len(scores.get(recipe.key, ())) == len(self.folds)

    def _left_out(self, run: RunResult | Run) -> list[Fold]:
        return [fold for fold in self.folds if fold.domains[0] in run.test_domains]

    def _score(self, run: RunResult) -> "_ScoredRun":
        key = (run.path, LAST)
        if key not in self._scored:
            self._scored[key] = self._read(run)
        return self._scored[key]

    def _read(self, run: RunResult) -> "_ScoredRun":
        found = None if run.path is None else RunPredictions.read(run.path, self.dataset.names)
        if found is None:
            return self._from_records(run)
        out = self._left_out(run)
        trained = [name for name in self.dataset.names if name not in run.test_domains]
        scores, first = {}, None
        for fold in out:
            mine = found.of(fold.domains)
            scores[fold.name] = self.measure.score(np.exp(mine.log_probabilities), mine.labels)
            first = first or mine
        held_out = [found.of([name], [HELD_OUT]) for name in trained]
        held_out = [one for one in held_out if len(one.labels)]
        inside = [self.measure.score(np.exp(p.log_probabilities), p.labels) for p in held_out]
        return _ScoredRun(
            scores=scores,
            calibration_error=math.nan
            if first is None
            else calibration_error(np.exp(first.log_probabilities), first.labels),
            inside=_mean(inside),
            learned=_learned(held_out),
            predictions=first,
        )

    def _from_records(self, run: RunResult) -> "_ScoredRun":
        """Return what the records of a run without logits say: accuracies alone."""
        scores = {}
        for fold in self._left_out(run):
            known = self.metric == "accuracy"
            scores[fold.name] = self._accuracy(run, fold) if known else math.nan
        inside = [
            parts[HELD_OUT]
            for name, parts in run.last.accuracy.items()
            if name not in run.test_domains and HELD_OUT in parts
        ]
        errors = [
            run.last.calibration_error.get(name, {}).get(KEPT, math.nan)
            for name in run.test_domains
        ]
        return _ScoredRun(
            scores=scores,
            calibration_error=_mean(errors),
            inside=_mean(inside) if self.metric == "accuracy" else math.nan,
        )

    def _accuracy(self, run: RunResult, fold: Fold) -> float:
        """Return the accuracy on all examples of a fold, from the accuracies of its splits."""
        parts = splits(self.dataset, run.trial, run.protocol.get("holdout", HOLDOUT))
        right = total = 0.0
        for name in fold.domains:
            for split, indices in ((KEPT, parts[name].kept), (HELD_OUT, parts[name].held_out)):
                if len(indices):
                    right += len(indices) * run.last.of(name, split)
                    total += len(indices)
        return right / total

    @cached_property
    def _labels(self) -> dict[str, Labels]:
        return {
            fold.name: torch.cat([self.dataset[name].labels for name in fold.domains]).numpy()
            for fold in self.folds
        }

    def _guess(self, fold: Fold) -> float:
        """Return the score without a model: of the class frequencies of the other folds."""
        others = [labels for name, labels in self._labels.items() if name != fold.name]
        shares = class_shares(np.concatenate(others), len(self.dataset.classes))
        return constant_score(self.measure, shares, self._labels[fold.name])

    def _majority(self, fold: Fold) -> float:
        labels = self._labels[fold.name]
        shares = class_shares(labels, len(self.dataset.classes))
        return constant_score(self.measure, shares, labels)


@dataclass(frozen=True, kw_only=True)
class _ScoredRun:
    """The scores of a run.

    Args:
        scores: by the name of each fold that it left out.
        calibration_error: on the first of them.
        inside: on held-out examples of the training domains.
        learned: whether it does better there than always giving one answer; None if unknown.
        predictions: on the first fold; None if they were not written.
    """

    scores: Mapping[str, float]
    calibration_error: float
    inside: float
    learned: bool | None = None
    predictions: Predictions | None = None


def _learned(held_out: Sequence[Predictions]) -> bool | None:
    """Return whether a run is right more often than the most frequent class of its own domains."""
    if not held_out:
        return None
    labels = np.concatenate([one.labels for one in held_out])
    right = np.concatenate([one.log_probabilities.argmax(1) == one.labels for one in held_out])
    return bool(right.mean() >= np.bincount(labels).max() / len(labels))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan
