/* Hands the capture library to a running process: gputui_inject PID LIBRARY [futex]
 * or closes the file of one that could not be loaded: gputui_inject PID close:FD [futex]
 *
 * One thread of the target is stopped at a moment at which it holds no lock of the allocator's and is
 * not in the loader: the first instruction of malloc or free, called from outside the C library and the
 * loader (a hardware breakpoint of that thread alone, no code is written), or a system call in which
 * it waits and which neither allocator nor loader makes. There it gets a stack frame as the kernel
 * makes it for a signal handler, whose "handler" is dlopen: as that returns, the C library's own
 * sigreturn restores every register, also the vector ones, and the signal mask. So nothing is left to
 * restore, and a target whose injector is killed meanwhile goes on. The library comes in a memfd that
 * the target makes for it.
 *
 * It reads numbers of the target's threads and mappings from /proc and registers from the kernel:
 * nothing that the target writes is parsed, and of its memory only a return address is read, to see
 * whose code it is in.
 *
 * Prints one line: "done HOW found_us N stopped_us N", or why not. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "maps.inc.c"
#include "machine.inc.c"
#include "stops.inc.c"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#ifndef SOURCES_MARK
#define SOURCES_MARK ""
#endif
__attribute__((used)) static const char sources_mark[] = SOURCES_MARK;

enum { DONE = 0, USAGE = 2, NO_MOMENT = 3, REFUSED = 4, ENDED = 5, FAILED = 6 };
enum { THREADS = 512, MOMENT_MS = 100, MOMENTS_MS = 1000, CALL_MS = 2000 };

#define HANDED_OVER "gputui-capture"
enum { NO_FD = -1 };

static struct {
    uint64_t malloc, free, dlopen, memfd_create, close, sigreturn;
} address;

static int finish(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    exit(status);
}

/* Addresses in the target: those in this process, moved to where the very same file lies there. */
static uint64_t in_target(pid_t pid, const void *here)
{
    return moved_address(pid, (uintptr_t)here);
}

static void find_addresses(pid_t pid)
{
    address.malloc = in_target(pid, (void *)(uintptr_t)malloc);
    address.free = in_target(pid, (void *)(uintptr_t)free);
    address.dlopen = in_target(pid, dlsym(RTLD_DEFAULT, "dlopen"));
    address.memfd_create = in_target(pid, dlsym(RTLD_DEFAULT, "memfd_create"));
    address.close = in_target(pid, dlsym(RTLD_DEFAULT, "close"));
    address.sigreturn = in_target(pid, sigreturn_here());
    if (!address.malloc || !address.free || !address.dlopen || !address.memfd_create ||
        !address.close || !address.sigreturn || !look_at_maps(pid))
        finish(REFUSED, "other-libc");
}

/* The frame's place, and what is in it. */
typedef struct {
    uint64_t entry;   /* the stack pointer at the first instruction of a called function */
    uint64_t strings; /* 64 bytes for a name */
} Frame;

enum { STRING_BYTES = 64 };

static int make_frame(pid_t pid, pid_t tid, const State *state, Frame *frame)
{
    static unsigned char image[FRAME_BYTES_MAX] __attribute__((aligned(64)));
    uint64_t top = (stack_pointer(&state->resumed) - RED_ZONE - STRING_BYTES) & ~63ull, base;
    size_t size = 0;
    frame->strings = top;
    if (!build_frame(state, address.sigreturn, top, image, &base, &size, &frame->entry))
        return 0;
    return has_stack(pid, tid, stack_pointer(&state->resumed), thread_pointer(tid, state),
                     top + STRING_BYTES - base) &&
           write_memory(tid, base, image, size);
}

/* Lets the target make a file without a name; its number, NO_FD, or the system call's error below
 * zero. The thread then is at the end of that system call, in the frame. */
