"""Verdict: the candidate to deploy, how certain that is and what to expect, in plain sentences."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..notebook import html_lines, html_table
from .choice import ROUNDING, counted_as
from .decision import CandidateRow, Decision, Difference, domain_weights, make_decision
from .estimates import Estimates
from .expectation import LEVEL, Expectation

__all__ = ["Verdict"]

# Under so many domains, what was seen comes first: their spread is hardly known.
FEW = 5
# A domain of less weight is small: what a judge makes of it is not what was seen.
SMALL = 0.9
# Domains that are named in one sentence.
NAMED = 3
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ORDINALS = {2: "third", 3: "fourth", 4: "fifth"}


@dataclass(frozen=True)
class Verdict:
    """A decision and its sentences; the first one is the most important."""

    decision: Decision = field(repr=False)  # all estimates
    sentences: tuple[str, ...]

    @property
    def deploy(self) -> str:
        """The key of the candidate to deploy."""
        return self.decision.deploy

    @property
    def useful(self) -> bool:
        """Whether nothing speaks against using the model: it beats what needs no model."""
        return self.decision.beaten is not False

    def _repr_html_(self) -> str:
        decision = self.decision
        metric, domains = decision.estimates.measure, decision.estimates.domains

        def number(value: float | None) -> str:
            return "–" if value is None else metric.show(value)

        rows = [
            (
                row.title + (" (deployed)" if row.key == decision.deploy else ""),
                *(number(row.cells[name].mean if name in row.cells else None) for name in domains),
                number(row.average),
                number(row.worst),
                number(row.inside),
            )
            for row in (*decision.rows, decision.guess)
        ]
        header = ("", *domains, "average", "worst", "seen domains")
        title = f"{_capital(metric.title)} on the domain left out"
        return html_table(rows, header, title) + html_lines(self.sentences)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain values.

        ``differences`` are from ``baseline``, the simplest candidate. ``average`` and ``worst`` are
        of the domains' means; the average is weighted.
        """
        decision, estimates = self.decision, self.decision.estimates
        expectation, temperature = decision.expectation, decision.temperature
        return {
            "deploy": decision.deploy,
            "sure": decision.sure,
            "sentences": list(self.sentences),
            "trials": estimates.trials[1],
            "metric": estimates.metric,
            "judge": estimates.judge,
            "complete": decision.compared,
            "best": decision.best,
            "baseline": decision.simplest.key,
            "methods": {
                row.key: {
                    "title": row.title,
                    **_cells(row),
                    "calibration_error": _mean(row.calibration_error),
                    "inside": row.inside,
                }
                for row in decision.rows
            },
            "differences": {name: asdict(one) for name, one in decision.differences.items()},
            "most_frequent_class": {
                **_cells(decision.guess),
                "gain": None if decision.gain is None else asdict(decision.gain),
                "beaten": decision.beaten,
            },
            "shortfalls": [asdict(one) for one in decision.shortfalls],
            "weights": dict(
                zip(estimates.domains, domain_weights(estimates).tolist(), strict=True)
            ),
            "expectation": None if expectation is None else asdict(expectation) | {"level": LEVEL},
            "temperature": None if temperature is None else temperature.as_json(),
        }


def _cells(row: CandidateRow) -> dict[str, Any]:
    return {
        "domains": {name: asdict(cell) for name, cell in row.cells.items()},
        "average": _mean(row.average),
        "worst": _mean(row.worst),
    }


def _mean(value: float | None) -> dict[str, float] | None:
    return None if value is None else {"mean": value}


def decide(estimates: Estimates, more: Sequence[str] = ()) -> Verdict:
    """Return the verdict on these estimates.

    Args:
        more: sentences on the data that belong to the verdict; they come last.
    """
    decision = make_decision(estimates)
    return Verdict(decision, (*_sentences(decision), *more))


def _sentences(decision: Decision) -> list[str]:
    found = [_shortfall(decision)] if decision.shortfalls else []
    if not decision.compared:
        return found + _not_enough_time(decision)
    if decision.beaten:
        found += [f"Deploy {_name(decision, decision.deploy)}.", *_comparison(decision)]
        found += _expectation(decision)
    else:
        found += _useless(decision)
    return found + _notes(decision)


