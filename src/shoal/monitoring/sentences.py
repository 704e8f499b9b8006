"""Sentences: a report on a place, in plain words for the terminal and the page."""

from collections.abc import Iterator, Mapping

from .place import PlaceReport

# Classes and columns that are listed in a sentence; the others are counted.
LISTED = 8


def sentences(report: PlaceReport, kind: str, usual: Mapping[str, float]) -> list[str]:
    """Return the sentences on a place, the most important first.

    Args:
        kind: "rows" or "images".
        usual: by class, its share in training.
    """
    return [
        *_expected(report, kind),
        *_measured(report),
        *_distance(report, kind),
        *_columns(report),
        _classes(report, usual),
        *_unsure(report, kind),
    ]


def _expected(report: PlaceReport, kind: str) -> Iterator[str]:
    these = f"these {report.inputs:,} {kind}" if report.inputs > 1 else f"this {_one(kind)}"
    found = f"Expected accuracy on {these}: about {percent(report.expected)}"
    if report.interval is None:
        yield f"{found}. Two domains are too few to say how far off that may be."
    else:
        low, high = (f"{100 * one:.0f}" for one in report.interval)
        if (low, high) == ("0", "100"):
            yield f"{found}. How far off that may be cannot be said."
        else:
            yield f"{found}; nine in ten such places are between {low} and {high} %."
    yield (
        f"On the domains that were left out, accuracies were {_range(report.usual)}, and such "
        f"estimates were off by {100 * report.error:.1f} points on average."
    )


def _measured(report: PlaceReport) -> Iterator[str]:
    if report.measured is None:
        return
    beside = "less" if report.measured < report.expected else "more"
    held = {True: ", as expected", False: f", {beside} than expected", None: ""}
    yield f"Measured accuracy, by the labels: {percent(report.measured)}{held[report.held]}."


def _distance(report: PlaceReport, kind: str) -> Iterator[str]:
    drift = report.drift
    if drift is None:
        return
    if drift.alarm is None or drift.auroc is None:
        few = f"{report.inputs} {kind} are" if report.inputs > 1 else f"One {_one(kind)} is"
        yield f"{few} too few to say how far this place is from the known domains."
    else:
        what = "unlike every known domain; the nearest is" if drift.alarm else "like those of"
        if drift.auroc > 0.5:
            told = f"tells them from it with an AUROC of {drift.auroc:.2f} (0.50 is chance)"
        else:
            told = f"cannot tell them from it (AUROC {drift.auroc:.2f}, 0.50 is chance)"
        yield f"These {kind} are {what} {drift.nearest}. A classifier {told}."
    if report.beyond:
        yield (
            "They are much further from the known domains than any domain that was left out was "
            "from the others. Nothing was measured for such a place, so do not rely on what is "
            "expected here."
        )
    far = int((drift.distances > drift.usual).sum())
    if far > 0.02 * report.inputs and far > 1:
        yield (
            f"{far:,} of the {kind} are further from all known examples than 99 % of those are "
            "themselves."
        )


def _columns(report: PlaceReport) -> Iterator[str]:
    if report.moved:
        listed = [f"{name} ({shift:+.1f})" for name, shift in report.moved.items()]
        yield f"Columns outside all known domains, by how many spreads: {_listed(listed)}."


def _classes(report: PlaceReport, usual: Mapping[str, float]) -> str:
    shares = sorted(report.shares.items(), key=lambda one: -one[1])
    listed = [f"{name} {percent(share)} ({percent(usual[name])})" for name, share in shares]
    return f"Predicted classes (share in training): {_listed(listed)}."


def _unsure(report: PlaceReport, kind: str) -> Iterator[str]:
    if report.unsure == 0:
        found = f"Every {_one(kind)} has one likely class."
    elif report.unsure == 1:
        found = f"1 {_one(kind)} may have more than one class; a person should look at it."
    else:
        found = (
            f"{report.unsure:,} {kind} may have more than one class; a person should look at them."
        )
    if report.decided is not None and report.decided_right is not None:
        found += (
            f" On the domains that were left out, {_range(report.decided)} had one likely class, "
            f"and {_range(report.decided_right)} of those were classified correctly."
        )
    yield found
    lists = f"At a new place, {percent(report.level)} of the lists should hold the true class"
    few = len(report.known_accuracies)
    yield (
        f"{lists}."
        if report.trust >= report.level
        else f"{lists}. With {few} known domains, the probability of that is "
        f"{percent(report.trust)}."
    )


def _one(kind: str) -> str:
    return kind.removesuffix("s")


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{100 * one:.0f}" for one in ends)
    return f"{low} %" if low == high else f"{low} to {high} %"


def percent(share: float) -> str:
    """Return a share as text, such as "12 %"."""
    return f"{100 * share:.0f} %"
