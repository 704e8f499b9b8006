"""Statistics: one row per domain, ``[E, P]``, differentiable in the network's weights."""

from ..gradients.double_backward import twice_differentiable
from ..gradients.examples import Loss, individual_losses
from ..gradients.job import Form
from ..gradients.precision import precise
from ..replay import first_order
from .head import feature_moments, head_mean, head_rows, head_variance, scale_slopes
from .network import (
    Recorded,
    covariance_spread,
    gradient_mean,
    gradient_variance,
    losses_and_variance,
)

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
