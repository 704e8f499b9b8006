"""The cost of one update of each method relative to ERM, and its peak memory.

MNIST CNN with 2 × 64 images and ResNet-50 with 3 × 32; each method alternates with ERM, medians. On
a GPU every update is captured in a CUDA graph. Next to each ratio of times is the ratio of the two
updates' floating-point operations, counted, and for methods of several passes the time of those
passes alone.
"""

import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.arm import ARM
from shoal.algorithms.base import Algorithm
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import defaults
from shoal.algorithms.optimiser import Optimiser
from shoal.networks import Network, mnist_cnn
from shoal.randomness import stream
from shoal.training.step import CapturedStep

from .backbone import resnet50
from .recording import options, write

# Domains, images of each, shape and classes; the scale of the hyperparameters.
CASES: dict[str, tuple[int, int, tuple[int, int, int], int, str]] = {
    "mnist-cnn": (2, 64, (2, 28, 28), 2, "small"),
    "resnet-50": (3, 32, (3, 224, 224), 7, "large"),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "dann, gradient penalty": ("dann", {"grad_penalty": 1.0}),
    "vrex, moving average": ("vrex", {"ema_decay": 0.95}),
    "iga, head": ("iga", {"parameters": "classifier"}),
    "fishr + iga": ("fishr", {"mean_weight": 1000.0}),
    "fishr, uncentred": ("fishr", {"centered": False}),
}
# Limits for ResNet-50 on a GPU, in times of ERM. "passes": the time of the method's passes through
# the network alone, measured in the same run, plus 10 %; "E + 1": number of domains plus 1.
BARS: dict[str, float | str] = {
    **dict.fromkeys(("fishr", "vrex", "irm", "coral", "mmd", "groupdro", "rsc"), 1.05),
    **dict.fromkeys(("dann", "cdann", "iga, head"), 1.05),
    **dict.fromkeys(("and-mask", "sand-mask"), 1.3),
    **dict.fromkeys(("fish", "mldg", "mixup", "mtl", "sagnet", "arm"), "passes"),
    "iga": "E + 1",
    **dict.fromkeys(("sd", "ib-erm", "ib-irm", "eqrm", "rdm"), 1.05),
    **dict.fromkeys(("causirl-coral", "causirl-mmd"), 1.05),
    **dict.fromkeys(("cad", "condcad", "selfreg", "urm"), 1.05),
    **dict.fromkeys(("sam", "sagm", "miro"), "passes"),
}

# The passes of those methods: over all images or one domain's, with a backward, with a step.
ALL, ONE = "all", "one"
PASSES: dict[str, list[tuple[str, bool, bool]]] = {
    "fish": [(ONE, True, True)],  # once for each domain
    "mldg": [(ONE, True, False), (ONE, True, True)],
    "mixup": [(ALL, True, True)],
    "mtl": [(ALL, True, True)],
    "sagnet": [(ALL, True, True), (ALL, False, False), (ALL, True, True)],
    "arm": [(ALL, True, True)],
    "sam": [(ALL, True, False), (ALL, True, True)],
    "sagm": [(ALL, True, False), (ALL, True, True)],
    "miro": [(ALL, False, False), (ALL, True, True)],
}


