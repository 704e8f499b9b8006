"""Models: built from a run, saved as ``model.safetensors`` with a JSON card, loaded, measured."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..algorithms import VARIANTS, find
from ..algorithms.base import Algorithm
from ..algorithms.optimiser import Optimiser
from ..catalogue import BASELINES
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache, evaluation_images
from ..documents import damage_named, read_json
from ..escapes import brief
from ..files import UnfitFile
from ..networks import FrozenCopy, for_data
from ..randomness import domainbed_hash, stream
from ..regularizers import Match, Warmup
from ..results.records import CARD, MODEL, RUN, Record
from ..storage import write_aside, write_json
from ..tensor_files import read_safetensors
from ..training.batches import Normalise, scaled
from ..training.evaluation import Evaluation, EvaluationSet, SplitKey
from ..training.step import precision_context
from .fitted import Fitted, load_fitted
from .run import Run

SCHEMA = 1
NEEDED = ("classes", "training_domains", "shape", "sha256", "run")


@dataclass(frozen=True)
class Model:
    """A trained method and its card."""

    algorithm: Algorithm
    card: Mapping[str, Any]

    @property
    def run(self) -> Run:
        return Run.from_json(self.card["run"])

    @property
    def row(self) -> str:
        """Its name in tables: the method, such as "fishr", or an average of it, "fishr+sma"."""
        average = self.card.get("average")
        return f"{self.run.algorithm}+{average['name']}" if average else self.run.algorithm

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.card["classes"])


def build(
    run: Run,
    method: type[Algorithm],
    shape: Sequence[int],
    classes: int,
    num_domains: int,
    weights: str | Path | None,
    device: torch.device,
    channels_last: bool = False,
    network: nn.Module | None = None,
) -> Algorithm:
    """Return the run's method with its network, before the first update.

    The random draws depend on data set, trial and test domains, so all methods start alike.

    Args:
        shape: of one image.
        weights: initial weights of the network, as in ``for_data``.
        channels_last: memory layout of images and filters.
        network: to train, with its weights; None for the run's own, which ``weights`` begin.
    """
    try:
        hparams = method.Hparams(**run.hparams)
    except TypeError as error:
        raise ValueError(
            f"the hyperparameters of the run do not fit {method.__name__}: {error}"
        ) from error
    where: list[str | int] = [run.dataset, run.trial, *run.test_domains]
    if network is None:
        network = for_data(
            shape,
            classes,
            extra_channels=method.extra_channels,
            dropout=hparams.dropout,
            name=run.protocol.network,
            weights=weights,
            frozen_statistics=run.protocol.frozen_statistics,
            generator=stream("network", *where),
        )
    network = network.to(device)
    if channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seed = domainbed_hash("method", *where)
    return method(network, num_domains, hparams, seed).to(device)


def uses_channels_last(shape: Sequence[int]) -> bool:
    """Return whether images of this shape are stored channels-last, faster for large networks."""
    return len(shape) == 3 and shape[-1] >= 64


def check_saving() -> None:
    """Raise before hours of training if models cannot be saved."""
    try:
        import safetensors.torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "models are saved by safetensors, which is not installed: pip install 'shoal[cli]'",
            name="safetensors",
        ) from error


def save(
    folder: Path,
    algorithm: Algorithm,
    run: Run,
    shape: Sequence[int],
    classes: Sequence[str],
    domains: Sequence[str],
    record: Record,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write the model and its card; the card comes last, so a card means that both are whole.

    Args:
        about: further entries of the card.
    """
    check_saving()
    from safetensors.torch import save as as_bytes

    content = as_bytes(prediction_tensors(algorithm))
    write_aside(folder / MODEL, lambda file: file.write(content))
    card = {
        "schema": SCHEMA,
        "algorithm": run.algorithm,
        "classes": list(classes),
        "training_domains": list(domains),
        "test_domains": list(run.test_domains),
        "shape": list(shape),
        "hparams": dict(run.hparams),
        "step": record.step,
        "accuracy": record.accuracy,
        "calibration_error": record.calibration_error,
        "sha256": hashlib.sha256(content).hexdigest(),
        "run": run.canonical(),
    }
    write_json(folder / CARD, {**(about or {}), **card})


def prediction_tensors(algorithm: Algorithm) -> dict[str, Tensor]:
    """Return the tensors for predictions: all but those of optimisers, penalties and copies."""
    state = _prediction_state(algorithm)
    return {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}


def _prediction_state(algorithm: Algorithm) -> dict[str, Tensor]:
    left_out = tuple(
        f"{name}."
        for name, part in algorithm.named_modules()
        if isinstance(part, (Optimiser, Match, Warmup, FrozenCopy))
    )
    state = algorithm.state_dict()
    return {key: tensor for key, tensor in state.items() if not key.startswith(left_out)}


def load(path: Path, device: torch.device, method: type[Algorithm] | None = None) -> Model:
    """Return the model in the folder of a run, ready to predict.

    Args:
        path: the folder, or its ``model.safetensors``.
        method: the class of a user's own method, which a file cannot name.
    """
    folder = path.parent if path.name == MODEL else path
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    for name in (MODEL, CARD):
        if not (folder / name).exists():
            raise ValueError(f"there is no {name} in {folder}; has the run ended?")
    card = read_card(folder)
    tensors = read_tensors(folder, card)
    damaged = partial(damage_named, folder / CARD, _again(folder))
    with damaged():
        run = Run.from_json(card["run"])
    method = method or registered(run.algorithm)
    domains = len(card["training_domains"])
    shape, classes = card["shape"], len(card["classes"])
    if issubclass(method, Fitted):
        try:
            fitted = load_fitted(run.protocol.network, tensors, shape[0], classes, domains)
        except ValueError as error:
            raise ValueError(f"{folder / MODEL} is damaged: {error}; {_again(folder)}") from error
        return Model(fitted.to(device), card)
    make = partial(
        build, run, method, shape, classes, domains, None, channels_last=uses_channels_last(shape)
    )
    # Shapes first: a damaged card can ask for any amount of memory.
    with damaged():
        shapes = _shapes(make)
    if shapes is not None:
        _check_tensors(folder, method, shapes, tensors)
    with damaged():
        algorithm = make(device)
    _check_tensors(folder, method, _prediction_state(algorithm), tensors)
    algorithm.load_state_dict(tensors, strict=False)
    return Model(algorithm.eval(), card)


