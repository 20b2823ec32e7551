/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a random checkpoint for any config.json, to measure speed and memory at the shapes of a
 * real model without its weights. Values are bf16, roughly normal with standard deviation 0.02
 * (norm weights are 1), and depend only on the seed. Copies config.json, writes model.safetensors.
 * usage: random_checkpoint CONFIG_DIR OUT_DIR [SEED [draft-head]]
 */
#include "config.h"
#include "engine.h"
#include "file.h"
#include "network.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct plan_tensor {
    char name[NIB_NORM_NAME];
    int64_t rows, columns; /* columns 0: a vector */
    bool is_taps;          /* of a short convolution: [rows][1][columns] */
    bool ones;
} plan_tensor;

typedef struct job {
    uint16_t *out;
    uint64_t seed;
    bool ones;
} job;

/* A cheap stand-in for a normal value: the sum of four uniform bytes, scaled. */
static uint16_t value_at(uint64_t seed, uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ seed * UINT64_C(0xD1B54A32D192ED03);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
    const int sum =
        (int)(x & 255) + (int)(x >> 8 & 255) + (int)(x >> 16 & 255) + (int)(x >> 24 & 255);
    return nib__f32_to_bf16((float)(sum - 510) * (0.02f / 148.0f));
}

static void fill(void *ctx, int worker, int64_t begin, int64_t end)
{
    const job *j = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        j->out[i] = j->ones ? 0x3f80 : value_at(j->seed, (uint64_t)i);
}

/* Lists the tensors of a model, or those of its draft head that are not the model's. */
static size_t list_tensors(const nib_network *net, plan_tensor *out)
{
    size_t count = 0;
    const nib_config *c = &net->config;
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        const bool is_head = s->role == NIB_ROLE_HEAD, is_table = s->role == NIB_ROLE_EMBED;
        if ((is_head && c->tied) || (net->draft_head && (is_head || is_table)))
            continue;
        plan_tensor *t = &out[count++];
        *t = (plan_tensor){.rows = s->n, .columns = s->k};
        snprintf(t->name, sizeof t->name, "%s.weight", s->name);
        if (s->bias) {
            t = &out[count++];
            *t = (plan_tensor){.rows = s->n};
            snprintf(t->name, sizeof t->name, "%s.bias", s->name);
        }
    }
    for (size_t i = 0; i < net->graph.kind_count[NIB_WEIGHT_NORM]; i++) {
        const nib_graph_weight *norm = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, i);
        for (nib_norm_part part = NIB_NORM_WEIGHT; part <= (nib_norm_part)norm->bias; part++) {
            plan_tensor *t = &out[count++];
            nib__network_norm_name(t->name, net, i, part);
            t->is_taps = norm->taps > 0;
            t->rows = t->is_taps ? norm->n / norm->taps : norm->n, t->columns = norm->taps;
            t->ones = part == NIB_NORM_WEIGHT && norm->offset == 0 && !t->is_taps;
        }
    }
    return count;
}

static nib_status write_header(nib_output *output, const plan_tensor *tensors, size_t count,
                               const nib_allocator *a, nib_err *err)
{
    nib_text text;
    nib__text_init(&text, a);
    uint64_t offset = 0;
    nib__text_str(&text, "{");
    for (size_t i = 0; i < count; i++) {
        const plan_tensor *t = &tensors[i];
        const uint64_t bytes = (uint64_t)t->rows * (uint64_t)nib__max(1, t->columns) * 2;
        nib__text_format(&text, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%" PRId64, i ? "," : "",
                         t->name, t->rows);
        if (t->columns)
            nib__text_format(&text, "%s,%" PRId64, t->is_taps ? ",1" : "", t->columns);
        nib__text_format(&text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset,
                         offset + bytes);
        offset += bytes;
    }
    nib__text_str(&text, "}");
    while (text.size % 8 != 0)
        nib__text_str(&text, " ");
    unsigned char size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)(text.size >> (8 * i));
    nib_status status = nib__output_write(output, size, sizeof size, err);
    if (status == NIB_OK)
        status = nib__output_write(output, text.at, text.size, err);
    nib__text_free(&text);
    return status;
}

