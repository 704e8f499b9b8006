"""Weights that a rule may choose: kept while a run goes on, and saved when it has chosen."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.cli import main
from shoal.results.averages import with_averages
from shoal.results.records import Record, RunResult, read_runs
from shoal.results.selection import ALL_RULES, CALIBRATED, WORDS, choose_runs
from shoal.runs.best_weights import NotKept, kept_model, model_of, reachable, save_chosen
from shoal.runs.model import load
from shoal.runs.run import Protocol
from shoal.sweeps.plan import Sweep, folder_of, read_plan, runs_of, write_plan
from shoal.sweeps.worker import Worker
from tests.runs.small import CPU, carry_out, tiny, tiny_run
from tests.runs.test_execute import Killed
from tests.sweeps.workspaces import Squares
from tests.training.little import watching


def kept(path: Path) -> list[str]:
    return sorted(one.name for one in (path / "kept").glob("*"))


def test_the_command_knows_all_rules() -> None:
    assert set(ALL_RULES) == set(WORDS)


def made_up(random_: random.Random, draw: int, records: int) -> RunResult:
    """Return a run whose accuracies and errors are often equal, often near and sometimes none."""

    def value(choices: list[float]) -> float:
        return random_.choice([*choices, float("nan")]) if random_.random() < 0.1 else 0.0

    measured = []
    for step in range(records):
        accuracy = random_.choice([0.8, 0.801, 0.803, 0.806, 0.807]) + value([0.1])
        error = random_.choice([0.1, 0.2, 0.3]) + value([0.0])
        splits = {"a": {"held_out": accuracy}, "t": {"kept": 0.5}}
        measured.append(
            Record(step=step, accuracy=splits, calibration_error={"a": {"held_out": error}})
        )
    return RunResult(
        dataset="data",
        algorithm="erm",
        test_domains=("t",),
        trial=0,
        draw=draw,
        hparams={},
        records=tuple(measured),
    )


@pytest.mark.parametrize("rule", ["training-domain", CALIBRATED])
def test_what_is_chosen_could_be_reached_at_every_moment(rule: str) -> None:
    random_ = random.Random(0)
    reached: set[tuple[int, int]] = set()
    for case in range(600):
        run = made_up(random_, 0, 5)
        others = [made_up(random_, draw, 2) for draw in range(1, random_.randrange(1, 4))]
        chosen = choose_runs([run, *others], rule)
        for made in range(1, 6):
            so_far = replace(run, records=run.records[:made])
            found = reachable(so_far, rule)
            assert len(found) < 5 or made == 5
            for choice in chosen:
                if choice.run is run and choice.step < made:
                    assert choice.step in found, (case, made)
            if rule == "training-domain":
                assert len(found) == 1
            # Nothing is kept in vain: alone or beside a better run, each of them is chosen.
            for step in found:
                at = so_far.records[step].accuracy["a"]["held_out"]
                other = Record(
                    step=0,
                    accuracy={"a": {"held_out": at + 0.0049}, "t": {"kept": 0.0}},
                    calibration_error={"a": {"held_out": float("nan")}},
                )
                beside = RunResult(
                    dataset="data",
                    algorithm="erm",
                    test_domains=("t",),
                    trial=0,
                    draw=-1,
                    hparams={},
                    records=(other,),
                )
                for runs in ([so_far], [so_far, beside]):
                    for one in choose_runs(runs, rule):
                        if one.run is so_far and one.step == step:
                            reached.add((case, step))
                if rule == CALIBRATED and at == at:
                    assert (case, step) in reached
    assert reached


def test_other_rules_keep_nothing_or_everything() -> None:
    run = made_up(random.Random(1), 0, 4)
    assert reachable(run, "test-domain") == []
    assert reachable(run, "leave-one-domain-out") == [0, 1, 2, 3]


def test_kept_weights_are_those_of_the_record(tmp_path: Path) -> None:
    run = tiny_run("erm", steps=12)
    result = carry_out(
        tmp_path / "whole", run, machine={"keep_best": ("leave-one-domain-out", "training-domain")}
    )
    assert [record.step for record in result.records] == [0, 5, 10, 11]
    assert kept(tmp_path / "whole") == ["step-0000000", "step-0000005", "step-0000010"]
    for record in result.records[:-1]:
        step = record.step
        carry_out(tmp_path / str(step), tiny_run("erm", steps=step + 1))
        folder = kept_model(tmp_path / "whole", step)
        expected = (tmp_path / str(step) / "model.safetensors").read_bytes()
        assert (folder / "model.safetensors").read_bytes() == expected
        card = load(folder, CPU).card
        assert (card["step"], card["accuracy"]) == (step, record.accuracy)


def test_only_what_can_be_chosen_stays(tmp_path: Path) -> None:
    run = tiny_run("erm", steps=40, lr=1e-3, trial=1)
    records = carry_out(tmp_path, run, machine={"keep_best": ("training-domain",)}).records
    (choice,) = choose_runs(read_runs([tmp_path]), "training-domain")
    assert 0 < choice.step < 39  # or this test shows nothing
    assert kept(tmp_path) == [f"step-{choice.step:07d}"]
    assert model_of(choice) == kept_model(tmp_path, choice.step)
    assert load(model_of(choice), CPU).card["accuracy"] == next(
        record.accuracy for record in records if record.step == choice.step
    )
    assert kept(tmp_path / "not") == []


def test_a_run_that_was_killed_keeps_the_same(tmp_path: Path) -> None:
    run, machine = tiny_run("fishr", steps=40, lr=1e-4), {"keep_best": ("training-domain",)}
    carry_out(tmp_path / "whole", run, machine=machine)

    for last in (0, 10, 20, 30):

        def recorded(records: list[Any], last: int = last) -> None:
            if records and records[-1].step >= last:
                raise Killed

        with pytest.raises(Killed):
            carry_out(
                tmp_path / "killed", run, 0.0, watcher=watching(records=recorded), machine=machine
            )
    half = tmp_path / "killed" / "kept" / "step-0000000"
    half.mkdir(exist_ok=True)  # as if it had been killed while it was written
    (half / f".model.json.1.{0:08x}").touch()
    told: list[str] = []
    carry_out(tmp_path / "killed", run, 0.0, machine=machine, watcher=watching(note=told.append))
    assert told == []
    assert kept(tmp_path / "killed") == kept(tmp_path / "whole") != []
    for name in kept(tmp_path / "whole"):
        for file in ("model.safetensors", "model.json"):
            found = [(tmp_path / way / "kept" / name / file) for way in ("whole", "killed")]
            assert found[0].read_bytes() == found[1].read_bytes()
    assert not list((tmp_path / "killed").rglob(".model*"))


def test_what_was_not_kept_is_said(tmp_path: Path) -> None:
    run, told = tiny_run("erm", steps=12), list[str]()
    carry_out(tmp_path, run)
    carry_out(
        tmp_path,
        run,
        machine={"keep_best": ("leave-one-domain-out",)},
        watcher=watching(note=told.append),
    )
    (line,) = told
    assert "(step 0, 5, 10): the run was started without --keep-best" in line
    choices = choose_runs(read_runs([tmp_path]), "training-domain")
    with pytest.raises(NotKept, match=r"did not keep the weights of step 0; .* --keep-best"):
        model_of(replace(choices[0], step=0))
    last = replace(choices[0], step=11)
    assert model_of(last) == tmp_path
    (tmp_path / "model.safetensors").unlink()  # as in records that were copied without models
    with pytest.raises(NotKept, match=r"has a card but no model\.safetensors"):
        save_chosen(last, "test-domain", tmp_path / "models")


class Keeping(Squares):
    """Squares on a machine that keeps weights, also those of averages."""

    def machine(self) -> Any:
        rules = ("training-domain", "leave-one-domain-out")
        return replace(super().machine(), keep_best=rules, averages=("sma", "half"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with pairs whose runs keep weights."""
    out = tmp_path_factory.mktemp("sweep")
    settings = {"batch_size": "4", "lr": "0.003"}
    asked = Sweep(
        algorithms=("erm",),
        datasets=("tiny",),
        trials=1,
        draws=2,
        test_domains="pairs",
        settings=settings,
        protocol=Protocol(steps=7, network="mnist-cnn"),
        record_every=2,
    )
    runs = runs_of(asked, Squares().method, lambda name, trial: tiny())
    write_plan(
        out,
        [
            replace(run, protocol=Protocol(steps=7, record_every=2, network="mnist-cnn"))
            for run in runs
        ],
    )

    class World(Keeping):
        def data(self, name: str, trial: int) -> Any:
            return tiny(), None

    worker = Worker(out, World())
    for run in read_plan(out):
        worker.attempt(run)
    return out


