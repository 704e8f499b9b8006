"""DomainClassifier: shoal's methods with scikit-learn's conventions."""

import inspect
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..algorithms import VARIANTS, find
from ..datasets import Domain, DomainDataset
from ..datasets.cache import ImageCache
from ..protocol.machine import Machine
from ..protocol.model import Model
from ..protocol.plan import Method
from ..protocol.preparing import prepare
from ..protocol.run import Protocol, Run
from ..training.evaluation import Evaluation
from ..training.loop import Schedule, train
from ..training.step import Kind, precision_context
from .predictor import Predictor
from .setup import hparams_for

Array = np.ndarray[Any, Any]


class DomainClassifier:
    """A classifier for domains that it never saw, trained on examples of several known ones.

    Args:
        algorithm: a name of ``shoal list algorithms``.
        hparams: hyperparameters by name; what is left out has its default.
        steps: updates.
        network: a name of ``shoal.networks``; None chooses: an MLP for vectors, by size for images.
        weights: what the network begins with: "imagenet", or None to draw them.
        random_state: what weights and batches are drawn from.
        device: "cpu", "cuda", or None for a GPU where there is one.

    After ``fit`` it has ``classes_``, ``domains_``, ``n_features_in_`` (of vectors) and
    ``history_``, the mean terms of the loss along the way.
    """

    def __init__(
        self,
        algorithm: str = "fishr",
        *,
        hparams: Mapping[str, Any] | None = None,
        steps: int = 1000,
        network: str | None = None,
        weights: str | None = None,
        random_state: int = 0,
        device: str | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.hparams = hparams
        self.steps = steps
        self.network = network
        self.weights = weights
        self.random_state = random_state
        self.device = device

    def fit(
        self, X: Any, y: Any = None, domains: Any = None, cache: ImageCache | None = None
    ) -> "DomainClassifier":
        """Train on all examples.

        Args:
            X: vectors ``[n, d]``, NaN where a value is missing; or images, uint8 ``[n, C, H, W]``;
                or a ``DomainDataset``, which has labels and domains of its own.
            y: labels ``[n]``, numbers or texts.
            domains: where each example comes from ``[n]``, numbers or texts.
            cache: of a data set of files, as ``shoal.datasets.cache.build`` makes it.
        """
        if isinstance(X, DomainDataset):
            dataset, classes, named = X, np.array(X.classes), np.array(X.names)
        else:
            dataset, classes, named = _dataset(X, y, domains)
        method = self._method()
        run = self._run(dataset, method)
        on = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind: Kind = "graph" if on.type == "cuda" else "eager"
        machine = Machine(on, kind, weights=self.weights)
        placed, update = prepare(run, method[0], dataset, cache, machine)
        nothing = Evaluation(
            update.algorithm, {}, lambda x: x, lambda: precision_context("float32", on)
        )
        schedule = Schedule(self.steps, run.protocol.record_every)
        records, _ = train(update, nothing, schedule, kind)
        card = {"shape": list(placed.shape), "classes": list(map(str, classes))}
        self.predictor_ = Predictor(Model(update.algorithm.eval(), card))
        self.classes_, self.domains_ = classes, named
        if len(placed.shape) == 1:
            self.n_features_in_ = placed.shape[0]
        self.history_ = [{"step": one["step"], **one["terms"]} for one in records]
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of ``classes_``, ``[n, C]``."""
        if not hasattr(self, "predictor_"):
            raise _not_fitted()
        inputs = _inputs(X)
        expected = self.predictor_.card["shape"]
        if list(inputs.shape[1:]) != expected:
            raise ValueError(
                f"X must be [n, {', '.join(map(str, expected))}] as in fit, got "
                f"{list(inputs.shape)}"
            )
        return cast(Array, self.predictor_.probabilities(inputs).numpy())

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each example."""
        found = self.predict_proba(X).argmax(1)  # first, because it says what is wrong
        return cast(Array, self.classes_[found])

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments that this was made with."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **params: Any) -> "DomainClassifier":
        """Change arguments; an unknown one is refused."""
        from ..checks import choose

        for name, value in params.items():
            setattr(self, choose("parameter of DomainClassifier", name, _PARAMETERS), value)
        return self

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.get_params().items())
        return f"DomainClassifier({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(allow_nan=True),
        )

    def get_metadata_routing(self) -> Any:
        """Return what scikit-learn may pass on, where its routing is enabled: domains, to fit."""
        from sklearn.utils.metadata_routing import MetadataRequest

        request = MetadataRequest(owner=self)
        request.fit.add_request(param="domains", alias=True)
        return request

    def _method(self) -> Method:
        if self.algorithm in VARIANTS:
            variant = VARIANTS[self.algorithm]
            return find(variant.algorithm), dict(variant.settings)
        return find(self.algorithm), {}

    def _run(self, dataset: DomainDataset, method: Method) -> Run:
        images = dataset.domains[0].images
        vectors = isinstance(images, Tensor) and images.ndim == 2
        network = self.network or ("standardised-mlp" if vectors else None)
        small = vectors or (isinstance(images, Tensor) and images.shape[-1] < 64)
        given = {key: str(value) for key, value in (self.hparams or {}).items()}
        protocol = Protocol(
            self.steps,
            max(1, self.steps // 10),
            holdout=0.0,
            network=network,
            weights=self.weights,
            frozen_statistics=self.weights is not None,
        )
        return Run(
            dataset.name,
            "",
            self.algorithm,
            (),
            self.random_state,
            0,
            hparams_for(method, "small" if small else "large", self.steps, given),
            protocol,
        )


_PARAMETERS = tuple(inspect.signature(DomainClassifier).parameters)


def _dataset(X: Any, y: Any, domains: Any) -> tuple[DomainDataset, Array, Array]:
    """Return arrays as a data set, and its classes and domains as they came."""
    if y is None or domains is None:
        lacking = "y" if y is None else "domains"
        raise ValueError(
            f"fit needs {lacking}: fit(X, y, domains), with the domain of every example; in "
            'cross-validation params={"domains": domains}'
        )
    inputs = _inputs(X)
    classes, labels = np.unique(np.asarray(y), return_inverse=True)
    names, places = np.unique(np.asarray(domains), return_inverse=True)
    for what, given in (("y", labels), ("domains", places)):
        if given.shape != (len(inputs),):
            raise ValueError(f"{what} must be [n] with n = {len(inputs)}, got {list(given.shape)}")
    if len(classes) < 2:
        raise ValueError(f"y must have two classes or more, got {classes.tolist()}")
    numbers = torch.from_numpy(labels.astype(np.int64))
    found = []
    for place, name in enumerate(names):
        chosen = torch.from_numpy(np.flatnonzero(places == place))
        found.append(Domain(str(name), numbers[chosen], inputs[chosen]))
    return DomainDataset("arrays", tuple(map(str, classes)), tuple(found)), classes, names


def _inputs(X: Any) -> Tensor:
    array = X.numpy() if isinstance(X, Tensor) else np.asarray(X)
    if array.ndim == 4 and array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    if array.ndim != 2:
        raise ValueError(
            f"X must be vectors [n, d] or images, uint8 [n, C, H, W], got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    try:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"X must hold numbers ({error}); encode texts first, as with a OneHotEncoder in a "
            "pipeline"
        ) from error


def _not_fitted() -> Exception:
    told = "this DomainClassifier is not fitted yet; call fit first"
    try:
        from sklearn.exceptions import NotFittedError
    except ModuleNotFoundError:
        return ValueError(told)
    return cast(Exception, NotFittedError(told))
