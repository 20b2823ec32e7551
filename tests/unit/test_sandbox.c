/* SPDX-License-Identifier: Apache-2.0
 *
 * The sandbox, from inside: every forbidden thing is attempted in a child process that has entered
 * it, with each half alone too, as on kernels that lack the other; and what a server needs works.
 */
#include "engine.h"
#include "sandbox.h"
#include "skipping.h"

#include <errno.h>
#include <sched.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { LANDLOCK_CREATE = 444, THREADS = 3, KILLED = 1000 };

/* ---- children ---- */

static nib_allocator heap;
static nib_pool *pool;
static nib_sandbox_result entered;
static int listener = -1, file = -1; /* opened before */

/* From now on the system call fails as on a kernel without it. */
static void lose_call(int call)
{
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog filter = {COUNT(code), (struct sock_filter *)code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0)
        _exit(99);
}

typedef struct child {
    nib_sandbox_task task;
    int lost; /* a call that the kernel lacks; 0: none */
    int newest;
} child;

static void enter(const child *c)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (c->lost != 0)
        lose_call(c->lost);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    file = open("/dev/null", O_WRONLY);
    if (nib__pool_open(&pool, THREADS, &heap, NULL) != NIB_OK || listener < 0 || file < 0 ||
        bind(listener, (struct sockaddr *)&to, sizeof to) != 0 || listen(listener, 1) != 0)
        _exit(98);
    nib__sandbox_enter(&entered, c->task, pool, c->newest != 0 ? c->newest : NIB_SANDBOX_NEWEST);
}

/* Runs `act` in a sandboxed child. Returns its result, or KILLED + the signal. */
static int in_child(const child *c, int (*act)(void))
{
    int status = 0;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        enter(c);
        _exit(act());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? KILLED + WTERMSIG(status) : WEXITSTATUS(status);
}

static int result(long got) { return got < 0 ? errno : 0; }

static int show(void)
{
    printf("%d %d %s\n", entered.landlock, entered.seccomp, entered.text);
    return fflush(stdout);
}

/* What nib__sandbox_enter says in such a child. */
static void said(char out[NIB_SANDBOX_TEXT + 8], const child *c)
{
    int ends[2];
    size_t used = 0;
    ssize_t got;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    const int before = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    const int code = in_child(c, show);
    dup2(before, STDOUT_FILENO);
    close(before);
    while ((got = read(ends[0], out + used, NIB_SANDBOX_TEXT + 7 - used)) > 0)
        used += (size_t)got;
    close(ends[0]);
    out[used] = '\0';
    assert_int_equal(code, 0);
}

static const child server = {.task = NIB_SANDBOX_SERVER}, reader = {.task = NIB_SANDBOX_READER};

static void skip_without(const char *test, bool landlock)
{
    char text[NIB_SANDBOX_TEXT + 8];
    said(text, &server);
    if (text[2] != '1' || (landlock && text[0] != '1')) {
        text[strcspn(text, "\n")] = 0;
        skip_test(test, SANITIZED ? SKIP_SANITIZED : text + 4);
    }
}

/* ---- forbidden ---- */

static int read_file(void) { return result(open("/etc/passwd", O_RDONLY)); }
static int write_file(void)
{
    return result(open("/tmp/nibble-sandbox", O_WRONLY | O_CREAT, 0600));
}
static int list_directory(void) { return result(open("/", O_RDONLY | O_DIRECTORY)); }
static int remove_file(void) { return result(unlink("/tmp/nibble-sandbox")); }
static int rename_file(void) { return result(rename("/tmp/nibble-a", "/tmp/nibble-b")); }
static int make_directory(void) { return result(mkdir("/tmp/nibble-sandbox", 0700)); }
static int change_mode(void) { return result(chmod("/tmp", 01777)); }
static int make_socket(void) { return result(socket(AF_INET, SOCK_STREAM, 0)); }
static int make_unix_socket(void) { return result(socket(AF_UNIX, SOCK_STREAM, 0)); }
static int make_pair(void)
{
    int pair[2];
    return result(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
}
static int connect_socket(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = 1};
    return result(connect(listener, (struct sockaddr *)&to, sizeof to));
}
static int accept_socket(void) { return result(accept4(listener, NULL, NULL, SOCK_CLOEXEC)); }
static int signal_parent(void) { return result(kill(getppid(), 0)); }
static int signal_thread_of_parent(void)
{
    return result(syscall(__NR_tgkill, getppid(), getppid(), 0));
}
static int make_process(void)
{
    const pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    return result(pid);
}
static int make_process_3(void)
{
    const uint64_t arguments[8] = {0};
    return result(syscall(__NR_clone3, arguments, sizeof arguments));
}
static int map_code(void)
{
    /* musl's mmap says ENOMEM for EPERM */
    return result(
        syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}
static int make_code(void)
{
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? 97 : result(mprotect(at, 4096, PROT_READ | PROT_EXEC));
}
static int make_memory_file(void) { return result(memfd_create("nibble", 0)); }
static int set_dumpable(void) { return result(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)); }
static int inject_terminal(void) { return result(ioctl(0, 0x5412 /* TIOCSTI */, "x")); }
static int call_of_the_future(void) { return result(syscall(500)); }

