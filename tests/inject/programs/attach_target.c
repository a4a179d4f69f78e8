/* A program to attach to: `attach_target PART`. It checks its own results, and ends with 1 if one is
 * wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void wrong(const char *what)
{
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

/* What lies in allocated memory stays there. */
static void *allocate(void *rounds)
{
    for (uintptr_t n = 0; rounds == NULL || n < (uintptr_t)rounds; n++) {
        size_t size = 16 + n * 2654435761u % 5000;
        char *memory = malloc(size);
        memset(memory, (int)n, size);
        for (size_t at = 0; at < size; at += 97)
            if (memory[at] != (char)n)
                wrong("memory");
        free(memory);
    }
    return NULL;
}

#ifdef __x86_64__
/* All vector registers hold numbers over calls of malloc and free, which do not touch them. */
__attribute__((target("avx2"), noinline)) static int vectors_keep(uint32_t seed)
{
    static uint32_t in[16][8], out[16][8];
    for (int at = 0; at < 128; at++)
        in[at / 8][at % 8] = seed * 2654435761u + at * 97;
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12) \
    do(13) do(14) do(15)
#define LOAD(n) "vmovdqu " #n "*32(%0), %%ymm" #n "\n"
#define STORE(n) "vmovdqu %%ymm" #n ", " #n "*32(%1)\n"
    __asm__ volatile(
        EACH(LOAD)
        "push %0\n push %1\n push %%rbp\n mov %%rsp, %%rbp\n and $-64, %%rsp\n"
        "mov $16, %%edi\n call malloc@PLT\n mov %%rax, %%rdi\n call free@PLT\n"
        "mov %%rbp, %%rsp\n pop %%rbp\n pop %1\n pop %0\n"
        EACH(STORE)
        :: "b"(in), "r"(out)
        : "memory", "rax", "rcx", "rdx", "rdi", "rsi", "r8", "r9", "r10", "r11", "xmm0", "xmm1",
          "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12", "xmm13", "xmm14", "xmm15");
    return memcmp(in, out, sizeof in) == 0;
}
static void vectors(void)
{
    free(malloc(16)); /* so that it need not be resolved between */
    vectors_keep(0);
    for (uint32_t seed = 0;; seed++)
        if (!vectors_keep(seed))
            wrong("a vector register");
}
#else
static void vectors(void) { allocate(NULL); }
#endif

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* It never allocates, and each wait takes as long as it should and is not cut short. */
static void waits(void)
{
    for (;;) {
        struct timespec time = {0, 200000000};
        double began = now();
        if (nanosleep(&time, NULL) != 0)
            wrong("interrupted");
        if (now() - began < 0.2)
            wrong("too early");
    }
}

/* Calls that any stop would end with EINTR. */
static void waits_for_signals(void)
{
    sigset_t set;
    struct timespec time = {2, 0};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (;;) {
        if (sigtimedwait(&set, NULL, &time) != -1 || errno != EAGAIN)
            wrong("interrupted");
        puts("over");
        fflush(stdout);
    }
}

static volatile int handled;
static void handle(int number) { handled = number; }

/* Signals arrive while it is attached to, each once, and their handler keeps the mask. */
static void signals(long period_ns)
{
    sigset_t mask, block;
    struct sigaction action = {.sa_handler = handle};
    struct itimerspec each = {{0, period_ns}, {0, period_ns}};
    timer_t timer;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR2);
    sigprocmask(SIG_BLOCK, &block, NULL);
    sigaction(SIGUSR1, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &each, NULL);
    for (;;) {
        allocate((void *)50);
        sigprocmask(SIG_BLOCK, NULL, &mask);
        if (!sigismember(&mask, SIGUSR2) || sigismember(&mask, SIGUSR1) ||
            sigismember(&mask, SIGTERM))
            wrong("the signal mask");
    }
}

/* Its mask where it allocates is another than where it computes. */
static void masks(void)
{
    sigset_t mask, block;
    struct timespec began, now;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    for (;;) {
        sigprocmask(SIG_BLOCK, &block, NULL);
        clock_gettime(CLOCK_MONOTONIC, &began);
        do
            clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - began.tv_sec) * 1000000000ll + now.tv_nsec - began.tv_nsec < 3000000);
        sigprocmask(SIG_UNBLOCK, &block, NULL);
        for (int turn = 0; turn < 20; turn++) {
            allocate((void *)50);
            sigprocmask(SIG_BLOCK, NULL, &mask);
            if (sigismember(&mask, SIGUSR1) || sigismember(&mask, SIGTERM))
                wrong("the signal mask");
        }
    }
}

/* It has taken SIGTRAP for itself: a breakpoint would take that away. */
static void ignores_traps(void)
{
    struct sigaction now_is;
    signal(SIGTRAP, SIG_IGN);
    puts("ready");
    fflush(stdout);
    for (;;) {
        allocate((void *)1000);
        sigaction(SIGTRAP, NULL, &now_is);
        if (now_is.sa_handler != SIG_IGN)
            wrong("SIGTRAP is no longer ignored");
    }
}

/* Mostly in the loader. */
static void loads(const char *path)
{
    for (unsigned n = 0;; n++) {
        void *library = dlopen(path, RTLD_NOW);
        if (library == NULL || dlclose(library) != 0)
            wrong("a library");
        if (n % 10 == 0)
            allocate((void *)2);
    }
}

int main(int count, char **words)
{
    const char *part = count > 1 ? words[1] : "";
    pthread_t thread;
    if (strcmp(part, "ignores-traps") == 0)
        ignores_traps();
    puts("ready");
    fflush(stdout);
    if (strcmp(part, "vectors") == 0)
        vectors();
    if (strcmp(part, "loads") == 0 && count > 2)
        loads(words[2]);
    if (strcmp(part, "waits") == 0)
        waits();
    if (strcmp(part, "waits-for-signals") == 0)
        waits_for_signals();
    if (strcmp(part, "masks") == 0)
        masks();
    if (strcmp(part, "signals") == 0)
        signals(500000);
    if (strcmp(part, "flood") == 0)
        signals(30000);
    if (strcmp(part, "threads") == 0)
        for (int at = 0; at < 3; at++)
            pthread_create(&thread, NULL, allocate, NULL);
    if (strcmp(part, "spins") == 0)
        for (volatile long n = 0;; n++)
            ;
    if (strcmp(part, "zombie") == 0) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        siginfo_t how;
        waitid(P_PID, (id_t)child, &how, WEXITED | WNOWAIT);
        printf("%d\n", (int)child);
        fflush(stdout);
        pause();
    }
    allocate(NULL);
}
