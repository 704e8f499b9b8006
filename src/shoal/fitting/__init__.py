"""Fitting: train a model on your own data of several domains, load it, predict with it."""

from .classifier import DomainClassifier
from .predictor import Prediction, Predictor, load

__all__ = ["DomainClassifier", "Prediction", "Predictor", "load"]
