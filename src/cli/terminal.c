/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors, the progress bar, colours and Ctrl-C. If another process truncates a mapped file, the
 * program reports an error instead of crashing.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- interrupts ---- */

/* Set by the first Ctrl-C; the second one ends the program at once. */
static volatile sig_atomic_t interrupted;
static struct timespec interrupted_at; /* used only by the handler */

static void on_interrupt(int signal_number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!interrupted) {
        interrupted_at = now;
        interrupted = 1;
        return;
    }
    /* timeout(1) and some shells send an interrupt twice: to the program and to its group */
    const double since = (double)(now.tv_sec - interrupted_at.tv_sec) +
                         1e-9 * (double)(now.tv_nsec - interrupted_at.tv_nsec);
    if (since < 0.3)
        return;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

bool consume_interrupt(void)
{
    const bool was = interrupted != 0;
    interrupted = 0;
    return was;
}

void watch_interrupts(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_interrupt}, before;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL); /* unless nohup ignores it */
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit then makes write() fail, which is reported */
}

/* ---- mapped files that are truncated ---- */

/* A mapped page was read after its file was truncated; results from here on are invalid. */
static volatile sig_atomic_t page_lost;

/* Maps a zero page in place of the lost one, so that the command ends like a cancelled one: it
 * removes its temporary files and prints an error. The library compares file sizes and names the
 * file. For any other cause, or if mapping fails, the signal ends the program as usual. */
static void on_lost_page(int signal_number, siginfo_t *info, void *context)
{
    static _Atomic long left = 1L << 24;
    const int before = errno;
    const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (char *)info->si_addr - (uintptr_t)info->si_addr % size;
    (void)context;
    if (info->si_code != BUS_ADRERR || atomic_fetch_sub(&left, 1) <= 0 ||
        mmap(page, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        signal(signal_number, SIG_DFL); /* the instruction then raises it again */
    page_lost = 1;
    errno = before;
}

void watch_files(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO};
    action.sa_sigaction = on_lost_page;
    sigaction(SIGBUS, &action, NULL);
}

/* After a lost page no result is valid. err may name the file; NULL: no error of the library. */
static int fail_lost_page(const nib_err *err)
{
    fprintf(stderr, "nibble: %s\n",
            err && err->status == NIB_IO
                ? err->text
                : "another process truncated a model file while it was read; run again when the "
                  "file is complete");
    return nib_status_exit(NIB_IO);
}

/* ---- streams ---- */

/* If a standard stream is closed, the next opened file, perhaps a checkpoint, gets its descriptor
 * and text is written into that file. Opened in the wrong direction, /dev/null makes reads and
 * writes fail as they should. */
void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            _exit(nib_status_exit(NIB_IO));
}

/* errno of the first failed write to stdout. */
static int lost_output;

static nib_status write_stream(FILE *file, const char *bytes, size_t size)
{
    clear_progress();
    if (page_lost && file == stdout)
        return NIB_IO;
    /* flush, so that generated text appears at once */
    if (fwrite(bytes, 1, size, file) == size && fflush(file) == 0)
        return NIB_OK;
    if (file == stdout && lost_output == 0)
        lost_output = errno;
    return NIB_IO;
}

static nib_status write_file(void *ctx, const char *bytes, size_t size)
{
    return write_stream(ctx, bytes, size);
}

nib_sink stdout_sink(void) { return (nib_sink){.write = write_file, .ctx = stdout}; }
nib_sink stderr_sink(void) { return (nib_sink){.write = write_file, .ctx = stderr}; }

/* Reports a failed stdout once; says nothing if the reader closed the pipe (`| head`). */
static int fail_output(void)
{
    static bool is_reported;
    if (lost_output != EPIPE && !is_reported)
        fprintf(stderr, "nibble: the output could not be written: %s\n", strerror(lost_output));
    is_reported = true;
    return nib_status_exit(NIB_IO);
}

int finish_stdout(int status)
{
    const bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (page_lost && status != nib_status_exit(NIB_IO))
        return fail_lost_page(NULL);
    if (!lost)
        return status;
    if (lost_output == 0)
        lost_output = errno;
    const int failed = fail_output();
    return status ? status : failed;
}

