/* NVTX's domain calls. Without a domain they are the core calls' default domain. */

#pragma once

#include "nvtx_categories.inc.c"
#include "nvtx_ranges.inc.c"
#include "start.inc.c"
#include "wide_strings.inc.c"

#include <wchar.h>

static void domain_category_a(void *domain, uint32_t category, const char *text)
{
    if (may_answer())
        name_category(domain, category, ASCII(text));
}
static void domain_category_w(void *domain, uint32_t category, const wchar_t *text)
{
    if (may_answer())
        name_category(domain, category, intern_wide(text));
}

static void domain_mark(void *domain, const Attributes *a) { mark(domain, a, NULL); }
static uint64_t domain_start(void *domain, const Attributes *a) { return start(domain, a, NULL); }
static void domain_end(void *domain, uint64_t id) { (void)domain; end(id); }
static int domain_push(void *domain, const Attributes *a) { return push(domain, a, NULL); }
/* Handles are the strings themselves: the same name is the same domain, and none is ever freed
 * (the Python package keeps its handles for good). */
static void *register_a(void *domain, const char *text)
{
    (void)domain;
    return start_capture() ? ASCII(text) : NULL;
}
static void *register_w(void *domain, const wchar_t *text)
{
    (void)domain;
    return start_capture() ? intern_wide(text) : NULL;
}
static void *domain_create_a(const char *text) { return register_a(NULL, text); }
static void *domain_create_w(const wchar_t *text) { return register_w(NULL, text); }
static void domain_destroy(void *domain) { (void)domain; }
static void initialize(const void *reserved) { (void)reserved; }
