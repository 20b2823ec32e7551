/* SPDX-License-Identifier: Apache-2.0
 *
 * Where each layer of a rewrite comes from, and the dialect that can hold them all. Nothing is
 * listed yet: that is rewriting.c.
 */
#include "rewriting.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- layers ---- */

/* The first tensor of a module's weight, once that was read. */
static nib_status find_first(const nib_rewriting *r, const char *module, nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    size_t size = strlen(module);
    char name[512], a[NIB_SHOWN];
    const nib_meta *alias = snprintf(name, sizeof name, "%s.weight", module) < (int)sizeof name
                                ? nib__checkpoint_alias(cp, name)
                                : NULL;
    if (alias != NULL) { /* stored under another module's name */
        module = alias->value;
        size = strlen(alias->value) - strlen(".weight");
    }
    for (size_t t = 0; t < nib__checkpoint_count(cp) && out->from == NULL; t++) {
        const nib_tensor *tensor = nib__checkpoint_at(cp, t);
        if (nib__checkpoint_owner(cp, t) == size && memcmp(tensor->name, module, size) == 0 &&
            !nib__is_bias_part(tensor->name + size))
            out->from = tensor;
    }
    return out->from != NULL ? NIB_OK
                             : nib__fail(r->err, NIB_FAILED, "%s: no tensor of it is found",
                                         nib__shown(a, module));
}

/* Floats of another container, whose rows may lie in another order. */
static nib_status find_floats(nib_rewriting *r, const char *module, const char *dialect,
                              nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    char a[NIB_SHOWN];
    NIB_TRY(nib__checkpoint_weight(&out->weight, NULL, cp, module, r->ledger, r->err));
    if (nib__scheme_is_quantized(&out->weight.scheme))
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s.weight: is quantized already (%s); codes are not quantized again: "
                         "give the unquantized checkpoint, or change its format with nibble "
                         "convert",
                         nib__shown(a, module), dialect);
    out->stored.n = out->weight.n;
    out->stored.k = out->weight.k;
    return find_first(r, module, out);
}

/* A weight that becomes other codes, or stays as it is stored: a matrix of floats. */
static nib_status find_plain(nib_rewriting *r, const char *module, nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    char name[512], a[NIB_SHOWN];
    const char *dialect = nib__checkpoint_dialect(cp, module);
    if (dialect != NULL && strcmp(dialect, "safetensors") != 0)
        return find_floats(r, module, dialect, out);
    if (snprintf(name, sizeof name, "%s.weight", module) < (int)sizeof name)
        out->from = nib__checkpoint_find(cp, name);
    const nib_tensor *from = out->from;
    if (from == NULL)
        return nib__fail(r->err, NIB_BAD_INPUT, "%s.weight: the checkpoint has no such tensor",
                         nib__shown(a, module));
    if (from->rank != 2 || from->bytes == 0 || !nib__type_is_float(from->type))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s.weight: is %s with %d dimensions; a weight to quantize is a matrix of "
                         "floats",
                         nib__shown(a, module), nib__type_stored_name(from->type), from->rank);
    out->stored.n = from->shape[0];
    out->stored.k = from->shape[1];
    return NIB_OK;
}

/* The type of the model's norms, which no quantizer touches; F32: none is found. */
static nib_type norms_type(const nib_checkpoint *cp)
{
    static const char end[] = "norm.weight";
    for (size_t t = 0; t < nib__checkpoint_count(cp); t++) {
        const nib_tensor *tensor = nib__checkpoint_at(cp, t);
        const size_t size = strlen(tensor->name);
        if (size >= sizeof end - 1 && strcmp(tensor->name + size - (sizeof end - 1), end) == 0 &&
            (tensor->type == NIB_TYPE_BF16 || tensor->type == NIB_TYPE_F16))
            return tensor->type;
    }
    return NIB_TYPE_F32;
}