int fail(const nib_err *err)
{
    clear_progress();
    if (page_lost)
        return fail_lost_page(err);
    if (lost_output != 0)
        return fail_output();
    fflush(stdout); /* keep the order of output and error */
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

/* ---- colours ---- */

#define RED "\033[31m"
#define GREEN "\033[32m"
#define YELLOW "\033[33m"
#define CYAN "\033[36m"
#define PLAIN "\033[0m"

/* Words to highlight in reports; with at_start only at the start of a line. */
static const struct {
    const char *words, *colour;
    bool at_start;
} coloured[] = {
    {"  RUNS ", GREEN, true},
    {"  no ", RED, true},
    {"denied:", RED, true},
    {"substituted:", YELLOW, true},
    {"  > ", CYAN, true},
    {"no allowed kernel", RED, false},
    {"rung kernel", YELLOW, false},
    {"rung device", YELLOW, false},
    {"rung dequant", YELLOW, false},
    {"rung unquantized", YELLOW, false},
};

/* The row of `coloured` that matches at `at`; -1: none. */
static int find_coloured(const char *at, size_t left, bool start)
{
    for (size_t i = 0; i < sizeof coloured / sizeof *coloured; i++) {
        const size_t size = strlen(coloured[i].words);
        if (coloured[i].at_start == start && size <= left &&
            memcmp(at, coloured[i].words, size) == 0)
            return (int)i;
    }
    return -1;
}

static nib_status write_coloured(void *ctx, const char *bytes, size_t size)
{
    size_t written = 0;
    clear_progress();
    for (size_t at = 0; at < size;) {
        const bool start = at == 0 || bytes[at - 1] == '\n';
        int row = start ? find_coloured(bytes + at, size - at, true) : -1;
        if (row < 0)
            row = find_coloured(bytes + at, size - at, false);
        if (row < 0) {
            at++;
            continue;
        }
        const char *words = coloured[row].words;
        fwrite(bytes + written, 1, at - written, ctx);
        fprintf(ctx, "%s%s%s", coloured[row].colour, words, PLAIN);
        at += strlen(words);
        written = at;
    }
    return write_stream(ctx, bytes + written, size - written);
}

static bool is_plain_terminal(void)
{
    const char *term = getenv("TERM");
    return !term || strcmp(term, "dumb") == 0;
}

nib_sink report_sink(const settings *s)
{
    const char *none = getenv("NO_COLOR");
    if (s->no_color || s->json || s->markdown || (none && *none) || is_plain_terminal() ||
        !isatty(STDOUT_FILENO))
        return stdout_sink();
    return (nib_sink){.write = write_coloured, .ctx = stdout};
}

int help_width(FILE *to)
{
    enum { NARROW = 60, USUAL = 80, WIDE = 100 };
    struct winsize size;
    if (!isatty(fileno(to)) || ioctl(fileno(to), TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return USUAL;
    return size.ws_col < NARROW ? NARROW : size.ws_col > WIDE ? WIDE : size.ws_col;
}

/* ---- progress ---- */

static struct {
    bool on, drawn;
    char what[32];
    double begun, last, first; /* seconds; first: share already done at `begun` */
    double share;              /* done at the last call; less is done when the work starts again */
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

static void draw_progress(const char *what, uint64_t done, uint64_t total)
{
    enum { WIDTH = 32 };
    const double now = seconds();
    const double share = done < total ? (double)done / (double)total : 1;
    if (strcmp(bar.what, what) != 0 || share < bar.share) {
        snprintf(bar.what, sizeof bar.what, "%s", what);
        bar.begun = now;
        bar.first = share;
        bar.last = 0;
    }
    bar.share = share;
    /* no bar for work under 0.5 s; at most ten updates per second */
    if (now - bar.begun < 0.5 || now - bar.last < 0.1 || total == 0)
        return;
    bar.last = now;
    char marks[WIDTH + 1];
    memset(marks, '.', WIDTH);
    memset(marks, '#', (size_t)(share * WIDTH));
    marks[WIDTH] = '\0';
    const double moved = share - bar.first;
    const double left = moved > 0 ? (now - bar.begun) * (1 - share) / moved : 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f %%  %.0f s left", what, marks, 100 * share, left);
    bar.drawn = true;
    if (done >= total)
        clear_progress();
}

static bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    if (bar.on && strcmp(what, "generate") != 0)
        draw_progress(what, done, total);
    else if (bar.drawn)
        clear_progress();
    return !interrupted && !page_lost;
}

static void on_log(void *ctx, const char *line)
{
    (void)ctx;
    clear_progress();
    fprintf(stderr, "%s\n", line);
}

nib_callbacks terminal_callbacks(const settings *s)
{
    bar.on = !s->quiet && isatty(STDERR_FILENO) && !is_plain_terminal();
    return (nib_callbacks){.progress = on_progress, .log = s->quiet ? NULL : on_log};
}
