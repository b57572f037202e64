"""The walk over a program's rows, on flat arrays: what `nki_sim.compiled` has Numba make machine code of.

The same arithmetic in the same order as `nki_sim.one_pass`, so the same bits come out; that file says what it means,
and tests/nki_sim/machine/test_compiled_pass.py holds the two against each other. Plain functions of arrays and numbers
that also run as they stand, slowly. All of them are in this file, since Numba's cache looks at no other when it asks
whether what it keeps is still valid.
"""

from __future__ import annotations

import numpy as np

FUNCTIONS = (
    "grown", "booked_all", "booked_some", "booked", "written_descriptors", "filled_gap", "same_regions", "one_pass",
    "fetched_transfers", "cold_products", "pushed", "by_row", "rotated", "waits_of",
    "numbers_of", "since_last",
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


def grown(index, slices, skips, length):
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


def booked_all(at, duration, side, share, width, slices, skips, length):
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


def booked_some(at, first, last, duration, width, slices, skips, length, each):
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


def booked(at, first, last, duration, side, width, slices, skips, length, each, put_off_until):
    """As Backfilling.book: (start, end, slices, skips, each)."""
    if last - first + 1 != each.shape[1]:
        return booked_some(at, first, last, duration, width, slices, skips, length, each)
    begun, end, put_off, slices, skips = booked_all(at, duration, side, 0.5, width, slices, skips, length)
    if put_off > FULL_NS:
        _, until, _, slices, skips = booked_all(end, put_off, 1 - side, 0.0, width, slices, skips, length)
        if until > put_off_until[0]:
            put_off_until[0] = until
    return begun, end, slices, skips, each


def written_descriptors(earliest, busy, side, ends, low, high, count, tail):
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


def filled_gap(low, high, count, earliest, busy, smallest):
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


def same_regions(one, other, starts, regions):
    """Do two rows (-1: none) write the same regions?"""
    if one < 0:
        return starts[other] == starts[other + 1]
    length = starts[one + 1] - starts[one]
    if starts[other + 1] - starts[other] != length:
        return False
    for k in range(length):
        if regions[starts[one] + k] != regions[starts[other] + k]:
            return False
    return True


def one_pass(
    template_ids, resources, busies, latencies, kinds, tables, moves, ports, parts, holds, beside_starts, beside,
    read_starts, read, written_starts, written, overlap_starts, overlaps,
    closed_starts, closed, group_starts, groups, members_starts, members, end_starts, end_rows, held_ns,
    tensor_waits, is_cold, smallest, table_ns, throttle, banks, engines, slice_ns,
    starts, issues, ends, readies, causes,
):  # fmt: skip
    """Fills starts, issues, ends, readies and causes: (latency, table loads, ns throttled).

    `moves`: by template, start_ns, engine_ns, first engine, last engine, outward. `ports`: by template, its own slots,
    -1 after the last; the other user's is the one beside it.
    """
    size = len(overlap_starts) - 1
    visible, visible_to_tensor, read_until = np.zeros(size), np.zeros(size), np.zeros(size)
    writer, reader = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    tails = np.zeros(RESOURCES)
    room = 4 * GAPS_KEPT
    low, high = np.zeros((RESOURCES, room)), np.zeros((RESOURCES, room))
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
            busy += tensor_waits[i]
            hold = busy
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
        if gaps[resource] + 2 > room:
            wider, higher = np.zeros((RESOURCES, 2 * room)), np.zeros((RESOURCES, 2 * room))
            wider[:, :room] = low
            higher[:, :room] = high
            low, high, room = wider, higher, 2 * room
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
    template_ids, fetching, tensor, read_starts, read, written_starts, written, overlap_starts, overlaps
):
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


def cold_products(rows, starts, busy, active, window, least, factor, is_cold):
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


# --- which buffers wait for which (nki_sim.compiler.rotation) -------------------------------------


def pushed(values, count, value):
    """The array with `value` at `count`, in new memory where it is full."""
    if count >= len(values):
        more = np.empty(2 * count + 64, np.int64)
        for k in range(count):
            more[k] = values[k]
        values = more
    values[count] = value
    return values


def by_row(rows, values, count, total):
    """(starts, values) by row of the first `count` pairs, in their order."""
    starts = np.zeros(total + 1, np.int64)
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


