/* Stopping a thread, and letting it go. */

#pragma once

#include "breakpoints.inc.c"
#include "machine.inc.c"
#include "maps.inc.c"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { STOP_MS = 1000 };

enum { HAS_ENDED = -1 };

/* Waits for the thread's next stop; its status, 0 if none came, or HAS_ENDED. */
static int wait_stop(pid_t tid, unsigned limit_ms)
{
    uint64_t end = now_us() + limit_ms * 1000ull;
    for (;;) {
        int status = 0;
        pid_t changed = waitpid(tid, &status, __WALL | WNOHANG);
        if (changed == tid)
            return WIFSTOPPED(status) ? status : HAS_ENDED;
        if (changed < 0)
            return HAS_ENDED;
        uint64_t now = now_us();
        if (now >= end)
            return 0;
        /* SIGCHLD is blocked, so none is missed; a stopped program is not let wait for a poll. */
        sigset_t stops;
        struct timespec left = {(time_t)((end - now) / 1000000), (long)((end - now) % 1000000) * 1000};
        sigemptyset(&stops);
        sigaddset(&stops, SIGCHLD);
        (void)sigtimedwait(&stops, NULL, &left);
    }
}

static int is_event_stop(int status) { return status >> 16 == PTRACE_EVENT_STOP; }

/* Lets a thread that stopped for a signal of its own have it, and stop for us then: any stop takes
 * back that a stop was asked for (Linux, ptrace_stop: "any trap clears pending STOP trap"). */
static int deliver_and_stop(pid_t tid, int status)
{
    return ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0 &&
           ptrace(PTRACE_CONT, tid, NULL, (void *)(intptr_t)WSTOPSIG(status)) == 0;
}

/* Stops the thread where it is. Its signals meanwhile are its own. */
static int interrupt(pid_t tid)
{
    if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0)
        return 0;
    for (;;) {
        int status = wait_stop(tid, STOP_MS);
        if (status <= 0)
            return 0;
        if (is_event_stop(status))
            return WSTOPSIG(status) == SIGTRAP; /* else the user has stopped it: let it be */
        if (!deliver_and_stop(tid, status))
            return 0;
    }
}

static int read_mask(pid_t tid, uint64_t *mask)
{
    return ptrace(PTRACE_GETSIGMASK, tid, (void *)sizeof *mask, mask) == 0;
}

/* Has a stopped thread make the call again that its stop cut short, with all of its time; whether
 * there was one. Nothing had happened in it; a signal on its way has its handler see EINTR. */
static int make_again(pid_t tid)
{
    Registers registers;
    uint64_t mask = 0;
    uint64_t pending = status_field(tid, "SigPnd", 16) | status_field(tid, "ShdPnd", 16);
    return read_registers(tid, &registers) && read_mask(tid, &mask) && !(pending & ~mask) &&
           is_made_again(&registers) &&
           write_set(tid, NT_PRSTATUS, &registers, sizeof registers);
}

static int is_set(uint64_t signals, int number) { return signals >> (number - 1) & 1; }

/* A trap that a thread ignores, or blocks though it has a handler, the kernel delivers by taking
 * that away for good. */
static int may_trap(pid_t tid)
{
    uint64_t ignored = status_field(tid, "SigIgn", 16), caught = status_field(tid, "SigCgt", 16);
    uint64_t blocked = status_field(tid, "SigBlk", 16);
    return !is_set(ignored, SIGTRAP) && !(is_set(caught, SIGTRAP) && is_set(blocked, SIGTRAP));
}

/* From the stop of a breakpoint's signal to one at the same place without it: were this program
 * killed now, a trap would end the target. */
static int to_event_stop(pid_t tid)
{
    if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0 ||
        ptrace(PTRACE_CONT, tid, NULL, NULL) != 0)
        return 0;
    int status = wait_stop(tid, STOP_MS);
    while (status > 0 && !is_event_stop(status))
        status = deliver_and_stop(tid, status) ? wait_stop(tid, STOP_MS) : HAS_ENDED;
    return status > 0;
}

/* Whether a breakpoint was hit: then the thread is stopped at it. If not, it is stopped anywhere,
 * without breakpoints and without a trap that is still to come, which would end the program. */
