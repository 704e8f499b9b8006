"""DomainClassifier: shoal's methods with scikit-learn's conventions."""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..algorithms import find
from ..catalogue import StepKind, own_method, title_of
from ..datasets import DomainDataset
from ..datasets.appearance import Appearance
from ..datasets.cache import ImageCache, open_or_build_cache
from ..datasets.encoding import Array
from ..notebook import html_table
from ..results.records import FIT_SETUP, RUN
from ..runs import model as models
from ..runs.machine import Machine
from ..runs.prepare import prepare
from ..runs.run import Protocol, Run
from ..storage import cache_root
from ..sweeps.plan import MethodChoice
from ..training.evaluation import Evaluation
from ..training.loop import Schedule, train
from ..training.step import precision_context
from .inputs import (
    check_size,
    columns_by_position,
    examples_of,
    examples_of_dataset,
    files_of,
    frame_encoding,
    inputs_of,
    labels_of,
    named_columns,
    rows_of,
    unnamed_encoding,
    values_of,
    warn_of_unlike,
    wrong_shape,
)
from .own_network import OWN, OwnNetwork, build_own, trial_inputs
from .predictor import Predictor, device_of
from .progress import training_watcher
from .setup import find_method, hparams_for
from .torch_datasets import is_torch_dataset, read_dataset
from .weights import example_weights, is_balanced, sampling_of

# The attribute in which scikit-learn's ``clone`` looks for metadata requests, and its word for a
# request that stays as it is.
REQUESTS = "_metadata_request"
UNCHANGED = "$UNCHANGED$"


def sklearn_tags() -> Any:
    """Return scikit-learn's tags: a classifier that accepts missing values."""
    from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

    return Tags(
        estimator_type="classifier",
        target_tags=TargetTags(required=True),
        classifier_tags=ClassifierTags(),
        input_tags=InputTags(allow_nan=True),
    )


def sklearn_routing(owner: Any) -> Any:
    """Return the metadata that ``owner`` requests; by default only domains, for ``fit``."""
    from sklearn.utils.metadata_routing import MetadataRequest

    if hasattr(owner, REQUESTS):
        return getattr(owner, REQUESTS)
    request = MetadataRequest(owner=owner)
    request.fit.add_request(param="domains", alias=True)
    # As in scikit-learn's own classifiers: weights are accepted only after they are requested.
    request.fit.add_request(param="sample_weight", alias=None)
    request.score.add_request(param="sample_weight", alias=None)
    return request


def request(owner: Any, method: str, **wanted: bool | str | None) -> Any:
    """Return ``owner``, whose ``method`` now requests this, like scikit-learn's set_…_request."""
    routing = sklearn_routing(owner)
    for param, alias in wanted.items():
        getattr(routing, method).add_request(param=param, alias=alias)
    setattr(owner, REQUESTS, routing)
    return owner


def not_fitted() -> Exception:
    """Return the error for a prediction before ``fit``: scikit-learn's, if it is installed."""
    message = "this DomainClassifier is not fitted yet; call fit first"
    try:
        from sklearn.exceptions import NotFittedError
    except ModuleNotFoundError:
        return ValueError(message)
    return cast(Exception, NotFittedError(message))


