"""Schedules: the order of a fit's runs, within its time and number of runs; the time left."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.fitting import schedule as schedules
from shoal.fitting.candidates import Recipe
from shoal.fitting.estimates import Candidate, Estimates
from shoal.fitting.folds import Fold
from shoal.fitting.schedule import (
    END,
    EVALUATIONS,
    FILES,
    LAST,
    Block,
    Budget,
    FitProgress,
    Schedule,
    good_candidates,
    plan_blocks,
)
from shoal.runs.run import Protocol, Run
from shoal.sweeps.plan import folder_of
from shoal.training.watcher import Progress
from tests.fitting.estimated import estimates
from tests.fitting.made import table_setup

FOLDS = tuple(Fold(name, (name,)) for name in "abc")
SETUP = table_setup()


def recipe(key: str, **more: Any) -> Recipe:
    """Return a recipe; "erm lr=1" is another setting of "erm"."""
    given = {"base": key.partition(" ")[0]} | more
    candidate = Candidate(key, key.upper(), "penalty")
    return Recipe(candidate=candidate, method=key, settings={}, **({"setup": SETUP} | given))


def make_run(one: Recipe, tests: tuple[str, ...], trial: int, data: str = "x") -> Run:
    protocol = Protocol(steps=100)
    return Run(
        dataset=data,
        fingerprint="",
        algorithm=one.key,
        test_domains=tests,
        trial=trial,
        protocol=protocol,
    )


def blocks_of(*keys: str, trials: int = 1, nested: bool = False, **more: Any) -> list[Block]:
    return plan_blocks(
        [recipe(key) for key in keys], FOLDS, trials, make_run, nested=nested, **more
    )


class Clock:
    """The time of day and of this process, which stands still but for ``wait``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    fake = SimpleNamespace(monotonic=found.monotonic, time=found.time)
    monkeypatch.setattr(schedules, "time", fake)
    return found


class MadeUp:
    """A fit without training: every run takes its candidate's seconds and has its scores.

    Args:
        seconds: of each run, by candidate; 10 by default.
        scores: by candidate, on each domain; equal by default.
    """

    def __init__(
        self,
        out: Path,
        clock: Clock,
        seconds: Mapping[str, float] | None = None,
        scores: Mapping[str, Sequence[float]] | None = None,
        fails: Sequence[str] = (),
    ) -> None:
        self.out, self.clock, self.fails = out, clock, fails
        self.seconds, self.scores = seconds or {}, scores or {}
        self.asked, self.evaluating = 0, 0.0

    def begin(
        self, blocks: Sequence[Block], seconds: float | None = None, runs: int | None = None
    ) -> Schedule:
        """Return the schedule of a command that begins now."""
        self.blocks = blocks
        budget = Budget(seconds, runs, self.clock.now)
        self.schedule = Schedule(self.out, blocks, budget, self.estimates)
        return self.schedule

    def estimates(self, runs: Sequence[tuple[str, Run]]) -> Estimates:
        self.asked += 1
        keys = list(dict.fromkeys(block.key for block in self.blocks))
        scores: dict[str, dict[str, list[float]]] = {key: {} for key in keys}
        pairs: dict[str, dict[tuple[str, str], float]] = {key: {} for key in keys}
        for key, run in runs:
            value = dict(zip("abc", self.scores.get(key, [0.8] * 3), strict=True))
            if len(run.test_domains) == 1:
                (domain,) = run.test_domains
                scores[key].setdefault(domain, []).append(value[domain])
            elif run.test_domains:
                one, other = run.test_domains
                pairs[key] |= {(one, other): value[other], (other, one): value[one]}
        base = {block.key: block.base for block in self.blocks}
        tried = [key for key in keys if key == base[key] or len(scores[key]) == 3]
        flat = dict.fromkeys("abc", 0.5)
        return Estimates(
            candidates=tuple(Candidate(key, key.upper(), "penalty") for key in tried),
            examples=dict.fromkeys("abc", 400),
            scores={key: scores[key] for key in tried},
            pairs=pairs,
            guess=flat,
            majority=flat,
            chance=flat,
        )

    def step(self) -> Run | None:
        """Train the next run; return None if there is none."""
        number = self.schedule.next()
        if number == END:
            return None
        run = self.schedule.runs[number]
        took = self.seconds.get(run.algorithm, 10.0)
        self.clock.now += took
        if f"{run.algorithm} {''.join(run.test_domains)}" in self.fails:
            folder_of(self.out, run).mkdir(parents=True)
            (folder_of(self.out, run) / "failed.json").write_text(
                '{"reason": "no", "memory": false}'
            )
        else:
            done(self.out, run, took, self.clock, evaluating=self.evaluating)
        self.schedule.ended(run, took)
        return run

    def rest(self) -> list[Run]:
        """Train all that is left."""
        return list(iter(self.step, None))  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path: Path, clock: Clock) -> MadeUp:
    return MadeUp(tmp_path, clock)


