"""The process that runs a candidate's Python: it traces the kernel on shapes and leaves a program file.

It sees no input data, no reference and no seed. Started by `infra.toolchains` with the job on stdin.
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
    from infra.sandbox import Limits, limit_this_process

    limit_this_process(Limits(**job["limits"]))
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = job["machine"]
    import nki_sim
    from nki_sim import program_file
    from nki_sim.dtypes import as_dtype
    from nki_sim.errors import NkiError
    from nki_sim.session import TensorSpec

    nki_sim.install()
    source = Path(job["source"])
    arguments = [
        TensorSpec(tuple(a["shape"]), as_dtype(a["dtype"])) if "shape" in a else a["value"] for a in job["arguments"]
    ]
    try:
        kernel = _load(source, tuple(job["entry_points"]))
        program = nki_sim.trace(kernel, *arguments, machine=job["machine"])
        program_file.dump(program, Path(job["program"]))
    except NkiError as error:
        return _failed(job, str(error), error.line)
    except MemoryError:
        return _failed(job, f"tracing the kernel needs more than {job['limits']['memory_bytes'] >> 20} MiB", None)
    except Exception as error:  # the candidate may raise anything
        return _failed(job, f"{type(error).__name__}: {error}", _line(error, source))
    return 0


def _load(source: Path, entry_points: tuple[str, ...]) -> Any:
    import types

    text = source.read_text(encoding="utf-8")
    module = types.ModuleType("candidate")
    module.__file__ = str(source)
    sys.modules["candidate"] = module
    exec(compile(text, str(source), "exec"), module.__dict__)
    for name in entry_points:
        if callable(getattr(module, name, None)):
            return getattr(module, name)
    raise NameError(f"the file defines no kernel: name it {' or '.join(entry_points)}")


def _failed(job: dict[str, Any], message: str, line: int | None) -> int:
    Path(job["failure"]).write_text(json.dumps({"message": message[:4000], "line": line}), encoding="utf-8")
    return 1


def _line(error: BaseException, source: Path) -> int | None:
    if isinstance(error, SyntaxError):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(source)]
    return lines[-1] if lines else None


if __name__ == "__main__":
    sys.exit(main())
