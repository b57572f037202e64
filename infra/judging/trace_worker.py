"""The process that runs a candidate's Python: it traces the kernel on shapes and leaves a program.

It sees no input data, no reference and no seed. Started by `simulator_toolchain.py` with the job on stdin, and with
three open files: for the program, for what failed, and for what isolates it, said before the candidate is read in.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> int:
    job = json.loads(sys.stdin.read())
    sys.path.insert(0, job["tree"])
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = job["machine"]
    # All that `_trace` needs of ours: once isolated, only the simulator's files are left to import from.
    from accelopt_core.judging.orphans import end_with_parent
    from infra.isolation import linux, namespaces, report, sandbox, system_calls  # noqa: F401
    from infra.judging import integrity  # noqa: F401

    end_with_parent(job["parent"])
    mounts = namespaces.Mounts((Path(job["tree"], "nki_sim"),), Path(job["work"]))
    pid, refused = namespaces.fork_isolated(mounts) if job["namespaces"] else (-1, "not wanted")
    if pid > 0:
        os.close(job["report_fd"])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _trace(job, refused)


def _trace(job: dict[str, Any], no_namespaces: str) -> int:
    import nki_sim
    from infra.isolation import linux, report, sandbox, system_calls
    from infra.judging import integrity
    from nki_sim import program_file
    from nki_sim.dtypes import as_dtype
    from nki_sim.errors import NkiError
    from nki_sim.session import TensorSpec

    nki_sim.install()
    tracer = integrity.snapshot()
    no_filter = ""
    try:
        system_calls.refuse_system_calls()
    except linux.IsolationUnavailable as error:
        no_filter = str(error)
    sandbox.limit_this_process(sandbox.ProcessLimits(**job["limits"]))
    os.write(job["report_fd"], report.describe(no_namespaces, no_filter).encode())
    os.close(job["report_fd"])
    arguments = [
        TensorSpec(tuple(a["shape"]), as_dtype(a["dtype"])) if "shape" in a else a["value"] for a in job["arguments"]
    ]
    source = Path(job["work"], job["path"] or "candidate.py")
    try:
        kernel = _load(source, job)
        program = nki_sim.trace(kernel, *arguments, machine=job["machine"])
        changed = integrity.changed_since(tracer)
        if changed:
            return _failed(job, f"the kernel's file changes the tool that compiles it: {', '.join(changed[:3])}", None)
        data = memoryview(program_file.dumps(program))
        while data:
            data = data[os.write(job["program_fd"], data) :]
    except NkiError as error:
        return _failed(job, f"{error}{_beside(error, source, job)}", error.line)
    except MemoryError:
        return _failed(job, f"tracing the kernel needs more than {job['limits']['memory_bytes'] >> 20} MiB", None)
    except Exception as error:  # the candidate may raise anything
        return _failed(job, f"{type(error).__name__}: {error}{_beside(error, source, job)}", _line(error, source))
    return 0


def _load(source: Path, job: dict[str, Any]) -> Any:
    module = _module_of_package(source, job) if job["module"] else _module_alone(source, job["text"])
    for name in job["entry_points"]:
        kernel = getattr(module, name, None)
        if callable(kernel):
            code = getattr(getattr(kernel, "__wrapped__", kernel), "__code__", None)
            if job["module"] and getattr(code, "co_filename", "") != str(source):
                raise NameError(f"{name} is imported from another file: optimize it in that one")
            return kernel
    raise NameError(f"the file defines no kernel: name it {' or '.join(job['entry_points'])}")


def _module_alone(source: Path, text: str) -> Any:
    import linecache
    import types

    module = types.ModuleType("candidate")
    module.__file__ = str(source)
    sys.modules["candidate"] = module
    linecache.cache[str(source)] = (len(text), None, text.splitlines(True), str(source))
    exec(compile(text, str(source), "exec"), module.__dict__)
    return module


def _module_of_package(source: Path, job: dict[str, Any]) -> Any:
    """Imported among its neighbours, in the files of this process's own folder, by Python's own rules."""
    import importlib

    from nki_sim.session import pass_over

    work = Path(job["work"])
    files = {work / path: text for path, text in job["neighbours"]}
    pass_over(str(path) for path in files)
    for path, text in {**files, source: job["text"]}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.dont_write_bytecode = True
    sys.path[:0] = list(dict.fromkeys([str(work), str(source.parent)]))
    return importlib.import_module(job["module"])


def _failed(job: dict[str, Any], message: str, line: int | None) -> int:
    os.write(job["failure_fd"], json.dumps({"message": message[:4000], "line": line}).encode())
    return 1


def _line(error: BaseException, source: Path) -> int | None:
    if isinstance(error, SyntaxError):
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
            return f" ({files[frame.filename]}, line {frame.lineno})"
        if frame.filename == str(source):
            break
    return ""


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads that the candidate left running, and what it registered for the end, are not waited for
