/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens per second of a session: medians of rounds. A round measures a prompt, new tokens, a
 * batch, and then the same model in floats. The machine's bandwidth and arithmetic rate are
 * measured in the same run.
 */
#include "bench_peer.h"
#include "bench.h"
#include "public_struct.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

/* ---- timed steps ---- */

/* Token ids valid for any vocabulary size, spread so that embedding rows are not all in a cache. */
static int32_t token_at(const nib_session *s, int64_t i)
{
    return (int32_t)((uint64_t)i * 2654435761u % (uint64_t)nib__network_embed(&s->model->net)->n);
}

nib_status nib__bench_fill(nib_session *s, int32_t sequence, int64_t from, int64_t to, nib_err *err)
{
    const float *logits;
    for (int64_t done = nib__kv_truncate(&s->runner.kv, sequence, from); done < to;
         done += NIB_CHUNK) {
        nib_slot slots[NIB_CHUNK];
        const int64_t part = nib__min(NIB_CHUNK, to - done);
        for (int64_t i = 0; i < part; i++)
            slots[i] = (nib_slot){.sequence = sequence,
                                  .position = (int32_t)(done + i),
                                  .token = token_at(s, done + i),
                                  .outputs = done + i + 1 == to ? NIB_SLOT_LOGITS : 0};
        NIB_TRY(nib__runner_step(&s->runner, slots, (size_t)part, &logits, err));
    }
    return NIB_OK;
}

