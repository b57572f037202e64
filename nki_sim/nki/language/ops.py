"""Op tokens: `nl.add` names an operation for `op=` arguments, and `nl.add(x, y)` computes it on tiles."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from nki_sim.errors import NotSupported


def tile_function(name: str) -> Callable[..., Any] | None:
    """What `nl.<name>(tiles...)` does, if it does anything."""
    lowering = importlib.import_module("nki_sim.isa.language_ops")  # late: it needs this package to be complete
    return getattr(lowering, name, None)


class Op:
    """A named operation. Calling it on tiles issues the instructions that compute it."""

    def __init__(self, name: str, doc: str) -> None:
        self.name = name
        self.__doc__ = doc

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *operands: Any, **options: Any) -> Any:
        function = tile_function(self.name)
        if function is None:
            raise NotSupported(f"nl.{self.name} is an operation for op=nl.{self.name}; it cannot be called on tiles")
        return function(*operands, **options)

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self) -> str:
        return f"OPS[{self.name!r}]"

    def __deepcopy__(self, memo: Any) -> Op:
        return self


_BINARY = (
    "add subtract multiply divide maximum minimum abs_max abs_min power fmod mod equal not_equal less less_equal "
    "greater greater_equal bitwise_and bitwise_or bitwise_xor left_shift right_shift arithmetic_shift_right "
    "logical_and logical_or logical_xor"
)
_UNARY = (
    "abs square exp log sqrt rsqrt reciprocal tanh sigmoid relu prelu gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx "
    "gelu_apprx_sigmoid_dx silu silu_dx softplus mish erf erf_dx sin cos tan arctan ceil floor trunc negative sign "
    "copy invert logical_not bypass"
)
_REDUCTIONS = "sum max min mean prod var all average"

OPS: dict[str, Op] = {}
for _names, _kind in ((_BINARY, "of two tiles, or a tile and a scalar"), (_UNARY, "of a tile")):
    for _name in _names.split():
        OPS[_name] = Op(_name, f"{_name}: elementwise, {_kind}.")
for _name in _REDUCTIONS.split():
    OPS[_name] = Op(_name, f"{_name}: over trailing free dimensions of a tile.")

OP_TOKENS = frozenset(f"{_BINARY} {_UNARY} average".split())
"""Names that instructions take as `op=`; the others only work on tiles."""
