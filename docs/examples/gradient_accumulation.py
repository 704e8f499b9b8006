"""Gradient accumulation: micro-batches with the loss and gradient of the whole batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal


class Network(nn.Module):
    """Returns features and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1))
        self.classifier = nn.Linear(64, 5)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        z = self.features(inputs)
        return z, self.classifier(z)


torch.manual_seed(0)
network = Network()
fishr = shoal.Fishr(num_domains=4, penalty_weight=100.0, warmup_steps=0)
optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
# Micro-batches from a loader; only their inputs are held, never their activations.
loader = [
    (torch.randn(16, 10), torch.randint(5, (16,)), torch.randint(4, (16,))) for _ in range(24)
]

for start in range(0, len(loader), 8):
    inputs, labels, domains = (
        torch.cat(parts) for parts in zip(*loader[start : start + 8], strict=True)
    )
    # All micro-batches run without a graph first, so the variance is that of all 128 examples;
    # backward() then runs each one again with its share of the gradient. Adding up the losses of
    # micro-batches would match the variances of 16 examples: another penalty.
    z, logits = shoal.in_micro_batches(network, inputs, size=16)
    loss = F.cross_entropy(logits, labels) + fishr(z, logits, labels, domains)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"loss {loss.item():.3f}")
