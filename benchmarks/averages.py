"""The cost of averages of weights along a run: SMA, the second half and SWAD together.

One captured step of ERM, on random images of PACS' number and size. Blocks of updates with and
without averages alternate; a block is as long as the updates between two of SWAD's evaluations and
has one of them in its middle, so that it pays for the end of a segment. The validation loss itself
is timed separately, and so are the records. SWAD is given a constant loss: it then takes every
segment, which is the most that it can cost.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from typing import Any

import torch

from shoal.algorithms import find
from shoal.algorithms.hparams import defaults
from shoal.catalogue import AVERAGES, PRECISIONS, STEP_KINDS
from shoal.datasets import Domain, DomainDataset
from shoal.randomness import stream
from shoal.results.records import HELD_OUT
from shoal.runs.machine import Machine
from shoal.runs.prepare import evaluation_of_run, prepare
from shoal.runs.run import Protocol, Run
from shoal.training.averages import AveragePlan, Averaging
from shoal.training.step import Step

from .recording import options, write

TRAINED, TEST = ("a", "b", "c"), "d"
CLASSES = 7
# Times of one evaluation or record.
REPEATS = 3


class TimedAveraging(Averaging):
    """Averaging that times SWAD's loss, and gives SWAD a constant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_seconds: list[float] = []

    def validation_loss(self) -> float:
        begin = time.perf_counter()
        super().validation_loss()
        self.loss_seconds.append(time.perf_counter() - begin)
        return 1.0


class Updates:
    """Call to run a block of updates, with averages or without; returns its seconds.

    The averages count their own updates only, as if there were no others.
    """

    def __init__(self, run: Step, device: torch.device) -> None:
        self.run, self.device = run, device
        self._numbers = count()
        self.averaged = 0

    def __call__(self, length: int, averaging: TimedAveraging | None = None) -> float:
        begin = self._now()
        evaluated = 0 if averaging is None else len(averaging.loss_seconds)
        for _ in range(length):
            self.run(next(self._numbers))
            if averaging is not None:
                averaging.after_update(self.averaged, self.run)
                self.averaged += 1
        seconds = self._now() - begin
        return seconds - (0 if averaging is None else sum(averaging.loss_seconds[evaluated:]))

    def _now(self) -> float:
        self.run.wait()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def random_images(each: int, side: int) -> DomainDataset:
    """Return four domains of random images."""
    domains = []
    for name in (*TRAINED, TEST):
        draws = stream("averages", name)
        labels = torch.randint(CLASSES, (each,), generator=draws)
        shape = (each, 3, side, side)
        images = torch.randint(256, shape, generator=draws, dtype=torch.uint8)
        domains.append(Domain(name, labels, images))
    return DomainDataset("random", tuple(map(str, range(CLASSES))), tuple(domains))


def median_seconds(work: Callable[[], object]) -> float:
    """Return the median time of something that ends with a result on the host."""
    found = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


class Memory:
    """The most memory that was taken from a GPU, in GB; None on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def restart(self) -> None:
        """Give back what is not in use, and measure from here."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> float | None:
        # Reserved, because a captured step keeps memory that does not count as allocated.
        if self.device.type != "cuda":
            return None
        return round(torch.cuda.max_memory_reserved(self.device) / 1e9, 3)


