"""Examples of the guides: each runs as it is, and is short."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.test_documents import python_blocks
from tests.processes import run_code

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "docs" / "examples").glob("*.py"))
NEEDS = {"lightning_module": "lightning", "hugging_face": "transformers"}
GUIDE = EXAMPLES[0].parent.parent / "guides" / "own-loop.md"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem not in NEEDS], ids=lambda path: path.stem
)
def test_it_runs(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    check_output(capsys.readouterr().out)


@pytest.mark.parametrize("name", NEEDS)
def test_it_runs_beside_any_torchvision(name: str, tmp_path: Path) -> None:
    """In a process of its own, where no other test has mended torchvision."""
    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"no {NEEDS[name]}: pip install 'shoal[loops]'")
    path = EXAMPLES[0].with_name(f"{name}.py")
    code = f"import os, warnings; os.chdir({str(tmp_path)!r}); warnings.simplefilter('ignore')\n"
    done = run_code(code + path.read_text("utf-8"))
    assert done.returncode == 0, done.stderr
    check_output(done.stdout)


def check_output(printed: str) -> None:
    assert printed, "an example prints its result"
    assert "nan" not in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short_and_the_guide_shows_it(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < 60
    assert f"../examples/{path.name}" in GUIDE.read_text("utf-8")


def test_code_in_the_guide_runs() -> None:
    blocks = python_blocks(GUIDE)
    assert blocks
    for _, code in blocks:
        exec(compile(code, str(GUIDE), "exec"), {"__name__": "guide"})
