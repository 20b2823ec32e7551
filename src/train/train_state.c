/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes and reads a training checkpoint.
 */
#include "train_state.h"

#include "arch.h"
#include "fused.h"
#include "manifest.h"
#include "safetensors.h"
#include "train_settings.h"
#include "writer.h"

#include <inttypes.h>
#include <stdio.h>

enum { MANIFEST_MAX = 256 << 20 };

/* ---- what nibble.json holds besides hashes ---- */

/* What a run needs to resume, and what must be the same when it does. */
typedef struct state {
    int64_t step, skipped, tokens;
    double mean_loss, mean_norm;
    int64_t sequence, batch, global_batch;
    nib_data_position position;
    int64_t layers, width, ffn, heads, kv_heads, head_dim, vocab, tied;
    double norm_eps, rope_theta, rope_factor, rope_low, rope_high;
    int64_t rope_original, lines, draft_heads;
    const char *arch, *dataset;
    const char *rope;   /* NULL: absent */
    const char *config; /* config of the run that wrote it, as JSON; NULL: absent */
    nib_hash data, tokenizer;
    bool has_tokenizer;
    uint64_t seen; /* the keys read: a bit for each of wholes, then of reals */
} state;

typedef struct field {
    const char *key;
    size_t at;        /* in state */
    const char *same; /* name in messages, if it must be the same; NULL: it may differ */
    bool later;       /* older checkpoints lack the key: then it is not compared */
} field;

#define AT(member) offsetof(state, member)

static const field wholes[] = {
    {"step", AT(step), NULL, false},
    {"tokens", AT(tokens), NULL, false},
    {"layers", AT(layers), "model.n_layers", false},
    {"width", AT(width), "model.dim", false},
    {"ffn", AT(ffn), "the width of the feed-forward layers", false},
    {"heads", AT(heads), "model.n_heads", false},
    {"kv_heads", AT(kv_heads), "model.n_kv_heads", false},
    {"head_dim", AT(head_dim), "the width of a head", false},
    {"vocab", AT(vocab), "model.vocab_size", false},
    {"tied", AT(tied), "whether embeddings are tied", false},
    {"sequence", AT(sequence), "training.seq_len", false},
    {"batch", AT(batch), "training.local_batch_size", false},
    {"global_batch", AT(global_batch), "training.global_batch_size", false},
    {"data_sequences", AT(position.sequences), NULL, false},
    {"data_pass", AT(position.pass), NULL, false},
    {"data_begin", AT(position.begin), NULL, false},
    {"data_line", AT(position.line), NULL, false},
    {"data_piece", AT(position.piece), NULL, false},
    {"data_used", AT(position.used), NULL, false},
    {"rope_original", AT(rope_original), "rope_scaling.original_max_position_embeddings", true},
    {"draft_heads", AT(draft_heads), "the number of draft heads (model.draft_head.loss_weight)",
     true},
    {"data_lines", AT(lines), "JSON lines as data (0: no, 1: yes)", true},
};
_Static_assert(sizeof(nib_data_position) == 6 * sizeof(int64_t), "every member of it is written");

static const field reals[] = {
    {"mean_loss", AT(mean_loss), NULL, false},
    {"mean_norm", AT(mean_norm), NULL, false},
    {"norm_eps", AT(norm_eps), "model.norm_eps", false},
    {"rope_theta", AT(rope_theta), "model.rope_theta", false},
    {"rope_factor", AT(rope_factor), "rope_scaling.factor", true},
    {"rope_low", AT(rope_low), "rope_scaling.low_freq_factor", true},
    {"rope_high", AT(rope_high), "rope_scaling.high_freq_factor", true},
};

static int64_t *whole_of(const state *s, size_t i) { return (int64_t *)((char *)s + wholes[i].at); }
static double *real_of(const state *s, size_t i) { return (double *)((char *)s + reals[i].at); }

static state state_of(const nib_trainer *t)
{
    const nib_config *c = &t->model->net.config;
    const nib_documents *d = &t->data.documents;
    const bool scaled = c->rope != NIB_ROPE_PLAIN, llama3 = c->rope == NIB_ROPE_LLAMA3;
    return (state){.step = t->optimizer.steps,
                   .skipped = t->optimizer.skipped,
                   .tokens = t->optimizer.steps * t->micro_batches * t->step.m,
                   .mean_loss = t->mean_loss,
                   .mean_norm = t->mean_norm,
                   .sequence = t->config->sequence,
                   .batch = t->config->batch,
                   .global_batch = t->micro_batches * t->config->batch,
                   .position = t->data.position,
                   .layers = c->layers,
                   .draft_heads = c->trains_head,
                   .width = c->width,
                   .ffn = c->ffn,
                   .heads = c->heads,
                   .kv_heads = c->kv_heads,
                   .head_dim = c->head_dim,
                   .vocab = c->vocab,
                   .tied = t->model->net.tied,
                   .norm_eps = c->norm_eps,
                   .rope_theta = c->rope_theta,
                   .rope = nib__rope_name(c->rope),
                   .rope_factor = scaled ? c->rope_factor : 0,
                   .rope_low = llama3 ? c->rope_low : 0,
                   .rope_high = llama3 ? c->rope_high : 0,
                   .rope_original = llama3 ? c->rope_original : 0,
                   .arch = nib__arch_name(c->arch),
                   .dataset = nib__path_name(d->path),
                   .data = nib__text_hash(&t->data.documents),
                   .lines = t->data.documents.lines,
                   .tokenizer = t->tokenizer};
}

static void put_state(nib_jsonw *w, const state *s)
{
    char hash[33];
    for (size_t i = 0; i < COUNT(wholes); i++)
        nib__jsonw_pair_int(w, wholes[i].key, *whole_of(s, i));
    for (size_t i = 0; i < COUNT(reals); i++)
        nib__jsonw_pair_double(w, reals[i].key, *real_of(s, i));
    nib__jsonw_pair_int(w, "skipped", s->skipped);
    nib__jsonw_pair_string(w, "arch", s->arch);
    nib__jsonw_pair_string(w, "dataset", s->dataset);
    nib__jsonw_pair_string(w, "dataset_xxh3_128", nib__hash_text(hash, s->data));
    nib__jsonw_pair_string(w, "rope_type", s->rope);
    nib__jsonw_pair_string(w, "tokenizer_xxh3_128", nib__hash_text(hash, s->tokenizer));
}

static bool read_hash(nib_json *json, nib_hash *out)
{
    if (!nib__json_expect(json, NIB_JSON_STRING))
        return false;
    if (!nib__hash_parse(out, json->token, json->token_size))
        nib__json_fail(json, "a hash has 32 hexadecimal digits");
    return json->event != NIB_JSON_ERROR;
}

/* Reads the member of "training" whose key was just read. */
static bool read_member(nib_json *json, state *s, nib_arena *arena)
{
    for (size_t i = 0; i < COUNT(wholes); i++)
        if (nib__json_is(json, wholes[i].key)) {
            s->seen |= UINT64_C(1) << i;
            return nib__json_read_int64(json, 0, INT64_MAX, whole_of(s, i));
        }
    for (size_t i = 0; i < COUNT(reals); i++)
        if (nib__json_is(json, reals[i].key)) {
            s->seen |= UINT64_C(1) << (COUNT(wholes) + i);
            return nib__json_read_double(json, real_of(s, i));
        }
    if (nib__json_is(json, "skipped")) /* absent in older checkpoints: 0 */
        return nib__json_read_int64(json, 0, INT64_MAX, &s->skipped);
    if (nib__json_is(json, "arch"))
        return (s->arch = nib__json_read_string(json, arena, NULL)) != NULL;
    if (nib__json_is(json, "dataset"))
        return (s->dataset = nib__json_read_string(json, arena, NULL)) != NULL;
    if (nib__json_is(json, "dataset_xxh3_128"))
        return read_hash(json, &s->data);
    if (nib__json_is(json, "rope_type"))
        return (s->rope = nib__json_read_string(json, arena, NULL)) != NULL;
    if (nib__json_is(json, "tokenizer_xxh3_128"))
        return (s->has_tokenizer = true) && read_hash(json, &s->tokenizer);
    return nib__json_skip(json);
}

static const field *field_of(size_t i)
{
    return i < COUNT(wholes) ? &wholes[i] : &reals[i - COUNT(wholes)];
}

static const char *missing_key(uint64_t seen)
{
    for (size_t i = 0; i < COUNT(wholes) + COUNT(reals); i++)
        if (!(seen >> i & 1) && !field_of(i)->later)
            return field_of(i)->key;
    return NULL;
}

/* Whether field i must be the same, and was stored. */
static bool is_compared(const state *saved, size_t i)
{
    return field_of(i)->same && saved->seen >> i & 1;
}

/* Adds advice to the error of a damaged checkpoint. */
static nib_status fail_damaged(nib_status status, nib_err *err)
{
    if (status != NIB_BAD_INPUT || err == NULL)
        return status;
    const nib_err why = *err;
    return nib__fail(err, status,
                     "%s; remove the directory to resume from the checkpoint before it", why.text);
}

static nib_status read_state(state *out, const char *path, nib_arena *arena, nib_err *err)
{
    char *text;
    size_t size;
    *out = (state){.step = 0};
    NIB_TRY(nib__file_read(&text, &size, path, MANIFEST_MAX, arena->allocator, err));
    nib_json json;
    nib__json_init(&json, path, text, size, NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT), found = false;
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "config")) {
            ok = (out->config = nib__json_raw(&json, arena)) != NULL;
            continue;
        }
        if (!nib__json_is(&json, "training")) {
            ok = nib__json_skip(&json);
            continue;
        }
        found = true;
        ok = nib__json_expect(&json, NIB_JSON_OBJECT);
        while (ok && nib__json_next(&json) == NIB_JSON_KEY)
            ok = read_member(&json, out, arena);
    }
    if (json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&json);
    const nib_status status = nib__json_status(&json, err);
    nib__release(arena->allocator, text);
    if (status != NIB_OK)
        return fail_damaged(status, err);
    if (!found)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s has no \"training\": this is a model, not the checkpoint of a run; "
                         "checkpoint.initial_load_path starts from a model",
                         path);
    if (missing_key(out->seen) || !out->arch || !out->dataset)
        return fail_damaged(nib__fail(err, NIB_BAD_INPUT, "%s: \"training\" has no \"%s\"", path,
                                      missing_key(out->seen) ? missing_key(out->seen)
                                      : out->arch            ? "dataset"
                                                             : "arch"),
                            err);
    if (out->skipped > out->step)
        return fail_damaged(nib__fail(err, NIB_BAD_INPUT,
                                      "%s: \"skipped\" is %" PRId64 ", more than the %" PRId64
                                      " steps of \"step\"",
                                      path, out->skipped, out->step),
                            err);
    return NIB_OK;
}

/* Refuses a checkpoint of another run: resuming from it would mix two runs. */
static nib_status check_same(const state *saved, const state *here, const char *directory,
                             nib_err *err)
{
    char a[33], b[33], real[32], name[NIB_SHOWN], other[NIB_SHOWN];
    if (strcmp(saved->arch, here->arch) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: its model's architecture is %s, but the config's is %s; name another "
                         "checkpoint.folder",
                         directory, nib__escape_string(name, saved->arch), here->arch);
    if (saved->rope && strcmp(saved->rope, here->rope) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: its model's rope_type is %s, but the config's is %s; name another "
                         "checkpoint.folder",
                         directory, nib__escape_string(name, saved->rope), here->rope);
    for (size_t i = 0; i < COUNT(wholes); i++)
        if (is_compared(saved, i) && *whole_of(saved, i) != *whole_of(here, i))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s is %" PRId64 " in the checkpoint, but %" PRId64
                             " here; set the same value, or name another checkpoint.folder",
                             directory, wholes[i].same, *whole_of(saved, i), *whole_of(here, i));
    for (size_t i = 0; i < COUNT(reals); i++)
        if (is_compared(saved, COUNT(wholes) + i) && *real_of(saved, i) != *real_of(here, i))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s is %s in the checkpoint, but %s here; set the same value, or "
                             "name another checkpoint.folder",
                             directory, reals[i].same, nib__format_double(a, *real_of(saved, i)),
                             nib__format_double(real, *real_of(here, i)));
    if (!nib__hash_equal(saved->data, here->data))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the checkpoint was trained on \"%s\", which hashed to %s, but \"%s\" "
                         "hashes to %s; give the same file, or start from the weights alone with "
                         "checkpoint.initial_load_path",
                         directory, nib__escape_string(name, saved->dataset),
                         nib__hash_text(a, saved->data), nib__escape_string(other, here->dataset),
                         nib__hash_text(b, here->data));
    if (saved->has_tokenizer && !nib__hash_equal(saved->tokenizer, here->tokenizer))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the checkpoint was trained with another tokenizer, whose file, BOS "
                         "and EOS hashed to %s, but hash to %s here; give the same tokenizer, or "
                         "start from the weights alone with checkpoint.initial_load_path",
                         directory, nib__hash_text(a, saved->tokenizer),
                         nib__hash_text(b, here->tokenizer));
    return NIB_OK;
}

/* ---- tensors ---- */

static nib_status put_values(nib_writer *w, size_t tensor, const float *values, size_t count,
                             nib_type type, nib_err *err)
{
    uint16_t rounded[4096];
    if (type == NIB_TYPE_F32)
        return nib__writer_put(w, tensor, values, count * sizeof *values, err);
    for (size_t at = 0; at < count; at += COUNT(rounded)) {
        const size_t some = count - at < COUNT(rounded) ? count - at : COUNT(rounded);
        for (size_t i = 0; i < some; i++)
            rounded[i] = type == NIB_TYPE_F16 ? nib__f32_to_f16(values[at + i])
                                              : nib__f32_to_bf16(values[at + i]);
        NIB_TRY(nib__writer_put(w, tensor, rounded, some * sizeof *rounded, err));
    }
    return NIB_OK;
}

static void add_tensors(nib_writer *w, const nib_params *params, const nib_state_block *block,
                        nib_type type)
{
    for (size_t i = 0; i < params->count; i++) {
        const nib_param *p = &params->items[i];
        const bool matrix = p->role == NIB_PARAM_TABLE || p->role == NIB_PARAM_WEIGHT;
        int64_t shape[NIB_NORM_RANK] = {matrix ? p->rows : p->columns, p->columns};
        int rank = matrix ? 2 : 1;
        char name[192];
        if (p->role != NIB_PARAM_BIAS && p->entry->kind == NIB_WEIGHT_NORM)
            rank = nib__graph_vector_shape(shape, p->entry);
        snprintf(name, sizeof name, "%s%s", block->prefix, p->name);
        nib__writer_add_tensor(w, name, type, shape, rank, i);
    }
}

static nib_status write_blocks(nib_writer *w, const char *path, const nib_params *params,
                               const nib_config *config, const nib_state_block *blocks,
                               size_t count, nib_type type, nib_jsonw *hashes, nib_err *err)
{
    char hash[33];
    nib__writer_add_meta(w, "format", "pt");
    if (*blocks[0].prefix == 0) { /* a model that other tools read, too */
        nib__writer_fuse(w, nib__family_of(config)->fused);
        nib__writer_family(w, nib__arch_name(config->arch), false);
    }
    for (size_t b = 0; b < count; b++)
        add_tensors(w, params, &blocks[b], type);
    NIB_TRY(nib__writer_layout(w, 0, err));
    NIB_TRY(nib__writer_begin(w, NULL, path, err));
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < params->count; i++)
            NIB_TRY(put_values(w, b * params->count + i, blocks[b].values + params->items[i].at,
                               (size_t)nib__param_size(&params->items[i]), type, err));
    NIB_TRY(nib__writer_finish(w, err));
    for (size_t i = 0; hashes && i < nib__writer_count(w); i++)
        nib__jsonw_pair_string(hashes, nib__writer_name(w, i),
                               nib__hash_text(hash, nib__writer_hash(w, i)));
    return NIB_OK;
}

nib_status nib__state_blocks(const char *path, const nib_trainer *t, const nib_state_block *blocks,
                             size_t count, nib_type type, nib_jsonw *hashes, nib_err *err)
{
    nib_writer *w;
    NIB_TRY(nib__writer_make(&w, &t->engine->allocator, err));
    const nib_status status =
        write_blocks(w, path, &t->params, &t->model->net.config, blocks, count, type, hashes, err);
    nib__writer_free(w);
    return status;
}

/* ---- writing ---- */

nib_status nib__state_config(nib_text *out, const nib_trainer *t, nib_type type, nib_err *err)
{
    nib_config c = t->model->net.config;
    const nib_tokenizer *tokenizer = t->data.options.tokenizer;
    c.dtype = type;
    c.tied = t->model->net.tied;
    c.bos = nib__tokenizer_bos(tokenizer);
    c.eos[0] = nib__tokenizer_eos(tokenizer);
    c.eos_count = c.eos[0] >= 0;
    return nib__config_write(out, &c, err);
}

static nib_status check_finite(nib_trainer *t, nib_err *err)
{
    const nib_state_block blocks[] = {{"the weights of", t->weights},
                                      {"the first moments of", t->optimizer.m},
                                      {"the second moments of", t->optimizer.v}};
    for (size_t b = 0; b < COUNT(blocks); b++) {
        size_t bad;
        nib__gradient_norm(&t->optimizer, blocks[b].values, &bad);
        if (bad < t->params.count)
            return nib__fail(err, NIB_CHECK_FAILED, "after step %" PRId64 " %s %s are not finite",
                             t->optimizer.steps, blocks[b].prefix, t->params.items[bad].name);
    }
    return NIB_OK;
}

/* A checkpoint being written. */
typedef struct writing {
    const nib_trainer *t;
    nib_arena arena;
    nib_text config, manifest;
    nib_jsonw w;
    const char *directory;
    nib_err *err;
} writing;

static nib_status path_of(const char **out, writing *g, const char *name)
{
    *out = nib__path_join(&g->arena, g->directory, name);
    return *out ? NIB_OK : nib__fail_memory(g->err, strlen(g->directory), "a path");
}

/* Puts "name": the hash of the file, read back from the system. */
static nib_status put_file_hash(writing *g, const char *path)
{
    nib_map map;
    char hash[33];
    NIB_TRY(nib__map_open(&map, path, g->err));
    nib__jsonw_pair_string(&g->w, nib__path_name(path),
                           nib__hash_text(hash, nib__hash_bytes(map.at, map.size)));
    const nib_status status = nib__map_read(&map, path, NIB_OK, g->err);
    nib__map_close(&map);
    return status;
}

static nib_status write_files(writing *g)
{
    const nib_trainer *t = g->t;
    const nib_state_block weights[] = {{"", t->weights}};
    const nib_state_block moments[] = {{"m.", t->optimizer.m}, {"v.", t->optimizer.v}};
    const char *config, *model, *second;
    NIB_TRY(path_of(&config, g, "config.json"));
    NIB_TRY(path_of(&model, g, "model.safetensors"));
    NIB_TRY(path_of(&second, g, "moments.safetensors"));
    NIB_TRY(nib__state_config(&g->config, t, NIB_TYPE_F32, g->err));
    NIB_TRY(nib__file_write(config, g->config.at, g->config.size, &t->engine->allocator, g->err));
    nib__jsonw_key(&g->w, "tensors");
    nib__jsonw_object(&g->w);
    NIB_TRY(nib__state_blocks(model, t, weights, COUNT(weights), NIB_TYPE_F32, &g->w, g->err));
    nib__jsonw_object_end(&g->w);
    NIB_TRY(nib__state_blocks(second, t, moments, COUNT(moments), NIB_TYPE_F32, NULL, g->err));
    nib__jsonw_key(&g->w, "files");
    nib__jsonw_object(&g->w);
    NIB_TRY(put_file_hash(g, config));
    NIB_TRY(put_file_hash(g, second));
    nib__jsonw_object_end(&g->w);
    return NIB_OK;
}

static nib_status write_all(writing *g)
{
    const state s = state_of(g->t);
    const char *manifest;
    NIB_TRY(path_of(&manifest, g, "nibble.json"));
    nib__jsonw_object(&g->w);
    nib__jsonw_pair_int(&g->w, "schema", 1);
    nib__jsonw_pair_string(&g->w, "tool", "nibble " NIB_VERSION);
    nib__jsonw_pair_string(&g->w, "format", "safetensors");
    NIB_TRY(write_files(g));
    nib__jsonw_key(&g->w, "training");
    nib__jsonw_object(&g->w);
    put_state(&g->w, &s);
    nib__jsonw_object_end(&g->w);
    nib__jsonw_key(&g->w, "config");
    nib__trainer_settings(&g->w, g->t);
    nib__jsonw_object_end(&g->w);
    nib__text_str(&g->manifest, "\n");
    if (g->manifest.failed)
        return nib__fail_memory(g->err, g->manifest.size, "the manifest");
    return nib__file_write(manifest, g->manifest.at, g->manifest.size, &g->t->engine->allocator,
                           g->err);
}

nib_status nib__state_write(nib_trainer *t, const char *directory, nib_err *err)
{
    writing g = {.t = t, .directory = directory, .err = err};
    NIB_TRY(check_finite(t, err));
    nib__arena_init(&g.arena, &t->engine->allocator, 0);
    nib__text_init(&g.config, &t->engine->allocator);
    nib__text_init(&g.manifest, &t->engine->allocator);
    nib__jsonw_init(&g.w, &g.manifest, 1);
    const nib_status status = write_all(&g);
    nib__text_free(&g.manifest);
    nib__text_free(&g.config);
    nib__arena_free(&g.arena);
    return status;
}

