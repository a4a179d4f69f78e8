/* Kernels may be traced part of the time only: some steps of many, counted by the pushes of a
 * range; some time of every period, by the flushing thread's clock: the first `on` ns, and then in
 * windows that begin at multiples of the period since the epoch; under a budget, in windows
 * of their own (windows.inc.c); or only in a captured part: inside the ranges of a name, during the
 * first of them, or from cudaProfilerStart to cudaProfilerStop. */

#pragma once

#include "known_strings.inc.c"
#include "locks.inc.c"
#include "process.inc.c"

#include <stdlib.h>
#include <string.h>

static struct {
    uint64_t on, period; /* steps, or nanoseconds */
    uint64_t began_ns, since_ns, steps;
    uint32_t range; /* the step's name, or ANY_RANGE; 0 where time rules */
    int budget, ready, tracing, ends;
    int wanted; /* under a budget: what the next step is to switch to */
    int captures;
} trace_sampling = {.tracing = 1};

enum { ANY_RANGE = 0x7FFFFFFF };
enum { CAPTURES_ALL, CAPTURES_RANGE, CAPTURES_FIRST, CAPTURES_PROFILED };

/* The captured part, while the program is in it: where a range opened it, that range, by its thread,
 * domain and level or, of ranges with a start and an end, by its id. */
static struct {
    int is_open;
    uint32_t thread, domain, depth;
    uint64_t id;
} captured;

static int calls_open; /* by threads, of those that are seen by callbacks (cupti_calls.inc.c) */

static void switch_activity(int on);

/* Whether step `number`, or the moment `number` ns after the epoch, is to be traced: so all ranks of
 * a job trace at the same moments, and their collectives can be matched. */
static int is_traced(uint64_t number)
{
    return number % trace_sampling.period < trace_sampling.on;
}

/* Called with the lock held: what was traced or not since the last time. */
static void account_tracing(uint64_t now)
{
    if (!trace_sampling.ready || now <= trace_sampling.since_ns)
        return;
    __atomic_fetch_add(trace_sampling.tracing ? &header->traced_ns : &header->paused_ns,
                       now - trace_sampling.since_ns, __ATOMIC_RELAXED);
    trace_sampling.since_ns = now;
}

/* Stands in the ring where tracing began or ended: what was launched in between is known whole. */
static void write_window(uint8_t what)
{
    Slot record = {.kind = KIND_WINDOW, .sub = what, .start = now_ns()};
    if (is_armed())
        emit(&record);
}

/* Called with the lock held. */
static void switch_tracing(int on)
{
    uint64_t began = thread_cpu_ns();
    account_tracing(now_ns());
    if (!on)
        write_window(WINDOW_OFF);
    switch_activity(on);
    if (on)
        write_window(WINDOW_ON);
    __atomic_store_n(&trace_sampling.tracing, on, __ATOMIC_RELAXED);
    __atomic_fetch_add(&header->callback_ns, thread_cpu_ns() - began, __ATOMIC_RELAXED);
}

/* A step of a signal handler that interrupts a switch makes none: a step after it will. */
static void set_tracing(int on)
{
    if (!lock(SAMPLING_LOCK))
        return;
    if (trace_sampling.ready && trace_sampling.tracing != on)
        switch_tracing(on);
    unlock(SAMPLING_LOCK);
}

static __attribute__((noinline)) void next_step(void)
{
    uint64_t step = __atomic_fetch_add(&trace_sampling.steps, 1, __ATOMIC_RELAXED);
    int on = trace_sampling.ends     ? 0
             : trace_sampling.budget ? __atomic_load_n(&trace_sampling.wanted, __ATOMIC_ACQUIRE)
                                     : is_traced(step);
    if (on != __atomic_load_n(&trace_sampling.tracing, __ATOMIC_RELAXED) &&
        (on || __atomic_load_n(&calls_open, __ATOMIC_RELAXED) <= 0))
        set_tracing(on);
}

