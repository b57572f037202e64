"""A program's timeline: each row, in a given order, at the earliest time that everything has which it needs.

An instruction begins when its operands are ready, the place of its result is free, and its engine has time for it:
after what is there already, or in an idle gap that earlier rows left, as the compiler's scheduler would arrange it.
Transfers besides need a queue that issues them and DMA engines that move them.
"""

from __future__ import annotations

import numpy as np

from nki_sim.machine_code import Bools, Floats, FloatTable, Ints, IntTable, jit

GAPS_KEPT = 64
SLICES_AHEAD = 64
FULL_NS, SAME_NS = 1e-6, 1e-3
PLAIN, FUNCTION, TRANSFER, MATMUL, ACCUMULATE = range(5)
# Calendars: those of cost.RESOURCES, then of the ports that engines share. GpSimd's cores compute and write
# descriptors; what they compute is in the calendar of the descriptors, too.
CALENDARS, TENSOR, SOFTWARE, SBUF_PORT, PSUM_PORT = 10, 0, 7, 8, 9
# Columns of `slices`: ns booked on all engines; on the busiest single one; of the former, inward and outward; what
# inward and outward gave away there, less what they got in its place.
ALL, MOST, INWARD, OWED = 0, 1, 2, 4
# Columns of what is known of regions: `times`, when the last write may be read, when TensorE may read it, when the last
# reader is done; `rows`, who wrote and who read last.
VISIBLE, TO_TENSOR, READ_UNTIL = range(3)
WRITER, READER = range(2)
# What `walked` leaves for its next call: in `ns`, and in `counts`.
LATEST, THROTTLED, FURTHEST, PUT_OFF_UNTIL = range(4)
TABLE, TABLE_LOADS, SUM_ROW, SUMS_AT = range(4)


# --- calendars ------------------------------------------------------------------------------------
# Of what one user holds at a time: it is idle in its gaps, which ascend, and after its tail; gaps[c] of low[c] and
# high[c] count. Only the latest are remembered, and none in which nothing of its users fits.


@jit
def free_from(
    calendar: int, earliest: float, busy: float, tails: Floats, low: FloatTable, high: FloatTable, gaps: Ints
) -> float:
    """The first time from `earliest` on at which it is idle for `busy` ns."""
    if earliest >= tails[calendar]:
        return earliest
    count = gaps[calendar]
    if count > 0 and high[calendar, count - 1] >= earliest + busy:
        k, above = 0, count
        while k < above:
            middle = (k + above) >> 1
            if high[calendar, middle] < earliest + busy:
                k = middle + 1
            else:
                above = middle
        while k < count:
            begin = low[calendar, k] if low[calendar, k] > earliest else earliest
            if begin + busy <= high[calendar, k]:
                return begin
            k += 1
    return tails[calendar]


@jit
def fill_gap(
    calendar: int, begin: float, end: float, low: FloatTable, high: FloatTable, gaps: Ints, smallest: float
) -> None:
    """Takes that stretch from the gap that it lies in. `smallest`: no shorter rest is kept; there is room for one gap
    more."""
    count = gaps[calendar]
    k, above = 0, count
    while k < above:
        middle = (k + above) >> 1
        if high[calendar, middle] < end:
            k = middle + 1
        else:
            above = middle
    before = begin - low[calendar, k] >= smallest and smallest > 0
    after = high[calendar, k] - end >= smallest and smallest > 0
    if before and after:
        for j in range(count, k, -1):
            low[calendar, j] = low[calendar, j - 1]
            high[calendar, j] = high[calendar, j - 1]
        gaps[calendar] = count + 1
    elif not before and not after:
        gaps[calendar] = count - 1
        for j in range(k, count - 1):
            low[calendar, j] = low[calendar, j + 1]
            high[calendar, j] = high[calendar, j + 1]
    if before:
        high[calendar, k] = begin
    if after:
        low[calendar, k + before] = end


