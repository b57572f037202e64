"""The process that runs a candidate's Python: it traces kernels on shapes and leaves a program of each.

Mostly that is one kernel. Rewrites of one kernel whose programs are only priced may come several at a time: starting a
process takes longer than tracing most of them does. It sees no input data, no reference and no seed. Started by
`simulator_toolchain.py`, or forked by `trace_server.py`, with the job on stdin, and with three open files: for the
programs, for what failed, and for what isolates it, said before the candidate is read in.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infra.simulator.integrity import Snapshot


def main() -> int:
    job = json.loads(sys.stdin.read())
    sys.path.insert(0, job["tree"])
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = job["machine"]
    return carry_out(job)


def carry_out(job: dict[str, Any], tracer: Snapshot | None = None) -> int:
    """Isolate this process, or rather a child of it, and trace there. Returns the exit status.

    `tracer`: the simulator as it is here, where the process that this one was forked from has taken it down.
    """
    # All that `_trace` needs of ours: once isolated, only the simulator's files are left to import from.
    from accelopt_core.judging.orphans import end_with_parent
    from accelopt_core.toolchain import constant  # noqa: F401
    from infra.isolation import linux, namespaces, report, sandbox, system_calls  # noqa: F401
    from infra.simulator import integrity  # noqa: F401

    end_with_parent(job["parent"])
    mounts = namespaces.Mounts((Path(job["tree"], "nki_sim"),), Path(job["work"]))
    pid, refused = namespaces.fork_isolated(mounts) if job["namespaces"] else (-1, "not wanted")
    if pid < 0 and job.get("forked"):
        return 1  # beside the process that forks for all, no candidate is read in; nothing is reported
    if pid > 0:
        os.close(job["report_fd"])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _trace(job, refused, tracer)


def _trace(job: dict[str, Any], no_namespaces: str, tracer: Snapshot | None) -> int:
    import nki_sim
    from accelopt_core.toolchain import constant
    from infra.isolation import linux, report, sandbox, system_calls
    from infra.simulator import integrity
    from nki_sim.dtypes import as_dtype
    from nki_sim.encoding import program_file
    from nki_sim.errors import NkiError
    from nki_sim.tracing import repeated
    from nki_sim.tracing.session import TensorSpec

    nki_sim.install()
    tracer = integrity.snapshot() if tracer is None else tracer
    no_filter = ""
    try:
        system_calls.refuse_system_calls()
    except linux.IsolationUnavailable as error:
        if job.get("forked"):
            return 1  # as above
        no_filter = str(error)
    sandbox.limit_this_process(sandbox.ProcessLimits(**job["limits"]))
    os.write(job["report_fd"], report.describe(no_namespaces, no_filter).encode())
    os.close(job["report_fd"])

    def given(argument: dict[str, Any]) -> Any:
        if "shape" in argument:
            return TensorSpec(tuple(argument["shape"]), as_dtype(argument["dtype"]))
        return as_dtype(argument["element_type"]) if "element_type" in argument else constant(argument["value"])

    source = Path(job["work"], job["path"] or "candidate.py")
    presets = [[given(argument) for argument in shapes] for shapes in job["arguments"]]
    traced: list[bytes] = []

    def programs(text: str) -> list[bytes]:
        made = []
        for arguments in presets:
            try:
                program = nki_sim.trace(_load(source, text, job, True), *arguments, machine=job["machine"])
            except Exception as error:  # pass by pass, it names the first one that fails
                if not job["says_why"] and not repeated.gave_rise_to(error):
                    raise
                program = nki_sim.trace(_load(source, text, job, False), *arguments, machine=job["machine"])
            made.append(program_file.dumps(program))
        return made

    if job["module"]:
        _lay_out(source, job)
    for text in job["texts"]:
        try:
            traced += programs(text)
        except NkiError as error:
            _failed(job, f"{error}{_beside(error, source, job)}", error.line)
            traced.append(b"")
        except MemoryError:
            _failed(job, f"tracing the kernel needs more than {job['limits']['memory_bytes'] >> 20} MiB", None)
            return 1
        except Exception as error:  # the candidate may raise anything
            said = error.msg if isinstance(error, SyntaxError) and error.filename == str(source) else str(error)
            if isinstance(error, AssertionError) and not said:
                said = _text_at(text, _line(error, source))
            _failed(job, f"{type(error).__name__}: {said}{_beside(error, source, job)}", _line(error, source))
            traced.append(b"")
    if traced != [b""] and (changed := integrity.changed_since(tracer)):
        _failed(job, f"the kernel's file changes the tool that compiles it: {', '.join(changed[:3])}", None)
        return 1
    for each in traced:
        data = memoryview(len(each).to_bytes(LENGTH_BYTES, "little") + each)
        while data:
            data = data[os.write(job["program_fd"], data) :]
    return 0


def _text_at(text: str, line: int | None) -> str:
    """A line of the kernel's file, for what says nothing by itself."""
    lines = text.splitlines()
    return lines[line - 1].strip() if line is not None and line <= len(lines) else ""


