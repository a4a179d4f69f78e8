/* Making this process's ring: a file in the folder of the session. */

#pragma once

#include "armed.inc.c"
#include "process.inc.c"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Space is reserved before it is mapped: writing to a page that a full /dev/shm cannot give
 * would kill the traced program with SIGBUS. 0, or what went wrong. */
static int reserve_space(int fd, uint64_t bytes)
{
    struct rlimit limit;
    int error;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes)
        return EFBIG; /* going on would raise SIGXFSZ */
    do {
        error = posix_fallocate(fd, 0, (off_t)bytes);
    } while (error == EINTR);
    return error;
}

/* An empty file whose name says why this process has no ring: names can be written where bytes
 * cannot. */
static void leave_reason(const char *folder, int error)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%ld-%d.refused", folder, (long)getpid(), error) >=
        (int)sizeof path)
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
}

/* The place of this process's rings, one after another: always mapped, so that a thread that was
 * in the middle of a record as one was given back never meets a hole. */
static char *region;
static uint64_t region_bytes;

static uint64_t whole_pages(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static int reserve_region(uint64_t bytes)
{
    if (region != NULL)
        return 1;
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return 0;
    region = pages;
    region_bytes = bytes;
    return 1;
}

/* Gives the ring's memory back; what is still written goes nowhere. */
static void leave_ring(void)
{
    (void)mmap(region, region_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void *create_ring(const char *folder, uint64_t wanted_slots, uint64_t start_ns)
{
    static const uint64_t fallback_bytes[] = {4 << 20, 1 << 20};
    char path[PATH_MAX], temporary[PATH_MAX];
    uint64_t count = wanted_slots, bytes = 0;
    void *map = MAP_FAILED;
    int error = 0;

    if (snprintf(path, sizeof path, "%s/%ld-%llu.ring", folder, (long)getpid(),
                 (unsigned long long)start_ns) >= (int)sizeof path ||
        snprintf(temporary, sizeof temporary, "%s/.%ld-%llu.new", folder, (long)getpid(),
                 (unsigned long long)start_ns) >= (int)sizeof temporary ||
        !reserve_region(whole_pages(HEADER_BYTES + wanted_slots * SLOT_BYTES)))
        return NULL;
    if (wanted_slots > (region_bytes - HEADER_BYTES) / SLOT_BYTES)
        count = (region_bytes - HEADER_BYTES) / SLOT_BYTES;
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        leave_reason(folder, errno);
        return NULL;
    }
    for (int attempt = -1; map == MAP_FAILED && attempt < 2; attempt++) {
        if (attempt >= 0) {
            if (fallback_bytes[attempt] / SLOT_BYTES >= count)
                continue;
            count = fallback_bytes[attempt] / SLOT_BYTES;
            if (ftruncate(fd, 0) != 0)
                break; /* for the reason before */
        }
        bytes = whole_pages(HEADER_BYTES + count * SLOT_BYTES);
        error = reserve_space(fd, bytes);
        if (error == 0) {
            map = mmap(region, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
            error = errno;
        }
    }
    close(fd);
    if (map == MAP_FAILED) {
        leave_ring();
        unlink(temporary);
        leave_reason(folder, error);
        return NULL;
    }
    Header *target = map;
    target->magic = RING_MAGIC;
    target->layout_version = LAYOUT_VERSION;
    target->header_bytes = HEADER_BYTES;
    target->slot_bytes = SLOT_BYTES;
    target->capacity = count;
    target->start_ns = start_ns;
    describe_process(target);
    capacity = count;
    slots = (Slot *)((char *)map + HEADER_BYTES);
    /* Only a whole header ever has the name that the reader looks for. */
    if (rename(temporary, path) != 0) {
        leave_ring();
        unlink(temporary);
        return NULL;
    }
    return map;
}

static uint64_t wanted_slots(void)
{
    const char *text = getenv("GPUTUI_RING_BYTES");
    uint64_t bytes = text != NULL ? strtoull(text, NULL, 10) : 0, count = 1024;
    if (bytes == 0)
        bytes = 16 << 20;
    if (bytes > 1ull << 30)
        bytes = 1ull << 30;
    while (count * 2 * SLOT_BYTES <= bytes)
        count *= 2;
    return count;
}
