"""Placement of a run's images: on the device if they fit, otherwise mapped and read ahead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..catalogue import EVALUATED, PLACES
from ..choices import choose
from ..datasets import Domain, DomainDataset, Split
from ..datasets.cache import ImageCache, evaluation_images
from .batches import BatchSource, InMemory, Sampler
from .evaluation import EvaluationSet, SplitKey
from .streaming import ResidentCrops, StreamedCrops, StreamedImages, StreamedOriginals

# The share of a device's free memory for images.
SHARE = 0.6
KEPT, HELD_OUT = "kept", "held_out"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The examples to draw from, and how likely each is, beside the others of its domain.

    Args:
        examples: indices of the examples of every domain, by its name, in the order of the draws.
        weights: of all examples of every domain, ``[n]``, by its name.
        class_weights: of all classes, ``[C]``, by which the weights are multiplied.
    """

    examples: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    class_weights: Tensor

    def likelihoods(self, domain: Domain) -> Tensor:
        """Return the weights of the examples to draw from, times those of their classes."""
        chosen = self.examples[domain.name]
        return self.weights[domain.name][chosen] * self.class_weights[domain.labels[chosen]]


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """The data that a run trains on and evaluates.

    Args:
        test_domains: domains that are not trained on.
        trial: seeds the batches.
        size: images of each training domain in a batch.
        balanced: whether all classes of a domain are equally likely.
        augment: whether large training images are augmented.
        exact: whether the original files are decoded and augmented one by one.
        evaluate: "needed" for the splits that selection needs, or "all".
        samples: size of the fixed sample of each training domain, for extra metrics.
        sampling: of the training domains; None if all examples of a domain are equally likely.
    """

    test_domains: tuple[str, ...]
    trial: int
    size: int
    balanced: bool = False
    augment: bool = True
    exact: bool = False
    evaluate: str = "needed"
    samples: int = 0
    sampling: Sampling | None = None


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The batches of the training domains, in order, and the images to evaluate.

    ``shape`` is that of one image. ``trained`` are all kept images of the training domains, and
    ``samples`` some of them, the same in every run of a trial.
    """

    sources: list[BatchSource]
    parts: dict[SplitKey, EvaluationSet]
    shape: tuple[int, ...]
    where: str
    trained: dict[SplitKey, EvaluationSet] = field(default_factory=dict)
    samples: dict[SplitKey, EvaluationSet] = field(default_factory=dict)


def place(
    dataset: DomainDataset,
    splits: Mapping[str, Split],
    cache: ImageCache | None,
    wanted: DataRequest,
    device: torch.device,
    where: str = "auto",
) -> RunData:
    """Return the data of a run.

    Args:
        cache: of the data set's decoded images; None if the data set is in memory.
        where: "device" or "host" for the images, or "auto".
    """
    choose("place of the images", where, PLACES)
    choose("choice of splits", wanted.evaluate, EVALUATED)
    if wanted.size < 1:
        raise ValueError(f"batch_size must be 1 or more, got {wanted.size}")
    if where == "auto":
        where = "device" if _fits(dataset, cache, device) else "host"
    on = device if where == "device" else torch.device("cpu")
    parts: dict[SplitKey, EvaluationSet] = {}
    trained: dict[SplitKey, EvaluationSet] = {}
    samples: dict[SplitKey, EvaluationSet] = {}
    sources: list[BatchSource] = []
    shape: tuple[int, ...] = ()
    for domain in dataset.domains:
        images = evaluation_images(domain, cache).to(on)
        shape = tuple(images.shape[1:])
        split = splits[domain.name]
        for name in splits_to_evaluate(domain.name, wanted):
            indices = split.kept if name == KEPT else split.held_out
            if len(indices):
                parts[domain.name, name] = _part(domain, images, indices)
        if domain.name not in wanted.test_domains:
            trained[domain.name, KEPT] = _part(domain, images, split.kept)
            if wanted.samples:  # the order of a split is random
                chosen = split.kept[: wanted.samples]
                samples[domain.name, KEPT] = _part(domain, images, chosen)
            sources.append(
                _source(
                    dataset,
                    domain,
                    split=split,
                    images=images,
                    cache=cache,
                    wanted=wanted,
                    device=device,
                    where=where,
                )
            )
    return RunData(
        sources=sources, parts=parts, shape=shape, where=where, trained=trained, samples=samples
    )


def place_parts(
    dataset: DomainDataset,
    splits: Mapping[str, Split],
    cache: ImageCache | None,
    places: Sequence[SplitKey],
    device: torch.device,
) -> dict[SplitKey, EvaluationSet]:
    """Return parts of a data set to evaluate; on a GPU if their domains' images fit there."""
    images = {name: evaluation_images(dataset[name], cache) for name, _ in places}
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if sum(tensor.nbytes for tensor in images.values()) < SHARE * free:
            images = {name: tensor.to(device) for name, tensor in images.items()}
    return {
        (name, split): _part(
            dataset[name],
            images[name],
            splits[name].kept if split == KEPT else splits[name].held_out,
        )
        for name, split in places
    }


