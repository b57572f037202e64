"""Candidates that are forked from a process that has loaded the simulator: as if each had one of its own."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelopt_core.judging import orphans
from accelopt_core.toolchain import ArgumentSpec, CompileError, StepTimeout, TensorArgument
from infra.isolation import linux, namespaces, sandbox, system_calls
from infra.simulator import trace_worker
from infra.simulator.toolchain import SimulatorToolchain
from infra.simulator.trace_server import Forked
from nki_sim.encoding.program_file import dumps
from tests.processes import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[3]
SILU = (ROOT / "nkibench_seeds/silu/kernel.py").read_text()
ARGUMENTS: list[ArgumentSpec] = [TensorArgument((256, 512), "float32")]


@pytest.fixture
def toolchain() -> Iterator[SimulatorToolchain]:
    """One that has compiled once."""
    sandbox.adopt_descendants()
    made = SimulatorToolchain("trn2")
    made.compile(SILU, ARGUMENTS, 60)
    if not made.isolation.startswith("namespaces of its own"):
        pytest.skip("this system gives no user namespaces")
    yield made
    made.close()


def server_of(toolchain: SimulatorToolchain) -> int:
    assert toolchain._server is not None, "nothing was forked"
    return toolchain._server._process.pid


def test_what_is_forked_leaves_the_same_program_in_the_same_isolation(toolchain: SimulatorToolchain) -> None:
    said = toolchain.isolation
    forked = toolchain.compile(SILU, ARGUMENTS, 60)
    assert server_of(toolchain) and toolchain.isolation == said
    pid = server_of(toolchain)
    alone = SimulatorToolchain("trn2")
    try:
        own = alone.compile(SILU, ARGUMENTS, 60)
        assert without_folder(dumps(forked.program)) == without_folder(dumps(own.program))
    finally:
        alone.close()
    toolchain.close()
    assert not Path(f"/proc/{pid}").exists()


def test_nothing_of_one_candidate_reaches_the_next(toolchain: SimulatorToolchain) -> None:
    poison = "import nki.language as nl, nki.isa as nisa, sys, os\nnisa.dma_copy = nl.ndarray = None\n"
    poison += "sys.modules['numpy'] = None\nos.environ['X'] = '1'\nraise ValueError('poisoned')\n"
    with pytest.raises(CompileError, match="poisoned"):
        toolchain.compile(poison, ARGUMENTS, 60)
    with pytest.raises(CompileError, match=r"\(None, .*candidate.py"):
        toolchain.compile("import os, sys\nraise ValueError(os.environ.get('X'), __file__)\n", ARGUMENTS, 60)
    assert toolchain.compile(SILU, ARGUMENTS, 60).measurement.latency_us > 0


@pytest.mark.parametrize(
    "ending",
    ["import sys\nsys.exit(0)\n", "import os\nos._exit(0)\n", "raise KeyboardInterrupt\n", "raise SystemExit\n"],
)
def test_however_it_ends_the_next_one_is_traced(toolchain: SimulatorToolchain, ending: str) -> None:
    with pytest.raises(CompileError):
        toolchain.compile(f"{ending}\n", ARGUMENTS, 60)
    first = server_of(toolchain)
    assert toolchain.compile(SILU, ARGUMENTS, 60).measurement.latency_us > 0
    assert server_of(toolchain) == first


def test_an_endless_one_ends_at_its_limit_and_leaves_no_process(toolchain: SimulatorToolchain) -> None:
    toolchain.compile(SILU, ARGUMENTS, 60)
    with pytest.raises(StepTimeout):
        toolchain.compile("while True: pass\n", ARGUMENTS, 1.0)
    assert eventually(lambda: not children_of(server_of(toolchain)))
    assert toolchain.compile(SILU, ARGUMENTS, 60).measurement.latency_us > 0


def test_it_sees_neither_the_server_nor_its_files(toolchain: SimulatorToolchain) -> None:
    source = "import os, sys\nseen = []\nfor number in range(3, 64):\n    try:\n        os.fstat(number)\n"
    source += "        seen.append(number)\n    except OSError: pass\n"
    source += "raise ValueError(len(seen), os.getppid(), os.path.exists('/proc/1'), sys.argv[1:])\n"
    with pytest.raises(CompileError, match=r"\(2, 1, False, \[\]\)"):  # the program's file and the failure's
        toolchain.compile(source, ARGUMENTS, 60)


def test_without_the_server_the_next_one_has_a_process_of_its_own(toolchain: SimulatorToolchain) -> None:
    toolchain.compile(SILU, ARGUMENTS, 60)
    first = server_of(toolchain)
    os.kill(first, signal.SIGKILL)
    assert toolchain.compile(SILU, ARGUMENTS, 60).measurement.latency_us > 0
    toolchain.compile(SILU, ARGUMENTS, 60)
    assert server_of(toolchain) != first


def without_folder(program: bytes) -> bytes:
    """Where the source lay is told with every line of it."""
    return re.sub(rb"nki-sim-\w+/compile-\d+", b"", program)


def children_of(pid: int) -> list[str]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if status.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(status.parent.name)
        except OSError:
            continue
    return found


LATE_FAULT = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(20):
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128])
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128], src=tile)
    return out
"""


