"""Networks f_θ = w_ω ∘ Φ_φ with ``.features`` and ``.classifier``, and smaller parts of methods."""

from .backbones import backbone, from_module
from .base import Dropout, Network, Preprocessing, draw_weights, dropout, head_sizes
from .efficientnet_lite import efficientnet_lite0
from .mobilenets import mobilenet_v2
from .registry import NETWORKS, for_data
from .resnets import resnet
from .small import (
    MLP,
    Standardise,
    WithRanks,
    context_net,
    fold_standardisation,
    measure_inputs,
    mnist_cnn,
    perceptron,
    vector_mlp,
    wide_resnet,
)
from .stages import FrozenCopy, moved_stages

__all__ = [
    "MLP",
    "NETWORKS",
    "Dropout",
    "FrozenCopy",
    "Network",
    "Preprocessing",
    "Standardise",
    "WithRanks",
    "backbone",
    "context_net",
    "draw_weights",
    "dropout",
    "efficientnet_lite0",
    "fold_standardisation",
    "for_data",
    "from_module",
    "head_sizes",
    "measure_inputs",
    "mnist_cnn",
    "mobilenet_v2",
    "moved_stages",
    "perceptron",
    "resnet",
    "vector_mlp",
    "wide_resnet",
]
