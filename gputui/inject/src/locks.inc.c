/* Every lock of the traced process's side.
 *
 * Their holder is not interrupted by a signal, whose handler would wait for it for ever if it has a
 * range. Nor is the check for errors enough for that: between the moments in which a lock is taken
 * and has its owner's name it refuses nobody. The check is for CUPTI, which calls us back inside our
 * calls. A forked child makes the locks anew: the thread that held one may not exist there. */

#pragma once

#include "common.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    STRINGS_LOCK, SAMPLING_LOCK, DECODE_LOCK, BUFFERS_LOCK, FLUSHER_LOCK, INSTANCES_LOCK,
    PYTHON_LOCK, LOADER_LOCK, LOCKS
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

/* What the calling thread holds, and the signals that it had blocked before. */
static STATIC_THREAD uint64_t signals_before;
static STATIC_THREAD int held_locks;

#define BIT(number) (1ull << ((number) - 1))

static inline void hold_signals(void)
{
    /* A fault is delivered, else it ends the process without its handler. */
    uint64_t all = ~(BIT(SIGSEGV) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGILL) | BIT(SIGTRAP));
    uint64_t before = 0;
    if (held_locks == 0) {
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
        signals_before = before;
    }
    held_locks++;
}

static inline void release_signals(void)
{
    uint64_t before = signals_before;
    if (held_locks > 0 && --held_locks == 0)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
}

/* Whether the lock was given. */
static inline int lock(int which)
{
    hold_signals();
    int given = pthread_mutex_lock(&locks[which]) == 0;
    if (!given)
        release_signals();
    return given;
}

/* The same, within a second. */
static int lock_soon(int which)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    hold_signals();
    int given = pthread_mutex_timedlock(&locks[which], &until) == 0;
    if (!given)
        release_signals();
    return given;
}

static inline void unlock(int which)
{
    pthread_mutex_unlock(&locks[which]);
    release_signals();
}

/* A process is not forked while we hold the loader's lock in dl_iterate_phdr: the child would find it
 * taken for ever (glibc makes others anew, not that one), and hang in its next dlopen, as 209 of 300
 * did beside a thread that did nothing else. Nor does a fork wait for ever: a handler that forks may
 * have interrupted the program's own dl_iterate_phdr, for whose end we wait, or be a constructor's.
 * After wait_for_loader only (libraries.inc.c). */
static void look_at_libraries(int (*see)(struct dl_phdr_info *, size_t, void *), void *data)
{
    if (!lock(LOADER_LOCK))
        return;
    dl_iterate_phdr(see, data);
    unlock(LOADER_LOCK);
}

static STATIC_THREAD int holds_loader;

static void before_fork(void) { holds_loader = lock_soon(LOADER_LOCK); }

static void after_fork(void)
{
    if (holds_loader)
        unlock(LOADER_LOCK);
    holds_loader = 0;
}

static void after_fork_in_child(void)
{
    make_locks();
    if (holds_loader)
        release_signals();
    holds_loader = 0;
}
