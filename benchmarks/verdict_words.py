"""Error rates and power of the verdict's words, and coverage of its interval, by simulation.

A candidate's score on a domain is that of the simplest candidate plus a difference. Differences
vary from domain to domain by 3 points on average, more on some domains than on others, and are
correlated, because all are from the same baseline. Domains have 5 to 3,000 examples; a score is
measured on these, so it has the noise of a sample and is a multiple of 1/n.

Under no difference, any word for any candidate is an error. Power is how often the one candidate
that is truly better is both deployed and called so.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.fitting.choice import choose_candidate
from shoal.fitting.decision import word_for
from shoal.fitting.estimates import FAMILIES
from shoal.fitting.expectation import LEVEL, prediction_interval
from shoal.fitting.paired import adjusted_p, effective_number, weighted_mean, weights_of

from .recording import options, write

Array = NDArray[np.float64]
Random = np.random.Generator
# Deviation of the differences between domains, how it varies between domains (log scale), the
# correlation of two candidates' differences, and the share of examples on which two candidates
# disagree.
SPREAD, UNEQUAL, SHARED, DISAGREE = 0.03, 0.5, 0.5, 0.1
FEWEST, MOST = 5, 3000
GAINS = (0.02, 0.05)


def normal(random: Random, shape: tuple[int, ...]) -> Array:
    return random.normal(size=shape)


def heavy(random: Random, shape: tuple[int, ...]) -> Array:
    """Student's t with 3 degrees of freedom, of variance 1."""
    return np.asarray(random.standard_t(3, size=shape) / np.sqrt(3))


def skewed(random: Random, shape: tuple[int, ...]) -> Array:
    """Mostly a little above 0, seldom far below: an exponential distribution of variance 1."""
    return np.asarray(1 - random.exponential(size=shape))


SHAPES: dict[str, Callable[[Random, tuple[int, ...]], Array]] = {
    "normal": normal,
    "heavy tails": heavy,
    "skewed": skewed,
}


def sizes(random: Random, domains: int) -> NDArray[np.int64]:
    """Return the numbers of examples of the domains."""
    return np.exp(random.uniform(np.log(FEWEST), np.log(MOST), domains)).astype(np.int64)


def scores(
    random: Random, examples: NDArray[np.int64], others: int, shape: str, gain: float
) -> Array:
    """Return the scores of the simplest candidate and of others, the last of which gains."""
    domains, draw = len(examples), SHAPES[shape]
    spread = SPREAD * np.exp(UNEQUAL * random.normal(size=domains))
    common, own = draw(random, (domains,)), draw(random, (others, domains))
    differences = spread * (np.sqrt(SHARED) * common + np.sqrt(1 - SHARED) * own)
    differences[-1] += gain
    base = 1 / (1 + np.exp(-random.normal(1.2, 0.5, domains)))
    found = np.vstack([base, base + differences])
    found += random.normal(size=found.shape) * np.sqrt(DISAGREE / 2 / examples)
    return np.asarray(np.clip(np.round(found * examples) / examples, 0, 1))


def simplicity(others: int) -> list[int]:
    """Return how simple candidates are, as in a fit of a table.

    After logistic regression come three kinds of trees, ERM, and penalties.
    """
    families = ["logistic regression", *["trees"] * 3, "erm", *["penalty"] * others]
    return [FAMILIES.index(one) for one in families[: others + 1]]


def rates(
    random: Random, domains: int, others: int, times: int, shape: str = "normal", gain: float = 0.0
) -> dict[str, Any]:
    """Return how often words are used, in percent."""
    counts = dict.fromkeys(("any", "any_clearly", "deployed", "said", "said_clearly"), 0)
    for _ in range(times):
        examples = sizes(random, domains)
        table, weights = scores(random, examples, others, shape, gain), weights_of(examples)
        counted = round(effective_number(weights))
        words = [word_for(p, counted) for p in adjusted_p(table[1:] - table[0], weights)]
        deploy = choose_candidate(table, weights, "mean", simplicity(others)).deploy
        counts["any"] += any(words)
        counts["any_clearly"] += "clearly" in words
        if deploy == others:  # the one that gains
            counts["deployed"] += 1
            counts["said"] += bool(words[-1])
            counts["said_clearly"] += words[-1] == "clearly"
    return {key: round(100 * count / times, 1) for key, count in counts.items()}


