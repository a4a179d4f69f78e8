/* x86-64: debug registers, and the frame of the kernel's arch/x86/kernel/signal_64.c. */

#pragma once

#include "maps.inc.c"

#include <cpuid.h>
#include <signal.h>

enum { RED_ZONE = 128, VECTOR_SET = NT_X86_XSTATE, USER_CODE = 0x33, SYSCALL_BYTES = 2,
       BREAKPOINT_BYTES = sizeof(long) };

static uint64_t stack_pointer(const Registers *registers) { return registers->rsp; }
static uint64_t thread_pointer(pid_t tid, const State *state)
{
    (void)tid;
    return state->registers.fs_base;
}

static uint64_t program_counter_of(const Registers *registers) { return registers->rip; }
static uint64_t program_counter(pid_t tid)
{
    Registers registers;
    return read_registers(tid, &registers) ? registers.rip : 0;
}

/* Who called the function at whose first instruction the thread is; 0 if that is not known. */
static uint64_t caller_of(pid_t tid, const Registers *registers)
{
    uint64_t caller = 0;
    return read_word(tid, registers->rsp, &caller) ? caller : 0;
}

static int poke_debug(pid_t tid, int which, uint64_t value)
{
    return ptrace(PTRACE_POKEUSER, tid,
                  (void *)(offsetof(struct user, u_debugreg) + (size_t)which * 8),
                  (void *)value) == 0;
}

static void clear_breakpoints(pid_t tid)
{
    poke_debug(tid, 7, 0);
    poke_debug(tid, 0, 0);
    poke_debug(tid, 1, 0);
}

/* Whether the kernel has set both: some sandboxes and hypervisors refuse. */
static int set_breakpoints(pid_t tid, uint64_t first, uint64_t second)
{
    enum { BOTH_ENABLED = 1 << 0 | 1 << 2 };
    if (poke_debug(tid, 0, first) && poke_debug(tid, 1, second) && poke_debug(tid, 7, BOTH_ENABLED))
        return 1;
    clear_breakpoints(tid);
    return 0;
}

/* The C library's own return from a signal handler, which it names to the kernel. */
static void nothing(int number) { (void)number; }
static const void *sigreturn_here(void)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } kernel = {0};
    signal(SIGUSR2, nothing);
    syscall(SYS_rt_sigaction, SIGUSR2, NULL, &kernel, sizeof kernel.mask);
    signal(SIGUSR2, SIG_IGN);
    return kernel.restorer;
}

/* A 64-bit thread, without a shadow stack: a frame that the kernel has not made would break that. */
static int is_known_thread(pid_t tid, const State *state)
{
    return state->registers.cs == USER_CODE && !has_feature(tid, "x86_Thread_features", "shstk");
}

/* Whether the thread, stopped by us, waits in a system call that neither the allocator nor the
 * loader makes: in none of them can it hold a lock of theirs. Prepares to make the call again. */
static int is_harmless_wait(pid_t pid, pid_t tid, State *state, int may_be_futex)
{
    static const int harmless[] = {
        SYS_poll, SYS_ppoll, SYS_epoll_wait, SYS_epoll_pwait, SYS_select, SYS_pselect6,
        SYS_nanosleep, SYS_clock_nanosleep, SYS_wait4, SYS_waitid, SYS_read, SYS_recvfrom,
        SYS_recvmsg, SYS_accept, SYS_accept4, SYS_pause,
    };
    enum { INTERRUPTED = -4, RESTARTS = -512, RESTARTS_AS_IT_WAS = -516 };
    const Registers *now = &state->registers, *before = &state->before;
    long number = (long)now->orig_rax, result = (long)now->rax;
    int known = 0;
    /* The kernel's way of going on with the call that our first stop interrupted. */
    if (number == SYS_restart_syscall && before->rip == now->rip && before->rsp == now->rsp)
        number = (long)before->orig_rax;
    if (number < 0 || !(result == INTERRUPTED ||
                        (result <= RESTARTS && result >= RESTARTS_AS_IT_WAS)))
        return 0;
    for (size_t at = 0; at < sizeof harmless / sizeof *harmless; at++)
        known |= number == harmless[at];
    if (number == SYS_futex)
        known = may_be_futex && !may_be_allocators(pid, now->rdi);
    /* A signal on its way has its handler see the call end with EINTR. */
    uint64_t pending = status_field(tid, "SigPnd", 16) | status_field(tid, "ShdPnd", 16);
    if (!known || pending & ~state->mask || is_in_loader(now->rip))
        return 0;
    state->resumed.rax = (unsigned long)number;
    state->resumed.rip -= SYSCALL_BYTES;
    state->resumed.orig_rax = (unsigned long)-1;
    if (result == INTERRUPTED)
        state->registers = state->resumed; /* the kernel would not: and nothing had happened */
    state->waits = 1;
    return 1;
}

/* Whether the stop has ended a call that only ends so by a stop: the registers then make it again. */
static int is_made_again(Registers *registers)
{
    enum { INTERRUPTED = -4 };
    long number = (long)registers->orig_rax;
    if ((long)registers->rax != INTERRUPTED || !is_cut_short(number))
        return 0;
    registers->rax = (unsigned long)number;
    registers->rip -= SYSCALL_BYTES;
    registers->orig_rax = (unsigned long)-1;
    return 1;
}

