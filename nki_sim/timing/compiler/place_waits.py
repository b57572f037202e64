"""Which tiles take whose places, and what rows therefore wait for, on flat arrays.

`compiler.places` says what it means.
"""

from __future__ import annotations

import numpy as np

from nki_sim.machine_code import Bools, Ints, IntTable, jit


@jit
def in_order_of_touch(operands: IntTable, buffers: int, backwards: bool) -> Ints:
    """The buffers that are touched, in the order of the first operand that is each; `backwards`: from the last
    operand on. Of two in one row, as the row names them."""
    seen, found, count = np.zeros(buffers, np.bool_), np.empty(buffers, np.int64), 0
    for k in range(len(operands)):
        buffer = operands[len(operands) - 1 - k if backwards else k, 0]
        if not seen[buffer]:
            seen[buffer] = True
            found[count] = buffer
            count += 1
    return found[:count].copy()


@jit
def readers_of(
    template_ids: Ints, operand_starts: Ints, operands: IntTable, bases: Ints, writes: Bools, tensor: Bools,
    buffers: int,
) -> tuple[Ints, Ints, Ints, Ints]:  # fmt: skip
    """As places._products_of. `tensor`: by template; the others as for region_lists.regions_of."""
    others, starts, ends = np.zeros(buffers, np.bool_), np.zeros(buffers, np.int64), np.zeros(buffers, np.int64)
    for row in range(len(template_ids)):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            if not writes[base + k]:
                if tensor[template_ids[row]]:
                    ends[operands[k, 0]] += 1
                else:
                    others[operands[k, 0]] = True
    total = 0
    for buffer in range(buffers):
        starts[buffer] = total
        if not others[buffer]:
            total += ends[buffer]
        ends[buffer] = starts[buffer]
    rows, sums = np.empty(total, np.int64), np.zeros(buffers, np.int64)
    for row in range(len(template_ids)):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1] if tensor[template_ids[row]] else 0):
            buffer = operands[k, 0]
            if not writes[base + k] and not others[buffer]:
                rows[ends[buffer]] = row
                ends[buffer] += 1
    last = np.full(buffers, -1, np.int64)
    for buffer in range(buffers):
        for k in range(starts[buffer], ends[buffer]):
            result = operands[operand_starts[rows[k]], 0]
            if last[result] != buffer:
                last[result] = buffer
                sums[buffer] += 1
    return starts, ends, rows, sums


@jit
def by_row(rows: Ints, values: Ints, count: int, total: int) -> tuple[Ints, Ints]:
    """(starts, values) by row of the first `count` pairs, in their order."""
    starts = np.zeros(total + 1, np.int64)
    if count == 0:
        return starts, np.empty(0, np.int64)
    for k in range(count):
        starts[rows[k] + 1] += 1
    for row in range(total):
        starts[row + 1] += starts[row]
    at = starts[:total].copy()
    found = np.empty(count, np.int64)
    for k in range(count):
        found[at[rows[k]]] = values[k]
        at[rows[k]] += 1
    return starts, found


@jit
def handed_on(
    members: Ints, first: Ints, last: Ints, needs: Ints, sizes: Ints, size_count: int, dying: Ints, fresh: int,
    by_size: bool,
) -> tuple[Ints, Bools, Ints, Ints]:  # fmt: skip
    """(buffers that wait, whether each waits by slices, starts, the older buffers of each): compiler.places says what
    it means.

    first, last: row of the first and the last use, by buffer; needs: bytes, and sizes: a number below `size_count` for
    these; `members` in the order of their first, `dying` of their last use; `fresh`: bytes that nobody has had.
    """
    left = np.zeros(len(needs), np.int64)
    head, tail = np.full(size_count, -1, np.int64), np.full(size_count, -1, np.int64)
    after = np.full(len(needs), -1, np.int64)
    died, oldest = 0, 0
    waiting, sliced = np.empty(len(members), np.int64), np.zeros(len(members), np.bool_)
    starts = np.zeros(len(members) + 1, np.int64)
    olds = np.empty(2 * len(members), np.int64)  # every buffer that waits takes all that is left of all but one
    events, total = 0, 0
    for k in range(len(members)):
        buffer = members[k]
        need, size = needs[buffer], sizes[buffer]
        while died < len(dying) and last[dying[died]] < first[buffer]:
            gone = dying[died]
            left[gone] = needs[gone]
            if head[sizes[gone]] < 0:
                head[sizes[gone]] = gone
            else:
                after[tail[sizes[gone]]] = gone
            tail[sizes[gone]] = gone
            died += 1
        if need <= fresh:
            fresh -= need
            continue
        while oldest < died and left[dying[oldest]] == 0:
            oldest += 1
        own = -1
        if by_size:
            while head[size] >= 0 and left[head[size]] != need:  # another has taken some of its memory
                head[size] = after[head[size]]
            own = head[size]
        if own >= 0 and left[dying[oldest]] > need:  # a larger one has been dead for longer
            own = -1
        if own >= 0:
            left[own] = 0
            olds[total] = own
            total += 1
        else:
            need -= fresh
            fresh = 0
            while need > 0 and oldest < died:
                gone = dying[oldest]
                if left[gone] != 0:
                    olds[total] = gone
                    total += 1
                    taken = min(need, left[gone])
                    need -= taken
                    left[gone] -= taken
                if left[gone] == 0:
                    oldest += 1
        waiting[events], sliced[events] = buffer, own >= 0
        events += 1
        starts[events] = total
    return waiting[:events], sliced[:events], starts[: events + 1], olds[:total]


