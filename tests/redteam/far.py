"""The real judge behind a real sshd of this machine, with a secret in the environment of who asks it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.targets.over_ssh import SshTarget
from tests.redteam.attacks import SECRET
from tests.ssh.server import Sshd, make_sshd

AT_ONCE = 4
"""Candidates judged side by side over there: most of them only wait, for their time limit or for each other."""


@dataclass(frozen=True)
class Far:
    target: SshTarget
    server: Sshd
    root: Path
    """Where the target works over there."""


@contextmanager
def judge_over_ssh(folders: pytest.TempPathFactory) -> Iterator[Far]:
    server, root = make_sshd(folders.mktemp("ssh")), folders.mktemp("far")
    server.trust()
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", SECRET)
        target = SshTarget(
            server.destination,
            machine="trn2",
            remote_simulator=True,
            remote_python=sys.executable,
            settings=server.settings,
            root=str(root),
            cores=range(AT_ONCE),
        )
        try:
            yield Far(target, server, root)
        finally:
            target.close()
            server.stop()
