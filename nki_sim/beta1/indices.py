"""`nl.arange` and `nl.mgrid`: index grids, and the masks that comparing them gives.

A grid is a base plus a multiple of the position along each of its axes. Everything that the old API does with
grids keeps that form, or it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from nki_sim.beta1.symbols import Symbolic, plain
from nki_sim.errors import NotSupported


class Grid:
    """base + sum of factors[k] * (position along axis k), of `shape`."""

    __slots__ = ("shape", "factors", "base")

    def __init__(self, shape: tuple[int, ...], factors: tuple[int, ...], base: int) -> None:
        self.shape = shape
        self.factors = factors
        self.base = base

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def values(self) -> np.ndarray:
        out = np.full(self.shape or (1,), int(self.base), np.int64)
        for axis, (size, factor) in enumerate(zip(self.shape, self.factors)):
            steps = np.arange(int(size)) * int(factor)
            out = out + steps.reshape([-1 if k == axis else 1 for k in range(len(self.shape))])
        return out

    def __getitem__(self, key: Any) -> Grid:
        keys = key if isinstance(key, tuple) else (key,)
        shape: list[int] = []
        factors: list[int] = []
        axis = 0
        for item in keys:
            if item is None:
                shape.append(1)
                factors.append(0)
            elif item == slice(None):
                shape.append(self.shape[axis])
                factors.append(self.factors[axis])
                axis += 1
            elif item is Ellipsis:
                while axis < len(self.shape):
                    shape.append(self.shape[axis])
                    factors.append(self.factors[axis])
                    axis += 1
            else:
                raise NotSupported(f"an index grid is indexed with None and ':' only, not {item!r}")
        shape += self.shape[axis:]
        factors += self.factors[axis:]
        return Grid(tuple(shape), tuple(factors), self.base)

    def _combine(self, other: Any, sign: int) -> Any:
        if isinstance(other, Grid):
            rank = max(self.ndim, other.ndim)
            left, right = self._ranked(rank), other._ranked(rank)
            shape = tuple(a if b == 1 else b for a, b in zip(left.shape, right.shape))
            factors = tuple(a + sign * b for a, b in zip(left.factors, right.factors))
            return Grid(shape, factors, left.base + sign * right.base)
        if isinstance(other, (int, np.integer)):
            return Grid(self.shape, self.factors, self.base + sign * _int(other))
        return NotImplemented

    def _ranked(self, rank: int) -> Grid:
        missing = rank - self.ndim
        return Grid((1,) * missing + self.shape, (0,) * missing + self.factors, self.base) if missing else self

    def __add__(self, other: Any) -> Any:
        return self._combine(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, -1)

    def __neg__(self) -> Grid:
        return self * -1

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, (int, np.integer)):
            return NotImplemented
        factor = _int(other)
        return Grid(self.shape, tuple(f * factor for f in self.factors), self.base * factor)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        raise NotSupported("// of an index grid is not an affine index")

    __mod__ = __floordiv__

    # comparisons: each is "a form is not negative"
    def __ge__(self, other: Any) -> Any:
        return Mask([_grid(self - other)])

    def __gt__(self, other: Any) -> Any:
        return Mask([_grid(self - other - 1)])

    def __le__(self, other: Any) -> Any:
        return Mask([_grid(other - self)])

    def __lt__(self, other: Any) -> Any:
        return Mask([_grid(other - self - 1)])

    def __eq__(self, other: Any) -> Any:
        if not isinstance(other, (Grid, int, np.integer)):
            return NotImplemented
        return Mask([_grid(self - other), _grid(other - self)])

    def __hash__(self) -> int:
        raise TypeError("a grid of indices is compared element by element: it is no key")


def _grid(value: Any) -> Grid:
    assert isinstance(value, Grid)
    return value


def _int(value: Any) -> int:
    return value if isinstance(value, int) else int(value)


class Mask:
    """Where all of `forms` are not negative, and (`never`) nowhere."""

    __slots__ = ("forms", "never")

    def __init__(self, forms: Iterable[Grid], never: bool = False) -> None:
        self.forms = tuple(forms)
        self.never = never

    def __and__(self, other: Any) -> Any:
        if isinstance(other, Mask):
            return Mask((*self.forms, *other.forms), self.never or other.never)
        if isinstance(other, (bool, np.bool_)):
            return Mask(self.forms, self.never or not other)
        return NotImplemented

    __rand__ = __and__

    def __bool__(self) -> bool:
        raise NotSupported("a mask of index grids has no single truth value")

    def extents(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """How many of each axis are let through, when the mask is a box that starts at 0; else None.

        A size that the mask cuts is Symbolic where the bound is: min(size, ...) is the migrated kernel's text.
        """
        limits: list[int] = list(shape)
        for form in self.forms:
            lowered = form._ranked(len(shape)) if form.ndim <= len(shape) else form
            if lowered.ndim != len(shape):
                return None
            moving = [k for k, f in enumerate(lowered.factors) if f and lowered.shape[k] > 1]
            if not moving:
                if int(lowered.base) < 0:
                    return (0,) * len(shape)
                continue
            if len(moving) > 1:
                reach = sum(min(0, int(lowered.factors[k]) * (int(lowered.shape[k]) - 1)) for k in moving)
                if int(lowered.base) + reach < 0:
                    return None
                continue  # it holds at the farthest corner, so everywhere
            axis, factor = moving[0], int(lowered.factors[moving[0]])
            if factor > 0:
                if int(lowered.base) < 0:
                    return None
                continue
            if int(lowered.base) < 0:
                count: int = 0
            elif factor == -1:
                count = lowered.base + 1
            else:
                count = int(lowered.base) // -factor + 1
            if int(count) < int(limits[axis]):
                limits[axis] = count
        return (0,) * len(shape) if self.never else tuple(limits)

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        out = np.full([int(n) for n in shape], not self.never)
        for form in self.forms:
            out &= np.broadcast_to(form._ranked(len(shape)).values() >= 0, out.shape)
        return out


def arange(start: Any, stop: Any = None, step: Any = 1) -> Grid:
    """`nl.arange`: a grid of one axis."""
    if stop is None:
        start, stop = 0, start
    return Grid((_count(start, stop, step),), (plain(step),), _int(start))


def _count(start: Any, stop: Any, step: Any) -> int:
    if int(step) == 1:
        size = _int(stop) - _int(start)
        return size if isinstance(size, Symbolic) and size.terms else int(size)
    return max(0, -(-(int(stop) - int(start)) // int(step)))


class Mesh(tuple[Grid, ...]):
    """The grids of one `nl.mgrid[...]`, which are called p, x, y, z, w in their order, too."""

    def __getattr__(self, name: str) -> Grid:
        at = "pxyzw".find(name) if len(name) == 1 else -1
        if not 0 <= at < len(self):
            raise AttributeError(f"a mesh of {len(self)} grids has no {name}")
        return self[at]


class _MeshGrid:
    """`nl.mgrid[0:a, 0:b]`: one grid for each slice, each varying along its own axis."""

    def __getitem__(self, key: Any) -> tuple[Grid, ...] | Grid:
        keys = key if isinstance(key, tuple) else (key,)
        grids = []
        for axis, item in enumerate(keys):
            flat = arange(0 if item.start is None else item.start, item.stop, 1 if item.step is None else item.step)
            grids.append(flat[tuple(slice(None) if k == axis else None for k in range(len(keys)))])
        # every member of a mesh has the whole mesh's shape
        shape = tuple(grid.shape[axis] for axis, grid in enumerate(grids))
        return Mesh(Grid(shape, grid.factors, grid.base) for grid in grids) if isinstance(key, tuple) else grids[0]


mgrid = _MeshGrid()
