"""``shoal reproduce hessian``: Fishr aligns the domains' Hessians."""

import argparse
from typing import Any

from ..arguments import device, positive
from ..terminal import bars
from .outcome import add_device, add_out, add_size, opened, write


def add(experiments: Any) -> None:
    """Add the experiment."""
    parser = experiments.add_parser(
        "hessian",
        help="Hessians and gradient variances, ERM against Fishr "
        "(table:simhessiangradvar, table:hessianermfishr, four figures)",
        description="Colored MNIST with two logits: exact Hessian diagonals in all weights on the "
        "way. A point per step on a GPU; on a CPU give --small --every 10.",
    )
    parser.add_argument("--restarts", type=positive, default=1, help="default: %(default)s")
    parser.add_argument(
        "--every", type=positive, default=1, metavar="N", help="steps between points (default: 1)"
    )
    add_size(parser)
    add_device(parser)
    add_out(parser, "hessian")
    parser.set_defaults(run=_run, after_interrupt="restarts that are done are kept")


def _run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from ...experiments import hessian
    from ...experiments.hessian import gap_dynamics, hessian_dynamics
    from ...experiments.sheets import hessian_sheets

    setup, folder = opened(options)
    with bars("steps") as shown:
        records = hessian.run(
            options.restarts, options.every, setup, device(options.device), folder, shown
        )
    result = {"setup": asdict(setup), "tables": hessian.tables(records), "records": records}
    figures = {}
    for name, mine in records.items():
        curves = hessian.mean_curves(mine)
        jump = setup.jump_step if name == "Fishr" else None
        figures[f"dynamics-{name.lower()}"] = gap_dynamics(curves, name, jump)
        figures[f"hessian-{name.lower()}"] = hessian_dynamics(curves, name, jump)
    command = f"shoal reproduce hessian --restarts {options.restarts} --every {options.every}"
    command += " --small" if options.small else ""
    write(options.out, command, result, hessian_sheets(result), figures)
    return 0
