/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the sections model, training and quantize. An unknown key is an error with near names: a
 * setting that is not read would be a setting that is silently not done.
 */
#include "train_config.h"

#include <inttypes.h>
#include <math.h>

typedef struct reader {
    nib_json json;
    nib_arena *arena;
    nib_config *model;
    nib_train_config *out;
    int64_t multiple_of;
    double ffn_multiplier;
    char *section;
} reader;

typedef struct field {
    const char *key;
    int64_t *whole;
    double *real;
    bool words; /* a string without effect here: names of the model */
} field;

bool nib__train_config_is(const char *text, size_t size)
{
    nib_json json;
    nib__json_init(&json, "", text, size, NULL);
    if (!nib__json_expect(&json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "model"))
            return nib__json_next(&json) == NIB_JSON_OBJECT;
        if (!nib__json_skip(&json))
            return false;
    }
    return false;
}

static void unknown_key(reader *r, const field *fields, size_t count)
{
    const char *names[16];
    for (size_t i = 0; i < count && i < COUNT(names); i++)
        names[i] = fields[i].key;
    const char *key = nib__json_string(&r->json, r->arena, NULL);
    nib_text near;
    nib__text_init(&near, r->arena->allocator);
    if (key)
        nib__near_names(&near, key, names, count);
    nib__json_fail(&r->json, "\"%s\" is not a key of the section \"%s\"%s%s", key ? key : "?",
                   r->section, near.size ? "; did you mean " : "", near.size ? near.at : "");
    nib__text_free(&near);
}

/* One section of numbers. */
static bool read_section(reader *r, const field *fields, size_t count)
{
    if (!nib__json_expect(&r->json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(&r->json) == NIB_JSON_KEY) {
        size_t i = 0;
        while (i < count && !nib__json_is(&r->json, fields[i].key))
            i++;
        if (i == count) {
            unknown_key(r, fields, count);
            return false;
        }
        bool ok;
        if (fields[i].words)
            ok = nib__json_read_string(&r->json, r->arena, NULL) != NULL;
        else if (fields[i].whole)
            ok = nib__json_read_int64(&r->json, 0, INT64_C(1) << 40, fields[i].whole);
        else
            ok = nib__json_read_double(&r->json, fields[i].real);
        if (!ok)
            return false;
    }
    return r->json.event == NIB_JSON_OBJECT_END;
}

static bool read_model(reader *r)
{
    nib_config *c = r->model;
    const field fields[] = {
        {.key = "name", .words = true},
        {.key = "flavor", .words = true},
        {.key = "dim", .whole = &c->width},
        {.key = "n_layers", .whole = &c->layers},
        {.key = "n_heads", .whole = &c->heads},
        {.key = "n_kv_heads", .whole = &c->kv_heads},
        {.key = "vocab_size", .whole = &c->vocab},
        {.key = "multiple_of", .whole = &r->multiple_of},
        {.key = "ffn_dim_multiplier", .real = &r->ffn_multiplier},
        {.key = "norm_eps", .real = &c->norm_eps},
        {.key = "rope_theta", .real = &c->rope_theta},
        {.key = "max_seq_len", .whole = &c->context},
    };
    return read_section(r, fields, COUNT(fields));
}

static bool read_training(reader *r)
{
    int64_t steps; /* a plan is of one step */
    const field fields[] = {
        {.key = "local_batch_size", .whole = &r->out->batch},
        {.key = "seq_len", .whole = &r->out->sequence},
        {.key = "steps", .whole = &steps},
    };
    return read_section(r, fields, COUNT(fields));
}

static bool read_quantize(reader *r)
{
    const char *start = r->json.at;
    if (!nib__json_skip(&r->json))
        return false;
    while (start < r->json.at && *start != '{')
        start++;
    r->out->recipe = nib__arena_copy(r->arena, start, (size_t)(r->json.at - start));
    if (!r->out->recipe)
        nib__json_fail_memory(&r->json, (size_t)(r->json.at - start));
    return r->out->recipe != NULL;
}

static bool read_sections(reader *r)
{
    if (!nib__json_expect(&r->json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(&r->json) == NIB_JSON_KEY) {
        r->section = nib__json_string(&r->json, r->arena, NULL);
        if (!r->section)
            return false;
        bool ok;
        if (strcmp(r->section, "model") == 0) {
            ok = read_model(r);
        } else if (strcmp(r->section, "training") == 0) {
            ok = read_training(r);
        } else if (strcmp(r->section, "quantize") == 0) {
            ok = read_quantize(r);
        } else {
            nib__json_fail(&r->json, "the section \"%s\" is not one of model, training, quantize",
                           r->section);
            ok = false;
        }
        if (!ok)
            return false;
    }
    return r->json.event == NIB_JSON_OBJECT_END && nib__json_next(&r->json) == NIB_JSON_END;
}

/* Llama 3's rule: two thirds of 4 dim, times the multiplier, rounded up to a multiple. */
static int64_t ffn_width(const reader *r)
{
    int64_t width = 2 * 4 * r->model->width / 3;
    if (r->ffn_multiplier > 0)
        /* a product that no check below would take need not be exact, but must fit */
        width = (int64_t)fmin(r->ffn_multiplier * (double)width, 0x1p50);
    return nib__round_up(width, nib__max(1, r->multiple_of));
}

nib_status nib__train_config_parse(nib_train_config *out, nib_config *model, const char *name,
                                   const char *text, size_t size, nib_arena *arena, nib_err *err)
{
    /* torchtitan's values for the debug model */
    *out = (nib_train_config){.dump_folder = "outputs",
                              .document_mask = true,
                              .batch = 8,
                              .sequence = 2048,
                              .steps = 10,
                              .max_norm = 1,
                              .dtype = NIB_TYPE_BF16,
                              .rate = 8e-4,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .warmup = 2,
                              .decay_ratio = 0.8,
                              .folder = "checkpoint",
                              .interval = 500,
                              .keep = 10,
                              .load_step = -1,
                              .export_dtype = NIB_TYPE_F32,
                              .log_every = 1,
                              .validation_every = 5,
                              .validation_steps = 10,
                              .timeout_s = 100};
    *model = (nib_config){.arch = NIB_ARCH_LLAMA,
                          .rope_theta = 500000,
                          .norm_eps = 1e-5,
                          .bos = -1,
                          .context = 2048,
                          .dtype = NIB_TYPE_BF16};
    reader r = {.arena = arena, .model = model, .out = out, .multiple_of = 256, .section = ""};
    nib__json_init(&r.json, name, text, size, NULL);
    if (!read_sections(&r))
        return nib__json_status(&r.json, err);
    if (r.ffn_multiplier < 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: ffn_dim_multiplier is %g; 0 or more is wanted",
                         name, r.ffn_multiplier);
    if (model->kv_heads == 0)
        model->kv_heads = model->heads;
    model->ffn = ffn_width(&r);
    model->head_dim = model->heads > 0 ? model->width / model->heads : 0;
    if (out->batch < 1 || out->sequence < 1 || out->batch > (INT64_C(1) << 31) / out->sequence)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: a micro-batch of %" PRId64 " x %" PRId64
                         " tokens is not between 1 and 2^31",
                         name, out->batch, out->sequence);
    return nib__config_check(model, name, err);
}
