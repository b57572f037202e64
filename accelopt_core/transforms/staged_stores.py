"""Collect on chip what the iterations of a loop store apart from one another, and store whole rows after it.

    for d in range(D):                            staged = ndarray((128, n, D), dtype=out.dtype, buffer=sbuf)
        ...                                       for d in range(D):
        dma_copy(dst=out[0:128, 0:n, d], src=t)       ...
                                           ->         tensor_copy(dst=staged[0:128, 0:n, d], src=t)
                                                  dma_copy(dst=out[0:128, 0:n, 0:D], src=staged)

A transfer moves every run of neighbours by itself; an engine writes elements that lie apart in one go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, Site, SiteGone
from accelopt_core.transforms.index_algebra import Indices
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.one_instruction import counted
from accelopt_core.transforms.plain_names import named_language
from accelopt_core.transforms.strided_parts import PartReader, Stretch, ends_of, is_on_chip, may_lie_apart, tile_of
from accelopt_core.transforms.syntax import loaded_names, parsed_expression, parsed_statement, replace_nodes


@dataclass(frozen=True)
class _Staging:
    loop: Statement
    """Its iterations store what lies between the elements of one another."""
    inner: tuple[Statement, ...]
    """Loops in it whose variables say where the store goes, outermost first: a dimension each."""
    buffer: str
    stretch: Stretch
    nl: str
    isa: str


class StagedStores:
    name = "stage-store"
    addresses = frozenset({Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.WAITING, Cause.TAIL})

    def describe(self) -> str:
        return "Collect what a loop stores element by element in a tile on chip, and store whole rows after the loop."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for key, store in _stores(code):
            try:
                staging = _plan(code, store)
            except IllegalSite as error:
                context.refuse(self.name, key, store.line, error)
                continue
            found.append(
                Site(
                    self.name,
                    key,
                    f"store what line {store.line} stores in all iterations over {staging.loop.variable} at once",
                    store.line,
                    f"the iterations over {staging.loop.variable} store every element of the rows of {staging.buffer}, "
                    "and nothing else in that loop touches it",
                    "a transfer moves every run of neighbours by itself; rows are one run each",
                )
            )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        store = dict(_stores(code)).get(key)
        if store is None:
            raise SiteGone(f"{key}: the kernel has no store of elements that lie apart, of that name")
        return _rewritten(code, store, _plan(code, store))


def _stores(code: KernelCode) -> Iterator[tuple[str, Statement]]:
    def apart() -> Iterator[tuple[str, Statement]]:
        for statement in code.statements():
            if statement.operation == "dma_copy" and tile_of(code, statement):
                dst, _ = ends_of(code, statement)
                if not is_on_chip(code, dst) and may_lie_apart(dst):
                    yield tile_of(code, statement), statement

    return counted(apart())


def _plan(code: KernelCode, store: Statement) -> _Staging:
    """Raises IllegalSite."""
    where = f"line {store.line}"
    dst, _ = ends_of(code, store)
    assert store.call is not None
    if store.stateful or len(store.call.args) != 2:
        raise IllegalSite(f"{where} says more than from where to where")
    if not isinstance(store.call.func, cst.Attribute):
        raise IllegalSite(f"{where}: the name of nki.isa is not at hand")
    part = PartReader(code, store, sees_through=True).part(dst)
    stretch = part.stretch
    loop = stretch.counted_by if stretch is not None else None
    if stretch is None or loop is None or not stretch.is_covered:
        raise IllegalSite(f"{where}: no loop around it stores all that lies between its elements")
    if len(stretch.shape) < 2 or len(code.bindings(part.base)) != 1 or part.base not in code.buffers:
        raise IllegalSite(f"{where} does not store rows of a buffer of the kernel's own")
    around = store.block.loops()
    inside = around[around.index(loop) + 1 :]
    for each in (loop, *inside):
        if each.kind is not Kind.LOOP or each.leaves or each.count is None:
            raise IllegalSite(f"{where} does not run in every iteration over {loop.variable} (line {each.line})")
    _check_alone(code, store, loop, part.base)
    changing = loop.binds
    names = loaded_names(parsed_expression(stretch.text))
    inner = tuple(each for each in inside if each.variable in names)
    indices = Indices(code)
    for each in inner:
        assert each.count is not None
        if len(code.bindings(each.variable)) != 1:
            raise IllegalSite(f"{each.variable} is bound again, and says where {where} stores")
        count = indices.polynomial(each.count, each)
        if indices.names(count) & changing:
            raise IllegalSite(f"the length of the loop over {each.variable} changes in the loop over {loop.variable}")
    sizes = frozenset[str]().union(*(loaded_names(parsed_expression(str(size))) for size in stretch.shape))
    if (names - {each.variable for each in inner}) & changing or sizes & changing:
        raise IllegalSite(f"{where}: where it stores changes in the loop over {loop.variable} in another way")
    made = code.bindings(part.base)[0]
    text = code.module.code_for_node
    return _Staging(loop, inner, part.base, stretch, named_language(code, made), text(store.call.func.value))


def _check_alone(code: KernelCode, store: Statement, loop: Statement, buffer: str) -> None:
    """A store may come later, as far as its loop goes."""
    roots = code.roots_of(frozenset({buffer}))
    for other in loop.walk():
        if other is not store and other.body is None and roots & code.roots_of(other.contents | other.written):
            raise IllegalSite(f"line {other.line} touches {buffer} in the loop over {loop.variable}, too")


def _rewritten(code: KernelCode, store: Statement, plan: _Staging) -> cst.Module:
    text = code.module.code_for_node
    _, src = ends_of(code, store)
    staged = code.fresh_name(f"{plan.buffer}_staged")
    indices = Indices(code)
    rows, *rest = plan.stretch.shape
    counts = [indices.polynomial(each.count, each) for each in plan.inner if each.count is not None]
    sizes = ", ".join(map(str, (rows, *counts, *rest)))
    made = parsed_statement(
        f"{staged} = {plan.nl}.ndarray(({sizes}), dtype={plan.buffer}.dtype, buffer={plan.nl}.sbuf)"
    )
    first, *others = plan.stretch.pick
    variables = [each.variable for each in plan.inner]
    picked = ", ".join((first, *variables, *others))
    copied = parsed_statement(f"{plan.isa}.tensor_copy(dst={staged}[{picked}], src={text(src)})")
    whole = ", ".join((f"0 : {rows}", *variables, *(f"0 : {size}" for size in rest)))
    stored: cst.BaseStatement = parsed_statement(f"{plan.isa}.dma_copy(dst={plan.stretch.text}, src={staged}[{whole}])")
    for each, count in reversed(list(zip(plan.inner, counts))):
        assert isinstance(each.node, cst.For) and isinstance(each.node.iter, cst.Call)
        stored = parsed_statement(
            f"for {each.variable} in {text(each.node.iter.func)}({count}):\n    pass\n"
        ).with_changes(body=cst.IndentedBlock([stored]))
    leading = getattr(store.node, "leading_lines", ())
    loop = replace_nodes(plan.loop.node, {store.node: copied.with_changes(leading_lines=leading)})
    before = made.with_changes(leading_lines=getattr(loop, "leading_lines", ()))
    block = plan.loop.block.node
    body: list[cst.CSTNode] = []
    for child in block.body:
        body += [before, loop.with_changes(leading_lines=()), stored] if child is plan.loop.node else [child]
    return code.changed({block: block.with_changes(body=body)})
