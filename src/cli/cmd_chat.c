/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble chat: a conversation on a terminal, with line editing and history, or through a pipe,
 * where each line is a message.
 */
#include "cli.h"

#include <errno.h>
#include <histedit.h>
#include <inttypes.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HISTORY = 1000 };

typedef struct chat_state {
    const settings *s;
    run_context r;
    nib_chat_session *chat;
    nib_generate_stats last;
    bool answered;
    bool terminal;
    EditLine *edit; /* on a terminal */
    History *history;
    char history_path[PATH_MAX]; /* empty: history is not saved */
    char *line;                  /* from a pipe */
    size_t line_capacity;
    int status; /* first failure, if not on a terminal */
} chat_state;

/* ---- lines ---- */

static char *prompt_of(EditLine *edit)
{
    static char prompt[] = "> ";
    (void)edit;
    return prompt;
}

/* $XDG_STATE_HOME/nibble/chat_history */
static void find_history(char *out, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char folder[PATH_MAX];
    int length = -1;
    *out = 0;
    if (state != NULL && *state == '/')
        length = snprintf(folder, sizeof folder, "%s/nibble", state);
    else if (home != NULL && *home == '/')
        length = snprintf(folder, sizeof folder, "%s/.local/state/nibble", home);
    if (length < 0 || (size_t)length >= sizeof folder)
        return;
    for (char *at = strchr(folder + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = 0;
        (void)mkdir(folder, 0700);
        *at = '/';
    }
    (void)mkdir(folder, 0700);
    length = snprintf(out, size, "%s/chat_history", folder);
    if (length < 0 || (size_t)length >= size)
        *out = 0;
}

/* libedit accepts or drops characters by LC_CTYPE. Input is UTF-8 whatever the environment says.
 * LC_NUMERIC and the other categories stay "C". */
static void use_utf8(void)
{
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
}

static void open_editor(chat_state *t)
{
    HistEvent event;
    use_utf8();
    t->edit = el_init("nibble", stdin, stderr, stderr);
    t->history = history_init();
    if (t->edit == NULL || t->history == NULL)
        return;
    history(t->history, &event, H_SETSIZE, HISTORY);
    history(t->history, &event, H_SETUNIQUE, 1);
    el_set(t->edit, EL_PROMPT, prompt_of);
    el_set(t->edit, EL_EDITOR, "emacs");
    el_set(t->edit, EL_HIST, history, t->history);
    el_source(t->edit, NULL); /* ~/.editrc */
    find_history(t->history_path, sizeof t->history_path);
    if (t->history_path[0] != 0)
        history(t->history, &event, H_LOAD, t->history_path);
}

static void close_editor(chat_state *t)
{
    HistEvent event;
    if (t->history != NULL && t->history_path[0] != 0 &&
        history(t->history, &event, H_SAVE, t->history_path) >= 0)
        (void)chmod(t->history_path, 0600);
    if (t->history != NULL)
        history_end(t->history);
    if (t->edit != NULL)
        el_end(t->edit);
    free(t->line);
}

/* The next line of *size bytes, with its end of line; NULL: no more. Ctrl-C at the prompt starts a
 * new line. */
static const char *next_line(chat_state *t, size_t *size)
{
    HistEvent event;
    int count = 0;
    if (!t->terminal || t->edit == NULL) {
        const ssize_t got = getline(&t->line, &t->line_capacity, stdin);
        if (got < 0)
            return NULL;
        *size = (size_t)got;
        return t->line;
    }
    for (;;) {
        const char *line = el_gets(t->edit, &count);
        if (line != NULL && count > 0) {
            if (strspn(line, " \t\r\n") < (size_t)count)
                history(t->history, &event, H_ENTER, line);
            *size = (size_t)count;
            return line;
        }
        if (!consume_interrupt()) {
            fputc('\n', stderr); /* end the prompt's line */
            return NULL;
        }
        fputs("\n(Ctrl-D or /quit to exit)\n", stderr);
    }
}

static nib_status fail_file(nib_err *err, const char *path)
{
    snprintf(err->text, sizeof err->text, "%s: %s", path, strerror(errno));
    return err->status = errno == ENOMEM ? NIB_NO_MEMORY : NIB_IO;
}

/* Reads a message, allocated: all lines up to one that does not end with a backslash, or to the end
 * of the input. *out NULL: no more input. */
static nib_status next_message(char **out, chat_state *t, nib_err *err)
{
    char *text = NULL;
    size_t size = 0;
    *out = NULL;
    for (;;) {
        size_t part;
        errno = 0;
        const char *line = next_line(t, &part);
        if (line == NULL && (ferror(stdin) || errno == ENOMEM)) {
            free(text);
            return fail_file(err, "the input");
        }
        if (line == NULL) {
            if (text != NULL)
                text[size - 1] = 0; /* nothing follows the last backslash */
            *out = text;
            return NIB_OK;
        }
        while (part > 0 && (line[part - 1] == '\n' || line[part - 1] == '\r'))
            part--;
        const bool more = part > 0 && line[part - 1] == '\\';
        char *grown = realloc(text, size + part + 2);
        if (grown == NULL) {
            free(text);
            return fail_file(err, "the input");
        }
        text = grown;
        memcpy(text + size, line, part);
        size += part;
        if (!more) {
            text[size] = 0;
            *out = text;
            return NIB_OK;
        }
        text[size - 1] = '\n';
    }
}

/* ---- slash commands ---- */

static void print_stats(const chat_state *t)
{
    const nib_generate_stats *g = &t->last;
    if (!t->answered) {
        fputs("no answer yet\n", stderr);
        return;
    }
    fprintf(stderr, "prompt      %" PRId64 " tokens, %" PRId64 " of them cached", g->prompt_tokens,
            g->cached_tokens);
    if (g->recomputed_tokens > 0)
        fprintf(stderr, ", %" PRId64 " recomputed (%s)", g->recomputed_tokens, g->recomputed_why);
    fprintf(stderr, ", first token after %.3f s\nanswer      %" PRId64 " tokens", g->first_token_s,
            g->new_tokens);
    if (!isnan(g->token_s))
        fprintf(stderr, ", %.1f tokens/s; %.4g ms per token, %.4g ms predicted", 1 / g->token_s,
                g->token_s * 1e3, g->predicted_token_s * 1e3);
    fprintf(stderr,
            "; ended with %s\nmemory      %.1f MB weights, %.1f MB KV cache, %.1f MB peak\n"
            "sampling    temp %g, top-k %" PRId64 ", top-p %g, min-p %g, repeat-penalty %g, "
            "seed %" PRIu64 "\n",
            finish_word(g->finish), (double)g->weight_bytes * 1e-6, (double)g->cache_bytes * 1e-6,
            (double)g->peak_bytes * 1e-6, g->temperature, g->top_k, g->top_p, g->min_p,
            g->repeat_penalty, g->seed);
    print_sampling_stats(g);
}

static nib_status print_plan(chat_state *t, nib_err *err)
{
    const nib_sink sink = stderr_sink();
    return nib_plan_write(nib_session_plan(t->r.session), NIB_FORM_TEXT, &sink, err);
}

static nib_status write_file(void *ctx, const char *bytes, size_t size)
{
    return fwrite(bytes, 1, size, ctx) == size ? NIB_OK : NIB_IO;
}

/* EINVAL: not a file on a disk. */
static bool sync_file(FILE *file)
{
    int result = fflush(file);
    if (result != 0)
        return false;
    do {
        result = fsync(fileno(file));
    } while (result != 0 && errno == EINTR);
    return result == 0 || errno == EINVAL;
}

/* `name` is the file's name in errors. */
static nib_status write_chat(chat_state *t, const char *path, const char *name, nib_err *err)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return fail_file(err, name);
    const nib_sink sink = {write_file, file};
    nib_status status = nib_chat_session_save(t->chat, &sink, err);
    const bool synced = sync_file(file);
    if (status == NIB_OK && !synced)
        status = fail_file(err, name);
    if (fclose(file) != 0 && status == NIB_OK)
        status = fail_file(err, name);
    return status;
}

