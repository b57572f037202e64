"""The process in which Triton compiles: the only file here that imports it.

It is given modules that hold whitelisted kernels and nothing else (`source/`), and for each kernel what a launch hands
over: types and alignments of tensors, numbers, constants. Triton itself decides what it specializes on, by the way that
it takes without running anything (`JITFunction.warmup`), for the GPU that a driver of ours names. What comes out is
TTIR, the cubin and a few numbers, in one record per kernel, written as soon as it is done: a record that is missing
says which kernel Triton died of.

Triton's internals that this relies on (triton_tests/test_triton_itself.py notices when they change): JITFunction.warmup
and the `asm`, `metadata` and `src` of what it returns; triton.runtime.driver.set_active with the three questions that
_Driver answers; triton.compiler.errors.CompilationError with `src`, `node` and `error_message`.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

OLDEST = (3, 4)


def main() -> int:
    job = json.loads(sys.stdin.read())
    sys.path.insert(0, job["tree"])
    from accelopt_core.judging.orphans import end_with_parent
    from infra.isolation import linux, namespaces, report, sandbox, system_calls

    end_with_parent(job["parent"])
    pid, no_namespaces = -1, "not wanted"
    if job["namespaces"]:
        pid, no_namespaces = namespaces.fork_isolated(namespaces.Mounts((), Path(job["work"]), programs=True))
    if pid > 0:
        os.close(job["report_fd"])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    no_filter = ""
    try:
        system_calls.refuse_system_calls(programs=True)
    except linux.IsolationUnavailable as error:
        no_filter = str(error)
    sandbox.limit_this_process(sandbox.ProcessLimits(**job["limits"]))
    sys.path.remove(job["tree"])
    try:
        version = _triton_version()
    except ImportError as error:
        _write(job, {"missing": f"{error}"})
        return 1
    os.write(job["report_fd"], report.describe(no_namespaces, no_filter, programs=True).encode())
    os.close(job["report_fd"])
    _write(job, {"version": version})
    modules = _modules(job)
    for kernel in job["kernels"]:
        _write(job, *_compiled(kernel, modules))
    return 0


def _triton_version() -> str:
    """Raises ImportError, also for one that is too old."""
    import triton

    version = str(triton.__version__)
    _need_no_key_of_all_files(version)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise ImportError(f"Triton {version} is too old: {'.'.join(map(str, OLDEST))} or newer is needed")
    return version


def _need_no_key_of_all_files(version: str) -> None:
    """Triton puts a hash of its whole installation into its cache's keys, which takes longer than compiling a kernel;
    the cache here is this process's own. Triton's own pool of compilers does so too (_compile_warmup_pool.py, 3.9)."""
    import triton.compiler.compiler
    import triton.runtime.cache

    for module in (triton.runtime.cache, triton.compiler.compiler):
        if hasattr(module, "triton_key"):
            module.triton_key = lambda: version


def _write(job: dict[str, Any], header: dict[str, Any], *blobs: bytes) -> None:
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    left = memoryview(len(text).to_bytes(8, "little") + text + b"".join(blobs))
    while left:
        left = left[os.write(job["result_fd"], left) :]


# --- the kernels' modules ---------------------------------------------------------------------------


def _modules(job: dict[str, Any]) -> list[types.ModuleType]:
    """Each file's functions, executed with the globals that are no functions, and then given those that are."""
    made = []
    for file in job["files"]:
        path = Path(job["work"], file["name"])
        path.write_text(file["text"], encoding="utf-8")
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        sys.modules[path.stem] = module
        made.append(module)
        plain = {name: _value(value, made) for name, value in file["globals"] if not _names_a_function(value)}
        module.__dict__.update(plain)
        exec(compile(file["text"], str(path), "exec", dont_inherit=True), module.__dict__)
    for file, module in zip(job["files"], made):
        late = {name: _value(value, made) for name, value in file["globals"] if _names_a_function(value)}
        module.__dict__.update(late)
    return made


def _names_a_function(value: list[Any]) -> bool:
    return value[0] == "function" or any(isinstance(item, list) and item and _names_a_function(item) for item in value)


def _value(value: list[Any], modules: list[types.ModuleType]) -> Any:
    """Of a global or an argument, as `program_file.encode` writes it; of tensors only what Triton asks of them."""
    import triton.language as tl

    kind, *fields = value
    if kind in ("int", "bool", "str"):
        return fields[0]
    if kind == "none":
        return None
    if kind == "float":
        return float.fromhex(fields[0])
    if kind == "dtype":
        return getattr(tl, fields[0])
    if kind == "function":
        return getattr(modules[fields[0]], fields[1])
    if kind == "tuple":
        return tuple(_value(item, modules) for item in fields[0])
    if kind == "constexpr":
        return tl.constexpr(_value(fields[0], modules))
    if kind == "module":
        return _named(fields[0])
    if kind == "pointer":
        return _Pointer(*fields)
    assert kind == "descriptor", kind
    from triton.tools.tensor_descriptor import TensorDescriptor

    dtype, shape, strides, block, padding = fields
    return TensorDescriptor(
        _Pointer(dtype, 16), shape, strides, block, **({} if padding == "zero" else {"padding": padding})
    )


