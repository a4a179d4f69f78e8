/* Registers, breakpoints and signal frames: what differs from processor to processor. */

#pragma once

#include <elf.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>

enum { VECTOR_BYTES_MAX = 32768, FRAME_BYTES_MAX = VECTOR_BYTES_MAX + 8192 };

typedef struct user_regs_struct Registers;

/* A thread at the moment found. `registers` are exactly those it had; `resumed` are those with
 * which it goes on: a system call in which it waited is then made again. */
typedef struct {
    Registers registers, resumed;
    Registers before; /* as it was first stopped */
    uint64_t mask;
    int waits;
    size_t vector_bytes;
    unsigned char vectors[VECTOR_BYTES_MAX] __attribute__((aligned(64)));
} State;

static int read_set(pid_t tid, int which, void *out, size_t *size)
{
    struct iovec vector = {out, *size};
    if (ptrace(PTRACE_GETREGSET, tid, (void *)(intptr_t)which, &vector) != 0 ||
        vector.iov_len >= *size + (which == NT_PRSTATUS))
        return 0; /* there may be more of it than there is room for */
    *size = vector.iov_len;
    return 1;
}

static int write_set(pid_t tid, int which, const void *from, size_t size)
{
    struct iovec vector = {(void *)(uintptr_t)from, size};
    return ptrace(PTRACE_SETREGSET, tid, (void *)(intptr_t)which, &vector) == 0;
}

static int read_registers(pid_t tid, Registers *registers)
{
    size_t size = sizeof *registers;
    return read_set(tid, NT_PRSTATUS, registers, &size) && size == sizeof *registers;
}

/* Docker's default profile before version 23 has these calls fail (EPERM), but not ptrace, which does
 * the same by words, some 0.5 µs each. The thread is stopped. */
static int read_word(pid_t tid, uint64_t at, uint64_t *word)
{
    struct iovec local = {word, sizeof *word}, remote = {(void *)(uintptr_t)at, sizeof *word};
    if (process_vm_readv(tid, &local, 1, &remote, 1, 0) == sizeof *word)
        return 1;
    errno = 0;
    *word = (uint64_t)ptrace(PTRACE_PEEKDATA, tid, (void *)(uintptr_t)at, NULL);
    return errno == 0;
}

static int write_memory(pid_t tid, uint64_t at, const void *bytes, size_t size)
{
    struct iovec local = {(void *)(uintptr_t)bytes, size}, remote = {(void *)(uintptr_t)at, size};
    if (process_vm_writev(tid, &local, 1, &remote, 1, 0) == (ssize_t)size)
        return 1;
    for (size_t done = 0; done < size; done += sizeof(uint64_t)) {
        uint64_t word = 0;
        size_t left = size - done < sizeof word ? size - done : sizeof word;
        if (left < sizeof word && !read_word(tid, at + done, &word))
            return 0;
        memcpy(&word, (const unsigned char *)bytes + done, left);
        if (ptrace(PTRACE_POKEDATA, tid, (void *)(uintptr_t)(at + done), (void *)word) != 0)
            return 0;
    }
    return 1;
}

#if defined(__x86_64__)
#include "x86_64.inc.c"
#elif defined(__aarch64__)
#include "aarch64.inc.c"
#else
#error "x86-64 and aarch64 only"
#endif

static int read_state(pid_t tid, State *state)
{
    state->vector_bytes = sizeof state->vectors;
    if (!read_registers(tid, &state->registers) ||
        !read_set(tid, VECTOR_SET, state->vectors, &state->vector_bytes))
        return 0;
    state->resumed = state->registers;
    return 1;
}

static void write_state(pid_t tid, const State *state)
{
    write_set(tid, VECTOR_SET, state->vectors, state->vector_bytes);
    write_set(tid, NT_PRSTATUS, &state->registers, sizeof state->registers);
}
