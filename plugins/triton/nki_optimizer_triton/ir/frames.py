"""Values of programs that are executed side by side.

Every value is an array whose first axis counts programs: as many as there are, or 1 for what is the same in all of
them. Where control flow parts programs, an inner frame has some of them, and takes from the outer one's values theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import numpy as np

from nki_optimizer_triton.ir.types import Element


@dataclass(frozen=True)
class BlockPointerValue:
    """`tt.make_tensor_ptr`: base, sizes and strides of an array, and where in it the block lies."""

    base: np.ndarray
    sizes: tuple[np.ndarray, ...]
    strides: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    block: tuple[int, ...]
    element: Element

    def of(self, programs: np.ndarray) -> BlockPointerValue:
        return BlockPointerValue(
            taken(self.base, programs),
            tuple(taken(each, programs) for each in self.sizes),
            tuple(taken(each, programs) for each in self.strides),
            tuple(taken(each, programs) for each in self.offsets),
            self.block,
            self.element,
        )


@dataclass(frozen=True)
class DescriptorValue:
    """`tt.make_tensor_descriptor`, or one that the host made."""

    base: np.ndarray
    sizes: tuple[np.ndarray, ...]
    strides: tuple[np.ndarray, ...]
    block: tuple[int, ...]
    element: Element
    padding: float
    """What is read outside: 0, or NaN."""

    def of(self, programs: np.ndarray) -> DescriptorValue:
        return DescriptorValue(
            taken(self.base, programs),
            tuple(taken(each, programs) for each in self.sizes),
            tuple(taken(each, programs) for each in self.strides),
            self.block,
            self.element,
            self.padding,
        )


Value = Union[np.ndarray, BlockPointerValue, DescriptorValue]


def taken(array: np.ndarray, programs: np.ndarray) -> np.ndarray:
    return array if array.shape[0] == 1 else array[programs]


class Frame:
    """Some programs, and the values that they have named."""

    def __init__(
        self, programs: np.ndarray, outer: Frame | None = None, among: np.ndarray | None = None, dimensions: int = 0
    ) -> None:
        """`programs`: int64 [P], their numbers in the grid. `among`: their places in the outer frame; None: all of
        them. `dimensions`: of the arrays that a reduction combines: scalars from outside are given as many axes."""
        self.programs = programs
        self.values: dict[str, Value] = {}
        self._outer = outer
        self._among = among
        self._dimensions = dimensions

    @property
    def count(self) -> int:
        return len(self.programs)

    def value(self, name: str) -> Value:
        found = self.values.get(name)
        if found is None:
            assert self._outer is not None, f"%{name} has no value"
            found = self._outer.value(name)
            if self._among is not None:
                found = taken(found, self._among) if isinstance(found, np.ndarray) else found.of(self._among)
            if self._dimensions and isinstance(found, np.ndarray):
                found = found.reshape(found.shape[:1] + (1,) * self._dimensions)
            self.values[name] = found
        return found

    def array(self, name: str) -> np.ndarray:
        found = self.value(name)
        assert isinstance(found, np.ndarray)
        return found

    def some(self, among: np.ndarray) -> Frame:
        """An inner frame with the programs at these places."""
        return Frame(self.programs[among], self, among)

    def all_of(self) -> Frame:
        """An inner frame with all programs, for values that are not to outlive it."""
        return Frame(self.programs, self)


def merged(parts: list[tuple[np.ndarray, list[Value]]], count: int) -> list[Value]:
    """Values of programs that went different ways, in one array each: `parts` are their places and what they bring."""
    if len(parts) == 1:
        return parts[0][1]
    found: list[Value] = []
    for values in zip(*(values for _, values in parts)):
        first = values[0]
        if not isinstance(first, np.ndarray):
            found.append(_merged_structures([(p, v) for (p, _), v in zip(parts, values)], count))
            continue
        found.append(_merged_arrays([(p, v) for (p, _), v in zip(parts, values)], count))
    return found


def _merged_arrays(parts: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    whole = np.empty((count, *parts[0][1].shape[1:]), parts[0][1].dtype)
    for places, array in parts:
        whole[places] = array
    return whole


def _merged_structures(parts: list[tuple[np.ndarray, Value]], count: int) -> Value:
    def of(name: str, number: int | None = None) -> np.ndarray:
        return _merged_arrays(
            [(p, getattr(v, name) if number is None else getattr(v, name)[number]) for p, v in parts], count
        )

    first = parts[0][1]
    axes = range(len(first.sizes))  # type: ignore[union-attr]
    sizes, strides = tuple(of("sizes", n) for n in axes), tuple(of("strides", n) for n in axes)
    if isinstance(first, BlockPointerValue):
        offsets = tuple(of("offsets", n) for n in axes)
        return BlockPointerValue(of("base"), sizes, strides, offsets, first.block, first.element)
    assert isinstance(first, DescriptorValue)
    return DescriptorValue(of("base"), sizes, strides, first.block, first.element, first.padding)
