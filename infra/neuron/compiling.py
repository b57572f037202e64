"""From a candidate's source to a NEFF, in a process of the candidate's own. Shipped to the instance.

What the process leaves is checked and copied out of the candidate's reach; all else is deleted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelopt_core.task import ENTRY_POINTS
from accelopt_core.toolchain import (
    ArgumentSpec,
    CompileError,
    StepTimeout,
    TensorArgument,
    ToolchainMissing,
)
from infra import sandbox
from infra.neuron.commands import Installation
from infra.neuron.faults import compile_error, neffs_in, read_report
from infra.neuron.neff import NEFF_LIMIT, NeffUnreadable, match_inputs, match_outputs, read_neff
from infra.neuron.routes import CHILD, DOCTOR, Route, ask_interpreter, search_path
from infra.neuron.tensors import size_bytes

log = logging.getLogger(__name__)


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


class NeffCompiler:
    """One route with one interpreter; NEFFs are kept in `folder`."""

    def __init__(
        self, route: Route, python: Path, installation: Installation, machine: str, core: str, folder: Path
    ) -> None:
        self.route = route
        self.machine = machine
        self._python = python
        self._installation = installation
        self._core = core
        self._folder = folder
        self._runtime_saves = False
        """True once this SDK was seen to leave a NEFF only through the runtime's inspection."""
        self.wall = ""
        """What kept the last candidate in."""

    def compile(self, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float) -> Neff:
        """Raises CompileError, StepTimeout, or ToolchainMissing when the SDK itself does not work."""
        deadline = time.monotonic() + timeout_s
        work = Path(tempfile.mkdtemp(prefix="compile-", dir=self._folder))
        try:
            said = self._compile_in(work, source, arguments, timeout_s)
            neffs = neffs_in(work)
            if not neffs and said["phase"] == "done" and not self._runtime_saves:
                self._runtime_saves = True
                log.info("%s left no NEFF; compiling again with the runtime's inspection on", self.route.name)
                shutil.rmtree(work)
                work.mkdir()
                said = self._compile_in(work, source, arguments, deadline - time.monotonic())
                neffs = neffs_in(work)
            if said["phase"] != "done" and not (neffs and "NRT" in said["message"]):
                raise self._compile_error(said)
            if not neffs:
                raise CompileError(
                    f"the kernel was called and left no NEFF ({self.route.name} route): it must be decorated "
                    "with nki.jit and return the tensors it computes"
                )
            if len(neffs) > 1:
                raise CompileError(
                    f"compiling left {len(neffs)} different NEFFs: one file must hold one kernel, called once"
                )
            return self._keep(next(iter(neffs.values())), said, arguments)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _compile_in(
        self, work: Path, source: str, arguments: Sequence[ArgumentSpec], timeout_s: float
    ) -> dict[str, Any]:
        if timeout_s <= 0:
            raise StepTimeout("compile", timeout_s)
        candidate, said, artifacts = work / "candidate.py", work / "said.json", work / "artifacts"
        artifacts.mkdir()
        candidate.write_text(source, encoding="utf-8")
        job = {
            "route": self.route.name,
            "source": str(candidate),
            "entry_points": ENTRY_POINTS,
            "machine": self.machine,
            "arguments": [asdict(a) for a in arguments],
            "artifacts": str(artifacts),
            "said": str(said),
            "data_bytes": _half_of_memory(),
            "file_bytes": NEFF_LIMIT,
        }
        finished = sandbox.run(
            [str(self._python), "-I", str(CHILD)],
            cwd=work,
            stdin=json.dumps(job).encode(),
            limits=sandbox.Limits(wall_s=timeout_s, memory_bytes=0),
            env=self._compile_environment(work, artifacts),
        )
        if finished.timed_out:
            raise StepTimeout("compile", timeout_s)
        return {**read_report(said, finished), "output": finished.output}

    def _compile_environment(self, work: Path, artifacts: Path) -> dict[str, str]:
        """All set before the interpreter starts: NKI reads some of it when imported."""
        environment = {
            "HOME": str(work),
            "USER": "candidate",
            "LOGNAME": "candidate",
            "PATH": search_path(self._installation, self._python),
            "NEURON_PLATFORM_TARGET_OVERRIDE": self.machine,
            "NEURON_LOGICAL_NC_CONFIG": "1",
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
        return {**environment, **{k: v.format(machine=self.machine) for k, v in self.route.environment}}

    def _compile_error(self, said: Mapping[str, Any]) -> Exception:
        if said["phase"] == "toolchain":
            # A candidate could claim this, so look again without one before the machine is blamed.
            found = ask_interpreter(self._installation, self._python, self.route.modules)["modules"]
            broken = [f"{module} {found[module]}" for module in self.route.modules if found.get(module)]
            if broken:
                return ToolchainMissing(f"{self.route.name} with {self._python}: {broken[0]}; {DOCTOR}")
        return compile_error(said["message"], said["line"], said["output"])

    def _keep(self, content: bytes, said: Mapping[str, Any], arguments: Sequence[ArgumentSpec]) -> Neff:
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
            return Neff(path, digest, match_inputs(declared.inputs, wanted), outputs, specs, io_bytes)
        except NeffUnreadable as error:
            raise CompileError(f"the compiled kernel does not fit the call: {error}") from None


def _half_of_memory() -> int:
    return max(4 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
