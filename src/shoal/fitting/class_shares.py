"""Class shares: how frequent each class is in every domain, and whether that differs strongly."""

from ..datasets import DomainDataset

# The share of a class differs strongly if it does by this much, and by more than its error.
DIFFERENCE, SURE = 0.25, 3.0
# Examples that a domain must have to be judged.
LEAST = 20

# Shares by domain and class.
Shares = dict[str, dict[str, float]]


def class_shares(dataset: DomainDataset) -> Shares:
    """Return the share of every class in every domain."""
    return {
        domain: {kind: count / max(sum(counts.values()), 1) for kind, count in counts.items()}
        for domain, counts in dataset.counts().items()
    }


def differing_shares(dataset: DomainDataset) -> dict[str, tuple[str, str]]:
    """Return the classes whose share differs strongly, with the domains of the least and the most.

    The class that differs most comes first.
    """
    shares = class_shares(dataset)
    sizes = {domain.name: len(domain) for domain in dataset.domains if len(domain) >= LEAST}
    found: dict[str, tuple[str, str]] = {}
    gaps: dict[str, float] = {}
    for kind in dataset.classes if len(sizes) > 1 else ():
        low = min(sizes, key=lambda name: shares[name][kind])
        high = max(sizes, key=lambda name: shares[name][kind])
        gap = shares[high][kind] - shares[low][kind]
        variance = sum(p * (1 - p) / n for p, n in _with_size(shares, sizes, kind, (low, high)))
        if gap >= DIFFERENCE and gap > SURE * variance**0.5:
            found[kind], gaps[kind] = (low, high), gap
    return {kind: found[kind] for kind in sorted(found, key=lambda kind: -round(gaps[kind], 9))}


def _with_size(
    shares: Shares, sizes: dict[str, int], kind: str, domains: tuple[str, str]
) -> list[tuple[float, int]]:
    return [(shares[name][kind], sizes[name]) for name in domains]


def describe_shares(dataset: DomainDataset) -> list[str]:
    """Return a note if the share of a class differs strongly between domains."""
    differing = differing_shares(dataset)
    if not differing:
        return []
    shares = class_shares(dataset)
    kind, (low, high) = next(iter(differing.items()))
    others = len(differing) - 1 if len(dataset.classes) > 2 else 0
    more = f", and that of {others} other class{'es' * (others > 1)} differs too" if others else ""
    return [
        f"the share of the class {kind!r} goes from {100 * shares[low][kind]:.0f} % in {low!r} to "
        f"{100 * shares[high][kind]:.0f} % in {high!r}{more}; a model that tells the domain can "
        "guess the class from it, so look at the accuracy of each class as well"
    ]
