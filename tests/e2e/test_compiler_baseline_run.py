"""A run on a host with a device ends with what the compiler makes of the reference by itself, beside the other two."""

from __future__ import annotations

import pytest

import orchestrator
from infra.devices.leases import FOLDER_VARIABLE
from tests.calibration.pretend_host import PretendHost
from tests.infra.test_documents import checked
from tests.ssh.server import make_sshd
from tests.toolchains.pretend_sdk import FIXTURES


@pytest.mark.slow
def test_the_report_of_a_run_on_a_device_has_all_three(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    sshd = make_sshd(tmp_path / "ssh")
    sshd.trust()
    sshd.start()
    try:
        host = PretendHost(sshd, tmp_path, {})
        (path,) = host.python.parent.parent.glob("lib/python*/site-packages/fixture.pth")
        path.write_text(path.read_text() + f"{FIXTURES / 'site_jax'}\n")
        words = (
            *host.flags, "--task", "silu", "--preset", "small", "--rounds", "1", "--provider", "catalogue", "--width",
            "1", "--iterations", "1", "--remeasure", "0", "--checkpoints", str(tmp_path / "runs"),
            "--memory", str(tmp_path / "memory.json"), "--view", "quiet", "--json",
        )  # fmt: skip
        assert orchestrator.main(list(words)) == 0
        captured = capsys.readouterr()
        said = checked(captured.out)
        own = said["compilers_own"]
        assert own["said"].startswith("by neuron through JAX 0.10.0"), own
        assert own["latency_us"] == pytest.approx(said["baseline"]["latency_us"], rel=0.05), "the same program"
        assert said["bound_us"] > 0 and "compiler's own: " in captured.err
    finally:
        sshd.stop()
