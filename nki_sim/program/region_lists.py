"""Which operands touch the same bytes, and the rows, numbers and orders that follow from it, on flat arrays.

`nki_sim.program.regions`, `nki_sim.program.program` and `compiler.loads` say what it is for.
"""

from __future__ import annotations

import numpy as np

from nki_sim.machine_code import Bools, Ints, IntTable, jit


@jit
def sorted_within(order: Ints, starts: Ints, coarse: Ints, fine: Ints) -> None:
    """Puts each stretch order[starts[k]:starts[k + 1]] in the order of (coarse, fine), none of which are equal."""
    spare = np.empty(len(order), np.int64)
    for stretch in range(len(starts) - 1):
        low, high = starts[stretch], starts[stretch + 1]
        width = 1
        while width < high - low:
            begin = low
            while begin + width < high:  # two neighbours, each in order
                middle, end = begin + width, min(begin + 2 * width, high)
                one, other = order[middle - 1], order[middle]
                if coarse[one] > coarse[other] or (coarse[one] == coarse[other] and fine[one] > fine[other]):
                    for k in range(begin, middle):
                        spare[k] = order[k]
                    left, right, at = begin, middle, begin
                    while left < middle:
                        one = spare[left]
                        if right < end:
                            other = order[right]
                            if coarse[other] < coarse[one] or (
                                coarse[other] == coarse[one] and fine[other] < fine[one]
                            ):
                                order[at] = other
                                right += 1
                                at += 1
                                continue
                        order[at] = one
                        left += 1
                        at += 1
                begin += 2 * width
            width *= 2


@jit
def regions_of(
    template_ids: Ints, operand_starts: Ints, operands: IntTable, bases: Ints, writes: Bools, shapes: Ints,
    on_chip: Bools,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Bools]:  # fmt: skip
    """(by row, starts and values of the regions it reads, and of those it writes; by region, buffer, shape, offset, in
    this order; by buffer, is it written?), of operands that something may wait for.

    operands: int64 [operands, 2]; bases: by template, where its operands begin in `writes` and `shapes`; on_chip: by
    buffer.
    """
    rows, total, buffers = len(template_ids), len(operands), len(on_chip)
    written = np.zeros(buffers, np.bool_)
    for row in range(rows):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            if writes[base + k]:
                written[operands[k, 0]] = True
    # A buffer's first region is found by the buffer, as most are all there is of theirs; the others, in a table.
    first, count, others, reading = np.full(buffers, -1, np.int64), 0, 0, 0
    buffer_of, shape_of = np.empty(total, np.int64), np.empty(total, np.int64)
    offset_of, region_of = np.empty(total, np.int64), np.empty(total, np.int64)
    for row in range(rows):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            buffer = operands[k, 0]
            region_of[k] = -1
            if not (written[buffer] or on_chip[buffer]):
                continue
            if not writes[base + k]:
                reading += 1
            at = first[buffer]
            if at < 0:
                first[buffer] = region_of[k] = count
                buffer_of[count], shape_of[count], offset_of[count] = buffer, shapes[base + k], operands[k, 1]
                count += 1
            elif shape_of[at] == shapes[base + k] and offset_of[at] == operands[k, 1]:
                region_of[k] = at
            else:
                region_of[k] = -2
                others += 1
    slots = 64
    while slots < 2 * others:
        slots *= 2
    table = np.full(slots if others > 0 else 0, -1, np.int32)
    tracked = 0
    for row in range(rows if others > 0 else 0):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            if region_of[k] != -2:
                continue
            buffer, shape, offset = operands[k, 0], shapes[base + k], operands[k, 1]
            at = ((offset ^ (offset >> 21) ^ (buffer << 7) ^ (shape << 14)) & 0x3FFFFFFF) * 0x2545F491
            at = (at >> 15) & (slots - 1)
            while table[at] >= 0 and (
                buffer_of[table[at]] != buffer or shape_of[table[at]] != shape or offset_of[table[at]] != offset
            ):
                at = (at + 1) & (slots - 1)
            if table[at] < 0:
                table[at] = count
                buffer_of[count], shape_of[count], offset_of[count] = buffer, shape, offset
                count += 1
            region_of[k] = table[at]
    # in the order of their buffers, shapes and offsets
    starts = np.zeros(buffers + 1, np.int64)
    for region in range(count):
        starts[buffer_of[region] + 1] += 1
    for buffer in range(buffers):
        starts[buffer + 1] += starts[buffer]
    order, place = np.empty(count, np.int64), starts[:buffers].copy()
    for region in range(count):
        order[place[buffer_of[region]]] = region
        place[buffer_of[region]] += 1
    sorted_within(order, starts, shape_of, offset_of)
    rank = np.empty(count, np.int64)
    region_buffer, region_shape = np.empty(count, np.int64), np.empty(count, np.int64)
    region_offset = np.empty(count, np.int64)
    for at in range(count):
        region = order[at]
        rank[region] = at
        region_buffer[at], region_shape[at], region_offset[at] = buffer_of[region], shape_of[region], offset_of[region]
    # by row
    for k in range(total):
        tracked += region_of[k] >= 0
    read_starts, write_starts = np.empty(rows + 1, np.int64), np.empty(rows + 1, np.int64)
    read, write = np.empty(reading, np.int64), np.empty(tracked - reading, np.int64)
    reads, wrote = 0, 0
    for row in range(rows):
        read_starts[row], write_starts[row] = reads, wrote
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            if region_of[k] < 0:
                continue
            if writes[base + k]:
                write[wrote] = rank[region_of[k]]
                wrote += 1
            else:
                read[reads] = rank[region_of[k]]
                reads += 1
    read_starts[rows], write_starts[rows] = reads, wrote
    return read_starts, read, write_starts, write, region_buffer, region_shape, region_offset, written


