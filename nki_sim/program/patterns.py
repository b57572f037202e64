"""Pairs of (stride, size): how a view walks its buffer, and how the same walk is cut otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nki_sim.errors import NkiValidationError

Pattern = tuple[tuple[int, int], ...]


def infer(sizes: list[int], total: int, what: str) -> list[int]:
    """Sizes of which one may be -1, for `total` elements. Raises NkiValidationError, which begins with `what`."""
    if sizes.count(-1) > 1:
        raise NkiValidationError(f"{what}: only one size may be -1")
    if -1 in sizes:
        known = prod(n for n in sizes if n != -1)
        if known <= 0 or total % known:
            raise NkiValidationError(f"{what}: {total} elements do not divide by {known}")
        sizes[sizes.index(-1)] = total // known
    if prod(sizes) != total or any(n <= 0 for n in sizes):
        raise NkiValidationError(f"{what}: {prod(sizes)} elements requested, {total} available")
    return sizes


def merged(pattern: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The shortest equivalent pattern: neighbours that walk memory as one are one."""
    out: list[tuple[int, int]] = []
    for stride, size in pattern:
        if size == 1:
            continue
        if out and out[-1][0] == stride * size:
            out[-1] = (stride, out[-1][1] * size)
        else:
            out.append((stride, size))
    return out or [(1, 1)]


def split(walk: list[tuple[int, int]], sizes: Sequence[int], what: str) -> list[tuple[int, int]]:
    """Cut a merged pattern into dimensions of the given sizes; fails where memory is not contiguous."""
    out: list[tuple[int, int]] = []
    runs = [list(pair) for pair in walk]
    for n in reversed(sizes):
        if n == 1:
            out.append((1, 1))
            continue
        need, stride = n, None
        while need > 1:
            if not runs:
                raise NkiValidationError(f"{what}: sizes do not fit the memory layout")
            run_stride, run_size = runs[-1]
            if stride is None:
                stride = run_stride
            if run_size <= need:
                if need % run_size or (need != n and run_stride != stride * (n // need)):
                    raise NkiValidationError(f"{what}: the memory layout {walk} is not contiguous across dimensions")
                need //= run_size
                runs.pop()
            else:
                if run_size % need or (need != n and run_stride != stride * (n // need)):
                    raise NkiValidationError(f"{what}: the memory layout {walk} is not contiguous across dimensions")
                runs[-1] = [run_stride * need, run_size // need]
                need = 1
        out.append((stride if stride is not None else 1, n))
    return list(reversed(out))
