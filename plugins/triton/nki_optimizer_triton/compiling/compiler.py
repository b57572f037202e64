"""The judge's end of compiling: which kernels a launch program needs, the process that makes them, and what it left."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import Step
from accelopt_core.toolchain import CompileError, StepTimeout, ToolchainMissing
from infra.isolation import sandbox
from infra.judging.shipment import TREE
from nki_optimizer_triton.compiling.compiled import CompiledKernel, DescriptorLayout
from nki_optimizer_triton.compiling.resources import CubinUnreadable, resources_of
from nki_optimizer_triton.ir.reading import read_module
from nki_optimizer_triton.ir.types import IrError
from nki_optimizer_triton.program.launch_program import (
    MAIN,
    DescriptorValue,
    FunctionValue,
    Launch,
    LaunchProgram,
    TensorValue,
    TupleValue,
    Value,
)
from nki_optimizer_triton.program.writing import encode
from nki_optimizer_triton.source.functions import JitFunction, SourceFile, SourceRefused
from nki_optimizer_triton.source.module_text import module_text
from nki_optimizer_triton.source.whitelist import check

WORKER = Path(__file__).with_name("worker.py")

COMPILER_BYTES = 24 << 30
"""Of address space, for Triton and LLVM."""
RESULT_BYTES = 1 << 30
"""All kernels of one program together."""
MOST_KERNELS = 64
"""Different ones that one program may need; each takes a second to compile."""


@dataclass(frozen=True)
class Variant:
    """A kernel as one launch specializes it: what differs is compiled by itself."""

    function: FunctionValue
    key: str
    """Of everything that Triton may look at, as JSON."""


class KernelCompiler:
    """Compiles for one GPU; what it has compiled, it keeps for as long as it lives."""

    def __init__(self, folder: Path, capability: int, shared_bytes: int, *, namespaces: bool = True) -> None:
        """`capability`: e.g. 90. `shared_bytes`: that one block may use there."""
        self._folder = folder
        self._capability = capability
        self._shared_bytes = shared_bytes
        self._namespaces = namespaces
        self._kept: dict[str, CompiledKernel | CompileError] = {}
        self._count = 0
        self.isolation = ""
        self.version = ""
        """Triton's, once something was compiled."""

    def compile(self, program: LaunchProgram, sources: Sequence[str], timeout_s: float) -> tuple[CompiledKernel, ...]:
        """One for each launch. `sources`: the candidate's file and its neighbours.

        Raises CompileError, StepTimeout, or ToolchainMissing where Triton does not work here.
        """
        try:
            files, functions = _checked_functions(program, sources)
        except SourceRefused as error:
            raise CompileError(error.message, error.line) from None
        text_key = json.dumps([files, self._capability])
        variants = [_variant(launch) for launch in program.launches]
        wanted: dict[str, tuple[Launch, Variant]] = {}
        for launch, variant in zip(program.launches, variants):
            wanted.setdefault(self._key(text_key, variant), (launch, variant))
        missing = {key: pair for key, pair in wanted.items() if key not in self._kept}
        if len(wanted) > MOST_KERNELS:
            raise CompileError(
                f"its launches need {len(wanted)} different kernels, more than {MOST_KERNELS}: hand over numbers that "
                "change as arguments with do_not_specialize, not as constexpr"
            )
        if missing:
            jobs = [_kernel_job(launch, functions[launch.function], self._capability) for launch, _ in missing.values()]
            self._kept.update(zip(missing, self._compiled(files, jobs, timeout_s)))
        found = []
        for variant in variants:
            kernel = self._kept[self._key(text_key, variant)]
            if isinstance(kernel, CompileError):
                raise kernel
            found.append(kernel)
        return tuple(found)

    def _key(self, text_key: str, variant: Variant) -> str:
        return hashlib.sha256(json.dumps([text_key, asdict(variant)]).encode()).hexdigest()

    def _compiled(
        self, files: list[dict[str, Any]], jobs: list[dict[str, Any]], timeout_s: float
    ) -> list[CompiledKernel | CompileError]:
        self._count += 1
        work = self._folder / f"compile-{self._count}"
        work.mkdir()
        limits = sandbox.ProcessLimits(
            timeout_s, COMPILER_BYTES, file_bytes=RESULT_BYTES, processes=4096, disk_bytes=RESULT_BYTES
        )
        try:
            with ExitStack() as opened:
                result, report = (opened.enter_context(tempfile.TemporaryFile()) for _ in range(2))
                job = {
                    "tree": str(TREE),
                    "work": str(work),
                    "files": files,
                    "kernels": jobs,
                    "namespaces": self._namespaces,
                    "parent": os.getpid(),
                    "limits": asdict(limits),
                    "result_fd": result.fileno(),
                    "report_fd": report.fileno(),
                }
                finished = sandbox.run(
                    [sys.executable, "-I", str(WORKER)],
                    cwd=work,
                    limits=limits,
                    env={
                        "HOME": str(work), "USER": "candidate", "TRITON_CACHE_DIR": str(work / "cache"),
                        "TRITON_HOME": str(work), **sandbox.ONE_THREAD,
                    },
                    stdin=json.dumps(job).encode(),
                    pass_fds=(result.fileno(), report.fileno()),
                )  # fmt: skip
                report.seek(0)
                said = report.read(4096).decode("utf-8", "replace")
                self.isolation = said or self.isolation
                result.seek(0)
                return self._read(result.read(RESULT_BYTES), finished, files, jobs, timeout_s)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _read(
        self,
        data: bytes,
        finished: sandbox.Finished,
        files: list[dict[str, Any]],
        jobs: list[dict[str, Any]],
        timeout_s: float,
    ) -> list[CompiledKernel | CompileError]:
        records = _records(data)
        first = records.pop(0)[0] if records else {}
        if "version" not in first:
            why = first.get("missing") or _last_line(finished)
            raise ToolchainMissing(
                f"Triton does not start with {sys.executable}: {str(why)[:300]}; pip install 'nki-optimizer[triton]' "
                "there"
            )
        self.version = str(first["version"])
        if finished.timed_out:
            raise StepTimeout(Step.COMPILE, timeout_s)
        if finished.over_disk:
            raise CompileError(f"compiling its kernels fills more than {RESULT_BYTES >> 20} MiB of disk")
        found: list[CompiledKernel | CompileError] = []
        for number, job in enumerate(jobs):
            if number >= len(records):
                raise CompileError(
                    f"Triton {self.version} died of the kernel {job['function']}: {_last_line(finished)}", job["line"]
                )
            header, blobs = records[number]
            found.append(self._kernel(job, header, blobs, files, finished))
        return found

    def _kernel(
        self,
        job: dict[str, Any],
        header: dict[str, Any],
        blobs: list[bytes],
        files: list[dict[str, Any]],
        finished: sandbox.Finished,
    ) -> CompiledKernel | CompileError:
        try:
            if "error" in header:
                return _triton_error(header, job, finished, files)
            ttir = blobs[0].decode()
            module = read_module(ttir, files[job["file"]]["name"])
            kernel = CompiledKernel(
                str(header["name"]),
                module,
                ttir,
                blobs[1],
                int(header["num_warps"]),
                int(header["num_ctas"]),
                int(header["shared"]),
                (int(header["global_scratch"][0]), int(header["global_scratch"][1])),
                tuple(header["signature"]),
                tuple(str(kind) for kind in header["parameters"]),
                tuple(_layout(each) for each in header["descriptors"]),
                resources_of(blobs[1], str(header["name"])),
            )
        except IrError as error:
            return CompileError(f"the kernel {job['function']} is refused: {error.message}", error.line)
        except (CubinUnreadable, KeyError, IndexError, TypeError, ValueError) as error:
            return CompileError(f"what Triton left of the kernel {job['function']} cannot be read: {error}")
        if kernel.shared_bytes > self._shared_bytes:
            return OutOfSharedMemory(
                f"the kernel {job['function']} needs {kernel.shared_bytes:,} bytes of shared memory, and a block may "
                f"use {self._shared_bytes:,}: smaller blocks, or fewer num_stages",
                job["function"],
                job["line"],
            )
        return kernel


