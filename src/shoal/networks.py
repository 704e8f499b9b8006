"""f_θ = w_ω ∘ Φ_φ: networks with ``.features`` and ``.classifier``."""

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """A perceptron on vectors with two hidden ReLU layers, as in the IRM setup.

    Weights are Xavier-uniform from ``generator``, biases zero.
    """

    def __init__(
        self, inputs: int, hidden: int, outputs: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.classifier = nn.Linear(hidden, outputs)
        for parameter in self.parameters():
            if parameter.ndim == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_uniform_(parameter, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(inputs))
        return logits
