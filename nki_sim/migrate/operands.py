"""Index grids, masks and block dimensions of a subscript, written as the slices of the current API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from nki_sim.beta1.facts import IndexFact, Sum, TileFact
from nki_sim.beta1.symbols import Atom, Symbolic, written
from nki_sim.machine import ISA
from nki_sim.migrate.layouts import Layout
from nki_sim.program.patterns import merged

Clip = Mapping[int, str]
"""How many elements of an axis a mask lets through, as text; axes that are not cut are not in it."""
UNKNOWN = Sum(-1, "")
"""The size of a dimension that is not the same at every visit."""
NO_CLIP: Clip = MappingProxyType({})


class NeedsPerson(Exception):
    """A construct with no mechanical rewrite: the rule's name, and why."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule
        self.text = text


@dataclass(frozen=True)
class Operand:
    """An expression of the new kernel: a tile, or a number when `memory` is empty."""

    text: str
    shape: tuple[Sum, ...] = ()
    dtype: str = ""
    memory: str = ""
    whole: bool = False
    """A name and nothing else, which can be subscripted."""

    @property
    def is_tile(self) -> bool:
        return bool(self.memory)

    def sizes(self) -> tuple[int, ...]:
        return tuple(each.value for each in self.shape)

    def is_column(self) -> bool:
        return prod(self.sizes()[1:]) == 1


def added(start: str, more: str) -> str:
    """`start + more`, computed where both are numbers."""
    if start == "0":
        return more
    if start.lstrip("-").isdigit() and more.isdigit():
        return str(int(start) + int(more))
    return f"{start} + {more}"


def clipped(operand: Operand, clip: Clip) -> Operand:
    """The part of a tile that a mask lets through."""
    cut = {axis: text for axis, text in clip.items() if axis < len(operand.shape) and operand.shape[axis].value != 1}
    if not cut or not operand.is_tile:
        return operand
    parts = [f"0:{cut[axis]}" if axis in cut else ":" for axis in range(len(operand.shape))]
    if len(parts) == 1 and operand.memory != "hbm":
        parts.append(":")
    while len(parts) > 2 and parts[-1] == ":":
        parts.pop()
    return Operand(f"{operand.text}[{', '.join(parts)}]", operand.shape, operand.dtype, operand.memory)


def subscript(
    name: str, fact: TileFact, parent: TileFact, layout: Layout | None, clip: Clip = NO_CLIP, loose: bool = False
) -> str:
    """`name[...]` of the new kernel for what `fact` says of the old subscript. `loose`: only the elements' order
    counts, not the shape."""
    assert fact.index is not None
    order = layout.order if layout is not None else tuple(range(len(parent.shape)))
    dims = [fact.index[k] for k in order]
    if fact.kept is not None:  # some blocks, whole: what is left lies in the new order too
        return f"{name}[{', '.join(':' if any(dim.factors) else dim.base.text for dim in dims)}]"
    partition = parent.partition if layout is not None else 0
    on_chip = fact.memory != "hbm"
    walked = [_axes(dim, fact) for dim in dims]
    flat = [axis for axes in walked for axis in axes]
    needed = [k for k, size in enumerate(fact.shape) if size.value != 1]
    simple = all(len(axes) <= 1 for axes in walked) and flat == sorted(flat) and set(needed) <= set(flat)
    if simple and all(dim.factors[axes[0]] > 0 for dim, axes in zip(dims, walked) if axes):
        parts = [
            _slice(dim, axes, fact, clip, on_chip and order[at] == partition)
            for at, (dim, axes) in enumerate(zip(dims, walked))
        ]
        if on_chip and sum(":" in part or "nl.ds" in part for part in parts) < 2 and len(parts) > 1:
            parts[-1] = f"{parts[-1]}:{added(parts[-1], '1')}" if _is_index(parts[-1]) else parts[-1]
        if all(part == ":" for part in parts):
            return name
        return f"{name}[{', '.join(parts)}]"
    if loose and not clip:
        merged = [_merged(dim, axes, fact) for dim, axes in zip(dims, walked)]
        if flat == sorted(flat) and all(part is not None for part in merged):
            return f"{name}[{', '.join(part for part in merged if part is not None)}]"
    if not parent.root and all(len(axes) == 1 for axes in walked) and len(needed) == len(fact.shape) == len(dims):
        parts = [_slice(dim, axes, fact, clip, True) for dim, axes in zip(dims, walked)]
        return f"{name}[{', '.join(parts)}].permute({tuple(flat.index(k) for k in needed)})"
    return _pattern(name, fact, parent, order, clip)


def outer_axes(fact: TileFact, parent: TileFact, layout: Layout | None) -> list[int]:
    """Axes of a subscript on chip that have to be looped over: more than an access pattern has."""
    if fact.memory == "hbm" or not parent.root or fact.index is None or fact.kept is not None:
        return []
    order = layout.order if layout is not None else tuple(range(len(parent.shape)))
    if any(fact.index[k].size is UNKNOWN for k in order):
        return []
    walks = _walks(fact, order, _strides(parent, order))
    free = [(int(walks[axis]), size.value) for axis, size in enumerate(fact.shape) if axis and size.value != 1]
    axes = [axis for axis, size in enumerate(fact.shape) if axis and size.value != 1]
    most = ISA.access_pattern_free_dims
    return next(axes[:count] for count in range(len(free) + 1) if len(merged(free[count:])) <= most)


