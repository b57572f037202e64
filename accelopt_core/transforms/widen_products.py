"""Multiply what several iterations move by one stationary tile in one product.

for r in range(R):                                    for r_group in range(R // 4):
    for k in range(K):                                    for k in range(K):
        nc_matmul(dst=p, stationary=w[k],      ->             nc_matmul(dst=p, stationary=w[k],
                  moving=x[:, r + k, 0:W])                              moving=x[:, 4 * r_group + k, ...])
    tensor_copy(dst=y, src=p)                             tensor_copy(dst=y, src=p)

The array is filled and emptied once for a product, however few columns are moved through it: below 512 that is lost.
What else of the loop works element by element is done for the group at once too; the rest stays in its order.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, NotOfItsKind, Site
from accelopt_core.transforms.grouped_iterations import FACTORS, grouped
from accelopt_core.transforms.kernel_code import KernelCode, Statement, read_kernel
from accelopt_core.transforms.loop_sites import lines_of, loop_and_factor
from accelopt_core.transforms.merged_loop import PRODUCTS, MergedLoop, in_place_of


class WidenProducts:
    name = "widen-products"
    addresses = frozenset({Cause.MATMUL, Cause.THROTTLED, Cause.ELEMENTWISE, Cause.WAITING})

    def describe(self) -> str:
        return "Move the columns of 2, 4 or 8 iterations through a stationary tile in one product."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for place, loop in enumerate(code.loops()):
            try:
                widened = _widened(code, loop)[1]
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{place}", loop.line, error, lines_of(loop))
                continue
            for factor in FACTORS:
                found.append(
                    Site(
                        self.name,
                        f"{loop.variable}#{place}x{factor}",
                        f"multiply {widened} of {factor} iterations over {loop.variable} in one product",
                        loop.line,
                        "a column of a product depends on the column that is moved and on what is stationary, which is "
                        f"the same for {factor} iterations; none of them touches what another one writes",
                        f"filling and emptying the array is paid once for {factor} products",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop, factor = loop_and_factor(code, key)
        merged = _widened(code, loop)[0]
        return in_place_of(code, loop, grouped(code, merged, factor))


def _widened(code: KernelCode, loop: Statement) -> tuple[MergedLoop, str]:
    """The loop with its products merged, and what is moved in them. Raises IllegalSite where none can be."""
    if not any(inner.operation in PRODUCTS for inner in loop.walk()):
        raise NotOfItsKind(f"the loop over {loop.variable} multiplies nothing")
    merged = MergedLoop.of(code, loop, partly=True, products=True)
    found = []
    for statement in (inner for top in merged.merged for inner in top.walk()):
        moving = code.argument(statement, "moving", 2) if statement.operation in PRODUCTS else None
        if moving is not None:
            found.append(code.module.code_for_node(moving))
    if not found:
        raise IllegalSite(f"no product of several iterations over {loop.variable} has one stationary tile")
    return merged, " and ".join(found)