def done(
    out: Path,
    run: Run,
    seconds: float,
    clock: Clock,
    share: float = 1.0,
    evaluating: float = 0.0,
) -> None:
    """Write what a run leaves that took so long, for so many of its updates."""
    folder = folder_of(out, run)
    folder.mkdir(parents=True)
    half = (seconds - evaluating) / 2
    timing = {"preparing": half, "updating": half, "evaluating": evaluating}
    timing["updates"] = round(share * run.protocol.steps)
    (folder / "timing.json").write_text(json.dumps(timing))
    (folder / "done").touch()
    (folder / "run.json").touch()
    os.utime(folder / "done", (clock.time(), clock.time()))


def short(runs: Sequence[Run]) -> list[str]:
    """Return the runs as text, those of a candidate and a trial together: "erm: a b c"."""
    names = [
        (run.algorithm + f" #{run.trial}" * (run.trial > 0), "".join(run.test_domains) or "-")
        for run in runs
    ]
    return [
        f"{key}: {' '.join(tests for _, tests in some)}"
        for key, some in groupby(names, key=lambda one: one[0])
    ]


# What is planned


def test_the_order_of_stages(made: MadeUp) -> None:
    made.begin(blocks_of("erm", "irm", "irm λ=1", trials=2, nested=True), 1e6)
    assert made.schedule.more_seconds is None  # nobody knows
    assert short(made.rest()) == [
        "erm: a b c",
        "irm: a b c",
        "irm λ=1: a b c",
        "erm: ab ac bc",
        "irm: ab ac bc",
        "irm λ=1: ab ac bc",
        "erm #1: a b c",
        "irm #1: a b c",
        "irm λ=1 #1: a b c",
    ]
    assert [(key, run.algorithm) for key, run in made.schedule.counted[::3]] == [
        (name, name) for name in 3 * ("erm", "irm", "irm λ=1")
    ]
    assert made.schedule.more_seconds is None  # nothing is left
    assert made.schedule.title_of(made.schedule.runs[0]) == "ERM"


def test_folds_of_several_domains() -> None:
    folds = (Fold("a and 1 more", ("a", "d")), Fold("b", ("b",)), Fold("c", ("c",)))
    first, pairs = plan_blocks([recipe("erm")], folds, 1, make_run, nested=True)
    assert [run.test_domains for run in first.runs] == [("a", "d"), ("b",), ("c",)]
    assert [run.test_domains for run in pairs.runs] == [
        ("a", "b", "d"),
        ("a", "c", "d"),
        ("b", "c"),
    ]


def test_two_folds_have_no_pairs() -> None:
    found = plan_blocks([recipe("erm")], FOLDS[:2], 1, make_run, nested=True)
    assert [block.stage for block in found] == ["first"]


