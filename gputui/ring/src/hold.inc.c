/* Records that were taken out of a ring before they could be worked on. A burst makes ten million
 * a second of 64 bytes each: they are kept as what differs from the record of their kind before,
 * 10 to 20 bytes, so that a few seconds of them fit in memory and cost few page faults. */

#pragma once

#include "layout.h"

#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 1 << 20, PAIRS = SLOT_BYTES / 8, SHORTEST = 3, LONGEST = 3 + SLOT_BYTES };

/* The record before of each kind; kinds may share one, which only costs bytes. */
enum { MEMORIES = 32 };
typedef struct {
    uint64_t words[MEMORIES][PAIRS];
} Memories;

typedef struct Chunk {
    struct Chunk *next;
    uint64_t first, count; /* numbers of its records: they follow each other */
    uint64_t used;
    uint8_t bytes[];
} Chunk;
enum { CHUNK_ROOM = CHUNK_BYTES - sizeof(Chunk) - LONGEST };

static Chunk *new_chunk(uint64_t first)
{
    /* Mapped, so that all of it goes back to the system after the burst. */
    Chunk *chunk = map_pages(CHUNK_BYTES);
    if (chunk != NULL)
        chunk->first = first;
    return chunk;
}

static void free_chunk(Chunk *chunk)
{
    munmap(chunk, CHUNK_BYTES);
}

/* Writes a kind, a bit for each word that differs, and those words. */
static inline uint64_t pack(const Slot *slot, Memories *before, uint8_t *out)
{
    uint64_t words[PAIRS], used = SHORTEST;
    uint16_t differing = 0;
    memcpy(words, slot, sizeof words);
    /* Read once: the traced process may scribble on it meanwhile. */
    __asm__ volatile("" ::: "memory");
    words[PAIRS - 1] = (uint32_t)words[PAIRS - 1]; /* `published` follows from the number */
    uint64_t *last = before->words[(uint8_t)words[0] % MEMORIES];
    for (int at = 0; at < PAIRS; at++) {
        uint64_t difference = words[at] ^ last[at];
        if (difference == 0)
            continue;
        uint32_t low = (uint32_t)words[at], high = (uint32_t)(words[at] >> 32);
        uint32_t low_differs = (uint32_t)difference != 0, high_differs = difference >> 32 != 0;
        last[at] = words[at];
        memcpy(out + used, &low, sizeof low);
        used += low_differs * sizeof low;
        memcpy(out + used, &high, sizeof high);
        used += high_differs * sizeof high;
        differing |= (uint16_t)((low_differs | high_differs << 1) << 2 * at);
    }
    out[0] = (uint8_t)words[0];
    memcpy(out + 1, &differing, sizeof differing);
    return used;
}

static inline uint64_t unpack(const uint8_t *bytes, Memories *before, Slot *out)
{
    uint8_t *last = (uint8_t *)before->words[bytes[0] % MEMORIES];
    uint64_t used = SHORTEST;
    uint16_t differing;
    memcpy(&differing, bytes + 1, sizeof differing);
    for (; differing != 0; differing &= (uint16_t)(differing - 1), used += 4)
        memcpy(last + 4 * __builtin_ctz(differing), bytes + used, 4);
    memcpy(out, last, sizeof *out);
    return used;
}
