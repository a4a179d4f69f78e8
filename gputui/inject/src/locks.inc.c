/* Every lock of the traced process's side.
 *
 * They check for errors: a signal handler that interrupts the holder of one is refused it, where an
 * ordinary lock would wait for ever. A forked child makes them anew: the thread that held one may
 * not exist there. */

#pragma once

#include "common.h"

#include <pthread.h>

enum {
    STRINGS_LOCK, SAMPLING_LOCK, DECODE_LOCK, BUFFERS_LOCK, FLUSHER_LOCK, INSTANCES_LOCK,
    PYTHON_LOCK, LOCKS
};
static pthread_mutex_t locks[LOCKS];

static void make_locks(void)
{
    pthread_mutexattr_t checking;
    pthread_mutexattr_init(&checking);
    pthread_mutexattr_settype(&checking, PTHREAD_MUTEX_ERRORCHECK);
    for (int at = 0; at < LOCKS; at++)
        pthread_mutex_init(&locks[at], &checking);
    pthread_mutexattr_destroy(&checking);
}

/* Whether the lock was given. */
static inline int lock(int which)
{
    return pthread_mutex_lock(&locks[which]) == 0;
}

static inline void unlock(int which)
{
    pthread_mutex_unlock(&locks[which]);
}
