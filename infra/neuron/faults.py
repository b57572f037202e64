"""Reading what a failed or finished step left behind: whose fault it was, and which NEFF it made. Shipped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

from accelopt_core.toolchain import CompileError, RunError, TensorArgument, ToolchainMissing
from infra.isolation import sandbox
from infra.neuron.commands import ToolRun
from infra.neuron.neff import NEFF_LIMIT
from infra.neuron.routes import DOCTOR

_SAID_LIMIT = 1 << 20
_NCC_CODE = re.compile(r"\[?(NCC_[A-Z]{3,5}\d{3})\]?:?\s*([^\n]*)")
_MACHINE_FAULT = re.compile(
    r"NRT_HW_ERROR|NRT_LOAD_NOT_ENOUGH_NC|NRT_UNSUPPORTED_NEFF_VERSION|NRT_UNINITIALIZED|NRT_EXEC_NC_BUSY"
    r"|NRT_EXEC_HW_ERR_\w+|NRT_FAIL_HOST_MEM_ALLOC|NeuronCore\(s\) not available[^\n]*|Could not open the nd\d+"
    r"|TDRV not initialized|Failed to initialize devices[^\n]*|NEFF version mismatch[^\n]*"
    r"|unknown (?:flag|command|option)[^\n]*|[Uu]nrecognized (?:flag|option)[^\n]*"
)
"""Return codes and messages that no kernel causes (aws-neuron-sdk: nrt_status.rst, nrt-troubleshoot.rst)."""
_KERNEL_FAULT = re.compile(r"NRT_[A-Z_]+(?:\s*\(\d+\))?[^\n]*")


def compile_error(message: str, line: int | None, output: str) -> CompileError:
    """The compiler's own code and sentence first, where it gave one; the line in the candidate where anybody says."""
    text = f"{message}\n{output}"
    found = _NCC_CODE.search(text)
    if found:
        sentence = f"[{found.group(1)}] {found.group(2).strip()}".strip()
        if found.group(1) not in message:
            message = f"{sentence} ({message})" if message else sentence
    if line is None:
        at = re.search(r"candidate\.py[\"']?(?:,? line |:)(\d+)", text)
        line = int(at.group(1)) if at else None
    return CompileError(" ".join(message.split())[:2000] or "the compiler gave no reason", line)


def run_fault(said: ToolRun, what: str) -> Exception:
    """RunError for what a kernel can cause; ToolchainMissing for what only the machine can."""
    machine = _MACHINE_FAULT.search(said.text)
    if machine:
        return ToolchainMissing(f"{what}: {machine.group(0).strip()[:300]}; {DOCTOR}")
    kernel = _KERNEL_FAULT.search(said.text)
    last = (said.stderr.strip() or said.text.strip()).splitlines()[-1:] or ["no message"]
    how = f"signal {-said.status}" if said.status < 0 else f"exit status {said.status}"
    return RunError(f"{what} failed ({how}): {(kernel.group(0) if kernel else last[0]).strip()[:300]}")


def neffs_in(work: Path) -> dict[str, bytes]:
    """Distinct NEFFs: the one of the documented name, else those in the folder named for them, else all that are left.

    Copies of one NEFF (in the working directory, in a cache) are one. Links are not followed.
    """
    named = read_regular(work / "artifacts" / "kernel.neff", NEFF_LIMIT)  # where NKI_ARTIFACTS_DIR puts it
    if named and not (work / "artifacts").is_symlink():
        return {hashlib.sha256(named).hexdigest(): named}
    for top in (work / "artifacts", work):
        found: dict[str, bytes] = {}
        for folder, _, names in os.walk(top) if not top.is_symlink() else ():
            for name in names:
                content = read_regular(Path(folder) / name, NEFF_LIMIT) if name.endswith(".neff") else None
                if content:
                    found[hashlib.sha256(content).hexdigest()] = content
        if found:
            return found
    return {}


def read_regular(path: Path, limit: int) -> bytes | None:
    """A regular file that a candidate's process left; None for a link, a pipe, a device and what is too big."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = stream.read(limit + 1)
        return content if len(content) <= limit else None


def read_report(path: Path, finished: sandbox.Finished) -> dict[str, Any]:
    """What the candidate's process reported, checked; it decides nothing but how a failure reads."""
    lost: dict[str, Any] = {"phase": "import", "line": None, "outputs": None, "parameters": []}
    try:
        data = json.loads(read_regular(path, _SAID_LIMIT) or b"")
        outputs = data["outputs"]
        return {
            "phase": str(data["phase"]),
            "message": str(data["message"])[:4000],
            "line": data["line"] if isinstance(data["line"], int) else None,
            "outputs": None if outputs is None else tuple(_output_spec(output) for output in outputs),
            "parameters": [str(name) for name in data["parameters"]],
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        last = finished.output.strip().splitlines()[-1:] or ["no output"]
        status = finished.status or 0
        number = -status if status < 0 else status - 128 if status > 128 else 0  # passed on as shells do
        how = f"signal {number}" if number else f"exit status {status}"
        return {**lost, "message": f"the compiling process died ({how}): {last[0][:300]}"}


def _output_spec(data: dict[str, Any]) -> TensorArgument:
    shape = tuple(int(size) for size in data["shape"])
    dtype = str(data["dtype"])
    if (
        len(shape) > 8
        or min(shape, default=0) < 0
        or math.prod(shape) >= 1 << 40
        or not re.fullmatch(r"\w{1,24}", dtype)
    ):
        raise ValueError("not a tensor")
    return TensorArgument(shape, dtype)
