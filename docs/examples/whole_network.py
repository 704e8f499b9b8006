"""Fishr on all weights of a network, with a memory budget; one forward for risk and variance."""

import torch
from torch import nn

import shoal

torch.manual_seed(0)
images = torch.randn(24, 3, 32, 32)
labels, domains = torch.randint(4, (24,)), torch.arange(3).repeat_interleave(8)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(inplace=True),
    nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 4),
)
model.eval()  # freezes batch norm: an example's gradient must not depend on other examples
# The penalty is divided by the number of weights, for a network as for a head.
fishr = shoal.Fishr(num_domains=3, penalty_weight=1000.0, warmup_steps=2)
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(4):
    losses, v = shoal.losses_and_variance(
        model,
        images,
        labels,
        domains,
        parameters="all",  # or names: "0", "classifier"; or a module
        num_domains=3,
        memory=20 * 2**20,  # bytes; if not all examples fit, they run in chunks, twice
    )
    loss = losses.mean() + fishr.match(v)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"loss {loss.item():.3f}, variances of {v.shape[1]} weights in {v.shape[0]} domains")
