/* SPDX-License-Identifier: Apache-2.0
 *
 * Landlock decides what can be opened, by the kind of object; the seccomp filter decides which
 * system calls exist at all. Each alone would do for files: two, because either may be missing or
 * have a hole. Numbers and structures of Landlock are written out here, because the headers of
 * many systems are older than their kernels.
 */
#include "sandbox.h"
#include "text.h"

#include <stdio.h>

#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif

#if !defined(__linux__)
#define WHY_NOT "this system is not Linux, whose Landlock and seccomp it needs"
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                             \
    HAS_FEATURE(address_sanitizer) || HAS_FEATURE(thread_sanitizer) ||                             \
    HAS_FEATURE(memory_sanitizer)
#define WHY_NOT "this program was built with a sanitizer, whose reports open files"
#elif defined(COUNTS_BRANCHES)
#define WHY_NOT "this program was built to count branches, which it writes to files at its end"
#elif defined(__has_include)
#if !__has_include(<linux/seccomp.h>)
#define WHY_NOT "this program was built without the kernel's headers"
#endif
#endif

#if defined(WHY_NOT)
void nib__sandbox_enter(nib_sandbox_result *out, nib_sandbox_task task, nib_pool *pool, int newest)
{
    (void)task;
    (void)pool;
    (void)newest;
    *out = (nib_sandbox_result){.text = "off: " WHY_NOT};
}
#else

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* ---- Landlock ---- */

enum {
    LANDLOCK_CREATE = 444, /* system calls; the same numbers on every processor with a filter */
    LANDLOCK_RESTRICT = 446,
    LANDLOCK_VERSION = 1, /* flag: return the version */
};

/* What each version can forbid; no rule allows any of it. */
typedef struct landlock_rights {
    uint64_t files, network, scopes;
} landlock_rights;

static const struct {
    int version;
    landlock_rights rights;
    const char *what; /* for the report if the kernel is older; NULL: the files of version 1 */
} versions[] = {
    {1, {.files = 0x1fff}, NULL}, /* execute, read, write, list, make, remove */
    {2, {.files = 0x2000}, "links between directories"},
    {3, {.files = 0x4000}, "truncation"},
    {4, {.network = 3}, "TCP"}, /* bind and connect */
    {5, {.files = 0x8000}, "ioctl of devices"},
    {6, {.scopes = 3}, "abstract sockets and signals"}, /* of other processes */
};

/* Fills *missing with what this version cannot forbid. Returns what it can. */
static landlock_rights rights_of(int version, char *missing, size_t size)
{
    landlock_rights r = {0};
    size_t used = 0;
    missing[0] = '\0';
    for (size_t i = 0; i < COUNT(versions); i++) {
        if (version >= versions[i].version) {
            r.files |= versions[i].rights.files;
            r.network |= versions[i].rights.network;
            r.scopes |= versions[i].rights.scopes;
        } else if (used < size) {
            const int more = snprintf(missing + used, size - used, "%s%s", used > 0 ? ", " : "",
                                      versions[i].what);
            used += more > 0 ? (size_t)more : 0;
        }
    }
    return r;
}

static bool give_up_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0; }

/* A thread has its own restrictions, which those that it starts inherit. */
typedef struct restriction {
    int rules;         /* descriptor */
    atomic_int failed; /* errno of a thread; 0: none */
} restriction;

static void restrict_worker(void *ctx, int worker, int64_t begin, int64_t end)
{
    restriction *r = ctx;
    (void)worker;
    (void)begin;
    (void)end;
    if (!give_up_privileges() || syscall(LANDLOCK_RESTRICT, r->rules, 0) != 0)
        atomic_store(&r->failed, errno);
}

