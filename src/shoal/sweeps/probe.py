"""How long a run takes, from a few updates and one evaluation on images that stand for the data."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..algorithms.base import Algorithm
from ..catalogue import StepKind
from ..datasets import Domain, DomainDataset, splits
from ..runs.diagnosis import EXAMPLES
from ..runs.machine import Machine
from ..runs.prepare import evaluation_of_run, prepare
from ..runs.run import Run
from ..training.step import Step

# Seconds after which enough updates were timed, and how many are enough in any case.
ENOUGH, UPDATES = 0.15, 20
# Images of a domain that are looked at, of large ones a quarter; and the side of a large one.
MANY, LARGE = 256, 64
# Images of each domain in the updates that are timed, on a GPU or not, of large images or not.
SIZES = {
    (True, True): (32,),
    (True, False): (8, 32),
    (False, True): (2,),
    (False, False): (2, 8),
}


@dataclass(frozen=True)
class Rates:
    """What the runs of a method take on a data set, in seconds.

    Args:
        update: of every update, whatever its size.
        image: of an update, for each image in it.
        evaluation: for each record.
        domains: of the data set.
    """

    update: float
    image: float
    evaluation: float
    domains: int

    def seconds(self, run: Run) -> float:
        """Return about how long the run takes, apart from what it prepares."""
        protocol = run.protocol
        trained = max(1, self.domains - len(run.test_domains))
        images = int(run.hparams["batch_size"]) * trained
        records = 1 + -(-(protocol.steps - 1) // protocol.record_every)
        return protocol.steps * (self.update + self.image * images) + records * self.evaluation


@dataclass(frozen=True)
class ProbeSubject:
    """A run to be probed: its method on a few images, and how many a record of it looks at.

    Args:
        evaluated: for accuracies.
        sampled: for the gaps between domains, where they are recorded.
    """

    run: Run
    images: DomainDataset
    evaluated: int
    sampled: int

    @staticmethod
    def of(run: Run, dataset: DomainDataset) -> "ProbeSubject":
        return ProbeSubject(run, _stand_in(dataset, MANY), *_looked_at(run, dataset))


def probe(subject: ProbeSubject, method: type[Algorithm], machine: Machine) -> Rates:
    """Return the rates of the run's method on its data set, here.

    Nothing is compiled, and the weights are drawn: on a GPU a compiled step is faster.
    """
    run, cuda = subject.run, machine.device.type == "cuda"
    kind: StepKind = "graph" if cuda and machine.step != "eager" else "eager"
    machine = replace(machine, step=kind, place="device", weights=None)
    large = subject.images.input_shape[-1] >= LARGE
    few = _stand_in(subject.images, MANY if cuda else 4 if large else 32)
    trained = len(few.domains) - len(run.test_domains)
    times: dict[int, float] = {}
    # Few large images keep a device busy already; of small ones two sizes tell what else an update
    # costs. Every size costs a GPU seconds, in which kernels are chosen and loaded.
    for size in SIZES[cuda, large]:
        sized = replace(run, hparams={**run.hparams, "batch_size": size})
        placed, update = prepare(sized, method, few, None, machine)
        times[size * trained] = _repeated(partial(_make, Step(update, kind)), cuda)
    evaluate = evaluation_of_run(update, placed.parts, False)
    each = _repeated(lambda _: evaluate(), cuda) / sum(map(len, placed.parts.values()))
    looked_at = subject.evaluated + (subject.sampled if machine.log else 0)
    return Rates(*_line(times), each * looked_at, len(few.domains))


def _make(step: Step, number: int) -> None:
    step(number)
    step.wait()


def _stand_in(dataset: DomainDataset, count: int) -> DomainDataset:
    """Return a data set of the same domains and classes with so few images, random for files."""
    domains = []
    for domain in dataset.domains:
        if domain.in_memory:
            images = domain.tensor
        else:
            shape = (min(count, MANY // 4, len(domain)), *dataset.input_shape)
            images = torch.randint(256, shape, dtype=torch.uint8)
        # Clones: a slice would go to another process with all of its tensor.
        few = images[:count].clone()
        domains.append(Domain(domain.name, domain.labels[: len(few)].clone(), few))
    return replace(dataset, domains=tuple(domains))


def _repeated(work: Callable[[int], object], cuda: bool) -> float:
    """Return the seconds of one go; the first counts only where it is long by itself.

    On a GPU it never counts: it loads kernels.
    """
    begin, made = time.perf_counter(), 0
    for number in range(UPDATES):
        work(number)
        now = time.perf_counter()
        if number == 0 and (cuda or now - begin < ENOUGH):
            begin = now
            continue
        made += 1
        if now - begin > ENOUGH:
            break
    return (now - begin) / made


def _line(times: dict[int, float]) -> tuple[float, float]:
    """Return the time of no image and of each, from the times of one or two numbers of them."""
    (few, short), *rest = times.items()
    if not rest:
        return 0.0, short / few
    many, long = rest[0]
    slope = max(0.0, (long - short) / (many - few))
    return max(0.0, short - slope * few), slope


def _looked_at(run: Run, dataset: DomainDataset) -> tuple[int, int]:
    """Return how many images a record evaluates, and how many it measures gaps on."""
    evaluated = sampled = 0
    for name, split in splits(dataset, run.trial, run.protocol.holdout).items():
        tested = name in run.test_domains
        evaluated += len(split.held_out)
        evaluated += len(split.kept) if tested or run.protocol.evaluate == "all" else 0
        sampled += 0 if tested else min(len(split.kept), EXAMPLES)
    return evaluated, sampled