/* Switches to what the program is in. Asked with the lock held: the flushing thread, which does what
 * a signal handler could not, must not undo what a range has just begun. A call in whose middle calls
 * are switched off seems never to end for CUPTI where callbacks see them: it, too, switches later. */
static void follow_captured(void)
{
    if (!lock(SAMPLING_LOCK))
        return;
    int on = __atomic_load_n(&captured.is_open, __ATOMIC_ACQUIRE);
    if (trace_sampling.ready && trace_sampling.tracing != on &&
        (on || __atomic_load_n(&calls_open, __ATOMIC_RELAXED) <= 0))
        switch_tracing(on);
    unlock(SAMPLING_LOCK);
}

/* Whether the captured part begins here: no other range has opened it. */
static int begin_captured(void)
{
    if (__atomic_exchange_n(&captured.is_open, 1, __ATOMIC_ACQ_REL))
        return 0;
    follow_captured();
    return 1;
}

static __attribute__((noinline)) void end_captured(void)
{
    captured.thread = 0;
    captured.id = 0;
    __atomic_store_n(&captured.is_open, 0, __ATOMIC_RELEASE);
    follow_captured();
}

/* At the beginning of a range of the name: a thread's, in a domain, on a level; or one with an id. */
static __attribute__((noinline)) void meet_captured(uint32_t thread, uint32_t domain, uint32_t depth,
                                                    uint64_t id)
{
    uint64_t number = __atomic_fetch_add(&trace_sampling.steps, 1, __ATOMIC_RELAXED);
    int last = trace_sampling.captures == CAPTURES_RANGE || number + 1 == trace_sampling.on;
    if (trace_sampling.ends ||
        (trace_sampling.captures == CAPTURES_FIRST && number >= trace_sampling.on))
        return;
    int begins = begin_captured();
    if (last && (begins || trace_sampling.captures == CAPTURES_FIRST)) {
        captured.domain = domain;
        captured.depth = depth;
        captured.id = id;
        captured.thread = id == 0 ? thread : 0; /* last: a pop asks for it first */
    }
}

/* "range NAME", "first COUNT NAME" or "profiler". */
static int read_captured(const char *text)
{
    int first = strncmp(text, "first ", 6) == 0, range = strncmp(text, "range ", 6) == 0;
    char *at = NULL;
    memset(&captured, 0, sizeof captured);
    if (first) {
        trace_sampling.on = strtoull(text + 6, &at, 10);
        if (trace_sampling.on == 0 || *at != ' ' || at[1] == '\0')
            return 0;
    }
    if (range && text[6] == '\0')
        return 0;
    if (first || range)
        trace_sampling.range = intern(first ? at + 1 : text + 6, NAME_BYTES_MAX)->id;
    else if (strcmp(text, "profiler") != 0)
        return 0;
    trace_sampling.captures = first ? CAPTURES_FIRST : range ? CAPTURES_RANGE : CAPTURES_PROFILED;
    return 1;
}

/* "steps ON PERIOD NAME", "time ON_NS PERIOD_NS", "budget ON_NS PERIOD_NS [NAME]" or a captured
 * part, as gputui/inject/__init__.py writes it. */
static void read_trace_sampling(void)
{
    const char *text = wishes.sampling;
    char *at;
    memset(&trace_sampling, 0, sizeof trace_sampling);
    trace_sampling.tracing = 1;
    if (read_captured(text))
        return;
    int steps = strncmp(text, "steps ", 6) == 0, budget = strncmp(text, "budget ", 7) == 0;
    if (!steps && !budget && strncmp(text, "time ", 5) != 0)
        return;
    uint64_t on = strtoull(strchr(text, ' '), &at, 10), period = strtoull(at, &at, 10);
    if (on == 0 || on >= period || (steps && *at != ' '))
        return;
    trace_sampling.on = on;
    trace_sampling.period = period;
    trace_sampling.budget = budget;
    trace_sampling.tracing = !budget;
    if (*at == ' ')
        trace_sampling.range = intern(at + 1, NAME_BYTES_MAX)->id;
}
