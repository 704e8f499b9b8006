"""A trained model on data: by class names, so that another data set can have them in any order."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..datasets import DomainDataset
from ..datasets.cache import ImageCache
from ..randomness import stream
from ..training.batches import Normalise, scaled
from ..training.evaluation import Evaluation, Part, Place
from ..training.step import precision_context
from .model import Model, lies_last


def measure(
    model: Model, dataset: DomainDataset, cache: ImageCache | None, domains: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return images, accuracy and calibration error of each domain, over all its images."""
    evaluate = evaluation_of(model, dataset, cache, domains)
    return {
        name: {
            "images": len(outcome.labels),
            "accuracy": outcome.accuracy,
            "calibration_error": outcome.calibration_error,
        }
        for (name, _), outcome in evaluate().items()
    }


def evaluation_of(
    model: Model,
    dataset: DomainDataset,
    cache: ImageCache | None,
    domains: Sequence[str],
    images: int | None = None,
) -> Evaluation:
    """Return the evaluation of a model on these domains, of each at most so many ``images``."""
    numbers = _numbers(model, dataset)
    parts: dict[Place, Part] = {}
    for name in domains:
        domain = dataset[name]
        # Mixed, because files lie class by class, and some methods look at images together.
        order = torch.randperm(len(domain), generator=stream("evaluation", name))[:images]
        pixels = _pixels(model, dataset, cache, name)
        parts[name, "all"] = Part(pixels, order, numbers[domain.labels[order]])
    device = model.algorithm.device
    preprocessing = getattr(model.algorithm.model, "preprocessing", None)
    normalise = Normalise(preprocessing, lies_last(model.card["shape"]), device)
    precision = partial(precision_context, model.run.protocol.precision, device)
    return Evaluation(model.algorithm, parts, lambda x: normalise(scaled(x)), precision)


def _pixels(model: Model, dataset: DomainDataset, cache: ImageCache | None, name: str) -> Tensor:
    """Return the uint8 images of a domain, of the shape that the model takes."""
    plain = dataset[name].images
    images = plain if isinstance(plain, Tensor) or cache is None else cache[name].evaluation
    if not isinstance(images, Tensor):
        raise ValueError(f"the images of {name!r} are files: a cache is needed")
    if list(images.shape[1:]) != model.card["shape"]:
        raise ValueError(
            f"the model takes inputs of shape {model.card['shape']}, those of {dataset.name} "
            f"have {list(images.shape[1:])}"
        )
    return images


def _numbers(model: Model, dataset: DomainDataset) -> Tensor:
    """Return the model's number of each class of the data set."""
    unknown = [name for name in dataset.classes if name not in model.classes]
    if unknown:
        raise ValueError(
            f"{dataset.name} has classes that the model does not know: {', '.join(unknown[:5])}; "
            f"it knows {', '.join(model.classes[:10])}"
        )
    return torch.tensor([model.classes.index(name) for name in dataset.classes])
