/* SPDX-License-Identifier: Apache-2.0
 *
 * quantization_config of config.json in the words of each dialect: torchao's for transformers,
 * compressed-tensors' groups, our own.
 */
#include "output_files.h"

#include <stdio.h>

/* ---- torchao ---- */

static const nib_scheme *only_scheme(const nib_quantize_job *job)
{
    const nib_scheme *only = NULL;
    for (size_t i = 0; i < job->count; i++) {
        if (!nib__layer_is_quantized(&job->layers[i]))
            continue;
        if (only != NULL && !nib__scheme_equal(only, &job->layers[i].choice.scheme))
            return NULL;
        only = &job->layers[i].choice.scheme;
    }
    return only;
}

static void put_fqn_map(nib_jsonw *w, const char *key, const nib_quantize_job *job)
{
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    for (size_t i = 0; i < job->count; i++) {
        if (!nib__layer_is_quantized(&job->layers[i]))
            continue;
        nib__jsonw_key(w, job->layers[i].name);
        nib__torchao_config(w, &job->layers[i].choice.scheme);
    }
    nib__jsonw_object_end(w);
}

/* {"default": config} as transformers wants it; layers of several schemes are named one by one.
 * torchao writes the map under its old name, too. */
static void put_quant_type(nib_jsonw *w, const nib_quantize_job *job)
{
    const nib_scheme *only = only_scheme(job);
    nib__jsonw_key(w, "quant_type");
    nib__jsonw_object(w);
    nib__jsonw_key(w, "default");
    if (only != NULL) {
        nib__torchao_config(w, only);
    } else {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "_type", "FqnToConfig");
        nib__jsonw_pair_int(w, "_version", 1);
        nib__jsonw_key(w, "_data");
        nib__jsonw_object(w);
        put_fqn_map(w, "fqn_to_config", job);
        put_fqn_map(w, "module_fqn_to_config", job);
        nib__jsonw_object_end(w);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_object_end(w);
}

static void put_torchao(nib_jsonw *w, const nib_quantize_job *job)
{
    bool embedding = false;
    nib__jsonw_key(w, "modules_to_not_convert");
    nib__jsonw_array(w);
    for (size_t i = 0; i < job->count; i++) {
        const nib_quantize_layer *l = &job->layers[i];
        if (l->role == NIB_ROLE_EMBED)
            embedding = nib__layer_is_quantized(l);
        else if (!nib__layer_is_quantized(l))
            nib__jsonw_string(w, l->name);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_pair_bool(w, "include_input_output_embeddings", embedding);
    nib__jsonw_pair_string(w, "quant_method", "torchao");
    put_quant_type(w, job);
    nib__jsonw_pair_bool(w, "untie_embedding_weights", false);
}

/* ---- compressed-tensors ---- */

static const char *format_of(const nib_scheme *s)
{
    return s->code == NIB_CODE_E4M3  ? "float-quantized"
           : s->act == NIB_ACT_FLOAT ? "pack-quantized"
                                     : "int-quantized";
}

/* The arguments of one operand. group 0 and below: one scale per row, token or tensor. */
static void put_args(nib_jsonw *w, const char *key, const nib_scheme *s, bool weights)
{
    const bool tensor = weights ? s->group == NIB_GROUP_TENSOR : s->act == NIB_ACT_I8_STATIC;
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    const bool four = weights ? s->code == NIB_CODE_I4 : s->act == NIB_ACT_I4_TOKEN;
    nib__jsonw_pair_int(w, "num_bits", four ? 4 : 8);
    nib__jsonw_pair_string(w, "type", s->code == NIB_CODE_E4M3 ? "float" : "int");
    nib__jsonw_pair_bool(w, "symmetric", weights ? s->zero == NIB_ZERO_NONE : s->act_symmetric);
    nib__jsonw_pair_string(w, "strategy",
                           tensor         ? "tensor"
                           : !weights     ? "token"
                           : s->group > 0 ? "group"
                                          : "channel");
    nib__jsonw_key(w, "group_size");
    if (weights && s->group > 0)
        nib__jsonw_int(w, s->group);
    else
        nib__jsonw_null(w);
    nib__jsonw_pair_bool(w, "dynamic", !weights && s->act != NIB_ACT_I8_STATIC);
    nib__jsonw_object_end(w);
}

/* The group of all layers with the scheme of layer `first`. alone: no other layer is quantized, so
 * that their kind names them. */
static void put_group(nib_jsonw *w, const nib_quantize_job *job, size_t first, bool alone)
{
    const nib_scheme *s = &job->layers[first].choice.scheme;
    nib__jsonw_object(w);
    nib__jsonw_key(w, "targets");
    nib__jsonw_array(w);
    if (alone)
        nib__jsonw_string(w, "Linear");
    for (size_t i = first; i < job->count && !alone; i++)
        if (nib__layer_is_quantized(&job->layers[i]) &&
            nib__scheme_equal(s, &job->layers[i].choice.scheme))
            nib__jsonw_string(w, job->layers[i].name);
    nib__jsonw_array_end(w);
    put_args(w, "weights", s, true);
    if (s->act == NIB_ACT_FLOAT) {
        nib__jsonw_key(w, "input_activations");
        nib__jsonw_null(w);
    } else {
        put_args(w, "input_activations", s, false);
    }
    nib__jsonw_key(w, "output_activations");
    nib__jsonw_null(w);
    nib__jsonw_pair_string(w, "format", format_of(s));
    nib__jsonw_object_end(w);
}

/* The first layer with the scheme of layer i. */
static size_t first_like(const nib_quantize_job *job, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (nib__layer_is_quantized(&job->layers[j]) &&
            nib__scheme_equal(&job->layers[j].choice.scheme, &job->layers[i].choice.scheme))
            return j;
    return i;
}

static void put_compressed(nib_jsonw *w, const nib_quantize_job *job)
{
    const char *format = NULL;
    bool alone = only_scheme(job) != NULL;
    int groups = 0;
    for (size_t i = 0; i < job->count; i++) {
        const nib_quantize_layer *l = &job->layers[i];
        if (!nib__layer_is_quantized(l))
            continue;
        alone = alone && l->role != NIB_ROLE_EMBED; /* no Linear */
        const char *own = format_of(&l->choice.scheme);
        format = format == NULL || strcmp(format, own) == 0 ? own : "mixed-precision";
    }
    nib__jsonw_pair_string(w, "quant_method", "compressed-tensors");
    nib__jsonw_pair_string(w, "format", format);
    nib__jsonw_pair_string(w, "quantization_status", "compressed");
    nib__jsonw_key(w, "config_groups");
    nib__jsonw_object(w);
    for (size_t i = 0; i < job->count; i++) {
        char name[32];
        if (!nib__layer_is_quantized(&job->layers[i]) || first_like(job, i) != i)
            continue;
        snprintf(name, sizeof name, "group_%d", groups++);
        nib__jsonw_key(w, name);
        put_group(w, job, i, alone);
    }
    nib__jsonw_object_end(w);
    nib__jsonw_key(w, "ignore");
    nib__jsonw_array(w);
    for (size_t i = 0; i < job->count; i++)
        if (!nib__layer_is_quantized(&job->layers[i]) && job->layers[i].role != NIB_ROLE_EMBED)
            nib__jsonw_string(w, job->layers[i].name);
    nib__jsonw_array_end(w);
    nib__jsonw_key(w, "kv_cache_scheme");
    nib__jsonw_null(w);
}

/* ---- any ---- */

static void put_nibble(nib_jsonw *w, const nib_quantize_job *job)
{
    (void)job;
    nib__jsonw_pair_string(w, "quant_method", "nibble");
    nib__jsonw_pair_int(w, "version", 1);
}

void nib__quantization_config(nib_text *out, const nib_quantize_job *job, nib_dialect dialect)
{
    static void (*const puts[NIB_DIALECT_COUNT])(nib_jsonw *, const nib_quantize_job *) = {
        [NIB_DIALECT_TORCHAO] = put_torchao,
        [NIB_DIALECT_NIBBLE] = put_nibble,
        [NIB_DIALECT_COMPRESSED] = put_compressed,
    };
    nib_jsonw w;
    bool any = false;
    for (size_t i = 0; i < job->count; i++)
        any = any || nib__layer_is_quantized(&job->layers[i]);
    if (!any || puts[dialect] == NULL)
        return;
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    w.depth = 2; /* it becomes a member of config.json's object */
    puts[dialect](&w, job);
    nib__jsonw_object_end(&w);
}
