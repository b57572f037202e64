"""Turn several tiles into one tile of PSUM, and copy that in one instruction.

for m in range(M):                                    for m_group in range(M // 4):
    dma_copy(dst=a, src=x[m])                             dma_copy(dst=a, src=x[4 * m_group : ...])
    nc_transpose(dst=t, data=a)                           for i in range(4):
    tensor_copy(dst=b, src=t)                  ->             nc_transpose(dst=t[:, i * P : ...], data=a[...])
    work(b, m)                                            tensor_copy(dst=b, src=t)
                                                          for i in range(4):
                                                              work(b[:, i * P : ...], 4 * m_group + i)

Whatever else of the loop works element by element is done for the group at once too; the rest stays, iteration by
iteration, in its order. A bank of PSUM holds four tiles of 128 columns in float32.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, NotOfItsKind, Site
from accelopt_core.transforms.grouped_iterations import FACTORS, grouped
from accelopt_core.transforms.kernel_code import KernelCode, Statement, read_kernel
from accelopt_core.transforms.loop_sites import lines_of, loop_and_factor
from accelopt_core.transforms.merged_loop import MergedLoop, in_place_of
from accelopt_core.transforms.syntax import content_names


class GroupTransposes:
    name = "group-transposes"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.TRANSPOSES, Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.WAITING})

    def describe(self) -> str:
        return "Turn 2, 4 or 8 tiles into one tile of PSUM and copy it out at once, loads and stores with it."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for place, loop in enumerate(code.loops()):
            try:
                _check_kind(loop)
                turned = _turned(code, MergedLoop.of(code, loop, partly=True))
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{place}", loop.line, error, lines_of(loop))
                continue
            for factor in FACTORS:
                found.append(
                    Site(
                        self.name,
                        f"{loop.variable}#{place}x{factor}",
                        f"turn {turned} of {factor} iterations over {loop.variable} into one tile of PSUM",
                        loop.line,
                        f"what is done for {factor} iterations at once touches nothing that another iteration writes, "
                        "and the rest keeps its order",
                        f"PSUM is copied out once for {factor} tiles: the fixed cost of an instruction is paid once",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop, factor = loop_and_factor(code, key)
        _check_kind(loop)
        merged = MergedLoop.of(code, loop, partly=True)
        _turned(code, merged)
        return in_place_of(code, loop, grouped(code, merged, factor))


def _check_kind(loop: Statement) -> None:
    if not any(inner.operation == "nc_transpose" for inner in loop.walk()):
        raise NotOfItsKind(f"no tile that the loop over {loop.variable} turns")


def _turned(code: KernelCode, merged: MergedLoop) -> str:
    """The tile of PSUM that a transpose fills and one merged instruction reads. Raises IllegalSite."""
    for statement in merged.statements:
        dst = code.argument(statement, "dst", 0) if statement.operation == "nc_transpose" else None
        if dst is None or statement in merged.merged:
            continue
        for name in sorted(content_names(dst)):
            if code.regions_of(cst.Name(name)) == {"psum"} and any(name in each.uses for each in merged.merged):
                return name
    raise IllegalSite(f"no tile that the loop over {merged.loop.variable} turns can be copied with others")