/* Returns the version in force, or the negative errno of the first call that failed. */
static int enter_landlock(nib_pool *pool, int newest, char *missing, size_t size)
{
    const long version = syscall(LANDLOCK_CREATE, NULL, (size_t)0, LANDLOCK_VERSION);
    if (version <= 0)
        return version == 0 ? -ENOSYS : -errno;
    const int used = version < newest ? (int)version : newest;
    const landlock_rights rights = rights_of(used, missing, size);
    /* An older kernel knows only the first members. */
    const size_t known = sizeof rights.files * (used < 4 ? 1 : used < 6 ? 2 : 3);
    restriction r = {.rules = (int)syscall(LANDLOCK_CREATE, &rights, known, 0)};
    if (r.rules < 0)
        return -errno;
    atomic_init(&r.failed, 0);
    nib__pool_each(pool, false, restrict_worker, &r);
    close(r.rules);
    const int failed = atomic_load(&r.failed);
    return failed == 0 ? used : -failed;
}

/* Threads that are not the pool's, or -1 if they cannot be counted. */
static int count_other_threads(const nib_pool *pool)
{
    char text[4096];
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (size <= 0)
        return -1;
    text[size] = '\0';
    const char *at = strstr(text, "\nThreads:");
    int count = 0;
    if (at == NULL || sscanf(at, "\nThreads: %d", &count) != 1)
        return -1;
    return count - nib__pool_threads(pool);
}

/* ---- seccomp ---- */

#if defined(__x86_64__) && !defined(__ILP32__)
#define PROCESSOR AUDIT_ARCH_X86_64
#elif defined(__aarch64__) && defined(__AARCH64EL__)
#define PROCESSOR AUDIT_ARCH_AARCH64
#endif

#if defined(PROCESSOR)

/* The list knows every call up to this one (mseal, Linux 6.10). Newer ones get ENOSYS, for which
 * C libraries have a second way. */
enum { LAST_KNOWN = 462, X32 = 0x40000000 };
enum {
    NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                 CLONE_NEWPID | CLONE_NEWNET
};

/* Most frequent first, for kernels before 5.11, which run the filter on every call. */
static const int reader_calls[] = {
    __NR_futex,
    __NR_write,
    __NR_read,
    __NR_madvise,
    __NR_munmap,
    __NR_clock_gettime,
    __NR_sched_yield,
    __NR_clock_nanosleep,
    __NR_nanosleep,
    __NR_pread64,
    __NR_writev,
    __NR_readv,
    __NR_lseek,
    __NR_close,
    __NR_fstat,
    __NR_newfstatat,
    __NR_mremap,
    __NR_brk,
    __NR_membarrier,
    __NR_rseq,
    __NR_set_robust_list,
    __NR_set_tid_address,
    __NR_rt_sigaction,
    __NR_rt_sigprocmask,
    __NR_rt_sigreturn,
    __NR_sigaltstack,
    __NR_restart_syscall,
    __NR_getpid,
    __NR_gettid,
    __NR_getuid,
    __NR_geteuid,
    __NR_getgid,
    __NR_getegid,
    __NR_clock_getres,
    __NR_gettimeofday,
    __NR_times,
    __NR_getrusage,
    __NR_getrandom,
    __NR_getcpu,
    __NR_sched_getaffinity,
    __NR_sysinfo,
    __NR_uname,
    __NR_exit,
    __NR_exit_group,
#ifdef __NR_stat
    __NR_stat,
    __NR_lstat,
#endif
#ifdef __NR_time
    __NR_time,
#endif
};

/* The socket is bound when the filter begins, and another cannot be made. */
static const int server_calls[] = {
#ifdef __NR_poll
    __NR_poll,        __NR_select,     __NR_epoll_wait,
#endif
    __NR_recvfrom,    __NR_sendto,     __NR_accept4,     __NR_accept,    __NR_recvmsg,
    __NR_sendmsg,     __NR_shutdown,   __NR_epoll_pwait, __NR_epoll_ctl, __NR_epoll_create1,
    __NR_ppoll,       __NR_pselect6,   __NR_eventfd2,    __NR_pipe2,     __NR_getsockname,
    __NR_getpeername, __NR_getsockopt, __NR_listen,      __NR_pwrite64,
};

/* Calls that are allowed if (argument & mask) == value; several rules for one call are
 * alternatives, and stand together. */
typedef struct argument_rule {
    int call, argument;
    uint32_t mask, value;
} argument_rule;

