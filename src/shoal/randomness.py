"""Named random streams: draws depend on the stream's name alone, not on other draws."""

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from .random_kernels import kernel_applies, write_draws

__all__ = ["Draws", "stream"]


def stream(*name: str | int | float) -> torch.Generator:
    """Return a CPU generator seeded by ``name``, e.g. ``stream("split", trial, domain)``."""
    generator = torch.Generator()
    generator.manual_seed(_seed(name))
    return generator


def _seed(name: tuple[str | int | float, ...]) -> int:
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def domainbed_hash(*arguments: object) -> int:
    """Return DomainBed's seed of its arguments: the MD5 of their tuple as text, modulo 2³¹."""
    return int(hashlib.md5(str(arguments).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


class Draws(nn.Module):
    """Random numbers, generated on the device from a name and a counter.

    The counter is its only state and is part of ``state_dict()``: a captured step draws new numbers
    at every replay, a resumed run continues its draws, and all devices draw the same.
    """

    count: Tensor
    key: Tensor

    # SplitMix64 (Steele, Lea and Flood, 2014), with its constants as signed numbers.
    _STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
    _INVERSE = -0x0E217C1E66C88CC3  # _STEP · _INVERSE = 1, modulo 2⁶⁴

    def __init__(self, *name: str | int | float, device: torch.device | None = None) -> None:
        super().__init__()
        # The key is a tensor, so that compiled code serves draws of all names.
        self._seed = _seed(name)
        key = torch.tensor(self._seed, device=device)
        self.register_buffer("key", key, persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=device))

    def _apply(self, fn: Any, recurse: bool = True) -> "Draws":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.key.fill_(self._seed)  # to_empty() clears it, and it is not in state_dict()
        return self

    def bits(self, n: int) -> Tensor:
        """Return n random int64, and increment the counter."""
        if kernel_applies(self.count):
            return self._run_kernel(n, torch.int64)
        start = self._mix(self.count * self._STEP + self.key)
        self.count += 1
        ids = torch.arange(1, n + 1, device=self.count.device)
        # This is start + ids · step. Inductor would treat a range times a number as index
        # arithmetic, which overflows, and a compiled step would crash.
        return self._mix((start * self._INVERSE + ids) * self._STEP)

    def _mix(self, x: Tensor) -> Tensor:
        x = (x ^ ((x >> 30) & (2**34 - 1))) * self._FIRST
        x = (x ^ ((x >> 27) & (2**37 - 1))) * self._SECOND
        return x ^ ((x >> 31) & (2**33 - 1))

    def uniform(self, n: int) -> Tensor:
        """Return n numbers from U(0, 1), float64, never 0 and never 1."""
        if kernel_applies(self.count):
            return self._run_kernel(n, torch.float64)
        found: Tensor = ((self.bits(n) >> 12) & (2**52 - 1)).double() + 0.5
        return found * 2.0**-52

    def _run_kernel(self, n: int, dtype: torch.dtype) -> Tensor:
        """Return ``bits`` in int64, or ``uniform`` in float64, from a kernel."""
        found = torch.empty(n, dtype=dtype, device=self.count.device)
        constants = self._STEP, self._INVERSE, self._FIRST, self._SECOND
        write_draws(self.count, self.key, found, constants)
        self.count += 1
        return found

    def permutation(self, n: int) -> Tensor:
        """Return 0 … n − 1 in random order."""
        return self.bits(n).argsort()

    def beta(self, a: float, n: int) -> Tensor:
        """Return n numbers from Beta(a, a), float64."""
        first, second = self._log_gamma(a, n), self._log_gamma(a, n)
        return torch.sigmoid(first - second)

    def _log_gamma(self, a: float, n: int) -> Tensor:
        """Return the logarithms of n numbers from Gamma(a), by Marsaglia and Tsang (2000).

        Their rejection accepts 95 % or more, so the first accepted of 32 candidates is exact except
        in one case of 10⁴¹. Gamma(a) = Gamma(a + 1) U^(1/a) is computed in logarithms, because it
        underflows for small a.
        """
        tries, d = 32, a + 1 - 1 / 3
        u, radius, angle = self.uniform(3 * n * tries).view(3, n, tries)
        normal = (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()
        v = (1 + normal / math.sqrt(9 * d)) ** 3
        log_v = v.clamp(min=1e-300).log()
        accepted = (v > 0) & (u.log() < normal.square() / 2 + d - d * v + d * log_v)
        first = accepted.long().argmax(1, keepdim=True)
        larger: Tensor = log_v.gather(1, first)[:, 0] + math.log(d)
        return larger.add(self.uniform(n).log(), alpha=1 / a)