/* The type that a weight was of before it was quantized, as torchao's descriptions say it: that of
 * its scales, or where those have a type of their own, of the model's norms. */
static nib_type float_like(const nib_checkpoint *cp, const nib_weight *w)
{
    if (!nib__scheme_is_quantized(&w->scheme))
        return nib__float_type(w->scheme.code);
    return w->scale_type == NIB_TYPE_BF16 || w->scale_type == NIB_TYPE_F16 ? w->scale_type
                                                                           : norms_type(cp);
}

/* The weight of a recoded layer, in whatever dialect; `from` is found with the tensors. */
static nib_status find_weight(nib_rewriting *r, const nib_quantize_layer *l, const char *module,
                              nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    const nib_weight *w = &out->weight;
    NIB_TRY(nib__checkpoint_weight(&out->weight, NULL, cp, module, r->ledger, r->err));
    out->stored = (nib_output_weight){.scheme = w->scheme,
                                      .n = w->n,
                                      .k = w->k,
                                      .embedding = l->role == NIB_ROLE_EMBED,
                                      .source = nib__scheme_is_quantized(&l->choice.scheme)
                                                    ? float_like(cp, w)
                                                    : nib__float_type(l->choice.scheme.code),
                                      .ordered = w->order != NULL,
                                      .scale_type = w->scale_type,
                                      .scale_rows = w->rows == NULL ? w->scale_rows : 0,
                                      .tensor_divides = w->tensor_divides,
                                      .zero_type = w->zeros != NULL ? w->zero_type : NIB_TYPE_NONE};
    if (nib__scheme_is_quantized(&l->choice.scheme)) { /* weight-only drops those of the codes */
        out->stored.scheme.act = l->choice.scheme.act;
        out->stored.scheme.act_symmetric = l->choice.scheme.act_symmetric;
    }
    if (w->scheme.zero != NIB_ZERO_NONE && w->zeros == NULL)
        out->stored.zero_type = w->scheme.zero == NIB_ZERO_INT ? NIB_TYPE_I8 : w->scale_type;
    return find_first(r, module, out);
}

/* The tensor whose values a layer's weight are: its own, or the one that another name leads to. */
static nib_status find_origin(nib_rewriting *r, const nib_quantize_layer *l, nib_origin *out)
{
    const char *module = l->source != NULL ? l->source : l->name;
    char a[NIB_SHOWN];
    if (l->recode)
        return find_weight(r, l, module, out);
    NIB_TRY(find_plain(r, module, out));
    if (!nib__layer_is_quantized(l))
        return NIB_OK;
    nib_quantizer *q = &out->quantizer;
    const nib_type type = out->from->type == NIB_TYPE_F64 ? NIB_TYPE_F32 : out->from->type;
    nib_status status = nib__quantizer_init(q, &l->choice.scheme, type, out->stored.k, r->err);
    if (status == NIB_OK)
        status = nib__quantizer_scales(q, l->choice.scale_type, r->err);
    if (status != NIB_OK)
        return nib__fail_in(r->err, status, nib__shown(a, l->name));
    q->run = nib__quant_w_best(r->job->isa);
    out->stored = (nib_output_weight){.scheme = q->scheme,
                                      .embedding = l->role == NIB_ROLE_EMBED,
                                      .n = out->stored.n,
                                      .k = q->k,
                                      .source = q->source,
                                      .scale_type = q->scale_type,
                                      .zero_type = q->zero_type};
    return NIB_OK;
}

/* The scheme that a layer has once it is written. */
static nib_scheme scheme_of(const nib_quantize_layer *l, const nib_origin *o)
{
    if (!l->choice.keep)
        return l->choice.scheme;
    return (nib_scheme){.code = nib__float_code(o->from->type), .symmetric = true};
}