static const uint32_t ANY = 0xffffffff;

static const argument_rule reader_rules[] = {
    {__NR_mmap, 2, PROT_EXEC, 0},
    {__NR_mprotect, 2, PROT_EXEC, 0},
    /* threads, not processes; never with a namespace of its own */
    {__NR_clone, 0, CLONE_VM | CLONE_THREAD | NAMESPACES, CLONE_VM | CLONE_THREAD},
    {__NR_fcntl, 1, ANY, F_GETFL},
    {__NR_fcntl, 1, ANY, F_SETFL},
    {__NR_fcntl, 1, ANY, F_GETFD},
    {__NR_fcntl, 1, ANY, F_SETFD},
    {__NR_ioctl, 1, ANY, TCGETS}, /* is it a terminal, and how wide */
    {__NR_ioctl, 1, ANY, TIOCGWINSZ},
    {__NR_prctl, 0, ANY, PR_SET_NAME},
};

static const argument_rule server_rules[] = {
    {__NR_setsockopt, 1, ANY, IPPROTO_TCP},
    {__NR_ioctl, 1, ANY, FIONBIO},
};

/* Calls that no part of the program makes, nor a library that it uses. */
static const int fatal_calls[] = {
    __NR_execve,
    __NR_execveat,
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    __NR_bpf,
    __NR_perf_event_open,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
    __NR_unshare,
    __NR_setns,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_add_key,
    __NR_keyctl,
    __NR_request_key,
    __NR_open_by_handle_at,
    __NR_reboot,
    __NR_swapon,
    __NR_swapoff,
    __NR_acct,
#ifdef __NR_kexec_load
    __NR_kexec_load,
#endif
#ifdef __NR_kexec_file_load
    __NR_kexec_file_load,
#endif
#ifdef __NR_userfaultfd
    __NR_userfaultfd,
#endif
#ifdef __NR_io_uring_setup
    __NR_io_uring_setup,
#endif
#ifdef __NR_pidfd_getfd
    __NR_pidfd_getfd,
#endif
};

enum { INSTRUCTIONS_MAX = 512 };

typedef struct program {
    struct sock_filter at[INSTRUCTIONS_MAX];
    unsigned short count;
} program;

static void put(program *p, uint16_t code, uint32_t k, uint8_t if_true, uint8_t if_false)
{
    p->at[p->count++] = (struct sock_filter){code, if_true, if_false, k};
}

