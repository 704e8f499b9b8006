"""Many domains with few examples each, such as users or writers: a step sees some of them."""

import torch
import torch.nn.functional as F
from torch import nn

import shoal

E, EACH, INPUTS, CLASSES = 200, 12, 8, 3
torch.manual_seed(0)
data = torch.randn(E, EACH, INPUTS) + torch.randn(E, 1, INPUTS)
targets = torch.randint(CLASSES, (E, EACH))

features = nn.Sequential(nn.Linear(INPUTS, 32), nn.ReLU())
classifier = nn.Linear(32, CLASSES)
# A variance of a few examples is noisy; a long moving average makes it useful. Fishr matches
# v̄ / (1 − γ), so a longer average needs a smaller λ. Domains with fewer than two examples in a
# batch neither decay nor take part, and the average corrects for domains that are seen less often.
# So batches can be drawn in any way.
fishr = shoal.Fishr(num_domains=E, penalty_weight=1.0, ema_decay=0.99, warmup_steps=20)
optimiser = torch.optim.Adam([*features.parameters(), *classifier.parameters()], lr=1e-3)

for _ in range(60):
    # 16 domains with 6 examples each are better than 96 examples of any domain: a variance needs
    # two examples of a domain, and more make it more exact.
    chosen = torch.randperm(E)[:16]
    which = torch.stack([torch.randperm(EACH)[:6] for _ in chosen])
    inputs = data[chosen[:, None], which].flatten(0, 1)
    labels = targets[chosen[:, None], which].flatten()
    domains = chosen.repeat_interleave(6)
    z = features(inputs)
    logits = classifier(z)
    loss = F.cross_entropy(logits, labels) + fishr(z, logits, labels, domains)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

counts = fishr.updates
print(f"loss {loss.item():.3f}; each domain seen {counts.min()} to {counts.max()} times")
