/* SPDX-License-Identifier: Apache-2.0
 *
 * The options in a receipt.
 */
#include "receipt_options.h"

#include "quant_device.h"

void nib__asked_init(nib_asked *out, const nib_quantize_options *options, const char *recipe,
                     const struct nib_quant_device *codes_by)
{
    const nib_request *r = options->request;
    *out = (nib_asked){.recipe = recipe,
                       .method = options->method,
                       .format = options->format,
                       .bias = r->bias,
                       .dtype = r->dtype,
                       .skip = r->skip,
                       .only = r->only,
                       .context = r->context,
                       .codes_by = codes_by};
}

nib_status nib__asked_file(nib_asked_file *out, const char *path, nib_err *err)
{
    *out = (nib_asked_file){.path = path};
    return path == NULL ? NIB_OK : nib__digest_file(&out->digest, &out->size, path, err);
}

nib_status nib__asked_tokenizer(nib_asked_file *out, const char *path, nib_arena *arena,
                                nib_err *err)
{
    const char *file;
    *out = (nib_asked_file){.path = path};
    if (path == NULL)
        return NIB_OK;
    NIB_TRY(nib__tokenizer_file(&file, path, arena, err));
    return nib__digest_file(&out->digest, &out->size, file, err);
}

nib_status nib__asked_inputs(nib_asked *asked, const char *text, const char *imatrix,
                             const char *tokenizer, nib_arena *arena, nib_err *err)
{
    NIB_TRY(nib__asked_file(&asked->text, text, err));
    NIB_TRY(nib__asked_file(&asked->imatrix, imatrix, err));
    return nib__asked_tokenizer(&asked->tokenizer, tokenizer, arena, err);
}

static void put_file(nib_jsonw *w, const char *key, const nib_asked_file *file)
{
    char text[NIB_DIGEST_TEXT];
    nib__jsonw_key(w, key);
    if (file->path == NULL) {
        nib__jsonw_null(w);
        return;
    }
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "path", file->path);
    nib__jsonw_pair_int(w, "bytes", (int64_t)file->size);
    nib__jsonw_pair_string(w, "sha256", nib__digest_text(text, &file->digest));
    nib__jsonw_object_end(w);
}

static void put_strings(nib_jsonw *w, const char *key, const nib_strings *strings)
{
    nib__jsonw_key(w, key);
    nib__jsonw_array(w);
    for (size_t i = 0; i < strings->count; i++)
        nib__jsonw_string(w, strings->items[i]);
    nib__jsonw_array_end(w);
}

static void put_quantize_options(nib_jsonw *w, const nib_asked *asked)
{
    nib__jsonw_pair_string(w, "recipe", asked->recipe);
    put_strings(w, "skip", &asked->skip);
    put_strings(w, "only", &asked->only);
    nib__jsonw_pair_string(w, "method", asked->method);
    nib__jsonw_pair_int(w, "context", asked->context);
}

/* Those of the counts that are not 0, by name. */
static void put_counts(nib_jsonw *w, const char *key, const char *const *names,
                       const size_t *counts, int count)
{
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    for (int i = 0; i < count; i++)
        if (counts[i] != 0)
            nib__jsonw_pair_int(w, names[i], (int64_t)counts[i]);
    nib__jsonw_object_end(w);
}

bool nib__asked_has_sweeps(const nib_asked *asked)
{
    for (int i = 0; i < NIB_PTQ_COUNT; i++)
        if (asked->layers[i] != 0 && nib__ptq_sweeps((nib_ptq_method)i))
            return true;
    return false;
}

bool nib__asked_has_scales(const nib_asked *asked)
{
    return asked->layers[NIB_PTQ_AWQ] + asked->layers[NIB_PTQ_SMOOTH] != 0;
}

bool nib__asked_has_searches(const nib_asked *asked)
{
    return asked->layers[NIB_PTQ_SEARCH] + asked->layers[NIB_PTQ_HQQ] != 0;
}

void nib__asked_json(const void *ctx, nib_jsonw *w)
{
    const nib_asked *asked = ctx;
    const struct nib_quant_device *by = asked->codes_by;
    nib__jsonw_pair_string(w, "command", asked->convert ? "convert" : "quantize");
    nib__jsonw_key(w, "options");
    nib__jsonw_object(w);
    if (!asked->convert)
        put_quantize_options(w, asked);
    nib__jsonw_pair_string(w, "format", asked->format);
    nib__jsonw_pair_string(w, "bias", asked->bias);
    nib__jsonw_pair_string(w, "dtype", asked->dtype);
    nib__jsonw_object_end(w);
    put_counts(w, "layers", nib__ptq_names, asked->layers, NIB_PTQ_COUNT);
    if (nib__asked_has_sweeps(asked))
        put_counts(w, "orders", nib__order_names, asked->orders, NIB_INPUTS_ORDERS);
    if (asked->layers[NIB_PTQ_LEARN] != 0 && asked->rounding_steps != 0)
        nib__jsonw_pair_int(w, "rounding_steps", asked->rounding_steps);
    if (asked->held_out != 0)
        nib__jsonw_pair_int(w, "held_out", asked->held_out);
    if (asked->checked != 0)
        nib__jsonw_pair_int(w, "checked", asked->checked);
    put_file(w, "calibrate", &asked->text);
    put_file(w, "imatrix", &asked->imatrix);
    put_file(w, "tokenizer", &asked->tokenizer);
    nib__jsonw_key(w, "seed");
    if (asked->has_seed)
        nib__jsonw_int(w, (int64_t)asked->seed);
    else
        nib__jsonw_null(w);
    nib__jsonw_pair_string(w, "device",
                           by != NULL && by->done.weights != 0 ? by->machine->name : NULL);
}