static int run_program(void)
{
    char *const arguments[] = {(char *)"true", NULL};
    return result(execve("/bin/true", arguments, arguments + 1));
}
static int trace_parent(void) { return result(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL)); }
static int read_parent(void)
{
    return result(syscall(__NR_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0));
}
static int load_bpf(void) { return result(syscall(__NR_bpf, 0, NULL, 0)); }
static int mount_tmpfs(void) { return result(syscall(__NR_mount, "", "/mnt", "tmpfs", 0, NULL)); }
static int leave_namespace(void) { return result(syscall(__NR_unshare, CLONE_NEWUSER)); }
static int load_module(void) { return result(syscall(__NR_init_module, NULL, 0, "")); }
static int open_ring(void) { return result(syscall(__NR_io_uring_setup, 1, NULL)); }
#if defined(__x86_64__)
static int use_x32(void) { return result(syscall(0x40000000 | __NR_getpid)); }
#endif

static const struct {
    const char *name;
    int (*act)(void);
    int expected; /* errno, or KILLED + signal */
} attempts[] = {
    {"read a file", read_file, EPERM},
    {"write a file", write_file, EPERM},
    {"list a directory", list_directory, EPERM},
    {"remove a file", remove_file, EPERM},
    {"rename a file", rename_file, EPERM},
    {"make a directory", make_directory, EPERM},
    {"change a mode", change_mode, EPERM},
    {"make a socket", make_socket, EPERM},
    {"make a Unix socket", make_unix_socket, EPERM},
    {"make a socket pair", make_pair, EPERM},
    {"connect", connect_socket, EPERM},
    {"signal another process", signal_parent, EPERM},
    {"signal a thread of another process", signal_thread_of_parent, EPERM},
    {"fork", make_process, EPERM},
    {"clone3", make_process_3, ENOSYS},
    {"map executable memory", map_code, EPERM},
    {"make memory executable", make_code, EPERM},
    {"make a file in memory", make_memory_file, EPERM},
    {"become dumpable", set_dumpable, EPERM},
    {"type into the terminal", inject_terminal, EPERM},
    {"a call that the list does not know", call_of_the_future, ENOSYS},
    {"run a program", run_program, KILLED + SIGSYS},
    {"trace a process", trace_parent, KILLED + SIGSYS},
    {"read a process's memory", read_parent, KILLED + SIGSYS},
    {"load a BPF program", load_bpf, KILLED + SIGSYS},
    {"mount", mount_tmpfs, KILLED + SIGSYS},
    {"enter a namespace", leave_namespace, KILLED + SIGSYS},
    {"load a module", load_module, KILLED + SIGSYS},
    {"open an io_uring", open_ring, KILLED + SIGSYS},
#if defined(__x86_64__)
    {"call by the numbers of x32", use_x32, KILLED + SIGSYS},
#endif
};

static void test_forbidden(void **state)
{
    (void)state;
    skip_without(__func__, false);
    int wrong = 0;
    for (size_t i = 0; i < COUNT(attempts); i++)
        for (int reads = 0; reads < 2; reads++) {
            const int got = in_child(reads ? &reader : &server, attempts[i].act);
            if (got != attempts[i].expected)
                printf("%s, %s: %d, not %d\n", attempts[i].name, reads ? "reader" : "server", got,
                       attempts[i].expected);
            wrong += got != attempts[i].expected;
        }
    assert_int_equal(wrong, 0);
    assert_int_equal(in_child(&server, accept_socket), EAGAIN);
    assert_int_equal(in_child(&reader, accept_socket), EPERM);
}

