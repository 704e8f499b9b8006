"""Interpretation: sentences on what a diagnosis means for its model, as certain as its numbers."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

from ..catalogue import method_and_average

Found = Mapping[str, Any]
# A difference is called more than chance if chance gives it in at most this share of cases.
LEVEL = 0.05
# Cosines of Diag(H) and Var(G) from which one stands for the other, and below which it does not.
CLOSE, LOOSE = 0.9, 0.5
# How many times farther from the others a domain must be to stand out.
APART = 1.5


def sentences(found: Found) -> list[str]:
    """Return what the numbers of a diagnosis mean, in a few sentences."""
    parts = (_accuracies, _variances, _chance, _curvatures, _inconsistency, _fishr)
    return [sentence for part in parts if (sentence := part(found))]


def _accuracies(found: Found) -> str:
    """Compare the best domain with the worst; chance allows for the choice among all pairs."""
    domains = found["domains"]
    ranked = sorted(domains, key=lambda name: domains[name]["accuracy"])
    worst, best = ranked[0], ranked[-1]
    gap = domains[best]["accuracy"] - domains[worst]["accuracy"]
    error = math.hypot(*(_accuracy_error(domains[name]) for name in (worst, best)))
    pairs = math.comb(len(domains), 2)
    limit = NormalDist().inv_cdf(1 - LEVEL / (2 * pairs)) * error
    shown = (
        f"Accuracy is {_percent(domains[best])} % in {best} and {_percent(domains[worst])} % in "
        f"{worst}: {100 * gap:.1f} ± {100 * error:.1f} points apart"
    )
    if gap <= limit:
        return f"{shown}, which chance can give."
    learned = domains[best]["trained_on"] and not domains[worst]["trained_on"]
    seen = f", but the model has seen examples of {best}" if learned else ""
    return f"{shown}, more than chance gives{seen}."


def _accuracy_error(domain: Found) -> float:
    """Return the standard error, with a right and a wrong example more: it is never 0."""
    n = domain["images"] + 2
    share = (domain["accuracy"] * domain["images"] + 1) / n
    return math.sqrt(share * (1 - share) / n)


def _percent(domain: Found) -> str:
    return f"{100 * domain['accuracy']:.1f}"


def _variances(found: Found) -> str:
    """Name the domains with the most and the least variance, and the one far from the others."""
    traces = {name: one["chain"]["trace:variance"] for name, one in found["domains"].items()}
    most, least = max(traces, key=traces.__getitem__), min(traces, key=traces.__getitem__)
    if not traces[least] > 0:
        return f"Gradients do not vary at all in {least}."
    factor = _times(traces[most] / traces[least])
    shown = f"Gradients vary most in {most}, {factor} times as much as in {least} (Tr C)"
    if "shuffles" in found and not _beyond_chance(found["shuffles"]):
        return f"{shown}."
    apart = _far_from_others(found)
    far = f"; the variances of {apart} are the farthest from those of the others" if apart else ""
    return f"{shown}{far}."


def _times(factor: float) -> str:
    return f"{factor:.2g}" if factor < 99.5 else f"{factor:,.0f}"


def _far_from_others(found: Found) -> str | None:
    """Return the domain that is clearly farther from the others than they are from each other."""
    names = list(found["domains"])
    if len(names) < 3:
        return None
    distances = {frozenset(pair["domains"]): pair["variance"] for pair in found["pairs"]}
    mean = {name: fmean(d for pair, d in distances.items() if name in pair) for name in names}
    name = max(mean, key=mean.__getitem__)
    others = fmean(d for pair, d in distances.items() if name not in pair)
    return name if mean[name] > APART * others else None


def _chance(found: Found) -> str:
    shuffles = found.get("shuffles")
    if shuffles is None:
        return (
            "Whether these variances differ by more than chance was not tested; that is done for "
            "a linear head (--parameters head)."
        )
    one, count = shuffles["variance"], shuffles["count"]
    shown = (
        f"Dealing the examples of {_listed(shuffles['domains'])} out to these domains at random "
        f"gives variances that differ as much in {one['larger'] or 'none'} of {count} cases"
    )
    if not _beyond_chance(shuffles):
        return f"{shown}: the difference can be chance."
    typical = f", {_times(one['gap'] / one['median'])} times a typical one" if one["median"] else ""
    return f"{shown}: the difference is more than chance{typical}."


def _beyond_chance(shuffles: Found) -> bool:
    """Return whether the gap of variances is among the largest of all, its own included."""
    share: float = (1 + shuffles["variance"]["larger"]) / (1 + shuffles["count"])
    return share <= LEVEL


def _curvatures(found: Found) -> str:
    cosine = found["gaps"]["all"]["cosine"]
    if cosine >= CLOSE:
        meaning = "so equal variances mean nearly proportional curvatures here"
    elif cosine >= LOOSE:
        meaning = "so variances tell of curvatures only roughly here"
    else:
        meaning = "so variances tell little of curvatures here"
    return f"The cosine of variances and Hessian diagonals is {cosine:.2f} on average, {meaning}."


def _inconsistency(found: Found) -> str:
    score = found["inconsistency"]["full"]
    pair = max(score["pairs"], key=lambda one: one["inconsistency"])
    a, b, risk, curvature = (pair[key] for key in ("a", "b", "risk", "curvature"))
    largest = f"Inconsistency is largest from {a} to {b}"
    if abs(risk) >= abs(risk + curvature):
        return f"{largest}; all of it is the difference of their risks, {risk:.2g}."
    shown = f"{largest}: {risk:.2g} from their risks and {curvature:.2g} from their curvatures"
    share = pair["floored"] / found["weights"]
    if share > 0.5:
        flat = f"{a} is flat in {100 * share:.0f} % of its directions"
        return f"{shown}, which says little, because {flat}."
    return f"{shown}."


def _fishr(found: Found) -> str:
    shuffles = found.get("shuffles")
    if shuffles is None:
        return ""
    if not _beyond_chance(shuffles):
        return (
            "These numbers give no reason to expect a gain from Fishr, which makes variances "
            "equal; they do not rule one out."
        )
    advice = (
        "whether that helps on a new domain, only a held-out domain can tell (shoal fit, shoal "
        "sweep)"
    )
    method, _ = method_and_average(found["algorithm"])
    if method.partition("-")[0] == "fishr":  # or one of its variants
        return (
            "Fishr trained this model and left that difference. A larger penalty_weight narrows "
            f"it; {advice}."
        )
    weak = found["gaps"]["all"]["cosine"] < LOOSE
    doubt = ", though its argument by curvatures is weak here" if weak else ""
    return f"Fishr, trained on these domains, would narrow that difference{doubt}; {advice}."


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
