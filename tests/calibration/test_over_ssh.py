"""The whole way over a real SSH server, with the pretend SDK and a device whose constants are moved.

The client is killed in the middle, the link is cut in the middle, and no kernel is measured twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.calibration.file import load
from infra.calibration.rows import RowFile
from infra.ssh.config import SshSettings
from infra.targets.over_ssh import SshTarget
from tests.calibration.pretend_host import PretendHost
from tests.calibration.test_measuring import DMA, FEW
from tests.e2e.run import KEYS, ROOT
from tests.processes import PATIENCE_S, eventually
from tests.ssh.server import Sshd, make_sshd, processes_mentioning

MOVED = {
    "dma_hardware_issue_ns": 1000.0, "dma_hardware_start_ns": 350.0, "dma_completion_ns": 520.0,
    "dma_spread_ns": 200.0, "profiler_ns": 14_000.0, "dma_sustained": 0.8,
}  # fmt: skip

CLIENT = """
import sys
from infra.calibration import calibrating
from infra.calibration.constants import kernels_of
from tests.calibration.test_measuring import DMA, FEW
calibrating.CONSTANTS, calibrating.in_order_of_worth = DMA, lambda: FEW
calibrating.kernels_of = lambda: kernels_of(DMA)
import orchestrator
sys.exit(orchestrator.main(sys.argv[1:]))
"""


@contextmanager
def host_of(constants: Mapping[str, float], folder: Path) -> Iterator[PretendHost]:
    sshd: Sshd = make_sshd(folder / "ssh")
    sshd.trust()
    sshd.start()
    yield PretendHost(sshd, folder, constants)
    sshd.stop()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PretendHost]:
    with host_of(MOVED, tmp_path) as found:
        yield found


def client(host: PretendHost, folder: Path, *program: str) -> subprocess.Popen[str]:
    """`program`: of Python; without it the command with few constants and kernels."""
    clean = {name: value for name, value in os.environ.items() if name not in KEYS and not name.startswith("NKI_OPT")}
    return subprocess.Popen(
        [sys.executable, *(program or ("-c", CLIENT)), "calibrate", *host.flags, "--calibrations", str(folder)],
        cwd=ROOT, env={**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def rows_in(folder: Path) -> int:
    return sum(text.count("\n") for path in folder.glob("*.rows.jsonl") for text in [path.read_text()])


@pytest.mark.slow
def test_killed_and_cut_off_it_goes_on_and_the_runs_that_follow_are_predicted_by_it(host, tmp_path) -> None:
    folder = tmp_path / "calibrations"
    first = client(host, folder)
    assert eventually(lambda: rows_in(folder) >= 1 or first.poll() is not None)
    time.sleep(0.5)  # into the next kernel
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = rows_in(folder)
    assert kept >= 1, first.communicate()

    second = client(host, folder)
    assert eventually(lambda: rows_in(folder) > kept or second.poll() is not None)
    host.sshd.cut()
    out, errors = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, errors + out
    assert f"{kept} of {len(FEW)} are measured already" in out and "Kept:" in out

    (rows,) = folder.glob("*.rows.jsonl")
    assert sorted(row.kernel for row in RowFile(rows).read()) == sorted(kernel.name for kernel in FEW), "none twice"
    assert not list(next(folder.glob("*.remote")).iterdir()) and processes_mentioning(str(host.root)) == []
    (path,) = folder.glob("*.json")
    record = load(path)
    for each in record.constants:
        assert each.decided and each.value == pytest.approx(MOVED[each.name], rel=0.1), each
    assert len(record.constants) == len(DMA) and record.installed.instance == "trn2.3xlarge"
    assert "127.0.0.1" not in json.dumps(json.loads(path.read_text())), "a calibration names no host"

    from infra.calibration.file import Calibrations

    target = SshTarget(
        host.sshd.destination, machine="trn2", remote_python=str(host.python), root=str(host.root),
        settings=SshSettings(config_file=host.sshd.home / "config"), calibration_of=Calibrations(folder).for_device,
    )  # fmt: skip
    try:
        info = target.describe()
    finally:
        target.close()
    assert info.calibration == record.calibration() and not info.simulated
