"""Fitted: a model that another library fits to all rows at once, as a method that only predicts."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..algorithms.base import UpdateAlgorithm
from ..algorithms.forward import Batch
from ..choices import choose
from ..datasets import DomainDataset
from ..networks import Network, Standardise, WithRanks
from ..networks.trees import Trees, boosted_trees, forest
from ..randomness import domainbed_hash
from .run import Run

# The setting of a run that is fitted to so many rows, drawn at random; without it, to all.
ROWS = "rows"
# Rows of every class that such a run gets at least, if there are so many.
RARE = 100


class Fitted(UpdateAlgorithm):
    """A model that is fitted as a whole: it predicts, and no update changes it.

    A subclass knows how it is fitted. To load a model, this class is enough: the network's name is
    in the run, and its sizes are those of the stored arrays.
    """

    capture = "eager"

    @classmethod
    def fit_network(
        cls, run: Run, inputs: Tensor, labels: Tensor, domains: Tensor, classes: int
    ) -> Network:
        """Return the network that the run's settings give on these rows."""
        raise TypeError(f"{cls.__name__} was loaded from a file and cannot be fitted again")

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Refuse: there is nothing to update."""
        raise TypeError(f"{type(self).__name__} is fitted at once and has no updates")


def training_rows(
    run: Run, dataset: DomainDataset, kept: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the rows of every training domain that a run is fitted to.

    Runs that leave the same domains out draw the same ones, so that methods can be compared. A few
    more keep rare classes in.

    Args:
        dataset: the training domains.
        kept: the rows of every domain that are not held out.
    """
    mine = [kept[name] for name in dataset.names]
    sizes, most = [len(rows) for rows in mine], run.hparams.get(ROWS)
    if most is None or most >= sum(sizes):
        return dict(zip(dataset.names, mine, strict=True))
    seed = domainbed_hash("rows", run.dataset, run.trial, *run.test_domains)
    order = np.random.RandomState(seed).permutation(sum(sizes))
    labels = torch.cat([one.labels[rows] for one, rows in zip(dataset.domains, mine, strict=True)])
    of_rare = [order[labels.numpy()[order] == k][:RARE] for k in range(len(dataset.classes))]
    drawn = np.unique(np.concatenate([order[:most], *of_rare]))
    ends = np.cumsum(sizes)
    parts = np.split(drawn, np.searchsorted(drawn, ends[:-1]))
    return {
        name: rows[torch.from_numpy(part - (end - len(rows)))]
        for name, rows, part, end in zip(dataset.names, mine, parts, ends, strict=True)
    }


def linear_model(columns: int, classes: int, ranks: bool = False) -> Network:
    """Return an untrained linear model on standardised columns, and their ranks, in float64."""
    features: nn.Module = Standardise(columns)
    if ranks:
        columns = 2 * columns
        features = nn.Sequential(WithRanks(columns // 2), Standardise(columns))
    network = Network(features, nn.Linear(columns, classes)).double()
    return network.requires_grad_(False)


def load_fitted(
    name: str | None, tensors: Mapping[str, Tensor], columns: int, classes: int, domains: int
) -> Fitted:
    """Return the fitted model of a file; raise if its tensors are not those of such a model.

    Args:
        name: of the network, one of ``NETWORKS``.
        tensors: as ``prediction_tensors`` has named them.
    """
    build = NETWORKS[choose("network of a fitted model", str(name), NETWORKS)]
    algorithm = Fitted(build(tensors, columns, classes), domains)
    wanted = algorithm.state_dict()
    for key in {**wanted, **tensors}:
        found = tensors.get(key)
        if key not in wanted or found is None:
            raise ValueError(f"{key} is {'missing' if found is None else 'unknown'}")
        if (found.shape, found.dtype) != (wanted[key].shape, wanted[key].dtype):
            raise ValueError(f"{key} has the shape {list(found.shape)} and the type {found.dtype}")
    algorithm.load_state_dict(dict(tensors))
    for part in algorithm.modules():
        if isinstance(part, Trees):
            part.check(columns)
    return algorithm.eval()


def _trees(tensors: Mapping[str, Tensor], classes: int) -> Trees:
    """Return trees of the sizes of these tensors, still without content."""
    names = {"nodes": "feature", "leaves": "values", "trees": "roots"}
    try:
        sizes = {size: len(tensors[f"model.features.{name}"]) for size, name in names.items()}
        width = tensors["model.features.values"].shape[1]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"the arrays of its trees are missing ({error})") from error
    return Trees(**sizes, width=width, groups=classes // max(width, 1))


NETWORKS: dict[str, Callable[[Mapping[str, Tensor], int, int], Network]] = {
    "linear": lambda tensors, columns, classes: linear_model(columns, classes),
    "linear-ranks": lambda tensors, columns, classes: linear_model(columns, classes, ranks=True),
    "forest": lambda tensors, columns, classes: forest(_trees(tensors, classes)),
    "boosted-trees": lambda tensors, columns, classes: boosted_trees(_trees(tensors, classes)),
}
