"""One thread per worker, optional data, and a policy: a skip that nobody expects is a failure."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch: its thread pools read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# Inductor would start processes of its own to compile in.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest

# How a legitimate reason begins, and why the test may be left out there.
EXPECTED_SKIPS = {
    "no GPU": "device tests run where there is a device",
    "no chromium": "the report page is also looked at in a browser, where there is one",
    "no torchvision": "the extra vision",
    "no timm": "the extra vision",
    "no backpack": "the extra vision, and an oracle of make test",
    "no ray": "the extra ray, which has no wheels for some machines",
    "no efficientnet weights": "the extra efficientnet",
    "no efficientnet_lite_pytorch": "another implementation, to compare with",
    "no onnxruntime": "the extra onnx",
    "no newer precision setting": "torch before 2.9 has only the older one",
    "no pandas": "frames are read without it, and tested where it is installed",
    "no polars": "frames are read without it, and tested where it is installed",
    "no lightning": "the extra loops",
    "no transformers": "the extra loops",
    "no zsh": "its completion is tried where it is installed",
    "no fish": "its completion is tried where it is installed",
    "no namespaces": "two hosts are played by unshare, which containers may forbid",
    "data not present: ": "data that may not be redistributed lies beside the repository or not",
}

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of optional data: SHOAL_DATA, or shared/data beside the repository."""
    named = os.environ.get("SHOAL_DATA")
    root = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not root.is_dir():
        pytest.skip(f"data not present: {root} (set SHOAL_DATA)")
    return root


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """torchvision for tests of the extra vision, also beside a torch that it was not built for."""
    from shoal.vision import mend_torchvision

    mend_torchvision()
    try:
        import torchvision
    except ModuleNotFoundError as error:
        pytest.skip(f"no torchvision: {error}")
    return torchvision


@pytest.fixture(scope="session")
def backpack() -> Any:
    """BackPACK, which computes some of the same numbers; it works without torchvision."""
    try:
        import backpack
    except ModuleNotFoundError as error:
        pytest.skip(f"no backpack: {error}")
    return backpack


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of what runs cost; probes have tests of their own."""
    monkeypatch.setattr("shoal.sweeps.probe.probe_rates", lambda *_: {})


@pytest.fixture
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures small and not laid out, and no PDF; their own tests make them as they are."""
    from matplotlib.figure import Figure

    whole = Figure.savefig

    def savefig(figure: Figure, file: Any, **options: Any) -> None:
        if "pdf" in (options.get("format"), Path(str(file)).suffix[1:]):
            return
        figure.set_layout_engine("none")
        whole(figure, file, **options | {"dpi": 30})

    monkeypatch.setattr(Figure, "savefig", savefig)


# As many objects as a whole collection of garbage, which the compiler makes each time that it is
# called, looks through in a twentieth of a second.
MANY = 50_000
_collections = [0]


def pytest_configure(config: pytest.Config) -> None:
    """Import torch before the clock of any test runs; xdist's controller runs none."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        import torch

        torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What was imported stays; a collection of garbage need not look through it again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """So does what tests import later, such as the compiler: half a million objects."""
    yield
    made = gc.get_stats()[-1]["collections"]
    if made > _collections[0]:
        if len(gc.get_objects()) > MANY:
            gc.collect()
            gc.freeze()
        _collections[0] = made


def _unexpected_skips(config: pytest.Config) -> list[str]:
    # Under xdist only the controller reports, and it has the skips of all workers.
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return []
    unexpected = []
    for report in reporter.stats.get("skipped", []):
        _, _, reason = report.longrepr
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(tuple(EXPECTED_SKIPS)):
            unexpected.append(f"{report.nodeid}: {reason}")
    return unexpected


# First, so that the terminal's summary, which wraps this hook, already sees the new status.
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexpected_skips(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    unexpected = _unexpected_skips(config)
    if unexpected:
        terminalreporter.section("skips that nobody expects", red=True)
        for line in unexpected:
            terminalreporter.line(line)
        terminalreporter.line("Make them run, or add their reason to EXPECTED_SKIPS in conftest.py")
