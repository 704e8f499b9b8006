"""Own network: a user's module, or a function that makes one, as features and a linear head."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..datasets import DomainDataset
from ..networks.base import Network, build_seeded
from ..randomness import stream
from ..training.batches import scaled

# A module with logits, or a function from the shape of an input and the number of classes to one.
OwnNetwork = nn.Module | Callable[[tuple[int, ...], int], nn.Module]
# The name of such a network in a run, which no folder can be loaded by.
OWN = "own"
# Inputs of every domain for a trial run.
EXAMPLES = 2


def build_own(given: OwnNetwork, inputs: Tensor, classes: int, seed: int) -> nn.Module:
    """Return a network to train, with ``features`` and ``classifier``.

    A module is copied with its weights, and never changed. A function is called with the shape of
    an input and ``classes``, and torch's random numbers in it come from ``seed``. The last linear
    layer is the head, unless the module has ``features`` and ``classifier`` that give its logits.

    Args:
        inputs: a few examples for a trial run, ``[n, ...]``.
    """
    if isinstance(given, nn.Module):
        module = copy.deepcopy(given).cpu().train()
    elif not callable(given):
        raise TypeError(
            "network must be a name, a torch.nn.Module or a function that returns one, got "
            f"{given!r}"
        )
    else:
        shape = tuple(inputs.shape[1:])
        module = build_seeded(lambda: given(shape, classes), stream("own network", seed))
        if not isinstance(module, nn.Module):
            raise TypeError(
                "network must be a function that returns a torch.nn.Module, it returned "
                f"{type(module).__name__}"
            )
    logits = _run(module, inputs)
    if logits.shape != (len(inputs), classes):
        raise ValueError(
            f"network must give logits [n, {classes}], one for each class of y, got "
            f"{list(logits.shape)} for inputs {list(inputs.shape)}"
        )
    if not logits.isfinite().all():
        hint = ""
        if inputs.isnan().any():
            hint = (
                "; X has missing values, which are NaN: fill them first, or begin the network with "
                f"shoal.networks.Standardise({inputs.shape[1]})"
            )
        raise ValueError(f"network gives logits that are not finite{hint}")
    for divide in (_as_it_is, _without_head):
        network = divide(module)
        if network is not None and _gives(network, inputs, logits):
            return network
    raise ValueError(
        f"the last layer of {type(module).__name__} must be linear, and its logits the output of "
        "that layer; otherwise give the module the parts .features and .classifier, whose output "
        "is classifier(features(x))"
    )


def trial_inputs(dataset: DomainDataset, extra_channels: int) -> Tensor:
    """Return a few inputs as a network gets them, with a missing value if there is one.

    Args:
        extra_channels: those that a method adds to images, here zeros.
    """
    if not dataset.in_memory:
        found = torch.rand(EXAMPLES, *dataset.input_shape, generator=stream("trial inputs"))
    else:
        parts = [domain.tensor[:EXAMPLES] for domain in dataset.domains]
        if dataset.kind == "vectors":
            gaps = (domain.tensor.isnan().any(1) for domain in dataset.domains)
            pairs = zip(dataset.domains, gaps, strict=True)
            parts += [domain.tensor[gap][:1] for domain, gap in pairs]
        found = scaled(torch.cat(parts).cpu())
    if found.ndim == 4 and extra_channels:
        zeros = found.new_zeros(len(found), extra_channels, *found.shape[2:])
        found = torch.cat([found, zeros], 1)
    return found


def _as_it_is(module: nn.Module) -> nn.Module | None:
    """Return the module if it has features and a classifier."""
    parts = (getattr(module, name, None) for name in ("features", "classifier"))
    return module if all(isinstance(part, nn.Module) for part in parts) else None


def _without_head(module: nn.Module) -> nn.Module | None:
    """Take the last linear layer off the module and return both; None if there is none."""
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        return None
    if linear[-1] == "":
        return Network(nn.Flatten(), module)
    head = module.get_submodule(linear[-1])
    module.set_submodule(linear[-1], nn.Identity())
    return Network(module, head, getattr(module, "preprocessing", None))


@torch.no_grad()
def _run(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits in eval mode; say which inputs were too much for it."""
    try:
        found = module.eval()(inputs)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"network does not take inputs {list(inputs.shape)} of {inputs.dtype}: {error}"
        ) from error
    finally:
        module.train()
    if not isinstance(found, Tensor):
        raise TypeError(f"network must return logits, a tensor, got {type(found).__name__}")
    return found


@torch.no_grad()
def _gives(network: nn.Module, inputs: Tensor, logits: Tensor) -> bool:
    """Return whether the head gives these logits for the features, ``[n, p]``, of the inputs."""
    network.eval()
    try:
        features = network.features(inputs)  # type: ignore[operator]
        found = network.classifier(features)  # type: ignore[operator]
    except (RuntimeError, TypeError, ValueError):
        return False
    finally:
        network.train()
    return features.ndim == 2 and torch.allclose(found, logits, rtol=1e-4, atol=1e-5)
