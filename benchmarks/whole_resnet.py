"""Fishr on all weights of a ResNet-50: a whole training step compared with ERM's, by memory.

Three domains of 32 images at 224 px, batch-norm statistics frozen. One step is the risk, the
penalty on the variances of all 23.5 million weights with its moving average, their gradient and
Adam's step; rows marked so are captured in a CUDA graph. For each precision: ERM, then Fishr
without a limit, then Fishr within memory budgets, under a cap that the allocator enforces.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from shoal.algorithms.optimiser import Optimiser
from shoal.regularizers import Match
from shoal.training.step import CapturedStep

from .backbone import resnet50
from .recording import options, write

E, CLASSES = 3, 7
GB = 10**9
# Memory of a step apart from the statistic: of kernels, and fragments that cannot be joined.
BESIDE = 2 * GB
PRECISIONS = ("tf32", "float32", "bf16")


@dataclass(frozen=True)
class Task:
    """Images, labels and domains, with the network and precision of the steps."""

    images: Tensor
    labels: Tensor
    domains: Tensor
    precision: str

    @staticmethod
    def of(each: int, side: int, precision: str, last: bool, device: torch.device) -> "Task":
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(E * each, 3, side, side, generator=generator).to(device)
        labels = torch.randint(CLASSES, (E * each,), generator=generator).to(device)
        if last:
            images = images.contiguous(memory_format=torch.channels_last)
        return Task(images, labels, torch.arange(E).repeat_interleave(each), precision)

    def context(self) -> Any:
        enabled = self.precision == "bf16"
        return torch.autocast(self.images.device.type, torch.bfloat16, enabled, cache_enabled=False)


def set_precision(precision: str) -> None:
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"


def erm(model: nn.Module, task: Task) -> Tensor:
    with task.context():
        logits = model(task.images)
    return F.cross_entropy(logits.float(), task.labels)


def fishr(model: nn.Module, task: Task, match: Match, memory: int | None) -> Tensor:
    with task.context():
        losses, v = shoal.losses_and_variance(
            model, task.images, task.labels, task.domains, num_domains=E, memory=memory
        )
        return losses.mean() + match.match(v, True)


def step_of(loss: Callable[[], Tensor], model: nn.Module) -> Callable[[], None]:
    optimiser = Optimiser(model.parameters(), 5e-5).to(next(model.parameters()).device)

    def step() -> None:
        optimiser.step(torch.autograd.grad(loss(), optimiser.weights))

    return step


def milliseconds(step: Callable[[], object], rounds: int, device: torch.device) -> float:
    times = []
    for _ in range(rounds):
        wait(device)
        begin = time.perf_counter()
        step()
        wait(device)
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(step: Callable[[], None], rounds: int, captured: bool, device: torch.device) -> Any:
    """Return milliseconds of a step, and the peak GB of all tensors."""
    for _ in range(4):  # the first call builds and measures, the next ones compare
        step()
    gc.collect()
    row: dict[str, Any] = {}
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    row["eager_ms"] = round(milliseconds(step, rounds, device), 1)
    if device.type == "cuda":
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / GB, 2)
        row["reserved_gb"] = round(torch.cuda.max_memory_reserved() / GB, 2)
        if captured:
            graph = CapturedStep(step, lambda: None, device)
            row["captured_ms"] = round(
                milliseconds(lambda: (graph(), graph.wait()), rounds, device), 1
            )
    return row


def profile(step: Callable[[], None]) -> str:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    return str(found.key_averages().table(sort_by="cuda_time_total", row_limit=30))


def ratio(row: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in ("eager", "captured") if f"{kind}_ms" in row and f"{kind}_ms" in base]
    times = {f"{k}_times_erm": round(row[f"{k}_ms"] / base[f"{k}_ms"], 2) for k in kinds}
    return {**row, **times}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--each",
        type=int,
        default=32,
        help="images of each of the three domains (default: %(default)s)",
    )
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument(
        "--budgets", nargs="*", type=float, default=[60, 24, 12], help="memory budgets in GB"
    )
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print the kernels of Fishr's step")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    numbers: dict[str, Any] = {
        "images": [E * asked.each, asked.side],
        "channels_last": asked.channels_last,
    }
    name = "whole_resnet" + ("_channels_last" if asked.channels_last else "")

    def report(key: str, row: dict[str, Any]) -> dict[str, Any]:
        numbers[key] = row
        print(f"{key:24} {row}", flush=True)
        write(name, asked, numbers)
        return row

    def build(precision: str) -> tuple[nn.Module, Task, Match]:
        gc.collect()
        set_precision(precision)
        torch.manual_seed(0)
        model: nn.Module = resnet50(3, CLASSES).to(device)
        if asked.channels_last:
            model = model.to(memory_format=torch.channels_last)
        task = Task.of(asked.each, asked.side, precision, asked.channels_last, device)
        return model, task, Match(E, 1000.0, 0.95, normalise=True).to(device)

    bases = {}
    for precision in asked.precisions:
        model, task, match = build(precision)
        step = step_of(lambda model=model, task=task: erm(model, task), model)
        bases[precision] = report(f"{precision} erm", measure(step, asked.rounds, True, device))
        del step
        step = step_of(lambda m=model, t=task, p=match: fishr(m, t, p, None), model)
        row = measure(step, asked.rounds, True, device)
        report(f"{precision} fishr", ratio(row, bases[precision]))
        if asked.profile and device.type == "cuda":
            print(profile(step))
        del model, task, match, step
    for budget in asked.budgets:
        precision = asked.precisions[0]
        model, task, match = build(precision)
        memory = int(budget * GB)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(memory / total, 1.0))
            memory -= torch.cuda.memory_allocated() + BESIDE
        step = step_of(lambda m=model, t=task, p=match, b=memory: fishr(m, t, p, b), model)
        row = measure(step, asked.rounds, False, device)
        report(f"{precision} fishr {budget:g} GB", ratio(row, bases[precision]))
        del model, task, match, step


if __name__ == "__main__":
    main()
