/* SPDX-License-Identifier: Apache-2.0
 *
 * What a person sees besides results: errors, the progress bar, Ctrl-C.
 */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Set by the first Ctrl-C; the second one ends the program at once. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    interrupted = 1;
    signal(signal_number, SIG_DFL);
}

void watch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int fail(const nib_err *err)
{
    clear_progress();
    fprintf(stderr, "nibble: %s\n", err->text);
    return nib_status_exit(err->status);
}

int fail_usage(const char *format, ...)
{
    nib_err err = {.status = NIB_USAGE};
    va_list args;
    va_start(args, format);
    vsnprintf(err.text, sizeof err.text, format, args);
    va_end(args);
    return fail(&err);
}

static nib_status write_file(void *ctx, const char *bytes, size_t size)
{
    FILE *file = ctx;
    if (fwrite(bytes, 1, size, file) != size)
        return NIB_IO;
    /* text of a running model is to be seen as it comes */
    return fflush(file) == 0 ? NIB_OK : NIB_IO;
}

nib_sink stdout_sink(void) { return (nib_sink){.write = write_file, .ctx = stdout}; }
nib_sink stderr_sink(void) { return (nib_sink){.write = write_file, .ctx = stderr}; }

int finish_stdout(int status)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "nibble: the output could not be written: %s\n", strerror(errno));
        return status ? status : nib_status_exit(NIB_IO);
    }
    return status;
}

/* ---- progress ---- */

static struct {
    bool on, drawn;
    char what[32];
    double begun, last;
} bar;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clear_progress(void)
{
    if (bar.drawn)
        fputs("\r\033[K", stderr);
    bar.drawn = false;
}

static void draw(const char *what, uint64_t done, uint64_t total)
{
    enum { WIDTH = 32 };
    const double now = seconds();
    if (strcmp(bar.what, what) != 0) {
        snprintf(bar.what, sizeof bar.what, "%s", what);
        bar.begun = now;
        bar.last = 0;
    }
    /* short work shows nothing; a bar that moves ten times a second is enough */
    if (now - bar.begun < 0.5 || now - bar.last < 0.1 || total == 0)
        return;
    bar.last = now;
    const double share = (double)done / (double)total;
    char marks[WIDTH + 1];
    memset(marks, '.', WIDTH);
    memset(marks, '#', (size_t)(share * WIDTH));
    marks[WIDTH] = '\0';
    const double left = share > 0 ? (now - bar.begun) * (1 - share) / share : 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f %%  %.0f s left", what, marks, 100 * share, left);
    bar.drawn = true;
    if (done >= total)
        clear_progress();
}

static bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    if (bar.on && strcmp(what, "generate") != 0)
        draw(what, done, total);
    else if (bar.drawn)
        clear_progress();
    return !interrupted;
}

static void on_log(void *ctx, const char *line)
{
    (void)ctx;
    clear_progress();
    fprintf(stderr, "%s\n", line);
}

nib_callbacks terminal_callbacks(const settings *s)
{
    bar.on = !s->quiet && isatty(STDERR_FILENO);
    return (nib_callbacks){.progress = on_progress, .log = s->quiet ? NULL : on_log};
}
