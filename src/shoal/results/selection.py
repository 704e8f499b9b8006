"""Model selection: DomainBed's three rules and a fourth, which looks at calibration.

A rule compares all runs of one (data set, method, trial) with the same test domain, one run for
each draw of the hyperparameters. It gives every run a validation score and a step to read it at.
The run with the best score represents the method; its result is the accuracy on the kept 80 % of
the test domain at that step. Scores that are not a number lose. If scores are equal, the larger
draw wins. If no score is a number, nothing is chosen.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..catalogue import method_and_average
from .records import HELD_OUT, KEPT, Failure, Record, RunResult, mean_inside

# Accuracies within this distance of the best count as equal to it; calibration decides.
NEAR = 0.005
# Decimals to which scores are compared: in binary, the mean of 0.6 and 0.7 is not that of 0.65 and
# 0.65.
DECIMALS = 9


@dataclass(frozen=True)
class DrawScore:
    """What a rule reads of one draw: its score, and the accuracy that it would report."""

    draw: int
    score: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The run and the step that a rule chose for one test domain in one trial.

    Args:
        score: the validation score by which it won.
        accuracy, calibration_error: on the kept images of the test domain.
        draws: how many draws the rule had; ``failed`` of them gave no result.
        candidates: the runs of the other draws; more than one per draw if a draw ran twice.
        by_draw: of each draw with a score; none for a rule that compares draws with each other
            before it scores them.
    """

    run: RunResult
    step: int
    score: float
    accuracy: float
    calibration_error: float
    draws: int
    failed: int = 0
    candidates: tuple[RunResult, ...] = ()
    by_draw: tuple[DrawScore, ...] = ()

    @property
    def dataset(self) -> str:
        return self.run.dataset

    @property
    def algorithm(self) -> str:
        return self.run.algorithm

    @property
    def test_domain(self) -> str:
        return self.run.test_domains[0]

    @property
    def trial(self) -> int:
        return self.run.trial

    @property
    def draw(self) -> int:
        return self.run.draw

    @property
    def inside(self) -> float:
        """The mean accuracy on the held-out images of its training domains."""
        return self.run.inside[self.run.steps.index(self.step)]

    @property
    def records(self) -> int:
        """The number of records of its run."""
        return len(self.run.records)

    @property
    def record(self) -> int:
        """The number of the record that is read, counted from 1 by step."""
        return 1 + sum(step < self.step for step in self.run.steps)


# A score and the record to read; a rule takes a run and all runs of its data set, method and trial.
Score = tuple[float, Record]
SelectionRule = Callable[[RunResult, Sequence[RunResult]], Score | None]


def by_test_domain(run: RunResult, all_runs: Sequence[RunResult]) -> Score | None:
    """Return the held-out accuracy of the test domain after the last update."""
    last = run.last
    return last.of(run.test_domains[0], HELD_OUT), last


def by_training_domains(run: RunResult, all_runs: Sequence[RunResult]) -> Score | None:
    """Return the best mean of the training domains' held-out accuracies over all steps."""
    if not run.records:
        return None
    best = _best(run.inside)
    return run.inside[best], run.records[best]


def by_leaving_out(run: RunResult, all_runs: Sequence[RunResult]) -> Score | None:
    """Return the best mean accuracy, over all steps, on domains held out with the test domain.

    For every other domain v it reads the run of the same draw whose test domains are the test
    domain and v, on the kept images of v. None if there is no other domain, or one of these runs is
    missing.
    """
    test = run.test_domains[0]
    others = [domain for domain in run.records[0].accuracy if domain != test]
    if not others:
        return None
    pairs = {
        other.test_domains: other
        for other in all_runs
        if other.draw == run.draw and len(other.test_domains) == 2
    }
    partners: list[dict[int, float]] = []
    for domain in others:
        pair = pairs.get((test, domain)) or pairs.get((domain, test))
        if pair is None:
            return None
        partners.append(dict(zip(pair.steps, pair.accuracies(domain, KEPT), strict=True)))
    places = [k for k, step in enumerate(run.steps) if all(step in steps for steps in partners)]
    if not places:
        return None
    scores = [fmean(steps[run.steps[place]] for steps in partners) for place in places]
    best = _best(scores)
    return scores[best], run.records[places[best]]


