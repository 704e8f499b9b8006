"""What ``shoal fit`` takes."""

from pathlib import Path
from typing import Any

from .arguments import add_settings, positive
from .durations import duration
from .loading import add_cache_folder

TRIALS = 3


BACKBONE = "efficientnet-lite0"


def add_fit_options(parser: Any) -> None:
    """Add the data and all that can be chosen."""
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder of domain/class/file images, a .csv, .tsv or .json manifest of images, or a "
        "table (.csv, .tsv, .parquet) with a column of domains",
    )
    _add_what(parser.add_argument_group("what is tried"))
    _add_how(parser.add_argument_group("how"))
    _add_reading(parser.add_argument_group("how the data is read"))


def _add_what(group: Any) -> None:
    group.add_argument(
        "--algorithms",
        nargs="+",
        default=[],
        metavar="NAME",
        help="more methods, beside erm and fishr; see 'shoal list algorithms'",
    )
    group.add_argument(
        "--time",
        type=duration,
        metavar="T",
        help="for all of it: 90s, 10min, 2h; a bare number is minutes (default: 10min, where no "
        "--runs are given)",
    )
    group.add_argument("--runs", type=positive, metavar="N", help="to estimate with, at most")
    group.add_argument(
        "--trials",
        type=positive,
        default=TRIALS,
        metavar="N",
        help="splits of the data, at most (default: %(default)s)",
    )
    add_settings(group, "hyperparameters, for the methods that have them; see 'shoal hparams'")


def _add_how(group: Any) -> None:
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder to write (default: out/NAME-fit)"
    )
    group.add_argument(
        "--backbone",
        default=BACKBONE,
        metavar="NAME",
        help="the network for images: also any of torchvision's or timm's (default: %(default)s)",
    )
    group.add_argument(
        "--train",
        choices=("auto", "all", "head"),
        default="auto",
        help="all weights, or only a head on the network's features as they are, which a CPU can "
        "do in minutes (default: all on a GPU, head without)",
    )
    group.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="updates of each run (default: 600 of a head, 200 to 1000 of an MLP by the rows, and "
        "of a whole network 300 to 5000, as the time allows)",
    )
    group.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    add_cache_folder(group)


def _add_reading(group: Any) -> None:
    group.add_argument(
        "--layout",
        choices=("domain/class", "class/domain"),
        help="of the folders (default: domain/class)",
    )
    group.add_argument(
        "--class-column", default="class", metavar="NAME", help="of a table (default: class)"
    )
    group.add_argument(
        "--domain-column", default="domain", metavar="NAME", help="of a table (default: domain)"
    )
    group.add_argument(
        "--leave-out",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="of a table, that a model must not see",
    )
