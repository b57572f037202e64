"""A candidate under a Neuron SDK: what it cannot reach from where it is compiled, and what an SDK still can."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from accelopt_core.toolchain import CompileError, TensorArgument
from infra.neuron.toolchain import NeuronToolchain, open_neuron_toolchain
from infra.simulator.toolchain import SimulatorToolchain, traced_on_simulator
from tests.processes import eventually, running
from tests.redteam.attacks import EVERY_FILE
from tests.toolchains.pretend_sdk import FIXTURES, SIMULATED, PretendSdk, opened_on

A = TensorArgument((4, 3), "float32")
HEAD = "import nki\nimport nki.language as nl\n\n@nki.jit\n"
SUBTRACT = HEAD + "def kernel(a, b):\n    return nl.subtract(a, b)\n"


def _namespaces() -> bool:
    toolchain = SimulatorToolchain("trn2")
    try:
        toolchain.compile("raise ValueError", [], 60)
    except CompileError:
        return toolchain.isolation.startswith("namespaces of its own")
    finally:
        toolchain.close()
    return False


pytestmark = pytest.mark.skipif(not _namespaces(), reason="this system gives no user namespaces")


def _said(toolchain: NeuronToolchain, source: str, timeout_s: float = 60) -> str:
    """What a candidate says that it found: its last words are an exception."""
    with pytest.raises(CompileError) as error:
        toolchain.compile(source, [A, A], timeout_s)
    return error.value.message


def test_the_isolation_is_said_shows_what_it_shows_read_only_and_is_not_spoofed(toolchain: NeuronToolchain) -> None:
    toolchain.compile(SUBTRACT, [A, A], 60)
    assert toolchain.isolation == "namespaces of its own, no tracing, no mounts, no other namespaces"
    assert "Read-only file system" in _said(toolchain, "import nki\nopen(nki.__file__, 'a').write('x = 1')\n")
    _said(toolchain, EVERY_FILE + "everywhere(b'namespaces of gold')\nraise ValueError(1)\n")
    assert toolchain.isolation == "namespaces of its own, no tracing, no mounts, no other namespaces"


def test_the_judges_folders_are_not_there(toolchain: NeuronToolchain, tmp_path: Path) -> None:
    toolchain.compile(SUBTRACT, [A, A], 60)  # a NEFF that another candidate could like to change
    (tmp_path / "secret").write_text("the seeds")
    said = _said(
        toolchain,
        "import glob, os\n"
        "here = os.path.dirname(__file__)\n"
        "found = [p for p in glob.glob('/tmp/**', recursive=True) + glob.glob(os.path.dirname(here) + '/../*')\n"
        "         if os.path.isfile(p) and not p.startswith((here, '/tmp/said', '/tmp/candidate'))]\n"
        f"raise ValueError(found, os.path.exists({str(tmp_path / 'secret')!r}), os.path.isdir(here + '/artifacts'))\n",
    )
    assert ".neff" not in said and "secret" not in said and said.endswith("False, True)")


def test_no_home_and_no_keys(toolchain: NeuronToolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    home = os.path.expanduser("~")
    said = _said(
        toolchain,
        "import glob, os\n"
        "environments = b''.join(open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/environ'))\n"
        f"raise ValueError(b'sk-secret' in environments, [n for n in ('.ssh', '.aws', '.bashrc', '.config')\n"
        f"                  if os.path.exists(os.path.join({home!r}, n))], os.path.exists('/etc/shadow'))\n",
    )
    assert said == "ValueError: (False, [], False)"


def test_the_network_ends_at_its_own_loopback(toolchain: NeuronToolchain) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = _said(
            toolchain,
            "import socket\n"
            "own = socket.create_server(('127.0.0.1', 0))\n"
            "socket.create_connection(own.getsockname(), 5).close()\n"
            f"try:\n    socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)\n"
            "except OSError as error:\n    raise ValueError('own reached', error)\n",
        )
    assert said.startswith("ValueError: ('own reached', ConnectionRefusedError")


def test_no_process_is_seen_signalled_or_left(toolchain: NeuronToolchain) -> None:
    said = _said(
        toolchain,
        "import os, signal, subprocess\n"
        "subprocess.Popen(['/bin/sleep', '98765.4321'], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sleep', ['/bin/sleep', '98765.4321'])\n"
        "seen = len([n for n in os.listdir('/proc') if n.isdigit()])\n"
        "try:\n    os.kill(-1, 0)\n    os.kill(os.getppid(), signal.SIGKILL)\nexcept OSError: pass\n"
        "raise ValueError(seen)\n",
    )
    assert said == "ValueError: 4", "its init, itself and the two it started"
    assert eventually(lambda: not running("/bin/sleep 98765.4321"))


@pytest.mark.parametrize(
    "escape",
    [
        "libc.unshare(0x10000000)",
        "libc.mount(b'none', b'/usr', b'tmpfs', 0, None)",
        "libc.ptrace(16, os.getppid(), None, None)",
        "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",  # a process in a new namespace
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86_64")
def test_the_filter_refuses_ways_out(toolchain: NeuronToolchain, escape: str) -> None:
    source = f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nraise ValueError({escape})\n"
    assert _said(toolchain, source) == "ValueError: -1"


def test_an_sdk_may_start_programs_and_use_tmp_and_its_device(toolchain: NeuronToolchain, sdk: PretendSdk) -> None:
    device = sdk.installation.device_folder / "neuron0"
    needs = (
        "import subprocess, sys, tempfile\n"
        "subprocess.run([sys.executable, '-c', 'import numpy'], check=True)\n"
        "open('/tmp/workdir', 'w').close(); open('/var/tmp/cache', 'w').close(); open('/dev/shm/queue', 'w').close()\n"
        "tempfile.TemporaryFile(dir='/tmp').close()\n"
        f"open({str(device)!r}, 'r+').close()\n"
    )
    assert toolchain.compile(needs + SUBTRACT, [A, A], 60).outputs == ("output_0",)


def _sdk_that_needs(folder: Path, hidden: Path) -> PretendSdk:
    """Its `nki` reads a file that nobody would think of showing."""
    site = folder / "site"
    (site / "nki").mkdir(parents=True)
    text = (FIXTURES / "site_simulated/nki/__init__.py").read_text(encoding="utf-8")
    (site / "nki/__init__.py").write_text(f"open({str(hidden)!r}).close()\n" + text, encoding="utf-8")
    return PretendSdk(folder / "sdk", site=(site, *SIMULATED))


def test_an_sdk_that_does_not_stand_the_namespaces_is_used_without_and_that_is_said(tmp_path: Path) -> None:
    hidden = tmp_path / "licence"
    hidden.touch()
    toolchain = open_neuron_toolchain(traced_on_simulator, installation=_sdk_that_needs(tmp_path, hidden).installation)
    kernel = (Path(__file__).parents[1] / "e2e/kernels.py").read_text(encoding="utf-8").split('SLOW = """')[1]
    wide = TensorArgument((128, 512), "float32")
    toolchain.compile(kernel.split('"""')[0], [wide, wide], 60)
    toolchain.close()
    assert (
        "no namespaces (the SDK does not work within them" in toolchain.isolation and "licence" in toolchain.isolation
    )


def test_a_candidate_cannot_talk_the_isolation_away(tmp_path: Path) -> None:
    toolchain = opened_on(PretendSdk(tmp_path, site=SIMULATED))
    blame = (
        "import json, os\njson.dump({'phase': 'toolchain', 'message': 'libnrt.so: cannot open shared object file',"
        " 'line': None, 'outputs': None, 'parameters': []}, open('said.json', 'w'))\nos._exit(1)\n"
    )
    for _ in range(2):
        assert "libnrt.so" in _said(toolchain, blame)
        assert toolchain.isolation.startswith("namespaces of its own")
    toolchain.close()