def _named(dotted: str) -> Any:
    """`triton.language.extra.libdevice`: a module, or something in one."""
    try:
        return importlib.import_module(dotted)
    except ImportError:
        place, _, name = dotted.rpartition(".")
        return getattr(_named(place), name)


class _Pointer:
    """A tensor as far as Triton looks at one: its type and how its address is aligned."""

    def __init__(self, dtype: str, alignment: int) -> None:
        self.dtype = _Dtype(dtype)
        self._address = alignment

    def data_ptr(self) -> int:
        return self._address

    def ptr_range(self) -> int:
        return 0


class _Dtype:
    """`torch.float16`, as text: Triton takes what stands behind the last dot."""

    _known: dict[str, _Dtype] = {}

    def __new__(cls, name: str) -> _Dtype:
        if name not in cls._known:
            cls._known[name] = super().__new__(cls)
        return cls._known[name]

    def __init__(self, name: str) -> None:
        self.name = name
        self.itemsize = max(1, int((re.findall(r"\d+", name) or ["8"])[0]) // 8)

    def __str__(self) -> str:
        return f"torch.{self.name}"

    __repr__ = __str__


class _Driver:
    """The GPU that is compiled for, which need not be there."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)


# --- compiling --------------------------------------------------------------------------------------


def _compiled(kernel: dict[str, Any], modules: list[types.ModuleType]) -> tuple[Any, ...]:
    import triton

    triton.runtime.driver.set_active(_Driver(kernel["capability"]))
    function = getattr(modules[kernel["file"]], kernel["function"])
    try:
        given = [(name, _value(value, modules)) for name, value in kernel["arguments"]]
        keywords = set(kernel["keyword_only"])
        positional = [value for name, value in given if name not in keywords]
        by_name = {name: value for name, value in given if name in keywords}
        made = function.warmup(*positional, grid=(1,), **by_name, **kernel["options"])
    except Exception as error:  # Triton raises what it likes
        return (_error(error, modules),)
    metadata = made.metadata
    header = {
        "name": str(metadata.name),
        "num_warps": int(metadata.num_warps),
        "num_ctas": int(metadata.num_ctas),
        "shared": int(metadata.shared),
        "global_scratch": [int(metadata.global_scratch_size), int(metadata.global_scratch_align)],
        "profile_scratch": [int(getattr(metadata, "profile_scratch_size", 0) or 0)],
        "tensor_memory": int(getattr(metadata, "tmem_size", 0) or 0),
        "descriptors": json.loads(json.dumps(getattr(metadata, "tensordesc_meta", None) or [])),
        "signature": [_signature(type_) for type_ in made.src.signature.values()],
        "attributes": sorted([list(path), [list(pair) for pair in pairs]] for path, pairs in made.src.attrs.items()),
        "parameters": _ptx_parameters(made.asm["ptx"]),
    }
    return header, made.asm["ttir"].encode(), bytes(made.asm["cubin"])


def _signature(type_: Any) -> Any:
    return [_signature(item) for item in type_] if isinstance(type_, (tuple, list)) else str(type_)


_ENTRY = re.compile(r"\.visible\s+\.entry\s+[\w$.]+\s*\(([^)]*)\)")


def _ptx_parameters(ptx: str) -> list[str]:
    """Types of the entry's parameters, e.g. `u64`, `b8[128]`: what a launch must hand over, in this order."""
    found = _ENTRY.search(ptx)
    assert found is not None, "the PTX has no entry"
    types_of = []
    for parameter in filter(None, (each.strip() for each in found.group(1).split(","))):
        kind = re.search(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", parameter)
        size = re.search(r"\[(\d+)\]", parameter)
        assert kind is not None, f"a parameter in other words: {parameter}"
        types_of.append(kind.group(1) + (f"[{size.group(1)}]" if size else ""))
    return types_of


def _error(error: Exception, modules: list[types.ModuleType]) -> dict[str, Any]:
    """Message, and the place in the candidate's files: of the innermost error that is in one."""
    from triton.compiler.errors import CompilationError

    file, line, messages = None, None, []
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CompilationError):
            place = _place(seen, modules)
            file, line = place or (file, line)
            if seen.error_message:
                messages.append(str(seen.error_message))
        else:
            messages.append(f"{type(seen).__name__}: {seen}" if str(seen) else type(seen).__name__)
        seen = seen.__cause__
    said = messages[-1] if messages else str(error)
    if line is None and not isinstance(error, CompilationError):
        said = f"{type(error).__name__}: {error}"
    return {"error": said[:4000], "file": file, "line": line}


def _place(error: Any, modules: list[types.ModuleType]) -> tuple[int, int] | None:
    node = getattr(error, "node", None)
    if error.src is None or not isinstance(node, ast.AST) or not hasattr(node, "lineno"):
        return None
    for number, module in enumerate(modules):
        for value in vars(module).values():
            if getattr(value, "src", None) == error.src and getattr(value, "__module__", "") == module.__name__:
                return number, value.fn.__code__.co_firstlineno + int(node.lineno)  # the decorator takes one line
    return None


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
