"""What an evaluation costs beside the kernel itself: here, and over SSH with a slow link between.

    python benchmarks/evaluation_overhead.py [--delay-ms 50]

Here: a judge process with its isolation, against the same compiling, running and comparing in this process without any;
in elapsed time, and in processor time, which other work on a busy machine does not add to.
Over SSH: a proxy on the loopback interface delays every byte; what the delay adds, divided by the round trip, is the
number of round trips. The proxy counts them, too, as times that this side spoke after the other had: a busy machine
does not add to that. Beside it, the usual way: one `ssh` process for each command.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ALONE, ShapePreset, Surroundings, Task
from accelopt_core.toolchain import ArgumentSpec, TensorArgument
from infra.isolation import processes
from infra.isolation.sandbox import ONE_THREAD
from infra.simulator.toolchain import Simulated, SimulatorToolchain
from infra.targets.local import LocalTarget
from infra.targets.over_ssh import SshTarget
from nki_sim.dtypes import as_dtype
from nki_sim.tracing.session import TensorSpec
from tests.e2e import kernels
from tests.ssh.server import Sshd, free_port, make_sshd

TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0,))
REPEATS = 8
COMMANDS = 4
"""The usual way: make a folder, send the files, run, fetch the result."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of an evaluation beside the kernel.")
    parser.add_argument("--delay-ms", type=float, default=50.0, help="added to each direction of the link")
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    bare, target = in_this_process(), LocalTarget("simulator", "trn2")
    bare_s, judged_s = fastest_s(bare), fastest_s(lambda: measured(target))
    bare_cpu_s, walled_cpu_s = (
        fastest_s(bare, clock=processor_s),
        fastest_s(lambda: measured(target), clock=processor_s),
    )
    target.close()
    print(f"here: {judged_s:.3f} s with judge and isolation, {bare_s:.3f} s bare: overhead {judged_s - bare_s:.3f} s")
    print(f"      {walled_cpu_s:.3f} s and {bare_cpu_s:.3f} s of processor time: {walled_cpu_s - bare_cpu_s:.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        over_ssh(Path(folder), options.delay_ms / 1e3)
    return 0


def measured(target: LocalTarget | SshTarget) -> None:
    source = kernels.FAST.replace("STEP = 2048", "STEP = 512")
    result = target.evaluate(EvaluationRequest(TASK, Candidate("c", source)), lambda step, detail: None)
    if not isinstance(result, Measured):
        raise SystemExit(f"the kernel was not measured: {explain(result)}")


def in_this_process() -> Callable[[], None]:
    source = kernels.FAST.replace("STEP = 2048", "STEP = 512")
    request = EvaluationRequest(TASK, Candidate("c", source))

    class NotIsolated(SimulatorToolchain):
        """Traces here instead of in a process of the candidate's."""

        def compile(
            self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
        ) -> Simulated:
            nki_sim.install()
            namespace: dict[str, object] = {}
            exec(compile(source, "<kernel>", "exec"), namespace)
            specs = [TensorSpec(a.shape, as_dtype(a.dtype)) for a in arguments if isinstance(a, TensorArgument)]
            return Simulated(nki_sim.trace(namespace["kernel"], *specs, machine=self.model.name), self.model)

    toolchain = NotIsolated("trn2")
    cache = ReferenceCache(None)

    def once() -> None:
        if not isinstance(judge(request, toolchain, lambda step, detail: None, cache), Measured):
            raise SystemExit("the kernel was not measured in this process")

    return once


def over_ssh(folder: Path, delay_s: float) -> None:
    server = make_sshd(folder / "ssh")
    behind = server.port
    server.start()
    server.port = free_port()
    server.trust()
    link = Link(server.port, behind)
    target = SshTarget(
        server.destination,
        machine="trn2",
        remote_simulator=True,
        remote_python=sys.executable,
        settings=server.settings,
        root=str(folder / "far"),
    )
    try:
        measured(target)
        direct_s = fastest_s(lambda: measured(target))
        link.delay_s = delay_s
        measured(target)
        slow_s = fastest_s(lambda: measured(target))
        turns = int(fastest_s(lambda: measured(target), clock=lambda: link.turns))
        trips = (slow_s - direct_s) / (2 * delay_s)
        print(
            f"over SSH, {2e3 * delay_s:.0f} ms round trip: {slow_s:.3f} s, {direct_s:.3f} s without: "
            f"{trips:.1f} trips, {turns} counted"
        )
        each_s = fastest_s(lambda: one_command(server), 3)
        print(
            f"one process per command: {each_s:.3f} s each, {COMMANDS * each_s:.3f} s for the {COMMANDS} of an "
            f"evaluation: {COMMANDS * each_s / (2 * delay_s):.1f} trips"
        )
    finally:
        link.delay_s = 0.0
        target.close()
        server.stop()


def one_command(server: Sshd) -> None:
    known = server.home / "known_hosts"
    subprocess.run(
        ["ssh", "-F", "none", "-i", str(server.user_key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
        + ["-p", str(server.port), server.destination.rpartition(":")[0], "true"],
        check=True,
    )


def processor_s() -> float:
    """Of this process, of all that it has waited for, and of its children with all that those have waited for."""
    used = os.times()
    total = used.user + used.system + used.children_user + used.children_system
    for pid in processes.children():  # judges are forked from one, which goes on
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def fastest_s(
    work: Callable[[], None], repeats: int = REPEATS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The least of several: what a busy machine adds is not part of the cost."""
    taken = []
    for _ in range(repeats):
        start = clock()
        work()
        taken.append(clock() - start)
    return min(taken)


class Link:
    """A TCP proxy that hands on every piece of data `delay_s` after it came, in order, without holding up the next."""

    def __init__(self, port: int, behind: int) -> None:
        self.delay_s = 0.0
        self.turns = 0
        """How often this side spoke after the other had: each is a way there and back."""
        self._far_spoke_last = False
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(port, behind, ready)), daemon=True).start()
        ready.wait(10)

    async def _serve(self, port: int, behind: int, ready: threading.Event) -> None:
        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", behind)
            await asyncio.gather(self._carry(reader, there_writer, False), self._carry(there_reader, writer, True))

        server = await asyncio.start_server(connect, "127.0.0.1", port)
        ready.set()
        await server.serve_forever()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_far: bool) -> None:
        pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await pending.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    writer.close()
                    return
                writer.write(data)

        delivery = asyncio.ensure_future(deliver())
        try:
            while data := await reader.read(1 << 16):
                self.turns += self._far_spoke_last and not from_far
                self._far_spoke_last = from_far
                pending.put_nowait((time.monotonic() + self.delay_s, data))
        except ConnectionError:
            data = b""
        pending.put_nowait((time.monotonic() + self.delay_s, b""))
        await delivery


if __name__ == "__main__":
    sys.exit(main())
