/* SPDX-License-Identifier: Apache-2.0
 *
 * quantization_config of config.json for each dialect: torchao's for transformers,
 * compressed-tensors' groups, Nibble's own.
 */
#include "output_files.h"

#include <stdio.h>

/* ---- torchao ---- */

/* True if one config describes both. */
static bool is_same_config(const nib_output_weight *a, const nib_output_weight *b)
{
    return nib__scheme_equal(&a->scheme, &b->scheme) &&
           nib__torchao_scale_dtype(a) == nib__torchao_scale_dtype(b);
}

/* A layer whose config describes all quantized layers; NULL: none. */
static const nib_output_weight *only_config(const nib_quantize_job *job,
                                            const nib_output_weight *stored)
{
    const nib_output_weight *only = NULL;
    for (size_t i = 0; i < job->count; i++) {
        if (!nib__layer_is_quantized(&job->layers[i]))
            continue;
        if (only != NULL && !is_same_config(only, &stored[i]))
            return NULL;
        only = &stored[i];
    }
    return only;
}

static void put_fqn_map(nib_jsonw *w, const char *key, const nib_quantize_job *job,
                        const nib_output_weight *stored)
{
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    for (size_t i = 0; i < job->count; i++) {
        if (!nib__layer_is_quantized(&job->layers[i]))
            continue;
        nib__jsonw_key(w, job->layers[i].name);
        nib__torchao_config(w, &stored[i]);
    }
    nib__jsonw_object_end(w);
}

/* {"default": config} as transformers expects it; layers with different schemes are named one by
 * one. torchao writes the map under its old name, too. */
static void put_quant_type(nib_jsonw *w, const nib_quantize_job *job,
                           const nib_output_weight *stored)
{
    const nib_output_weight *only = only_config(job, stored);
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
        put_fqn_map(w, "fqn_to_config", job, stored);
        put_fqn_map(w, "module_fqn_to_config", job, stored);
        nib__jsonw_object_end(w);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_object_end(w);
}

