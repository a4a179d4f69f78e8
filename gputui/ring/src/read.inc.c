/* Reading a ring. */

#pragma once

#include "guard.inc.c"
#include "hold.inc.c"

#include <pthread.h>
#include <stdlib.h>

/* `capacity` and `cursor` are the reader's own: nothing that the traced process scribbles in the
 * header leads out of the map. The oldest records are in `taken`, then come `oldest` to `newest`,
 * then those in the ring. */
typedef struct {
    pthread_mutex_t lock;
    Header *header;
    const Slot *slots;
    uint64_t capacity, cursor;
    Chunk *oldest, *newest;
    uint64_t held; /* records */
    Memories writing;
    /* Only the reader's. */
    Chunk *taken;
    uint64_t read_records, read_bytes;
    Memories reading;
} Ring;

static uint64_t chunks_held; /* of all rings */

/* The caller guards the map as long as the ring is open. */
EXPORT Ring *gputui_ring_open(void *map, uint64_t capacity, uint64_t cursor)
{
    Ring *ring = calloc(1, sizeof *ring);
    if (ring == NULL)
        return NULL;
    pthread_mutex_init(&ring->lock, NULL);
    ring->header = map;
    ring->slots = (const Slot *)((const char *)map + HEADER_BYTES);
    ring->capacity = capacity;
    ring->cursor = cursor;
    return ring;
}

static inline int is_published(const Ring *ring, uint64_t number)
{
    const Slot *slot = &ring->slots[number & (ring->capacity - 1)];
    return __atomic_load_n(&slot->published, __ATOMIC_ACQUIRE) == (uint32_t)(number + 1);
}

static inline void move_cursor(Ring *ring, uint64_t cursor)
{
    __atomic_store_n(&ring->cursor, cursor, __ATOMIC_RELEASE);
    __atomic_store_n(&ring->header->tail, cursor, __ATOMIC_RELEASE);
}

static uint64_t waiting_in(const Ring *ring)
{
    return __atomic_load_n(&ring->header->head, __ATOMIC_RELAXED) -
           __atomic_load_n(&ring->cursor, __ATOMIC_ACQUIRE);
}

/* Takes the oldest chunk for the reader, also the one that is still being filled: the lock is held
 * for no longer, since what waits for it keeps a ring from overflowing. */
static void take_oldest(Ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->taken = ring->oldest;
    if (ring->taken != NULL)
        ring->oldest = ring->taken->next;
    if (ring->oldest == NULL)
        ring->newest = NULL;
    pthread_mutex_unlock(&ring->lock);
    ring->read_records = ring->read_bytes = 0;
    memset(&ring->reading, 0, sizeof ring->reading);
}

static void drop_taken(Ring *ring)
{
    free_chunk(ring->taken);
    ring->taken = NULL;
    __atomic_fetch_sub(&chunks_held, 1, __ATOMIC_RELAXED);
}

static uint64_t read_held(Ring *ring, Slot *out, uint64_t max)
{
    uint64_t count = 0;
    while (count < max) {
        if (ring->taken == NULL)
            take_oldest(ring);
        const Chunk *chunk = ring->taken;
        if (chunk == NULL)
            break;
        for (; count < max && ring->read_records < chunk->count; count++, ring->read_records++) {
            ring->read_bytes +=
                unpack(chunk->bytes + ring->read_bytes, &ring->reading, &out[count]);
            out[count].published = (uint32_t)(chunk->first + ring->read_records + 1);
        }
        if (ring->read_records == chunk->count)
            drop_taken(ring);
    }
    __atomic_fetch_sub(&ring->held, count, __ATOMIC_RELAXED);
    return count;
}

static void read_slots(Ring *ring, Slot *out, uint64_t max, uint64_t *count, int process_gone)
{
    uint64_t at = ring->cursor, end = at + ring->capacity;
    if (process_gone) {
        uint64_t head = __atomic_load_n(&ring->header->head, __ATOMIC_ACQUIRE);
        end = head - at <= ring->capacity ? head : at;
    }
    for (; *count < max && at != end; at++) {
        if (is_published(ring, at)) {
            out[*count] = ring->slots[at & (ring->capacity - 1)];
            /* As it was checked: what the process does to the word afterwards cannot show. */
            out[(*count)++].published = (uint32_t)(at + 1);
        } else if (!process_gone) {
            break;
        }
    }
    move_cursor(ring, at);
}

/* The next published records, in order, at most `max`; returns how many. `process_gone` also
 * passes over slots that were reserved but never published, which only a killed thread leaves. */
EXPORT uint64_t gputui_ring_read(Ring *ring, Slot *out, uint64_t max, int process_gone)
{
    uint64_t count = 0;
    for (int done = 0; !done;) {
        count += read_held(ring, out + count, max - count);
        pthread_mutex_lock(&ring->lock);
        done = count == max || ring->oldest == NULL; /* else more was held just now */
        if (count < max && done)
            read_slots(ring, out, max, &count, process_gone);
        pthread_mutex_unlock(&ring->lock);
    }
    return count;
}

/* How many records wait to be read, in the ring and out of it. The ring first: what is taken out
 * of it meanwhile counts twice, rather than not at all. */
EXPORT uint64_t gputui_ring_waiting(Ring *ring)
{
    uint64_t waiting = waiting_in(ring);
    return __atomic_load_n(&ring->held, __ATOMIC_RELAXED) +
           (waiting <= ring->capacity ? waiting : ring->capacity);
}

static void leave_to_program(Ring *ring, uint64_t taken)
{
    __atomic_fetch_add(&ring->held, taken - ring->cursor, __ATOMIC_RELAXED);
    move_cursor(ring, taken);
}

/* Takes what is published out of the ring and holds it, while all rings of this process together
 * hold less than `bytes`; returns how many. What finds no room stays in the ring. */
EXPORT uint64_t gputui_ring_hold(Ring *ring, uint64_t bytes)
{
    uint64_t most = bytes / CHUNK_BYTES;
    pthread_mutex_lock(&ring->lock);
    uint64_t began = ring->cursor, at = began, end = at + ring->capacity;
    for (; at != end && is_published(ring, at); at++) {
        Chunk *chunk = ring->newest;
        if (chunk == NULL || chunk->used > CHUNK_ROOM || chunk->first + chunk->count != at) {
            if (__atomic_load_n(&chunks_held, __ATOMIC_RELAXED) >= most ||
                (chunk = new_chunk(at)) == NULL)
                break;
            __atomic_fetch_add(&chunks_held, 1, __ATOMIC_RELAXED);
            memset(&ring->writing, 0, sizeof ring->writing);
            if (ring->newest != NULL)
                ring->newest->next = chunk;
            else
                ring->oldest = chunk;
            ring->newest = chunk;
            leave_to_program(ring, at);
        }
        chunk->used += pack(&ring->slots[at & (ring->capacity - 1)], &ring->writing,
                            chunk->bytes + chunk->used);
        chunk->count++;
    }
    leave_to_program(ring, at);
    pthread_mutex_unlock(&ring->lock);
    return at - began;
}

EXPORT void gputui_ring_close(Ring *ring)
{
    do {
        if (ring->taken != NULL)
            drop_taken(ring);
        take_oldest(ring);
    } while (ring->taken != NULL);
    pthread_mutex_destroy(&ring->lock);
    free(ring);
}