def test_what_is_fitted_has_one_ordinary_split_and_may_have_no_trials() -> None:
    some = [recipe("lr", fitted=True, random=False), recipe("lr C=1", fitted=True), recipe("erm")]
    found = plan_blocks(
        some, FOLDS, 2, make_run, nested=False, make_split_run=lambda one: make_run(one, (), 0, "s")
    )
    # Candidates come first, also if there are few runs.
    assert [(block.stage, block.key) for block in found] == [
        ("first", "lr"),
        ("first", "erm"),
        ("split", "lr"),
        ("settings", "lr C=1"),
        ("split", "lr C=1"),
        ("trials", "lr C=1"),
        ("trials", "erm"),
    ]
    assert [run.dataset for run in found[2].runs] == ["s"]


def test_other_settings_have_an_ordinary_split_if_they_are_deployed(made: MadeUp) -> None:
    some = [recipe("lr", fitted=True), recipe("lr C=1", fitted=True), recipe("lr C=2", fitted=True)]
    made.scores = {"lr C=2": (0.9, 0.9, 0.9)}
    made.begin(
        plan_blocks(
            some, FOLDS, 1, make_run, nested=False, make_split_run=lambda one: make_run(one, (), 0)
        )
    )
    assert short(made.rest()) == ["lr: a b c -", "lr C=1: a b c", "lr C=2: a b c -"]


def test_heads_come_first_and_choose_whole_networks(made: MadeUp) -> None:
    heads = {"erm": 0.8, "irm": 0.9, "vrex": 0.7}
    made.scores = {key: (one, one, one) for key, one in heads.items()}
    some = [recipe(f"{key} whole", base=f"{key} whole", head=key) for key in heads]
    some = [some[0], recipe("lr"), some[1], *(recipe(key) for key in heads), some[2]]
    made.begin(plan_blocks(some, FOLDS, 1, make_run, nested=False))
    assert short(made.rest()) == [
        "lr: a b c",
        "erm: a b c",
        "irm: a b c",
        "vrex: a b c",
        # Of the two best heads, the simplest first.
        "erm whole: a b c",
        "irm whole: a b c",
    ]


def test_a_probe_says_what_a_whole_network_takes(tmp_path: Path, clock: Clock) -> None:
    some = [recipe("erm"), recipe("erm whole", base="erm whole", head="erm")]
    blocks = plan_blocks(some, FOLDS, 1, make_run, nested=False)
    needed = 3 + 3 * 60 + LAST + FILES
    for probed, spare, trained in (
        ({}, -100, ["erm: a b c", "erm whole: a"]),  # nothing is known, so it is tried
        ({"erm whole": 60.0}, -0.1, ["erm: a b c"]),
        ({"erm whole": 60.0}, 0.1, ["erm: a b c", "erm whole: a"]),
    ):
        made = MadeUp(tmp_path / f"{spare}", clock, {"erm": 1.0, "erm whole": 70.0})
        made.blocks = blocks
        budget = Budget(needed + spare, None, clock.now)
        made.schedule = Schedule(made.out, blocks, budget, made.estimates, probed)
        # It takes more than the probe said, which is known after its first run.
        assert short(made.rest()) == trained


def test_a_whole_network_of_a_head_that_failed(made: MadeUp) -> None:
    made.fails = ["erm b"]
    some = [recipe("erm"), recipe("erm whole", base="erm whole", head="erm")]
    made.begin(plan_blocks(some, FOLDS, 1, make_run, nested=False))
    assert short(made.rest()) == ["erm: a b", "erm whole: a b c"]


# Time and number of runs


def test_a_block_that_does_not_fit_is_not_begun(tmp_path: Path, clock: Clock) -> None:
    # Three runs each; of the last run it is known that it takes longer, and files take time.
    needed = 30 + 30 + LAST * 10 + FILES
    for enough, trained in ((0.01, ["erm: a b c", "irm: a b c"]), (-0.01, ["erm: a b c"])):
        made = MadeUp(tmp_path / str(enough), clock)
        made.begin(blocks_of("erm", "irm"), needed + enough)
        assert short(made.rest()) == trained


