"""``shoal fit``: options in, tables out; ``shoal.fitting.fit`` does the work."""

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..catalogue import (
    BASELINES,
    FIT_BACKBONE,
    FIT_METRICS,
    FIT_SECONDS,
    FIT_TRIALS,
    JUDGES,
    METHODS,
    ON_TABLES,
    own_method,
)
from ..choices import choose, nearest
from ..report.screen import open_console, plain, print_lines
from .extras import for_images, for_weights, require
from .loading import add_cache_folder
from .notes import add_quiet
from .options import add_device, add_settings, device, name_domains, positive, settings
from .progress import LARGE, FitProgressBars, amount_of, fit_progress
from .terminal import fits, format_duration, parse_duration, table

# Classes that get their own column, and unreadable files that are listed.
COLUMNS, NAMED = 8, 10
# The number of examples of each class, by domain.
Counts = Mapping[str, Mapping[str, int]]


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "fit",
        help="train on your own data: compare methods, pick one, and train the final model",
        description="Checks your data, then holds out one domain at a time to estimate how each "
        "method does on a domain it has never seen. It prints which method to deploy, trains it on "
        "all domains, and writes a folder with the model, its card, an ONNX file and a report "
        "page. If interrupted, the same command resumes. On several GPUs: torchrun "
        "--nproc-per-node 2 -m shoal fit …",
        examples="""
            shoal fit photos                             # a folder of domain/class/file
            shoal fit photos --time 1h --train both --out models/photos
            shoal fit patients.csv --domain-column site --class-column outcome --leave-out id
            shoal fit sales.parquet --domain-column date:month --class-column sold --judge worst
            shoal fit photos --only erm fishr coral --plan-only
        """,
    )
    name_domains(parser)
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder of images (domain/class/file), a .csv, .tsv or .json manifest of images, or "
        "a table (.csv, .tsv, .parquet) with a column of domains",
    )
    _add_comparison(parser.add_argument_group("comparison"))
    _add_training(parser.add_argument_group("training"))
    _add_reading(parser.add_argument_group("reading the data"))
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="run the same command to resume")


def _add_comparison(group: Any) -> None:
    group.add_argument(
        "--algorithms",
        nargs="+",
        type=own_method,
        default=[],
        metavar="NAME",
        help="methods to compare besides the default ones, which are erm and fishr for images "
        "(on frozen features also logistic-regression), and for tables "
        f"{', '.join(ON_TABLES)}; see 'shoal list algorithms'",
    )
    group.add_argument(
        "--only",
        nargs="+",
        type=own_method,
        default=[],
        metavar="NAME",
        help="methods and baselines to compare instead of the default ones, such as "
        "random-forest erm",
    )
    group.add_argument(
        "--time",
        type=parse_duration,
        metavar="T",
        help="time budget for the whole command, such as 90s, 10min or 2h; a bare number means "
        "minutes. It is a target and may be exceeded "
        f"(default: {FIT_SECONDS / 60:.0f}min, or no limit if --runs is given)",
    )
    group.add_argument(
        "--metric",
        choices=FIT_METRICS,
        default="accuracy",
        help="what is compared on the domains left out (default: %(default)s)",
    )
    group.add_argument(
        "--judge",
        choices=JUDGES,
        default=JUDGES[0],
        help="deploy what is best on average over the domains left out, or on the worst of them "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--runs",
        type=positive,
        metavar="N",
        help="maximum number of training runs used for the comparison; each domain must be left "
        "out once",
    )
    group.add_argument(
        "--plan-only",
        action="store_true",
        help="check the data, print what would be compared, and train nothing",
    )
    group.add_argument(
        "--trials",
        type=positive,
        default=FIT_TRIALS,
        metavar="N",
        help="maximum number of random train/validation splits (default: %(default)s)",
    )
    add_settings(group, "set hyperparameters, for the methods that have them; see 'shoal hparams'")


