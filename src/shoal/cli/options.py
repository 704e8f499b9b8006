"""What several commands take: numbers, settings, a device."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..catalogue import (
    EVALUATED,
    LOGS,
    OPTIMISERS,
    PLACES,
    PRECISIONS,
    SCHEDULES,
    STEP_KINDS,
)
from ..results.selection import ALL_RULES
from .loading import add_data_options


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


def add_keep_best(parser: Any) -> None:
    """Add which weights a run keeps beside its last."""
    parser.add_argument(
        "--keep-best",
        nargs="+",
        default=[],
        choices=ALL_RULES,
        metavar="RULE",
        help="keep weights that these rules of selection may choose, for 'shoal select': "
        f"{', '.join(ALL_RULES)}",
    )


def add_settings(parser: Any, told: str) -> None:
    """Add hyperparameters by name; ``settings`` reads them."""
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=told
    )


def add_precision(parser: Any) -> None:
    """Add the numbers that a network computes with."""
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")


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


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add them in three groups."""
    name_domains(parser)
    _what(parser)
    _how(parser)
    _where(parser)


def _what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained")
    add_data_options(group)
    group.add_argument(
        "--algorithm",
        default="fishr",
        metavar="NAME",
        help="a name of 'shoal list algorithms', or your own: package.module:Class or "
        "path/to/file.py:Class (default: %(default)s)",
    )
    group.add_argument(
        "--test-domain",
        nargs="+",
        action="extend",
        default=[],
        metavar="DOMAIN",
        help="not trained on, and measured; without it all domains are trained on",
    )
    group.add_argument("--trial", type=whole, default=0, metavar="T", help="of data and splits")
    group.add_argument(
        "--draw", type=whole, default=0, metavar="K", help="of the hyperparameters; 0: defaults"
    )
    add_settings(group, "hyperparameters: lr=0.01, penalty_weight=100")


def _how(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument("--steps", type=positive, default=5001, help="updates (default: 5001)")
    group.add_argument(
        "--record-every",
        type=positive,
        metavar="N",
        help="updates between records (default: DomainBed's: 100 for MNIST, 300, 1000 for "
        "DomainNet)",
    )
    group.add_argument(
        "--network",
        metavar="NAME",
        help="mnist-cnn, wide-resnet, resnet18, resnet50, efficientnet-lite0, torchvision:… or "
        "timm:… (default: by the images' size)",
    )
    group.add_argument(
        "--weights",
        metavar="WHICH",
        help="what a large network begins with: imagenet (default), none, or a file",
    )
    add_precision(group)
    group.add_argument(
        "--exact",
        action="store_true",
        help="decode and augment every original image in every step, as DomainBed does: slow",
    )
    group.add_argument("--no-augment", action="store_true", help="train on images as they are")
    group.add_argument(
        "--holdout",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="of every domain, held out (default: %(default)s)",
    )
    group.add_argument(
        "--evaluate",
        choices=EVALUATED,
        default="needed",
        help="splits: what model selection needs, or also what is trained on",
    )
    group.add_argument("--optimiser", choices=OPTIMISERS, default="adam")
    group.add_argument("--schedule", choices=SCHEDULES, default="constant")
    group.add_argument("--clip", type=float, metavar="NORM", help="largest norm of a gradient")
    group.add_argument(
        "--balanced", action="store_true", help="draw all classes of a domain equally often"
    )
    group.add_argument(
        "--train-batch-norm",
        action="store_true",
        help="let batch norm of large networks follow the data (default: its statistics stay)",
    )


def _where(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where")
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: out/runs/…)"
    )
    group.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU where there is one"
    )
    group.add_argument(
        "--step",
        choices=("auto", *STEP_KINDS),
        default="auto",
        help="how an update runs: compiled and captured, captured, or neither (default: on a GPU "
        "compiled for large networks, captured for small ones; eager on a CPU)",
    )
    group.add_argument(
        "--place",
        choices=PLACES,
        default="auto",
        help="of the images: on the device where they fit",
    )
    group.add_argument(
        "--micro-batch",
        type=positive,
        metavar="IMAGES",
        help="so many through a large network at a time, which changes no result (default: all, "
        "and fewer where memory runs out)",
    )
    group.add_argument(
        "--checkpoint-every",
        type=float,
        metavar="SECONDS",
        help="default: as often as costs 2 %% of the time",
    )
    group.add_argument(
        "--deterministic", action="store_true", help="bit for bit on a GPU too, slower"
    )
    group.add_argument(
        "--predictions",
        action="store_true",
        help="write what the model says of every image, and its confusion of classes",
    )
    add_log(group)
    add_keep_best(group)
    group.add_argument("--tensorboard", action="store_true", help="write curves for TensorBoard")
    group.add_argument("--json", action="store_true", help="print the last record as JSON")


def add_log(parser: Any) -> None:
    """Add what records hold beside accuracies."""
    parser.add_argument(
        "--log",
        choices=LOGS,
        help="also record, in the head, the gaps between training domains in risk, gradient "
        "variance and Hessian diagonal, and the cosine of the last two; or with them all that "
        "diagnose says; changes no update",
    )
