"""The report on a place, and the reference that a model's card keeps."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.monitoring.class_shares import estimate_shares
from shoal.monitoring.drift import learn_drift
from shoal.monitoring.expected_accuracy import Evidence, Outcomes, at_temperature, learn_estimator
from shoal.monitoring.known_domains import learn_known
from shoal.monitoring.place import Observed, report_place
from shoal.monitoring.prediction_sets import SetDomain, learn_sets
from shoal.monitoring.reference import (
    KnownFeatures,
    Reference,
    as_arrays,
    learn_reference,
)
from shoal.monitoring.sentences import sentences

CLASSES = ("cat", "dog", "owl")
SHARES = {"cat": 0.5, "dog": 0.3, "owl": 0.2}


def domain(seed: int, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    z = rng.normal(size=(n, 3)) + (1 + 0.3 * seed) * np.eye(3)[labels]
    return z - np.log(np.exp(z).sum(1, keepdims=True)), labels


def features(seed: int, labels: np.ndarray, moved: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(100 + seed)
    return rng.normal(size=(len(labels), 5)) + 3 * np.eye(5)[labels] + moved


def known_features() -> KnownFeatures:
    rng = np.random.default_rng(0)
    labels = {f"site {k}": domain(k)[1] for k in range(4)}
    rows = {name: features(k, y, 0.1 * k) for k, (name, y) in enumerate(labels.items())}
    known = learn_known(rows, labels, 3, rng)
    points = {name: known.project(one) for name, one in rows.items()}
    learned = learn_drift(known, points, labels, rng)
    assert learned is not None
    rule, usual = learned
    return KnownFeatures(domains=known, drift=rule, usual=usual)


def outcomes(k: int) -> tuple[Outcomes, np.ndarray]:
    logs, labels = domain(k)
    seen = Evidence(logs, agreement=0.6 + 0.05 * k, distance=1.0 + k, known=0.9)
    return Outcomes(seen, logs.argmax(1) == labels), labels


KNOWN = {f"site {k}": outcomes(k) for k in range(4)}
FEATURES = known_features()
REFERENCE = learn_reference(KNOWN, SHARES, 1.5, {"site 0": -3.0}, FEATURES)


def arrays() -> dict[str, np.ndarray]:
    return as_arrays(FEATURES.domains)


def test_the_reference_is_what_its_parts_learn() -> None:
    accuracy = learn_estimator({name: one for name, (one, _) in KNOWN.items()})
    assert REFERENCE.accuracy == accuracy
    of_sets = {
        name: SetDomain(one.evidence.log_probabilities, y, accuracy.tried[accuracy.name][name])
        for name, (one, y) in KNOWN.items()
    }
    assert REFERENCE.sets == learn_sets(of_sets, 1.5)
    assert REFERENCE.known == pytest.approx(0.9)


def test_the_reference_survives_json_and_arrays() -> None:
    read = Reference.from_json(json.loads(json.dumps(REFERENCE.as_json())), arrays())
    assert read.accuracy == REFERENCE.accuracy and read.sets == REFERENCE.sets
    assert read.distances == REFERENCE.distances
    assert read.energies == REFERENCE.energies and read.known == REFERENCE.known
    assert read.features is not None
    assert read.features.drift == FEATURES.drift and read.features.usual == FEATURES.usual
    assert read.features.domains.names == FEATURES.domains.names
    for name in ("centre", "scale", "basis", "means", "counts", "columns", "vectors", "owners"):
        one, other = getattr(read.features.domains, name), getattr(FEATURES.domains, name)
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5), name


def test_a_constant_feature_and_a_class_of_no_domain_are_no_damage() -> None:
    """Their scale is infinite, their means are NaN; a few images have many constant features."""
    labels = {name: y for name, (_, y) in KNOWN.items()}
    rows = {name: np.insert(features(0, y), 2, 7.0, axis=1) for name, y in labels.items()}
    known = learn_known(rows, labels, 4, np.random.default_rng(0))
    assert np.isinf(known.scale[2]) and np.isnan(known.means[:, 3]).all()
    learned = replace(REFERENCE, features=replace(FEATURES, domains=known))
    read = Reference.from_json(json.loads(json.dumps(learned.as_json())), as_arrays(known))
    assert read.features is not None
    for name in ("scale", "means"):
        one, other = getattr(read.features.domains, name), getattr(known, name)
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5, nan_ok=True)
    moved = rows["site 0"] + np.eye(6)[2]  # in the constant feature alone
    assert np.isfinite(read.features.domains.project(moved)).all()


@pytest.mark.parametrize(
    "damage",
    [
        lambda card, file: card.pop("sets"),
        lambda card, file: card["accuracy"].update(name="fortune"),
        lambda card, file: card["accuracy"].update(number=math.nan),
        lambda card, file: card["accuracy"].update(number=1e300),
        lambda card, file: card["sets"].update(limit="much"),
        lambda card, file: card["sets"]["tried"]["site 0"].pop("decided"),
        lambda card, file: card["accuracy"]["accuracies"].pop("site 1"),
        lambda card, file: card["accuracy"].update(tried={}),
        lambda card, file: card.update(shares=[1, 2]),
        lambda card, file: card["features"]["drift"].update(thresholds=[1.0]),
        lambda card, file: card["features"]["domains"].pop(),
        lambda card, file: file.pop("basis"),
        lambda card, file: file["basis"].fill(np.nan),
        lambda card, file: file["centre"].fill(np.inf),
        lambda card, file: file["scale"].fill(np.nan),
        lambda card, file: file["scale"].fill(-np.inf),
        lambda card, file: file["means"].fill(np.inf),
        lambda card, file: file.update(columns=file["columns"].astype(int)),
        lambda card, file: file.update(means=file["means"][:, :, :1]),
        lambda card, file: file.update(centre=file["centre"] + np.inf),
        lambda card, file: file.update(scale=file["scale"] - np.inf),
        lambda card, file: file.update(scale=0 * file["scale"]),
        lambda card, file: file.update(owners=file["owners"] + 9),
        lambda card, file: file.update(vectors=np.tile(file["vectors"], (9, 1))),
    ],
)
def test_a_damaged_reference_is_refused(damage: object) -> None:
    card, file = json.loads(json.dumps(REFERENCE.as_json())), arrays()
    damage(card, file)  # type: ignore[operator]
    with pytest.raises(ValueError, match="is damaged"):
        Reference.from_json(card, file)


def test_an_estimator_of_features_needs_them() -> None:
    card = json.loads(json.dumps(REFERENCE.as_json()))
    card["accuracy"]["name"] = "agreement"
    with pytest.raises(ValueError, match=r"agreement needs reference\.safetensors"):
        Reference.from_json(card, None)
    card["accuracy"]["name"] = "threshold"
    assert Reference.from_json(card, None).features is None


@pytest.mark.parametrize("held", [True, False])
def test_a_report_with_labels(held: bool) -> None:
    reference = learn_reference(
        {
            name: (Outcomes(Evidence(one.evidence.log_probabilities), one.right), y)
            for name, (one, y) in KNOWN.items()
        },
        SHARES,
    )
    logs, labels = domain(2 if held else 7)
    names = [CLASSES[k] for k in labels]
    found = report_place(reference, CLASSES, Observed(log_probabilities=logs), names)
    seen = Evidence(logs)
    right = (logs.argmax(1) == labels).mean()
    assert found.measured == pytest.approx(right)
    assert found.expected == reference.accuracy(seen)
    assert found.interval == reference.accuracy.interval(seen)
    low, high = found.interval or (1.0, 0.0)
    assert found.held is bool(low <= right <= high) is held
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares["dog"] == pytest.approx((logs.argmax(1) == 1).mean())
    assert found.drift is None and found.least_like(3) == [] and not found.moved
    said = " ".join(sentences(found, "rows", SHARES))
    told = (
        "as expected" if held else f"{'more' if right > found.expected else 'less'} than expected"
    )
    assert f"by the labels: {100 * right:.0f} %, {told}." in said
    blurred = replace(found, interval=(0.004, 0.996))
    vague = " ".join(sentences(blurred, "rows", SHARES))
    assert "How far off that may be cannot be said." in vague and "nine in" not in vague
    sets = reference.sets(logs, found.expected)
    assert found.unsure == (sets.sum(1) > 1).sum() > 0
    for row, mine, likely in zip(logs, sets, found.likely, strict=True):
        assert {CLASSES.index(name) for name in likely} == set(np.flatnonzero(mine))
        assert likely[0] == CLASSES[row.argmax()]
        assert [row[CLASSES.index(name)] for name in likely] == sorted(row[mine], reverse=True)


def test_a_report_with_features() -> None:
    logs, labels = domain(1)
    near, far = features(9, labels, 0.1), features(9, labels, 2.0)
    far[5] += 1000.0
    columns = list("abcde")
    at_home = report_place(
        REFERENCE, CLASSES, Observed(log_probabilities=logs, features=near, columns=columns)
    )
    away = report_place(
        REFERENCE,
        CLASSES,
        Observed(log_probabilities=logs, features=far, columns=columns, energy=1.0),
        temperature=1.5,
    )
    assert at_home.drift is not None and away.drift is not None
    assert at_home.drift.alarm is False and away.drift.alarm is True
    assert not at_home.moved
    assert set(away.moved) == set(columns) and min(away.moved.values()) > 0.5
    assert away.least_like(1) == [5]
    known = FEATURES.domains
    nearest = known.nearest(known.project(near)).classes
    seen = Evidence(logs, float((nearest == logs.argmax(1)).mean()), at_home.drift.distance, 0.9)
    assert at_home.expected == pytest.approx(REFERENCE.accuracy(seen))
    shares, corrected = estimate_shares(
        at_temperature(logs, 1.5), np.array([SHARES[name] for name in CLASSES])
    )
    assert list(away.corrected_shares.values()) == pytest.approx(shares)
    assert away.corrected == pytest.approx(corrected)
    said = " ".join(sentences(away, "rows", SHARES))
    assert "unlike every known domain; the nearest is site" in said
    assert "Columns outside all known domains" in said
    assert "like those of site" in " ".join(sentences(at_home, "rows", SHARES))
    assert away.drift is not None
    for auroc, told in (
        (0.87, "tells them from it with an AUROC of 0.87 (0.50 is chance)"),
        (0.11, "cannot tell them from it (AUROC 0.11, 0.50 is chance)"),
    ):
        one = replace(away, drift=replace(away.drift, auroc=auroc))
        assert f"A classifier {told}." in " ".join(sentences(one, "rows", SHARES))
    plain = json.loads(json.dumps(away.as_json()))
    assert plain["drift"]["alarm"] is True and len(plain["drift"]["distances"]) == 120


def test_few_inputs_have_no_alarm() -> None:
    logs, labels = domain(1, n=9)
    found = report_place(
        REFERENCE, CLASSES, Observed(log_probabilities=logs, features=features(9, labels, 5.0))
    )
    assert found.drift is not None and found.drift.alarm is None and found.drift.auroc is None
    assert "9 images are too few" in " ".join(sentences(found, "images", SHARES))


def test_the_mean_of_a_few_rows_moves_no_column() -> None:
    columns = list("abcde")
    for seed in range(5):
        for n in (1, 5, 12):
            logs, labels = domain(1, n=n)
            rows = features(seed, labels)
            few = Observed(log_probabilities=logs, features=rows, columns=columns)
            assert not report_place(REFERENCE, CLASSES, few).moved
    rows[:, 2] += 30.0
    assert list(report_place(REFERENCE, CLASSES, few).moved) == ["c"]


def test_a_place_beyond_all_that_was_left_out_is_named() -> None:
    """The domains that were left out were up to 4 standard deviations from the others."""
    assert list(REFERENCE.distances.values()) == [1.0, 2.0, 3.0, 4.0]
    logs, labels = domain(1)
    warning = "do not rely on what is expected here"
    for moved, beyond in ((0.1, False), (1.5, False), (5.0, True)):
        seen = Observed(log_probabilities=logs, features=features(9, labels, moved))
        found = report_place(REFERENCE, CLASSES, seen)
        assert found.drift is not None
        assert found.beyond is beyond is (found.drift.distance > 6.0)
        assert (warning in " ".join(sentences(found, "rows", SHARES))) is beyond
    nine = Observed(log_probabilities=logs[:9], features=features(9, labels, 5.0)[:9])
    assert report_place(REFERENCE, CLASSES, nine).beyond is None


def test_one_input_is_spoken_of_as_one() -> None:
    logs, labels = domain(1, n=1)
    one = Observed(log_probabilities=0.01 * logs, features=features(9, labels))
    said = " ".join(sentences(report_place(REFERENCE, CLASSES, one), "rows", SHARES))
    assert "Expected accuracy on this row: about" in said
    assert "One row is too few" in said
    assert "1 row may have more than one class; a person should look at it." in said
    sure = Observed(log_probabilities=np.log([[0.98, 0.01, 0.01]] * 2))
    likely = replace(report_place(REFERENCE, CLASSES, sure), likely=[("cat",), ("cat",)])
    assert "Every image has one likely class." in " ".join(sentences(likely, "images", SHARES))


def test_moments_of_another_model_are_refused() -> None:
    logs, labels = domain(1)
    seen = Observed(log_probabilities=logs, features=features(9, labels)[:, :4])
    with pytest.raises(ValueError, match=r"has 4 features, but reference\.safetensors .* with 5"):
        report_place(REFERENCE, CLASSES, seen)


def test_an_unknown_class_is_never_right() -> None:
    seen = Observed(log_probabilities=domain(7, n=10)[0])
    reference = learn_reference(
        {
            name: (Outcomes(Evidence(one.evidence.log_probabilities), one.right), y)
            for name, (one, y) in KNOWN.items()
        },
        SHARES,
    )
    assert report_place(reference, CLASSES, seen, ["wolf"] * 10).measured == 0.0
    assert report_place(reference, CLASSES, seen).measured is None
    assert report_place(reference, CLASSES, seen).held is None


def test_nothing_and_too_few_labels_are_refused() -> None:
    logs, _ = domain(7, n=10)
    with pytest.raises(ValueError, match="nothing to monitor"):
        report_place(REFERENCE, CLASSES, Observed(log_probabilities=logs[:0]))
    with pytest.raises(ValueError, match="must be 10 labels, got 3"):
        report_place(REFERENCE, CLASSES, Observed(log_probabilities=logs), ["cat"] * 3)
