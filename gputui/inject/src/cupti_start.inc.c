/* Starting to trace CUDA. */

#pragma once

#include "cupti_find.inc.c"
#include "cupti_flush.inc.c"
#include "cupti_graphs.inc.c"
#include "cupti_records.inc.c"
#include "start.inc.c"
#include "trace_sampling.inc.c"
#include "windows.inc.c"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Who has the subscription: CUPTI's older interface does not say, and nsys and ncu were looked for
 * before. */
static const char *holder(void)
{
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (torch == NULL)
        return ", another profiler is at work in this process";
    dlclose(torch);
    return ", another profiler is at work in this process: torch.profiler, if it was used";
}

static int failed(const char *what, int result)
{
    const char *text = NULL;
    if (cupti.GetResultString(result, &text) != CUPTI_SUCCESS || text == NULL)
        text = "unknown";
    set_cuda_state(CUDA_FAILED, "%s: %s (%d)%s", what, text, result,
                   result == CUPTI_MULTIPLE_SUBSCRIBERS ? holder() : "");
    return 0;
}

static uint32_t cuda_begun; /* in this session */

/* Functions that a libcupti may lack. */
static void look_up(void *library, void **functions, const char *const *names, size_t count)
{
    for (size_t at = 0; at < count; at++)
        functions[at] = dlsym(library, names[at]);
}

/* The calls that begin and end a captured part, the runtime's and the driver's: the one makes the
 * other. */
static struct {
    uint32_t start, stop;
} profiler_calls[2];

static void watch_profiler_calls(void)
{
    for (int driver = 0; driver < 2; driver++)
        for (uint32_t call = 1; call < CALLS; call++) {
            const char *name = NULL;
            int domain = driver ? DOMAIN_DRIVER : DOMAIN_RUNTIME;
            if (cupti.GetCallbackName(domain, call, &name) != CUPTI_SUCCESS || name == NULL)
                continue;
            const char *end = strstr(name, "ProfilerSt");
            if (end == NULL || end - name > 4)
                continue;
            int starts = strncmp(end + 10, "art", 3) == 0;
            *(starts ? &profiler_calls[driver].start : &profiler_calls[driver].stop) = call;
            cupti.EnableCallback(1, subscriber, domain, call);
        }
}

/* Whether it was one of them. It begins at the end of the call and ends at the beginning of the other:
 * neither is in what it captures. */
static int see_profiler_call(int driver, uint32_t call, const uint8_t *details)
{
    int enters = callback_callbackSite(details) == SITE_ENTER;
    int starts = call == profiler_calls[driver].start, stops = call == profiler_calls[driver].stop;
    if (starts && !enters)
        begin_captured();
    else if (stops && enters)
        end_captured();
    return starts || stops;
}

static void see_callback(void *unused, int domain, uint32_t call, const void *details)
{
    (void)unused;
    if (details == NULL || !is_armed())
        return;
    if (trace_sampling.captures == CAPTURES_PROFILED &&
        (domain == DOMAIN_RUNTIME || domain == DOMAIN_DRIVER) &&
        see_profiler_call(domain == DOMAIN_DRIVER, call, details))
        return;
    if (domain == DOMAIN_RESOURCE)
        see_resource(call, details);
    else if (domain == DOMAIN_RUNTIME || domain == DOMAIN_DRIVER)
        see_call(domain == DOMAIN_DRIVER, call, details);
}

/* Claim the process's single subscriber, whether CUPTI was here before or not. */
static int subscribe(int *another_may_do)
{
    uint32_t version = 0;
    cupti.GetVersion(&version);
    header->cupti_version = version; /* of this session's ring */
    int result = cupti.Subscribe(&subscriber, see_callback, NULL);
    if (result != CUPTI_SUCCESS) {
        failed("cuptiSubscribe", result);
        subscriber = NULL; /* nothing of the one who has it may be touched */
        *another_may_do = result != CUPTI_MULTIPLE_SUBSCRIBERS;
        return 0;
    }
    *another_may_do = 0;
    result = cupti.SetThreadIdType(THREAD_ID_SYSTEM);
    if (result == CUPTI_SUCCESS) {
        result = cupti.ActivityRegisterCallbacks(buffer_requested, buffer_completed);
        if (result == CUPTI_SUCCESS) {
            (void)finds_xla();
            if (hands_over)
                hand_over();
            return 1;
        }
        failed("cuptiActivityRegisterCallbacks", result);
    } else {
        failed("cuptiSetThreadIdType", result);
    }
    cupti.Unsubscribe(subscriber);
    subscriber = NULL;
    return 0;
}