def _shortfall(decision: Decision) -> str:
    """Return the sentence on the domains where always giving the same answer is better."""
    estimates, short = decision.estimates, decision.shortfalls
    show = estimates.measure.show
    worse, floors = "worse than chance", [one.chance for one in short]
    if not all(one.below_chance for one in short):
        short = tuple(one for one in short if one.below_majority)
        worse = "worse than always predicting " + _constant(estimates, "that domain's")
        floors = [one.majority for one in short]
    places = [_domain(estimates, one.domain) for one in short]
    numbers = [
        f"{show(one.score)} against {show(floor)}" for one, floor in zip(short, floors, strict=True)
    ]
    where, told = places[0], numbers[0]
    if len(short) > 1:
        where = f"{len(short)} of {len(estimates.domains)} domains"
        told = _some([f"{place} {both}" for place, both in zip(places, numbers, strict=True)])
    return f"Careful: on {where} {_name(decision, decision.deploy)} is {worse}: {told}."


def _not_enough_time(decision: Decision) -> list[str]:
    estimates = decision.estimates
    counts = {one: len(estimates.left_out(one.key)) for one in estimates.candidates}
    most = max(counts.values())
    furthest = [one for one, count in counts.items() if count == most]
    left_out = f"{most} of {len(estimates.domains)} domains"
    name = _name(decision, decision.deploy)
    deployed = (
        f"{_capital(name)}, the simplest candidate, is deployed; how it does on a new domain is "
        "not known."
    )
    if len(estimates.domains) < 2:
        without = ", ".join(map(repr, estimates.unscored))
        return [
            f"No verdict: there is no {estimates.measure.title} on {without}, and the rest is too "
            "little to compare.",
            deployed,
        ]
    if any((one.key, d) in estimates.failed for d in estimates.domains for one in furthest):
        return [f"No verdict: runs failed, so only {left_out} were left out.", deployed]
    return [
        f"Not enough time or runs: only {left_out} were left out, so there is no verdict.",
        deployed,
        "The same command with more --time or --runs continues the comparison."
        if estimates.more_seconds is None
        else f"The same command with about {_minutes(estimates.more_seconds)} more would compare "
        "all candidates.",
    ]


def _comparison(decision: Decision) -> list[str]:
    """Return why this candidate is deployed, and whether it is shown to be better than others."""
    estimates = decision.estimates
    if len(estimates.complete) == 1:
        return [f"{_capital(_name(decision, decision.deploy))} is the only candidate."]
    if estimates.judge == "worst":
        return _by_worst(decision)
    if decision.deploy == decision.simplest.key:
        return _simplest_deployed(decision)
    found = [_better(decision, decision.simplest.key, decision.differences[decision.deploy])]
    plain = decision.plain
    if plain is not None and plain.key != decision.simplest.key and decision.from_plain is not None:
        found.append(_better(decision, plain.key, decision.from_plain))
    if decision.best is not None and decision.from_best is not None:
        found.append(
            f"{_capital(_name(decision, decision.best))} has the best average, but "
            f"{_name(decision, decision.deploy)} is simpler and within one standard error of it "
            f"({_points(estimates, decision.from_best)})."
        )
    return found


def _simplest_deployed(decision: Decision) -> list[str]:
    estimates, best = decision.estimates, decision.best
    count = len(estimates.complete)
    if best is None or best == decision.deploy:
        found = [f"It is the simplest of the {_number(count)} candidates and has the best average."]
    else:
        ahead = decision.differences[best]
        found = [
            f"{_capital(_name(decision, best))} does better on average "
            f"({_points(estimates, ahead)}), but {_why_simplest(decision)}, so the simplest "
            "candidate is deployed."
        ]
    better = [key for key, one in decision.differences.items() if one.word]
    for key in better:
        one = decision.differences[key]
        found.append(
            f"All the same, {_name(decision, key)} is {one.word} better: "
            f"{_points(estimates, one)}, better on {one.wins} of {one.pairs} domains."
        )
    if not decision.testable:
        found.append(_too_few(decision, "a candidate"))
    elif not better:
        found.append(
            "No other candidate is shown to be better. That does not mean that all are equally "
            "good."
        )
    return found


def _why_simplest(decision: Decision) -> str:
    """Return why the best candidate is not the one that is deployed."""
    if decision.too_little:
        return "there are too few examples to choose by"
    return "not by more than the standard error"


def _better(decision: Decision, other: str, one: Difference) -> str:
    """Return the sentence that compares the deployed candidate with another one."""
    estimates = decision.estimates
    name = _name(decision, other)
    if decision.plain is not None and other == decision.plain.key:
        name = f"plain training ({name})"
    if other == decision.simplest.key:
        name += ", the simplest candidate"
    points, wins = _points(estimates, one), f"better on {one.wins} of {one.pairs} domains"
    if one.word:
        return f"It is {one.word} better than {name}: {points}, {wins}."
    if estimates.measure.sign * one.difference <= ROUNDING:
        return f"Compared with {name}: {points}, {wins}."
    enough = "That is enough to deploy it, but" if other == decision.simplest.key else "That is"
    doubt = f"{enough} not enough to show that it is better."
    if not decision.testable:
        doubt = _too_few(decision, "it")
    return f"Compared with {name}: {points}, {wins}. {doubt}"


