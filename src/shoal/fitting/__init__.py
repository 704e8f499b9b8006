"""What a practitioner holds: fit a model to data of several domains, load it, predict with it."""

from .classifier import DomainClassifier
from .predictor import Prediction, Predictor, load

__all__ = ["DomainClassifier", "Prediction", "Predictor", "load"]
