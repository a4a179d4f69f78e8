/* The program that made a ring can cut its file while the monitor has it mapped. Touching what is
 * gone raises SIGBUS, which would end the monitor: zeros take its place, in which no record is. */

#pragma once

#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { RINGS_GUARDED = 4096 };
static struct {
    uintptr_t first, end; /* 0 where none is */
} guarded[RINGS_GUARDED];
static struct sigaction bus_error_before;
static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;

static int put_zeros(uintptr_t at)
{
    uintptr_t page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    for (int ring = 0; ring < RINGS_GUARDED; ring++) {
        uintptr_t first = __atomic_load_n(&guarded[ring].first, __ATOMIC_ACQUIRE);
        uintptr_t end = guarded[ring].end;
        if (first != 0 && at >= first && at < end)
            return mmap((void *)page, end - page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return 0;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    int sent = info->si_code <= 0; /* by somebody: no memory is missing */
    if (!sent && put_zeros((uintptr_t)info->si_addr)) {
        errno = saved_errno;
    } else if (bus_error_before.sa_flags & SA_SIGINFO) {
        bus_error_before.sa_sigaction(number, info, context);
    } else {
        /* As if we were not there: the access is tried again, and ends as it would have. */
        sigaction(SIGBUS, &bus_error_before, NULL);
        if (sent)
            raise(number);
    }
}

static void catch_bus_errors(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &bus_error_before);
}

/* From now on, until `gputui_unguard`: before anything in the map is read. A ring more than can be
 * guarded is read all the same. */
EXPORT void gputui_guard(const void *map, uint64_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, catch_bus_errors);
    pthread_mutex_lock(&guard_lock);
    for (int ring = 0; ring < RINGS_GUARDED; ring++)
        if (guarded[ring].first == 0) {
            guarded[ring].end = (uintptr_t)map + size;
            __atomic_store_n(&guarded[ring].first, (uintptr_t)map, __ATOMIC_RELEASE);
            break;
        }
    pthread_mutex_unlock(&guard_lock);
}

EXPORT void gputui_unguard(const void *map)
{
    pthread_mutex_lock(&guard_lock);
    for (int ring = 0; ring < RINGS_GUARDED; ring++)
        if (guarded[ring].first == (uintptr_t)map)
            __atomic_store_n(&guarded[ring].first, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&guard_lock);
}
