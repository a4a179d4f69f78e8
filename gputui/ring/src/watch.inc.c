/* The monitor's watch over the rings of a run: it empties those that fill. It runs in a thread of
 * the monitor's, outside the interpreter's lock, since the interpreter may be busy for longer than
 * a ring holds: 16 MiB are full after 25 ms of ten million records a second. */

#pragma once

#include "read.inc.c"

#include <limits.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RINGS_WATCHED = 4096 };

/* How often is looked, and what part of a ring is enough to take it out. During a burst, and for
 * BUSY_PEEKS after it, little and often: a thread that hardly runs is let run at once. */
enum { PEEK_MS = 10, FULL_PART = 16, BUSY_PEEK_MS = 1, BUSY_PART = 256 };
enum { BUSY_PEEKS = 100, HURRIED = -10 };

typedef struct {
    pthread_mutex_t lock;
    uint32_t stopping;
    uint64_t bytes;
    char folder[PATH_MAX];
    int changes; /* inotify of the folder; -1 if the system has no more of them */
    int count;
    Ring *rings[RINGS_WATCHED];
} Watch;

/* `bytes` is what all rings of this process may hold. */
EXPORT Watch *gputui_watch_open(const char *folder, uint64_t bytes)
{
    Watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return NULL;
    pthread_mutex_init(&watch->lock, NULL);
    watch->bytes = bytes;
    strncpy(watch->folder, folder, sizeof watch->folder - 1);
    watch->changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch->changes >= 0)
        (void)inotify_add_watch(watch->changes, watch->folder, IN_MOVED_TO);
    return watch;
}

/* A ring more than can be watched is read all the same. */
EXPORT void gputui_watch_add(Watch *watch, Ring *ring)
{
    pthread_mutex_lock(&watch->lock);
    if (watch->count < RINGS_WATCHED)
        watch->rings[watch->count++] = ring;
    pthread_mutex_unlock(&watch->lock);
}

/* Before the ring is closed. */
EXPORT void gputui_watch_remove(Watch *watch, Ring *ring)
{
    pthread_mutex_lock(&watch->lock);
    for (int at = 0; at < watch->count; at++)
        if (watch->rings[at] == ring)
            watch->rings[at--] = watch->rings[--watch->count];
    pthread_mutex_unlock(&watch->lock);
}

static uint64_t hold_what_fills(Watch *watch, int part)
{
    uint64_t taken = 0;
    pthread_mutex_lock(&watch->lock);
    for (int at = 0; at < watch->count; at++)
        if (waiting_in(watch->rings[at]) > watch->rings[at]->capacity / (uint64_t)part)
            taken += gputui_ring_hold(watch->rings[at], watch->bytes);
    pthread_mutex_unlock(&watch->lock);
    return taken;
}

static int64_t changed_ns(const char *folder)
{
    struct stat status;
    if (stat(folder, &status) != 0)
        return 0;
    return status.st_mtim.tv_sec * 1000000000ll + status.st_mtim.tv_nsec;
}

/* Sleeps, but not on while a process makes its ring. */
static void wait_ms(const Watch *watch, int milliseconds)
{
    char events[4096];
    struct pollfd change = {.fd = watch->changes, .events = POLLIN};
    if (poll(&change, 1, milliseconds) > 0)
        while (read(watch->changes, events, sizeof events) > 0)
            ;
}

/* Watches until something came or went in the folder since `seen_ns` (1), or until stopped (0). */
EXPORT int gputui_watch_run(Watch *watch, int64_t seen_ns)
{
    int busy = 0;
    /* Where allowed: if all cores are busy, it would wait for longer than a ring lasts. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), HURRIED);
    while (!__atomic_load_n(&watch->stopping, __ATOMIC_ACQUIRE)) {
        if (hold_what_fills(watch, busy > 0 ? BUSY_PART : FULL_PART) > 0)
            busy = BUSY_PEEKS;
        else if (busy > 0)
            busy--;
        if (changed_ns(watch->folder) != seen_ns)
            return 1;
        wait_ms(watch, busy > 0 ? BUSY_PEEK_MS : PEEK_MS);
    }
    return 0;
}

EXPORT void gputui_watch_stop(Watch *watch)
{
    __atomic_store_n(&watch->stopping, 1, __ATOMIC_RELEASE);
}

EXPORT void gputui_watch_close(Watch *watch)
{
    if (watch->changes >= 0)
        close(watch->changes);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
