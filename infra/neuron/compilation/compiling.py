"""From a candidate's source to a NEFF, in an isolated process of the candidate's own. Shipped to the instance.

What the process leaves is checked and copied out of the candidate's reach; all else is deleted. An SDK may not work in
isolation: what it needs is nowhere written down. That is never concluded from a candidate's failure, but from a known
kernel that compiles without the namespaces and not within them; they are then left out, and the evaluation says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import Step
from accelopt_core.task import ALONE, Surroundings
from accelopt_core.toolchain import (
    ArgumentSpec,
    CandidateFault,
    CompileError,
    StepTimeout,
    TensorArgument,
    ToolchainMissing,
)
from infra.isolation import sandbox
from infra.neuron.commands import Installation
from infra.neuron.compilation.known_kernel import KNOWN_ARGUMENTS, KNOWN_KERNEL
from infra.neuron.faults import compile_error, neffs_in, read_report
from infra.neuron.neff import NEFF_LIMIT, NeffUnreadable, match_inputs, match_outputs, read_neff
from infra.neuron.routes import CHILD, DOCTOR, LNC, Route, ask_interpreter, search_path
from infra.neuron.tensors import size_bytes

log = logging.getLogger(__name__)

SOURCE_NAME = "candidate.py"
"""Of a kernel that stands alone."""

ISOLATED_COMPILER = Path(__file__).with_name("isolated_compiler.py")


@dataclass(frozen=True)
class Neff:
    """A compiled kernel: data, checked, out of the candidate's reach."""

    path: Path
    digest: str
    inputs: tuple[str | None, ...]
    """The NEFF's name of each tensor argument; None where nothing reads it."""
    outputs: tuple[str, ...]
    """In the order in which the kernel returns them."""
    output_specs: tuple[TensorArgument | None, ...]
    """As the candidate's process reported them; they only decide how bytes are viewed."""
    io_bytes: int
    """All inputs and outputs once: the least that any kernel for this call must move."""
    source_name: str
    """How the path of the kernel's file ended while it was compiled: by which a profile names its lines."""


