"""Reference of a fit: what ``monitor`` compares new data with, from runs that left a domain out.

The features of a table are its columns, those of a head are the frozen ones. A whole network has
features of its own in every run, so each run's are computed for a sample of the images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..datasets import DomainDataset, splits
from ..datasets.base import HOLDOUT
from ..datasets.cache import ImageCache
from ..monitoring.drift import learn_drift, place_distance
from ..monitoring.expected_accuracy import Evidence, Outcomes
from ..monitoring.known_domains import KnownDomains, learn_known
from ..monitoring.reference import KnownFeatures, Reference, learn_reference
from ..randomness import domainbed_hash
from ..results.averages import average_folder
from ..results.records import HELD_OUT, KEPT, MODEL, RunResult
from ..runs import model as models
from ..runs.folder import LOGITS
from ..sweeps.plan import MethodChoice
from ..tensor_files import read_safetensors
from ..training.evaluation import EvaluationSet, head_passes
from .folds import Fold
from .frozen_features import works_frozen
from .run_estimates import LAST, RunPredictions
from .verdict import Verdict

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# Images of a domain whose features are computed for each run of a whole network.
IMAGES = 500


@dataclass(frozen=True, kw_only=True)
class ReferenceData:
    """The data of the deployed candidate's runs.

    Args:
        dataset: of the inputs of its runs: rows, features or images.
        cache: the images of a whole network; None for vectors.
        method: the deployed one.
        average: of the weights, that is deployed.
        device: for the features of whole networks.
        keep_vectors: whether a few feature vectors may be kept beside their moments.
    """

    dataset: DomainDataset
    cache: ImageCache | None
    folds: Sequence[Fold]
    method: MethodChoice
    average: str
    device: torch.device
    keep_vectors: bool


def make_reference(
    verdict: Verdict,
    runs: Sequence[tuple[str, RunResult]],
    final: Path,
    data: ReferenceData,
) -> Reference | None:
    """Return the reference of the deployed candidate; None if predictions are missing.

    Args:
        runs: finished ones, each with the key of its candidate.
        final: the folder of the run that is deployed.
    """
    estimates = verdict.decision.estimates
    found = estimates.predictions.get(verdict.deploy, {})
    if len(estimates.domains) < 2 or not set(found) >= set(estimates.domains):
        return None
    features = _known_features(final, data)
    left_out = _by_fold([run for key, run in runs if key == verdict.deploy], data.folds)
    outcomes: dict[str, tuple[Outcomes, Labels]] = {}
    for fold in data.folds:
        if fold.name in estimates.domains:
            mine = _outcomes(left_out[fold.name], fold, data, features is not None)
            if mine is None:
                return None
            outcomes |= mine
    temperature = verdict.decision.temperature
    return learn_reference(
        outcomes,
        _shares(data.dataset),
        temperature.value if temperature is not None and temperature.helps else 1.0,
        _energies(final, data),
        features,
    )


def _by_fold(runs: Sequence[RunResult], folds: Sequence[Fold]) -> dict[str, RunResult]:
    """Return the first run that left out each fold alone."""
    found: dict[str, RunResult] = {}
    for run in runs:
        for fold in folds:
            if set(run.test_domains) == set(fold.domains):
                found.setdefault(fold.name, run)
    return found


def _shares(dataset: DomainDataset) -> dict[str, float]:
    labels = torch.cat([one.labels for one in dataset.domains])
    counts = labels.bincount(minlength=len(dataset.classes))
    return dict(zip(dataset.classes, (counts / counts.sum()).tolist(), strict=True))


def _outcomes(
    run: RunResult, fold: Fold, data: ReferenceData, with_features: bool
) -> dict[str, tuple[Outcomes, Labels]] | None:
    """Return what a run did on each domain that it left out, and the labels; None without logits.

    A new place is like one of the domains, not like several together, which differ less.
    """
    names = data.dataset.names
    read = None if run.path is None else RunPredictions.read(run.path, names, data.average)
    if read is None:
        return None
    known = _known_accuracy(read, [name for name in names if name not in fold.domains])
    left = {name: read.of([name]) for name in fold.domains}
    seen = {name: Evidence(one.log_probabilities, known=known) for name, one in left.items()}
    if with_features:
        seen = _with_features(seen, {name: one.labels for name, one in left.items()}, run, data)
    return {
        name: (Outcomes(seen[name], one.log_probabilities.argmax(1) == one.labels), one.labels)
        for name, one in left.items()
    }


def _known_accuracy(read: RunPredictions, names: Sequence[str]) -> float | None:
    """Return the mean accuracy on held-out examples of the domains that a run was trained on."""
    held_out = [read.of([name], [HELD_OUT]) for name in names]
    right = [(one.log_probabilities.argmax(1) == one.labels) for one in held_out if len(one.labels)]
    return float(np.mean([one.mean() for one in right])) if right else None


def _with_features(
    evidence: Mapping[str, Evidence],
    labels: Mapping[str, Labels],
    run: RunResult,
    data: ReferenceData,
) -> dict[str, Evidence]:
    """Return the evidence on the domains left out with what the features say of each.

    The moments are those of all other domains.
    """
    parts = splits(data.dataset, run.trial, run.protocol.get("holdout", HOLDOUT))
    # In the order of the predictions.
    rows = {
        name: torch.cat([parts[name].kept, parts[name].held_out]) for name in data.dataset.names
    }
    if data.cache is None:
        for name, truth in labels.items():
            if not np.array_equal(data.dataset[name].labels[rows[name]].numpy(), truth):
                return dict(evidence)
        seen = _vectors(rows, data)
    else:
        sampled = {name: _sample(one) for name, one in rows.items()}
        passes = None if run.path is None else _passes(run.path, sampled, data)
        if passes is None:
            return dict(evidence)
        seen = passes
    known = _learn({name: one for name, one in seen.items() if name not in evidence}, data)
    found = {}
    for name, one in evidence.items():
        points = known.project(seen[name].features)
        classes = known.nearest(points).classes
        predicted = seen[name].predicted
        if predicted is None:
            predicted = one.log_probabilities.argmax(1)
        found[name] = replace(
            one,
            agreement=float((classes == predicted).mean()),
            distance=place_distance(known, points, classes),
        )
    return found


def _known_features(final: Path, data: ReferenceData) -> KnownFeatures | None:
    """Return the moments of all domains, by the features of the deployed model."""
    names = data.dataset.names
    seen: dict[str, _Seen] | None
    if data.cache is None:
        seen = _vectors({name: torch.arange(len(data.dataset[name])) for name in names}, data)
    else:  # a network knows the images that it was trained on too well
        parts = splits(data.dataset, 0, HOLDOUT)
        seen = _passes(final, {name: _sample(parts[name].held_out) for name in names}, data)
    if seen is None:
        return None
    known = _learn(seen, data)
    points = {name: known.project(one.features) for name, one in seen.items()}
    labels = {name: one.labels for name, one in seen.items()}
    learned = learn_drift(known, points, labels, _generator("drift", data))
    if learned is None:
        return None
    rule, usual = learned
    kept = known if data.keep_vectors else known.without_vectors()
    return KnownFeatures(domains=kept, drift=rule, usual=usual)


class _Seen(NamedTuple):
    """Features ``[n, p]`` of a domain's examples, their labels, and what a network predicts."""

    features: Array
    labels: Labels
    predicted: Labels | None = None


