/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble generate, and what all commands that run a model share. Each ends with the ledger's
 * summary.
 */
#include "cli.h"
#include "kept_text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void close_run(run_context *r)
{
    nib_session_close(r->session);
    nib_plan_close(r->plan);
    nib_model_close(r->draft);
    nib_model_close(r->model);
}

int open_draft(nib_model **out, nib_engine *engine, const settings *s, const char *path,
               nib_request *request)
{
    settings own = *s;
    *out = NULL;
    if (s->draft != NULL && s->draft_head)
        return fail_usage("--draft and --draft-head name two draft models; leave one out");
    if (s->draft == NULL && !s->draft_head)
        return 0;
    own.tokenizer = NULL; /* names the model's */
    const int status = open_model(out, engine, &own, s->draft_head ? path : s->draft,
                                  (nib_model_options){.draft_head = s->draft_head});
    request->draft = *out;
    return status;
}

/* Opens the tokenizer before weights are loaded, which can take long. Without one nothing is wrong
 * yet: what needs it says so. */
static nib_status check_tokenizer(nib_model *model, nib_err *err)
{
    const nib_tokenizer *tokenizer;
    const nib_status status = nib_model_tokenizer(&tokenizer, model, err);
    return status == NIB_IO ? NIB_OK : status;
}

int open_run(run_context *out, nib_engine *engine, const settings *s, const char *path,
             const nib_request *request)
{
    *out = (run_context){0};
    int status = open_model(&out->model, engine, s, path, (nib_model_options){0});
    nib_request asked = *request;
    nib_err err;
    if (status == 0)
        status = open_draft(&out->draft, engine, s, path, &asked);
    if (status == 0 &&
        (nib_plan_open(&out->plan, out->model, &asked, &err) != NIB_OK ||
         check_tokenizer(out->model, &err) != NIB_OK ||
         nib_session_open(&out->session, out->model, out->plan,
                          request->sequences > 0 ? (int)request->sequences : 1, &err) != NIB_OK))
        status = fail(&err);
    if (status == 0)
        status = print_settings(nib_session_plan(out->session), s);
    if (status)
        close_run(out);
    return status;
}

int print_settings(const nib_plan *plan, const settings *s)
{
    nib_err err;
    const nib_sink sink = stderr_sink();
    if (s->quiet)
        return 0;
    clear_progress();
    return nib_plan_ledger_write(plan, NIB_FORM_TEXT, &sink, &err) == NIB_OK ? 0 : fail(&err);
}

int print_ledger_members(const nib_plan *plan)
{
    kept_text k = {0};
    nib_err err;
    const nib_sink sink = {.write = kept_write, .ctx = &k};
    const nib_status status = nib_plan_ledger_write(plan, NIB_FORM_JSON, &sink, &err);
    if (status == NIB_OK && k.size > 2) {
        fputs(", ", stdout);
        fwrite(k.text + 1, 1, k.size - 2, stdout); /* without the braces */
    }
    free(k.text);
    return status == NIB_OK ? 0 : fail(&err);
}

int print_summary(const run_context *r, const settings *s)
{
    nib_err err;
    const nib_sink sink = stderr_sink();
    fflush(stdout);                                      /* the summary comes last */
    const nib_plan *plan = nib_session_plan(r->session); /* the plan that ran */
    return s->quiet || nib_plan_summary(plan, &sink, &err) == NIB_OK ? 0 : fail(&err);
}

void print_chat_note(const run_context *r, const settings *s)
{
    const char *note = nib_chat_note(r->model);
    if (note != NULL && !s->quiet)
        fprintf(stderr, "nibble: %s\n", note);
}

/* ---- generate ---- */

const char *finish_word(nib_finish f)
{
    static const char *const words[] = {"stop", "length", "cancelled", "context"};
    return words[f];
}

static const char *format_ms(char out[32], double seconds)
{
    if (isnan(seconds))
        return "unknown";
    snprintf(out, 32, "%.4g ms", seconds * 1e3);
    return out;
}

