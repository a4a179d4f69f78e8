/* Buffers that CUPTI fills. It may crash when it is refused one, so there is no upper bound. */

#pragma once

#include "locks.inc.c"

#include <stdlib.h>

enum { BUFFER_BYTES = 512 << 10, SPARE_BUFFERS = 64 };
static struct {
    int count, out, lost; /* spare ones; CUPTI's; those it was finalized with */
    uint64_t came;
    uint8_t *spare[SPARE_BUFFERS];
} buffers;

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *records)
{
    uint8_t *found = NULL;
    if (lock(BUFFERS_LOCK)) {
        if (buffers.count > 0)
            found = buffers.spare[--buffers.count];
        buffers.out++;
        unlock(BUFFERS_LOCK);
    }
    if (found == NULL)
        found = malloc(BUFFER_BYTES);
    *buffer = found;
    *size = found != NULL ? BUFFER_BYTES : 0;
    *records = 0;
}

static void return_buffer(uint8_t *buffer)
{
    if (lock(BUFFERS_LOCK)) {
        buffers.came++;
        buffers.out -= buffers.out > 0;
        if (buffers.count < SPARE_BUFFERS) {
            buffers.spare[buffers.count++] = buffer;
            buffer = NULL;
        }
        unlock(BUFFERS_LOCK);
    }
    free(buffer);
}

/* CUPTI was finalized: what it still had does not come back, and must not be used again. */
static void forget_buffers(void)
{
    if (lock(BUFFERS_LOCK)) {
        buffers.lost += buffers.out;
        buffers.out = 0;
        unlock(BUFFERS_LOCK);
    }
}
