"""``shoal sweep`` and ``shoal status``: what they plan, show and refuse."""

import io
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.algorithms import find
from shoal.cli import main
from shoal.cli.engine import CommandWorkspace
from shoal.cli.methods import name_of, with_settings
from shoal.cli.status import status_table
from shoal.runs.folder import open_run_folder
from shoal.runs.run import Run
from shoal.sweeps.attempt import attempt
from shoal.sweeps.plan import folder_of, read_plan, write_plan
from shoal.sweeps.status import RunState, state_of
from tests.cli.test_cli import loaded_by
from tests.fitting.made import write_images
from tests.sweeps.workspaces import Squares, planned

PLAN = ("sweep", "--datasets", "colored-mnist", "--plan-only", "--trials", "1", "--draws", "2")
pytestmark = pytest.mark.usefixtures("no_probe")


def test_a_plan_is_shown_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*PLAN, "--algorithms", "erm", "fishr", "--out", str(tmp_path), "--steps", "1000"]
    assert main(command) == 0
    told = capsys.readouterr().err
    assert rows(told) == {
        "Data set Method": "runs updates done running failed waiting",
        "colored-mnist ERM": "6 6,000 – – – 6",
        "colored-mnist Fishr": "6 6,000 – – – 6",
    }
    assert "12 runs, 12,000 updates in all: 12 waiting\n" in told
    assert "The time left is known when the first runs are done" in told
    runs = read_plan(tmp_path)
    assert {run.test_domains for run in runs} == {("+90%",), ("+80%",), ("-90%",)}
    (done := folder_of(tmp_path, runs[1])).mkdir(parents=True)
    for name in ("done", "run.json"):
        (done / name).touch()
    assert main([*command, "--shard", "1/5"]) == 0
    told = capsys.readouterr().err
    assert "12 runs (3 in this shard), 3,000 updates in all: 1 done, 2 waiting\n" in told
    assert rows(told) == {
        "Data set Method": "runs updates done running failed waiting",
        "colored-mnist ERM": "1 1,000 1 – – –",
        "colored-mnist Fishr": "2 2,000 – – – 2",
    }


def rows(told: str) -> dict[str, str]:
    """The rows of a table by their first two cells; two blanks or more lie between cells."""
    lines = [re.split(r" {2,}", line.strip()) for line in told.splitlines()]
    return {" ".join(cells[:2]): " ".join(cells[2:]) for cells in lines if len(cells) > 3}


@pytest.mark.parametrize("shard", ["5/5", "1", "-1/3", "a/b"])
def test_a_shard_that_is_none_is_refused(
    shard: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*PLAN, "--algorithms", "erm", "--out", str(tmp_path), f"--shard={shard}"]
    assert main(command) == 2
    assert f"--shard takes I/N with I from 0 to N − 1, got {shard!r}" in capsys.readouterr().err


