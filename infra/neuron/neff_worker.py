"""The process that runs a candidate's Python under a Neuron SDK: it leaves a NEFF and a word on how it went.

Started as a script by the interpreter that has NKI; imports nothing of ours and only the standard
library and NumPy before the candidate's own imports. It sees shapes, never inputs, seeds or references.
With `--probe` it says what this interpreter could compile with, and runs nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import resource
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

PACKAGES = ("nki", "neuronx-cc", "torch", "torch-xla", "torch-neuronx", "libneuronxla", "nrtpy", "numpy", "ml_dtypes")


Compile = Callable[[Any, "dict[str, Any]"], Any]
"""Calls the kernel with zeros of the declared shapes, and returns what it returned."""


class ToolchainTrouble(Exception):
    """The SDK, not the candidate."""


def main() -> int:
    job = json.loads(sys.stdin.read())
    if "--probe" in sys.argv:
        print(json.dumps(probe(job["modules"], job["import"])))
        return 0
    limit(job)
    said: dict[str, Any] = {"phase": "toolchain", "message": "", "line": None, "outputs": None, "parameters": []}
    try:
        compile_with = ROUTES[job["route"]]()
        said["phase"] = "import"
        kernel = load(job)
        said["parameters"] = parameters(kernel)
        said["phase"] = "call"
        outputs = compile_with(kernel, job)
        said["phase"] = "done"
        said["outputs"] = [describe(output) for output in flatten(outputs)]
    except ToolchainTrouble as error:
        said.update(phase="toolchain", message=str(error))
    except MemoryError:
        said["message"] = f"compiling the kernel needs more than {job['data_bytes'] >> 20} MiB"
    except BaseException as error:  # the candidate may raise anything, SystemExit too
        said["message"] = f"{type(error).__name__}: {error}"
        said["line"] = line_of(error, job["source"])
    with open(job["said"], "w", encoding="utf-8") as stream:
        json.dump(said, stream)
    sys.stdout.flush()
    return 0 if said["phase"] == "done" else 1


def limit(job: dict[str, Any]) -> None:
    """The address space stays free: the runtime maps devices. RLIMIT_DATA counts what a process really allocates."""
    for which, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, job["file_bytes"]),
        (resource.RLIMIT_DATA, job["data_bytes"]),
    ):
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def probe(modules: list[str], really_import: list[str]) -> dict[str, Any]:
    """Versions of installed packages, of each module None or why it is not there, and the folders all that lies in."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    missing: dict[str, str | None] = {}
    for name in modules:
        try:
            if name in really_import:
                importlib.import_module(name)
            missing[name] = None if importlib.util.find_spec(name) else "is not installed"
        except BaseException as error:  # finding a submodule imports its parents, which may fail in any way
            missing[name] = f"does not import: {type(error).__name__}: {str(error)[:200]}"
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    folders += [entry for entry in sys.path if os.path.isabs(entry) and os.path.isdir(entry)]
    return {"python": sys.version.split()[0], "packages": versions, "modules": missing, "folders": folders}


# --- the candidate --------------------------------------------------------------------------------


