"""Drift: are batches of a new place told from batches of known domains?

    python -m benchmarks.drift --features PACS=pacs.safetensors --table gas-drift=rows.parquet

In turn, each domain is the new place. Moments and thresholds come from four fifths of the other
domains, as ``shoal fit`` learns them; batches of 100 come from their last fifth and from the new
place, all with random class shares.
"""

from pathlib import Path
from typing import Any

import numpy as np

from shoal.datasets import DomainDataset
from shoal.datasets.features import load_features
from shoal.fitting.inspection import inspect_data
from shoal.monitoring.drift import auroc, draw_batch, learn_drift, mean_shifts, measure_drift
from shoal.monitoring.known_domains import learn_known

from .recording import options, write

SIZE, BATCHES, HELD_OUT = 100, 200, 5


def arrays_of(dataset: DomainDataset) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {one.name: (one.tensor.double().numpy(), one.labels.numpy()) for one in dataset.domains}


def at_place(
    domains: dict[str, tuple[np.ndarray, np.ndarray]], new: str, classes: int
) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    learned: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    held_out: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, (x, y) in domains.items():
        if name != new:
            order = generator.permutation(len(y))
            out = len(y) // HELD_OUT
            held_out[name] = x[order[:out]], y[order[:out]]
            learned[name] = x[order[out:]], y[order[out:]]
    labels = {name: y for name, (_, y) in learned.items()}
    known = learn_known({name: x for name, (x, _) in learned.items()}, labels, classes, generator)
    points = {name: known.project(x) for name, (x, _) in learned.items()}
    learned = learn_drift(known, points, labels, generator)
    assert learned is not None
    rule, usual = learned

    def shifts(x: np.ndarray, y: np.ndarray, number: int) -> list[float]:
        z = known.project(x)
        nearest = known.nearest(z).classes
        found = []
        for _ in range(number):
            rows = draw_batch(y, SIZE, generator)
            found.append(float(np.nanmin(mean_shifts(known, z[rows], nearest[rows]))))
        return found

    each = -(-BATCHES // len(held_out))
    usual_shifts = np.array([s for x, y in held_out.values() for s in shifts(x, y, each)])
    new_shifts = np.array(shifts(*domains[new], BATCHES))
    threshold = rule.threshold(SIZE)
    whole = measure_drift(known, rule, usual, known.project(domains[new][0]), generator)
    return {
        "place": new,
        "auroc": auroc(new_shifts, usual_shifts),
        "false_alarms": float((usual_shifts > threshold).mean()),
        "alarms": float((new_shifts > threshold).mean()),
        "batches": [len(usual_shifts), len(new_shifts)],
        "threshold": threshold,
        "median_shift": [float(np.median(usual_shifts)), float(np.median(new_shifts))],
        "nearest": whole.nearest,
        "domain_classifier_auroc": whole.auroc,
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--features", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--table", metavar="NAME=FILE", help="domain column batch, class gas")
    asked = parser.parse_args()
    data = {}
    for text in asked.features:
        name, _, path = text.partition("=")
        data[name] = load_features(Path(path))
    if asked.table:
        name, _, path = asked.table.partition("=")
        found = inspect_data(Path(path), class_column="gas", domain_column="batch")
        data[name] = found.dataset
    rows = []
    for name, dataset in data.items():
        domains = arrays_of(dataset)
        places = [at_place(domains, new, len(dataset.classes)) for new in domains]
        row: dict[str, Any] = {"data": name, "places": places}
        for key in ("auroc", "false_alarms", "alarms"):
            row[key] = float(np.mean([one[key] for one in places]))
        rows.append(row)
        for one in places:
            print(name, {k: round(v, 3) if isinstance(v, float) else v for k, v in one.items()})
        print(name, {k: v for k, v in row.items() if k != "places"}, flush=True)
    write("drift", asked, {"size": SIZE, "rows": rows})


if __name__ == "__main__":
    main()
