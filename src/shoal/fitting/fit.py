"""Fit: from a user's data to a model for a new domain, and a report on how good it will be.

``fit`` is the whole story, from top to bottom: inspect the data, choose the setup, estimate every
method with each domain held out in turn, decide, train the chosen method on all domains, write.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from .._version import __version__
from ..algorithms.base import Algorithm
from ..catalogue import (
    BASELINES,
    FIT_BACKBONE,
    FIT_SECONDS,
    FIT_TRIALS,
    JUDGES,
    ON_TABLES,
    own_method,
)
from ..choices import choose
from ..datasets import DomainDataset
from ..datasets.appearance import Appearance
from ..datasets.cache import ImageCache, build, cache_folder
from ..datasets.domain_columns import DomainColumns, as_list
from ..distributed import first_rank_first, processes, rank
from ..documents import read_object
from ..monitoring.reference import ENTRY as REFERENCE
from ..monitoring.reference import FILE as REFERENCE_FILE
from ..monitoring.reference import Reference, as_arrays
from ..networks.registry import backbone_name, check_network
from ..notebook import html_lines
from ..results.averages import average_folder
from ..results.metrics import METRICS
from ..results.records import CARD, MODEL, Record, RunResult, again
from ..runs import model as models
from ..runs.machine import Machine, one_thread
from ..runs.model import check_saving
from ..runs.run import Run
from ..storage import cache_root, write_json, write_text
from ..sweeps.attempt import tidy_interrupted
from ..sweeps.plan import MethodChoice, folder_of, write_plan
from ..sweeps.worker import Worker
from ..tensor_files import write_safetensors
from ..training.pillow import exact_evaluation
from ..training.watcher import Progress
from .adaptation_estimates import measure_adaptations
from .adaptation_record import ENTRY as ADAPTATION
from .adaptation_record import AdaptationRecord
from .baselines import Baseline, import_sklearn, sklearn_missing
from .candidates import Recipe, RunMaker, recipes_of, settings_of_candidates
from .decision import make_decision
from .estimates import Estimates
from .folds import Fold, folds_of
from .frozen_features import (
    FEATURES,
    SHAPE,
    check_frozen,
    frozen_features,
    whole_network,
)
from .inspection import (
    FitData,
    check_kind,
    inspect_data,
    is_table,
    record_notes,
    recorded_appearance,
)
from .leave_one_out import (
    FitWatcher,
    broadcast_int,
    failures,
    finished_runs,
    run_group,
    train_in_turn,
)
from .onnx_export import ONNX, describe_onnx, onnx_missing, write_onnx
from .page_content import build_page_content
from .pooled_regression import import_optimiser
from .predictor import Predictor, device_of, load
from .progress import fit_watcher
from .reference import ReferenceData, make_reference
from .run_estimates import RunEstimates
from .run_length import length_within
from .schedule import FILES, IMAGE_FILES, Budget, FitPlan, FitProgress, Schedule, plan_blocks
from .setup import (
    FIRST_VERSION,
    INSPECTION,
    FitSetup,
    FitWorkspace,
    check_folder,
    check_settings,
    choose_setup,
    default_folder,
    find_candidate,
    saved_setup,
    trained_part,
    version_of,
)
from .shift_meter import measure_shifts
from .stable_columns import Price, StableColumns, describe_columns, without_columns
from .verdict import Verdict, decide

__all__ = ["FitResult", "fit"]

ESTIMATE, PAGE = "estimate.json", "report.html"
# Compared on images: plain training, and the method that this library proposes.
ON_IMAGES = ("erm", "fishr")
# On their frozen features.
ON_FEATURES = ("logistic-regression", *ON_IMAGES)
# What to install for the baselines.
SKLEARN = "scikit-learn, which is not installed: pip install 'shoal[tables]'"
# Seconds for finding the unstable columns of all pairs of folds; if it takes longer, no pairs are
# left out.
TESTS_SECONDS = 20.0
# With more rows than this, what comes after the final run takes so many times the inspection.
MANY, AFTER = 100_000, 4.0
# Examples on which the ONNX file is compared with the model.
COMPARED = 8


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of a fit.

    Args:
        out: the folder with the model, its card, the ONNX file, the report page and all runs.
        verdict: the deployed method, and the estimates of all methods.
        failures: a line for each failed run.
        seconds: the time that this call took.
    """

    out: Path
    verdict: Verdict
    failures: tuple[str, ...]
    seconds: float

    def _repr_html_(self) -> str:
        count = len(self.failures)
        failed = [f"{count} run{'s' * (count != 1)} failed."] * bool(count)
        return self.verdict._repr_html_() + html_lines([*failed, f"Written to {self.out}."])