@jit
def is_computed(
    writer: int, kinds: Ints, template_ids: Ints, rows: IntTable, read_starts: Ints, read: Ints, overlap_starts: Ints,
    overlaps: Ints,
) -> bool:  # fmt: skip
    """Whether a row writes what an engine computes; a transfer does that reads what the kernel has written before."""
    if writer < 0 or kinds[template_ids[writer]] != TRANSFER:
        return writer >= 0
    for k in range(read_starts[writer], read_starts[writer + 1]):
        if rows[read[k], WRITER] >= 0:
            return True
        for j in range(overlap_starts[read[k]], overlap_starts[read[k] + 1]):
            if rows[overlaps[j], WRITER] >= 0:
                return True
    return False


@jit
def waits_for_computed(
    row: int, since: float, kinds: Ints, template_ids: Ints, times: FloatTable, rows: IntTable, read_starts: Ints,
    read: Ints, overlap_starts: Ints, overlaps: Ints,
) -> bool:  # fmt: skip
    """Whether a row reads something that is computed, rather than loaded, and is there only after `since`."""
    for k in range(read_starts[row], read_starts[row + 1]):
        for j in range(overlap_starts[read[k]] - 1, overlap_starts[read[k] + 1]):
            region = read[k] if j < overlap_starts[read[k]] else overlaps[j]
            if times[region, VISIBLE] > since and is_computed(
                rows[region, WRITER], kinds, template_ids, rows, read_starts, read, overlap_starts, overlaps
            ):
                return True
    return False


# --- DMA engines and descriptors ------------------------------------------------------------------


@jit
def booked_all(
    at: float, duration: float, side: int, share: float, width: float, slices: FloatTable, skips: IntTable
) -> tuple[float, float, float]:
    """Books a transfer on all DMA engines, not before `at`: (start, end, ns that the other direction gave way).

    A later transfer may use time that earlier ones left idle. It is booked in slices of `width` ns, in which capacity
    is interchangeable. Each engine takes turns between what comes in and what goes out, so that a load does not wait
    for all the stores that were asked for before it, nor a store for all the loads (rows B008, B012, B040: with one
    queue for both they would take 12 to 16 % longer than they did).

    `share` of a slice is its direction's in any case: it takes over what the other has beyond that. How much later the
    transfers end that give way is for another walk (`delays`); what is given away is booked again with share 0.

    skips: by slice and direction, how many slices on there may be time again; 0 in a slice that has some.
    """
    mine, other = INWARD + side, INWARD + 1 - side
    index = int(at / width)
    begun, put_off, start, take = -1.0, 0.0, 0.0, 0.0
    while True:
        ahead = skips[index, side]
        while ahead > 0:
            further = skips[index + ahead, side]
            skips[index, side] = ahead + further
            index += ahead
            ahead = further
        here = width - slices[index, MOST]
        taken, ours = slices[index, ALL], slices[index, mine]
        idle = here - taken
        free = share * here - ours
        if idle > free:
            free = idle
        end = (index + 1) * width
        start = end - free
        if start < at:
            start = at
            free = end - at
        if free > FULL_NS:
            if begun < 0.0:
                begun = start
            take = duration if duration <= free else free
            if take > idle:
                taken_over = take - idle
                if taken_over > slices[index, other]:
                    taken_over = slices[index, other]
                    take = idle + taken_over
                slices[index, other] -= taken_over
                slices[index, OWED + 1 - side] += taken_over
                put_off += taken_over
                taken += idle
            else:
                taken += take
            ours += take
            if share == 0.0:
                slices[index, OWED + side] -= take
            slices[index, ALL] = taken
            slices[index, mine] = ours
            if duration <= take + FULL_NS:
                break
            duration -= take
        if here - taken < FULL_NS and ours >= 0.5 * here - FULL_NS:
            skips[index, side] = 1
        index += 1
        at = end
    return begun, start + take, put_off


