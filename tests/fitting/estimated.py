"""Made-up estimates: scores of a few candidates on domains that were left out."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.fitting.estimates import Candidate, Estimates

CANDIDATES = {
    one.key: one
    for one in (
        Candidate("logistic", "Logistic regression", "logistic regression"),
        Candidate("forest", "Random forest", "trees"),
        Candidate("extra", "Extra trees", "trees"),
        Candidate("erm", "ERM", "erm"),
        Candidate("fishr", "Fishr", "penalty"),
        Candidate("coral", "CORAL", "penalty"),
    )
}


def estimates(
    scores: Mapping[str, Sequence[float | Sequence[float] | None]],
    *,
    examples: int | Sequence[int] = 400,
    names: Sequence[str] = "abcdefghijklmn",
    majority: float | Sequence[float] = 0.5,
    chance: float = 0.5,
    **more: Any,
) -> Estimates:
    """Return estimates from scores by candidate, one a domain: a score, its trials, or None."""
    domains = names[: max(map(len, scores.values()))]

    def by_domain(values: float | Sequence[float]) -> dict[str, Any]:
        each = [values] * len(domains) if isinstance(values, float | int) else values
        return dict(zip(domains, each, strict=True))

    found = {
        key: {
            name: [value] if isinstance(value, float | int) else value
            for name, value in zip(domains, row, strict=False)
            if value is not None
        }
        for key, row in scores.items()
    }
    given = {"guess": by_domain(majority), "majority": by_domain(majority)}
    return Estimates(
        candidates=tuple(CANDIDATES[key] for key in scores),
        examples=by_domain(examples),
        scores=found,
        chance=by_domain(chance),
        **(given | more),
    )
