"""One forward and one backward of a network: ℓ_i, and where each weight's gradients come from."""

import torch
from torch import Tensor, nn

from .anywhere import individual_gradients
from .formed import Individual
from .inputs import Examples
from .losses import Loss
from .recording import Entry, Recording, owners_of
from .verdict import untold_of


def record(
    model: nn.Module,
    weights: dict[str, Tensor],
    examples: Examples,
    loss: Loss | None,
    create_graph: bool,
    trusted: bool = False,
) -> tuple[Tensor, list[Entry]]:
    """Return ℓ_i, and entries that together hold every weight, of one forward and one backward."""
    recording = Recording(weights)
    with torch.enable_grad():
        with recording.on(model):
            losses = examples.losses(model, loss)
        return losses, finish(recording, model, examples, losses, loss, create_graph, trusted)


def finish(
    recording: Recording,
    model: nn.Module,
    examples: Examples,
    losses: Tensor,
    loss: Loss | None,
    create_graph: bool,
    trusted: bool = False,
) -> list[Entry]:
    """Run the backward of a recorded forward; return entries, also of what no layer tells."""
    weights = recording.weights
    recording.backward(losses, create_graph)
    owners = owners_of(model, weights)
    entries = recording.entries(owners)
    untold = untold_of(model, weights, owners, entries, losses, trusted)
    entries = [entry for entry in entries if not untold.intersection(entry.names)]
    rest = [name for name in weights if name in untold]
    if rest:
        function, tensors, shared = individual_gradients(model, rest, examples, loss)
        size = sum(weights[name].numel() for name in rest)
        entries.append(Entry(tuple(rest), Individual(size, function, shared), tensors))
    return entries