def _shapes(make: Callable[[torch.device], Algorithm]) -> dict[str, Tensor] | None:
    """Return the tensors of a method without their memory; None if it cannot be made so."""
    nowhere = torch.device("meta")
    with suppress(NotImplementedError, RuntimeError), nowhere:
        return _prediction_state(make(nowhere))
    return None


def _check_tensors(
    folder: Path,
    method: type[Algorithm],
    wanted: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    different = {
        key
        for key in {**wanted, **tensors}
        if key not in wanted or key not in tensors or wanted[key].shape != tensors[key].shape
    }
    if different:
        raise ValueError(
            f"{folder / MODEL} does not fit {method.__name__}: tensors differ, such as "
            f"{', '.join(sorted(different)[:3])}"
        )


def read_tensors(folder: Path, card: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the model with this card, on the host."""
    check_saving()
    try:
        return read_safetensors(folder / MODEL, str(card["sha256"]))
    except UnfitFile:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; {_again(folder)}") from error


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of the model in a folder; raise if it cannot be used."""
    path = folder / CARD
    card = read_json(path, advice=_again(folder))
    if not isinstance(card, dict) or card.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a card of this version of shoal; {_again(folder)}")
    if lacking := [key for key in NEEDED if key not in card]:
        raise ValueError(f"{path} lacks {', '.join(lacking)}; it is damaged: {_again(folder)}")
    for key in ("classes", "training_domains"):
        if wrong := _wrong_names(card[key]):
            raise ValueError(f"{path} has {wrong} in its {key}; it is damaged: {_again(folder)}")
    shape = card["shape"]
    sizes = isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)
    if not sizes or len(shape) not in (1, 3):
        raise ValueError(
            f"{path} must give the shape of an input as [d] or [C, H, W], got {brief(shape)}; it "
            f"is damaged: {_again(folder)}"
        )
    return card


def _wrong_names(names: Any) -> str:
    """Return what is wrong with a card's list of names; "" if nothing is."""
    if not isinstance(names, list) or not names:
        return f"{brief(names)}, not a list of names,"
    if strange := [name for name in names if not isinstance(name, str)]:
        return f"{brief(strange[0])}, not a name,"
    if len(set(names)) < len(names):
        return f"{brief(Counter(names).most_common(1)[0][0])} twice"
    return ""


def _again(folder: Path) -> str:
    """Return advice on how to get the model of a folder again."""
    # Of an average, or a record that was kept, it is in a folder of the run's.
    for run in (folder, *list(folder.parents)[:4]):
        if (run / RUN).exists():
            return f"copy it again, or delete {run} and run the command that trained it again"
    return "copy it again, or run the 'shoal fit' command again, which builds it from its runs"


def registered(name: str) -> type[Algorithm]:
    """Return the method of the registry, of a variant or of a baseline with the name in a file."""
    if name in BASELINES:
        return Fitted
    if ":" in name:
        raise ValueError(
            f"the model was trained with your own method {name}, which a file must not import; "
            "name it with --algorithm"
        )
    return find(VARIANTS[name].algorithm if name in VARIANTS else name)


def measure(
    model: Model, dataset: DomainDataset, cache: ImageCache | None, domains: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the number of images, the accuracy and the calibration error of each domain."""
    evaluate = evaluation_of_model(model, dataset, cache, domains)
    return {
        name: {
            "images": len(outcome.labels),
            "accuracy": outcome.accuracy,
            "calibration_error": outcome.calibration_error,
        }
        for (name, _), outcome in evaluate().items()
    }


def evaluation_of_model(
    model: Model,
    dataset: DomainDataset,
    cache: ImageCache | None,
    domains: Sequence[str],
    images: int | None = None,
) -> Evaluation:
    """Return the evaluation of a model on these domains, with at most ``images`` of each."""
    numbers = _numbers(model, dataset)
    parts: dict[SplitKey, EvaluationSet] = {}
    for name in domains:
        domain = dataset[name]
        # Shuffled, because files are sorted by class, and some methods predict batches as a whole.
        order = torch.randperm(len(domain), generator=stream("evaluation", name))[:images]
        pixels = _pixels(model, dataset, cache, name)
        parts[name, "all"] = EvaluationSet(pixels, order, numbers[domain.labels[order]])
    device = model.algorithm.device
    preprocessing = getattr(model.algorithm.model, "preprocessing", None)
    normalise = Normalise(preprocessing, uses_channels_last(model.card["shape"]), device)
    precision = partial(precision_context, model.run.protocol.precision, device)
    return Evaluation(model.algorithm, parts, lambda x: normalise(scaled(x)), precision)


def _pixels(model: Model, dataset: DomainDataset, cache: ImageCache | None, name: str) -> Tensor:
    """Return the uint8 images of a domain; raise if the model takes another shape."""
    images = evaluation_images(dataset[name], cache)
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
