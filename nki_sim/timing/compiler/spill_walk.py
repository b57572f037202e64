"""Which tiles leave SBUF and come back, on flat arrays.

`compiler.spills` says what it means.
"""

from __future__ import annotations

import numpy as np

from nki_sim.machine_code import Bools, Ints, IntTable, jit

# What a row of the new program is: an instruction, or one that the compiler adds (its template is made afterwards).
INSTRUCTION, RELOAD, SAVE, SLICE_IN, SLICE_OUT, ON_SLICES = range(6)
# What a new buffer is: a tile that came back, a tile's place in HBM, a slice.
BACK, SLOT, SLICE = range(3)
MOST_SLICES = 60
# Operands of an instruction that may be slices: which are is kept in the bits of a number.
# How it ends.
DONE, NO_SPACE, TOO_MANY = range(3)
# Columns of what is known of tiles: the buffer that holds it now, its place in HBM, what makes its constant
# (-1 each where there is none); has it contents that are nowhere else; bytes touched since it came; how often it was
# moved out hardly used; its place in the list of those inside; the place of its next use in `uses`.
NOW, PLACE, CONSTANT, UNSAVED, USED, HARDLY_USED, INSIDE, NEXT = range(8)
# Columns of the rows that are made, and `counts` of what is made.
WHAT, WHICH, PARTS, TURN = range(4)
ROWS, OPERANDS, BUFFERS, TURNS, TILES, FREE = range(6)


@jit
def largest_sum(first: Ints, last: Ints, sizes: Ints, rows: int) -> int:
    """The largest sum of the sizes of what is live at once. first, last: by buffer, the rows that touch it; `last` -1
    where none does."""
    change = np.zeros(rows + 1, np.int64)
    for buffer in range(len(first)):
        if last[buffer] >= 0:
            change[first[buffer]] += sizes[buffer]
            change[last[buffer] + 1] -= sizes[buffer]
    now, largest = 0, 0
    for row in range(rows):
        now += change[row]
        if now > largest:
            largest = now
    return largest


@jit
def mirrors_of(
    template_ids: Ints, operand_starts: Ints, operands: IntTable, bases: Ints, writes: Bools, source_at: Ints,
    buffers: int,
) -> Bools:  # fmt: skip
    """As spills._mirrors. `source_at`: by template, which operand it copies from HBM, -1 where it copies none; the
    others as for region_lists.regions_of."""
    written = np.zeros(buffers, np.bool_)
    for row in range(len(template_ids)):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            if writes[base + k]:
                written[operands[k, 0]] = True
    mirrors = written.copy()
    for row in range(len(template_ids)):
        at = source_at[template_ids[row]]
        if at < 0 or written[operands[operand_starts[row] + at, 0]]:
            base = bases[template_ids[row]] - operand_starts[row]
            for k in range(operand_starts[row], operand_starts[row + 1]):
                if writes[base + k]:
                    mirrors[operands[k, 0]] = False
    return mirrors


@jit
def moved_out(
    wanted: int, row: int, weights: Ints, sizes: Ints, patience: int, known: IntTable, stamps: Ints, uses: Ints,
    inside: Ints, made: IntTable, starts: Ints, operands: IntTable, new: IntTable, counts: Ints,
) -> bool:  # fmt: skip
    """Tiles that row `row` does not touch go until there is space of `wanted`. False where none is left."""
    while counts[FREE] < wanted:
        tile = -1
        for at in range(counts[TILES]):
            other = inside[at]
            if stamps[other] != row and (tile < 0 or uses[known[other, NEXT]] > uses[known[tile, NEXT]]):
                tile = other
        if tile < 0:
            return False
        if known[tile, PLACE] < 0 and known[tile, CONSTANT] < 0:
            known[tile, PLACE] = len(weights) + counts[BUFFERS]
            new[counts[BUFFERS], 0], new[counts[BUFFERS], 1] = SLOT, tile
            counts[BUFFERS] += 1
        if known[tile, UNSAVED] == 1 and known[tile, CONSTANT] < 0:
            at, k = counts[ROWS], counts[OPERANDS]
            made[at, WHAT], made[at, WHICH], made[at, PARTS], made[at, TURN] = SAVE, tile, 0, counts[TURNS]
            operands[k, 0], operands[k, 1] = known[tile, PLACE], 0
            operands[k + 1, 0], operands[k + 1, 1] = known[tile, NOW], 0
            counts[ROWS], counts[OPERANDS], counts[TURNS] = at + 1, k + 2, counts[TURNS] + 1
            starts[at + 1] = k + 2
            known[tile, UNSAVED] = 0
        if 2 * known[tile, USED] < sizes[tile] and known[tile, PLACE] >= 0:
            known[tile, HARDLY_USED] += 1
        last = inside[counts[TILES] - 1]
        inside[known[tile, INSIDE]], known[last, INSIDE] = last, known[tile, INSIDE]
        known[tile, NOW] = -1
        counts[TILES] -= 1
        counts[FREE] += weights[tile]
    return True