static nib_status write_tensors(nib_output *output, nib_engine *engine, const plan_tensor *tensors,
                                size_t count, uint64_t seed, nib_err *err)
{
    enum { PIECE = 1 << 24 };
    uint16_t *piece = nib__calloc(&engine->allocator, PIECE, sizeof *piece);
    if (!piece)
        return nib__fail_memory(err, PIECE * sizeof *piece, "a piece of a tensor");
    nib_status status = NIB_OK;
    for (size_t i = 0; i < count && status == NIB_OK; i++) {
        const int64_t total = tensors[i].rows * nib__max(1, tensors[i].columns);
        for (int64_t at = 0; at < total && status == NIB_OK; at += PIECE) {
            const int64_t part = nib__min(PIECE, total - at);
            job j = {.out = piece,
                     .seed = seed * 1000003 + i * 131 + (uint64_t)(at / PIECE),
                     .ones = tensors[i].ones};
            nib__pool_run(engine->pool, part, 1 << 16, false, fill, &j);
            status = nib__output_write(output, piece, (size_t)part * sizeof *piece, err);
        }
    }
    nib__release(&engine->allocator, piece);
    return status;
}

static nib_status copy_config(const char *from, const char *to, const nib_allocator *a,
                              nib_err *err)
{
    char in[4096], out[4096], *text;
    size_t size;
    nib_output *output;
    snprintf(in, sizeof in, "%s/config.json", from);
    snprintf(out, sizeof out, "%s/config.json", to);
    NIB_TRY(nib__file_read(&text, &size, in, 1 << 20, a, err));
    nib_status status = nib__output_open(&output, out, a, err);
    if (status == NIB_OK) {
        status = nib__output_write(output, text, size, err);
        if (status == NIB_OK)
            status = nib__output_finish(output, err);
        else
            nib__output_abandon(output);
    }
    nib__release(a, text);
    return status;
}

static nib_status make(nib_engine *engine, const char *from, const char *to, uint64_t seed,
                       bool with_draft, nib_err *err)
{
    nib_network net, draft = {0};
    nib_output *output = NULL;
    char path[4096];
    NIB_TRY(nib__network_open(&net, engine, from, NIB_NETWORK_CONFIG, err));
    snprintf(path, sizeof path, "%s/config.json", from);
    if (with_draft) {
        const nib_status opened = nib__network_open(&draft, engine, path, NIB_NETWORK_DRAFT, err);
        if (opened != NIB_OK) {
            nib__network_close(&net);
            return opened;
        }
    }
    plan_tensor *tensors =
        nib__calloc(&engine->allocator, 2 * (net.graph.weight_count + draft.graph.weight_count),
                    sizeof *tensors);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    mkdir(to, 0777);
    nib_status status = tensors ? copy_config(from, to, &engine->allocator, err)
                                : nib__fail_memory(err, 0, "the list of tensors");
    if (status == NIB_OK)
        status = nib__output_open(&output, path, &engine->allocator, err);
    if (status == NIB_OK) {
        size_t count = list_tensors(&net, tensors);
        count += with_draft ? list_tensors(&draft, tensors + count) : 0;
        status = write_header(output, tensors, count, &engine->allocator, err);
        if (status == NIB_OK)
            status = write_tensors(output, engine, tensors, count, seed, err);
        if (status == NIB_OK)
            status = nib__output_finish(output, err);
        else
            nib__output_abandon(output);
    }
    nib__release(&engine->allocator, tensors);
    if (with_draft)
        nib__network_close(&draft);
    nib__network_close(&net);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 5 || (argc == 5 && strcmp(argv[4], "draft-head") != 0)) {
        fprintf(stderr, "usage: random_checkpoint CONFIG_DIR OUT_DIR [SEED [draft-head]]\n");
        return 2;
    }
    nib_engine *engine;
    nib_err err;
    if (nib_engine_open(&engine, NULL, &err) != NIB_OK) {
        fprintf(stderr, "random_checkpoint: %s\n", err.text);
        return 1;
    }
    const nib_status status =
        make(engine, argv[1], argv[2], argc > 3 ? strtoull(argv[3], NULL, 10) : 1, argc == 5, &err);
    if (status != NIB_OK)
        fprintf(stderr, "random_checkpoint: %s\n", err.text);
    nib_engine_close(engine);
    return nib_status_exit(status);
}
