"""Feature files: the vectors of every domain in one .safetensors file, as a data set."""

import json
from pathlib import Path
from typing import Any

import torch

from ..documents import DAMAGE, parse_json
from ..escapes import brief
from ..files import TENSOR_BYTES, open_file
from ..storage import write_aside
from .base import Domain, DomainDataset

SUFFIX = ".safetensors"
# The entry of the file's metadata that describes it.
ABOUT = "shoal-features"


def is_feature_file(path: Path) -> bool:
    """Return whether ``load_dataset`` reads this path as a feature file."""
    return path.suffix == SUFFIX


def write_features(path: Path, dataset: DomainDataset) -> None:
    """Write a data set of vectors: of domain k its ``features/k`` and ``labels/k``."""
    from safetensors.torch import save

    tensors = {}
    for k, domain in enumerate(dataset.domains):
        tensors[f"features/{k}"] = domain.tensor.contiguous()
        tensors[f"labels/{k}"] = domain.labels.contiguous()
    about = {"name": dataset.name, "classes": dataset.classes, "domains": dataset.names}
    content = save(tensors, {ABOUT: json.dumps(about)})
    write_aside(path, lambda file: file.write(content))


def load_features(path: Path) -> DomainDataset:
    """Return the data set of a feature file; raise if it is no such file, or damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"there is no feature file {path}")
    open_file(path, TENSOR_BYTES).close()  # a library would open anything
    try:
        with safe_open(path, "pt") as file:
            about = parse_json((file.metadata() or {})[ABOUT], path)
            texts = [about["name"], *about["classes"], *about["domains"]]
            if wrong := [one for one in texts if not isinstance(one, str)]:
                raise TypeError(f"a name is {brief(wrong[0])}")
            domains = tuple(_domain(file, name, k) for k, name in enumerate(about["domains"]))
        found = DomainDataset(about["name"], tuple(about["classes"]), domains)
    except (SafetensorError, *DAMAGE) as error:
        raise ValueError(
            f"{path} is damaged, or no feature file ({error}); 'shoal data features' writes them"
        ) from error
    for domain in found.domains:
        if not torch.isfinite(domain.tensor).all():
            raise ValueError(f"{path} has features of {domain.name!r} that are not finite numbers")
    return found


def _domain(file: Any, name: str, place: int) -> Domain:
    """Return a domain of an open feature file."""
    features = file.get_tensor(f"features/{place}")
    if not features.is_floating_point():
        raise TypeError(f"the features of {name!r} are {features.dtype}")
    return Domain(name, file.get_tensor(f"labels/{place}"), features.float())
