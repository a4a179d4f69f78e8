/* For the start-up hook of a child's Python, which has no NVTX of its own to call: a name once,
 * then a push of it and a pop in the default domain. A push without a name stays balanced. And
 * marks of the program's steps: a site once, then a mark each time the program is there. */

#pragma once

#include "nvtx_ranges.inc.c"
#include "start.inc.c"

EXPORT void *gputui_name(const char *text)
{
    return text != NULL && start_capture() ? ASCII(text) : NULL;
}
EXPORT void gputui_push(void *name)
{
    if (UNLIKELY(annotates_operators) && may_write())
        open_module(this_thread(), name);
    push(NULL, NULL, name);
}
EXPORT void gputui_pop(void)
{
    if (UNLIKELY(annotates_operators) && is_armed())
        close_module(this_thread());
    pop(NULL);
}

/* For the library that stands before cuBLAS and cuDNN (gputui_calls.c). */
EXPORT void gputui_library_push(const char *domain, const char *text)
{
    if (may_write())
        push(ASCII(domain), NULL, ASCII(text));
}
EXPORT void gputui_library_pop(const char *domain)
{
    if (is_armed())
        pop(ASCII(domain));
}

typedef struct {
    String *name;
    uint64_t marks;
    uint8_t source;
} StepSite;

enum { STEP_SITES = 1024, STEP_ENDS = 16 };

/* Where the program is at each step: `source` as in STEP records. With `begins` this
 * process gets a ring for it; without, only one that has a ring already is marked. NULL beyond the
 * limit, and where nothing is captured. */
EXPORT void *gputui_step_site(int source, const char *text, int begins)
{
    static StepSite sites[STEP_SITES];
    static uint32_t used;
    if (text == NULL || !(begins ? start_capture() : may_answer()))
        return NULL;
    uint32_t number = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED);
    if (number >= STEP_SITES) {
        __atomic_store_n(&used, STEP_SITES, __ATOMIC_RELAXED);
        return NULL;
    }
    StepSite *site = &sites[number];
    site->source = (uint8_t)source;
    site->name = ASCII(text);
    return site;
}

/* `items` of the step just ended, and their `unit`, as in STEP records; STEP_ENDS ends no step. */
EXPORT void gputui_step(void *at, uint64_t items, int unit)
{
    StepSite *site = at;
    if (UNLIKELY(site == NULL))
        return;
    uint64_t ordinal = __atomic_add_fetch(&site->marks, unit != STEP_ENDS, __ATOMIC_RELAXED);
    if (UNLIKELY(!is_armed())) /* a forked child's steps are not what `unseen_forks` counts */
        return;
    Slot record = {.kind = KIND_STEP, .sub = site->source, .source_kind = (uint8_t)unit,
                   .start = now_ns(), .value = ordinal, .end = items};
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    record.thread = thread->tid;
    record.name = id_of(site->name);
    emit(&record);
    sample_end(began);
}
