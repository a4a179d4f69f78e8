/* What /proc says of mappings and threads. */

#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    uint64_t begin, end, offset, inode;
    unsigned device_major, device_minor;
    char access[5];
    int is_stack, is_c_library, is_loader;
} Mapping;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static FILE *open_maps(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    return fopen(path, "re");
}

static int next_mapping(FILE *maps, Mapping *mapping)
{
    char line[4608];
    unsigned long long begin, end, offset, inode;
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%llx-%llx %4s %llx %x:%x %llu", &begin, &end, mapping->access, &offset,
                   &mapping->device_major, &mapping->device_minor, &inode) != 7)
            continue;
        mapping->begin = begin;
        mapping->end = end;
        mapping->offset = offset;
        mapping->inode = inode;
        mapping->is_stack = strstr(line, " [stack]\n") != NULL;
        /* Before glibc 2.34 the files have its version in their names, and dlopen has one of its own. */
        mapping->is_loader =
            strstr(line, "/ld-linux-") != NULL || strstr(line, "/ld-2.") != NULL;
        mapping->is_c_library = mapping->is_loader || strstr(line, "/libc.so.6\n") != NULL ||
                                strstr(line, "/libc-2.") != NULL || strstr(line, "/libdl") != NULL;
        return 1;
    }
    return 0;
}

/* Where the byte at `here` of this process lies in `pid`, by file and offset; 0 if it has not mapped
 * that very file. */
static uint64_t moved_address(pid_t pid, uint64_t here)
{
    Mapping own = {0}, other;
    int known = 0;
    uint64_t found = 0;
    FILE *maps = open_maps(getpid());
    while (maps != NULL && !known && next_mapping(maps, &own))
        known = here >= own.begin && here < own.end;
    if (maps != NULL)
        fclose(maps);
    if (!known || own.inode == 0)
        return 0;
    uint64_t offset = here - own.begin + own.offset;
    maps = open_maps(pid);
    while (maps != NULL && found == 0 && next_mapping(maps, &other))
        if (other.inode == own.inode && other.device_major == own.device_major &&
            other.device_minor == own.device_minor && other.access[2] == 'x' &&
            offset >= other.offset && offset - other.offset < other.end - other.begin)
            found = other.begin + (offset - other.offset);
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* The main thread's stack, as it was before the target was stopped: it only grows. To read all that a
 * CUDA program has mapped takes milliseconds. */
static Mapping main_stack;

/* Room that dlopen certainly has: it was seen to use 12 kB, and libraries' constructors more. */
enum { STACK_BYTES_LEAST = 128 << 10 };

/* Whether the stack pointer is in a stack of the system's or of pthread's, with room below it: what
 * programs take for stacks of their own may be small, and what lies below it anybody's. The main
 * stack grows; pthread's holds the thread's own data at its top, and a guard below it. */
static int has_stack(pid_t pid, pid_t tid, uint64_t pointer, uint64_t thread, uint64_t frame_bytes)
{
    Mapping mapping = main_stack, below = {0};
    int found = tid == pid && pointer >= mapping.begin && pointer < mapping.end, guarded = 0;
    FILE *maps = found ? NULL : open_maps(pid);
    while (maps != NULL && !found && next_mapping(maps, &mapping)) {
        found = pointer >= mapping.begin && pointer < mapping.end;
        if (found)
            guarded = below.end == mapping.begin && below.access[0] == '-';
        else
            below = mapping;
    }
    if (maps != NULL)
        fclose(maps);
    if (!found || mapping.access[1] != 'w')
        return 0;
    uint64_t room = pointer - mapping.begin;
    if (tid == pid)
        return mapping.is_stack && room > frame_bytes + 4096;
    return guarded && room > STACK_BYTES_LEAST + frame_bytes && thread > pointer &&
           thread < mapping.end;
}

/* A field of /proc/TID/status as a number in the given base; 0 if it is not there. */
static uint64_t status_field(pid_t tid, const char *name, int base)
{
    char path[64], line[512];
    uint64_t found = 0;
    size_t length = strlen(name);
    snprintf(path, sizeof path, "/proc/%d/status", (int)tid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            found = strtoull(line + length + 1, NULL, base);
    if (file != NULL)
        fclose(file);
    return found;
}

/* Calls that any stop ends with EINTR, also without a handler (signal(7), "Interruption of system
 * calls ... by stop signals"): few programs expect that. Those of epoll are made again by us. */
static int is_cut_short(long number)
{
    static const int calls[] = {
        SYS_rt_sigtimedwait, SYS_semtimedop, SYS_io_getevents,
#ifdef SYS_semop
        SYS_semop,
#endif
    };
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++)
        if (number == calls[at])
            return 1;
    return 0;
}

/* Whether the thread waits in such a call. It may begin one right after this look: make_again. */
static int would_be_cut_short(pid_t pid, pid_t tid)
{
    char path[64];
    int number = -1;
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)pid, (int)tid);
    FILE *file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%d", &number) != 1) /* the word "running" */
        number = -1;
    if (file != NULL)
        fclose(file);
    return is_cut_short(number);
}

