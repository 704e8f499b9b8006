"""Extras: no extra but those that say so names a package that replaces torch; the tool finds it."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Packages that need torchvision, and with it one version of torch.
NEED_TORCHVISION = {"torchvision", "timm", "backpack-for-pytorch"}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import extras

    return extras


def test_only_extras_that_say_so_need_torchvision(tool: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra: {re.split(r"[\[<>=~! ]", need)[0] for need in needs}
        for extra, needs in project["optional-dependencies"].items()
    }
    assert {e for e, needs in named.items() if needs & NEED_TORCHVISION} == set(tool.MAY_REPLACE)
    # An extra of shoal inside another must not bring them either.
    inside = " ".join(need for needs in project["optional-dependencies"].values() for need in needs)
    assert not re.search(r"shoal\[[^\]]*vision", inside)
    page = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for extra in tool.MAY_REPLACE:
        assert re.search(rf"'shoal\[{extra}\]'.*can replace torch", page)


@pytest.mark.parametrize(("guilty", "status"), [("vision", 0), ("report", 1)])
def test_an_extra_that_replaces_torch_is_found(
    guilty: str,
    status: int,
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def pip(python: Path, *arguments: str) -> None:
        path = Path(arguments[arguments.index("--report") + 1])
        new = "torch" if f"[{guilty}]" in arguments[-1] else "rich"
        path.write_text(f'{{"install": [{{"metadata": {{"name": "{new}", "version": "9.9"}}}}]}}')

    monkeypatch.setattr(tool, "pip", pip)
    monkeypatch.setattr(sys, "argv", ["extras.py", "--python", sys.executable])
    assert tool.main() == status
    found = capsys.readouterr()
    assert f"{guilty:<14}   1 packages  replaced by torch 9.9" in found.out
    assert "cli              1 packages  torch stays" in found.out
    assert ("These extras replace torch: report" in found.err) == bool(status)
