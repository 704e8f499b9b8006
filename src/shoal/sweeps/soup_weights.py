"""Weights of soups: means of members, the greedy choice among them, interpolation with a start."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ..results.selection import comparable_score

# Tensors by name.
Weights = Mapping[str, Tensor]
# Shares α of the soup in an interpolation with the start.
ALPHAS = tuple(k / 10 for k in range(11))


class WeightSum:
    """The sum of members' weights, in float64, so that their order hardly matters."""

    def __init__(self) -> None:
        self.count = 0
        self._total: dict[str, Tensor] = {}

    def add(self, weights: Weights) -> None:
        """Add the weights of one member."""
        for name, tensor in weights.items():
            before = self._total.get(name)
            self._total[name] = tensor.double() if before is None else before + tensor.double()
        self.count += 1

    def mean(self, more: Weights | None = None) -> dict[str, Tensor]:
        """Return the mean, as if ``more`` had been added as well."""
        if more is None:
            return {name: total / self.count for name, total in self._total.items()}
        return {
            name: (total + more[name].double()) / (self.count + 1)
            for name, total in self._total.items()
        }


def interpolate(start: Weights, end: Weights, alpha: float) -> dict[str, Tensor]:
    """Return (1 − α) start + α end, in float64 (WiSE-FT, Wortsman et al., 2022)."""
    return {
        name: (1 - alpha) * tensor.double() + alpha * end[name].double()
        for name, tensor in start.items()
    }


def best_first(scores: Sequence[float]) -> list[int]:
    """Return the members from the best to the worst; of equal ones the later comes first."""
    ranked = [(comparable_score(score), number) for number, score in enumerate(scores)]
    return [number for _, number in sorted(ranked, reverse=True)]


def greedy(scores: Sequence[float], score_of: Callable[[list[int]], float]) -> list[int]:
    """Return the members of the greedy soup, in the order in which they came in.

    The best member is the first. Each of the others, from the best to the worst, stays if the score
    of the average does not fall.

    Args:
        scores: of each member alone.
        score_of: returns the score of the average of some members: those that stayed so far, and
            the one to try.
    """
    first, *others = best_first(scores)
    stayed, best = [first], comparable_score(scores[first])
    for candidate in others:
        found = comparable_score(score_of([*stayed, candidate]))
        if found >= best:
            stayed, best = [*stayed, candidate], found
    return stayed
