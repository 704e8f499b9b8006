"""Probes: a few updates and one evaluation on stand-in images, timed to estimate a run's cost."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from multiprocessing.connection import Connection

import torch

from ..algorithms.base import Algorithm
from ..catalogue import StepKind, title_of
from ..datasets import Domain, DomainDataset, splits
from ..results.records import in_one_line, reason_of
from ..runs.diagnosis import EXAMPLES
from ..runs.machine import Machine, about_machine, hardware_of
from ..runs.prepare import evaluation_of_run, prepare
from ..runs.run import Run
from ..training.step import Step
from ..training.watcher import SILENT, Watcher
from .attempt import Workspace
from .cost import CostKey, Rates, RatesByHardware, cost_key

# Seconds until the process of the probes must have started; seconds after which no further probe
# starts; and seconds after which the process is killed, because a GPU takes its time to start.
BEGIN, SHARE, LIMIT = 15.0, 5.0, {"cpu": 10.0, "cuda": 60.0}
# Seconds of updates that are enough for a mean, and the largest number of updates.
ENOUGH, UPDATES = 0.15, 20
# Images of a domain in a stand-in, of large images a quarter; and the side of a large image.
MANY, LARGE = 256, 64
# Images of each domain in the updates that are timed, by: on a GPU, of large images.
SIZES = {
    (True, True): (32,),
    (True, False): (8, 32),
    (False, True): (2,),
    (False, False): (2, 8),
}


@dataclass(frozen=True)
class ProbeSubject:
    """A run to probe: stand-in images, and the number of images that a record of it takes.

    Args:
        evaluated: images for accuracies.
        sampled: images for the gaps between domains, if they are recorded.
    """

    run: Run
    images: DomainDataset
    evaluated: int
    sampled: int

    @staticmethod
    def of(run: Run, dataset: DomainDataset) -> "ProbeSubject":
        evaluated, sampled = _images_of_a_record(run, dataset)
        return ProbeSubject(run, _stand_in(dataset, MANY), evaluated, sampled)


def probe_rates(
    runs: Sequence[Run],
    workspace: Workspace,
    load: Callable[[str, int], DomainDataset],
    watcher: Watcher = SILENT,
) -> RatesByHardware:
    """Return the rates of these runs here, as far as they can be probed in a few seconds.

    A process of its own probes them: it gives the device back when it ends, and it can be killed
    when it takes too long.

    Args:
        load: returns the data set of a name and a trial, without the cache of its images.
        watcher: gets a note for each reason that kept something from being probed.
    """
    load = lru_cache(load)
    subjects = [ProbeSubject.of(run, load(run.dataset, run.trial)) for run in runs]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_probe_all, args=(subjects, workspace, theirs), daemon=True)
    process.start()
    theirs.close()
    found, failed = RatesByHardware(), dict[str, CostKey]()
    with suppress(EOFError):
        if ours.poll(BEGIN):
            device, hardware = ours.recv()
            end = time.monotonic() + LIMIT[device]
            while ours.poll(max(0.0, end - time.monotonic())):
                key, rates = ours.recv()
                if isinstance(rates, Rates):
                    found[hardware, key] = rates
                else:
                    failed.setdefault(rates, key)
    process.kill()
    process.join()
    for reason, (dataset, algorithm) in failed.items():
        watcher.note(
            f"the cost of {title_of(algorithm)} on {dataset} could not be probed ({reason})"
        )
    return found


def _probe_all(subjects: Sequence[ProbeSubject], workspace: Workspace, pipe: Connection) -> None:
    """Send the kind and the name of the device, then for each run its rates or an error."""
    try:
        machine = workspace.machine()
    except Exception:  # the workers report it
        return
    pipe.send((machine.device.type, hardware_of(about_machine(machine))))
    begin = time.monotonic()
    for subject in subjects:
        rates: Rates | str
        try:
            method, _ = workspace.method(subject.run.algorithm)
            rates = probe(subject, method, machine)
        except Exception as error:  # the run itself may still succeed
            rates = in_one_line(reason_of(error))
        pipe.send((cost_key(subject.run), rates))
        if time.monotonic() - begin > SHARE:
            return


def probe(subject: ProbeSubject, method: type[Algorithm], machine: Machine) -> Rates:
    """Return the rates of the run's method on its data set, in this process.

    Nothing is compiled, and the weights are drawn: on a GPU a compiled step is faster.
    """
    run, cuda = subject.run, machine.device.type == "cuda"
    kind: StepKind = "graph" if cuda and machine.step != "eager" else "eager"
    machine = replace(machine, step=kind, place="device", weights=None)
    large = subject.images.input_shape[-1] >= LARGE
    few = _stand_in(subject.images, MANY if cuda else 4 if large else 32)
    trained = len(few.domains) - len(run.test_domains)
    times: dict[int, float] = {}
    # A few large images keep a device busy. For small ones a second size shows what an update costs
    # without its images. Every size takes seconds on a GPU, which chooses and loads kernels.
    for size in SIZES[cuda, large]:
        sized = replace(run, hparams={**run.hparams, "batch_size": size})
        placed, update = prepare(sized, method, few, None, machine)
        times[size * trained] = _mean_seconds(partial(_update, Step(update, kind)), cuda)
    evaluate = evaluation_of_run(update, placed.parts)
    images = sum(map(len, placed.parts.values()))
    per_image = _mean_seconds(lambda _: evaluate(), cuda) / images
    recorded = subject.evaluated + (subject.sampled if machine.log else 0)
    per_update, per_update_image = _fit_line(times)
    return Rates(per_update, per_update_image, per_image * recorded, len(few.domains))


def _update(step: Step, number: int) -> None:
    step(number)
    step.wait()


def _stand_in(dataset: DomainDataset, count: int) -> DomainDataset:
    """Return a data set of the same domains and classes with few images, random ones for files."""
    domains = []
    for domain in dataset.domains:
        if domain.in_memory:
            images = domain.tensor
        else:
            shape = (min(count, MANY // 4, len(domain)), *dataset.input_shape)
            images = torch.randint(256, shape, dtype=torch.uint8)
        # A clone, because a slice would take all of its tensor to another process.
        few = images[:count].clone()
        domains.append(Domain(domain.name, domain.labels[: len(few)].clone(), few))
    return replace(dataset, domains=tuple(domains), groups=None)


def _mean_seconds(work: Callable[[int], object], cuda: bool) -> float:
    """Return the mean seconds of one call; the first counts only if it takes long by itself.

    On a GPU the first never counts, because it loads kernels.
    """
    begin, calls = time.perf_counter(), 0
    for number in range(UPDATES):
        work(number)
        now = time.perf_counter()
        if number == 0 and (cuda or now - begin < ENOUGH):
            begin = now
            continue
        calls += 1
        if now - begin > ENOUGH:
            break
    return (now - begin) / calls


def _fit_line(times: dict[int, float]) -> tuple[float, float]:
    """Return the seconds without images and for each image, from one or two numbers of images."""
    (few, short), *rest = times.items()
    if not rest:
        return 0.0, short / few
    many, long = rest[0]
    slope = max(0.0, (long - short) / (many - few))
    return max(0.0, short - slope * few), slope


def _images_of_a_record(run: Run, dataset: DomainDataset) -> tuple[int, int]:
    """Return the images that a record evaluates, and those that it measures gaps on."""
    evaluated = sampled = 0
    for name, split in splits(dataset, run.trial, run.protocol.holdout).items():
        tested = name in run.test_domains
        evaluated += len(split.held_out)
        evaluated += len(split.kept) if tested or run.protocol.evaluate == "all" else 0
        sampled += 0 if tested else min(len(split.kept), EXAMPLES)
    return evaluated, sampled