def _add_training(group: Any) -> None:
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write (default: out/NAME-fit)"
    )
    group.add_argument(
        "--backbone",
        default=FIT_BACKBONE,
        metavar="NAME",
        help="network for images; also any name of torchvision or timm (default: %(default)s)",
    )
    group.add_argument(
        "--train",
        choices=("auto", "all", "head", "both"),
        default="auto",
        help="train all weights, only a head on frozen features, which takes minutes on a CPU, or "
        "both: heads first, then whole networks (default: both on a GPU, head on a CPU)",
    )
    group.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="updates of each run (default: 600 for a head, 200 to 1000 for a table by its number "
        "of rows, and 300 to 5000 for a whole network, as the time allows)",
    )
    group.add_argument(
        "--balanced",
        action="store_true",
        help="let all classes of a domain weigh the same in training, however rare they are",
    )
    group.add_argument(
        "--no-reference",
        action="store_true",
        help="keep only moments of the images' features in the model's folder, and none of the "
        "features themselves, with which 'shoal monitor' compares new images",
    )
    add_device(group)
    add_cache_folder(group)


def _add_reading(group: Any) -> None:
    group.add_argument(
        "--layout",
        choices=("domain/class", "class/domain"),
        help="order of the folders (default: domain/class)",
    )
    group.add_argument(
        "--class-column",
        default="class",
        metavar="NAME",
        help="column of a table that holds the classes (default: %(default)s)",
    )
    group.add_argument(
        "--domain-column",
        nargs="+",
        default=["domain"],
        metavar="NAME",
        help="column of a table that holds the domains; several columns together name a domain, "
        "and dates are cut by :year, :quarter, :month, :week or :day, as in date:month. A model "
        "does not see these columns (default: domain)",
    )
    group.add_argument(
        "--keep",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns of --domain-column that the model may see all the same",
    )
    group.add_argument(
        "--group-column",
        metavar="NAME",
        help="column of a table or of a list of images that names what an example belongs to, such "
        "as the patient: nobody is then both trained on and held out. A model does not see it",
    )
    group.add_argument(
        "--leave-out",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns to ignore, such as IDs or anything unknown at prediction time",
    )


def _needed(options: argparse.Namespace) -> list[str]:
    """Return the packages that this fit needs, as far as its options tell."""
    found = ["rich", "safetensors", "jinja2"]
    if images := for_images(options.data):
        found += [*images, *for_weights(options.backbone)]
    if options.data.suffix.lower() == ".parquet":
        found.append("pyarrow")
    if set(BASELINES) & {*options.algorithms, *options.only}:
        found.append("sklearn")
    return found


def _run(options: argparse.Namespace) -> int:
    begun = time.monotonic()  # to import torch takes seconds
    require(*_needed(options))
    from ..distributed import rank
    from ..fitting.fit import fit
    from ..fitting.leave_one_out import FitWatcher
    from ..sweeps.worker import ending_on_sigterm
    from .torchrun import process_group

    with process_group(device(options.device)) as on, ending_on_sigterm():
        # A plan is printed if nothing else is asked for.
        silent = rank() > 0 or (options.quiet and not options.plan_only)
        terminal = PlanTerminal if options.plan_only else FitTerminal
        with nullcontext(FitWatcher()) if silent else fit_progress(terminal) as watcher:
            result = fit(
                options.data,
                out=options.out,
                algorithms=_methods(options.algorithms),
                only=_methods(options.only),
                time=options.time,
                runs=options.runs,
                trials=options.trials,
                settings=settings(options.set),
                train=options.train,
                backbone=options.backbone,
                steps=options.steps,
                device=on,
                cache=options.cache,
                layout=options.layout,
                class_column=options.class_column,
                domain_column=options.domain_column,
                leave_out=options.leave_out,
                group_column=options.group_column,
                keep=options.keep,
                metric=options.metric,
                judge=options.judge,
                balanced=options.balanced,
                keep_vectors=not options.no_reference,
                plan_only=options.plan_only,
                begun=begun,
                watcher=watcher,
            )
        if result is not None:
            print_result(result)
    return 0