def measure(
    data: DomainDataset, network: str, kind: str, device: torch.device, asked: Any
) -> dict[str, Any]:
    """Return times and memory of the step with averages and without."""
    evaluated = AveragePlan(asked.steps).evaluated
    length = evaluated[1] - evaluated[0] if evaluated else 0
    if not length or (asked.blocks + 1) * length > asked.steps:
        raise ValueError(
            f"{asked.blocks} blocks with SWAD's evaluations do not fit into {asked.steps} updates; "
            "choose fewer --blocks or more --steps"
        )
    method = find("erm")
    protocol = Protocol(steps=asked.steps, network=network, precision=asked.precision)
    run = Run(
        dataset=data.name,
        fingerprint="",
        algorithm="erm",
        test_domains=(TEST,),
        trial=0,
        draw=0,
        hparams=asdict(defaults(method.Hparams, "large")) | {"batch_size": asked.batch},
        protocol=protocol,
    )
    memory = Memory(device)
    memory.restart()
    machine = Machine(device=device, step=kind)  # type: ignore[arg-type]
    placed, update = prepare(run, method, data, None, machine)
    evaluate = evaluation_of_run(update, placed.parts, machine.step)
    begin = time.perf_counter()
    step = Step(update, machine.step, print)
    evaluate.warm_up()
    capture = time.perf_counter() - begin
    updates = Updates(step, device)
    updates(length)
    evaluation = median_seconds(evaluate)
    peak_without = memory.peak()

    memory.restart()
    validation = [placed.parts[name, HELD_OUT] for name in TRAINED]
    averaging = TimedAveraging(update, evaluate, validation, protocol.steps)
    averaging.begin()
    updates(1 + length // 2, averaging)  # now evaluations are in the middle of blocks
    times: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(asked.blocks):
        for which in list(times) if number % 2 else list(times)[::-1]:
            seconds = updates(length, averaging if which == "with" else None)
            times[which].append(1000 * seconds / length)
    step.wait()
    record = median_seconds(lambda: averaging.record(updates.averaged - 1))
    percent = [100 * (b / a - 1) for a, b in zip(times["without"], times["with"], strict=True)]
    quartiles = statistics.quantiles(percent, n=4)
    medians = {which: statistics.median(found) for which, found in times.items()}
    loss = statistics.median(averaging.loss_seconds)
    losses_ms = 1000 * loss * len(evaluated) / protocol.steps  # of one update
    held = sum(tensor.nbytes for tensor in averaging.averages.state_dict().values())
    return {
        "network": network,
        "weights": sum(weight.numel() for weight in averaging.weights),
        "step": step.kind,
        "updates_in_a_block": length,
        "blocks": asked.blocks,
        "step_ms": round(medians["without"], 4),
        "with_averages_ms": round(medians["with"], 4),
        "more_percent": round(quartiles[1], 3),
        "more_percent_quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "validation_images": sum(map(len, validation)),
        "validation_loss_s": round(loss, 4),
        "validation_losses_of_a_run": len(evaluated),
        "validation_losses_more_percent": round(100 * losses_ms / medians["without"], 2),
        "record_images": sum(map(len, placed.parts.values())),
        "record_s": round(evaluation, 4),
        "record_of_averages_s": round(record, 4),
        "averages_in_a_record": len(averaging.records) // REPEATS,
        "held_by_averages_gb": round(held / 1e9, 3),
        "peak_gb": peak_without,
        "peak_with_averages_gb": memory.peak(),
        "capture_s": round(capture, 1),
        "all_finite": bool(update.algorithm.all_finite),
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--networks", nargs="+", default=["resnet50"], help="random weights")
    parser.add_argument("--step", nargs="+", default=["compiled"], choices=STEP_KINDS)
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=2500, help="of each of the four domains")
    parser.add_argument("--side", type=int, default=224, help="of an image, in pixels")
    parser.add_argument("--batch", type=int, default=32, help="images of each training domain")
    parser.add_argument("--steps", type=int, default=5001, help="updates of the run")
    parser.add_argument(
        "--blocks", type=int, default=25, help="of each kind, 2 or more (default: %(default)s)"
    )
    asked = parser.parse_args()
    device = torch.device(asked.device)
    data = random_images(asked.images, asked.side)
    rows: list[dict[str, Any]] = []
    for network in asked.networks:
        for kind in asked.step:
            rows.append(measure(data, network, kind, device, asked))
            print(rows[-1], flush=True)
            shown = {"averages": list(AVERAGES), "precision": asked.precision, "rows": rows}
            # After every row, so that a time limit loses nothing.
            path = write("averages", asked, shown)
    print(path)


if __name__ == "__main__":
    main()
