"""New places: what ``shoal fit`` gives at a place that it has never seen, by its commands alone.

For every place of a table: fit on all others, predict it, and compare with four classifiers of
scikit-learn that are fitted to the same rows. Nothing of the place itself is used.

    python -m benchmarks.new_places gas-drift.parquet --domain batch --label gas --time 2min
    python -m benchmarks.new_places spurious --time 2min --fit-options="--judge worst"

The table is a file, or a name of ``benchmarks.tables``. The result also says how long the fits took,
what they deployed, and what they expected.
"""

import csv
import io
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from shoal.datasets.tables import read_table

from .recording import options, write
from .tables import CLASS, SITE, TABLES

Rows = Sequence[Mapping[str, Any]]
FITTED = ("logistic regression", "random forest", "extra trees", "gradient boosting")


def rows_of(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table; a missing value is empty."""
    found = zip(*table.values(), strict=True)
    return [
        {name: "" if value is None else value for name, value in zip(table, row, strict=True)}
        for row in found
    ]


def write_rows(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def shoal(*words: str, folder: Path) -> str:
    """Return what a command prints; raise if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"shoal {words[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


def at_place(rows: Rows, domain: str, label: str, place: str, asked: Any) -> dict[str, Any]:
    """Return the accuracies at a place of models that were fitted to all other places."""
    known = [row for row in rows if str(row[domain]) != place]
    unseen = [row for row in rows if str(row[domain]) == place]
    truth = [str(row[label]) for row in unseen]
    columns = list(rows[0])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_rows(folder / "known.csv", known, columns)
        inputs = [name for name in columns if name not in (domain, label)]
        write_rows(folder / "unseen.csv", unseen, inputs)
        begin = time.perf_counter()
        named = ("--domain-column", domain, "--class-column", label)
        more = shlex.split(asked.fit_options)
        fitted = ("known.csv", *named, "--time", asked.time, "--out", "model", *more)
        shoal("fit", *fitted, folder=folder)
        seconds = time.perf_counter() - begin
        found = csv.DictReader(
            io.StringIO(shoal("predict", "model", "unseen.csv", "--csv", folder=folder))
        )
        right = [one["class"] == y for one, y in zip(found, truth, strict=True)]
        estimate = json.loads((folder / "model" / "estimate.json").read_text("utf-8"))
    expected = estimate["expectation"]
    return {
        "place": place,
        "rows": len(unseen),
        "shoal": fmean(right),
        **baselines(known, unseen, domain, label),
        "deployed": estimate["deploy"],
        "expected": None if expected is None else expected["mean"],
        "nested": None if expected is None else expected["nested"],
        "seconds": round(seconds, 1),
    }


def baselines(known: Rows, unseen: Rows, domain: str, label: str) -> dict[str, float]:
    """Return the accuracies of scikit-learn's classifiers, as ten lines of code would have them."""
    from sklearn.ensemble import (
        ExtraTreesClassifier,
        HistGradientBoostingClassifier,
        RandomForestClassifier,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, T = _matrices(known, unseen, [one for one in known[0] if one not in (domain, label)])
    y, t = (np.array([str(row[label]) for row in rows]) for rows in (known, unseen))

    def filled(indicator: bool = False) -> Any:
        return SimpleImputer(add_indicator=indicator, keep_empty_features=True)

    models = (
        make_pipeline(filled(True), StandardScaler(), LogisticRegression(max_iter=500)),
        make_pipeline(filled(), RandomForestClassifier(200, random_state=0, n_jobs=2)),
        make_pipeline(filled(), ExtraTreesClassifier(200, random_state=0, n_jobs=2)),
        HistGradientBoostingClassifier(random_state=0),
    )
    return {
        name: float((model.fit(X, y).predict(T) == t).mean())
        for name, model in zip(FITTED, models, strict=True)
    }


def _matrices(known: Rows, unseen: Rows, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers as they are, and other columns as one column for each of their values."""
    numeric = [one for one in names if np.mean([_is_number(row[one]) for row in known]) > 0.5]
    values = {
        one: sorted({str(row[one]) for row in known})[:50] for one in names if one not in numeric
    }

    def matrix(rows: Rows) -> np.ndarray:
        parts = [[_number(row[one]) for row in rows] for one in numeric]
        for one, mine in values.items():
            parts += [[float(str(row[one]) == value) for row in rows] for value in mine]
        return np.array(parts).T

    return matrix(known), matrix(unseen)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _is_number(value: Any) -> bool:
    return bool(np.isfinite(_number(value)))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("table", help="a file, or a name of benchmarks.tables")
    parser.add_argument("--domain", default=SITE, help="the column of places")
    parser.add_argument("--label", default=CLASS, help="the column of classes")
    parser.add_argument("--time", default="2min", help="of every fit")
    parser.add_argument("--places", nargs="+", help="some of the places (default: all)")
    parser.add_argument("--fit-options", default="", help="further words for shoal fit")
    parser.add_argument("--name", help="of the result (default: that of the table)")
    asked = parser.parse_args()
    made = TABLES.get(asked.table)
    rows = rows_of(made() if made is not None else read_table(Path(asked.table)))
    places = asked.places or sorted({str(row[asked.domain]) for row in rows})
    found: list[dict[str, Any]] = []
    for place in places:
        found.append(at_place(rows, asked.domain, asked.label, place, asked))
        print(found[-1], flush=True)
        means = {name: fmean(one[name] for one in found) for name in ("shoal", *FITTED)}
        shown = {"time": asked.time, "fit_options": asked.fit_options, "average": means}
        name = asked.name or Path(asked.table).stem
        # After every place, so that a time limit loses nothing.
        write(f"new_places_{name}", asked, {**shown, "places": found})
    print({name: f"{100 * value:.1f}" for name, value in means.items()})


if __name__ == "__main__":
    main()