LENGTH_BYTES = 8
"""Before each program that is written: how long it is. One of length 0 stands for all programs of a kernel that failed;
why it did is a line of its own in the other file."""


def _load(source: Path, text: str, job: dict[str, Any], few_passes: bool) -> Any:
    """The kernel, of a module made anew: nothing is left of an earlier shape.

    few_passes: of loops whose passes are alike only a few are run, where the kernel's file stands alone.
    """
    from nki_sim.tracing.session import count_lines_of, count_the_rest_for

    count_lines_of(str(source))
    module = _module_of_package(source, text, job) if job["module"] else _module_alone(source, text, few_passes)
    for name in job["entry_points"]:
        kernel = getattr(module, name, None)
        if callable(kernel):
            line = _defined_at(kernel, name, source, text)
            if line is None:
                raise NameError(f"{name} is imported from another file: optimize it in that one")
            count_the_rest_for(line)
            return kernel
    raise NameError(f"the file defines no kernel: name it {' or '.join(job['entry_points'])}")


@lru_cache(maxsize=1)
def _lines_of_functions(text: str) -> dict[str, int]:
    """Of those of one name the one that is found first."""
    import ast

    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, node.lineno)
    return found


_MOST_DECORATORS = 100


def _defined_at(kernel: Any, name: str, source: Path, text: str) -> int | None:
    """The line of the kernel's def; None where that is in another file, which alone could make it faster.

    A decorator may have put a function of its own in its place; a name may stand for a function of another.
    """
    line = _lines_of_functions(text).get(name)
    if line is not None:
        return line
    for _ in range(_MOST_DECORATORS):  # a candidate may make a circle of them
        kernel = getattr(kernel, "__wrapped__", kernel)
    code: Any = getattr(kernel, "__code__", None)
    return code.co_firstlineno if getattr(code, "co_filename", "") == str(source) else None


def _module_alone(source: Path, text: str, few_passes: bool) -> Any:
    import linecache
    import types

    from nki_sim.tracing import marks, repeated

    module = types.ModuleType("candidate")
    module.__file__ = str(source)
    sys.modules["candidate"] = module
    linecache.cache[str(source)] = (len(text), None, text.splitlines(True), str(source))
    names = module.__dict__
    compiled = repeated.compiled if few_passes else marks.compiled
    exec(compiled(text, str(source), names), names)
    return module


def _lay_out(source: Path, job: dict[str, Any]) -> None:
    """For the kernel's file in this process's own folder, with its neighbours there and found by Python."""
    work = Path(job["work"])
    for path, text in {**{work / path: text for path, text in job["neighbours"]}, source: ""}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.dont_write_bytecode = True
    sys.path.remove(job["tree"])
    for name in [name for name in sys.modules if name.partition(".")[0] in ("accelopt_core", "infra", "ka_extensions")]:
        del sys.modules[name]  # a user may have a package of that name
    sys.path.insert(0, str(work))
    if source.parent != work:  # behind Python's own modules, one of whose names a file of the package may have
        own = next((number for number, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
        sys.path.insert(own, str(source.parent))


def _module_of_package(source: Path, text: str, job: dict[str, Any]) -> Any:
    """Imported among its neighbours, by Python's own rules."""
    import importlib
    import linecache

    from nki_sim.tracing import marks

    source.write_text(text, encoding="utf-8")
    linecache.checkcache(str(source))
    inside = job["work"] + os.sep
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(inside):
            del sys.modules[name]
    with marks.imported([Path(job["work"])], {source: text}):
        return importlib.import_module(job["module"])


def _failed(job: dict[str, Any], message: str, line: int | None) -> None:
    os.write(job["failure_fd"], json.dumps({"message": message[:4000], "line": line}).encode() + b"\n")


def _line(error: BaseException, source: Path) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(source):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(source)]
    return lines[-1] if lines else None


def _beside(error: BaseException, source: Path, job: dict[str, Any]) -> str:
    """Where among the neighbours it was raised, if it was there."""
    files = {str(Path(job["work"], path)): path for path, _ in job["neighbours"]}
    frames = traceback.extract_tb(error.__traceback__)
    if error.__cause__ is not None:  # which the simulator has put into other words
        frames += traceback.extract_tb(error.__cause__.__traceback__)
    for frame in reversed(frames):
        if frame.filename in files:
            return f" ({files[frame.filename]}, line {frame.lineno}){_what_next(error)}"
        if frame.filename == str(source):
            break
    return _what_next(error)


def _what_next(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("neuronxcc"):
        return "; a file in NKI 0.1 that a kernel imports is rewritten by hand, or by `python -m nki_sim migrate`"
    if isinstance(error, ModuleNotFoundError):
        return "; it lies neither in the kernel's package, nor beside it, nor in its project, and is not installed here"
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "; no such file lies around the kernel's"
    if isinstance(error, FileNotFoundError):
        return "; only files that are imported travel with a kernel: put what it reads into a module"
    return ""


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads that the candidate left running, and what it registered for the end, are not waited for
