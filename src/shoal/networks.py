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
        self.initialise(generator)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, in place."""
        for parameter in self.parameters():
            if parameter.ndim == 1:
                nn.init.zeros_(parameter)
            else:
                # Drawn on the host, so that every device starts from the same weights.
                drawn = torch.empty(parameter.shape)
                nn.init.xavier_uniform_(drawn, generator=generator)
                with torch.no_grad():
                    parameter.copy_(drawn)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(inputs))
        return logits