/* ---- reading ---- */

/* Copies values that are stored transposed, or in other rows. */
static void copy_view(float *to, const nib_param *p, const nib_tensor *t)
{
    const bool matrix = t->rank > 1;
    const int64_t rows = matrix ? p->rows : p->columns, columns = matrix ? p->columns : 1,
                  down = t->stored_n > 0 ? 1 : columns, across = t->stored_n > 0 ? t->stored_n : 1;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = t->rows != NULL ? t->rows[i] : i;
        for (int64_t j = 0; j < columns; j++)
            memcpy(to + i * columns + j, t->data + (size_t)(row * down + j * across) * sizeof *to,
                   sizeof *to);
    }
}

static bool has_shape(const nib_tensor *t, const nib_param *p)
{
    return t->rank > 1 ? t->rank == 2 && t->shape[0] == p->rows && t->shape[1] == p->columns
                       : t->rank == 1 && t->shape[0] == p->columns;
}

/* Copies a parameter's stored values; t NULL: the tensor is missing. */
static nib_status copy_values(float *to, const nib_param *p, const nib_tensor *t, const char *path,
                              const char *name, nib_err *err)
{
    const uint64_t bytes = nib__param_size(p) * sizeof *to;
    const bool view = t && (t->stored_n > 0 || t->rows);
    if (!t || t->type != NIB_TYPE_F32 || t->bytes != bytes || (view && !has_shape(t, p)))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s is %s, but the config's model has %" PRIu64 " values of f32 there",
                         path, name, t ? "of the wrong size or type" : "missing",
                         nib__param_size(p));
    if (!view)
        memcpy(to, t->data, (size_t)bytes);
    else /* a view of what lies among other values */
        copy_view(to, p, t);
    return NIB_OK;
}

static nib_status fail_changed(nib_err *err, const char *path, const char *name, nib_hash found,
                               nib_hash stated)
{
    char a[33], b[33];
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s%s%s hashes to %s, nibble.json says %s: the file has changed", path,
                     *name ? ": " : "", name, nib__hash_text(a, found), nib__hash_text(b, stated));
}

/* Weights: a hash per tensor, in the order of the parameters. */
static nib_status copy_weights(nib_trainer *t, const nib_checkpoint *cp, const nib_manifest *m,
                               const char *path, nib_err *err)
{
    for (size_t i = 0; i < t->params.count; i++) {
        const nib_param *p = &t->params.items[i];
        const nib_tensor *tensor = nib__checkpoint_find(cp, p->name);
        NIB_TRY(copy_values(t->weights + p->at, p, tensor, path, p->name, err));
        if (i >= m->tensor_count || strcmp(m->tensors[i].name, p->name) != 0)
            return nib__fail(err, NIB_BAD_INPUT, "%s lists no hash for %s", m->path, p->name);
        const nib_hash hash = nib__hash_bytes(tensor->data, nib__tensor_span(tensor));
        if (!nib__hash_equal(hash, m->tensors[i].hash))
            return fail_changed(err, path, p->name, hash, m->tensors[i].hash);
    }
    return NIB_OK;
}

static nib_status read_weights(nib_trainer *t, const char *directory, const char *path,
                               nib_manifest *manifest, nib_arena *arena, nib_err *err)
{
    const nib_allocator *a = &t->engine->allocator;
    nib_checkpoint *cp;
    NIB_TRY(t->model->net.config.trains_head ? nib__checkpoint_open_draft(&cp, directory, a, err)
                                             : nib__checkpoint_open(&cp, directory, a, err));
    nib_status status = nib__manifest_read(manifest, cp, arena, a, err);
    if (status == NIB_OK && !manifest->path)
        status = nib__fail(err, NIB_IO, "%s: nibble.json has disappeared", directory);
    if (status == NIB_OK)
        status = nib__checkpoint_check_files(cp, copy_weights(t, cp, manifest, path, err), err);
    nib__checkpoint_close(cp);
    return status;
}

/* Copies the moments. The file's tensors are in the order that nib__state_blocks wrote them: all of
 * m, then all of v. */