@jit
def alike_lists(begins: Ints, ends: Ints, kinds: Ints, shapes: Ints, offsets: Ints) -> tuple[Ints, int]:
    """(by list, a number for its kind and all of its shapes and offsets, in the order of appearance; how many)."""
    lists, slots = len(begins), 64
    while slots < 2 * lists:
        slots *= 2
    table, example = np.full(slots, -1, np.int64), np.empty(lists, np.int64)
    found, count = np.empty(lists, np.int64), 0
    for each in range(lists):
        length = ends[each] - begins[each]
        mixed = kinds[each] & 0x3FFFFFFF
        for k in range(begins[each], ends[each]):
            mixed = ((mixed ^ (offsets[k] & 0x3FFFFFFF)) * 0x2545F491 + shapes[k]) & 0x3FFFFFFFFFFFFFF
            mixed = (mixed ^ (mixed >> 28)) & 0x3FFFFFFF
        at = ((mixed * 0x2545F491) >> 15) & (slots - 1)
        while table[at] >= 0:
            other = example[table[at]]
            k = 0
            if kinds[other] == kinds[each] and ends[other] - begins[other] == length:
                while (
                    k < length
                    and shapes[begins[other] + k] == shapes[begins[each] + k]
                    and offsets[begins[other] + k] == offsets[begins[each] + k]
                ):
                    k += 1
                if k == length:
                    break
            at = (at + 1) & (slots - 1)
        if table[at] < 0:
            table[at] = count
            example[count] = each
            count += 1
        found[each] = table[at]
    return found, count


@jit
def gathered(order: Ints, operand_starts: Ints, operands: IntTable) -> tuple[Ints, Ints]:
    """(starts, operands) of these rows, one after the other."""
    starts = np.empty(len(order) + 1, np.int64)
    total = 0
    for at in range(len(order)):
        starts[at] = total
        total += operand_starts[order[at] + 1] - operand_starts[order[at]]
    starts[len(order)] = total
    found = np.empty((total, 2), np.int64)
    for at in range(len(order)):
        k = operand_starts[order[at]]
        for to in range(starts[at], starts[at + 1]):
            found[to, 0], found[to, 1] = operands[k, 0], operands[k, 1]
            k += 1
    return starts, found