def _methods(names: Sequence[str]) -> dict[str, Any]:
    """Return methods and baselines by the names of their runs."""
    from ..fitting.setup import find_candidate
    from .methods import name_of, with_settings

    found = {}
    for text in names:
        if text not in METHODS and nearest(text, (*BASELINES, *METHODS)) in BASELINES:
            choose("method", text, BASELINES)
        method = find_candidate(text) if text in BASELINES else with_settings(text)
        found[name_of(text, method[0])] = method
    return found


class FitTerminal(FitProgressBars):
    """Prints the data and the plan of a fit, and shows its progress."""

    def data(self, data: Any) -> None:
        print_data(data)

    def plan(self, plan: Any) -> None:
        print_plan(plan)


class PlanTerminal(FitTerminal):
    """Prints all settings of a plan as well."""

    def plan(self, plan: Any) -> None:
        print_plan(plan)
        print_settings(plan)


def print_data(data: Any) -> None:
    """Print the counts of domains and classes, unreadable files and notes."""
    dataset, counts = data.dataset, data.dataset.counts()
    screen = open_console()
    examples = "images" if data.table is None else "rows"
    total = sum(map(len, dataset.domains))
    title = (
        f"{dataset.name}: {total:,} {examples}, {len(counts)} domains, "
        f"{len(dataset.classes)} classes"
    )
    screen.print(plain(title, "bold"), soft_wrap=True)
    if data.table is not None and data.table.vectors.nbytes >= LARGE:
        rows = data.table.vectors
        size = amount_of(rows.nbytes, "bytes")
        screen.print(plain(f" {rows.shape[1]:,} numbers a row, {size} of memory"), soft_wrap=True)
    ways = (_by_domain, _by_class) if len(dataset.classes) <= COLUMNS else ()
    shares = data.shares_differ
    grids = [*(way(counts, dataset.classes, shares) for way in ways), _by_domain(counts, ())]
    screen.print(next((grid for grid in grids if fits(grid, screen)), grids[-1]))
    if data.broken:
        files = "file" if len(data.broken) == 1 else "files"
        screen.print(plain(f" {len(data.broken):,} unreadable {files}, skipped:", "bold"))
        for line in data.broken[:NAMED]:
            screen.print(plain(f"   {line.path}: {line.why}", style="red"), soft_wrap=True)
    if data.table is not None and data.table.encoding.left_out:
        names = ", ".join(data.table.encoding.left_out)
        why = "constant, or different in most rows"
        screen.print(plain(f" Ignored columns ({why}): {names}"), soft_wrap=True)
    for note in data.notes:
        screen.print(plain(f" Note: {note}"), soft_wrap=True)


def _by_domain(counts: Counts, classes: Sequence[str], shares: bool = False) -> Any:
    """Return a table with a row for each domain and a column for each of these classes.

    With ``shares``, counts have the share of their domain beside them.
    """

    grid = table(None, None)
    grid.add_column("Domain")
    for name in (*classes, "all", "classes"):
        grid.add_column(plain(name), justify="right")
    for domain, found in counts.items():
        total = sum(found.values())
        cells = [_count(found[name], total if shares else None) for name in classes]
        kinds = sum(count > 0 for count in found.values())
        grid.add_row(plain(domain), *cells, f"{total:,}", str(kinds))
    return grid


def _by_class(counts: Counts, classes: Sequence[str], shares: bool) -> Any:
    """Return a table with a column for each domain; it is narrower if there are many classes."""

    grid = table(None, None)
    grid.add_column("Class")
    for domain in counts:
        grid.add_column(plain(domain), justify="right")
    totals = {domain: sum(found.values()) for domain, found in counts.items()}
    for name in classes:
        cells = (
            _count(found[name], totals[domain] if shares else None)
            for domain, found in counts.items()
        )
        grid.add_row(plain(name), *cells)
    grid.add_section()
    grid.add_row("all", *(f"{total:,}" for total in totals.values()))
    return grid


def _count(number: int, total: int | None) -> str:
    share = f" ({100 * number / total:.0f} %)" if total else ""
    return f"{number:,}{share}" if number else "–"