def fit(
    data: str | Path,
    *,
    out: str | Path | None = None,
    algorithms: Iterable[str] | Mapping[str, MethodChoice] = (),
    only: Iterable[str] | Mapping[str, MethodChoice] = (),
    time: float | None = None,
    runs: int | None = None,
    trials: int = FIT_TRIALS,
    settings: Mapping[str, str] | None = None,
    train: str = "auto",
    backbone: str = FIT_BACKBONE,
    steps: int | None = None,
    device: str | torch.device | None = None,
    cache: Path | None = None,
    layout: str | None = None,
    class_column: str = "class",
    domain_column: DomainColumns = "domain",
    leave_out: Collection[str] = (),
    group_column: str | None = None,
    keep: Collection[str] = (),
    metric: str = "accuracy",
    judge: str = "mean",
    balanced: bool = False,
    keep_vectors: bool = True,
    plan_only: bool = False,
    begun: float | None = None,
    watcher: FitWatcher | None = None,
) -> FitResult | None:
    """Fit a model to ``data`` and write it to the folder ``out``; the same call resumes.

    In several processes all must call it; the first one writes, and the others return None.

    Args:
        data: a folder of images, a manifest of images, or a table.
        out: by default ``out/NAME-fit``.
        algorithms: methods to compare besides the default ones: names of the registry, or classes
            with settings by the name that their runs get. By default images have ERM and Fishr, on
            frozen features also logistic regression, and tables scikit-learn's baselines and six
            methods (``catalogue.ON_TABLES``).
        only: methods and baselines to compare instead of all those, given in the same way.
        time: seconds for the whole fit, a target; 600 by default, unless ``runs`` is given.
        runs: maximum number of training runs for the comparison.
        trials: maximum number of random splits.
        settings: hyperparameters as text, by name.
        train: "all" weights, only the "head" on frozen features, "both" one after the other, or
            "auto": both on a GPU, the head on a CPU.
        backbone: the network for images.
        steps: updates of each run; by default as many as the kind of data and the time allow.
        device: by default a GPU if there is one.
        cache: the folder of decoded images.
        layout: of folders, "domain/class" or "class/domain".
        class_column, domain_column, leave_out: columns of a table; the last are ignored. Several
            columns can name the domain, and dates by their month or year, as in ``domain_names``.
        group_column: of a table or a manifest: patients, for example, whose examples are never
            both trained on and held out.
        keep: columns of ``domain_column`` that the model sees as well.
        metric: what is compared, one of ``results.metrics.METRICS``.
        judge: whether the "mean" over the domains left out decides, or the "worst" of them.
        balanced: whether all classes of a domain weigh the same in training.
        keep_vectors: whether a few feature vectors of images are kept for ``monitor``, beside their
            moments.
        plan_only: inspect the data and tell ``watcher`` the plan; train nothing and return None.
        begun: when the time begins to count, by ``time.monotonic``; by default now.
        watcher: follows the fit; by default bars show it in a notebook, and nothing elsewhere.
    """
    from ..report.fit_page import check_drawing

    begin = monotonic() if begun is None else begun
    if not isinstance(data, (str, Path)):
        raise TypeError(
            f"data must be the path of a folder or a file, got {type(data).__name__}; "
            "shoal.DomainClassifier takes arrays and data frames"
        )
    if time is not None and not isinstance(time, Real):
        raise TypeError(f"time must be a number of seconds, got {time!r}")
    data = Path(data)
    out = default_folder(data) if out is None else Path(out)
    watcher = watcher or fit_watcher()
    settings = settings or {}
    budget = Budget(time or (None if runs else FIT_SECONDS), runs, begin)
    machine = _choose_machine(device_of(device))
    kind = "table" if data.is_file() and is_table(data) else "images"
    trained = trained_part(train, kind, out, machine.device)
    heads = kind == "images" and trained != "all"
    methods = _choose_methods(algorithms, only, data, kind, heads, version_of(out))

    # Check first what would otherwise fail after hours of training.
    check_saving()
    check_drawing()
    choose("metric", metric, METRICS)
    choose("judge", judge, JUDGES)
    check_settings(settings, methods)
    with first_rank_first():
        if rank() == 0:
            check_folder(out, data)
        _check_options(
            data,
            train=train,
            backbone=backbone,
            layout=layout,
            class_column=class_column,
            domain_column=domain_column,
            leave_out=leave_out,
            group_column=group_column,
            keep=keep,
        )

        # Inspect: the first process reads every image, the others its findings.
        asked = monotonic()
        unit = "bytes" if kind == "table" else "images"
        inspected = inspect_data(
            data,
            layout,
            class_column,
            domain_column,
            leave_out,
            group_column,
            keep,
            progress=lambda done, total: watcher.amount("reading", done, total, unit),
            record=out / INSPECTION,
        )
    inspecting = monotonic() - asked
    watcher.data(inspected)
    if inspected.table is not None and sklearn_missing():
        watcher.note(f"only networks are compared: the baselines need {SKLEARN}")

    # Choose the setup, and the length of the runs from the time that is left.
    setup = choose_setup(
        inspected,
        out,
        machine.device,
        train=train,
        backbone=backbone,
        steps=steps,
        settings=settings,
        balanced=balanced,
    )
    if trained == "head":
        for name, (chosen, _) in methods.items():
            check_frozen(name, chosen)
    folds = folds_of(inspected.dataset)
    _check_runs(runs, folds)
    shortest = 0.0
    if steps is None and saved_setup(out) is None:
        networks = {name: one for name, one in methods.items() if name not in BASELINES}
        workspace = FitWorkspace(networks, inspected.dataset, None, machine)
        setup, shortest = choose_length(setup, workspace, budget.seconds_left, watcher)
    recipes = recipes_of(methods, setup)
    watcher.plan(
        FitPlan(
            setup=setup,
            candidates=settings_of_candidates(recipes, methods),
            metric=metric,
            judge=judge,
            folds=folds,
            trials=trials,
            budget=budget,
            shortest=shortest,
            without_gpu=setup.frozen and train == "auto" and machine.device.type == "cpu",
            networks=not all(one.fitted for one in recipes),
        )
    )
    if plan_only:
        return None

    # Prepare the data of the runs: decode images, compute frozen features.
    with first_rank_first():
        if rank() == 0:
            setup.save(out)
            record_notes(out / INSPECTION, inspected)
        decode = partial(
            build,
            inspected.dataset,
            cache_folder(inspected.dataset, cache or cache_root()),
            lambda *at: watcher.amount("decoding", *at),
        )
        workspace = _prepare_workspace(
            inspected,
            setup,
            methods=methods,
            out=out,
            machine=machine,
            decode=decode,
            watcher=watcher,
        )
        appearance = None
        if inspected.table is None:
            appearance = recorded_appearance(out / INSPECTION, inspected.dataset, decode)
    if any(issubclass(kind, Baseline) for kind, _ in methods.values()):
        import_sklearn()

    stable = None
    if inspected.table is not None:
        import_optimiser()
        stable = StableColumns(workspace.dataset, inspected.table.encoding)
        workspace = replace(workspace, others=stable.datasets)

    # Who is judged by the worst domain leaves unstable columns out; others hear their price.
    policy = judge == "worst"
    asked = monotonic()
    flagged = () if stable is None else stable.flagged()
    # Under the policy, every pair of folds needs a test of its own.
    tests = math.comb(len(folds), 2) if policy and stable is not None else 0
    quick = tests * (monotonic() - asked) <= TESTS_SECONDS
    make = RunMaker(workspace, stable, policy)
    blocks = plan_blocks(
        recipes,
        folds,
        trials,
        make.run,
        # Of three folds, pairs would leave one to train on, where no method can compare domains.
        nested=setup.searches and quick and len(folds) > 3,
        make_split_run=make.split,
        make_price_run=make.without_unstable if flagged and not policy else None,
    )
    if rank() == 0:
        tidy_interrupted(out)
    results = _Results(out, RunEstimates(workspace.dataset, folds, recipes, metric, judge))
    # A whole network takes longer than any head before it; the probe has timed one.
    whole = [one.key for one in recipes if shortest and one.setup.average]
    probed = dict.fromkeys(whole, shortest / (len(folds) + 1))
    many = inspected.table is not None and len(inspected.table.vectors) > MANY
    network = setup.kind == "images" and onnx_missing() is None
    files = IMAGE_FILES if network else FILES
    files += AFTER * inspecting if many else 0.0
    schedule = Schedule(out, blocks, budget, results, probed, files)
    if done := len(schedule.counted):
        count = "1 run is" if done == 1 else f"{done} runs are"
        watcher.note(f"{count} already done and not repeated")

    # Estimate, decide, train, write. A small network on vectors trains faster on one core.
    vectors = setup.frozen or setup.kind == "table"
    with one_thread() if vectors and machine.device.type == "cpu" else nullcontext():
        train_in_turn(out, schedule, workspace, watcher)
        failed = failures(out, [(schedule.title_of(run), run) for run in schedule.runs])
        # Only the first process has results to decide on.
        verdict = None
        if rank() == 0:
            if not schedule.counted and failed:
                raise ValueError(f"all runs failed: {failed[0]}")
            found = results(schedule.counted, schedule.failed)
            found = replace(
                found,
                more_seconds=schedule.more_seconds,
                nesting_seconds=schedule.nesting_seconds,
            )
            price = _price(schedule, results, found, stable)
            verdict = decide(found, describe_columns(stable, policy, found, price))
        deploy = recipes[broadcast_int(lambda: _place(recipes, verdict.deploy) if verdict else 0)]
        final = make.run(deploy, (), 0)
        deployed = without_columns(inspected, stable) if policy and stable else inspected
        method = methods[deploy.method]
        if verdict is not None:
            for line in failed:
                watcher.note(f"failed: {line}")
            write_json(out / ESTIMATE, verdict.as_json())
            write_plan(out, [final])
        _train(out, final, deploy.candidate.title, workspace, watcher)
        if verdict is None:
            return None
        watcher.note("writing the model, its card, the ONNX file and the page")

        table = setup.kind == "table"
        on_vectors = table or deploy.setup.frozen
        reference = make_reference(
            verdict,
            results.known(schedule.counted),
            folder_of(out, final),
            ReferenceData(
                dataset=deployed.dataset if table else workspace.inputs(deploy.setup.frozen),
                cache=None if on_vectors else workspace.cache,
                folds=folds,
                method=method,
                average=deploy.setup.average,
                device=machine.device,
                keep_vectors=keep_vectors and not table,  # the vectors of a table are its rows
            ),
        )
        adaptation = measure_adaptations(
            deploy,
            results.known(schedule.counted),
            [fold for fold in folds if fold.name in verdict.decision.estimates.domains],
            workspace,
            metric,
        )
        write_model(
            out,
            final,
            method,
            deploy.setup,
            deployed,
            verdict,
            reference,
            adaptation,
            appearance,
        )
        if adaptation is not None and adaptation.offered is not None:
            gain = adaptation.gain(adaptation.offered)
            watcher.note(f"'shoal predict --adapt' uses {adaptation.offered}: {gain}")
        # A file can name every method but a user's own.
        own = None if issubclass(method[0], Baseline) else method[0]
        watcher.note(write_checked_onnx(out, own, deployed))
        onnx = (out / ONNX).exists()
        inputs = workspace.inputs(frozen=True)
        content = build_page_content(
            inspected,
            setup,
            verdict,
            results.known(schedule.counted),
            folds,
            failed,
            onnx,
            stable.stability() if flagged and stable else None,
            reference,
            measure_shifts(inputs) if inputs.kind == "vectors" else None,
            adaptation,
        )
        _write_page(out / PAGE, content)
    return FitResult(out=out, verdict=verdict, failures=tuple(failed), seconds=monotonic() - begin)


