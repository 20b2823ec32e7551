/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the source of each layer of the output, and a dialect that can hold all layers.
 * output_layout.c lists the rewrites.
 */
#include "output_layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- layers ---- */

/* Finds the first tensor of a module's weight, after the weight was read. */
static nib_status find_first(const nib_output_layout *r, const char *module, nib_output_source *out)
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
                             : nib__fail(r->err, NIB_FAILED, "%s: none of its tensors is found",
                                         nib__escape_string(a, module));
}

/* Finds floats of another container, whose rows may be in another order. */
static nib_status find_floats(nib_output_layout *r, const char *module, const char *dialect,
                              nib_output_source *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    char a[NIB_SHOWN];
    NIB_TRY(nib__checkpoint_weight(&out->weight, NULL, cp, module, r->ledger, r->err));
    if (nib__scheme_is_quantized(&out->weight.scheme))
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s.weight: is already quantized (%s) and cannot be quantized again; "
                         "give the unquantized checkpoint, or change its format with nibble "
                         "convert",
                         nib__escape_string(a, module), dialect);
    out->stored.n = out->weight.n;
    out->stored.k = out->weight.k;
    return find_first(r, module, out);
}

/* Finds a weight to quantize or copy: a matrix of floats. */
static nib_status find_plain(nib_output_layout *r, const char *module, nib_output_source *out)
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
                         nib__escape_string(a, module));
    if (from->rank != 2 || from->bytes == 0 || !nib__type_is_float(from->type))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s.weight: is %s of rank %d; only a matrix of floats can be "
                         "quantized",
                         nib__escape_string(a, module), nib__type_stored_name(from->type),
                         from->rank);
    out->stored.n = from->shape[0];
    out->stored.k = from->shape[1];
    return NIB_OK;
}

/* The type of the model's norms, which quantizers leave alone; F32: none found. */
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

/* The weight's type before it was quantized, for torchao's descriptions: that of its scales, or of
 * the model's norms if the scales have a type of their own. */
static nib_type original_type(const nib_checkpoint *cp, const nib_weight *w)
{
    if (!nib__scheme_is_quantized(&w->scheme))
        return nib__float_type(w->scheme.code);
    return w->scale_type == NIB_TYPE_BF16 || w->scale_type == NIB_TYPE_F16 ? w->scale_type
                                                                           : norms_type(cp);
}

/* Finds the weight of a recoded layer, in any dialect. */
static nib_status find_weight(nib_output_layout *r, const nib_quantize_layer *l, const char *module,
                              nib_output_source *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    const nib_weight *w = &out->weight;
    NIB_TRY(nib__checkpoint_weight(&out->weight, NULL, cp, module, r->ledger, r->err));
    out->stored = (nib_output_weight){.scheme = w->scheme,
                                      .n = w->n,
                                      .k = w->k,
                                      .embedding = l->role == NIB_ROLE_EMBED,
                                      .source = nib__scheme_is_quantized(&l->choice.scheme)
                                                    ? original_type(cp, w)
                                                    : nib__float_type(l->choice.scheme.code),
                                      .ordered = w->order != NULL,
                                      .blocks = nib__weight_block_type(w),
                                      .scale_type = w->scale_type,
                                      .scale_rows = w->rows == NULL ? w->scale_rows : 0,
                                      .tensor_divides = w->tensor_divides,
                                      .zero_type = w->zeros != NULL ? w->zero_type : NIB_TYPE_NONE};
    if (nib__scheme_is_quantized(
            &l->choice.scheme)) { /* weight-only drops the codes' activations */
        out->stored.scheme.act = l->choice.scheme.act;
        out->stored.scheme.act_symmetric = l->choice.scheme.act_symmetric;
    }
    if (w->scheme.zero != NIB_ZERO_NONE && w->zeros == NULL)
        out->stored.zero_type = w->scheme.zero == NIB_ZERO_INT ? NIB_TYPE_I8 : w->scale_type;
    return find_first(r, module, out);
}

/* Finds the tensor with a layer's weight: its own, or the one that it shares. */
static nib_status find_source(nib_output_layout *r, const nib_quantize_layer *l,
                              nib_output_source *out)
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
    if (status == NIB_OK)
        status = nib__quantizer_method(q, l->choice.method, l->importance, r->err);
    if (status != NIB_OK)
        return nib__fail_in(r->err, status, nib__escape_string(a, l->name));
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

/* The scheme of a layer in the output. */
static nib_scheme scheme_of(const nib_quantize_layer *l, const nib_output_source *o)
{
    if (!l->choice.keep)
        return l->choice.scheme;
    return (nib_scheme){.code = nib__float_code(o->from->type), .symmetric = true};
}

