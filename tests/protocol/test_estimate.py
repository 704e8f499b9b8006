"""What a sweep will cost: the arithmetic of it, and one probe for real."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.algorithms import find
from shoal.cli import main
from shoal.cli.status import time_left
from shoal.datasets import Domain, DomainDataset
from shoal.protocol import estimate
from shoal.protocol.estimate import RATES, find_rates, known_rates, left_of, unknown_kinds
from shoal.protocol.plan import folder_of, read_plan
from shoal.protocol.preparing import prepare
from shoal.protocol.probe import Rates, Subject, _line, _repeated, probe
from shoal.protocol.run import Run
from tests.protocol.small import small_run, tiny, tiny_run
from tests.protocol.worlds import Broken, Squares, planned


def wrote(out: Path, run: Run, **seconds: float) -> None:
    """Write that a run is done, and what it took."""
    folder = folder_of(out, run)
    folder.mkdir(parents=True)
    (folder / "timing.json").write_text(json.dumps(seconds))
    (folder / "done").touch()


def test_the_seconds_of_a_run() -> None:
    rates = Rates(update=0.5, image=0.01, evaluation=100.0, domains=3)
    # 23 updates of 4 images from each of 2 domains, and records after 0, 5, 10, 15, 20 and 22
    assert rates.seconds(small_run()) == pytest.approx(23 * (0.5 + 8 * 0.01) + 6 * 100)
    pair = small_run(test_domains=("a", "b"))
    assert rates.seconds(pair) == pytest.approx(23 * (0.5 + 4 * 0.01) + 6 * 100)
    # records after 0, 5 and 10, the last of all
    assert rates.seconds(small_run(steps=11)) == pytest.approx(11 * (0.5 + 8 * 0.01) + 3 * 100)


def test_a_line_through_times() -> None:
    assert _line({4: 1.0, 16: 2.5}) == pytest.approx((0.5, 0.125))
    assert _line({6: 3.0}) == (0.0, 0.5)
    assert _line({4: 1.0, 16: 0.9}) == (1.0, 0.0)  # noise must not pay anything back
    assert _line({4: 0.1, 16: 9.0})[0] == 0.0


def test_a_first_go_that_is_short_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("shoal.protocol.probe.time.perf_counter", lambda: now[0])

    def work(first: float, then: float) -> float:
        def go(number: int) -> None:
            now[0] += then if number else first

        return _repeated(go)

    assert work(0.125, 0.0625) == pytest.approx(0.0625)
    assert work(9.0, 0.125) == pytest.approx(9.0)  # no second one: it would take as long
    before = now[0]
    assert work(0.0, 0.001) == pytest.approx(0.001)
    assert now[0] - before < 0.1


@pytest.mark.parametrize(("evaluate", "tests"), [("needed", ("c",)), ("all", ("b", "c"))])
def test_a_record_evaluates_so_many_images(evaluate: str, tests: tuple[str, ...]) -> None:
    run = tiny_run("erm", evaluate=evaluate, test_domains=tests)
    placed, _ = prepare(run, find("erm"), tiny(), None, Squares().machine())
    subject = Subject.of(run, tiny())
    assert subject.evaluated == sum(map(len, placed.parts.values()))
    machine = replace(Squares().machine(), log="gaps")
    placed, _ = prepare(run, find("erm"), tiny(), None, machine)
    assert subject.sampled == sum(map(len, placed.samples.values()))


def test_gaps_are_counted_where_they_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.protocol.probe._repeated", lambda _: 6.0)
    dataset, machine = tiny(), Squares().machine()
    subject = Subject.of(tiny_run("erm"), dataset)
    without, with_gaps = (
        probe(subject, find("erm"), replace(machine, log=log)).evaluation for log in (None, "gaps")
    )
    assert with_gaps / without == pytest.approx(1 + subject.sampled / subject.evaluated)


@pytest.mark.parametrize("algorithm", ["erm", "fishr", "mldg"])
def test_a_probe_measures_something(algorithm: str) -> None:
    dataset = tiny()
    subject = Subject.of(tiny_run(algorithm), dataset)
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
    subject = Subject.of(run, dataset)
    images = subject.images["a"].images
    assert isinstance(images, torch.Tensor) and images.shape == (64, 3, 224, 224)
    assert subject.evaluated == 18


def test_what_is_left_goes_by_what_is_done_then_by_rates(tmp_path: Path) -> None:
    planned(tmp_path, ("erm", "fishr", "irm"), steps=10)
    runs = read_plan(tmp_path)
    assert left_of(tmp_path, runs) == estimate.Left(0.0, ("squares",))
    assert time_left(tmp_path, runs) == ""
    mine = {
        name: [run for run in runs if run.algorithm == name] for name in ("erm", "fishr", "irm")
    }
    wrote(tmp_path, mine["erm"][0], preparing=1.0, updating=10.0, evaluating=2.0)
    wrote(tmp_path, mine["erm"][1], preparing=60.0, updating=12.0, evaluating=4.0)
    wrote(tmp_path, mine["erm"][2], preparing=3.0, updating=14.0, evaluating=0.0)
    erm = 3.0 + 14.0  # the median, and the mean
    assert left_of(tmp_path, runs).seconds == pytest.approx(15 * erm)
    rates = Rates(1.0, 0.0, 5.0, 3)
    line = {"dataset": "squares", "algorithm": "fishr", **vars(rates)}
    (tmp_path / RATES).write_text(json.dumps([line]))
    fishr = 10 * 1.0 + 2 * 5.0
    expected = 3 * erm + 6 * fishr + 6 * (erm + fishr) / 2
    found = left_of(tmp_path, runs)
    assert found.seconds == pytest.approx(expected) and found.unknown == ()
    # What failed is not left.
    (folder := folder_of(tmp_path, mine["fishr"][0])).mkdir()
    (folder / "failed.json").write_text("{}")
    assert left_of(tmp_path, runs).seconds == pytest.approx(expected - fishr)


def test_of_a_data_set_nobody_knows_it_is_said(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    run, *_ = runs = read_plan(tmp_path)
    wrote(tmp_path, run, preparing=0.0, updating=30.0, evaluating=0.0)
    other = replace(run, dataset="other")
    assert time_left(tmp_path, [*runs, other]) == "2 min 30 s and what other takes"
    assert time_left(tmp_path, runs) == "2 min 30 s"
    assert time_left(tmp_path, [run]) == ""


def test_what_is_unknown_comes_data_set_by_data_set(tmp_path: Path) -> None:
    planned(tmp_path, ("erm", "fishr"))
    runs = read_plan(tmp_path)
    both = [*runs, *(replace(run, dataset="other") for run in runs)]
    kinds = [(run.dataset, run.algorithm) for run in unknown_kinds(tmp_path, both)]
    assert kinds == [("squares", "erm"), ("other", "erm"), ("squares", "fishr"), ("other", "fishr")]
    wrote(tmp_path, runs[1])
    (tmp_path / RATES).write_text(
        json.dumps([{"dataset": "other", "algorithm": "erm", **vars(Rates(1, 1, 1, 1))}])
    )
    kinds = [(run.dataset, run.algorithm) for run in unknown_kinds(tmp_path, both)]
    assert kinds == [("squares", "fishr"), ("other", "fishr")]


@pytest.mark.serial
@pytest.mark.timeout(120)
def test_a_probe_in_its_own_process_and_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [tiny_run("erm")]
    monkeypatch.setattr(estimate, "BEGIN", 60.0)
    monkeypatch.setattr(estimate, "LIMIT", {"cpu": 60.0})
    find_rates(tmp_path, runs, Squares(), lambda *_: tiny())
    assert list(known_rates(tmp_path)) == [("tiny", "erm")]
    assert left_of(tmp_path, runs).seconds > 0
    (tmp_path / RATES).unlink()
    monkeypatch.setattr(estimate, "LIMIT", {"cpu": 0.0})
    find_rates(tmp_path, runs, Squares(), lambda *_: tiny())
    assert known_rates(tmp_path) == {}


def test_probes_stop_when_their_time_is_over_and_mind_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subjects = [Subject.of(tiny_run(name), tiny()) for name in ("erm", "fishr")]

    def sent(world: Squares) -> list[object]:
        found: list[object] = []
        pipe: Any = SimpleNamespace(send=found.append)
        estimate._probe_all(subjects, world, pipe)
        assert found[:1] in ([], ["cpu"])
        return [kind for kind, _ in found[1:]]  # type: ignore[misc]

    assert sent(Broken()) == []
    assert sent(Squares()) == [("tiny", "erm"), ("tiny", "fishr")]
    monkeypatch.setattr(estimate, "SHARE", 0.0)
    assert sent(Squares()) == [("tiny", "erm")]


def test_the_command_says_what_it_will_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(out: Path, runs: list[Run], *_: object) -> None:
        lines = [
            {"dataset": run.dataset, "algorithm": run.algorithm, **vars(Rates(1.0, 0.0, 0.0, 3))}
            for run in runs
        ]
        (out / RATES).write_text(json.dumps(lines))

    monkeypatch.setattr(estimate, "find_rates", found)
    command = ["sweep", "--datasets", "colored-mnist", "--plan-only", "--trials", "1", "--draws"]
    command += ["2", "--algorithms", "erm", "--steps", "600", "--out", str(tmp_path)]
    assert main(command) == 0
    told = capsys.readouterr().err
    guess = "About 1 h 0 min of work for one worker, guessed from a few updates on this machine"
    assert guess in told
    assert main(command) == 0  # nothing new is known
    assert guess in capsys.readouterr().err
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_left"] == "1 h 0 min"
    run, *_ = read_plan(tmp_path)
    wrote(tmp_path, run, preparing=0.0, updating=60.0, evaluating=0.0)
    assert main(command) == 0
    assert "About 5 min 0 s left, with one worker" in capsys.readouterr().err