def test_no_time_at_all(made: MadeUp) -> None:
    made.begin(blocks_of("erm"), FILES - 0.1)
    assert made.rest() == []
    made.begin(blocks_of("erm"), FILES + 0.1)
    assert made.step() is not None


def test_a_candidate_that_turns_out_slow_is_given_up(made: MadeUp) -> None:
    made.seconds = {"irm": 100.0, "vrex": 5.0}
    # After irm's first run 170 s are left, and 200 s are ahead; vrex is expected to be no slower
    # than most, but it might be as slow as irm.
    made.begin(blocks_of("erm", "irm", "vrex"), 300.0)
    assert short(made.rest()) == ["erm: a b c", "irm: a", "vrex: a b c"]
    assert made.schedule.more_seconds == pytest.approx(200.0)


def test_the_first_run_of_a_candidate_may_be_as_slow_as_the_slowest(made: MadeUp) -> None:
    made.seconds = {"irm": 100.0, "vrex": 5.0}
    # After irm's first run 81 s are left beside the last one: time for three runs as of erm, but
    # not for one as of irm.
    made.begin(blocks_of("erm", "irm", "vrex"), 30 + 100 + LAST * 10 + FILES + 81.0)
    assert short(made.rest()) == ["erm: a b c", "irm: a"]
    # Nothing is known of vrex, which may be as slow.
    assert made.schedule.more_seconds == pytest.approx(2 * 100 + 3 * 100)


def test_no_more_runs_than_were_asked_for(tmp_path: Path, clock: Clock) -> None:
    for runs, trained in (
        (5, ["erm: a b c"]),
        (6, ["erm: a b c", "irm: a b c"]),
        (8, ["erm: a b c", "irm: a b c"]),
        (9, ["erm: a b c", "irm: a b c", "vrex: a b c"]),
    ):
        made = MadeUp(tmp_path / str(runs), clock)
        made.begin(blocks_of("erm", "irm", "vrex"), runs=runs)
        assert short(made.rest()) == trained
        assert made.schedule.more_seconds is None  # more time would not buy more


def test_a_cheaper_candidate_takes_the_place_of_one_that_does_not_fit(
    made: MadeUp, clock: Clock
) -> None:
    made.begin(blocks_of("erm", "irm", "vrex"), 1e9)
    made.seconds = {"irm": 50.0, "vrex": 5.0}
    for _ in range(4):
        made.step()
    clock.now += 10
    done(made.out, made.blocks[2].runs[0], 5.0, clock)
    clock.now += 10
    # From here on a second command: 85 s were spent, and there is time for vrex alone.
    made.begin(blocks_of("erm", "irm", "vrex"), 85 + 10 + LAST * 10 + FILES + 1)
    assert short(made.rest()) == ["vrex: b c"]


def test_time_of_earlier_commands_counts(made: MadeUp, clock: Clock) -> None:
    made.begin(blocks_of("erm", "irm"), runs=3)
    assert len(made.rest()) == 3
    for spare, trained in ((-0.01, []), (0.01, ["irm: a b c"])):
        clock.now += 1000  # what is between two commands does not count
        made.begin(blocks_of("erm", "irm"), 30 + 30 + LAST * 10 + FILES + spare)
        assert short(made.rest()) == trained
    # A shorter command trains nothing, and all that is done counts.
    clock.now += 1000
    made.begin(blocks_of("erm", "irm"), 1.0, runs=3)
    assert made.rest() == []
    assert len(made.schedule.counted) == 6


def test_the_clock_may_be_set_back_between_commands(made: MadeUp, clock: Clock) -> None:
    made.begin(blocks_of("erm", "irm"), runs=3)
    assert len(made.rest()) == 3
    for path in made.out.rglob("done"):
        os.utime(path, (clock.time() + 86400, clock.time() + 86400))
    made.begin(blocks_of("erm", "irm"), 30 + 30 + LAST * 10 + FILES - 0.01)
    assert made.rest() == []