/* Writes the conversation to FILE.part, then renames it: an error or a power cut leaves the old
 * file. What is not a regular file, such as /dev/stdout, is written in place. */
static nib_status save(chat_state *t, const char *path, nib_err *err)
{
    struct stat old;
    char target[PATH_MAX], part[PATH_MAX];
    const bool exists = stat(path, &old) == 0;
    if (exists && !S_ISREG(old.st_mode))
        return write_chat(t, path, path, err);
    /* a symbolic link stays */
    const char *to = exists && realpath(path, target) != NULL ? target : path;
    const int length = snprintf(part, sizeof part, "%s.part", to);
    if (length < 0 || (size_t)length >= sizeof part) {
        errno = ENAMETOOLONG;
        return fail_file(err, path);
    }
    nib_status status = write_chat(t, part, path, err);
    if (status == NIB_OK && rename(part, to) != 0)
        status = fail_file(err, path);
    if (status == NIB_OK)
        sync_parent(part);
    else
        (void)unlink(part);
    return status;
}

static nib_status load(chat_state *t, const char *path, nib_err *err)
{
    enum { SIZE_MAX_MIB = 64, MOST = SIZE_MAX_MIB << 20 };
    FILE *file = fopen(path, "r");
    char *text = file != NULL ? malloc(MOST + 1) : NULL;
    nib_status status = NIB_OK;
    if (text == NULL) {
        status = fail_file(err, path);
    } else {
        const size_t size = fread(text, 1, MOST + 1, file);
        if (size > MOST)
            snprintf(err->text, sizeof err->text, "%s: larger than the %d MiB that /load reads",
                     path, SIZE_MAX_MIB);
        status = ferror(file)  ? fail_file(err, path)
                 : size > MOST ? (err->status = NIB_BAD_INPUT)
                               : nib_chat_session_load(t->chat, path, text, size, err);
    }
    free(text);
    if (file != NULL)
        fclose(file);
    return status;
}