@jit
def booked_some(
    at: float, first: int, last: int, duration: float, width: float, slices: FloatTable, each: FloatTable
) -> tuple[float, float]:
    """Books a transfer on engines first..last: (start, end). `each`: by slice and engine, ns booked."""
    index = int(at / width)
    begun, over = -1.0, -1.0
    while over < 0.0:
        end = (index + 1) * width
        busiest = each[index, first]
        for engine in range(first + 1, last + 1):
            if each[index, engine] > busiest:
                busiest = each[index, engine]
        free = width - slices[index, ALL] - busiest
        if free > FULL_NS:
            start = end - free
            if at >= start:
                start = at
            take = end - start
            if duration <= take:
                take = duration
            if begun < 0.0:
                begun = start
            busiest = slices[index, MOST]
            for engine in range(first, last + 1):
                each[index, engine] += take
                if each[index, engine] > busiest:
                    busiest = each[index, engine]
            slices[index, MOST] = busiest
            duration -= take
            if duration <= FULL_NS:
                over = start + take
        index += 1
        if end > at:
            at = end
    return begun, over


@jit
def written_descriptors(
    earliest: float, busy: float, side: int, ends: Floats, low: FloatTable, high: FloatTable, gaps: Ints, tails: Floats
) -> tuple[float, float]:
    """Software on GpSimd writes the descriptors of a transfer, `busy` ns from `earliest` on: (begin, end).

    It writes into two rings, of what comes in and what goes out, each of which is in order. It goes on with the other
    ring where one has nothing ready, and comes back, so that a transfer's descriptors may be written in pieces; it
    never writes two at once, nor while GpSimd computes. `ends`: of the last transfer of each ring. There is room for
    two more gaps.
    """
    count, tail = gaps[SOFTWARE], tails[SOFTWARE]
    if ends[side] > earliest:
        earliest = ends[side]
    if earliest > tail:
        low[SOFTWARE, count] = tail
        high[SOFTWARE, count] = earliest
        count += 1
        if count > 2 * GAPS_KEPT:
            count -= GAPS_KEPT
            for k in range(count):
                low[SOFTWARE, k] = low[SOFTWARE, k + GAPS_KEPT]
                high[SOFTWARE, k] = high[SOFTWARE, k + GAPS_KEPT]
        tail = earliest
    begin = -1.0
    k, above = 0, count
    if count > 0 and high[SOFTWARE, count - 1] <= earliest:
        k = count
    while k < above:
        middle = (k + above) >> 1
        if earliest < high[SOFTWARE, middle]:
            above = middle
        else:
            k = middle + 1
    end, done = 0.0, False
    while k < count and not done:
        at = low[SOFTWARE, k] if low[SOFTWARE, k] > earliest else earliest
        if begin < 0.0:
            begin = at
        end = at + busy
        done = end <= high[SOFTWARE, k]
        if done:
            if at > low[SOFTWARE, k]:
                for j in range(count, k, -1):
                    low[SOFTWARE, j] = low[SOFTWARE, j - 1]
                    high[SOFTWARE, j] = high[SOFTWARE, j - 1]
                count += 1
                high[SOFTWARE, k] = at
                k += 1
            if end < high[SOFTWARE, k]:
                low[SOFTWARE, k] = end
            else:
                count -= 1
                for j in range(k, count):
                    low[SOFTWARE, j] = low[SOFTWARE, j + 1]
                    high[SOFTWARE, j] = high[SOFTWARE, j + 1]
        else:
            busy -= high[SOFTWARE, k] - at
            if at > low[SOFTWARE, k]:
                high[SOFTWARE, k] = at
                k += 1
            else:
                count -= 1
                for j in range(k, count):
                    low[SOFTWARE, j] = low[SOFTWARE, j + 1]
                    high[SOFTWARE, j] = high[SOFTWARE, j + 1]
    if not done:
        if begin < 0.0:
            begin = tail
        end = tail = tail + busy
    ends[side] = end
    gaps[SOFTWARE], tails[SOFTWARE] = count, tail
    return begin, end


