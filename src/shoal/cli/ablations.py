"""``shoal reproduce ablation-…``: the paper's ablations, trained as sweeps."""

import argparse
from functools import cache, partial
from typing import Any

from ..catalogue import own_dataset, own_method
from .engine import add_engine_options, check_engine, run_sweep, workspace_of
from .extras import for_images
from .loading import add_places
from .options import add_precision, name_domains, positive
from .report import warn_of_twins
from .terminal import show_and_write

SUMMARIES = {
    "ablation-ema": "the moving average (table:ablationemacmnist, table:ablationemahome)",
    "ablation-iga": "gradient variances against means (table:igacmnist, table:igahome)",
    "ablation-lambda": "the range of λ (table:v15)",
}
RESUMES = "the same command resumes from here"


def add(experiments: Any) -> None:
    """Add the ablations, and γ against the batch size."""
    for name, summary in SUMMARIES.items():
        parser = experiments.add_parser(
            name,
            help=f"{summary}, as a sweep",
            description=f"Train the ablation of {summary} as a sweep, and print its tables next "
            "to the published ones. The same command resumes after any interruption; cells "
            "without runs are marked 'not run'.",
            examples=f"""
                shoal reproduce {name} --out out/{name} --workers 2
                shoal reproduce {name} --dataset office-home --data DIR --out out/office-home
                shoal reproduce {name} --trials 1 --draws 2 --out out/short --plan-only
            """,
        )
        name_domains(parser)
        _add_subject(parser)
        parser.set_defaults(run=partial(_run, name), after_interrupt=RESUMES)
    parser = experiments.add_parser(
        "ablation-batch",
        help="the moving average at different batch sizes, as a sweep and a figure",
        description="Train Fishr on Colored MNIST, tested on -90%, for several γ and batch "
        "sizes: does the moving average help small batches?",
        examples="""
            shoal reproduce ablation-batch --out out/batches --workers 2
            shoal reproduce ablation-batch --trials 1 --steps 500 --out out/short
        """,
    )
    _add_length(parser)
    add_precision(parser)
    add_places(parser)
    add_engine_options(parser)
    parser.set_defaults(run=_run_batches, after_interrupt=RESUMES)


def _add_length(parser: Any) -> None:
    parser.add_argument(
        "--trials",
        type=positive,
        default=3,
        metavar="N",
        help="repetitions with other seeds of data split, weights and batches "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=5001,
        metavar="N",
        help="updates of a run (default: %(default)s, as DomainBed)",
    )


def _add_subject(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to train")
    what.add_argument(
        "--dataset",
        type=own_dataset,
        choices=("colored-mnist", "office-home"),
        default="colored-mnist",
        help="data set of the table (default: %(default)s)",
    )
    what.add_argument(
        "--rows",
        nargs="+",
        type=own_method,
        metavar="NAME",
        help="methods and variants to train (default: all rows of the table)",
    )
    what.add_argument(
        "--test-domains",
        nargs="+",
        metavar="NAME",
        help="domains to test on, each in turn (default: -90%% of Colored MNIST, all domains of "
        "OfficeHome)",
    )
    add_places(what)
    what.add_argument(
        "--draws",
        type=positive,
        default=20,
        metavar="N",
        help="draws of the hyperparameters; the first is the defaults (default: %(default)s)",
    )
    _add_length(what)
    what.add_argument(
        "--network",
        metavar="NAME",
        help="network for large images, as in 'shoal train' (default: resnet50)",
    )
    what.add_argument(
        "--weights",
        choices=("imagenet", "none"),
        default="imagenet",
        help="initial weights of a large network (default: %(default)s)",
    )
    add_precision(what)
    add_engine_options(parser)


def _run(name: str, options: argparse.Namespace) -> int:
    check_engine(options, *for_images(options.dataset))
    from ..choices import choose
    from ..experiments.ablations import (
        ABLATIONS,
        RULES,
        ablation_sheets,
        draw_by_draw,
        draws_sheet,
        in_row_order,
        table,
    )
    from ..sweeps.plan import Sweep, runs_of

    ablation, dataset = ABLATIONS[name], options.dataset
    rows = [choose("row", row, ablation.rows) for row in options.rows or ablation.in_order()]
    protocol = _protocol(options)
    sweep = Sweep(
        algorithms=tuple(rows),
        datasets=(dataset,),
        trials=options.trials,
        draws=options.draws,
        protocol=protocol,
    )
    workspace = workspace_of(
        options, {row: row for row in rows}, {dataset: dataset}, options.network
    )
    domains = [domain.name for domain in workspace.dataset(dataset, 0).domains]
    asked = options.test_domains or (["-90%"] if dataset == "colored-mnist" else domains)
    for domain in asked:
        choose("test domain", domain, domains)
    planned_runs = runs_of(sweep, workspace.method, workspace.dataset)
    status = run_sweep(options, in_row_order(planned_runs, rows, asked), workspace)
    runs = _finished_runs(options)
    warn_of_twins(runs)
    planned = options.trials * options.draws
    tables = {rule: table(ablation, dataset, rule, runs, planned) for rule in RULES}
    gaps = draw_by_draw(ablation, dataset, runs)
    result = {"dataset": dataset, "tables": tables, "gaps": gaps, "machine": _machines(runs)}
    label = ablation.averages or ablation.tables[dataset]
    sheets = ablation_sheets(name, dataset, label, tables, options.precision)
    if gaps:
        sheets.append(draws_sheet(name, dataset, gaps, options.precision))
    command = f"shoal reproduce {name} --dataset {dataset} --precision {options.precision}"
    show_and_write(options.out, command, result, sheets, {})
    return status


def _run_batches(options: argparse.Namespace) -> int:
    check_engine(options, "matplotlib")
    from ..experiments import batch_size
    from ..experiments.batch_size import batch_figure, batch_sheet
    from ..runs.run import Protocol
    from ..sweeps.plan import runs_of

    workspace = workspace_of(
        options, {batch_size.ROW: batch_size.ROW}, {batch_size.DATASET: batch_size.DATASET}
    )
    dataset = cache(workspace.dataset)  # the same for all configurations
    protocol = Protocol(steps=options.steps, precision=options.precision)
    planned = {
        run.identity: run
        for sweep in batch_size.sweeps(options.trials, protocol)
        for run in runs_of(sweep, workspace.method, dataset)
        if run.test_domains == (batch_size.TEST_DOMAIN,)
    }
    status = run_sweep(options, list(planned.values()), workspace)
    runs = _finished_runs(options)
    cells = batch_size.cells(runs)
    result = {"cells": cells, "machine": _machines(runs)}
    figures = {"ema-batch": batch_figure(cells)} if runs else {}
    command = f"shoal reproduce ablation-batch --precision {options.precision}"
    show_and_write(options.out, command, result, [batch_sheet(cells, options.precision)], figures)
    return status


def _protocol(options: argparse.Namespace) -> Any:
    from ..runs.run import Protocol

    weights = None if options.weights == "none" else "imagenet"
    return Protocol(
        steps=options.steps, network=options.network, weights=weights, precision=options.precision
    )


def _finished_runs(options: argparse.Namespace) -> list[Any]:
    """Return the finished runs of the folder in this command's precision."""
    from ..results.records import read_runs

    found = read_runs([options.out]) if (options.out / "runs").is_dir() else []
    return [run for run in found if run.precision == options.precision]


def _machines(runs: Any) -> list[str]:
    """Return the machines that the runs were trained on."""
    from ..results.records import timing_of

    found = (timing_of(run) for run in runs)
    return sorted({timing.machine for timing in found if timing is not None})
