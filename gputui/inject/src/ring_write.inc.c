/* The traced process's side of a ring: writing records. */

#pragma once

#include "armed.inc.c"

#include <string.h>

static inline int reserve(uint64_t count, uint64_t *first)
{
    uint64_t head = __atomic_load_n(&header->head, __ATOMIC_RELAXED);
    do {
        if (UNLIKELY(head + count - __atomic_load_n(&tail_seen, __ATOMIC_ACQUIRE) > capacity)) {
            uint64_t tail = __atomic_load_n(&header->tail, __ATOMIC_ACQUIRE);
            __atomic_store_n(&tail_seen, tail, __ATOMIC_RELEASE);
            if (head + count - tail > capacity) {
                /* Another thread may have moved on since `head` was read. */
                uint64_t again = __atomic_load_n(&header->head, __ATOMIC_RELAXED);
                if (again == head)
                    return 0;
                head = again;
                continue;
            }
        }
        if (LIKELY(__atomic_compare_exchange_n(&header->head, &head, head + count, 0,
                                               __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))) {
            *first = head;
            return 1;
        }
    } while (1);
}

static inline void put(uint64_t number, const void *bytes)
{
    Slot *slot = &slots[number & (capacity - 1)];
    memcpy(slot, bytes, STRING_BYTES_PER_SLOT);
    __atomic_store_n(&slot->published, (uint32_t)(number + 1), __ATOMIC_RELEASE);
}

static inline void count_dropped(uint64_t count)
{
    __atomic_fetch_add(&header->dropped, count, __ATOMIC_RELAXED);
}

enum { PREFETCH_SLOTS = 8 };
static inline void emit(const Slot *record)
{
    uint64_t number;
    if (LIKELY(reserve(1, &number))) {
        /* The next reservation waits for this record's stores, and those for their cache line:
         * have it here before it is needed. */
        __builtin_prefetch(&slots[(number + PREFETCH_SLOTS) & (capacity - 1)], 1);
        put(number, record);
    } else {
        count_dropped(1);
    }
}