@jit
def same_regions(one: int, other: int, starts: Ints, regions: Ints) -> bool:
    """Do two rows (-1: none) write the same regions?"""
    if one < 0:
        return starts[other] == starts[other + 1]
    length = starts[one + 1] - starts[one]
    if starts[other + 1] - starts[other] != length:
        return False
    k = 0
    while k < length and regions[starts[one] + k] == regions[starts[other] + k]:
        k += 1
    return bool(k == length)


@jit
def walked(
    begin: int, order: Ints, template_ids: Ints, resources: Ints, busies: Floats, latencies: Floats, kinds: Ints,
    tables: Ints, moves: FloatTable, ports: IntTable, parts: Ints, holds: Floats, beside_starts: Ints, beside: Ints,
    read_starts: Ints, read: Ints, written_starts: Ints, written: Ints, overlap_starts: Ints, overlaps: Ints,
    closed_starts: Ints, closed: Ints, group_starts: Ints, groups: Ints, members_starts: Ints, members: Ints,
    end_starts: Ints, end_rows: Ints, held_ns: Floats, tensor_waits: Floats, is_cold: Bools, smallest: Floats,
    table_ns: float, throttle: float, slice_ns: float, runs_ahead: bool, delays: Floats, starts: Floats,
    issues: Floats, ends: Floats, readies: Floats, released: Floats, causes: Ints, booked: Floats, times: FloatTable,
    rows: IntTable, tails: Floats, low: FloatTable, high: FloatTable, gaps: Ints, slices: FloatTable, skips: IntTable,
    each: FloatTable, ring_ends: Floats, before_sums: Floats, part_until: Floats, opened: Floats, opened_by: Ints,
    ns: Floats, counts: Ints,
) -> int:  # fmt: skip
    """The rows from place `begin` of `order` on, as far as gaps and slices have room: the first place that it leaves.
    Fills starts, issues, ends, readies, released (when engine or queue are free again) and causes, by row.

    moves: by template, start_ns, engine_ns, first engine, last engine, outward; ports: by template, the calendars that
    it is in besides its resource's, -1 after the last; parts, holds, beside: of TensorE's array, the part that a
    template takes, for how long, and the parts that overlap it; members: regions by group; held_ns: by row, or nothing;
    tensor_waits: by row, ns that TensorE waits for transfers; is_cold: by row; smallest: by calendar, its shortest
    instruction; runs_ahead: Machine.tensor_runs_ahead; delays: by row, of a transfer that gives way to the other
    direction, ns. All the rest is memory that it hands to its next call.

    It never makes an array: where one variable may stand for one array or another, Numba counts references at every
    turn, which took a third of the time.
    """
    latest, throttled, furthest = ns[LATEST], ns[THROTTLED], ns[FURTHEST]
    table, table_loads, sum_row, sums_at = counts[TABLE], counts[TABLE_LOADS], counts[SUM_ROW], counts[SUMS_AT]
    some_overlap, some_closed = len(overlaps) > 0, len(closed) > 0
    some_groups, some_ends, some_held = len(groups) > 0, len(end_rows) > 0, len(held_ns) > 0
    most_gaps, reaches_ns = low.shape[1] - 2, (len(slices) - SLICES_AHEAD) * slice_ns
    stop = len(order)
    for place in range(begin, len(order)):
        i = order[place]
        t = template_ids[i]
        resource, kind, busy = resources[t], kinds[t], busies[t]
        crowded = gaps[resource]
        for k in range(3):
            if ports[t, k] < 0:
                break
            if gaps[ports[t, k]] > crowded:
                crowded = gaps[ports[t, k]]
        if crowded > most_gaps:
            stop = place
            break
        # all after `furthest` is idle: a transfer ends within its own time, and as much again for what gives way
        if kind == TRANSFER and furthest + busy + moves[t, 0] + 2.0 * moves[t, 1] > reaches_ns:
            stop = place
            break
        ready, cause = 0.0, -1
        # what it waits for
        for k in range(read_starts[i], read_starts[i + 1]):
            region = read[k]
            if times[region, VISIBLE] > ready:
                ready, cause = times[region, VISIBLE], rows[region, WRITER]
            if some_overlap:
                for j in range(overlap_starts[region], overlap_starts[region + 1]):
                    other = overlaps[j]
                    if times[other, VISIBLE] > ready:
                        ready, cause = times[other, VISIBLE], rows[other, WRITER]
        seen_by_me = TO_TENSOR if kind >= MATMUL else VISIBLE
        for k in range(written_starts[i], written_starts[i + 1]):
            region = written[k]
            if times[region, seen_by_me] > ready:
                ready, cause = times[region, seen_by_me], rows[region, WRITER]
            if times[region, READ_UNTIL] > ready:
                ready, cause = times[region, READ_UNTIL], rows[region, READER]
            if some_overlap:
                for j in range(overlap_starts[region], overlap_starts[region + 1]):
                    other = overlaps[j]
                    if times[other, seen_by_me] > ready:
                        ready, cause = times[other, seen_by_me], rows[other, WRITER]
                    if times[other, READ_UNTIL] > ready:
                        ready, cause = times[other, READ_UNTIL], rows[other, READER]
        if some_closed:
            for k in range(closed_starts[i], closed_starts[i + 1]):
                region = closed[k]
                if times[region, VISIBLE] > ready:
                    ready, cause = times[region, VISIBLE], rows[region, WRITER]
                if times[region, READ_UNTIL] > ready:
                    ready, cause = times[region, READ_UNTIL], rows[region, READER]
        if some_held and held_ns[i] > ready:
            ready, cause = held_ns[i], -1
        if some_groups:
            for k in range(group_starts[i], group_starts[i + 1]):
                group = groups[k]
                if opened[group] < 0.0:
                    when, who = 0.0, -1
                    for j in range(members_starts[group], members_starts[group + 1]):
                        region = members[j]
                        if times[region, VISIBLE] > when:
                            when, who = times[region, VISIBLE], rows[region, WRITER]
                        if times[region, READ_UNTIL] > when:
                            when, who = times[region, READ_UNTIL], rows[region, READER]
                    opened[group], opened_by[group] = when, who
                if opened[group] > ready:
                    ready, cause = opened[group], opened_by[group]
        if some_ends:
            for k in range(end_starts[i], end_starts[i + 1]):
                before = end_rows[k]
                if ends[before] > ready:
                    ready, cause = ends[before], before

        # what its engine adds
        earliest = ready
        part = -1
        hold = busy
        if kind >= MATMUL:
            part = parts[t]
            if part >= 0:
                hold = holds[t]
                for k in range(beside_starts[part], beside_starts[part + 1]):
                    if part_until[beside[k]] > earliest:
                        earliest = part_until[beside[k]]
            if is_cold[i]:
                throttled += busy * (throttle - 1.0)
                busy *= throttle
                hold *= throttle
            busy += tensor_waits[i]
        elif kind == FUNCTION:
            if tables[t] != table:
                table = tables[t]
                table_loads += 1
                tails[resource] += table_ns
                if tails[resource] > earliest:
                    earliest = tails[resource]

        # where it fits
        begun = 0.0
        if resource == SOFTWARE:
            begun, written_by = written_descriptors(earliest, busy, int(moves[t, 4]), ring_ends, low, high, gaps, tails)
            start = written_by - busy
            busy = written_by - begun
        else:
            start = earliest if earliest > tails[resource] else tails[resource]
            if start > earliest and gaps[resource] > 0 and high[resource, gaps[resource] - 1] >= earliest + busy:
                start = free_from(resource, earliest, busy, tails, low, high, gaps)
            if resource == TENSOR and start < tails[TENSOR] and before_sums[sums_at] > start:
                if before_sums[sums_at] > earliest:
                    earliest = before_sums[sums_at]
                start = free_from(resource, earliest, busy, tails, low, high, gaps)
            settled = start if ports[t, 0] < 0 else -1.0
            while settled != start:
                settled = start
                for k in range(3):
                    if ports[t, k] >= 0 and start < tails[ports[t, k]]:
                        start = free_from(ports[t, k], start, busy, tails, low, high, gaps)
                if settled != start:
                    start = free_from(resource, start, busy, tails, low, high, gaps)
            for k in range(-1, 3):
                calendar = resource if k < 0 else ports[t, k]
                if calendar < 0:
                    break
                if start < tails[calendar]:
                    fill_gap(calendar, start, start + busy, low, high, gaps, smallest[calendar])
                    continue
                least = smallest[calendar]
                if start - tails[calendar] > least and (
                    calendar != TENSOR
                    or runs_ahead
                    or not waits_for_computed(
                        i, tails[TENSOR], kinds, template_ids, times, rows, read_starts, read, overlap_starts, overlaps
                    )
                ):
                    count = gaps[calendar]
                    low[calendar, count], high[calendar, count] = tails[calendar], start
                    count += 1
                    if count > 2 * GAPS_KEPT:
                        count -= GAPS_KEPT
                        for j in range(count):
                            low[calendar, j] = low[calendar, j + GAPS_KEPT]
                            high[calendar, j] = high[calendar, j + GAPS_KEPT]
                    gaps[calendar] = count
                tails[calendar] = start + busy
        done = start + busy
        kept = done
        issues[i] = start
        if kind >= MATMUL:
            if not same_regions(sum_row, i, written_starts, written):
                sum_row = i
                before_sums[sums_at] = tails[resource]
                sums_at += 1
                if sums_at == len(before_sums):
                    sums_at = 0
            if part >= 0:
                done = start + hold
                if done > part_until[part]:
                    part_until[part] = done
        elif kind == TRANSFER:
            if resource == SOFTWARE:
                issues[i] = begun
            at, lasts, first, last, side = (
                start + moves[t, 0],
                moves[t, 1],
                int(moves[t, 2]),
                int(moves[t, 3]),
                int(moves[t, 4]),
            )
            if last - first + 1 != each.shape[1]:
                start, done = booked_some(at, first, last, lasts, slice_ns, slices, each)
            else:
                start, done, put_off = booked_all(at, lasts, side, 0.5, slice_ns, slices, skips)
                if put_off > FULL_NS:
                    _, until, _ = booked_all(done, put_off, 1 - side, 0.0, slice_ns, slices, skips)
                    if until > ns[PUT_OFF_UNTIL]:
                        ns[PUT_OFF_UNTIL] = until
                booked[i] = done
                done += delays[i]
        seen = done + latencies[t]

        # who waits for it
        for k in range(read_starts[i], read_starts[i + 1]):
            region = read[k]
            if done > times[region, READ_UNTIL]:
                times[region, READ_UNTIL], rows[region, READER] = done, i
        forwarded = done if kind >= MATMUL else seen
        for k in range(written_starts[i], written_starts[i + 1]):
            region = written[k]
            times[region, VISIBLE], times[region, TO_TENSOR], rows[region, WRITER] = seen, forwarded, i
        starts[i], ends[i], readies[i], released[i], causes[i] = start, done, ready, kept, cause
        if seen > latest:
            latest = seen
        furthest = max(furthest, kept, done, seen, ns[PUT_OFF_UNTIL])
    ns[LATEST], ns[THROTTLED], ns[FURTHEST] = latest, throttled, furthest
    counts[TABLE], counts[TABLE_LOADS], counts[SUM_ROW], counts[SUMS_AT] = table, table_loads, sum_row, sums_at
    return stop


