"""What a practitioner holds: fit a model to data of several domains, load it, predict with it."""

from .classifier import DomainClassifier
from .loading import load
from .predictor import Prediction, Predictor

__all__ = ["DomainClassifier", "Prediction", "Predictor", "load"]
