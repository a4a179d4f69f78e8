/* What is known of the calling thread, and what our calls cost it. */

#pragma once

#include "known_strings.inc.c"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN_DOMAINS = 32, HIDDEN_LEVELS = 128, MODULES_MAX = 64 };
typedef struct {
    uint32_t domain, depth;
} Open;
typedef struct {
    uint32_t session, tid, calls, domains;
    String *name; /* the system's, as last written */
    Open open[OPEN_DOMAINS]; /* the first `domains` are in use, or were */
    uint64_t hidden[HIDDEN_LEVELS / 64]; /* of the levels that operators.inc.c counts */
    uint32_t levels;
    uint32_t module_depth;
    String *modules[MODULES_MAX]; /* those that are open, the outermost first */
} Thread;
static STATIC_THREAD Thread thread_state;

/* Its destructor runs as a thread ends. */
static pthread_key_t thread_end;
static int ends_are_seen;

/* The system's name of the calling thread: the monitor asks for those of threads that live, once a
 * second, and would never hear of the others. */
static void write_name(Thread *thread)
{
    char text[16] = {0};
    if (prctl(PR_GET_NAME, text, 0, 0, 0) != 0 || text[0] == '\0')
        return;
    String *name = intern(text, sizeof text - 1);
    if (name == thread->name)
        return;
    thread->name = name;
    Slot record = {.kind = KIND_THREAD_NAME, .sub = NAMED_BY_SYSTEM, .thread = thread->tid};
    record.name = id_of(name);
    emit(&record);
}

/* Threads are often named only once they run. */
static void thread_ended(void *thread)
{
    if (is_armed())
        write_name(thread);
}

static __attribute__((noinline)) void meet_thread(Thread *thread)
{
    int saved_errno = errno;
    memset(thread, 0, sizeof *thread); /* what was open in a ring before is not in this one */
    thread->session = session;
    thread->tid = (uint32_t)syscall(SYS_gettid);
    write_name(thread);
    if (ends_are_seen)
        (void)pthread_setspecific(thread_end, thread);
    errno = saved_errno;
}

static inline Thread *this_thread(void)
{
    Thread *thread = &thread_state;
    if (UNLIKELY(thread->session != session))
        meet_thread(thread);
    return thread;
}

/* The cost of one call in SAMPLE_EVERY stands for all of them: timing each would double it, and the
 * thread's own clock, a system call, costs more than a call. By the clock on the wall, a call in
 * whose middle the thread was not let run takes milliseconds that are none of ours: such a one
 * counts as SAMPLE_NS_MAX. */
static inline uint64_t sample_begin(Thread *thread)
{
    return UNLIKELY(++thread->calls % SAMPLE_EVERY == 0) ? now_ns() : 0;
}

static inline void sample_end(uint64_t began)
{
    if (UNLIKELY(began != 0)) {
        uint64_t took = now_ns() - began; /* also absurd where the clock was set back */
        __atomic_fetch_add(&header->callback_ns,
                           (took < SAMPLE_NS_MAX ? took : SAMPLE_NS_MAX) * SAMPLE_EVERY,
                           __ATOMIC_RELAXED);
    }
}
