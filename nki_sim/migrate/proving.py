"""A migration proves itself: old and new kernel on the same arrays, and how far apart they are."""

from __future__ import annotations
import __future__

import ast
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nki_sim.beta1.instrument import absent_imports, definitions
from nki_sim.dtypes import as_dtype
from nki_sim.encoding.canonical import digest
from nki_sim.nki.run import simulate, trace
from nki_sim.tracing.importing import install, package_of
from nki_sim.tracing.session import TensorSpec

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Largest relative difference (L2, per output) that rounding explains, by the types of the kernel's tiles."""
_ANNOTATIONS = __future__.annotations.compiler_flag
"""Annotations are not evaluated: they may name what is not installed here."""
_ELEMENT_FACTOR = 16.0
"""How much farther than all of an output together one of its elements may be off."""


def run_new(source: str, function: str, arguments: Sequence[Any], keywords: dict[str, Any], file: str = "") -> Any:
    """The migrated kernel on the simulator. Raises whatever it or the simulator does."""
    with _loaded(source, file, whole=True) as module:
        kernel = getattr(module, function)
        if hasattr(kernel, "with_schedule"):
            return simulate(kernel)(*arguments, **keywords)
        return kernel(*arguments, **keywords)


class Traced(NamedTuple):
    """What a kernel comes to at some arguments."""

    digest: str
    """The same for two kernels that compute the same bits in the same time (`nki_sim.encoding.canonical`)."""
    instructions: int
    """On its first core."""


def traced(
    source: str, function: str, arguments: Sequence[Any], keywords: dict[str, Any], file: str = "", whole: bool = True
) -> Traced:
    """A kernel's program at these arguments, to be compared with another's. `whole`: as `_loaded`."""
    specs = [TensorSpec(a.shape, as_dtype(a.dtype)) if isinstance(a, np.ndarray) else a for a in arguments]
    with _loaded(source, file, whole) as module:
        program = trace(getattr(module, function), *specs, **keywords)
    return Traced(digest(program), len(program))


@contextmanager
def _loaded(source: str, file: str, whole: bool) -> Iterator[Any]:
    """The source as a module, beside whose file its neighbours are imported.

    `whole`: all of it is executed, as whoever imports the file does, unless it imports what is not installed here;
    else, and then, what its kernels need. Raises whatever the source does.
    """
    install()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "migrated_kernel.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("migrated_kernel", path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        module.__package__ = package_of(file) if file else ""
        beside = str(Path(file).resolve().parent) if file else folder
        sys.path.insert(0, beside)
        try:
            tree = ast.parse(source)
            if not whole or absent_imports(tree.body):
                tree.body = definitions(tree.body)
            sys.modules[module.__name__] = module  # dataclasses look up where they are
            code = compile(ast.fix_missing_locations(tree), str(path), "exec", _ANNOTATIONS)
            try:
                exec(code, module.__dict__)
            except SystemExit as error:
                raise RuntimeError(f"the file ends Python when it is imported ({error})") from None
            yield module
        finally:
            sys.path.remove(beside)
            sys.modules.pop(module.__name__, None)


def difference(old: Any, new: Any) -> float:
    """How far the worst output is off: its relative L2 distance, or what single elements say, if that is more.

    One wrong row of thousands hardly shows in a distance over all of them, so an element counts, too: a sixteenth of
    its distance relative to its row. Infinite where outputs have other shapes or types, or only one of them is NaN,
    and where integers differ (those of 8 bits, which rounding may move, by more than 1).
    """
    olds = old if isinstance(old, tuple) else (old,)
    news = new if isinstance(new, tuple) else (new,)
    if len(olds) != len(news):
        return float("inf")
    return max((_apart(one, two) for one, two in zip(olds, news)), default=0.0)


def _apart(one: Any, two: Any) -> float:
    if not isinstance(one, np.ndarray) or not isinstance(two, np.ndarray):
        return float("inf")
    if one.shape != two.shape or one.dtype != two.dtype:
        return float("inf")
    a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
    with np.errstate(invalid="ignore"):
        off = np.where(a == b, 0.0, np.abs(a - b))  # equal infinities are equal
    if one.dtype.kind in "iub":
        return 0.0 if float(off.max(initial=0.0)) <= (one.dtype.itemsize == 1 and one.dtype.kind != "b") else np.inf
    if not off.any():
        return 0.0
    size = np.abs(np.where(np.isfinite(a), a, 0.0))
    overall = float(np.sqrt(np.mean(np.square(size))))
    rows = np.sqrt(np.mean(np.square(size), axis=-1, keepdims=True)) if a.ndim else size
    scale = np.maximum(rows, overall / _ELEMENT_FACTOR)
    with np.errstate(divide="ignore"):
        single = float(np.max(off / np.broadcast_to(scale, off.shape))) / _ELEMENT_FACTOR
    far = max(float(np.sqrt(np.mean(np.square(off)))) / (overall or 1.0), single)
    return far if np.isfinite(far) else float("inf")


def tolerance(dtypes: set[str]) -> float:
    """What a kernel with tiles of these types may differ by."""
    return max([TOLERANCE["float32"], *(TOLERANCE.get(name, 0.0) for name in dtypes)])


def undefined(outputs: Any) -> bool:
    """Whether an output holds NaN."""
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    return any(isinstance(a, np.ndarray) and bool(np.isnan(np.asarray(a, np.float64)).any()) for a in arrays)


def one_sided(values: Sequence[Any]) -> bool:
    """Whether an array of floats has one sign only, zero among them, or one value only."""
    arrays = [np.asarray(a, np.float32) for a in values if isinstance(a, np.ndarray) and as_dtype(a.dtype).is_float]
    return any(a.size > 1 and (a.min() >= 0 or a.max() <= 0 or a.min() == a.max()) for a in arrays)


def signed(value: Any) -> Any:
    """An array of floats with its elements in another order and under random signs; all else as it is."""
    if not isinstance(value, np.ndarray) or not as_dtype(value.dtype).is_float:
        return value
    rng = np.random.default_rng(value.size)
    elements = np.asarray(value, np.float32).ravel()
    if elements.size and elements.min() == elements.max():
        elements = elements + rng.standard_normal(elements.size).astype(np.float32)
    mixed = rng.permutation(elements) * rng.choice(np.array([-1, 1], np.float32), elements.size)
    return mixed.reshape(value.shape).astype(value.dtype)
