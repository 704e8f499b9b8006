"""What a sweep will cost: the arithmetic of it, and one probe for real."""

import json
import os
import time
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.algorithms import find
from shoal.cli import main
from shoal.cli.engine import StatusLines, _hardware
from shoal.cli.status import describe_time_left, format_time_left
from shoal.datasets import Domain, DomainDataset
from shoal.runs.folder import open_run_folder
from shoal.runs.machine import processor
from shoal.runs.prepare import prepare
from shoal.runs.run import Run
from shoal.sweeps import probe as probes
from shoal.sweeps.cost import (
    Rates,
    RatesByHardware,
    RemainingWork,
    read_rates,
    remaining_work,
    runs_to_probe,
    write_rates,
)
from shoal.sweeps.plan import folder_of, read_plan
from shoal.sweeps.probe import ProbeSubject, _fit_line, _mean_seconds, probe, probe_rates
from shoal.sweeps.status import RunState
from tests.processes import forkserver
from tests.runs.small import small_run, tiny, tiny_run
from tests.sweeps.workspaces import Broken, Squares, planned
from tests.training.little import watching

HERE = ("ours",)


class Unknowing(Squares):
    def method(self, name: str) -> Any:
        raise ValueError("unknown method\nand why")


def wrote(out: Path, run: Run, hardware: str = "ours", **seconds: float) -> None:
    """Write that a run is done, and what it took on which hardware."""
    folder = folder_of(out, run)
    folder.mkdir(parents=True)
    seconds = {"preparing": 0.0, "updating": 0.0, "evaluating": 0.0} | seconds
    (folder / "timing.json").write_text(json.dumps(seconds | {"machine": {"device": hardware}}))
    (folder / "done").touch()
    (folder / "run.json").touch()


def test_the_seconds_of_a_run() -> None:
    rates = Rates(update=0.5, image=0.01, evaluation=100.0, domains=3)
    # 23 updates of 4 images from each of 2 domains, and records after 0, 5, 10, 15, 20 and 22
    assert rates.seconds(small_run()) == pytest.approx(23 * (0.5 + 8 * 0.01) + 6 * 100)
    pair = small_run(test_domains=("a", "b"))
    assert rates.seconds(pair) == pytest.approx(23 * (0.5 + 4 * 0.01) + 6 * 100)
    # records after 0, 5 and 10, the last of all
    assert rates.seconds(small_run(steps=11)) == pytest.approx(11 * (0.5 + 8 * 0.01) + 3 * 100)


@pytest.mark.parametrize("content", ["", "null", "[1]", "{}", '{"preparing": null}'])
def test_damaged_timings_are_worth_no_run(content: str, tmp_path: Path) -> None:
    runs = [small_run(trial=trial) for trial in range(3)]
    wrote(tmp_path, runs[0], updating=7.0)
    wrote(tmp_path, runs[1])
    (folder_of(tmp_path, runs[1]) / "timing.json").write_text(content)
    (tmp_path / "rates.json").write_text(content)
    for here in (HERE, ()):
        assert remaining_work(tmp_path, runs, here).each == (7.0,)


def test_a_line_through_times() -> None:
    assert _fit_line({4: 1.0, 16: 2.5}) == pytest.approx((0.5, 0.125))
    assert _fit_line({6: 3.0}) == (0.0, 0.5)
    assert _fit_line({4: 1.0, 16: 0.9}) == (1.0, 0.0)  # noise must not pay anything back
    assert _fit_line({4: 0.1, 16: 9.0})[0] == 0.0


def test_a_first_go_counts_only_where_it_is_long_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("shoal.sweeps.probe.time.perf_counter", lambda: now[0])

    def work(first: float, then: float, cuda: bool = False) -> float:
        def go(number: int) -> None:
            now[0] += then if number else first

        return _mean_seconds(go, cuda)

    assert work(0.125, 0.0625) == pytest.approx(0.0625)
    assert work(9.0, 0.125) == pytest.approx(9.0)  # no second one: it would take as long
    assert work(9.0, 0.125, cuda=True) == pytest.approx(0.125)  # kernels were loaded
    before = now[0]
    assert work(0.0, 0.001) == pytest.approx(0.001)
    assert now[0] - before < 0.1