static void load(program *p, size_t offset)
{
    put(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void answer(program *p, uint32_t action) { put(p, BPF_RET | BPF_K, action, 0, 0); }

/* The call is in the accumulator, and stays there. */
static void answer_calls(program *p, const int *calls, size_t count, uint32_t action)
{
    for (size_t i = 0; i < count; i++) {
        put(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i], 0, 1);
        answer(p, action);
    }
}

static uint32_t refusal(int code)
{
    return SECCOMP_RET_ERRNO | ((uint32_t)code & SECCOMP_RET_DATA);
}

/* The lower half of an argument: the kernel ignores the upper one in all that are checked. Both
 * processors are little endian. */
static size_t argument_offset(int argument)
{
    return offsetof(struct seccomp_data, args) + 8 * (size_t)argument;
}

static void allow_by_argument(program *p, const argument_rule *r)
{
    enum { SKIP = 5 };
    put(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, SKIP);
    load(p, argument_offset(r->argument));
    put(p, BPF_ALU | BPF_AND | BPF_K, r->mask, 0, 0);
    put(p, BPF_JMP | BPF_JEQ | BPF_K, r->value, 0, 1);
    answer(p, SECCOMP_RET_ALLOW);
    load(p, offsetof(struct seccomp_data, nr));
}

static void write_program(program *p, nib_sandbox_task task)
{
    const bool server = task == NIB_SANDBOX_SERVER;
    /* raise and abort of this process */
    const argument_rule own = {__NR_tgkill, 0, ANY, (uint32_t)getpid()};
    p->count = 0;
    load(p, offsetof(struct seccomp_data, arch));
    put(p, BPF_JMP | BPF_JEQ | BPF_K, PROCESSOR, 1, 0);
    answer(p, SECCOMP_RET_KILL_PROCESS);
    load(p, offsetof(struct seccomp_data, nr));
    put(p, BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
    answer(p, SECCOMP_RET_KILL_PROCESS);
    if (server)
        answer_calls(p, server_calls, COUNT(server_calls), SECCOMP_RET_ALLOW);
    answer_calls(p, reader_calls, COUNT(reader_calls), SECCOMP_RET_ALLOW);
    for (size_t i = 0; server && i < COUNT(server_rules); i++)
        allow_by_argument(p, &server_rules[i]);
    for (size_t i = 0; i < COUNT(reader_rules); i++)
        allow_by_argument(p, &reader_rules[i]);
    allow_by_argument(p, &own);
    answer_calls(p, fatal_calls, COUNT(fatal_calls), SECCOMP_RET_KILL_PROCESS);
#ifdef __NR_clone3
    /* Its flags are in memory, where a filter cannot see them: libraries then use clone. */
    answer_calls(p, (const int[]){__NR_clone3}, 1, refusal(ENOSYS));
#endif
    put(p, BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN, 0, 1);
    answer(p, refusal(ENOSYS));
    answer(p, refusal(EPERM));
}

/* Returns 0, or the errno. */
static int enter_seccomp(nib_sandbox_task task)
{
    program p;
    write_program(&p, task);
    const struct sock_fprog filter = {.len = p.count, .filter = p.at};
    /* Otherwise kernels before 5.16 turn off speculative loads for every thread with a filter,
     * which costs far more than the filter. */
    const unsigned every = SECCOMP_FILTER_FLAG_TSYNC, fast = every | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    if (!give_up_privileges())
        return errno;
    long status = syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, fast, &filter);
    if (status < 0 && errno == EINVAL) /* before 4.17 */
        status = syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, every, &filter);
    /* positive: the thread that has a filter of its own */
    return status == 0 ? 0 : status > 0 ? EBUSY : errno;
}

#else
static int enter_seccomp(nib_sandbox_task task)
{
    (void)task;
    return ENOTSUP;
}
#endif

/* ---- both ---- */

static const char *why_not(int code)
{
    return code == ENOSYS       ? "this kernel has none"
           : code == EOPNOTSUPP ? "it is turned off, or has no list for this processor"
           : code == EINVAL     ? "this kernel has none of the needed form"
           : code == EBUSY      ? "a thread has another filter"
                                : strerror(code);
}

static void add(nib_sandbox_result *out, const char *format, ...) NIB_PRINTF(2, 3);

static void add(nib_sandbox_result *out, const char *format, ...)
{
    const size_t used = strlen(out->text);
    va_list args;
    va_start(args, format);
    nib__vformat(out->text + used, sizeof out->text - used, format, args);
    va_end(args);
}

void nib__sandbox_enter(nib_sandbox_result *out, nib_sandbox_task task, nib_pool *pool, int newest)
{
    char missing[128] = "";
    *out = (nib_sandbox_result){.landlock = false};
    tzset(); /* local time reads its file once */
    const int others = count_other_threads(pool);
    const int version = enter_landlock(pool, newest, missing, sizeof missing);
    const int refused = enter_seccomp(task);
    out->landlock = version > 0;
    out->seccomp = refused == 0;
    if (out->landlock || out->seccomp)
        add(out, "this process can %s: ",
            out->seccomp ? "open no files, programs or connections, and trace or signal no other "
                           "process"
                         : "open no files");
    else
        add(out, "off: ");
    if (out->landlock)
        add(out, "Landlock %d", version);
    else
        add(out, "no Landlock (%s)", why_not(-version));
    if (out->landlock && missing[0] != '\0')
        add(out, " (without rules for %s)", missing);
    if (out->landlock && others > 0)
        add(out, " (not on %d thread%s of libraries)", others, others == 1 ? "" : "s");
    if (out->seccomp)
        add(out, ", a seccomp filter of system calls");
    else
        add(out, ", no seccomp filter (%s)", why_not(refused));
}
#endif