static int run_to_breakpoint(pid_t tid, unsigned limit_ms, uint64_t first, uint64_t second)
{
    uint64_t end = now_us() + limit_ms * 1000ull;
    int asked = 0;
    long signal_number = 0;
    for (;;) {
        if (ptrace(PTRACE_CONT, tid, NULL, (void *)signal_number) != 0)
            return 0;
        signal_number = 0;
        int status = 0;
        while (status == 0) {
            uint64_t now = now_us();
            if (now >= end && !asked) {
                ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
                asked = 1;
            }
            /* Without an end: it may not be left with a breakpoint, and a thread that is deep in
             * the kernel stops as it comes back. */
            status = wait_stop(tid, now < end ? (unsigned)((end - now) / 1000) + 1 : STOP_MS);
            if (status == HAS_ENDED)
                return 0;
        }
        uint64_t at = program_counter(tid);
        if (WSTOPSIG(status) == reports_by && !is_event_stop(status) &&
            (at == first || at == second)) {
            int harmless = to_event_stop(tid);
            disarm(tid); /* which takes its time */
            return harmless && program_counter(tid) == at;
        }
        if (is_event_stop(status)) {
            int traps = reports_by == SIGTRAP;
            disarm(tid);
            if (traps && is_set(status_field(tid, "SigPnd", 16), SIGTRAP)) {
                end = 0; /* its breakpoint was hit just now: that stop comes next */
                continue;
            }
            return 0;
        }
        signal_number = WSTOPSIG(status);
        if (asked)
            ptrace(PTRACE_INTERRUPT, tid, NULL, NULL); /* again: see deliver_and_stop */
    }
}

/* The end or the beginning of a system call. */
static int wait_for_call(pid_t tid, unsigned limit_ms)
{
    for (;;) {
        int status = wait_stop(tid, limit_ms);
        if (status <= 0)
            return 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80))
            return 1;
        int number = is_event_stop(status) ? 0 : WSTOPSIG(status);
        if (ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)number) != 0)
            return 0;
    }
}

/* Puts a thread back exactly as it was and lets it go. */
static void let_go(pid_t tid, const State *state)
{
    write_state(tid, state);
    ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof state->mask, &state->mask);
    ptrace(PTRACE_DETACH, tid, NULL, NULL);
}

/* Signals that a handler of the program's gets only after the call. Not those that the processor
 * raises: they mean that the call went wrong. */
static uint64_t quiet_mask(void)
{
    uint64_t mask = ~0ull;
    static const int raised[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
    for (size_t at = 0; at < sizeof raised / sizeof *raised; at++)
        mask &= ~(1ull << (raised[at] - 1));
    return mask;
}

/* Lets the thread call a function on its next run. The registers first: from there on the frame
 * restores all, also the mask. */
static int call_in_frame(pid_t tid, const State *state, uint64_t function, uint64_t entry,
                         uint64_t first, uint64_t second)
{
    uint64_t mask = quiet_mask();
    return set_call(tid, state, function, entry, first, second) &&
           ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof mask, &mask) == 0;
}

/* A thread that waited in a system call goes back into it just as it was interrupted, as no frame
 * can tell it: with the time that is left. So the frame's return is not made: sigreturn would have
 * the kernel forget that time. Killed meanwhile, the thread would wait for all of it again. */
static void follow_to_end(pid_t tid, const State *state, unsigned limit_ms)
{
    uint64_t end = now_us() + limit_ms * 1000ull;
    int number, at_end;
    while (now_us() < end && ptrace(PTRACE_SYSCALL, tid, NULL, NULL) == 0 &&
           wait_for_call(tid, limit_ms)) {
        if (!read_call(tid, &number, &at_end) || number != SYS_rt_sigreturn || at_end)
            continue;
        State resumed = *state;
        resumed.registers = state->resumed;
        write_state(tid, &resumed);
        ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof state->mask, &state->mask);
        if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0 ||
            ptrace(PTRACE_CONT, tid, NULL, NULL) != 0)
            break;
        int status = wait_stop(tid, STOP_MS);
        if (status > 0 && is_event_stop(status) &&
            program_counter(tid) == program_counter_of(&state->resumed))
            write_set(tid, NT_PRSTATUS, &state->registers, sizeof state->registers);
        if (status > 0 && !is_event_stop(status)) { /* a signal of its own: for it to have */
            ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)WSTOPSIG(status));
            return;
        }
        break;
    }
    ptrace(PTRACE_DETACH, tid, NULL, NULL);
}