@jit
def ends_later(
    booked: Floats, template_ids: Ints, moves: FloatTable, slices: FloatTable, width: float, late: Floats
) -> None:
    """Sets `late`: by row, how much later than booked (ns; -1: not at all) a transfer on all DMA engines ends because
    some of its direction's time was taken over afterwards. Each direction is first come, first served: a transfer ends
    when as much of its direction has been moved as was to be at the end that was booked."""
    count = len(slices)
    moved, planned = np.zeros(count + 1), np.zeros(count + 1)
    for side in range(2):
        some = False
        for k in range(count):
            got, owed = slices[k, INWARD + side], slices[k, OWED + side]
            some = some or owed != 0.0
            moved[k + 1], planned[k + 1] = moved[k] + got, planned[k] + got + owed
        for row in range(len(booked) if some else 0):
            if booked[row] < 0.0 or moves[template_ids[row], 4] != side:
                continue
            here = min(int(booked[row] / width), count - 1)
            if max(planned[here] - moved[here], planned[here + 1] - moved[here + 1]) < SAME_NS:
                continue
            wanted = planned[here] + (booked[row] / width - here) * (planned[here + 1] - planned[here])
            while here < count - 1 and moved[here + 1] < wanted - SAME_NS:
                here += 1
            share = (wanted - moved[here]) / max(moved[here + 1] - moved[here], SAME_NS)
            end = (here + min(max(share, 0.0), 1.0)) * width
            if end > booked[row]:
                late[row] = end - booked[row]