/* ---- allowed ---- */

static atomic_int signals;
static void on_signal(int number) { atomic_fetch_add(&signals, number); }

static void *take_memory(void *ctx)
{
    void *p = malloc(1 << 20);
    free(p);
    return p != NULL ? ctx : NULL;
}

static int do_allowed(void)
{
    pthread_t thread;
    void *back = NULL;
    struct stat st;
    struct tm local;
    const time_t now = time(NULL);
    const struct timespec moment = {.tv_nsec = 1000};
    unsigned char seed[8];
    if (pthread_create(&thread, NULL, take_memory, &heap) != 0 || pthread_join(thread, &back) != 0)
        return 1;
    if (back != &heap || localtime_r(&now, &local) == NULL || nanosleep(&moment, NULL) != 0)
        return 2;
    if (getentropy(seed, sizeof seed) != 0 || stat("/", &st) != 0 || write(file, "x", 1) != 1)
        return 3;
    signal(SIGUSR1, on_signal);
    /* glibc's raise; musl's has a call that could signal other processes */
    if (syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1) != 0 ||
        atomic_load(&signals) != SIGUSR1)
        return 4;
    void *block = nib__block_take(1 << 22);
    if (block == NULL)
        return 5;
    nib__block_free(block, 1 << 22);
    return 0;
}

static int do_served(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int ends[2];
    const int set = epoll_create1(EPOLL_CLOEXEC), counter = eventfd(0, 0);
    if (set < 0 || counter < 0 || pipe2(ends, O_NONBLOCK) != 0 || listen(listener, 8) != 0)
        return 11;
    if (epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) != 0 || epoll_wait(set, &event, 1, 0) != 0)
        return 12;
    return do_allowed();
}

static void test_allowed(void **state)
{
    (void)state;
    skip_without(__func__, false);
    assert_int_equal(in_child(&reader, do_allowed), 0);
    assert_int_equal(in_child(&server, do_served), 0);
}

/* ---- each half alone, on every thread ---- */

static atomic_int codes[THREADS];

static void try_worker(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)ctx;
    (void)begin;
    (void)end;
    atomic_store(&codes[worker], read_file());
}

static void *try_thread(void *ctx)
{
    (void)ctx;
    return (void *)(intptr_t)read_file();
}

/* The errno of opening a file, if it is the same on the workers and on a new thread; else 96. */
static int on_every_thread(void)
{
    pthread_t thread;
    void *code = NULL;
    nib__pool_each(pool, false, try_worker, NULL);
    if (pthread_create(&thread, NULL, try_thread, NULL) != 0 || pthread_join(thread, &code) != 0)
        return 96;
    for (int i = 0; i < THREADS; i++)
        if (atomic_load(&codes[i]) != (int)(intptr_t)code)
            return 96;
    return (int)(intptr_t)code;
}

static void test_without_landlock(void **state)
{
    (void)state;
    const child c = {.task = NIB_SANDBOX_SERVER, .lost = LANDLOCK_CREATE};
    char text[NIB_SANDBOX_TEXT + 8];
    skip_without(__func__, false);
    said(text, &c);
    assert_memory_equal(text, "0 1 ", 4);
    assert_non_null(strstr(text, "no Landlock (this kernel has none), a seccomp filter"));
    assert_int_equal(in_child(&c, on_every_thread), EPERM);
}

static void test_without_seccomp(void **state)
{
    (void)state;
    const child c = {.task = NIB_SANDBOX_SERVER, .lost = __NR_seccomp};
    char text[NIB_SANDBOX_TEXT + 8];
    skip_without(__func__, true);
    said(text, &c);
    assert_memory_equal(text, "1 0 ", 4);
    assert_non_null(strstr(text, "no seccomp filter (this kernel has none)"));
    assert_int_equal(in_child(&c, on_every_thread), EACCES);
    assert_int_equal(in_child(&c, write_file), EACCES);
    assert_int_equal(in_child(&c, list_directory), EACCES);
    assert_int_equal(in_child(&c, run_program), EACCES);
}

