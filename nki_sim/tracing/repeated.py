"""Plain loops of a traced kernel: a few passes are run, and what lies between them is written down.

A pass's instructions, operands and buffers stand in the tracer as numbers. In a loop that is plain by its text
(`plain_loops.py`) each pass but perhaps the first and the last adds the same numbers, one step on. So two of those are
run; from what they added follows what each pass between them and the last one adds, and the last is run again. Where it
does not add what follows, as a last pass may, it is the one before it that has to; and where that does not, or one of
these counts from a tensor's end, all passes are run. That the first two and the last of the even passes agree is
enough: where a view begins is even by the text of the loop; its shape, its partition and whether it lies within its
tensor can only go one way between them. Where the loop's variable is divided, all this holds of so many passes at once.

The program is the same to the byte. An error may name another pass; who wants the first one traces without this.
"""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np

from nki_sim.program.allocations import Stretch
from nki_sim.tracing.marks import FIELDS, MARK, marked, marked_tree
from nki_sim.tracing.plain_loops import REPEATED, VIEWS, Needs, NotPlain, needs_of, wrapped
from nki_sim.tracing.session import Tracer, active
from nki_sim.tracing.tensor import NkiTensor

LEAST_PASSES = 7
"""Three are run in any case, and comparing them costs something too."""
LEAST_TURNS = 5
"""Of several passes at once, likewise."""
_OURS = ("nki_sim.nki", "nki_sim.isa", "nki_sim.tracing.tensor")
"""Modules whose functions change nothing but the tracer."""


def compiled(source: str, file: str, names: dict[str, Any]) -> Any:
    """Code that runs in `names`. Raises SyntaxError."""
    code, loops = _code(source, file)

    def repeated(passes: range, number: int) -> Iterable[int]:
        if type(passes) is not range or len(passes) < LEAST_PASSES or (needs := loops[number].needs) is None:
            return passes
        return _repeated(passes, needs)

    names[REPEATED] = repeated
    names[MARK] = marked
    return code


@lru_cache(maxsize=1)
def _code(source: str, file: str) -> tuple[CodeType, tuple[_Loop, ...]]:
    """A kernel is traced at one shape after the other, each time in names of its own: its text is read once."""
    tree = ast.parse(source, file)
    loops = tuple(_Loop(node) for node in wrapped(tree))
    return compile(marked_tree(tree), file, "exec"), loops


def gave_rise_to(error: BaseException) -> bool:
    """Whether it was raised in here, and not by a pass that was run, which fails without this too."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == gave_rise_to.__code__.co_filename:
            return True
        trace = trace.tb_next
    return False


@dataclass(frozen=True)
class _Loop:
    node: ast.For

    @cached_property
    def needs(self) -> Needs | None:
        """None of one that is not plain."""
        try:
            return needs_of(self.node)
        except NotPlain:
            return None


def _repeated(passes: range, needs: Needs) -> Iterator[int]:
    """Yields the passes that are run."""
    tracer = active()
    turns = None if tracer is None or tracer.numbers or tracer.shared is not None else _turns(passes, needs)
    if tracer is None or turns is None:
        yield from passes
        return
    ran = 0
    step: _Step | None = None
    marks = [_Mark.of(tracer)]
    while step is None and ran < 3:  # the first one may differ, by its text or by what is prepared once
        yield from turns[ran]
        ran += 1
        marks.append(_Mark.of(tracer))
        if ran == 3 or ran == 2 and not needs.from_zero:
            step = _Step.between(tracer, *marks[-3:])
    kept = dict(tracer.cache), dict(tracer.constants)
    rest = passes[len(turns) * len(turns[0]) :]
    for last in (2,) if needs.ends else (1, 2):
        if step is None:
            break
        skipped = len(turns) - ran - last
        step.write(tracer, skipped, marks[-2])
        before = _Mark.of(tracer)
        yield from turns[-last]
        if step.is_next(tracer, before, skipped + 1):
            yield from turns[-1] if last > 1 else ()
            yield from rest
            return
        marks[-1].go_back(tracer, *kept)
    yield from passes[ran * len(turns[0]) :]


def _turns(passes: range, needs: Needs) -> Sequence[range] | None:
    """Passes that go on evenly, one turn to the next; what is left at the end is in none. None: the loop is not plain
    with the values that its names have, or too short."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename == marked.__code__.co_filename and frame.f_back is not None:
        frame = frame.f_back  # of the function that the loop is in, which asks by way of its mark
    if not _hold(needs, passes, frame):
        return None
    try:  # of names that are known to be integers by now
        apart = [eval(text, frame.f_globals, frame.f_locals) for text in needs.turns]
    except ArithmeticError:
        return None
    if min(apart, default=1) < 1:
        return None
    each = math.lcm(*apart)
    turns = len(passes) // each
    if turns < (LEAST_PASSES if each == 1 else LEAST_TURNS):
        return None
    return [passes[at * each : (at + 1) * each] for at in range(turns)]


