"""f_θ = w_ω ∘ Φ_φ: networks with ``.features`` and ``.classifier``, and the smaller ones beside."""

from .backbones import backbone, from_module
from .base import Network, Preprocessing, head_sizes
from .by_shape import NETWORKS, for_data
from .dropping import Dropout, dropout
from .efficientnet_lite import efficientnet_lite0
from .initialise import drawn
from .resnet import resnet
from .small import MLP, context_net, mnist_cnn, perceptron, vector_mlp
from .standardised import Standardise, folded, measure_inputs
from .wide_resnet import wide_resnet

__all__ = [
    "MLP",
    "NETWORKS",
    "Dropout",
    "Network",
    "Preprocessing",
    "Standardise",
    "backbone",
    "context_net",
    "drawn",
    "dropout",
    "efficientnet_lite0",
    "folded",
    "for_data",
    "from_module",
    "head_sizes",
    "measure_inputs",
    "mnist_cnn",
    "perceptron",
    "resnet",
    "vector_mlp",
    "wide_resnet",
]