@pytest.mark.parametrize(("evaluate", "tests"), [("needed", ("c",)), ("all", ("b", "c"))])
def test_a_record_evaluates_so_many_images(evaluate: str, tests: tuple[str, ...]) -> None:
    run = tiny_run("erm", evaluate=evaluate, test_domains=tests)
    placed, _ = prepare(run, find("erm"), tiny(), None, Squares().machine())
    subject = ProbeSubject.of(run, tiny())
    assert subject.evaluated == sum(map(len, placed.parts.values()))
    machine = replace(Squares().machine(), log="gaps")
    placed, _ = prepare(run, find("erm"), tiny(), None, machine)
    assert subject.sampled == sum(map(len, placed.samples.values()))


def test_gaps_are_counted_where_they_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.sweeps.probe._mean_seconds", lambda *_: 6.0)
    dataset, machine = tiny(), Squares().machine()
    subject = ProbeSubject.of(tiny_run("erm"), dataset)
    without, with_gaps = (
        probe(subject, find("erm"), replace(machine, log=log)).evaluation for log in (None, "gaps")
    )
    assert with_gaps / without == pytest.approx(1 + subject.sampled / subject.evaluated)


@pytest.mark.parametrize("algorithm", ["erm", "fishr", "mldg"])
def test_a_probe_measures_something(algorithm: str) -> None:
    dataset = tiny()
    subject = ProbeSubject.of(tiny_run(algorithm), dataset)
    assert subject.images.names == dataset.names
    begin = time.perf_counter()
    rates = probe(subject, find(algorithm), Squares().machine())
    spent = time.perf_counter() - begin
    assert rates.domains == 3
    update = rates.update + 8 * rates.image
    assert 0 < update < spent and 0 < rates.evaluation < 10 * spent


def test_images_in_files_are_not_read() -> None:
    labels = torch.zeros(90, dtype=torch.int64)
    files = tuple(Path(f"/not/here/{k}.png") for k in range(90))
    dataset = DomainDataset("files", ("x", "y"), (Domain("a", labels, files),))
    run = replace(small_run(), test_domains=())
    subject = ProbeSubject.of(run, dataset)
    assert subject.images["a"].tensor.shape == (64, 3, 224, 224)
    assert subject.evaluated == 18


def test_what_is_left_goes_by_what_is_done_then_by_rates(tmp_path: Path) -> None:
    planned(tmp_path, ("erm", "fishr", "irm"), steps=10)
    runs = read_plan(tmp_path)
    assert remaining_work(tmp_path, runs, HERE) == RemainingWork(unknown=("squares",))
    assert format_time_left(remaining_work(tmp_path, runs, HERE), 1) == ""
    mine = {
        name: [run for run in runs if run.algorithm == name] for name in ("erm", "fishr", "irm")
    }
    wrote(tmp_path, mine["erm"][0], preparing=1.0, updating=10.0, evaluating=2.0)
    wrote(tmp_path, mine["erm"][1], preparing=60.0, updating=12.0, evaluating=4.0)
    wrote(tmp_path, mine["erm"][2], preparing=3.0, updating=14.0, evaluating=0.0)
    erm = 3.0 + 14.0  # the median, and the mean
    assert remaining_work(tmp_path, runs, HERE) == RemainingWork((pytest.approx(erm),) * 15)
    write_rates(tmp_path, {("ours", ("squares", "fishr")): Rates(1.0, 0.0, 5.0, 3)})
    fishr = 10 * 1.0 + 2 * 5.0
    expected = 3 * erm + 6 * fishr + 6 * (erm + fishr) / 2
    found = remaining_work(tmp_path, runs, HERE)
    assert found.seconds() == pytest.approx(expected) and found.unknown == ()
    assert found.guessed and not remaining_work(tmp_path, mine["erm"], HERE).guessed
    # What failed is not left.
    (folder := folder_of(tmp_path, mine["fishr"][0])).mkdir()
    (folder / "failed.json").write_text("{}")
    assert remaining_work(tmp_path, runs, HERE).seconds() == pytest.approx(expected - fishr)