static void print_commands(void)
{
    fputs("/system TEXT   set the system prompt; without TEXT, remove it\n"
          "/reset         clear the conversation\n"
          "/stats         show tokens and times of the last answer\n"
          "/plan          show what runs, layer by layer\n"
          "/save FILE     save the conversation as JSON\n"
          "/load FILE     replace the conversation with a saved one\n"
          "/quit          exit; so does Ctrl-D\n"
          "A line that ends with \\ continues on the next one. Ctrl-C stops an answer.\n",
          stderr);
}

static nib_status fail_command(nib_err *err, const char *word, const char *rest)
{
    static const char *const names[] = {"/help",  "/load", "/plan",  "/quit",
                                        "/reset", "/save", "/stats", "/system"};
    char near[128];
    bool known = strcmp(word, "/exit") == 0 || strcmp(word, "/?") == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        known = known || strcmp(word, names[i]) == 0;
    if (known && *rest != 0)
        snprintf(err->text, sizeof err->text, "%s takes no argument; \"%.64s\" is one too many",
                 word, rest);
    else if (known)
        snprintf(err->text, sizeof err->text, "%s needs FILE", word);
    else
        snprintf(err->text, sizeof err->text, "unknown command %.64s%s", word,
                 did_you_mean(near, word, "", names, sizeof names / sizeof *names));
    return err->status = NIB_USAGE;
}

/* Returns false to end the conversation. */
static bool run_slash_command(chat_state *t, char *text, nib_status *status, nib_err *err)
{
    char *rest = text + strcspn(text, " \t\n");
    if (*rest != 0)
        *rest++ = 0;
    rest += strspn(rest, " \t");
    const bool alone = rest[strspn(rest, " \t\n")] == 0;
    const bool is_save = strcmp(text, "/save") == 0;
    if (strcmp(text, "/system") == 0)
        *status = nib_chat_session_system(t->chat, *rest != 0 ? rest : NULL, err);
    else if (!alone && (is_save || strcmp(text, "/load") == 0))
        *status = is_save ? save(t, rest, err) : load(t, rest, err);
    else if (alone && (strcmp(text, "/quit") == 0 || strcmp(text, "/exit") == 0))
        return false;
    else if (alone && (strcmp(text, "/help") == 0 || strcmp(text, "/?") == 0))
        print_commands();
    else if (alone && strcmp(text, "/reset") == 0)
        nib_chat_session_reset(t->chat);
    else if (alone && strcmp(text, "/stats") == 0)
        print_stats(t);
    else if (alone && strcmp(text, "/plan") == 0)
        *status = print_plan(t, err);
    else
        *status = fail_command(err, text, alone ? "" : rest);
    return true;
}

