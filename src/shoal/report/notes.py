"""Notes on a sweep's tables: what was trained, what is uneven or missing, failed runs."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..catalogue import STARTS, method_and_average, record_every, title_of
from ..results.aggregation import MethodRow
from ..results.records import SEARCH, Failure, RunResult, failure_of
from ..results.selection import Choice, ChoiceKey
from .comparable import network_of, spread_of

# A chosen model has hardly learned from its training domains if its accuracy there is below this
# share of that of the best other draw.
FAR_BELOW = 2 / 3


def training_line(choices: Sequence[Choice]) -> str:
    """Return what was trained; data sets with the same setup are listed together."""
    setups: dict[str, list[str]] = {}
    for dataset, mine in _group(choices, "dataset").items():
        runs = [run for choice in mine for run in choice.candidates]
        methods = _group(mine, "algorithm")
        trials = {name: _trials(own) for name, own in methods.items()}
        draws = {name: _draws(own) for name, own in methods.items()}
        parts = [*_protocols(runs), *_set_hparams(runs), _each(trials), _each(draws)]
        setups.setdefault(", ".join(parts), []).append(dataset)
    return "Trained " + "; ".join(f"on {', '.join(sets)}: {text}" for text, sets in setups.items())


def _trials(choices: Sequence[Choice]) -> str:
    return _counted(str(len({choice.trial for choice in choices})), "trial")


def _draws(choices: Sequence[Choice]) -> str:
    """Return the number of draws, and that of the runs if there are more."""
    text = _counted(spread_of([choice.draws for choice in choices]), "draw")
    runs = [choice.failed + len(choice.candidates) for choice in choices]
    if runs == [choice.draws for choice in choices]:
        return text
    return f"{text} in {_counted(spread_of(runs), 'run')}"


def _each(texts: Mapping[str, str]) -> str:
    """Return the text of all methods; if they differ, each with its methods' names."""
    groups: dict[str, list[str]] = {}
    for name, text in texts.items():
        groups.setdefault(text, []).append(title_of(name))
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{text} of {', '.join(names)}" for text, names in groups.items())


def _protocols(runs: Sequence[RunResult]) -> Iterable[str]:
    """Yield the protocol of these runs of a data set, as far as it is known."""
    if with_protocol := [run for run in runs if run.protocol]:
        yield ", or ".join(dict.fromkeys(map(_protocol, with_protocol)))
    if others := [run for run in runs if not run.protocol]:
        last = spread_of([max(one.step for one in run.records) for run in others])
        yield f"network, weights and precision not recorded, last step {last}"


def _protocol(run: RunResult) -> str:
    network = network_of(run) or "the network of the inputs' shape"
    weights = run.protocol.get("weights")
    words = {None: "random weights", "imagenet": "ImageNet weights"}
    start = words.get(weights, f"the weights of the file {str(weights)[:8]}")
    probed = run.protocol.get("start", STARTS[0]) != STARTS[0]
    head = ", the head from a linear probe" if probed else ""
    text = f"{network} with {start}{head}, {run.protocol['steps']:,} steps, {run.precision}"
    usual = record_every(run.dataset)
    every = run.protocol.get("record_every", usual)
    return text if every == usual else f"{text}, a record every {every:,} steps"


def _set_hparams(runs: Sequence[RunResult]) -> Iterable[str]:
    """Yield the hyperparameters that were set, their values, and the methods if not all."""
    values: dict[str, dict[object, None]] = {}
    methods: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in (run.set_hparams or {}).items():
            values.setdefault(name, {})[value] = None
            methods.setdefault(name, {})[run.algorithm] = None
    every = {run.algorithm for run in runs}
    for name, found in values.items():
        of = "" if methods[name].keys() == every else f" of {_titles(methods[name])}"
        shown = spread_of([*found])
        yield f"{shown} search{of}" if name == SEARCH else f"{name}{of} set to {shown}"


def uneven_lines(choices: Sequence[Choice], without: Mapping[ChoiceKey, int] = {}) -> Iterable[str]:
    """Yield the data sets whose methods have unequal draws, trials or test domains.

    Averages of weights have what their method has; ``not_recorded_lines`` names what they lack.

    Args:
        without: the number of draws at places where none could be chosen.
    """
    for dataset, mine in _group(choices, "dataset").items():
        draws: dict[str, list[int]] = {}
        domains: dict[str, Counter[str]] = {}
        tried = [((one.algorithm, one.test_domain), one.draws) for one in mine]
        tried += [(place[1:3], count) for place, count in without.items() if place[0] == dataset]
        tried = [one for one in tried if not method_and_average(one[0][0])[1]]
        for (name, domain), count in tried:
            draws.setdefault(name, []).append(count)
            domains.setdefault(name, Counter())[domain] += 1
        if listed := _unequal(draws):
            yield (
                f"{dataset}: the methods have different numbers of draws ({listed}). The best of "
                "more draws is better: finish the sweep before you compare them"
            )
        if listed := _unequal({name: [*trials.values()] for name, trials in domains.items()}):
            yield (
                f"{dataset}: the methods have different numbers of trials ({listed}). Their means "
                "also differ by their splits: read the paired differences, or finish the sweep"
            )
        every = dict.fromkeys(domain for (_, domain), _ in tried)
        lacking: dict[str, list[str]] = {}
        for name, own in domains.items():
            if missing := ", ".join(domain for domain in every if domain not in own):
                lacking.setdefault(missing, []).append(title_of(name))
        for missing, names in lacking.items():
            yield (
                f"{dataset}: {', '.join(names)} {'lacks' if len(names) == 1 else 'lack'} test "
                f"domains that others have ({missing}): finish the sweep before you compare them"
            )