void print_sampling_stats(const nib_generate_stats *t)
{
    char model[32], vain[32], without[32];
    const double per_step = t->steps > 0 ? (double)(t->new_tokens - 1) / (double)t->steps : 0;
    if (t->lookup > 0)
        fprintf(stderr,
                "lookup      %" PRId64 " tokens drafted, %" PRId64 " accepted, %.2f tokens per "
                "step\n",
                t->drafted - t->model_drafted, t->accepted - t->model_accepted, per_step);
    if (t->drafts > 0)
        fprintf(stderr,
                "draft model %" PRId64 " tokens drafted, %" PRId64 " accepted, %.2f tokens per "
                "step, %s in it\n",
                t->model_drafted, t->model_accepted, per_step, format_ms(model, t->model_s));
    if (t->lookup > 0 || t->drafts > 0)
        fprintf(stderr, "in vain     %s of drafts, %.2g %% of %s without them\n",
                format_ms(vain, t->vain_s),
                t->undrafted_s > 0 ? 100 * t->vain_s / t->undrafted_s : 0,
                format_ms(without, t->undrafted_s));
    if (t->sampler != NULL)
        fprintf(stderr, "drawn by    %s\n", t->sampler);
    if (t->sampler_why[0] != 0)
        fprintf(stderr, "            %s\n", t->sampler_why);
}

static void print_generate_stats(const nib_generate_stats *t)
{
    const double steps = t->new_tokens > 1 ? (double)(t->new_tokens - 1) : 0;
    char predicted[32], measured[32];
    fprintf(stderr,
            "\nprompt      %" PRId64 " tokens, %.1f tokens/s, first token after %.3f s\n"
            "generated   %" PRId64 " tokens, %.1f tokens/s, %.1f GB/s, ended with %s\n"
            "per token   %s predicted, %s measured\n"
            "memory      %.1f MB weights, %.1f MB KV cache, %.1f MB peak\n"
            "sampling    temp %g, top-k %" PRId64
            ", top-p %g, min-p %g, repeat-penalty %g, seed %" PRIu64 "\n",
            t->prompt_tokens, t->prefill_s > 0 ? (double)t->prompt_tokens / t->prefill_s : 0,
            t->first_token_s, t->new_tokens, t->decode_s > 0 ? steps / t->decode_s : 0,
            t->decode_gb_per_s, finish_word(t->finish), format_ms(predicted, t->predicted_token_s),
            format_ms(measured, t->token_s), (double)t->weight_bytes * 1e-6,
            (double)t->cache_bytes * 1e-6, (double)t->peak_bytes * 1e-6, t->temperature, t->top_k,
            t->top_p, t->min_p, t->repeat_penalty, t->seed);
    print_sampling_stats(t);
}

static int fail_reading(nib_status status, const char *path, const char *what, const char *why)
{
    nib_err err = {.status = status};
    snprintf(err.text, sizeof err.text, "%s: %s could not be read: %s", path, what, why);
    return fail(&err);
}

/* Reads the rest of a stream, NUL-terminated. Returns 0 or errno. */
static int read_all(char **text, size_t *size, FILE *file)
{
    /* more than any context holds; a device file may be endless */
    const size_t limit = (size_t)256 << 20;
    size_t capacity = 0;
    for (;;) {
        if (*size + 1 >= capacity) {
            capacity = capacity ? 2 * capacity : 4096;
            char *more = realloc(*text, capacity);
            if (!more)
                return ENOMEM;
            *text = more;
        }
        errno = 0;
        const size_t got = fread(*text + *size, 1, capacity - *size - 1, file);
        *size += got;
        (*text)[*size] = '\0';
        if (ferror(file))
            return errno ? errno : EIO;
        if (got == 0)
            return 0;
        if (*size > limit)
            return EFBIG;
    }
}