def test_what_is_done_is_not_done_again(made: MadeUp, clock: Clock) -> None:
    blocks = blocks_of("erm", "irm")
    for run in (blocks[0].runs[1], *blocks[1].runs[:2]):
        done(made.out, run, 10.0, clock)
    made.begin(blocks)
    assert short(made.rest()) == ["erm: a c", "irm: c"]


def test_a_first_run_that_was_compiled_says_nothing_of_the_next_ones(
    made: MadeUp, clock: Clock
) -> None:
    blocks = blocks_of("erm", trials=2)
    for run, seconds in zip(blocks[0].runs, (90.0, 10.0, 12.0), strict=True):
        done(made.out, run, seconds, clock)
    clock.now += 1
    for spare, count in ((-0.01, 0), (0.01, 3)):
        made.begin(blocks, 112 + 30 + LAST * 10 + FILES + spare)
        assert len(made.rest()) == count


def test_a_run_that_went_on_counts_as_a_whole_one(made: MadeUp, clock: Clock) -> None:
    blocks = blocks_of("erm", trials=2)
    for run in blocks[0].runs:
        done(made.out, run, 2.0, clock, share=0.01)
    clock.now += 1
    # Half of it are updates: 1 s for a hundredth of them, so 101 s for a run. 6 s were spent.
    for spare, count in ((-0.01, 0), (0.01, 3)):
        made.begin(blocks, 6 + 303 + LAST * 101 + FILES + spare)
        made.seconds = {"erm": 101.0}
        assert len(made.rest()) == count


def test_files_after_the_last_run_take_time(tmp_path: Path, clock: Clock) -> None:
    blocks = blocks_of("erm")
    needed = 3 * 10.0 + LAST * 10.0
    for files, spare, trained in (
        (FILES, FILES + 0.1, ["erm: a b c"]),
        (30.0, FILES + 0.1, ["erm: a"]),
        (30.0, 30.1, ["erm: a b c"]),
    ):
        made = MadeUp(tmp_path / f"{files} {spare}", clock, {"erm": 10.0})
        made.blocks = blocks
        budget = Budget(needed + spare, None, clock.now)
        made.schedule = Schedule(made.out, blocks, budget, made.estimates, files=files)
        assert short(made.rest()) == trained


@pytest.mark.parametrize("kind", ["table", "images"])
def test_a_whole_network_passes_over_the_images_after_its_last_run(made: MadeUp, kind: str) -> None:
    made.evaluating = 4.0
    setup = replace(SETUP, kind=kind, trained="all", backbone="efficientnet-lite0")
    some = [recipe(key, setup=setup) for key in ("erm", "irm")]
    blocks = plan_blocks(some, FOLDS, 1, make_run, nested=False)
    passes = EVALUATIONS * 4.0 if kind == "images" else 0.0
    made.begin(blocks, 30 + 30 + LAST * 10 + passes + FILES + 0.1)
    assert short(made.rest()) == ["erm: a b c", "irm: a b c"]
    made.out = made.out / "too little"
    made.begin(blocks, 30 + 30 + LAST * 10 + passes + FILES - 0.1)
    assert short(made.rest()) == ["erm: a b c"]


def test_files_of_a_run_take_time_too(made: MadeUp, clock: Clock) -> None:
    """A run is as long as this command has waited for it, but a wait for others is no measure."""
    blocks = blocks_of("erm")
    for waited, seconds in ((13.0, 13.0), (300.0, 20.0), (8.0, 10.0)):
        out = made.out / str(waited)
        found = Schedule(out, blocks, Budget(1e6, None, clock.now), made.estimates)
        made.blocks = blocks
        done(out, blocks[0].runs[0], 10.0, clock)
        found.ended(blocks[0].runs[0], waited)
        assert found.more_seconds == pytest.approx(2 * seconds)


