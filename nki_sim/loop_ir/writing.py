"""A loop tree as NKI text: one function, in one style, with the user's own names where the source has them.

Trees of one kernel at several shapes are written together: a number that differs is said in the parameters' sizes.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from nki_sim.dtypes import DType
from nki_sim.lint.findings import LATEST, VERSIONS
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.dependence import ranges_of
from nki_sim.loop_ir.module_text import first_line, is_docstring, replaced
from nki_sim.loop_ir.sizes import Dimension, NoForm, Sizes
from nki_sim.loop_ir.slices import Index, sliced, starts_of
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.spelling import NotWritable, arguments, function_of
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, DeviceLoop, Instruction, Loop, LoopKernel, Node, walk
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Bound

WIDTH = 120
_STEP = "    "
"""Of what a call's parentheses hold, where they are lines of their own."""
_MOST_LISTED = 64
"""Elements of a constant that are written one by one."""

_T = TypeVar("_T")


def written(
    kernels: Sequence[LoopKernel], source: KernelText, version: str = LATEST, only_these_shapes: bool = False
) -> str:
    """The kernel's file with its function as these trees have it, which are one kernel's at several shapes.

    `version`: of NKI, one of `nki_sim.lint.VERSIONS`. `only_these_shapes`: any other is refused when the kernel is
    called. Raises NotWritable, and NoForm where the trees differ in what no size of a parameter says.
    """
    return _Writer(kernels, source, VERSIONS.index(version), only_these_shapes).file()


def _alike(what: str, values: Sequence[_T]) -> _T:
    if any(value != values[0] for value in values[1:]):
        raise NoForm(f"{what} differs from shape to shape")
    return values[0]


@dataclass
class _Line:
    margin: str
    head: str
    """Up to an opening parenthesis, or the whole line."""
    parts: Sequence[str] = ()
    """What is in the parentheses."""
    tail: str = ""

    def __str__(self) -> str:
        margin = self.margin
        if not self.tail:
            return margin + self.head if self.head else ""
        flat = f"{margin}{self.head}{', '.join(self.parts)}{self.tail}"
        if len(flat) <= WIDTH:
            return flat
        inner = margin + _STEP
        body = inner + ", ".join(self.parts)
        if len(body) <= WIDTH:
            return f"{margin}{self.head}\n{body}\n{margin}{self.tail}"
        return "\n".join([margin + self.head, *(_broken(part, inner) for part in self.parts), margin + self.tail])


def _broken(part: str, margin: str) -> str:
    """An argument on a line of its own; a pattern that is longer than a line on several."""
    head, found, rest = part.partition(".ap(")
    if len(margin) + len(part) < WIDTH or not found:
        return f"{margin}{part},"
    inner = margin + _STEP
    pieces = rest[:-1].replace(", offset=", "\0offset=").replace(", dtype=", "\0dtype=").split("\0")
    return "\n".join([f"{margin}{head}.ap(", *(f"{inner}{piece}," for piece in pieces), f"{margin}),"])