int read_file(char **out, const char *path, const char *what)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = NULL, why[64];
    size_t size = 0;
    const int problem = file ? read_all(&text, &size, file) : errno;
    if (file && file != stdin)
        fclose(file);
    const char *nul = problem ? NULL : memchr(text, '\0', size);
    if (!problem && !nul) {
        *out = text;
        return 0;
    }
    snprintf(why, sizeof why, "it holds a NUL byte, at offset %td", nul ? nul - text : 0);
    free(text);
    if (problem == EINTR)
        return fail_reading(NIB_CANCELLED, path, what, "cancelled");
    const nib_status status = problem == ENOMEM ? NIB_NO_MEMORY : NIB_IO;
    return problem ? fail_reading(status, path, what, strerror(problem))
                   : fail_reading(NIB_BAD_INPUT, path, what, why);
}

/* Text is UTF-8 and needs no further escapes. */
void print_json_string(FILE *to, const char *text, size_t size)
{
    fputc('"', to);
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            fprintf(to, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(to, "\\u%04x", c);
        else
            fputc(c, to);
    }
    fputc('"', to);
}

void print_json_number(const char *key, double value)
{
    if (isfinite(value))
        printf(", \"%s\": %.9g", key, value);
    else
        printf(", \"%s\": null", key);
}

/* What --json collects into one object. */
typedef struct generated {
    kept_text text;
    FILE *logprobs_file; /* members of the logprobs array; NULL: not asked for */
    char *logprobs;
    size_t logprobs_size;
} generated;

static void print_logprob(FILE *to, const nib_token_logprob *token)
{
    fprintf(to, "{\"id\": %" PRId32 ", \"token\": ", token->id);
    print_json_string(to, token->text, strlen(token->text));
    if (isfinite(token->logprob))
        fprintf(to, ", \"logprob\": %.9g", token->logprob);
    else
        fputs(", \"logprob\": null", to);
}

static void append_logprobs(void *ctx, const nib_token_logprob *token,
                            const nib_token_logprob *likeliest, size_t count)
{
    FILE *to = ctx;
    fputs(ftell(to) > 0 ? ", " : "", to);
    print_logprob(to, token);
    fputs(", \"top\": [", to);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? ", " : "", to);
        print_logprob(to, &likeliest[i]);
        fputc('}', to);
    }
    fputs("]}", to);
}

static int print_generate_json(const nib_generate_stats *t, const generated *g,
                               const nib_plan *plan)
{
    fputs("{\"schema\": 1, \"text\": ", stdout);
    print_json_string(stdout, g->text.text, g->text.size);
    if (g->logprobs_file != NULL)
        printf(", \"logprobs\": [%s]", g->logprobs);
    printf(", \"prompt_tokens\": %" PRId64 ", \"new_tokens\": %" PRId64 ", \"finish\": \"%s\", "
           "\"first_token_s\": %.6f, \"prefill_s\": %.6f, \"decode_s\": %.6f",
           t->prompt_tokens, t->new_tokens, finish_word(t->finish), t->first_token_s, t->prefill_s,
           t->decode_s);
    print_json_number("token_s", t->token_s);
    print_json_number("predicted_token_s", t->predicted_token_s);
    printf(", \"steps\": %" PRId64 ", \"lookup\": %" PRId64 ", \"drafted\": %" PRId64
           ", \"accepted\": %" PRId64 ", \"seed\": %" PRIu64,
           t->steps, t->lookup, t->drafted, t->accepted, t->seed);
    if (t->drafts > 0)
        printf(", \"drafts\": %" PRId64 ", \"model_drafted\": %" PRId64
               ", \"model_accepted\": %" PRId64 ", \"model_s\": %.6f",
               t->drafts, t->model_drafted, t->model_accepted, t->model_s);
    printf(", \"vain_s\": %.6f, \"undrafted_s\": %.6f", t->vain_s, t->undrafted_s);
    const int status = print_ledger_members(plan);
    puts("}");
    return status;
}

double or_default(double value) { return value < 0 ? 0 : value == 0 ? -1 : value; }

