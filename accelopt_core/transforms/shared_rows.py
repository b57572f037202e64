"""A row that every iteration of a loop needs, and that is loaded before it: once the iterations are on the partitions,
every partition needs it.

g = ndarray((1, W))                         for i_group in range(n // 128):
dma_copy(dst=g, src=gamma[0:1, 0:W])            g_rows = ndarray((128, W))
for i in range(n):                    ->        dma_copy(dst=g_rows, src=gamma.ap([[0, 128], [1, W]]))
    work(row, g)                                work(rows, g_rows)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.operand_access import HBM, ONE, Access, AccessReader, Iterations, arguments_of
from accelopt_core.transforms.plain_names import check_fixed, named_language
from accelopt_core.transforms.syntax import content_names, parsed_statement


@dataclass(frozen=True)
class SharedRow:
    name: str
    made: Statement
    loaded: Statement
    source: Access
    """In HBM; nothing in the kernel writes it."""

    def on_partitions(
        self, code: KernelCode, reader: AccessReader, name: str, these: Iterations
    ) -> list[cst.BaseStatement]:
        """The tile `name`, which has the row on a partition for each of these iterations. Raises IllegalSite."""
        nl, isa = named_language(code, self.made), code.name_of_module("nki.isa")
        sizes = reader.sizes(self.name)
        assert sizes is not None
        row = reader.one_pattern(squeezed(self.source), these, 0, self.loaded).text
        shape = ", ".join(map(str, (these.count, *sizes[1:])))
        lines = (
            f"{name} = {nl}.ndarray(({shape}), dtype={self.name}.dtype, buffer={nl}.sbuf)",
            f"{isa}.dma_copy(dst={name}, src={row})",
        )
        return [parsed_statement(line) for line in lines]


def squeezed(access: Access) -> Access:
    """Without dimensions of one element, but for the last."""
    *first, last = access.dims
    return replace(access, dims=(*(replace(dim, dropped=dim.length == ONE or dim.dropped) for dim in first), last))


def shared_row(code: KernelCode, reader: AccessReader, loop: Statement, name: str) -> SharedRow:
    """What a name from outside of the loop stands for in it. Raises IllegalSite where that is no such row."""
    made, writers = code.bindings(name), code.writers(name)
    said = f"{name}, which is made outside of the loop over {loop.variable},"
    if [each.kind for each in made] != [Kind.ALLOCATE] or made[0].region != "sbuf" or name in code.captured:
        raise IllegalSite(f"{said} is no tile in SBUF")
    if len(writers) != 1 or writers[0].operation != "dma_copy" or made[0].line > writers[0].line:
        raise IllegalSite(f"{said} is more than loaded")
    (loaded,) = writers
    blocks = [loop.block, *(owner.block for owner in loop.block.loops())]
    if loaded.block not in blocks or made[0].block not in blocks or loaded.line > loop.line:
        raise IllegalSite(f"{said} may not be loaded by then (line {loaded.line})")
    given, sizes = arguments_of(loaded), reader.sizes(name)
    whole = set(given) <= {"dst", "src", "dge_mode", "engine"} and isinstance(given["dst"], cst.Name)
    if not whole or sizes is None or len(sizes) < 2 or sizes[0] != ONE:
        raise IllegalSite(f"{said} is not a row that is loaded whole")
    roots = code.roots_of(content_names(given["src"]))
    if not roots or any(code.writers(root) for root in roots) or not code.regions_of(given["src"]) <= HBM:
        raise IllegalSite(f"{said} is loaded from what the kernel writes, or from elsewhere than HBM")
    check_fixed(code, [given["src"]], f"what {name}", loop)
    return SharedRow(name, made[0], loaded, reader.access(given["src"], loaded))
