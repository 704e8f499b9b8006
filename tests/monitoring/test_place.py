"""The report on a place, and the reference that a model's card keeps."""

import json
import math

import numpy as np
import pytest

from shoal.monitoring.expected_accuracy import Outcomes, learn_estimator
from shoal.monitoring.place import report_place
from shoal.monitoring.prediction_sets import learn_sets
from shoal.monitoring.reference import Reference, learn_reference

CLASSES = ("cat", "dog", "owl")
SHARES = {"cat": 0.5, "dog": 0.3, "owl": 0.2}


def domain(seed: int, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    z = rng.normal(size=(n, 3)) + (1 + 0.3 * seed) * np.eye(3)[labels]
    return z - np.log(np.exp(z).sum(1, keepdims=True)), labels


KNOWN = {f"site {k}": domain(k) for k in range(4)}


def test_the_reference_is_what_its_parts_learn() -> None:
    found = learn_reference(KNOWN, SHARES)
    outcomes = {
        name: Outcomes(logs, logs.argmax(1) == labels) for name, (logs, labels) in KNOWN.items()
    }
    assert found.accuracy == learn_estimator(outcomes)
    assert found.sets == learn_sets(list(KNOWN.values()))


def test_the_reference_survives_json() -> None:
    found = learn_reference(KNOWN, SHARES)
    assert Reference.from_json(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.parametrize(
    "damage",
    [
        lambda card: card.pop("sets"),
        lambda card: card["accuracy"].update(name="fortune"),
        lambda card: card["accuracy"].update(number=math.nan),
        lambda card: card["accuracy"].update(number=1e300),
        lambda card: card["sets"].update(limit="much"),
        lambda card: card["accuracy"]["accuracies"].pop("site 1"),
        lambda card: card["accuracy"].update(tried={}),
        lambda card: card.update(shares=[1, 2]),
    ],
)
def test_a_damaged_reference_is_refused(damage: object) -> None:
    card = learn_reference(KNOWN, SHARES).as_json()
    damage(card)  # type: ignore[operator]
    with pytest.raises(ValueError, match="of the model's card is damaged"):
        Reference.from_json(card)


@pytest.mark.parametrize("held", [True, False])
def test_a_report_with_labels(held: bool) -> None:
    reference = learn_reference(KNOWN, SHARES)
    logs, labels = domain(2 if held else 7)
    names = [CLASSES[k] for k in labels]
    found = report_place(reference, CLASSES, logs, names)
    right = (logs.argmax(1) == labels).mean()
    assert found.measured == pytest.approx(right)
    assert found.expected == reference.accuracy(logs)
    assert found.interval == reference.accuracy.interval(logs)
    low, high = found.interval or (1.0, 0.0)
    assert found.held is bool(low <= right <= high) is held
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares["dog"] == pytest.approx((logs.argmax(1) == 1).mean())
    held = reference.sets(logs)
    assert found.unsure == (held.sum(1) > 1).sum() > 0
    for row, mine, likely in zip(logs, held, found.likely, strict=True):
        assert {CLASSES.index(name) for name in likely} == set(np.flatnonzero(mine))
        assert likely[0] == CLASSES[row.argmax()]
        assert [row[CLASSES.index(name)] for name in likely] == sorted(row[mine], reverse=True)


def test_an_unknown_class_is_never_right() -> None:
    reference = learn_reference(KNOWN, SHARES)
    logs, _ = domain(7, n=10)
    assert report_place(reference, CLASSES, logs, ["wolf"] * 10).measured == 0.0
    assert report_place(reference, CLASSES, logs).measured is None
    assert report_place(reference, CLASSES, logs).held is None


def test_nothing_and_too_few_labels_are_refused() -> None:
    reference = learn_reference(KNOWN, SHARES)
    logs, _ = domain(7, n=10)
    with pytest.raises(ValueError, match="nothing to monitor"):
        report_place(reference, CLASSES, logs[:0])
    with pytest.raises(ValueError, match="must be 10 labels, got 3"):
        report_place(reference, CLASSES, logs, ["cat"] * 3)
