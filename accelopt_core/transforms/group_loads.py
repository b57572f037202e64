"""Load the tiles of several iterations in one transfer; what else works on them element by element is done with it.

for k in range(K):                                    for k_group in range(K // 4):
    dma_copy(dst=a, src=x[k])                             dma_copy(dst=a, src=x[4 * k_group : ...])
    nc_matmul(dst=p, stationary=a, moving=b[k])    ->     for i in range(4):
                                                              nc_matmul(dst=p, stationary=a[:, i * P : ...], ...)

Issuing a transfer has a fixed cost, and so has every instruction that prepares what it loads.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, NotOfItsKind, Site
from accelopt_core.transforms.grouped_iterations import FACTORS, grouped
from accelopt_core.transforms.isa_effects import LOADS
from accelopt_core.transforms.kernel_code import KernelCode, Statement, read_kernel
from accelopt_core.transforms.loop_sites import lines_of, loop_and_factor
from accelopt_core.transforms.merged_loop import MergedLoop, in_place_of
from accelopt_core.transforms.operand_access import ON_CHIP


class GroupLoads:
    name = "group-loads"
    addresses = frozenset({Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.ELEMENTWISE, Cause.WAITING})

    def describe(self) -> str:
        return (
            "Load the tiles of 2, 4 or 8 iterations in one transfer, and prepare them at once; the rest stays in order."
        )

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for place, loop in enumerate(code.loops()):
            try:
                _check_kind(loop)
                loaded = _loaded(code, MergedLoop.of(code, loop, partly=True))
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{place}", loop.line, error, lines_of(loop))
                continue
            for factor in FACTORS:
                found.append(
                    Site(
                        self.name,
                        f"{loop.variable}#{place}x{factor}",
                        f"load {loaded} of {factor} iterations over {loop.variable} at once",
                        loop.line,
                        f"what is done for {factor} iterations at once touches nothing that another iteration writes, "
                        "and the rest keeps its order",
                        f"issuing a transfer costs the same for {factor} tiles as for one",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop, factor = loop_and_factor(code, key)
        _check_kind(loop)
        merged = MergedLoop.of(code, loop, partly=True)
        _loaded(code, merged)
        return in_place_of(code, loop, grouped(code, merged, factor))


def _check_kind(loop: Statement) -> None:
    if not any(inner.operation in LOADS for inner in loop.walk()):
        raise NotOfItsKind(f"the loop over {loop.variable} loads nothing")


def _loaded(code: KernelCode, merged: MergedLoop) -> str:
    """The tiles that are loaded for several iterations at once. Raises IllegalSite when there is none."""
    found = []
    for statement in merged.merged:
        dst = code.argument(statement, "dst", 0)
        if statement.operation in LOADS and dst is not None and code.regions_of(dst) <= ON_CHIP:
            found.append(code.module.code_for_node(dst))
    if not found:
        raise IllegalSite(f"no tile of several iterations over {merged.loop.variable} can be loaded at once")
    return " and ".join(found)
