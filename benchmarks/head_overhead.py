"""The overhead of Fishr on the head in a ResNet-50 training step, compared with ERM and BackPACK.

PACS (7 classes, 3 × 32 images) and DomainNet (345 classes, 5 × 32), 224 px, in float32 and in bf16
with channels last. The kinds of step are interleaved (BackPACK in every fourth round), and medians
are reported.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal

from .recording import options, write

DEVICE = torch.device("cuda")
HEADS = {"PACS": (7, 3), "DomainNet": (345, 5)}
EACH = 32


class Net(nn.Module):
    """ResNet-50 features with frozen batch-norm statistics, and a linear head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from torchvision.models import resnet50

        self.features = resnet50(weights=None)
        self.features.fc = nn.Identity()
        self.classifier = nn.Linear(2048, classes)
        for module in self.features.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


class BackpackFishr:
    """The penalty with BackPACK's individual gradients, including the moving average."""

    def __init__(self, head: nn.Linear, domains: int) -> None:
        from backpack import extend

        self.head, self.domains = extend(head), domains
        self.criterion = extend(nn.CrossEntropyLoss(reduction="sum"))
        self.v_bar: Tensor | None = None

    def __call__(self, features: Tensor, labels: Tensor) -> Tensor:
        from backpack import backpack
        from backpack.extensions import BatchGrad

        parameters = list(self.head.parameters())
        loss = self.criterion(self.head(features), labels)
        with backpack(BatchGrad()):
            loss.backward(inputs=[*parameters, features], retain_graph=True, create_graph=True)
        g = torch.cat([p.grad_batch.flatten(1) for p in parameters], 1)
        for parameter in parameters:
            parameter.grad = None
            del parameter.grad_batch
        features.grad = None
        v = g.float().reshape(self.domains, EACH, -1).var(1)
        self.v_bar = 0.05 * v + (0.95 * self.v_bar if self.v_bar is not None else 0)
        u = self.v_bar / 0.05
        self.v_bar = self.v_bar.detach()
        return 1000 * (u - u.mean(0)).square().mean(1).mean()


def steps(classes: int, domains: int, half: bool) -> dict[str, Callable[[], Tensor]]:
    torch.manual_seed(0)
    layout = torch.channels_last if half else torch.contiguous_format
    net = Net(classes).to(DEVICE, memory_format=layout)
    optimiser = torch.optim.Adam(net.parameters(), lr=5e-5)
    images = torch.randn(domains * EACH, 3, 224, 224, device=DEVICE).to(memory_format=layout)
    labels = torch.randint(0, classes, (domains * EACH,), device=DEVICE)
    ids = torch.arange(domains).repeat_interleave(EACH)  # on the host, where the sizes are known
    fishr = shoal.Fishr(domains, penalty_weight=1000.0, warmup_steps=0).to(DEVICE)
    theirs = BackpackFishr(net.classifier, domains)

    def step(penalty: str) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            features = net.features(images)
            logits = net.classifier(features)
            loss = F.cross_entropy(logits, labels)
            if penalty == "shoal":
                loss = loss + fishr(features, logits, labels, ids)
            elif penalty == "backpack":
                loss = loss + theirs(features, labels)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return {name: (lambda name=name: step(name)) for name in ("erm", "shoal", "backpack")}


def measure(roads: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, Any]:
    peaks = {}
    for name, road in roads.items():
        road()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        road()
        torch.cuda.synchronize()
        peaks[name] = torch.cuda.max_memory_allocated() / 1e9
    for _ in range(5):
        for road in roads.values():
            road()
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in roads}
    for index in range(rounds):
        names = ["erm", "shoal"] if index % 2 else ["shoal", "erm"]
        for name in [*names, "backpack"] if index % 4 == 0 else names:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            roads[name]()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    times = {name: [a.elapsed_time(b) for a, b in many] for name, many in events.items()}
    median = {name: statistics.median(many) for name, many in times.items()}
    spread = {name: statistics.quantiles(many, n=4) for name, many in times.items()}
    return {
        "rounds": rounds,
        "median_ms": {name: round(value, 3) for name, value in median.items()},
        "quartiles_ms": {n: [round(q[0], 3), round(q[2], 3)] for n, q in spread.items()},
        "peak_gb": {name: round(value, 3) for name, value in peaks.items()},
        "time_over_erm_percent": {
            n: round(100 * (median[n] / median["erm"] - 1), 2) for n in ("shoal", "backpack")
        },
        "memory_over_erm_percent": {
            n: round(100 * (peaks[n] / peaks["erm"] - 1), 2) for n in ("shoal", "backpack")
        },
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=list(HEADS))
    asked = parser.parse_args()
    numbers: dict[str, Any] = {
        "images_per_domain": EACH,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
    }
    for head in asked.heads:
        classes, domains = HEADS[head]
        for half in (False, True):
            key = f"{head}, {'bf16 channels last' if half else 'float32'}"
            numbers[key] = measure(steps(classes, domains, half), asked.rounds)
            print(key, numbers[key], flush=True)
            torch.cuda.empty_cache()
    print(write("head_overhead", asked, numbers))


if __name__ == "__main__":
    main()