def _part(domain: Domain, images: Tensor, indices: Tensor) -> EvaluationSet:
    return EvaluationSet(images, indices.to(images.device), domain.labels[indices])


def splits_to_evaluate(domain: str, wanted: DataRequest) -> Sequence[str]:
    """Return the splits of a domain to evaluate.

    Selection reads the held-out images of all domains, and the other images of test domains only.
    """
    rest = wanted.evaluate == "all" or domain in wanted.test_domains
    return (KEPT, HELD_OUT) if rest else (HELD_OUT,)


def _source(
    dataset: DomainDataset,
    domain: Domain,
    split: Split,
    images: Tensor,
    cache: ImageCache | None,
    wanted: DataRequest,
    device: torch.device,
    where: str,
) -> BatchSource:
    tests = sorted(wanted.test_domains)
    name: list[str | int] = [dataset.name, wanted.trial, *tests, domain.name]
    kept = split.kept if wanted.sampling is None else wanted.sampling.examples[domain.name]
    weights = None if wanted.sampling is None else wanted.sampling.likelihoods(domain)
    labels = domain.labels[kept] if wanted.balanced else None
    on = device if where == "device" else torch.device("cpu")
    if cache is None or not wanted.augment:
        sampler = Sampler(kept, labels, name, on, weights)
        if where == "device":
            return InMemory(images, domain.labels, sampler, wanted.size)
        return StreamedImages(images, domain.labels, sampler, wanted.size, device)
    training = cache.domains[domain.name].training
    if wanted.exact and not domain.in_memory:
        sampler = Sampler(kept, labels, name, torch.device("cpu"), weights)
        return StreamedOriginals(
            domain.files,
            training.frames,
            domain.labels,
            sampler,
            name,
            wanted.size,
            device,
            dataset.reading,
        )
    sampler = Sampler(kept, labels, name, on, weights)
    kind: type[ResidentCrops | StreamedCrops] = (
        ResidentCrops if where == "device" else StreamedCrops
    )
    sizes = [cached.training.largest for cached in cache.domains.values()]
    largest = max(height for height, _ in sizes), max(width for _, width in sizes)
    return kind(training, domain.labels, sampler, name, wanted.size, largest, device)


def _fits(dataset: DomainDataset, cache: ImageCache | None, device: torch.device) -> bool:
    """Return whether all images fit on the device; a CPU reads mapped files directly."""
    if device.type != "cuda":
        return cache is None
    size = sum(domain.tensor.nbytes for domain in dataset.domains if domain.in_memory)
    if cache is not None:
        for domain in cache.domains.values():
            size += domain.evaluation.numel() + domain.training.pixels.numel()
    free, _ = torch.cuda.mem_get_info(device)
    return size < SHARE * free
