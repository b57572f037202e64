"""Which core a judge works on: the user's own choice, else one of those allowed that nobody else has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accelopt_core.toolchain import ToolchainMissing
from infra.devices.leases import FOLDER_VARIABLE, LeaseFolder, LeaseUnavailable
from infra.devices.share import CORES_VARIABLE, WAIT_VARIABLE, CoreShare
from infra.neuron.toolchain import RUNTIME_VARIABLE, share_of_this_host


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeaseFolder:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    for name in (CORES_VARIABLE, RUNTIME_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(WAIT_VARIABLE, "0.2")
    return LeaseFolder()


@pytest.mark.parametrize(
    ("machine", "devices", "cores"), [("trn1", 16, 32), ("trn2", 1, 8), ("trn2", 16, 128), ("trn3", 1, 8)]
)
def test_every_core_of_every_device_may_be_used(machine: str, devices: int, cores: int) -> None:
    assert share_of_this_host(machine, devices).cores == tuple(range(cores))


def test_a_machine_without_an_entry_is_refused_by_name() -> None:
    with pytest.raises(ToolchainMissing, match="trn9 is not known here, only trn1, trn2, trn3"):
        share_of_this_host("trn9", 1)


def test_each_share_has_a_core_of_its_own_while_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "5,2")
    first, second, third = (share_of_this_host("trn2", 1) for _ in range(3))
    assert (first.core, first.core, second.core) == ("5", "5", "2")
    with pytest.raises(LeaseUnavailable, match=rf"waited 0 s.*core 5 by .*process {os.getpid()}.*core 2 by"):
        assert third.core
    first.close()
    first.close()
    assert third.core == "5"
    second.close()
    third.close()


def test_the_patience_is_for_all_waiting_together(host: LeaseFolder) -> None:
    taken = host.take("core-0")
    assert taken is not None
    share = CoreShare([0], patience_s=0.3)
    with pytest.raises(LeaseUnavailable):
        assert share.core
    with pytest.raises(LeaseUnavailable, match="waited 0 s"):
        assert share.core
    taken.release()


def test_what_the_user_gave_the_runtime_is_used_as_it_is_and_leased_by_nobody(monkeypatch, host) -> None:
    monkeypatch.setenv(RUNTIME_VARIABLE, "4-7")
    share = share_of_this_host("trn2", 1)
    assert share.core == "4-7"
    with share.timing():
        assert {path.name for path in host.path.iterdir()} == {"timing.1"}
    monkeypatch.setenv(CORES_VARIABLE, "3")
    chosen_here = share_of_this_host("trn2", 1)
    assert chosen_here.core == "3", "--cores says more about this run than a log-in script"
    chosen_here.close()


def test_one_candidate_is_timed_at_a_time_while_others_keep_their_cores() -> None:
    first, second = (CoreShare([0, 1], patience_s=0.2) for _ in range(2))
    assert (first.core, second.core) == ("0", "1")
    with first.timing():
        with pytest.raises(LeaseUnavailable, match="timing by"), second.timing():
            pytest.fail("two are timed at once")
        assert second.core == "1"
    patient = CoreShare([2], patience_s=0.2)
    with patient.timing():
        pass
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("cores", "wait", "said"),
    [("8", "1", "core 8: this machine has 8, 0 to 7"), ("0,-1", "1", "core -1"), ("a", "1", "'a'"), ("0", "x", "'x'")],
)
def test_cores_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch, cores: str, wait: str, said: str) -> None:
    monkeypatch.setenv(CORES_VARIABLE, cores)
    monkeypatch.setenv(WAIT_VARIABLE, wait)
    with pytest.raises(ToolchainMissing, match=said) as caught:
        share_of_this_host("trn2", 1)
    assert "\n" not in str(caught.value)