class OutOfSharedMemory(CompileError):
    """A kernel whose blocks do not fit on the GPU: another configuration may."""

    def __init__(self, message: str, function: str, line: int | None) -> None:
        super().__init__(message, line)
        self.function = function


def _records(data: bytes) -> list[tuple[dict[str, Any], list[bytes]]]:
    """What the process wrote, as far as it is whole."""
    found = []
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        at += 8
        try:
            header = json.loads(data[at : at + size])
            lengths = [int(n) for n in header["blobs"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        at += size
        blobs = []
        for length in lengths:
            blobs.append(data[at : at + length])
            at += length
        if at > len(data):
            break
        found.append((header, blobs))
    return found


def _layout(entry: Any) -> DescriptorLayout | None:
    if not entry:
        return None
    return DescriptorLayout(
        int(entry["swizzle"]), int(entry["elem_size"]), int(entry["elem_type"]),
        tuple(int(n) for n in entry["block_size"]), bool(entry["fp4_padded"]),
    )  # fmt: skip


def _triton_error(
    header: Mapping[str, Any], job: dict[str, Any], finished: sandbox.Finished, files: list[dict[str, Any]]
) -> CompileError:
    message, line = str(header["error"]), header["line"]
    if "PassManager" in message or "ptxas" in message:  # what was wrong, the compiler printed
        printed = [each for each in finished.output.splitlines() if "error:" in each or "fatal" in each]
        message = f"{message}: {printed[0].strip()}" if printed else message
    where = ""
    if header["file"] not in (None, MAIN) and line is not None:
        where, line = f" ({files[header['file']]['name']}, line {line})", None
    elif line is None:
        line = job["line"]
    return CompileError(f"{job['function']}: {' '.join(message.split())[:1500]}{where}", line)


def _last_line(finished: sandbox.Finished) -> str:
    lines = [line for line in finished.output.strip().splitlines() if line.strip()]
    return (lines[-1:] or [f"exit status {finished.status}"])[0].strip()[:300]


# --- what is compiled -------------------------------------------------------------------------------


def _checked_functions(
    program: LaunchProgram, sources: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[FunctionValue, JitFunction]]:
    """The modules that Triton is given, and each function as its file has it. Raises SourceRefused."""
    named = dict(program.functions)
    opened = {number: SourceFile(sources[number]) for number in {function.file for function in named}}
    functions = {function: opened[function.file].function(function.name) for function in named}
    reached: list[FunctionValue] = []
    pending = [launch.function for launch in program.launches]
    pending += [value for launch in program.launches for _, each in launch.arguments for value in _functions_in(each)]
    while pending:
        function = pending.pop()
        if function in reached:
            continue
        if function not in functions:
            raise SourceRefused(f"the kernel {function.name} is not among what was traced")
        reached.append(function)
        values = dict(named[function])
        try:
            check(functions[function], values)
        except SourceRefused as error:
            raise SourceRefused(error.message, error.line if function.file == MAIN else None) from None
        pending += [inner for name in functions[function].names for inner in _functions_in(values.get(name))]
    files = []
    for number in range(len(sources)):
        mine = sorted((f for f in reached if f.file == number), key=lambda f: functions[f].node.lineno)
        text = module_text(opened[number], [functions[f] for f in mine]) if mine else ""
        globals_: dict[str, list[Any]] = {}
        for function in mine:
            wanted = set(functions[function].names)
            globals_.update({name: encode(value) for name, value in named[function] if name in wanted})
        files.append({"name": f"kernels_{number}.py", "text": text, "globals": sorted(globals_.items())})
    return files, functions


def _functions_in(value: Value) -> list[FunctionValue]:
    if isinstance(value, FunctionValue):
        return [value]
    return [inner for item in value.items for inner in _functions_in(item)] if isinstance(value, TupleValue) else []


def _kernel_job(launch: Launch, function: JitFunction, capability: int) -> dict[str, Any]:
    names = [name for name, _ in launch.arguments]
    if names != function.parameters and function.node.args.vararg is None:
        raise CompileError(f"{function.name} is launched with other parameters than it has", launch.line or None)
    options = {name: value for name, value in asdict(launch.options).items() if value is not None}
    return {
        "file": launch.function.file,
        "function": launch.function.name,
        "arguments": [[name, _as_compiled(value)] for name, value in launch.arguments],
        "keyword_only": [argument.arg for argument in function.node.args.kwonlyargs],
        "options": options,
        "capability": capability,
        "line": function.node.lineno if launch.function.file == MAIN else None,
    }


def _as_compiled(value: Value) -> list[Any]:
    """What Triton is shown of an argument."""
    if isinstance(value, TensorValue):
        return ["pointer", value.dtype, 16 if value.byte_offset % 16 == 0 else 16 + value.byte_offset % 16]
    if isinstance(value, DescriptorValue):
        tensor = value.tensor
        return [
            "descriptor",
            tensor.dtype,
            list(tensor.shape),
            list(tensor.strides),
            list(value.block_shape),
            value.padding,
        ]
    if isinstance(value, TupleValue):
        return ["tuple", [_as_compiled(item) for item in value.items]]
    return encode(value)


def _variant(launch: Launch) -> Variant:
    key = [[name, _specialized(value)] for name, value in launch.arguments]
    return Variant(launch.function, json.dumps([key, asdict(launch.options)]))


def _specialized(value: Value) -> Any:
    """What of an argument may change the code: of whole numbers, not more than Triton looks at where it may be
    constant.

    A parameter that is a constexpr is told by its value, and here every number is, unless it is neither 1 nor known: so
    two launches share code only where all that differs are tensors of the same type and alignment.
    """
    if isinstance(value, TensorValue):
        return ["pointer", value.dtype, value.byte_offset % 16 == 0]
    if isinstance(value, TupleValue):
        return ["tuple", [_specialized(item) for item in value.items]]
    return _as_compiled(value)