def load(job: dict[str, Any]) -> Any:
    """The kernel, its file imported among its neighbours where it has any."""
    if job["module"]:
        package, beside = job["paths"]
        sys.path.insert(0, package)
        if beside != package:  # behind Python's own modules, one of whose names a file of the package may have
            own = next((number for number, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
            sys.path.insert(own, beside)
        module = importlib.import_module(job["module"])
    else:
        with open(job["source"], encoding="utf-8") as stream:
            text = stream.read()
        module = types.ModuleType("candidate")
        module.__file__ = job["source"]
        sys.modules["candidate"] = module
        exec(compile(text, job["source"], "exec"), module.__dict__)
    for name in job["entry_points"]:
        if callable(getattr(module, name, None)):
            return getattr(module, name)
    raise NameError(f"the file defines no kernel: name it {' or '.join(job['entry_points'])}")


def parameters(kernel: Any) -> list[str]:
    function = getattr(kernel, "func", None) or getattr(kernel, "__wrapped__", None) or kernel
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def line_of(error: BaseException, path: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


def zeros(arguments: list[dict[str, Any]]) -> list[Any]:
    """Arrays of zeros for tensors, the values themselves for constants."""
    import numpy as np

    made: list[Any] = []
    for argument in arguments:
        if "shape" not in argument:
            made.append(constant(argument))
            continue
        name = argument["dtype"]
        try:
            dtype = np.dtype(name)
        except TypeError:
            try:
                dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
            except (ImportError, AttributeError, TypeError):
                raise ToolchainTrouble(f"no NumPy dtype for {name} here; install ml_dtypes in {sys.prefix}") from None
        made.append(np.zeros(argument["shape"], dtype))
    return made


def constant(argument: dict[str, Any]) -> Any:
    """What is no tensor: an element type as `nki.language` has it, or a plain value, of which JSON has no tuples."""
    if "element_type" in argument:
        name = argument["element_type"]
        try:
            return getattr(importlib.import_module("nki.language"), name)
        except (ImportError, AttributeError):
            raise ToolchainTrouble(f"nki.language has no element type {name} here") from None
    return tuples(argument["value"])


def tuples(value: Any) -> Any:
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def flatten(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [] if outputs is None else [outputs]


def describe(output: Any) -> dict[str, Any]:
    return {"shape": [int(size) for size in output.shape], "dtype": str(output.dtype).rpartition(".")[2]}


# --- one function per era: imports the toolchain, returns how to compile ---------------------------


def standalone() -> Compile:
    """NKI >= 0.3: a kernel called with NumPy arrays compiles, runs on the device and returns arrays."""
    importlib.import_module("nki")
    return lambda kernel, job: kernel(*zeros(job["arguments"]))


def compile_kernel() -> Compile:
    """NKI 0.2 and 0.3: compiles to artifacts/kernel.neff on the CPU."""
    compiled = importlib.import_module("nki.framework.compiled")

    def run(kernel: Any, job: dict[str, Any]) -> Any:
        function = getattr(kernel, "func", kernel)
        return compiled.CompileKernel(func=function, artifacts_dir=job["artifacts"], _enable_simulation=True)(
            *zeros(job["arguments"])
        )

    return run


def compile_driver() -> Compile:
    """NKI 0.4 and 0.5: the compiler's driver, without a device. Tensor arguments and a single output only."""
    driver = importlib.import_module("nki.compiler.driver")
    frontend = importlib.import_module("nki.compiler.frontend")
    framework = importlib.import_module("nki.framework.kernel")

    def run(kernel: Any, job: dict[str, Any]) -> Any:
        if any("shape" not in argument for argument in job["arguments"]):
            raise ToolchainTrouble("the compile-driver route cannot pass constants to a kernel")
        import numpy as np

        inputs = dict(zip(parameters(kernel), zeros(job["arguments"])))
        options = driver.CompileOptions(
            target=job["machine"],
            lnc=job["lnc"],
            artifacts_dir=job["artifacts"],
            output_path=os.path.join(job["artifacts"], "kernel.neff"),
        )
        bir, traced = driver.compile_to_bir(
            framework.Kernel(getattr(kernel, "func", kernel)),
            frontend=frontend.TracerFrontend(),
            inputs=inputs,
            compile_opts=options,
            output_names=["output_0"],
        )
        arrays = [np.zeros(spec.shape, np.dtype(spec.dtype)) for spec in traced.input_specs]
        driver.compile_bir_to_neff(
            options,
            bir,
            arrays,
            [spec.name for spec in traced.input_specs],
            [spec.name for spec in traced.output_specs],
        )
        return list(traced.output_specs)

    return run


def torch_neuron() -> Compile:
    """NKI inside native PyTorch, SDK 2.33 on: tensors on the device `neuron` (torch/guides/how-to-work-with-nki.html).

    The first eager call compiles; fetching the outputs waits for it. No operation but the kernel is executed on the
    device, so that its NEFF is the only one.
    """
    torch = importlib.import_module("torch")
    importlib.import_module("torch_neuronx")

    def run(kernel: Any, job: dict[str, Any]) -> Any:
        outputs = kernel(*tensors(torch, job["arguments"], "neuron"))
        for output in flatten(outputs):
            output.to("cpu")
        return outputs

    return run


def torch_xla() -> Compile:
    """NKI inside PyTorch/XLA, SDK 2.28 on: the graph around the kernel is the kernel alone."""
    torch = importlib.import_module("torch")
    importlib.import_module("torch_neuronx")
    model = importlib.import_module("torch_xla.core.xla_model")

    def run(kernel: Any, job: dict[str, Any]) -> Any:
        outputs = kernel(*tensors(torch, job["arguments"], model.xla_device()))
        model.mark_step()
        model.wait_device_ops()
        return outputs

    return run


def tensors(torch: Any, arguments: list[dict[str, Any]], device: Any) -> list[Any]:
    """Zeros made on the CPU and moved to `device`, the values themselves for constants."""
    made: list[Any] = []
    for argument in arguments:
        if "shape" not in argument:
            made.append(constant(argument))
            continue
        dtype = getattr(torch, argument["dtype"], None)
        if dtype is None:
            raise ToolchainTrouble(f"torch has no dtype {argument['dtype']} here")
        made.append(torch.zeros(tuple(argument["shape"]), dtype=dtype).to(device))
    return made


def baremetal() -> Compile:
    """Beta 1, SDK <= 2.26: its own dialect (`neuronxcc.nki`)."""
    nki = importlib.import_module("neuronxcc.nki")

    def run(kernel: Any, job: dict[str, Any]) -> Any:
        return nki.baremetal(
            kernel,
            save_neff_name=os.path.join(job["artifacts"], "kernel.neff"),
            additional_compile_opt=f"--disable-dge --logical-nc-config={job['lnc']}",
        )(*zeros(job["arguments"]))

    return run


ROUTES = {
    "standalone": standalone,
    "compile-driver": compile_driver,
    "compile-kernel": compile_kernel,
    "torch-neuron": torch_neuron,
    "torch-xla": torch_xla,
    "baremetal": baremetal,
}


if __name__ == "__main__":
    sys.exit(main())
