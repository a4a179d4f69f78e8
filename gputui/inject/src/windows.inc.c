/* Windows of tracing under a budget: one in each period, at a random place, opened and closed at a
 * step where one is known. Between them CUPTI is out of the program, as far as that is safe. */

#pragma once

#include "cupti_calls.inc.c"
#include "cupti_graphs.inc.c"
#include "cupti_records.inc.c"
#include "trace_sampling.inc.c"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct {
    uint64_t open_ns, first_ns; /* 0 while none is open */
    uint64_t period, cell;      /* a period ends before another one is begun with */
    int over;                   /* no more: CUPTI refused us */
} windows;

enum {
    FIRST_WINDOW_NS = 500000000, /* a program that is attached to is shown soon, once seen bare */
    STEP_WAIT_TURNS = 40,
    STEP_WAIT_NS = 5000000,
    LONGEST_PERIOD_S = 3600,
    FIRST_WITH_GRAPHS = 24, /* 12.6: before, cuptiFinalize crashed programs that have graphs */
    LOST_BUFFERS_MAX = 16,
};

/* Graphs are numbered as they are made. If the number of one that we make is that of our own count,
 * nobody else ever made one: only then CUPTI is finalized. With a CUDA graph in the program that
 * ended in an illegal memory access, 5 times of 5 (CUDA 13.0, H100). */
enum { FIRST_GRAPH_ID = 1 };
static uint32_t own_graphs;

static int count_graph(uint32_t *id)
{
    int (*create)(void **, unsigned) = NULL, (*destroy)(void *) = NULL;
    void *graph = NULL, *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    int known = 0;
    if (driver == NULL || cupti_graphs.GetGraphId == NULL) {
        if (driver != NULL)
            dlclose(driver);
        return 0;
    }
    *(void **)&create = dlsym(driver, "cuGraphCreate");
    *(void **)&destroy = dlsym(driver, "cuGraphDestroy");
    makes_graph = 1;
    if (create != NULL && destroy != NULL && create(&graph, 0) == 0) {
        known = graph_id(graph, id);
        own_graphs++;
        destroy(graph);
    }
    makes_graph = 0;
    dlclose(driver);
    return known;
}

/* How CUPTI may be left (layout.h). */
static uint32_t way_to_leave(void)
{
    uint32_t version = header->cupti_version, id = 0, expected = FIRST_GRAPH_ID + own_graphs;
    if (!trace_sampling.finalizes)
        return LEFT_UNPROVEN;
    if (version < FIRST_WITH_GRAPHS || cupti_finalize == NULL)
        return LEFT_OLD_CUPTI;
    if (__atomic_load_n(&graphs_ran, __ATOMIC_RELAXED))
        return LEFT_GRAPHS;
    if (buffers.lost > LOST_BUFFERS_MAX)
        return LEFT_BUFFERS;
    if (__atomic_load_n(&launcher, __ATOMIC_RELAXED) == SEVERAL)
        return LEFT_THREADS;
    if (cupti_graphs.EnableCallback == NULL || cupti_graphs.GetGraphNodeId == NULL ||
        !count_graph(&id) || id < expected)
        return LEFT_UNCOUNTED;
    return id == expected ? LEFT_FINALIZED : LEFT_GRAPHS;
}

/* Asks until what was launched has ended: at most a second, and no longer than CUPTI has been quiet.
 * Nothing is asked for by force before: that would give a running kernel an end it does not have. */
enum { DRAIN_TURNS = 100, DRAIN_TURN_NS = 10000000, DRAIN_QUIET_TURNS = 5 };
static void drain(void)
{
    uint64_t before = 0;
    for (int turn = 0, quiet = 0; turn < DRAIN_TURNS && quiet < DRAIN_QUIET_TURNS; turn++) {
        struct timespec pause = {0, DRAIN_TURN_NS};
        cupti.ActivityFlushAll(0);
        uint64_t came = __atomic_load_n(&buffers.came, __ATOMIC_RELAXED);
        quiet = came == before ? quiet + 1 : 0;
        before = came;
        nanosleep(&pause, NULL);
    }
}

