"""Core leases of these tests are kept apart from those of this machine's users."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.devices.leases import FOLDER_VARIABLE


@pytest.fixture(autouse=True)
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
