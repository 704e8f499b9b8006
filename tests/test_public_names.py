"""The public names: imported on first use, the same in every list, and documented."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal


def test_the_lists_of_public_names_agree() -> None:
    tree = ast.parse(Path(shoal.__file__).read_text("utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == shoal._HOMES
    assert {*typed, "__version__"} == set(shoal.__all__)
    assert set(shoal.__all__) <= set(dir(shoal))


@pytest.mark.parametrize("name", shoal.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(shoal, name)
    assert name == "__version__" or (found.__doc__ and found.__name__ == name)


def test_public_modules_need_no_import_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Path(__file__).parents[1].joinpath("docs", "api").glob("*.md")
    text = "".join(page.read_text("utf-8") for page in pages)
    named = re.findall(r"currentmodule:: shoal\.(\w+)$", text, re.MULTILINE)
    assert set(named) == set(shoal._MODULES) <= set(dir(shoal))
    for name in named:
        monkeypatch.delattr(shoal, name)
        assert getattr(shoal, name) is sys.modules[f"shoal.{name}"]


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gradient_norm'"):
        _ = shoal.gradient_norm  # type: ignore[attr-defined]


def test_importing_shoal_loads_no_torch() -> None:
    code = "import sys, shoal; assert 'torch' not in sys.modules; shoal.gradient_norms"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
