"""Norms of gradients and Fisher diagonals of a ResNet-50 and a ViT-S: time and memory.

Each library runs in a process of its own and computes, of all weights, the norm of every example's
gradient and the mean of the squared gradients. Batch norm has frozen statistics, products are TF32
for all. The plain ViT-S/16 is timm's vit_small_patch16_224, with the class token and the positions
in a layer of their own, because Opacus knows weights of layers only; it does not know batch norm
either, whose weights only the others differentiate. In float64, on a few examples,
every library is compared with a loop of torch.autograd.grad.

Opacus and BackPACK are optional: --extra-path names a folder that holds them.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import shoal
from shoal.internals import trace_memory

from .backbone import resnet50
from .recording import options, write

GB = 10**9
CLASSES = 1000
NETWORKS = ("resnet50", "vit-s")
LIBRARIES = ("shoal", "vmap", "vmap in chunks", "opacus", "backpack")
STATISTICS = ("norms", "fisher")
# Examples at a time, for the library that leaves this to its user.
CHUNK = 32

Statistic = Callable[[Tensor, Tensor], Tensor]


class Tokens(nn.Module):
    """Patches of an image as a sequence, after a class token, with positions."""

    def __init__(self, side: int, patch: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = Places((side // patch) ** 2 + 1, width)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.places(self.patches(images).flatten(2).mT)
        return tokens


class Places(nn.Module):
    """A class token and positions: one of each for all examples."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        out: Tensor = self.out(mixed.reshape(n, t, width))
        return out


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(nn.Module):
    """A plain vision transformer; by default ViT-S/16."""

    def __init__(
        self, side: int, width: int = 384, depth: int = 12, heads: int = 6, patch: int = 16
    ) -> None:
        super().__init__()
        self.tokens = Tokens(side, patch, width)
        self.blocks = nn.Sequential(*[EncoderBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(images)))[:, 0])
        return logits


def build(network: str, side: int) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = resnet50(3, CLASSES) if network == "resnet50" else ViT(side)
    return model.eval()


def of_shoal(model: nn.Module) -> dict[str, Statistic]:
    def fisher(x: Tensor, y: Tensor) -> Tensor:
        return flat(shoal.fisher_diagonal(model, x, y).values())

    return {"norms": lambda x, y: shoal.gradient_norms(model, x, y), "fisher": fisher}


def of_vmap(model: nn.Module, chunk: int | None = None) -> dict[str, Statistic]:
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, weights, (x[None],))
        return F.cross_entropy(logits, y[None])

    mapped = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))

    def gradients(*arguments: Any) -> dict[str, Tensor]:
        # Fused attention has no batching rule and would run one example after the other.
        with sdpa_kernel(SDPBackend.MATH):
            found: dict[str, Tensor] = mapped(*arguments)
            return found

    def norms(x: Tensor, y: Tensor) -> Tensor:
        found = []
        for xs, ys in zip(x.split(chunk or len(x)), y.split(chunk or len(y)), strict=True):
            found.append(norms_of([g.flatten(1) for g in gradients(weights, xs, ys).values()]))
        return torch.cat(found)

    def fisher(x: Tensor, y: Tensor) -> Tensor:
        total: Any = 0
        for xs, ys in zip(x.split(chunk or len(x)), y.split(chunk or len(y)), strict=True):
            total = total + flat(squares(g) for g in gradients(weights, xs, ys).values())
        mean: Tensor = total / len(x)
        return mean

    return {"norms": norms, "fisher": fisher}


def of_opacus(model: nn.Module) -> dict[str, Statistic]:
    from opacus import GradSampleModule

    model.train()  # its hooks do nothing in eval mode; there is no dropout
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().requires_grad_(False)
    # Not strict: it takes functorch for the class token and the positions.
    wrapped = GradSampleModule(without_writing(model), loss_reduction="sum", strict=False)
    parameters = [p for p in wrapped.parameters() if p.requires_grad]

    def backward(x: Tensor, y: Tensor) -> None:
        F.cross_entropy(wrapped(x), y, reduction="sum").backward()

    def clear() -> None:
        for p in parameters:
            p.grad = p.grad_sample = None  # type: ignore[attr-defined]

    def norms(x: Tensor, y: Tensor) -> Tensor:
        backward(x, y)
        found = norms_of([p.grad_sample.flatten(1) for p in parameters])  # type: ignore[attr-defined]
        clear()
        return found

    def fisher(x: Tensor, y: Tensor) -> Tensor:
        backward(x, y)
        found = flat(squares(p.grad_sample) for p in parameters) / len(x)  # type: ignore[attr-defined]
        clear()
        return found

    return {"norms": norms, "fisher": fisher}


