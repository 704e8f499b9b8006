"""Monitoring: expected accuracy and prediction sets on domains that were left out, nested.

    python -m benchmarks.monitoring ARCHIVES... --table gas-drift=gas-drift.parquet

Reads archives of runs with their logits. In turn, each domain is the new place: a run left it out,
and what is learned comes from the other runs of the same method and trial, each of which left out
another domain. Nothing is learned from the labels of the new place; the other runs had trained on
its examples, because no run left out two domains. With the rows of a table, its columns are the
features that agreement and distances need; the archives of images have none.
"""

import json
import math
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from shoal.datasets import DomainDataset, splits
from shoal.datasets.base import HOLDOUT
from shoal.fitting.expectation import prediction_interval
from shoal.fitting.inspection import inspect_data
from shoal.fitting.run_estimates import RunPredictions
from shoal.monitoring.class_shares import estimate_shares
from shoal.monitoring.drift import place_distance
from shoal.monitoring.expected_accuracy import (
    ESTIMATORS,
    LEVEL,
    Evidence,
    Outcomes,
    at_temperature,
    learn_estimator,
)
from shoal.monitoring.known_domains import learn_known
from shoal.monitoring.prediction_sets import SetDomain, learn_sets, limit_of, sets_of
from shoal.runs.folder import LOGITS
from shoal.tensor_files import read_safetensors

from .recording import options, write

METHODS = ("erm", "fishr")
WEIGHTS = ("last", "half")


@dataclass(frozen=True)
class LeftOut:
    """A run's predictions on the domain that it left out, and its accuracy on known domains."""

    domain: str
    logs: np.ndarray
    labels: np.ndarray
    known: float
    agreement: float | None = None
    distance: float | None = None

    @property
    def outcomes(self) -> Outcomes:
        seen = Evidence(self.logs, self.agreement, self.distance, self.known)
        return Outcomes(seen, self.logs.argmax(1) == self.labels)


def with_features(one: LeftOut, trial: int, holdout: float, dataset: DomainDataset) -> LeftOut:
    """Return it with what the columns of the table say, by moments of the other domains."""
    rows = {domain.name: domain.tensor.double().numpy() for domain in dataset.domains}
    labels = {domain.name: domain.labels.numpy() for domain in dataset.domains}
    part = splits(dataset, trial, holdout)[one.domain]
    order = np.concatenate([part.kept.numpy(), part.held_out.numpy()])
    assert (labels[one.domain][order] == one.labels).all()
    others = {name: mine for name, mine in rows.items() if name != one.domain}
    generator = np.random.default_rng(0)
    known = learn_known(others, {n: labels[n] for n in others}, len(dataset.classes), generator)
    points = known.project(rows[one.domain][order])
    classes = known.nearest(points).classes
    agreement = float((classes == one.logs.argmax(1)).mean())
    return replace(one, agreement=agreement, distance=place_distance(known, points, classes))


Groups = dict[tuple[str, str, str], dict[int, list[LeftOut]]]


def read_archives(archives: Iterable[Path], tables: Mapping[str, DomainDataset]) -> Groups:
    """Return what was left out, by data set, method and weights, and by trial."""
    found: Groups = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as scratch:
        for archive in archives:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        for path in sorted(Path(scratch).rglob("run.json")):
            run = json.loads(path.read_text("utf-8"))
            if run["algorithm"] in METHODS and len(run["test_domains"]) == 1 and not run["draw"]:
                for weights, one in read_run(path.parent, run["test_domains"][0]):
                    key = run["dataset"], run["algorithm"], weights
                    if (table := tables.get(run["dataset"])) is not None:
                        holdout = run["protocol"].get("holdout", HOLDOUT)
                        one = with_features(one, run["trial"], holdout, table)
                    found[key][run["trial"]].append(one)
    return found


def read_run(folder: Path, domain: str) -> Iterator[tuple[str, LeftOut]]:
    card = json.loads((folder / "model.json").read_text("utf-8"))
    names = [domain, *card["training_domains"]]
    recorded = {key.partition("/")[0] for key in read_safetensors(folder / LOGITS)}
    for weights in filter(recorded.__contains__, WEIGHTS):
        read = RunPredictions.read(folder, names, weights)
        if read is None:
            continue
        mine = read.of([domain])
        known = [read.of([name], ["held_out"]) for name in names[1:]]
        right = [(one.log_probabilities.argmax(1) == one.labels).mean() for one in known]
        yield weights, LeftOut(domain, mine.log_probabilities, mine.labels, float(np.mean(right)))


def interval_score(interval: tuple[float, float], truth: float) -> float:
    """Return width + 2/α · the distance of the truth from the interval; less is better."""
    low, high = interval
    return high - low + 2 / (1 - LEVEL) * (max(low - truth, 0) + max(truth - high, 0))


def nested(trials: Mapping[int, Sequence[LeftOut]]) -> Iterator[dict[str, Any]]:
    """Yield what is found at every domain as the new place."""
    for doms in trials.values():
        for new in doms:
            others = [one for one in doms if one.domain != new.domain]
            if len(others) > 1:
                yield at_place(new, others)