/* Whether the thread has put itself under a seccomp filter that we are not under. The caller has
 * compared the namespaces; this looks again while the thread is stopped, as it may have taken its
 * filter since. */
static int is_under_seccomp(pid_t tid)
{
    enum { NONE = 0, FILTERED = 2 };
    uint64_t mode = status_field(tid, "Seccomp", 10);
    return mode != NONE && (mode != FILTERED || status_field(tid, "Seccomp_filters", 10) !=
                                                    status_field(getpid(), "Seccomp_filters", 10));
}

static int has_feature(pid_t tid, const char *name, const char *word)
{
    char path[64], line[512];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)tid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        found |= strncmp(line, name, strlen(name)) == 0 && strstr(line, word) != NULL;
    if (file != NULL)
        fclose(file);
    return found;
}

/* Where the target's loader and C library have their code: for as long as it lives. */
enum { CODE_PARTS = 16 };
static Mapping code[CODE_PARTS];
static int code_parts;

/* Before the target is stopped; whether all of that code is known. */
static int look_at_maps(pid_t pid)
{
    Mapping mapping;
    FILE *maps = open_maps(pid);
    int loader = 0, library = 0;
    code_parts = 0;
    while (maps != NULL && next_mapping(maps, &mapping)) {
        if (mapping.is_stack)
            main_stack = mapping;
        if (!mapping.is_c_library || mapping.access[2] != 'x')
            continue;
        if (code_parts == CODE_PARTS)
            library = loader = -CODE_PARTS;
        else
            code[code_parts++] = mapping;
        *(mapping.is_loader ? &loader : &library) += 1;
    }
    if (maps != NULL)
        fclose(maps);
    return loader > 0 && library > 0;
}

static int is_in_c_library(uint64_t at)
{
    for (int part = 0; part < code_parts; part++)
        if (at >= code[part].begin && at < code[part].end)
            return 1;
    return 0;
}

static int is_in_loader(uint64_t at)
{
    for (int part = 0; part < code_parts; part++)
        if (code[part].is_loader && at >= code[part].begin && at < code[part].end)
            return 1;
    return 0;
}

/* Whether an address is one that the C library or the loader keeps locks at: in their data, or in
 * the head of an arena (64 MiB each, aligned). */
static int may_be_allocators(pid_t pid, uint64_t at)
{
    Mapping mapping;
    int found = (at & 0x3FFFFFF) < 0x1000;
    FILE *maps = open_maps(pid);
    uint64_t last_end = 0;
    int in_library = 0;
    while (maps != NULL && next_mapping(maps, &mapping)) {
        /* .bss follows its library's file without a name. */
        in_library = mapping.is_c_library || (in_library && mapping.inode == 0 &&
                                              mapping.begin == last_end);
        last_end = mapping.end;
        if (in_library && at >= mapping.begin && at < mapping.end)
            found = 1;
    }
    if (maps != NULL)
        fclose(maps);
    return found;
}