/* Adds the ledger line of a layer. Done is as asked: what is impossible has failed already. */
static nib_status add_line(nib_output_layout *r, size_t i)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    const nib_output_source *o = &r->sources[i];
    const nib_scheme scheme = scheme_of(l, o);
    char name[64];
    NIB_TRY(nib__output_bias_find(r, i, &scheme));
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
    if (nib__layer_is_quantized(l) && !l->recode && l->choice.method != NIB_PTQ_RTN)
        line->method = nib__ptq_names[l->choice.method];
    line->bytes = 0; /* shared bytes count for the other name */
    return NIB_OK;
}

/* Whether two layers with one tensor get the same codes from it, whatever multiplies them. */
static bool have_same_codes(const nib_quantize_layer *a, const nib_quantize_layer *b)
{
    return nib__layer_is_quantized(a) && nib__layer_is_quantized(b) && !a->recode && !b->recode &&
           nib__scheme_same_weight(&a->choice.scheme, &b->choice.scheme) &&
           a->choice.scheme.act != NIB_ACT_I8_STATIC && b->choice.scheme.act != NIB_ACT_I8_STATIC &&
           a->choice.scale_type == b->choice.scale_type && a->choice.method == b->choice.method &&
           a->importance == b->importance && a->codes == NULL && b->codes == NULL &&
           a->turn == NULL && b->turn == NULL && a->fold.rows == b->fold.rows &&
           a->fold.columns == b->fold.columns;
}

/* Finds the embedding whose codes a tied head can share. */
static void find_shared(nib_output_layout *r, size_t i)
{
    const nib_quantize_layer *layers = r->job->layers;
    nib_output_source *o = &r->sources[i];
    o->shares = SIZE_MAX;
    for (size_t j = 0; j < r->job->count && layers[i].role == NIB_ROLE_HEAD; j++) {
        const size_t size = strlen(layers[j].name);
        if (layers[j].role == NIB_ROLE_EMBED && r->sources[j].from == o->from &&
            strncmp(o->from->name, layers[j].name, size) == 0 &&
            strcmp(o->from->name + size, ".weight") == 0 && have_same_codes(&layers[i], &layers[j]))
            o->shares = j;
    }
}

bool nib__output_sources_shared(const nib_output_layout *r, nib_dialect dialect, size_t layer)
{
    return r->sources[layer].shares != SIZE_MAX && nib__dialect_writer(dialect)->ties;
}

nib_status nib__output_sources_find(nib_output_layout *r)
{
    const nib_quantize_job *job = r->job;
    char a[NIB_SHOWN];
    r->layers = nib__arena_take(&r->arena, job->count, sizeof *r->layers);
    r->lines = nib__arena_take(&r->arena, job->count, sizeof *r->lines);
    r->separated = nib__arena_take(&r->arena, job->count, sizeof *r->separated);
    r->sources = nib__arena_take(&r->arena, job->count, sizeof *r->sources);
    if (!r->layers || !r->lines || !r->separated || !r->sources ||
        !nib__name_index_init(&r->by_name, &r->arena, job->count))
        return nib__fail_memory(r->err, job->count * sizeof *r->sources, "the layers");
    for (size_t i = 0; i < job->count; i++) {
        r->layers[i] = &job->layers[i];
        if (nib__name_index_add(&r->by_name, (const void *const *)r->layers, i) != NULL)
            return nib__fail(r->err, NIB_USAGE, "layer %s is given twice",
                             nib__escape_string(a, job->layers[i].name));
        NIB_TRY(find_source(r, &job->layers[i], &r->sources[i]));
        NIB_TRY(add_line(r, i));
    }
    for (size_t i = 0; i < job->count; i++)
        find_shared(r, i);
    return NIB_OK;
}

/* ---- the dialect ---- */

static bool uses_dialect(const nib_quantize_layer *l)
{
    return l->recode || nib__layer_is_quantized(l);
}

/* NULL if a dialect can hold a layer; else the reason, as the end of a sentence. Sets the types of
 * *stored. */
static const char *find_refusal(char why[160], nib_dialect dialect, const nib_quantize_layer *l,
                                const nib_output_source *o, nib_output_weight *stored)
{
    *stored = o->stored;
    if (!nib__scheme_is_quantized(&l->choice.scheme))
        return nib__write_float.fit(why, stored);
    if (dialect == NIB_DIALECT_FLOAT)
        return "it holds plain floats, and only nibble convert turns codes into floats";
    const nib_dialect_writer *writer = nib__dialect_writer(dialect);
    if (stored->ordered && !writer->orders)
        return "its columns are in the order of their groups (act-order)";
    if (!writer->blocks)
        stored->scale_rows = 0;
    const char *says = writer->fit(why, stored);
    if (says != NULL)
        return says;
    if (dialect != NIB_DIALECT_GGUF || l->recode)
        return NULL;
    if (o->stored.scheme.act != NIB_ACT_FLOAT)
        return "it cannot record quantized activations: use a weight-only scheme such as mxfp4 or "
               "int8wo-g32-ggml";
    if (!nib__code_is_mx(stored->scheme.code) && stored->scheme.formula != NIB_FORMULA_GGML &&
        !nib__scheme_is_gguf_block(&stored->scheme))
        return "its scales are f16, which this formula does not round to: add -ggml "
               "(int8wo-g32-ggml, int4wo-sym-ggml, int4wo-ggml), or quantize with --format nibble "
               "and convert the result";
    return NULL;
}