def at_place(new: LeftOut, others: Sequence[LeftOut]) -> dict[str, Any]:
    outcomes = [one.outcomes for one in others]
    found = learn_estimator({one.domain: one.outcomes for one in others})
    truth = new.outcomes.accuracy
    accuracies = np.array([one.accuracy for one in outcomes])
    seen = new.outcomes.evidence
    guesses = {
        "chosen": found(seen),
        "known domains": new.known,
        "mean of the others": float(accuracies.mean()),
    }
    for name, one in ESTIMATORS.items():
        if one.works_with(seen):
            guesses[name] = one.estimate(seen, fmean(one.exact(other) for other in outcomes))
    sizes = np.array([len(one.labels) for one in others])
    intervals = {
        "chosen": found.interval(seen),
        "Student": prediction_interval(accuracies, sizes),
    }
    tried = found.tried[found.name]
    rule = learn_sets(
        {one.domain: SetDomain(one.logs, one.labels, tried[one.domain]) for one in others}
    )
    together = limit_of(
        np.concatenate([one.logs for one in others]), np.concatenate([one.labels for one in others])
    )
    sets = {}
    for name, held in (
        ("by domain", rule(new.logs, guesses["chosen"])),
        ("one temperature", sets_of(new.logs, rule.single)),
        ("pooled", sets_of(new.logs, together)),
    ):
        covered = held[np.arange(len(held)), new.labels].mean()
        sets[name] = {"coverage": float(covered), "size": float(held.sum(1).mean())}
    return {
        "domain": new.domain,
        "accuracy": truth,
        "estimator": found.name,
        "errors": {name: abs(guess - truth) for name, guess in guesses.items()},
        "intervals": {
            name: {
                "covers": one[0] <= truth <= one[1],
                "width": one[1] - one[0],
                "score": interval_score(one, truth),
            }
            for name, one in intervals.items()
            if one is not None
        },
        "sets": sets,
        "shares": shares_of(new, others),
    }


def shares_of(new: LeftOut, others: Sequence[LeftOut]) -> dict[str, float]:
    """Return how far class shares are from the truth: a count of predictions, and EM's.

    EM finds the shares under which calibrated probabilities agree with themselves (Saerens et al.,
    2002). The distance is half the sum of absolute differences. Both accuracies are there, too.
    """
    classes = new.logs.shape[1]

    def count(labels: np.ndarray) -> np.ndarray:
        return np.asarray(np.bincount(labels, minlength=classes) / len(labels))

    before = np.mean([count(one.labels) for one in others], 0)
    number = fmean(ESTIMATORS["confidence"].exact(one.outcomes) for one in others)
    shares, corrected = estimate_shares(at_temperature(new.logs, math.exp(number)), before)
    truth, counted = count(new.labels), count(new.logs.argmax(1))
    return {
        "count": float(np.abs(counted - truth).sum() / 2),
        "em": float(np.abs(shares - truth).sum() / 2),
        "accuracy": new.outcomes.accuracy,
        "corrected_accuracy": float((corrected.argmax(1) == new.labels).mean()),
    }


def summary(places: Sequence[Mapping[str, Any]], classes: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "places": len(places),
        "classes": classes,
        "estimators": dict(Counter(one["estimator"] for one in places)),
        "mean_absolute_error": {
            name: fmean(one["errors"][name] for one in places) for name in places[0]["errors"]
        },
        "sets": {
            name: {
                "coverage": fmean(one["sets"][name]["coverage"] for one in places),
                "worst": min(one["sets"][name]["coverage"] for one in places),
                "size": fmean(one["sets"][name]["size"] for one in places),
            }
            for name in places[0]["sets"]
        },
    }
    found["shares"] = {
        key: fmean(one["shares"][key] for one in places) for key in places[0]["shares"]
    }
    both = [one["intervals"] for one in places if len(one["intervals"]) == 2]
    if both:
        found["intervals"] = {
            name: {
                key: fmean(one[name][key] for one in both) for key in ("covers", "width", "score")
            }
            for name in both[0]
        }
        share = found["intervals"]["chosen"]["covers"]
        found["intervals"]["binomial_error"] = math.sqrt(share * (1 - share) / len(both))
    return found


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--table", metavar="NAME=FILE", help="domain column batch, class gas")
    asked = parser.parse_args()
    tables = {}
    if asked.table:
        name, _, path = asked.table.partition("=")
        found = inspect_data(Path(path), class_column="gas", domain_column="batch")
        tables[name] = found.dataset
    rows = []
    for (dataset, method, weights), trials in sorted(read_archives(asked.archives, tables).items()):
        places = list(nested(trials))
        if places:
            classes = next(iter(trials.values()))[0].logs.shape[1]
            about = {"dataset": dataset, "method": method, "weights": weights}
            rows.append({**about, **summary(places, classes), "by_place": places})
            shown = {k: v for k, v in rows[-1].items() if k != "by_place"}
            print(json.dumps(shown, indent=1))
    write("monitoring", asked, {"rows": rows})


if __name__ == "__main__":
    main()
