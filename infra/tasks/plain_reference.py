"""A reference module written from a plain NumPy function and what its arguments look like.

The function travels alone: to the judge's process, to hosts, into the run's folder. So its source is taken, with that
of every function and the value of every constant that it uses by name, and nothing that only this process has.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import math
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import ml_dtypes
import numpy as np

from infra.tasks.reference_reader import DECLARATIONS, KNOWN_FUNCTIONS, TaskInvalid
from nki_sim.dtypes import SHORT

Example = Union[np.ndarray, tuple, int, float]
"""One argument: an array, a shape `(128, 512)` of float32, one with a dtype `((128, 512), "bfloat16")`, or a number."""

Inputs = Union[Sequence[Example], Callable[[], Sequence[Any]]]
"""Of a reference: examples of its arguments, or a function that draws them (from NumPy's global generator)."""

TEMPLATE = '''\
"""Written by nki-optimizer from the function {name!r}."""

from __future__ import annotations

import ml_dtypes as _ml_dtypes
import numpy as _np

{used}

{inputs}


{forward}


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(result, reference):
    results = result if isinstance(result, (tuple, list)) else (result,)
    references = reference if isinstance(reference, (tuple, list)) else (reference,)
    if len(results) != len(references):
        raise ValueError(f"the kernel returns {{len(results)}} arrays, and the reference {{len(references)}}")
    return [_np.reshape(got, _np.shape(wanted)) for got, wanted in zip(results, references)]
'''


def reference_module(reference: Callable[..., Any], inputs: Inputs | None) -> str:
    """The text of a reference module as docs/tasks.md has it; the kernel takes the arguments as the function does.

    Raises TaskInvalid, with what to change, for what cannot travel: a lambda, a closure, a method, a decorated or
    built-in function, one that uses an array or an object of this process, and inputs that say too little.
    """
    if inputs is None:
        raise TaskInvalid(
            f"{_called(reference)}: what are its arguments? give inputs=[...], with arrays or shapes for examples, or "
            "a function that draws them"
        )
    used = _Used()
    name = used.add(reference, "reference")
    if callable(inputs):
        drawing = used.add(inputs, "inputs")
        drawn = "" if drawing == "get_inputs" else f"def get_inputs():\n    return list({drawing}())"
    else:
        drawn = _drawn(inputs)
    forward = "" if name == "forward" else f"def forward(*inputs):\n    return {name}(*inputs)"
    taken = {*KNOWN_FUNCTIONS, *DECLARATIONS, "_np", "_ml_dtypes"} - {
        *(["forward"] if name == "forward" else []),
        *(["get_inputs"] if callable(inputs) and drawing == "get_inputs" else []),
    }
    for clash in sorted(taken & set(used.texts)):
        raise TaskInvalid(f"{name}: it uses {clash!r}, which in a reference module means something else: rename it")
    text = TEMPLATE.format(name=name, used="\n\n".join(used.texts.values()), inputs=drawn, forward=forward)
    compile(text, "<reference>", "exec")
    return text


SIXTEEN_BITS = ("bfloat16", "float16")
OF_SIXTEEN_BITS = ['PRECISION = "bf16-allowed"', "TOLERANCE = 5e-3"]
"""What a kernel that takes or returns them may do between: round to them."""


def with_inputs(text: str, shapes: Sequence[str], where: str) -> str:
    """A reference module's text from a file's that holds one plain function: its inputs drawn at these shapes.

    `where`: the file, for messages. Raises TaskInvalid for a file that draws its own inputs or holds several functions,
    and for shapes that are not one for each array the function takes.
    """
    try:
        functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TaskInvalid(f"{where}: not Python: {error}") from None
    if "get_inputs" in functions:
        raise TaskInvalid(f"--shape: {where} draws its own inputs in get_inputs: leave one of the two away")
    public = [name for name in functions if not name.startswith("_") and name not in KNOWN_FUNCTIONS]
    named = ["forward"] if "forward" in functions else public
    if len(named) != 1:
        which = f"which of {', '.join(named)} is it? rename that to forward" if named else "it defines no function"
        raise TaskInvalid(f"{where}: {which}")
    taken = functions[named[0]].args
    parameters = [each.arg for each in (*taken.posonlyargs, *taken.args)]
    needed = parameters[: len(parameters) - len(taken.defaults)]
    if not len(needed) <= len(shapes) <= len(parameters):
        takes = f"{named[0]}({', '.join(needed)}) of {where}, which takes {len(needed)}"
        raise TaskInvalid(f"--shape: {len(shapes)} shapes for {takes}")
    given = ", ".join(parameters[: len(shapes)])
    lines = ["", "", "import ml_dtypes as _ml_dtypes", "import numpy as _np", ""]
    drawn, narrow = [], False
    for name, shape in zip(parameters, shapes):
        sizes, dtype = example_of(shape)
        axes = [f"{name}_{axis}".upper() for axis in range(len(sizes))]
        for axis in axes:
            if re.search(rf"\b{axis}\b", text):
                raise TaskInvalid(f"--shape: {where} has a name {axis}, which is a size of {name} then: rename it")
        lines += [f"{axis} = {size}" for axis, size in zip(axes, sizes)]
        narrow = narrow or dtype in SIXTEEN_BITS
        drawn.append(f"        {_of_type(name, '(' + ', '.join(axes) + ',)', dtype_named(name, dtype))},")
    if narrow and not re.search(r"^(PRECISION|TOLERANCE)\b", text, re.MULTILINE):
        lines += OF_SIXTEEN_BITS
    lines += ["", "", "def get_inputs():", "    return [", *drawn, "    ]"]
    if named != ["forward"]:
        lines += ["", "", f"def forward({given}):", f"    return {named[0]}({given})"]
    return "\n".join([text.rstrip(), *lines, ""])


_SHAPE = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")


def example_of(text: str) -> tuple[tuple[int, ...], str]:
    """Of `128x512:bf16`: sizes, and the type's name. Raises TaskInvalid."""
    read = _SHAPE.fullmatch(text)
    sizes = tuple(int(number) for number in read[1].split("x")) if read else ()
    if read is None or not all(sizes):
        raise TaskInvalid(f"--shape {text}: write it as 128x512:float32, behind the kernel's file")
    return sizes, dtype_named(f"--shape {text}", read[2] or "float32").name


# --- what a function uses ---------------------------------------------------------------------------


@dataclass
class _Used:
    """Statements of the module to write by the name they bind, in the order in which they must stand."""

    texts: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)

    def add(self, function: Any, what: str) -> str:
        """A function with everything that it uses; the name it has."""
        node, source = _source(function, what)
        name = node.name
        if name in self.objects:
            if self.objects[name] is not function:
                raise TaskInvalid(f"two different things are called {name!r} in what the {what} uses: rename one")
            return name
        self.objects[name] = function
        needed = {used: self._value(function, used) for used in sorted(_names(function, node)) if used != name}
        for used, value in needed.items():
            if value is not _BUILT_IN:
                self._bind(used, value, function)
        self.texts[name] = source
        return name

    @staticmethod
    def _value(function: types.FunctionType, name: str) -> Any:
        if name in function.__globals__:
            return function.__globals__[name]
        if hasattr(builtins, name):
            return _BUILT_IN
        raise TaskInvalid(f"{function.__name__}: it uses {name!r}, which its module does not define")

    def _bind(self, name: str, value: Any, user: types.FunctionType) -> None:
        if name in self.objects:
            same = self.objects[name] is value or (_is_plain(value) and self.objects[name] == value)
            if not same:
                raise TaskInvalid(f"{user.__name__}: it uses {name!r}, and another function means another thing by it")
            return
        if isinstance(value, types.FunctionType) and _installed(inspect.getmodule(value)) is None:
            own = self.add(value, f"function {user.__name__}")
            if own != name:
                self.objects[name], self.texts[name] = value, f"{name} = {own}"
            return
        text = _statement(name, value)
        if text is None:
            what = "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__} of this process"
            raise TaskInvalid(
                f"{user.__name__}: it uses {name!r}, {what}, and it travels alone: make that an argument, compute it "
                "inside the function, or write a reference module (docs/tasks.md)"
            )
        self.objects[name], self.texts[name] = value, text