@jit
def spilled(
    template_ids: Ints, operand_starts: Ints, operand_data: IntTable, bases: Ints, reads: Bools, writes: Bools,
    nbytes: Ints, steered: Bools, slice_weights: Ints, fills: Bools, weights: Ints, sizes: Ints, mirrors: Bools,
    capacity: int, patience: int, together: int, most_added: int,
) -> tuple[int, IntTable, Ints, IntTable, IntTable, Ints]:  # fmt: skip
    """(how it ended; rows, [what, which, parts, turn] of each; where their operands begin; operands; new buffers,
    [what, of what] of each; by row of the program, its new number).

    `which`: a template, a tile, or for a slice the number of its operand among all templates'; parts: bits of the
    operands that are slices; turn: templates are made in its order. There are no rows where more than `most_added` may
    be needed (TOO_MANY), and where the tiles of one instruction do not fit (NO_SPACE); then the last array has its row.

    reads, writes, nbytes, steered (has it indices?), slice_weights: by operand of a template, from `bases` on; fills:
    by template; weights (-1 for what is no tile in SBUF), sizes, mirrors: by buffer. `together`: slices that there is
    to be room for. Where an instruction's tiles do not fit, its row is the first of the last array.
    """
    rows, buffers, total = len(template_ids), len(weights), len(operand_data)
    use_starts = np.zeros(buffers + 1, np.int64)
    stamps = np.full(buffers, -1, np.int64)
    for row in range(rows):
        for k in range(operand_starts[row], operand_starts[row + 1]):
            buffer = operand_data[k, 0]
            if weights[buffer] >= 0 and stamps[buffer] != row:
                stamps[buffer] = row
                use_starts[buffer + 1] += 1
    for buffer in range(buffers):
        use_starts[buffer + 1] += use_starts[buffer]
    uses = np.empty(use_starts[buffers], np.int64)
    known = np.zeros((buffers, 8), np.int64)
    for buffer in range(buffers):
        known[buffer, NOW] = known[buffer, PLACE] = known[buffer, CONSTANT] = stamps[buffer] = -1
        known[buffer, NEXT] = use_starts[buffer]
    for row in range(rows):
        for k in range(operand_starts[row], operand_starts[row + 1]):
            buffer = operand_data[k, 0]
            if weights[buffer] >= 0 and stamps[buffer] != row:
                stamps[buffer] = row
                uses[known[buffer, NEXT]] = k
                known[buffer, NEXT] += 1
    for buffer in range(buffers):
        known[buffer, NEXT] = use_starts[buffer]
        stamps[buffer] = -1
    most = rows + most_added
    made, starts = np.empty((most, 4), np.int64), np.empty(most + 1, np.int64)
    operands, new = np.empty((total + 2 * most_added, 2), np.int64), np.empty((buffers + most_added, 2), np.int64)
    row_at, inside, counts = np.empty(rows, np.int64), np.empty(buffers, np.int64), np.zeros(6, np.int64)
    whole, done = np.full(buffers, -1, np.int64), np.full(buffers, -1, np.int64)
    counts[FREE], starts[0] = capacity, 0
    for row in range(rows):
        template, low, high = template_ids[row], operand_starts[row], operand_starts[row + 1]
        base = bases[template] - low
        # each tile inside may go, and each operand bring one, which goes again, or a slice there and back
        if most - counts[ROWS] - (rows - row) < counts[TILES] + 4 * (high - low):
            return TOO_MANY, made[:0], starts[:1], operands[:0], new[:0], row_at
        # the operands whose slices are fetched for this one instruction
        parts, some_stay = 0, False
        for k in range(low, high):
            buffer = operand_data[k, 0]
            some_stay = some_stay or (known[buffer, HARDLY_USED] >= patience and known[buffer, NOW] < 0)
        if some_stay:
            for turn in range(2):
                for k in range(low, high):
                    buffer = operand_data[k, 0]
                    small = (
                        known[buffer, HARDLY_USED] >= patience
                        and known[buffer, NOW] < 0
                        and known[buffer, CONSTANT] < 0
                        and not steered[base + k]
                        and 2 * nbytes[base + k] < sizes[buffer]
                        and k - low < MOST_SLICES
                    )
                    if turn == 0 and not small:
                        whole[buffer] = row
                    elif turn == 1 and small and whole[buffer] != row:
                        parts |= 1 << (k - low)
        # the tiles that have to be there
        for k in range(low, high):
            if weights[operand_data[k, 0]] >= 0 and not (parts >> (k - low)) & 1:
                stamps[operand_data[k, 0]] = row
        for k in range(low, high):
            buffer = operand_data[k, 0]
            if stamps[buffer] != row or known[buffer, NOW] >= 0:
                continue
            if not moved_out(
                weights[buffer], row, weights, sizes, patience, known, stamps, uses, inside, made, starts, operands,
                new, counts,
            ):  # fmt: skip
                return NO_SPACE, made[:0], starts[:1], operands[:0], new[:0], np.full(1, row)
            counts[FREE] -= weights[buffer]
            known[buffer, USED] = 0
            inside[counts[TILES]], known[buffer, INSIDE] = buffer, counts[TILES]
            counts[TILES] += 1
            if known[buffer, PLACE] < 0 and known[buffer, CONSTANT] < 0:
                known[buffer, NOW] = buffer
                continue
            known[buffer, NOW] = buffers + counts[BUFFERS]
            new[counts[BUFFERS], 0], new[counts[BUFFERS], 1] = BACK, buffer
            counts[BUFFERS] += 1
            at, to = counts[ROWS], counts[OPERANDS]
            operands[to, 0], operands[to, 1] = known[buffer, NOW], 0
            to += 1
            if known[buffer, CONSTANT] >= 0:
                made[at, WHAT], made[at, WHICH] = INSTRUCTION, known[buffer, CONSTANT]
            else:
                made[at, WHAT], made[at, WHICH] = RELOAD, buffer
                operands[to, 0], operands[to, 1] = known[buffer, PLACE], 0
                to += 1
            made[at, PARTS], made[at, TURN], starts[at + 1] = 0, counts[TURNS], to
            counts[ROWS], counts[OPERANDS], counts[TURNS] = at + 1, to, counts[TURNS] + 1
        for k in range(low, high):
            if stamps[operand_data[k, 0]] == row:
                known[operand_data[k, 0], USED] += nbytes[base + k]
        # the instruction, with its slices fetched before it and put back after it
        first_slice, needed = buffers + counts[BUFFERS], 0
        if parts > 0:
            for k in range(low, high):
                if (parts >> (k - low)) & 1:
                    new[counts[BUFFERS], 0], new[counts[BUFFERS], 1] = SLICE, base + k
                    counts[BUFFERS] += 1
                    needed += slice_weights[base + k]
            moved_out(
                together * needed, row, weights, sizes, patience, known, stamps, uses, inside, made, starts, operands,
                new, counts,
            )  # fmt: skip
            if counts[FREE] < needed:
                return NO_SPACE, made[:0], starts[:1], operands[:0], new[:0], np.full(1, row)
        turn, at, to, number = counts[TURNS], counts[ROWS], counts[OPERANDS], 0
        for k in range(low, high if parts > 0 else low):
            if (parts >> (k - low)) & 1:
                if reads[base + k]:
                    made[at, WHAT], made[at, WHICH], made[at, PARTS] = SLICE_IN, base + k, 0
                    made[at, TURN] = turn + 2 * number
                    operands[to, 0], operands[to, 1] = first_slice + number, 0
                    operands[to + 1, 0] = known[operand_data[k, 0], PLACE]
                    operands[to + 1, 1] = operand_data[k, 1]
                    at += 1
                    to += 2
                    starts[at] = to
                number += 1
        made[at, WHAT], made[at, WHICH] = ON_SLICES if parts > 0 else INSTRUCTION, template
        made[at, PARTS], made[at, TURN] = parts, turn + 2 * number
        row_at[row] = at
        slice_ = first_slice
        for k in range(low, high):
            buffer = operand_data[k, 0]
            if (parts >> (k - low)) & 1:
                operands[to, 0], operands[to, 1] = slice_, 0
                slice_ += 1
            else:
                operands[to, 0] = known[buffer, NOW] if known[buffer, NOW] >= 0 else buffer
                operands[to, 1] = operand_data[k, 1]
            to += 1
        at += 1
        starts[at] = to
        counts[TURNS] = turn + 2 * number + 1
        number = 0
        for k in range(low, high if parts > 0 else low):
            if (parts >> (k - low)) & 1:
                if writes[base + k]:
                    made[at, WHAT], made[at, WHICH], made[at, PARTS] = SLICE_OUT, base + k, 0
                    made[at, TURN] = turn + 2 * number + 1
                    operands[to, 0] = known[operand_data[k, 0], PLACE]
                    operands[to, 1] = operand_data[k, 1]
                    operands[to + 1, 0], operands[to + 1, 1] = first_slice + number, 0
                    at += 1
                    to += 2
                    starts[at] = to
                number += 1
        counts[ROWS], counts[OPERANDS] = at, to
        # what its tiles hold now, and which are done with
        for k in range(low, high):
            buffer = operand_data[k, 0]
            if writes[base + k] and stamps[buffer] == row and not mirrors[buffer]:
                known[buffer, UNSAVED], known[buffer, CONSTANT] = 1, -1
                if fills[template] and nbytes[bases[template]] == sizes[buffer]:
                    known[buffer, CONSTANT] = template
        for k in range(low, high):
            buffer = operand_data[k, 0]
            if weights[buffer] >= 0 and done[buffer] != row:
                done[buffer] = row
                known[buffer, NEXT] += 1
                if known[buffer, NEXT] == use_starts[buffer + 1] and known[buffer, NOW] >= 0:
                    last = inside[counts[TILES] - 1]
                    inside[known[buffer, INSIDE]], known[last, INSIDE] = last, known[buffer, INSIDE]
                    known[buffer, NOW] = -1
                    counts[TILES] -= 1
                    counts[FREE] += weights[buffer]
    at, to = counts[ROWS], counts[OPERANDS]
    added = new[: counts[BUFFERS]].copy()
    return DONE, made[:at].copy(), starts[: at + 1].copy(), operands[:to].copy(), added, row_at
