"""Networks for images by the names that people know them by."""

from difflib import get_close_matches
from importlib import import_module

from .by_shape import NETWORKS

LARGE = [name for name, inputs in NETWORKS.items() if inputs.startswith("224")]


def backbone_name(name: str) -> str:
    """Return what ``for_data`` calls a network for 224 × 224 images.

    A bare name is one of shoal's own, else torchvision's, else timm's, where these are installed.
    """
    if name in LARGE or ":" in name:
        return name
    known, packages = list(LARGE), []
    for package, listed in (("torchvision", "torchvision.models"), ("timm", "timm")):
        try:
            names = import_module(listed).list_models()
        except (ImportError, OSError, RuntimeError):  # not there, or built for another torch
            continue
        if name.partition(".")[0] in names:  # timm's names end in the weights: resnet50.a1_in1k
            return f"{package}:{name}"
        known += names
        packages.append(package)
    nearest = get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    where = f" and all of {' and '.join(packages)}" if packages else ""
    more = "" if packages else "; for more: pip install 'shoal[vision]'"
    raise ValueError(f"unknown backbone {name!r}; {hint}One of: {', '.join(LARGE)}{where}{more}")