# Failures


def test_a_candidate_that_fails_is_left(made: MadeUp) -> None:
    made.fails = ["irm b"]
    made.begin(blocks_of("erm", "irm", "irm λ=1", "vrex", trials=2, nested=True), 1e6)
    assert short(made.rest()) == [
        "erm: a b c",
        "irm: a b",
        "vrex: a b c",
        "erm: ab ac bc",
        "vrex: ab ac bc",
        "erm #1: a b c",
        "vrex #1: a b c",
    ]
    ((key, run),) = made.schedule.failed
    assert (key, run.test_domains) == ("irm", ("b",))
    assert made.schedule.more_seconds is None  # time would not help
    # A second command does not try it again.
    made.begin(made.blocks)
    assert made.rest() == []
    assert len(made.schedule.failed) == 1


def test_a_pair_that_fails_stops_pairs_but_no_trials(made: MadeUp) -> None:
    made.fails = ["erm ac"]
    made.begin(blocks_of("erm", "irm", trials=2, nested=True))
    assert short(made.rest())[2:] == ["erm: ab ac", "erm #1: a b c", "irm #1: a b c"]


# What is worth its time


BAD = {"irm": (0.5, 0.52, 0.48)}


def test_only_good_candidates_get_settings_and_trials(made: MadeUp) -> None:
    made.scores = {**BAD, "erm λ=1": (0.3, 0.3, 0.3)}
    made.begin(blocks_of("erm", "irm", "erm λ=1", "irm λ=1", trials=2))
    assert short(made.rest()) == ["erm: a b c", "irm: a b c", "erm λ=1: a b c", "erm #1: a b c"]


def test_pairs_only_if_those_of_all_candidates_fit(tmp_path: Path, clock: Clock) -> None:
    # A bad candidate is part of the comparison too, so it also has its pairs.
    blocks = blocks_of("erm", "irm", trials=2, nested=True)
    needed = 60 + 60 + LAST * 10 + FILES
    for spare, trained in (
        (0.01, ["erm: ab ac bc", "irm: ab ac bc"]),
        (-0.01, ["erm #1: a b c"]),  # they would have to end in the middle
    ):
        made = MadeUp(tmp_path / str(spare), clock, scores=BAD)
        made.begin(blocks, needed + spare)
        assert made.schedule.nesting_seconds is None  # nobody knows
        assert short(made.rest())[2:] == trained
        assert made.schedule.nesting_seconds == (None if spare > 0 else pytest.approx(60))
    # So it is with the number of runs: 3 of 6 pairs are worth nothing.
    made = MadeUp(tmp_path / "runs", clock, scores=BAD)
    made.begin(blocks, runs=11)
    assert short(made.rest())[2:] == ["erm #1: a b c"]


def test_the_time_that_nests_has_time_for_what_comes_before(tmp_path: Path, clock: Clock) -> None:
    blocks = blocks_of("erm", "irm", "vrex", "erm λ=1", "irm λ=1", nested=True)
    for begun, needed in (
        # Without vrex: its domains, one good candidate's settings and all pairs of the four.
        (60.0, 3 * 10 + 3 * 10 + 4 * 3 * 10),
        (90.0, 3 * 10 + 4 * 3 * 10),
        (120.0, 4 * 3 * 10),
    ):
        spent = begun + LAST * 10 + FILES
        for more, nested in ((0.0, False), (needed - 1, False), (needed, True)):
            made = MadeUp(tmp_path / f"{begun} {more}", clock, scores=BAD)
            made.begin(blocks, spent + 0.01)
            made.rest()
            assert made.schedule.nesting_seconds == pytest.approx(needed)
            made.begin(blocks, spent + more + 0.02)
            assert ("vrex: ab ac bc" in short(made.rest())) == nested
            assert (made.schedule.nesting_seconds is None) == nested


