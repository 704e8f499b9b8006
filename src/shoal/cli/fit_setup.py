"""How ``shoal fit`` chooses what nobody asked for, and says so."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .arguments import settings
from .durations import shown
from .fit_options import BACKBONE


def setup_of(options: argparse.Namespace, material: Any, on: Any, out: Path) -> Any:
    """Return how the model is fitted; what was chosen in ``out`` before stays."""
    from ..fitting.lengths import table_length
    from ..fitting.setup import STEPS, Setup, kept_setup
    from ..networks.registry import backbone_name

    before = kept_setup(out) or {}
    kind = "images" if material.table is None else "table"
    gpu = on.type == "cuda"
    trained = options.train
    if trained == "auto":
        trained = before.get("trained", "all" if gpu or kind == "table" else "head")
    usual = STEPS[trained]
    if material.table is not None:
        usual = table_length([len(domain) for domain in material.dataset.domains])
    return Setup(
        material.dataset.name,
        material.dataset.fingerprint,
        kind,
        trained,
        backbone_name(options.backbone) if kind == "images" else None,
        options.steps or before.get("steps", usual),
        before.get("precision", "bf16" if gpu and trained == "all" else "float32"),
        settings(options.set),
        sum(map(len, material.dataset.domains)),
    )


def with_length(
    options: argparse.Namespace,
    setup: Any,
    world: Any,
    out: Path,
    seconds: float | None,
    note: Callable[[str], object],
) -> Any:
    """Return the setup with as many updates as there is time for, where that is left open.

    Where the time is too short for even the fewest of them, that is told with what to do. Heads and
    MLPs take seconds anyway; several processes would have to agree.
    """
    from ..distributed import processes
    from ..fitting.lengths import length_within
    from ..fitting.setup import kept_setup

    chosen = options.steps is not None or kept_setup(out) is not None
    large = setup.kind == "images" and not setup.frozen
    if seconds is None or chosen or not large or processes() > 1:
        return setup
    note("timing a few updates, to see how long runs can be")
    steps, least = length_within(seconds, setup, world)
    if least > seconds:
        note(
            f"the time is too short: two domains left out for each method and the model itself "
            f"take about {shown(least)} even with {steps:,} updates a run, and "
            f"{shown(max(seconds, 0))} are left; it goes on all the same. What helps: a longer "
            "--time, --train head, or fewer --steps"
        )
    return replace(setup, steps=steps)


def check_kind(options: argparse.Namespace) -> None:
    """Raise where an option is for the other kind of data, and would do nothing."""
    from ..fitting.inspection import is_table

    columns = {
        "--class-column": options.class_column != "class",
        "--domain-column": options.domain_column != "domain",
        "--leave-out": bool(options.leave_out),
    }
    images = {
        "--layout": options.layout is not None,
        "--train": options.train != "auto",
        "--backbone": options.backbone != BACKBONE,
    }
    if options.data.is_dir():
        given, other, what = columns, "a table", "a folder of images"
    elif not options.data.is_file():
        return  # which is told when it is read
    elif is_table(options.data):
        given, other, what = images, "images", "a table"
    else:
        given, other, what = columns, "a table", "a manifest of images"
    for name, is_given in given.items():
        if is_given:
            hint = "; to do without a domain, take it out of there" if name == "--leave-out" else ""
            raise ValueError(f"{name} is for {other}, and {options.data} is {what}{hint}")


def check_backbone(options: argparse.Namespace, on: Any) -> None:
    """Raise where images are to be read and there is no such network.

    Before they are, because that takes long; what is not installed would fail every run.
    """
    from ..fitting.frozen_features import pretrained
    from ..fitting.inspection import is_table
    from ..networks.registry import backbone_name

    if not is_table(options.data):
        pretrained(backbone_name(options.backbone), 2, on)


def tell(
    options: argparse.Namespace,
    setup: Any,
    on: Any,
    material: Any,
    methods: int,
    seconds: float | None,
) -> None:
    """Say what will be done, and why."""
    if setup.kind == "table":
        print(f"An MLP of {setup.steps:,} updates in every run.")
    elif setup.frozen:
        why = "There is no GPU, so " if options.train == "auto" and on.type == "cpu" else ""
        print(
            f"{why}{'t' if why else 'T'}he features of {setup.backbone} stay as they are, and a "
            "head is trained on them (--train all for the whole network, which takes hours on a "
            "CPU)."
        )
    else:
        print(
            f"All weights of {setup.backbone} are trained, {setup.steps:,} updates a run (--steps "
            "for more or fewer)."
        )
    domains = len(material.dataset.names)
    whole = methods * domains
    most = min(whole * options.trials, options.runs or 10**9)
    if most < whole:
        print(f"Up to {most} runs leave {most // methods} of {domains} domains out ({whole} all).")
    elif seconds:
        print(
            f"Up to {most} runs leave each domain out in turn, as many as {shown(seconds)} allow "
            "and at least two domains."
        )
    else:
        print(f"Up to {most} runs leave each domain out in turn.")
