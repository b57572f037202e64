"""TensorE's tiles against where their operands lie.

Partition p of SBUF feeds row p of the array, and column m of the array ends in partition m of PSUM. So a product on
a part of the array (`tile_position`, `tile_size`) reads the partitions of its rows and writes those of its columns.
A buffer of at most half of the partitions can be put on any half or quarter of them, but on one only.
"""

from __future__ import annotations

import numpy as np

from nki_sim.contract.rules import start_partitions
from nki_sim.errors import NkiValidationError
from nki_sim.machine import ISA
from nki_sim.program.memory import Allocation
from nki_sim.program.program import Operand, Program, Template


def check_array_tiles(program: Program) -> None:
    """Raises NkiValidationError for a tile whose rows or columns are not the partitions of its operands.

    Trainium2 architecture guide: each partition feeds one row of processing elements; NKI's page of nc_matmul,
    tiling mode: `tile_position` names the first row and column.
    """
    tiled = np.array([_tiled(template) for template in program.templates], np.bool_)
    if not tiled.any() or _all_fit(program, tiled):
        return
    # the first that does not, by name
    places: dict[int, tuple[int, ...]] = {}
    for number, at, buffer in _uses(program, tiled):
        template = program.templates[number]
        left = _fitting(places.get(buffer) or _possible(program.allocations[buffer]), template, template.operands[at])
        if not left:
            raise _misplaced(program, buffer, template, template.operands[at])
        places[buffer] = left


def _all_fit(program: Program, tiled: np.ndarray) -> bool:
    """Is there a place for every buffer that the templates in `tiled` touch? Each use leaves it an interval of them."""
    within = [
        (first - operand.partition_start, end - operand.partition_start - operand.partitions) if is_tiled else (0, 0)
        for template, is_tiled in zip(program.templates, tiled.tolist())
        for operand in template.operands
        for first, end in [_span(template, operand) if is_tiled else (0, 0)]
    ]
    at = np.flatnonzero(tiled[program.template_ids[program.operand_rows]])
    buffers = program.operand_data[at, 0]
    lows, highs = np.array(within, np.int64)[program.operand_numbers[at]].T
    count = len(program.allocations)
    lowest, highest = np.full(count, np.iinfo(np.int64).min), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(lowest, buffers, lows)
    np.minimum.at(highest, buffers, highs)
    touched = np.flatnonzero(np.bincount(buffers, minlength=count))
    left = set(zip(*(each[touched].tolist() for each in (program.allocations.kind_of, lowest, highest))))
    return all(any(low <= p <= high for p in _possible(program.allocations.kinds[kind])) for kind, low, high in left)


def _uses(program: Program, tiled: np.ndarray) -> list[list[int]]:
    """[template, number of the operand, buffer], each once, of the templates in `tiled`."""
    rows = program.operand_rows
    own = tiled[program.template_ids[rows]]
    rows, buffers = rows[own], program.operand_data[own, 0]
    places = np.flatnonzero(own) - program.operand_starts[rows]
    uses: list[list[int]] = np.unique(np.stack((program.template_ids[rows], places, buffers), axis=1), axis=0).tolist()
    return uses


def _tiled(template: Template) -> bool:
    size = tuple(getattr(template.attrs, "tile_size", ()) or ())
    return len(size) == 2 and size != (ISA.tensor_rows, ISA.tensor_columns)


def _possible(allocation: Allocation) -> tuple[int, ...]:
    """First partitions that a buffer can have."""
    return start_partitions(allocation.partitions) if allocation.address is None else (allocation.address[0],)


def _span(template: Template, operand: Operand) -> tuple[int, int]:
    """The partitions that this operand's side of the tile is wired to: [first, end)."""
    side = 1 if operand.role == "dst" else 0
    first = template.attrs.tile_position[side]
    return first, first + template.attrs.tile_size[side]


def _fitting(places: tuple[int, ...], template: Template, operand: Operand) -> tuple[int, ...]:
    first, end = _span(template, operand)
    start = operand.partition_start
    return tuple(p for p in places if first <= p + start and p + start + operand.partitions <= end)


def _misplaced(program: Program, buffer: int, template: Template, operand: Operand) -> NkiValidationError:
    first, end = _span(template, operand)
    start = operand.partition_start
    lies = f"partitions {start} to {start + operand.partitions - 1} of {program.allocations[buffer].describe()}"
    side = "column" if operand.role == "dst" else "row"
    error = NkiValidationError(
        f"nc_matmul: tile_position {template.attrs.tile_position}, tile_size {template.attrs.tile_size} takes array "
        f"{side}s {first} to {end - 1}, and so those partitions, but {operand.role} is {lies}, and cannot lie there: "
        f"slice partitions {first} to {end - 1} of a tile of {ISA.partitions}, or give every tile position a buffer of "
        "its own"
    )
    error.line, error.file = template.line, program.source_file or None
    return error
