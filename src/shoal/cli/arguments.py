"""What several commands take: numbers, settings, a device."""

import argparse
import re
from collections.abc import Sequence
from typing import Any


def positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text!r}")
    return int(text)


def whole(text: str) -> int:
    """Return a whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """Return a number above 0 and up to 1."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and up to 1, got {text!r}")
    return found


# Typed here, because to read them from where they are takes a second.
RULES = ("test-domain", "training-domain", "leave-one-domain-out", "calibrated")


def add_keep_best(parser: Any) -> None:
    """Add which weights a run keeps beside its last."""
    parser.add_argument(
        "--keep-best",
        nargs="+",
        default=[],
        choices=RULES,
        metavar="RULE",
        help="keep weights that these rules of selection may choose, for 'shoal select': "
        f"{', '.join(RULES)}",
    )


def add_settings(parser: Any, told: str) -> None:
    """Add hyperparameters by name; ``settings`` reads them."""
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=told
    )


def add_precision(parser: Any) -> None:
    """Add the numbers that a network computes with."""
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")


def name_domains(parser: argparse.ArgumentParser) -> None:
    """Let what follows an option be ``-90%``, which is a domain and no option."""
    parser._negative_number_matcher = re.compile(r"-\d")


def settings(given: Sequence[str]) -> dict[str, str]:
    """Return ``--set name=value ...`` as text by name."""
    found: dict[str, str] = {}
    for setting in given:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes name=value, got {setting!r}")
        if name in found:
            raise ValueError(f"--set has {name} twice: {found[name]!r} and {text!r}")
        found[name] = text
    return found


def device(name: str) -> Any:
    """Return the torch device of ``--device``."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; one of: auto, cpu, cuda, cuda:0 …") from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}; one of: auto, cpu, cuda, cuda:0 …")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda was asked for, but torch sees no GPU; use --device cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name} was asked for, torch sees {torch.cuda.device_count()}")
    return found
