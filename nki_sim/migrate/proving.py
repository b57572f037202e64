"""A migration proves itself: old and new kernel on the same arrays, and how far apart they are."""

from __future__ import annotations

import ast
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nki_sim.beta1.instrument import definitions
from nki_sim.dtypes import as_dtype
from nki_sim.importing import install
from nki_sim.run import simulate, trace
from nki_sim.session import TensorSpec

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Largest relative difference (L2, per output) that rounding explains, by the types of the kernel's tiles."""


def run_new(source: str, function: str, arguments: Sequence[Any], keywords: dict[str, Any], file: str = "") -> Any:
    """The migrated kernel on the simulator. Raises whatever it or the simulator does."""
    with _loaded(source, file) as module:
        kernel = getattr(module, function)
        if hasattr(kernel, "with_schedule"):
            return simulate(kernel)(*arguments, **keywords)
        return kernel(*arguments, **keywords)


def traced(
    source: str, function: str, arguments: Sequence[Any], keywords: dict[str, Any], file: str = ""
) -> tuple[list[str], list[int]]:
    """(kinds of instructions, the stream over them) of a kernel, to be compared with another's."""
    specs = [TensorSpec(a.shape, as_dtype(a.dtype)) if isinstance(a, np.ndarray) else a for a in arguments]
    with _loaded(source, file) as module:
        program = trace(getattr(module, function), *specs, **keywords)
    return [template.describe() for template in program.templates], program.template_ids.tolist()


@contextmanager
def _loaded(source: str, file: str) -> Iterator[Any]:
    """The source as a module, beside whose file its neighbours are imported."""
    install()
    tree = ast.parse(source)
    tree.body = definitions(tree.body)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "migrated_kernel.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("migrated_kernel", path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        beside = str(Path(file).resolve().parent) if file else folder
        sys.path.insert(0, beside)
        try:
            sys.modules[module.__name__] = module  # dataclasses look up where they are
            exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module.__dict__)
            yield module
        finally:
            sys.path.remove(beside)
            sys.modules.pop(module.__name__, None)


def difference(old: Any, new: Any) -> float:
    """Relative L2 distance of the worst output; infinite where the outputs have other shapes, or hold NaN."""
    olds = old if isinstance(old, tuple) else (old,)
    news = new if isinstance(new, tuple) else (new,)
    if len(olds) != len(news):
        return float("inf")
    worst = 0.0
    for one, two in zip(olds, news):
        if not isinstance(one, np.ndarray) or not isinstance(two, np.ndarray) or one.size != two.size:
            return float("inf")
        a, b = np.asarray(one, np.float64).ravel(), np.asarray(two, np.float64).ravel()
        size = float(np.linalg.norm(a))
        far = float(np.linalg.norm(a - b)) / (size or 1.0)
        worst = max(worst, far if np.isfinite(far) else float("inf"))
    return worst


def tolerance(dtypes: set[str]) -> float:
    """What a kernel with tiles of these types may differ by."""
    return max([TOLERANCE["float32"], *(TOLERANCE.get(name, 0.0) for name in dtypes)])


def undefined(outputs: Any) -> bool:
    """Whether an output holds NaN."""
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    return any(isinstance(a, np.ndarray) and bool(np.isnan(np.asarray(a, np.float64)).any()) for a in arrays)
