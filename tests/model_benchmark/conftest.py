"""The real SSH server of tests/ssh, for a model's checkout behind it: one for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ssh.conftest import runner, work  # noqa: F401  # fixtures
from tests.ssh.server import Sshd, make_sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = make_sshd(tmp_path_factory.mktemp("server") / "ssh")
    server.trust()
    server.start()
    yield server
    server.stop()
