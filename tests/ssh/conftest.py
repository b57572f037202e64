"""Fixtures around a real OpenSSH server; see server.py."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.ssh.runner import SshRunner
from tests.ssh.server import Sshd, make_sshd


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A running server that this side already trusts."""
    server = make_sshd(tmp_path / "ssh")
    server.trust()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The work directory on the host."""
    return tmp_path / "far" / "work directory"


@pytest.fixture
def runner(sshd: Sshd, work: Path) -> Iterator[SshRunner]:
    with SshRunner(sshd.destination, sshd.settings, root=str(work)) as runner:
        yield runner


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this account may not mount a small file system to fill")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
