/* Windows of tracing under a budget: one in each period, at a random place, opened and closed at a
 * step where one is known. Between them kernels and calls are off, call by call. CUPTI stays in the
 * program: taking it out (cuptiFinalize) corrupted the heap of eager programs, too, and made those with
 * CUDA graphs fail (docs/measurements.md). */

#pragma once

#include "cupti_calls.inc.c"
#include "cupti_graphs.inc.c"
#include "cupti_records.inc.c"
#include "trace_sampling.inc.c"

#include <time.h>

static struct {
    uint64_t open_ns, first_ns; /* 0 while none is open */
    uint64_t period, cell;      /* a period ends before another one is begun with */
    uint64_t came;              /* buffers, before it was opened */
    int over;                   /* no more: CUPTI refused us */
} windows;

enum {
    FIRST_WINDOW_NS = 250000000, /* a program that is attached to is shown soon, once seen bare */
    STEP_WAIT_TURNS = 40,
    STEP_WAIT_NS = 5000000,
    LONGEST_PERIOD_S = 3600,
};

/* Asks until what was launched has ended: at most a second, and no longer than CUPTI has been quiet.
 * Nothing is asked for by force before: that would give a running kernel an end it does not have. */
enum { DRAIN_TURNS = 100, DRAIN_TURN_NS = 10000000, DRAIN_QUIET_TURNS = 5, HANDED_QUIET_TURNS = 25 };
static void drain(void)
{
    int enough = hands_over ? HANDED_QUIET_TURNS : DRAIN_QUIET_TURNS;
    uint64_t before = 0;
    for (int turn = 0, quiet = 0; turn < DRAIN_TURNS && quiet < enough; turn++) {
        struct timespec pause = {0, DRAIN_TURN_NS};
        if (!hands_over)
            cupti.ActivityFlushAll(0);
        uint64_t came = __atomic_load_n(&buffers.came, __ATOMIC_RELAXED);
        quiet = came == before ? quiet + 1 : 0;
        before = came;
        nanosleep(&pause, NULL);
    }
}

/* Ends tracing in a program that goes on, in which CUPTI stays: all that was switched on goes off, one
 * by one. What costs is off already. */
static void leave_cupti(void)
{
    switch_calls(0, 0);
    switch_calls(1, 0);
    drain();
    switch_graphs(0);
    cupti.Unsubscribe(subscriber);
    subscriber = NULL;
}

/* Splitmix64: the same on every rank. */
static uint64_t mixed(uint64_t number)
{
    number += 0x9E3779B97F4A7C15ull;
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9ull;
    number = (number ^ number >> 27) * 0x94D049BB133111EBull;
    return number ^ number >> 31;
}

static int is_window(uint64_t now)
{
    uint64_t on = trace_sampling.on, least = on + on / 4;
    if (windows.period == 0 || now / windows.period != windows.cell) {
        uint64_t wish = __atomic_load_n(&header->period_ns, __ATOMIC_RELAXED);
        uint64_t period = wish != 0 ? wish : trace_sampling.period;
        if (period < least)
            period = least;
        if (period > LONGEST_PERIOD_S * 1000000000ull)
            period = LONGEST_PERIOD_S * 1000000000ull;
        windows.period = period;
        windows.cell = now / period;
    }
    uint64_t begins = mixed(windows.cell) % (windows.period - on + 1), at = now % windows.period;
    return at >= begins && at < begins + on;
}

/* At the next step, or soon, where none comes. */
static void switch_at_step(int on)
{
    uint32_t name = __atomic_load_n(&header->step_name, __ATOMIC_RELAXED);
    if (name != 0)
        trace_sampling.range = name;
    __atomic_store_n(&trace_sampling.wanted, on, __ATOMIC_RELEASE);
    for (int turn = 0; trace_sampling.range != 0 && turn < STEP_WAIT_TURNS; turn++) {
        struct timespec pause = {0, STEP_WAIT_NS};
        if (__atomic_load_n(&trace_sampling.tracing, __ATOMIC_RELAXED) == on)
            return;
        nanosleep(&pause, NULL);
    }
    set_tracing(on);
}

/* For the end of a session, with the flushing thread stopped: at a range at which no thread is in a
 * call of CUDA's, or soon, where none comes. A call in whose middle calls are switched off seems never
 * to end for CUPTI: every later one has its id (13.0, H100). */
static void stop_tracing(void)
{
    struct timespec pause = {0, STEP_WAIT_NS};
    trace_sampling.ends = 1;
    trace_sampling.range = ANY_RANGE;
    for (int turn = 0; turn < STEP_WAIT_TURNS; turn++) {
        if (!__atomic_load_n(&trace_sampling.tracing, __ATOMIC_RELAXED))
            return;
        nanosleep(&pause, NULL);
    }
    set_tracing(0);
}

static int subscribe_again(void);

static void open_window(uint64_t now)
{
    write_window(WINDOW_OPENING);
    if (subscriber == NULL && !subscribe_again()) {
        windows.over = 1;
        return;
    }
    windows.came = __atomic_load_n(&buffers.came, __ATOMIC_RELAXED);
    switch_at_step(1);
    windows.open_ns = now;
}

static void close_window(void)
{
    switch_at_step(0);
    drain();
    write_window(WINDOW_CLOSED);
    windows.open_ns = 0;
}

/* Where CUPTI hands over what is full only, a window waits for that, at most so many times as long: of
 * a JAX program that launched 620 kernels a second half a second brought 0 to 151 (H200). */
enum { PATIENCE = 4 };
static int is_to_close(uint64_t now)
{
    uint64_t open = now - windows.open_ns;
    int waits = hands_over && windows.came == __atomic_load_n(&buffers.came, __ATOMIC_RELAXED);
    return open >= trace_sampling.on * (waits ? PATIENCE : 1);
}

/* Called by the flushing thread, ten times a second. */
static void tend_windows(uint64_t now)
{
    if (windows.over)
        return;
    if (windows.open_ns != 0) {
        if (is_to_close(now))
            close_window();
    } else if ((windows.first_ns != 0 && now >= windows.first_ns) || is_window(now)) {
        windows.first_ns = 0;
        open_window(now);
    }
}
