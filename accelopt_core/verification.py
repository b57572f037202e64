"""The verdict: a kernel's outputs against a float64 reference. Never imports candidate code."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accelopt_core.evaluation import CheckFailure
from accelopt_core.task import ShapePreset, Task
from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, TensorArgument

_BLOCK = 1 << 22
"""Elements compared at a time, so that a comparison needs megabytes and not gigabytes."""

REFERENCE_NAMES = ("get_inputs", "forward", "transform_to_nki_inputs", "transform_nki_outputs")


class BadReference(Exception):
    """The user's reference module does not follow the protocol or fails: fix it (docs/tasks.md)."""


class Reference:
    """A task's NumPy reference at one shape. The reference is the user's own code and is trusted."""

    def __init__(self, task: Task, preset: ShapePreset) -> None:
        self.task = task
        self.preset = preset
        module = types.ModuleType(f"reference_{task.name}")
        try:
            exec(compile(task.reference_source, f"<reference of {task.name}>", "exec"), module.__dict__)
        except Exception as error:  # the user's module may raise anything
            raise BadReference(f"the reference of {task.name} cannot be loaded: {_brief(error)}") from error
        missing = [name for name in REFERENCE_NAMES if not callable(getattr(module, name, None))]
        if missing:
            raise BadReference(f"the reference of {task.name} lacks {', '.join(missing)}() (docs/tasks.md)")
        for name, value in preset.values:
            if not hasattr(module, name):
                raise BadReference(f"the reference of {task.name} has no shape constant {name} (preset {preset.name})")
            setattr(module, name, value)
        self._module = module

    def inputs(self, seed: int) -> list[Any]:
        """What `get_inputs()` draws after seeding NumPy's global generator (NKIBench protocol)."""
        np.random.seed(seed)
        return list(self._call("get_inputs"))

    def kernel_arguments(self, inputs: list[Any]) -> list[Any]:
        """Arrays (C order) and Python constants, in the order of the kernel's parameters."""
        arguments = self._call("transform_to_nki_inputs", inputs)
        return [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments]

    def expected(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """`forward` in float64: floating inputs are widened first, so that rounding is the kernel's alone."""
        wide = [a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in inputs]
        result = self._call("forward", *wide)
        return tuple(np.asarray(r) for r in (result if isinstance(result, tuple) else (result,)))

    def outputs(self, result: Sequence[np.ndarray], expected: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """The kernel's outputs in the shapes of the reference's."""
        kernel_result: Any = tuple(result) if len(result) != 1 else result[0]
        reference: Any = expected if len(expected) != 1 else expected[0]
        return [np.asarray(a) for a in self._call("transform_nki_outputs", kernel_result, reference)]

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._module, name)(*arguments)
        except Exception as error:  # the user's module may raise anything
            raise BadReference(
                f"{name}() of {self.task.name}'s reference failed at shape {self.preset.describe()}: {_brief(error)}"
            ) from error


def argument_specs(arguments: Sequence[Any]) -> tuple[ArgumentSpec, ...]:
    """What a compiler may know of the arguments: shapes, dtypes and constants, never contents."""
    specs: list[ArgumentSpec] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            specs.append(TensorArgument(tuple(argument.shape) or (1,), str(argument.dtype)))
        elif isinstance(argument, (bool, int, float)) or argument is None:
            specs.append(ConstantArgument(argument))
        elif isinstance(argument, np.generic):
            specs.append(ConstantArgument(argument.item()))
        else:
            raise BadReference(
                f"transform_to_nki_inputs returned a {type(argument).__name__}: only arrays and numbers "
                "can be passed to a kernel"
            )
    return tuple(specs)


def relative_l2(got: np.ndarray, expected: np.ndarray) -> float:
    """||got - expected|| / ||expected|| over the whole tensor, in float64; infinite for a zero reference missed.

    Where the reference is not finite, only the same value is right, and it counts in neither norm.
    """
    error = norm = 0.0
    for g, e in zip(_blocks(got), _blocks(expected)):
        wide = e.astype(np.float64)
        error += float(np.sum(np.square(_difference(g, wide))))
        norm += float(np.sum(np.square(np.where(np.isfinite(wide), wide, 0.0))))
    if norm == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    return float(np.sqrt(error / norm))


def _difference(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """got - expected in float64; 0 where both are the same infinity or both NaN, infinite where only one is finite."""
    wide = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = wide - expected
    if np.isfinite(difference).all():
        return difference
    same = (wide == expected) | (np.isnan(wide) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))


def check_output(
    got: np.ndarray, expected: np.ndarray, *, seed: int, preset: str, output: int, tolerance: float
) -> tuple[float, CheckFailure | None]:
    """(relative L2, the failure if there is one). Shape, finiteness, then distance."""
    where: dict[str, Any] = {"seed": seed, "preset": preset, "output": output}
    if got.shape != expected.shape:
        return float("inf"), CheckFailure(reason=f"shape {list(got.shape)} instead of {list(expected.shape)}", **where)
    for start, (g, e) in enumerate(zip(_blocks(got), _blocks(expected))):
        with np.errstate(invalid="ignore"):
            strange = ~np.isfinite(g.astype(np.float64)) & np.isfinite(e)
        if strange.any():
            flat = start * _BLOCK + int(np.argmax(strange))
            index = tuple(int(i) for i in np.unravel_index(flat, got.shape))
            value = float(got.reshape(-1)[flat])
            reason = "NaN: memory that was never written was read, or 0/0" if np.isnan(value) else "infinite"
            return float("inf"), CheckFailure(
                reason=reason, worst_index=index, got=value, expected=float(expected.reshape(-1)[flat]), **where
            )
    distance = relative_l2(got, expected)
    if distance <= tolerance:
        return distance, None
    flat = _worst(got, expected)
    return distance, CheckFailure(
        reason="outputs differ",
        rel_l2=distance,
        tolerance=tolerance,
        worst_index=tuple(int(i) for i in np.unravel_index(flat, got.shape)),
        expected=float(expected.reshape(-1)[flat]),
        got=float(got.reshape(-1)[flat]),
        **where,
    )


def _worst(got: np.ndarray, expected: np.ndarray) -> int:
    best, at = -1.0, 0
    for number, (g, e) in enumerate(zip(_blocks(got), _blocks(expected))):
        difference = np.abs(_difference(g, e.astype(np.float64)))
        here = int(np.argmax(difference))
        if difference[here] > best:
            best, at = float(difference[here]), number * _BLOCK + here
    return at


def _blocks(array: np.ndarray) -> list[np.ndarray]:
    flat = array.reshape(-1)
    return [flat[i : i + _BLOCK] for i in range(0, flat.size, _BLOCK)]


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


class ReferenceCache:
    """Expected outputs per (task, preset, seed) on disk, within a budget; for a judge that starts afresh each time.

    The folder belongs to the judge alone. Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None, budget_bytes: int = 2 << 30) -> None:
        self._folder = folder
        self._budget = budget_bytes

    def expected(self, reference: Reference, seed: int, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        if self._folder is None:
            return reference.expected(inputs)
        key = hashlib.sha256(f"{reference.task.content_hash}/{reference.preset.name}/{seed}".encode()).hexdigest()[:24]
        found = sorted(self._folder.glob(f"{key}.*.npy"))
        if found and (self._folder / f"{key}.complete").exists():
            return tuple(np.load(path, allow_pickle=False) for path in found)
        result = reference.expected(inputs)
        used = sum(path.stat().st_size for path in self._folder.glob("*.npy"))
        if used + sum(r.nbytes for r in result) <= self._budget:
            for number, array in enumerate(result):
                np.save(self._folder / f"{key}.{number:03d}.npy", array, allow_pickle=False)
            (self._folder / f"{key}.complete").touch()
        return result