@jit
def uses_of(
    template_ids: Ints, operand_starts: Ints, operands: IntTable, bases: Ints, writes: Bools, buffers: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """By buffer: first and last row that touches it, how many operands do, how many of them write (program.Uses). The
    arguments are those of `regions_of`."""
    rows = len(template_ids)
    first, last = np.full(buffers, rows, np.int64), np.full(buffers, -1, np.int64)
    touches, written = np.zeros(buffers, np.int64), np.zeros(buffers, np.int64)
    for row in range(rows):
        base = bases[template_ids[row]] - operand_starts[row]
        for k in range(operand_starts[row], operand_starts[row + 1]):
            buffer = operands[k, 0]
            if last[buffer] < 0:
                first[buffer] = row
            last[buffer] = row
            touches[buffer] += 1
            written[buffer] += writes[base + k]
    return first, last, touches, written


@jit
def loads_of(template_ids: Ints, operand_starts: Ints, operands: IntTable, source_at: Ints, written: Ints) -> Ints:
    """The rows that load what no instruction writes. `source_at`: by template, which operand is the source of a load,
    -1 where it is none; `written`: by buffer, how many operands write it."""
    found, count = np.empty(len(template_ids), np.int64), 0
    for row in range(len(template_ids)):
        at = source_at[template_ids[row]]
        if at >= 0 and written[operands[operand_starts[row] + at, 0]] == 0:
            found[count] = row
            count += 1
    return found[:count].copy()


@jit
def serving(numbers: Ints, count: int, tiles: Ints, born: Ints, window: int) -> Ints:
    """By load: the tile of an earlier one that can serve, -1 where it has to be made. By load: what it brings (numbers
    below `count`), its own tile, and the bytes born before it, ascending."""
    kept, since = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    found = np.full(len(numbers), -1, np.int64)
    for k in range(len(numbers)):
        number = numbers[k]
        if kept[number] >= 0 and born[k] - since[number] <= window:
            found[k] = kept[number]
        else:
            kept[number], since[number] = tiles[k], born[k]
    return found


@jit
def next_touches(wanted: Ints, operand_starts: Ints, operands: IntTable, buffers: int) -> Ints:
    """By operand wanted, which ascend: the next row that touches its buffer; the number of rows if none does."""
    rows = len(operand_starts) - 1
    touched, found, at = np.full(buffers, rows, np.int64), np.empty(len(wanted), np.int64), len(wanted) - 1
    for row in range(rows - 1, -1, -1):
        for k in range(operand_starts[row + 1] - 1, operand_starts[row] - 1, -1):
            if at >= 0 and wanted[at] == k:
                found[at] = touched[operands[k, 0]]
                at -= 1
            touched[operands[k, 0]] = row
    return found


@jit
def numbers_of(keys: Ints) -> tuple[Ints, Ints]:
    """(by entry, a number for its key; by number, the first entry that has it); numbers in the order of appearance."""
    slots = 64
    while slots < 2 * len(keys):
        slots *= 2
    table = np.full(slots, -1, np.int64)
    found, first = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    count = 0
    for k in range(len(keys)):
        at = ((keys[k] ^ (keys[k] >> 21)) & 0x3FFFFFFF) * 0x2545F491
        at = (at >> 15) & (slots - 1)
        while table[at] >= 0 and keys[first[table[at]]] != keys[k]:
            at = (at + 1) & (slots - 1)
        if table[at] < 0:
            table[at] = count
            first[count] = k
            count += 1
        found[k] = table[at]
    return found, first[:count].copy()


@jit
def in_turn(keys: Ints, bound: int) -> Ints:
    """The places of the keys, smallest key first, equal ones as they stand. Keys: 0 up to below `bound`."""
    starts = np.zeros(bound + 1, np.int64)
    for k in range(len(keys)):
        starts[keys[k] + 1] += 1
    for key in range(bound):
        starts[key + 1] += starts[key]
    found = np.empty(len(keys), np.int64)
    for k in range(len(keys)):
        found[starts[keys[k]]] = k
        starts[keys[k]] += 1
    return found


@jit
def overlapping(low: IntTable, high: IntTable, group_starts: Ints, groups: Ints, most: int) -> tuple[Ints, Ints]:
    """(how many others, by box; -1 first where they are more than `most` in all), (the others, box by box, ascending).

    low, high: int64 [boxes, levels]; only boxes of one group, whose members ascend, can share anything.
    """
    boxes, levels = low.shape
    counts = np.zeros(boxes, np.int64)
    of_box = np.zeros(boxes, np.int64)
    found, total = np.empty(64, np.int64), 0
    for group in range(len(group_starts) - 1):
        for k in range(group_starts[group], group_starts[group + 1]):
            box = groups[k]
            of_box[box] = total
            for j in range(group_starts[group], group_starts[group + 1]):
                other = groups[j]
                meets = other != box
                level = 0
                while meets and level < levels:
                    meets = low[other, level] < high[box, level] and low[box, level] < high[other, level]
                    level += 1
                if meets:
                    if total >= most:
                        counts[0] = -1
                        return counts, found[:0]
                    if total == len(found):
                        more = np.empty(2 * total, np.int64)
                        more[:total] = found
                        found = more
                    found[total] = other
                    total += 1
                    counts[box] += 1
    in_order, at = np.empty(total, np.int64), 0
    for box in range(boxes):
        for k in range(of_box[box], of_box[box] + counts[box]):
            in_order[at] = found[k]
            at += 1
    return counts, in_order


@jit
def first_touches(
    loading: Bools, read_starts: Ints, read: Ints, written_starts: Ints, written: Ints, overlap_starts: Ints,
    overlaps: Ints,
) -> Ints:  # fmt: skip
    """By row: of a load, the next row that touches the bytes it brings, the number of rows if none does; else 0."""
    rows = len(loading)
    touched, found = np.full(len(overlap_starts) - 1, rows, np.int64), np.zeros(rows, np.int64)
    for row in range(rows - 1, -1, -1):
        if loading[row]:
            next_ = rows
            for k in range(written_starts[row], written_starts[row + 1]):
                region = written[k]
                next_ = min(next_, touched[region])
                for j in range(overlap_starts[region], overlap_starts[region + 1]):
                    next_ = min(next_, touched[overlaps[j]])
            found[row] = next_
        for k in range(read_starts[row], read_starts[row + 1]):
            touched[read[k]] = row
        for k in range(written_starts[row], written_starts[row + 1]):
            touched[written[k]] = row
    return found