class DomainClassifier:
    """A classifier for unseen domains, trained on examples of several known ones.

    Args:
        algorithm: a name from ``shoal list algorithms``.
        hparams: hyperparameters by name; the others have their defaults.
        steps: number of updates.
        network: a name from ``shoal.networks``. None is an MLP for vectors, a network chosen by
            size for images in memory (28 × 28, 32 × 32 or 224 × 224), and EfficientNet-Lite0 with
            ImageNet weights for files. Or an ``nn.Module`` that gives logits, of which a copy is
            trained; or a function of an input's shape and the number of classes that makes one.
        weights: initial weights of a named network: "imagenet", or None for random ones.
        class_weight: how much examples of a class count: None for 1, weights by class, or
            "balanced" if all classes of a domain count the same.
        random_state: seed of weights and batches; or a ``numpy.random.RandomState``, or None for
            numpy's global one, from which the seed is drawn.
        device: "cpu", "cuda", "mps" (Apple's GPUs, untried), or None for an NVIDIA GPU if there is
            one.
        verbose: whether ``fit`` shows its progress: a bar in a notebook, lines on stderr elsewhere.

    After ``fit`` it has ``classes_``, ``domains_``, ``n_features_in_`` (for vectors),
    ``feature_names_in_`` (for data frames), ``seed_`` and ``history_``, the mean terms of the loss
    during training.

    Example:
        >>> X = np.random.RandomState(0).randn(300, 5)
        >>> y = np.where(X[:, 0] > 0, "yes", "no")
        >>> domains = np.repeat(["north", "south", "west"], 100)
        >>> model = shoal.DomainClassifier("fishr", steps=50, random_state=0).fit(X, y, domains)
        >>> model.predict_proba(X[:2]).shape
        (2, 2)
        >>> model.score(X, y) > 0.9
        True
    """

    def __init__(
        self,
        algorithm: str = "fishr",
        *,
        hparams: Mapping[str, Any] | None = None,
        steps: int = 1000,
        network: str | OwnNetwork | None = None,
        weights: str | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.algorithm = algorithm
        self.hparams = hparams
        self.steps = steps
        self.network = network
        self.weights = weights
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        domains: Any = None,
        cache: ImageCache | None = None,
        sample_weight: Any = None,
    ) -> "DomainClassifier":
        """Train on all examples.

        Args:
            X: vectors ``[n, d]``, NaN for a missing value; or a data frame of numbers and
                categories, whose columns are encoded as by ``shoal fit`` and matched by name from
                then on; or images, uint8 or float in 0 … 1 ``[n, C, H, W]``, of a size that
                ``network`` takes; or a ``DomainDataset``, which has its own labels and domains; or
                a map-style ``torch.utils.data.Dataset`` of (input, label) or (input, label,
                domain), each of which is read once.
            y: labels ``[n]``, numbers or strings.
            domains: the domain of each example ``[n]``, numbers or strings; without them, all
                examples are of one domain.
            sample_weight: how much each example counts beside the others of its domain, ``[n]``: in
                a batch, its probability is proportional to its weight. So the loss, and whatever
                else the method computes from a batch, is that of the weighted examples.
            cache: of a data set of files, from ``shoal.datasets.cache.build``; by default the
                images are decoded once, into the cache folder of ``shoal fit``.
        """
        steps = self._checked_steps()
        table = named_columns(X)
        encoding = None if table is None else frame_encoding(table, X)
        if isinstance(X, DomainDataset):
            examples = examples_of_dataset(X)
        else:
            if is_torch_dataset(X):
                X, labels, places = read_dataset(X)
                y, domains = labels if y is None else y, places if domains is None else domains
            inputs = encoding(table, "X") if encoding and table else inputs_of(X)
            examples = examples_of(inputs, y, domains)
        dataset, classes = examples.dataset, examples.classes
        name = own_method(self.algorithm)
        method = find_method(name)
        if len(dataset.domains) < 2:
            self._warn_of_one_domain(name, domains is None and dataset is not X)
        sampling = sampling_of(examples, sample_weight, self.class_weight)
        seed = _seed(self.random_state)
        run = self._run(dataset, method, seed, steps)
        on = device_of(self.device)
        kind: StepKind = "graph" if on.type == "cuda" else "eager"
        network = None
        if self.network is not None and not isinstance(self.network, str):
            some = trial_inputs(dataset, method[0].extra_channels)
            network, kind = build_own(self.network, some, len(classes), seed), "eager"
        machine = Machine(device=on, step=kind, weights=run.protocol.weights)
        cache = cache or open_or_build_cache(dataset, cache_root())
        placed, update = prepare(run, method[0], dataset, cache, machine, sampling, network)
        no_evaluation = Evaluation(
            update.algorithm, {}, lambda x: x, lambda: precision_context("float32", on)
        )
        schedule = Schedule(steps, run.protocol.record_every)
        watcher = training_watcher(title_of(name), self.verbose)
        with _seeded(seed, on) if network is not None else nullcontext():
            records, _ = train(update, no_evaluation, schedule, kind, watcher=watcher)
        self._trained = run, records[-1]
        self.classes_, self.domains_, self.seed_ = classes, examples.domains, seed
        self._set_features(placed.shape, table)
        if len(placed.shape) == 1:
            encoding = encoding or unnamed_encoding(placed.shape[0])
        images: dict[str, Any] = {"kind": "images"}
        if cache is not None:
            seen = Appearance.of(cache[name].evaluation for name in dataset.names)
            images |= {**dataset.reading.as_json(), "appearance": seen.as_json()}
        card = {
            "shape": list(placed.shape),
            "classes": _texts(classes),
            "inputs": encoding.as_card() if encoding else images,
        }
        self.predictor_ = Predictor(models.Model(update.algorithm.eval(), card))
        self.history_ = [{"step": record.step, **record.terms} for record in records]
        return self

    def save(self, folder: str | Path) -> None:
        """Write the model and its card, for ``shoal.load``, ``shoal predict`` and ``shoal eval``.

        Classes are saved as texts. A model of vectors without names gets the columns x0, x1 ….
        A network of your own cannot be built again from a file: use pickle or ``torch.save``.
        """
        if not hasattr(self, "predictor_"):
            raise not_fitted()
        folder = Path(folder)
        for name, what in ((RUN, "a run"), (FIT_SETUP, "a fit")):
            if (folder / name).exists():
                raise ValueError(f"{folder} holds {what}; choose another folder")
        card, (run, record) = self.predictor_.card, self._trained
        if run.protocol.network == OWN:
            raise ValueError(
                "a folder holds weights and names, not the code of a network of your own; keep the "
                "classifier with pickle, joblib or torch.save instead"
            )
        models.save(
            folder,
            self.predictor_.module.algorithm,
            run=run,
            shape=card["shape"],
            classes=card["classes"],
            domains=_texts(self.domains_),
            record=record,
            about={"shoal": __version__, "inputs": card["inputs"]},
        )

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of ``classes_``, ``[n, C]``.

        Args:
            X: as in ``fit``, a data frame's columns in any order; or file names if the model was
                fitted to files. A data set's examples come domain by domain.
        """
        if not hasattr(self, "predictor_"):
            raise not_fitted()
        if is_torch_dataset(X):
            X, _, _ = read_dataset(X)
        if (files := files_of(X)) is not None:
            return self._predict_files(files)
        inputs = self._encode(X)
        expected = self.predictor_.card["shape"]
        if list(inputs.shape[1:]) != expected:
            raise ValueError(wrong_shape(inputs.shape, expected))
        return cast(Array, self.predictor_.probabilities(inputs).numpy())

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return cast(Array, np.log(self.predict_proba(X)))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each example."""
        found = self.predict_proba(X).argmax(1)  # first, because it checks that fit was called
        return cast(Array, self.classes_[found])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy, weighted by ``sample_weight`` ``[n]`` if given.

        A data set, also one of torch, has its own labels, so ``y`` can be omitted.
        """
        if y is None and isinstance(X, DomainDataset):
            y = labels_of(X)
        if is_torch_dataset(X):
            X, labels, _ = read_dataset(X)
            y = labels if y is None else y
        found = self.predict(X)
        right = found == values_of("y", y, len(found))
        return float(np.average(right, weights=example_weights(sample_weight, len(right))))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **params: Any) -> "DomainClassifier":
        """Change arguments; raise on an unknown one."""
        from ..choices import choose

        for name, value in params.items():
            setattr(self, choose("parameter of DomainClassifier", name, _PARAMETERS), value)
        return self

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.get_params().items())
        return f"DomainClassifier({', '.join(given)})"

    def _repr_html_(self) -> str:
        rows: list[tuple[object, ...]] = [(k, repr(v)) for k, v in self.get_params().items()]
        if hasattr(self, "predictor_"):
            rows += [
                ("classes_", ", ".join(map(str, self.classes_))),
                ("domains_", ", ".join(map(str, self.domains_))),
                ("last loss", f"{self.history_[-1]['loss']:.3g}"),
            ]
        fitted = "fitted" if hasattr(self, "predictor_") else "not fitted yet"
        return html_table(rows, title=f"DomainClassifier, {fitted}")

    def __sklearn_tags__(self) -> Any:
        return sklearn_tags()

    def get_metadata_routing(self) -> Any:
        """Return the metadata that scikit-learn can pass on if its routing is enabled."""
        return sklearn_routing(self)

    def set_fit_request(
        self,
        *,
        domains: bool | str | None = UNCHANGED,
        sample_weight: bool | str | None = UNCHANGED,
    ) -> "DomainClassifier":
        """Request domains and weights for ``fit``: True, another name for them, False or None.

        By default, domains are requested; weights are an error until their request is set.
        """
        given = {"domains": domains, "sample_weight": sample_weight}
        wanted = {name: alias for name, alias in given.items() if alias != UNCHANGED}
        return cast(DomainClassifier, request(self, "fit", **wanted))

    def set_score_request(self, *, sample_weight: bool | str | None) -> "DomainClassifier":
        """Request weights for ``score``: True, another name for them, or None (the default)."""
        return cast(DomainClassifier, request(self, "score", sample_weight=sample_weight))

    def _checked_steps(self) -> int:
        """Return the number of updates; raise if it, the method or its settings are no such."""
        steps, hparams = self.steps, self.hparams
        if not isinstance(self.algorithm, str):
            raise TypeError(
                "algorithm must be a name, or FILE.py:Class for a method of your own, got "
                f"{self.algorithm!r}"
            )
        if hparams is not None and not isinstance(hparams, Mapping):
            raise TypeError(f"hparams must be a dict of values by name, got {hparams!r}")
        # A search draws NumPy's whole numbers.
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
            raise ValueError(f"steps must be a whole number, 1 or more, got {steps!r}")
        return int(steps)

    def _warn_of_one_domain(self, algorithm: str, without: bool) -> None:
        """Warn of a single domain; for ERM, only if it is because fit was ``without`` domains."""
        reasons = []
        if without:
            reasons.append("no domains were given, so all examples count as one domain")
        if find_method(algorithm)[0] is not find("erm"):
            reasons.append(
                f"{title_of(algorithm)} compares domains, but all examples are of one domain, so "
                "it cannot beat ERM"
            )
        if reasons:
            warnings.warn(
                f"{'; '.join(reasons)}; pass the domain of every example, fit(X, y, domains), or "
                'in cross-validation params={"domains": domains}',
                stacklevel=3,
            )

    def _set_features(self, shape: Sequence[int], table: Mapping[str, Any] | None) -> None:
        """Set the number of columns and their names; an earlier fit may have had others."""
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                delattr(self, name)
        if len(shape) == 1:
            self.n_features_in_ = shape[0] if table is None else len(table)
        if table is not None:
            self.feature_names_in_ = np.array(list(table), dtype=object)

    def _encode(self, X: Any) -> Tensor:
        """Return the model's inputs; columns are matched by name if both sides have names."""
        table, names = named_columns(X), getattr(self, "feature_names_in_", None)
        if names is None and table is not None:
            warnings.warn(
                "X has feature names, but DomainClassifier was fitted without feature names",
                stacklevel=3,
            )
        if names is None or self.predictor_.encoding is None:
            return inputs_of(rows_of(X))
        if table is None:
            warnings.warn(
                "X does not have valid feature names, but DomainClassifier was fitted with "
                "feature names",
                stacklevel=3,
            )
            table = columns_by_position(rows_of(X), names)
        vectors = self.predictor_.encoding(table, "X")
        warn_of_unlike(self.predictor_.encoding, table)
        return vectors

    def _predict_files(self, files: list[Path]) -> Array:
        if folders := [path for path in files if path.is_dir()]:
            raise ValueError(f"X must name one file for each example, got the folder {folders[0]}")
        return self.predictor_.predict_proba(files)

    def _run(self, dataset: DomainDataset, method: MethodChoice, seed: int, steps: int) -> Run:
        network, weights = self.network, self.weights
        if network is not None and not isinstance(network, str):
            if weights is not None:
                raise ValueError(
                    f"weights={weights!r} are those of a named network, but the network is your "
                    "own and has its weights; leave them out"
                )
            network = OWN
        if network is None and dataset.kind == "vectors":
            network = "standardised-mlp"
        if network is None and dataset.kind == "images":
            check_size(dataset.input_shape)
        if network is None and dataset.kind == "files":
            network, weights = "efficientnet-lite0", "imagenet"
        small = dataset.kind == "vectors" or dataset.input_shape[-1] < 64
        given = {key: str(value) for key, value in (self.hparams or {}).items()}
        protocol = Protocol(
            steps=steps,
            record_every=max(1, steps // 10),
            holdout=0.0,
            network=network,
            weights=weights,
            balanced=is_balanced(self.class_weight),
            frozen_statistics=weights is not None,
        )
        return Run(
            dataset=dataset.name,
            fingerprint="",
            algorithm=own_method(self.algorithm),
            test_domains=(),
            trial=seed,
            draw=0,
            hparams=hparams_for(method, "small" if small else "large", steps, given),
            protocol=protocol,
        )


_PARAMETERS = tuple(inspect.signature(DomainClassifier).parameters)


def _seed(random_state: Any) -> int:
    """Return the seed: a number as it is, or one drawn as scikit-learn draws it."""
    if random_state is None or random_state is np.random:
        return int(np.random.randint(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if not isinstance(random_state, (int, np.integer)) or random_state < 0:
        raise ValueError(
            "random_state must be a whole number, 0 or more, a numpy.random.RandomState or None, "
            f"got {random_state!r}"
        )
    return int(random_state)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers, such as those of a dropout, and restore them afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _texts(values: Array) -> list[str]:
    """Return classes or domains as texts; 1 and 1.0 are one, as in a table."""
    whole = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values.tolist()]
    return list(map(str, whole))