def test_pairs_keep_nothing(sweep: Path) -> None:
    # An average is kept where it has begun.
    steps = {".": (0, 2, 4), "averages/sma": (2, 4), "averages/half": (4,)}
    for run in read_plan(sweep):
        for row, expected in steps.items():
            found = kept(folder_of(sweep, run) / row)
            alone = len(run.test_domains) == 1
            assert found == [f"step-{step:07d}" for step in expected if alone]


@pytest.mark.parametrize("rule", ["test-domain", "training-domain", "leave-one-domain-out"])
def test_the_command_saves_what_was_chosen(
    sweep: Path, tmp_path: Path, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["select", str(sweep), "--rule", rule, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    runs = with_averages(read_runs([sweep]))
    choices = choose_runs(runs, rule)
    assert {choice.algorithm for choice in choices} == {"erm", "erm+sma", "erm+half"}
    assert len(choices) == 9 == len(list(tmp_path.iterdir()))
    for choice in choices:
        folder = tmp_path / f"tiny-{choice.algorithm}-{choice.test_domain}-t0"
        model = load(folder, CPU)
        assert model.row == choice.algorithm
        source = load(model_of(choice), CPU)
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                model.algorithm.state_dict().values(),
                source.algorithm.state_dict().values(),
                strict=True,
            )
        )
        assert model.run.draw == choice.draw and model.run.test_domains == (choice.test_domain,)
        about = model.card["selection"]
        assert (about["rule"], about["draw"], about["step"]) == (rule, choice.draw, choice.step)
        assert (about["of_draws"], about["of_records"]) == (2, len(choice.run.records))
        assert about["how"].startswith(WORDS[rule])
        assert ("left out two only chose" in about["how"]) == (rule == "leave-one-domain-out")
        assert (
            about["accuracy"]
            == choice.accuracy
            == model.card["accuracy"][choice.test_domain]["kept"]
        )
        at = [measured.step for measured in choice.run.records].index(choice.step) + 1
        read = f"step {choice.step} (record {at} of {len(choice.run.records)}), "
        assert f"{folder}: draw {choice.draw} (of {choice.draws}), {read}" in printed


