/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble bench: runs the timings and prints them.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern char **environ;

enum { REPEATS = 5, COLD_TOKENS = 16, SWEEP_SEQUENCES = 2 };

/* ---- the time to the first token ---- */

static double now_s(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU time used before main, which is what starting the process took, and the clock at main. */
static double program_s, main_at;

void record_start(void)
{
    program_s = now_s(CLOCK_PROCESS_CPUTIME_ID);
    main_at = now_s(CLOCK_MONOTONIC);
}

/* The stages up to the first token, in order. */
typedef enum cold_stage {
    COLD_PROGRAM,
    COLD_THREADS,
    COLD_OPEN,
    COLD_PLAN,
    COLD_WEIGHTS,
    COLD_TOKENIZER,
    COLD_PROMPT,
    COLD_STAGES
} cold_stage;
static const char *const cold_names[] = {"program", "threads",   "open",  "plan",
                                         "weights", "tokenizer", "prompt"};

typedef struct cold_start {
    double s[COLD_STAGES], last; /* seconds per stage; clock at the end of the last one */
    int tokens;                  /* prompt length */
    bool has_tokenizer;
} cold_start;

static void end_stage(cold_start *c, cold_stage stage)
{
    const double now = now_s(CLOCK_MONOTONIC);
    c->s[stage] = now - c->last;
    c->last = now;
}

static double cold_sum(const cold_start *c)
{
    double sum = 0;
    for (int i = 0; i < COLD_STAGES; i++)
        sum += c->s[i];
    return sum;
}

/* open_run with each stage timed. Opens the tokenizer too, as `nibble generate` does. */
static int open_cold(run_context *r, cold_start *c, nib_engine *engine, const settings *s,
                     const char *path, int sequences)
{
    const nib_request request = request_of(s);
    nib_slot slots[COLD_TOKENS];
    const float *logits;
    const nib_tokenizer *tokenizer;
    int32_t *ids;
    size_t count;
    nib_err err;
    *r = (run_context){0};
    const int status = open_model(&r->model, engine, s, path, (nib_model_options){0});
    if (status)
        return status;
    end_stage(c, COLD_OPEN);
    if (nib_plan_open(&r->plan, r->model, &request, &err) != NIB_OK)
        return fail(&err);
    end_stage(c, COLD_PLAN);
    if (nib_session_open(&r->session, r->model, r->plan, sequences, &err) != NIB_OK)
        return fail(&err);
    end_stage(c, COLD_WEIGHTS);
    c->has_tokenizer =
        nib_model_tokenizer(&tokenizer, r->model, NULL) == NIB_OK &&
        nib_tokenize(tokenizer, "a", 1, NIB_TOKENIZE_ADD_SPECIAL, &ids, &count, NULL) == NIB_OK;
    if (c->has_tokenizer)
        nib_tokens_free(engine, ids);
    end_stage(c, COLD_TOKENIZER);
    c->tokens = s->context > 0 && s->context < COLD_TOKENS ? (int)s->context : COLD_TOKENS;
    for (int i = 0; i < c->tokens; i++)
        slots[i] = (nib_slot){.position = i,
                              .token = (int32_t)(i % nib_session_vocab(r->session)),
                              .outputs = i + 1 == c->tokens ? NIB_SLOT_LOGITS : 0};
    if (nib_session_step(r->session, slots, (size_t)c->tokens, &logits, &err) != NIB_OK)
        return fail(&err);
    end_stage(c, COLD_PROMPT);
    return nib_session_truncate(r->session, 0, 0, &err) == NIB_OK
               ? print_settings(nib_session_plan(r->session), s)
               : fail(&err);
}

/* ---- reports ---- */

typedef struct report {
    const settings *s;
    const char *model;
    nib_bench_options options;
    nib_bench_result r;
    cold_start cold;
} report;

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

static const char *peer_title(const settings *s)
{
    const char *slash = strrchr(s->peer, '/');
    return slash ? slash + 1 : s->peer;
}

static void print_json_text(const char *key, const char *text)
{
    printf(", \"%s\": ", key);
    if (text)
        print_json_string(stdout, text, strlen(text));
    else
        fputs("null", stdout);
}

static void print_speeds(const char *key, nib_bench_speeds speeds)
{
    printf("\"%s\": {\"prefill_tokens_per_s\": %.6g, \"decode_tokens_per_s\": %.6g}", key,
           speeds.prefill_tokens_per_s, speeds.decode_tokens_per_s);
}

static void print_json_rounds(const report *p)
{
    fputs(",\n  \"rounds\": [", stdout);
    for (int i = 0; i < p->options.repeats; i++) {
        const nib_bench_round *round = &p->options.rounds[i];
        printf("%s\n    {", i ? "," : "");
        print_speeds("own", round->own);
        if (*p->r.floats_name) {
            fputs(", ", stdout);
            print_speeds("floats", round->floats);
        }
        if (p->s->peer) {
            fputs(", ", stdout);
            print_speeds("peer", round->peer);
            printf(", \"read_gb_per_s\": [%.4g, %.4g]", round->read_gb_per_s[0],
                   round->read_gb_per_s[1]);
        }
        if (p->s->batch)
            printf(", \"batch_tokens_per_s\": %.6g", round->batch_tokens_per_s);
        putchar('}');
    }
    fputs("\n  ]", stdout);
}

static void print_json_details(const report *p)
{
    const nib_bench_result *b = &p->r;
    fputs(",\n  \"cold_start\": {", stdout);
    for (int i = 0; i < COLD_STAGES; i++)
        if (i != COLD_TOKENIZER || p->cold.has_tokenizer)
            printf("\"%s_s\": %.6f, ", cold_names[i], p->cold.s[i]);
    printf("\"tokens\": %d, \"first_token_s\": %.6f}", p->cold.tokens, cold_sum(&p->cold));
    if (p->s->batch)
        printf(",\n  \"batch\": {\"sequences\": %lld, \"tokens_per_s\": %.6g, "
               "\"each_tokens_per_s\": %.6g}",
               p->s->batch, b->batch_tokens_per_s, b->batch_tokens_per_s / (double)p->s->batch);
    if (b->context_count) {
        fputs(",\n  \"contexts\": [", stdout);
        for (size_t i = 0; i < b->context_count; i++)
            printf("%s{\"positions\": %" PRId64
                   ", \"tokens_per_s\": %.6g, \"empty_tokens_per_s\": %.6g}",
                   i ? ", " : "", b->contexts[i].positions, b->contexts[i].tokens_per_s,
                   b->contexts[i].empty_tokens_per_s);
        putchar(']');
    }
    if (*b->floats_name) {
        printf(",\n  \"floats_name\": \"%s\", ", b->floats_name);
        print_speeds("floats", b->floats);
    } else if (*b->floats_why) {
        print_json_text("floats_why", b->floats_why);
    }
    if (p->s->peer) {
        printf(",\n  \"peer_file_bytes\": %" PRIu64 ", \"peer_token_bytes\": %" PRIu64,
               b->peer_file_bytes, b->peer_token_bytes);
        print_json_text("peer_name", b->peer_name);
        fputs(", ", stdout);
        print_speeds("peer", b->peer);
    }
    print_json_rounds(p);
}

static int print_json(const report *p, const nib_plan *plan)
{
    const nib_bench_result *b = &p->r;
    const char *slash = strrchr(p->model, '/');
    printf("{\"schema\": 1, \"version\": \"%s\"", nib_version());
    print_json_text("machine", b->machine);
    printf(", \"isa\": \"%s\", \"threads\": %d, \"date\": \"%s\"", b->isa, b->threads, b->date);
    print_json_text("model", slash && slash[1] ? slash + 1 : p->model);
    print_json_text("recipe", p->s->recipe);
    printf(",\n  \"prefill_tokens_per_s\": %.6g, \"decode_tokens_per_s\": %.6g, "
           "\"peak_bytes\": %" PRIu64
           ", \"bandwidth_share\": %.4g, \"arithmetic_share\": %.4g, \"weight_bytes\": %" PRIu64
           ", \"cache_bytes\": %" PRIu64 ", \"file_bytes\": %" PRIu64
           ", \"read_gb_per_s\": %.4g, \"peak_gop_per_s\": %.4g, "
           "\"predicted_prefill_tokens_per_s\": %.6g, \"predicted_decode_tokens_per_s\": %.6g, "
           "\"predicted_bytes\": %" PRIu64 ", \"device_bytes\": %" PRIu64,
           b->prefill_tokens_per_s, b->decode_tokens_per_s, b->peak_bytes, b->bandwidth_share,
           b->arithmetic_share, b->weight_bytes, b->cache_bytes, b->file_bytes, b->copy_gb_per_s,
           b->peak_gop_per_s, b->predicted_prefill_tokens_per_s, b->predicted_decode_tokens_per_s,
           b->predicted_bytes, b->device_bytes);
    print_json_details(p);
    const int status = print_ledger_members(plan);
    puts("\n}");
    return status;
}

static void print_medians(const nib_bench_result *b)
{
    if (b->copy_gb_per_s > 0) /* over 100 % of the bandwidth: a small model stays in the caches */
        printf("prefill     %.1f tokens/s, %.0f %% of %.0f GOP/s\ndecode      %.1f tokens/s, %.0f "
               "%% of %.1f GB/s%s\n",
               b->prefill_tokens_per_s, 100 * b->arithmetic_share, b->peak_gop_per_s,
               b->decode_tokens_per_s, 100 * b->bandwidth_share, b->copy_gb_per_s,
               b->bandwidth_share > 1 ? ": the weights stay in the caches" : "");
    else
        printf("prefill     %.1f tokens/s\ndecode      %.1f tokens/s\n", b->prefill_tokens_per_s,
               b->decode_tokens_per_s);
}

static void print_details(const report *p)
{
    const nib_bench_result *b = &p->r;
    if (p->s->batch)
        printf("batch       %.1f tokens/s of %lld sequences together, %.1f each, %.2fx one "
               "alone\n",
               b->batch_tokens_per_s, p->s->batch, b->batch_tokens_per_s / (double)p->s->batch,
               ratio(b->batch_tokens_per_s, b->decode_tokens_per_s));
    for (size_t i = 0; i < b->context_count; i++)
        printf("%-11s %.1f tokens/s after %" PRId64 " positions, %.2fx of %.1f after none\n",
               i ? "" : "context", b->contexts[i].tokens_per_s, b->contexts[i].positions,
               ratio(b->contexts[i].tokens_per_s, b->contexts[i].empty_tokens_per_s),
               b->contexts[i].empty_tokens_per_s);
    if (*b->floats_name)
        printf("in %-8s %.1f tokens/s prefill, %.1f tokens/s decode; above: %.2fx and %.2fx of "
               "these\n",
               b->floats_name, b->floats.prefill_tokens_per_s, b->floats.decode_tokens_per_s,
               ratio(b->prefill_tokens_per_s, b->floats.prefill_tokens_per_s),
               ratio(b->decode_tokens_per_s, b->floats.decode_tokens_per_s));
    else if (*b->floats_why)
        printf("in floats   not timed: %s\n", b->floats_why);
}

static void print_cold(const cold_start *c)
{
    printf("cold start  %.3f s to the first token of %d:", cold_sum(c), c->tokens);
    for (int i = 0; i < COLD_STAGES; i++)
        if (i != COLD_TOKENIZER || c->has_tokenizer)
            printf("%s %s %.3f", i ? "," : "", cold_names[i], c->s[i]);
    puts(c->has_tokenizer ? "" : "; the model has no tokenizer to open");
}

static void print_row(const char *name, nib_bench_speeds speeds, uint64_t token_bytes,
                      uint64_t file_bytes)
{
    char token[32] = "unknown", file[32] = "unknown";
    if (token_bytes)
        snprintf(token, sizeof token, "%.1f MB", (double)token_bytes * 1e-6);
    if (file_bytes)
        snprintf(file, sizeof file, "%.1f MB", (double)file_bytes * 1e-6);
    printf("  %-12.24s %10.1f %10.1f %12s %12s\n", name, speeds.prefill_tokens_per_s,
           speeds.decode_tokens_per_s, token, file);
}

static void print_peer(const report *p)
{
    const nib_bench_result *b = &p->r;
    if (!p->s->peer)
        return;
    const nib_bench_speeds own = {b->prefill_tokens_per_s, b->decode_tokens_per_s};
    printf("peer        %s (%s), %d round%s in turn, %d thread%s each\n", peer_title(p->s),
           b->peer_name, p->options.repeats, p->options.repeats == 1 ? "" : "s", b->threads,
           b->threads == 1 ? "" : "s");
    printf("  %-12s %10s %10s %12s %12s\n", "tokens/s", "prefill", "decode", "per token", "file");
    print_row("nibble", own, b->weight_bytes, b->file_bytes);
    if (*b->floats_name)
        printf("  %-12.24s %10.1f %10.1f\n", b->floats_name, b->floats.prefill_tokens_per_s,
               b->floats.decode_tokens_per_s);
    print_row(peer_title(p->s), b->peer, b->peer_token_bytes, b->peer_file_bytes);
    printf("  %-12s %9.2fx %9.2fx", "ratio",
           ratio(own.prefill_tokens_per_s, b->peer.prefill_tokens_per_s),
           ratio(own.decode_tokens_per_s, b->peer.decode_tokens_per_s));
    if (b->peer_token_bytes)
        printf(" %11.2fx", ratio((double)b->weight_bytes, (double)b->peer_token_bytes));
    if (b->peer_token_bytes && b->peer_file_bytes)
        printf(" %11.2fx", ratio((double)b->file_bytes, (double)b->peer_file_bytes));
    printf("\n  read        %.1f GB/s:", b->read_gb_per_s);
    for (int i = 0; i < p->options.repeats; i++)
        printf("%s %.1f and %.1f", i ? "," : "", p->options.rounds[i].read_gb_per_s[0],
               p->options.rounds[i].read_gb_per_s[1]);
    puts(", before and after each round");
}

static void print_report(const report *p)
{
    const nib_bench_result *b = &p->r;
    print_medians(b);
    print_details(p);
    print_cold(&p->cold);
    printf("memory      %.1f MB weights, %.1f MB KV cache, %.1f MB peak\n",
           (double)b->weight_bytes * 1e-6, (double)b->cache_bytes * 1e-6,
           (double)b->peak_bytes * 1e-6);
    if (b->device_bytes != 0)
        printf("            %.1f MB on the device\n", (double)b->device_bytes * 1e-6);
    printf("predicted   %.1f tokens/s prefill, %.1f tokens/s decode, %.1f MB\n",
           b->predicted_prefill_tokens_per_s, b->predicted_decode_tokens_per_s,
           (double)b->predicted_bytes * 1e-6);
    print_peer(p);
}

/* ---- a model ---- */

/* Parses a list such as "0,512,2048". */
static int parse_sweep(int64_t out[NIB_BENCH_CONTEXTS], size_t *count, const char *text)
{
    *count = 0;
    for (const char *at = text; at && *at;) {
        char *end;
        errno = 0;
        const long long n = strtoll(at, &end, 10);
        if (end == at || errno || n < 0 || (*end && (*end != ',' || !end[1])))
            return fail_usage("--sweep: \"%s\" is not a comma-separated list of numbers of 0 or "
                              "more, such as 0,512,2048",
                              text);
        if (*count == NIB_BENCH_CONTEXTS)
            return fail_usage("--sweep: \"%s\" has more than %d contexts", text,
                              NIB_BENCH_CONTEXTS);
        out[(*count)++] = n;
        at = end + (*end == ',');
    }
    return text && *count == 0
               ? fail_usage("--sweep: the list is empty; give one such as 0,512,2048")
               : 0;
}

static int time_model(const run_context *r, report *p)
{
    nib_err err;
    if (nib_bench(r->session, &p->options, &p->r, &err) != NIB_OK)
        return fail(&err);
    clear_progress();
    int status = 0;
    if (p->s->json)
        status = print_json(p, nib_session_plan(r->session));
    else
        print_report(p);
    return status ? status : finish_stdout(print_summary(r, p->s));
}

static int time_operations(const run_context *r, const report *p)
{
    const nib_sink sink = report_sink(p->s);
    nib_err err;
    return nib_bench_operations(r->session, &p->options, form_of(p->s), &sink, &err) == NIB_OK
               ? finish_stdout(print_summary(r, p->s))
               : fail(&err);
}

/* Sequences to open: those of the batch; for a sweep at least an empty one and a full one. */
static int count_sequences(const settings *s)
{
    const long long least = s->sweep ? SWEEP_SEQUENCES : 1;
    const long long wanted = s->batch > least ? s->batch : least;
    return wanted < NIB_BENCH_BATCH ? (int)wanted : NIB_BENCH_BATCH;
}

static int bench_model(nib_engine *engine, const settings *s, const char *path)
{
    int64_t contexts[NIB_BENCH_CONTEXTS];
    const nib_bench_peer peer = {
        .program = s->peer, .model = s->peer_model, .environment = (const char *const *)environ};
    const long long repeats = s->repeats ? s->repeats : REPEATS;
    run_context r;
    report p = {.s = s,
                .model = path,
                .options = {.prompt_tokens = s->prompt_tokens,
                            .new_tokens = s->max_tokens > 0 ? s->max_tokens : 0,
                            .repeats = (int)(repeats < INT_MAX ? repeats : INT_MAX),
                            .batch = s->batch,
                            .contexts = contexts,
                            .beside = !s->alone,
                            .against = s->against,
                            .peer = s->peer ? &peer : NULL},
                .cold = {.s = {program_s}, .last = main_at}};
    int status = parse_sweep(contexts, &p.options.context_count, s->sweep);
    if (status)
        return status;
    end_stage(&p.cold, COLD_THREADS);
    p.options.rounds = calloc(NIB_BENCH_ROUNDS, sizeof *p.options.rounds);
    if (!p.options.rounds)
        return fail(&(nib_err){NIB_NO_MEMORY, "cannot allocate the rounds of the bench"});
    status = open_cold(&r, &p.cold, engine, s, path, count_sequences(s));
    if (status == 0)
        status = s->operations ? time_operations(&r, &p) : time_model(&r, &p);
    close_run(&r);
    free(p.options.rounds);
    return status;
}

/* ---- training configs, layers, options ---- */

/* Times the steps of a training config. */
static int bench_train(nib_engine *engine, const settings *s, const char *path)
{
    nib_model *model;
    nib_plan *plan = NULL;
    nib_err err;
    int status = open_model(&model, engine, s, path, (nib_model_options){0});
    if (status)
        return status;
    const nib_request request = request_of(s);
    const nib_sink sink = report_sink(s);
    const int steps = (int)(s->repeats < INT_MAX ? s->repeats : INT_MAX);
    if (nib_plan_open(&plan, model, &request, &err) != NIB_OK)
        status = fail(&err);
    if (status == 0)
        status = print_settings(plan, s);
    if (status == 0)
        status = nib_bench_train(model, plan, steps, form_of(s), &sink, &err) == NIB_OK
                     ? finish_stdout(0)
                     : fail(&err);
    nib_plan_close(plan);
    nib_model_close(model);
    return status;
}

static int bench_layers(nib_model *model, nib_engine *engine, const settings *s)
{
    nib_plan *plan = NULL;
    nib_err err;
    const nib_request request = request_of(s);
    const nib_sink sink = report_sink(s);
    (void)engine;
    int status = nib_plan_open(&plan, model, &request, &err) == NIB_OK ? print_settings(plan, s)
                                                                       : fail(&err);
    if (status == 0)
        status = nib_bench_layers(plan, s->prompt_tokens, form_of(s), &sink, &err) == NIB_OK
                     ? finish_stdout(0)
                     : fail(&err);
    nib_plan_close(plan);
    return status;
}

/* The first given option that applies only to the rounds of a model; NULL if there is none. */
static const char *first_rounds_option(const settings *s)
{
    const option_given options[] = {
        {"batch", s->batch != 0},  {"sweep", s->sweep != NULL},
        {"alone", s->alone},       {"against", s->against != NULL},
        {"peer", s->peer != NULL}, {"peer-model", s->peer_model != NULL}};
    return first_given(options, sizeof options / sizeof *options);
}

/* The first given option without effect with --kernels, --predict or --train; NULL if none. */
static const char *first_unused_option(const settings *s)
{
    const option_given options[] = {{"max-tokens", s->max_tokens >= 0},
                                    {"repeats", !s->train && s->repeats != 0},
                                    {"operations", s->operations},
                                    {"cache-dir", s->cache_dir != NULL},
                                    {"device", s->kernels && s->device != NULL},
                                    {"prompt-tokens", !s->predict && s->prompt_tokens != 0}};
    return first_given(options, sizeof options / sizeof *options);
}

static int check_bench(const settings *s, const char *path)
{
    if (s->kernels + s->predict + s->train > 1)
        return fail_usage("--kernels, --predict and --train exclude each other; give one");
    if (!path && s->train)
        return fail_usage("`nibble bench --train` needs CONFIG");
    if (!path && !s->kernels && !s->predict)
        return fail_usage("`nibble bench` needs MODEL, --kernels or --predict");
    if (path && s->kernels)
        return fail_usage("--kernels times kernels without a model; leave out %s, or --kernels",
                          path);
    if (s->train && s->operations)
        return fail_usage("--operations has no effect with --train, which always lists them");
    if (s->markdown && !s->kernels && !s->predict && !s->train && !s->operations)
        return fail_usage("--markdown needs --kernels, --predict, --operations or --train; the "
                          "rounds of a model are printed as text or --json");
    if (!s->peer != !s->peer_model)
        return fail_usage(
            "--peer PROGRAM and --peer-model FILE.gguf need each other; %s is missing",
            s->peer ? "--peer-model" : "--peer");
    const char *what = s->kernels      ? "kernels"
                       : s->predict    ? path != NULL ? "predict" : "predict without MODEL"
                       : s->train      ? "train"
                       : s->operations ? "operations"
                                       : NULL;
    const char *useless = s->kernels || s->predict || s->train ? first_unused_option(s) : NULL;
    if (useless == NULL && path == NULL && (s->kernels || s->predict))
        useless = first_model_option(s);
    if (what != NULL && useless == NULL)
        useless = first_rounds_option(s);
    if (useless != NULL)
        return fail_usage("--%s has no effect with --%s", useless, what);
    return 0;
}

int run_bench(const settings *s)
{
    const char *path = model_path(s);
    nib_engine *engine;
    int status = check_bench(s, path);
    if (status == 0 && s->predict && path != NULL) /* shapes are enough */
        return with_model(s, "", (nib_model_options){.config_only = true}, bench_layers);
    if (status == 0)
        status = open_engine(&engine, s);
    if (status)
        return status;
    nib_err err;
    const nib_sink sink = report_sink(s);
    if (s->kernels)
        status = nib_bench_kernels(engine, form_of(s), &sink, &err) == NIB_OK ? finish_stdout(0)
                                                                              : fail(&err);
    else if (s->predict)
        status = nib_bench_predict(engine, s->device, s->prompt_tokens, form_of(s), &sink, &err) ==
                         NIB_OK
                     ? finish_stdout(0)
                     : fail(&err);
    else if (s->train)
        status = bench_train(engine, s, path);
    else
        status = bench_model(engine, s, path);
    nib_engine_close(engine);
    return status;
}
