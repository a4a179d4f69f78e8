/* NVTX's core calls: the default domain, and names of threads and categories. */

#pragma once

#include "nvtx_domains.inc.c"
#include "nvtx_ranges.inc.c"
#include "start.inc.c"

#include <string.h>
#include <wchar.h>

/* Each asks whether we are armed before a string is interned: a forked child must not take
 * locks. */
#define NAMED(call, otherwise, make) return may_write() ? call(NULL, NULL, make) : (otherwise)

static void mark_ex(const Attributes *a) { mark(NULL, a, NULL); }
static void mark_a(const char *text) { if (may_write()) mark(NULL, NULL, ASCII(text)); }
static void mark_w(const wchar_t *text) { if (may_write()) mark(NULL, NULL, intern_wide(text)); }
static uint64_t start_ex(const Attributes *a) { return start(NULL, a, NULL); }
static uint64_t start_a(const char *text) { NAMED(start, 0, ASCII(text)); }
static uint64_t start_w(const wchar_t *text) { NAMED(start, 0, intern_wide(text)); }
static int push_ex(const Attributes *a) { return push(NULL, a, NULL); }
static int push_a(const char *text)
{
    if (UNLIKELY(annotates_operators)) {
        if (may_write() && computes_nothing(text) && hide_level(this_thread()))
            return NVTX_NO_TRACKING;
        NAMED(push, NVTX_NO_TRACKING, operator_name(this_thread(), text));
    }
    NAMED(push, NVTX_NO_TRACKING, ASCII(text));
}
static int push_w(const wchar_t *text) { NAMED(push, NVTX_NO_TRACKING, intern_wide(text)); }
static int pop_core(void) { return pop(NULL); }
static void name_thread_a(uint32_t tid, const char *text)
{
    if (is_armed())
        name_thread(tid, ASCII(text));
}
static void name_thread_w(uint32_t tid, const wchar_t *text)
{
    if (is_armed())
        name_thread(tid, intern_wide(text));
}

static void category_a(uint32_t category, const char *text)
{
    domain_category_a(NULL, category, text);
}
static void category_w(uint32_t category, const wchar_t *text)
{
    domain_category_w(NULL, category, text);
}
