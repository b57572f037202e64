"""Inputs on which a reference of narrow types computes in float64, or in float32, whatever it casts to in between.

A reference of bfloat16 arrays casts: `x.astype(np.float32)` before it computes, `.astype(bfloat16)` before it returns.
Both are about what its own machine has and not about the formula; left in place, the reference would be as far off as
the kernel is, and would not show how far inputs and float32 move it: of what is less than a step of bfloat16, a result
of that type shows nothing or a whole step. And what NumPy makes float64 of (`np.vectorize`, a factor of `np.sqrt(2)`)
would show nothing of what plain float32 gets wrong. A narrow value that is used in further arithmetic is part of the
formula, and stays rounded.

Arrays that the reference makes itself, to fill them part by part, are watched as those are that it is given.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from accelopt_core.judging.tolerance.storage import STORAGE


class ReferenceArray(np.ndarray):
    """An array that remembers what was rounded to a narrow type: by `astype`, or as it was filled."""

    unrounded: np.ndarray | None = None
    """What this very array was rounded from, element by element; what is computed from it has none."""

    def __array_finalize__(self, made_from: object) -> None:
        self.unrounded = None

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = watched_like(super().__array_function__(func, types, args, kwargs), self)
        if _is_narrow(found) and isinstance(found, ReferenceArray) and found.unrounded is None and "out" not in kwargs:
            found.unrounded = _wide_twin(func, args, kwargs)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if self.unrounded is not None:
            before = _before(value)
            self.unrounded[key] = np.nan if _is_narrow(before) else before  # or it would pass for exact

    def astype(self, dtype: Any, *arguments: Any, **keywords: Any) -> Any:
        found = super().astype(dtype, *arguments, **keywords)
        if _is_narrow(found) and isinstance(found, ReferenceArray):
            found.unrounded = self
        return found

    @property
    def T(self) -> Any:
        return self.transpose()


def _moved_as_well(name: str) -> Callable[..., Any]:
    def method(self: ReferenceArray, *arguments: Any, **keywords: Any) -> Any:
        found = getattr(np.ndarray, name)(self, *arguments, **keywords)
        if self.unrounded is not None and isinstance(found, ReferenceArray):
            found.unrounded = getattr(self.unrounded, name)(*arguments, **keywords)
        return found

    return method


for _name in ("reshape", "transpose", "swapaxes", "copy", "squeeze", "ravel", "flatten", "__getitem__"):
    setattr(ReferenceArray, _name, _moved_as_well(_name))


def _is_narrow(value: Any) -> bool:
    """Also of a single value."""
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.name in STORAGE


def _before(value: Any) -> Any:
    """An array before it was rounded, as far as that is known, or a list or tuple of such."""
    if type(value) in (tuple, list):
        return type(value)(map(_before, value))
    before = getattr(value, "unrounded", None)
    return value if before is None else before


def _wide_twin(func: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> np.ndarray | None:
    """What a function, that may only move elements, makes of arrays before they were rounded; `unrounded` looks at it
    again. None where that is as narrow."""
    found = func(*_before(arguments), **{name: value for name, value in keywords.items() if name != "dtype"})
    return None if _is_narrow(found) else found


def watched_like(result: Any, made_from: np.ndarray) -> Any:
    """A plain array of floats, or those of a tuple or list, in the class of the array that it was made from."""
    if type(result) in (tuple, list):
        return type(result)(watched_like(each, made_from) for each in result)
    if type(result) is np.ndarray and (result.dtype.kind == "f" or _is_narrow(result)):
        watched = result.view(type(made_from))
        watched.__array_finalize__(made_from)
        return watched
    return result


class Float64Array(ReferenceArray):
    """An array whose `astype(np.float32)` is float64."""

    def astype(self, dtype: Any, *arguments: Any, **keywords: Any) -> Any:
        wide = np.float64 if np.dtype(dtype) == np.float32 else dtype
        return super().astype(wide, *arguments, **keywords)


class _Float32Array(ReferenceArray):
    """An array whose arithmetic is of float32, whatever float64 it meets."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            kwargs["out"] = tuple(_plain(out) for out in kwargs["out"])
        found = getattr(ufunc, method)(*(_in_float32(each) for each in inputs), **kwargs)
        if isinstance(found, tuple):
            return tuple(_as_float32_array(each) for each in found)
        return _as_float32_array(found)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Float32Array) else value