nib_status nib__bench_prefill(nib_session *s, int64_t count, double *seconds, nib_err *err)
{
    const uint64_t start = nib__now_ns();
    NIB_TRY(nib__bench_fill(s, 0, 0, count, err));
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

nib_status nib__bench_decode_at(nib_session *s, int32_t sequence, int64_t from, int64_t count,
                                double *seconds, nib_err *err)
{
    const float *logits;
    if (nib__kv_truncate(&s->runner.kv, sequence, from) < from)
        NIB_TRY(nib__bench_fill(s, sequence, 0, from, err));
    const uint64_t start = nib__now_ns();
    for (int64_t i = from; i < from + count; i++) {
        const nib_slot slot = {.sequence = sequence,
                               .position = (int32_t)i,
                               .token = token_at(s, i),
                               .outputs = NIB_SLOT_LOGITS};
        NIB_TRY(nib__runner_step(&s->runner, &slot, 1, &logits, err));
    }
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

/* From an empty cache, as llama-bench's tg does. */
nib_status nib__bench_decode(nib_session *s, int64_t count, double *seconds, nib_err *err)
{
    return nib__bench_decode_at(s, 0, 0, count, seconds, err);
}

int64_t nib__bench_batch_start(const nib_session *s, int64_t sequence, int64_t count)
{
    enum { APART = 5 /* positions between sequences, so that no two are at the same one */ };
    return nib__min(APART * sequence, s->plan->context - count);
}

nib_status nib__bench_batch(nib_session *s, int64_t sequences, int64_t count, const float **logits,
                            double *seconds, nib_err *err)
{
    nib_slot slots[NIB_BENCH_BATCH];
    for (int64_t j = 0; j < sequences; j++)
        NIB_TRY(nib__bench_fill(s, (int32_t)j, 0, nib__bench_batch_start(s, j, count), err));
    const uint64_t start = nib__now_ns();
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < sequences; j++) {
            const int64_t position = nib__bench_batch_start(s, j, count) + i;
            slots[j] = (nib_slot){.sequence = (int32_t)j,
                                  .position = (int32_t)position,
                                  .token = token_at(s, position),
                                  .outputs = NIB_SLOT_LOGITS};
        }
        NIB_TRY(nib__runner_step(&s->runner, slots, (size_t)sequences, logits, err));
    }
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

/* ---- the model in floats, for comparison ---- */

bool nib__plan_is_floats(const nib_assignment *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        if (nib__scheme_is_quantized(&plan->layers[i].done))
            return false;
    return true;
}

/* The first layer stored in codes; NULL: all are floats. */
static const nib_site *find_codes(const nib_network *net)
{
    for (size_t i = 0; i < net->site_count; i++)
        if (nib__scheme_is_quantized(&net->sites[i].stored))
            return &net->sites[i];
    return NULL;
}

/* Whether the plan fits beside what is already in memory; if not, why gets the reason. */
static bool fits_in_memory(const nib_plan *p, char *why, size_t size)
{
    const uint64_t memory = p->model->engine->here.memory, held = nib__resident_bytes();
    const uint64_t wanted = p->assignment.gpu != NULL ? 0 : p->weight_bytes + p->cache.bytes;
    if (memory == 0 || (held <= memory && wanted <= memory - held))
        return true;
    nib__format(why, size, "its %.1f GB do not fit beside the %.1f GB in use, of %.1f GB",
                (double)wanted * 1e-9, (double)held * 1e-9, (double)memory * 1e-9);
    return false;
}

static nib_request request_as_stored(const nib_session *of)
{
    const nib_request *asked = &of->plan->request;
    return (nib_request){.device = asked->device,
                         .dtype = asked->dtype,
                         .context = of->plan->context,
                         .without = asked->without,
                         .memory = asked->memory};
}

static nib_status open_floats_at(nib_bench_floats *out, const nib_session *of, const char *path,
                                 nib_err *err)
{
    const nib_request request = request_as_stored(of);
    char code[64];
    NIB_TRY(nib_model_open(&out->model, of->model->engine, path, NULL, err));
    const nib_site *codes = find_codes(&out->model->net);
    if (codes != NULL)
        return nib__fail(err, NIB_USAGE,
                         "%s: %s is stored as %s; --against needs a checkpoint of floats only",
                         path, codes->name, nib__scheme_name(code, &codes->stored));
    NIB_TRY(nib_plan_open(&out->plan, out->model, &request, err));
    return nib_session_open(&out->session, out->model, out->plan, 1, err);
}

static nib_status open_own_floats(nib_bench_floats *out, const nib_session *of, char *why,
                                  size_t size, nib_err *err)
{
    const nib_site *codes = find_codes(&of->model->net);
    const nib_request request = request_as_stored(of);
    nib_err problem;
    char code[64];
    if (codes != NULL) {
        snprintf(why, size, "%s is stored as %s; name the checkpoint of floats with --against",
                 codes->name, nib__scheme_name(code, &codes->stored));
        return NIB_OK;
    }
    nib_status status = nib_plan_open(&out->plan, of->model, &request, &problem);
    if (status == NIB_OK && !fits_in_memory(out->plan, why, size))
        return NIB_OK;
    if (status == NIB_OK)
        status = nib_session_open(&out->session, of->model, out->plan, 1, &problem);
    if (status == NIB_CANCELLED ||
        status == NIB_IO) /* the quantized session needs the same files */
        return nib__fail(err, status, "%s", problem.text);
    if (status != NIB_OK)
        snprintf(why, size, "%s", problem.text);
    return NIB_OK;
}

nib_status nib__bench_floats_open(nib_bench_floats *out, const nib_session *of, const char *path,
                                  char *why, size_t size, nib_err *err)
{
    *out = (nib_bench_floats){.model = NULL};
    return path != NULL ? open_floats_at(out, of, path, err)
                        : open_own_floats(out, of, why, size, err);
}

void nib__bench_floats_close(nib_bench_floats *floats)
{
    nib_session_close(floats->session);
    nib_plan_close(floats->plan);
    nib_model_close(floats->model);
}

/* ---- options ---- */

/* Operations of a prompt token, two per multiply-add: all linear layers except the head, which only
 * the last token of a prompt needs. */
static double prompt_operations(const nib_session *s)
{
    double sum = 0.0;
    for (size_t i = 1; i < s->model->net.site_count - 1; i++) {
        const nib_site *site = &s->model->net.sites[i];
        if (site->role != NIB_ROLE_EMBED)
            sum += 2.0 * (double)site->n * (double)site->k *
                   nib__layer_share(s->plan->assignment.layers[i].layer);
    }
    return sum;
}

/* Checks that new tokens after each context fit, and that there is a sequence for them. */
static nib_status check_contexts(const nib_bench_options *o, const nib_session *s, nib_err *err)
{
    if (o->context_count > NIB_BENCH_CONTEXTS)
        return nib__fail(err, NIB_USAGE, "%zu contexts are over the limit of %d", o->context_count,
                         NIB_BENCH_CONTEXTS);
    if (o->context_count > 0 && s->runner.kv.sequences < 2)
        return nib__fail(
            err, NIB_USAGE,
            "contexts need two sequences, one empty and one full; the session has one");
    for (size_t i = 0; i < o->context_count; i++)
        if (o->contexts[i] < 0 || o->contexts[i] > s->plan->context - o->new_tokens)
            return nib__fail(err, NIB_USAGE,
                             "%" PRId64 " new tokens after %" PRId64
                             " positions do not fit the context of %" PRId64
                             "; raise --context or lower them",
                             o->new_tokens, o->contexts[i], s->plan->context);
    return NIB_OK;
}

nib_status nib__bench_complete(nib_bench_options *o, const nib_session *session, nib_err *err)
{
    const int64_t context = session->plan->context;
    NIB_TRY(nib__number_check("nib_bench_options.prompt_tokens", o->prompt_tokens, err));
    NIB_TRY(nib__number_check("nib_bench_options.new_tokens", o->new_tokens, err));
    NIB_TRY(nib__number_check("nib_bench_options.repeats", o->repeats, err));
    if (o->context_count > 0 && o->contexts == NULL)
        return nib__fail(err, NIB_USAGE,
                         "nib_bench_options.contexts is NULL, but context_count is %zu",
                         o->context_count);
    o->prompt_tokens = o->prompt_tokens > 0 ? o->prompt_tokens : 512;
    o->new_tokens = o->new_tokens > 0 ? o->new_tokens : 64;
    o->repeats = o->repeats > 0 ? o->repeats : 5;
    if (o->prompt_tokens > context || o->new_tokens > context)
        return nib__fail(err, NIB_USAGE,
                         "%" PRId64 " prompt and %" PRId64
                         " new tokens do not each fit the context of %" PRId64
                         "; raise --context or lower them",
                         o->prompt_tokens, o->new_tokens, context);
    if (o->repeats > NIB_BENCH_ROUNDS)
        return nib__fail(err, NIB_USAGE, "%d repeats are over the limit of %d", o->repeats,
                         NIB_BENCH_ROUNDS);
    if (o->batch < 0 || o->batch > session->runner.kv.sequences || o->batch > NIB_BENCH_BATCH)
        return nib__fail(err, NIB_USAGE,
                         "a batch of %" PRId64 " sequences is not between 0 and %" PRId64, o->batch,
                         nib__min(session->runner.kv.sequences, NIB_BENCH_BATCH));
    if (o->against != NULL && !o->beside)
        return nib__fail(
            err, NIB_USAGE,
            "--against %s compares with another model, but --alone compares with none; "
            "choose one",
            o->against);
    if (o->against != NULL && nib__plan_is_floats(&session->plan->assignment))
        return nib__fail(
            err, NIB_USAGE,
            "--against %s needs a model in codes to compare with, but all layers here are "
            "floats; give --recipe, or leave out --against",
            o->against);
    return check_contexts(o, session, err);
}

/* ---- rounds ---- */

typedef struct bench {
    nib_session *session;
    nib_bench_options options;
    nib_session *floats;     /* the model in floats; NULL: none */
    nib_bench_round *rounds; /* [repeats] */
    nib_peer_run peer;       /* the last run */
} bench;

static nib_status time_both(nib_session *s, const nib_bench_options *o, nib_bench_speeds *out,
                            nib_err *err)
{
    double prefill, decode;
    NIB_TRY(nib__bench_prefill(s, o->prompt_tokens, &prefill, err));
    NIB_TRY(nib__bench_decode(s, o->new_tokens, &decode, err));
    out->prefill_tokens_per_s = (double)o->prompt_tokens / prefill;
    out->decode_tokens_per_s = (double)o->new_tokens / decode;
    return NIB_OK;
}

static nib_status time_batch(nib_session *s, const nib_bench_options *o, double *tokens_per_s,
                             nib_err *err)
{
    const float *logits;
    double seconds;
    *tokens_per_s = 0;
    if (o->batch == 0)
        return NIB_OK;
    NIB_TRY(nib__bench_batch(s, o->batch, o->new_tokens, &logits, &seconds, err));
    *tokens_per_s = (double)(o->batch * o->new_tokens) / seconds;
    return NIB_OK;
}

/* Measures the bandwidth now: that of shared machines changes from round to round. */
static nib_status time_reading(const bench *b, double *gb_per_s, nib_err *err)
{
    const nib_engine *engine = b->session->model->engine;
    double bytes_per_s;
    if (b->options.peer == NULL)
        return NIB_OK;
    NIB_TRY(
        nib__machine_read_rate(&bytes_per_s, &engine->here, engine->pool, &engine->allocator, err));
    *gb_per_s = bytes_per_s * 1e-9;
    return NIB_OK;
}

static nib_status time_peer(bench *b, nib_bench_speeds *out, nib_err *err)
{
    const nib_bench_options *o = &b->options;
    if (o->peer == NULL)
        return NIB_OK;
    NIB_TRY(nib__peer_run(&b->peer, b->session->model->engine, o->peer, o->prompt_tokens,
                          o->new_tokens, err));
    *out = b->peer.speeds;
    return NIB_OK;
}

static nib_status run_rounds(bench *b, nib_err *err)
{
    const nib_bench_options *o = &b->options;
    for (int i = 0; i < o->repeats; i++) {
        nib_bench_round *r = &b->rounds[i];
        if (!nib__engine_progress(b->session->model->engine, "bench", (uint64_t)i,
                                  (uint64_t)o->repeats))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        *r = (nib_bench_round){.batch_tokens_per_s = 0};
        NIB_TRY(time_reading(b, &r->read_gb_per_s[0], err));
        NIB_TRY(time_both(b->session, o, &r->own, err));
        NIB_TRY(time_batch(b->session, o, &r->batch_tokens_per_s, err));
        if (b->floats != NULL)
            NIB_TRY(time_both(b->floats, o, &r->floats, err));
        NIB_TRY(time_peer(b, &r->peer, err));
        NIB_TRY(time_reading(b, &r->read_gb_per_s[1], err));
    }
    return NIB_OK;
}

/* The median over all rounds of the number at `offset` in a round. */
static double median_of(const bench *b, size_t offset)
{
    double values[NIB_BENCH_ROUNDS];
    for (int i = 0; i < b->options.repeats; i++)
        memcpy(&values[i], (const char *)&b->rounds[i] + offset, sizeof values[i]);
    return nib__median(values, b->options.repeats);
}
#define MEDIAN(b, member) median_of(b, offsetof(nib_bench_round, member))

static nib_status open_rounds(bench *b, nib_session *session, const nib_bench_options *options,
                              nib_err *err)
{
    *b = (bench){.session = session, .options = *options};
    NIB_TRY(nib__bench_complete(&b->options, session, err));
    const size_t count = (size_t)b->options.repeats;
    b->rounds = nib__calloc(&session->model->engine->allocator, count, sizeof *b->rounds);
    return b->rounds != NULL ? NIB_OK : nib__fail_memory(err, count * sizeof *b->rounds, "rounds");
}

static void close_rounds(bench *b)
{
    nib__release(&b->session->model->engine->allocator, b->rounds);
}

nib_status nib__bench_speeds(nib_session *session, const nib_bench_options *options,
                             nib_bench_speeds *speeds, nib_err *err)
{
    bench b;
    double unused;
    NIB_TRY(open_rounds(&b, session, options, err));
    nib_status status = nib__bench_prefill(session, nib__min(b.options.prompt_tokens, 16), &unused,
                                           err); /* warm up */
    if (status == NIB_OK)
        status = run_rounds(&b, err);
    if (status == NIB_OK)
        *speeds = (nib_bench_speeds){.prefill_tokens_per_s = MEDIAN(&b, own.prefill_tokens_per_s),
                                     .decode_tokens_per_s = MEDIAN(&b, own.decode_tokens_per_s)};
    close_rounds(&b);
    return status;
}

/* ---- contexts ---- */

/* Times new tokens after a filled context (sequence 1), alternating with an empty cache (sequence
 * 0). */
static nib_status time_context(const bench *b, nib_bench_context *c, int64_t *filled, nib_err *err)
{
    nib_session *s = b->session;
    const nib_bench_options *o = &b->options;
    double full[NIB_BENCH_ROUNDS], empty[NIB_BENCH_ROUNDS];
    NIB_TRY(nib__bench_fill(s, 1, nib__min(*filled, c->positions), c->positions, err));
    *filled = c->positions;
    for (int i = 0; i < o->repeats; i++) {
        if (!nib__engine_progress(s->model->engine, "contexts", (uint64_t)i, (uint64_t)o->repeats))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        NIB_TRY(nib__bench_decode_at(s, 1, c->positions, o->new_tokens, &full[i], err));
        NIB_TRY(nib__bench_decode(s, o->new_tokens, &empty[i], err));
    }
    c->tokens_per_s = (double)o->new_tokens / nib__median(full, o->repeats);
    c->empty_tokens_per_s = (double)o->new_tokens / nib__median(empty, o->repeats);
    return NIB_OK;
}

static nib_status time_contexts(const bench *b, nib_bench_result *result, nib_err *err)
{
    int64_t filled = 0; /* positions filled in sequence 1; the next context extends them */
    result->context_count = b->options.context_count;
    for (size_t i = 0; i < result->context_count; i++) {
        result->contexts[i].positions = b->options.contexts[i];
        NIB_TRY(time_context(b, &result->contexts[i], &filled, err));
    }
    return NIB_OK;
}

/* ---- predictions and shares ---- */

/* Predicts the same runs from the plan: prompts run in chunks, and every token attends to the
 * positions before it. */
static void predict(const nib_session *s, int64_t prompt, int64_t fresh, nib_bench_result *out)
{
    const nib_assignment *plan = &s->plan->assignment;
    double prefill_s = 0;
    for (int64_t done = 0; done < prompt; done += NIB_CHUNK) {
        const int64_t part = nib__min(NIB_CHUNK, prompt - done);
        const double positions = (double)done + (double)part / 2;
        prefill_s +=
            nib__plan_step_seconds(plan, &s->plan->policy, part, done + part == prompt, positions);
    }
    const double token_s = nib__plan_step_seconds(plan, &s->plan->policy, 1, 1, (double)fresh / 2);
    out->predicted_prefill_tokens_per_s = prefill_s > 0 ? (double)prompt / prefill_s : 0;
    out->predicted_decode_tokens_per_s = token_s > 0 ? 1 / token_s : 0;
    out->predicted_bytes = (plan->gpu != NULL ? plan->gpu_bytes : s->plan->weight_bytes) +
                           out->cache_bytes + s->plan->policy.step_bytes;
    out->device_bytes = s->runner.gpu != NULL ? nib__gpu_held(s->runner.gpu) : 0;
}

/* Shares of what the machine that runs the layers can do. For a device they are known only if it
 * was measured. */
static nib_status find_shares(const nib_session *s, int64_t prompt, nib_bench_result *r,
                              nib_err *err)
{
    nib_engine *engine = s->model->engine;
    const nib_kernel *row = nib__use_at(&s->plan->assignment.layers[1], prompt)->kernel;
    nib_machine now = *nib__plan_place(&s->plan->assignment, row);
    if (row->device == NIB_DEVICE_CPU)
        NIB_TRY(nib__machine_measure(&now, engine->pool, NULL, &engine->allocator, err));
    if (!now.measured)
        return NIB_OK;
    const double rate = now.rate[row->unit];
    r->copy_gb_per_s = now.bytes_per_s * 1e-9;
    r->peak_gop_per_s = rate * 1e-9;
    r->bandwidth_share = r->decode_tokens_per_s * (double)r->weight_bytes / now.bytes_per_s;
    r->arithmetic_share = rate > 0 ? r->prefill_tokens_per_s * prompt_operations(s) / rate : 0;
    return NIB_OK;
}

/* ---- all of it ---- */

/* Runs everything once, to warm caches and allocate all memory of the session. */
static nib_status warm_up(const bench *b, nib_err *err)
{
    const nib_bench_options *o = &b->options;
    const float *logits;
    double seconds;
    NIB_TRY(nib__bench_prefill(b->session, o->prompt_tokens, &seconds, err));
    NIB_TRY(nib__bench_decode(b->session, 1, &seconds, err));
    return o->batch == 0 ? NIB_OK
                         : nib__bench_batch(b->session, o->batch, 1, &logits, &seconds, err);
}

static nib_status open_floats(bench *b, nib_bench_floats *floats, nib_bench_result *r, nib_err *err)
{
    nib_bench_options once = b->options;
    nib_bench_speeds unused;
    if (!once.beside || nib__plan_is_floats(&b->session->plan->assignment))
        return NIB_OK;
    NIB_TRY(nib__bench_floats_open(floats, b->session, once.against, r->floats_why,
                                   sizeof r->floats_why, err));
    b->floats = floats->session;
    if (b->floats == NULL)
        return NIB_OK;
    nib__scheme_name(r->floats_name, &b->floats->plan->assignment.layers[1].done);
    once.prompt_tokens = nib__min(once.prompt_tokens, 16), once.new_tokens = 1; /* warm up */
    return time_both(b->floats, &once, &unused, err);
}

static nib_status run_all(bench *b, nib_bench_result *r, nib_err *err)
{
    nib_bench_floats floats = {.model = NULL};
    NIB_TRY(warm_up(b, err));
    NIB_TRY(time_contexts(b, r, err));
    r->peak_bytes = nib__peak_bytes(); /* before floats or measurements allocate theirs */
    nib_status status = open_floats(b, &floats, r, err);
    if (status == NIB_OK)
        status = run_rounds(b, err);
    nib__bench_floats_close(&floats);
    return status;
}

static void describe_machine(const nib_session *s, nib_bench_result *r)
{
    const nib_engine *engine = s->model->engine;
    snprintf(r->machine, sizeof r->machine, "%s", nib__machine_title(s->plan->assignment.machine));
    snprintf(r->isa, sizeof r->isa, "%s", nib__cpu_isa_name(engine->isa));
    nib__today(r->date);
    r->threads = nib__pool_threads(engine->pool);
}

/* Speeds of the peer, and the bandwidth and file sizes of both. */
static void describe_peer(const bench *b, nib_bench_result *r)
{
    const nib_bench_peer *peer = b->options.peer;
    double rates[2 * NIB_BENCH_ROUNDS];
    if (peer == NULL)
        return;
    for (int i = 0; i < b->options.repeats; i++)
        for (int j = 0; j < 2; j++)
            rates[2 * i + j] = b->rounds[i].read_gb_per_s[j];
    r->read_gb_per_s = nib__median(rates, 2 * b->options.repeats);
    r->peer = (nib_bench_speeds){MEDIAN(b, peer.prefill_tokens_per_s),
                                 MEDIAN(b, peer.decode_tokens_per_s)};
    snprintf(r->peer_name, sizeof r->peer_name, "%s%s%s", b->peer.build,
             b->peer.build[0] && b->peer.type[0] ? ", " : "", b->peer.type);
    const nib_config *c = &b->session->model->net.config;
    const double share = c->moe.experts > 0 ? (double)c->moe.top_k / (double)c->moe.experts : 1;
    nib__peer_file(&r->peer_file_bytes, &r->peer_token_bytes, peer->model, share,
                   &b->session->model->engine->allocator);
    if (r->peer_token_bytes == 0 && share == 1) /* a format that only the peer knows */
        r->peer_token_bytes = b->peer.model_bytes;
}

nib_status nib_bench(nib_session *session, const nib_bench_options *options,
                     nib_bench_result *result, nib_err *err)
{
    NIB_NEED(err, "session, result", session, result);
    NIB_OPTIONS(nib_bench_options, o, options, err);
    NIB_OPTIONS(nib_bench_peer, peer, o.peer, err);
    NIB_TRY(nib__session_check_idle(session, err));
    if (o.peer != NULL && (peer.program == NULL || peer.model == NULL))
        return nib__fail(err, NIB_USAGE, "nib_bench_peer needs a program and a model");
    if (o.peer != NULL)
        o.peer = &peer;
    nib_bench_result r = {.weight_bytes = session->runner.weight_bytes,
                          .file_bytes = nib__checkpoint_bytes(session->model->net.checkpoint),
                          .cache_bytes = nib__kv_bytes(&session->runner.kv)};
    bench b;
    NIB_TRY(open_rounds(&b, session, &o, err));
    nib_status status = nib__model_check_files(session->model, run_all(&b, &r, err), err);
    if (status == NIB_OK) {
        r.prefill_tokens_per_s = MEDIAN(&b, own.prefill_tokens_per_s);
        r.decode_tokens_per_s = MEDIAN(&b, own.decode_tokens_per_s);
        r.batch_tokens_per_s = MEDIAN(&b, batch_tokens_per_s);
        r.floats = (nib_bench_speeds){MEDIAN(&b, floats.prefill_tokens_per_s),
                                      MEDIAN(&b, floats.decode_tokens_per_s)};
        describe_machine(session, &r);
        describe_peer(&b, &r);
        predict(session, b.options.prompt_tokens, b.options.new_tokens, &r);
        status = find_shares(session, b.options.prompt_tokens, &r, err);
    }
    if (status == NIB_OK) {
        if (o.rounds != NULL)
            memcpy(o.rounds, b.rounds, (size_t)b.options.repeats * sizeof *b.rounds);
        NIB_RESULT(result, r);
    }
    close_rounds(&b);
    return status;
}
