"""Data sets as ordered, named domains, and the MNIST digits that come with the package."""

from .mnist import Digits, test_digits, train_digits

__all__ = ["Digits", "test_digits", "train_digits"]
