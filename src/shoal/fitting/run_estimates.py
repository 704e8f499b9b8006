"""Estimates from runs: scores of finished runs on the domains that they left out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
from ..tensor_files import read_safetensors
from .candidates import Recipe
from .estimates import Array, Estimates, Labels, Predictions
from .folds import Fold

# The weights that a run ends with; averages have the names of ``catalogue.AVERAGES``.
LAST = "last"
# A share is worse than another one if it is so many standard errors below it.
CLEAR = 2.0


@dataclass(frozen=True)
class RunPredictions:
    """The predictions of a finished run, read once from its file of logits.

    Args:
        by_split: log-probabilities and labels by domain and split.
    """

    by_split: Mapping[tuple[str, str], Predictions]

    @staticmethod
    def read(folder: Path, domains: Iterable[str], average: str = "") -> "RunPredictions | None":
        """Return the predictions of a run on these domains; None if it wrote none.

        Args:
            average: of the weights; the last ones count if the run did not record it.
        """
        path = folder / LOGITS
        if not path.exists():
            return None
        tensors = read_safetensors(path)
        weights = average if any(key.startswith(f"{average}/") for key in tensors) else LAST
        found = {}
        for domain in domains:
            for split in (KEPT, HELD_OUT):
                logits = tensors.get(f"{weights}/{domain}/{split}")
                if logits is not None and len(logits):
                    labels = tensors[f"labels/{domain}/{split}"].numpy()
                    # Half precision turns the largest logits into ∞, of which there is no softmax.
                    most = torch.finfo(torch.half).max
                    logs = logits.double().clamp(-most, most).log_softmax(-1).numpy()
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
        self._average = {one.key: one.setup.average for one in recipes}
        self._scored: dict[Path, _ScoredRun] = {}

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
        readers: dict[str, dict[tuple[str, str], Callable[[], Predictions]]] = {}
        for key, run in runs:
            out, found = self._left_out(run), self._score(run, self._average[key])
            if len(out) == 2:
                for one, other in (out, out[::-1]):
                    pair = one.name, other.name
                    pairs.setdefault(key, {})[pair] = found.scores[other.name]
                    if found.has_logits and run.path is not None:
                        read = partial(_read, run.path, other.domains, self._average[key])
                        readers.setdefault(key, {})[pair] = read
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
        means = {key: _mean(mine) for key, mine in inside.items()}
        whole = {key for key, mine in scores.items() if len(mine) == len(self.folds)}
        # Other settings are part of the comparison only if they have left out every fold.
        tried = [one.candidate for one in self.recipes if one.key in whole | {one.base}]
        keys = {one.key for one in tried}
        collapsed = {key for key, mine in learned.items() if sum(mine) * 2 < len(mine)} & keys
        return Estimates(
            candidates=tuple(tried),
            metric=self.metric,
            judge=self.judge,
            examples={fold.name: len(self._labels[fold.name]) for fold in self.folds},
            scores={key: mine for key, mine in scores.items() if key in keys},
            pairs={key: mine for key, mine in pairs.items() if key in keys},
            inside={key: one for key, one in means.items() if math.isfinite(one)},
            # If nothing can be learned, all candidates are left to say so.
            collapsed=frozenset(() if whole <= collapsed else collapsed),
            calibration_errors=errors,
            guess=self._guess,
            majority=self._majority,
            chance=self._chance,
            failed=frozenset(
                (key, fold.name) for key, run in failed for fold in self._left_out(run)
            ),
            predictions=predictions,
            pair_predictions=readers,
        )

    def _left_out(self, run: RunResult | Run) -> list[Fold]:
        return [fold for fold in self.folds if fold.domains[0] in run.test_domains]

    def _score(self, run: RunResult, average: str) -> "_ScoredRun":
        if run.path is None:
            return self._from_records(run)
        if run.path not in self._scored:
            found = RunPredictions.read(run.path, self.dataset.names, average)
            self._scored[run.path] = (
                self._from_records(run) if found is None else self._from_logits(run, found)
            )
        return self._scored[run.path]

    def _from_logits(self, run: RunResult, found: RunPredictions) -> "_ScoredRun":
        out = {fold.name: found.of(fold.domains) for fold in self._left_out(run)}
        scores = {name: self.measure.score(*_pair(mine)) for name, mine in out.items()}
        if len(out) > 1:
            return _ScoredRun(scores=scores, has_logits=True)
        trained = [name for name in self.dataset.names if name not in run.test_domains]
        held_out = [found.of([name], [HELD_OUT]) for name in trained]
        held_out = [one for one in held_out if len(one.labels)]
        mine = next(iter(out.values()), None)
        return _ScoredRun(
            scores=scores,
            calibration_error=math.nan if mine is None else calibration_error(*_pair(mine)),
            inside=_mean([self.measure.score(*_pair(one)) for one in held_out]),
            learned=_learned(held_out),
            predictions=mine,
            has_logits=True,
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

    @cached_property
    def _guess(self) -> dict[str, float]:
        """The scores without a model: of the class frequencies of the other folds."""
        found = {}
        for name, labels in self._labels.items():
            others = [its for one, its in self._labels.items() if one != name]
            shares = class_shares(np.concatenate(others), len(self.dataset.classes))
            found[name] = constant_score(self.measure, shares, labels)
        return found

    @cached_property
    def _majority(self) -> dict[str, float]:
        """The scores of each fold's own class frequencies."""
        classes = len(self.dataset.classes)
        return {
            name: constant_score(self.measure, class_shares(labels, classes), labels)
            for name, labels in self._labels.items()
        }

    @cached_property
    def _chance(self) -> dict[str, float]:
        classes = len(self.dataset.classes)
        return {name: self.measure.chance(labels, classes) for name, labels in self._labels.items()}


@dataclass(frozen=True, kw_only=True)
class _ScoredRun:
    """The scores of a run.

    Args:
        scores: by the name of each fold that it left out; of two folds, the rest is not known.
        calibration_error: on the fold.
        inside: on held-out examples of the training domains.
        learned: whether it has learned anything of them; None if unknown.
        predictions: on the fold; None if they were not written.
        has_logits: whether the run wrote predictions.
    """

    scores: Mapping[str, float]
    calibration_error: float = math.nan
    inside: float = math.nan
    learned: bool | None = None
    predictions: Predictions | None = None
    has_logits: bool = False


def _read(folder: Path, domains: Sequence[str], average: str) -> Predictions:
    found = RunPredictions.read(folder, domains, average)
    return (found or RunPredictions({})).of(domains)


def _pair(mine: Predictions) -> tuple[Array, Labels]:
    return np.exp(mine.log_probabilities), mine.labels


def _learned(held_out: Sequence[Predictions]) -> bool | None:
    """Return whether a run does no worse on its own domains than always giving one answer.

    It may be right less often than the most frequent class, if it finds the other classes better.
    """
    if not held_out:
        return None
    labels = np.concatenate([one.labels for one in held_out])
    probabilities = np.exp(np.concatenate([one.log_probabilities for one in held_out]))
    most = np.bincount(labels).max() / len(labels)
    error = math.sqrt(most * (1 - most) / len(labels))
    if METRICS["accuracy"].score(probabilities, labels) >= most - CLEAR * error:
        return True
    one_answer = 1 / len(np.unique(labels))
    return METRICS["balanced"].score(probabilities, labels) > one_answer


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan
