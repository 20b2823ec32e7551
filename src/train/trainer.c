/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a training run and runs its steps.
 */
#include "trainer.h"

#include "finite_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- opening ---- */

static int64_t next_power(int64_t x)
{
    int64_t power = 1;
    while (power < x)
        power *= 2;
    return power;
}

/* Sets the number of micro-batches of a step: a power of two, at least one per rank. */
static nib_status count_micro_batches(nib_trainer *t, nib_err *err)
{
    const nib_train_config *c = t->config;
    const int64_t ranks = nib_ranks_count(t->ranks);
    if (c->global_batch == 0) {
        t->micro_batches = next_power(ranks);
        return NIB_OK;
    }
    const int64_t count = c->global_batch / c->batch;
    if (c->global_batch % c->batch != 0 || count != next_power(count))
        return nib__fail(err, NIB_BAD_INPUT,
                         "training.global_batch_size %" PRId64 " is not local_batch_size %" PRId64
                         " times a power of two; %" PRId64 " and %" PRId64 " are",
                         c->global_batch, c->batch,
                         c->batch * nib__max(1, next_power(count + 1) / 2),
                         c->batch * next_power(count + 1));
    if (count < ranks)
        return nib__fail(err, NIB_BAD_INPUT,
                         "training.global_batch_size %" PRId64 " makes %" PRId64
                         " micro-batches of %" PRId64 " sequences, fewer than the %" PRId64
                         " ranks; set at least %" PRId64,
                         c->global_batch, count, c->batch, ranks, c->batch * next_power(ranks));
    t->micro_batches = count;
    return NIB_OK;
}

/* Hashes BOS and EOS, too: they may come from a file beside it. */
static nib_status hash_tokenizer(nib_trainer *t, nib_err *err)
{
    const nib_model *m = t->model;
    const nib_tokenizer *tokenizer = t->data.options.tokenizer;
    const char *file;
    nib_map map;
    NIB_TRY(nib__tokenizer_file(&file, m->tokenizer_path ? m->tokenizer_path : m->net.directory,
                                &t->arena, err));
    NIB_TRY(nib__map_open(&map, file, err));
    struct {
        nib_hash file;
        int64_t bos, eos, adds_bos;
    } parts = {nib__hash_bytes(map.at, map.size), nib__tokenizer_bos(tokenizer),
               nib__tokenizer_eos(tokenizer), nib__tokenizer_adds_bos(tokenizer)};
    const nib_status status = nib__map_read(&map, file, NIB_OK, err);
    nib__map_close(&map);
    t->tokenizer = nib__hash_bytes(&parts, sizeof parts);
    return status;
}

static nib_status open_data(nib_trainer *t, nib_err *err)
{
    const nib_train_config *c = t->config;
    if (!c->dataset)
        return nib__fail(err, NIB_BAD_INPUT,
                         "training.dataset_path names no text to train on: a text file, or JSON "
                         "lines with a \"text\" key (.jsonl)");
    nib_data_options options = {
        .path = c->dataset, .vocab = nib__network_embed(&t->model->net)->n, .length = c->sequence};
    NIB_TRY(nib_model_tokenizer(&options.tokenizer, t->model, err));
    NIB_TRY(nib__data_open(&t->data, t->engine, &options, err));
    return hash_tokenizer(t, err);
}

/* Bytes of a micro-batch's tokens and one row of the stream. */
static uint64_t batch_bytes(const nib_trainer *t)
{
    const uint64_t m = (uint64_t)t->step.m, row = (uint64_t)t->config->sequence + 1;
    return (3 * m + 1 + row) * sizeof(int32_t) + row * sizeof(bool);
}

static nib_status allocate_batch(nib_trainer *t, nib_err *err)
{
    const int64_t m = t->step.m;
    int32_t *const block = nib__block_take(batch_bytes(t));
    if (!block)
        return nib__fail_memory(err, batch_bytes(t), "the tokens of a micro-batch");
    t->ids = block;
    t->targets = t->ids + m;
    t->start = t->targets + m;
    t->row_ids = t->start + m + 1;
    t->row_first = (bool *)(t->row_ids + t->config->sequence + 1);
    return NIB_OK;
}

/* Reserves memory for documents as short as those of the first micro-batch, so that the predicted
 * memory is what gets allocated. */
static nib_status reserve_documents(nib_trainer *t, nib_err *err)
{
    const nib_data_position place = t->data.position;
    const bool quiet = t->data.options.quiet;
    nib_micro_batch batch;
    t->data.options.quiet = true;
    nib_status status = nib__trainer_batch(t, &t->data, &batch, err);
    t->data.options.quiet = quiet;
    if (status == NIB_OK)
        status = nib__step_reserve_batch(&t->step, &batch, err);
    return status == NIB_OK ? nib__data_seek(&t->data, &place, err) : status;
}

static bool same_weights(const nib_graph *a, const nib_graph *b)
{
    bool same = a->weight_count == b->weight_count;
    for (size_t i = 0; i < a->weight_count && same; i++)
        same = strcmp(a->weights[i].name, b->weights[i].name) == 0 &&
               (a->weights[i].kind != NIB_WEIGHT_NORM || a->weights[i].n == b->weights[i].n);
    return same;
}

/* Of recurrences over matrices; key_dim and value_dim follow from the shapes of layers. */
static bool same_heads(const nib_config *a, const nib_config *b)
{
    return a->matrix.key_heads == b->matrix.key_heads && a->matrix.heads == b->matrix.heads;
}

/* Checks that the weights of `from` have the same meaning in this model. */
static nib_status check_same_model(const nib_trainer *t, const nib_network *from, nib_err *err)
{
    const nib_network *net = &t->model->net;
    char shown[NIB_SHOWN];
    nib__escape_string(shown, t->config->initial_load);
    if (from->config.delta_converted)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: a GGUF of %s has weights in another form than other formats, and "
                         "cannot be trained; give the Hugging Face files that it was made from",
                         shown, nib__arch_name(from->config.arch));
    if (from->site_count != net->site_count || from->tied != net->tied)
        return nib__fail(err, NIB_BAD_INPUT, "%s: the model's layers differ from the config's",
                         shown);
    if (from->config.head_dim != net->config.head_dim)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: a head has %" PRId64 " channels, but the config's has %" PRId64,
                         shown, from->config.head_dim, net->config.head_dim);
    if (!same_heads(&from->config, &net->config))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: recurrent layers have %" PRId64 " heads of keys and %" PRId64
                         " of values, but the config's have %" PRId64 " and %" PRId64,
                         shown, from->config.matrix.key_heads, from->config.matrix.heads,
                         net->config.matrix.key_heads, net->config.matrix.heads);
    if (!same_weights(&from->graph, &net->graph))
        return nib__fail(err, NIB_BAD_INPUT, "%s: the model's norms differ from the config's",
                         shown);
    for (size_t i = 0; i < from->site_count; i++) {
        const nib_site *a = &from->sites[i], *b = &net->sites[i];
        if (a->n != b->n || a->k != b->k || a->bias != b->bias)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s is [%" PRId64 "][%" PRId64 "]%s, but the config's is "
                             "[%" PRId64 "][%" PRId64 "]%s",
                             shown, a->name, a->n, a->k, a->bias ? " with a bias" : "", b->n, b->k,
                             b->bias ? " with a bias" : "");
    }
    return NIB_OK;
}

static void log_difference(const nib_trainer *t, const char *what, const char *was, const char *is)
{
    char line[NIB_SHOWN + 256], shown[NIB_SHOWN];
    snprintf(line, sizeof line, "%s: %s is %s in the model, but %s in this run",
             nib__escape_string(shown, t->config->initial_load), what, was, is);
    t->engine->callbacks.log(t->engine->callbacks.ctx, line);
}

/* A file may state the divisor of each frequency, in float32, without the rule. */
static bool are_divisors_equal(const nib_config *from, const nib_config *c)
{
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        const double is = nib__rope_divisor(c, i);
        if (fabs((double)from->rope_divisors[i] - is) > 1e-4 * is)
            return false;
    }
    return true;
}

/* Logs settings without weights that differ. They may differ on purpose, for instance to extend the
 * context. */
static void log_differences(const nib_trainer *t, const nib_config *from)
{
    const nib_config *c = &t->model->net.config;
    const bool scaled = from->rope == c->rope && c->rope != NIB_ROPE_PLAIN,
               llama3 = from->rope == c->rope && c->rope == NIB_ROPE_LLAMA3;
    const struct {
        const char *what;
        double was, is;
        bool compared;
    } values[] = {
        {"norm_eps", from->norm_eps, c->norm_eps, true},
        {"rope_theta", from->rope_theta, c->rope_theta, true},
        {"rope_scaling.factor", from->rope_factor, c->rope_factor, scaled},
        {"rope_scaling.low_freq_factor", from->rope_low, c->rope_low, llama3},
        {"rope_scaling.high_freq_factor", from->rope_high, c->rope_high, llama3},
        {"rope_scaling.original_max_position_embeddings", (double)from->rope_original,
         (double)c->rope_original, llama3},
    };
    char was[32], is[32];
    if (!t->engine->callbacks.log || nib_ranks_rank(t->ranks) != 0)
        return;
    if (from->rope_divisors && !are_divisors_equal(from, c))
        log_difference(t, "the scaling of rotary frequencies", "a table", nib__rope_name(c->rope));
    else if (!from->rope_divisors && from->rope != c->rope)
        log_difference(t, "rope_type", nib__rope_name(from->rope), nib__rope_name(c->rope));
    for (size_t i = 0; i < COUNT(values); i++)
        if (values[i].compared && (float)values[i].was != (float)values[i].is)
            log_difference(t, values[i].what, nib__format_double(was, values[i].was),
                           nib__format_double(is, values[i].is));
}

static nib_status init_weights(nib_trainer *t, nib_err *err)
{
    const nib_train_config *c = t->config;
    if (!c->initial_load) {
        nib__params_init(t->weights, &t->params, t->model->net.tied, c->seed, t->engine->pool);
        return NIB_OK;
    }
    nib_network from;
    NIB_TRY(nib__network_open(&from, t->engine, c->initial_load,
                              c->draft_weight > 0 ? NIB_NETWORK_TRAINED : NIB_NETWORK_RUN, err));
    nib_status status = check_same_model(t, &from, err);
    if (status == NIB_OK)
        log_differences(t, &from.config);
    if (status == NIB_OK)
        status = nib__checkpoint_check_files(
            from.checkpoint, nib__params_load(t->weights, &t->params, &from, err), err);
    nib__network_close(&from);
    return status;
}

typedef struct opening {
    nib_trainer *trainer;
    nib_step_options options;
} opening;

static nib_status open_step(void *ctx, const nib_plan *plan, nib_refusal *refusal, nib_err *err)
{
    const opening *o = ctx;
    nib_trainer *t = o->trainer;
    return nib__step_open(&t->step, &t->model->net, &plan->assignment, &t->params, &o->options,
                          refusal, err);
}

/* Logs refusals now: a run may take long, and its ledger comes last. */
static void log_refused(const nib_trainer *t)
{
    const nib_callbacks *call = &t->engine->callbacks;
    const nib_ledger *ledger = &t->plan->assignment.ledger;
    for (size_t i = 0; t->own && call->log && i < ledger->note_count; i++)
        if (strcmp(ledger->notes[i].code, NIB_NOTE_REFUSED) == 0 && nib_ranks_rank(t->ranks) == 0)
            call->log(call->ctx, ledger->notes[i].text);
}

static nib_status open_trainer(nib_trainer *t, bool sizes_only, nib_err *err)
{
    enum { TRIED_TOKENS = 1 << 20 }; /* more take long to read */
    const nib_train_config *c = t->config;
    opening o = {t,
                 {.batch = c->batch,
                  .length = c->sequence,
                  .checkpointing = c->checkpointing,
                  .sizes_only = sizes_only}};
    NIB_TRY(count_micro_batches(t, err));
    NIB_TRY(nib__params_list(&t->params, &t->model->net, &t->arena, err));
    NIB_TRY(open_data(t, err));
    NIB_TRY(nib__plan_open(open_step, &o, &t->plan, &t->own, err));
    log_refused(t);
    if (!sizes_only || t->step.m <= TRIED_TOKENS)
        NIB_TRY(allocate_batch(t, err));
    if (t->step.m <= TRIED_TOKENS)
        NIB_TRY(reserve_documents(t, err));
    if (sizes_only)
        return NIB_OK;
    const nib_assignment *plan = &t->plan->assignment;
    NIB_TRY(nib__optimizer_open(&t->optimizer, c, &t->params, plan, t->engine, err));
    nib__tree_init(&t->tree, t->engine->pool, t->ranks, nib__plan_operation(plan, NIB_OP_ADD)->row,
                   nib__load_block(&t->params.load), t->micro_batches);
    t->weights = nib__block_take(t->params.total * sizeof *t->weights);
    if (!t->weights)
        return nib__fail_memory(err, t->params.total * sizeof *t->weights, "the weights");
    return init_weights(t, err);
}

static nib_status open_or_measure(nib_trainer *out, nib_model *model, const nib_plan *plan,
                                  nib_ranks *ranks, bool sizes_only, nib_err *err)
{
    *out = (nib_trainer){.model = model,
                         .plan = plan,
                         .config = &model->net.train,
                         .engine = model->engine,
                         .ranks = ranks};
    nib__arena_init(&out->arena, &model->engine->allocator, 0);
    const nib_status status = open_trainer(out, sizes_only, err);
    if (status != NIB_OK)
        nib__trainer_close(out);
    return status;
}

nib_status nib__train_check_machine(const nib_plan *plan, nib_err *err)
{
    if (plan->machine.here)
        return NIB_OK;
    return nib__fail(err, NIB_NOT_AS_ASKED,
                     "the plan is for %s, which is not this machine: it can be planned, but not "
                     "run; --device %s trains here",
                     plan->machine.name, plan->model->engine->here.name);
}

nib_status nib__trainer_open(nib_trainer *out, nib_model *model, const nib_plan *plan,
                             nib_ranks *ranks, nib_err *err)
{
    return open_or_measure(out, model, plan, ranks, false, err);
}

nib_status nib__trainer_measure(nib_trainer *out, nib_model *model, const nib_plan *plan,
                                nib_ranks *ranks, nib_err *err)
{
    return open_or_measure(out, model, plan, ranks, true, err);
}

void nib__trainer_close(nib_trainer *t)
{
    if (!t->model)
        return;
    nib__block_free(t->weights, t->params.total * sizeof *t->weights);
    nib__block_free(t->ids, batch_bytes(t));
    if (t->step.engine)
        nib__step_close(&t->step);
    nib__optimizer_close(&t->optimizer);
    nib__tree_free(&t->tree);
    nib__data_close(&t->data);
    nib_plan_close(t->own);
    nib__arena_free(&t->arena);
    *t = (nib_trainer){0};
}

void nib__trainer_give_plan(nib_trainer *t, nib_plan **ran)
{
    if (ran == NULL)
        return;
    *ran = t->own;
    t->own = NULL;
}

int nib__trainer_sums(const nib_trainer *t)
{
    const int ranks = nib_ranks_count(t->ranks);
    int sums = 0;
    for (int rank = 0; rank < ranks; rank++)
        sums = (int)nib__max(sums, nib__tree_blocks(t->micro_batches, rank, ranks));
    return sums;
}

uint64_t nib__trainer_bytes(const nib_trainer *t)
{
    const uint64_t weights = t->params.total * sizeof(float),
                   block = nib__load_block(&t->params.load) * sizeof(float);
    return weights + block * (uint64_t)nib__trainer_sums(t) + nib__optimizer_bytes(&t->params) +
           nib__step_bytes(&t->step) + batch_bytes(t) + t->arena.total + t->data.documents.size +
           nib__tokenizer_bytes(t->data.options.tokenizer);
}

/* Parameters that a token uses: of experts, those that it chooses. */
static double active_values(const nib_trainer *t)
{
    double sum = 0;
    for (size_t i = 0; i < t->params.count; i++) {
        const nib_param *p = &t->params.items[i];
        sum += (double)nib__param_size(p) * (double)p->entry->top_k / (double)p->entry->experts;
    }
    return sum;
}

double nib__trainer_flops(const nib_trainer *t)
{
    const nib_config *c = &t->model->net.config;
    const double table = (double)(t->model->net.tied ? 0 : c->vocab * c->width);
    double channels = 0; /* of the heads of all layers */
    for (int64_t i = 0; i < nib__config_trained_layers(c); i++)
        channels += (double)(c->heads * nib__config_head_dim(c, i));
    return 6 * (active_values(t) - table) + 12 * channels * (double)t->config->sequence;
}

/* ---- a step ---- */

/* Adds the time since `from` to a phase; returns the time now. */
static uint64_t add_time(nib_trainer *t, nib_spent on, uint64_t from)
{
    const uint64_t now = nib__now_ns();
    t->spent_ns[on] += now - from;
    return now;
}

/* A document begins at each row, and also where the data begins one unless attention crosses
 * documents. */
nib_status nib__trainer_batch(nib_trainer *t, nib_data *data, nib_micro_batch *out, nib_err *err)
{
    const int64_t length = t->config->sequence;
    int64_t documents = 0;
    for (int64_t row = 0; row < t->config->batch; row++) {
        NIB_TRY(nib__data_next(data, t->row_ids, t->row_first, err));
        const int64_t at = row * length;
        memcpy(t->ids + at, t->row_ids, (size_t)length * sizeof *t->ids);
        memcpy(t->targets + at, t->row_ids + 1, (size_t)length * sizeof *t->targets);
        for (int64_t i = 0; i < length; i++)
            if (i == 0 || (t->config->document_mask && t->row_first[i]))
                t->start[documents++] = (int32_t)(at + i);
    }
    t->start[documents] = (int32_t)t->step.m;
    *out = (nib_micro_batch){.m = t->step.m,
                             .documents = documents,
                             .ids = t->ids,
                             .targets = t->targets,
                             .start = t->start};
    return NIB_OK;
}

/* Runs the micro-batches of this rank and skips the others. */
static nib_status run_micro_batches(nib_trainer *t, float scale, nib_err *err)
{
    const int rank = nib_ranks_rank(t->ranks), ranks = nib_ranks_count(t->ranks);
    const int64_t first = nib__tree_first(t->micro_batches, rank, ranks),
                  end = nib__tree_first(t->micro_batches, rank + 1, ranks);
    uint64_t from = nib__now_ns();
    NIB_TRY(nib__data_skip(&t->data, first * t->config->batch, err));
    for (int64_t i = first; i < end; i++) {
        nib_micro_batch batch;
        float *gradient;
        nib_losses losses;
        NIB_TRY(nib__trainer_batch(t, &t->data, &batch, err));
        from = add_time(t, NIB_SPENT_DATA, from);
        NIB_TRY(nib__tree_block(&t->tree, &gradient, err));
        NIB_TRY(nib__step_run(&t->step, t->weights, &batch, scale, gradient, &losses, err));
        nib__tree_put(&t->tree, i, gradient, losses);
        from = add_time(t, NIB_SPENT_MICRO_BATCHES, from);
    }
    const nib_status status =
        nib__data_skip(&t->data, (t->micro_batches - end) * t->config->batch, err);
    add_time(t, NIB_SPENT_DATA, from);
    return status;
}

/* Updates a running mean. */
static double update_mean(double mean, double value)
{
    return mean > 0 ? 0.9 * mean + 0.1 * value : value;
}

/* Moves the biases that only choose towards an even load of the experts. */
static void update_biases(nib_trainer *t, const float *gradient)
{
    const nib_load *load = &t->params.load;
    const nib_graph *g = &t->model->net.graph;
    for (int64_t i = 0; i < load->layers; i++) {
        const nib_graph_node *route = load->route[i];
        if (route->weight == NIB_NO_ID)
            continue;
        const nib_param *bias = &t->params.items[t->params.norm[g->weights[route->weight].index]];
        nib__load_update_bias(t->weights + bias->at, nib__load_counts(load, gradient, i),
                              route->routing->experts, t->config->load_balance);
    }
}

/* Clips and applies the update of a good step. */
static void update(nib_trainer *t, nib_step_report *report, const float *gradient)
{
    const double most = t->config->max_norm;
    /* clip_grad_norm_ of PyTorch: the norm becomes at most max_norm */
    const double clip = most > 0 ? fmin(1, most / (report->norm + 1e-6)) : 1;
    update_biases(t, gradient);
    report->rate = nib__optimizer_step(&t->optimizer, t->weights, gradient, clip);
    t->mean_loss = update_mean(t->mean_loss, report->loss);
    t->mean_norm = update_mean(t->mean_norm, report->norm);
}

nib_status nib__trainer_step(nib_trainer *t, nib_step_report *report, nib_err *err)
{
    const uint64_t start = nib__now_ns();
    const int64_t tokens = t->micro_batches * t->step.m;
    const nib_data_position place = t->data.position;
    char what[64];
    *report = (nib_step_report){.step = t->optimizer.steps + 1, .tokens = tokens};
    snprintf(what, sizeof what, "the gradient of step %" PRId64, report->step);
    nib_status ran = nib__step_cast(&t->step, t->weights, err);
    uint64_t from = add_time(t, NIB_SPENT_CAST, start);
    if (ran == NIB_OK)
        ran = run_micro_batches(t, (float)(1 / (double)tokens), err);
    NIB_TRY(nib_ranks_agree(t->ranks, ran, err));
    const float *gradient;
    nib_losses losses;
    size_t bad;
    from = nib__now_ns();
    NIB_TRY(nib__tree_sum(&t->tree, &gradient, &losses, what, err));
    from = add_time(t, NIB_SPENT_SUM, from);
    report->loss = losses.text / (double)tokens;
    report->draft_loss = losses.draft / (double)t->micro_batches;
    if (t->params.load.layers > 0) {
        report->load = gradient;
        report->balance =
            (double)*nib__load_loss(&t->params.load, gradient) / (double)t->micro_batches;
    }
    report->norm = nib__gradient_norm(&t->optimizer, gradient, &bad);
    from = add_time(t, NIB_SPENT_NORM, from);
    NIB_TRY(nib__check_step(t, report, &(nib_evidence){gradient, bad, place}, err));
    if (report->skipped)
        nib__optimizer_skip(&t->optimizer);
    else
        update(t, report, gradient);
    report->seconds = (double)(add_time(t, NIB_SPENT_UPDATE, from) - start) * 1e-9;
    return NIB_OK;
}
