"""Fishr on all weights of the IRM setup's network, 2 × 25,000 examples, compared with BackPACK.

One step is the risk, the penalty and their gradient in all 306,151 weights; all implementations are
timed in one run. BackPACK has two: ``BatchGrad``, the individual gradients of the released Fishr
code, and ``Variance``, which sums squares without them (and cancels if gradients are nearly
constant).
"""

import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import shoal
from shoal.experiments.colored_mnist import PENALTY_WEIGHT, Setup, domains_of
from shoal.networks import MLP
from shoal.training.step import CapturedStep

from .recording import options, write

DEVICE = torch.device("cuda")


def by_shoal(model: nn.Module, inputs: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
    """Return risk + λ · penalty through the public names."""
    logits = model(inputs)
    risk = nn.functional.binary_cross_entropy_with_logits(logits, labels)
    rows = shoal.gradient_variance(model, inputs, labels, domains, unbiased=False, num_domains=2)
    return risk + PENALTY_WEIGHT * 2 * shoal.spread(rows)


def by_backpack(
    extension: str, model: nn.Module, inputs: Tensor, labels: Tensor, domains: Tensor
) -> Tensor:
    """Return the same from ``BatchGrad`` or ``Variance`` of each domain's summed loss."""
    from backpack import backpack, extensions

    criterion = nn.BCEWithLogitsLoss(reduction="sum")
    rows, risks = [], []
    for x, y in zip(inputs.chunk(2), labels.chunk(2), strict=True):
        loss = criterion(model(x), y)
        with backpack(getattr(extensions, extension)()):
            loss.backward(inputs=list(model.parameters()), create_graph=True, retain_graph=True)
        if extension == "Variance":
            v = torch.cat([p.variance.flatten() for p in model.parameters()])
        else:
            v = torch.cat([p.grad_batch.var(0, correction=0).flatten() for p in model.parameters()])
        rows.append(v)
        risks.append(loss / len(x))
        for parameter in model.parameters():
            parameter.grad = None
            vars(parameter).clear()
    v = torch.stack(rows)
    return torch.stack(risks).mean() + PENALTY_WEIGHT * (v - v.mean(0)).square().sum()


def measure(step: Callable[[], Any], repeats: int) -> tuple[float, float, float, float]:
    """Return median, smallest and largest milliseconds, and the peak GB above the start."""
    step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() - before
    return statistics.median(times), min(times), max(times), peak / 1e9


def gradient_step(
    road: Callable[..., Tensor], model: nn.Module, batch: Iterable[Tensor]
) -> Callable[[], list[Tensor]]:
    def step() -> list[Tensor]:
        loss = road(model, *batch)
        return list(torch.autograd.grad(loss, list(model.parameters())))

    return step


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--examples", type=int, default=25_000)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    from backpack import extend

    parts = [
        domains_of(Setup(examples=asked.examples), 0)[name].to(DEVICE) for name in ("90%", "80%")
    ]
    inputs = torch.cat([part.inputs for part in parts])
    labels = torch.cat([part.labels for part in parts])
    batch = (inputs, labels, torch.arange(2).repeat_interleave(asked.examples))
    torch.manual_seed(0)
    model = MLP(392, 390, 1).to(DEVICE)
    twin = extend(nn.Sequential(*model.features, model.classifier))
    ours = gradient_step(by_shoal, model, batch)
    batch_grad = gradient_step(partial(by_backpack, "BatchGrad"), twin, batch)
    variance = gradient_step(partial(by_backpack, "Variance"), twin, batch)
    numbers: dict[str, Any] = {"examples": 2 * asked.examples, "weights": 306_151}
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        gap = max(float((a - b).norm() / b.norm()) for a, b in zip(ours(), variance(), strict=True))
        captured = CapturedStep(lambda: ours() and None, lambda: None, DEVICE)

        def replay(captured: CapturedStep = captured) -> None:
            captured()
            captured.wait()

        found = {}
        roads = {
            "shoal": ours,
            "shoal captured": replay,
            "backpack BatchGrad": batch_grad,
            "backpack Variance": variance,
        }
        for name, step in roads.items():
            torch.cuda.empty_cache()
            median, least, most, peak = measure(step, asked.repeats)
            found[name] = {
                "median_ms": round(median, 2),
                "min_max_ms": [round(least, 2), round(most, 2)],
                # A replay allocates nothing: its memory was allocated at capture.
                "peak_gb": None if step is replay else round(peak, 2),
            }
        del captured
        found["times_faster"] = {
            f"{name} than {other}": round(found[other]["median_ms"] / found[name]["median_ms"], 1)
            for name in ("shoal", "shoal captured")
            for other in ("backpack BatchGrad", "backpack Variance")
        }
        found["largest_relative_gradient_difference"] = gap
        numbers["float32" if precision == "highest" else "tf32"] = found
        print(precision, found, flush=True)
    print(write("theta_step", asked, numbers))


if __name__ == "__main__":
    main()