def of_backpack(model: nn.Module) -> dict[str, Statistic]:
    from backpack import backpack, extend
    from backpack.extensions import BatchL2Grad, SumGradSquared

    names = [name for name, _ in model.named_parameters()]
    extended = extend(without_writing(model), use_converter=True).eval()
    loss = extend(nn.CrossEntropyLoss(reduction="sum"))
    # The converter renames layers but keeps their order.
    parameters = list(extended.parameters())
    if len(parameters) != len(names):
        raise RuntimeError("BackPACK's converter changed the weights")

    def backward(x: Tensor, y: Tensor, extension: Any) -> None:
        with backpack(extension):
            loss(extended(x.requires_grad_()), y).backward()

    def norms(x: Tensor, y: Tensor) -> Tensor:
        backward(x, y, BatchL2Grad())
        found = torch.stack([p.batch_l2 for p in parameters]).sum(0).sqrt()  # type: ignore[attr-defined]
        clear(x, "batch_l2")
        return found

    def fisher(x: Tensor, y: Tensor) -> Tensor:
        backward(x, y, SumGradSquared())
        found = flat(p.sum_grad_squared for p in parameters) / len(x)  # type: ignore[attr-defined]
        clear(x, "sum_grad_squared")
        return found

    def clear(x: Tensor, attribute: str) -> None:
        x.grad = None
        for p in parameters:
            p.grad = None
            delattr(p, attribute)

    return {"norms": norms, "fisher": fisher}


MAKERS: dict[str, Callable[[nn.Module], dict[str, Statistic]]] = {
    "shoal": of_shoal,
    "vmap": of_vmap,
    "vmap in chunks": lambda model: of_vmap(model, CHUNK),
    "opacus": of_opacus,
    "backpack": of_backpack,
}


def without_writing(model: nn.Module) -> nn.Module:
    """Return the model with rectifiers that do not write in place, which full hooks refuse."""
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


def norms_of(gradients: list[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(g, dim=1) for g in gradients]).norm(dim=0)


