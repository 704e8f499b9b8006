"""What to know of a sweep's tables: what was trained, what is uneven, what is missing."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..catalogue import record_every
from ..results.aggregation import MethodRow
from ..results.records import Failure, RunResult, failure_of
from ..results.selection import Choice, ChoiceKey
from .comparable import network_of, spread_of

# A chosen network that is right on its training domains so much less often than the best of other
# draws has hardly learned from them.
FAR_BELOW = 2 / 3


def trained(choices: Sequence[Choice]) -> str:
    """Return what was trained, data sets of the same setup together."""
    setups: dict[str, list[str]] = {}
    for dataset, mine in _grouped(choices, "dataset").items():
        runs = [run for choice in mine for run in choice.candidates]
        methods = _grouped(mine, "algorithm")
        trials = {name: _trials(own) for name, own in methods.items()}
        draws = {name: _draws(own) for name, own in methods.items()}
        parts = [*_made(runs), *_set(runs), _each(trials), _each(draws)]
        setups.setdefault(", ".join(parts), []).append(dataset)
    return "Trained " + "; ".join(f"on {', '.join(sets)}: {text}" for text, sets in setups.items())


def _trials(choices: Sequence[Choice]) -> str:
    return _counted(str(len({choice.trial for choice in choices})), "trial")


def _draws(choices: Sequence[Choice]) -> str:
    """Return how many draws there were, and how many runs where they are more."""
    text = _counted(spread_of([choice.draws for choice in choices]), "draw")
    runs = [choice.failed + len(choice.candidates) for choice in choices]
    if runs == [choice.draws for choice in choices]:
        return text
    return f"{text} in {_counted(spread_of(runs), 'run')}"


def _each(texts: Mapping[str, str]) -> str:
    """Return what methods have; where they do not have the same, with their names."""
    groups: dict[str, list[str]] = {}
    for name, text in texts.items():
        groups.setdefault(text, []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{text} of {', '.join(names)}" for text, names in groups.items())


def _made(runs: Sequence[RunResult]) -> Iterable[str]:
    """Yield how these runs of a data set were made, as far as that is known."""
    if known := [run for run in runs if run.protocol]:
        yield ", or ".join(dict.fromkeys(map(_protocol, known)))
    if others := [run for run in runs if not run.protocol]:
        last = spread_of([max(one.step for one in run.records) for run in others])
        yield f"network, weights and precision not recorded, last step {last}"


def _protocol(run: RunResult) -> str:
    network = network_of(run) or "the network of the inputs' shape"
    weights = run.protocol.get("weights")
    words = {None: "drawn weights", "imagenet": "ImageNet weights"}
    begun = words.get(weights, f"the weights of the file {str(weights)[:8]}")
    text = f"{network} with {begun}, {run.protocol['steps']:,} steps, {run.precision}"
    usual = record_every(run.dataset)
    every = run.protocol.get("record_every", usual)
    return text if every == usual else f"{text}, a record every {every:,} steps"


def _set(runs: Sequence[RunResult]) -> Iterable[str]:
    """Yield which hyperparameters were set, and to what; where not of all methods, of which."""
    values: dict[str, dict[object, None]] = {}
    methods: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in (run.set_hparams or {}).items():
            values.setdefault(name, {})[value] = None
            methods.setdefault(name, {})[run.algorithm] = None
    every = {run.algorithm for run in runs}
    for name, found in values.items():
        of = "" if methods[name].keys() == every else f" of {', '.join(methods[name])}"
        yield f"{name}{of} set to {spread_of([*found])}"


def uneven(choices: Sequence[Choice], without: Mapping[ChoiceKey, int] = {}) -> Iterable[str]:
    """Yield which data sets have methods with unequal draws, trials or test domains.

    Args:
        without: the places where so many draws were tried and none could be chosen.
    """
    for dataset, mine in _grouped(choices, "dataset").items():
        draws: dict[str, list[int]] = {}
        domains: dict[str, Counter[str]] = {}
        tried = [((one.algorithm, one.test_domain), one.draws) for one in mine]
        tried += [(place[1:3], count) for place, count in without.items() if place[0] == dataset]
        for (name, domain), count in tried:
            draws.setdefault(name, []).append(count)
            domains.setdefault(name, Counter())[domain] += 1
        if listed := _unequal(draws):
            yield (
                f"{dataset}: chosen of unequally many draws ({listed}). The best of more draws is "
                "better, so finish the sweep before you compare"
            )
        if listed := _unequal({name: [*trials.values()] for name, trials in domains.items()}):
            yield (
                f"{dataset}: unequally many trials ({listed}). Means over different trials differ "
                "by their splits, too: read the paired differences, or finish the sweep"
            )
        every = dict.fromkeys(domain for (_, domain), _ in tried)
        lacking: dict[str, list[str]] = {}
        for name, own in domains.items():
            if missing := ", ".join(domain for domain in every if domain not in own):
                lacking.setdefault(missing, []).append(name)
        for missing, names in lacking.items():
            yield (
                f"{dataset}: {', '.join(names)} {'lacks' if len(names) == 1 else 'lack'} test "
                f"domains that others have ({missing}), so finish the sweep before you compare"
            )


def by_chance(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield where what was chosen is best in spite of what it was trained on.

    That is, it is far worse on its training domains than another draw at its end, and worse there
    than on the test domain.
    """
    for dataset, mine in _grouped(choices, "dataset").items():
        found = [
            choice
            for choice in mine
            if choice.inside < min(choice.accuracy, FAR_BELOW * _best_beside(choice))
        ]
        if found:
            listed = _places((one.algorithm, one.test_domain, one.trial) for one in found)
            yield (
                f"{dataset}: what was chosen may be right on the test domain by chance, for it is "
                "right on its training domains less than two thirds as often as the best of other "
                f"draws: {listed}"
            )


