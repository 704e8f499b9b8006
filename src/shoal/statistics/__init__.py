"""Statistics: one row per domain, ``[E, P]``, differentiable in the network's weights."""

from ..gradients.sources import Form
from .head import (
    feature_moments,
    feature_variance,
    group_moments,
    head_gradients,
    head_mean,
    head_rows,
    head_variance,
    scale_slopes,
)
from .individual import NoiseScale, fisher_diagonal, gradient_noise_scale, gradient_norms
from .network import (
    Recorded,
    covariance_spread,
    gradient_mean,
    gradient_similarity,
    gradient_variance,
    losses_and_variance,
)

__all__ = [
    "Form",
    "NoiseScale",
    "Recorded",
    "covariance_spread",
    "feature_moments",
    "feature_variance",
    "fisher_diagonal",
    "gradient_mean",
    "gradient_noise_scale",
    "gradient_norms",
    "gradient_similarity",
    "gradient_variance",
    "group_moments",
    "head_gradients",
    "head_mean",
    "head_rows",
    "head_variance",
    "losses_and_variance",
    "scale_slopes",
]