/* Older versions forbid files too, and the report says what they lack. */
static void test_versions(void **state)
{
    static const char *const lacking[] = {
        ("Landlock 1 (without rules for links between directories, truncation, TCP, ioctl of "
         "devices, abstract sockets and signals)"),
        "Landlock 2 (without rules for truncation, TCP, ",
        "Landlock 3 (without rules for TCP, ",
        "Landlock 4 (without rules for ioctl of devices, ",
        "Landlock 5 (without rules for abstract sockets and signals)",
        "Landlock 6, "};
    (void)state;
    skip_without(__func__, true);
    for (int version = 1; version <= (int)COUNT(lacking); version++) {
        const child c = {.task = NIB_SANDBOX_SERVER, .lost = __NR_seccomp, .newest = version};
        char text[NIB_SANDBOX_TEXT + 8], own[32];
        said(text, &c);
        snprintf(own, sizeof own, "Landlock %d", version);
        if (strstr(text, own) == NULL)
            skip_test(__func__, "this kernel has an older Landlock");
        assert_non_null(strstr(text, lacking[version - 1]));
        assert_int_equal(in_child(&c, on_every_thread), EACCES);
        assert_int_equal(in_child(&c, connect_socket) == EACCES, version >= 4);
    }
}

/* ---- threads that are not the pool's ---- */

static atomic_bool go;
static atomic_int other_code;

static void *wait_and_try(void *ctx)
{
    while (!atomic_load(&go))
        sched_yield();
    atomic_store(&other_code, read_file());
    return ctx;
}

static int with_other_thread(void)
{
    static const child plain = {.task = NIB_SANDBOX_SERVER};
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_and_try, NULL) != 0)
        return 1;
    enter(&plain);
    atomic_store(&go, true);
    pthread_join(thread, NULL);
    if (entered.landlock && strstr(entered.text, "(not on 1 thread of libraries)") == NULL)
        return 2;
    return atomic_load(&other_code);
}

static void test_other_threads(void **state)
{
    int status = 0;
    (void)state;
    skip_without(__func__, false);
    const pid_t pid = fork();
    if (pid == 0)
        _exit(with_other_thread());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EPERM);
}

/* ---- what an engine is asked for ---- */

static int asked_of_engine(nib_sandbox mode, int lost, bool *noted)
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        nib_engine *engine;
        char note[NIB_SANDBOX_TEXT];
        const nib_engine_options options = {.threads = 2, .sandbox = mode};
        if (lost != 0)
            lose_call(lost);
        if (nib_engine_open(&engine, &options, NULL) != NIB_OK)
            _exit(99);
        const nib_status got = nib__engine_sandbox(engine, NIB_SANDBOX_READER, note, NULL);
        _exit((int)got + (got == NIB_OK && note[0] != '\0' ? 100 : 0));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    *noted = WEXITSTATUS(status) >= 100;
    return WEXITSTATUS(status) % 100;
}

static void test_asked(void **state)
{
    bool noted;
    (void)state;
    assert_int_equal(asked_of_engine(NIB_SANDBOX_OFF, 0, &noted), NIB_OK);
    assert_false(noted);
    assert_int_equal(asked_of_engine(NIB_SANDBOX_AUTO, 0, &noted), NIB_OK);
    assert_true(noted);
    assert_int_equal(asked_of_engine(NIB_SANDBOX_AUTO, LANDLOCK_CREATE, &noted), NIB_OK);
    assert_true(noted);
    assert_int_equal(asked_of_engine(NIB_SANDBOX_ON, LANDLOCK_CREATE, &noted), NIB_NOT_AS_ASKED);
    assert_int_equal(asked_of_engine(NIB_SANDBOX_ON, __NR_seccomp, &noted), NIB_NOT_AS_ASKED);
    skip_without(__func__, true);
    assert_int_equal(asked_of_engine(NIB_SANDBOX_ON, 0, &noted), NIB_OK);
    assert_true(noted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forbidden),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_without_landlock),
        cmocka_unit_test(test_without_seccomp),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_other_threads),
        cmocka_unit_test(test_asked),
    };
    heap = nib__allocator_default();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
