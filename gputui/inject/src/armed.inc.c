/* Whether this process writes to a ring, and which. */

#pragma once

#include "layout.h"

#include <unistd.h>

static Header *header;
static Slot *slots;
static uint64_t capacity;
static uint64_t tail_seen; /* the reader's tail, looked up again only when the ring seems full */

/* Rings that this process has had: what was written to one is not known to the next. */
static uint32_t session = 1;

/* 1 while this process writes, and 1 while it may take our locks. They live in a page that the
 * kernel zeroes in a forked child, so that no fork, not even a raw clone, ever has two processes
 * writing one ring. */
static uint32_t never_armed[2];
static uint32_t *armed = never_armed;
enum { ARMED, ANSWERS };

static inline int is_armed(void)
{
    return __atomic_load_n(&armed[ARMED], __ATOMIC_ACQUIRE) != 0;
}

/* Whether strings may be interned: also while asleep, so that the handle of a domain or string is
 * never NULL, which nothing could mend later. */
static inline int may_answer(void)
{
    return __atomic_load_n(&armed[ANSWERS], __ATOMIC_ACQUIRE) != 0;
}

/* A forked child keeps out of its parent's ring; that its ranges are not seen is counted there, at
 * the first of them: a child that goes on to exec has none. */
static uint32_t fork_counted;

static __attribute__((noinline)) void count_fork(void)
{
    if (header != NULL && header->pid != (uint32_t)getpid() &&
        __atomic_exchange_n(&fork_counted, 1, __ATOMIC_RELAXED) == 0)
        __atomic_fetch_add(&header->unseen_forks, 1, __ATOMIC_RELAXED);
}

/* Asked for each range and mark. */
static inline int may_write(void)
{
    if (LIKELY(is_armed()))
        return 1;
    if (__atomic_load_n(&fork_counted, __ATOMIC_RELAXED) == 0)
        count_fork();
    return 0;
}

static void disarm(void)
{
    __atomic_store_n(&armed[ARMED], 0, __ATOMIC_RELEASE);
}