static int make_memfd(pid_t pid, pid_t tid, const State *state, const Frame *frame)
{
    static const char name[] = HANDED_OVER;
    if (!write_memory(tid, frame->strings, name, sizeof name) ||
        !call_in_frame(tid, state, address.memfd_create, frame->entry, frame->strings,
                       1 /* MFD_CLOEXEC */))
        return NO_FD;
    for (int stops = 0; stops < 64; stops++) {
        int number, at_end;
        if (ptrace(PTRACE_SYSCALL, tid, NULL, NULL) != 0 || !wait_for_call(tid, CALL_MS))
            return NO_FD;
        if (read_call(tid, &number, &at_end) && number == SYS_memfd_create && at_end)
            return (int)call_result(tid);
    }
    return NO_FD;
}

static int fill_memfd(pid_t pid, int fd, const char *library)
{
    char path[64];
    struct stat status;
    off_t from = 0;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    int source = open(library, O_RDONLY | O_CLOEXEC), target = open(path, O_WRONLY | O_CLOEXEC);
    int whole = source >= 0 && target >= 0 && fstat(source, &status) == 0;
    while (whole && from < status.st_size)
        whole = sendfile(target, source, &from, (size_t)(status.st_size - from)) > 0;
    if (source >= 0)
        close(source);
    if (target >= 0)
        close(target);
    return whole;
}

/* Whether it is the file that an injector made, and not another that has its number by now. */
static int is_handed_over(pid_t pid, int fd)
{
    static const char made[] = "/memfd:" HANDED_OVER;
    char path[64], link[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    return readlink(path, link, sizeof link) >= (ssize_t)sizeof made - 1 &&
           strncmp(link, made, sizeof made - 1) == 0;
}

/* At a safe moment. Whether the thread is on its way into dlopen, or into close for a file that is to
 * be closed; it is let go either way. */
static int hand_over(pid_t pid, pid_t tid, State *state, const char *library, int closes)
{
    Frame frame;
    char path[STRING_BYTES];
    if (!make_frame(pid, tid, state, &frame)) {
        let_go(tid, state);
        return 0;
    }
    int fd = closes == NO_FD ? make_memfd(pid, tid, state, &frame) : closes;
    if (fd < 0) {
        let_go(tid, state);
        if (fd == -EMFILE || fd == -ENFILE)
            finish(FAILED, "no-files");
        return 0;
    }
    int loads = closes == NO_FD && fill_memfd(pid, fd, library);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int called = 0;
    if (loads)
        called = write_memory(tid, frame.strings, path, sizeof path) &&
                 call_in_frame(tid, state, address.dlopen, frame.entry, frame.strings, RTLD_NOW);
    else if (is_handed_over(pid, fd))
        called = call_in_frame(tid, state, address.close, frame.entry, (uint64_t)fd, 0);
    if (!called)
        let_go(tid, state);
    else if (state->waits)
        follow_to_end(tid, state, CALL_MS);
    else
        ptrace(PTRACE_DETACH, tid, NULL, NULL);
    return called && (loads || closes != NO_FD);
}

/* What the frame is to restore, all at one stop: a program that runs on meanwhile may change its
 * signal mask too, and an older one would be put back. */
static int read_moment(pid_t tid, State *state)
{
    return read_mask(tid, &state->mask) && read_state(tid, state);
}

/* The loader allocates in the middle of loading and unloading: a library that is loaded there ends the
 * program ("Inconsistency detected by ld.so"). Some of what does that is in the C library. */
static int is_from_outside(pid_t tid, const State *state)
{
    uint64_t caller = caller_of(tid, &state->registers);
    return caller != 0 && !is_in_c_library(caller);
}

/* Looks for a moment of one thread; 1 if the library was handed over, 0 to try another, and leaves
 * the program where there is nothing to try. */
static int try_thread(pid_t pid, pid_t tid, const char *library, int closes,
                      int may_wait_in_futex, uint64_t began, int *seized)
{
    State state = {0};
    if (would_be_cut_short(pid, tid)) {
        usleep(1000);
        return 0;
    }
    /* Before the stop, too: a wait that it interrupts goes on by restart_syscall, which a filter may
     * forbid. */
    if (is_under_seccomp(tid))
        finish(REFUSED, "seccomp");
    open_events(tid, address.malloc, address.free);
    if (ptrace(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) != 0) {
        if (errno == EPERM && !*seized)
            finish(REFUSED, "ptrace");
        return 0;
    }
    *seized = 1;
    if (!interrupt(tid) || !read_registers(tid, &state.before)) {
        ptrace(PTRACE_DETACH, tid, NULL, NULL);
        return 0; /* one that could not be stopped is let go as this program ends */
    }
    if (make_again(tid)) {
        ptrace(PTRACE_DETACH, tid, NULL, NULL);
        return 0;
    }
    const char *how = NULL;
    if (read_moment(tid, &state) && is_harmless_wait(pid, tid, &state, may_wait_in_futex))
        how = "wait";
    uint64_t end = now_us() + MOMENT_MS * 1000ull;
    while (how == NULL && now_us() < end &&
           arm(tid, address.malloc, address.free, may_trap(tid))) {
        const char *kind = reports_by == SIGTRAP ? "breakpoint" : "event";
        if (!run_to_breakpoint(tid, MOMENT_MS, address.malloc, address.free))
            break;
        if (read_moment(tid, &state) && is_from_outside(tid, &state))
            how = kind;
    }
    if (how == NULL && read_moment(tid, &state) &&
        is_harmless_wait(pid, tid, &state, may_wait_in_futex))
        how = "wait";
    int forbidden = is_under_seccomp(tid);
    if (how == NULL || forbidden || !is_known_thread(tid, &state)) {
        make_again(tid);
        ptrace(PTRACE_DETACH, tid, NULL, NULL);
        if (forbidden)
            finish(REFUSED, "seccomp");
        return 0;
    }
    uint64_t found = now_us();
    if (!hand_over(pid, tid, &state, library, closes))
        return 0;
    finish(DONE, "done %s found_us %llu stopped_us %llu", how, (unsigned long long)(found - began),
           (unsigned long long)(now_us() - found));
    return 1;
}

static int list_threads(pid_t pid, pid_t *threads)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    struct dirent *entry;
    threads[count++] = pid; /* the main one first: it is the one that allocates */
    while (folder != NULL && (entry = readdir(folder)) != NULL && count < THREADS) {
        pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (tid > 0 && tid != pid)
            threads[count++] = tid;
    }
    if (folder != NULL)
        closedir(folder);
    return count;
}