def not_recorded_lines(runs: Iterable[RunResult]) -> Iterable[str]:
    """Yield the averages of weights that some runs of a method recorded, and others did not.

    Runs of older versions have none, and so has a run that began without them.
    """
    counts = Counter((run.dataset, run.algorithm) for run in runs)
    lacking: dict[tuple[str, int, int], list[str]] = {}
    for (dataset, row), recorded in counts.items():
        made = counts[dataset, method_and_average(row)[0]]
        if recorded < made:
            lacking.setdefault((dataset, made - recorded, made), []).append(title_of(row))
    for (dataset, missing, made), rows in lacking.items():
        yield f"{dataset}: {', '.join(rows)}: not recorded by {missing:,} of {made:,} runs"


def by_chance_lines(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield the chosen models whose accuracy on the test domain can be luck.

    They are far worse on their training domains than another draw at its end, and worse there than
    on the test domain.
    """
    for dataset, mine in _group(choices, "dataset").items():
        found = [
            choice
            for choice in mine
            if choice.inside < min(choice.accuracy, FAR_BELOW * _best_other_draw(choice))
        ]
        if found:
            listed = _places((one.algorithm, one.test_domain, one.trial) for one in found)
            yield (
                f"{dataset}: the accuracy on the test domain can be luck, because the accuracy on "
                "the training domains is below two thirds of that of the best other draw: "
                f"{listed}"
            )


def _best_other_draw(choice: Choice) -> float:
    """Return the best final accuracy of another draw on the training domains, or −∞."""
    others = (run.last_inside for run in choice.candidates if run is not choice.run)
    return max((one for one in others if math.isfinite(one)), default=-math.inf)


def lost_draw_lines(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield the number of draws of each method that diverged and still count as tried."""
    for dataset, mine in _group(choices, "dataset").items():
        counts = Counter[str]()
        for choice in mine:
            counts[choice.algorithm] += choice.failed
        if listed := _amounts(counts.items()):
            yield (
                f"{dataset}: draws whose loss was not finite count as tried and were not chosen "
                f"({listed}, over all test domains and trials)"
            )


def no_number_lines(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield the chosen models whose accuracy is not a number."""
    for dataset, mine in _group(choices, "dataset").items():
        wrong = [choice for choice in mine if math.isnan(choice.accuracy)]
        if wrong:
            listed = _places((one.algorithm, one.test_domain, one.trial) for one in wrong)
            why = "no cell and no average, because the accuracy is not a number"
            yield f"{dataset}: {why}: {listed}"


def undecided_lines(places: Iterable[ChoiceKey]) -> Iterable[str]:
    """Yield the places where a rule had no score to choose by."""
    places = list(places)
    for dataset in dict.fromkeys(place[0] for place in places):
        listed = _places(place[1:] for place in places if place[0] == dataset)
        why = "nothing was chosen, because no draw has a score that is a number"
        yield f"{dataset}: {why}: {listed}"


def _places(places: Iterable[tuple[str, str, int]]) -> str:
    """Return methods, test domains and trials in words."""
    trials: dict[tuple[str, str], list[int]] = {}
    for method, domain, trial in places:
        trials.setdefault((method, domain), []).append(trial)
    return "; ".join(
        f"{title_of(method)} on {domain}, trial{'s' * (len(found) > 1)} "
        f"{', '.join(map(str, sorted(found)))}"
        for (method, domain), found in trials.items()
    )


def no_average_lines(rows: Sequence[MethodRow]) -> Iterable[str]:
    """Yield the methods without an average over trials, because test domains are missing."""
    for dataset in dict.fromkeys(row.dataset for row in rows):
        without = [r.algorithm for r in rows if r.dataset == dataset and _incomplete(r)]
        if without:
            few = len(without) == 1
            yield (
                f"{dataset}: {_titles_with_averages(without)} {'lacks' if few else 'lack'} test "
                "domains in some trials, so there is no average over trials, worst domain or "
                "calibration error. In the table by test domain, Avg is the mean of the row, if no "
                "domain is missing"
            )


def _titles_with_averages(rows: Sequence[str]) -> str:
    """Return the titles of rows; averages are summed up if their method is among the rows."""
    alone = [row for row in rows if not _follows(row, rows)]
    return _titles(alone) + (", with their averages," if len(alone) < len(rows) else "")


def _follows(row: str, rows: Sequence[str]) -> bool:
    """Return whether a row is an average of the weights of a method that is among the rows."""
    method, average = method_and_average(row)
    return bool(average) and method in rows


def _incomplete(row: MethodRow) -> bool:
    return row.average is None and not any(math.isnan(cell.mean) for cell in row.domains.values())


def _unequal(counts: Mapping[str, Sequence[int]]) -> str:
    """Return the counts by method; an empty text if all are equal."""
    if len({count for own in counts.values() for count in own}) == 1:
        return ""
    return ", ".join(f"{title_of(name)} {spread_of(own)}" for name, own in counts.items())


def _group(choices: Sequence[Choice], by: str) -> dict[str, list[Choice]]:
    """Return the choices by one of their attributes, such as the data set."""
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(getattr(choice, by), []).append(choice)
    return found


def _amounts(counts: Iterable[tuple[str, int]]) -> str:
    """Return the methods with a count above 0, such as "2 of Fishr, 1 of IRM"."""
    return ", ".join(f"{count:,} of {title_of(name)}" for name, count in counts if count)


def _titles(methods: Iterable[str]) -> str:
    return ", ".join(map(title_of, methods))


def _counted(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


Twins = Sequence[tuple[RunResult, RunResult]]


def twins(runs: Iterable[RunResult]) -> list[tuple[RunResult, RunResult]]:
    """Return pairs of runs with the same data set, method, test domains, trial and draw.

    They can differ in their protocol, as in steps or in the network. Rules choose between them.
    """
    seen: dict[tuple[object, ...], RunResult] = {}
    found = []
    for run in runs:
        if seen.setdefault(run.identity, run) is not run:
            found.append((seen[run.identity], run))
    return found


def doubled_methods(both: Twins) -> set[tuple[str, str]]:
    """Return the data sets and methods of the twins."""
    return {(run.dataset, run.algorithm) for run, _ in both}


def doubled_lines(both: Twins) -> Iterable[str]:
    """Yield the number of twins of each method, and how they differ."""
    by_dataset: dict[str, list[tuple[RunResult, RunResult]]] = {}
    for pair in both:
        by_dataset.setdefault(pair[0].dataset, []).append(pair)
    for dataset, pairs in by_dataset.items():
        counts = Counter(run.algorithm for run, _ in pairs)
        listed = _amounts(counts.items())
        differing = ", ".join(_differing(pairs))
        yield (
            f"{dataset}: some draws have more than one run ({listed}; they differ in "
            f"{differing or 'nothing'}), and rules choose between them, so the numbers mix "
            "protocols. Report such sweeps separately"
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
    """Return lines on the failed runs, one for each reason; none if no run failed.

    Reasons that differ only in numbers, such as the step, count as one. Of many reasons, the rarest
    are summed up; ``shoal status`` lists all.
    """
    if not failed:
        return []
    groups: dict[str, list[Failure]] = {}
    for one in failed:
        groups.setdefault(_NUMBER.sub("…", one.reason), []).append(one)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    methods = f": {_methods(failed)}" if len(groups) > 1 else ""
    lines = [f"{_runs(len(failed))} failed and {_is(len(failed))} in no table{methods}"]
    for masked, mine in ordered[:MOST_REASONS]:
        reasons = {one.reason for one in mine}
        lines.append(f"{_methods(mine)}: {reasons.pop() if len(reasons) == 1 else masked}")
    rest = [one for _, mine in ordered[MOST_REASONS:] for one in mine]
    return [*lines, f"{_methods(rest)}: for other reasons"] if rest else lines


def advice_lines(sweeps: Sequence[str]) -> list[str]:
    """Return what to do about failed runs of the sweeps in these folders."""
    return [
        f"`shoal status {folder}` lists them; `shoal sweep … --out {folder} --retry-failed` tries "
        "them again"
        for folder in sweeps
    ]


def diverged_runs(failed: Iterable[Failure]) -> list[Failure]:
    """Return the runs whose loss was not finite; their hyperparameters would fail again.

    Too little memory, a broken image or a killed process say nothing about a draw.
    """
    return [one for one in failed if (failure_of(one.path) or {}).get("kind") == DIVERGED]


def _methods(failed: Sequence[Failure]) -> str:
    counts = Counter(one.algorithm for one in failed)
    return _amounts(counts.most_common())


def _runs(count: int) -> str:
    return f"{count:,} run{'s' if count > 1 else ''}"


def _is(count: int) -> str:
    return "are" if count > 1 else "is"
