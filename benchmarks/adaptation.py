"""Adaptation: what T3A, prior correction and batch-norm statistics do on domains left out.

    python -m benchmarks.adaptation --features pacs.safetensors office31.safetensors \\
        --table gas-drift.parquet --images PACS Office31

Feature files are written by ``shoal data features``. On them heads are trained as ``shoal fit``
does on frozen features, on the table its candidates; each run leaves one domain out. "Nested" is
what a user gets: for every domain, the rule sees the other domains alone. Their runs had trained on
its examples, because no run left out two domains.

Beside it: T3A with fewer supports, and prior correction after a temperature. With ``--images``,
statistics of batch norm, on the first images of every domain in a random order. A made table has
class shares that differ between sites and nothing else: there prior correction must help.
"""

import csv
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from shoal.datasets import DomainDataset
from shoal.datasets.features import load_features
from shoal.fitting.adaptation import (
    TOGETHER,
    correct_shares,
    linear_head,
    t3a,
    with_statistics_of,
)
from shoal.fitting.adaptation_estimates import measure_adaptations, training_shares
from shoal.fitting.adaptation_record import AdaptationRecord, Gain, choose_adaptation
from shoal.fitting.baselines import LogisticRegression
from shoal.fitting.candidates import Recipe, RunMaker, recipes_of
from shoal.fitting.estimates import Predictions
from shoal.fitting.folds import Fold, folds_of
from shoal.fitting.frozen_features import pretrained
from shoal.fitting.inspection import inspect_data
from shoal.fitting.leave_one_out import finished_runs
from shoal.fitting.predictor import Predictor
from shoal.fitting.run_estimates import RunPredictions
from shoal.fitting.setup import STEPS, FitSetup, FitWorkspace, find_candidate, table_length
from shoal.fitting.temperature import fit_temperature, scaled
from shoal.networks import fold_standardisation
from shoal.randomness import stream
from shoal.results.records import RunResult
from shoal.runs import model as models
from shoal.runs.machine import Machine, one_thread
from shoal.sweeps.worker import Worker
from shoal.training.batches import Normalise
from shoal.training.batches import scaled as as_floats
from shoal.training.pillow import exact_evaluation

from .recording import options, write

BACKBONE = "efficientnet-lite0"
ON_FEATURES = ("logistic-regression", "logistic-regression C=0.01", "erm", "fishr")
ON_TABLES = ("logistic-regression", "extra-trees", "erm", "fishr")
SUPPORTS = (1, 5, 20, 50, 100)
# Shares of the second class by site, and rows of each, in the made table.
SHARES, ROWS = (0.9, 0.1, 0.85, 0.15, 0.8, 0.2), 500
# Images of a domain for the statistics of batch norm.
IMAGES = 400
CPU = torch.device("cpu")
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Trained:
    """The runs of a candidate that each left out a domain, in the order of the folds."""

    recipe: Recipe
    runs: Sequence[RunResult]
    folds: Sequence[Fold]
    workspace: FitWorkspace

    def record(self) -> AdaptationRecord:
        runs = [(self.recipe.key, run) for run in self.runs]
        found = measure_adaptations(self.recipe, runs, self.folds, self.workspace, "accuracy")
        if found is None:
            raise RuntimeError(f"a run of {self.recipe.key} has no predictions")
        return found

    def predictions(self) -> dict[str, Predictions]:
        found = {}
        for run, fold in zip(self.runs, self.folds, strict=True):
            read = RunPredictions.read(Path(str(run.path)), fold.domains)
            if read is not None:
                found[fold.name] = read.of(fold.domains)
        return found

    def with_fewer_supports(self) -> Scores:
        """Return the accuracy of T3A by K and domain."""
        found: Scores = {}
        for run, fold in zip(self.runs, self.folds, strict=True):
            predictor = Predictor(models.load(Path(str(run.path)), CPU))
            head = linear_head(predictor.module.algorithm)
            if head is None:
                return {}
            domain = self.workspace.dataset[fold.name]
            z, weight, bias = domain.tensor, head.weight, head.bias
            if self.recipe.setup.frozen:
                weight, bias = fold_standardisation(predictor.module.algorithm.model)
            else:
                z = predictor.outputs(predictor.module.features, z)
            for kept in SUPPORTS:
                right = t3a(z, weight, bias, kept).argmax(1) == domain.labels
                found.setdefault(f"T3A, K = {kept}", {})[fold.name] = float(right.double().mean())
        return found

    def corrected_after_temperature(self) -> Scores:
        """Return the accuracy of prior correction if the other domains choose a temperature."""
        predictions, scores = self.predictions(), {}
        setup = self.recipe.setup
        for name, mine in predictions.items():
            others = [one for other, one in predictions.items() if other != name]
            logs = np.log(scaled(mine.log_probabilities, fit_temperature(others)))
            known = self.workspace.dataset.without((name,))
            shares = training_shares(known, self.recipe.fitted, setup.balanced)
            scores[name] = float((correct_shares(logs, shares).argmax(1) == mine.labels).mean())
        return {"prior correction after a temperature": scores}


def train(
    dataset: DomainDataset, setup: FitSetup, keys: Sequence[str], out: Path
) -> dict[str, Trained]:
    """Return the runs of candidates, by their keys."""
    methods = {key.split()[0]: find_candidate(key.split()[0]) for key in keys}
    workspace = FitWorkspace(methods, dataset, None, Machine(device=CPU, step="eager"))
    make, worker, folds = (
        RunMaker(workspace, None, False),
        Worker(out, workspace),
        folds_of(dataset),
    )
    found = {}
    for recipe in recipes_of(methods, setup):
        if recipe.key in keys:
            runs = [make.run(recipe, fold.domains, 0) for fold in folds]
            for run in runs:
                worker.attempt(run)
            results = finished_runs(out, runs)
            trained = [results[run.identity] for run in runs]
            found[recipe.key] = Trained(recipe, trained, folds, workspace)
    return found