@dataclass
class _Writer:
    kernels: Sequence[LoopKernel]
    source: KernelText
    version: int
    """Number in `VERSIONS`."""
    only_these_shapes: bool
    lines: list[_Line] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """By buffer."""
    counters: dict[str, str] = field(default_factory=dict)
    """By variable of the tree."""

    def __post_init__(self) -> None:
        first = self.kernels[0]
        self.uses = {"nki", "nisa", "nl"}
        """Names of modules."""
        self._around: list[tuple[Loop, ...]] = []
        """The loops that are open, outermost first; one loop of each tree."""
        self._listed = _lists(first)
        self._said: set[int] = set()
        self._taken = {*self.source.parameters, *self.source.constants, *keyword.kwlist, *vars(builtins), *_IMPORTS}
        self._parameters = self._parameter_texts()
        self.sizes = Sizes(self._dimensions(), tuple(self.source.constants.items()))
        self._taken |= {each.name for each in self.sizes.dimensions}
        self._where = {node.buffer: (around, node) for node, around in walk(first.body) if isinstance(node, Allocate)}
        self._made_by_call = _made_by_call(first)
        self._steps: dict[int, set[tuple[int, int]]] = {}
        """By buffer: (elements that a pass goes on, line of its loop)."""
        for node, around in walk(first.body):
            for access in node.operands if isinstance(node, Instruction) else ():
                each = {(abs(access.offset.coefficient(loop.variable)), loop.site) for loop in around}
                self._steps.setdefault(access.buffer, set()).update(each)

    # --- parameters ---------------------------------------------------------------------------------------

    def _parameter_texts(self) -> dict[int, str]:
        """By buffer: how the kernel calls a tensor argument."""
        texts: dict[int, str] = {}
        for key in self.kernels[0].parameters:
            name = self.kernels[0].buffers[key].name
            if self.source.parameters and re.split(r"\W", name, maxsplit=1)[0] not in self.source.parameters:
                raise NotWritable(f"the argument {name} is none of the kernel's parameters")
            texts[key] = name
        return texts

    def _dimensions(self) -> list[Dimension]:
        found: list[Dimension] = []
        for number, key in enumerate(self.kernels[0].parameters):
            text = self._parameters[key]
            shapes = [each.buffers[each.parameters[number]].shape for each in self.kernels]
            rank = _alike("a parameter's rank", [len(shape) for shape in shapes])
            for at in range(rank):
                made_up = "_".join((*re.findall(r"\w+", text), str(at)))
                own = self.source.sizes.get((text, at))
                values = tuple(shape[at] for shape in shapes)
                found.append(Dimension(text, at, own or self._fresh(made_up), values, own is None))
        for name, given in self.source.scalars.items():
            sizes = tuple(value for value in given if type(value) is int and value > 0)
            if len(sizes) == len(given):
                found.append(Dimension("", 0, name, sizes))
        return found

    # --- names ------------------------------------------------------------------------------------------------

    def _fresh(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name

    def _name(self, key: int) -> str:
        if key in self._parameters:
            return self._parameters[key]
        found = self.names.get(key)
        if found is None:
            buffer = self.kernels[0].buffers[key]
            wanted = self.source.assigned.get(buffer.line) or (buffer.name if buffer.name.isidentifier() else "")
            found = self.names[key] = self._fresh(wanted or _REGION_NAMES.get(buffer.region, "tile"))
        return found

    def _counter(self, loop: Loop) -> str:
        found = self.counters.get(loop.variable)
        if found is None:
            wanted = self.source.counters.get(loop.site, "")
            open_names = {self.counters[each[0].variable] for each in self._around if each[0].variable in self.counters}
            if not wanted or wanted in open_names or wanted in self._taken - set(self.counters.values()):
                wanted = self._fresh(wanted or "i")
            self._taken.add(wanted)
            found = self.counters[loop.variable] = wanted
        return found

    # --- numbers ----------------------------------------------------------------------------------------------

    def _shown(self, name: str) -> list[bool]:
        """At which shapes the factor of a counter can be seen: not where its loop has one pass."""
        if (loops := next((each for each in self._around if each[0].variable == name), None)) is None:
            raise NotWritable("a tile is chosen by the counter of a loop that is not around it")
        return [loop.extent != Affine(1) or loop.start != Affine() for loop in loops]

    def _number(self, values: Sequence[int | None], line: int, tight: bool = False, loop: int = 0) -> str:
        """`loop`: a line whose names tell which of two sizes it is, where the number's own line names none."""
        near, beside = (self.source.names_at.get(each, frozenset()) for each in (line, loop))
        near = near if any(each.name in near for each in self.sizes.dimensions) else near | beside
        return self.sizes.text(tuple(values), near, tight)

    def _affine(self, forms: Sequence[Affine], line: int, tight: bool = False) -> str:
        names = sorted(
            {name for form in forms for name in form.variables},
            key=lambda name: next((n for n, each in enumerate(self._around) if each[0].variable == name), 99),
        )
        parts: list[str] = []
        for name in names:
            shown = self._shown(name)
            factors = [form.coefficient(name) if here else None for form, here in zip(forms, shown)]
            counter = self.counters[name]
            if all(factor in (0, None) for factor in factors) and 0 in factors:
                continue
            if all(factor in (1, None) for factor in factors):
                parts.append(counter)
            elif all(factor is None or factor < 0 for factor in factors):
                text = self._number([None if factor is None else -factor for factor in factors], line, True)
                parts.append(f"-{counter}" if text == "1" else f"-{counter} * {text}")
            else:
                parts.append(f"{counter} * {self._number(factors, line, True)}")
        constants = [form.constant for form in forms]
        if any(constants) or not parts:
            if parts and all(value < 0 for value in constants):
                parts.append("-" + self._number([-value for value in constants], line))
            elif parts and len(parts) == 1 and parts[0].startswith("-"):
                parts.insert(0, self._number(constants, line))
            elif min(constants) >= 0:
                parts.append(self._number(constants, line))
            else:
                parts.append(str(_alike("a start", constants)))
        text = parts[0] + "".join(f" - {p[1:]}" if p.startswith("-") else f" + {p}" for p in parts[1:])
        return f"({text})" if tight and (" " in text or text.startswith("-")) else text

    # --- accesses ---------------------------------------------------------------------------------------------

    def _base(self, accesses: Sequence[Access], line: int) -> str:
        key = _alike("a buffer", [each.buffer for each in accesses])
        name = self._name(key)
        depth = self._listed.get(key)
        if depth is None:
            return name
        around = self._where[key][0]
        extents = [[each.extent for each in loops] for loops in self._loops_around(key)]
        index = [Affine()] * len(accesses)
        for at in range(depth, len(around)):
            for number, access in enumerate(accesses):
                extent = extents[number][at]
                if not extent.is_constant:
                    raise NotWritable(f"line {line}: a list of tiles whose length changes")
                start = self._loops_around(key)[number][at].start
                index[number] = index[number] * extent.constant + access.tile[at] - start
        return f"{name}[{self._affine(index, line)}]"

    def _loops_around(self, key: int) -> list[tuple[Loop, ...]]:
        """Around its Allocate, in each tree."""
        found = []
        for kernel in self.kernels:
            found.append(
                next(around for node, around in walk(kernel.body) if isinstance(node, Allocate) and node.buffer == key)
            )
        return found

    def _access(self, accesses: Sequence[Access], line: int, index: str = "") -> str:
        """`index`: the text of the tensor that steers it."""
        base = self._base(accesses, line)
        if self.kernels[0].buffers[accesses[0].buffer].region is MemoryRegion.register:
            return base
        indirection = _alike("an indirection", [each.indirection is None for each in accesses])
        if not indirection:
            return self._steered(accesses, base, line, index)
        buffers = [kernel.buffers[each.buffer] for kernel, each in zip(self.kernels, accesses)]
        if all(each.dtype == buffer.dtype for each, buffer in zip(accesses, buffers)):
            ranges = [ranges_of([loops[number] for loops in self._around]) for number in range(len(self.kernels))]
            views = [
                sliced(buffer.shape, buffer.region.on_chip, each.offset, each.pattern, ranges[number])
                for number, (buffer, each) in enumerate(zip(buffers, accesses))
            ]
            if all(view is not None for view in views):
                rank = {tuple(one.count is None for one in view or ()) for view in views}
                if len(rank) == 1:
                    used, conditions = set(self.sizes.used), set(self.sizes.conditions)
                    try:
                        return base + self._slice([view or () for view in views], line)
                    except NoForm:  # as a pattern it may have one
                        self.sizes.used, self.sizes.conditions = used, conditions
        return f"{base}.ap({', '.join(self._pattern(accesses, buffers, line))})"

    def _pattern(self, accesses: Sequence[Access], buffers: Sequence[Buffer], line: int) -> list[str]:
        rank = _alike("a pattern's rank", [len(each.pattern) for each in accesses])
        pairs = ", ".join(
            f"[{self._number(_strides(accesses, at), line)}, "
            f"{self._number([each.pattern[at][1] for each in accesses], line)}]"
            for at in range(rank)
        )
        parts = [f"pattern=[{pairs}]"]
        if any(each.offset != Affine() for each in accesses):
            parts.append(f"offset={self._offset(accesses, buffers, line)}")
        if any(each.dtype != buffer.dtype for each, buffer in zip(accesses, buffers)):
            parts.append(f"dtype=nl.{_alike('a dtype', [each.dtype for each in accesses])}")
        return parts

    def _offset(self, accesses: Sequence[Access], buffers: Sequence[Buffer], line: int) -> str:
        """By dimension, where its sizes change from shape to shape: `m * 128 * K + k`."""
        plain = [each.offset for each in accesses]
        ranks = {len(buffer.shape) for buffer in buffers}
        changing = len({buffer.shape for buffer in buffers}) > 1
        if not changing or len(ranks) > 1 or any(a.dtype != b.dtype for a, b in zip(accesses, buffers)):
            return self._affine(plain, line)
        starts = [starts_of(each.offset, buffer.shape) for each, buffer in zip(accesses, buffers)]
        parts = []
        for at in range(ranks.pop()):
            forms = [each[at] for each in starts]
            if all(form == Affine() for form in forms):
                continue
            sizes = [[buffer.shape[d] for buffer in buffers] for d in range(at + 1, len(buffers[0].shape))]
            factors = [self._number(size, line, True) for size in sizes if any(n > 1 for n in size)]
            text = self._affine(forms, line, bool(factors))
            parts.append(" * ".join([text, *factors]))
        return " + ".join(parts)

    def _steered(self, accesses: Sequence[Access], base: str, line: int, index: str) -> str:
        buffers = [kernel.buffers[each.buffer] for kernel, each in zip(self.kernels, accesses)]
        kinds = [each.indirection for each in accesses if each.indirection is not None]
        kind, dim = _alike("an indirection", [(each[0], each[2]) for each in kinds])
        parts = self._pattern(accesses, buffers, line)
        parts.append(f"{kind}_offset={index}")
        shapes = []
        for (_, stride, _, extent), access, buffer in zip(kinds, accesses, buffers):
            own = int(np.prod(buffer.shape[dim + 1 :], dtype=np.int64)) if dim < len(buffer.shape) else 0
            if access.dtype != buffer.dtype:
                own = own * buffer.dtype.itemsize // access.dtype.itemsize
            plain = dim < len(buffer.shape) and (own, buffer.shape[dim]) == (stride, extent)
            shapes.append(None if plain else (extent, stride))
        if any(shape is not None for shape in shapes):
            sizes = [0 if shape is None else shape[0] * shape[1] for shape in shapes]
            rows = self._number([shape[0] for shape in shapes if shape], line)
            columns = self._number([shape[1] for shape in shapes if shape], line)
            if not dim and sizes == [_elements(buffer) for buffer in buffers]:
                base = f"{base}.reshape(({rows}, {columns}))"
            elif all(access.dtype == buffer.dtype for access, buffer in zip(accesses, buffers)):
                base = f"{base}.ap(pattern=[{'[1, 1], ' * dim}[{columns}, {rows}]])"
            else:
                raise NotWritable(f"line {line}: an index steps by no dimension of {base}")
        if dim or kind == "scalar":
            parts.append(f"indirect_dim={dim}")
        return f"{base}.ap({', '.join(parts)})"

    def _slice(self, views: Sequence[tuple[Index, ...]], line: int) -> str:
        if all(each.is_whole for view in views for each in view):
            return ""
        return f"[{', '.join(self._index([view[at] for view in views], line) for at in range(len(views[0])))}]"

    def _index(self, given: Sequence[Index], line: int) -> str:
        starts = [each.start for each in given]
        if given[0].count is None:
            return self._affine(starts, line)
        if all(each.is_whole for each in given):
            return ":"
        step = _alike("a step", [each.step for each in given])
        to_the_end = [each.start.constant + (each.count or 1) * each.step >= each.size for each in given]
        if step > 1 and all(to_the_end) and all(each.start.is_constant for each in given):
            low = self._affine(starts, line)
            return f"{'' if low == '0' else low}::{step}"
        counts = [((each.count or 1) - 1) * step + 1 for each in given]
        low, high = self._low_and_high(starts, counts, line)
        space = " " if " " in low or " " in high else ""
        text = f"{low}{space}:{space}{high}"
        return text if step == 1 else f"{text}{space}:{space}{step}"

    def _low_and_high(self, starts: Sequence[Affine], counts: Sequence[int], line: int) -> tuple[str, str]:
        """`m * 128`, `(m + 1) * 128` where each start is a multiple of the count."""
        even = any(start.terms for start in starts) and all(
            start.constant % count == 0 and all(factor % count == 0 for _, factor in start.terms)
            for start, count in zip(starts, counts)
        )
        if even and any(count > 1 for count in counts):
            tiles = [
                Affine.of(start.constant // count, {name: factor // count for name, factor in start.terms})
                for start, count in zip(starts, counts)
            ]
            size = self._number(counts, line, True)
            low, high = self._affine(tiles, line, True), self._affine([tile + 1 for tile in tiles], line, True)
            return f"{low} * {size}", f"{high} * {size}"
        return self._affine(starts, line), self._affine([start + n for start, n in zip(starts, counts)], line)

    # --- statements -------------------------------------------------------------------------------------------

    def _say(self, indent: int, head: str, parts: Sequence[str] = (), tail: str = "", line: int = 0) -> None:
        if line and line not in self._said:
            self._said.add(line)
            if self.lines and self.source.is_set_off(line) and not self.lines[-1].head.endswith(":"):
                self.lines.append(_Line("", ""))
            for comment in self.source.comments.get(line, ()):
                self.lines.append(_Line(self.source.indent * indent, comment))
        self.lines.append(_Line(self.source.indent * indent, head, parts, tail))

    def _define(self, key: int, indent: int, head: str, parts: Sequence[str], tail: str, line: int) -> None:
        """A buffer's name, or the list that it is one of, given a new one."""
        if key in self._listed:
            self._say(indent, f"{self._name(key)}.append({head}", parts, f"{tail})", line)
        else:
            self._say(indent, f"{self._name(key)} = {head}", parts, tail, line)

    def _block(self, bodies: Sequence[Sequence[Node]], indent: int) -> None:
        length = _alike("the number of statements", [len(body) for body in bodies])
        for at in range(length):
            nodes = [body[at] for body in bodies]
            kind = _alike("a statement", [type(node) for node in nodes])
            if kind is Instruction:
                self._instruction([node for node in nodes if isinstance(node, Instruction)], indent)
            elif kind is Allocate:
                self._allocate([node for node in nodes if isinstance(node, Allocate)], indent)
            elif kind is Loop:
                self._loop([node for node in nodes if isinstance(node, Loop)], indent)
            else:
                self._device_loop([node for node in nodes if isinstance(node, DeviceLoop)], indent)

    def _allocate(self, nodes: Sequence[Allocate], indent: int) -> None:
        key = _alike("a buffer", [node.buffer for node in nodes])
        buffers = [kernel.buffers[key] for kernel in self.kernels]
        first = buffers[0]
        if first.region is MemoryRegion.register:
            if key not in self._made_by_call:
                self._define(key, indent, "nisa.register_alloc(", (), ")", first.line)
            return
        rank = _alike("a buffer's rank", [len(each.shape) for each in buffers])
        shape = ", ".join(
            self._number([each.shape[at] for each in buffers], first.line, loop=self._through(key, at))
            for at in range(rank)
        )
        parts = [
            f"({shape})" if rank > 1 else f"({shape},)",
            f"dtype={self._dtype(_alike('a dtype', [each.dtype for each in buffers]), first.line)}",
            f"buffer=nl.{_alike('a memory', [each.region.value for each in buffers])}",
        ]
        address = _alike("an address", [each.address for each in buffers])
        if address is not None:
            parts.append(f"address={address}")
        self._define(key, indent, "nl.ndarray(", parts, ")", first.line)

    def _through(self, key: int, at: int) -> int:
        """The line of the loop that goes through a buffer's dimension; 0 where there are several."""
        shape = self.kernels[0].buffers[key].shape
        step = int(np.prod(shape[at + 1 :], dtype=np.int64))
        lines = {line for far, line in self._steps.get(key, ()) if step <= far < step * shape[at]}
        return lines.pop() if len(lines) == 1 else 0

    def _dtype(self, dtype: DType, line: int) -> str:
        """That of a parameter, where the source says so; else its name."""
        for key, text in self._parameters.items():
            if text in self.source.dtypes_at.get(line, ()) and self.kernels[0].buffers[key].dtype == dtype:
                return f"{text}.dtype"
        return f"nl.{dtype}"

    def _loop(self, nodes: Sequence[Loop], indent: int) -> None:
        _alike("a loop's counter", [node.variable for node in nodes])
        site = nodes[0].site
        depth = len(self._around)
        opened = {
            node.buffer
            for node, around in walk(nodes[0].body, tuple(each[0] for each in self._around) + (nodes[0],))
            if isinstance(node, Allocate) and self._listed.get(node.buffer) == depth
        }
        for key in sorted(opened):
            self._say(indent, f"{self._name(key)} = []")
        name = self._counter(nodes[0])
        starts, ends = [node.start for node in nodes], [node.start + node.extent for node in nodes]
        given = self._affine(ends, site)
        if any(start != Affine() for start in starts):
            given = f"{self._affine(starts, site)}, {given}"
        self._say(indent, f"for {name} in range({given}):", line=site)
        self._around.append(tuple(nodes))
        self._block_or_pass([node.body for node in nodes], indent + 1)
        self._around.pop()

    def _device_loop(self, nodes: Sequence[DeviceLoop], indent: int) -> None:
        first = nodes[0]
        kind, _, step = _alike("a device loop", [(node.kind, node.counter, node.step) for node in nodes])
        line = self.kernels[0].buffers[first.counter].line
        lower, upper = ([getattr(node, which) for node in nodes] for which in ("lower", "upper"))
        bounds = [self._bound(lower, line)] + ([self._bound(upper, line)] if kind == "for" else [])
        if bounds[0] == "0" and step == 1 and not self._has_functions:
            bounds = bounds[1:]
        bounds += [str(step)] * (step != 1)
        counter = self.names[first.counter] = self._fresh(self.source.counters.get(line, "i" if kind == "for" else "r"))
        bodies = [node.body for node in nodes]
        if not self._has_functions:
            if kind != "for":
                raise NotWritable(f"line {line}: a loop while a register holds, which NKI has from 0.6")
            self._say(indent, f"for {counter} in nl.dynamic_range({', '.join(bounds)}):", line=line)
            self._block_or_pass(bodies, indent + 1)
            return
        name = self._fresh("body")
        self._say(indent, f"def {name}({counter}):", line=line)
        self._block_or_pass(bodies, indent + 1)
        if kind == "for":
            self._say(indent, f"nl.fori_loop({', '.join([*bounds[:2], name, *bounds[2:]])})")
        else:
            following = [kernel.buffers[node.next] for kernel, node in zip(self.kernels, nodes)]
            _alike("the next condition", [each.region for each in following])
            self._say(indent + 1, f"return {self._name(first.next)}")
            self._say(indent, f"nl.while_loop({bounds[0]}, {name})")

    @property
    def _has_functions(self) -> bool:
        """Are a device loop's passes a function? Before, they are Python's `for`."""
        return self.version >= VERSIONS.index("0.6")

    def _bound(self, bounds: Sequence[Bound], line: int) -> str:
        register = _alike("a bound", [bound.register for bound in bounds])
        return self._name(register) if register is not None else self._number([each.value for each in bounds], line)

    def _block_or_pass(self, bodies: Sequence[Sequence[Node]], indent: int) -> None:
        before = len(self.lines)
        self._block(bodies, indent)
        if len(self.lines) == before:
            self._say(indent, "pass")

    def _instruction(self, nodes: Sequence[Instruction], indent: int) -> None:
        first = nodes[0]
        if first.opcode in _OF_SCALARS and self.version < VERSIONS.index("0.7"):
            raise NotWritable(f"line {first.line}: {first.opcode}, which NKI has from 0.7")
        if first.opcode == "scalar_arithmetic":
            self._arithmetic(nodes, indent)
            return
        _alike("an instruction", [(n.opcode, n.engine, tuple(o.role for o in n.operands)) for n in nodes])
        regions = [self._region(kernel) for kernel in self.kernels]
        each_arguments = [arguments(node, region) for node, region in zip(nodes, regions)]
        _alike("the keywords of an instruction", [tuple(each) for each in each_arguments])
        parts = []
        for name, value in each_arguments[0].items():
            values = [each[name] for each in each_arguments]
            if isinstance(value, Access):
                text = self._operand([v for v in values if isinstance(v, Access)], nodes)
            elif isinstance(value, list):
                columns = [[v[at] for v in values if isinstance(v, list)] for at in range(len(value))]
                text = f"[{', '.join(self._operand(column, nodes) for column in columns)}]"
            else:
                text = self._value(name, [str(v) for v in values], first.line)
            parts.append(f"{name}={text}")
        call = f"nisa.{function_of(first)}("
        if first.opcode == "scalar_load":
            self._define(first.operands[0].buffer, indent, call, parts, ")", first.line)
        else:
            self._say(indent, call, parts, ")", first.line)

    def _arithmetic(self, nodes: Sequence[Instruction], indent: int) -> None:
        first = nodes[0]
        op, reverse = _alike("an operator", [(node.attrs.op, node.attrs.reverse) for node in nodes])
        left, *rest = (self._access(each, first.line) for each in zip(*(node.operands[1:] for node in nodes)))
        constants = [node.attrs.operand for node in nodes]
        right = rest[0] if rest else self._number(constants, first.line, True) if min(constants) >= 0 else None
        if right is None:
            right = f"({_alike('a constant', constants)})"
        if reverse:
            left, right = right, left
        self._define(first.operands[0].buffer, indent, f"{left} {_SIGNS[op]} {right}", (), "", first.line)

    def _region(self, kernel: LoopKernel) -> Callable[[Access], MemoryRegion]:
        return lambda access: kernel.buffers[access.buffer].region

    def _value(self, name: str, values: Sequence[str], line: int) -> str:
        if all(value == values[0] for value in values):
            return values[0]
        try:
            whole = [int(value) for value in values]
        except ValueError:
            return self._fraction(name, values, line)
        return self._number(whole, line)

    def _fraction(self, name: str, values: Sequence[str], line: int) -> str:
        """`1.0 / K` and the like."""
        for each in self.sizes.dimensions:
            for make, text in _FRACTIONS:
                if all(repr(make(size)) == value for size, value in zip(each.values, values)):
                    self.sizes.used.add(each.name)
                    return text.format(each.name)
        raise NoForm(f"line {line}: {name} is {' and '.join(values)}")

    def _operand(self, accesses: Sequence[Access], nodes: Sequence[Instruction]) -> str:
        index = ""
        if accesses[0].indirection is not None:
            steering = []
            for access, node in zip(accesses, nodes):
                at = next(n for n, operand in enumerate(node.operands) if operand is access)
                steering.append(node.operands[at + 1])
            index = self._access(steering, nodes[0].line)
        return self._access(accesses, nodes[0].line, index)

    # --- the file ---------------------------------------------------------------------------------------------

    def _constants(self) -> None:
        for key, buffer in sorted(self.kernels[0].buffers.items()):
            if buffer.contents is None or buffer.region is MemoryRegion.register or key in self._parameters:
                continue
            arrays = [np.asarray(kernel.buffers[key].contents) for kernel in self.kernels]
            if any(not np.array_equal(arrays[0], each) for each in arrays[1:]):
                raise NoForm("a constant differs from shape to shape")
            text = _array_text(arrays[0])
            self.uses |= {name for name in ("np", "ml_dtypes") if f"{name}." in text}
            self._say(1, f"{self._name(key)} = nl.shared_constant({text})")

    def _results(self) -> str:
        texts = []
        for outputs in zip(*(kernel.outputs for kernel in self.kernels)):
            accesses = [
                Access("", "r", each.buffer, each.tile, Affine(each.offset), each.pattern, each.dtype)
                for each in outputs
            ]
            texts.append(self._access(accesses, 0))
        if not texts:
            return "return"
        if self.kernels[0].returns_tuple:
            return f"return {', '.join(texts)}" if len(texts) > 1 else f"return ({texts[0]},)"
        return f"return {texts[0]}"

    def function(self) -> str:
        """The kernel alone, from its decorators on."""
        self._constants()
        self._block([kernel.body for kernel in self.kernels], 1)
        body, self.lines = self.lines, []
        result = self._results()
        head = self._head()
        return "\n".join([*head, *map(str, body), f"{self.source.indent}{result}"]) + "\n"

    def _head(self) -> list[str]:
        definition = self.source.definition
        text = self.source.text.splitlines()
        head: list[str] = []
        if definition is None:
            names = [self._parameters[key] for key in self.kernels[0].parameters]
            head += ["@nki.jit", f"def {self.kernels[0].name}({', '.join(names)}):"]
        else:
            first = first_line(definition)
            body = definition.body[0]
            documented = is_docstring(body)
            if body.lineno == definition.lineno:
                raise NotWritable("the kernel's body stands on the line of its def")
            until = body.end_lineno or body.lineno
            if not documented:
                until = _end_of_header(text, definition.lineno, body.lineno)
            head += text[first - 1 : until]
        return [*head, *self._preamble()]

    def _preamble(self) -> list[str]:
        """Sizes that have names, and what is asserted of them."""
        lines: list[str] = []
        by_parameter: dict[str, list[Dimension]] = {}
        for each in self.sizes.dimensions:
            if each.parameter:
                by_parameter.setdefault(each.parameter, []).append(each)
        lines += self._values_asserted()
        if self.only_these_shapes and len(self.kernels) > 1:
            lines.append(self._shapes_asserted())
        known: dict[tuple[int, ...], str] = {}
        for parameter, dimensions in by_parameter.items():
            comma = "," if len(dimensions) == 1 else ""
            if any(each.name in self.sizes.used for each in dimensions):
                names = ", ".join(each.name if each.name in self.sizes.used else "_" for each in dimensions)
                lines.append(f"{names}{comma} = {parameter}.shape")
                for each in dimensions:
                    if each.name in self.sizes.used and len(set(each.values)) > 1:
                        known.setdefault(each.values, each.name)
            wanted = [known.get(each.values, str(each.values[0])) for each in dimensions]
            free = [len(set(each.values)) > 1 and each.values not in known for each in dimensions]
            if not any(free):
                lines.append(f'assert {parameter}.shape == ({", ".join(wanted)}{comma}), "written for these shapes"')
                continue
            for at, (text, is_free) in enumerate(zip(wanted, free)):
                if not is_free and text != dimensions[at].name:
                    lines.append(f'assert {parameter}.shape[{at}] == {text}, "written for this size"')
        for condition in self.sizes.needed():
            bare = condition[1:-1] if condition.startswith("(") else condition
            lines.append(f'assert {bare}, "written for such sizes"')
        return [self.source.indent + line for line in lines]

    def _values_asserted(self) -> Iterator[str]:
        """Of parameters that are no tensors: the kernel is written for what they were."""
        for name, values in self.source.scalars.items():
            texts = [f"nl.{value}" if isinstance(value, DType) else repr(value) for value in values]
            if len({*texts}) > 1:
                yield f'assert {name} in ({", ".join(dict.fromkeys(texts))}), "written for these values"'
            else:
                equals = "is" if texts[0] in ("None", "True", "False") else "=="
                yield f'assert {name} {equals} {texts[0]}, "written for this value"'

    def _shapes_asserted(self) -> str:
        names = [self._parameters[key] for key in self.kernels[0].parameters]
        comma = "," if len(names) == 1 else ""
        shapes = [
            f"({', '.join(str(each.buffers[key].shape) for key in each.parameters)}{comma})" for each in self.kernels
        ]
        asked = f"({', '.join(f'{name}.shape' for name in names)}{comma})"
        return f'assert {asked} in ({", ".join(shapes)}), "written for these shapes"'

    def file(self) -> str:
        if self.source.text and self.source.definition is None:
            raise NotWritable(f"{self.source.function} is no function at the top of its file")
        function = self.function()
        return replaced(self.source, function, {name: _IMPORTS[name] for name in _IMPORTS if name in self.uses})


_IMPORTS = {
    "nki": "import nki",
    "nisa": "import nki.isa as nisa",
    "nl": "import nki.language as nl",
    "ml_dtypes": "import ml_dtypes",
    "np": "import numpy as np",
}
_OF_SCALARS = frozenset({"scalar_load", "scalar_store", "scalar_arithmetic"})
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
_REGION_NAMES = {
    MemoryRegion.register: "register",
    MemoryRegion.sbuf: "tile",
    MemoryRegion.psum: "psum_tile",
    MemoryRegion.shared_hbm: "array",
    MemoryRegion.private_hbm: "scratch",
}
_FRACTIONS: tuple[tuple[Callable[[int], float], str], ...] = (
    (lambda n: 1.0 / n, "1.0 / {}"),
    (lambda n: 1.0 / n**0.5, "1.0 / {} ** 0.5"),
    (lambda n: float(n), "float({})"),
    (lambda n: -1.0 / n, "-1.0 / {}"),
)


def _end_of_header(text: Sequence[str], first: int, body: int) -> int:
    """The last line of a def's own, before comments and the body."""
    last = body - 1
    while last > first and (not text[last - 1].strip() or text[last - 1].strip().startswith("#")):
        last -= 1
    return last


def _strides(accesses: Sequence[Access], at: int) -> list[int | None]:
    """Of a dimension of their patterns; of rows that an index chooses, what one index more is. None where there is one
    element, which is never stepped through, and more at another shape."""
    found: list[int | None] = []
    for access in accesses:
        steer, (stride, count) = access.indirection, access.pattern[at]
        of_index = at == 0 and steer is not None and steer[0] == "vector"
        stepped = of_index or count > 1 or all(each.pattern[at][1] == 1 for each in accesses)
        found.append((steer[1] if steer is not None and of_index else stride) if stepped else None)
    return found


def _elements(buffer: Buffer) -> int:
    return int(np.prod(buffer.shape, dtype=np.int64))


def _made_by_call(kernel: LoopKernel) -> frozenset[int]:
    """Registers that a call or a loop makes by itself."""
    made: set[int] = set()
    for node, _ in walk(kernel.body):
        if isinstance(node, DeviceLoop):
            made.add(node.counter)
        elif isinstance(node, Instruction) and node.opcode in ("scalar_load", "scalar_arithmetic"):
            made.add(node.operands[0].buffer)
    return frozenset(made)


def _lists(kernel: LoopKernel) -> Mapping[int, int]:
    """Buffers of which more than the newest is used: around how many loops their list is made."""
    around_of = {node.buffer: around for node, around in walk(kernel.body) if isinstance(node, Allocate)}
    depths: dict[int, int] = {}

    def used(access: Access, around: Collection[Loop]) -> None:
        own = around_of.get(access.buffer)
        if own is None:
            return
        depth = 0
        open_loops = list(around)
        while depth < len(own) and depth < len(open_loops):
            loop = own[depth]
            if open_loops[depth] is not loop or access.tile[depth] != Affine.variable(loop.variable):
                break
            depth += 1
        if depth < len(own):
            depths[access.buffer] = min(depth, depths.get(access.buffer, depth))

    for node, around in walk(kernel.body):
        if isinstance(node, Instruction):
            for access in node.operands:
                used(access, around)
    for each in kernel.outputs:
        used(Access("", "r", each.buffer, each.tile, Affine(each.offset), each.pattern, each.dtype), ())
    return depths


def _array_text(values: np.ndarray) -> str:
    """A NumPy expression. Raises NotWritable."""
    if not values.dtype.isbuiltin:
        return f"{_array_text(values.astype(np.float32))}.astype(ml_dtypes.{values.dtype.name})"
    dtype = f"np.{values.dtype.name}"
    if values.ndim == 2 and values.shape[0] == values.shape[1] and np.array_equal(values, np.eye(len(values))):
        return f"np.eye({len(values)}, dtype={dtype})"
    if (values == values.flat[0]).all():
        return f"np.full({values.shape}, {values.flat[0].item()!r}, dtype={dtype})"
    for name, make in (("tril", np.tril), ("triu", np.triu)):
        if values.ndim == 2 and np.array_equal(values, make(np.ones(values.shape))):
            return f"np.{name}(np.ones({values.shape}, dtype={dtype}))"
    flat = values.reshape(-1)
    steps = np.diff(flat)
    if len(flat) > 1 and (steps == steps[0]).all() and float(steps[0]).is_integer():
        first, step = flat[0].item(), steps[0].item()
        text = f"np.arange({len(flat)}, dtype={dtype})"
        text += "" if step == 1 else f" * {step}"
        text += "" if first == 0 else f" + {first}"
        text = text if " " not in text.partition(")")[2] else f"({text})"
        return text if values.ndim == 1 else f"{text}.reshape({values.shape})"
    if values.size <= _MOST_LISTED:
        return f"np.array({values.tolist()}, dtype={dtype})"
    raise NotWritable(f"a constant of {values.size} numbers")
