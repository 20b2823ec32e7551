/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a program, writes its input and reads both of its outputs as they come: a pipe that is full
 * would block it.
 */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 16384, WAIT_MS = 200, SECOND = 3 /* of NIB_SECOND_PATH */, ABOVE = 10 };

extern char **environ;

typedef struct running {
    nib_process *p;
    const nib_process_job *job;
    const char *name;
    pid_t pid;
    int out[2], error[2], in[2], second[2]; /* pipes; -1: closed */
    size_t capacity, written;
    const nib_allocator *a;
    char line[NIB_PROCESS_LINE]; /* of standard error, so far */
    size_t line_size;
} running;

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Both ends close on exec; the child keeps only its duplicates. */
static bool open_pipe(int ends[2])
{
    if (pipe(ends) != 0)
        return false;
    return fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(ends[1], F_SETFD, FD_CLOEXEC) == 0;
}

static nib_status fail_errno(const running *r, int code, const char *what, nib_err *err)
{
    return nib__fail(err, code == ENOMEM ? NIB_NO_MEMORY : NIB_IO, "%s: %s: %s", r->name, what,
                     strerror(code));
}

/* The pipe of what the program reads. */
static nib_status open_input(running *r, nib_err *err)
{
    const bool ok =
        r->job->input == NULL || (open_pipe(r->in) && fcntl(r->in[1], F_SETFL, O_NONBLOCK) == 0);
    return ok ? NIB_OK : fail_errno(r, errno, "cannot make a pipe", err);
}

/* The pipe of the second input, whose bytes it already holds. Its end to read from is moved above
 * the descriptors that the program gets. */
static nib_status open_second(running *r, nib_err *err)
{
    const nib_process_job *job = r->job;
    if (job->second == NULL)
        return NIB_OK;
    if (job->second_size > NIB_SECOND_MAX)
        return nib__fail(err, NIB_IO, "%s: the second input has %zu bytes; at most %d are passed",
                         r->name, job->second_size, NIB_SECOND_MAX);
    if (!open_pipe(r->second) ||
        write(r->second[1], job->second, job->second_size) != (ssize_t)job->second_size)
        return fail_errno(r, errno, "cannot make a pipe", err);
    close_end(&r->second[1]);
    const int above = fcntl(r->second[0], F_DUPFD_CLOEXEC, ABOVE);
    if (above < 0)
        return fail_errno(r, errno, "cannot make a pipe", err);
    close_end(&r->second[0]);
    r->second[0] = above;
    return NIB_OK;
}

static int add_actions(const running *r, posix_spawn_file_actions_t *actions)
{
    int code = r->in[0] >= 0 ? posix_spawn_file_actions_adddup2(actions, r->in[0], STDIN_FILENO)
                             : posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null",
                                                                O_RDONLY, 0);
    if (code == 0)
        code = posix_spawn_file_actions_adddup2(actions, r->out[1], STDOUT_FILENO);
    if (code == 0)
        code = posix_spawn_file_actions_adddup2(actions, r->error[1], STDERR_FILENO);
    if (code == 0 && r->second[0] >= 0)
        code = posix_spawn_file_actions_adddup2(actions, r->second[0], SECOND);
    return code;
}

static nib_status start(running *r, nib_err *err)
{
    static const char *const nothing[] = {NULL};
    const nib_process_job *job = r->job;
    const char *const *environment = job->environment != NULL ? job->environment : nothing;
    posix_spawn_file_actions_t actions;
    if (!open_pipe(r->out) || !open_pipe(r->error))
        return fail_errno(r, errno, "cannot make a pipe", err);
    NIB_TRY(open_input(r, err));
    NIB_TRY(open_second(r, err));
    int code = posix_spawn_file_actions_init(&actions);
    if (code != 0)
        return fail_errno(r, code, "cannot start it", err);
    code = add_actions(r, &actions);
    if (code == 0) /* posix_spawnp does not write to the strings */
        code =
            posix_spawnp(&r->pid, job->arguments[0], &actions, NULL, (char *const *)job->arguments,
                         job->inherits ? environ : (char *const *)environment);
    posix_spawn_file_actions_destroy(&actions);
    close_end(&r->out[1]);
    close_end(&r->error[1]);
    close_end(&r->in[0]);
    close_end(&r->second[0]);
    if (code == 0)
        return NIB_OK;
    r->pid = -1;
    const bool is_path = strchr(r->name, '/') != NULL;
    return code == ENOENT && !is_path
               ? nib__fail(err, NIB_UNSUPPORTED, "%s is not installed", r->name)
               : fail_errno(r, code, "cannot start it", err);
}

/* write() without the signal that a pipe without readers raises, which would end this process. */
static ssize_t write_quietly(int fd, const char *bytes, size_t size)
{
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigemptyset(&pending);
    sigpending(&pending);
    const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    const ssize_t got = write(fd, bytes, size);
    const int code = errno;
    int taken;
    if (got < 0 && code == EPIPE && !was_pending)
        sigwait(&pipe_signal, &taken);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return got;
}