/* Beginning and end of a system call, at a stop at one. */
static int read_call(pid_t tid, int *number, int *at_end)
{
    Registers registers;
    enum { NOT_DONE = -38 };
    if (!read_registers(tid, &registers))
        return 0;
    *number = (int)registers.orig_rax;
    *at_end = (long)registers.rax != NOT_DONE;
    return 1;
}

static long call_result(pid_t tid)
{
    Registers registers;
    return read_registers(tid, &registers) ? (long)registers.rax : -1;
}

static int set_call(pid_t tid, const State *state, uint64_t function, uint64_t entry,
                    uint64_t first, uint64_t second)
{
    Registers registers = state->resumed;
    enum { DIRECTION = 1 << 10, SINGLE_STEP = 1 << 8, RESUME = 1 << 16 };
    registers.rip = function;
    registers.rsp = entry;
    registers.rdi = first;
    registers.rsi = second;
    registers.rax = 0;
    registers.rbp = 0;
    registers.orig_rax = (unsigned long)-1;
    registers.eflags &= ~(unsigned long)(DIRECTION | SINGLE_STEP | RESUME);
    return write_set(tid, NT_PRSTATUS, &registers, sizeof registers);
}

/* struct ucontext of the kernel, at the address that the stack pointer has as sigreturn is called;
 * the place of what no signal frame of ours restores, the alternate stack, is invalid on purpose:
 * the kernel then leaves it as it is. */
typedef struct {
    uint64_t flags, link, stack_at;
    uint32_t stack_flags, padding;
    uint64_t stack_size;
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip;
    uint64_t eflags;
    uint16_t cs, gs, fs, ss;
    uint64_t error, trap, old_mask, fault_address, vectors, reserved[8];
    uint64_t mask;
    unsigned char signal_information[128];
} Context;
_Static_assert(offsetof(Context, mask) == 296, "struct ucontext of x86-64");

enum { HAS_XSTATE = 1, HAS_SS = 2, STRICT_SS = 4, INVALID_STACK = 0x7F };
enum { LEGACY_BYTES = 512, HEADER_END = 576, FEATURES_AT = 464, TILE_FEATURES = 3 << 17 };
#define XSTATE_MAGIC_1 0x46505853u
#define XSTATE_MAGIC_2 0x46505845u

/* The bytes of the vector state for these features, in the standard format. */
static size_t xstate_bytes(uint64_t features)
{
    size_t bytes = HEADER_END;
    for (unsigned feature = 2; feature < 64; feature++) {
        unsigned size, offset, c, d;
        if (features >> feature & 1 && __get_cpuid_count(0xD, feature, &size, &offset, &c, &d) &&
            offset + size > bytes)
            bytes = offset + size;
    }
    return bytes;
}

static int build_frame(const State *state, uint64_t sigreturn, uint64_t top, unsigned char *image,
                       uint64_t *base, size_t *size, uint64_t *entry)
{
    uint64_t features, in_use;
    memcpy(&features, state->vectors + FEATURES_AT, sizeof features);
    memcpy(&in_use, state->vectors + LEGACY_BYTES, sizeof in_use);
    /* A process that was never let use tiles has no room for them. */
    if (!(in_use & TILE_FEATURES))
        features &= ~(uint64_t)TILE_FEATURES;
    size_t vectors = xstate_bytes(features);
    if (state->vector_bytes < HEADER_END || vectors > state->vector_bytes)
        return 0;
    uint64_t vectors_at = (top - vectors - sizeof(uint32_t)) & ~63ull;
    uint64_t context_at = (vectors_at - sizeof(Context)) & ~15ull;
    const Registers *r = &state->resumed;
    Context context = {
        .flags = HAS_XSTATE | HAS_SS | STRICT_SS, .stack_flags = INVALID_STACK,
        .r8 = r->r8, .r9 = r->r9, .r10 = r->r10, .r11 = r->r11, .r12 = r->r12, .r13 = r->r13,
        .r14 = r->r14, .r15 = r->r15, .rdi = r->rdi, .rsi = r->rsi, .rbp = r->rbp, .rbx = r->rbx,
        .rdx = r->rdx, .rax = r->rax, .rcx = r->rcx, .rsp = r->rsp, .rip = r->rip,
        .eflags = r->eflags, .cs = (uint16_t)r->cs, .ss = (uint16_t)r->ss,
        .vectors = vectors_at, .mask = state->mask,
    };
    *entry = context_at - sizeof sigreturn;
    *base = *entry;
    *size = vectors_at + vectors + sizeof(uint32_t) - *base;
    if (*size > FRAME_BYTES_MAX)
        return 0;
    memset(image, 0, *size);
    memcpy(image, &sigreturn, sizeof sigreturn);
    memcpy(image + sizeof sigreturn, &context, sizeof context);
    unsigned char *area = image + (vectors_at - *base);
    memcpy(area, state->vectors, vectors);
    /* Only what these features say is there is restored, and none of it from beyond. */
    in_use &= features;
    memcpy(area + LEGACY_BYTES, &in_use, sizeof in_use);
    const struct {
        uint32_t magic, extended_bytes;
        uint64_t features;
        uint32_t bytes, padding[7];
    } told = {XSTATE_MAGIC_1, (uint32_t)vectors + sizeof(uint32_t), features, (uint32_t)vectors,
              {0}};
    const uint32_t end = XSTATE_MAGIC_2;
    memcpy(area + FEATURES_AT, &told, sizeof told);
    memcpy(area + vectors, &end, sizeof end);
    return 1;
}
