"""Compiled code is kept between processes, in a folder of bounded size."""

import os
from pathlib import Path

import pytest

from shoal import cli
from shoal.cli.terminal import describe_steps
from shoal.compiled_code import FOLDERS, bound_compiled_code, code_folder, keep_compiled_code


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    for variable in FOLDERS:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "cache"


def write(entry: Path, size: int, age: float) -> None:
    path = entry / "kernel.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
    os.utime(path, (1e9 - age, 1e9 - age))


def test_torch_keeps_it_in_our_cache(cache: Path) -> None:
    keep_compiled_code()
    for variable, name in FOLDERS.items():
        assert os.environ[variable] == str(cache / "compiled" / name)
    assert not cache.exists()  # a command that compiles nothing leaves nothing behind


def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    keep_compiled_code()
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"


def test_a_cache_that_cannot_be_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    keep_compiled_code()
    assert not set(FOLDERS) & set(os.environ)
    assert bound_compiled_code() == 0


def test_the_oldest_code_goes_first() -> None:
    old, new = code_folder() / "triton" / "old", code_folder() / "inductor" / "new"
    newest = code_folder() / "triton" / "newest"
    for age, entry in enumerate((newest, new, old)):
        write(entry, 100, age)
    assert bound_compiled_code(300) == 300
    assert bound_compiled_code(250) == 200
    assert not old.exists() and new.exists() and newest.exists()
    assert bound_compiled_code(50) == 0
    assert not new.exists() and not newest.exists()


def test_every_command_that_may_have_compiled_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[None] = []
    monkeypatch.setattr(cli, "bound_compiled_code", lambda: limits.append(None))
    assert cli.main(["list", "datasets"]) == 0
    assert len(limits) == 1  # these tests have imported torch
    monkeypatch.delitem(cli.sys.modules, "torch")
    assert cli.main(["list", "datasets"]) == 0
    assert len(limits) == 1


def test_a_command_says_how_updates_run_and_how_large_the_code_is() -> None:
    write(code_folder() / "inductor" / "new", 3_000_000, 0)
    assert describe_steps({"URM": "graph"}) == ["Updates run as a CUDA graph."]
    assert describe_steps({"URM": "eager"}) == ["Updates run one operation at a time."]
    first, second = describe_steps({"ERM": "compiled", "URM": "graph", "IRM": "compiled"})
    assert first.startswith("Updates of ERM, IRM are compiled first, which takes a minute")
    assert first.endswith(f"(3 MB in {code_folder()}).")
    assert second == "Updates of URM run as a CUDA graph."
