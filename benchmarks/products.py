"""Matrix products of Colored MNIST on a GPU: 390 columns are an awkward number.

The network has 390 units (392 with two dead ones) and 392 inputs. A kernel works on tiles of 128
columns: 392 columns need four, the last nearly empty. Each shape is compared with 384 columns, and
a float32 product with three TF32 products of the high and low halves of its operands.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .recording import options, write

EXAMPLES, PIECE = 50_000, 1_000


def microseconds(run: Callable[[], object], rounds: int = 20, inside: int = 5) -> float:
    """Return the time of one call, from replays of a graph of several."""
    for _ in range(3):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inside):
            run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(rounds):
        graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / rounds / inside


def measure(k: int, m: int) -> dict[str, float]:
    """Return µs of x W, and of xᵀy in pieces, for k inputs and m outputs."""
    x, y = (torch.randn(EXAMPLES, width, device="cuda") for width in (k, m))
    w = torch.randn(k, m, device="cuda")
    left, right = (t.view(-1, PIECE, t.shape[1]) for t in (x, y))
    return {
        "x W": microseconds(lambda: x @ w),
        "xᵀy, in pieces": microseconds(lambda: torch.bmm(left.mT, right).sum(0)),
    }


def split() -> dict[str, float]:
    """Return µs of the same at 392 columns, cut into 384 and 8."""
    x, y = (torch.randn(EXAMPLES, 392, device="cuda") for _ in range(2))
    w, out = torch.randn(392, 392, device="cuda"), torch.empty(EXAMPLES, 392, device="cuda")
    left, right = (t.view(-1, PIECE, 392) for t in (x, y))
    parts = (slice(0, 384), slice(384, 392))

    def forward() -> None:
        for part in parts:
            torch.mm(x, w[:, part], out=out[:, part])

    def pieces() -> object:
        return torch.cat([torch.bmm(left[..., part].mT, right).sum(0) for part in parts])

    return {"x W": microseconds(forward), "xᵀy, in pieces": microseconds(pieces)}


@torch.compile(dynamic=False)
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 11 leading bits of each number, which TF32 keeps, and the rest."""
    high = (x.view(torch.int32) & -8192).view(torch.float32)
    return high, x - high


def product_of_halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x y for batches of matrices, without the product of the low halves."""
    (x_high, x_low), (y_high, y_low) = halves(x), halves(y)
    out = torch.bmm(x_low, y_high)
    return out.baddbmm_(x_high, y_low).baddbmm_(x_high, y_high)


def three_tf32() -> dict[str, dict[str, float]]:
    """Return µs and mean relative error of a product in float32 and as three TF32 products."""
    x, y = (torch.randn(2, EXAMPLES // 2, 392, device="cuda") for _ in range(2))
    w = torch.randn(2, 392, 392, device="cuda")
    left, right = (t.view(-1, PIECE, 392) for t in (x, y))
    found = {}
    for name, (a, b) in {"x W": (x, w), "xᵀy, in pieces": (left.mT, right)}.items():
        exact = torch.bmm(a.double(), b.double())
        for kind, precision in (("float32", "highest"), ("three TF32", "high")):
            torch.set_float32_matmul_precision(precision)
            multiply = torch.bmm if kind == "float32" else product_of_halves
            error = (multiply(a, b) - exact).abs().mean() / exact.abs().mean()
            time = microseconds(partial(multiply, a, b))
            found[f"{name}, {kind}"] = {"µs": round(time, 1), "error": float(f"{error:.2g}")}
    torch.set_float32_matmul_precision("highest")
    return found


def main() -> None:
    asked = options(__doc__ or "").parse_args()
    torch.set_float32_matmul_precision("highest")
    numbers: dict[str, Any] = {"examples": EXAMPLES, "precision": "float32"}
    for library in ("cublas", "cublaslt"):
        torch.backends.cuda.preferred_blas_library(library)
        for k, m in ((390, 390), (392, 392), (384, 392), (392, 384), (384, 384)):
            found = {name: round(value, 1) for name, value in measure(k, m).items()}
            numbers[f"{library}, {k} x {m}"] = found
        numbers[f"{library}, 392 as 384 + 8"] = {k: round(v, 1) for k, v in split().items()}
    numbers["two batches"] = three_tf32()
    print(*numbers.items(), sep="\n")
    print(write("products", asked, numbers))


if __name__ == "__main__":
    main()
