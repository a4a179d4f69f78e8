/* Buffers that CUPTI fills. It may crash when it is refused one, so there is no upper bound. */

#pragma once

#include "armed.inc.c"
#include "locks.inc.c"

#include <stdlib.h>

/* Whether CUPTI hands over full buffers by itself and is asked for none before the end: where XLA is
 * (cupti_flush.inc.c). They are small there, since what is in the last ones is shown late, and lost in
 * a process that ends without its handlers, or is left. */
static int hands_over;

enum {
    BUFFER_BYTES = 512 << 10,
    HANDED_BUFFER_BYTES = 32 << 10, /* as in NVIDIA's examples */
    SPARE_BUFFERS = 64,
    LENT_BUFFERS = 256,
};

/* A buffer lent so long before is taken for one that a thread keeps, which launches no more. */
#define KEPT_NS 2000000000ull
static struct {
    int count;
    uint64_t came;
    uint8_t *spare[SPARE_BUFFERS];
    struct {
        uint8_t *buffer;
        uint64_t since_ns;
        uint32_t session, thread;
    } lent[LENT_BUFFERS]; /* further ones are not noted */
    uint64_t complete_ns;
} buffers;

/* Its records are of what was launched since it was lent: what its thread launched before has come. */
static void note_lent(uint8_t *buffer, uint64_t since_ns)
{
    for (int at = 0; at < LENT_BUFFERS; at++)
        if (buffers.lent[at].buffer == NULL) {
            buffers.lent[at].buffer = buffer;
            buffers.lent[at].since_ns = since_ns;
            buffers.lent[at].session = session;
            buffers.lent[at].thread = (uint32_t)syscall(SYS_gettid);
            return;
        }
}

/* Whether it was lent for a ring before this one: its first records are of that. */
static int is_of_earlier_ring(const uint8_t *buffer)
{
    int earlier = 0;
    if (lock(BUFFERS_LOCK)) {
        for (int at = 0; at < LENT_BUFFERS; at++)
            if (buffers.lent[at].buffer == buffer)
                earlier = buffers.lent[at].session != session;
        unlock(BUFFERS_LOCK);
    }
    return earlier;
}

/* Whether its thread has a later one: full, it waits for what runs on, and holds what has ended. */
static int is_full(int which)
{
    if (buffers.lent[which].since_ns + KEPT_NS < buffers.complete_ns)
        return 0;
    for (int at = 0; at < LENT_BUFFERS; at++)
        if (buffers.lent[at].buffer != NULL && buffers.lent[at].thread == buffers.lent[which].thread &&
            buffers.lent[at].since_ns > buffers.lent[which].since_ns)
            return 1;
    return 0;
}

/* Before when all that has ended has come, but what threads launched that have filled no buffer. */
static uint64_t complete_ns(uint64_t now)
{
    uint64_t until = buffers.complete_ns != 0 ? buffers.complete_ns : now;
    for (int at = 0; at < LENT_BUFFERS; at++)
        if (buffers.lent[at].buffer != NULL && buffers.lent[at].since_ns < until &&
            (buffers.complete_ns == 0 || is_full(at)))
            until = buffers.lent[at].since_ns;
    return until;
}

static void note_returned(const uint8_t *buffer)
{
    for (int at = 0; at < LENT_BUFFERS; at++)
        if (buffers.lent[at].buffer == buffer) {
            if (buffers.lent[at].since_ns > buffers.complete_ns)
                buffers.complete_ns = buffers.lent[at].since_ns;
            buffers.lent[at].buffer = NULL;
            return;
        }
}

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *records)
{
    size_t bytes = hands_over ? HANDED_BUFFER_BYTES : BUFFER_BYTES; /* never larger again */
    uint8_t *found = NULL;
    if (lock(BUFFERS_LOCK)) {
        if (buffers.count > 0)
            found = buffers.spare[--buffers.count];
        unlock(BUFFERS_LOCK);
    }
    if (found == NULL)
        found = malloc(bytes);
    if (found != NULL && lock(BUFFERS_LOCK)) {
        note_lent(found, now_ns());
        unlock(BUFFERS_LOCK);
    }
    *buffer = found;
    *size = found != NULL ? bytes : 0;
    *records = 0;
}

static void return_buffer(uint8_t *buffer)
{
    if (lock(BUFFERS_LOCK)) {
        buffers.came++;
        note_returned(buffer);
        if (buffers.count < SPARE_BUFFERS) {
            buffers.spare[buffers.count++] = buffer;
            buffer = NULL;
        }
        unlock(BUFFERS_LOCK);
    }
    free(buffer);
}
