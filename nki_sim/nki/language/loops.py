"""Loops: static ones are Python's, device loops run on registers and scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nki_sim.dtypes import int32
from nki_sim.errors import NkiValidationError
from nki_sim.isa.registers.scalars import NkiScalar, usable
from nki_sim.program.program import Bound, Loop
from nki_sim.tracing.session import Tracer, VirtualRegister, current, new_register


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled when the kernel is compiled. Deprecated in NKI 0.7: write range."""
    return _range(start, stop, step)


sequential_range = static_range = affine_range


def _range(start: Any, stop: Any, step: Any) -> range:
    try:
        bounds = (operator.index(start), None if stop is None else operator.index(stop), operator.index(step))
    except TypeError:
        raise NkiValidationError(
            "a static loop needs bounds known when tracing; loop over a register with nl.fori_loop(lower, upper, body)"
        ) from None
    low, high, by = bounds
    return range(low) if high is None else range(low, high, by)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], None], step: int = 1) -> None:
    """A loop on the device: body_fun(i) for i in range(lower, upper, step), traced once.

    A bound is an int, an int32 NkiScalar or a register; `step` a positive constant. `i` is an NkiScalar, or a register
    where a bound is one (NKI 0.7; up to 0.6 always): an offset, through `.ap(scalar_offset=i)` or `.select(dim, i)`.
    Tensors made in the body are not visible outside. Raises NkiValidationError for an int64 scalar as a bound.
    """
    tracer = current()
    by = _positive_step(step)
    low, high = _bound(lower), _bound(upper)
    scalar = not any(isinstance(bound, VirtualRegister) for bound in (lower, upper))
    if tracer.numbers:
        for value in range(_value(lower), _value(upper), by):
            body_fun(_index(new_register(tracer, value), scalar))
        return
    with _recorded(tracer, "for", low, high, by) as loop:
        body_fun(_index(loop.counter, scalar))


def _index(counter: VirtualRegister, scalar: bool) -> Any:
    return NkiScalar(counter) if scalar else counter


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """The form of fori_loop up to NKI 0.6, removed in 0.7: `for i in nl.dynamic_range(n)`; `i` is a register."""
    lower, upper = (0, start) if stop is None else (start, stop)
    tracer = current()
    by = _positive_step(step)
    if tracer.numbers:
        for value in range(_value(lower), _value(upper), by):
            yield new_register(tracer, value)
        return
    with _recorded(tracer, "for", _bound(lower), _bound(upper), by) as loop:
        yield loop.counter


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """A loop on the device while a register is not zero: r = init; while r != 0: r = body_fun(r)."""
    if not isinstance(init, VirtualRegister):
        raise NkiValidationError(f"while_loop needs a register from nisa.register_alloc(), not {init!r}")
    tracer = current()
    if tracer.numbers:
        value = init.value()
        while value != 0:
            value = _condition(body_fun(new_register(tracer, value))).value()
        return
    with _recorded(tracer, "while", _bound(init), Bound(), 1) as loop:
        loop.next = _condition(body_fun(loop.counter)).storage.allocation.id


@dataclass
class _Open:
    """A device loop whose body is being traced."""

    counter: VirtualRegister
    next: int = -1


@contextmanager
def _recorded(tracer: Tracer, kind: str, lower: Bound, upper: Bound, step: int) -> Iterator[_Open]:
    """Trace a body once, as rows that the executor repeats."""
    loop = _Open(new_register(tracer, None))
    start = tracer.issued
    yield loop
    counter = loop.counter.storage.allocation.id
    tracer.loops.append(Loop(kind, start, tracer.issued, counter, lower, upper, step, loop.next))


def _condition(value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        raise NkiValidationError(f"while_loop's body must return the register of the next condition, not {value!r}")
    return value


def _positive_step(step: Any) -> int:
    if type(step) is not int or step < 1:
        raise NkiValidationError(f"a device loop's step must be a positive constant, not {step!r}")
    return step


def _value(bound: Any) -> int:
    """Of a bound, while the kernel runs with numbers."""
    if isinstance(bound, NkiScalar):
        return VirtualRegister(bound.register, runs=True).value()
    return bound.value() if isinstance(bound, VirtualRegister) else operator.index(bound)


def _bound(bound: Any) -> Bound:
    if isinstance(bound, NkiScalar):
        usable(bound, "fori_loop")
        if bound.dtype != int32:
            raise NkiValidationError("fori_loop: an int64 scalar cannot be a bound: load it from an int32 tile")
        return Bound(register=bound.register.storage.allocation.id)
    if isinstance(bound, VirtualRegister):
        return Bound(register=bound.storage.allocation.id)
    try:
        number = operator.index(bound)
    except TypeError:
        raise NkiValidationError(f"fori_loop: a bound is an int, a scalar or a register, not {bound!r}") from None
    if not -(1 << 31) <= number < 1 << 31:
        raise NkiValidationError(f"fori_loop: a bound has 32 bits, which {number} does not fit")
    return Bound(number)
