"""From data to a model for a new domain: inspected, estimated, chosen, trained and written down."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._version import __version__
from ..algorithms.base import Algorithm
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache, build
from ..distributed import first_rank_first, rank
from ..results.records import Record
from ..runs import model as models
from ..runs.machine import Machine
from ..runs.model import CARD, check_saving
from ..runs.run import Run
from ..storage import read_json, write_json, write_text
from ..sweeps.attempt import RunState, state_of
from ..sweeps.plan import MethodChoice, folder_of, write_plan
from ..sweeps.worker import Worker
from ..training.pillow import exact_evaluation
from ..training.watcher import Progress
from .budget import Budget, FitProgress
from .frozen_features import (
    FEATURES,
    SHAPE,
    check_frozen,
    frozen_features,
    one_thread,
    whole_network,
)
from .inspection import FitData
from .leave_one_out import (
    FitWatcher,
    FitWorkspace,
    agreed,
    estimate,
    failures,
    finished,
    groups_of,
    run_group,
)
from .onnx_export import ONNX, describe_onnx, onnx_missing, write_onnx
from .page_content import build_page_content
from .predictor import Predictor, load
from .setup import FitSetup
from .verdict import Verdict, decide

# Examples that the ONNX file is compared on.
COMPARED = 8


def write_model(
    out: Path,
    run: Run,
    method: MethodChoice,
    setup: FitSetup,
    material: FitData,
    verdict: Verdict,
) -> None:
    """Write the model of ``run``, which was trained on all domains, and its card to ``out``."""
    trained = models.load(folder_of(out, run), torch.device("cpu"), method[0])
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
        "inputs": _inputs(material),
        "estimate": verdict.as_json(),
    }
    (out / ONNX).unlink(missing_ok=True)  # it may be of another model
    models.save(out, algorithm, run, shape, material.dataset.classes, domains, record, about)


def write_checked_onnx(out: Path, method: type[Algorithm], material: FitData) -> str:
    """Write the ONNX file of the model in ``out``, and to its card what it takes; return a line.

    Not every network of other packages can be written so; the model is there all the same.
    """
    lacking = onnx_missing()
    if lacking is not None:
        return (
            f"no {ONNX}: it needs {lacking}; pip install 'shoal[onnx]' and give the command again"
        )
    predictor = load(out, "cpu", method)
    inputs = examples_of(predictor, material.dataset)
    try:
        gap = write_onnx(out / ONNX, predictor, inputs)
    except Exception as error:  # the exporter raises whatever a network drives it to
        if isinstance(error, OSError):
            raise
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"no {ONNX}: {why}"
    card = read_json(out / CARD)
    encoding = None if material.table is None else material.table.encoding
    told = describe_onnx(card["shape"], material.dataset.classes, encoding)
    write_json(out / CARD, {**card, "onnx": told})
    return f"{ONNX} agrees with the model to {gap:.1g} in every probability"


def examples_of(predictor: Predictor, dataset: DomainDataset) -> Tensor:
    """Return some inputs of the model, of all domains in turn."""
    found = []
    for k in range(COMPARED):
        domain = dataset.domains[k % len(dataset.domains)]
        index = k // len(dataset.domains) % len(domain)
        one = domain.tensor[index] if domain.in_memory else exact_evaluation(domain.files[index])
        found.append(one)
    return torch.stack(found)


def _inputs(material: FitData) -> Mapping[str, Any]:
    if material.table is None:
        return {"kind": "images", "size": "any; resized to 224 × 224"}
    class_column, domain_column = material.table.answers
    return {
        "kind": "table",
        "columns": material.table.encoding.as_json(),
        "class_column": class_column,
        "domain_column": domain_column,
    }


ESTIMATE, PAGE = "estimate.json", "report.html"


@dataclass(frozen=True)
class Fitted:
    """What came of it: the verdict, and the runs that failed."""

    verdict: Verdict
    failures: tuple[str, ...]


def fit(
    material: FitData,
    setup: FitSetup,
    methods: Mapping[str, MethodChoice],
    out: Path,
    machine: Machine,
    cache_folder: Path,
    budget: Budget,
    trials: int,
    watcher: FitWatcher,
) -> Fitted | None:
    """Fit a model into the folder ``out``; the same again goes on where it was stopped.

    In several processes all must call it; the first alone writes, and the others return None.

    Args:
        methods: by the names that runs have; the first ones are ERM and what is compared with it.
        cache_folder: of the decoded images.
        trials: how often every domain is left out at most, on other splits.
    """
    from ..report.fit_page import check_drawing

    check_saving()
    check_drawing()
    if setup.frozen:
        for name, (method, _) in methods.items():
            check_frozen(name, method)
    with first_rank_first():
        if rank() == 0:
            setup.save(out)
        world = _surroundings(material, setup, methods, out, machine, cache_folder, watcher)
    groups = groups_of(setup, world, trials)
    if kept := finished(out, [run for group in groups for run in group]):
        runs = "1 run is" if len(kept) == 1 else f"{len(kept)} runs are"
        watcher.note(f"{runs} there already, and not made again")
    vectors = setup.frozen or setup.kind == "table"
    with one_thread() if vectors and machine.device.type == "cpu" else nullcontext():
        return _fitted(material, setup, world, groups, out, budget, watcher)


def _fitted(
    material: FitData,
    setup: FitSetup,
    world: FitWorkspace,
    groups: list[list[Run]],
    out: Path,
    budget: Budget,
    watcher: FitWatcher,
) -> Fitted | None:
    estimated = estimate(out, groups, world, budget, watcher)
    verdict = decide(estimated, world.dataset, setup.protocol.holdout) if estimated else None
    names = list(world.methods)
    deploy = names[agreed(lambda: names.index(verdict.deploy) if verdict else 0)]
    run = setup.run(world.dataset, deploy, world.methods[deploy], (), 0)
    failed = failures(out, [run for group in groups for run in group])
    if verdict is not None:
        for line in failed:
            watcher.note(f"failed: {line}")
        write_json(out / ESTIMATE, verdict.as_json())
        write_plan(out, [run])
    _train(out, run, world, watcher)
    if verdict is None:
        return None
    write_model(out, run, world.methods[deploy], setup, material, verdict)
    watcher.note(write_checked_onnx(out, world.methods[deploy][0], material))
    onnx = (out / ONNX).exists()
    content = build_page_content(material, setup, verdict, estimated, failed, onnx)
    _write_page(out / PAGE, content)
    return Fitted(verdict, tuple(failed))


def _surroundings(
    material: FitData,
    setup: FitSetup,
    methods: Mapping[str, MethodChoice],
    out: Path,
    machine: Machine,
    cache_folder: Path,
    watcher: FitWatcher,
) -> FitWorkspace:
    dataset = material.dataset

    def cache() -> ImageCache:
        return build(dataset, cache_folder, lambda *at: watcher.amount("decoding", *at))

    if setup.kind == "table":
        return FitWorkspace(methods, dataset, None, machine)
    if setup.frozen and setup.backbone is not None:
        vectors = frozen_features(
            dataset,
            cache,
            setup.backbone,
            machine.device,
            out / FEATURES,
            lambda *at: watcher.amount("features", *at),
        )
        return FitWorkspace(methods, vectors, None, machine)
    return FitWorkspace(methods, dataset, cache(), machine)


def _train(out: Path, run: Run, world: FitWorkspace, watcher: FitWatcher) -> None:
    """Train what is to be deployed on all domains."""

    def forecast(_: Run, progress: Progress | None) -> FitProgress:
        return FitProgress(0, 1, progress.seconds_left if progress else None)

    run_group(Worker(out, world), [run], watcher, forecast)
    if rank() == 0 and state_of(folder_of(out, run)) is not RunState.DONE:
        why = "; ".join(failures(out, [run])) or f"see {folder_of(out, run)}"
        raise ValueError(f"the model could not be trained on all domains: {why}")


def _write_page(path: Path, content: Mapping[str, Any]) -> None:
    from ..report.fit_page import fit_page

    write_text(path, fit_page(content))
