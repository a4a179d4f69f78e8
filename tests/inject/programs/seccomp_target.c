/* A program under seccomp: `seccomp_target HOW [thread]`. HOW is the name of a system call whose use
 * ends it, "allow" for a list of those it needs itself, "strict", or "container" for those that fail in
 * Docker's default profile before version 23. With "thread" only a second
 * thread is under it. With "exec COMMAND ..." it becomes another program. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *how;

static void install(void)
{
    static const int needed[] = {
        SYS_read, SYS_write, SYS_poll, SYS_brk, SYS_futex, SYS_exit_group, SYS_exit, SYS_mmap,
        SYS_munmap, SYS_rt_sigreturn, SYS_restart_syscall, SYS_clock_nanosleep,
    };
    static const struct { const char *name; int number; } calls[] = {
        {"memfd_create", SYS_memfd_create}, {"mprotect", SYS_mprotect}, {"openat", SYS_openat},
        {"clone3", SYS_clone3}, {"container", SYS_process_vm_readv},
        {"container", SYS_process_vm_writev}, {"container", SYS_perf_event_open},
    };
    struct sock_filter filter[64];
    unsigned short count = 0;
    int allows = strcmp(how, "allow") == 0;
    unsigned at_match = allows ? SECCOMP_RET_ALLOW : SECCOMP_RET_KILL_PROCESS;
    if (strcmp(how, "container") == 0)
        at_match = SECCOMP_RET_ERRNO | EPERM;
    unsigned otherwise = allows ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW;
    if (strcmp(how, "strict") == 0) {
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        return;
    }
    filter[count++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
#define MATCH(number)                                                                             \
    filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);       \
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, at_match)
    for (unsigned at = 0; allows && at < sizeof needed / sizeof *needed; at++) {
        MATCH(needed[at]);
    }
    for (unsigned at = 0; at < sizeof calls / sizeof *calls; at++)
        if (strcmp(how, calls[at].name) == 0) {
            MATCH(calls[at].number);
        }
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = {count, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
        _exit(2);
}

static void *filtered(void *unused)
{
    install();
    write(1, "ready\n", 6);
    for (;;)
        poll(NULL, 0, 20);
    return unused;
}

int main(int count, char **words)
{
    pthread_t thread;
    how = words[1];
    if (count > 2 && strcmp(words[2], "thread") == 0) {
        pthread_create(&thread, NULL, filtered, NULL);
    } else {
        install();
        if (count > 3 && strcmp(words[2], "exec") == 0) {
            execvp(words[3], words + 3);
            _exit(127);
        }
        write(1, "ready\n", 6);
    }
    if (strcmp(how, "strict") == 0) {
        char byte;
        read(0, &byte, 1);
        syscall(SYS_exit, 0);
    }
    for (int turn = 0;; turn++) {
        char *memory = malloc(100 + turn % 1000);
        memset(memory, 1, 100);
        free(memory);
        poll(NULL, 0, 20);
    }
}
