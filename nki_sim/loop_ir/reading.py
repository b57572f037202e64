"""A program's rows, with marks of its loops, read as a loop tree.

Bottom-up: the passes of a loop whose bodies have one form, and whose numbers (buffers, offsets) go on evenly, become
one body with a counter. Passes that differ, as a first or last one may, stand by themselves beside the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nki_sim.by_object import by_object
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, DeviceLoop, Instruction, Loop, LoopKernel, Node, Result
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Bound, Program, Template, TensorRef
from nki_sim.program.program import Loop as DeviceLoopRows
from nki_sim.tracing.marks import MarkKind


class NotReadable(Exception):
    """The kernel has no loop tree; why, in one line."""


# --- what was marked ----------------------------------------------------------------------------------


@dataclass
class _Span:
    """Instructions and buffers from a place up to another, with what is marked between."""

    rows: tuple[int, int]
    buffers: tuple[int, int]
    inner: list[_Instance] = field(default_factory=list)


@dataclass
class _Instance:
    """One time that a loop was run."""

    line: int
    passes: list[_Span]
    device: int = -1
    """Number of the device loop that it is, in `Program.loops`."""

    @property
    def begin(self) -> tuple[int, int]:
        return self.passes[0].rows[0], self.passes[0].buffers[0]

    @property
    def end(self) -> tuple[int, int]:
        return self.passes[-1].rows[1], self.passes[-1].buffers[1]


class _Numbering:
    """Buffers by number: first those that the kernel allocates, in that order, then what stands from the start.

    Constants and an engine's registers are made where something first uses them, which may be in a loop's first pass;
    that says nothing about the loop.
    """

    def __init__(self, program: Program) -> None:
        total = len(program.allocations)
        stands = np.zeros(total, np.bool_)
        own = [o.role in IMPLICIT and o.region is MemoryRegion.register for t in program.templates for o in t.operands]
        if any(own):
            counts = [len(template.operands) for template in program.templates]
            flags = np.array(own, np.int64)
            per_template = np.split(flags, np.cumsum(counts)[:-1])
            stands[program.operand_data[program.of_operands([list(each) for each in per_template]) == 1, 0]] = True
        stands[list(program.constants)] = True
        stands[[ref.allocation for ref in program.inputs]] = False
        self.permanent = np.flatnonzero(stands)
        """Numbers in the program."""
        self.order = np.concatenate((np.flatnonzero(~stands), self.permanent))
        """By number here, that in the program."""
        self.numbers = np.empty(total, np.int64)
        self.numbers[self.order] = np.arange(total)
        self.before = np.concatenate(([0], np.cumsum(~stands)))
        """By number in the program: how many that the kernel allocates come before."""
        self.allocated = total - len(self.permanent)


def _spans(program: Program, numbering: _Numbering) -> _Span:
    """The whole program as a span. Raises NotReadable for marks that are out of order."""
    whole = _Span((0, len(program)), (0, numbering.allocated))
    stack: list[tuple[_Instance | None, _Span]] = [(None, whole)]
    values = program.marks.copy()
    values[:, 3] = numbering.before[values[:, 3]]
    for kind, line, row, buffer in values.tolist():
        if kind == MarkKind.begin:
            stack.append((_Instance(line, []), _Span((row, row), (buffer, buffer))))
            continue
        instance, span = stack[-1]
        if instance is None or instance.line != line:
            raise NotReadable("its loops do not end in the order in which they began")
        span.rows, span.buffers = (span.rows[0], row), (span.buffers[0], buffer)
        if kind == MarkKind.a_pass:
            following = _Span((row, row), (buffer, buffer))
            instance.passes.append(following)
            stack[-1] = (instance, following)
        else:
            stack.pop()
            if instance.passes:
                stack[-1][1].inner.append(instance)
    if len(stack) != 1:
        raise NotReadable("a loop of it never ended")
    made_at = program.allocations.allocated_at[numbering.order][: numbering.allocated]
    for number, loop in enumerate(program.loops):
        end = int(np.searchsorted(made_at, loop.end))
        _insert(whole, loop, number, (int(numbering.numbers[loop.counter]), end))
    return whole


def _insert(span: _Span, loop: DeviceLoopRows, number: int, buffers: tuple[int, int]) -> None:
    """The device loop, whose body was traced once, as a loop of one pass in its place.

    `buffers`: its counter, and the first that is made after it.
    """
    counter, end = buffers
    for instance in span.inner:
        for each in instance.passes:
            if each.rows[0] <= loop.start and loop.end <= each.rows[1] and each.buffers[0] <= counter < each.buffers[1]:
                _insert(each, loop, number, buffers)
                return
    body = [each for each in span.inner if counter < each.begin[1] and each.end[1] <= end and each.end[0] <= loop.end]
    rest = [each for each in span.inner if each not in body]
    if loop.start < span.rows[0] or span.rows[1] < loop.end:
        raise NotReadable("a device loop crosses another loop")
    at = next((k for k, each in enumerate(rest) if each.begin > (loop.start, counter)), len(rest))
    rest.insert(at, _Instance(0, [_Span((loop.start, loop.end), (counter + 1, end), body)], number))
    span.inner = rest


# --- forms: what is the same in every pass --------------------------------------------------------------------------

_Key = tuple[Any, ...]
IMPLICIT = frozenset({"accumulators", "state"})
"""Roles of an engine's own registers."""