def print_plan(plan: Any) -> None:
    """Print the network, the number of runs and the time; warn if the time is too short."""
    setup, budget = plan.setup, plan.budget
    updates = f"{setup.steps:,} update{'s' * (setup.steps != 1)} in each run"
    if not plan.networks:
        pass  # what is fitted at once has no updates
    elif setup.kind == "table":
        print_lines(f"Networks are MLPs, {updates}.")
    elif plan.without_gpu:
        print_lines(
            f"No GPU found: training only a head on frozen features of {setup.backbone}, "
            f"{updates}. To train the whole network, use --train all; on a CPU that takes hours."
        )
    elif setup.frozen:
        print_lines(f"Training only a head on frozen features of {setup.backbone}, {updates}.")
    elif setup.trained == "both":
        print_lines(
            f"Training heads on frozen features of {setup.backbone} first, then all weights, "
            f"{updates}."
        )
    else:
        print_lines(f"Training all weights of {setup.backbone}, {updates} (change with --steps).")
    within = f" within {_round_duration(budget.seconds)}" if budget.seconds else ""
    if budget.runs:
        within += f" with at most {budget.runs:,} runs"
    folds = len(plan.folds)
    left_out = f"each of {folds} domains left out once"
    if any(len(fold.domains) > 1 for fold in plan.folds):
        number = sum(len(fold.domains) for fold in plan.folds)
        left_out = f"each of {number} domains left out once, in {folds} groups"
    names = ", ".join(one.candidate.name for one in plan.candidates)
    print_lines(f"Comparing {names}: {left_out}{within}.")
    variants = any(one.others for one in plan.candidates)
    if variants or plan.trials > 1:
        more = ["other settings of the best"] * variants
        more += ["two domains left out at a time"] * (variants and folds > 3)
        more += [f"up to {plan.trials} splits"] * (plan.trials > 1)
        print_lines(f"If there is time: {', '.join(more)}.")
    left = budget.seconds_left
    if left is not None and plan.shortest > max(left, 0):
        print_lines(
            f"The time is too short: to leave out every domain once takes about "
            f"{format_duration(plan.shortest)} even with {updates}, but "
            f"{format_duration(max(left, 0))} are left, so there may be no verdict. Use a longer "
            "--time, --train head, or fewer --steps."
        )


def print_settings(plan: Any) -> None:
    """Print what decides, and the settings of every candidate."""
    from ..results.metrics import METRICS

    of = {"mean": "mean over", "worst": "worst of"}[plan.judge]
    weights = "; all classes of a domain weigh the same" if plan.setup.balanced else ""
    title = METRICS[plan.metric].title
    print_lines(f"Judged by {title}, the {of} the domains left out{weights}.")
    grid = table(None, None)
    grid.add_column("Candidate")
    grid.add_column("Settings", overflow="fold")
    if any(one.others for one in plan.candidates):
        grid.add_column("Also tried, if there is time", overflow="fold")
    for one in plan.candidates:
        others = "; ".join(_settings_in_words(mine) for mine in one.others)
        cells = (one.candidate.title, _settings_in_words(one.usual), others)[: len(grid.columns)]
        grid.add_row(*map(plain, cells))
    open_console().print(grid)