def test_the_command_saves_an_average_alone(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["select", str(sweep), "--rule", "training-domain", "--out", str(tmp_path)]
    assert main([*command, "--algorithms", "erm+half"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"tiny-erm+half-{d}-t0" for d in "abc"}
    assert main([*command, "--algorithms", "erm+haf"]) == 2
    assert "did you mean 'erm+half'?" in capsys.readouterr().err


def test_an_average_without_models_is_named(sweep: Path, tmp_path: Path) -> None:
    """As in records of a version that saved no averages, or that were copied without models."""
    choices = choose_runs(with_averages(read_runs([sweep])), "test-domain")
    choice = next(one for one in choices if one.algorithm == "erm+half")
    path = tmp_path / "run"
    shutil.copytree(str(choice.run.path), path, ignore=shutil.ignore_patterns("averages"))
    with pytest.raises(NotKept, match="did not keep the weights of the average second half of "):
        model_of(replace(choice, run=replace(choice.run, path=path)))


def test_a_draw_that_diverged_counts_as_tried(sweep: Path, tmp_path: Path) -> None:
    """On the card, as in the tables."""
    shutil.copytree(sweep, tmp_path / "sweep")
    single = [run for run in read_plan(sweep) if len(run.test_domains) == 1 and run.draw == 1]
    (folder := folder_of(tmp_path / "sweep", single[0])).joinpath("done").unlink()
    failure = {"kind": "FloatingPointError", "reason": "the loss is NaN", "memory": False}
    (folder / "failed.json").write_text(json.dumps(failure))
    command = ["select", str(tmp_path / "sweep"), "--rule", "test-domain", "--out"]
    assert main([*command, str(tmp_path / "models")]) == 0
    (test,) = single[0].test_domains
    for row in ("erm", "erm+half"):
        folder = tmp_path / "models" / f"tiny-{row}-{test}-t0"
        card = json.loads((folder / "model.json").read_text())
        assert (card["selection"]["draw"], card["selection"]["of_draws"]) == (0, 2)


def test_what_cannot_be_saved_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carry_out(tmp_path / "run", tiny_run("erm", steps=40, lr=3e-3))
    command = ["select", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--rule"]
    (tmp_path / "nothing").mkdir()
    nothing = ["select", str(tmp_path / "nothing"), "--out", str(tmp_path), "--rule"]
    assert main([*nothing, "test-domain"]) == 2
    assert "no finished run in" in capsys.readouterr().err
    assert main([*command, "training-domain"]) == 1
    told = capsys.readouterr()
    assert "--keep-best" in told.err and "1 of 1 models were not kept" in told.err
    assert not (tmp_path / "out").exists()
    assert main([*command, "leave-one-domain-out"]) == 2
    assert (
        "leave-one-domain-out cannot choose among these 1 runs: it needs others"
        in capsys.readouterr().err
    )
    assert main([*command, "test-domain", "--algorithms", "em"]) == 2
    assert "did you mean 'erm'?" in capsys.readouterr().err
    assert main([*command, "test-domain", "--datasets", "tiny", "--algorithms", "erm"]) == 0


def test_a_damaged_model_is_not_saved(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run("erm"))
    runs = read_runs([tmp_path])
    (choice,) = choose_runs(runs, "test-domain")
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is damaged"):
        save_chosen(choice, "test-domain", tmp_path / "out")


def test_names_of_folders_hold_no_path(tmp_path: Path) -> None:
    carry_out(tmp_path / "run", tiny_run("erm"))
    runs = read_runs([tmp_path / "run"])
    (choice,) = choose_runs(runs, "test-domain")
    own = replace(choice.run, algorithm="../x:Own@1", test_domains=("a/b",))
    choice = replace(choice, run=own)
    folder = save_chosen(choice, "test-domain", tmp_path / "out")
    assert folder.parent == tmp_path / "out" and folder.name == "tiny-..~2fx~3aOwn~401-a~2fb-t0"
    assert json.loads((folder / "model.json").read_text())["selection"]["of_draws"] == 1