def _best_beside(choice: Choice) -> float:
    """Return the best accuracy on the training domains with which another draw ended; or −∞."""
    others = (run.last_inside for run in choice.candidates if run is not choice.run)
    return max((one for one in others if math.isfinite(one)), default=-math.inf)


def lost(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield how many draws of each method count as tried though they failed, over all choices."""
    for dataset, mine in _grouped(choices, "dataset").items():
        counts = Counter[str]()
        for choice in mine:
            counts[choice.algorithm] += choice.failed
        if listed := ", ".join(f"{count:,} of {name}" for name, count in counts.items() if count):
            yield (
                f"{dataset}: draws whose loss was not finite count as tried, and lost to the "
                f"others ({listed}, over all test domains and trials)"
            )


def no_number(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield where the accuracy of what was chosen is not a number."""
    for dataset, mine in _grouped(choices, "dataset").items():
        wrong = [choice for choice in mine if math.isnan(choice.accuracy)]
        if wrong:
            listed = _places((one.algorithm, one.test_domain, one.trial) for one in wrong)
            yield f"{dataset}: the accuracy is not a number, so no cell and no average: {listed}"


def undecided(places: Iterable[ChoiceKey]) -> Iterable[str]:
    """Yield where a rule had nothing to choose by."""
    places = list(places)
    for dataset in dict.fromkeys(place[0] for place in places):
        listed = _places(place[1:] for place in places if place[0] == dataset)
        yield f"{dataset}: nothing is chosen where no draw has a number to choose by: {listed}"


def _places(places: Iterable[tuple[str, str, int]]) -> str:
    """Return methods, test domains and trials in words."""
    trials: dict[tuple[str, str], list[int]] = {}
    for method, domain, trial in places:
        trials.setdefault((method, domain), []).append(trial)
    return "; ".join(
        f"{method} on {domain}, trial{'s' * (len(found) > 1)} {', '.join(map(str, sorted(found)))}"
        for (method, domain), found in trials.items()
    )


def no_average(rows: Sequence[MethodRow]) -> Iterable[str]:
    """Yield which methods have no average over trials, for want of test domains."""
    for dataset in dict.fromkeys(row.dataset for row in rows):
        without = [r.algorithm for r in rows if r.dataset == dataset and _incomplete(r)]
        if without:
            yield (
                f"{dataset}: no average over trials, worst domain and calibration error of "
                f"{', '.join(without)}: not all test domains in all trials. The Avg by test domain "
                "is the mean of its row"
            )


def _incomplete(row: MethodRow) -> bool:
    return row.average is None and not any(math.isnan(cell.mean) for cell in row.domains.values())


def _unequal(counts: Mapping[str, Sequence[int]]) -> str:
    """Return the counts by method; nothing where all are equal."""
    if len({count for own in counts.values() for count in own}) == 1:
        return ""
    return ", ".join(f"{name} {spread_of(own)}" for name, own in counts.items())


def _grouped(choices: Sequence[Choice], by: str) -> dict[str, list[Choice]]:
    """Return the choices by an attribute of theirs, such as the data set."""
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(getattr(choice, by), []).append(choice)
    return found


def _counted(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


Twins = Sequence[tuple[RunResult, RunResult]]


def twins(runs: Iterable[RunResult]) -> list[tuple[RunResult, RunResult]]:
    """Return the runs that differ from an earlier one in nothing that rules know, and that one.

    They may differ in how they were made, as in steps or in the network: rules choose between them.
    """
    seen: dict[tuple[object, ...], RunResult] = {}
    found = []
    for run in runs:
        if seen.setdefault(run.identity, run) is not run:
            found.append((seen[run.identity], run))
    return found


def doubled(both: Twins) -> set[tuple[str, str]]:
    """Return the data sets and methods that they are of."""
    return {(run.dataset, run.algorithm) for run, _ in both}


def doubled_lines(both: Twins) -> Iterable[str]:
    """Yield how many runs of which method are there more than once, and in what they differ."""
    by_dataset: dict[str, list[tuple[RunResult, RunResult]]] = {}
    for pair in both:
        by_dataset.setdefault(pair[0].dataset, []).append(pair)
    for dataset, pairs in by_dataset.items():
        counts = Counter(run.algorithm for run, _ in pairs)
        listed = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
        differing = ", ".join(_differing(pairs))
        yield (
            f"{dataset}: runs are there more than once ({listed}; "
            f"{f'they differ in {differing}' if differing else 'made alike'}), and rules choose "
            "between them: the numbers are of no one protocol. Report such sweeps apart"
        )


def _differing(pairs: Twins) -> Iterable[str]:
    values: dict[str, dict[object, None]] = {}
    for one, other in pairs:
        for name in dict.fromkeys((*one.protocol, *other.protocol)):
            both = (one.protocol.get(name), other.protocol.get(name))
            if both[0] != both[1]:
                values.setdefault(name, {}).update(dict.fromkeys(both))
    for name, found in values.items():
        shown = spread_of([str(value) for value in found if value is not None])
        yield f"{name.replace('_', ' ')}: {shown}" if shown else name.replace("_", " ")
    if any(one.hparams != other.hparams for one, other in pairs):
        yield "hyperparameters"
    if any(one.fingerprint != other.fingerprint for one, other in pairs):
        yield "their data"


MOST_REASONS = 5
DIVERGED = "FloatingPointError"
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def failure_lines(failed: Sequence[Failure]) -> list[str]:
    """Return what to know of the runs that failed, a line for each reason; none where none has.

    Reasons that differ in numbers only, such as the step, are one. Of many, the rarest are left to
    ``shoal status``.
    """
    if not failed:
        return []
    groups: dict[str, list[Failure]] = {}
    for one in failed:
        groups.setdefault(_NUMBER.sub("…", one.reason), []).append(one)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    told = f": {_methods(failed)}" if len(groups) > 1 else ""
    lines = [f"{_runs(len(failed))} failed and {_is(len(failed))} in no table{told}"]
    for masked, mine in ordered[:MOST_REASONS]:
        reasons = {one.reason for one in mine}
        lines.append(f"{_methods(mine)}: {reasons.pop() if len(reasons) == 1 else masked}")
    rest = [one for _, mine in ordered[MOST_REASONS:] for one in mine]
    return [*lines, f"{_methods(rest)}: for other reasons"] if rest else lines


def advice_lines(sweeps: Sequence[str]) -> list[str]:
    """Return what to do about failed runs of the sweeps in these folders, commands in backticks."""
    return [
        f"`shoal status {folder}` names them; `shoal sweep … --out {folder} --retry-failed` tries "
        "them again"
        for folder in sweeps
    ]


def lost_by_themselves(failed: Iterable[Failure]) -> list[Failure]:
    """Return those whose loss was not finite: they would fail again, by their hyperparameters.

    Want of memory, a broken image or a killed process says nothing about a draw.
    """
    return [one for one in failed if (failure_of(one.path) or {}).get("kind") == DIVERGED]


def _methods(failed: Sequence[Failure]) -> str:
    counts = Counter(one.algorithm for one in failed)
    return ", ".join(f"{count:,} of {name}" for name, count in counts.most_common())


def _runs(count: int) -> str:
    return f"{count:,} run{'s' if count > 1 else ''}"


def _is(count: int) -> str:
    return "are" if count > 1 else "is"