TEST_DOMAIN, LEFT_OUT = "test-domain", "leave-one-domain-out"
RULES: dict[str, SelectionRule] = {
    TEST_DOMAIN: by_test_domain,
    "training-domain": by_training_domains,
    LEFT_OUT: by_leaving_out,
}
CALIBRATED = "calibrated"
ALL_RULES = (*RULES, CALIBRATED)
# How each rule chooses, for people.
WORDS = {
    "test-domain": (
        "The draw with the best accuracy on the held-out images of the test domain after the last "
        "update. Records before the last one are ignored."
    ),
    "training-domain": (
        "The draw and the record with the best mean accuracy on the held-out images of the "
        "training domains. The test domain is ignored."
    ),
    "leave-one-domain-out": (
        "The draw and the record with the best mean accuracy on each further domain, in runs of "
        "the same draw that held it out together with the test domain."
    ),
    "calibrated": (
        "Of all records within 0.5 points of the best mean accuracy on the held-out images of the "
        "training domains, the one with the smallest calibration error on them. Its score is the "
        "negative of that error."
    ),
}


# A data set, a method, a test domain and a trial.
ChoiceKey = tuple[str, str, str, int]


@dataclass(frozen=True)
class Selection:
    """The choices of a rule; ``undecided`` counts draws where none had a score that is a number."""

    choices: list[Choice]
    undecided: dict[ChoiceKey, int]


def choose_runs(runs: Iterable[RunResult], rule: str) -> list[Choice]:
    """Return the rule's choice for every data set, method, test domain and trial."""
    return select(runs, rule).choices


def select(runs: Iterable[RunResult], rule: str, lost: Iterable[Failure] = ()) -> Selection:
    """Return the rule's choice for every data set, method, test domain and trial.

    Args:
        lost: runs that diverged. Their draws count as tried, and no rule chooses them.
    """
    groups: dict[tuple[str, str, int], list[RunResult]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.algorithm, run.trial), []).append(run)
    there = dict.fromkeys(key[:2] for key in groups)  # the others have failures only
    failed: dict[tuple[str, str, int], list[Failure]] = {}
    for one in lost:
        for dataset, row in there:  # with the averages of its weights
            if (dataset, method_and_average(row)[0]) == (one.dataset, one.algorithm):
                failed.setdefault((dataset, row, one.trial), []).append(one)
    found = Selection([], {})
    for key in dict.fromkeys((*groups, *failed)):
        mates, gone = groups.get(key, []), failed.get(key, [])
        for domain, candidates in _by_test_domain(mates, gone).items():
            scored = _scored(candidates, mates, rule)
            if not scored and (candidates or rule == LEFT_OUT):
                continue  # these runs lack what the rule looks at
            tried, given_up = _tried(candidates, scored, rule), _draws_lost(gone, domain, rule)
            best = max(
                scored, key=lambda one: (comparable_score(one[0]), one[1].draw), default=None
            )
            if best is None or (math.isnan(best[0]) and not _no_choice(rule, scored)):
                draws = {run.draw for run in tried} | given_up
                found.undecided[key[0], key[1], domain, key[2]] = len(draws)
            else:
                by_draw = () if rule == CALIBRATED else _by_draw(scored)
                found.choices.append(_choice(best, tried, given_up, by_draw))
    return found


def read_alone(run: RunResult, mates: Sequence[RunResult], rule: str) -> Record | None:
    """Return the record that the rule would read if the run had no other draw; None if it cannot.

    Args:
        mates: the runs of the same data set, method and trial that the rule may look at.
    """
    scored = _scored([run], [run, *mates], rule)
    score, _, measured = max(
        scored, key=lambda one: comparable_score(one[0]), default=(math.nan, run, None)
    )
    return None if math.isnan(score) and not _no_choice(rule, scored) else measured


