/* Starting to capture in this process, and ending. */

#pragma once

#include "known_strings.inc.c"
#include "locks.inc.c"
#include "operators.inc.c"
#include "ring_create.inc.c"
#include "thread.inc.c"
#include "trace_sampling.inc.c"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether it is the monitor that wakes this process; then a forked child has lost the thread that
 * waits for it, and its word. */
static int sleeps, attached_late;
static uint32_t word_is_lost;

static void write_exit(void)
{
    uint64_t number;
    Slot record = {.kind = KIND_EXIT, .start = now_ns()};
    if (gap != 0)
        write_gap();
    if (reserve(1, &number))
        put(number, &record);
    disarm();
    __atomic_store_n(&header->exited, 1, __ATOMIC_RELEASE);
}

static void forked(void)
{
    disarm();
    after_fork_in_child();
    __atomic_store_n(&fork_counted, 0, __ATOMIC_RELAXED);
    if (sleeps) {
        __atomic_store_n(&word_is_lost, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&armed[ANSWERS], 1, __ATOMIC_RELEASE);
    }
}

static int create_flags(void)
{
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
    long page = sysconf(_SC_PAGESIZE);
    uint32_t *flags = map_pages((uint64_t)page);
    if (flags == NULL)
        return 0;
    /* Kernels before 4.14 lack it; the handler below still sees every ordinary fork. */
    (void)madvise(flags, (size_t)page, MADV_WIPEONFORK);
    armed = flags;
    return pthread_atfork(before_fork, after_fork, forked) == 0;
}

static void stop_cuda(void);

static void at_exit(void)
{
    if (!is_armed())
        return;
    stop_cuda();
    write_exit();
}

static void pin_library(void)
{
    /* NVTX unloads a library that refuses one of its units; handlers and threads must outlive
     * that. */
    Dl_info info;
    if (dladdr((void *)&header, &info) != 0 && info.dli_fname != NULL)
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE | RTLD_NOLOAD);
}

/* What all rings of this process share. */
static int prepare(void)
{
    static const char overflow[] = "(too many names)";
    pin_library();
    make_locks();
    strings = new_table(4096);
    if (strings != NULL)
        too_many = insert_string(hash_bytes(overflow, sizeof overflow - 1), overflow,
                                 sizeof overflow - 1);
    if (too_many == NULL || !create_flags())
        return 0;
    ends_are_seen = pthread_key_create(&thread_end, thread_ended) == 0;
    return atexit(at_exit) == 0;
}

/* As `wishes` say. A number of its own tells apart what was written to the ring before. */
static int open_ring(void)
{
    if (++session == 0)
        session = 1;
    tail_seen = gap = 0;
    read_trace_sampling();
    Header *own = create_ring(wishes.folder, wanted_slots(), now_ns());
    if (own == NULL)
        return 0;
    header = own;
    annotates_operators = wishes.operators;
    __atomic_store_n(&armed[ARMED], 1, __ATOMIC_RELEASE);
    return 1;
}

static int create_word(void);

/* A program that gputui started has a folder for its ring. Without one the library sleeps. */
static void begin(void)
{
    int saved_errno = errno;
    read_environment();
    sleeps = attached_late || getenv("GPUTUI_CAPTURE_DIR") == NULL;
    if ((sleeps || wishes.folder[0] == '/') && prepare() && (sleeps ? create_word() : open_ring()))
        __atomic_store_n(&armed[ANSWERS], 1, __ATOMIC_RELEASE);
    errno = saved_errno;
}

/* In a forked child that goes on to initialise CUDA itself (servers fork their workers before any
 * CUDA call): from here on it is a process of its own, with a ring of its own. Only the forking
 * thread is left, so nothing else runs in here; its locks and its notes are the parent's. */
static void open_ring_after_fork(void)
{
    if (sleeps || header == NULL || header->pid == (uint32_t)getpid())
        return;
    make_locks(); /* a raw clone calls no handler */
    (void)open_ring();
}

/* A forked child has a word of its own from its first call on that is rare anyway: most children
 * only go on to exec. */
static __attribute__((noinline)) void renew_word(void)
{
    int saved_errno = errno;
    if (__atomic_exchange_n(&word_is_lost, 0, __ATOMIC_ACQ_REL) != 0)
        (void)create_word();
    errno = saved_errno;
}

/* Whether this library serves the process: writes to a ring, or sleeps. */
static int start_capture(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (pthread_once(&once, begin) != 0 || !may_answer())
        return 0;
    if (UNLIKELY(__atomic_load_n(&word_is_lost, __ATOMIC_RELAXED)))
        renew_word();
    return 1;
}