class _MaybeIsolation(Exception):
    """A failure that neither the compiler nor a line of the candidate accounts for."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class NeffCompiler:
    """One route with one interpreter; NEFFs are kept in `folder`."""

    def __init__(
        self,
        route: Route,
        python: Path,
        python_folders: Sequence[str],
        installation: Installation,
        machine: str,
        core: str,
        folder: Path,
    ) -> None:
        """`python_folders`: in which that interpreter's own files and packages lie; all it gets to see of the disk."""
        self.route = route
        self.machine = machine
        self._python = python
        self._installation = installation
        self._core = core
        self._folder = folder
        self._runtime_saves = False
        """True once this SDK was seen to leave a NEFF only through the runtime's inspection."""
        self.isolation = ""
        """What kept the last candidate in."""
        self._python_folders = tuple(Path(path) for path in python_folders)
        self._not_isolated = ""
        """Why candidates are compiled outside namespaces; empty while they are not."""
        self._proven = False
        """The isolation was tried with the known kernel."""

    def compile(
        self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float, around: Surroundings = ALONE
    ) -> Neff:
        """Raises CompileError, StepTimeout, or ToolchainMissing when the SDK itself does not work."""
        deadline = time.monotonic() + timeout_s
        try:
            try:
                return self._compile(source, arguments, deadline, around)
            except _MaybeIsolation as failure:
                if self._proven or self._not_isolated or not self._isolation_is_to_blame(deadline):
                    raise failure.error from None
            return self._compile(source, arguments, deadline, around)
        except _MaybeIsolation as failure:
            raise failure.error from None
        except StepTimeout:
            raise StepTimeout(Step.COMPILE, timeout_s) from None

    def _compile(self, source: str, arguments: Sequence[ArgumentSpec], deadline: float, around: Surroundings) -> Neff:
        outer = Path(tempfile.mkdtemp(prefix="compile-", dir=self._folder))
        work = outer / "work"
        try:
            said = self._compile_in(work, source, arguments, deadline, around)
            neffs = neffs_in(work)
            if not neffs and said["phase"] == "done" and not self._runtime_saves:
                self._runtime_saves = True
                log.info("%s left no NEFF; compiling again with the runtime's inspection on", self.route.name)
                shutil.rmtree(work)
                said = self._compile_in(work, source, arguments, deadline, around)
                neffs = neffs_in(work)
            if said["phase"] != "done" and not (neffs and "NRT" in said["message"]):
                error = self._compile_error(said)
                if said["line"] is None and "NCC_" not in said["message"] + said["output"]:
                    raise _MaybeIsolation(error)
                raise error
            if not neffs:
                raise _MaybeIsolation(
                    CompileError(
                        f"the kernel was called and left no NEFF ({self.route.name} route): it must be decorated "
                        "with nki.jit and return the tensors it computes"
                    )
                )
            if len(neffs) > 1:
                raise CompileError(
                    f"compiling left {len(neffs)} different NEFFs: one file must hold one kernel, called once"
                )
            return self._keep(next(iter(neffs.values())), said, arguments, around.path or SOURCE_NAME)
        finally:
            shutil.rmtree(outer, ignore_errors=True)

    def _isolation_is_to_blame(self, deadline: float) -> bool:
        """Whether the known kernel compiles outside the namespaces only; from then on candidates are compiled there."""
        self._proven = True
        try:
            self._compile(KNOWN_KERNEL, KNOWN_ARGUMENTS, deadline, ALONE)
        except _MaybeIsolation as failure:
            within = str(failure.error)
        except (CandidateFault, ToolchainMissing) as fault:
            within = str(fault)
        else:
            return False
        self._not_isolated = f"the SDK does not work within them: {within[:200]}"
        try:
            self._compile(KNOWN_KERNEL, KNOWN_ARGUMENTS, deadline, ALONE)
        except (_MaybeIsolation, CandidateFault, ToolchainMissing):
            self._not_isolated = ""  # nor does it outside: the namespaces stay
        return bool(self._not_isolated)

    def _compile_in(
        self, work: Path, source: str, arguments: Sequence[ArgumentSpec], deadline: float, around: Surroundings
    ) -> dict[str, Any]:
        timeout_s = deadline - time.monotonic()
        if timeout_s <= 0:
            raise StepTimeout(Step.COMPILE, timeout_s)
        said, artifacts = work / "said.json", work / "artifacts"
        home = work / "source" if around.module else work
        candidate = home / (around.path or SOURCE_NAME)
        artifacts.mkdir(parents=True)
        for path, text in {**{home / path: text for path, text in around.neighbours}, candidate: source}.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        job = {
            "route": self.route.name,
            "source": str(candidate),
            "entry_points": around.entry_points,
            "module": around.module,
            "paths": [str(home), str(candidate.parent)],
            "machine": self.machine,
            "lnc": LNC,
            "arguments": [asdict(a) for a in arguments],
            "artifacts": str(artifacts),
            "said": str(said),
            "data_bytes": _half_of_memory(),
            "file_bytes": NEFF_LIMIT,
        }
        with tempfile.TemporaryFile() as report:
            entrance = {
                "tree": str(ISOLATED_COMPILER.parents[2]),
                "mounts": None if self._not_isolated else self._mounts(work),
                "not_isolated": self._not_isolated,
                "report_fd": report.fileno(),
                "command": [str(self._python), "-I", str(CHILD)],
            }
            finished = sandbox.run(
                [sys.executable, "-I", str(ISOLATED_COMPILER), json.dumps(entrance)],
                cwd=work,
                stdin=json.dumps(job).encode(),
                limits=sandbox.ProcessLimits(deadline_s=timeout_s, memory_bytes=0),
                env=self._compile_environment(work, artifacts),
                pass_fds=(report.fileno(),),
            )
            report.seek(0)
            self.isolation = report.read(4096).decode("utf-8", "replace")
        if finished.over_disk:
            raise CompileError(
                f"compiling the kernel fills more than {sandbox.ProcessLimits.disk_bytes >> 30} GiB of disk"
            )
        if finished.timed_out:
            raise StepTimeout(Step.COMPILE, timeout_s)
        return {**read_report(said, finished), "output": finished.output}

    def _mounts(self, work: Path) -> dict[str, Any]:
        """`namespaces.Mounts` as JSON. Nothing is shown that holds a home or the judge's own folders."""
        mount_point = work.with_name("root")
        mount_point.mkdir(exist_ok=True)
        tools = [Path(tool).parent for name in ("neuronx-cc", "neuron-ls") if (tool := self._installation.tool(name))]
        private = [Path(os.path.expanduser("~")), self._folder]
        shown = [
            path
            for path in (*self._python_folders, *tools, CHILD)
            if not any(path == kept or path in kept.parents for kept in private)
        ]
        devices = self._installation.device_folder.glob("neuron*")
        return {
            "visible": [str(path) for path in shown],
            "work": str(work),
            "mount_point": str(mount_point),
            "devices": [str(path) for path in devices],
        }

    def _compile_environment(self, work: Path, artifacts: Path) -> dict[str, str]:
        """All set before the interpreter starts: NKI reads some of it when imported.

        NKI_COMPILER_FRONTEND is left alone: kernels are traced or parsed as their release does by itself, and 0.7 is
        the last that knows the other way (announce-nki-specialization-change.html).
        """
        environment = {
            "HOME": str(work),
            "USER": "candidate",
            "LOGNAME": "candidate",
            "PATH": search_path(self._installation, self._python),
            "NEURON_PLATFORM_TARGET_OVERRIDE": self.machine,
            "NEURON_LOGICAL_NC_CONFIG": str(LNC),
            "NEURON_RT_VISIBLE_CORES": self._core,
            "NEURON_FRAMEWORK_DEBUG": "1",
            "NKI_DEBUG_INFO": "True",
            "NKI_ARTIFACTS_DIR": str(artifacts),
            "NEURON_COMPILE_CACHE_URL": str(work / "cache"),
        }
        if self._runtime_saves:
            environment.update(
                NEURON_RT_INSPECT_ENABLE="1",
                NEURON_RT_INSPECT_DEVICE_PROFILE="1",
                NEURON_RT_INSPECT_OUTPUT_DIR=str(work / "inspect"),
            )
        known = {"machine": self.machine, "lnc": LNC, "cache": work / "cache"}
        return {**environment, **{name: value.format(**known) for name, value in self.route.environment}}

    def _compile_error(self, said: Mapping[str, Any]) -> Exception:
        if said["phase"] == "toolchain":
            # A candidate could claim this, so look again without one before the machine is blamed.
            found = ask_interpreter(self._installation, self._python, self.route.modules)["modules"]
            broken = [f"{module} {found[module]}" for module in self.route.modules if found.get(module)]
            if broken:
                return ToolchainMissing(f"{self.route.name} with {self._python}: {broken[0]}; {DOCTOR}")
        return compile_error(said["message"], said["line"], said["output"])

    def _keep(
        self, content: bytes, said: Mapping[str, Any], arguments: Sequence[ArgumentSpec], source_name: str
    ) -> Neff:
        digest = hashlib.sha256(content).hexdigest()[:16]
        path = self._folder / f"{digest}.neff"
        path.write_bytes(content)
        names = said["parameters"] + [""] * len(arguments)
        wanted = [
            (name, size_bytes(a.shape, a.dtype)) for name, a in zip(names, arguments) if isinstance(a, TensorArgument)
        ]
        try:
            declared = read_neff(path)
            specs: tuple[TensorArgument | None, ...] = said["outputs"] or (None,) * len(declared.outputs)
            if said["outputs"]:
                outputs = match_outputs(declared.outputs, [size_bytes(s.shape, s.dtype) for s in said["outputs"]])
            else:
                outputs = tuple(tensor.name for tensor in declared.outputs)
            io_bytes = sum(tensor.size_bytes for tensor in (*declared.inputs, *declared.outputs))
            return Neff(path, digest, match_inputs(declared.inputs, wanted), outputs, specs, io_bytes, source_name)
        except NeffUnreadable as error:
            raise CompileError(f"the compiled kernel does not fit the call: {error}") from None


def _half_of_memory() -> int:
    return max(4 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