def test_timings_of_other_machines_count_only_where_there_are_none_from_hardware(
    tmp_path: Path,
) -> None:
    planned(tmp_path, ("erm", "fishr"))
    runs = read_plan(tmp_path)
    erm, fishr = ([run for run in runs if run.algorithm == name] for name in ("erm", "fishr"))
    for number, hardware in enumerate(("slow", "H200", "H200")):
        wrote(tmp_path, erm[number], hardware, updating={"slow": 99.0, "H200": 1.0}[hardware])
    found = remaining_work(tmp_path, runs, HERE)
    assert found == RemainingWork((1.0,) * 9, (), ("H200",))  # of the others, that of the most runs
    assert describe_time_left(found, 1) == (
        "About 9 s left with one worker, from timings of other hardware (H200)"
    )
    # A probe from here says more, also of another method, and so does a run.
    rates = {("H200", ("squares", "erm")): Rates(9.0, 0.0, 0.0, 3)}
    write_rates(tmp_path, rates | {("ours", ("squares", "erm")): Rates(20.0, 0.0, 0.0, 3)})
    assert remaining_work(tmp_path, runs, HERE) == RemainingWork((60.0,) * 9, guessed=True)
    wrote(tmp_path, fishr[0], updating=30.0)
    found = remaining_work(tmp_path, runs, HERE)
    assert found == RemainingWork((60.0,) * 3 + (30.0,) * 5, guessed=True)
    assert remaining_work(tmp_path, runs, ("none", "slow")).each == (99.0,) * 8
    assert remaining_work(tmp_path, runs, ()).elsewhere == ("H200",)