static nib_status copy_moments(nib_trainer *t, const nib_container *file, const char *path,
                               nib_err *err)
{
    const size_t count = t->params.count;
    for (size_t i = 0; i < 2 * count; i++) {
        const nib_param *p = &t->params.items[i % count];
        float *block = i < count ? t->optimizer.m : t->optimizer.v;
        const nib_tensor *tensor = i < file->count ? file->tensors[i] : NULL;
        char name[192];
        snprintf(name, sizeof name, "%s%s", i < count ? "m." : "v.", p->name);
        if (tensor && strcmp(tensor->name, name) != 0)
            tensor = NULL;
        NIB_TRY(copy_values(block + p->at, p, tensor, path, name, err));
    }
    return NIB_OK;
}

/* Checks the hash of a file against the manifest. */
static nib_status check_file(const nib_map *map, const char *path, const nib_manifest *m,
                             nib_err *err)
{
    size_t i = 0;
    while (i < m->file_count && strcmp(m->files[i].name, nib__path_name(path)) != 0)
        i++;
    if (i == m->file_count)
        return nib__fail(err, NIB_BAD_INPUT, "%s lists no hash for %s", m->path, path);
    const nib_hash hash = nib__hash_bytes(map->at, map->size);
    return nib__hash_equal(hash, m->files[i].hash)
               ? NIB_OK
               : fail_changed(err, path, "", hash, m->files[i].hash);
}

static nib_status read_moments(nib_trainer *t, const char *path, const nib_manifest *m,
                               nib_arena *arena, nib_err *err)
{
    nib_map map;
    nib_container file = {.count = 0};
    NIB_TRY(nib__map_open(&map, path, err));
    nib_status status = check_file(&map, path, m, err);
    if (status == NIB_OK)
        status = nib__safetensors_parse(&file, map.at, map.size, path, 0, arena, err);
    if (status == NIB_OK)
        status = copy_moments(t, &file, path, err);
    status = nib__map_read(&map, path, status, err);
    nib__map_close(&map);
    return status;
}

/* Checks config.json. Resuming does not read it, but other tools need it to read the weights. */
static nib_status check_config(const char *path, const nib_manifest *m, nib_err *err)
{
    nib_map map;
    NIB_TRY(nib__map_open(&map, path, err));
    const nib_status status = nib__map_read(&map, path, check_file(&map, path, m, err), err);
    nib__map_close(&map);
    return status;
}

static nib_status read_files(nib_trainer *t, const char *directory, nib_arena *arena, nib_err *err)
{
    static const char *const names[] = {"model.safetensors", "config.json", "moments.safetensors"};
    const char *paths[COUNT(names)];
    nib_manifest manifest;
    for (size_t i = 0; i < COUNT(names); i++) {
        paths[i] = nib__path_join(arena, directory, names[i]);
        if (!paths[i])
            return nib__fail_memory(err, strlen(directory), "a path");
        if (nib__path_kind(paths[i]) == NIB_PATH_NONE)
            return nib__fail(err, NIB_BAD_INPUT, "%s is missing", paths[i]);
    }
    NIB_TRY(read_weights(t, directory, paths[0], &manifest, arena, err));
    NIB_TRY(check_config(paths[1], &manifest, err));
    return read_moments(t, paths[2], &manifest, arena, err);
}

static nib_status read_all(nib_trainer *t, const char *directory, nib_arena *arena, nib_err *err)
{
    const state here = state_of(t);
    const char *manifest = nib__path_join(arena, directory, "nibble.json");
    state saved;
    if (!manifest)
        return nib__fail_memory(err, strlen(directory), "a path");
    NIB_TRY(read_state(&saved, manifest, arena, err));
    NIB_TRY(check_same(&saved, &here, directory, err));
    NIB_TRY(nib__log_changed_settings(t, saved.config, arena, err));
    NIB_TRY(fail_damaged(read_files(t, directory, arena, err), err));
    NIB_TRY(nib__data_seek(&t->data, &saved.position, err));
    t->optimizer.steps = saved.step;
    t->optimizer.skipped = saved.skipped;
    t->mean_loss = saved.mean_loss;
    t->mean_norm = saved.mean_norm;
    return NIB_OK;
}

nib_status nib__state_read(nib_trainer *t, const char *directory, nib_err *err)
{
    nib_arena arena;
    nib__arena_init(&arena, &t->engine->allocator, 0);
    const nib_status status = read_all(t, directory, &arena, err);
    nib__arena_free(&arena);
    return status;
}