def _vectors(rows: Mapping[str, torch.Tensor], data: ReferenceData) -> dict[str, _Seen]:
    """Return vectors as they are; every run sees the same."""
    return {
        name: _Seen(
            data.dataset[name].tensor[mine].numpy(),
            data.dataset[name].labels[mine].numpy(),
        )
        for name, mine in rows.items()
    }


def _passes(
    folder: Path, rows: Mapping[str, torch.Tensor], data: ReferenceData
) -> dict[str, _Seen] | None:
    """Return what the head of a run's network sees.

    None if a domain has no examples, or a method predicts with more than the network's features.
    """
    if not all(map(len, rows.values())) or not works_frozen(data.method[0]):
        return None
    weights = average_folder(folder, data.average)
    model = models.load(
        weights if (weights / MODEL).exists() else folder, data.device, data.method[0]
    )
    evaluate = models.evaluation_of_model(model, data.dataset, data.cache, list(rows))
    evaluate.parts = {
        (name, "all"): EvaluationSet(
            evaluate.parts[name, "all"].images, mine, data.dataset[name].labels[mine]
        )
        for name, mine in rows.items()
    }
    return {
        name: _Seen(
            one.features.double().cpu().numpy(),
            one.labels.cpu().numpy(),
            one.logits.argmax(-1).cpu().numpy(),
        )
        for (name, _), one in head_passes(evaluate).items()
    }


def _learn(seen: Mapping[str, _Seen], data: ReferenceData) -> KnownDomains:
    features = {name: one.features for name, one in seen.items()}
    labels = {name: one.labels for name, one in seen.items()}
    return learn_known(features, labels, len(data.dataset.classes), _generator("moments", data))


def _generator(what: str, data: ReferenceData) -> np.random.Generator:
    return np.random.default_rng(domainbed_hash("monitor", what, data.dataset.fingerprint))


def _sample(rows: torch.Tensor) -> torch.Tensor:
    """Return some of the rows, evenly over all of them."""
    return rows[:: max(1, -(-len(rows) // IMAGES))]


def _energies(folder: Path, data: ReferenceData) -> dict[str, float]:
    """Return the mean energy of the held-out examples of every domain; none without logits."""
    path = folder / LOGITS
    if not path.exists():
        return {}
    tensors = read_safetensors(path)
    weights = data.average if any(key.startswith(f"{data.average}/") for key in tensors) else LAST
    found = {}
    for name in data.dataset.names:
        logits = next(
            (
                tensors[key]
                for split in (HELD_OUT, KEPT)
                if len(tensors.get(key := f"{weights}/{name}/{split}", ()))
            ),
            None,
        )
        if logits is not None:
            found[name] = -float(logits.double().logsumexp(-1).mean())
    # Log-probabilities, which trees give, have no scale: all their energies are 0.
    return found if any(abs(one) > 1e-3 for one in found.values()) else {}