/* The ledger's line of a layer: done is asked, for what cannot be done has failed before. */
static nib_status add_line(nib_rewriting *r, size_t i)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    const nib_origin *o = &r->origins[i];
    const nib_scheme scheme = scheme_of(l, o);
    char name[64];
    NIB_TRY(nib__rewriting_find_bias(r, i, &scheme));
    nib_ledger_layer *line =
        nib__ledger_add_layer(r->ledger, nib__ledger_text(r->ledger, "%s", l->name));
    if (line == NULL)
        return nib__fail_memory(r->err, sizeof *line, "the ledger");
    r->lines[i] = r->ledger->layer_count - 1;
    nib__scheme_name(name, &scheme);
    line->role = nib__role_name(l->role);
    line->asked = line->done = nib__ledger_text(r->ledger, "%s", name);
    line->rule =
        nib__ledger_text(r->ledger, "%s", l->choice.rule == NULL ? "recipe" : l->choice.rule);
    line->n = o->stored.n;
    line->k = o->stored.k;
    line->bias = o->bias.bias != NULL;
    line->sqnr_db = NAN;
    line->bytes = 0; /* what it shares with another name is that one's */
    return NIB_OK;
}

nib_status nib__origins_find(nib_rewriting *r)
{
    const nib_quantize_job *job = r->job;
    char a[NIB_SHOWN];
    r->layers = nib__arena_take(&r->arena, job->count, sizeof *r->layers);
    r->lines = nib__arena_take(&r->arena, job->count, sizeof *r->lines);
    r->separated = nib__arena_take(&r->arena, job->count, sizeof *r->separated);
    r->origins = nib__arena_take(&r->arena, job->count, sizeof *r->origins);
    if (!r->layers || !r->lines || !r->separated || !r->origins ||
        !nib__name_index_init(&r->by_name, &r->arena, job->count))
        return nib__fail_memory(r->err, job->count * sizeof *r->origins, "the layers");
    for (size_t i = 0; i < job->count; i++) {
        r->layers[i] = &job->layers[i];
        if (nib__name_index_add(&r->by_name, (const void *const *)r->layers, i) != NULL)
            return nib__fail(r->err, NIB_USAGE, "layer %s is given twice",
                             nib__shown(a, job->layers[i].name));
        NIB_TRY(find_origin(r, &job->layers[i], &r->origins[i]));
        NIB_TRY(add_line(r, i));
    }
    return NIB_OK;
}

/* ---- the dialect ---- */

static bool has_parts(const nib_quantize_layer *l)
{
    return l->recode || nib__layer_is_quantized(l);
}

/* Whether a dialect can hold a layer: NULL, or the end of a sentence. Types of *stored change. */
static const char *refuses(char why[160], nib_dialect dialect, const nib_quantize_layer *l,
                           const nib_origin *o, nib_output_weight *stored)
{
    *stored = o->stored;
    if (!nib__scheme_is_quantized(&l->choice.scheme))
        return nib__write_float.refuses(why, stored);
    if (dialect == NIB_DIALECT_FLOAT)
        return "it holds plain floats, into which only nibble convert turns codes";
    const nib_dialect_writer *writer = nib__dialect_writer(dialect);
    if (stored->ordered && !writer->orders)
        return "its columns are in the order of their groups (act-order)";
    if (!writer->blocks)
        stored->scale_rows = 0;
    const char *says = writer->refuses(why, stored);
    if (says != NULL)
        return says;
    if (dialect != NIB_DIALECT_GGUF || l->recode)
        return NULL;
    if (o->stored.scheme.act != NIB_ACT_FLOAT)
        return "it has no words for quantized activations: ask for weights alone, such as mxfp4 or "
               "int8wo-g32-ggml";
    if (stored->scheme.code != NIB_CODE_MX4 && stored->scheme.formula != NIB_FORMULA_GGML)
        return "its scales are f16, which that formula does not round to: say -ggml "
               "(int8wo-g32-ggml, int4wo-sym-ggml, int4wo-ggml), or quantize into nibble and "
               "convert from there";
    return NULL;
}

