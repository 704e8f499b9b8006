"""Adaptation estimates: what adaptations do to the runs of a fit, on the domains they left out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..datasets import DomainDataset
from ..datasets.cache import evaluation_images
from ..networks import Network, fold_standardisation
from ..results.averages import average_folder
from ..results.metrics import METRICS
from ..results.records import MODEL, RunResult
from ..runs import model as models
from .adaptation import (
    BATCH_NORM,
    PRIOR,
    T3A,
    correct_shares,
    follows_inputs,
    linear_head,
    shuffled_batches,
    t3a,
    with_statistics_of,
)
from .adaptation_record import AdaptationRecord, choose_adaptation
from .candidates import Recipe
from .estimates import Predictions
from .folds import Fold
from .predictor import Predictor
from .run_estimates import RunPredictions
from .setup import FitWorkspace
from .temperature import measure_temperature

Array = NDArray[np.float64]
BEFORE = "before"


def measure_adaptations(
    recipe: Recipe,
    runs: Sequence[tuple[str, RunResult]],
    folds: Sequence[Fold],
    workspace: FitWorkspace,
    metric: str,
) -> AdaptationRecord | None:
    """Return what adaptations do to the runs of the deployed candidate.

    None if there are fewer than two folds, or if a fold has no run with predictions.

    Args:
        recipe: of the deployed candidate.
        runs: finished ones, each with the key of its candidate; the first of each fold counts.
        folds: the folds that count.
        metric: of the fit. A metric of probabilities says little of a changed class: then it is
            the accuracy.
    """
    metric = metric if METRICS[metric].percent else "accuracy"
    by_fold: dict[str, dict[str, Predictions]] = {}
    for fold in folds:
        mine = (
            _LeftOut(run.path, run, recipe, workspace).adapted(fold)
            for key, run in runs
            if key == recipe.key and run.path and set(run.test_domains) == set(fold.domains)
        )
        found = next(mine, None)
        if found is None:
            return None
        by_fold[fold.name] = found
    if len(by_fold) < 2:
        return None
    first, *others = by_fold.values()
    names = [name for name in first if all(name in found for found in others)]
    by_name = {name: {fold: found[name] for fold, found in by_fold.items()} for name in names}
    scores = {
        name: {fold: _score(metric, one) for fold, one in mine.items()}
        for name, mine in by_name.items()
    }
    before = scores.pop(BEFORE)
    if not np.isfinite([list(one.values()) for one in (before, *scores.values())]).all():
        return None
    offered = choose_adaptation(before, scores)
    temperature = 1.0
    if offered is not None:
        measured = measure_temperature(by_name[offered])
        temperature = measured.value if measured.helps else 1.0
    dataset = workspace.inputs(recipe.setup.frozen)
    shares = training_shares(dataset, recipe.domain_weights, recipe.setup.balanced)
    return AdaptationRecord(
        metric=metric,
        before=before,
        after=scores,
        offered=offered,
        temperature=temperature,
        shares=dict(zip(dataset.classes, shares.tolist(), strict=True)),
    )


def training_shares(
    dataset: DomainDataset,
    domain_weights: Callable[[NDArray[np.int64]], Array],
    balanced: bool,
) -> Array:
    """Return the shares of the classes that a model saw in training on these domains, ``[C]``.

    Args:
        domain_weights: how much domains of so many rows count.
        balanced: whether all classes of a domain count alike.
    """
    classes = len(dataset.classes)
    rows = np.stack([np.bincount(one.labels, minlength=classes) for one in dataset.domains])
    weights = domain_weights(rows.sum(1))
    counted = rows > 0 if balanced else rows
    return np.asarray(weights @ (counted / counted.sum(1, keepdims=True)) / weights.sum())


@dataclass(frozen=True)
class _LeftOut:
    """A run of the deployed candidate, in a folder, and the domains that it left out."""

    path: Path
    run: RunResult
    recipe: Recipe
    workspace: FitWorkspace

    def adapted(self, fold: Fold) -> dict[str, Predictions] | None:
        """Return the predictions on a fold before and after each adaptation; None without logits.

        Every domain of the fold is a place of its own.
        """
        read = RunPredictions.read(self.path, fold.domains, self.recipe.setup.average)
        if read is None:
            return None
        found: dict[str, list[Predictions]] = {}
        for domain in fold.domains:
            before = read.of([domain])
            found.setdefault(BEFORE, []).append(before)
            corrected = correct_shares(before.log_probabilities, self._shares)
            found.setdefault(PRIOR, []).append(Predictions(corrected, before.labels))
            labels = self._dataset[domain].labels.numpy()
            for name, logs in self._by_model(domain):
                found.setdefault(name, []).append(Predictions(logs, labels))
        return {
            name: Predictions(
                np.concatenate([one.log_probabilities for one in mine]),
                np.concatenate([one.labels for one in mine]),
            )
            for name, mine in found.items()
        }

    @property
    def _dataset(self) -> DomainDataset:
        return self.workspace.data(self.run.dataset, self.run.trial)[0]

    @property
    def _shares(self) -> Array:
        known = self._dataset.without(self.run.test_domains)
        return training_shares(known, self.recipe.domain_weights, self.recipe.setup.balanced)

    @cached_property
    def _predictor(self) -> Predictor | None:
        """The run's model; None if its file is gone."""
        folder = average_folder(self.path, self.recipe.setup.average)
        folder = folder if (folder / MODEL).exists() else self.path
        if not (folder / MODEL).exists():
            return None
        device = self.workspace.on.device if self.recipe.setup.whole else torch.device("cpu")
        method = None if self.recipe.fitted else self.workspace.methods[self.recipe.method][0]
        return Predictor(models.load(folder, device, method))

    def _by_model(self, domain: str) -> Iterator[tuple[str, Array]]:
        """Yield the log-probabilities of adaptations that need the run's model, by name.

        Statistics of batch norm take two more passes over the images, so they are measured on a
        GPU only. A head on frozen features has none: its features were computed with those of
        the pretrained network.
        """
        predictor = self._predictor
        if predictor is None:
            return
        algorithm = predictor.module.algorithm
        inputs = evaluation_images(self._dataset[domain], self.workspace.cache)
        head = linear_head(algorithm)
        if head is not None:
            if self.recipe.setup.frozen and isinstance(algorithm.model, Network):
                # The deployed network has no standardisation: it is folded into the head.
                features, (weight, bias) = inputs, fold_standardisation(algorithm.model)
            else:
                features = predictor.outputs(predictor.module.features, inputs)
                weight, bias = head.weight.cpu(), head.bias.cpu()
            yield T3A, t3a(features, weight, bias).log_softmax(-1).numpy()
        normed = any(map(follows_inputs, algorithm.modules()))
        if self.recipe.setup.whole and normed and _is_quick(predictor.device):
            module = with_statistics_of(predictor.module, _shuffled(inputs, predictor.device))
            logits = predictor.outputs(module.logits, inputs)
            yield BATCH_NORM, logits.double().log_softmax(-1).numpy()


def _is_quick(device: torch.device) -> bool:
    """Return whether more passes over all images take little time."""
    return device.type == "cuda"


def _shuffled(inputs: Tensor, device: torch.device) -> Iterator[Tensor]:
    for some in shuffled_batches(len(inputs)):
        yield inputs[some].to(device)


def _score(metric: str, found: Predictions) -> float:
    return METRICS[metric].score(np.exp(found.log_probabilities), found.labels)
