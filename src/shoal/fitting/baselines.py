"""Baselines: scikit-learn's classifiers for tables, fitted as runs and kept as plain arrays."""

import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..catalogue import BASELINES
from ..networks import Network, measure_inputs
from ..networks.small import in_parts
from ..networks.trees import TreeNodes, Trees, boosted_trees, forest
from ..randomness import domainbed_hash
from ..runs.fitted import ROWS, Fitted, linear_model
from ..runs.run import Run
from .paired import weights_of

Array = np.ndarray[Any, Any]
# The setting of a baseline whose training domains weigh as they do in scores, and not by their
# numbers of rows.
BALANCED_DOMAINS = "balanced_domains"
# The logit of a class that the training rows do not have.
ABSENT = -1e4
# Boosted trees on fewer numbers than this get one thread. Their threads wait for each other many
# times a second: on a machine with other work, two took up to ninety times as long as one.
SMALL = 5_000_000
# Rows on which a network is compared with its classifier, and the largest accepted difference.
COMPARED, TOLERANCE = 64, 1e-5


class Baseline(Fitted):
    """One of scikit-learn's classifiers; its runs need no updates.

    Args:
        network: its name in a run, as ``network_name`` completes it.
        grid: arguments of the classifier for each draw; draw 0 is the defaults.
        random: whether its seed matters, so that another trial is another model.
        most_numbers: of a larger table, with so many numbers in its rows, it is fitted to as many
            rows as that allows, drawn at random. More would take minutes on one core, and hardly
            help.
    """

    network: ClassVar[str]
    grid: ClassVar[tuple[Mapping[str, Any], ...]]
    random: ClassVar[bool] = False
    most_numbers: ClassVar[int]

    @classmethod
    def sampling(cls, rows: int, columns: int) -> dict[str, Any]:
        """Return the setting of a run that is fitted to some of these rows; nothing if to all.

        It is a part of the run's identity, which a smaller table leaves as it is.
        """
        most = max(1, cls.most_numbers // columns)
        return {ROWS: most} if rows > most else {}

    @classmethod
    def network_name(cls, settings: Mapping[str, Any]) -> str:
        """Return the name of the network that these settings give."""
        return f"{cls.network}-ranks" if settings.get("ranks") else cls.network

    @classmethod
    def fit_network(
        cls, run: Run, inputs: Tensor, labels: Tensor, domains: Tensor, classes: int
    ) -> Network:
        """Return the network with the arrays of the fitted classifier."""
        if len(labels.unique()) < 2:
            raise ValueError(
                "all rows of the training domains are of one class; there is nothing to learn"
            )
        seed = domainbed_hash("method", run.dataset, run.trial, *run.test_domains)
        settings = {name: value for name, value in run.hparams.items() if name != ROWS}
        alike, balanced = (settings.pop(name, False) for name in (BALANCED_DOMAINS, "class_weight"))
        weights = None
        if alike or balanced:
            weights = row_weights(labels.numpy(), domains.numpy(), bool(alike), bool(balanced))
        return cls.fit_rows(settings, inputs, labels, classes, seed, weights)

    @classmethod
    @abstractmethod
    def fit_rows(
        cls,
        settings: Mapping[str, Any],
        inputs: Tensor,
        labels: Tensor,
        classes: int,
        seed: int,
        weights: Array | None = None,
    ) -> Network:
        """Return the network fitted to rows ``[n, d]`` with labels and weights ``[n]``."""


class LogisticRegression(Baseline):
    """Multinomial logistic regression with an L2 penalty, on standardised columns.

    On a table every column also enters by the ranks of its values: a line through the values alone
    is at the mercy of outliers and of scales that drift. One line cannot suit all domains, so the
    largest one must not decide: domains weigh as they do in scores. Trees suit each domain anyway.
    """

    network = "linear"
    most_numbers = 10_000_000
    # C = 1 is too weak: columns that enter twice are held half as much, and features are many.
    grid = tuple({"C": C, "ranks": True, BALANCED_DOMAINS: True} for C in (0.3, 0.03, 0.003))

    @classmethod
    def fit_rows(
        cls,
        settings: Mapping[str, Any],
        inputs: Tensor,
        labels: Tensor,
        classes: int,
        seed: int,
        weights: Array | None = None,
    ) -> Network:
        from sklearn import linear_model as sklearn_linear
        from threadpoolctl import threadpool_limits

        settings = dict(settings)
        network = linear_model(inputs.shape[1], classes, settings.pop("ranks", False))
        features, head = network.features, network.classifier
        measure_inputs(features, inputs)
        # At scikit-learn's own tolerance, the result depends on the order of the rows.
        model = sklearn_linear.LogisticRegression(
            max_iter=1000, tol=1e-5, random_state=seed, **settings
        )
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fit that could be a little closer is good enough
            model.fit(in_parts(features, inputs).numpy(), labels.numpy(), weights)
        weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
        if len(weight) == 1:  # of two classes it has the score of the second
            weight, bias = (torch.cat([torch.zeros_like(one), one]) for one in (weight, bias))
        known = torch.from_numpy(model.classes_)
        head.weight.zero_()  # type: ignore[operator]
        head.bias.fill_(ABSENT)  # type: ignore[operator]
        head.weight[known], head.bias[known] = weight, bias  # type: ignore[operator]
        check_same(
            network,
            inputs,
            lambda rows: model.predict_proba(features(torch.from_numpy(rows)).numpy()),
            model.classes_,
        )
        return network


class Forest(Baseline):
    """A forest of scikit-learn's: the mean of its trees' shares of the classes."""

    network = "forest"
    random = True
    most_numbers = 2_500_000
    grid = (
        {"n_estimators": 200, "min_samples_leaf": 1},
        {"n_estimators": 200, "min_samples_leaf": 5},
    )
    ensemble: ClassVar[str]

    @classmethod
    def fit_rows(
        cls,
        settings: Mapping[str, Any],
        inputs: Tensor,
        labels: Tensor,
        classes: int,
        seed: int,
        weights: Array | None = None,
    ) -> Network:
        from sklearn import ensemble

        model = getattr(ensemble, cls.ensemble)(n_jobs=-1, random_state=seed, **settings)
        model.fit(inputs.numpy(), labels.numpy(), weights)
        trees = [one.tree_ for one in model.estimators_]
        found = []
        for tree in trees:
            shares = np.zeros((tree.node_count, classes))
            shares[:, model.classes_] = tree.value[:, 0]
            shares /= len(trees) * shares.sum(1, keepdims=True)
            found.append(
                TreeNodes(
                    feature=np.where(tree.children_left < 0, -1, tree.feature),
                    threshold=tree.threshold,
                    left=tree.children_left,
                    right=tree.children_right,
                    missing_left=tree.missing_go_to_left,
                    value=shares,
                )
            )
        network = forest(Trees.of(found, [0] * len(found), np.zeros(classes)))
        model.set_params(n_jobs=None)
        check_same(network, inputs, model.predict_proba, model.classes_)
        return network


class RandomForest(Forest):
    """Trees on bootstrap samples, with the best of a few random columns at each node."""

    ensemble = "RandomForestClassifier"


class ExtraTrees(Forest):
    """Trees on all rows, with random thresholds in a few random columns at each node."""

    ensemble = "ExtraTreesClassifier"


class GradientBoosting(Baseline):
    """Boosted trees on binned columns, of scikit-learn's histogram version."""

    network = "boosted-trees"
    most_numbers = 20_000_000
    grid = (
        {"learning_rate": 0.1, "max_iter": 100, "max_leaf_nodes": 31},
        {"learning_rate": 0.05, "max_iter": 200, "max_leaf_nodes": 15},
        {"learning_rate": 0.05, "max_iter": 100, "max_leaf_nodes": 7},
    )

    @classmethod
    def fit_rows(
        cls,
        settings: Mapping[str, Any],
        inputs: Tensor,
        labels: Tensor,
        classes: int,
        seed: int,
        weights: Array | None = None,
    ) -> Network:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        model = HistGradientBoostingClassifier(early_stopping=False, random_state=seed, **settings)
        with threadpool_limits(1 if inputs.numel() < SMALL else idle_cores()):
            model.fit(inputs.numpy(), labels.numpy(), weights)
        known = model.classes_.tolist()
        # Of two classes it has the score of the second; that of the first is 0.
        known = known[1:] if len(known) == 2 else known
        base = np.full(classes, ABSENT)
        base[model.classes_] = 0.0
        base[known] = model._baseline_prediction.reshape(-1)
        found = []
        for nodes in (tree.nodes for trees in model._predictors for tree in trees):
            found.append(
                TreeNodes(
                    feature=np.where(nodes["is_leaf"], -1, nodes["feature_idx"].astype(np.int64)),
                    threshold=nodes["num_threshold"],
                    left=nodes["left"].astype(np.int64),
                    right=nodes["right"].astype(np.int64),
                    missing_left=nodes["missing_go_to_left"],
                    value=nodes["value"][:, None],
                )
            )
        network = boosted_trees(Trees.of(found, known * len(model._predictors), base))
        check_same(network, inputs, model.predict_proba, model.classes_)
        return network


def row_weights(labels: Array, domains: Array, alike: bool, balanced: bool) -> Array:
    """Return the weight of each row, ``[n]``; their mean is 1, so that a ridge means the same.

    Args:
        alike: whether domains weigh as in scores, n / (n + 30) with n rows, and not n.
        balanced: whether the classes of a domain weigh alike.
    """
    sizes = np.bincount(domains)
    shares = 1 / sizes[domains]
    if balanced:
        counts = np.zeros((len(sizes), labels.max() + 1))
        np.add.at(counts, (domains, labels), 1)
        shares = 1 / (counts[domains, labels] * (counts > 0).sum(1)[domains])
    weights = (weights_of(sizes) if alike else sizes)[domains] * shares
    return np.asarray(weights / weights.mean())


def idle_cores() -> int:
    """Return the number of cores that have had no other work in the last minute; 1 at least."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores is None or not hasattr(os, "getloadavg"):  # as on Windows
        return 1
    others = max(0.0, os.getloadavg()[0] - 1)  # without this process
    return max(1, int(cores - others))


def check_same(
    network: Network, inputs: Tensor, predict_proba: Callable[[Array], Array], known: Array
) -> None:
    """Raise if the network's probabilities differ from scikit-learn's on some of the rows.

    Some of the arrays are no public part of scikit-learn, and another version may have others.
    """
    rows = inputs[:: max(1, len(inputs) // COMPARED)][:COMPARED]
    found = network(rows).softmax(-1).numpy()[:, known]
    gap = np.abs(found - predict_proba(rows.numpy())).max()
    if not gap <= TOLERANCE:
        import sklearn

        raise ValueError(
            f"scikit-learn {sklearn.__version__} keeps this model in a way that this version of "
            f"shoal does not know: probabilities differ by {gap:.2g}, expected {TOLERANCE:g} or "
            "less; install another version of either"
        )


CLASSES: dict[str, type[Baseline]] = dict(
    zip(BASELINES, (LogisticRegression, RandomForest, ExtraTrees, GradientBoosting), strict=True)
)


def import_sklearn() -> None:
    """Import what the baselines need, which takes seconds, so that no run is charged for it."""
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401
    import threadpoolctl  # noqa: F401


def sklearn_missing() -> bool:
    """Return whether scikit-learn is not installed."""
    from importlib.util import find_spec

    return find_spec("sklearn") is None