def _choose_methods(
    algorithms: Iterable[str] | Mapping[str, MethodChoice],
    only: Iterable[str] | Mapping[str, MethodChoice],
    data: Path,
    kind: str,
    frozen: bool,
    version: int,
) -> dict[str, MethodChoice]:
    """Return the methods to compare, by the names of their runs; the default ones come first."""
    usual: tuple[str, ...] = ON_IMAGES
    if version > FIRST_VERSION:
        usual = ON_TABLES if kind == "table" else ON_FEATURES if frozen else ON_IMAGES
    if sklearn_missing():
        usual = tuple(name for name in usual if name not in BASELINES)
    allowed = BASELINES if kind == "table" else ON_FEATURES if frozen else ()
    added, chosen = _by_name(algorithms), _by_name(only)
    for name in {**added, **chosen}:
        if name in BASELINES and name not in allowed:
            also = " and for frozen features (--train head)" if name in ON_FEATURES else ""
            raise ValueError(f"{name} is for tables{also}, and {data} holds images")
        if name in BASELINES and sklearn_missing():
            raise ValueError(f"{name} needs {SKLEARN}")
    return chosen | added if chosen else _by_name(usual) | added


def _by_name(methods: Iterable[str] | Mapping[str, MethodChoice]) -> dict[str, MethodChoice]:
    if isinstance(methods, Mapping):
        return dict(methods)
    return {name: find_candidate(name) for name in map(own_method, methods)}