int main(int count, char **words)
{
    static pid_t threads[THREADS];
    char *end = NULL;
    long number = count >= 3 ? strtol(words[1], &end, 10) : 0;
    int closes = NO_FD;
    if (count < 3 || *end != '\0' || number <= 1 || number > INT32_MAX)
        finish(USAGE, "usage: gputui_inject PID LIBRARY|close:FD [futex]");
    if (strncmp(words[2], "close:", 6) == 0)
        closes = (int)strtol(words[2] + 6, NULL, 10);
    pid_t pid = (pid_t)number;
    int may_wait_in_futex = count > 3 && strcmp(words[3], "futex") == 0, seized = 0;
    /* It finishes what it has begun, whatever becomes of who started it. */
    for (int signal_number = 1; signal_number < 32; signal_number++)
        if (signal_number != SIGCHLD)
            signal(signal_number, SIG_IGN);
    signal(SIGSEGV, SIG_DFL), signal(SIGBUS, SIG_DFL);
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGCHLD);
    sigprocmask(SIG_BLOCK, &stops, NULL);
    setsid();
    find_addresses(pid);
    uint64_t began = now_us();
    int found = list_threads(pid, threads);
    /* On a busy machine a thread may not even run in its turn: each has several. */
    for (int at = 0; now_us() - began < MOMENTS_MS * 1000ull; at = (at + 1) % found) {
        if (kill(pid, 0) != 0 && errno == ESRCH)
            finish(ENDED, "ended");
        try_thread(pid, threads[at], words[2], closes, may_wait_in_futex, began, &seized);
    }
    return finish(NO_MOMENT, "no-moment");
}