def test_a_kind_that_is_known_elsewhere_is_unknown_hardware(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    run, *_ = runs = read_plan(tmp_path)
    wrote(tmp_path, run, "H200")
    assert runs_to_probe(tmp_path, runs, HERE) == [run]
    assert runs_to_probe(tmp_path, runs, ("H200",)) == []
    assert runs_to_probe(tmp_path, runs, ()) == []  # a cluster's machines are not known


def test_the_first_worker_to_be_free_takes_the_next_run() -> None:
    left = RemainingWork((30.0,) * 5)
    assert [left.seconds(workers) for workers in (1, 2, 5, 99)] == [150.0, 90.0, 30.0, 30.0]
    assert RemainingWork((10.0, 10.0, 50.0)).seconds(2) == 60.0
    assert RemainingWork().seconds(3) == 0.0
    assert describe_time_left(left, 2) == "About 1 min 30 s left with 2 workers"


def test_what_a_run_has_behind_it_is_not_left(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",), steps=10)
    first, second, third, *_ = runs = read_plan(tmp_path)[:4]
    wrote(tmp_path, first, updating=100.0)
    for run, text in ((second, '{"step": 0}\n{"step": 6}\n'), (third, "damaged")):
        (folder := folder_of(tmp_path, run)).mkdir()
        (folder / "records.jsonl").write_text(text)
    assert remaining_work(tmp_path, runs, HERE).each == pytest.approx((30.0, 100.0, 100.0))


def test_what_a_run_did_since_its_last_record_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, ("erm",), steps=10)
    first, run = read_plan(tmp_path)[:2]
    wrote(tmp_path, first, updating=100.0)
    monkeypatch.setattr("shoal.sweeps.cost.time.time", lambda: 1000.0)

    def write(name: str, text: str, at: float) -> None:
        (folder_of(tmp_path, run) / name).write_text(text)
        os.utime(folder_of(tmp_path, run) / name, (at, at))

    def left() -> float:
        return remaining_work(tmp_path, [first, run], HERE).each[0]

    with open_run_folder(folder_of(tmp_path, run), run):
        assert left() == 100.0
        write("begun.json", "{}", 960.0)
        assert left() == pytest.approx(60.0)
        write("records.jsonl", '{"step": 4}', 990.0)
        assert left() == pytest.approx(40.0)
        write("records.jsonl", '{"step": 4}', 800.0)  # it was killed after that, and goes on
        assert left() == pytest.approx(10.0)
        write("begun.json", "{}", 900.0)
        assert left() == 0.0
        write("begun.json", "{}", 1003.0)  # by the clock of another machine
        assert left() == pytest.approx(50.0)
    write("begun.json", "{}", 960.0)
    assert left() == pytest.approx(50.0)  # nobody is at it


def test_runs_that_are_carried_out_have_their_workers_already(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    first, _, third = runs = read_plan(tmp_path)[:3]
    wrote(tmp_path, first, updating=100.0)
    with open_run_folder(folder_of(tmp_path, third), third):
        (folder_of(tmp_path, third) / "begun.json").touch()
        os.utime(folder_of(tmp_path, third) / "begun.json", (1.0, 1.0))
        assert remaining_work(tmp_path, runs, HERE).each == (0.0, 100.0)


def test_of_a_data_set_nobody_knows_it_is_said(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    run, *_ = runs = read_plan(tmp_path)
    wrote(tmp_path, run, preparing=0.0, updating=30.0, evaluating=0.0)
    other = replace(run, dataset="other")
    both = remaining_work(tmp_path, [*runs, other], HERE)
    assert format_time_left(both, 1) == "2 min 30 s plus other (unknown)"
    assert describe_time_left(both, 5) == "About 30 s plus other (unknown) left with 5 workers"
    assert format_time_left(remaining_work(tmp_path, runs, HERE), 1) == "2 min 30 s"
    assert format_time_left(remaining_work(tmp_path, [run], HERE), 1) == ""


def test_what_is_unknown_comes_data_set_by_data_set(tmp_path: Path) -> None:
    planned(tmp_path, ("erm", "fishr"))
    runs = read_plan(tmp_path)
    both = [*runs, *(replace(run, dataset="other") for run in runs)]
    kinds = [(run.dataset, run.algorithm) for run in runs_to_probe(tmp_path, both, HERE)]
    assert kinds == [("squares", "erm"), ("other", "erm"), ("squares", "fishr"), ("other", "fishr")]
    wrote(tmp_path, runs[1])
    write_rates(tmp_path, {("ours", ("other", "erm")): Rates(1, 1, 1, 1)})
    kinds = [(run.dataset, run.algorithm) for run in runs_to_probe(tmp_path, both, HERE)]
    assert kinds == [("squares", "fishr"), ("other", "fishr")]


def test_a_probe_in_its_own_process_and_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [tiny_run("erm")]
    monkeypatch.setattr(probes, "BEGIN", 60.0)
    monkeypatch.setattr(probes, "LIMIT", {"cpu": 60.0})
    rates = probe_rates(runs, Squares(), lambda *_: tiny())
    assert list(rates) == [(processor(), ("tiny", "erm"))]
    write_rates(tmp_path, rates)
    assert read_rates(tmp_path) == rates
    assert remaining_work(tmp_path, runs, (processor(),)).seconds() > 0
    monkeypatch.setattr(probes.multiprocessing, "get_context", lambda _: forkserver())
    notes: list[str] = []
    both, watcher = [*runs, tiny_run("fishr")], watching(note=notes.append)
    assert probe_rates(both, Unknowing(), lambda *_: tiny(), watcher) == {}
    assert notes == ["the cost of ERM on tiny could not be probed (ValueError: unknown method)"]
    monkeypatch.setattr(probes, "LIMIT", {"cpu": 0.0})
    assert probe_rates(runs, Squares(), lambda *_: tiny()) == {}


def test_probes_stop_when_their_time_is_over_and_mind_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subjects = [ProbeSubject.of(tiny_run(name), tiny()) for name in ("erm", "fishr")]

    def sent(world: Squares) -> list[Any]:
        found: list[Any] = []
        pipe: Any = SimpleNamespace(send=found.append)
        probes._probe_all(subjects, world, pipe)
        assert found[:1] in ([], [("cpu", processor())])
        return found[1:]

    both = [("tiny", "erm"), ("tiny", "fishr")]
    assert sent(Broken()) == []
    assert sent(Unknowing()) == [(kind, "ValueError: unknown method") for kind in both]
    assert [kind for kind, _ in sent(Squares())] == both
    monkeypatch.setattr(probes, "SHARE", 0.0)
    assert [kind for kind, _ in sent(Squares())] == both[:1]


def test_the_command_says_what_it_will_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(runs: list[Run], *_: object) -> RatesByHardware:
        rates = Rates(1.0, 0.0, 0.0, 3)
        return {("ours", (run.dataset, run.algorithm)): rates for run in runs}

    monkeypatch.setattr(probes, "probe_rates", found)
    monkeypatch.setattr("shoal.runs.machine.usable_gpus", lambda: list(HERE))
    command = ["sweep", "--datasets", "colored-mnist", "--plan-only", "--trials", "1", "--draws"]
    command += ["2", "--algorithms", "erm", "--steps", "600", "--out", str(tmp_path)]
    guess = "left with one worker, estimated from a few updates that were not compiled\n"
    for _ in range(2):  # the second time nothing new is known
        assert main(command) == 0
        assert f"About 1 h 0 min {guess}" in capsys.readouterr().err
    assert main([*command, "--workers", "4"]) == 0
    assert "About 20 min 0 s left with 4 workers, estimated" in capsys.readouterr().err
    assert as_json(tmp_path, capsys)["seconds_left"] == 3600.0
    first, second, *_ = read_plan(tmp_path)
    wrote(tmp_path, first, updating=60.0)
    with open_run_folder(folder_of(tmp_path, second), second):  # another command's
        assert main([*command, "--workers", "2"]) == 0
        assert "About 2 min 0 s left with 3 workers\n" in capsys.readouterr().err


def as_json(out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", str(out), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    others = ("runs", "failures", "left_behind")
    return {name: value for name, value in found.items() if name not in others}


def test_status_tells_seconds_for_those_who_are_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, ("erm",))
    first, second, third, *_ = read_plan(tmp_path)
    nothing = {"guessed": False, "timings_of_other_machines": [], "unknown_datasets": []}
    assert as_json(tmp_path, capsys) == nothing | {
        "seconds_left": None,
        "time_left": "",
        "workers": 1,
        "unknown_datasets": ["squares"],
    }
    wrote(tmp_path, first, "H200", updating=60.0)
    expected = {"seconds_left": 300.0, "time_left": "5 min 0 s", "workers": 1}
    expected |= nothing | {"timings_of_other_machines": ["H200"]}
    assert as_json(tmp_path, capsys) == expected
    monkeypatch.setattr("shoal.runs.machine.installed_gpus", lambda: ["H200"])
    expected["timings_of_other_machines"] = []
    assert as_json(tmp_path, capsys) == expected
    with (
        open_run_folder(folder_of(tmp_path, second), second),
        open_run_folder(folder_of(tmp_path, third), third),
    ):
        found = as_json(tmp_path, capsys)
        assert (found["workers"], found["seconds_left"]) == (2, 180.0)
        assert main(["status", str(tmp_path)]) == 0
        assert "About 3 min 0 s left with 2 workers\n" in capsys.readouterr().out
    for run in read_plan(tmp_path)[1:]:
        (folder_of(tmp_path, run)).mkdir(exist_ok=True)
        for name in ("done", "run.json"):
            (folder_of(tmp_path, run) / name).touch()
    assert as_json(tmp_path, capsys)["seconds_left"] == 0.0


def test_now_and_then_a_sweep_tells_how_long_all_workers_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("shoal.cli.engine.time.monotonic", lambda: now[0])
    planned(tmp_path, ("erm",))
    run, *_ = runs = read_plan(tmp_path)
    wrote(tmp_path, run, processor(), updating=60.0)
    options = Namespace(out=tmp_path, engine="local", device="cpu")
    watcher = StatusLines(options, runs)
    for seconds, workers, running in ((1, 2, 2), (20, 2, 2), (25, 2, 2), (40, 2, 5)):
        now[0] = float(seconds)
        watcher.status(Counter({RunState.DONE: 1, RunState.RUNNING: running}), workers)
    assert capsys.readouterr().err.splitlines() == [
        "1 done, 2 running. About 3 min 0 s left with 2 workers",
        "1 done, 5 running. About 1 min 0 s left with 5 workers",
    ]


def test_a_cluster_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    options = Namespace(engine="ray", address=None, device="cpu")
    assert _hardware(options) == (processor(),)
    assert _hardware(Namespace(**vars(options) | {"address": "10.0.0.1:6379"})) == ()
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert _hardware(options) == ()
    assert _hardware(Namespace(**vars(options) | {"engine": "local"})) == (processor(),)
