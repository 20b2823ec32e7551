/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: source checkpoints of listed tensors, their rewrites and the results, all in one
 * temporary folder.
 */
#ifndef NIB_TESTS_REWRITING_H
#define NIB_TESTS_REWRITING_H

#include "quantize.h"

#include "golden_scheme.h"
#include "opening.h"
#include "safetensors_build.h"
#include "writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <cmocka.h>

static nib_allocator heap;
static nib_pool *pool;
static char root[256];

static inline const char *at(char out[512], const char *name)
{
    snprintf(out, 512, "%s/%s", root, name);
    return out;
}

static inline nib_quantize_layer layer(const char *name, const char *scheme)
{
    nib_quantize_layer l = {.name = name,
                            .role = strcmp(name, "lm_head") == 0              ? NIB_ROLE_HEAD
                                    : strcmp(name, "model.embed_tokens") == 0 ? NIB_ROLE_EMBED
                                                                              : NIB_ROLE_OTHER,
                            .choice = {.rule = "recipe"}};
    if (scheme == NULL)
        l.choice.keep = true;
    else
        l.choice.scheme = golden_scheme(scheme);
    l.choice.scale_type = scheme == NULL ? NIB_TYPE_NONE : golden_scales(scheme);
    return l;
}

/* ---- sources ---- */

typedef struct source_tensor {
    const char *name;
    nib_type type;
    int64_t shape[2];
    int rank;
} source_tensor;

static inline float value_of(size_t tensor, int64_t i)
{
    /* Multiples of 2^-7 below 1: exact in bf16 and f16. */
    const uint64_t mixed = ((uint64_t)i + 1000 * tensor + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return (float)((int64_t)(mixed >> 57) - 64) / 128;
}

static inline void write_source(const char *directory, const char *config,
                                const source_tensor *tensors, size_t count, const nib_meta *metas,
                                size_t meta_count)
{
    nib_writer *w;
    nib_err err;
    assert_int_equal(nib__writer_make(&w, &heap, &err), NIB_OK);
    for (size_t i = 0; i < meta_count; i++)
        nib__writer_add_meta(w, metas[i].key, metas[i].value);
    for (size_t i = 0; i < count; i++)
        (void)nib__writer_add_tensor(w, tensors[i].name, tensors[i].type, tensors[i].shape,
                                     tensors[i].rank, i);
    assert_int_equal(nib__writer_layout(w, 0, &err), NIB_OK);
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(nib__writer_begin(w, directory, NULL, &err), NIB_OK);
    for (size_t t = 0; t < count; t++) {
        const int64_t elements =
            tensors[t].shape[0] * (tensors[t].rank == 2 ? tensors[t].shape[1] : 1);
        for (int64_t i = 0; i < elements; i++) {
            uint8_t bytes[8];
            float value = value_of(t, i);
            const double wide = (double)value * (1 + 1e-12);
            if (tensors[t].type == NIB_TYPE_F64)
                memcpy(bytes, &wide, 8);
            else
                nib__from_f32(bytes, tensors[t].type, &value, 1);
            assert_int_equal(
                nib__writer_put(w, t, bytes, (size_t)nib__type_bits(tensors[t].type) / 8, &err),
                NIB_OK);
        }
    }
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    if (config != NULL)
        write_text(directory, "config.json", config);
}

static inline void drop(const char *path)
{
    nib_err err;
    if (nib__path_remove(path, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static const char config[] =
    "{\n  \"model_type\": \"llama\",\n  \"tie_word_embeddings\": true\n}\n";

typedef struct done {
    nib_ledger ledger;
    nib_quantize_report report;
    nib_err err;
    nib_status status;
} done;

static inline void run_job(done *d, const char *from, nib_quantize_job job)
{
    nib_checkpoint *cp = open_ok(from);
    job.checkpoint = cp;
    job.recipe = "test";
    job.pool = pool;
    job.allocator = &heap;
    *d = (done){.err = {NIB_OK, ""}};
    nib__ledger_init(&d->ledger, &heap);
    d->status = nib__quantize(&d->ledger, &d->report, &job, &d->err);
    nib__checkpoint_close(cp);
}

static inline void quantize(done *d, const char *from, const nib_quantize_layer *layers,
                            size_t count, const char *out, const char *format, bool force)
{
    run_job(d, from,
            (nib_quantize_job){
                .layers = layers, .count = count, .out = out, .format = format, .force = force});
}

static inline void expect(done *d, nib_status status)
{
    if (d->status != status)
        fail_msg("wanted %s, got %s: %s", nib_status_name(status), nib_status_name(d->status),
                 d->err.text);
}

static inline void free_done(done *d) { nib__ledger_free(&d->ledger); }

static inline bool exists(const char *path) { return nib__path_kind(path) != NIB_PATH_NONE; }

static inline int set_up(void **state)
{
    (void)state;
    heap = nib__allocator_default();
    make_directory(root);
    return nib__pool_open(&pool, 2, &heap, NULL) == NIB_OK ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    nib__pool_close(pool);
    return nib__path_remove(root, NULL) == NIB_OK ? 0 : -1;
}

#endif
