"""``shoal reproduce linear``: the linear example of the appendix."""

import argparse
from typing import Any

from .outcome import add_out, write


def add(experiments: Any) -> None:
    """Add the experiment."""
    parser = experiments.add_parser(
        "linear",
        help="the linear example, and the window in which it holds (tab:appendix-linear)",
        description="Logistic regression on four features: ERM, Fish and Fishr. The data are "
        "reconstructed from the stated accuracies. Seconds on a CPU.",
    )
    add_out(parser, "linear")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ...experiments import linear
    from ...experiments.linear import linear_window
    from ...experiments.sheets import linear_sheets

    result = linear.run()
    figures = {"linear-window": linear_window(result)}
    write(options.out, "shoal reproduce linear", result, linear_sheets(result), figures)
    return 0