def _settings_in_words(settings: Mapping[str, Any]) -> str:
    values = {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in settings.items()
        if value is not None
    }
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _round_duration(seconds: float) -> str:
    """Return a duration that a user typed: ``1 minute``, ``10 minutes``, ``2 hours``, ``90 s``."""
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            count = int(seconds // size)
            return f"{count:,} {unit}{'s' * (count != 1)}"
    return format_duration(seconds)


def print_result(result: Any) -> None:
    """Print the estimates, the verdict and the files."""
    verdict, out, screen = result.verdict, result.out, open_console()
    decision, sentences = verdict.decision, list(verdict.sentences)
    if decision.shortfalls:  # before all numbers, which may look fine
        screen.print(plain(sentences.pop(0), "bold red"), soft_wrap=True)
    if decision.rows:
        _print_scores(decision, screen)
    for sentence in sentences:
        screen.print(plain(f" {sentence}"), soft_wrap=True)
    names = ("model.safetensors", "model.json", "model.onnx", "report.html")
    files = ", ".join(name for name in names if (out / name).exists())
    written = f" Written to {out} in {format_duration(result.seconds)}: {files}"
    screen.print(plain(written), soft_wrap=True)
    folder = shlex.quote(str(out))
    predict = f"shoal predict {folder} FILES..., shoal monitor {folder} FILES..."
    look = f"look at the errors in {out / 'report.html'}, then fit again with another --out"
    screen.print(plain(f" Next: {predict if verdict.useful else look}"), soft_wrap=True)


def _print_scores(decision: Any, screen: Any) -> None:
    """Print the scores on the domains left out, and what their names mean."""
    from ..fitting.paired import HALF

    metric, guess = decision.estimates.measure, decision.guess
    title = f"{metric.title[:1].upper()}{metric.title[1:]}{' in %' if metric.percent else ''}"
    screen.print(plain(f"{title} on the held-out domain", "bold"), soft_wrap=True)
    screen.print(_scores(decision, screen))
    for line in (
        f"Average: a domain of n examples counts n / (n + {HALF}). Worst: the worst domain.",
        f"Seen domains: {metric.title} on held-out examples of the training domains (what an "
        "ordinary test split would report).",
        f"{guess.title.capitalize()}: always predicting the other domains' {guess.title}, without "
        "a model.",
    ):
        screen.print(plain(f" {line}", "dim"), soft_wrap=True)


# Names with their cells, one for each method; and methods with their styles.
Lines = list[tuple[str, list[str]]]
Titles = list[tuple[str, str]]


def _scores(decision: Any, screen: Any) -> Any:
    """Return the scores with a row for each domain, or if that is too wide, for each method."""
    metric, rows = decision.estimates.measure, (*decision.rows, decision.guess)
    held_out: Lines = [
        (name, [_cell(row.cells.get(name), metric) for row in rows])
        for name in decision.estimates.domains
        if any(name in row.cells for row in decision.rows)
    ]
    summary: Lines = [
        ("average", [_number(row.average, metric) for row in rows]),
        ("worst", [_number(row.worst, metric) for row in rows]),
        ("seen domains", [*(_number(row.inside, metric) for row in decision.rows), "–"]),
    ]
    styles = {decision.deploy: "bold", decision.guess.key: "dim"}
    titles = [(row.title, styles.get(row.key, "")) for row in rows]
    grids = [
        _with_methods_across(titles, held_out, summary),
        _with_methods_down(titles, summary + held_out),
        _with_methods_down(titles, summary),
    ]
    return next((grid for grid in grids if fits(grid, screen)), grids[-1])


def _with_methods_across(titles: Titles, held_out: Lines, summary: Lines) -> Any:

    grid = table(None, None)
    grid.add_column("Held out")
    for title, style in titles:
        grid.add_column(plain(title, style), justify="right", style=style)
    for name, cells in held_out:
        grid.add_row(plain(name), *cells)
    grid.add_section()
    for name, cells in summary:
        grid.add_row(name, *cells)
    return grid


def _with_methods_down(titles: Titles, columns: Lines) -> Any:

    grid = table(None, None)
    grid.add_column("Method")
    for name, _ in columns:
        grid.add_column(plain(name), justify="right")
    for number, (title, style) in enumerate(titles):
        grid.add_row(plain(title), *(cells[number] for _, cells in columns), style=style)
    return grid


def _cell(cell: Any, metric: Any) -> str:
    if cell is None:
        return "–"
    error = f" ± {metric.scale * cell.error:.{metric.digits}f}" if cell.trials > 1 else ""
    return f"{_number(cell.mean, metric)}{error}"


def _number(value: float | None, metric: Any) -> str:
    return "–" if value is None else f"{metric.scale * value:.{metric.digits}f}"
