"""``shoal hparams``: the hyperparameters of one draw of the random search."""

import argparse
from dataclasses import asdict, fields
from typing import Any

from ..catalogue import own_dataset, own_method
from ..report.screen import open_console, plain, print_json
from .extras import require
from .options import add_search, add_settings, settings, whole
from .terminal import table


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "hparams",
        help="show a method's hyperparameters: defaults, search ranges, one draw of the search",
        description="Show the hyperparameters of a method on a data set: the values of one draw, "
        "the distributions that DomainBed's random search draws from, and what each one does.",
        examples="""
            shoal hparams fishr --dataset pacs
            shoal hparams fishr --dataset pacs --draw 3 --json
            shoal hparams fishr --dataset office-home --set 'penalty_weight=10^U(1, 5)'
        """,
    )
    parser.add_argument(
        "algorithm",
        type=own_method,
        metavar="ALGORITHM",
        help="a name from 'shoal list algorithms', or your own class: package.module:Class or "
        "path/to/file.py:Class",
    )
    parser.add_argument(
        "--dataset",
        type=own_dataset,
        required=True,
        metavar="NAME",
        help="a name from 'shoal data list', such as colored-mnist or pacs; defaults and ranges "
        "depend on it",
    )
    parser.add_argument(
        "--trial",
        type=whole,
        default=0,
        metavar="T",
        help="trial of the search, DomainBed's trial_seed (default: %(default)s)",
    )
    parser.add_argument(
        "--draw",
        type=whole,
        default=0,
        metavar="K",
        help="draw of the search, DomainBed's hparams_seed; 0 is the defaults "
        "(default: %(default)s)",
    )
    add_search(parser)
    add_settings(
        parser,
        "change the search: a fixed value (lr=0.01), another distribution "
        "('penalty_weight=10^U(1, 5)'), or a default and a distribution "
        "('ema_decay=0.95 ~ U(0.9, 0.99)')",
    )
    parser.add_argument("--json", action="store_true", help="print names and values as JSON")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    require(*([] if options.json else ["rich"]))
    from ..algorithms.hparams import constant, draw, own_names, search_settings, searches
    from ..catalogue import DATASETS, title_of
    from ..choices import choose
    from .methods import with_settings

    method, given = with_settings(options.algorithm)
    dataset = choose("data set", options.dataset, DATASETS)
    kind = method.Hparams
    given = search_settings(kind, dataset, options.search) | given
    given |= own_names(kind, settings(options.set))
    values = asdict(draw(kind, dataset, options.trial, options.draw, given))
    if options.json:
        print_json(values, indent=2)
        return 0

    which = f"draw {options.draw}" if options.draw else "draw 0 (the defaults)"
    mild = ", mild search" if options.search == "mild" else ""
    method_and_data = f"{title_of(options.algorithm)} on {DATASETS[dataset].title}"
    rows = table(
        f"{method_and_data}: trial {options.trial}, {which}{mild}",
        "Second line: DomainBed's name. –: fixed, not searched. --json prints every digit.",
    )
    rows.add_column("Name", no_wrap=True)
    rows.add_column("Value", overflow="fold")
    rows.add_column("Search", overflow="fold", min_width=16)
    rows.add_column("What it is", overflow="fold", min_width=16)
    found = searches(kind, dataset, given)
    for f in fields(kind):
        name, key, value = plain(f.name), f.metadata["key"], values[f.name]
        if key != f.name:
            name.append(f"\n  {key}", style="dim")
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        search = found[f.name].distribution.text
        searched = search != constant(value).text
        row = (shown, search if searched else "–", f.metadata["help"])
        rows.add_row(name, *map(plain, row))
    open_console().print(rows)
    return 0
