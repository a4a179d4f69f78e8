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

/* What was dropped and is not in the ring yet: how much, and since when. */
static uint64_t gap, gap_since_ns;

static __attribute__((noinline)) void count_dropped(uint64_t count)
{
    __atomic_fetch_add(&header->dropped, count, __ATOMIC_RELAXED);
    if (__atomic_fetch_add(&gap, count, __ATOMIC_RELAXED) == 0)
        __atomic_store_n(&gap_since_ns, now_ns(), __ATOMIC_RELAXED);
}

/* The loss stands where it was: in front of what is written once there is room again. */
static __attribute__((noinline)) void write_gap(void)
{
    uint64_t number;
    Slot record = {.kind = KIND_LOST, .start = __atomic_load_n(&gap_since_ns, __ATOMIC_RELAXED)};
    if (!reserve(1, &number))
        return;
    record.value = __atomic_exchange_n(&gap, 0, __ATOMIC_RELAXED);
    record.end = now_ns();
    put(number, &record); /* maybe of nothing: another thread was quicker */
}

enum { PREFETCH_SLOTS = 8 };
static inline void emit(const Slot *record)
{
    uint64_t number;
    if (UNLIKELY(__atomic_load_n(&gap, __ATOMIC_RELAXED) != 0))
        write_gap();
    if (LIKELY(reserve(1, &number))) {
        /* The next reservation waits for this record's stores, and those for their cache line:
         * have it here before it is needed. */
        __builtin_prefetch(&slots[(number + PREFETCH_SLOTS) & (capacity - 1)], 1);
        put(number, record);
    } else {
        count_dropped(1);
    }
}
