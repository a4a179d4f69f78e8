/* Buffers that CUPTI fills. It may crash when it is refused one, so there is no upper bound. */

#pragma once

#include "locks.inc.c"

#include <stdlib.h>

enum { BUFFER_BYTES = 512 << 10, SPARE_BUFFERS = 64 };
static struct {
    int count;
    uint64_t came;
    uint8_t *spare[SPARE_BUFFERS];
} buffers;

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *records)
{
    uint8_t *found = NULL;
    if (lock(BUFFERS_LOCK)) {
        if (buffers.count > 0)
            found = buffers.spare[--buffers.count];
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
        if (buffers.count < SPARE_BUFFERS) {
            buffers.spare[buffers.count++] = buffer;
            buffer = NULL;
        }
        unlock(BUFFERS_LOCK);
    }
    free(buffer);
}
