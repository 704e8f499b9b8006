"""The tables that a fit prints, on terminals of every width, and what its page says of runs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.catalogue import ON_TABLES, title_of
from shoal.cli.fit import print_data, print_result
from shoal.fitting.estimates import Candidate, Estimates
from shoal.fitting.page_content import _how, _measured
from shoal.fitting.setup import FitSetup
from shoal.fitting.verdict import decide

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
DOMAINS = ["art_painting", "cartoon", "photo", "sketch"]
COUNTS = {name: dict.fromkeys(CLASSES, 100 * k + 7) for k, name in enumerate(DOMAINS)}


def shown(capsys: Any, classes: list[str] = CLASSES) -> str:
    dataset = SimpleNamespace(name="PACS", classes=classes, domains=[[0]], counts=lambda: COUNTS)
    print_data(
        SimpleNamespace(dataset=dataset, table=None, broken=[], notes=[], shares_differ=False)
    )
    return str(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (120, ["Domain", *CLASSES, "all", "classes"]),
        (80, ["Class", *DOMAINS]),
        (40, ["Domain", "all", "classes"]),
    ],
)
def test_no_name_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, width: int, head: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = shown(capsys)
    assert "…" not in out
    assert next(line for line in out.splitlines()[1:] if line.strip()).split() == head
    assert f"{7 * 307:,}" in out  # all of the last domain


def test_many_classes_are_counted_only(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "dog" not in shown(capsys, [*CLASSES, "a", "b"])


def estimates() -> Estimates:
    """Return scores of all methods of a table; each is a little worse than the one before."""
    order = ("logistic regression", "trees", "trees", "trees", "erm", *["penalty"] * 5)
    candidates = [
        Candidate(name, title_of(name), family)
        for name, family in zip(ON_TABLES, order, strict=True)
    ]
    return Estimates(
        candidates=tuple(candidates),
        examples=dict.fromkeys(DOMAINS, 300),
        scores={
            one.key: {name: [0.9 - j / 1000 - k / 100] for k, name in enumerate(DOMAINS)}
            for j, one in enumerate(candidates)
        },
        inside=dict.fromkeys(ON_TABLES, 0.95),
        guess=dict.fromkeys(DOMAINS, 0.4),
        majority=dict.fromkeys(DOMAINS, 0.4),
        chance=dict.fromkeys(DOMAINS, 0.1),
    )


@pytest.mark.parametrize(
    ("width", "first", "across"),
    [
        (200, "Held out", True),
        (120, "Method", False),
        (60, "Method", False),
    ],
)
def test_every_method_is_shown_on_any_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, width: int, first: str, across: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_result(SimpleNamespace(verdict=decide(estimates()), out=Path("out"), seconds=3.0))
    out = capsys.readouterr().out
    lines = [line.strip() for line in out.splitlines()]
    head = next(line for line in lines if line.startswith(first))
    assert "…" not in out
    for title in ("Logistic regression", "Gradient boosting", "V-REx", "most frequent class"):
        assert title in (head if across else " ".join(lines[3:]))
    if across:
        cells = next(line for line in lines if line.startswith("sketch")).split()
        assert cells[1:4] == ["87.0", "86.9", "86.8"]
    else:
        cells = next(line for line in lines if line.startswith("Extra trees")).split()[2:]
        assert cells[:3] == ["88.3", "86.8", "95.0"]
        assert (cells[3:] == ["89.8", "88.8", "87.8", "86.8"]) is (width == 120)


def test_without_any_score_there_is_no_table(capsys: Any) -> None:
    nothing = replace(estimates(), scores={}, inside={})
    print_result(SimpleNamespace(verdict=decide(nothing), out=Path("out"), seconds=3.0))
    out = capsys.readouterr().out
    assert out.startswith(" Not enough time or runs: only 0 of 4 domains were left out")
    assert "most frequent class" not in out


SETUP = FitSetup(
    dataset="t",
    fingerprint="",
    kind="table",
    trained="all",
    backbone=None,
    steps=200,
    precision="float32",
    settings={},
)
IMAGES = replace(SETUP, kind="images", trained="both", backbone="resnet18")


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        (SETUP, "networks with the weights that are best on held-out examples"),
        (replace(IMAGES, trained="head"), "networks after the last update"),
        (IMAGES, "whole networks with the mean of their weights over the second half of a run"),
    ],
)
def test_the_page_tells_which_weights_of_networks_are_measured(setup: FitSetup, told: str) -> None:
    decision = decide(estimates()).decision
    assert told in _measured(setup, decision)
    assert dict(_how(setup, decision, []))["Updates per run"] == "200"


def test_the_page_has_no_network_if_none_was_trained() -> None:
    """Other settings of a baseline are a baseline, too."""
    base = Candidate("logistic-regression", "Logistic regression", "logistic regression")
    other = Candidate("logistic-regression C=1", "Logistic regression (C 1)", base.family, True)
    scores = {one.key: {name: [0.9] for name in DOMAINS} for one in (base, other)}
    found = replace(estimates(), candidates=(base, other), scores=scores, inside={})
    assert _measured(SETUP, decide(found).decision) == ""
    told = dict(_how(SETUP, decide(found).decision, []))
    assert told.keys() == {"Fitted by scikit-learn", "Runs", "Time for these runs"}
    assert told["Runs"] == "0: each method with each domain held out, 1 split"
    pairs = {base.key: {("photo", "sketch"): 0.9}}
    nested = decide(replace(found, pairs=pairs)).decision
    assert dict(_how(SETUP, nested, []))["Runs"].endswith("1 split; then with two at a time")