/* Counts layers that a dialect cannot hold; *first: the first of them. */
static size_t count_refused(const nib_output_layout *r, nib_dialect dialect, size_t *first,
                            const char **reason, char why[160])
{
    size_t refused = 0;
    char other[160];
    for (size_t i = 0; i < r->job->count; i++) {
        nib_output_weight stored;
        const nib_quantize_layer *l = &r->job->layers[i];
        const char *says = uses_dialect(l) ? find_refusal(refused == 0 ? why : other, dialect, l,
                                                          &r->sources[i], &stored)
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

static size_t count_dialect_layers(const nib_output_layout *r)
{
    size_t count = 0;
    for (size_t i = 0; i < r->job->count; i++)
        count += uses_dialect(&r->job->layers[i]);
    return count;
}

static const char *list_dialects(char out[200])
{
    size_t used = 0;
    for (int i = 0; i < NIB_DIALECT_COUNT; i++)
        if (nib__dialect_writer((nib_dialect)i) != NULL)
            used += (size_t)snprintf(out + used, 200 - used, "%s%s", used == 0 ? "" : ", ",
                                     nib__dialect_name((nib_dialect)i));
    return out;
}

/* Integers of other widths than 4 and 8 take a byte each in torchao's format. */
static void note_bytes(nib_output_layout *r)
{
    size_t count = 0;
    int least = 8, most = 0;
    char bits[32];
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_code code = r->sources[i].stored.scheme.code;
        if (!uses_dialect(&r->job->layers[i]) || !nib__code_is_odd_int(code))
            continue;
        count++;
        least = nib__code_bits(code) < least ? nib__code_bits(code) : least;
        most = nib__code_bits(code) > most ? nib__code_bits(code) : most;
    }
    if (count == 0)
        return;
    snprintf(bits, sizeof bits, least == most ? "%d" : "%d to %d", least, most);
    nib__ledger_add_note(r->ledger, "format",
                         "torchao's format stores codes of %s bits, of %zu layers, in 8 bits "
                         "each; --format nibble and compressed-tensors store them in their own",
                         bits, count);
}

bool nib__output_sources_bytes(const nib_output_layout *r, nib_dialect dialect, uint64_t *bytes)
{
    *bytes = 0;
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        nib_output_weight stored;
        nib_file_layout layout = {.order = NIB_ORDER_ROWS};
        char why[160];
        const bool is_tied = l->recode && l->source != NULL && l->turn == NULL; /* not written */
        if (!uses_dialect(l) || is_tied || nib__output_sources_shared(r, dialect, i))
            continue;
        if (find_refusal(why, dialect, l, &r->sources[i], &stored) != NULL)
            return false;
        if (nib__scheme_is_quantized(&l->choice.scheme))
            nib__dialect_writer(dialect)->layout(&layout, &stored);
        else
            nib__write_float.layout(&layout, &stored);
        const nib_output_part *const parts[] = {&layout.codes,  &layout.scales, &layout.zeros,
                                                &layout.tensor, &layout.size,   &layout.inputs};
        for (size_t p = 0; p < COUNT(parts); p++)
            *bytes += nib__output_part_bytes(parts[p]);
    }
    return true;
}

const nib_dialect nib__directory_dialects[NIB_DIRECTORY_DIALECTS] = {
    NIB_DIALECT_TORCHAO, NIB_DIALECT_COMPRESSED, NIB_DIALECT_NIBBLE};

bool nib__output_sources_has_readers(const nib_output_layout *r, nib_dialect dialect)
{
    bool coded = false;
    for (size_t i = 0; i < r->job->count; i++)
        coded = coded || (r->job->layers[i].role == NIB_ROLE_EMBED &&
                          nib__scheme_is_quantized(&r->job->layers[i].choice.scheme));
    return dialect != NIB_DIALECT_COMPRESSED || !coded;
}

/* Whether a dialect holds layers and biases as asked, and its programs can read them. A single file
 * has no config.json, which compressed-tensors needs. */
