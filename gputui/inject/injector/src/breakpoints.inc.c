/* Breakpoints of the processor in one thread. Those of the kernel's events (perf_event_open) end
 * with this program, however it ends, and report by a signal that the target does not
 * mind: one that it ignores by default. Where there are none, those of ptrace serve, whose trap ends
 * a target that is no longer traced. */

#pragma once

#include "machine.inc.c"
#include "maps.inc.c"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct perf_event_attr as of Linux 4.1. */
typedef struct {
    uint32_t type, size;
    uint64_t config, period, sample_type, read_format, flags;
    uint32_t wakeup, access;
    uint64_t address, length, branches, user_registers;
    uint32_t user_stack;
    int32_t clock;
    uint64_t interrupt_registers;
    uint32_t watermark, unused;
} Event;
_Static_assert(sizeof(Event) == 112, "PERF_ATTR_SIZE_VER5");

enum { BREAKPOINT_EVENT = 5, EXECUTION = 4, CLOSE_ON_EXEC = 8, EVENTS = 2, DISABLED = 1,
       ENABLE = 0x2400, DISABLE = 0x2401 };
#define EXCLUDE_KERNEL (1ull << 5)
#define EXCLUDE_HYPERVISOR (1ull << 6)

static int events[EVENTS] = {-1, -1};
static int events_report_by; /* 0 where there are none */

/* The kernel grants none. Else a trap of ptrace, which may end the target, is not set: neither where
 * it has none left just now, as it takes its time to release those of an injector that was killed, nor
 * while the thread blocks all signals, as it does in the call that such an injector began. */
static int events_are_refused;

static int is_for_now(int error)
{
    return error == ENOSPC || error == EBUSY || error == EMFILE || error == ENFILE ||
           error == ENOMEM || error == EINTR || error == EAGAIN;
}

/* By which the breakpoints report. */
static int reports_by = SIGTRAP;

/* A signal that changes nothing if it comes to an untraced thread; 0 if it handles them all. */
static int harmless_signal(pid_t tid)
{
    static const int ignored_by_default[] = {SIGURG, SIGWINCH, SIGCHLD};
    uint64_t minded = status_field(tid, "SigCgt", 16) | status_field(tid, "SigBlk", 16);
    for (size_t at = 0; at < sizeof ignored_by_default / sizeof *ignored_by_default; at++)
        if (!(minded >> (ignored_by_default[at] - 1) & 1))
            return ignored_by_default[at];
    return 0;
}

static int open_event(pid_t tid, uint64_t address, int signal_number)
{
    Event event = {
        .type = BREAKPOINT_EVENT, .size = sizeof event, .period = 1, .access = EXECUTION,
        .address = address, .length = BREAKPOINT_BYTES,
        .flags = DISABLED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
    };
    struct f_owner_ex owner = {F_OWNER_TID, tid};
    int fd = (int)syscall(SYS_perf_event_open, &event, tid, -1, -1, CLOSE_ON_EXEC);
    if (fd < 0 && errno != ESRCH && !is_for_now(errno))
        events_are_refused = 1;
    if (fd >= 0 && (fcntl(fd, F_SETOWN_EX, &owner) != 0 || fcntl(fd, F_SETSIG, signal_number) != 0 ||
                    fcntl(fd, F_SETFL, O_ASYNC) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void close_events(void)
{
    for (int at = 0; at < EVENTS; at++) {
        if (events[at] >= 0)
            close(events[at]);
        events[at] = -1;
    }
    events_report_by = 0;
}

/* Before the thread is stopped, and closed once it runs again: the kernel takes 5 to 10 ms for either.
 */
static void open_events(pid_t tid, uint64_t first, uint64_t second)
{
    const uint64_t addresses[EVENTS] = {first, second};
    close_events();
    int by = harmless_signal(tid), opened = by != 0;
    if (by == 0)
        events[0] = open_event(tid, first, SIGURG), close_events(); /* whether there are any */
    for (int at = 0; at < EVENTS && opened; at++) {
        events[at] = open_event(tid, addresses[at], by);
        opened = events[at] >= 0;
    }
    events_report_by = opened ? by : 0;
}

static void disarm(pid_t tid)
{
    if (reports_by == SIGTRAP)
        clear_breakpoints(tid);
    for (int at = 0; at < EVENTS; at++)
        if (events[at] >= 0 && ioctl(events[at], DISABLE, 0) != 0)
            close_events();
    reports_by = SIGTRAP;
}

/* The thread is stopped. */
static int arm(pid_t tid, uint64_t first, uint64_t second, int may_trap)
{
    int on = events_report_by != 0 && events_report_by == harmless_signal(tid);
    reports_by = events_report_by;
    for (int at = 0; at < EVENTS && on; at++)
        on = ioctl(events[at], ENABLE, 0) == 0;
    if (on)
        return 1;
    disarm(tid);
    return events_are_refused && may_trap && set_breakpoints(tid, first, second);
}
