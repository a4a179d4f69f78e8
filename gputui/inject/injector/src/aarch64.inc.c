/* aarch64: breakpoint registers, and the frame of the kernel's arch/arm64/kernel/signal.c. */

#pragma once

#include "maps.inc.c"

#include <link.h>
#include <sys/auxv.h>

enum { RED_ZONE = 0, VECTOR_SET = NT_PRFPREG, BREAKPOINT_BYTES = 4 };
#ifndef NT_ARM_HW_BREAK
#define NT_ARM_HW_BREAK 0x402
#endif
#ifndef NT_ARM_TLS
#define NT_ARM_TLS 0x401
#endif

static uint64_t stack_pointer(const Registers *registers) { return registers->sp; }
static uint64_t thread_pointer(pid_t tid, const State *state)
{
    uint64_t pointers[3] = {0};
    size_t size = sizeof pointers;
    (void)state;
    return read_set(tid, NT_ARM_TLS, pointers, &size) ? pointers[0] : 0;
}

static uint64_t program_counter_of(const Registers *registers) { return registers->pc; }
static uint64_t program_counter(pid_t tid)
{
    Registers registers;
    return read_registers(tid, &registers) ? registers.pc : 0;
}

static uint64_t caller_of(pid_t tid, const Registers *registers)
{
    (void)tid;
    return registers->regs[30];
}

typedef struct {
    uint32_t information, padding;
    struct {
        uint64_t address;
        uint32_t control, padding;
    } registers[2];
} Breakpoints;

static void clear_breakpoints(pid_t tid)
{
    Breakpoints none = {0};
    write_set(tid, NT_ARM_HW_BREAK, &none, sizeof none);
}

static int set_breakpoints(pid_t tid, uint64_t first, uint64_t second)
{
    /* Execution of all four bytes, in user mode, enabled. */
    enum { EXECUTE = 0xF << 5 | 2 << 1 | 1 };
    Breakpoints both = {.registers = {{first, EXECUTE, 0}, {second, EXECUTE, 0}}};
    if (write_set(tid, NT_ARM_HW_BREAK, &both, sizeof both))
        return 1;
    clear_breakpoints(tid);
    return 0;
}

/* The kernel's own, in its page that every process has; where that lies differs. */
static const void *sigreturn_here(void)
{
    const ElfW(Ehdr) *image = (const void *)getauxval(AT_SYSINFO_EHDR);
    if (image == NULL)
        return NULL;
    const ElfW(Phdr) *segments = (const void *)((const char *)image + image->e_phoff);
    const char *base = (const char *)image, *names = NULL;
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Sym) *symbols = NULL;
    const uint32_t *hash = NULL;
    for (int at = 0; at < image->e_phnum; at++)
        if (segments[at].p_type == PT_DYNAMIC)
            dynamic = (const void *)(base + segments[at].p_offset);
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_STRTAB)
            names = base + dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const void *)(base + dynamic->d_un.d_ptr);
        else if (dynamic->d_tag == DT_HASH)
            hash = (const void *)(base + dynamic->d_un.d_ptr);
    for (uint32_t at = 0; hash != NULL && names != NULL && symbols != NULL && at < hash[1]; at++)
        if (strcmp(names + symbols[at].st_name, "__kernel_rt_sigreturn") == 0)
            return base + symbols[at].st_value;
    return NULL;
}

/* Without a guarded control stack, which a frame of ours would break. */
static int is_known_thread(pid_t tid, const State *state)
{
    (void)state;
    return !has_feature(tid, "Shadow", "gcs");
}

/* What a system call that was interrupted needs to be made again is not shown here: threads that
 * wait are left alone. */
static int is_harmless_wait(pid_t pid, pid_t tid, State *state, int may_be_futex)
{
    (void)pid, (void)tid, (void)state, (void)may_be_futex, (void)may_be_allocators;
    (void)is_in_loader;
    return 0;
}

/* The result stands where the call's first argument was, which is nowhere else to be read. */
static int is_made_again(Registers *registers)
{
    (void)registers;
    return 0;
}

static int read_call(pid_t tid, int *number, int *at_end)
{
    Registers registers;
    enum { NUMBER = 8, DIRECTION = 7 };
    if (!read_registers(tid, &registers))
        return 0;
    *number = (int)registers.regs[NUMBER];
    *at_end = registers.regs[DIRECTION] == 1;
    return 1;
}

static long call_result(pid_t tid)
{
    Registers registers;
    return read_registers(tid, &registers) ? (long)registers.regs[0] : -1;
}

typedef struct {
    unsigned char signal_information[128];
    uint64_t flags, link, stack_at;
    uint32_t stack_flags, padding;
    uint64_t stack_size, mask;
    unsigned char mask_room[120];
    uint64_t align;
    uint64_t fault_address, registers[31], sp, pc, pstate;
    unsigned char reserved[4096] __attribute__((aligned(16)));
} SignalFrame;
_Static_assert(offsetof(SignalFrame, fault_address) == 128 + 176, "struct ucontext of arm64");
_Static_assert(offsetof(SignalFrame, reserved) == 128 + 176 + 288, "struct sigcontext of arm64");

/* A frame record and, below it, the frame: the first instruction of a handler sees its return
 * address in the link register, so the frame must be entered with that. */
static int set_call(pid_t tid, const State *state, uint64_t function, uint64_t entry,
                    uint64_t first, uint64_t second)
{
    Registers registers = state->resumed;
    enum { LINK = 30, FRAME = 29 };
    uint64_t sigreturn = 0;
    if (!read_word(tid, entry + sizeof(SignalFrame), &sigreturn))
        return 0;
    registers.pc = function;
    registers.sp = entry;
    registers.regs[0] = first;
    registers.regs[1] = second;
    registers.regs[FRAME] = 0;
    registers.regs[LINK] = sigreturn;
    return write_set(tid, NT_PRSTATUS, &registers, sizeof registers);
}

enum { INVALID_STACK = 0x7F, VECTORS_MAGIC = 0x46508001, VECTORS_BYTES = 528 };

static int build_frame(const State *state, uint64_t sigreturn, uint64_t top, unsigned char *image,
                       uint64_t *base, size_t *size, uint64_t *entry)
{
    static SignalFrame frame;
    struct user_fpsimd_struct vectors;
    if (state->vector_bytes < sizeof vectors)
        return 0;
    memcpy(&vectors, state->vectors, sizeof vectors);
    memset(&frame, 0, sizeof frame);
    frame.stack_flags = INVALID_STACK;
    frame.mask = state->mask;
    memcpy(frame.registers, state->resumed.regs, sizeof frame.registers);
    frame.sp = state->resumed.sp;
    frame.pc = state->resumed.pc;
    frame.pstate = state->resumed.pstate;
    const uint32_t head[] = {VECTORS_MAGIC, VECTORS_BYTES, vectors.fpsr, vectors.fpcr};
    memcpy(frame.reserved, head, sizeof head);
    memcpy(frame.reserved + sizeof head, vectors.vregs, sizeof vectors.vregs);
    *size = sizeof frame + sizeof sigreturn;
    *base = *entry = (top - *size) & ~15ull;
    if (*size > FRAME_BYTES_MAX)
        return 0;
    memcpy(image, &frame, sizeof frame);
    memcpy(image + sizeof frame, &sigreturn, sizeof sigreturn);
    return 1;
}
