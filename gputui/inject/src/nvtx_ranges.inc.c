/* Ranges and marks, however they were called. */

#pragma once

#include "nvtx_attributes.inc.c"
#include "operators.inc.c"
#include "thread.inc.c"
#include "trace_sampling.inc.c"

enum { NVTX_NO_TRACKING = -2 };

static inline uint32_t domain_id(void *domain)
{
    return domain != NULL ? id_of(domain) : 0;
}

/* How many ranges this thread has open in `domain`; NULL when it has too many domains open. */
static inline uint32_t *depth_of(Thread *thread, uint32_t domain)
{
    Open *unused = NULL;
    for (uint32_t at = 0; at < thread->domains; at++) {
        if (LIKELY(thread->open[at].domain == domain))
            return &thread->open[at].depth;
        if (thread->open[at].depth == 0)
            unused = &thread->open[at];
    }
    if (thread->domains < OPEN_DOMAINS)
        unused = &thread->open[thread->domains++];
    if (unused == NULL)
        return NULL;
    unused->domain = domain;
    return &unused->depth;
}

static inline void name_record(Slot *record, const Attributes *attributes, String *name)
{
    if (name != NULL)
        record->name = id_of(name);
    else
        read_attributes(record, record->a, attributes);
}

static int push(void *domain, const Attributes *attributes, String *name)
{
    if (UNLIKELY(!may_write()))
        return NVTX_NO_TRACKING;
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    if (UNLIKELY(annotates_operators) && domain == NULL)
        show_level(thread);
    Slot record = {.kind = KIND_RANGE_PUSH, .thread = thread->tid, .a = domain_id(domain)};
    uint32_t *depth = depth_of(thread, record.a);
    if (UNLIKELY(depth == NULL)) {
        record.kind = KIND_REFUSED;
        emit(&record);
        return NVTX_NO_TRACKING;
    }
    name_record(&record, attributes, name);
    if (UNLIKELY(trace_sampling.range != 0 &&
                 (record.name == trace_sampling.range || trace_sampling.range == ANY_RANGE))) {
        if (trace_sampling.captures)
            meet_captured(thread->tid, record.a, *depth, 0);
        else
            next_step();
        began = 0; /* a switch counts for itself, not for other calls */
    }
    record.d = (*depth)++;
    record.start = now_ns(); /* last, so that our own work is outside the range */
    emit(&record);
    sample_end(began);
    return (int)record.d;
}

/* `record` may hold what is known of the range only at its end. */
static inline int pop_with(void *domain, Slot *record)
{
    if (UNLIKELY(!is_armed()))
        return NVTX_NO_TRACKING;
    record->start = now_ns();
    Thread *thread = this_thread();
    if (UNLIKELY(annotates_operators) && domain == NULL && end_level(thread))
        return NVTX_NO_TRACKING;
    uint64_t began = sample_begin(thread);
    record->thread = thread->tid;
    record->a = domain_id(domain);
    uint32_t *depth = depth_of(thread, record->a);
    if (UNLIKELY(depth == NULL || *depth == 0))
        return NVTX_NO_TRACKING; /* nothing was open */
    record->d = --*depth;
    emit(record);
    if (UNLIKELY(captured.thread == thread->tid && captured.domain == record->a &&
                 captured.depth == record->d)) {
        end_captured();
        began = 0;
    }
    sample_end(began);
    return (int)record->d;
}

static int pop(void *domain)
{
    Slot record = {.kind = KIND_RANGE_POP};
    return pop_with(domain, &record);
}

static uint64_t start(void *domain, const Attributes *attributes, String *name)
{
    static uint64_t last_id;
    if (UNLIKELY(!may_write()))
        return 0;
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    Slot record = {.kind = KIND_RANGE_START, .thread = thread->tid, .a = domain_id(domain)};
    name_record(&record, attributes, name);
    record.value = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    if (UNLIKELY(trace_sampling.captures && record.name == trace_sampling.range)) {
        meet_captured(thread->tid, record.a, 0, record.value);
        began = 0;
    }
    record.start = now_ns();
    emit(&record);
    sample_end(began);
    return record.value;
}

static void end(uint64_t id)
{
    if (UNLIKELY(!is_armed() || id == 0))
        return;
    Slot record = {.kind = KIND_RANGE_END, .start = now_ns(), .value = id};
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    record.thread = thread->tid;
    emit(&record);
    if (UNLIKELY(captured.id == id)) {
        end_captured();
        began = 0;
    }
    sample_end(began);
}

static void mark(void *domain, const Attributes *attributes, String *name)
{
    if (UNLIKELY(!may_write()))
        return;
    Slot record = {.kind = KIND_MARK, .start = now_ns()};
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    record.thread = thread->tid;
    record.a = domain_id(domain);
    name_record(&record, attributes, name);
    emit(&record);
    sample_end(began);
}

static void name_thread(uint32_t tid, String *name)
{
    Slot record = {.kind = KIND_THREAD_NAME, .thread = tid, .name = id_of(name)};
    emit(&record);
}
