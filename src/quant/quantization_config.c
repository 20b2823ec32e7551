/* SPDX-License-Identifier: Apache-2.0
 *
 * quantization_config of config.json for each dialect: torchao's for transformers,
 * compressed-tensors' groups, Nibble's own.
 */
#include "output_files.h"

#include "name_index.h"

#include <stdio.h>

/* ---- torchao ---- */

/* True if one config describes both. */
static bool is_same_config(const nib_output_weight *a, const nib_output_weight *b)
{
    return nib__scheme_equal(&a->scheme, &b->scheme) &&
           nib__torchao_scale_dtype(a) == nib__torchao_scale_dtype(b);
}

typedef bool (*is_like)(const nib_output_weight *a, const nib_output_weight *b);

/* The first quantized layer like layer i. */
static size_t first_like(const nib_quantize_job *job, const nib_output_weight *stored, size_t i,
                         is_like like)
{
    for (size_t j = 0; j < i; j++)
        if (nib__layer_is_quantized(&job->layers[j]) && like(&stored[j], &stored[i]))
            return j;
    return i;
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

/* Layers whose names differ in numbers alone. */
typedef struct kind {
    const char *pattern; /* a regular expression for all of them */
    size_t first, count; /* layers */
    size_t stored; /* modules with such a name in the source; a draft head's may be no layer */
    bool alike;    /* one config describes all */
} kind;

typedef struct kinds {
    kind *list, **by_name; /* [count] */
    size_t count;
    size_t *of; /* [layers] */
    nib_name_index names;
} kinds;

/* "model\\.layers\\.\\d+\\.mlp\\.up_proj"; NULL: out of memory */
static const char *pattern_of(const char *name, nib_arena *arena)
{
    char *out = nib__arena_take(arena, 3 * strlen(name) + 1, 1), *at = out;
    bool part = true; /* a part of the name begins here */
    while (out != NULL && *name != 0) {
        const size_t digits = part ? strspn(name, "0123456789") : 0;
        if (digits > 0 && (name[digits] == '.' || name[digits] == 0)) {
            at = stpcpy(at, "\\d+");
            name += digits;
            part = false;
            continue;
        }
        part = *name == '.';
        if (strchr(".^$*+?()[]{}|\\", *name) != NULL)
            *at++ = '\\';
        *at++ = *name++;
    }
    return out;
}

/* Counts the modules of the source that the patterns match. */
static bool count_stored(kinds *all, const nib_checkpoint *cp, nib_arena *arena)
{
    for (size_t t = 0; t < nib__checkpoint_count(cp); t++) {
        const char *name = nib__checkpoint_at(cp, t)->name;
        if (!nib__ends_with(name, ".weight"))
            continue;
        const char *module = nib__arena_copy(arena, name, strlen(name) - strlen(".weight")),
                   *pattern = module != NULL ? pattern_of(module, arena) : NULL;
        if (pattern == NULL)
            return false;
        const size_t i =
            nib__name_index_find(&all->names, (const void *const *)all->by_name, pattern);
        if (i != SIZE_MAX)
            all->list[i].stored++;
    }
    return true;
}

/* Whether one pattern can stand for all layers of the kind. */
static bool has_pattern(const kind *k) { return k->alike && k->count > 1 && k->stored <= k->count; }

static bool find_kinds(kinds *out, const nib_quantize_job *job, const nib_output_weight *stored,
                       nib_arena *arena)
{
    out->list = nib__arena_take(arena, job->count, sizeof *out->list);
    out->by_name = nib__arena_take(arena, job->count, sizeof *out->by_name);
    out->of = nib__arena_take(arena, job->count, sizeof *out->of);
    out->count = 0;
    if (out->list == NULL || out->by_name == NULL || out->of == NULL ||
        !nib__name_index_init(&out->names, arena, job->count))
        return false;
    for (size_t i = 0; i < job->count; i++) {
        kind *k = &out->list[out->count];
        const bool codes = nib__layer_is_quantized(&job->layers[i]);
        *k = (kind){.pattern = pattern_of(job->layers[i].name, arena), .first = i, .alike = codes};
        if (k->pattern == NULL)
            return false;
        out->of[i] =
            nib__name_index_find(&out->names, (const void *const *)out->by_name, k->pattern);
        if (out->of[i] == SIZE_MAX) {
            out->of[i] = out->count;
            out->by_name[out->count++] = k;
            nib__name_index_add(&out->names, (const void *const *)out->by_name, out->of[i]);
        }
        k = &out->list[out->of[i]];
        k->count++;
        k->alike = k->alike && codes && is_same_config(&stored[k->first], &stored[i]);
    }
    return count_stored(out, job->checkpoint, arena);
}

/* Entries of all layers with the config of layer `first`: a pattern for whole kinds, then names. */
static void put_like(nib_jsonw *w, const kinds *all, const nib_quantize_job *job,
                     const nib_output_weight *stored, size_t first)
{
    nib_text pattern;
    nib__text_init(&pattern, job->allocator);
    for (size_t i = 0; i < all->count; i++)
        if (has_pattern(&all->list[i]) &&
            is_same_config(&stored[all->list[i].first], &stored[first]))
            nib__text_format(&pattern, "%s%s", pattern.size == 0 ? "re:" : "|",
                             all->list[i].pattern);
    w->text->failed = w->text->failed || pattern.failed;
    if (pattern.size > 0 && !pattern.failed) {
        nib__jsonw_key(w, pattern.at);
        nib__torchao_config(w, &stored[first]);
    }
    nib__text_free(&pattern);
    for (size_t i = first; i < job->count; i++) {
        const kind *k = &all->list[all->of[i]];
        if (!nib__layer_is_quantized(&job->layers[i]) || has_pattern(k) ||
            !is_same_config(&stored[i], &stored[first]))
            continue;
        nib__jsonw_key(w, job->layers[i].name);
        nib__torchao_config(w, &stored[i]);
    }
}

static void put_fqn_map(nib_jsonw *w, const char *key, const nib_quantize_job *job,
                        const nib_output_weight *stored)
{
    nib_arena arena;
    kinds all;
    nib__arena_init(&arena, job->allocator, 0);
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    const bool found = find_kinds(&all, job, stored, &arena);
    w->text->failed = w->text->failed || !found;
    for (size_t i = 0; i < job->count && found; i++)
        if (nib__layer_is_quantized(&job->layers[i]) &&
            first_like(job, stored, i, is_same_config) == i)
            put_like(w, &all, job, stored, i);
    nib__jsonw_object_end(w);
    nib__arena_free(&arena);
}

/* {"default": config} as transformers expects it; different configs each have the layers that they
 * describe. torchao writes the map under its old name, too. */
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
        if (!nib__layer_is_quantized(&job->layers[i]) ||
            first_like(job, stored, i, is_same_group) != i)
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