/* Load one libcupti and subscribe; cuda_text then says what failed. */
static int claim_cupti(const char *path, int *another_may_do)
{
    /* Local: NVTX looks symbols up in us and must not find CUPTI's through us. A child forked in the
     * middle ends at its next dlopen. Signals go on: threads that CUPTI starts have this one's. */
    int guarded = pthread_mutex_lock(&locks[LOADER_LOCK]) == 0;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (guarded)
        pthread_mutex_unlock(&locks[LOADER_LOCK]);
    void **functions = (void **)&cupti;
    *another_may_do = 1;
    if (library == NULL)
        return 0;
    for (size_t at = 0; at < sizeof cupti_symbols / sizeof *cupti_symbols; at++) {
        functions[at] = dlsym(library, cupti_symbols[at]);
        if (functions[at] == NULL) {
            set_cuda_state(CUDA_FAILED, "%s lacks %s: too old?", path, cupti_symbols[at]);
            dlclose(library);
            return 0;
        }
    }
    look_up(library, (void **)&cupti_ids, cupti_id_symbols,
            sizeof cupti_id_symbols / sizeof *cupti_id_symbols);
    look_up(library, (void **)&cupti_enable_call, cupti_call_symbols,
            sizeof cupti_call_symbols / sizeof *cupti_call_symbols);
    look_up(library, (void **)&cupti_graphs, cupti_graph_symbols,
            sizeof cupti_graph_symbols / sizeof *cupti_graph_symbols);
    *(void **)&cupti_flush_period = dlsym(library, "cuptiActivityFlushPeriod");
    return subscribe(another_may_do); /* refused, it stays loaded: it may have started threads */
}

/* Whether a libcupti was found that let us in. */
static int find_cupti(void)
{
    static Candidates candidates;
    int another_may_do = 1, claimed = 0;
    candidates.count = 0;
    set_cuda_state(CUDA_STARTING, "looking for libcupti");
    find_candidates(&candidates);
    for (int at = 0; at < candidates.count && another_may_do && !claimed; at++)
        claimed = claim_cupti(candidates.paths[at], &another_may_do);
    if (!claimed && header->cuda_state == CUDA_STARTING)
        set_cuda_state(CUDA_FAILED, "libcupti not found: install nvidia-cuda-cupti or set "
                                    "GPUTUI_CUPTI_PATH to the file");
    return claimed;
}

static const struct {
    int kind, needed;
    const char *name;
} activities[] = {
    {ACTIVITY_CONCURRENT_KERNEL, 1, "CONCURRENT_KERNEL"},
    {ACTIVITY_MEMCPY, 1, "MEMCPY"},
    {ACTIVITY_MEMSET, 1, "MEMSET"},
    {ACTIVITY_MEMCPY2, 0, "MEMCPY2"},
};
enum { ACTIVITIES = sizeof activities / sizeof *activities };

/* What costs, off and on again: on an H200 some 17 µs for the kinds and 1 for each call. Calls go
 * on before kernels and off after them, so that no kernel is without its call. */
static void switch_activity(int on)
{
    for (int step = 0; step < 2; step++) {
        if (step == on)
            for (int at = 0; at < ACTIVITIES; at++)
                (on ? cupti.ActivityEnable : cupti.ActivityDisable)(activities[at].kind);
        else {
            switch_calls(0, on);
            switch_calls(1, on);
        }
    }
}

/* Graphs first: a node made earlier has no range. */
static int enable_all_calls(int late)
{
    enable_graphs(late);
    /* What is switched off one by one before it was ever made, as outside a captured part, brings
     * no record when it is switched on again (CUPTI 13.0, H200: 6,641 kernels and no call). */
    by_callback = late || trace_sampling.captures;
    return enable_calls(0, runtime_calls) + enable_calls(1, driver_calls);
}

