/* A program to attach to: `attach_target KIND COUNTER`. It counts its turns in the file COUNTER, which
 * is mapped, so that no limit on writing stops it; what it finds changed is said in standard error
 * with "wrong", and ends it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *kind;
static volatile uint64_t *counter;
static volatile sig_atomic_t handled;

static int is(const char *name) { return strcmp(kind, name) == 0; }

static void wrong(const char *what)
{
    dprintf(2, "wrong: %s (%s)\n", what, strerror(errno));
    _exit(1);
}

static void handle(int number)
{
    (void)number;
    handled++;
}

/* What lies in allocated memory stays there. */
static void allocate(unsigned seed)
{
    unsigned char *pieces[40];
    for (unsigned at = 0; at < 40; at++) {
        size_t size = 16 + (seed * 37 + at * 91) % 6000;
        if ((pieces[at] = malloc(size)) == NULL)
            wrong("no memory");
        memset(pieces[at], (int)at, size);
    }
    for (unsigned at = 0; at < 40; at++) {
        if (pieces[at][15] != at)
            wrong("memory");
        free(pieces[at]);
    }
}

static void pause_ms(long milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0)
        if (errno != EINTR)
            wrong("nanosleep");
}

static void *allocates(void *unused)
{
    for (unsigned turn = 0;; turn++) {
        allocate(turn);
        pause_ms(20);
        if (is("main-thread-ended"))
            ++*counter;
    }
    return unused;
}

static void *ends_at_once(void *unused)
{
    allocate(3);
    return unused;
}

static void take_signals(int number, int timer, int flags, long period_us)
{
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    struct itimerval each = {{0, period_us}, {0, period_us}};
    sigaction(number, &action, NULL);
    setitimer(timer, &each, NULL);
}

static void limit(int which, rlim_t most)
{
    struct rlimit both = {most, most};
    setrlimit(which, &both);
}

static void filter_nothing(void)
{
    struct sock_filter step = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &step};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        wrong("seccomp");
}

static void must(int result, const char *what)
{
    if (result != 0) {
        dprintf(2, "cannot %s\n", what);
        _exit(77);
    }
}

static void hide(const char *place)
{
    must(unshare(CLONE_NEWNS), "unshare");
    must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount");
    must(mount("tmpfs", place, "tmpfs", 0, "size=256k"), "mount");
}

static void prepare(const char *folder)
{
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigset_t all;
    pthread_t thread;
    pthread_attr_t small;
    sigfillset(&all);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    if (is("profiled"))
        take_signals(SIGPROF, ITIMER_PROF, SA_RESTART, 1000);
    if (is("alarmed"))
        take_signals(SIGALRM, ITIMER_REAL, 0, 1000);
    if (is("other-stack")) {
        sigaltstack(&other, NULL);
        take_signals(SIGPROF, ITIMER_PROF, SA_ONSTACK | SA_RESTART, 1000);
    }
    if (is("blocks-signals"))
        sigprocmask(SIG_BLOCK, &all, NULL);
    if (is("ignores-traps"))
        signal(SIGTRAP, SIG_IGN);
    if (is("handles-traps"))
        signal(SIGTRAP, handle);
    if (is("ignores-children"))
        signal(SIGCHLD, SIG_IGN);
    if (is("few-files"))
        limit(RLIMIT_NOFILE, 16);
    if (is("no-file-left")) {
        limit(RLIMIT_NOFILE, 16);
        while (dup(2) >= 0)
            ;
    }
    if (is("no-process-left"))
        limit(RLIMIT_NPROC, 1);
    if (is("small-files"))
        limit(RLIMIT_FSIZE, 1000);
    if (is("small-stack"))
        limit(RLIMIT_STACK, 1 << 16);
    if (is("small-space"))
        limit(RLIMIT_AS, 64 << 20);
    if (is("locked-memory"))
        mlockall(MCL_CURRENT | MCL_FUTURE);
    if (is("no-code-written"))
        prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0);
    if (is("undumpable"))
        prctl(PR_SET_DUMPABLE, 0);
    if (is("realtime")) {
        struct sched_param first = {10};
        sched_setscheduler(0, SCHED_FIFO, &first);
    }
    if (is("idle-class")) {
        struct sched_param none = {0};
        sched_setscheduler(0, SCHED_IDLE, &none);
    }
    if (is("one-core")) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(0, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    if (is("no-directory")) {
        char path[4096];
        snprintf(path, sizeof path, "%s/gone", folder);
        mkdir(path, 0755);
        must(chdir(path), "chdir");
        rmdir(path);
    }
    if (is("other-root"))
        must(chroot(folder), "chroot");
    if (is("own-memory-files"))
        hide("/dev/shm");
    if (is("no-proc"))
        hide("/proc");
    if (is("own-users"))
        must(unshare(CLONE_NEWUSER), "unshare");
    if (is("other-user"))
        must(setuid(65534), "setuid");
    if (is("filtered"))
        filter_nothing();
    if (is("many-threads"))
        for (int at = 0; at < 200; at++)
            if (pthread_create(&thread, &small, allocates, NULL) != 0)
                wrong("pthread_create");
    if (is("main-thread-ended")) {
        pthread_create(&thread, NULL, allocates, NULL);
        pthread_exit(NULL);
    }
}