nib_generate_options generate_options_of(const settings *s, const char *prompt)
{
    return (nib_generate_options){
        .size = sizeof(nib_generate_options),
        .prompt = prompt,
        .max_tokens = (int64_t)or_default((double)s->max_tokens),
        .temperature = or_default(s->temperature),
        .top_k = (int64_t)or_default((double)s->top_k),
        .top_p = or_default(s->top_p),
        .min_p = or_default(s->min_p),
        .repeat_penalty = or_default(s->repeat_penalty),
        .seed = (uint64_t)s->seed,
        .ignore_eos = s->ignore_eos,
        .stop = {.items = s->stop.items, .count = s->stop.count},
    };
}

/* Ends the output and prints statistics and the summary. Returns the exit status. */
static int finish_generate(const run_context *r, const settings *s, const generated *g,
                           const nib_generate_stats *stats)
{
    const int printed = s->json ? print_generate_json(stats, g, nib_session_plan(r->session)) : 0;
    if (printed)
        return printed;
    if (!s->json)
        putchar('\n');
    fflush(stdout);
    if (!s->quiet && !s->json)
        print_generate_stats(stats);
    const int summary = print_summary(r, s);
    return finish_stdout(stats->finish == NIB_FINISH_CANCELLED ? nib_status_exit(NIB_CANCELLED)
                                                               : summary);
}

static int generate(const run_context *r, const settings *s, nib_generate_options options)
{
    nib_generate_stats stats = {.size = sizeof stats};
    nib_err err = {.status = NIB_NO_MEMORY, .text = "cannot allocate the log probabilities"};
    generated g = {0};
    const nib_sink sink = s->json ? (nib_sink){.write = kept_write, .ctx = &g.text} : stdout_sink();
    nib_status status = NIB_OK;
    if (s->logprobs > 0) {
        g.logprobs_file = open_memstream(&g.logprobs, &g.logprobs_size);
        options.logprobs = s->logprobs;
        options.on_logprobs = append_logprobs;
        options.on_logprobs_ctx = g.logprobs_file;
        status = g.logprobs_file != NULL ? NIB_OK : NIB_NO_MEMORY;
    }
    if (status == NIB_OK)
        status = nib_generate(r->session, &options, &sink, &stats, &err);
    if (g.logprobs_file != NULL && fclose(g.logprobs_file) != 0 && status == NIB_OK)
        status = NIB_NO_MEMORY;
    const int ended = status == NIB_OK ? finish_generate(r, s, &g, &stats) : fail(&err);
    free(g.logprobs);
    free(g.text.text);
    return ended;
}

static int check_generate(const settings *s)
{
    if (s->prompt && s->prompt_file)
        return fail_usage("--prompt and --file both give the prompt; choose one");
    if (s->logprobs > 0 && !s->json)
        return fail_usage("--logprobs %lld needs --json, whose output has them", s->logprobs);
    if (s->prompt_file && s->schema && !strcmp(s->prompt_file, "-") && !strcmp(s->schema, "-"))
        return fail_usage("--file and --schema both read stdin; name a file for one of them");
    return 0;
}

int run_generate(const settings *s)
{
    const char *path = model_path(s);
    if (!path)
        return fail_usage("`nibble generate` needs MODEL");
    char *text = NULL, *schema = NULL;
    nib_engine *engine;
    int status = check_generate(s);
    if (status == 0 && s->prompt_file)
        status = read_file(&text, s->prompt_file, "the prompt");
    if (status == 0 && s->schema)
        status = read_file(&schema, s->schema, "the schema");
    if (status == 0 && (status = open_engine(&engine, s)) == 0) {
        run_context r;
        nib_generate_options options = generate_options_of(s, NULL);
        nib_request request = request_of(s);
        request.generation = &options;
        status = open_run(&r, engine, s, path, &request);
        if (status == 0) {
            options.prompt = text ? text : s->prompt;
            options.schema = schema;
            status = generate(&r, s, options);
            close_run(&r);
        }
        nib_engine_close(engine);
    }
    free(schema);
    free(text);
    return status;
}
