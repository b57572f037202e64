"""The judge on this machine, for all attacks of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.targets.local import LocalTarget


@pytest.fixture(scope="module")
def target() -> Iterator[LocalTarget]:
    found = LocalTarget("simulator", "trn2")
    yield found
    found.close()
