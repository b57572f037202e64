"""Do what a loop does column by column, or row by row, in one instruction for all of them.

for j in range(n):                                                tensor_copy(dst=t[:, 0 : n], src=s[:, 0 : n])
    tensor_copy(dst=t[:, j : j + 1], src=s[:, j : j + 1])   ->    dma_copy(dst=out[:, 0 : n], src=t[:, 0 : n])
    dma_copy(dst=out[:, j : j + 1], src=t[:, j : j + 1])

Each instruction has a fixed cost, and each descriptor of a transfer another. Places that do not follow one another
become an access pattern: overlapping windows, every w-th column, one column for all.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, Site
from accelopt_core.transforms.kernel_code import KernelCode, Kind, read_kernel
from accelopt_core.transforms.loop_sites import lines_of, loop_at
from accelopt_core.transforms.merged_loop import MergedLoop, in_place_of


class MergeIterations:
    name = "merge-iterations"
    addresses = frozenset(Cause) - {Cause.TABLE_SWITCHES, Cause.MATMUL}

    def describe(self) -> str:
        return "Do what a loop does column by column, or tile by tile, in one instruction and one transfer for all."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for number, loop in enumerate(code.loops()):
            try:
                merged = MergedLoop.of(code, loop)
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{number}", loop.line, error, lines_of(loop))
                continue
            operations = ", ".join(dict.fromkeys(statement.operation for statement in merged.merged))
            found.append(
                Site(
                    self.name,
                    f"{loop.variable}#{number}",
                    f"issue {operations} once for all iterations over {loop.variable}",
                    loop.line,
                    f"no iteration over {loop.variable} touches what another writes, and where each works is linear in "
                    f"{loop.variable}",
                    "the fixed cost of an instruction and of a transfer is paid once, not in each iteration",
                )
            )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop = loop_at(code, key, key)
        return in_place_of(code, loop, _instead(code, MergedLoop.of(code, loop)))


def _instead(code: KernelCode, merged: MergedLoop) -> list[cst.BaseStatement]:
    iterations = merged.all_iterations
    body: list[cst.BaseStatement] = []
    for statement in merged.statements:
        if statement.kind is Kind.ALLOCATE:
            body.append(merged.allocation(statement, iterations.count))
        elif statement.kind is Kind.INSTRUCTION:
            body.append(merged.statement(statement, iterations))
    return merged.around(body)