class _Results:
    """Makes estimates from the runs in ``out``; the files of a run are read once."""

    def __init__(self, out: Path, estimates: RunEstimates) -> None:
        self.out, self.estimates = out, estimates
        self._known: dict[str, RunResult] = {}

    def known(self, runs: Sequence[tuple[str, Run]]) -> list[tuple[str, RunResult]]:
        """Return the results of finished runs, each with the key of its candidate."""
        new = [run for _, run in runs if run.identity not in self._known]
        self._known |= finished_runs(self.out, new)
        for run in new:
            if run.identity not in self._known:
                folder = folder_of(self.out, run)
                raise ValueError(f"{folder} is done, but cannot be read; {again(folder)}")
        return [(key, self._known[run.identity]) for key, run in runs]

    def __call__(
        self, runs: Sequence[tuple[str, Run]], failed: Sequence[tuple[str, Run]] = ()
    ) -> Estimates:
        return self.estimates(self.known(runs), failed)


def _price(
    schedule: Schedule, results: _Results, estimates: Estimates, stable: StableColumns | None
) -> Price | None:
    """Return what leaving out unstable columns changes for the candidate to deploy, if known."""
    deploy = make_decision(estimates).deploy
    runs = schedule.price_runs(deploy)
    if not runs or stable is None or not stable.flagged():
        return None
    without = results([(deploy, run) for run in runs])
    domains = estimates.left_out(deploy)
    first = {domain: estimates.scores[deploy][domain][0] for domain in domains}
    return Price(
        name=estimates.candidate(deploy).name,
        columns=stable.flagged(),
        differences={one: without.mean(deploy, one) - first[one] for one in domains},
        unseen=tuple(
            name
            for run in runs
            for name in run.test_domains
            if not stable.flagged(run.test_domains)
        ),
    )