static bool holds_all(const nib_output_layout *r, nib_dialect dialect, uint64_t *bytes)
{
    return (dialect == NIB_DIALECT_NIBBLE || nib__output_bias_count_coded(r) == 0) &&
           (dialect != NIB_DIALECT_COMPRESSED || r->directory) &&
           nib__output_sources_has_readers(r, dialect) &&
           nib__output_sources_bytes(r, dialect, bytes);
}

/* Says why the format that most programs read was not considered. */
static void note_lacks(const nib_output_layout *r, const char *format)
{
    const size_t biases = nib__output_bias_count_coded(r);
    const char *reason = NULL;
    size_t first = 0;
    char why[160], scheme[64];
    const size_t refused = count_refused(r, NIB_DIALECT_TORCHAO, &first, &reason, why);
    if (refused != 0) {
        const nib_output_weight *stored = &r->sources[first].stored;
        nib__scheme_name(scheme, &stored->scheme);
        nib__ledger_add_note(r->ledger, "format",
                             "written as %s: torchao's format cannot hold %zu of %zu layers; the "
                             "first is %s, %s at %" PRId64 " x %" PRId64 ": %s",
                             format, refused, count_dialect_layers(r), r->job->layers[first].name,
                             scheme, stored->n, stored->k, reason);
    } else if (biases != 0) {
        nib__ledger_add_note(r->ledger, "format",
                             "written as %s: torchao's format has no quantized biases (%zu here)",
                             format, biases);
    }
}

/* Chooses the smallest that holds everything as asked; of those within 1 % of it, the first. */
static nib_status choose_smallest(nib_output_layout *r)
{
    uint64_t bytes[NIB_DIRECTORY_DIALECTS], least = UINT64_MAX;
    bool holds[NIB_DIRECTORY_DIALECTS];
    char why[160], a[NIB_SHOWN];
    const char *reason = NULL;
    size_t first = 0, chosen = 0;
    for (size_t i = 0; i < NIB_DIRECTORY_DIALECTS; i++) {
        holds[i] = holds_all(r, nib__directory_dialects[i], &bytes[i]);
        least = holds[i] && bytes[i] < least ? bytes[i] : least;
    }
    if (least == UINT64_MAX) {
        count_refused(r, NIB_DIALECT_NIBBLE, &first, &reason, why);
        return nib__fail(r->err, NIB_NOT_AS_ASKED, "%s: neither torchao nor nibble can hold it: %s",
                         nib__escape_string(a, r->job->layers[first].name), reason);
    }
    while (!holds[chosen] || bytes[chosen] - least > least / 100)
        chosen++;
    r->dialect = nib__directory_dialects[chosen];
    if (!holds[0])
        note_lacks(r, nib__dialect_name(r->dialect));
    return NIB_OK;
}

nib_status nib__output_sources_choose_dialect(nib_output_layout *r)
{
    const char *asked = r->job->format, *reason = NULL;
    char why[160], a[NIB_SHOWN], scheme[64], list[200];
    size_t first = 0;
    if (asked == NULL)
        return choose_smallest(r);
    if (!nib__dialect_find(&r->dialect, asked))
        return nib__fail(r->err, NIB_USAGE, "format \"%s\" is not one of %s",
                         nib__escape_string(a, asked), list_dialects(list));
    const size_t refused = count_refused(r, r->dialect, &first, &reason, why);
    if (refused == 0 && r->dialect == NIB_DIALECT_TORCHAO)
        note_bytes(r);
    if (refused == 0)
        return NIB_OK;
    const nib_output_weight *stored = &r->sources[first].stored;
    nib__scheme_name(scheme, &stored->scheme);
    return nib__fail(r->err, NIB_NOT_AS_ASKED,
                     "%s: the format %s cannot hold %s at %" PRId64 " x %" PRId64
                     ": %s (%zu of %zu layers)%s",
                     nib__escape_string(a, r->job->layers[first].name), asked, scheme, stored->n,
                     stored->k, reason, refused, count_dialect_layers(r),
                     r->dialect == NIB_DIALECT_NIBBLE ? "" : "; --format nibble holds it");
}

void nib__output_sources_fit(const nib_output_layout *r, size_t layer, nib_output_weight *stored)
{
    char why[160];
    const nib_quantize_layer *l = &r->job->layers[layer];
    if (l->recode)
        (void)find_refusal(why, r->dialect, l, &r->sources[layer],
                           stored); /* for types: the layer fits */
    else
        *stored = r->sources[layer].stored; /* the quantizer's types */
    /* One description is both's; an embedding has no activations. */
    for (size_t i = 0; i < r->job->count && l->role == NIB_ROLE_EMBED; i++)
        if (r->sources[i].shares == layer && r->dialect != NIB_DIALECT_GGUF) {
            stored->scheme.act = r->job->layers[i].choice.scheme.act;
            stored->scheme.act_symmetric = r->job->layers[i].choice.scheme.act_symmetric;
        }
}