def _in_float32(value: Any) -> Any:
    is_double = isinstance(value, (np.ndarray, np.generic)) and value.dtype == np.float64
    return _plain(value).astype(np.float32) if is_double else _plain(value)


def _as_float32_array(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    return np.asarray(_in_float32(value)).view(_Float32Array)


def any_narrow(values: Sequence[Any]) -> bool:
    """Is any of them an array of a narrow type?"""
    return any(map(_is_narrow, values))


def computing_wide(inputs: Sequence[Any]) -> list[Any]:
    """`inputs`, to compute with: arrays of float64 in float64, and arrays of float32 in float32."""
    kinds = {np.dtype(np.float64): Float64Array, np.dtype(np.float32): _Float32Array}
    return [a.view(kinds[a.dtype]) if isinstance(a, np.ndarray) and a.dtype in kinds else a for a in inputs]


def unrounded(result: Any) -> np.ndarray:
    """A result of the reference before it was rounded to its narrow type.

    As it is where that is not known, and where it was written to since. What is beyond its type stays so.
    """
    rounded, before = np.asarray(result), getattr(result, "unrounded", None)
    if before is None:
        return rounded
    before, bits = np.asarray(before), f"u{rounded.itemsize}"
    with np.errstate(all="ignore"):
        if not np.array_equal(before.astype(rounded.dtype).view(bits), rounded.view(bits)):
            return rounded
    wide = rounded.astype(before.dtype)
    finite = np.isfinite(wide)
    return before if finite.all() else np.where(finite, before, wide)


class WatchedNumPy(types.ModuleType):
    """NumPy as a reference's module knows it: arrays made here are of the class that it computes with."""

    def __init__(self) -> None:
        super().__init__("numpy")
        self.__dict__.update(vars(np))
        self._kind: type[ReferenceArray] | None = None
        for make in _MAKERS:
            setattr(self, make.__name__, self._watching(make))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def put_into(self, names: dict[str, Any]) -> None:
        """In place of NumPy and its functions, under whichever names a module has them."""
        for name, value in names.items():
            if value is np:
                names[name] = self
            elif any(value is make for make in _MAKERS):
                names[name] = getattr(self, value.__name__)

    @contextmanager
    def making(self, inputs: Sequence[Any]) -> Iterator[None]:
        """Within it, of the class of these inputs, if that is one of those here."""
        self._kind = next((type(each) for each in inputs if isinstance(each, ReferenceArray)), None)
        try:
            yield
        finally:
            self._kind = None

    def _watching(self, make: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        @functools.wraps(make)
        def watched(*arguments: Any, **keywords: Any) -> np.ndarray:
            made = make(*arguments, **keywords)
            if self._kind is None or type(made) is not np.ndarray or made.dtype.name not in (*STORAGE, *_WIDE):
                return made
            width = np.float64 if issubclass(self._kind, Float64Array) else np.float32
            wide: ReferenceArray = made.astype(width, copy=False).view(self._kind)
            if made.dtype.name in _WIDE:
                return wide
            narrow: ReferenceArray = made.view(self._kind)
            narrow.unrounded = _wide_twin(make, arguments[:1], {}) if make in _COPYING else wide
            return narrow

        return watched


_WIDE = ("float32", "float64")
_COPYING: tuple[Callable[..., np.ndarray], ...] = (np.array, np.asarray, np.ascontiguousarray)
_MAKERS: tuple[Callable[..., np.ndarray], ...] = (*_COPYING, np.empty, np.zeros, np.ones, np.full)