static void put_torchao(nib_jsonw *w, const nib_quantize_job *job, const nib_output_weight *stored)
{
    bool embedding = false;
    nib__jsonw_key(w, "modules_to_not_convert");
    nib__jsonw_array(w);
    for (size_t i = 0; i < job->count; i++) {
        const nib_quantize_layer *l = &job->layers[i];
        if (l->role == NIB_ROLE_EMBED)
            embedding = embedding || nib__layer_is_quantized(l);
        else if (!nib__layer_is_quantized(l))
            nib__jsonw_string(w, l->name);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_pair_bool(w, "include_input_output_embeddings", embedding);
    nib__jsonw_pair_string(w, "quant_method", "torchao");
    put_quant_type(w, job, stored);
    nib__jsonw_pair_bool(w, "untie_embedding_weights", false);
}

/* ---- compressed-tensors ---- */

static const char *format_of(const nib_scheme *s)
{
    return !nib__code_is_int(s->code) ? "float-quantized"
           : s->act == NIB_ACT_FLOAT  ? "pack-quantized"
                                      : "int-quantized";
}

/* Fields of both operands. */
static void put_coding(nib_jsonw *w, int bits, const nib_scheme *s, bool symmetric,
                       const char *strategy)
{
    nib__jsonw_pair_int(w, "num_bits", bits);
    nib__jsonw_pair_string(w, "type", nib__code_is_int(s->code) ? "int" : "float");
    nib__jsonw_pair_bool(w, "symmetric", symmetric);
    nib__jsonw_pair_string(w, "strategy", strategy);
}

static void put_weights(nib_jsonw *w, const nib_output_weight *stored)
{
    const nib_scheme *s = &stored->scheme;
    const bool group = s->group > 0 && stored->scale_rows <= 1, block = s->group > 0 && !group;
    nib__jsonw_key(w, "weights");
    nib__jsonw_object(w);
    put_coding(w, nib__code_bits(s->code), s, s->zero == NIB_ZERO_NONE,
               block                          ? "block"
               : group                        ? "group"
               : s->group == NIB_GROUP_TENSOR ? "tensor"
                                              : "channel");
    nib__jsonw_key(w, "group_size");
    if (group)
        nib__jsonw_int(w, s->group);
    else
        nib__jsonw_null(w);
    if (block) {
        nib__jsonw_key(w, "block_structure");
        nib__jsonw_array(w);
        nib__jsonw_int(w, stored->scale_rows);
        nib__jsonw_int(w, s->group);
        nib__jsonw_array_end(w);
    }
    if (group && stored->ordered)
        nib__jsonw_pair_string(w, "actorder", "group");
    nib__jsonw_pair_bool(w, "dynamic", false);
    nib__jsonw_object_end(w);
}

static void put_inputs(nib_jsonw *w, const nib_scheme *s)
{
    const bool is_static = s->act == NIB_ACT_I8_STATIC;
    nib__jsonw_key(w, "input_activations");
    if (s->act == NIB_ACT_FLOAT) {
        nib__jsonw_null(w);
        return;
    }
    nib__jsonw_object(w);
    put_coding(w, nib__code_bits(nib__acts[s->act].code), s, s->act_symmetric,
               is_static ? "tensor" : "token");
    nib__jsonw_key(w, "group_size");
    nib__jsonw_null(w);
    nib__jsonw_pair_bool(w, "dynamic", !is_static);
    nib__jsonw_object_end(w);
}

/* True if one config group describes both. */
static bool is_same_group(const nib_output_weight *a, const nib_output_weight *b)
{
    return nib__scheme_equal(&a->scheme, &b->scheme) && a->scale_rows == b->scale_rows &&
           a->ordered == b->ordered;
}

/* The config group of all layers like layer `first`. alone: all quantized layers are in it, so it
 * targets their kind. */
static void put_group(nib_jsonw *w, const nib_quantize_job *job, const nib_output_weight *stored,
                      size_t first, bool alone)
{
    const nib_scheme *s = &stored[first].scheme;
    nib__jsonw_object(w);
    nib__jsonw_key(w, "targets");
    nib__jsonw_array(w);
    if (alone)
        nib__jsonw_string(w, "Linear");
    for (size_t i = first; i < job->count && !alone; i++)
        if (nib__layer_is_quantized(&job->layers[i]) && is_same_group(&stored[first], &stored[i]))
            nib__jsonw_string(w, job->layers[i].name);
    nib__jsonw_array_end(w);
    put_weights(w, &stored[first]);
    put_inputs(w, s);
    nib__jsonw_key(w, "output_activations");
    nib__jsonw_null(w);
    nib__jsonw_pair_string(w, "format", format_of(s));
    nib__jsonw_object_end(w);
}

/* The first layer like layer i. */
static size_t first_like(const nib_quantize_job *job, const nib_output_weight *stored, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (nib__layer_is_quantized(&job->layers[j]) && is_same_group(&stored[j], &stored[i]))
            return j;
    return i;
}

static void put_compressed(nib_jsonw *w, const nib_quantize_job *job,
                           const nib_output_weight *stored)
{
    const char *format = NULL;
    size_t one = SIZE_MAX; /* the first quantized layer */
    bool alone = true;
    int groups = 0;
    for (size_t i = 0; i < job->count; i++) {
        const nib_quantize_layer *l = &job->layers[i];
        if (!nib__layer_is_quantized(l))
            continue;
        one = one == SIZE_MAX ? i : one;
        alone = alone && is_same_group(&stored[one], &stored[i]) &&
                l->role != NIB_ROLE_EMBED; /* an embedding is not a Linear */
        const char *own = format_of(&stored[i].scheme);
        format = format == NULL || strcmp(format, own) == 0 ? own : "mixed-precision";
    }
    nib__jsonw_pair_string(w, "quant_method", "compressed-tensors");
    nib__jsonw_pair_string(w, "format", format);
    nib__jsonw_pair_string(w, "quantization_status", "compressed");
    nib__jsonw_key(w, "config_groups");
    nib__jsonw_object(w);
    for (size_t i = 0; i < job->count; i++) {
        char name[32];
        if (!nib__layer_is_quantized(&job->layers[i]) || first_like(job, stored, i) != i)
            continue;
        snprintf(name, sizeof name, "group_%d", groups++);
        nib__jsonw_key(w, name);
        put_group(w, job, stored, i, alone);
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

static void put_nibble(nib_jsonw *w, const nib_quantize_job *job, const nib_output_weight *stored)
{
    (void)job;
    (void)stored;
    nib__jsonw_pair_string(w, "quant_method", "nibble");
    nib__jsonw_pair_int(w, "version", 1);
}

void nib__quantization_config(nib_text *out, const nib_quantize_job *job,
                              const nib_output_weight *stored, nib_dialect dialect)
{
    static void (*const puts[NIB_DIALECT_COUNT])(nib_jsonw *, const nib_quantize_job *,
                                                 const nib_output_weight *) = {
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
    w.depth = 2; /* it is a member of config.json's object */
    puts[dialect](&w, job, stored);
    nib__jsonw_object_end(&w);
}
