"""Statistics: one row per domain, ``[E, P]``, differentiable in the network's weights."""

from ..gradients.elementary import twice_differentiable
from ..gradients.job import Form
from ..gradients.losses import Loss, individual_losses
from ..gradients.precision import precise
from ..gradients.repeat import first_order
from .covariance import covariance_spread
from .features import feature_moments, scale_slopes
from .head import head_mean, head_rows, head_variance
from .network import gradient_mean, gradient_variance, losses_and_variance
from .recorded import Recorded

__all__ = [
    "Form",
    "Loss",
    "Recorded",
    "covariance_spread",
    "feature_moments",
    "first_order",
    "gradient_mean",
    "gradient_variance",
    "head_mean",
    "head_rows",
    "head_variance",
    "individual_losses",
    "losses_and_variance",
    "precise",
    "scale_slopes",
    "twice_differentiable",
]