/* How many layers a dialect cannot hold; *first: the first of them. */
static size_t count_refused(const nib_rewriting *r, nib_dialect dialect, size_t *first,
                            const char **reason, char why[160])
{
    size_t refused = 0;
    char other[160];
    for (size_t i = 0; i < r->job->count; i++) {
        nib_output_weight stored;
        const nib_quantize_layer *l = &r->job->layers[i];
        const char *says =
            has_parts(l) ? refuses(refused == 0 ? why : other, dialect, l, &r->origins[i], &stored)
                         : NULL;
        if (says == NULL)
            continue;
        if (refused++ == 0) {
            *first = i;
            *reason = says;
        }
    }
    return refused;
}

static size_t count_parts(const nib_rewriting *r)
{
    size_t count = 0;
    for (size_t i = 0; i < r->job->count; i++)
        count += has_parts(&r->job->layers[i]);
    return count;
}

static const char *list_dialects(char out[200])
{
    size_t used = 0;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++)
        used += (size_t)snprintf(out + used, 200 - used, "%s%s", i == 0 ? "" : ", ",
                                 nib__dialect_writer((nib_dialect)i)->name);
    return out;
}

nib_status nib__origins_choose(nib_rewriting *r)
{
    const char *asked = r->job->format, *reason = NULL;
    char why[160], a[NIB_SHOWN], scheme[64], list[200];
    size_t first = 0;
    r->dialect = NIB_DIALECT_TORCHAO;
    if (asked != NULL && !nib__dialect_find(&r->dialect, asked))
        return nib__fail(r->err, NIB_USAGE, "format \"%s\" is none of %s", nib__shown(a, asked),
                         list_dialects(list));
    char lacks[512];
    const size_t refused = count_refused(r, r->dialect, &first, &reason, why);
    if (refused == 0 && asked == NULL && nib__rewriting_coded_biases(r) != 0 &&
        count_refused(r, NIB_DIALECT_NIBBLE, &first, &reason, why) == 0) {
        snprintf(lacks, sizeof lacks, "has no quantized biases (%zu here)",
                 nib__rewriting_coded_biases(r));
        nib__rewriting_take_nibble(r, lacks);
    }
    if (refused == 0)
        return NIB_OK;
    const nib_output_weight *stored = &r->origins[first].stored;
    const char *name = r->job->layers[first].name;
    nib__scheme_name(scheme, &stored->scheme);
    if (asked != NULL)
        return nib__fail(r->err, NIB_NOT_AS_ASKED,
                         "%s: the format %s cannot hold %s at %" PRId64 " x %" PRId64
                         ": %s (%zu of %zu layers)%s",
                         nib__shown(a, name), asked, scheme, stored->n, stored->k, reason, refused,
                         count_parts(r),
                         r->dialect == NIB_DIALECT_NIBBLE ? "" : "; --format nibble holds it");
    snprintf(lacks, sizeof lacks,
             "cannot hold %zu of %zu layers; the first is %s, %s at %" PRId64 " x %" PRId64 ": %s",
             refused, count_parts(r), name, scheme, stored->n, stored->k, reason);
    nib__rewriting_take_nibble(r, lacks);
    size_t own = 0;
    if (count_refused(r, NIB_DIALECT_NIBBLE, &own, &reason, why) == 0)
        return NIB_OK;
    return nib__fail(r->err, NIB_NOT_AS_ASKED, "%s: neither torchao nor nibble can hold it: %s",
                     nib__shown(a, r->job->layers[own].name), reason);
}

void nib__origins_fit(const nib_rewriting *r, size_t layer, nib_output_weight *stored)
{
    char why[160];
    const nib_quantize_layer *l = &r->job->layers[layer];
    if (l->recode)
        (void)refuses(why, r->dialect, l, &r->origins[layer], stored); /* nothing was: for types */
    else
        *stored = r->origins[layer].stored; /* the quantizer's own */
}
