/* The monitor's side of a ring: the monitor loads this library too. */

#pragma once

#include "layout.h"

/* Copies published slots from `*cursor` on to `out`, moves `*cursor` and the ring's tail, returns
 * how many. `process_gone` also passes over slots that were reserved but never published, which
 * only a killed thread leaves behind. `capacity` and `cursor` are the reader's own: nothing that
 * the traced process scribbles in the header leads out of the map. */
EXPORT uint64_t gputui_ring_read(void *map, uint64_t capacity, uint64_t *cursor, void *out,
                                 uint64_t max, int process_gone)
{
    Header *header = map;
    const Slot *slots = (const Slot *)((const char *)map + HEADER_BYTES);
    Slot *target = out;
    uint64_t at = *cursor, count = 0, end = at + capacity;

    if (process_gone) {
        uint64_t head = __atomic_load_n(&header->head, __ATOMIC_ACQUIRE);
        end = head - at <= capacity ? head : at;
    }
    for (; count < max && at != end; at++) {
        const Slot *slot = &slots[at & (capacity - 1)];
        if (__atomic_load_n(&slot->published, __ATOMIC_ACQUIRE) == (uint32_t)(at + 1)) {
            target[count] = *slot;
            /* As it was checked: what the process does to the word afterwards cannot show. */
            target[count++].published = (uint32_t)(at + 1);
        } else if (!process_gone) {
            break;
        }
    }
    *cursor = at;
    __atomic_store_n(&header->tail, at, __ATOMIC_RELEASE);
    return count;
}