def rotated(members, first, last, sites, needs, places, dying, deaths_by, fresh, keeps_to_site):
    """As _Rotation.place: (buffers that wait, whether each waits by slices, starts, the older buffers of each)."""
    buffers = len(needs)
    left = np.zeros(buffers, np.int64)
    head, tail = np.full(len(places), -1, np.int64), np.full(len(places), -1, np.int64)
    after, before = np.full(buffers, -1, np.int64), np.full(buffers, -1, np.int64)
    length = np.zeros(len(places), np.int64)
    dead = np.empty(len(dying), np.int64)
    died, oldest_dead = 0, 0
    waiting, sliced = np.empty(len(members), np.int64), np.zeros(len(members), np.bool_)
    starts, olds = np.zeros(len(members) + 1, np.int64), np.empty(64, np.int64)
    events, total = 0, 0
    for k in range(len(members)):
        buffer = members[k]
        at, site, need = first[buffer], sites[buffer], needs[buffer]
        while died < deaths_by[k]:
            dead[died] = dying[died]
            left[dying[died]] = needs[dying[died]]
            died += 1
        while head[site] >= 0 and last[head[site]] < at and left[head[site]] == 0:
            gone = head[site]
            head[site] = after[gone]
            if head[site] < 0:
                tail[site] = -1
            else:
                before[head[site]] = -1
            length[site] -= 1
        after[buffer], before[buffer] = -1, tail[site]
        if tail[site] >= 0:
            after[tail[site]] = buffer
        else:
            head[site] = buffer
        tail[site] = buffer
        length[site] += 1
        own, by_slices = -1, False
        if length[site] > places[site] and left[head[site]] == need:
            own = head[site]
        elif need <= fresh:
            fresh -= need
            continue
        elif keeps_to_site:
            own = head[site]
            while own >= 0 and left[own] != need:
                own = after[own]
            by_slices = own >= 0
        if own >= 0:
            if before[own] >= 0:
                after[before[own]] = after[own]
            else:
                head[site] = after[own]
            if after[own] >= 0:
                before[after[own]] = before[own]
            else:
                tail[site] = before[own]
            length[site] -= 1
            left[own] = 0
            olds = pushed(olds, total, own)
            total += 1
        else:
            need -= fresh
            fresh = 0
            while need > 0 and oldest_dead < died:
                gone = dead[oldest_dead]
                if left[gone] != 0:
                    olds = pushed(olds, total, gone)
                    total += 1
                    taken = min(need, left[gone])
                    need -= taken
                    left[gone] -= taken
                if left[gone] == 0:
                    oldest_dead += 1
        waiting[events], sliced[events] = buffer, by_slices
        events += 1
        starts[events] = total
    return waiting[:events], sliced[:events], starts[: events + 1], olds[:total]


def waits_of(
    waiting, sliced, starts, olds, first, rows, region_starts, shapes, offsets, written_starts, written,
    overlap_starts, overlaps, product_starts, product_ends, product_rows, product_sums, banks,
):  # fmt: skip
    """As _close and _wait_by_slice, for every buffer that waits; by row, regions, groups and ends; groups' regions."""
    regions = len(overlap_starts) - 1
    first_writer = np.full(regions, -1, np.int64)
    for row in range(rows - 1, -1, -1):
        for k in range(written_starts[row], written_starts[row + 1]):
            first_writer[written[k]] = row
    closed_rows, closed, closes = np.empty(64, np.int64), np.empty(64, np.int64), 0
    group_rows, groups, groupings = np.empty(64, np.int64), np.empty(64, np.int64), 0
    end_rows, ends, endings = np.empty(64, np.int64), np.empty(64, np.int64), 0
    member_starts, members, begun = np.zeros(64, np.int64), np.empty(64, np.int64), 0
    in_group = np.full(rows, -1, np.int64)
    slice_rows, slice_regions = np.empty(64, np.int64), np.empty(64, np.int64)
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
                slice_rows = pushed(slice_rows, slices, first_writer[region])
                slice_regions = pushed(slice_regions, slices, other)
                slices += 1
            if fits and product_ends[old] <= product_starts[old]:
                for k in range(slices):
                    same = slice_regions[k]
                    closed_rows, closed = pushed(closed_rows, closes, slice_rows[k]), pushed(closed, closes, same)
                    closes += 1
                    for j in range(overlap_starts[same], overlap_starts[same + 1]):
                        closed_rows = pushed(closed_rows, closes, slice_rows[k])
                        closed = pushed(closed, closes, overlaps[j])
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
                    end_rows = pushed(end_rows, endings, slice_rows[k])
                    ends = pushed(ends, endings, product_rows[product_starts[old] + which])
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
                    closed_rows, closed = pushed(closed_rows, closes, at), pushed(closed, closes, region)
                    closes += 1
            continue
        in_group[at] = begun
        group_rows, groups = pushed(group_rows, groupings, at), pushed(groups, groupings, begun)
        groupings += 1
        for region in range(low, high):
            row = first_writer[region]
            if row >= 0 and in_group[row] != begun:
                in_group[row] = begun
                group_rows, groups = pushed(group_rows, groupings, row), pushed(groups, groupings, begun)
                groupings += 1
        count = member_starts[begun]
        for k in range(starts[event], starts[event + 1]):
            for region in range(region_starts[olds[k]], region_starts[olds[k] + 1]):
                members = pushed(members, count, region)
                count += 1
        begun += 1
        member_starts = pushed(member_starts, begun, count)
    return (
        by_row(closed_rows, closed, closes, rows),
        by_row(group_rows, groups, groupings, rows),
        by_row(end_rows, ends, endings, rows),
        (member_starts[: begun + 1].copy(), members[: member_starts[begun]].copy()),
    )


# --- equal numbers (nki_sim.regions, nki_sim.structure) -------------------------------------------


def numbers_of(keys):
    """(by entry, a number for its key; by number, the first entry that has it); numbers in the order of appearance."""
    room = 64
    while room < 2 * len(keys):
        room *= 2
    table = np.full(room, -1, np.int64)
    found, first = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    count = 0
    for k in range(len(keys)):
        at = ((keys[k] * 0x9E3779B97F4A7C1) >> 17) & (room - 1)
        while table[at] >= 0 and keys[first[table[at]]] != keys[k]:
            at = (at + 1) & (room - 1)
        if table[at] < 0:
            table[at] = count
            first[count] = k
            count += 1
        found[k] = table[at]
    return found, first[:count].copy()


def since_last(numbers, count):
    """As structure._since_last, of numbers below `count`."""
    last = np.full(count, -1, np.int64)
    since = np.zeros(len(numbers), np.int64)
    for k in range(len(numbers)):
        if last[numbers[k]] >= 0:
            since[k] = k - last[numbers[k]]
        last[numbers[k]] = k
    return since
