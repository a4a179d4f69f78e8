/* The thread that asks CUPTI for what has finished, ten times a second. */

#pragma once

#include "cupti_buffers.inc.c"
#include "cupti_functions.inc.c"
#include "devices.inc.c"
#include "libraries.inc.c"
#include "ring_write.inc.c"
#include "trace_sampling.inc.c"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { FLUSH_PERIOD_NS = 100000000, EXIT_WAIT_S = 2 };
static struct {
    pthread_cond_t changed;
    int running, stop;
} flusher; /* guarded by FLUSHER_LOCK */

/* Where XLA is, CUPTI 13.0 must not be asked for records before the end: on an H200 a JAX program whose
 * CUDA graphs copy died of a failed launch in all of 23 runs with cuptiActivityFlushAll ten times a
 * second, CUPTI alone too, and lived in all of 34 without, or without records of copies
 * (docs/measurements.md). It hands over full buffers itself. */
static int see_xla(const char *path, void *loaded)
{
    static const char *const its[] = {"xla_cuda", "xla_extension", "libtensorflow", "pjrt_c_api", NULL};
    const char *file = strrchr(path, '/');
    for (const char *const *name = its; *name != NULL && file != NULL; name++)
        if (strstr(file, *name) != NULL)
            return *(int *)loaded = 1;
    return 0;
}

static void hand_over(void)
{
    if (cupti_flush_period != NULL)
        cupti_flush_period(FLUSH_PERIOD_NS / 1000000);
}

/* Whether it has come since the last look. */
static int finds_xla(void)
{
    static uint64_t seen_kib = UINT64_MAX; /* of code, all of which was looked at */
    uint64_t code_kib = hands_over ? 0 : library_code_kib();
    int loaded = 0;
    if (code_kib != seen_kib && !hands_over)
        see_libraries(see_xla, &loaded);
    seen_kib = code_kib;
    hands_over |= loaded;
    return loaded;
}

static uint64_t flush_written_ns; /* in this ring */

static void flush(uint32_t how)
{
    uint64_t number, now = now_ns();
    Slot record = {.kind = KIND_FLUSH, .start = now};
    int waits = hands_over && how == 0 && subscriber != NULL;
    /* Between windows nothing comes, and nothing is asked for. */
    if (subscriber != NULL && !waits &&
        (!trace_sampling.budget || trace_sampling.tracing || how != 0))
        cupti.ActivityFlushAll(how);
    if (waits && lock(BUFFERS_LOCK)) {
        record.start = complete_ns(now);
        unlock(BUFFERS_LOCK);
        if (record.start < header->start_ns)
            record.start = header->start_ns;
    }
    if (trace_sampling.captures)
        follow_captured();
    if (trace_sampling.period != 0 && trace_sampling.range == 0 && !trace_sampling.budget)
        set_tracing(now - trace_sampling.began_ns < trace_sampling.on || is_traced(now));
    lock(SAMPLING_LOCK);
    account_tracing(now);
    unlock(SAMPLING_LOCK);
    record.value = __atomic_load_n(&header->cupti_dropped, __ATOMIC_RELAXED);
    /* The reader takes what came before the last record but one for complete. */
    if ((!waits || record.start > flush_written_ns) && is_armed() && reserve(1, &number)) {
        put(number, &record);
        flush_written_ns = now;
    }
    __atomic_store_n(&header->heartbeat_ns, now_ns(), __ATOMIC_RELAXED);
}

static void monotonic_after(struct timespec *when, long seconds, long nanoseconds)
{
    clock_gettime(CLOCK_MONOTONIC, when);
    when->tv_sec += seconds;
    when->tv_nsec += nanoseconds;
    if (when->tv_nsec >= 1000000000) {
        when->tv_nsec -= 1000000000;
        when->tv_sec++;
    }
}

static void tend_windows(uint64_t now);

static void *flush_loop(void *unused)
{
    int devices_written = 0;
    prctl(PR_SET_NAME, "gputui-flush", 0, 0, 0);
    lock(FLUSHER_LOCK);
    while (!flusher.stop) {
        struct timespec when;
        monotonic_after(&when, 0, FLUSH_PERIOD_NS);
        while (!flusher.stop &&
               pthread_cond_timedwait(&flusher.changed, &locks[FLUSHER_LOCK], &when) == 0)
            ;
        unlock(FLUSHER_LOCK);
        if (!devices_written && is_armed())
            devices_written = write_devices();
        if (finds_xla() && subscriber != NULL)
            hand_over();
        flush(0);
        if (trace_sampling.budget)
            tend_windows(now_ns());
        lock(FLUSHER_LOCK);
    }
    flusher.running = 0;
    pthread_cond_broadcast(&flusher.changed);
    unlock(FLUSHER_LOCK);
    return unused;
}

static int start_flusher(void)
{
    pthread_t thread;
    pthread_condattr_t clock;
    sigset_t all, before;
    int error;
    if (pthread_condattr_init(&clock) != 0 ||
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) != 0 ||
        pthread_cond_init(&flusher.changed, &clock) != 0)
        return errno;
    /* Signals are the program's own: its handlers run on its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    flusher.running = 1;
    flusher.stop = 0;
    flush_written_ns = 0;
    error = pthread_create(&thread, NULL, flush_loop, NULL);
    if (error == 0)
        pthread_detach(thread);
    else
        flusher.running = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Whether it ran, and has ended. */
static int stop_flusher(void)
{
    struct timespec when;
    int stopped;
    if (!lock(FLUSHER_LOCK))
        return 0;
    if (!flusher.running) {
        unlock(FLUSHER_LOCK);
        return 0;
    }
    flusher.stop = 1;
    pthread_cond_broadcast(&flusher.changed);
    /* Bounded: a flush that hangs must not keep the program from ending. */
    monotonic_after(&when, EXIT_WAIT_S, 0);
    while (flusher.running &&
           pthread_cond_timedwait(&flusher.changed, &locks[FLUSHER_LOCK], &when) == 0)
        ;
    stopped = !flusher.running;
    unlock(FLUSHER_LOCK);
    return stopped;
}

static void stop_cuda(void)
{
    if (stop_flusher())
        flush(FLUSH_FORCED);
}
