"""The walk over a program's rows, on flat arrays: what `nki_sim.compiled` has Numba make machine code of.

The same arithmetic in the same order as `nki_sim.one_pass`, so the same bits come out; that file says what it means,
and tests/nki_sim/machine/test_compiled_pass.py holds the two against each other. Plain functions of arrays and numbers
that also run as they stand, slowly. None calls what another file has, since Numba's cache looks at no other when it
asks whether what it keeps is still valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FUNCTIONS = (
    "grown", "booked_all", "booked_some", "booked", "written_descriptors", "filled_gap", "same_regions", "one_pass",
    "fetched_transfers", "cold_products",
)  # fmt: skip
"""In this order: each after those that it calls."""

GAPS_KEPT = 64
SLICES_AHEAD = 64
FULL_NS = 1e-6
PLAIN, FUNCTION, TRANSFER, MATMUL, ACCUMULATE = range(5)
RESOURCES, SOFTWARE, TENSOR = 8, 7, 0
# Columns of `slices`: ns booked on all engines; on the busiest single one; of the former, inward and outward.
ALL, MOST, INWARD = 0, 1, 2


# --- DMA engines (nki_sim.dma_pool) ---------------------------------------------------------------


def grown(index: int, slices: Array, skips: Array, length: Array) -> tuple[Array, Array]:
    """Room for slice `index`: (slices, skips), in new memory where the old does not do."""
    wanted = index + SLICES_AHEAD
    if wanted > length[0]:
        length[0] = wanted
    old = len(slices)
    if wanted <= old:
        return slices, skips
    more = max(wanted, 2 * old)
    new_slices = np.zeros((more, 4))
    new_skips = np.empty((more, 2), np.int64)
    for k in range(old):
        for column in range(4):
            new_slices[k, column] = slices[k, column]
        new_skips[k, 0] = skips[k, 0]
        new_skips[k, 1] = skips[k, 1]
    for k in range(old, more):
        new_skips[k, 0] = k
        new_skips[k, 1] = k
    return new_slices, new_skips


def booked_all(
    at: float, duration: float, side: int, share: float, width: float, slices: Array, skips: Array, length: Array
) -> tuple[float, float, float, Array, Array]:
    """Of a transfer on all engines: (start, end, ns that the other direction gave way, slices, skips)."""
    mine, other = INWARD + side, INWARD + 1 - side
    count = length[0]
    index = int(at / width)
    begun, put_off, start, take = -1.0, 0.0, 0.0, 0.0
    while True:
        if index >= count:
            slices, skips = grown(index, slices, skips, length)
            count = length[0]
        ahead = skips[index, side]
        while ahead != index:
            skips[index, side] = skips[ahead, side]
            index = ahead
            ahead = skips[index, side]
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
                put_off += taken_over
                taken += idle
            else:
                taken += take
            ours += take
            slices[index, ALL] = taken
            slices[index, mine] = ours
            if duration <= take + FULL_NS:
                break
            duration -= take
        if here - taken < FULL_NS and ours >= 0.5 * here - FULL_NS:
            if index + 1 >= count:
                slices, skips = grown(index + 1, slices, skips, length)
                count = length[0]
            skips[index, side] = index + 1
        index += 1
        at = end
    return begun, start + take, put_off, slices, skips


def booked_some(
    at: float,
    first: int,
    last: int,
    duration: float,
    width: float,
    slices: Array,
    skips: Array,
    length: Array,
    each: Array,
) -> tuple[float, float, Array, Array, Array]:
    """Of a transfer on engines first..last: (start, end, slices, skips, each)."""
    index = int(at / width)
    begun = -1.0
    while True:
        if index >= length[0]:
            slices, skips = grown(index, slices, skips, length)
        if index >= len(each):
            more = np.zeros((len(slices), each.shape[1]))
            for k in range(len(each)):
                for engine in range(each.shape[1]):
                    more[k, engine] = each[k, engine]
            each = more
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
                return begun, start + take, slices, skips, each
        index += 1
        if end > at:
            at = end


def booked(
    at: float,
    first: int,
    last: int,
    duration: float,
    side: int,
    width: float,
    slices: Array,
    skips: Array,
    length: Array,
    each: Array,
    put_off_until: Array,
) -> tuple[float, float, Array, Array, Array]:
    """As Backfilling.book: (start, end, slices, skips, each)."""
    if last - first + 1 != each.shape[1]:
        return booked_some(at, first, last, duration, width, slices, skips, length, each)
    begun, end, put_off, slices, skips = booked_all(at, duration, side, 0.5, width, slices, skips, length)
    if put_off > FULL_NS:
        _, until, _, slices, skips = booked_all(end, put_off, 1 - side, 0.0, width, slices, skips, length)
        if until > put_off_until[0]:
            put_off_until[0] = until
    return begun, end, slices, skips, each


def written_descriptors(
    earliest: float, busy: float, side: int, ends: Array, low: Array, high: Array, count: int, tail: float
) -> tuple[float, float, int, float]:
    """As DescriptorWriter.write: (begin, end, gaps, tail); `low` and `high` have room for two more."""
    if ends[side] > earliest:
        earliest = ends[side]
    if earliest > tail:
        low[count] = tail
        high[count] = earliest
        count += 1
        if count > 2 * GAPS_KEPT:
            count -= GAPS_KEPT
            for k in range(count):
                low[k] = low[k + GAPS_KEPT]
                high[k] = high[k + GAPS_KEPT]
        tail = earliest
    begin = -1.0
    k, above = 0, count
    while k < above:
        middle = (k + above) // 2
        if earliest < high[middle]:
            above = middle
        else:
            k = middle + 1
    while k < count:
        at = low[k] if low[k] > earliest else earliest
        if begin < 0.0:
            begin = at
        end = at + busy
        if end <= high[k]:
            if at > low[k]:
                for j in range(count, k, -1):
                    low[j] = low[j - 1]
                    high[j] = high[j - 1]
                count += 1
                high[k] = at
                k += 1
            if end < high[k]:
                low[k] = end
            else:
                count -= 1
                for j in range(k, count):
                    low[j] = low[j + 1]
                    high[j] = high[j + 1]
            ends[side] = end
            return begin, end, count, tail
        busy -= high[k] - at
        if at > low[k]:
            high[k] = at
            k += 1
        else:
            count -= 1
            for j in range(k, count):
                low[j] = low[j + 1]
                high[j] = high[j + 1]
    if begin < 0.0:
        begin = tail
    end = tail + busy
    ends[side] = end
    return begin, end, count, end


# --- one pass (nki_sim.one_pass) ------------------------------------------------------------------


def filled_gap(low: Array, high: Array, count: int, earliest: float, busy: float, smallest: float) -> tuple[float, int]:
    """As one_pass._fill_gap: (start or -1, gaps); `low` and `high` have room for one more."""
    wanted = earliest + busy
    k, above = 0, count
    while k < above:
        middle = (k + above) // 2
        if high[middle] < wanted:
            k = middle + 1
        else:
            above = middle
    while k < count:
        begin = low[k]
        if begin < earliest:
            begin = earliest
        end = begin + busy
        if end > high[k]:
            k += 1
            continue
        before = begin - low[k] >= smallest and smallest > 0
        after = high[k] - end >= smallest and smallest > 0
        if before and after:
            for j in range(count, k, -1):
                low[j] = low[j - 1]
                high[j] = high[j - 1]
            low[k + 1] = end
            high[k] = begin
            count += 1
        elif before:
            high[k] = begin
        elif after:
            low[k] = end
        else:
            count -= 1
            for j in range(k, count):
                low[j] = low[j + 1]
                high[j] = high[j + 1]
        return begin, count
    return -1.0, count


def same_regions(one: int, other: int, starts: Array, regions: Array) -> bool:
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


def one_pass(
    template_ids: Array, resources: Array, busies: Array, latencies: Array, kinds: Array, tables: Array, moves:
    Array, ports: Array, parts: Array, holds: Array, beside_starts: Array, beside: Array, read_starts: Array, read:
    Array, written_starts: Array, written: Array, overlap_starts: Array, overlaps: Array, closed_starts: Array,
    closed: Array, group_starts: Array, groups: Array, members_starts: Array, members: Array, end_starts: Array,
    end_rows: Array, held_ns: Array, tensor_waits: Array, is_cold: Array, smallest: Array, table_ns: float,
    throttle: float, banks: int, engines: int, slice_ns: float, starts: Array, issues: Array, ends: Array, readies:
    Array, causes: Array,
) -> tuple[float, int, float]:  # fmt: skip
    """Fills starts, issues, ends, readies and causes: (latency, table loads, ns throttled).

    `moves`: by template, start_ns, engine_ns, first engine, last engine, outward. `ports`: by template, its own slots,
    -1 after the last; the other user's is the one beside it.
    """
    size = len(overlap_starts) - 1
    visible, visible_to_tensor, read_until = np.zeros(size), np.zeros(size), np.zeros(size)
    writer, reader = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    tails = np.zeros(RESOURCES)
    capacity = 4 * GAPS_KEPT
    low, high = np.zeros((RESOURCES, capacity)), np.zeros((RESOURCES, capacity))
    gaps = np.zeros(RESOURCES, np.int64)
    slices, skips, each = np.zeros((0, 4)), np.zeros((0, 2), np.int64), np.zeros((0, engines))
    length, put_off_until = np.zeros(1, np.int64), np.zeros(1)
    ring_ends, ring_tail = np.zeros(2), 0.0
    sum_row, sums_at = -1, 0
    before_sums = np.zeros(banks)
    part_until = np.zeros(len(beside_starts) - 1)
    port_from, port_until = np.zeros(6), np.zeros(6)
    opened = np.full(len(members_starts) - 1, -1.0)
    opened_by = np.full(len(members_starts) - 1, -1, np.int64)
    table, table_loads, throttled, latest = 0, 0, 0.0, 0.0
    for i in range(len(template_ids)):
        t = template_ids[i]
        resource, kind, busy = resources[t], kinds[t], busies[t]
        ready, cause = 0.0, -1
        # what it waits for
        for k in range(read_starts[i], read_starts[i + 1]):
            region = read[k]
            if visible[region] > ready:
                ready, cause = visible[region], writer[region]
            for j in range(overlap_starts[region], overlap_starts[region + 1]):
                other = overlaps[j]
                if visible[other] > ready:
                    ready, cause = visible[other], writer[other]
        for k in range(written_starts[i], written_starts[i + 1]):
            region = written[k]
            when = visible_to_tensor[region] if kind == ACCUMULATE else visible[region]
            if when > ready:
                ready, cause = when, writer[region]
            if read_until[region] > ready:
                ready, cause = read_until[region], reader[region]
            for j in range(overlap_starts[region], overlap_starts[region + 1]):
                other = overlaps[j]
                when = visible_to_tensor[other] if kind == ACCUMULATE else visible[other]
                if when > ready:
                    ready, cause = when, writer[other]
                if read_until[other] > ready:
                    ready, cause = read_until[other], reader[other]
        for k in range(closed_starts[i], closed_starts[i + 1]):
            region = closed[k]
            if visible[region] > ready:
                ready, cause = visible[region], writer[region]
            if read_until[region] > ready:
                ready, cause = read_until[region], reader[region]
        if held_ns[i] > ready:
            ready, cause = held_ns[i], -1
        for k in range(group_starts[i], group_starts[i + 1]):
            group = groups[k]
            if opened[group] < 0.0:
                when, who = 0.0, -1
                for j in range(members_starts[group], members_starts[group + 1]):
                    region = members[j]
                    if visible[region] > when:
                        when, who = visible[region], writer[region]
                    if read_until[region] > when:
                        when, who = read_until[region], reader[region]
                opened[group], opened_by[group] = when, who
            if opened[group] > ready:
                ready, cause = opened[group], opened_by[group]
        for k in range(end_starts[i], end_starts[i + 1]):
            before = end_rows[k]
            if ends[before] > ready:
                ready, cause = ends[before], before

        # what its engine adds
        tail = tails[resource]
        may_fill = True
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
                tail += table_ns
                may_fill = False
        for k in range(3):
            slot = ports[t, k]
            if slot < 0:
                break
            when = earliest if earliest > tail else tail
            if when < port_until[slot ^ 1] and when + busy > port_from[slot ^ 1]:
                earliest = port_until[slot ^ 1]

        # where it fits
        begun = 0.0
        if gaps[resource] + 2 > capacity:
            wider, higher = np.zeros((RESOURCES, 2 * capacity)), np.zeros((RESOURCES, 2 * capacity))
            wider[:, :capacity] = low
            higher[:, :capacity] = high
            low, high, capacity = wider, higher, 2 * capacity
        if resource == SOFTWARE:
            begun, written_by, gaps[SOFTWARE], ring_tail = written_descriptors(
                earliest, busy, int(moves[t, 4]), ring_ends, low[SOFTWARE], high[SOFTWARE], gaps[SOFTWARE], ring_tail
            )
            start = written_by - busy
            busy = written_by - begun
        elif earliest >= tail:
            start = earliest
            if start - tail > smallest[resource]:
                count = gaps[resource]
                low[resource, count] = tail
                high[resource, count] = start
                count += 1
                if count > 2 * GAPS_KEPT:
                    count -= GAPS_KEPT
                    for k in range(count):
                        low[resource, k] = low[resource, k + GAPS_KEPT]
                        high[resource, k] = high[resource, k + GAPS_KEPT]
                gaps[resource] = count
            tails[resource] = start + busy
        else:
            start = -1.0
            count = gaps[resource]
            if may_fill and count > 0 and high[resource, count - 1] >= earliest + busy:
                if resource == TENSOR and before_sums[sums_at] > earliest:
                    earliest = before_sums[sums_at]
                start, gaps[resource] = filled_gap(
                    low[resource], high[resource], count, earliest, busy, smallest[resource]
                )
            if start < 0.0:
                start = tail
                tails[resource] = start + busy
        done = start + busy
        kept = done
        issues[i] = start
        if kind >= MATMUL:
            if not same_regions(sum_row, i, written_starts, written):
                sum_row = i
                before_sums[sums_at] = tails[resource]
                sums_at = (sums_at + 1) % banks
            if part >= 0:
                done = start + hold
                if done > part_until[part]:
                    part_until[part] = done
        elif kind == TRANSFER:
            if resource == SOFTWARE:
                issues[i] = begun
            start, done, slices, skips, each = booked(
                start + moves[t, 0], int(moves[t, 2]), int(moves[t, 3]), moves[t, 1], int(moves[t, 4]),
                slice_ns, slices, skips, length, each, put_off_until,
            )  # fmt: skip
        for k in range(3):
            slot = ports[t, k]
            if slot < 0:
                break
            port_from[slot], port_until[slot] = issues[i], kept
        seen = done + latencies[t]

        # who waits for it
        for k in range(read_starts[i], read_starts[i + 1]):
            region = read[k]
            if done > read_until[region]:
                read_until[region], reader[region] = done, i
        forwarded = done if kind >= MATMUL else seen
        for k in range(written_starts[i], written_starts[i + 1]):
            region = written[k]
            visible[region], visible_to_tensor[region], writer[region] = seen, forwarded, i
        starts[i], ends[i], readies[i], causes[i] = start, done, ready, cause
        if seen > latest:
            latest = seen
    until = put_off_until[0]
    index = int(until / slice_ns)
    if until == index * slice_ns:
        index -= 1
    if 0 <= index < length[0]:
        until = max(until, index * slice_ns + slices[index, ALL])
    return max(latest, until), table_loads, throttled


def fetched_transfers(
    template_ids: Array,
    fetching: Array,
    tensor: Array,
    read_starts: Array,
    read: Array,
    written_starts: Array,
    written: Array,
    overlap_starts: Array,
    overlaps: Array,
) -> Array:
    """As one_pass._fetched_operands: by row, the number of transfers."""
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


def cold_products(
    rows: Array, starts: Array, busy: Array, active: Array, window: float, least: float, factor: float, is_cold: Array
) -> int:
    """As one_pass._cold_matmuls: sets `is_cold`; how many are. By product, in the order of their starts."""
    free, slot, this, last, cold = 0.0, 0, 0.0, 0.0, 0
    for k in range(len(rows)):
        begin = starts[k] if starts[k] > free else free
        hold = busy[k]
        at = int(begin / window)
        if at != slot:
            last, this, slot = (this if at == slot + 1 else 0.0), 0.0, at
        if last < least:
            is_cold[rows[k]] = 1
            cold += 1
            hold *= factor
        free = begin + hold
        share = active[k] / hold
        while free > (slot + 1) * window:
            last, this = this + share * ((slot + 1) * window - begin), 0.0
            slot += 1
            begin = slot * window
        this += share * (free - begin)
    return cold