/* Writes what the pipe takes of the input; closes it after the last byte, or if the program does
 * not read on. */
static nib_status write_some(running *r, nib_err *err)
{
    const nib_process_job *job = r->job;
    const ssize_t got = write_quietly(r->in[1], (const char *)job->input + r->written,
                                      job->input_size - r->written);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return NIB_OK;
    if (got < 0 && errno != EPIPE)
        return fail_errno(r, errno, "cannot write to it", err);
    if (got > 0)
        r->written += (size_t)got;
    if (got < 0 || r->written == job->input_size)
        close_end(&r->in[1]);
    return NIB_OK;
}

static nib_status keep_output(running *r, const char *bytes, size_t size, nib_err *err)
{
    if (r->p->size + size > r->job->limit)
        return nib__fail(err, NIB_IO, "%s: it wrote more than %zu bytes, the limit", r->name,
                         r->job->limit);
    void *out = r->p->out;
    const bool has_room = nib__reserve(r->a, &out, &r->capacity, r->p->size + size + 1, 1);
    r->p->out = out;
    if (!has_room)
        return nib__fail_memory(err, r->p->size + size + 1, "a program's output");
    memcpy(r->p->out + r->p->size, bytes, size);
    r->p->size += size;
    r->p->out[r->p->size] = '\0';
    return NIB_OK;
}

static void end_line(running *r)
{
    if (r->line_size > 0)
        snprintf(r->p->last_line, sizeof r->p->last_line, "%.*s", (int)r->line_size, r->line);
    r->line_size = 0;
}

static void keep_error(running *r, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '\n' || c == '\r')
            end_line(r);
        else if ((c > ' ' || r->line_size > 0) && r->line_size + 1 < sizeof r->line)
            r->line[r->line_size++] = c < ' ' ? ' ' : (char)c;
    }
}

/* Reads available bytes of one of its outputs; closes the pipe at the end. */
static nib_status read_some(running *r, int *fd, nib_err *err)
{
    char piece[PIECE];
    const ssize_t got = read(*fd, piece, sizeof piece);
    if (got < 0)
        return errno == EINTR ? NIB_OK : fail_errno(r, errno, "cannot read from it", err);
    if (got == 0)
        close_end(fd);
    else if (fd == &r->out[0])
        return keep_output(r, piece, (size_t)got, err);
    else
        keep_error(r, piece, (size_t)got);
    return NIB_OK;
}

static nib_status read_all(running *r, nib_err *err)
{
    const nib_process_job *job = r->job;
    while (r->out[0] >= 0 || r->error[0] >= 0) {
        struct pollfd ends[] = {{.fd = r->out[0], .events = POLLIN},
                                {.fd = r->error[0], .events = POLLIN},
                                {.fd = r->in[1], .events = POLLOUT}};
        int *const fds[] = {&r->out[0], &r->error[0]};
        if (poll(ends, COUNT(ends), WAIT_MS) < 0 && errno != EINTR)
            return fail_errno(r, errno, "cannot wait for it", err);
        for (size_t i = 0; i < COUNT(fds); i++)
            if (ends[i].fd >= 0 && (ends[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
                NIB_TRY(read_some(r, fds[i], err));
        if (ends[2].fd >= 0 && (ends[2].revents & (POLLOUT | POLLHUP | POLLERR)) != 0)
            NIB_TRY(write_some(r, err));
        if (job->keep_going != NULL && !job->keep_going(job->ctx))
            return nib__fail(err, NIB_CANCELLED, "%s was cancelled", r->name);
    }
    end_line(r);
    return NIB_OK;
}

static void wait_for(running *r)
{
    int status = 0;
    pid_t got;
    do {
        got = waitpid(r->pid, &status, 0);
    } while (got < 0 && errno == EINTR);
    r->p->status = got < 0               ? 127
                   : WIFEXITED(status)   ? WEXITSTATUS(status)
                   : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                         : 127;
}

nib_status nib__process_run(nib_process *out, const nib_process_job *job, const nib_allocator *a,
                            nib_err *err)
{
    *out = (nib_process){.status = 0};
    running r = {.p = out,
                 .job = job,
                 .name = job->arguments[0],
                 .pid = -1,
                 .out = {-1, -1},
                 .error = {-1, -1},
                 .in = {-1, -1},
                 .second = {-1, -1},
                 .a = a};
    nib_status status = keep_output(&r, "", 0, err);
    if (status == NIB_OK)
        status = start(&r, err);
    if (status == NIB_OK)
        status = read_all(&r, err);
    for (int i = 0; i < 2; i++) {
        close_end(&r.out[i]);
        close_end(&r.error[i]);
        close_end(&r.in[i]);
        close_end(&r.second[i]);
    }
    if (r.pid > 0 && status != NIB_OK)
        kill(r.pid, SIGKILL);
    if (r.pid > 0)
        wait_for(&r);
    if (status == NIB_OK)
        return NIB_OK;
    nib__release(a, out->out);
    *out = (nib_process){.status = 0};
    return status;
}
