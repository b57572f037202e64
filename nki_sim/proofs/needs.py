"""Which buffers an exponential is computed from: their values are carried in a second lane (`algebra`)."""

from __future__ import annotations

from nki_sim.program import Program, Template
from nki_sim.proofs.operators import EXPONENTIAL


def needed_by_exponentials(program: Program) -> frozenset[int]:
    """Numbers of buffers, found backwards from the exponentials of every core.

    With device loops, until nothing is added. Of several cores, which meet in memory, all buffers are taken.
    """
    cores = (program, *program.peers)
    if not any(_exponential(template) for each in cores for template in each.templates):
        return frozenset()
    found: set[int] = set()
    if program.peers:
        return frozenset(range(max(len(each.allocations) for each in cores)))
    while True:
        before = len(found)
        _backwards(program, found)
        if not program.loops or len(found) == before:
            return frozenset(found)


def _exponential(template: Template) -> bool:
    return template.opcode == "activation" and template.attrs.op in EXPONENTIAL


def _backwards(program: Program, found: set[int]) -> None:
    """Add what the rows read that compute what is found."""
    templates = program.templates
    reads = [[o.access != "w" or o.role == "accumulators" for o in template.operands] for template in templates]
    writes = [[operand.access != "r" for operand in template.operands] for template in templates]
    exponential = [_exponential(template) for template in templates]
    buffers, starts, ids = program.operand_data[:, 0].tolist(), program.operand_starts.tolist(), program.template_ids
    for i in range(len(program) - 1, -1, -1):
        number = ids[i]
        row = buffers[starts[i] : starts[i + 1]]
        if exponential[number] or any(w and buffer in found for buffer, w in zip(row, writes[number])):
            found.update(buffer for buffer, r in zip(row, reads[number]) if r)