@dataclass(frozen=True)
class _Mark:
    """How much a tracer has recorded."""

    rows: int
    operands: int
    allocations: int
    templates: int
    marks: int
    """Of loops, of which nothing that is recorded depends on any."""
    others: tuple[int, ...]
    """Of what no plain pass adds to."""

    @classmethod
    def of(cls, tracer: Tracer) -> _Mark:
        named = sum(map(len, tracer.named.values()))
        kept = len(tracer.cache), len(tracer.constants)
        others = len(tracer.edges), len(tracer.loops), named, *kept, NkiTensor.counted_from_end
        return cls(
            len(tracer.template_ids), len(tracer.operand_data), len(tracer.allocations), len(tracer.templates),
            len(tracer.marks), others,
        )  # fmt: skip

    def go_back(self, tracer: Tracer, cache: dict[Any, NkiTensor], constants: dict[int, np.ndarray]) -> None:
        """To what was recorded then. cache, constants: as they were then."""
        edges, loops, *_ = self.others
        recorded: tuple[tuple[Any, int], ...] = (
            (tracer.template_ids, self.rows), (tracer.operand_data, self.operands),
            (tracer.edges, edges), (tracer.loops, loops), (tracer.marks, self.marks),
        )  # fmt: skip
        for each, length in recorded:
            del each[length:]
        tracer.allocations.forget(self.allocations)
        tracer.forget_templates(self.templates)
        for name, rows in list(tracer.named.items()):
            tracer.named[name] = [row for row in rows if row < self.rows]
            if not tracer.named[name]:
                del tracer.named[name]
        for now, then in ((tracer.cache, cache), (tracer.constants, constants)):
            for added in now.keys() - then.keys():
                del now[added]


@dataclass(frozen=True)
class _Step:
    """What a pass adds, and by how much that of the next one is further on."""

    templates: np.ndarray
    """int [instructions]."""
    operands: np.ndarray
    """int [2 x operands], of one pass: numbers of buffers and offsets in turns."""
    further: np.ndarray
    """What each of them grows by."""
    allocations: Stretch

    @classmethod
    def between(cls, tracer: Tracer, first: _Mark, second: _Mark, third: _Mark) -> _Step | None:
        """None where the pass from the first mark and that from the second are not alike."""
        if not first.others == second.others == third.others:
            return None
        before, after = _Added.between(tracer, first, second), _Added.between(tracer, second, third)
        if not before.is_alike(after):
            return None
        return cls(after.templates, after.operands, after.operands - before.operands, after.allocations)

    def write(self, tracer: Tracer, passes: int, since: _Mark) -> None:
        """So many passes more than the one that was recorded since then."""
        tracer.template_ids.frombytes(np.tile(self.templates, passes).tobytes())
        numbers = np.arange(1, passes + 1)[:, None]
        tracer.operand_data.frombytes((self.operands + numbers * self.further).tobytes())
        tracer.allocations.repeat(self.allocations, len(self.templates), passes)
        marks = np.array(tracer.marks[since.marks :], np.int64).reshape(-1, FIELDS)
        further = np.array([0, 0, len(self.templates), len(self.allocations)], np.int64)
        tracer.marks.frombytes((marks + numbers[:, :, None] * further).tobytes())

    def is_next(self, tracer: Tracer, mark: _Mark, number: int) -> bool:
        """Is what was recorded since then the pass of that number, counted from the one that this was taken from?"""
        now = _Mark.of(tracer)
        if now.others != mark.others or now.templates != mark.templates:
            return False
        added = _Added.between(tracer, mark, now)
        last = _Added(self.templates, self.operands + (number - 1) * self.further, self.allocations)
        return last.is_alike(added, number) and bool((added.operands - last.operands == self.further).all())


