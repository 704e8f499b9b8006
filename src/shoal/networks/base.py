"""What every network is: a feature extractor Φ_φ, a head w_ω, and the inputs that it expects."""

from typing import NamedTuple

from torch import Tensor, nn


class Preprocessing(NamedTuple):
    """Mean and standard deviation of each colour, of images in 0 … 1, that a network expects."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Network(nn.Module):
    """A classifier of a feature extractor Φ_φ and a head w_ω.

    ``preprocessing`` says how images are to be normalised first; None leaves them as they are.
    """

    def __init__(
        self,
        features: nn.Module,
        classifier: nn.Module,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.preprocessing = preprocessing

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(inputs))
        return logits


def head_sizes(classifier: nn.Module) -> tuple[int, int]:
    """Return p and C: the inputs of the classifier's first linear layer, the last one's outputs."""
    layers = [part for part in classifier.modules() if isinstance(part, nn.Linear)]
    if not layers:
        raise TypeError(
            f"the classifier must have a linear layer, {type(classifier).__name__} has none"
        )
    return layers[0].in_features, layers[-1].out_features
