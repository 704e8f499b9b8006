"""What to know of a sweep's tables: what was trained, what is uneven, what is not compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from shoal.protocol.records import Finished
from shoal.protocol.selection import Choice
from shoal.report.benchmark import Benchmark, Departure, departures, network_of

__all__ = ["departed", "not_compared", "trained", "uneven"]


def trained(choices: Sequence[Choice]) -> str:
    """Return what was trained, data sets of the same setup together."""
    setups: dict[str, list[str]] = {}
    for dataset, mine in _grouped(choices, "dataset").items():
        made = " or ".join(dict.fromkeys(_made(choice.run) for choice in mine))
        methods = _grouped(mine, "algorithm").values()
        trials = _range([len({choice.trial for choice in own}) for own in methods])
        draws = _range([choice.draws for choice in mine])
        text = f"{made}, {_counted(trials, 'trial')}, {_counted(draws, 'draw')}"
        setups.setdefault(text, []).append(dataset)
    return "Trained " + "; ".join(f"on {', '.join(sets)}: {text}" for text, sets in setups.items())


def _made(run: Finished) -> str:
    if not run.protocol:
        return "network, weights, steps and precision not recorded"
    network = network_of(run) or "the network of the inputs' shape"
    weights = run.protocol.get("weights")
    known = {None: "drawn weights", "imagenet": "ImageNet weights"}
    begun = known.get(weights, f"the weights of the file {str(weights)[:8]}")
    return f"{network} with {begun}, {run.protocol['steps']:,} steps, {run.precision}"


def departed(
    choices: Sequence[Choice],
    published: Benchmark | None,
    by_domain: Mapping[str, Benchmark | None],
) -> dict[tuple[str, str], list[Departure]]:
    """Return in what the runs of data sets and methods are not as those of the published cells."""
    found: dict[tuple[str, str], list[Departure]] = {}
    for choice in choices:
        whole = published if published and choice.dataset in published.columns else None
        tables = [table for table in (whole, by_domain[choice.dataset]) if table is not None]
        if any(choice.algorithm in table.methods for table in tables):
            mine = departures(choice.run, choice.draws)
            if mine:
                found.setdefault((choice.dataset, choice.algorithm), []).extend(mine)
    return found


def not_compared(departed: Mapping[tuple[str, str], Sequence[Departure]]) -> list[str]:
    """Return the line that says what is not compared, and why; none where all is.

    Methods that depart in the same are told together, with all values of theirs.
    """
    groups: dict[tuple[str, frozenset[str]], dict[str, Sequence[Departure]]] = {}
    for (dataset, algorithm), found in departed.items():
        kinds = frozenset(one.name for one in found)
        groups.setdefault((dataset, kinds), {})[algorithm] = found
    alike: dict[str, list[str]] = {}
    for (dataset, _), methods in groups.items():
        why = _why([one for found in methods.values() for one in found])
        alike.setdefault(f"{', '.join(methods)} ({why})", []).append(dataset)
    listed = [f"{', '.join(datasets)}: {text}" for text, datasets in alike.items()]
    return [f"Not compared with the published cells: {'; '.join(listed)}"] if listed else []


def _why(found: Sequence[Departure]) -> str:
    """Return every departure once, with the values that it has."""
    values: dict[tuple[str, object], dict[object, None]] = {}
    for one in found:
        values.setdefault((one.name, one.theirs), {})[one.ours] = None
    return ", ".join(
        f"{name} {_together([*ours])} instead of {_plain(theirs)}"
        for (name, theirs), ours in values.items()
    )


def _together(values: Sequence[object]) -> str:
    numbers = [one for one in values if isinstance(one, (int, float)) and type(one) is not bool]
    if len(numbers) == len(values):
        return _range(numbers)
    return " or ".join(map(_plain, values))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def uneven(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield which data sets have methods with unequal draws, trials or test domains."""
    for dataset, mine in _grouped(choices, "dataset").items():
        methods = _grouped(mine, "algorithm")
        draws = {name: [one.draws for one in own] for name, own in methods.items()}
        if listed := _unequal(draws):
            yield (
                f"{dataset}: chosen of unequally many draws ({listed}). The best of more draws is "
                "better, so finish the sweep before you compare"
            )
        domains = {name: Counter(one.test_domain for one in own) for name, own in methods.items()}
        if listed := _unequal({name: [*trials.values()] for name, trials in domains.items()}):
            yield (
                f"{dataset}: unequally many trials ({listed}). Means over different trials differ "
                "by their splits, too: read the paired differences, or finish the sweep"
            )
        every = dict.fromkeys(one.test_domain for one in mine)
        for name, own_domains in domains.items():
            if missing := [domain for domain in every if domain not in own_domains]:
                yield (
                    f"{dataset}: {name} lacks test domains that others have "
                    f"({', '.join(missing)}), so finish the sweep before you compare"
                )


def _unequal(counts: Mapping[str, Sequence[int]]) -> str:
    """Return the counts by method; nothing where all are equal."""
    if len({count for own in counts.values() for count in own}) == 1:
        return ""
    return ", ".join(f"{name} {_range(own)}" for name, own in counts.items())


def _grouped(choices: Sequence[Choice], by: str) -> dict[str, list[Choice]]:
    """Return the choices by an attribute of theirs, such as the data set."""
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(getattr(choice, by), []).append(choice)
    return found


def _range(counts: Sequence[float]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def _counted(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"