@dataclass(frozen=True)
class _Form:
    """A stretch of a program: `keys` say what it is, `values` are its numbers, one after the other.

    Keys: ("row", kind, kinds of its buffers), ("buffer", kind), ("loop", site, keys of the body, width),
    ("device", number, keys, width).
    """

    keys: tuple[_Key, ...]
    values: np.ndarray
    """int64"""
    fixed: np.ndarray
    """bool, like values: it has to be the same in every pass of a loop around."""


def _joined(forms: Sequence[_Form]) -> _Form:
    if len(forms) == 1:
        return forms[0]
    if not forms:
        return _Form((), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    return _Form(
        tuple(key for form in forms for key in form.keys),
        np.concatenate([form.values for form in forms]),
        np.concatenate([form.fixed for form in forms]),
    )


class _Rolling:
    """Spans to forms."""

    def __init__(self, program: Program, numbering: _Numbering) -> None:
        self._program = program
        self.row_kinds: list[Template] = []
        """One template of each kind."""
        numbers: dict[_Key, int] = {}
        kind_of: list[int] = []
        for template in program.templates:
            kind = numbers.setdefault(_kind(template), len(numbers))
            if kind == len(self.row_kinds):
                self.row_kinds.append(template)
            kind_of.append(kind)
        self._kinds = np.array(kind_of, np.int64)[program.template_ids] if kind_of else np.zeros(0, np.int64)
        self._starts = program.operand_starts
        self._data = program.operand_data.astype(np.int64)
        self._data[:, 0] = numbering.numbers[self._data[:, 0]]
        self._buffer_kinds = program.allocations.kind_of[numbering.order]
        self._allocated_at = program.allocations.allocated_at[numbering.order]

    def span(self, span: _Span) -> _Form:
        forms: list[_Form] = []
        row, buffer = span.rows[0], span.buffers[0]
        for instance in span.inner:
            forms += self._straight((row, instance.begin[0]), (buffer, instance.begin[1]))
            forms.append(self._instance(instance))
            row, buffer = instance.end
        forms += self._straight((row, span.rows[1]), (buffer, span.buffers[1]))
        return _joined(forms)

    def _straight(self, rows: tuple[int, int], buffers: tuple[int, int]) -> list[_Form]:
        """Instructions and the buffers that are made between them."""
        forms: list[_Form] = []
        row = rows[0]
        for buffer in range(*buffers):
            until = max(row, min(int(self._allocated_at[buffer]), rows[1]))
            if until > row:
                forms.append(self._rows(row, until))
                row = until
            key = "buffer", int(self._buffer_kinds[buffer])
            forms.append(_Form((key,), np.array([buffer], np.int64), np.zeros(1, np.bool_)))
        if row < rows[1]:
            forms.append(self._rows(row, rows[1]))
        return forms

    def _rows(self, begin: int, end: int) -> _Form:
        data = self._data[self._starts[begin] : self._starts[end]]
        of_buffers = self._buffer_kinds[data[:, 0]].tolist()
        starts = (self._starts[begin : end + 1] - self._starts[begin]).tolist()
        keys = tuple(
            ("row", kind, tuple(of_buffers[first:last]))
            for kind, first, last in zip(self._kinds[begin:end].tolist(), starts, starts[1:])
        )
        return _Form(keys, data.ravel(), np.zeros(2 * len(data), np.bool_))

    def _instance(self, instance: _Instance) -> _Form:
        if instance.device >= 0:
            body = self.span(instance.passes[0])
            return _Form((("device", instance.device, body.keys, len(body.values)),), body.values, body.fixed)
        even = self._even(instance)
        if even is not None:
            return even
        if len(instance.passes) == 1:
            only = self.span(instance.passes[0])
            return _loop(instance.line, only, np.zeros_like(only.values), 0, 1) if only.keys else only
        return rolled([self.span(each) for each in instance.passes], instance.line)

    def _even(self, instance: _Instance) -> _Form | None:
        """A loop of which all passes go on evenly: told by their numbers at once, two passes of them are read."""
        passes = instance.passes
        if len(passes) < 3:
            return None
        rows = np.array([each.rows for each in passes], np.int64)
        buffers = np.array([each.buffers for each in passes], np.int64)
        if not (_is_even(rows) and _is_even(buffers)) or (rows[1] - rows[0])[0] != rows[0, 1] - rows[0, 0]:
            return None
        if (buffers[1] - buffers[0])[0] != buffers[0, 1] - buffers[0, 0]:
            return None
        (first, last), count = (rows[0, 0], rows[-1, 1]), len(passes)
        kinds = self._kinds[first:last].reshape(count, -1)
        made = self._buffer_kinds[buffers[0, 0] : buffers[-1, 1]].reshape(count, -1)
        at = self._allocated_at[buffers[0, 0] : buffers[-1, 1]].reshape(count, -1) - rows[:, :1]
        if (kinds != kinds[0]).any() or (made != made[0]).any() or (at != at[0]).any():
            return None
        data = self._data[self._starts[first] : self._starts[last]].reshape(count, -1)
        of_buffers = self._buffer_kinds[data[:, ::2]]
        if (
            not _is_even(data)
            or (of_buffers != of_buffers[0]).any()
            or any(_form_of_marks(each) != _form_of_marks(passes[0]) for each in passes[1:])
        ):
            return None
        one, two = self.span(passes[0]), self.span(passes[1])
        if one.keys != two.keys or not np.array_equal(one.values[one.fixed], two.values[one.fixed]):
            return None
        if not one.keys:
            return one
        return _loop(instance.line, one, two.values - one.values, 0, count)


def _is_even(values: np.ndarray) -> bool:
    """Does each row of the array differ from the one before by the same?"""
    steps = np.diff(values, axis=0)
    return bool((steps == steps[:1]).all())


def _form_of_marks(span: _Span) -> object:
    row, buffer = span.rows[0], span.buffers[0]
    return [
        (each.line, [(p.rows[0] - row, p.rows[1] - row, p.buffers[0] - buffer, _form_of_marks(p)) for p in each.passes])
        for each in span.inner
    ]


def _kind(template: Template) -> _Key:
    """All of it but where its operands begin."""
    operands = tuple(
        (o.role, o.access, o.region, o.dtype, o.pattern, o.partition_elements, o.indirection) for o in template.operands
    )
    return template.opcode, template.engine, template.attrs, template.line, operands


def rolled(passes: Sequence[_Form], line: int) -> _Form:
    """Passes one after the other; those that go on evenly as loops."""
    pieces: list[_Form] = []
    at = 0
    while at < len(passes):
        first = passes[at]
        until = at + 1
        step: np.ndarray | None = None
        if _stands_alone(passes, at):
            pieces.append(first)
            at += 1
            continue
        while until < len(passes) and passes[until].keys == first.keys:
            further = passes[until].values - passes[until - 1].values
            if step is None:
                if further[first.fixed].any():
                    break
                step = further
            elif not np.array_equal(further, step):
                break
            until += 1
        if step is None:
            pieces.append(first)
        elif first.keys:
            pieces.append(_loop(line, first, step, at, until - at))
        at = until
    if 1 < len(pieces) < len(passes):
        return rolled(pieces, line)  # `h // group`: loops of which one goes on where the last one ended
    return _joined(pieces)


def _stands_alone(passes: Sequence[_Form], at: int) -> bool:
    """Do the three passes after this one go on evenly, and it does not go over to them so?"""
    four = passes[at : at + 4]
    if len(four) < 4 or any(each.keys != four[0].keys for each in four):
        return False
    one, two, three = (later.values - each.values for each, later in zip(four, four[1:]))
    return not np.array_equal(one, two) and np.array_equal(two, three)


_OWN = 2
"""Numbers of a loop itself, before those of its body: where its counter begins, how many passes it has."""


def _loop(line: int, first: _Form, step: np.ndarray, start: int, count: int) -> _Form:
    """Numbers: start, count, those of the body where the counter is 0, what each grows by."""
    values = np.concatenate((np.array([start, count], np.int64), first.values - start * step, step))
    fixed = np.concatenate((np.zeros(_OWN, np.bool_), first.fixed, np.ones(len(step), np.bool_)))
    return _Form((("loop", line, first.keys, len(first.values)),), values, fixed)


# --- the tree --------------------------------------------------------------------------------------------


class _Mixed(Exception):
    """A loop's passes go on evenly in their numbers, and use what different places of the kernel made."""

    def __init__(self, variable: str, at: int) -> None:
        super().__init__()
        self.variable = variable
        self.at = at
        """Passes before the one that differs."""


_MOST_SPLIT = 400
"""Times that a loop is split, before a kernel counts as one that has no loops."""


class _Drafting:
    """Forms to drafts of nodes."""

    def __init__(self, kinds: Sequence[Template]) -> None:
        self._kinds = kinds
        self._fresh = 0

    def drafts(self, form: _Form) -> list[_Draft]:
        return self._drafts(form.keys, [Affine(int(value)) for value in form.values.tolist()], ())

    def split(self, drafts: Sequence[_Draft], mixed: _Mixed) -> list[_Draft]:
        """That loop as two, one after the other; a first pass alone is no loop."""
        made: list[_Draft] = []
        for draft in drafts:
            if draft.loop is None or draft.loop.variable != mixed.variable:
                made.append(replace(draft, inner=self.split(draft.inner, mixed)) if draft.inner else draft)
                continue
            loop, at = draft.loop, mixed.at
            if at == 1:
                made += self._copied(draft.inner, draft.around, {loop.variable: loop.start})
            else:
                made += self._copied([replace(draft, loop=replace(loop, extent=Affine(at)))], draft.around, {})
            rest = replace(loop, start=loop.start + at, extent=loop.extent - at)
            made += self._copied([replace(draft, loop=rest)], draft.around, {})
        return made

    def _copied(self, drafts: Sequence[_Draft], around: tuple[Loop, ...], values: Mapping[str, Affine]) -> list[_Draft]:
        """With counters of their own. `values`: in place of counters."""
        made: list[_Draft] = []
        for draft in drafts:
            own = [value.substitute(values) for value in draft.values]
            if draft.loop is None:
                made.append(_Draft(draft.key, own, around, None, self._copied(draft.inner, around, values)))
                continue
            loop = self._loop(
                draft.loop.start.substitute(values), draft.loop.extent.substitute(values), draft.loop.site
            )
            inside = {**values, draft.loop.variable: Affine.variable(loop.variable)}
            made.append(_Draft(draft.key, own, around, loop, self._copied(draft.inner, (*around, loop), inside)))
        return made

    def _loop(self, start: Affine, extent: Affine, site: int) -> Loop:
        self._fresh += 1
        return Loop(f"i{self._fresh}", start, extent, (), site)

    def _drafts(self, keys: Sequence[_Key], values: list[Affine], around: tuple[Loop, ...]) -> list[_Draft]:
        drafts: list[_Draft] = []
        at = 0
        for key in keys:
            what, which = key[:2]
            if what == "buffer":
                drafts.append(_Draft(key, values[at : at + 1], around, None, ()))
                at += 1
            elif what == "row":
                width = 2 * len(self._kinds[which].operands)
                drafts.append(_Draft(key, values[at : at + width], around, None, ()))
                at += width
            elif what == "device":
                width = key[3]
                drafts.append(_Draft(key, [], around, None, self._drafts(key[2], values[at : at + width], around)))
                at += width
            else:
                width = key[3]
                start, extent = values[at : at + _OWN]
                first = values[at + _OWN : at + _OWN + width]
                steps = values[at + _OWN + width : at + _OWN + 2 * width]
                loop = self._loop(start, extent, max(0, which))
                name = loop.variable
                counted = [a + Affine(0, ((name, b.constant),)) if b.constant else a for a, b in zip(first, steps)]
                drafts.append(_Draft(key, [], around, loop, self._drafts(key[2], counted, (*around, loop))))
                at += _OWN + 2 * width
        return drafts


class _Growing:
    """Drafts to nodes. Loops get their bodies when all buffers are known."""

    def __init__(self, program: Program, kinds: Sequence[Template], numbering: _Numbering) -> None:
        self._program = program
        self._kinds = kinds
        self._numbering = numbering
        self._owner = np.full(len(program.allocations), -1, np.int64)
        """By buffer of the program: the key of the tree's."""
        self._made_in: dict[int, tuple[Loop, ...]] = {}
        """By key: the loops around its Allocate."""
        self._tiles: dict[int, np.ndarray] = {}
        """By key: int64 [its buffers, loops around its Allocate], the counters at which each is made."""
        self._place = np.zeros(len(program.allocations), np.int64)
        """By buffer of the program: its row in those."""
        self.buffers: dict[int, Buffer] = {}
        permanent = numbering.numbers[numbering.permanent].tolist()
        for number in [int(numbering.numbers[ref.allocation]) for ref in program.inputs] + permanent:
            self._own(Affine(number), ())
        self._given = len(self.buffers)

    def kernel(self, drafts: Sequence[_Draft]) -> LoopKernel:
        """Raises _Mixed."""
        program = self._program
        self._allocations(drafts)
        body = self._body(drafts)
        return LoopKernel(
            program.kernel_name,
            program.machine,
            dict(self.buffers),
            tuple(range(len(program.inputs))),
            tuple(range(len(program.inputs), self._given)),
            body,
            tuple(self._result(ref) for ref in program.outputs),
            program.returns_tuple,
            program.source_file,
        )

    def _allocations(self, drafts: Sequence[_Draft]) -> None:
        for draft in drafts:
            if draft.key[0] == "buffer":
                self._own(draft.values[0], draft.around)
            self._allocations(draft.inner)

    def _own(self, number: Affine, around: tuple[Loop, ...]) -> None:
        """The tree's buffer behind one or more of the program's; keys count up."""
        counters = grid(around)
        numbers = np.broadcast_to(number.evaluate(counters), (len(next(iter(counters.values()))) if around else 1,))
        first, key = int(numbers[0]), len(self.buffers)
        if self._owner[first] >= 0:
            return  # a parameter, allocated in its place too
        number_there = int(self._numbering.order[first])
        made = self._program.allocations[number_there]
        contents = self._program.constants.get(number_there)
        self._owner[numbers] = key
        self._made_in[key] = around
        self._place[numbers] = np.arange(len(numbers))
        self._tiles[key] = (
            np.stack([counters[loop.variable] for loop in around], 1) if around else np.zeros((1, 0), np.int64)
        )
        self.buffers[key] = Buffer(made.region, made.shape, made.dtype, made.name, made.line, made.address, contents)

    def _body(self, drafts: Sequence[_Draft]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for draft in drafts:
            what, which = draft.key[:2]
            if what == "buffer":
                key = int(self._owner[int(draft.values[0].evaluate(_first(draft.around)))])
                if key >= self._given:
                    nodes.append(Allocate(key))
            elif what == "row":
                nodes.append(self._instruction(self._kinds[which], draft))
            elif what == "device":
                loop, key_of = self._program.loops[which], self._register
                bounds, body = (self._bound(loop.lower), self._bound(loop.upper)), self._body(draft.inner)
                nodes.append(DeviceLoop(loop.kind, key_of(loop.counter), *bounds, loop.step, key_of(loop.next), body))
            else:
                assert draft.loop is not None
                found = draft.loop
                nodes.append(Loop(found.variable, found.start, found.extent, self._body(draft.inner), found.site))
        return tuple(nodes)

    def _register(self, number: int) -> int:
        return int(self._owner[self._numbering.numbers[number]]) if number >= 0 else number

    def _bound(self, bound: Bound) -> Bound:
        return bound if bound.register is None else Bound(bound.value, self._register(bound.register))

    def _instruction(self, template: Template, draft: _Draft) -> Instruction:
        operands = []
        for at, operand in enumerate(template.operands):
            number, offset = draft.values[2 * at : 2 * at + 2]
            key, tile = self._named(number, draft.around, template)
            operands.append(
                Access(
                    operand.role, operand.access, key, tile, offset, operand.pattern, operand.dtype, operand.indirection
                )
            )
        return Instruction(template.opcode, template.engine, template.attrs, tuple(operands), template.line)

    def _named(self, number: Affine, around: tuple[Loop, ...], template: Template) -> tuple[int, tuple[Affine, ...]]:
        """The buffer behind a number that depends on the counters around."""
        if number.is_constant:
            key = int(self._owner[number.constant])
            values = self._tiles[key][self._place[number.constant]].tolist()
            own = self._made_in[key]
            return key, tuple(
                Affine.variable(loop.variable) if loop in around and loop.extent == Affine(1) else Affine(value)
                for loop, value in zip(own, values)
            )
        counters = grid(around)
        numbers = number.evaluate(counters)
        keys = self._owner[numbers]
        key = int(keys[0])
        if (keys != key).any():
            raise _mixed(keys, around, counters, template)
        values = self._tiles[key][self._place[numbers]]
        return key, tuple(
            _fitted(values[:, at], own.variable, around, counters, template)
            for at, own in enumerate(self._made_in[key])
        )

    def _result(self, ref: TensorRef) -> Result:
        number = int(self._numbering.numbers[ref.allocation])
        key = int(self._owner[number])
        tile = tuple(Affine(int(value)) for value in self._tiles[key][self._place[number]])
        return Result(key, tile, ref.offset, ref.pattern, ref.dtype)


@dataclass(frozen=True)
class _Draft:
    key: _Key
    values: list[Affine]
    around: tuple[Loop, ...]
    loop: Loop | None
    inner: Sequence[_Draft]


_FEW = 1 << 8
"""Passes of which the counters are kept: a search asks for the same ones again and again."""
_NONE: Mapping[str, np.ndarray] = {}


def grid(around: Sequence[Loop]) -> Mapping[str, np.ndarray]:
    """int64 [passes]: the counters' values in all passes of the innermost loop, in their order."""
    counters, count = _NONE, 1
    for loop in around:
        is_few = loop.extent.is_constant and count * loop.extent.constant <= _FEW
        counters = (_with_counter if is_few else _with_counter.afresh)(counters, loop.variable, loop.start, loop.extent)
        count = len(counters[loop.variable])
    return counters


@by_object
def _with_counter(
    around: Mapping[str, np.ndarray], variable: str, start: Affine, extent: Affine
) -> Mapping[str, np.ndarray]:
    count = len(next(iter(around.values()), (0,)))
    starts = np.broadcast_to(start.evaluate(around), (count,))
    extents = np.broadcast_to(extent.evaluate(around), (count,))
    counters = {name: np.repeat(values, extents) for name, values in around.items()}
    ends = np.cumsum(extents)
    inner = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - extents, extents)
    return {**counters, variable: inner + np.repeat(starts, extents)}


def _first(around: Sequence[Loop]) -> dict[str, int]:
    values: dict[str, int] = {}
    for loop in around:
        values[loop.variable] = int(loop.start.evaluate(values))
    return values


def _mixed(keys: np.ndarray, around: Sequence[Loop], counters: Mapping[str, np.ndarray], template: Template) -> _Mixed:
    """Where the outermost loop whose passes do not use the same places goes over from one to another."""
    for loop in around:
        if not (loop.start.is_constant and loop.extent.is_constant):
            continue
        passes = counters[loop.variable] - loop.start.constant
        used = [frozenset(keys[passes == at].tolist()) for at in range(loop.extent.constant)]
        at = next((at for at in range(1, len(used)) if used[at] != used[at - 1]), 0)
        if at:
            return _Mixed(loop.variable, at)
    raise NotReadable(f"line {template.line}: {template.opcode} takes a tile of one place or of another")


def _fitted(
    values: np.ndarray, own: str, around: Sequence[Loop], counters: Mapping[str, np.ndarray], template: Template
) -> Affine:
    """The linear form that has those values. `own`: the counter that it mostly is. Raises _Mixed, NotReadable."""
    names = [loop.variable for loop in around]
    for name in (own, *names):
        if name in counters and np.array_equal(values, counters[name]):
            return Affine.variable(name)
    columns = np.stack([np.ones(len(values), np.int64), *(counters[name] for name in names)], 1)
    form = _linear(values, columns)
    if form is not None:
        return Affine.of(form[0], dict(zip(names, form[1:])))
    for loop in around:
        if not (loop.start.is_constant and loop.extent.is_constant):
            continue
        passes = counters[loop.variable] - loop.start.constant
        for at in range(loop.extent.constant - 1, 0, -1):
            if _linear(values[passes < at], columns[passes < at]) is not None:
                raise _Mixed(loop.variable, at)
    raise NotReadable(f"line {template.line}: {template.opcode} takes tiles that do not go on evenly")


def _linear(values: np.ndarray, columns: np.ndarray) -> list[int] | None:
    """The factors of the columns whose sum the values are; 0 of a column, after the first, that never changes."""
    changing = np.concatenate(([True], (columns[:, 1:] != columns[:1, 1:]).any(0)))
    used = columns[:, changing]
    solution, *_ = np.linalg.lstsq(used.astype(np.float64), values.astype(np.float64), rcond=None)
    whole = np.rint(solution).astype(np.int64)
    if not np.array_equal(used @ whole, values):
        return None
    factors = np.zeros(columns.shape[1], np.int64)
    factors[changing] = whole
    found: list[int] = factors.tolist()
    return found


def read(program: Program) -> LoopKernel:
    """The loop tree of one core's program. Raises NotReadable."""
    if program.edges:
        raise NotReadable("it orders instructions by depends_on or with_schedule")
    numbering = _Numbering(program)
    rolling = _Rolling(program, numbering)
    form = rolling.span(_spans(program, numbering))
    drafting = _Drafting(rolling.row_kinds)
    drafts = drafting.drafts(form)
    for _ in range(_MOST_SPLIT):
        try:
            return _Growing(program, rolling.row_kinds, numbering).kernel(drafts)
        except _Mixed as mixed:
            drafts = drafting.split(drafts, mixed)
    raise NotReadable("its loops use tiles of too many places")