def coverage(random: Random, domains: int, shape: str, times: int) -> dict[str, Any]:
    """Return how often a new domain falls into the interval, and its usual width, in percent."""
    inside, widths, none = 0, [], 0
    for _ in range(times):
        examples = np.append(sizes(random, domains), MOST)
        true = 1 / (1 + np.exp(-(1.2 + 0.5 * SHAPES[shape](random, (domains + 1,)))))
        seen = random.binomial(examples, true) / examples
        found = prediction_interval(seen[:-1], examples[:-1])
        if found is None:
            none += 1
            continue
        inside += found[0] <= seen[-1] <= found[1]
        widths.append(found[1] - found[0])
    return {
        "inside": round(100 * inside / len(widths), 1),
        "median_width": round(100 * float(np.median(widths)), 1),
        "without_interval": round(100 * none / times, 1),
    }


def optimism(random: Random, domains: int, others: int, times: int) -> dict[str, float]:
    """Return how much too good an estimate is where no candidate is better, in points.

    Args:
        random: draws; differences are all noise, so that every candidate expects the same.
    """
    own, crossed, rank = [], [], simplicity(others)
    for _ in range(times):
        examples = sizes(random, domains)
        table, weights = scores(random, examples, others, "normal", 0.0), weights_of(examples)
        gains = table - table[0]  # the base has no part in what the choice gains
        deploy = choose_candidate(table, weights, "mean", rank).deploy
        own.append(weighted_mean(gains[deploy], weights))
        kept = ~np.eye(domains, dtype=bool)
        without = [choose_candidate(table[:, k], weights[k], "mean", rank).deploy for k in kept]
        crossed.append(weighted_mean(gains[without, np.arange(domains)], weights))
    return {
        "own_average": round(100 * float(np.mean(own)), 2),
        "cross_fitted": round(100 * float(np.mean(crossed)), 2),
    }


def simulate(
    domains: Sequence[int], others: Sequence[int], times: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables."""
    random, words, hits = np.random.default_rng(seed), [], []
    for count in domains:
        for many in others:
            row: dict[str, Any] = {"domains": count, "others": many}
            for shape in SHAPES:
                found = rates(random, count, many, times, shape)
                words.append(
                    row
                    | {"shape": shape, "probably": found["any"], "clearly": found["any_clearly"]}
                )
            for gain in GAINS:
                found = rates(random, count, many, times, gain=gain)
                hits.append(row | {"gain": gain, **found})
            print(*words[-3:], *hits[-2:], sep="\n", flush=True)
    wide = [count for count in domains if count > 2]
    return {
        "error_rates": words,
        "power": hits,
        "interval": [
            {"domains": count, "shape": shape, **coverage(random, count, shape, 10 * times)}
            for count in wide
            for shape in ("normal", "skewed")
        ],
        "optimism": [
            {"domains": count, "others": many, **optimism(random, count, many, times)}
            for count in domains
            if count > 1
            for many in others
        ],
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--domains", type=int, nargs="+", default=list(range(2, 13)))
    parser.add_argument("--others", type=int, nargs="+", default=[1, 2, 5, 18])
    parser.add_argument("--times", type=int, default=2000, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = simulate(asked.domains, asked.others, asked.times, asked.seed)
    about = {"times": asked.times, "seed": asked.seed, "level": LEVEL}
    print(write("verdict_words", asked, about | found))


if __name__ == "__main__":
    main()