/* CUPTI is finalized by the thread that launches, at the end of a call of its: so it cannot be making
 * a graph meanwhile, which would end as above. Its graphs up to there were seen. */
enum { NOBODY_LEAVES, MAY_LEAVE, LEAVES, HAS_LEFT };
enum { SITE_EXIT = 1, LEAVE_TURNS = 200, LEAVE_TURN_NS = 5000000 };
static uint32_t leaving;

static void finalize(void)
{
    cupti.Unsubscribe(subscriber);
    subscriber = NULL;
    cupti_finalize();
}

static int begin_to_leave(void)
{
    uint32_t may = MAY_LEAVE;
    return __atomic_compare_exchange_n(&leaving, &may, LEAVES, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static void see_end_of_call(const void *details)
{
    uint32_t site; /* the first field of CUpti_CallbackData */
    memcpy(&site, details, sizeof site);
    if (site != SITE_EXIT ||
        (uint32_t)syscall(SYS_gettid) != __atomic_load_n(&launcher, __ATOMIC_RELAXED) ||
        __atomic_load_n(&graphs_ran, __ATOMIC_RELAXED) || !begin_to_leave())
        return;
    finalize();
    __atomic_store_n(&leaving, HAS_LEFT, __ATOMIC_RELEASE);
}

/* Whether CUPTI was finalized: not if a graph was made meanwhile. Where no call comes in a second,
 * nobody launches: then by this thread. */
static int finalize_at_a_call(void)
{
    struct timespec pause = {0, LEAVE_TURN_NS};
    __atomic_store_n(&leaving, MAY_LEAVE, __ATOMIC_RELEASE);
    for (uint32_t call = 1; call < CALLS; call++)
        if (call_names[0][call] != NULL && call_made[0][call])
            cupti_graphs.EnableCallback(1, subscriber, DOMAIN_RUNTIME, call);
    for (int turn = 0; turn < LEAVE_TURNS; turn++) {
        if (__atomic_load_n(&leaving, __ATOMIC_ACQUIRE) == HAS_LEFT ||
            __atomic_load_n(&graphs_ran, __ATOMIC_RELAXED))
            break;
        nanosleep(&pause, NULL);
    }
    if (begin_to_leave()) {
        if (__atomic_load_n(&graphs_ran, __ATOMIC_RELAXED)) {
            leaving = NOBODY_LEAVES;
            return 0;
        }
        finalize();
        leaving = HAS_LEFT;
    }
    while (__atomic_load_n(&leaving, __ATOMIC_ACQUIRE) != HAS_LEFT)
        nanosleep(&pause, NULL);
    return 1;
}

/* Ends tracing in a program that goes on; how CUPTI was left. Its kinds are off already. */
static uint32_t leave_cupti(void)
{
    cupti.ActivityDisable(ACTIVITY_RUNTIME);
    cupti.ActivityDisable(ACTIVITY_DRIVER);
    drain();
    uint32_t way = way_to_leave();
    if (way == LEFT_FINALIZED) {
        cupti.ActivityFlushAll(FLUSH_FORCED); /* gives back the buffers, which else are lost */
        if (finalize_at_a_call()) {
            forget_buffers();
            return way;
        }
        way = LEFT_GRAPHS;
    }
    cupti.Unsubscribe(subscriber);
    subscriber = NULL;
    return way;
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

static int subscribe_again(void);

static void open_window(uint64_t now)
{
    write_window(WINDOW_OPENING, 0);
    __atomic_store_n(&launcher, 0, __ATOMIC_RELAXED);
    if (!subscribe_again()) {
        windows.over = 1;
        return;
    }
    switch_at_step(1);
    windows.open_ns = now;
}

static void close_window(void)
{
    switch_at_step(0);
    write_window(WINDOW_CLOSED, leave_cupti());
    windows.open_ns = 0;
}

/* Called by the flushing thread, ten times a second. */
static void tend_windows(uint64_t now)
{
    if (windows.over)
        return;
    if (windows.open_ns != 0) {
        if (now - windows.open_ns >= trace_sampling.on)
            close_window();
    } else if ((windows.first_ns != 0 && now >= windows.first_ns) || is_window(now)) {
        windows.first_ns = 0;
        open_window(now);
    }
}
