"""The process that lets the SDK's own compiler make a NEFF of a task's NumPy reference, through JAX. Shipped.

Started as a script by an interpreter that may have JAX for Neuron (AWS Neuron documentation, "JAX NeuronX plugin
Setup"); imports nothing of ours. `forward` is traced with jax.numpy in the place of NumPy, and compiled ahead of time,
so that there is one graph and one NEFF, in the compiler's cache. The reference is the user's own code, and trusted.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from typing import Any

NEEDED = ("jax", "libneuronxla")


def main() -> int:
    job = json.loads(sys.stdin.read())
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return say(job, phase="missing", message=f"has no {' and no '.join(missing)}")
    try:
        said = compiled(job)
    except BaseException as error:  # JAX, the plugin and the compiler raise what they like, SystemExit too
        return say(job, phase="failed", message=f"{type(error).__name__}: {first_line(error)}")
    return say(job, phase="done", message="", **said)


def compiled(job: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    jax = importlib.import_module("jax")
    jax_numpy = importlib.import_module("jax.numpy")
    module = types.ModuleType("reference")
    exec(compile(job["reference"], "<reference>", "exec"), module.__dict__)
    for name, value in job["shape"]:
        setattr(module, name, value)
    np.random.seed(job["seed"])
    inputs = list(module.get_inputs())
    for name, value in list(vars(module).items()):
        if value is np:
            setattr(module, name, jax_numpy)
    tensors = [number for number, value in enumerate(inputs) if isinstance(value, np.ndarray)]

    def forward(*given: Any) -> Any:
        whole = list(inputs)
        for number, value in zip(tensors, given):
            whole[number] = value
        return module.forward(*whole)

    specs = [jax.ShapeDtypeStruct(inputs[number].shape, inputs[number].dtype) for number in tensors]
    lowered = jax.jit(forward).lower(*specs)
    lowered.compile()
    outputs = jax.eval_shape(forward, *specs)
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return {
        "backend": jax.default_backend(),
        "version": getattr(jax, "__version__", "unknown"),
        "outputs": [{"shape": list(each.shape), "dtype": str(each.dtype)} for each in outputs],
    }


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


def say(job: dict[str, Any], **said: Any) -> int:
    with open(job["said"], "w", encoding="utf-8") as stream:
        json.dump(said, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())
