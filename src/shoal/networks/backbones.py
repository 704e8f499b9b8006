"""Backbones: networks of torchvision, timm or a user, with dropout and a new linear head."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_features
from ..choices import choose, nearest
from ..vision import explain_torchvision
from .base import IMAGENET, Dropout, Network, Preprocessing, build_seeded, draw_weights
from .weights import explain_fetch_errors, load_weights

# Runs a network on a batch: all at once, in parts, or in several processes.
ForwardRunner = Callable[[nn.Module, Tensor], Tensor]
# A network without its head, the number of its features, and its preprocessing.
LoadedBackbone = tuple[nn.Module, int, Preprocessing]


@contextmanager
def importing_extra(
    name: str, wanted_by: str, explain: Callable[[Exception], str] = str
) -> Iterator[None]:
    """Import packages of the extra ``name`` inside; raise a clear error if that fails.

    Args:
        explain: returns why an installed package fails, and what to do.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise ImportError(
            f"{wanted_by} needs {package}, which is not installed: pip install 'shoal[{name}]'"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(f"{wanted_by} needs shoal[{name}]: {explain(error)}") from error


class Features(nn.Module):
    """The features of ``network`` after dropout; its batch-norm statistics can be frozen.

    With ``frozen_statistics`` batch norm stays in eval mode in training: running means and
    variances are used and not moved, while weight and bias of the layer are trained.
    ``runner`` runs the network; None calls it.
    """

    runner: ForwardRunner | None = None

    def __init__(self, network: nn.Module, dropout: Dropout, frozen_statistics: bool) -> None:
        super().__init__()
        self.network = network
        self.dropout = dropout
        self.frozen_statistics = frozen_statistics
        self.train()

    def train(self, mode: bool = True) -> "Features":
        """Set the mode; defined here, so that it holds inside any other module."""
        super().train(mode)
        if self.frozen_statistics:
            for part in self.network.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        run = self.runner
        found = self.network(inputs) if run is None else run(self.network, inputs)
        features: Tensor = self.dropout(found)
        return features


def backbone(
    name: str,
    channels: int,
    classes: int,
    dropout: float = 0.0,
    weights: str | Path | None = None,
    frozen_statistics: bool = True,
    *,
    generator: torch.Generator,
) -> Network:
    """Return a network of torchvision or timm, its head replaced by dropout and a linear head.

    Any other dropout in the network is turned off: it draws from the global random state, which a
    resumed run cannot restore.

    Args:
        name: ``torchvision:resnet34`` or ``timm:resnet50.tv_in1k``.
        channels: of the inputs; channel i begins with the filters of colour i mod 3.
        classes: C.
        dropout: the share of features set to zero in training.
        weights: None to draw them as the package does; "imagenet" for the package's own (of
            torchvision the first version, or another one by its name); or the path of a file.
        frozen_statistics: keep the running statistics of batch norm. Without weights they are 0
            and 1 and normalise nothing: pass False to train from scratch.
        generator: of the weights, the head and the dropout.
    """
    package, model = split_name(name)
    network, width, preprocessing = PACKAGES[package](model, weights, generator)
    network = adapt_channels(network, channels)
    return with_head(
        network,
        width,
        classes=classes,
        dropout=dropout,
        frozen_statistics=frozen_statistics,
        preprocessing=preprocessing,
        generator=generator,
    )


def check_backbone(name: str, weights: str | Path | None = None) -> None:
    """Raise if the package cannot be imported, or has no such model or weights to fetch."""
    package, model = split_name(name)
    if package == "torchvision":
        _find_in_torchvision(model, weights)
    else:
        _find_in_timm(model, weights)


def split_name(name: str) -> tuple[str, str]:
    """Return the package and the model that a name such as ``timm:resnet18`` means."""
    package, _, model = name.partition(":")
    if not model:
        raise ValueError(f"{name!r} names no package; write torchvision:{name} or timm:{name}")
    return choose("package", package, PACKAGES), model


def from_module(
    module: nn.Module,
    classes: int,
    inputs: Tensor,
    dropout: float = 0.0,
    frozen_statistics: bool = False,
    preprocessing: Preprocessing | None = None,
    *,
    generator: torch.Generator,
) -> Network:
    """Return a network of your own features ``[n, p]`` and a linear head, on their device.

    Args:
        module: Φ_φ, any module; it is used directly, not copied.
        classes: C.
        inputs: a few examples ``[n, ...]``, run once in eval mode to find p.
        dropout: the share of features set to zero in training.
        frozen_statistics: keep the running statistics of batch norm.
        preprocessing: mean and deviation of colours that your module expects.
        generator: of the head and the dropout.
    """
    features = _run_once(module, inputs)
    network = with_head(
        module,
        features.shape[1],
        classes=classes,
        dropout=dropout,
        frozen_statistics=frozen_statistics,
        preprocessing=preprocessing,
        generator=generator,
    )
    network.classifier.to(features.device, features.dtype)
    network.features.dropout.to(features.device)
    return network


def with_head(
    network: nn.Module,
    width: int,
    classes: int,
    dropout: float,
    frozen_statistics: bool,
    preprocessing: Preprocessing | None,
    generator: torch.Generator,
) -> Network:
    """Return features of this width, dropout and a linear head drawn from ``generator``."""

    def build() -> nn.Linear:
        return nn.Linear(width, classes)

    head = draw_weights(build, generator)
    # After the head, so that its weights do not depend on the dropout.
    features = Features(network, Dropout(dropout, generator), frozen_statistics)
    return Network(features, head, preprocessing)


def adapt_channels(network: nn.Module, channels: int) -> nn.Module:
    """Return ``network`` for inputs of ``channels`` channels, its random layers turned off.

    Channel i of the first convolution has the filters of colour i mod 3.
    """
    for part in network.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif type(part).__name__ == "StochasticDepth":  # torchvision
            part.p = 0.0  # type: ignore[assignment]
        elif type(part).__name__ == "DropPath":  # timm
            part.drop_prob = 0.0  # type: ignore[assignment]
    if channels == 3:
        return network
    first = next((part for part in network.modules() if isinstance(part, nn.Conv2d)), None)
    if channels < 1 or first is None or first.in_channels != 3:
        raise ValueError(
            f"{type(network).__name__} cannot take {channels} channels: "
            "only a first convolution of three channels can be given one or more others"
        )
    colours = [i % 3 for i in range(channels)]
    first.weight = nn.Parameter(first.weight.detach()[:, colours].clone())
    first.in_channels = channels
    return network


def _load_from_torchvision(
    name: str, weights: str | Path | None, generator: torch.Generator
) -> LoadedBackbone:
    models, version = _find_in_torchvision(name, weights)
    with explain_fetch_errors(name, f"{torch.hub.get_dir()}/checkpoints"):
        network = build_seeded(lambda: models.get_model(name, weights=version), generator)
    if getattr(network, "aux_logits", False):
        raise ValueError(f"torchvision:{name} has more than one head, which cannot be replaced")
    linear = [where for where, part in network.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ValueError(f"torchvision:{name} has no linear head to replace")
    head = network.get_submodule(linear[-1])
    network.set_submodule(linear[-1], nn.Identity())
    if weights is not None and version is None:
        load_weights(network, weights, linear[-1:])
    return network, int(head.in_features), IMAGENET


def _find_in_torchvision(name: str, weights: str | Path | None) -> tuple[Any, str | None]:
    """Return torchvision's models and the version of the weights."""
    with importing_extra("vision", f"torchvision:{name}", explain_torchvision):
        from torchvision import models
    _check_model("torchvision", name, models.list_models(module=models))
    return models, _version(name, weights, models.get_model_weights(name).__members__)


def _load_from_timm(
    name: str, weights: str | Path | None, generator: torch.Generator
) -> LoadedBackbone:
    timm, cache = _find_in_timm(name, weights)
    own = weights == "imagenet"
    with explain_fetch_errors(name, cache):
        network: Any = build_seeded(
            lambda: timm.create_model(name, pretrained=own, num_classes=0), generator
        )
    expected = network.pretrained_cfg
    if weights is not None and not own:
        heads = expected["classifier"]  # a name, or those of several
        load_weights(network, weights, [heads] if isinstance(heads, str) else heads)
    preprocessing = Preprocessing(tuple(expected["mean"]), tuple(expected["std"]))
    width = _run_once(network, torch.zeros(1, *expected["input_size"])).shape[1]
    return network, width, preprocessing


def _find_in_timm(name: str, weights: str | Path | None) -> tuple[Any, str]:
    """Return timm and the folder of its fetched weights."""
    with importing_extra("vision", f"timm:{name}", explain_torchvision):
        import timm
        from huggingface_hub.constants import HF_HUB_CACHE
    _check_model("timm", name, (*timm.list_models(), *timm.list_pretrained()))
    if weights == "imagenet" and not timm.is_model_pretrained(name):
        raise ValueError(
            f"timm:{name} has no pretrained weights; give weights=None (--weights none) or a file, "
            "or name one of timm.list_models(pretrained=True)"
        )
    return timm, HF_HUB_CACHE


PACKAGES: dict[str, Callable[[str, str | Path | None, torch.Generator], LoadedBackbone]] = {
    "torchvision": _load_from_torchvision,
    "timm": _load_from_timm,
}


def _run_once(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the features of ``inputs`` in eval mode; every part keeps its own mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            features: Tensor = module(inputs)
    finally:
        for part, mode in modes:
            part.training = mode
    check_features(features)
    return features


def _version(name: str, weights: str | Path | None, versions: Iterable[str]) -> str | None:
    """Return the version of torchvision's weights; None for no weights or those of a file."""
    known = list(versions)
    if weights == "imagenet":
        if "IMAGENET1K_V1" not in known:
            raise ValueError(
                f"torchvision:{name} has no weights IMAGENET1K_V1; name one of: {', '.join(known)}"
            )
        return "IMAGENET1K_V1"
    return str(weights) if weights in known else None


def _check_model(package: str, name: str, names: Iterable[str]) -> None:
    """Raise if the package has no such model; its names are too many to list."""
    known = set(names)
    if name in known:
        return
    near = nearest(name, sorted(known))
    hint = f"did you mean {package}:{near}? " if near else ""
    listed = f"{package}.models.list_models()" if package == "torchvision" else "timm.list_models()"
    raise ValueError(f"unknown model {package}:{name}; {hint}All {len(known)}: {listed}")
