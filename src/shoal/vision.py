"""Vision: torchvision beside the installed torch, where its compiled operators may be missing."""

import sys
from importlib import import_module

import torch

__all__ = ["mend_torchvision"]

# The operators that torchvision's Python code names while it is imported.
OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# Declarations last as long as their library.
_declared: list[torch.library.Library] = []


def mend_torchvision() -> bool:
    """Make ``import torchvision`` work if only its compiled operators do not fit torch.

    Beside a CPU build of torch, torchvision's wheel from the package index ends with "operator
    torchvision::nms does not exist", and so does every package that imports it: Lightning,
    Transformers, timm. The operators are declared here without an implementation. Then its
    networks and transforms work; ``torchvision.ops`` and ``torchvision.io`` do not.

    Call it before the import of such a package. Nothing happens if torchvision is absent or works.

    Returns:
        Whether operators were declared.
    """
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        return False
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    else:
        return False
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in OPERATORS:
        library.define(f"{operator}{SCHEMA}")
    _declared.append(library)
    import_module("torchvision")
    return True


def explain_torchvision(error: Exception) -> str:
    """Return why torchvision, or a package that imports it, fails; and what to do."""
    if "torchvision" not in str(error):
        return f"it is installed, but cannot be imported beside torch {torch.__version__} ({error})"
    return (
        f"torchvision is installed, but was built for another torch than {torch.__version__} "
        f"({error}). Install both from one index, for a CPU: pip install "
        "--force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cpu. "
        "For its networks alone, call shoal.vision.mend_torchvision() first. shoal's own networks "
        "(resnet18, resnet50, mobilenet-v2, efficientnet-lite0) need no torchvision"
    )
