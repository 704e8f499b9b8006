"""``shoal train``: one run of the protocol, in a folder of its own."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .arguments import device, positive, settings, whole
from .loading import add_data_options, cache_of, dataset_of
from .progress import run_progress


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help="train a method and measure it on a domain that it never saw",
        description="One run of DomainBed's protocol. An interrupted run goes on with the same "
        "command, and ends with the same numbers.",
    )
    _what(parser)
    _how(parser)
    _where(parser)
    parser.set_defaults(run=_run, after_interrupt="the same command goes on from its checkpoint")


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
    group.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="hyperparameters: lr=0.01, penalty_weight=100",
    )


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
    group.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    group.add_argument(
        "--exact",
        action="store_true",
        help="decode and augment every original image in every step, as DomainBed does: slow",
    )
    group.add_argument("--no-augment", action="store_true", help="train on images as they are")
    group.add_argument("--holdout", type=float, default=0.2, help="default: %(default)s")
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
    group.add_argument("--tensorboard", action="store_true", help="write curves for TensorBoard")
    group.add_argument("--json", action="store_true", help="print the last record as JSON")


def _run(options: argparse.Namespace) -> int:
    import json
    import sys

    from ..own import with_settings
    from ..protocol.execute import Machine, execute
    from ..protocol.folder import opened
    from ..protocol.run import Run, scale_of
    from .results import show_record
    from .tensorboard import Board

    on = device(options.device)
    if options.deterministic:
        _be_deterministic()
    method, given = with_settings(options.algorithm)
    dataset = dataset_of(options)
    for name in options.test_domain:
        dataset[name]  # an unknown one gets the nearest
    scale = scale_of(dataset.name)
    hparams = _hparams(method, scale, options, given)
    protocol, weights = _protocol(options, dataset, scale)
    tests = tuple(dict.fromkeys(options.test_domain))
    if len(tests) == len(dataset.domains):
        raise ValueError(f"no domain of {dataset.name} is left to train on")
    run = Run(
        dataset.name,
        dataset.fingerprint,
        options.algorithm,
        tests,
        options.trial,
        options.draw,
        hparams,
        protocol,
    )
    out = options.out or Path("out/runs") / _folder_name(run)
    machine = Machine(
        on,
        _step_kind(options.step, on, scale),
        options.place,
        weights,
        options.checkpoint_every,
        options.predictions,
    )
    with opened(out, run) as folder:
        cache = None if folder.done else cache_of(dataset, options)
        board = Board(out / "tensorboard") if options.tensorboard else None
        with run_progress(f"{options.algorithm} on {dataset.name}") as shown:
            result = execute(
                run,
                method,
                dataset,
                cache,
                folder,
                machine,
                shown,
                board or (lambda _: None),
                lambda note: print(f"shoal: {note}", file=sys.stderr),
            )
    if options.json:
        print(json.dumps(result.records[-1]))
    else:
        show_record(result, run, out)
    return 0


def _hparams(method: Any, scale: str, options: argparse.Namespace, given: Any) -> dict[str, Any]:
    from ..algorithms.hparams import draw

    given = given | settings(options.set)
    return asdict(draw(method.Hparams, scale, options.trial, options.draw, given))


def _protocol(options: argparse.Namespace, dataset: Any, scale: str) -> tuple[Any, Any]:
    """Return the protocol, and what the network begins with on this machine."""
    import hashlib

    from torch import Tensor

    from ..protocol.run import RECORD_EVERY, Protocol

    large = not isinstance(dataset.domains[0].images, Tensor)
    weights: Any = options.weights
    if weights is None and large:
        weights = "imagenet"
    if weights == "none":
        weights = None
    named: str | None = weights
    if weights is not None and weights != "imagenet" and Path(weights).is_file():
        weights = Path(weights)
        named = hashlib.sha256(weights.read_bytes()).hexdigest()
    protocol = Protocol(
        steps=options.steps,
        record_every=options.record_every or RECORD_EVERY[scale],
        holdout=options.holdout,
        network=options.network,
        weights=named,
        precision=options.precision,
        images="exact" if options.exact else "cached",
        augment=not options.no_augment,
        balanced=options.balanced,
        frozen_statistics=not options.train_batch_norm,
        optimiser=options.optimiser,
        schedule=options.schedule,
        clip=options.clip,
        evaluate=options.evaluate,
    )
    return protocol, weights


def _step_kind(asked: str, on: Any, scale: str) -> Any:
    if asked != "auto":
        return asked
    if on.type != "cuda":
        return "eager"
    return "graph" if scale == "small" else "compiled"


def _folder_name(run: Any) -> str:
    tests = "+".join(run.test_domains) or "all"
    name = f"{run.dataset}-{run.algorithm}-{tests}-t{run.trial}-d{run.draw}"
    safe = "".join(c if c.isalnum() or c in "+-_.%" else "_" for c in name)
    return f"{safe}-{run.identity[:8]}"


def _be_deterministic() -> None:
    import os

    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
