"""Tables of soups: members, averages and ensembles of one group of runs, and over test domains."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from ..catalogue import AVERAGES, title_of
from ..results.aggregation import TrialMean
from ..results.soups import (
    BEST,
    BEST_RECORD,
    ENSEMBLE,
    GREEDY,
    INTERPOLATED,
    LAST_WEIGHTS,
    MEAN,
    MEMBER,
    UNIFORM,
    Soup,
    SoupRow,
)
from .views import Sheet

# How far an average may fall below the mean of its members before a line warns.
FALL = 0.02
# The share of the soup where nothing can be selected.
HALF = 0.5
# Names of rows over test domains.
NAMES = {
    MEAN: "mean of the members",
    BEST: "best by validation",
    UNIFORM: "uniform soup",
    GREEDY: "greedy soup",
    ENSEMBLE: "ensemble",
}


def soup_sheet(soup: Soup) -> Sheet:
    """Return the table of one soup."""
    return Sheet(
        f"{_subject(soup)}, test domain {soup.test_domain}, trial {soup.trial}",
        ("Model", "validation %", "test %", "calibration error"),
        [
            (
                name,
                f"{100 * row.validation:.1f}",
                f"{100 * row.test:.1f}",
                f"{row.calibration_error:.3f}",
            )
            for name, row in _rows(soup)
        ],
        "Validation: accuracy on what is held out of the training domains. Test: on what is kept "
        f"of {soup.test_domain}.",
    )


def _subject(soup: Soup) -> str:
    of = {BEST_RECORD: "weights of the best record", LAST_WEIGHTS: "last weights"}
    words = of.get(soup.of) or f"average {AVERAGES[soup.of]}"
    return f"{title_of(soup.algorithm)} on {soup.dataset}, {words}"


def _rows(soup: Soup) -> Iterator[tuple[str, SoupRow]]:
    """Yield the rows to show, with their names."""
    for row in soup.rows:
        if row.kind == MEMBER:
            yield f"draw {row.draws[0]}", row
        elif row.kind == BEST:
            yield f"{NAMES[BEST]}: draw {row.draws[0]}", row
        elif row.kind == GREEDY:
            yield f"{NAMES[GREEDY]} of {len(row.draws)}", row
        elif row.kind in NAMES:
            yield NAMES[row.kind], row
        elif row.alpha == 0:
            yield "start: linear probe", row
    yield from _interpolated(soup)


def _interpolated(soup: Soup) -> Iterator[tuple[str, SoupRow]]:
    """Yield the interpolation that validation chooses, and that in the middle."""
    if soup.chosen is not None:
        half = next(row for row in soup.of_kind(INTERPOLATED) if row.alpha == HALF)
        yield f"interpolated, α = {soup.chosen.alpha:g} by validation", soup.chosen
        yield f"interpolated, α = {HALF:g}", half


def soup_lines(soup: Soup, folder: str) -> list[str]:
    """Return what to know about a soup: whether it is sound, its members and its models.

    Args:
        folder: in which its models are.
    """
    mean, uniform, greedy = (soup.of_kind(kind)[0] for kind in (MEAN, UNIFORM, GREEDY))
    numbers = (
        f"the uniform soup is right on {100 * uniform.validation:.1f} % of what is held out, its "
        f"members on {100 * mean.validation:.1f} % on average"
    )
    if soup.fall > FALL:
        sound = (
            f"The members do not share a basin of the loss: {numbers}. Train them with --search "
            "mild and --start linear-probe, or for fewer updates"
        )
    else:
        sound = f"The members share a basin of the loss: {numbers}"
    draws = f"draw{'s' * (len(greedy.draws) > 1)} {', '.join(map(str, greedy.draws))}"
    models = ", ".join(row.model for row in soup.rows if row.model is not None)
    return [
        f"{sound}.",
        f"In the greedy soup, in this order: {draws}.",
        *([f"No interpolation: {soup.why}."] if soup.why else []),
        f"Models in {folder}: {models}",
    ]


def summary_sheets(soups: Iterable[Soup]) -> Iterator[Sheet]:
    """Yield the test accuracies of every data set and method that has several test domains."""
    together: dict[str, list[Soup]] = {}
    for soup in soups:
        together.setdefault(_subject(soup), []).append(soup)
    for subject, mine in together.items():
        domains = list(dict.fromkeys(soup.test_domain for soup in mine))
        if len(domains) > 1:
            rows = dict.fromkeys(name for soup in mine for name, _ in _summed(soup))
            trials = len({soup.trial for soup in mine})
            over = f"mean ± standard error over {trials} trials" if trials > 1 else "one trial"
            yield Sheet(
                subject,
                ("Model", *domains, "Avg"),
                [(name, *_cells(name, mine, domains)) for name in rows],
                f"Test accuracy in %, {over}.",
            )


def _summed(soup: Soup) -> Iterator[tuple[str, SoupRow]]:
    """Yield the rows that every soup has."""
    yield from ((name, soup.of_kind(kind)[0]) for kind, name in NAMES.items())
    for name, (_, row) in zip(
        ("interpolated, α by validation", f"interpolated, α = {HALF:g}"),
        _interpolated(soup),
        strict=False,
    ):
        yield name, row


def _cells(name: str, soups: Sequence[Soup], domains: Sequence[str]) -> list[str]:
    """Return the means over trials for each test domain, and over all of them."""
    found: dict[int, dict[str, float]] = {}
    for soup in soups:
        for called, row in _summed(soup):
            if called == name:
                found.setdefault(soup.trial, {})[soup.test_domain] = row.test
    values = [[mine[domain] for mine in found.values() if domain in mine] for domain in domains]
    whole = [fmean(mine.values()) for mine in found.values() if len(mine) == len(domains)]
    return [_cell(one) for one in (*values, whole)]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    found = TrialMean.of(values)
    error = f" ± {100 * found.error:.1f}" if len(values) > 1 else ""
    return f"{100 * found.mean:.1f}{error}"
