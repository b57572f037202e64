"""What the compiler makes of a task's reference by itself: compiled through JAX, run and timed as kernels are. Shipped.

A yardstick beside the input kernel and the bound. Where an SDK has no JAX, or the reference cannot be traced by it,
there is no such number, and one line says why.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from accelopt_core.evaluation import CompilersOwn
from accelopt_core.judging.reference.verification import Reference
from accelopt_core.ports import EvaluationRequest
from accelopt_core.toolchain import CandidateFault, StepTimeout, TensorArgument
from infra.isolation import sandbox
from infra.neuron.compilation.compiling import Neff
from infra.neuron.neff import NeffUnreadable, match_inputs, match_outputs, read_neff
from infra.neuron.routes import LNC, search_path
from infra.neuron.tensors import size_bytes
from infra.neuron.toolchain import NeuronToolchain

WORKER = Path(__file__).with_name("reference_worker.py")


class NoneOfItsOwn(Exception):
    """There is no such baseline here: the message says why, in one line."""


def compilers_own(toolchain: NeuronToolchain, request: EvaluationRequest) -> CompilersOwn:
    """At the task's full shape, on the reference's own inputs. Raises BadReference and ToolchainMissing."""
    task, limits = request.task, request.limits
    reference = Reference(task, task.full)
    inputs = reference.inputs(task.seeds[0])
    tensors = [np.ascontiguousarray(value) for value in inputs if isinstance(value, np.ndarray)]
    folder = toolchain.new_folder("reference")
    try:
        made, by = _compiled(toolchain, request, tensors, folder)
        outputs = toolchain.run(made, tensors, limits.run_timeout_s)
        timing = toolchain.time(made, tensors, limits.warmup, limits.iterations, limits.run_timeout_s)
    except (NoneOfItsOwn, CandidateFault) as error:
        return CompilersOwn(None, str(error))
    except StepTimeout as error:
        return CompilersOwn(None, f"the compiler by itself takes longer than {error.limit_s:g} s to {error.step.value}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    off = max(map(_off, outputs, reference.expected(inputs)))
    return CompilersOwn(median(timing.samples_us), f"{by}; its outputs are {off:.1e} off the reference's")


def _compiled(
    toolchain: NeuronToolchain, request: EvaluationRequest, tensors: Sequence[np.ndarray], folder: Path
) -> tuple[Neff, str]:
    """The NEFF, and by what it was compiled. Raises NoneOfItsOwn and StepTimeout."""
    task, where = request.task, toolchain.installation
    job = {
        "reference": task.reference_source,
        "shape": [[name, value] for name, value in task.full.values],
        "seed": task.seeds[0],
        "said": str(folder / "said.json"),
    }
    lacking = []
    for python in where.pythons:
        if not python.exists():
            continue
        finished = sandbox.run(
            [str(python), "-I", str(WORKER)],
            cwd=folder,
            stdin=json.dumps(job).encode(),
            limits=sandbox.ProcessLimits(deadline_s=request.limits.compile_timeout_s, memory_bytes=0),
            env=_environment(toolchain, python, folder),
        )
        if finished.timed_out:
            raise NoneOfItsOwn(f"the compiler by itself takes longer than {request.limits.compile_timeout_s:g} s")
        said = _read(folder / "said.json")
        if said["phase"] == "done":
            return _neff(folder, said, tensors), f"by {said['backend']} through JAX {said['version']}"
        if said["phase"] == "failed":
            raise NoneOfItsOwn(f"JAX does not compile the reference: {said['message']}")
        lacking.append(f"{python} {said['message']}")
    raise NoneOfItsOwn(f"needs JAX for Neuron (jax-neuronx): {'; '.join(lacking) or 'no Python was found'}")


def _environment(toolchain: NeuronToolchain, python: Path, folder: Path) -> dict[str, str]:
    """No automatic casts: what is compared is float32 where the reference is."""
    machine = toolchain.machine.name
    return {
        "HOME": str(folder),
        "PATH": search_path(toolchain.installation, python),
        "NEURON_CC_FLAGS": f"--target {machine} --lnc {LNC} --auto-cast=none",
        "NEURON_COMPILE_CACHE_URL": str(folder / "cache"),
        "NEURON_LOGICAL_NC_CONFIG": str(LNC),
        "NEURON_PLATFORM_TARGET_OVERRIDE": machine,
        "NEURON_RT_VISIBLE_CORES": toolchain.core,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return said
    except (OSError, ValueError):
        return {"phase": "missing", "message": "does not run"}


def _neff(folder: Path, said: dict[str, Any], tensors: Sequence[np.ndarray]) -> Neff:
    found = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in (folder / "cache").rglob("*.neff")}
    if len(found) != 1:
        raise NoneOfItsOwn(
            f"compiling the reference by {said['backend']} left {len(found)} NEFFs, not one: is libneuronxla active?"
        )
    ((digest, path),) = found.items()
    specs = tuple(TensorArgument(tuple(each["shape"]), str(each["dtype"])) for each in said["outputs"])
    try:
        declared = read_neff(path)
        inputs = match_inputs(declared.inputs, [("", tensor.nbytes) for tensor in tensors])
        outputs = match_outputs(declared.outputs, [size_bytes(spec.shape, spec.dtype) for spec in specs])
    except NeffUnreadable as error:
        raise NoneOfItsOwn(f"the NEFF of the reference: {error}") from None
    moved = sum(tensor.size_bytes for tensor in (*declared.inputs, *declared.outputs))
    return Neff(path, digest, inputs, outputs, specs, moved, "reference.py")


def _off(output: np.ndarray, expected: np.ndarray) -> float:
    """Relative L2, over all of it."""
    exact = expected.astype(np.float64)
    size = float(np.linalg.norm(exact))
    return float(np.linalg.norm(output.astype(np.float64).reshape(exact.shape) - exact)) / size if size else 0.0