def _place(recipes: Sequence[Recipe], key: str) -> int:
    return [one.key for one in recipes].index(key)


def _check_runs(runs: int | None, folds: Sequence[Fold]) -> None:
    """Raise if there are too few runs to leave every fold out once."""
    if runs is not None and runs < len(folds):
        raise ValueError(
            f"--runs must be {len(folds)} or more, to leave out each of {len(folds)} domains once, "
            f"got {runs}"
        )


def _check_options(
    data: Path,
    *,
    train: str,
    backbone: str,
    layout: str | None,
    class_column: str,
    domain_column: DomainColumns,
    leave_out: Collection[str],
    group_column: str | None,
    keep: Collection[str],
) -> None:
    """Raise if an option does not apply to this kind of data, or there is no such network."""
    for_tables = {
        "--class-column": class_column != "class",
        "--domain-column": as_list(domain_column) != ["domain"],
        "--leave-out": bool(leave_out),
        "--keep": bool(keep),
    }
    for_images = {
        "--layout": layout is not None,
        "--train": train != "auto",
        "--backbone": backbone != FIT_BACKBONE,
    }
    check_kind(data, for_tables, for_images, {"--group-column": group_column is not None})
    if not is_table(data):
        check_network(SHAPE, backbone_name(backbone), "imagenet")