class WithContext(nn.Module):
    """ARM's network with its context as a further channel, without the method's sets."""

    def __init__(self, context: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.context, self.model = context, model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(torch.cat([images, self.context(images)], 1))


def bare_passes(case: str, variant: str, device: torch.device) -> Callable[[], None]:
    """Return the method's passes through the network, without the rest of the method."""
    domains, each, *_ = CASES[case]
    algorithm, batches = make(case, variant, device)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    network: nn.Module = make(case, "erm", device)[0].model
    if isinstance(algorithm, ARM):
        network = WithContext(algorithm.context, algorithm.model)
    optimiser = Optimiser(network.parameters(), 1e-4)

    def step() -> None:
        for which, backward, moves in PASSES[variant] * (domains if variant == "fish" else 1):
            n = len(images) if which == ALL else each
            with torch.set_grad_enabled(backward):
                loss = F.cross_entropy(network(images[:n]), labels[:n])
            if backward:
                grads = torch.autograd.grad(loss, optimiser.weights)
                if moves:
                    optimiser.step(grads)

    return step


def make(case: str, variant: str, device: torch.device) -> tuple[Algorithm, list[Batch]]:
    domains, each, (channels, height, width), classes, scale = CASES[case]
    name, settings = VARIANTS[variant]
    kind = ALGORITHMS[name]
    channels += kind.extra_channels
    torch.manual_seed(0)
    model: Network = (
        resnet50(channels, classes)
        if case == "resnet-50"
        else mnist_cnn(channels, classes, stream("benchmark"))
    )
    hparams = replace(defaults(kind.Hparams, scale), **settings)
    algorithm = kind(model.to(device), domains, hparams).to(device)
    generator = stream("benchmark", "images")
    batches = []
    for _ in range(domains):
        shape = (each, channels - kind.extra_channels, height, width)
        images = torch.randn(shape, generator=generator).to(device)
        batches.append((images, torch.randint(classes, (each,), generator=generator).to(device)))
    return algorithm, batches


class Operations(TorchDispatchMode):
    """Count the floating-point operations of products and convolutions with torch's formulas.

    torch's own FlopCounterMode also hooks modules, which autograd.grad does not suffer.
    """

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def operations(algorithm: Algorithm, batches: Sequence[Batch]) -> tuple[int, float]:
    """Return the floating-point operations of one update, and the milliseconds that it took."""
    with Operations() as counter:
        taken = milliseconds(lambda: algorithm.update(batches))
    return counter.total, taken


def stepper(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return a function that runs one update and waits for its end."""
    if device.type != "cuda":
        return run
    captured = CapturedStep(lambda: run() and None, lambda: None, device)

    def step() -> None:
        captured()
        captured.wait()

    return step


def milliseconds(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - begin)


def measure(case: str, variant: str, rounds: int, kind: str, threads: int) -> dict[str, Any]:
    """Return time, operations and memory of a method's update, and of ERM's in the same run."""
    torch.set_num_threads(threads)
    device = torch.device(kind)
    algorithm, batches = make(case, variant, device)
    flops, first = operations(algorithm, batches)
    if kind == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        algorithm.update(batches)
        torch.cuda.synchronize()
        # Weights and Adam's state existed before the update.
        held = sum(t.numel() * t.element_size() for t in algorithm.state_dict().values())
        peak = torch.cuda.max_memory_allocated() - before + held
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    erm, erm_batches = make(case, "erm", device)
    erm_flops, erm_first = operations(erm, erm_batches)
    steps = {
        "erm": stepper(lambda: erm.update(erm_batches), device),
        "method": stepper(lambda: algorithm.update(batches), device),
    }
    if variant == "erm":  # against itself: how much the clock varies
        steps["method"] = steps["erm"]
    if BARS.get(variant) == "passes" and rounds:
        steps["passes"] = stepper(bare_passes(case, variant, device), device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    if not rounds:  # if an update takes a minute, only the first is measured
        times = {"erm": [erm_first], "method": [first]}
    for index in range(rounds):  # each has run one update, to count its operations
        for name in list(steps) if index % 2 else list(steps)[::-1]:
            times[name].append(milliseconds(steps[name]))
    median = {name: statistics.median(many) for name, many in times.items()}
    passes = (
        {"passes_ratio": round(median["passes"] / median["erm"], 3)} if "passes" in median else {}
    )
    return {
        "ms": round(median["method"], 3),
        "erm_ms": round(median["erm"], 3),
        "ratio": round(median["method"] / median["erm"], 3),
        **passes,
        "operations_ratio": round(flops / erm_flops, 3),
        "peak_gb": round(peak / 1e9, 3),
    }


def bar_of(case: str, variant: str, row: dict[str, Any]) -> float | None:
    bar = BARS.get(variant) if case == "resnet-50" and torch.cuda.is_available() else None
    if bar == "passes":
        return round(1.1 * float(row["passes_ratio"]), 3)
    if bar == "E + 1":
        return float(CASES[case][0] + 1)
    return None if bar is None else float(bar)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--methods", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument(
        "--rounds",
        type=int,
        default=30,
        help="timed updates; 0 measures only the first update (default: %(default)s)",
    )
    asked = parser.parse_args()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    numbers: dict[str, Any] = {"rounds": asked.rounds, "device": kind}
    for case in asked.cases:
        rows = numbers[case] = {}
        for variant in asked.methods:
            job = (case, variant, asked.rounds, kind, torch.get_num_threads())
            if kind == "cuda":
                row = measure(*job)
                gc.collect()
                torch.cuda.empty_cache()
            else:  # one process each, so that each has its own peak memory
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    row = pool.submit(measure, *job).result()
            bar = bar_of(case, variant, row)
            rows[variant] = row if bar is None else {**row, "bar": bar}
            print(f"{case:10} {variant:24} {rows[variant]}", flush=True)
            path = write(
                f"algorithms_{kind}", asked, numbers
            )  # after every row, so that a time limit loses nothing
    print(path)


if __name__ == "__main__":
    main()