def test_pairs_are_given_up_once_not_all_of_them_fit(made: MadeUp) -> None:
    blocks = blocks_of("erm", "irm", trials=2, nested=True)
    made.begin(blocks, 60 + 60 + LAST * 10 + FILES + 5)
    for _ in range(6):
        made.step()
    made.seconds = {"erm": 16.0}
    # Three more as slow and three of irm do not fit; a trial of irm does.
    assert short(made.rest()) == ["erm: ab", "irm #1: a b c"]
    assert made.schedule.nesting_seconds == pytest.approx(2 * 16 + 3 * 10)


def test_a_new_setting_does_not_undo_a_nested_expectation(tmp_path: Path, clock: Clock) -> None:
    """Trials may make another candidate good; its settings then need time for their pairs too."""
    blocks = blocks_of("erm", "irm", "irm λ=1", trials=2, nested=True)
    for runs, trained in (
        (15, ["erm #1: a b c"]),
        (20, ["erm #1: a b c", "irm #1: a b c"]),
        (21, ["erm #1: a b c", "irm λ=1: a b c ab ac bc"]),
    ):
        made = MadeUp(tmp_path / str(runs), clock, scores=BAD)
        made.begin(blocks, runs=runs)
        for _ in range(12):
            made.step()
        later = [made.step() for _ in range(3)]
        made.scores = {}  # from here on irm is as good
        assert short([run for run in later if run] + made.rest()) == trained


def test_the_price_is_measured_of_what_is_deployed(made: MadeUp) -> None:
    made.scores = {"erm": (0.5, 0.52, 0.48)}
    blocks = blocks_of("erm", "irm", make_price_run=lambda *given: make_run(*given, data="without"))
    made.begin(blocks)
    assert short(found := made.rest()) == ["erm: a b c", "irm: a b c a b c"]
    assert [run.dataset for run in found[-3:]] == ["without"] * 3
    # They are no part of the comparison.
    assert len(made.schedule.counted) == 6
    assert made.schedule.price_runs("irm") == tuple(found[-3:])
    assert made.schedule.price_runs("erm") == ()


def test_good_candidates() -> None:
    close = {"erm": (0.8, 0.9, 0.7), "fishr": (0.82, 0.89, 0.72), "coral": (0.5, 0.6, 0.4)}
    assert good_candidates(estimates(close)) == ["fishr", "erm"]
    # A loss: less is better.
    assert good_candidates(estimates(close, metric="log-loss")) == ["coral"]
    # The worst domain judges; the error is that of the mean.
    worst = {"erm": (0.9, 0.9, 0.5), "fishr": (0.7, 0.7, 0.7), "coral": (0.6, 0.6, 0.2)}
    assert good_candidates(estimates(worst, judge="worst")) == ["fishr", "erm"]
    assert good_candidates(estimates(worst)) == ["erm", "fishr"]
    # At most four, and none before all domains were left out.
    many = ("logistic", "forest", "extra", "erm", "fishr", "coral")
    equal = dict.fromkeys(many, (0.8, 0.7, 0.9))
    assert good_candidates(estimates(equal)) == list(many[:4])
    assert good_candidates(estimates({"erm": (0.8, None, 0.9), "fishr": (0.8, 0.9)})) == []


def test_within_two_standard_errors() -> None:
    for errors, good in ((1.99, True), (2.01, False)):
        # The deviation of −1, 0 and 1 is 1, and the error of their mean is 1/√3.
        gaps = [0.01 * (errors / math.sqrt(3) + one) for one in (-1, 0, 1)]
        found = good_candidates(estimates({"erm": [0.7 - gap for gap in gaps], "fishr": [0.7] * 3}))
        assert found == ["fishr", "erm"][: 1 + good]


# Progress


def at(steps_done: int, seconds_left: float | None) -> Progress:
    return Progress(done=steps_done, steps=100, rate=1.0, seconds_left=seconds_left, record=None)