def _choose_machine(device: torch.device) -> Machine:
    return Machine(device=device, step="graph" if device.type == "cuda" else "eager")


def choose_length(
    setup: FitSetup, workspace: FitWorkspace, seconds: float | None, watcher: FitWatcher
) -> tuple[FitSetup, float]:
    """Return the setup with as many updates as fit into the time, and the least seconds it takes.

    Only whole networks are timed: heads and MLPs take seconds. Several processes would have to
    agree, so they keep the default.
    """
    if seconds is None or not setup.whole or processes() > 1:
        return setup, 0.0
    watcher.note("timing a few updates to choose the length of the runs")
    steps, shortest = length_within(seconds, setup, workspace)
    return replace(setup, steps=steps), shortest


def _prepare_workspace(
    data: FitData,
    setup: FitSetup,
    methods: Mapping[str, MethodChoice],
    out: Path,
    machine: Machine,
    decode: Callable[[], ImageCache],
    watcher: FitWatcher,
) -> FitWorkspace:
    """Return the workspace of the runs: a table's rows, decoded images, or their features."""
    if setup.kind == "table":
        return FitWorkspace(methods, data.dataset, None, machine)
    found = FitWorkspace(methods, data.dataset, None, machine)
    if setup.trained != "all" and setup.backbone is not None:
        vectors = frozen_features(
            data.dataset,
            decode,
            setup.backbone,
            machine.device,
            out / FEATURES,
            lambda *at: watcher.amount("features", *at),
        )
        if setup.trained == "head":
            return replace(found, dataset=vectors)
        found = replace(found, features=replace(vectors, name=f"{vectors.name} features"))
    averages = (setup.average,) if setup.average else ()
    return replace(found, cache=decode(), averages=averages)


def _train(out: Path, run: Run, title: str, workspace: FitWorkspace, watcher: FitWatcher) -> None:
    """Train the method to deploy on all domains."""

    def forecast(_: Run, progress: Progress | None) -> FitProgress:
        return FitProgress(0, 1, progress.seconds_left if progress else None)

    run_group(Worker(out, workspace), [run], title, watcher, forecast)
    if rank() == 0 and not finished_runs(out, [run]):
        why = "; ".join(failures(out, [(title, run)])) or f"see {folder_of(out, run)}"
        raise ValueError(f"the model could not be trained on all domains: {why}")


