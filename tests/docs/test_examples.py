"""Examples of the guides: each runs as it is, and is short."""

import runpy
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.test_documents import python_blocks
from tests.networks.conftest import import_torchvision

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "docs" / "examples").glob("*.py"))
NEEDS = {"lightning_module": "lightning", "hugging_face": "transformers"}
GUIDE = EXAMPLES[0].parent.parent / "guides" / "own-loop.md"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if path.stem in NEEDS:
        # Both import torchvision if it is installed, even if it is broken.
        with suppress(pytest.skip.Exception):
            import_torchvision()
        try:
            import_module(NEEDS[path.stem])
        except ModuleNotFoundError:
            pytest.skip(f"no {NEEDS[path.stem]}: pip install 'shoal[loops]'")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
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
