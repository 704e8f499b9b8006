"""Random kernel: the numbers of ``randomness.Draws`` in one pass, in Triton.

Torch needs some thirty small operations for them.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch brings it along for GPUs on Linux
    triton = None

# Numbers of one program.
BLOCK = 256


def kernel_applies(count: Tensor) -> bool:
    """Return whether the kernel can write the draws of this counter."""
    if triton is None or not count.is_cuda or torch.compiler.is_compiling():
        return False
    return count.device.index == torch.cuda.current_device()


def write_draws(
    count: Tensor, key: Tensor, found: Tensor, constants: tuple[int, int, int, int]
) -> None:
    """Fill ``found`` with ``Draws.bits`` if it is int64, and with ``Draws.uniform`` if float64.

    Args:
        constants: of SplitMix64: its step, the inverse of the step, and its two factors.
    """
    step, inverse, first, second = constants
    _draw[(triton.cdiv(len(found), BLOCK),)](
        count,
        key,
        found,
        len(found),
        STEP=step,
        INVERSE=inverse,
        FIRST=first,
        SECOND=second,
        UNIFORM=found.dtype == torch.float64,
        BLOCK=BLOCK,
    )


if triton is not None:

    @triton.jit
    def _mixed(x, FIRST: tl.constexpr, SECOND: tl.constexpr):
        """Return ``Draws._mix``."""
        x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST
        x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND
        return x ^ ((x >> 31) & 0x1FFFFFFFF)

    @triton.jit(do_not_specialize=["n"])
    def _draw(
        count,
        key,
        found,
        n,
        STEP: tl.constexpr,
        INVERSE: tl.constexpr,
        FIRST: tl.constexpr,
        SECOND: tl.constexpr,
        UNIFORM: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """Write ``Draws.bits`` or, if UNIFORM, ``Draws.uniform``; the counter stays."""
        start = _mixed(tl.load(count) * STEP + tl.load(key), FIRST, SECOND)
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        bits = _mixed((start * INVERSE + place.to(tl.int64) + 1) * STEP, FIRST, SECOND)
        if UNIFORM:
            numbers = ((bits >> 12) & 0xFFFFFFFFFFFFF).to(tl.float64) + 0.5
            tl.store(found + place, numbers * (2.0**-52), place < n)
        else:
            tl.store(found + place, bits, place < n)