/* ---- turns ---- */

static nib_status send_message(chat_state *t, const char *text, nib_err *err)
{
    const nib_generate_options options = generate_options_of(t->s, NULL);
    const nib_sink sink = stdout_sink();
    nib_generate_stats stats = {.size = sizeof stats};
    const nib_status status =
        nib_chat_session_say(t->chat, text, &options, (int64_t)time(NULL), &sink, &stats, err);
    if (status == NIB_OK) { /* else /stats still shows the previous answer */
        t->last = stats;
        t->answered = true;
    }
    if (status == NIB_OK || stats.new_tokens > 0)
        putchar('\n');
    fflush(stdout);
    const bool cancelled = consume_interrupt();
    if (t->terminal && cancelled)
        fputs("(stopped)\n", stderr);
    if (status == NIB_OK && stats.finish == NIB_FINISH_CONTEXT && !t->s->quiet)
        fputs("(stopped: the context is full; /reset clears it)\n", stderr);
    return status;
}

static int converse(chat_state *t)
{
    bool on = true;
    while (on) {
        char *text;
        nib_err err = {.status = NIB_OK};
        nib_status status = next_message(&text, t, &err);
        if (status == NIB_OK && text == NULL)
            break;
        if (status != NIB_OK)
            on = false;
        else if (text[0] == '/')
            on = run_slash_command(t, text, &status, &err);
        else if (text[strspn(text, " \t\n")] != 0)
            status = send_message(t, text, &err);
        free(text);
        if (status == NIB_OK)
            continue;
        const int failed = fail(&err);
        if (t->status == 0 && !t->terminal)
            t->status = failed;
        on = on && !ferror(stdout); /* stop if nobody reads the answers; not if a file fails */
    }
    return t->status;
}

static int chat(chat_state *t, const char *template_text)
{
    nib_err err;
    if (nib_chat_session_open(&t->chat, t->r.session, template_text, &err) != NIB_OK)
        return fail(&err);
    clear_progress();
    print_chat_note(&t->r, t->s);
    t->terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    int status = 0;
    if (t->s->prompt != NULL && nib_chat_session_system(t->chat, t->s->prompt, &err) != NIB_OK)
        status = fail(&err);
    if (status == 0) {
        if (t->terminal)
            open_editor(t);
        if (t->terminal && !t->s->quiet)
            fputs("/help lists commands; Ctrl-D exits\n", stderr);
        status = converse(t);
        close_editor(t);
    }
    nib_chat_session_close(t->chat);
    const int said = print_summary(&t->r, t->s);
    return finish_stdout(status != 0 ? status : said);
}

int run_chat(const settings *s)
{
    const char *path = model_path(s);
    chat_state t = {.s = s};
    char *template_text = NULL;
    nib_engine *engine;
    if (path == NULL)
        return fail_usage("`nibble chat` needs MODEL");
    int status = s->chat_template != NULL
                     ? read_file(&template_text, s->chat_template, "the chat template")
                     : 0;
    if (status == 0 && (status = open_engine(&engine, s)) == 0) {
        const nib_generate_options options = generate_options_of(s, NULL);
        nib_request request = request_of(s);
        request.generation = &options;
        status = open_run(&t.r, engine, s, path, &request);
        if (status == 0) {
            status = chat(&t, template_text);
            close_run(&t.r);
        }
        nib_engine_close(engine);
    }
    free(template_text);
    return status;
}