def piece(fact: TileFact, at: Mapping[int, str]) -> TileFact:
    """One index of some axes of a subscript, each by the name of its loop."""
    assert fact.index is not None
    index = []
    for dim in fact.index:
        moved = [dim.steps[axis].symbol() * Symbolic.named(Atom(name, "", True)) for axis, name in at.items()]
        index.append(replace(dim, base=Sum.of(sum(moved, dim.base.symbol()))))
    shape = tuple(Sum.of(1) if axis in at else size for axis, size in enumerate(fact.shape))
    return replace(fact, shape=shape, index=tuple(index))


def _strides(parent: TileFact, order: Sequence[int]) -> dict[int, int]:
    """Elements from one index of each dimension to the next."""
    stride, step = {}, 1
    for k in reversed(order):
        stride[k] = step
        step = step * parent.shape[k].symbol()
    return stride


def _walks(fact: TileFact, order: Sequence[int], stride: Mapping[int, int]) -> list[int]:
    """Elements from one position of each axis to the next."""
    index = fact.index or ()
    return [
        sum((index[k].steps[axis].symbol() * stride[k] for k in order if index[k].factors[axis]), 0)
        for axis in range(len(fact.shape))
    ]


def _axes(dim: IndexFact, fact: TileFact) -> list[int]:
    return [k for k, factor in enumerate(dim.factors) if factor and fact.shape[k].value != 1]


def _is_index(part: str) -> bool:
    return ":" not in part and "nl.ds" not in part


def _slice(dim: IndexFact, axes: Sequence[int], fact: TileFact, clip: Clip, keep: bool) -> str:
    start = dim.base.text
    if not axes:
        one = any(dim.factors) or keep
        return _range(start, "1") if one else start
    axis = axes[0]
    count = clip.get(axis, fact.shape[axis].text)
    step = dim.steps[axis].text
    if step == "1" and axis not in clip and dim.base.fixed and dim.base.value == 0:
        if dim.size.value == fact.shape[axis].value and (dim.size.text == count or dim.size.fixed):
            return ":"
    return _range(start, count, step)


def _range(start: str, count: str, step: str = "1") -> str:
    """`count` indices from `start`, `step` apart."""
    if step != "1":
        if count.isdigit() and step.isdigit():
            last = str(int(step) * (int(count) - 1) + 1)
        else:
            tight = step if step.isalnum() else f"({step})"
            last = f"{tight} + 1" if count == "2" else f"{tight} * ({count} - 1) + 1"
        return f"{start}:{added(start, last)}:{step}"
    if len(start) > 16 and not start.isdigit():
        return f"nl.ds({start}, {count})"
    return f"{start}:{added(start, count)}"


def _merged(dim: IndexFact, axes: Sequence[int], fact: TileFact) -> str | None:
    """Several axes that walk a dimension without gaps, as one slice."""
    if not axes:
        return f"{dim.base.text}:{added(dim.base.text, '1')}" if any(dim.factors) else dim.base.text
    step, total = 1, 1
    for axis in reversed(axes):
        if dim.factors[axis] != step or not dim.steps[axis].fixed:
            return None
        step *= fact.shape[axis].value
        total *= fact.shape[axis].value
    return _range(dim.base.text, str(total))


def _pattern(name: str, fact: TileFact, parent: TileFact, order: Sequence[int], clip: Clip) -> str:
    """An explicit access pattern: for overlapping windows, broadcasts, and axes in another order."""
    assert fact.index is not None
    if not parent.root:
        raise NeedsPerson("index", f"{name} is a view, and is indexed with a pattern that slices cannot express")
    if any(fact.index[k].size is UNKNOWN for k in order):
        raise NeedsPerson("irregular", f"{name} has several sizes, and is indexed with a pattern")
    stride = _strides(parent, order)
    pairs: list[str] = []
    for axis, (size, walk) in enumerate(zip(fact.shape, _walks(fact, order, stride))):
        if size.value == 1 and axis and len(fact.shape) > ISA.access_pattern_free_dims + 1:
            continue
        if fact.memory != "hbm" and not pairs:
            inside = fact.index[order[0]].factors[axis]
            others = any(fact.index[k].factors[axis] for k in order[1:])
            if others and size.value != 1:
                raise NeedsPerson("index", f"the first axis of {name}[...] does not walk partitions only")
            walk = walk if inside else stride[order[0]]
        pairs.append(f"[{written(walk)}, {clip.get(axis, size.text)}]")
    first = fact.index[order[0]].factors
    if fact.memory != "hbm" and any(first[axis] for axis in range(1, len(first)) if fact.shape[axis].value != 1):
        raise NeedsPerson("index", f"partitions of {name} are walked by another axis than the first")
    bases = [(fact.index[k].base.symbol(), stride[k]) for k in order]
    offset = written(sum((base * step for base, step in bases), 0))
    offset = "" if offset == "0" else offset
    return f"{name}.ap(pattern=[{', '.join(pairs)}]{f', offset={offset}' if offset else ''})"
