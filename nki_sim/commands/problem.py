"""A reference module in NKIBench's protocol: what it gives its kernel, and what it says beside what the kernel does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nki_sim.tracing.marks import compiled as marked


class BadProblem(Exception):
    """The reference module cannot be used; the line says why."""


def _as_they_are(inputs: Sequence[Any]) -> list[Any]:
    return list(inputs)


def _reshaped(result: Any, reference: Any) -> list[np.ndarray]:
    results = result if isinstance(result, (tuple, list)) else (result,)
    references = reference if isinstance(reference, (tuple, list)) else (reference,)
    return [
        np.reshape(got, np.shape(want)) if np.size(got) == np.size(want) else np.asarray(got)
        for got, want in zip(results, references)
    ]


_IDENTITIES = {"transform_to_nki_inputs": _as_they_are, "transform_nki_outputs": _reshaped}
"""What a reference that does not define them means."""
_MEANT = {
    "get_inputs": "it draws the arguments: return [np.random.normal(size=(128, 512)).astype(np.float32)]; "
    "or name their shapes: --shape 128x512:float32",
    "forward": "it says what the kernel computes, in NumPy",
}


def module_of(path: Path, name: str, marks: bool = False) -> ModuleType:
    """The file's text as it is now, executed as a module of that name; raises whatever the file does.

    `marks`: its loops tell a tracer where they begin, go on and end (`loop_ir.marks`).

    Python's cached bytecode is neither read nor written: it takes a text for its predecessor where a second edit of
    equal length falls into the same second.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    if marks:
        exec(marked(path.read_text(encoding="utf-8"), str(path), module.__dict__), module.__dict__)
    else:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module


def load_problem(path: Path, *needed: str, drawn: Callable[[], list[Any]] | None = None) -> Any:
    """The module, with those functions; the protocol's two transforms are identities where it has none.

    `drawn`: inputs for a file that draws none itself and computes by its one function, whatever that is called. Raises
    BadProblem, and whatever the module's own code does.
    """
    if not path.is_file():
        raise BadProblem(f"no reference module {path}")
    module: Any = module_of(path, "problem")
    own = [each for each in vars(module).values() if getattr(each, "__module__", "") == "problem" and callable(each)]
    public = [each for each in own if not each.__name__.startswith("_")]
    if drawn is not None and not hasattr(module, "get_inputs"):
        module.get_inputs = drawn
        module.forward = getattr(module, "forward", None) or (public[0] if len(public) == 1 else None)
        if module.forward is None:
            raise BadProblem(f"{path}: which of its functions says what the kernel computes? call that forward")
    for name, identity in _IDENTITIES.items():
        if not hasattr(module, name):
            setattr(module, name, identity)
    for name in needed:
        if not hasattr(module, name):
            raise BadProblem(f"{path} has no function {name}: {_MEANT[name]}")
    return module


def drawn_inputs(module: Any, seed: int) -> list[Any]:
    """What the reference draws after that seed, as a judge has it drawn."""
    np.random.seed(seed)
    return list(module.get_inputs())


def beside_the_reference(module: Any, inputs: Sequence[Any], outputs: Sequence[np.ndarray]) -> Iterator[str]:
    """For each output a line: how far the kernel is from `forward` in float64, and where furthest, with both values."""
    exact = module.forward(*map(_wide, inputs))
    expected = exact if isinstance(exact, tuple) else (exact,)
    result = outputs[0] if len(outputs) == 1 else tuple(outputs)
    found = module.transform_nki_outputs(result, exact if len(expected) != 1 else expected[0])
    if len(found) != len(expected):
        yield f"the reference has {len(expected)} outputs, transform_nki_outputs makes {len(found)} of the kernel's"
    for number, (got, want) in enumerate(zip(map(_wide, found), map(_wide, expected))):
        if got.shape != want.shape:
            yield f"output {number}: the kernel's is {list(got.shape)}, the reference's {list(want.shape)}"
            continue
        with np.errstate(all="ignore"):
            off = np.abs(got - want)
            distance = np.linalg.norm((got - want).ravel()) / np.linalg.norm(want.ravel())
        off = np.where(np.isnan(off), np.inf, off)
        worst = np.unravel_index(int(np.argmax(off)), off.shape)
        yield (
            f"output {number}: relative L2 {distance:.3g} from the reference; furthest at "
            f"[{', '.join(map(str, worst))}]: kernel {got[worst]:.6g}, reference {want[worst]:.6g}"
        )


def _wide(value: Any) -> Any:
    """Floating arrays in float64, everything else as it is."""
    is_number = isinstance(value, (np.ndarray, np.generic)) and np.issubdtype(np.asarray(value).dtype, np.number)
    floating = is_number and not np.issubdtype(np.asarray(value).dtype, np.integer)
    narrow = isinstance(value, np.ndarray) and value.dtype.kind == "V"  # bfloat16 and its like
    return np.asarray(value, dtype=np.float64) if floating or narrow else value
