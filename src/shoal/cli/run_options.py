"""The options of a run: what is trained, how, and where."""

import argparse
from pathlib import Path
from typing import Any

from .arguments import add_keep_best, add_precision, add_settings, name_domains, positive, whole
from .loading import add_data_options


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
        choices=("needed", "all"),
        default="needed",
        help="splits: what model selection needs, or also what is trained on",
    )
    group.add_argument("--optimiser", choices=("adam", "adamw", "sgd"), default="adam")
    group.add_argument("--schedule", choices=("constant", "cosine"), default="constant")
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
        choices=("auto", "compiled", "graph", "eager"),
        default="auto",
        help="how an update runs: compiled and captured, captured, or neither (default: on a GPU "
        "compiled for large networks, captured for small ones; eager on a CPU)",
    )
    group.add_argument(
        "--place",
        choices=("auto", "device", "host"),
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
        choices=("gaps", "diagnosis"),
        help="also record, in the head, the gaps between training domains in risk, gradient "
        "variance and Hessian diagonal, and the cosine of the last two; or with them all that "
        "diagnose says; changes no update",
    )
