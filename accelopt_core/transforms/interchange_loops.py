"""Exchange two loops, so that what depends on the inner one alone is loaded once for a whole run of the other.

    for m in range(M):                       for n in range(N):
        for n in range(N):                       right = load(y[n])
            left = load(x[m])                    for m in range(M):
            right = load(y[n])       ->              left = load(x[m])
            use(left, right)                         use(left, right)

Hoisting alone would keep `right` for every n, all of y; after the exchange one n at a time stays resident.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotOfItsKind,
    Site,
    SiteGone,
)
from accelopt_core.transforms.hoist_invariant_loads import HoistInvariantLoads
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import check_independent
from accelopt_core.transforms.loop_sites import lines_of, loop_at
from accelopt_core.transforms.syntax import replace_nodes

_HOIST = HoistInvariantLoads()
_NOTHING_KEPT = "{} could be kept for every {}, so the exchange would gain nothing"


@dataclass(frozen=True)
class _Nest:
    outer: Statement
    inner: Statement
    definitions: tuple[Statement, ...]
    """What the outer loop defines before the inner one: goes along inside."""

    @property
    def variables(self) -> tuple[str, str]:
        return self.outer.variable, self.inner.variable


class InterchangeLoops:
    name = "interchange-loops"
    addresses = frozenset(
        {Cause.HBM_TRAFFIC, Cause.DMA_ISSUING, Cause.DMA_BANDWIDTH, Cause.TRANSPOSES, Cause.THROTTLED, Cause.WAITING}
    )

    def describe(self) -> str:
        return (
            "Exchange two nested loops and load a tile that depends on the formerly inner one alone once for all "
            "iterations of the other, so that it stays resident."
        )

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for number, loop in enumerate(code.loops()):
            try:
                nest = _plan(code, loop)
                kept = _kept_tiles(_exchanged(code, nest, module.entry_points), *nest.variables)
                if not kept:
                    raise IllegalSite(_NOTHING_KEPT.format("no tile", nest.outer.variable))
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{number}", loop.line, error, lines_of(loop))
                continue
            outer, inner = nest.variables
            for tile in kept:
                found.append(
                    Site(
                        self.name,
                        f"{outer},{inner}#{number}/{tile}",
                        f"exchange the loops over {outer} and {inner}, and keep {tile} for every {outer}",
                        loop.line,
                        f"iterations over {outer} write different parts and read nothing that any of them writes, and "
                        f"{tile} does not depend on {outer}",
                        f"{tile} is loaded once for each {inner} instead of once for each {outer} and {inner}",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        pair, _, rest = key.partition("#")
        outer, _, inner = pair.partition(",")
        number, _, tile = rest.partition("/")
        nest = _plan(code, loop_at(code, f"{outer}#{number}", key))
        if nest.inner.variable != inner:
            raise SiteGone(f"{key}: the loop over {outer} holds one over {nest.inner.variable}")
        exchanged = _exchanged(code, nest, module.entry_points)
        if tile not in _kept_tiles(exchanged, outer, inner):
            raise IllegalSite(_NOTHING_KEPT.format(tile or "no tile", outer))
        return _HOIST.apply(exchanged, f"{tile}/{outer}")


def _plan(code: KernelCode, outer: Statement) -> _Nest:
    """Raises IllegalSite naming the rule that forbids it."""
    assert outer.body is not None
    inner_loops = [statement for statement in outer.body.statements if statement.kind is Kind.LOOP]
    if not inner_loops:
        raise NotOfItsKind(f"the loop over {outer.variable} holds 0 loops, not one")
    if len(inner_loops) != 1:
        raise IllegalSite(f"the loop over {outer.variable} holds {len(inner_loops)} loops, not one")
    (inner,) = inner_loops
    at = outer.body.statements.index(inner)
    for statement in outer.body.statements[:at]:
        if statement.kind is not Kind.DEFINE:
            raise IllegalSite(f"line {statement.line} stands between the loops ({statement.kind.value})")
    for statement in outer.body.statements[at + 1 :]:
        raise IllegalSite(f"line {statement.line} follows the inner loop")
    if inner.count is None:
        raise IllegalSite(f"the loop over {inner.variable} does not simply count up from 0")
    definitions = tuple(outer.body.statements[:at])
    set_outside = {outer.variable}.union(*(definition.binds for definition in definitions))
    if inner.header_uses & set_outside:
        raise IllegalSite(f"the length of the loop over {inner.variable} is set in the loop over {outer.variable}")
    # With nothing handed from one outer iteration to another, any order that keeps each one's own is right.
    check_independent(code, outer)
    return _Nest(outer, inner, definitions)


def _kept_tiles(module: KernelModule, outer: str, inner: str) -> tuple[str, ...]:
    """Tiles that the exchanged kernel can load in its loop over `inner`, before the one over `outer`."""
    code = read_kernel(module)
    found = []
    for site in _HOIST.analyze(module, AnalysisContext()):
        tile, _, variable = site.key.partition("/")
        if variable == outer and any(inner in (s.variable for s in b.block.loops()) for b in code.bindings(tile)):
            found.append(tile)
    return tuple(found)


def _exchanged(code: KernelCode, nest: _Nest, entry_points: tuple[str, ...]) -> KernelModule:
    outer, inner = nest.outer.node, nest.inner.node
    assert isinstance(outer, cst.For) and isinstance(inner, cst.For)
    assert isinstance(outer.body, cst.IndentedBlock) and isinstance(inner.body, cst.IndentedBlock)
    moved = [definition.node for definition in nest.definitions]
    body = inner.body.with_changes(body=[*moved, *inner.body.body])
    new_inner = outer.with_changes(body=body, leading_lines=inner.leading_lines)
    new_outer = inner.with_changes(body=outer.body.with_changes(body=[new_inner]), leading_lines=outer.leading_lines)
    result = replace_nodes(code.module, {outer: new_outer})
    assert isinstance(result, cst.Module)
    return KernelModule(result, entry_points)