def _too_few(decision: Decision, what: str) -> str:
    if decision.too_little:
        return f"So few examples cannot show that {what} is better."
    return f"{_number(decision.counted).capitalize()} domains cannot show that {what} is better."


def _by_worst(decision: Decision) -> list[str]:
    """Return the worst domains; a worst domain is one domain, so there are no words for it."""
    keys = [decision.deploy, decision.simplest.key]
    keys += [key for key in (decision.best, decision.plain and decision.plain.key) if key]
    told = ", ".join(_worst(decision, key) for key in dict.fromkeys(keys))
    found = [f"Judged by the worst domain: {told}."]
    if decision.best != decision.deploy:
        found.append(
            f"{_capital(_name(decision, str(decision.best)))} is best by this judge, but "
            f"{_why_simplest(decision)}, so the simpler candidate is deployed."
        )
    return [*found, "One worst domain cannot show that a candidate is better elsewhere."]


def _worst(decision: Decision, key: str) -> str:
    """Return a candidate's worst domain, as the judge sees it, with its score."""
    estimates, measure = decision.estimates, decision.estimates.measure
    scores = np.array([[estimates.mean(key, name) for name in estimates.domains]])
    weights = domain_weights(estimates)
    (counted,) = counted_as(scores, weights)
    worst = int(np.argmin(measure.sign * counted))
    place = estimates.domains[worst]
    why = ""
    if weights[worst] < SMALL:
        rated = measure.show_roughly(float(counted[worst]))
        why = f", counted as {rated} because it has {_examples(estimates.examples[place])}"
    return f"{_name(decision, key)} {measure.show(float(scores[0, worst]))} ({place!r}{why})"


def _expectation(decision: Decision) -> list[str]:
    """Return what to expect on a new domain, and how that was found."""
    estimates, expectation = decision.estimates, decision.expectation
    if expectation is None:
        return []
    metric, count = estimates.measure, len(estimates.domains)
    ordered = sorted(expectation.scores, key=expectation.scores.__getitem__)
    low, high = ((name, expectation.scores[name]) for name in (ordered[0], ordered[-1]))
    worst = low if metric.larger_is_better else high
    found, seen = [], ""
    # The table has the scores of the deployed candidate alone.
    alike = set(expectation.chosen.values()) <= {decision.deploy}
    without = "Left out," if alike else "With no part in training or in the choice,"
    if count < FEW:
        found.append(
            f"{without} the {_number(count)} domains score between {metric.show(low[1])} "
            f"({low[0]!r}) and {metric.show(high[1])} ({high[0]!r}); {_number(count)} places "
            f"cannot bound a {ORDINALS[count]}."
        )
    else:
        seen = (
            f" (between {metric.show_range(low[1], high[1])} on the {count} left out, worst on "
            f"{worst[0]!r})"
        )
    interval = ""
    if expectation.interval is not None:
        room = metric.show_range(*expectation.interval)
        interval = f"; {_nine_in_ten()} new domains like these should be between {room}"
    found.append(
        f"Expected {metric.title} on a new domain: about {metric.show_roughly(expectation.mean)}"
        f"{seen}{interval}."
    )
    return [*found, *_procedure(decision, expectation)]


def _nine_in_ten() -> str:
    return f"{_number(round(10 * LEVEL))} in ten"


def _procedure(decision: Decision, expectation: Expectation) -> list[str]:
    """Return how the expectation was found; with one candidate, nothing was chosen."""
    if len(decision.estimates.complete) == 1:
        return []
    count = len(expectation.chosen)
    same = sum(key == decision.deploy for key in expectation.chosen.values())
    how = ", by runs that never saw it (nested)."
    if not expectation.nested:
        how = (
            ". The runs behind that choice had trained on it (cross-fitted), so this can be a "
            "little too good."
        )
        if decision.estimates.nesting_seconds is not None:
            more = _minutes(decision.estimates.nesting_seconds)
            how += f" About {more} more (--time) would nest it."
    return [
        f"Each domain was scored by the candidate that the other {_number(count - 1)} chose "
        f"({_name(decision, decision.deploy)}, {same} of {count} times){how}"
    ]


