"""When a variant is taken: conditions on a kernel's arguments that are no wider than what was verified.

    lhs.shape == (256, 512) and lhs.dtype == nl.float32 and eps == 1e-06

Of every tensor its shape and element type, of every other argument its value and whether that is a truth, a whole
number or a fraction, and of those that were left to their defaults that they are the defaults. All of it is known when
a kernel is compiled, so that a guard costs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from accelopt_core.dispatch.kernel_file import CannotJoin, KernelFile
from accelopt_core.toolchain import ArgumentSpec, Constant, ConstantArgument, DtypeArgument, TensorArgument


def conditions(kernel: KernelFile, arguments: Sequence[ArgumentSpec], language: str) -> Iterator[str]:
    """Expressions, all of which must hold. `arguments`: by position. `language`: what the file calls nki.language.

    Raises CannotJoin where the kernel cannot be called so, or an argument cannot be told from another.
    """
    given = kernel.by_position(len(arguments))
    for parameter, argument in zip(given, arguments):
        if isinstance(argument, TensorArgument):
            if parameter.name in kernel.told_from_none:
                yield f"{parameter.name} is not None"
            if parameter.name in kernel.told_by_kind:
                yield f"not isinstance({parameter.name}, (bool, int, float, str, tuple))"
            yield f"{parameter.name}.shape == {_constant(argument.shape)}"
            yield f"{parameter.name}.dtype == {language}.{_dtype(argument.dtype)}"
        elif isinstance(argument, DtypeArgument):
            yield f"{parameter.name} == {language}.{_dtype(argument.element_type)}"
        else:
            assert isinstance(argument, ConstantArgument)
            yield from _is(parameter.name, argument.value)
    for parameter in kernel.parameters:
        if parameter in given or parameter.default is None:
            continue
        try:
            yield from _is(parameter.name, ast.literal_eval(parameter.default.strip()))
        except (ValueError, SyntaxError):
            yield f"{parameter.name} == {parameter.default.strip()}"


def _is(name: str, value: Constant) -> Iterator[str]:
    """1, 1.0 and True are equal, and a kernel may tell them apart. `is` is no word of the NKI compilers 0.3 to 0.6,
    save with None, which the public kernel library writes as well, as it does `isinstance`."""
    if value is None:
        yield f"{name} is None"
        return
    if isinstance(value, (bool, int, float)):
        yield f"isinstance({name}, {type(value).__name__})"
        if value in (0, 1) and type(value) is int:
            yield f"not isinstance({name}, bool)"
    yield f"{name} == {_constant(value)}"


def _constant(value: Constant) -> str:
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    raise CannotJoin(f"{text} is no value that a condition could be written with")


def _dtype(name: str) -> str:
    if not name.isidentifier():
        raise CannotJoin(f"{name!r} is no element type of nki.language")
    return name
