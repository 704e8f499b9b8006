"""``shoal reproduce overhead``: what Fishr costs over ERM."""

import argparse
from typing import Any

from ..arguments import add_precision, device, positive
from .outcome import add_device, add_out, write


def add(experiments: Any) -> None:
    """Add the experiment."""
    parser = experiments.add_parser(
        "overhead",
        help="time and memory of Fishr over ERM, heads of PACS and DomainNet",
        description="Updates of ERM and Fishr take turns; medians beside the paper's +2.7 % and "
        "+6.5 % of time. On a CPU give a smaller --network, --size and --batch.",
    )
    parser.add_argument("--network", default="resnet50", help="default: %(default)s")
    parser.add_argument("--size", type=positive, default=224, help="of the images (default: 224)")
    parser.add_argument(
        "--batch", type=positive, default=32, help="images of each domain (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=positive, default=100, help="default: %(default)s")
    add_precision(parser)
    add_device(parser)
    add_out(parser, "overhead")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ...experiments.overhead import Work, overhead_figure, run
    from ...experiments.sheets import overhead_sheet

    work = Work(options.network, options.size, options.batch, options.rounds, options.precision)
    result = run(work, device(options.device))
    command = " ".join(["shoal reproduce overhead", *_given(work, Work())])
    figures = {"overhead": overhead_figure(result)}
    write(options.out, command, result, [overhead_sheet(result)], figures)
    return 0


def _given(work: Any, default: Any) -> list[str]:
    values = vars(work)
    return [f"--{n} {values[n]}" for n in values if values[n] != getattr(default, n)]