static void fork_one(void)
{
    int status = 0;
    pid_t child = is("vforks") ? vfork() : fork();
    if (child == 0) {
        if (is("vforks"))
            execl("/bin/true", "true", (char *)NULL);
        else
            allocate(1);
        _exit(5);
    }
    pid_t ended = child < 0 ? -1 : waitpid(child, &status, 0);
    if (is("ignores-children") ? child < 0 : ended != child)
        wrong("a child");
    if (is("forks") && WEXITSTATUS(status) != 5)
        wrong("a child's status");
}

static void take_turn(unsigned turn)
{
    static int first_file = -1, other_numbers, polled = -1;
    pthread_t threads[4];
    if (is("forks") || is("vforks") || is("ignores-children"))
        fork_one();
    if (is("loads")) {
        void *library = dlopen("libm.so.6", RTLD_NOW), *other = dlopen("libresolv.so.2", RTLD_LAZY);
        if (library == NULL || dlclose(library) != 0 || (other != NULL && dlclose(other) != 0))
            wrong("a library");
    }
    if (is("short-threads")) {
        for (int at = 0; at < 4; at++)
            if (pthread_create(threads + at, NULL, ends_at_once, NULL) != 0)
                wrong("pthread_create");
        for (int at = 0; at < 4; at++)
            pthread_join(threads[at], NULL);
    }
    if (is("closes-files") && turn % 10 == 0)
        (void)syscall(SYS_close_range, 3, 1000, 0);
    if (is("counts-files")) {
        int file = open("/dev/null", O_RDONLY);
        first_file = first_file < 0 ? file : first_file;
        /* Another thread has a file open for moments; one that stays open is a leak. */
        other_numbers = file == first_file ? 0 : other_numbers + 1;
        if (other_numbers > 100)
            wrong("another number of a file");
        close(file);
    }
    if (is("signals-itself"))
        for (int at = 0; at < 20; at++)
            kill(getpid(), SIGWINCH);
    if (is("polls") && poll(NULL, 0, 30) != 0)
        wrong("poll");
    if (is("waits-for-events")) {
        struct epoll_event event;
        polled = polled < 0 ? epoll_create1(EPOLL_CLOEXEC) : polled;
        if (epoll_wait(polled, &event, 1, 30) != 0)
            wrong("epoll_wait");
    }
    if (is("large-blocks")) {
        char *block = malloc(1 << 20);
        block[1 << 19] = 1;
        free(block);
    }
    allocate(turn);
    if (!is("spins"))
        pause_ms(5);
    ++*counter;
}

int main(int count, char **words)
{
    char folder[4096];
    if (count < 3)
        return 2;
    kind = words[1];
    int file = open(words[2], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, 4096) != 0)
        return 2;
    counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    snprintf(folder, sizeof folder, "%s", words[2]);
    *strrchr(folder, '/') = '\0';
    prepare(folder);
    for (unsigned turn = 0;; turn++)
        take_turn(turn);
}