def test_for_a_price_no_pass_is_run_again_to_name_the_first_that_fails(toolchain: SimulatorToolchain) -> None:
    shape = [TensorArgument((2048, 512), "float32")]
    with pytest.raises(CompileError) as first:
        toolchain.compile(LATE_FAULT, shape, 60)
    assert "2176" in first.value.message, "the pass after the last row"
    fault, made = toolchain.compile_each([LATE_FAULT, SILU], [shape], 60, says_why=False)
    assert isinstance(fault, CompileError) and "2176" not in fault.message
    assert not isinstance(made, CompileError) and made[0].measurement.latency_us > 0


def test_it_changes_nothing_about_the_devices_that_it_sees(toolchain: SimulatorToolchain) -> None:
    """A judge that is root, as in a container, owns them."""
    source = "import os\nsaid = []\nfor name in ('/dev/null', '/dev/urandom'):\n"
    source += "    for change in (lambda: os.chmod(name, 0o600), lambda: os.utime(name, (1, 1))):\n"
    source += "        try:\n            change()\n            said.append('changed')\n"
    source += "        except OSError: pass\n    open(name, 'wb').write(b'x')\nraise ValueError(said)\n"
    before = [os.stat(name).st_mode for name in ("/dev/null", "/dev/urandom")]
    for _ in range(2):  # the server is the same one
        with pytest.raises(CompileError, match=r"ValueError: \[\]"):
            toolchain.compile(source, ARGUMENTS, 60)
        assert [os.stat(name).st_mode for name in ("/dev/null", "/dev/urandom")] == before


def test_where_namespaces_are_refused_it_is_not_read_in_beside_the_server(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(namespaces, "fork_isolated", lambda mounts: (-1, "refused"))
    monkeypatch.setattr(orphans, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(trace_worker, "_trace", lambda *given: pytest.fail("it is traced here"))
    job = {"tree": str(ROOT), "work": str(tmp_path), "namespaces": True, "parent": os.getppid()}
    assert trace_worker.carry_out({**job, "forked": True}) == 1


def test_where_the_filter_is_refused_it_is_not_read_in_beside_the_server(tmp_path, monkeypatch) -> None:
    def refused() -> None:
        raise linux.IsolationUnavailable("refused")

    monkeypatch.setattr(system_calls, "refuse_system_calls", refused)
    monkeypatch.setattr(sandbox, "limit_this_process", lambda limits: pytest.fail("it goes on"))
    before = set(sys.modules)
    try:
        assert trace_worker._trace({"machine": "trn2", "forked": True}, "", ()) == 1
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


def test_what_the_server_does_not_read_in_has_a_process_of_its_own(toolchain, monkeypatch) -> None:
    watched, ways = sandbox.watched, []

    def refused_if_forked(start: Any, **named: Any) -> sandbox.Finished:
        ways.append("alone" if "run" in start.__qualname__ else "forked")
        return watched(start, **named) if ways[-1] == "alone" else sandbox.Finished(1, "")

    monkeypatch.setattr(sandbox, "watched", refused_if_forked)
    assert toolchain.compile(SILU, ARGUMENTS, 60).measurement.latency_us > 0
    assert ways == ["forked", "alone"] and toolchain._server is None


def test_its_group_can_be_ended_as_soon_as_its_pid_is_known(toolchain: SimulatorToolchain, tmp_path: Path) -> None:
    toolchain.compile(SILU, ARGUMENTS, 60)
    job, unwritten = os.pipe()  # nothing comes, so that it cannot end by itself first
    with open(job, "rb") as given, open(unwritten, "wb"), open(tmp_path / "said", "w+b") as said:
        for _ in range(5):
            forked = toolchain._server.start(given, said, tmp_path, (0, 1, 2))
            sandbox.kill_group(forked.pid)
            assert forked.wait(PATIENCE_S) == -signal.SIGKILL


def test_after_an_interruption_no_answer_is_taken_for_another_ones(toolchain, monkeypatch) -> None:
    """Ctrl-C while a candidate is waited for, and again while it is ended."""
    toolchain.compile(SILU, ARGUMENTS, 60)
    first = server_of(toolchain)

    def interrupted(*given: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Forked, "wait", interrupted)
        toolchain.compile("while True: pass\n", ARGUMENTS, 60)
    assert not Path(f"/proc/{first}").exists()
    assert toolchain.compile(SILU, ARGUMENTS, 60).measurement.latency_us > 0
