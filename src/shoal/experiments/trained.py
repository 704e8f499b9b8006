"""Models of Colored MNIST to look at: trained once, and kept."""

import torch

from ..storage import load_tensors, save_tensors
from .colored_mnist import METHODS, Setup, Training
from .restarts import Folder, Progress

# The paper's names, and the methods of the IRM setup: both look at the classifier ω alone.
SHOWN = {"ERM": "erm", "Fishr": "fishr-omega"}


def trained(
    name: str, setup: Setup, device: torch.device, folder: Folder, progress: Progress
) -> Training:
    """Return restart 0 of ERM or Fishr after its last update, from the folder where it is there."""
    key = SHOWN[name]
    training = Training(METHODS[key], setup, device)
    kept = folder.checkpoint(f"trained-{key}", setup.flip, 0)
    if kept.exists():
        training.resume(load_tensors(kept))
    while training.done < setup.updates:
        training.step()
        progress(name, 0, training.done, setup.updates)
    if not kept.exists():
        save_tensors(kept, training.state())
    training.wait()
    return training


@torch.no_grad()
def head_inputs(training: Training) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (z, 1) of each training domain, ``[2, n, p + 1]``, and logits and labels ``[2, n]``.

    In float64: what is looked at is small beside what it is a difference of.
    """
    features = training.model.features(training.inputs).double()
    z = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    weight, bias = training.model.classifier.parameters()
    weights = torch.cat([weight[0], bias]).double()
    shape = (2, training.setup.examples)
    return z.view(*shape, -1), (z @ weights).view(shape), training.labels.double().view(shape)
