"""One simulated target for all tests that only ask it for verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.targets.local import LocalTarget


@pytest.fixture(scope="session")
def target() -> Iterator[LocalTarget]:
    local = LocalTarget("simulator", "trn2")
    yield local
    local.close()