def test_the_slurm_array_of_the_guide_is_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "sweeps.md"
    snippet = re.search(r"^ +#SBATCH.*?(?=\n\n)", guide.read_text("utf-8"), re.M | re.S)
    assert snippet is not None
    script = textwrap.dedent(snippet[0])
    first, last = re.search(r"--array=(\d+)-(\d+)", script).groups()  # type: ignore[union-attr]
    parts: list[list[Run]] = []

    def record(out: Path, runs: list[Run], *_: object) -> Counter[RunState]:
        parts.append(runs)
        return Counter({RunState.DONE: len(runs)})

    monkeypatch.setattr("shoal.sweeps.local.run_locally", record)
    monkeypatch.chdir(tmp_path)
    for task in range(int(first), int(last) + 1):
        shown = subprocess.run(
            ["bash", "-c", f'shoal() {{ printf "%s\\n" "$@"; }}\n{script}'],
            env={"SLURM_ARRAY_TASK_ID": str(task)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert main([*shown.stdout.split(), "--trials", "1", "--draws", "2"]) == 0
    plan = read_plan(tmp_path / "out" / "sweep")
    carried = [run.identity for part in parts for run in part]
    assert len(parts) == 8 and len(carried) == len(plan) == 2 * 1 * 2 * 3
    assert set(carried) == {run.identity for run in plan}


def test_a_command_leaves_the_runs_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their data and methods may be known to another command only."""
    carried: list[Run] = []

    def record(out: Path, runs: list[Run], *_: object) -> Counter[RunState]:
        carried.extend(runs)
        return Counter({RunState.DONE: len(runs)})

    monkeypatch.setattr("shoal.sweeps.local.run_locally", record)
    planned(tmp_path, ("erm",))
    command = [word for word in PLAN if word != "--plan-only"]
    assert main([*command, "--algorithms", "fishr", "--out", str(tmp_path)]) == 0
    assert len(carried) == 6 and {run.dataset for run in carried} == {"colored-mnist"}
    assert len(read_plan(tmp_path)) == 12


def test_ray_is_given_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []

    def record(out: Path, runs: list[Run], world: object, *more: object) -> Counter[RunState]:
        given.append(more[:2])
        return Counter({RunState.DONE: len(runs)})

    monkeypatch.setattr("shoal.sweeps.ray_engine.run_on_ray", record)
    command = [word for word in PLAN if word != "--plan-only"]
    command += ["--algorithms", "erm", "--out", str(tmp_path), "--engine", "ray"]
    assert main(command) == 0
    assert main([*command, "--address", "10.0.0.1:6379", "--gpus-per-run", "0.25"]) == 0
    assert main([*command, "--device", "cpu"]) == 0
    assert given == [(None, None), ("10.0.0.1:6379", 0.25), (None, 0.0)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--engine", "ray", "--workers", "2"), "--engine ray has no option --workers"),
        (("--address", "auto"), "--engine local has no option --address"),
        (("--gpus-per-run", "0.5"), "--engine local has no option --gpus-per-run"),
    ],
)
def test_an_option_of_the_other_engine_is_refused(
    options: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAN, "--algorithms", "erm", "--out", str(tmp_path), *options]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("share", ["0", "1.5", "-1", "nan", "half"])
def test_a_share_of_a_gpu_that_is_none_is_refused(
    share: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*PLAN, "--algorithms", "erm", "--out", str(tmp_path), f"--gpus-per-run={share}"]
    with pytest.raises(SystemExit):
        main(command)
    assert "must be above 0 and up to 1" in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_workers_wait_for_who_builds_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    for domain in "ab":
        for kind in ("cat", "dog"):
            folder = tmp_path / "images" / domain / kind
            folder.mkdir(parents=True)
            Image.new("RGB", (300, 260), "red").save(folder / "1.png")
    world = CommandWorkspace(
        algorithms={},
        datasets={"images": str(tmp_path / "images")},
        data_folder=tmp_path,
        cache_folder=tmp_path / "cache",
        device="cpu",
        step="eager",
    )
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: world.data("images", 0), range(4)))
    assert {cache.fingerprint for _, cache in found} == {found[0][0].fingerprint}


def test_an_unknown_method_gets_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAN, "--algorithms", "fisher", "--out", str(tmp_path)]) == 2
    assert "did you mean 'fishr'?" in capsys.readouterr().err
    assert not (tmp_path / "plan.json").exists()


def test_a_name_in_a_plan_imports_nothing(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("raise SystemExit('imported')")
    world = CommandWorkspace(
        algorithms={},
        datasets={},
        data_folder=tmp_path,
        cache_folder=tmp_path,
        device="cpu",
        step="auto",
    )
    assert world.method("fishr")[0] is find("fishr")
    with pytest.raises(ValueError, match="which a file must not import"):
        world.method(f"{own}:Own")


def test_workers_are_told_what_to_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[CommandWorkspace] = []

    def record(
        out: Path, runs: list[Run], world: CommandWorkspace, *_: object
    ) -> Counter[RunState]:
        worlds.append(world)
        return Counter({RunState.DONE: len(runs)})

    monkeypatch.setattr("shoal.sweeps.local.run_locally", record)
    command = [word for word in PLAN if word != "--plan-only"]
    command += ["--algorithms", "erm", "--out", str(tmp_path), "--device", "cpu"]
    assert main([*command, "--keep-best", "training-domain", "calibrated"]) == 0
    assert main(command) == 0
    kept = [world.machine().keep_best for world in worlds]
    assert kept == [("training-domain", "calibrated"), ()]


def test_ones_own_method_is_named_with_its_code(tmp_path: Path) -> None:
    names = []
    for folder, more in (("a", ""), ("b", ""), ("c", "# changed\n")):
        path = tmp_path / folder / "own.py"
        path.parent.mkdir()
        path.write_text(
            f"from shoal.algorithms.erm import ERM\n{more}\nclass Own(ERM):\n    pass\n"
        )
        text = f"{path}:Own"
        names.append(name_of(text, with_settings(text)[0]))
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("own.py:Own@")
    assert name_of("fishr", find("fishr")) == "fishr"


def test_status_counts_and_names_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(tmp_path, ("erm",), steps=2)
    first, second, *_ = read_plan(tmp_path)
    world = Squares()

    class Broken(Squares):
        def data(self, name: str, trial: int) -> Any:
            raise ValueError("cannot read cat.png")

    assert attempt(first, world, tmp_path, world.machine()) is RunState.DONE
    assert attempt(second, Broken(), tmp_path, world.machine()) is RunState.FAILED
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = {"updates": 12, "done": 1, "running": 0, "failed": 1, "waiting": 4}
    assert found["runs"] == [{"dataset": "squares", "algorithm": "erm", **expected}]
    assert found["failures"][0]["reason"] == "ValueError: cannot read cat.png"
    assert found["time_left"]
    assert main(["status", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "ValueError: cannot read cat.png" in told and "left with one worker" in told
    assert rows(told) == {
        "Data set Method": "done running failed waiting",
        "squares ERM": "1 – 1 4",
    }
    third = read_plan(tmp_path)[2]
    assert attempt(third, Broken(), tmp_path, world.machine()) is RunState.FAILED
    assert main(["status", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "and 1 more: ValueError: cannot read cat.png" in told and told.count("cat.png") == 1


def test_status_forgets_what_failed_before_its_data_were_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(tmp_path, ("erm",))
    runs = read_plan(tmp_path)
    for run in runs[:2]:
        (folder := folder_of(tmp_path, run)).mkdir(parents=True)
        (folder / "failed.json").write_text('{"reason": "cannot read cat.png", "memory": false}')
    mended = [replace(run, fingerprint="mended") for run in runs]
    for plan, broken, hint in ((runs, True, ""), (mended, False, "changed since (2)")):
        write_plan(tmp_path, plan)
        assert main(["status", str(tmp_path)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert ("cat.png" in told) == broken and hint in told
        assert ("You can delete" in told) == bool(hint)
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left_behind"] == sorted(str(folder_of(tmp_path, run)) for run in runs[:2])
    assert not found["failures"] and [row["waiting"] for row in found["runs"]] == [6]
    for path in found["left_behind"]:
        shutil.rmtree(path)
    assert main(["status", str(tmp_path)]) == 0
    assert "unfinished" not in capsys.readouterr().out


@pytest.mark.parametrize("described", [True, False])
def test_failed_runs_are_tried_again_on_request(
    described: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[list[RunState]] = []

    def look(out: Path, runs: list[Run], *_: object) -> Counter[RunState]:
        states.append([state_of(folder_of(out, run)) for run in runs])
        return Counter({RunState.DONE: len(runs)})

    monkeypatch.setattr("shoal.sweeps.local.run_locally", look)
    command = [word for word in PLAN if word != "--plan-only"]
    command += ["--algorithms", "erm", "--out", str(tmp_path)]
    assert main(command) == 0
    run = read_plan(tmp_path)[1]
    failed = folder_of(tmp_path, run)
    if described:
        with open_run_folder(failed, run):
            pass
    failed.mkdir(parents=True, exist_ok=True)  # its description may have been moved away
    (failed / "failed.json").write_text('{"reason": "no"}')
    assert main(command) == 0
    assert main([*command, "--retry-failed", "--plan-only"]) == 0
    assert (failed / "failed.json").exists()
    assert main([*command, "--retry-failed"]) == 0
    assert [found.count(RunState.FAILED) for found in states] == [0, 1, 0]


def test_out_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main([*PLAN, "--algorithms", "erm", "--out", str(tmp_path / "file")]) == 2
    assert "file is a file; choose another" in capsys.readouterr().err


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_no_name_is_cut_where_the_terminal_is_narrow(width: int) -> None:
    names = ["fishr-rescaled", "fishr-no-ema"]
    empty = {"updates": 1_000_000, "done": 0, "running": 0, "failed": 0, "waiting": 12}
    rows = [{"dataset": "terra-incognita", "algorithm": name, **empty} for name in names]
    console = Console(width=width, file=io.StringIO())
    console.print(status_table("Plan", rows, console, planned=True))
    told = console.file.getvalue()
    assert "…" not in told and told.count("12") == 4
    assert ("failed" in told) == (width == 120)
    if width > 40:  # there they are folded
        assert all(name in told for name in names)


def test_a_shard_without_a_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*PLAN, "--algorithms", "erm", "--out", str(tmp_path), "--shard", "8/9"]
    assert main(command) == 0
    told = capsys.readouterr().err
    assert "6 runs (0 in this shard), 0 updates in all: nothing to do\n" in told


def test_data_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("one/photos", "two/photos"):
        write_images(tmp_path / folder, 2)
    folders = [str(tmp_path / folder) for folder in ("one/photos", "two/photos")]
    command = ["sweep", "--datasets", *folders, "--algorithms", "erm", "--out", str(tmp_path / "o")]
    assert main([*command, "--plan-only"]) == 2
    told = capsys.readouterr().err
    assert all(folder in told for folder in folders) and "have the same name, 'photos'" in told


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["--network", "resnet5O", "--plan-only"], "did you mean 'resnet50'"),
        (["--network", "torchvision:resnet34"], "torchvision:resnet34 needs torchvision"),
        (
            ["--network", "mnist-cnn", "--weights", "imagenet"],
            "mnist-cnn begins with drawn weights",
        ),
    ],
)
def test_a_network_that_cannot_be_had_is_refused_before_anything_is_written(
    given: list[str],
    wrong: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert main([*of_images(tmp_path), *given]) == 2
    assert wrong in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def of_images(folder: Path) -> list[str]:
    """A sweep of two domains of large images into ``out``."""
    write_images(folder / "photos")
    command = ["sweep", "--algorithms", "erm", "--datasets", str(folder / "photos"), "--trials"]
    return [*command, "1", "--draws", "1", "--out", str(folder / "out")]


def test_a_network_of_small_images_is_unknown_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*PLAN, "--algorithms", "erm", "--network", "resnet5O", "--out", f"{tmp_path}/out"]
    assert main(command) == 2
    assert "did you mean 'resnet50'" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_a_sweep_is_planned_or_done_without_the_package_of_its_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    command = of_images(tmp_path)
    assert main([*command, "--plan-only"]) == 0
    runs = read_plan(tmp_path / "out")
    assert {run.protocol.weights for run in runs} == {"imagenet"}
    for run in runs:
        (folder := folder_of(tmp_path / "out", run)).mkdir(parents=True)
        for name in ("done", "run.json"):
            (folder / name).touch()
    assert main(command) == 0


def test_a_network_without_other_weights_begins_with_drawn_ones(tmp_path: Path) -> None:
    assert main([*of_images(tmp_path), "--network", "mnist-cnn", "--plan-only"]) == 0
    assert {run.protocol.weights for run in read_plan(tmp_path / "out")} == {None}


def test_status_of_an_empty_plan_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text("[]")
    assert main(["status", str(tmp_path)]) == 0
    assert "No run is planned in" in capsys.readouterr().out


def test_status_of_another_folder_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "is not the folder of a sweep or a fit: it has no plan.json" in capsys.readouterr().err


def test_an_empty_domain_is_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "photos")
    (tmp_path / "photos/nowhere").mkdir()
    command = ["sweep", "--algorithms", "erm", "--datasets", f"{tmp_path}/photos", "--plan-only"]
    assert main([*command, "--trials", "1", "--draws", "1", "--out", f"{tmp_path}/out"]) == 0
    told = capsys.readouterr().err
    assert told.count(f"skipped the domain 'nowhere' of {tmp_path}/photos: it is empty") == 1
    assert not any("nowhere" in run.test_domains for run in read_plan(tmp_path / "out"))


def test_status_loads_no_torch(tmp_path: Path) -> None:
    """It would take a second or more before the first line."""
    planned(tmp_path, ("erm",), steps=2)
    first, second, *_ = read_plan(tmp_path)
    assert attempt(first, Squares(), tmp_path, Squares().machine()) is RunState.DONE
    folder_of(tmp_path, second).mkdir()
    (folder_of(tmp_path, second) / "failed.json").write_text("{}")
    assert loaded_by("status", str(tmp_path)) == {"rich"}
    assert loaded_by("status", str(tmp_path), "--json") == set()