def write_model(
    out: Path,
    run: Run,
    method: MethodChoice,
    setup: FitSetup,
    data: FitData,
    verdict: Verdict,
    reference: Reference | None,
    adaptation: AdaptationRecord | None,
    appearance: Appearance | None,
) -> None:
    """Write the model of ``run``, which was trained on all domains, and its card to ``out``.

    Args:
        reference: what ``monitor`` needs.
        adaptation: what adaptations did on the domains left out.
        appearance: of all images; None for rows.
    """
    average, folder = setup.average, folder_of(out, run)
    if not (average_folder(folder, average) / MODEL).exists():
        average = ""  # there was too little memory for it
    folder = average_folder(folder, average)
    trained = models.load(folder, torch.device("cpu"), method[0])
    algorithm, card = trained.algorithm, trained.card
    record = Record.from_json(card)
    shape: tuple[int, ...] = tuple(card["shape"])
    domains = card["training_domains"]
    if setup.frozen and setup.backbone is not None:
        shape = SHAPE
        algorithm, run = whole_network(
            algorithm, run, setup.fingerprint, setup.backbone, len(domains)
        )
    about: dict[str, Any] = {
        "shoal": __version__,
        "trained": setup.trained,
        "inputs": _inputs(data, appearance),
        "notes": data.notes,
        "estimate": verdict.as_json(),
    }
    if average:
        about["average"] = average
    temperature = verdict.decision.temperature
    if temperature is not None and temperature.helps:
        about["temperature"] = temperature.value
    if reference is not None:
        about[REFERENCE] = reference.as_json()
    _write_reference(out, reference)
    if adaptation is not None:
        about[ADAPTATION] = adaptation.as_json()
    (out / ONNX).unlink(missing_ok=True)  # it can be of another model
    models.save(
        out,
        algorithm,
        run=run,
        shape=shape,
        classes=data.dataset.classes,
        domains=domains,
        record=record,
        about=about,
    )


def _write_reference(out: Path, reference: Reference | None) -> None:
    """Write the moments of features beside the model; without any, there is no such file."""
    if reference is None or reference.features is None:
        (out / REFERENCE_FILE).unlink(missing_ok=True)
        return
    arrays = as_arrays(reference.features.domains)
    tensors = {name: torch.from_numpy(one) for name, one in arrays.items()}
    write_safetensors(out / REFERENCE_FILE, tensors)


def write_checked_onnx(out: Path, method: type[Algorithm] | None, data: FitData) -> str:
    """Write the ONNX file of the model in ``out``, describe it in the card, and return a line.

    Some networks of other packages cannot be exported; the model is written all the same.
    """
    lacking = onnx_missing()
    if lacking is not None:
        return (
            f"no {ONNX}: {lacking} is not installed; pip install 'shoal[onnx]' and run the same "
            "command again"
        )
    predictor = load(out, "cpu", method)
    inputs = examples_of(predictor, data.dataset)
    try:
        gap = write_onnx(out / ONNX, predictor, inputs)
    except Exception as error:  # the exporter raises errors of any kind
        if isinstance(error, OSError):
            raise
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"no {ONNX}: {why}"
    card = read_object(out / CARD)
    encoding = None if data.table is None else data.table.encoding
    window = data.dataset.reading.window
    described = describe_onnx(card["shape"], data.dataset.classes, encoding, window)
    write_json(out / CARD, {**card, "onnx": described})
    return f"checked {ONNX}: probabilities match (max. difference {gap:.1g})"


def examples_of(predictor: Predictor, dataset: DomainDataset) -> Tensor:
    """Return a few inputs of the model, from all domains in turn."""
    found = []
    for k in range(COMPARED):
        domain = dataset.domains[k % len(dataset.domains)]
        index = k // len(dataset.domains) % len(domain)
        if domain.in_memory:
            found.append(domain.tensor[index])
        else:
            found.append(exact_evaluation(domain.files[index], dataset.reading))
    return torch.stack(found)


def _inputs(data: FitData, appearance: Appearance | None) -> Mapping[str, Any]:
    groups = data.dataset.groups
    grouped = {} if groups is None else {"group_column": groups.column}
    if data.table is None:
        # New images are turned upright also if none of these had to be.
        reading = replace(data.dataset.reading, upright=True).as_json()
        seen = {} if appearance is None else {"appearance": appearance.as_json()}
        return {
            "kind": "images",
            "size": "any; resized to 224 × 224",
            **reading,
            **seen,
            **grouped,
        }
    class_column, domain_column = data.table.answers
    return {
        **data.table.encoding.as_card(),
        "class_column": class_column,
        "domain_column": domain_column,
        **grouped,
    }


def _write_page(path: Path, content: Mapping[str, Any]) -> None:
    from ..report.fit_page import fit_page

    write_text(path, fit_page(content))
