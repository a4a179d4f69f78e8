/* What is known of the calling thread, and what our calls cost it. */

#pragma once

#include "armed.h"

#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN_DOMAINS = 32 };
typedef struct {
    uint32_t domain, depth;
} Open;
typedef struct {
    uint32_t tid, calls, domains;
    Open open[OPEN_DOMAINS]; /* the first `domains` are in use, or were */
} Thread;
static __thread Thread thread_state;

static inline Thread *this_thread(void)
{
    Thread *thread = &thread_state;
    if (UNLIKELY(thread->tid == 0))
        thread->tid = (uint32_t)syscall(SYS_gettid);
    return thread;
}

/* The cost of one call in SAMPLE_EVERY stands for all of them: timing each would double it. */
static inline uint64_t sample_begin(Thread *thread)
{
    return UNLIKELY(++thread->calls % SAMPLE_EVERY == 0) ? now_ns() : 0;
}

static inline void sample_end(uint64_t began)
{
    if (UNLIKELY(began != 0))
        __atomic_fetch_add(&header->callback_ns, (now_ns() - began) * SAMPLE_EVERY,
                           __ATOMIC_RELAXED);
}
