"""DomainClassifier as scikit-learn's estimator: its checks, weights, seeds, progress, pickles."""

import copy
import io
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import check_estimator

import shoal
from shoal.datasets import Domain, DomainDataset
from shoal.fitting.inputs import examples_of
from shoal.fitting.weights import class_weights, sampling_of
from shoal.training.batches import InMemory
from shoal.training.placement import DataRequest, place
from tests.fitting.test_classifier import arrays, make

# Checks that are not asked of DomainClassifier, and why.
EXEMPT: dict[str, str] = {}
if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 7):
    EXEMPT["check_sample_weight_equivalence_on_sparse_data"] = (
        "sparse inputs are refused; scikit-learn 1.6 makes this check of every estimator"
    )
# Checks that scikit-learn itself skips here, because SCIPY_ARRAY_API is not set.
SKIPPED = {"check_array_api_input"}


@pytest.mark.parametrize("algorithm", ["erm", "fishr"])
def test_the_checks_of_scikit_learn(algorithm: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(algorithm=algorithm, hparams={"lr": 0.01, "batch_size": 32})
        found = check_estimator(model, on_skip=None, on_fail=None, expected_failed_checks=EXEMPT)
    status = {one["check_name"]: one["status"] for one in found}
    reasons = {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"}
    assert not reasons
    assert {name for name, one in status.items() if one == "xfail"} == set(EXEMPT)
    assert {name for name, one in status.items() if one == "skipped"} <= SKIPPED
    assert status["check_sample_weight_equivalence_on_dense_data"] == "passed"
    assert len(found) > 50


# Weights


METHODS = ("erm", "fishr", "groupdro", "coral", "mixup", "fish")


@pytest.mark.parametrize("class_weight", [None, "balanced", {"yes": 3.0, "no": 1.0}])
@pytest.mark.parametrize("algorithm", METHODS)
def test_a_weight_of_k_is_k_rows(algorithm: str, class_weight: Any) -> None:
    """For every method, because the batches are the same, whatever is computed from them."""
    X, y, domains = arrays()
    X[::5, 2] = np.nan
    times = np.random.RandomState(1).randint(0, 4, len(X))
    given = {"algorithm": algorithm, "steps": 4, "class_weight": class_weight}
    rows = np.random.RandomState(2).permutation(np.repeat(np.arange(len(X)), times))
    repeated = make(**given).fit(X[rows], y[rows], domains[rows])
    weighted = make(**given).fit(X, y, domains, sample_weight=times)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-6)
    plain = make(**given).fit(X, y, domains)
    assert not np.allclose(plain.predict_proba(X), repeated.predict_proba(X), rtol=1e-4)


def test_the_order_of_rows_plays_no_part() -> None:
    X, y, domains = arrays()
    order = np.random.RandomState(0).permutation(len(X))
    first = make(steps=3).fit(X, y, domains).predict_proba(X)
    again = make(steps=3).fit(X[order], y[order], domains[order]).predict_proba(X)
    np.testing.assert_allclose(first, again, rtol=1e-6)


def batch_of(sample_weight: Any, class_weight: Any, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first batch of a domain with inputs 0 … 7 and labels 0, 0, 0, 0, 0, 1, 1, 2."""
    inputs = torch.arange(8.0)[:, None]
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 2])
    examples = examples_of(inputs, labels, None)
    wanted = DataRequest(
        test_domains=(),
        trial=0,
        size=n,
        balanced=class_weight == "balanced",
        sampling=sampling_of(examples, sample_weight, class_weight),
    )
    split = dict.fromkeys(["all"], shoal.datasets.split(8, 0, 0, 0.0))
    (source,) = place(examples.dataset, split, None, wanted, torch.device("cpu")).sources
    assert isinstance(source, InMemory)
    rows, found = source()
    return rows[:, 0], found


@pytest.mark.parametrize("sample_weight", [None, [1, 2, 3, 4, 5, 0.5, 1.5, 0.25]])
@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 0.5, 1: 4, 2: 0}, {2: 9}])
def test_shares_of_a_batch_are_scikit_learns_weights(sample_weight: Any, class_weight: Any) -> None:
    y = np.array([0, 0, 0, 0, 0, 1, 1, 2])
    weights = np.ones(8) if sample_weight is None else np.array(sample_weight, dtype=float)
    if class_weight == "balanced":  # the weighted examples of each class are alike
        expected = weights / np.bincount(y, weights)[y]
    else:
        expected = weights * compute_sample_weight({0: 1, 1: 1, 2: 1, **(class_weight or {})}, y)
    expected /= expected.sum()
    n = 40_000
    rows, labels = batch_of(sample_weight, class_weight, n)
    found = np.bincount(rows.long(), minlength=8) / n
    np.testing.assert_array_less(
        abs(found - expected), 5 * np.sqrt(expected * (1 - expected) / n) + 1e-12
    )
    assert (y[rows.long()] == labels.numpy()).all()


def test_risk_and_variance_are_those_of_the_weighted_examples() -> None:
    """Fishr's penalty, like the risk, is that of the distribution which the weights make."""
    weights = np.array([1, 2, 3, 4, 5, 0.5, 1.5, 0.25])
    n = 60_000
    rows, labels = batch_of(weights, {1: 3}, n)
    head = torch.nn.Linear(1, 3).double()
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    head.bias.data.zero_()
    features = (rows / 8).double()[:, None]
    logits = head(features)
    variance = shoal.head_variance(features, logits, labels, torch.zeros(n, dtype=torch.long))[0]
    risk = torch.nn.functional.cross_entropy(logits, labels)

    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    shares = torch.tensor(weights) * torch.tensor([1.0, 3, 1], dtype=torch.float64)[y]
    shares /= shares.sum()
    losses, gradients = [], []
    for k in range(8):
        one = torch.nn.functional.cross_entropy(head(torch.tensor([k / 8]).double()), y[k])
        found = torch.autograd.grad(one, list(head.parameters()), retain_graph=True)
        losses.append(one)
        gradients.append(torch.cat([part.flatten() for part in found]))
    rows_of_gradients = torch.stack(gradients)
    mean = shares @ rows_of_gradients
    expected = shares @ (rows_of_gradients - mean).square()
    assert risk.item() == pytest.approx((shares @ torch.stack(losses)).item(), rel=0.02)
    torch.testing.assert_close(variance, expected, rtol=0.05, atol=1e-5)
    unweighted = rows_of_gradients.var(0, correction=0)
    assert not torch.allclose(variance, unweighted, rtol=0.2)


@pytest.mark.parametrize(
    ("class_weight", "share"), [(None, 0.1), ("balanced", 0.5), ({"rare": 3, "usual": 1}, 0.25)]
)
def test_class_weights_move_the_probabilities(class_weight: Any, share: float) -> None:
    """Of inputs that tell nothing, a classifier learns the shares of the classes."""
    X = np.random.RandomState(0).randn(600, 2)
    y = np.where(np.arange(600) % 10 == 0, "rare", "usual")
    hparams = {"lr": 0.05, "batch_size": 64}
    model = make(steps=60, network="linear", class_weight=class_weight, hparams=hparams)
    found = model.fit(X, y, np.arange(600) % 3).predict_proba(X)
    assert abs(found[:, 0].mean() - share) < 0.06


def test_columns_are_standardised_by_the_weights_of_examples_alone() -> None:
    X, y, domains = arrays()
    weights = np.random.RandomState(1).rand(len(X))
    given = {"steps": 1, "class_weight": {"yes": 1000, "no": 0.001}}
    model = make(**given).fit(X, y, domains, sample_weight=weights)
    layer = model.predictor_.module.algorithm.model.features[0]
    expected = np.average(X, 0, weights)
    np.testing.assert_allclose(layer.mean, expected, rtol=1e-5)
    np.testing.assert_allclose(
        layer.std, np.sqrt(np.average((X - expected) ** 2, 0, weights)), rtol=1e-5
    )


def test_weights_of_a_data_set_come_domain_by_domain() -> None:
    X, y, domains = arrays()
    order = np.argsort(domains, kind="stable")
    weights = np.random.RandomState(3).rand(len(X))
    labels = torch.from_numpy((y == "yes").astype(np.int64))
    vectors = torch.from_numpy(X.astype(np.float32))
    parts = tuple(
        Domain(name, labels[domains == name], vectors[domains == name])
        for name in ("north", "south", "west")
    )
    data = DomainDataset("arrays", ("no", "yes"), parts)
    expected = make(steps=3).fit(X, y, domains, sample_weight=weights).predict_proba(X)
    model = make(steps=3).fit(data, sample_weight=weights[order])
    assert (model.predict_proba(X) == expected).all()
    right = model.predict(data) == y[order]
    assert model.score(data, sample_weight=weights[order]) == pytest.approx(
        np.average(right, weights=weights[order])
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sample_weight": np.ones(5)}, r"sample_weight must be \[n\] with n = 90, got \[5\]"),
        ({"sample_weight": np.full(90, -1.0)}, "sample_weight must be finite .* got -1.0"),
        ({"sample_weight": np.full(90, np.nan)}, "sample_weight must be finite .* got nan"),
        ({"sample_weight": np.zeros(90)}, "all of them are zero"),
        (
            {"sample_weight": np.arange(90) % 3 != 1},
            "all weights of the domain 'south' are zero.* leave out its examples",
        ),
        ({"sample_weight": ["heavy"] * 90}, "sample_weight must be numbers .*'heavy'"),
        ({"class_weight": "even"}, "class_weight must be None, 'balanced' or a dict"),
        ({"class_weight": {"yes": -1}}, "class_weight must be finite numbers, 0 or more, got -1"),
        ({"class_weight": {"yse": 2}}, r"names 'yse', but the classes of y are \['no', 'yes'\]"),
    ],
)
def test_weights_that_are_refused(given: dict[str, Any], why: str) -> None:
    X, y, domains = arrays()
    weights = given.pop("sample_weight", None)
    with pytest.raises(ValueError, match=why):
        make(**given).fit(X, y, domains, sample_weight=weights)


def test_a_fold_may_lack_a_class_that_has_a_weight() -> None:
    found = class_weights({"a": 2, "b": 3, "absent": 4}, np.array(["a", "b"]))
    assert found.tolist() == [2, 3]


@pytest.mark.parametrize("search", [False, True])
def test_weights_and_domains_are_routed(search: bool) -> None:
    X, y, domains = arrays()
    weights = np.random.RandomState(1).rand(len(X))
    # Under another name, because Pipeline.score of scikit-learn 1.6 and 1.7 routes no weights.
    params = {"domains": domains, "groups": domains, "importance": weights}
    with config_context(enable_metadata_routing=True):
        model = make(steps=2).set_fit_request(domains=True, sample_weight="importance")
        pipeline = make_pipeline(StandardScaler(), model)
        if search:
            grid = {"domainclassifier__algorithm": ["erm", "coral"]}
            found = GridSearchCV(pipeline, grid, cv=LeaveOneGroupOut(), error_score="raise")
            best = found.fit(X, y, **params).best_estimator_
            kept = np.ones(len(X), dtype=bool)
        else:
            made = cross_validate(
                pipeline,
                X,
                y,
                cv=LeaveOneGroupOut(),
                params=params,
                error_score="raise",
                return_estimator=True,
            )
            best, kept = made["estimator"][0], domains != "north"
    rows = StandardScaler().fit(X[kept]).transform(X)
    alone = clone(best[-1]).fit(rows[kept], y[kept], domains[kept], sample_weight=weights[kept])
    assert (best.predict_proba(X) == alone.predict_proba(rows)).all()
    assert best[-1].domains_.tolist() == np.unique(domains[kept]).tolist()


def test_requests_of_other_metadata_are_refused() -> None:
    with pytest.raises(TypeError, match="sample_weights"):
        make().set_fit_request(sample_weights=True)  # type: ignore[call-arg]


# Seeds, progress and pickles


def test_random_states() -> None:
    X, y, domains = arrays()

    def fitted(state: Any) -> shoal.DomainClassifier:
        return make(steps=2, random_state=state).fit(X, y, domains)

    assert fitted(3).seed_ == 3
    assert fitted(np.int64(3)).seed_ == 3
    state = np.random.RandomState(7)
    first, second = fitted(state), fitted(state)
    assert first.seed_ != second.seed_
    assert (first.predict_proba(X) != second.predict_proba(X)).any()
    assert first.seed_ == fitted(np.random.RandomState(7)).seed_
    again = fitted(first.seed_)
    assert (again.predict_proba(X) == first.predict_proba(X)).all()
    # None is numpy's global state, as in scikit-learn; the seed is recorded.
    fresh, other = fitted(None), fitted(None)
    assert fresh.seed_ != other.seed_
    assert (fitted(fresh.seed_).predict_proba(X) == fresh.predict_proba(X)).all()
    before = np.random.get_state()
    np.random.seed(5)
    one = fitted(None).seed_
    np.random.seed(5)
    assert fitted(None).seed_ == one
    np.random.set_state(before)


def test_progress_is_written_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    X, y, domains = arrays()
    make(steps=20).fit(X, y, domains)
    assert capsys.readouterr() == ("", "")
    model = make(steps=20, algorithm="fishr", verbose=1).fit(X, y, domains)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == len(model.history_) == 11
    last = model.history_[-1]
    assert lines[-1].startswith(f"step 20: loss {last['loss']:.4g}, risk {last['risk']:.4g}, ")


@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_pickles_of_all_protocols(kind: str) -> None:
    X, y, domains = arrays(24)
    if kind == "images":
        X = np.random.RandomState(0).randint(0, 255, (24, 1, 28, 28)).astype(np.uint8)
    hparams = {"batch_size": 4}
    model = make(algorithm="fishr", steps=2, hparams=hparams).fit(X, y, domains)
    expected = model.predict_proba(X)
    kept = [pickle.loads(pickle.dumps(model, protocol=number)) for number in range(6)]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for one in (*kept, torch.load(file, weights_only=False), copy.deepcopy(model)):
        assert (one.predict_proba(X) == expected).all()
        assert one.history_ == model.history_
