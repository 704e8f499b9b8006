"""``shoal reproduce landscape`` and ``gradients``: what trained models look like."""

import argparse
from typing import Any

from ..arguments import device
from ..terminal import bars
from .outcome import add_device, add_out, add_size, opened, write


def add(experiments: Any) -> None:
    """Add both experiments."""
    landscape = experiments.add_parser(
        "landscape",
        help="two domains' risks around trained weights (fig:fig_consistenty)",
        description="Colored MNIST, ERM and Fishr: ε-level sets of each domain's risk in a plane "
        "of the classifier's weights, and Proposition 1 taken apart into R and H.",
    )
    landscape.add_argument(
        "--epsilon", type=float, default=0.05, metavar="ε", help="default: %(default)s"
    )
    gradients = experiments.add_parser(
        "gradients",
        help="gradients of single examples of two domains (the introduction's figure)",
        description="Colored MNIST, ERM and Fishr: individual gradients of both training domains "
        "in their two principal directions.",
    )
    for parser, name, run in (
        (landscape, "landscape", _landscape),
        (gradients, "gradients", _gradients),
    ):
        add_size(parser)
        add_device(parser)
        add_out(parser, name)
        parser.set_defaults(run=run, after_interrupt="models that are trained are kept")


def _landscape(options: argparse.Namespace) -> int:
    from ...experiments import landscape
    from ...experiments.landscape import landscape_figure
    from ...experiments.sheets import landscape_sheet

    if not options.epsilon > 0:
        raise ValueError(f"--epsilon must be above 0, got {options.epsilon:g}")
    setup, folder = opened(options)
    with bars("steps") as shown:
        result = landscape.run(options.epsilon, setup, device(options.device), folder, shown)
    figures = {"landscape": landscape_figure(result)}
    command = f"shoal reproduce landscape --epsilon {options.epsilon:g}{_small(options)}"
    write(options.out, command, result, [landscape_sheet(result)], figures)
    return 0


def _gradients(options: argparse.Namespace) -> int:
    from ...experiments import gradients
    from ...experiments.gradients import gradient_scatter
    from ...experiments.sheets import gradient_sheet

    setup, folder = opened(options)
    with bars("steps") as shown:
        result = gradients.run(setup, device(options.device), folder, shown)
    figures = {"gradients": gradient_scatter(result)}
    command = f"shoal reproduce gradients{_small(options)}"
    write(options.out, command, result, [gradient_sheet(result)], figures)
    return 0


def _small(options: argparse.Namespace) -> str:
    return " --small" if options.small else ""