def _useless(decision: Decision) -> list[str]:
    """Return the sentences that replace a recommendation."""
    estimates, name = decision.estimates, _name(decision, decision.deploy)
    row = next(row for row in decision.rows if row.key == decision.deploy)
    gain = f" ({_points(estimates, decision.gain)})" if decision.gain else ""
    positive = decision.gain and estimates.measure.sign * decision.gain.difference > ROUNDING
    return [
        "It is not shown that anything useful was learned for an unseen domain."
        if positive
        else "Nothing useful was learned for an unseen domain.",
        f"{_capital(name)} scores {_score(estimates, row)} there, but always predicting "
        f"{_constant(estimates)} scores {_score(estimates, decision.guess)}{gain}. Check the "
        "labels and the layout (--layout for folders, --class-column and --domain-column for a "
        "table); with few examples, fewer updates (--steps) may do better.",
        f"Deploy none of these models; the one that was written is of {name}.",
    ]


def _notes(decision: Decision) -> list[str]:
    """Return a comparison with the guess, the temperature, and what does not count fully."""
    estimates, found = decision.estimates, []
    if decision.beaten:
        found.append(
            f"For comparison: always predicting {_constant(estimates)} scores "
            f"{_score(estimates, decision.guess)}."
        )
    found += _temperature(decision)
    small = [
        f"{name!r} ({_examples(estimates.examples[name])}) counts {weight:.2f}"
        for name, weight in zip(estimates.domains, domain_weights(estimates), strict=True)
        if weight < 0.5
    ]
    if small:
        found.append(f"Small domains count less than 1: {_some(small)}.")
    found += _not_compared(estimates)
    if estimates.unscored:
        names = ", ".join(map(repr, estimates.unscored))
        found.append(f"No {estimates.measure.title} on {names}, so it does not count.")
    return found


def _examples(count: int) -> str:
    return "1 example" if count == 1 else f"{count} examples"


def _not_compared(estimates: Estimates) -> list[str]:
    """Return why candidates are not compared, and what more time would buy."""
    found = []
    for one in estimates.candidates:
        if one.key in estimates.collapsed:
            inside = estimates.inside.get(one.key)
            score = f" ({estimates.measure.show(inside)} there)" if inside is not None else ""
            found.append(
                f"{_capital(one.name)} is not compared: it did not learn even the domains that "
                f"it trained on{score}."
            )
    rest = [one for one in estimates.candidates if one not in estimates.complete]
    rest = [one for one in rest if one.key not in estimates.collapsed]
    failed = {key for key, _ in estimates.failed}
    if broken := [one.name for one in rest if one.key in failed]:
        found.append(f"Not compared, because runs failed: {', '.join(broken)}.")
    if late := [one.name for one in rest if one.key not in failed]:
        names, more = ", ".join(late), estimates.more_seconds
        hint = (
            f" The same command with about {_minutes(more)} more would be enough." if more else ""
        )
        found.append(f"Not enough time or runs to compare {names}.{hint}")
    return found


def _minutes(seconds: float) -> str:
    """Return a time as it is given to ``--time``, rounded up so that it is enough."""
    if seconds <= 55:
        return f"{5 * math.ceil(seconds / 5)} seconds"
    minutes = math.ceil(seconds / 60)
    return "1 minute" if minutes == 1 else f"{minutes} minutes"


def _temperature(decision: Decision) -> list[str]:
    one = decision.temperature
    if one is None:
        return []
    if not one.helps:
        return ["No temperature improves its probabilities on a new domain, so none is used."]
    effect = "softened" if one.value > 1 else "sharpened"
    found = [
        f"Its probabilities are {effect} (temperature {one.value:.2f}). With the temperature that "
        f"the other domains give ({'nested' if one.nested else 'cross-fitted'}), the log-loss of "
        f"a domain left out goes from {one.log_loss_before:.3f} to {one.log_loss_after:.3f} and "
        f"its calibration error from {100 * one.calibration_error_before:.1f} to "
        f"{100 * one.calibration_error_after:.1f} %."
    ]
    if decision.estimates.metric == "log-loss":
        found.append("All other numbers here are without it.")
    return found


def _constant(estimates: Estimates, whose: str = "the other domains'") -> str:
    """Return the answer that needs no model."""
    return f"{whose} {estimates.constant}"


def _some(named: Sequence[str]) -> str:
    """Return the first of a list as text, and how many more there are."""
    more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
    return ", ".join([*named[:NAMED], *more])


def _domain(estimates: Estimates, name: str) -> str:
    """Return a domain's name; if it is small, with its number of examples."""
    n = estimates.examples[name]
    return f"{name!r}" if n >= 30 else f"{name!r} ({n} examples)"


def _score(estimates: Estimates, row: CandidateRow) -> str:
    return estimates.measure.show(row.average) if row.average is not None else "–"


def _points(estimates: Estimates, one: Difference) -> str:
    return estimates.measure.show_difference(one.difference, one.error)


def _name(decision: Decision, key: str) -> str:
    return decision.estimates.candidate(key).name


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)
