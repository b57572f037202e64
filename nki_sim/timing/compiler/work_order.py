"""In which order one engine takes its instructions, on flat arrays.

`compiler.queues` says what it means.
"""

from __future__ import annotations

from nki_sim.machine_code import Floats, Ints, jit


@jit
def near_befores(
    reach: int, read_starts: Ints, read: Ints, written_starts: Ints, written: Ints, overlap_starts: Ints,
    overlaps: Ints, closed_starts: Ints, closed: Ints, group_starts: Ints, groups: Ints, members_starts: Ints,
    members: Ints, end_starts: Ints, end_rows: Ints, writer: Ints, reader: Ints, entry_rows: Ints, entries: Ints,
    near_starts: Ints, near: Ints,
) -> int:  # fmt: skip
    """By row, those that it has to wait for among the `reach` rows before it: how many in all. `near` holds them where
    it is as long; else they are only counted.

    Memory to work in, -1 everywhere: `writer` and `reader` by region, the row that wrote it last and its latest entry;
    the entries, one for each time that a region is read: the row, and the entry before it.
    """
    count, used, keeps = 0, 0, len(near) > 0
    for row in range(len(near_starts) - 1):
        least = row - reach
        for k in range(read_starts[row], read_starts[row + 1]):
            region = read[k]
            for j in range(overlap_starts[region] - 1, overlap_starts[region + 1]):
                other = region if j < overlap_starts[region] else overlaps[j]
                if writer[other] > least and writer[other] >= 0:
                    if keeps:
                        near[count] = writer[other]
                    count += 1
        for kind in range(3):
            if kind == 0:
                begin, end = written_starts[row], written_starts[row + 1]
            elif kind == 1:
                begin, end = closed_starts[row], closed_starts[row + 1]
            else:
                begin, end = group_starts[row], group_starts[row + 1]
            for k in range(begin, end):
                if kind == 0:
                    first, last = overlap_starts[written[k]] - 1, overlap_starts[written[k] + 1]
                elif kind == 1:
                    first, last = -1, 0
                else:
                    first, last = members_starts[groups[k]], members_starts[groups[k] + 1]
                for j in range(first, last):
                    if kind == 0:
                        other = written[k] if j == first else overlaps[j]
                    elif kind == 1:
                        other = closed[k]
                    else:
                        other = members[j]
                    if writer[other] > least and writer[other] >= 0:
                        if keeps:
                            near[count] = writer[other]
                        count += 1
                    entry = reader[other]
                    while entry >= 0 and entry_rows[entry] > least:
                        if keeps:
                            near[count] = entry_rows[entry]
                        count += 1
                        entry = entries[entry]
        for k in range(end_starts[row], end_starts[row + 1]):
            if end_rows[k] > least:
                if keeps:
                    near[count] = end_rows[k]
                count += 1
        for k in range(read_starts[row], read_starts[row + 1]):
            entry_rows[used], entries[used] = row, reader[read[k]]
            reader[read[k]] = used
            used += 1
        for k in range(written_starts[row], written_starts[row + 1]):
            writer[written[k]], reader[written[k]] = row, -1
        near_starts[row + 1] = count
    return count


@jit
def ordered_work(
    reach: int, engine: int, resources: Ints, befores: Ints, busies: Floats, latencies: Floats, near_starts: Ints,
    near: Ints, visible: Floats, known: Ints, order: Ints,
) -> None:  # fmt: skip
    """Fills `order` with the rows: those of `engine` in the order in which it would begin them, had nobody else to be
    waited for for longer than their own time; those of others before the first that needs them, in their order.

    By row: its resource; the row before it that keeps its place, -1 if none; how long it keeps `engine` busy; how
    long until others may go on. Memory to work in: when a row's results are there, and whether that is known (0: no,
    1: yes, 2: it stands in `order`).
    """
    rows = len(resources)
    free, low, first_out, count = 0.0, 0, 0, 0
    while low < rows:
        best, best_start = -1, 0.0
        for row in range(low, min(low + reach, rows)):
            if known[row] != 0:
                continue
            ready, may = 0.0, True
            for k in range(near_starts[row], near_starts[row + 1]):
                before = near[k]
                if known[before] == 0:
                    may = False
                    break
                if visible[before] > ready:
                    ready = visible[before]
            if not may or (befores[row] >= 0 and known[befores[row]] == 0):
                continue
            if resources[row] != engine:
                visible[row], known[row] = ready + latencies[row], 1
                continue
            start = ready if ready > free else free
            if best < 0 or start < best_start:
                best, best_start = row, start
                if start == free:
                    break
        if best >= 0:
            for row in range(first_out, best):
                if known[row] == 1:
                    order[count], known[row] = row, 2
                    count += 1
            free = best_start + busies[best]
            visible[best], known[best] = free + latencies[best], 2
            order[count] = best
            count += 1
        while low < rows and known[low] != 0:
            low += 1
        while first_out < rows and known[first_out] == 2:
            first_out += 1
    for row in range(first_out, rows):
        if known[row] == 1:
            order[count] = row
            count += 1
