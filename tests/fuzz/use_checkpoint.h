/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz targets for weight files use every file that opens: they read the ends of every tensor, read
 * every weight in its dialect, and check that `info` is valid JSON. A file without a finding of
 * `verify` must load: the two readers agree.
 */
#ifndef NIB_TESTS_USE_CHECKPOINT_H
#define NIB_TESTS_USE_CHECKPOINT_H

#include "verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void require(bool holds)
{
    if (!holds)
        abort();
}

static volatile unsigned sum; /* keeps reads from being optimized out */

/* True: the loader takes the weight, or it is no weight. */
static inline bool use_weight(const nib_checkpoint *cp, const char *module, const nib_allocator *a)
{
    nib_weight w;
    nib_err err = {NIB_OK, ""};
    bool found;
    if (nib__checkpoint_weight(&w, &found, cp, module, NULL, &err) != NIB_OK) {
        require(err.status != NIB_OK && err.text[0] != 0);
        return false;
    }
    require(found == (nib__checkpoint_dialect(cp, module) != NULL));
    if (!found) /* named like codes of a dialect that does not claim the module */
        return true;
    require(w.n > 0 && w.k > 0);
    require(nib__weight_bytes(&w) <= 4 * nib__checkpoint_bytes(cp));
    const bool good = nib__weight_check_codes(&w, module, &err) == NIB_OK;
    float *row = nib__calloc(a, (size_t)w.k, sizeof *row);
    require(row != NULL);
    nib__weight_row(&w, 0, row);
    nib__weight_row(&w, w.n - 1, row);
    nib__release(a, row);
    float *bias = nib__calloc(a, (size_t)w.n, sizeof *bias);
    require(bias != NULL);
    if (w.bias != NULL)
        nib__weight_bias(&w, bias);
    for (int64_t i = 0; i < w.n; i++)
        require(bias[i] - bias[i] == 0);
    nib__release(a, bias);
    return good;
}

/* Number of findings of `verify`. */
static inline size_t verify(const nib_checkpoint *cp, const nib_allocator *a)
{
    nib_text text;
    nib_pool *pool;
    size_t problems = 0;
    require(nib__pool_open(&pool, 1, a, NULL) == NIB_OK);
    nib__text_init(&text, a);
    const nib_verify_job job = {.checkpoint = cp, .pool = pool, .allocator = a};
    require(nib__verify_render(&job, NIB_FORM_TEXT, &text, &problems, NULL) == NIB_OK);
    nib__text_free(&text);
    nib__pool_close(pool);
    return problems;
}

static inline void use_checkpoint(const nib_checkpoint *cp, const nib_allocator *a)
{
    nib_text text;
    nib_json json;
    bool loads = true;
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *t = nib__checkpoint_at(cp, i);
        require(nib__checkpoint_find(cp, t->name) == t);
        require(t->rank >= 0 && t->rank <= NIB_RANK_MAX);
        if (t->bytes != 0)
            sum += (unsigned)t->data[0] + t->data[t->bytes - 1];
    }
    for (size_t i = 0; i < nib__checkpoint_module_count(cp); i++)
        loads = use_weight(cp, nib__checkpoint_module(cp, i), a) && loads;
    require(loads || verify(cp, a) > 0);
    nib__text_init(&text, a);
    require(nib__info_render(cp, a, NIB_FORM_JSON, &text, NULL) == NIB_OK && !text.failed);
    nib__json_init(&json, "info", text.at, text.size, NULL);
    while (json.event != NIB_JSON_ERROR && nib__json_next(&json) != NIB_JSON_END)
        ;
    require(json.event == NIB_JSON_END);
    nib__text_free(&text);
}

/* Opens the bytes as a file; NULL with an error text. */
static inline nib_checkpoint *open_bytes(const uint8_t *data, size_t size, const nib_allocator *a)
{
    const char *directory = getenv("TMPDIR");
    char path[300];
    nib_checkpoint *cp = NULL;
    nib_err err = {NIB_OK, ""};
    snprintf(path, sizeof path, "%s/nibble-fuzz-%ld", directory == NULL ? "/tmp" : directory,
             (long)getpid());
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0);
    const nib_status status = nib__checkpoint_open(&cp, path, a, &err);
    unlink(path);
    require((status == NIB_OK) == (cp != NULL));
    require(status == NIB_OK || (err.status == status && err.text[0] != 0));
    return cp;
}

#endif
