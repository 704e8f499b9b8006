"""The comparison of soups: means over domains, and starts in pairs of one domain."""

import json
from pathlib import Path

import pytest

from benchmarks.soups import difference, numbers_of
from shoal.results.soups import BEST, ENSEMBLE, GREEDY, INTERPOLATED, MEAN, UNIFORM, Soup, SoupRow

TEST = {MEAN: 0.5, BEST: 0.6, UNIFORM: 0.7, GREEDY: 0.8, ENSEMBLE: 0.9}


def soup(domain: str, of: str, shift: float) -> Soup:
    """Return what was measured on a domain; every model is better by ``shift``."""
    rows = [
        SoupRow(kind=kind, draws=(0, 1), validation=0.9, test=test + shift, calibration_error=0.1)
        for kind, test in TEST.items()
    ]
    rows += [
        SoupRow(
            kind=INTERPOLATED,
            draws=(0, 1),
            validation=validation,
            test=test + shift,
            calibration_error=0.2,
            alpha=alpha,
        )
        for alpha, validation, test in ((0.0, 0.7, 0.1), (0.5, 0.95, 0.4), (1.0, 0.9, 0.7))
    ]
    return Soup(
        name=f"{domain}-{of}",
        key="",
        dataset="pacs",
        algorithm="erm",
        test_domain=domain,
        trial=0,
        of=of,
        rows=tuple(rows),
    )


def write_run(folder: Path, domain: str, draw: int, accuracy: float) -> None:
    """Write a finished run with an average."""
    folder.mkdir(parents=True)
    run = {
        "dataset": "pacs",
        "fingerprint": "",
        "algorithm": "erm",
        "test_domains": [domain],
        "trial": 0,
        "draw": draw,
        "hparams": {},
        "protocol": {"steps": 10, "record_every": 10},
        "schema": 1,
    }
    record = {
        "step": 10,
        "terms": {},
        "accuracy": {domain: {"kept": accuracy, "held_out": 0.5}},
        "calibration_error": {domain: {"kept": 0.25}},
    }
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")
    average = record | {"average": "sma", "accuracy": {domain: {"kept": accuracy + 0.1}}}
    (folder / "averages.jsonl").write_text(json.dumps(average) + "\n")
    (folder / "done").touch()


@pytest.fixture
def sweeps(tmp_path: Path) -> tuple[Path, Path]:
    probe, network = tmp_path / "probe", tmp_path / "network"
    soups = [
        soup(domain, of, shift)
        for domain, shift in (("a", 0.0), ("b", 0.1))
        for of in ("best", "sma")
    ]
    (probe / "soups").mkdir(parents=True)
    groups = {one.name: one.to_json() for one in soups}
    (probe / "soups" / "soups.json").write_text(json.dumps({"schema": 1, "groups": groups}))
    write_run(probe / "runs" / "a0", "a", 0, 0.5)
    write_run(probe / "runs" / "a1", "a", 1, 0.1)  # another draw, not the defaults
    write_run(probe / "runs" / "b0", "b", 0, 0.6)
    write_run(network / "runs" / "a0", "a", 0, 0.6)
    write_run(network / "runs" / "b0", "b", 0, 0.8)
    return probe, network


def test_rows_are_means_over_domains(sweeps: tuple[Path, Path]) -> None:
    found = numbers_of(*sweeps)
    accuracy = {row["model"]: row["accuracy"] for row in found["rows"]}
    assert accuracy["mean of the members"] == pytest.approx(55)
    assert accuracy["uniform soup"] == pytest.approx(75)
    assert accuracy["interpolated with the start, α by validation"] == pytest.approx(45)
    assert accuracy["one run, last"] == pytest.approx(55)
    assert accuracy["one run, SMA"] == pytest.approx(65)
    assert accuracy["one run from a random head, last"] == pytest.approx(70)
    assert (found["members"], found["updates"]) == (2, 10)


def test_starts_are_compared_in_pairs_of_draw_zero(sweeps: tuple[Path, Path]) -> None:
    found = numbers_of(*sweeps)["probe_minus_random_head"]["last"]
    assert found == {"difference": -15.0, "error": 5.0, "domains": 2}


def test_the_error_is_over_domains() -> None:
    one = {"a": (3.0, 0.0), "b": (1.0, 0.0), "c": (9.0, 0.0)}
    other = {"a": (1.0, 0.0), "b": (1.0, 0.0)}
    assert difference(one, other) == {"difference": 1.0, "error": 1.0, "domains": 2}
