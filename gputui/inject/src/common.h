/* What every part of both libraries uses. */

#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* A thread's first use of any other thread-local storage of a loaded library calls malloc, and a
 * signal handler that interrupts malloc, and has a range, would wait for itself. Of the 1.6 KiB that
 * glibc keeps for libraries loaded later this takes 0.3; musl keeps none. */
#ifdef __GLIBC__
#define STATIC_THREAD __thread __attribute__((tls_model("initial-exec")))
#else
#define STATIC_THREAD __thread
#endif

/* Which sources the library was built from; build.py compares it with those beside it. */
#ifndef SOURCES_MARK
#define SOURCES_MARK ""
#endif
__attribute__((used)) static const char sources_mark[] = SOURCES_MARK;

static inline uint64_t now_ns(void)
{
    /* CLOCK_REALTIME is the clock that CUPTI normalises its timestamps to. */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* What the calling thread itself ran: a system call, so nothing for each range. */
static inline uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void *map_pages(uint64_t size)
{
    void *pages =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}
