"""Options that several commands share: numbers, hyperparameters, the device, a run's settings."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..catalogue import (
    AVERAGES,
    EVALUATED,
    LOGS,
    OPTIMISERS,
    PLACES,
    PRECISIONS,
    SCHEDULES,
    SEARCHES,
    STARTS,
    STEP_KINDS,
    own_method,
)
from ..results.selection import ALL_RULES
from .domainbed import refuse_setting
from .loading import add_data_options


def positive(text: str) -> int:
    """Return a whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text!r}")
    return int(text)


def whole(text: str) -> int:
    """Return a whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """Return a number above 0, at most 1."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and up to 1, got {text!r}")
    return found


def add_keep_best(parser: Any) -> None:
    """Add ``--keep-best``: which weights a run keeps as well as its last."""
    parser.add_argument(
        "--keep-best",
        nargs="+",
        default=[],
        choices=ALL_RULES,
        metavar="RULE",
        help="also keep the weights of records that these selection rules can choose, so that "
        f"'shoal select' can save them: {', '.join(ALL_RULES)} (default: only the last weights)",
    )


def add_averages(parser: Any) -> None:
    """Add ``--average``: which averages a run records, as ``averages_of`` reads them."""
    parser.add_argument(
        "--average",
        nargs="+",
        default=["all"],
        choices=("all", "none", *AVERAGES),
        metavar="NAME",
        help="averages of the weights along a run, recorded as rows of their own, with a model of "
        "each: sma (from update 100 on), half (the second half), swad (while the validation loss "
        "is low), all, or none (default: all). They change nothing about training",
    )


def averages_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the averages that ``--average`` names."""
    if "none" in names:
        if len(names) > 1:
            raise ValueError(f"--average none goes alone, got {' '.join(names)}")
        return ()
    return tuple(AVERAGES) if "all" in names else tuple(dict.fromkeys(names))


def add_predictions(parser: Any) -> None:
    """Add ``--predictions``."""
    parser.add_argument(
        "--predictions",
        action="store_true",
        help="write the model's prediction for every image, the logits of every evaluated split, "
        "and the confusion matrix",
    )


def add_settings(parser: Any, help_text: str) -> None:
    """Add ``--set``: hyperparameters by name, which ``settings`` reads."""
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=help_text
    )


def add_search(parser: Any) -> None:
    """Add ``--search``: what the draws of hyperparameters after draw 0 are drawn from."""
    parser.add_argument(
        "--search",
        choices=SEARCHES,
        default="domainbed",
        help="what hyperparameters are drawn from: domainbed, its wide search, or mild, DiWA's few "
        "values of learning rate, weight decay and dropout for large images, all else at its "
        "default: such runs can be averaged by 'shoal soup' (default: %(default)s)",
    )


def add_start(parser: Any) -> None:
    """Add ``--start``: the weights that training begins with."""
    parser.add_argument(
        "--start",
        "--start-from",  # torchrun takes --start for one of its own
        dest="start",
        choices=STARTS,
        default=STARTS[0],
        help="network: with a random head; linear-probe: the head is first fitted to the features "
        "of the training images, then everything is trained (LP-FT) (default: %(default)s)",
    )


def add_precision(parser: Any) -> None:
    """Add ``--precision``: the numbers that a network computes with."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="numbers that the network computes with; bf16 is faster on recent GPUs, and the "
        "statistics stay in float32 (default: %(default)s)",
    )


def add_device(parser: Any) -> None:
    """Add ``--device``, which ``device`` reads."""
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, cuda:1 for the second GPU, mps for a GPU of Apple's (untried), or auto: "
        "an NVIDIA GPU if there is one, else the CPU (default: %(default)s)",
    )