@dataclass(frozen=True)
class _Added:
    """Between two marks."""

    templates: np.ndarray
    operands: np.ndarray
    allocations: Stretch

    @classmethod
    def between(cls, tracer: Tracer, since: _Mark, until: _Mark) -> _Added:
        return cls(
            np.array(tracer.template_ids[since.rows : until.rows], np.intc),
            np.array(tracer.operand_data[since.operands : until.operands], np.int64),
            tracer.allocations.since(since.allocations, until.allocations),
        )

    def is_alike(self, later: _Added, passes: int = 1) -> bool:
        """Are its instructions the same, and its buffers but for their numbers, so many passes later?"""
        return (
            np.array_equal(self.templates, later.templates)
            and len(self.operands) == len(later.operands)
            and self.allocations.comes_again(later.allocations, len(self.templates), passes)
        )


# --- what the text of a loop cannot show -----------------------------------------------------------------


class _Unknown(Exception):
    """A name has no value yet."""


def _hold(needs: Needs, passes: range, frame: FrameType) -> bool:
    """frame: of the function that the loop is in."""
    local, outside = frame.f_locals, frame.f_globals

    def value(dotted: tuple[str, ...]) -> Any:
        name = dotted[0]
        found = local.get(name, outside.get(name, _Unknown))
        if found is _Unknown:
            found = getattr(builtins, name, _Unknown)
        for attribute in dotted[1:]:
            found = getattr(found, attribute, _Unknown)
        if found is _Unknown:
            raise _Unknown
        return found

    try:
        return (
            not (needs.from_zero and (passes.start < 0 or passes.step < 1))
            and all(type(value(dotted)) is int for dotted in needs.numbers)
            and all(type(value((name,))) is NkiTensor for name in needs.tensors)
            and all(value((name,)) is getattr(builtins, name) for name in needs.builtins)
            and all(_is_harmless(dotted, value) for dotted in needs.callees)
            and all(_is_even_at(value((name,)), depth) for name, depth in needs.indexed)
        )
    except _Unknown:
        return False


def _is_harmless(dotted: tuple[str, ...], value: Callable[[tuple[str, ...]], Any]) -> bool:
    """A function that changes nothing but the tracer."""
    root = value(dotted[:1])
    if type(root) is NkiTensor:
        return len(dotted) == 2 and dotted[1] in VIEWS
    if len(dotted) > 1 and not isinstance(root, ModuleType):
        return False
    return str(getattr(value(dotted), "__module__", "")).startswith(_OURS)


def _is_even_at(given: Any, depth: int) -> bool:
    """A tensor; or lists whose elements so many levels down differ only by an even step from buffer to buffer."""
    level = [given]
    for _ in range(depth):
        level = [each for one in level for each in (one if type(one) in (list, tuple) else (one,))]
    return all(_is_even(each) for each in level)


def _is_even(given: Any) -> bool:
    if type(given) is NkiTensor:
        return True
    if type(given) not in (list, tuple) or not given:
        return False
    if all(type(each) is NkiTensor for each in given):
        numbers = [each.storage.number for each in given]
        step = numbers[-1] - numbers[-2] if len(numbers) > 1 else 0
        return (
            all(later - one == step for one, later in zip(numbers, numbers[1:]))
            and len({(each.key, each.offset, each.indirection is None) for each in given}) == 1
            and given[0].indirection is None
        )
    if all(type(each) in (list, tuple) and len(each) == len(given[0]) for each in given):
        return all(_is_even(column) for column in zip(*given))
    return False
