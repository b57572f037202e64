"""The process that runs a candidate's Python: it traces the function on shapes, and leaves what it does as data.

It sees no input data, no reference, no seed, no GPU, no torch and no triton. Started by `tracer.py` with the job on
stdin and three open files: for the program, for what failed, and for what isolates it, said before the candidate is
read in. The function is traced several times, each time with other tensors: whatever then differs was kept between
calls.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nki_optimizer_triton.program.launch_program import LaunchProgram, TensorValue
    from nki_optimizer_triton.tracing.recorder import Recording

CALLS = 3
"""Traces of one function: what counts its calls, or keeps something of the last one, differs in the second or third."""


def main() -> int:
    job = json.loads(sys.stdin.read())
    sys.path[:] = [job["tree"], *sys.path, str(Path(__file__).resolve().parents[2])]
    # all that `_trace` needs of ours: once isolated, nothing of the tree is left to import from
    from accelopt_core.judging.orphans import end_with_parent
    from infra.isolation import linux, namespaces, report, sandbox, system_calls
    from nki_optimizer_triton.program import launch_program, writing  # noqa: F401
    from nki_optimizer_triton.source import functions  # noqa: F401
    from nki_optimizer_triton.tracing import gpu_facts, kernels, recorder, torch_stand_in, triton_stand_in  # noqa: F401

    end_with_parent(job["parent"])
    pid, no_namespaces = -1, "not wanted"
    if job["namespaces"]:
        pid, no_namespaces = namespaces.fork_isolated(namespaces.Mounts((), Path(job["work"])))
    if pid > 0:
        os.close(job["report_fd"])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    no_filter = ""
    try:
        system_calls.refuse_system_calls()
    except linux.IsolationUnavailable as error:
        no_filter = str(error)
    sandbox.limit_this_process(sandbox.ProcessLimits(**job["limits"]))
    os.write(job["report_fd"], report.describe(no_namespaces, no_filter).encode())
    os.close(job["report_fd"])
    return _trace(job)


def _trace(job: dict[str, Any]) -> int:
    from nki_optimizer_triton.tracing.recorder import Refused

    source = Path(job["work"], job["path"] or "candidate.py")
    try:
        data = _traced(job, source)
    except Refused as error:
        return _failed(job, str(error), _line(error, source), error)
    except MemoryError:
        return _failed(job, f"tracing needs more than {job['limits']['memory_bytes'] >> 20} MiB", None, None)
    except SyntaxError as error:
        return _failed(job, f"SyntaxError: {error.msg}", error.lineno if error.filename == str(source) else None, error)
    except BaseException as error:  # the candidate may raise anything
        return _failed(job, f"{type(error).__name__}: {error}", _line(error, source), error)
    left = memoryview(data)
    while left:
        left = left[os.write(job["program_fd"], left) :]
    return 0


def _traced(job: dict[str, Any], source: Path) -> bytes:
    from nki_optimizer_triton.program.writing import dumps
    from nki_optimizer_triton.tracing import kernels
    from nki_optimizer_triton.tracing.gpu_facts import GpuFacts
    from nki_optimizer_triton.tracing.recorder import Refused

    gpu = job["gpu"]
    _install(GpuFacts(**{**gpu, "capability": tuple(gpu["capability"])}))
    kernels.choices = kernels.Choices(job["choices"])
    kernels.files = {str(source): 0}
    kernels.files.update({str(Path(job["work"], path)): n + 1 for n, (path, _) in enumerate(job["neighbours"])})
    function = _load(source, job)
    kept: list[Any] = []  # what one call was given is alive in the next, so that id() is another
    programs = [_call(function, job, source, kept) for _ in range(CALLS)]
    for number, other in enumerate(programs[1:], 2):
        if other != programs[0]:
            raise Refused(
                f"call {number} does something else than call 1 ({_difference(programs[0], other)}): it keeps "
                "something between calls, which is refused"
            )
    return dumps(programs[0])


def _install(gpu: Any) -> None:
    """From here on, `torch` and `triton` are the stand-ins, whatever is installed."""
    from nki_optimizer_triton.tracing import torch_stand_in, triton_stand_in

    for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "triton")]:
        del sys.modules[name]
    sys.modules.update(torch_stand_in.modules(gpu))
    sys.modules.update(triton_stand_in.modules(gpu))


# --- one call ---------------------------------------------------------------------------------------


def _call(function: Any, job: dict[str, Any], source: Path, kept: list[Any]) -> LaunchProgram:
    from nki_optimizer_triton.program.launch_program import LaunchProgram
    from nki_optimizer_triton.tracing import kernels, recorder, tensors

    recording = recorder.begin(str(source))
    arguments: list[Any] = []
    shapes: list[tuple[int, ...]] = []
    for argument in job["arguments"]:
        if "shape" in argument:
            shapes.append(tuple(argument["shape"]))
            arguments.append(tensors.given(recording, shapes[-1], argument["dtype"]))
        elif "element_type" in argument:
            arguments.append(tensors.dtype(argument["element_type"]))
        else:
            arguments.append(_constant(argument["value"]))
    kept.append(arguments)
    given = {id(a._storage): n for n, a in enumerate(a for a in arguments if isinstance(a, tensors.Tensor))}
    returned = function(*arguments)
    outputs = tuple(_output(each, recording, given, shapes) for each in _listed(returned))
    functions = _functions(source, job)
    recorder.end()
    return LaunchProgram(
        len(shapes),
        tuple(shapes),
        tuple(recording.buffers),
        tuple(recording.steps),
        outputs,
        functions,
        tuple(kernels.choices.tunables.values()),
    )


def _constant(value: Any) -> Any:
    return tuple(map(_constant, value)) if isinstance(value, list) else value


def _listed(returned: Any) -> list[Any]:
    from nki_optimizer_triton.tracing.recorder import Refused

    if returned is None:
        raise Refused("the function returns nothing: return the tensors that it computes")
    if isinstance(returned, dict):
        return list(returned.values())
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _output(value: Any, recording: Recording, given: dict[int, int], shapes: list[tuple[int, ...]]) -> TensorValue:
    from nki_optimizer_triton.tracing.recorder import Refused
    from nki_optimizer_triton.tracing.tensors import Tensor

    if not isinstance(value, Tensor):
        raise Refused(f"the function returns a {type(value).__name__}: return the tensors that it computes")
    if value._storage.recording is not recording:
        raise Refused("the function returns a tensor of an earlier call: nothing may be kept between calls")
    number = given.get(id(value._storage))
    if number is not None and (tuple(value.shape) != shapes[number] or value._offset or not value.is_contiguous()):
        raise Refused(
            f"the function returns a view of its tensor argument {number}: return the argument itself where it is "
            "updated in place, or a tensor allocated in the function"
        )
    return value._value()


def _functions(source: Path, job: dict[str, Any]) -> Any:
    """Every kernel that was launched or named by one, with what its globals stand for."""
    from nki_optimizer_triton.program.launch_program import MAIN
    from nki_optimizer_triton.source.functions import SourceFile, SourceRefused
    from nki_optimizer_triton.tracing import kernels
    from nki_optimizer_triton.tracing.recorder import Refused

    texts = [job["text"], *(text for _, text in job["neighbours"])]
    opened: dict[int, Any] = {}
    found = {}
    while missing := [function for function in kernels.known if function not in found]:
        for function in missing:
            try:
                if function.file not in opened:
                    opened[function.file] = SourceFile(texts[function.file])
                written = opened[function.file].function(function.name)
            except SourceRefused as error:
                where = f" (line {error.line})" if error.line is not None else ""
                raise Refused(error.message + (where if function.file != MAIN else "")) from error
            scope = kernels.known[function].fn.__globals__
            found[function] = tuple((name, _global(name, scope)) for name in written.names if name in scope)
    return tuple(sorted(found.items(), key=lambda pair: (pair[0].file, pair[0].name)))


def _global(name: str, scope: dict[str, Any]) -> Any:
    import types

    from nki_optimizer_triton.program.launch_program import ConstexprValue, ModuleValue
    from nki_optimizer_triton.tracing import kernels
    from nki_optimizer_triton.tracing.language_stand_in import constexpr, dotted
    from nki_optimizer_triton.tracing.recorder import Refused

    value = scope[name]
    place = dotted(value)
    if place is not None:
        return ModuleValue(place)
    if isinstance(value, types.ModuleType) and value.__name__ == "math":
        return ModuleValue("math")
    if value is not None and value is getattr(sys.modules.get("triton"), "cdiv", None):
        return ModuleValue("triton.cdiv")
    if (
        isinstance(value, types.ModuleType)
        or callable(value)
        and not isinstance(value, (kernels.Jit, kernels._Wrapped))
    ):
        if not isinstance(value, constexpr):
            raise Refused(f"a kernel names {name}, which is neither a number, text or type, nor a @triton.jit function")
    inner = kernels.encoded(value.value if isinstance(value, constexpr) else value, f"the global {name} of a kernel")
    annotated = scope.get("__annotations__", {}).get(name)
    if isinstance(value, constexpr) or annotated is constexpr or "constexpr" in str(annotated):
        return ConstexprValue(inner)
    return inner


def _difference(one: LaunchProgram, other: LaunchProgram) -> str:
    if len(one.steps) != len(other.steps):
        return f"{len(other.steps)} launches and fills, not {len(one.steps)}"
    for first, second in zip(one.steps, other.steps):
        if first != second:
            return f"line {second.line}"
    if one.buffers != other.buffers:
        return "other tensors are allocated"
    return "other tensors are returned" if one.outputs != other.outputs else "its kernels name other globals"


# --- reading the candidate in -----------------------------------------------------------------------


def _load(source: Path, job: dict[str, Any]) -> Any:
    from nki_optimizer_triton.tracing import kernels
    from nki_optimizer_triton.tracing.recorder import Refused

    module = _module_of_package(source, job) if job["module"] else _module_alone(source, job["text"])
    names = job["entry_points"]
    for name in names:
        function = getattr(module, name, None)
        if callable(function) and not isinstance(function, (kernels.Jit, kernels._Wrapped, type)):
            inner = function
            for _ in range(100):  # a candidate may make a circle of them
                inner = getattr(inner, "__wrapped__", inner)
            if getattr(getattr(inner, "__code__", None), "co_filename", str(source)) != str(source):
                raise Refused(f"{name} is imported from another file: optimize it in that one")
            return function
    raise Refused(f"the file defines no function {' or '.join(names)} that launches kernels")


def _module_alone(source: Path, text: str) -> Any:
    import linecache
    import types

    module = types.ModuleType("candidate")
    module.__file__ = str(source)
    sys.modules["candidate"] = module
    linecache.cache[str(source)] = (len(text), None, text.splitlines(True), str(source))
    exec(compile(text, str(source), "exec", dont_inherit=True), module.__dict__)
    return module


def _module_of_package(source: Path, job: dict[str, Any]) -> Any:
    """Imported among its neighbours, by Python's own rules, from this process's own folder."""
    import importlib

    work = Path(job["work"])
    for path, text in {**{work / path: text for path, text in job["neighbours"]}, source: job["text"]}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(work))
    if source.parent != work:
        own = next((number for number, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
        sys.path.insert(own, str(source.parent))
    return importlib.import_module(job["module"])


# --- what failed ------------------------------------------------------------------------------------


def _failed(job: dict[str, Any], message: str, line: int | None, error: BaseException | None) -> int:
    said = message + ("" if error is None else _beside(error, job))
    os.write(job["failure_fd"], json.dumps({"message": said[:4000], "line": line}).encode() + b"\n")
    return 1


def _line(error: BaseException, source: Path) -> int | None:
    cause = error.__cause__
    if cause is not None and getattr(cause, "line", None) is not None:
        return int(cause.line)  # type: ignore[attr-defined]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(source)]
    return lines[-1] if lines else None


def _beside(error: BaseException, job: dict[str, Any]) -> str:
    """Where among the neighbours it was raised, if it was there."""
    files = {str(Path(job["work"], path)): path for path, _ in job["neighbours"]}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f" ({files[frame.filename]}, line {frame.lineno})"
    return ""


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads that the candidate left running are not waited for
