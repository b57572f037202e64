"""The verdict: a kernel's outputs against a float64 reference. Never imports candidate code."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accelopt_core.evaluation import CheckFailure
from accelopt_core.judging.distributions import changed_inputs
from accelopt_core.task import REFERENCE, ShapePreset, Task
from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, TensorArgument

_BLOCK = 1 << 22
"""Elements compared at a time, so that a comparison needs megabytes and not gigabytes."""

REFERENCE_NAMES = ("get_inputs", "forward", "transform_to_nki_inputs", "transform_nki_outputs")


class BadReference(Exception):
    """The user's reference module does not follow the protocol or fails: fix it (docs/tasks.md)."""


class UnusableOutputs(Exception):
    """The reference's transform_nki_outputs fails on what this kernel returned: their shapes and why."""


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

    def inputs(self, seed: int, distribution: str = REFERENCE) -> list[Any]:
        """What `get_inputs()` draws after seeding NumPy's global generator (NKIBench protocol), changed."""
        np.random.seed(seed)
        return changed_inputs(list(self._call("get_inputs")), distribution, seed)

    def kernel_arguments(self, inputs: list[Any]) -> list[Any]:
        """Arrays (C order) and Python constants, in the order of the kernel's parameters."""
        arguments = self._call("transform_to_nki_inputs", inputs)
        return [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments]

    def expected(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """`forward` in float64: floating inputs are widened first, so that rounding is the kernel's alone."""
        return self._forward([a.astype(np.float64) if _floating(a) else a for a in inputs])

    def float32_error(self, inputs: list[Any], expected: tuple[np.ndarray, ...]) -> float:
        """Worst relative L2 of `forward` itself in float32: how well these inputs can be computed at all.

        A row counts as `check_output` counts it. Infinite where the reference is not finite, or float32 overflows.
        """
        if not all(np.isfinite(e).all() for e in expected):
            return float("inf")
        narrow = self._forward([a.astype(np.float32) if _floating(a) else a for a in inputs])
        if not all(np.isfinite(n).all() for n in narrow):
            return float("inf")
        return max(
            (max(relative_l2(n, e), _worst_row(n, e)[1] / ROW_SLACK) for n, e in zip(narrow, expected)), default=0
        )

    def _forward(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):  # what overflows or divides by zero is looked at, not warned about
            result = self._call("forward", *inputs)
        return tuple(np.asarray(r) for r in (result if isinstance(result, tuple) else (result,)))

    def outputs(self, result: Sequence[np.ndarray], expected: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """The kernel's outputs in the shapes of the reference's.

        Raises UnusableOutputs where the transform fails, which may be the kernel's fault: it is not proof of a bad
        reference; and BadReference where it hands back the expected values instead of the kernel's.
        """
        kernel_result: Any = tuple(result) if len(result) != 1 else result[0]
        reference: Any = expected if len(expected) != 1 else expected[0]
        try:
            found = [np.asarray(a) for a in self._call("transform_nki_outputs", kernel_result, reference)]
        except BadReference as error:
            shapes = ", ".join(str(list(r.shape)) for r in result) or "nothing"
            raise UnusableOutputs(f"the kernel returns {shapes}: {_brief(error.__cause__ or error)}") from error
        if any(np.may_share_memory(got, want) for got in found for want in expected):
            raise BadReference(
                f"transform_nki_outputs() of {self.task.name} returns the reference's own values: every kernel would "
                "pass (docs/tasks.md)"
            )
        return found

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._module, name)(*arguments)
        except MemoryError:
            raise  # it may be the candidate that has used it up
        except Exception as error:  # the user's module may raise anything
            raise BadReference(
                f"{name}() of {self.task.name}'s reference failed at shape {self.preset.describe()}: {_brief(error)}"
            ) from error


def _floating(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


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
    got: np.ndarray,
    expected: np.ndarray,
    *,
    seed: int,
    preset: str,
    output: int,
    tolerance: float,
    distribution: str,
) -> tuple[float, CheckFailure | None]:
    """(relative L2, the failure if there is one). Shape, finiteness, distance, worst row, values that were dropped."""
    where: dict[str, Any] = {"seed": seed, "preset": preset, "output": output, "distribution": distribution}
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
    reason, flat = "outputs differ", -1
    measure: float | None = distance
    limit: float | None = tolerance
    if distance <= tolerance:
        row, row_distance = _worst_row(got, expected)
        dropped, first = _dropped(got, expected)
        if row_distance > ROW_SLACK * tolerance:
            reason, measure, limit = f"row {row} differs", row_distance, ROW_SLACK * tolerance
            flat = row * got.shape[-1] + int(np.argmax(np.abs(_row(got, row).astype(np.float64) - _row(expected, row))))
        elif dropped > DROPPED_LIMIT:
            reason, measure, limit, flat = f"{100 * dropped:.2g} % of the values are dropped", None, None, first
        else:
            return distance, None
    if flat < 0:
        flat = _worst(got, expected)
    return distance, CheckFailure(
        reason=reason,
        rel_l2=measure,
        tolerance=limit,
        worst_index=tuple(int(i) for i in np.unravel_index(flat, got.shape)),
        expected=float(expected.reshape(-1)[flat]),
        got=float(got.reshape(-1)[flat]),
        **where,
    )


ROW_SLACK = 10
"""A row may be this many times as far off as all rows together."""

_SHORT_ROW = 8
"""Rows of fewer elements say nothing that single values do not."""

DROPPED_LIMIT = 1e-4
"""Fraction of the values that may be a thousandth or less of what they should be; in rounding alone, none is."""

_COUNTS = 1e-5
"""Values below this fraction of the root mean square may vanish in rounding."""


def _worst_row(got: np.ndarray, expected: np.ndarray) -> tuple[int, float]:
    """(row, relative L2 of it) along the last dimension; rows far below the usual norm are measured by that norm."""
    if expected.ndim < 2 or expected.shape[-1] < _SHORT_ROW:
        return 0, 0.0
    width = expected.shape[-1]
    step = max(1, _BLOCK // width)
    flat_got, flat_expected = got.reshape(-1, width), expected.reshape(-1, width)
    errors, norms = np.empty(len(flat_expected)), np.empty(len(flat_expected))
    for start in range(0, len(flat_expected), step):
        wide = flat_expected[start : start + step].astype(np.float64)
        errors[start : start + step] = np.sum(np.square(_difference(flat_got[start : start + step], wide)), axis=1)
        norms[start : start + step] = np.sum(np.square(np.where(np.isfinite(wide), wide, 0.0)), axis=1)
    floor = 1e-4 * float(np.mean(norms))
    distances = np.sqrt(errors / np.maximum(np.maximum(norms, floor), np.finfo(np.float64).tiny))
    row = int(np.argmax(distances))
    return row, float(distances[row])


def _row(array: np.ndarray, number: int) -> np.ndarray:
    return array.reshape(-1, array.shape[-1])[number]


def _dropped(got: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """(fraction of values that all but vanished, the first of them): too small to show in any norm together."""
    squares = sum(float(np.sum(np.square(np.where(np.isfinite(e), e, 0.0)))) for e in _blocks(expected))
    least = _COUNTS * np.sqrt(squares / max(1, expected.size))
    count, first = 0, 0
    for number, (g, e) in enumerate(zip(_blocks(got), _blocks(expected))):
        lost = (np.abs(e) > least) & (np.abs(g) < 1e-3 * np.abs(e))
        if count == 0 and lost.any():
            first = number * _BLOCK + int(np.argmax(lost))
        count += int(np.count_nonzero(lost))
    return count / max(1, expected.size), first


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


def _read_array(path: Path) -> np.ndarray:
    """An .npy file and nothing else: np.load would take an archive or a pickle for one."""
    with open(path, "rb") as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


class ReferenceCache:
    """Expected outputs per (task, preset, seed, distribution) on disk, within a budget; for a judge that starts afresh.

    Without a folder nothing is kept. What was not written with the same key, which never lies on a disk that a
    candidate can read, is computed again.
    """

    def __init__(self, folder: Path | None, budget_bytes: int = 2 << 30, key: bytes = b"") -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._key = key

    def expected(self, reference: Reference, seed: int, inputs: list[Any], distribution: str) -> tuple[np.ndarray, ...]:
        return self._kept(reference, f"{seed}/{distribution}", lambda: reference.expected(inputs))

    def float32_error(
        self, reference: Reference, seed: int, inputs: list[Any], distribution: str, expected: tuple[np.ndarray, ...]
    ) -> float:
        found = self._kept(
            reference,
            f"{seed}/{distribution}/float32",
            lambda: (np.array([reference.float32_error(inputs, expected)]),),
        )
        return float(found[0][0])

    def drawing(self, reference: Reference) -> int:
        """Secret from candidates, and the same for a task's shape as long as what is kept here is believed."""
        if self._folder is None or not self._key:
            return secrets.randbits(62)
        text = f"{reference.task.content_hash}/{reference.preset.name}/drawing"
        return int.from_bytes(hashlib.blake2b(text.encode(), key=self._key, digest_size=7).digest(), "big")

    def behaviour(
        self, reference: Reference, kernel: str, compute: Callable[[], tuple[np.ndarray, ...]]
    ) -> tuple[np.ndarray, ...]:
        """Of a kernel, by its hash, on `drawing`; where that is another each time, it is computed each time."""
        return self._kept(reference, f"behaviour/{kernel}", compute) if self._key else compute()

    def _kept(
        self, reference: Reference, what: str, compute: Callable[[], tuple[np.ndarray, ...]]
    ) -> tuple[np.ndarray, ...]:
        if self._folder is None:
            return compute()
        name = f"{reference.task.content_hash}/{reference.preset.name}/{what}"
        key = hashlib.sha256(name.encode()).hexdigest()[:24]
        known = self._read(key)
        if known is not None:
            return known
        result = compute()
        used = sum(path.stat().st_size for path in self._folder.glob("*.npy"))
        if used + sum(r.nbytes for r in result) <= self._budget:
            for number, array in enumerate(result):
                np.save(self._folder / f"{key}.{number:03d}.npy", array, allow_pickle=False)
            (self._folder / f"{key}.complete").write_text(self._seal(key, result))
        return result

    def _read(self, key: str) -> tuple[np.ndarray, ...] | None:
        assert self._folder is not None
        try:
            seal = (self._folder / f"{key}.complete").read_text()
            found = tuple(_read_array(path) for path in sorted(self._folder.glob(f"{key}.*.npy")))
        except (OSError, ValueError):
            return None
        return found if hmac.compare_digest(seal, self._seal(key, found)) else None

    def _seal(self, key: str, arrays: tuple[np.ndarray, ...]) -> str:
        digest = hashlib.blake2b(key.encode(), key=self._key, digest_size=16)
        for array in arrays:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
