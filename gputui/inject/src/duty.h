/* Kernels may be traced part of the time only: some steps of many, told by the pushes of a range,
 * or some time of every period, told by the flushing thread's clock. */

#pragma once

#include "known_strings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    uint64_t on, period; /* steps, or nanoseconds */
    uint64_t began_ns, since_ns, steps;
    uint32_t range; /* the step's name; 0 where time rules */
    int ready, tracing;
} duty = {.lock = PTHREAD_MUTEX_INITIALIZER, .tracing = 1};

static void switch_activity(int on);

/* Called with the lock held: what was traced or not since the last time. */
static void account_duty(uint64_t now)
{
    if (!duty.ready || now <= duty.since_ns)
        return;
    __atomic_fetch_add(duty.tracing ? &header->traced_ns : &header->paused_ns,
                       now - duty.since_ns, __ATOMIC_RELAXED);
    duty.since_ns = now;
}

static void set_tracing(int on)
{
    pthread_mutex_lock(&duty.lock);
    if (duty.ready) {
        account_duty(now_ns());
        if (duty.tracing != on) {
            uint64_t began = thread_cpu_ns();
            switch_activity(on);
            duty.tracing = on;
            __atomic_fetch_add(&header->callback_ns, thread_cpu_ns() - began, __ATOMIC_RELAXED);
        }
    }
    pthread_mutex_unlock(&duty.lock);
}

static __attribute__((noinline)) void next_step(void)
{
    uint64_t step = __atomic_fetch_add(&duty.steps, 1, __ATOMIC_RELAXED);
    int on = step % duty.period < duty.on;
    if (on != __atomic_load_n(&duty.tracing, __ATOMIC_RELAXED))
        set_tracing(on);
}

/* "steps ON PERIOD NAME" or "time ON_NS PERIOD_NS", as environment.py writes it. */
static void read_duty(void)
{
    const char *text = getenv("GPUTUI_DUTY");
    char *at;
    if (text == NULL)
        return;
    int steps = strncmp(text, "steps ", 6) == 0;
    if (!steps && strncmp(text, "time ", 5) != 0)
        return;
    uint64_t on = strtoull(text + (steps ? 6 : 5), &at, 10), period = strtoull(at, &at, 10);
    if (on == 0 || on >= period || (steps && *at != ' '))
        return;
    duty.on = on;
    duty.period = period;
    if (steps)
        duty.range = intern(at + 1, NAME_BYTES_MAX)->id;
}