@jit
def fetched_transfers(
    template_ids: Ints,
    fetching: Bools,
    tensor: Bools,
    read_starts: Ints,
    read: Ints,
    written_starts: Ints,
    written: Ints,
    overlap_starts: Ints,
    overlaps: Ints,
) -> Ints:
    """By row: of a product, the number of transfers for whose data TensorE waits there first."""
    rows = len(template_ids)
    brought_by = np.full(len(overlap_starts) - 1, -1, np.int64)
    waited_for = np.zeros(rows, np.bool_)
    found = np.zeros(rows, np.int64)
    for row in range(rows):
        if fetching[template_ids[row]]:
            for k in range(written_starts[row], written_starts[row + 1]):
                region = written[k]
                brought_by[region] = row
                for j in range(overlap_starts[region], overlap_starts[region + 1]):
                    brought_by[overlaps[j]] = row
        elif tensor[template_ids[row]]:
            for k in range(read_starts[row], read_starts[row + 1]):
                transfer = brought_by[read[k]]
                if transfer >= 0 and not waited_for[transfer]:
                    waited_for[transfer] = True
                    found[row] += 1
    return found


@jit
def cold_products(
    rows: Ints, starts: Floats, busy: Floats, active: Floats, warming: float, wanted: float, warm_at: float,
    cold_at: float, factor: float, is_cold: Bools, state: Floats,
) -> int:  # fmt: skip
    """Sets `is_cold` (by row of the program) for the products that TensorE carries out at the clock of a cold array:
    how many. By product, in the order of their starts: rows, starts, busy and active ns.

    While it is cold, the work beyond `warming` of the array's rows adds up until it is warm (`warm_at`); while it is
    warm, what is lacking to `wanted` of them until it is cold (`cold_at`). What is to the contrary is taken off again;
    while it is cold, a pause takes off what as long a time of the whole array's work adds, and no more: arrays that
    work 0.6 of the time get warm (row N038: eight more heads take 1.6 us each, of which a cold array would work 1.5).
    `state`: the end of the product before, what has added up so far, and whether the array is warm (1; or 0); all 0 at
    the beginning.
    """
    free, so_far, now_cold, cold = state[0], state[1], state[2] == 0.0, 0
    for k in range(len(rows)):
        begin = starts[k] if starts[k] > free else free
        hold = busy[k]
        share = active[k] / hold
        if now_cold:
            so_far -= (1.0 - warming) * (begin - free)
            if so_far < 0.0:
                so_far = 0.0
        else:
            so_far += wanted * (begin - free)
            if so_far >= cold_at:
                so_far, now_cold = 0.0, True
        if now_cold:
            is_cold[rows[k]] = True
            cold += 1
            hold *= factor
            so_far += (share - warming) * hold
            if so_far >= warm_at:
                so_far, now_cold = 0.0, False
        else:
            so_far += (wanted - share) * hold
            if so_far >= cold_at:
                so_far, now_cold = 0.0, True
        if so_far < 0.0:
            so_far = 0.0
        free = begin + hold
    state[0], state[1], state[2] = free, so_far, 0.0 if now_cold else 1.0
    return cold
