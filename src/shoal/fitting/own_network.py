"""Own network: a user's module, or a function that makes one, as features and a linear head."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..networks.base import Network, build_seeded
from ..randomness import stream

# A module with logits, or a function from the shape of an input and the number of classes to one.
OwnNetwork = nn.Module | Callable[[tuple[int, ...], int], nn.Module]
# The name of such a network in a run, which no folder can be loaded by.
OWN = "own"
# Inputs of the trial run.
EXAMPLES = 2


def build_own(given: OwnNetwork, shape: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Return a network to train, with ``features`` and ``classifier``.

    A module is copied with its weights, and never changed. A function is called with ``shape`` and
    ``classes``, and torch's random numbers in it come from ``seed``. The last linear layer is the
    head, unless the module has ``features`` and ``classifier`` that give its logits.

    Args:
        shape: of one input.
    """
    if isinstance(given, nn.Module):
        module = copy.deepcopy(given).cpu().train()
    else:
        module = build_seeded(lambda: given(tuple(shape), classes), stream("own network", seed))
        if not isinstance(module, nn.Module):
            raise TypeError(
                "network must be a function that returns a torch.nn.Module, it returned "
                f"{type(module).__name__}"
            )
    inputs = torch.rand(EXAMPLES, *shape, generator=stream("trial run", seed))
    logits = _run(module, inputs)
    if logits.shape != (EXAMPLES, classes):
        raise ValueError(
            f"network must give logits [n, {classes}], one for each class of y, got "
            f"{list(logits.shape)} for inputs {list(inputs.shape)}"
        )
    for divide in (_as_it_is, _without_head):
        network = divide(module)
        if network is not None and _gives(network, inputs, logits):
            return network
    raise ValueError(
        f"the last layer of {type(module).__name__} must be linear, and its logits the output of "
        "that layer; otherwise give the module the parts .features and .classifier, whose output "
        "is classifier(features(x))"
    )


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
