"""A skip that nobody expects fails the session, alone and under xdist."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")

EXPECTED = """
import pytest

@pytest.mark.skip(reason="no GPU")
def test_on_a_device():
    pass

def test_with_data(data_root):
    pass

@pytest.mark.xfail(reason="known, and not a skip")
def test_known():
    raise ValueError
"""
UNEXPECTED = """
import pytest

def test_lazy():
    pytest.skip("takes too long")
"""
MISSING_PACKAGE = """
import pytest

pytest.importorskip("a_package_that_nobody_has")
"""


def session(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file under the project's conftest.py, in a process and folder apart."""
    shutil.copy(CONFTEST, folder)
    # All that conftest.py asks of torch, which takes seconds to import, in each worker again.
    (folder / "torch.py").write_text("def set_num_threads(_): pass")
    (folder / "pytest.ini").write_text("[pytest]")  # no other folder's
    # One that passes: a session without any fails by itself.
    (folder / "test_runs.py").write_text("def test_runs(): pass")
    (folder / "test_it.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", *options],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        | {"SHOAL_DATA": str(folder / "nowhere"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_expected_skips_pass(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = session(tmp_path, EXPECTED, "-ra", *options)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped, 1 xfailed" in done.stdout
    assert f"data not present: {tmp_path / 'nowhere'}" in done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (UNEXPECTED, "test_it.py::test_lazy: takes too long"),
        (MISSING_PACKAGE, "test_it.py: could not import 'a_package_that_nobody_has'"),
    ],
    ids=["test", "module"],
)
def test_unexpected_skip_fails(
    tmp_path: Path, code: str, reason: str, options: tuple[str, ...]
) -> None:
    done = session(tmp_path, code, *options)
    assert done.returncode != 0
    assert "skips that nobody expects" in done.stdout
    assert reason in done.stdout


def test_data_root_is_a_folder(data_root: Path) -> None:
    assert data_root.is_dir()
