"""Best of n: the accuracy to expect if a search had only n of its draws."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .aggregation import TrialMean
from .selection import Choice, DrawScore, comparable_score

# Numbers of draws for which tables have a column, besides one and all.
SHOWN = (2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True)
class BestOfN:
    """The accuracies of one method on one data set, over trials, for n = 1, 2, …

    ``accuracies[n − 1]`` is the mean over the test domains. Trials and domains have all draws up to
    the last n, so that curves do not jump.
    """

    dataset: str
    algorithm: str
    accuracies: tuple[TrialMean, ...]


def expected_best(draws: Sequence[DrawScore], n: int) -> float:
    """Return the expected accuracy of the draw that is chosen among n random ones of these.

    Of D draws, ordered from the best score to the worst, the i-th (from 0) is chosen if it is among
    the n and none before it is: in C(D − 1 − i, n − 1) of C(D, n) cases. Equal scores are ordered
    as rules order them, the larger draw first.
    """
    ordered = sorted(draws, key=lambda one: (comparable_score(one.score), one.draw), reverse=True)
    ways = [math.comb(len(ordered) - 1 - i, n - 1) for i in range(len(ordered))]
    chosen = sum(k * one.accuracy for k, one in zip(ways, ordered, strict=True))
    return chosen / math.comb(len(ordered), n)


def best_of_n(choices: Iterable[Choice]) -> list[BestOfN]:
    """Return the curves of every data set and method with two draws or more.

    A trial that lacks a test domain which others of the data set have does not count.
    """
    groups: dict[tuple[str, str], dict[int, list[Choice]]] = {}
    domains: dict[str, set[str]] = {}
    for choice in choices:
        domains.setdefault(choice.dataset, set()).add(choice.test_domain)
        trials = groups.setdefault((choice.dataset, choice.algorithm), {})
        trials.setdefault(choice.trial, []).append(choice)
    found = []
    for (dataset, algorithm), trials in groups.items():
        wanted = domains[dataset]
        whole = [mine for mine in trials.values() if {one.test_domain for one in mine} == wanted]
        most = min((len(one.by_draw) for mine in whole for one in mine), default=0)
        if most > 1:
            curves = [_mean_over_domains(mine, most) for mine in whole]
            means = tuple(TrialMean.of(values) for values in zip(*curves, strict=True))
            found.append(BestOfN(dataset=dataset, algorithm=algorithm, accuracies=means))
    return found


def _mean_over_domains(choices: Sequence[Choice], most: int) -> list[float]:
    """Return the mean over test domains for n = 1 … most."""
    return [
        sum(expected_best(choice.by_draw, n) for choice in choices) / len(choices)
        for n in range(1, most + 1)
    ]


def shown_numbers(most: int) -> tuple[int, ...]:
    """Return the numbers of draws that a table shows, up to ``most``."""
    return 1, *(n for n in SHOWN if n < most), most