def _by_test_domain(
    runs: Sequence[RunResult], lost: Sequence[Failure]
) -> dict[str, list[RunResult]]:
    """Return the runs of each single test domain; none if all of them failed."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        if len(run.test_domains) == 1:
            found.setdefault(run.test_domains[0], []).append(run)
    for one in lost:
        if len(one.test_domains) == 1:
            found.setdefault(one.test_domains[0], [])
    return found


# A score, its run and the record to read.
Scored = tuple[float, RunResult, Record]


def _scored(candidates: Sequence[RunResult], mates: Sequence[RunResult], rule: str) -> list[Scored]:
    if rule == CALIBRATED:
        return _calibrated(candidates)
    tried = ((run, RULES[rule](run, mates)) for run in candidates)
    return [(score[0], run, score[1]) for run, score in tried if score is not None]


def _no_choice(rule: str, scored: Sequence[Scored]) -> bool:
    """Return whether there is only one run and one record to read, whatever its score."""
    return rule == TEST_DOMAIN and len(scored) == 1


def _tried(
    candidates: Sequence[RunResult], scored: Sequence[Scored], rule: str
) -> tuple[RunResult, ...]:
    """Return the runs that the rule chose from, without those whose partner runs are missing."""
    if rule == CALIBRATED:
        return tuple(candidates)
    return tuple(run for _, run, _ in scored)


def _draws_lost(failed: Iterable[Failure], domain: str, rule: str) -> set[int]:
    """Return the failed draws that the rule would have looked at for this test domain."""
    if rule == LEFT_OUT:
        return {one.draw for one in failed if domain in one.test_domains}
    return {one.draw for one in failed if one.test_domains == (domain,)}


def _by_draw(scored: Sequence[Scored]) -> tuple[DrawScore, ...]:
    """Return what is read of each draw; of a draw that ran twice, the better run."""
    found: dict[int, DrawScore] = {}
    for score, run, measured in scored:
        before = found.get(run.draw)
        if math.isnan(score) or (before is not None and before.score >= score):
            continue
        accuracy = measured.of(run.test_domains[0], KEPT)
        found[run.draw] = DrawScore(run.draw, score, accuracy)
    return tuple(found.values())


def _choice(
    best: Scored,
    candidates: tuple[RunResult, ...],
    lost: set[int],
    by_draw: tuple[DrawScore, ...],
) -> Choice:
    score, run, measured = best
    test = run.test_domains[0]
    tried = {one.draw for one in candidates}
    return Choice(
        run=run,
        step=measured.step,
        score=score,
        accuracy=measured.of(test, KEPT),
        calibration_error=measured.calibration_error.get(test, {}).get(KEPT, math.nan),
        draws=len(tried | lost),
        failed=len(lost - tried),
        candidates=candidates,
        by_draw=by_draw,
    )


def _calibrated(candidates: Sequence[RunResult]) -> list[Scored]:
    """Return the records nearest to the best training-domain accuracy, scored by calibration.

    All steps of all runs count. The score is the negative mean calibration error on the held-out
    images of the training domains, so that the largest score is the best.
    """
    if not any(measured.calibration_error for run in candidates for measured in run.records):
        return []  # DomainBed, for one, records no calibration errors
    all_steps = [
        (accuracy, run, place) for run in candidates for place, accuracy in enumerate(run.inside)
    ]
    best = max(comparable_score(accuracy) for accuracy, *_ in all_steps)
    if best == -math.inf:  # no accuracy is a number
        return [(math.nan, run, run.records[place]) for _, run, place in all_steps]
    limit = comparable_score(best - NEAR)
    near = [
        (run, run.records[place])
        for accuracy, run, place in all_steps
        if comparable_score(accuracy) >= limit
    ]
    return [(-training_calibration(run, measured), run, measured) for run, measured in near]


def training_accuracy(run: RunResult, measured: Record) -> float:
    """Return the mean accuracy on the held-out images of the training domains."""
    return mean_inside(measured.accuracy, run.test_domains)


def training_calibration(run: RunResult, measured: Record) -> float:
    """Return the mean calibration error on the held-out images of the training domains."""
    return mean_inside(measured.calibration_error, run.test_domains)


def _best(scores: Sequence[float]) -> int:
    """Return the place of the first of the largest scores."""
    return max(range(len(scores)), key=lambda place: comparable_score(scores[place]))


def comparable_score(score: float) -> float:
    """Return a score as rules compare it: rounded, and −∞ if it is not a number."""
    return -math.inf if math.isnan(score) else round(score, DECIMALS)
