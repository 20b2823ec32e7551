/* SPDX-License-Identifier: Apache-2.0
 *
 * Models whose weights a test changes by folding scales of inputs into what makes them.
 */
#ifndef FOLDING_H
#define FOLDING_H

#include "fold.h"
#include "safetensors_build.h"
#include "session_handle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { FOLD_TOKENS = 12, FOLD_PATH = 1024 };

typedef struct folding {
    nib_engine *engine;
    nib_model *model;
    nib_quantize_layer *layers;
    char *file; /* bytes of model.safetensors */
    size_t size;
    float (*scale)(const nib_fold_group *f, int64_t j); /* of input j */
} folding;

static inline nib_model *must_open_model(nib_engine *engine, const char *path)
{
    nib_model *model;
    nib_err err;
    if (nib_model_open(&model, engine, path, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return model;
}

/* Replaces the values of a stored tensor in the bytes of its file. */
static inline void put_values(folding *f, const nib_tensor *t, const float *values, int64_t at,
                              int64_t count)
{
    const nib_map *map = nib__checkpoint_file(f->model->net.checkpoint, 0);
    const int64_t bytes = nib__type_bits(t->type) / 8;
    nib__from_f32(f->file + ((const uint8_t *)t->data - map->at) + at * bytes, t->type, values,
                  count);
}

static inline const nib_tensor *must_find(const folding *f, const char *module, const char *part)
{
    char name[NIB_NORM_NAME];
    snprintf(name, sizeof name, "%s%s", module, part);
    const nib_tensor *t = nib__checkpoint_find(f->model->net.checkpoint, name);
    if (t == NULL)
        fail_msg("%s is missing", name);
    return t;
}

/* Rows and columns of a weight of the file. */
static inline void fold_weight(folding *f, size_t site, nib_fold fold)
{
    const nib_site *at = &f->model->net.sites[site];
    const nib_tensor *t = must_find(f, at->name, ".weight");
    const int64_t k = at->k, bytes = nib__type_bits(t->type) / 8;
    const nib_map *map = nib__checkpoint_file(f->model->net.checkpoint, 0);
    float *row = calloc((size_t)k, sizeof *row);
    for (int64_t i = 0; i < at->n; i++) {
        nib__to_f32(row, f->file + ((const uint8_t *)t->data - map->at) + i * k * bytes, t->type,
                    k);
        nib__fold_row(&fold, i, row, k, t->type);
        put_values(f, t, row, i * k, k);
    }
    free(row);
    if (fold.rows == NULL || at->weight.bias == NULL)
        return;
    float *bias = calloc((size_t)at->n, sizeof *bias);
    nib__weight_bias(&at->weight, bias);
    for (int64_t i = 0; i < at->n; i++)
        bias[i] *= fold.rows[i];
    put_values(f, must_find(f, at->name, ".bias"), bias, 0, at->n);
    free(bias);
}

static inline void fold_norm(folding *f, const nib_fold_group *g, nib_norm_part part)
{
    char name[NIB_NORM_NAME];
    const nib_network *net = &f->model->net;
    const double offset =
        part == NIB_NORM_BIAS
            ? 0
            : nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, (size_t)g->norm)->offset;
    float *values = calloc((size_t)g->k, sizeof *values);
    assert_int_equal(nib__network_norm(values, net, (size_t)g->norm, part, NULL), NIB_OK);
    for (int64_t j = 0; j < g->k; j++)
        values[j] = (float)(((double)values[j] + offset) / (double)f->scale(g, j) - offset);
    nib__network_norm_name(name, net, (size_t)g->norm, part);
    put_values(f, nib__checkpoint_find(net->checkpoint, name), values, 0, g->k);
    free(values);
}

static inline void fold_group(folding *f, const nib_fold_group *g)
{
    float *columns = calloc((size_t)g->k, sizeof *columns);
    for (int64_t j = 0; j < g->k; j++)
        columns[j] = f->scale(g, j);
    for (int i = 0; i < g->count; i++)
        fold_weight(f, g->sites[i], (nib_fold){.columns = columns});
    if (g->norm >= 0) {
        const nib_graph *graph = &f->model->net.graph;
        fold_norm(f, g, NIB_NORM_STORED);
        if (nib__graph_weight(graph, NIB_WEIGHT_NORM, (size_t)g->norm)->bias)
            fold_norm(f, g, NIB_NORM_BIAS);
    } else {
        float *rows = calloc((size_t)f->model->net.sites[g->before].n, sizeof *rows);
        for (int64_t j = 0; j < g->k; j++)
            rows[nib__fold_row_of(g, j)] = 1 / columns[j];
        fold_weight(f, g->before, (nib_fold){.rows = rows});
        free(rows);
    }
    free(columns);
}

/* Folds what it can; counts it, and what it cannot. */
static inline void fold_layers(folding *f, int count[2], const char **why)
{
    const nib_network *net = &f->model->net;
    nib_arena arena;
    const nib_allocator a = nib__allocator_default();
    nib__arena_init(&arena, &a, 0);
    count[0] = count[1] = 0;
    for (int64_t l = 0; l < net->config.layers; l++) {
        nib_fold_group *groups;
        size_t found;
        assert_int_equal(nib__fold_groups(&groups, &found, net, l, f->layers, &arena, NULL),
                         NIB_OK);
        for (size_t i = 0; i < found; i++) {
            count[groups[i].why != NULL]++;
            if (groups[i].why == NULL)
                fold_group(f, &groups[i]);
            else
                *why = groups[i].why;
        }
    }
    nib__arena_free(&arena);
}

/* Logits of the last token, from calloc. */
static inline float *logits_of(nib_model *model, int64_t *vocab)
{
    const nib_request request = {.size = sizeof request, .dtype = "f32"};
    nib_slot slots[FOLD_TOKENS];
    nib_plan *plan;
    nib_session *session;
    const float *logits;
    nib_err err;
    if (nib_plan_open(&plan, model, &request, &err) != NIB_OK ||
        nib_session_open(&session, model, plan, 1, &err) != NIB_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < FOLD_TOKENS; i++)
        slots[i] = (nib_slot){.position = i,
                              .token = 3 + 5 * i,
                              .outputs = i + 1 == FOLD_TOKENS ? NIB_SLOT_LOGITS : 0};
    if (nib_session_step(session, slots, FOLD_TOKENS, &logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
    *vocab = nib_session_vocab(session);
    float *out = calloc((size_t)*vocab, sizeof *out);
    memcpy(out, logits, (size_t)*vocab * sizeof *out);
    nib_session_close(session);
    nib_plan_close(plan);
    return out;
}

static inline void copy_file(const char *from, const char *to, const char *name)
{
    char path[FOLD_PATH + 64], *text;
    size_t size;
    const nib_allocator a = nib__allocator_default();
    snprintf(path, sizeof path, "%s/%s", from, name);
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 26, &a, NULL), NIB_OK);
    snprintf(path, sizeof path, "%s/%s", to, name);
    assert_int_equal(nib__file_replace(path, text, size, &a, NULL), NIB_OK);
    nib__release(&a, text);
}

/* Writes the changed model into a new folder, with the config of `from`. */
static inline void write_model(const folding *f, char *folder, const char *from)
{
    char path[FOLD_PATH + 64];
    const nib_allocator a = nib__allocator_default();
    make_directory(folder);
    copy_file(from, folder, "config.json");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(nib__file_replace(path, f->file, f->size, &a, NULL), NIB_OK);
}

/* Opens a model, all of whose layers a method scales. */
static inline void open_folding(folding *f, nib_engine *engine, const char *from,
                                nib_ptq_method method, const nib_scheme *scheme)
{
    char path[FOLD_PATH + 64];
    const nib_allocator a = nib__allocator_default();
    *f = (folding){.engine = engine, .model = must_open_model(engine, from)};
    f->layers = calloc(f->model->net.site_count, sizeof *f->layers);
    for (size_t i = 0; i < f->model->net.site_count; i++)
        f->layers[i] = (nib_quantize_layer){.name = f->model->net.sites[i].name,
                                            .choice = {.method = method, .scheme = *scheme}};
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    assert_int_equal(nib__file_read(&f->file, &f->size, path, 1 << 26, &a, NULL), NIB_OK);
}

static inline void close_folding(folding *f)
{
    const nib_allocator a = nib__allocator_default();
    nib_model_close(f->model);
    nib__release(&a, f->file);
    free(f->layers);
}

#endif