static void say_tracing(int calls)
{
    set_cuda_state(CUDA_TRACING, "%s", calls != 0
                                           ? "tracing"
                                           : "tracing, but no CUDA call could be enabled: kernels "
                                             "cannot be attributed to ranges");
}

/* Not SYNCHRONIZATION: enabling it took a launch-bound decode on an H200 from 1.2 to 1.6 times its
 * bare time, and the calls that synchronize are recorded as calls. */
static int enable_activity(void)
{
    int calls = enable_all_calls(sleeps);
    for (int at = 0; at < ACTIVITIES; at++) {
        int result = cupti.ActivityEnable(activities[at].kind);
        if (result != CUPTI_SUCCESS && activities[at].needed) {
            char what[64];
            snprintf(what, sizeof what, "cuptiActivityEnable(%s)", activities[at].name);
            return failed(what, result);
        }
    }
    /* Switched on late it crashed programs that replay graphs. */
    if (wishes.whole_graphs && !sleeps)
        cupti.ActivityEnable(ACTIVITY_GRAPH_TRACE);
    say_tracing(calls);
    return 1;
}

/* Before the first window: CUPTI may have been here for an earlier gputui. */
static int subscribe_again(void)
{
    int another_may_do;
    memset(call_off, 0, sizeof call_off);
    if (cupti.Subscribe != NULL ? !subscribe(&another_may_do) : !find_cupti())
        return 0;
    say_tracing(enable_all_calls(1));
    return 1;
}

static void begin_sampling(void)
{
    lock(SAMPLING_LOCK);
    trace_sampling.began_ns = trace_sampling.since_ns = now_ns();
    trace_sampling.ready = 1;
    unlock(SAMPLING_LOCK);
    memset(&windows, 0, sizeof windows);
    if (trace_sampling.budget) {
        windows.first_ns = sleeps ? trace_sampling.began_ns + FIRST_WINDOW_NS : 0;
        set_cuda_state(CUDA_TRACING, "tracing");
        return;
    }
    if (trace_sampling.period != 0 || trace_sampling.captures)
        write_window(WINDOW_ON);
    if (trace_sampling.captures == CAPTURES_PROFILED)
        watch_profiler_calls();
    if (trace_sampling.captures)
        follow_captured();
    else if (trace_sampling.range != 0)
        set_tracing(is_traced(__atomic_load_n(&trace_sampling.steps, __ATOMIC_RELAXED)));
}

static void start_cuda(void)
{
    int saved_errno = errno;
    if (is_armed() && header->cuda_state != CUDA_OFF &&
        __atomic_exchange_n(&cuda_begun, 1, __ATOMIC_ACQ_REL) == 0) {
        memset(call_off, 0, sizeof call_off);
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        if (visible != NULL)
            snprintf(header->visible_devices, sizeof header->visible_devices, "=%s", visible);
        const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
        header->launch_blocking = blocking != NULL && atoi(blocking) != 0;
        if (trace_sampling.budget || (find_cupti() && enable_activity())) {
            begin_sampling();
            int error = start_flusher();
            if (error != 0)
                set_cuda_state(CUDA_FAILED, "no thread for flushing: %s", strerror(error));
        }
    }
    errno = saved_errno;
}

/* Before ranges go unseen: whether there is something to end. */
static int begin_to_end_cuda(void)
{
    if (__atomic_load_n(&cuda_begun, __ATOMIC_ACQUIRE) == 0 || !stop_flusher())
        return 0;
    if (subscriber != NULL)
        stop_tracing();
    return 1;
}

static void end_cuda(void)
{
    lock(SAMPLING_LOCK);
    trace_sampling.ready = 0;
    unlock(SAMPLING_LOCK);
    if (subscriber != NULL) {
        leave_cupti();
        if (!trace_sampling.budget || windows.open_ns != 0)
            write_window(WINDOW_CLOSED);
    }
    flush(0);
}

static uint32_t cuda_initialised; /* as the driver said; an attached library must ask */

static void at_cuda_init(void)
{
    if (!start_capture())
        open_ring_after_fork();
    __atomic_store_n(&cuda_initialised, 1, __ATOMIC_RELEASE);
    start_cuda();
}

/* The driver calls this inside cuInit. */
EXPORT int InitializeInjection(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, at_cuda_init);
    return 1;
}