@jit
def waits_of(
    waiting: Ints, sliced: Bools, starts: Ints, olds: Ints, first: Ints, rows: int, region_starts: Ints,
    shapes: Ints, offsets: Ints, written_starts: Ints, written: Ints, overlap_starts: Ints, overlaps: Ints,
    product_starts: Ints, product_ends: Ints, product_rows: Ints, product_sums: Ints, banks: int,
) -> tuple[tuple[Ints, Ints], ...]:  # fmt: skip
    """What rows wait for where buffers take over memory; by row, regions, groups and ends; groups' regions.

    Whatever touches a buffer without having to wait for another that does, waits for all of the older ones: its first
    row, and the first to write each of its regions. By slices, the first to write each waits for the same slice of the
    older one, where there are the same. Where only matmuls read the older one (`product_*`), the compiler takes the
    slices one after the other through as many sums as PSUM has banks (row A065: 16 slices of a tile that fills SBUF,
    and TensorE never waits for them).
    """
    regions = len(overlap_starts) - 1
    first_writer = np.full(regions, -1, np.int64)
    for row in range(rows - 1, -1, -1):
        for k in range(written_starts[row], written_starts[row + 1]):
            first_writer[written[k]] = row
    # as many as there can be of each
    most_closed, most_waiting, most_slices, most_members = 0, 0, 0, 0
    for event in range(len(waiting)):
        slices = region_starts[waiting[event] + 1] - region_starts[waiting[event]]
        most_waiting += slices + 1
        most_slices = max(most_slices, slices)
        for k in range(starts[event], starts[event + 1]):
            low, high = region_starts[olds[k]], region_starts[olds[k] + 1]
            most_members += high - low
            most_closed += high - low
            if sliced[event]:
                most_closed += overlap_starts[high] - overlap_starts[low]
    closed_rows, closed, closes = np.empty(most_closed, np.int64), np.empty(most_closed, np.int64), 0
    group_rows, groups, groupings = np.empty(most_waiting, np.int64), np.empty(most_waiting, np.int64), 0
    end_rows, ends, endings = np.empty(most_waiting, np.int64), np.empty(most_waiting, np.int64), 0
    member_starts, members, begun = np.zeros(len(waiting) + 1, np.int64), np.empty(most_members, np.int64), 0
    in_group = np.full(rows, -1, np.int64)
    slice_rows, slice_regions = np.empty(most_slices, np.int64), np.empty(most_slices, np.int64)
    for event in range(len(waiting)):
        buffer = waiting[event]
        at = first[buffer]
        low, high = region_starts[buffer], region_starts[buffer + 1]
        if sliced[event]:
            old = olds[starts[event]]
            other, other_high = region_starts[old], region_starts[old + 1]
            slices, fits = 0, True
            for region in range(low, high):
                if first_writer[region] < 0:
                    continue
                while other < other_high and (
                    shapes[other] < shapes[region]
                    or (shapes[other] == shapes[region] and offsets[other] < offsets[region])
                ):
                    other += 1
                if other >= other_high or shapes[other] != shapes[region] or offsets[other] != offsets[region]:
                    fits = False
                    break
                slice_rows[slices], slice_regions[slices] = first_writer[region], other
                slices += 1
            if fits and product_ends[old] <= product_starts[old]:
                for k in range(slices):
                    same = slice_regions[k]
                    closed_rows[closes], closed[closes] = slice_rows[k], same
                    closes += 1
                    for j in range(overlap_starts[same], overlap_starts[same + 1]):
                        closed_rows[closes], closed[closes] = slice_rows[k], overlaps[j]
                        closes += 1
                continue
            if fits:
                for k in range(1, slices):  # in the order of their rows, which they nearly have
                    row, j = slice_rows[k], k
                    while j > 0 and slice_rows[j - 1] > row:
                        slice_rows[j] = slice_rows[j - 1]
                        j -= 1
                    slice_rows[j] = row
                readers = product_ends[old] - product_starts[old]
                together = min(1.0, banks / max(1, product_sums[old]))
                for k in range(slices):
                    done = 1.0 - together * (1.0 - (k + 1) / slices)
                    which = min(readers - 1, int(done * readers))
                    end_rows[endings], ends[endings] = slice_rows[k], product_rows[product_starts[old] + which]
                    endings += 1
                continue
        some = False
        for k in range(starts[event], starts[event + 1]):
            some = some or region_starts[olds[k]] < region_starts[olds[k] + 1]
        if not some:
            continue
        alone = True
        if high - low > 1:
            for region in range(low, high):
                if first_writer[region] >= 0 and first_writer[region] != at:
                    alone = False
        if alone:
            for k in range(starts[event], starts[event + 1]):
                for region in range(region_starts[olds[k]], region_starts[olds[k] + 1]):
                    closed_rows[closes], closed[closes] = at, region
                    closes += 1
            continue
        in_group[at] = begun
        group_rows[groupings], groups[groupings] = at, begun
        groupings += 1
        for region in range(low, high):
            row = first_writer[region]
            if row >= 0 and in_group[row] != begun:
                in_group[row] = begun
                group_rows[groupings], groups[groupings] = row, begun
                groupings += 1
        count = member_starts[begun]
        for k in range(starts[event], starts[event + 1]):
            for region in range(region_starts[olds[k]], region_starts[olds[k] + 1]):
                members[count] = region
                count += 1
        begun += 1
        member_starts[begun] = count
    return (
        by_row(closed_rows, closed, closes, rows),
        by_row(group_rows, groups, groupings, rows),
        by_row(end_rows, ends, endings, rows),
        (member_starts[: begun + 1].copy(), members[: member_starts[begun]].copy()),
    )