def setup_of(dataset: DomainDataset, kind: str) -> FitSetup:
    sizes = [len(domain) for domain in dataset.domains]
    return FitSetup(
        dataset=dataset.name,
        fingerprint=dataset.fingerprint,
        kind=kind,
        trained="head" if kind == "images" else "all",
        backbone=BACKBONE if kind == "images" else None,
        steps=STEPS["head"] if kind == "images" else table_length(sizes),
        precision="float32",
        settings={},
        examples=sum(sizes),
    )


def nested(before: Mapping[str, float], after: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return what the rule offers for every domain from the others, and what that does there."""
    found = {}
    for domain in before:
        others = [name for name in before if name != domain]
        offered = choose_adaptation(
            {name: before[name] for name in others},
            {one: {name: mine[name] for name in others} for one, mine in after.items()},
        )
        gain = 0.0 if offered is None else after[offered][domain] - before[domain]
        found[domain] = {"offered": offered, "gain": gain}
    gains = [one["gain"] for one in found.values()]
    return {"places": found, "mean": fmean(gains), "worst": min(gains)}


def row_of(name: str, method: str, trained: Trained) -> dict[str, Any]:
    record = trained.record()
    others = trained.with_fewer_supports() | trained.corrected_after_temperature()
    gains = {one: Gain.of(record.before, mine) for one, mine in {**record.after, **others}.items()}
    row = {
        "dataset": name,
        "method": method,
        "before": dict(record.before),
        "after": {**record.as_json()["after"], **others},
        "gains": {
            one: {"mean": gain.mean, "error": gain.error, "worst": gain.worst}
            for one, gain in gains.items()
        },
        "offered": record.offered,
        "temperature": record.temperature,
        "nested": nested(record.before, record.after),
    }
    shown = {key: row[key] for key in ("dataset", "method", "offered", "gains", "nested")}
    print(json.dumps(shown, indent=1), flush=True)
    return row


def batch_norm(features: DomainDataset, images: Path) -> dict[str, Any]:
    """Return what statistics of the new domain do below a logistic regression, C = 0.01."""
    dataset = inspect_data(images).dataset
    before, after = {}, {}
    for domain in features.domains:
        name = domain.name
        if not torch.equal(dataset[name].labels, domain.labels):
            raise ValueError(f"{images} does not hold the images of the features of {name!r}")
        known = features.without((name,)).domains
        head = LogisticRegression.fit_rows(
            {"C": 0.01},
            torch.cat([one.tensor for one in known]),
            torch.cat([one.labels for one in known]),
            len(features.classes),
            0,
        )
        some = torch.randperm(len(domain), generator=stream("batch norm"))[:IMAGES]
        files = [dataset[name].files[k] for k in some.tolist()]
        network = pretrained(BACKBONE, len(features.classes), CPU)
        normalise = Normalise(network.preprocessing, True, CPU)
        pixels = torch.stack([exact_evaluation(one, dataset.reading) for one in files])
        batches = [normalise(as_floats(one)) for one in pixels.split(TOGETHER)]
        moved = with_statistics_of(network.features, batches)
        with torch.no_grad():
            z = torch.cat([moved(batch) for batch in batches])
        labels = domain.labels[some]
        before[name] = float((head(domain.tensor[some]).argmax(1) == labels).double().mean())
        after[name] = float((head(z).argmax(1) == labels).double().mean())
    gain = Gain.of(before, after)
    found = {"dataset": features.name, "images": IMAGES, "before": before, "after": after}
    found["gain"] = {"mean": gain.mean, "error": gain.error, "worst": gain.worst}
    print(json.dumps(found, indent=1), flush=True)
    return found


def write_shares(path: Path) -> None:
    """Write a table whose sites differ in the shares of the classes, and in nothing else."""
    random = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["site", "class", *(f"x{k}" for k in range(5))])
        for site, share in enumerate(SHARES):
            for y in random.random(ROWS) < share:
                x = random.normal(size=5) + 0.7 * y
                out.writerow([f"site {site}", int(y), *x.round(4)])


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--features", type=Path, nargs="*", default=[])
    parser.add_argument("--table", type=Path, help="gas drift, with the columns batch and gas")
    parser.add_argument("--images", type=Path, nargs="*", default=[], help="as the features")
    asked = parser.parse_args()
    rows, norms = [], []
    with tempfile.TemporaryDirectory() as scratch, one_thread():
        work = Path(scratch)
        for path in asked.features:
            features = load_features(path)
            found = train(features, setup_of(features, "images"), ON_FEATURES, work / path.stem)
            rows += [row_of(features.name, key, one) for key, one in found.items()]
        write_shares(work / "shares.csv")
        tables = [(work / "shares.csv", "class", "site")]
        tables += [(asked.table, "gas", "batch")] if asked.table else []
        for path, label, domain in tables:
            table = inspect_data(path, None, label, domain).dataset
            found = train(table, setup_of(table, "table"), ON_TABLES, work / f"{path.stem}-runs")
            rows += [row_of(table.name, key, one) for key, one in found.items()]
        for path, images in zip(asked.features, asked.images, strict=False):
            norms.append(batch_norm(load_features(path), images))
    write("adaptation", asked, {"rows": rows, "batch_norm": norms})


if __name__ == "__main__":
    main()