_BUILT_IN = object()


def _called(function: Any) -> str:
    return str(getattr(function, "__name__", None) or f"a {type(function).__name__}")


def _source(function: Any, what: str) -> tuple[ast.FunctionDef, str]:
    """Its definition, checked to be all there is to it. Raises TaskInvalid."""
    name, remedy = _called(function), f"write `def {what.split()[-1]}(...)` at the top level of a file"
    if not isinstance(function, types.FunctionType):
        kind = "a method" if isinstance(function, types.MethodType) else f"a {type(function).__name__}"
        raise TaskInvalid(f"{what}: {name} is {kind}, whose source cannot travel: {remedy} that calls it")
    if name == "<lambda>":
        raise TaskInvalid(f"{what}: a lambda has no name to travel by: {remedy}")
    if function.__closure__:
        held = ", ".join(function.__code__.co_freevars)
        raise TaskInvalid(f"{what}: {name} is a closure over {held}: make that an argument or a constant, and {remedy}")
    if "." in function.__qualname__:
        raise TaskInvalid(f"{what}: {name} is defined inside {function.__qualname__.rpartition('.')[0]}: {remedy}")
    try:
        source = textwrap.dedent(inspect.getsource(function))
        (node,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise TaskInvalid(f"{what}: the source of {name} cannot be read ({error}): {remedy}") from None
    if not isinstance(node, ast.FunctionDef) or node.name != name:
        raise TaskInvalid(f"{what}: {name} is not defined by a plain `def {name}`: {remedy}")
    if node.decorator_list or hasattr(function, "__wrapped__"):
        raise TaskInvalid(f"{what}: {name} is decorated: give the function itself, without decorators")
    return node, source.rstrip()


def _names(function: types.FunctionType, node: ast.FunctionDef) -> set[str]:
    """Of its module's, or built in: used when it is called, or by its defaults when it is defined."""
    defaults = [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
    by_default = {
        inner.id
        for each in defaults
        for inner in ast.walk(each)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    }
    return by_default | set(_global_names(function.__code__))


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _statement(name: str, value: Any) -> str | None:
    """By which a module has that value under that name; None where no text says it."""
    if isinstance(value, types.ModuleType):
        if _installed(value) is None:
            where = getattr(value, "__file__", None) or "no file"
            raise TaskInvalid(
                f"the reference uses your module {value.__name__} ({where}), and it travels alone: move what it needs "
                "into its own file, or write a reference module (docs/tasks.md)"
            )
        return f"import {value.__name__} as {name}"
    if _is_plain(value):
        return f"{name} = {value!r}"
    if isinstance(value, np.dtype):
        return f"{name} = {_dtype_text(value)}"
    if isinstance(value, np.generic) and _is_plain(value.item()):
        return f"{name} = {_dtype_text(value.dtype)}.type({value.item()!r})"
    for module in (np, ml_dtypes, inspect.getmodule(value)):
        own = getattr(value, "__name__", "")
        if module is not None and own and _installed(module) and getattr(module, own, None) is value:
            return f"from {module.__name__} import {own} as {name}"
    return None


def _is_plain(value: Any) -> bool:
    """Whether its repr, read back, is the value."""
    if isinstance(value, (tuple, list)):
        return type(value) in (tuple, list) and all(map(_is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(_is_plain(each) for pair in value.items() for each in pair)
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    return value is None or type(value) in (bool, int, str, bytes)


def _installed(module: types.ModuleType | None) -> str | None:
    """Its name, where it is Python's or some package's and no file of the user's."""
    if module is None or module.__name__ == "__main__":
        return None
    if module.__name__.partition(".")[0] in sys.stdlib_module_names:
        return module.__name__
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    places = {Path(sysconfig.get_path(which)).resolve() for which in ("stdlib", "platstdlib", "purelib", "platlib")}
    inside = any(Path(file).resolve().is_relative_to(place) for place in places)
    return module.__name__ if inside or module.__name__.partition(".")[0] in ("numpy", "ml_dtypes") else None


# --- what its arguments look like ---------------------------------------------------------------------


def _drawn(examples: Sequence[Example]) -> str:
    """get_inputs, drawing arrays of the examples' shapes and dtypes; a number stays the number it is."""
    if isinstance(examples, np.ndarray) or not isinstance(examples, Sequence) or isinstance(examples, str):
        raise TaskInvalid(
            f"inputs: a list with one example per argument, or a function that draws them, not a "
            f"{type(examples).__name__}"
        )
    if not examples:
        raise TaskInvalid("inputs: the list is empty, and a kernel computes from at least one array")
    lines = ",\n        ".join(_one(number, example) for number, example in enumerate(examples))
    return f"def get_inputs():\n    return [\n        {lines},\n    ]"


def _one(number: int, example: Any) -> str:
    where = f"inputs[{number}]"
    if isinstance(example, (bool, int, float)) and _is_plain(example):
        return repr(example)
    if isinstance(example, np.ndarray):
        return _like(where, example)
    if not isinstance(example, tuple):
        raise TaskInvalid(
            f'{where}: an array, a shape as (128, 512), a shape and a dtype as ((128, 512), "bfloat16"), or a number, '
            f"not a {type(example).__name__}"
        )
    shape, dtype = example if len(example) == 2 and isinstance(example[0], tuple) else (example, "float32")
    if not all(type(size) is int and size > 0 for size in shape):
        raise TaskInvalid(f"{where}: {shape!r} is no shape: positive whole numbers, as (128, 512)")
    return _of_type(where, str(shape), dtype_named(where, dtype))


def _of_type(where: str, shape: str, kind: np.dtype) -> str:
    """An array drawn over what its type holds: normal where that is a floating one. `shape`: an expression."""
    if _floating(kind):
        return _normal(shape, kind)
    if kind == np.bool_:
        return f"_np.random.random({shape}) < 0.5"
    if kind.itemsize > 2:
        raise TaskInvalid(
            f"{where}: which {kind} values may it have? give an example array, or inputs as a function (get_inputs)"
        )
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return f"_np.random.randint({low}, {high} + 1, size={shape}).astype({_dtype_text(kind)})"


def _like(where: str, example: np.ndarray) -> str:
    """Drawn as the example is: its mean and spread, its sign where it has one; whole numbers of its range."""
    shape, kind = example.shape, dtype_named(where, example.dtype)
    if not example.size:
        raise TaskInvalid(f"{where}: the array is empty")
    if kind == np.bool_:
        return f"_np.random.random({shape}) < 0.5"
    if np.issubdtype(kind, np.integer):
        low, high = int(example.min()), int(example.max())
        return f"_np.random.randint({low}, {high} + 1, size={shape}).astype({_dtype_text(kind)})"
    wide = example.astype(np.float64)
    if not np.isfinite(wide).all():
        raise TaskInvalid(f"{where}: the example has infinities or NaN; give inputs as a function that draws them")
    mean, spread = float(wide.mean()), float(wide.std())
    if spread == 0 or not math.isfinite(spread):
        return _normal(shape, kind)  # all alike: it says what its shape is, and nothing of values
    drawn = f"_np.random.normal({mean!r}, {spread!r}, size={shape})"
    drawn = f"_np.abs({drawn})" if (wide >= 0).all() else drawn
    return f"{drawn}.astype({_dtype_text(kind)})"


def _normal(shape: object, kind: np.dtype) -> str:
    return f"_np.random.normal(size={shape}).astype({_dtype_text(kind)})"


def dtype_named(where: str, named: Any) -> np.dtype:
    named = SHORT.get(named, named) if isinstance(named, str) else named
    try:
        kind = np.dtype(getattr(ml_dtypes, named, named) if isinstance(named, str) else named)
    except TypeError:
        raise TaskInvalid(f"{where}: {named!r} is no dtype; write it as float32, bf16 or int8") from None
    if not (_floating(kind) or kind == np.bool_ or np.issubdtype(kind, np.integer)):
        raise TaskInvalid(f"{where}: a kernel takes no {kind}")
    return kind


def _floating(kind: np.dtype) -> bool:
    return bool(np.issubdtype(kind, np.floating)) or hasattr(ml_dtypes, kind.name)


def _dtype_text(kind: np.dtype) -> str:
    return f"_np.dtype(_ml_dtypes.{kind.name})" if hasattr(ml_dtypes, kind.name) else f"_np.dtype({kind.name!r})"
