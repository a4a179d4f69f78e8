/* The word by which the monitor wakes a process that carries the library asleep, and puts it to
 * sleep again; mirrors gputui/inject/target.py.
 *
 * It is a page of a sealed memfd of the process, which the monitor opens as /proc/PID/fd/N: only
 * who may read the process's memory can, no file is left whoever is killed, and neither side can
 * truncate it under the other's feet. A monitor locks what it opened, so that there is one. It also
 * holds a lock in its folder: a process whose monitor is gone falls asleep by itself. */

#pragma once

#include "common.h"

#define WORD_NAME "gputui-word"
#define WORD_MAGIC 0x475550574F524431ull
#define WORD_VERSION 2
#define WORD_BYTES 4096

enum { PYTHON_NONE = 0, PYTHON_WAITS = 1, PYTHON_HOOKED = 2, PYTHON_FAILED = 3 };

typedef struct {
    uint64_t magic;
    uint32_t version, layout_version, pid, wake_error;
    uint64_t start_ticks;
    uint32_t wanted;  /* futex, written by the monitor: odd is awake */
    uint32_t reached; /* the last `wanted` that the process has followed */
    uint32_t python, nvtx_found, nvtx_held, woken_ms;
    uint32_t came_late;   /* not there as the program began */
    uint32_t cupti_stays; /* an earlier session traced kernels */
    /* Seccomp filters that the program was under as the word was made: what they allow has let it
     * be made, and lets the program be woken. */
    uint32_t seccomp_filters;
    /* Written by the monitor before `wanted`. */
    uint32_t kernels, modules, unused;
    char folder[512], sampling[512];
} Word;

_Static_assert(sizeof(Word) <= WORD_BYTES, "the word is one page");
