"""Real toolchains in processes of their own on one pretend device: each on a core of its own, timed one at a time."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import pytest

from accelopt_core.toolchain import TensorArgument
from infra.devices.leases import FOLDER_VARIABLE, LeaseUnavailable
from infra.devices.share import CORES_VARIABLE
from infra.neuron.toolchain import RUNTIME_VARIABLE, open_neuron_toolchain
from infra.simulator.toolchain import traced_on_simulator
from tests.toolchains.pretend_sdk import PretendSdk

SOURCE = "import nki\nimport nki.language as nl\n\n@nki.jit\ndef kernel(a, b):\n    return nl.subtract(a, b)\n"
TENSORS = [np.ones((4, 3), np.float32)] * 2
JUDGES = 3
WATCHED = """
import os, subprocess, sys, time
began = time.monotonic()
status = subprocess.call([sys.argv[0] + ".real", *sys.argv[1:]])
if sys.argv[1] == "capture" and "--help" not in sys.argv:
    times = int(sys.argv[sys.argv.index("--num-exec") + 1])
    if times > 1:
        time.sleep(0.2)
    with open(LOG, "a") as stream:
        stream.write(f"{os.environ['NEURON_RT_VISIBLE_CORES']} {times} {began} {time.monotonic()}\\n")
sys.exit(status)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the device and its driver are Linux only")
def test_three_judges_on_two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setenv(CORES_VARIABLE, "6,2")
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    sdk, log = PretendSdk(tmp_path), tmp_path / "log"
    profiler = sdk.tools / "neuron-explorer"
    profiler.rename(sdk.tools / "neuron-explorer.real")
    profiler.write_text(f"#!{sys.executable}\nLOG = {str(log)!r}\n{WATCHED}")
    profiler.chmod(0o755)

    def judge() -> None:
        toolchain = open_neuron_toolchain(traced_on_simulator, installation=sdk.installation)
        neff = toolchain.compile(SOURCE, [TensorArgument((4, 3), "float32")] * 2, 60)
        toolchain.run(neff, TENSORS, 60)
        toolchain.time(neff, TENSORS, 1, 3, 60)
        toolchain.close()

    processes = [multiprocessing.get_context("fork").Process(target=judge) for _ in range(JUDGES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * JUDGES
    lines = [line.split() for line in log.read_text().splitlines()]
    uses = [(core, int(times), float(began), float(ended)) for core, times, began, ended in lines]
    assert {core for core, *_ in uses} == {"2", "6"} and len(uses) == 2 * JUDGES
    timed = sorted((began, ended) for _, times, began, ended in uses if times > 1)
    assert all(ended <= following for (_, ended), (following, _) in zip(timed, timed[1:]))
    for core in ("2", "6"):
        on_it = sorted((began, ended) for used, _, began, ended in uses if used == core)
        assert all(ended <= following for (_, ended), (following, _) in zip(on_it, on_it[1:]))


def test_a_toolchain_that_finds_no_core_free_says_who_has_it_and_gives_up(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setenv(CORES_VARIABLE, "0")
    monkeypatch.setenv("NKI_OPTIMIZER_CORE_WAIT_S", "0.3")
    sdk = PretendSdk(tmp_path)
    first = open_neuron_toolchain(traced_on_simulator, installation=sdk.installation)
    said: list[str] = []
    second = open_neuron_toolchain(traced_on_simulator, installation=sdk.installation, told=said.append)
    assert first.fingerprint == second.fingerprint, "which core it is does not matter"
    first.compile(SOURCE, [TensorArgument((4, 3), "float32")] * 2, 60)
    with pytest.raises(LeaseUnavailable, match="core 0 by") as caught:
        second.compile(SOURCE, [TensorArgument((4, 3), "float32")] * 2, 60)
    assert "\n" not in str(caught.value) and len(said) == 1 and said[0].startswith("waiting, held: core 0 by")
    first.close()
    second.compile(SOURCE, [TensorArgument((4, 3), "float32")] * 2, 60)
    second.close()