def add_out(parser: Any, name: str) -> None:
    """Add ``--out``: the folder of an experiment's results."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out") / name,
        metavar="DIR",
        help="folder for numbers, tables and figures (default: %(default)s)",
    )


def name_domains(parser: argparse.ArgumentParser) -> None:
    """Let the domain ``-90%`` follow an option; argparse would take it for an option."""
    parser._negative_number_matcher = re.compile(r"-\d")


def settings(given: Sequence[str]) -> dict[str, str]:
    """Return the values of ``--set name=value ...`` by name, as text."""
    found: dict[str, str] = {}
    for setting in given:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes name=value, got {setting!r}")
        refuse_setting(name)
        if name in found:
            raise ValueError(f"--set has {name} twice: {found[name]!r} and {text!r}")
        found[name] = text
    return found


def device(name: str) -> Any:
    """Return the torch device of ``--device``; raise if this machine does not have it."""
    import torch

    from ..runs.machine import usable_devices

    usable = usable_devices()
    if name == "auto":
        return torch.device("cuda" if "cuda" in usable else "cpu")
    unknown = ValueError(f"unknown device {name!r}; one of: auto, cpu, cuda, cuda:0, mps …")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise unknown from None
    if found.type not in ("cpu", "cuda", "mps"):
        raise unknown
    if found.type not in usable:
        raise ValueError(f"--device {name}: torch finds no such GPU; use --device cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"--device {name}: torch finds {count} GPU(s), counted from cuda:0")
    return found


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of one run, in three groups."""
    name_domains(parser)
    _add_subject(parser)
    _add_protocol(parser)
    _add_machine(parser)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to train")
    add_data_options(group)
    group.add_argument(
        "--algorithm",
        type=own_method,
        default="fishr",
        metavar="NAME",
        help="a name from 'shoal list algorithms', or your own class: package.module:Class or "
        "path/to/file.py:Class (default: %(default)s)",
    )
    group.add_argument(
        "--test-domain",
        nargs="+",
        action="extend",
        default=[],
        metavar="DOMAIN",
        help="domains to keep out of training and to test on (default: none, train on all)",
    )
    group.add_argument(
        "--trial",
        type=whole,
        default=0,
        metavar="T",
        help="seed of the data split, the initial weights and the batches (default: %(default)s)",
    )
    group.add_argument(
        "--draw",
        type=whole,
        default=0,
        metavar="K",
        help="which hyperparameters of the random search; 0 is the defaults; 'shoal hparams' "
        "shows them (default: %(default)s)",
    )
    add_search(group)
    add_settings(group, "fix hyperparameters, for example lr=0.01 penalty_weight=100")


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to train (part of the run's identity)")
    group.add_argument(
        "--steps",
        type=positive,
        default=5001,
        metavar="N",
        help="number of updates (default: %(default)s, as DomainBed)",
    )
    group.add_argument(
        "--record-every",
        type=positive,
        metavar="N",
        help="updates between two evaluations (default: as DomainBed: 100 on MNIST, 1000 on "
        "DomainNet, otherwise 300)",
    )
    group.add_argument(
        "--network",
        metavar="NAME",
        help="mnist-cnn, wide-resnet, resnet18, resnet50, mobilenet-v2, efficientnet-lite0, "
        "torchvision:NAME or timm:NAME (default: chosen by the size of the images)",
    )
    group.add_argument(
        "--weights",
        metavar="WHICH",
        help="initial weights of a large network: imagenet, none, or a file (default: imagenet)",
    )
    add_start(group)
    add_precision(group)
    group.add_argument(
        "--exact",
        action="store_true",
        help="decode and augment the original image files in every step, exactly as DomainBed "
        "does; slow (default: images decoded once, then cached)",
    )
    group.add_argument(
        "--no-augment", action="store_true", help="train on the images without augmentation"
    )
    group.add_argument(
        "--holdout",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="share of every domain held out for validation (default: %(default)s)",
    )
    group.add_argument(
        "--evaluate",
        choices=EVALUATED,
        default="needed",
        help="evaluate only the splits that model selection needs, or all splits, training "
        "images too (default: %(default)s)",
    )
    group.add_argument(
        "--optimiser", choices=OPTIMISERS, default="adam", help="default: %(default)s"
    )
    group.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="constant",
        help="learning rate over the run; cosine falls to 0 (default: %(default)s)",
    )
    group.add_argument(
        "--clip",
        type=float,
        metavar="NORM",
        help="clip the gradient to this norm (default: no clipping)",
    )
    group.add_argument(
        "--balanced",
        action="store_true",
        help="sample all classes of a domain equally often (default: as frequent as they are)",
    )
    group.add_argument(
        "--train-batch-norm",
        action="store_true",
        help="update the batch-norm statistics of large networks (default: frozen)",
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to run and what to write")
    group.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the run's folder (default: a name built from the settings, in out/runs)",
    )
    add_device(group)
    group.add_argument(
        "--step",
        choices=("auto", *STEP_KINDS),
        default="auto",
        help="how an update runs: compiled (by torch.compile, in a CUDA graph), graph (a CUDA "
        "graph) or eager (default: auto: on a GPU graph, or compiled if the run is long enough to "
        "pay for it; on a CPU eager)",
    )
    group.add_argument(
        "--place",
        choices=PLACES,
        default="auto",
        help="where the images are: in the device's memory or the host's (default: auto: the "
        "device if they fit)",
    )
    group.add_argument(
        "--micro-batch",
        type=positive,
        metavar="IMAGES",
        help="images that go through a large network at once; changes memory, not results "
        "(default: the whole batch, fewer if memory runs out)",
    )
    group.add_argument(
        "--checkpoint-every",
        type=float,
        metavar="SECONDS",
        help="time between checkpoints (default: as often as costs 2 %% of the run's time)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="bit-identical results on a GPU too; slower",
    )
    add_predictions(group)
    add_log(group)
    add_keep_best(group)
    add_averages(group)
    group.add_argument("--tensorboard", action="store_true", help="write curves for TensorBoard")
    group.add_argument("--json", action="store_true", help="print the last record as JSON")


def add_log(parser: Any) -> None:
    """Add ``--log``: what records hold as well as accuracies."""
    parser.add_argument(
        "--log",
        choices=LOGS,
        help="also record statistics of the classifier head; training does not change. gaps: "
        "differences between training domains in risk, gradient variance and Hessian diagonal; "
        "diagnosis: also the numbers of 'shoal diagnose' (default: accuracies only)",
    )
