"""``shoal hparams``: what a draw of the random search holds."""

import argparse
import json
from dataclasses import asdict, fields
from typing import Any

from .options import add_settings, settings, whole
from .terminal import table


def add(commands: Any) -> None:
    """Add the command."""
    summary = "the hyperparameters of a draw, as DomainBed's random search draws them"
    parser = commands.add_parser(
        "hparams", help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM",
        help="a name of 'shoal list algorithms', or your own: package.module:Class or "
        "path/to/file.py:Class",
    )
    parser.add_argument(
        "--dataset", required=True, metavar="NAME", help="such as colored-mnist or pacs"
    )
    parser.add_argument(
        "--trial", type=whole, default=0, metavar="T", help="trial_seed (default: %(default)s)"
    )
    parser.add_argument(
        "--draw",
        type=whole,
        default=0,
        metavar="K",
        help="hparams_seed; 0 is the defaults (default: %(default)s)",
    )
    add_settings(
        parser,
        "a value for every draw, a search, or both: lr=0.01, 'penalty_weight=10^U(1, 5)', "
        "'ema_decay=0.95 ~ U(0.9, 0.99)'",
    )
    parser.add_argument("--json", action="store_true", help="print names and values as JSON")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..algorithms.hparams import constant, draw, searches
    from ..catalogue import DATASETS, scale_of
    from ..choices import choose
    from .methods import with_settings

    method, given = with_settings(options.algorithm)
    kind, given = method.Hparams, given | settings(options.set)
    scale = scale_of(choose("data set", options.dataset, DATASETS))
    values = asdict(draw(kind, scale, options.trial, options.draw, given))
    if options.json:
        print(json.dumps(values, indent=2))
        return 0
    from rich.console import Console
    from rich.text import Text

    which = f"draw {options.draw}" if options.draw else "draw 0, the defaults"
    rows = table(
        f"{options.algorithm} on {options.dataset}: trial {options.trial}, {which}",
        "Under a name: DomainBed's. –: not searched. --json gives every digit.",
    )
    rows.add_column("Name", no_wrap=True)
    rows.add_column("Value", overflow="fold")
    rows.add_column("Search", overflow="fold", min_width=16)
    rows.add_column("What it is", overflow="fold", min_width=16)
    found = searches(kind, scale, given)
    for f in fields(kind):
        name, key, value = Text(f.name), f.metadata["key"], values[f.name]
        if key != f.name:
            name.append(f"\n  {key}", style="dim")
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        search = found[f.name].distribution.text
        searched = search != constant(value).text
        row = (shown, search if searched else "–", f.metadata["help"])
        rows.add_row(name, *map(Text, row))
    Console().print(rows)
    return 0