def squares(gradients: Tensor) -> Tensor:
    """Return Σ_i g_i², on a GPU in one pass."""
    if gradients.device.type == "cpu":
        return gradients.square().sum(0)
    return torch.linalg.vector_norm(gradients, dim=0).square_()


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def loop(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return both statistics by one gradient after the other."""
    rows = []
    for k in range(len(x)):
        value = F.cross_entropy(model(x[k : k + 1]), y[k : k + 1])
        weights = [p for p in model.parameters() if p.requires_grad]
        rows.append(flat(torch.autograd.grad(value, weights)))
    g = torch.stack(rows)
    return {"norms": g.norm(dim=1), "fisher": g.square().mean(0)}


def batch(n: int, side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(n, 3, side, side, generator=generator)
    return images.to(device), torch.randint(CLASSES, (n,), generator=generator).to(device)


def measure(statistic: Statistic, x: Tensor, y: Tensor, rounds: int) -> dict[str, Any]:
    """Return the median milliseconds of a call and the peak GB of tensors.

    On a GPU with the weights and the batch, on a CPU of the tensors that the call makes.
    """
    cuda = x.device.type == "cuda"

    def call() -> float:
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        statistic(x, y)
        if cuda:
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin)

    try:
        for _ in range(2):  # the first calls choose kernels and verify layers
            call()
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        times = [call() for _ in range(rounds)]
    except torch.OutOfMemoryError as error:
        return {"error": str(error).split(". ")[0]}
    finally:
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
    row: dict[str, Any] = {"ms": round(statistics.median(times), 1)}
    if cuda:
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / GB, 2)
        row["reserved_gb"] = round(torch.cuda.max_memory_reserved() / GB, 2)
    else:
        with trace_memory() as trace:
            statistic(x, y)
        row["peak_gb"] = round(trace.peak / GB, 3)
    return row


def parity(network: str, library: str, examples: int, side: int, device: torch.device) -> Any:
    """Return the relative distance of both statistics from the loop, in float64."""
    model = build(network, side).double().to(device)
    x, y = batch(examples, side, device)
    x = x.double()
    found = {name: one(x, y) for name, one in MAKERS[library](model).items()}
    plain = build(network, side).double().to(device)  # without the library's hooks
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        p.requires_grad_(q.requires_grad)
    truth = loop(plain, x.detach(), y)
    return {
        name: float((found[name] - truth[name]).norm() / truth[name].norm()) for name in STATISTICS
    }


def work(asked: argparse.Namespace, network: str, library: str) -> dict[str, Any]:
    """Measure one library on one network, in this process."""
    device = torch.device(asked.device)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    rows: dict[str, Any] = {}
    try:
        model = build(network, asked.side).to(device)
        statistic = MAKERS[library](model)
        x, y = batch(asked.batch, asked.side, device)
        weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
        for name in asked.statistics:
            rows[name] = {"weights": weights, **measure(statistic[name], x, y, asked.rounds)}
        del model, statistic, x, y
        gc.collect()
        far = parity(network, library, asked.parity, asked.side, device)
        for name in asked.statistics:
            rows[name]["parity"] = far[name]
    except Exception as error:  # another library: whatever it raises is its result
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        rows |= {name: rows.get(name, {}) | {"error": reason} for name in asked.statistics}
    return rows


def in_process(asked: argparse.Namespace, library: str) -> dict[str, dict[str, Any]]:
    """Run ``work`` on every network in a process of its own; return its rows by network."""
    command = [sys.executable, "-m", "benchmarks.gradient_statistics", "--worker", library]
    for name in ("device", "batch", "side", "rounds", "parity"):
        command += [f"--{name}", str(getattr(asked, name))]
    command += ["--statistics", *asked.statistics, "--networks", *asked.networks]
    paths = [*map(str, asked.extra_path), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=asked.timeout,
            check=False,
        )
        said, reason = done.stdout, f"the process ended with {done.returncode}: "
        reason += done.stderr.strip()[-200:]
    except subprocess.TimeoutExpired as error:
        said = error.stdout or ""
        said = said.decode() if isinstance(said, bytes) else said
        reason = f"no result in {asked.timeout} s"
    lines = [line for line in said.splitlines() if line.startswith("{")]  # one for each network
    rows = {name: {"error": reason} for name in asked.statistics}
    return {
        network: json.loads(lines[k]) if k < len(lines) else rows
        for k, network in enumerate(asked.networks)
    }


def compared(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return how many times the memory and time of shoal the others take."""
    ratios = {}
    for key, row in numbers.items():
        network, statistic, library = key.split(", ")
        base = numbers[f"{network}, {statistic}, shoal"]
        if library != "shoal" and "ms" in row and "ms" in base:
            memory, longer = row["peak_gb"] / base["peak_gb"], row["ms"] / base["ms"]
            ratios[key] = {"memory": round(memory, 2), "time": round(longer, 2)}
    return ratios


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=224, help="pixels, a multiple of 16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parity", type=int, default=3, help="examples of the float64 check")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--libraries", nargs="+", default=LIBRARIES, choices=LIBRARIES)
    parser.add_argument("--statistics", nargs="+", default=STATISTICS, choices=STATISTICS)
    parser.add_argument(
        "--extra-path", nargs="*", type=Path, default=[], help="folders of optional libraries"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each process")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        warnings.simplefilter("ignore")
        for network in asked.networks:
            print(json.dumps(work(asked, network, asked.worker)), flush=True)
        return
    numbers: dict[str, Any] = {}
    for library in asked.libraries:
        for network, rows in in_process(asked, library).items():
            for name, row in rows.items():
                key = f"{network}, {name}, {library}"
                numbers[key] = row
                print(f"{key:36} {row}", flush=True)
        found = {
            "images": [asked.batch, asked.side],
            "rows": numbers,
            "times_shoal": compared(numbers) if "shoal" in asked.libraries else {},
        }
        write(f"gradient_statistics_{torch.device(asked.device).type}", asked, found)


if __name__ == "__main__":
    main()
