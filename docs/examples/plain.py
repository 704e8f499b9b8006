"""Fishr in a plain PyTorch loop: one module, one line in the loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal

# Three training domains, numbered 0 to 2. x1 predicts the class equally well in all; x2 does not.
torch.manual_seed(0)
domains = torch.arange(3).repeat_interleave(200)
labels = torch.randint(2, (600,))
agrees = torch.rand(600) < torch.tensor([0.95, 0.85, 0.75])[domains]
x1 = labels + torch.randn(600)
x2 = torch.where(agrees, labels, 1 - labels) + 0.1 * torch.randn(600)
loader = DataLoader(
    TensorDataset(torch.stack([x1, x2], 1), labels, domains), batch_size=120, shuffle=True
)

features = nn.Sequential(nn.Linear(2, 16), nn.ReLU())
classifier = nn.Linear(16, 2)
fishr = shoal.Fishr(num_domains=3, penalty_weight=100.0, ema_decay=0.95, warmup_steps=20)
optimiser = torch.optim.Adam([*features.parameters(), *classifier.parameters()], lr=1e-2)

for _ in range(20):
    for inputs, targets, ids in loader:
        z = features(inputs)
        logits = classifier(z)
        loss = F.cross_entropy(logits, targets) + fishr(z, logits, targets, ids)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

print(f"loss {loss.item():.3f} after {int(fishr.steps)} steps")
# fishr.state_dict() holds the running variances: save it with the model to resume later.
torch.save({"fishr": fishr.state_dict(), "head": classifier.state_dict()}, "checkpoint.pt")
