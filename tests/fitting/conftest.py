"""Fixtures that tests of whole commands share."""

from pathlib import Path

import pytest


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder to work in, a wide terminal without colours, and files that are quick to write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("os.fsync", lambda _: None)  # hundreds of small files take seconds