def test_progress_counts_what_is_to_come(made: MadeUp) -> None:
    found = made.begin(blocks_of("erm", "irm", "vrex"), runs=7)
    assert found.progress(found.runs[found.next()], None) == FitProgress(0, 6, None)
    for k in range(3):
        made.step()
        left = (5 - k) * 10 + LAST * 10 + FILES
        now = found.progress(found.runs[found.next()], None)
        assert now == FitProgress(k + 1, 6, pytest.approx(left))


def test_the_first_run_tells_by_its_own_pace(made: MadeUp) -> None:
    found = made.begin(blocks_of("erm", "irm"))
    run = found.runs[found.next()]
    assert found.progress(run, at(0, None)).left is None
    # 60 s for the whole run: 45 s of it, five more, and the last one.
    assert found.progress(run, at(25, 45.0)).left == pytest.approx(45 + 5 * 60 + LAST * 60 + FILES)
    assert found.progress(run, at(50, 20.0)).left == pytest.approx(20 + 5 * 40 + LAST * 40 + FILES)
    # After the last update 0 s are left, which says nothing of the next runs.
    assert found.progress(run, at(100, 0.0)).left == pytest.approx(5 * 40 + LAST * 40 + FILES)
    made.seconds = {"erm": 30.0}
    made.step()
    run = found.runs[found.next()]
    assert found.progress(run, None).left == pytest.approx(5 * 30 + LAST * 30 + FILES)
    # A run that is slow says nothing of others like it.
    assert found.progress(run, at(50, 50.0)).left == pytest.approx(50 + 4 * 30 + LAST * 30 + FILES)


def test_a_pace_of_another_candidate(made: MadeUp) -> None:
    found = made.begin(blocks_of("erm", "irm"))
    for _ in range(3):
        made.step()
    run = found.runs[found.next()]
    last = LAST * 10 + FILES  # only erm can be deployed so far
    assert found.progress(run, None).left == pytest.approx(3 * 10 + last)
    assert found.progress(run, at(50, 40.0)).left == pytest.approx(40 + 2 * 80 + last)


def test_progress_knows_the_stages_to_come(made: MadeUp) -> None:
    made.scores = BAD
    found = made.begin(blocks_of("erm", "irm", "erm λ=1", "irm λ=1", trials=3, nested=True))
    totals = []
    while (number := found.next()) != END:
        totals.append(found.progress(found.runs[number], None).total)
        made.step()
    # At first only the candidates are known; then what follows for erm, settings, pairs and two
    # trials; for irm, which is bad, its pairs; and pairs and trials of erm's other setting.
    assert totals == [6] * 3 + [6 + 3 + 3 + 6] * 3 + [6 + 3 + 6 + 6] * 3 + [6 + 3 + 9 + 12] * 21
    assert len(made.schedule.counted) == 30


def test_no_more_is_forecast_than_there_is_time_for(made: MadeUp) -> None:
    found = made.begin(blocks_of("erm", "irm", "vrex"), 60 + LAST * 10 + FILES + 5)
    for _ in range(3):
        made.step()
    run, last = found.runs[found.next()], LAST * 10 + FILES
    assert found.progress(run, None) == FitProgress(3, 6, pytest.approx(30 + last))
    # It turns out slow, so its block will be given up; the time that is left is the most it takes.
    assert found.progress(run, at(50, 40.0)).left == pytest.approx(30 + 5 + last)
    # But a run takes as long as it takes.
    assert found.progress(run, at(1, 500.0)).left == pytest.approx(500)


def test_results_are_read_once_after_each_run(made: MadeUp) -> None:
    found = made.begin(blocks_of("erm", "irm", "erm λ=1", trials=3, nested=True))
    while (number := found.next()) != END:
        for _ in range(5):
            found.progress(found.runs[number], None)
        made.step()
    assert len(found.counted) == 3 * (3 + 3 + 6)
    assert made.asked < 3 * (3 + 3 + 6)  # after the last one, nothing waits
