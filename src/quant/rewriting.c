/* SPDX-License-Identifier: Apache-2.0
 *
 * From layers and stored tensors to rewrites. A tensor under two names stays one tensor while the
 * same is asked of both; otherwise each gets its own, and the ledger says so.
 */
#include "rewriting.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* A name in a message. */
static const char *shown(char out[160], const char *name)
{
    return nib__say_name(out, 160, name, strlen(name));
}

void nib__rewriting_init(nib_rewriting *r, const nib_quantize_job *job, nib_ledger *ledger,
                         nib_err *err)
{
    *r = (nib_rewriting){.job = job, .ledger = ledger, .err = err};
    nib__arena_init(&r->arena, job->allocator, 0);
    nib__text_init(&r->last_module, job->allocator);
}

void nib__rewriting_free(nib_rewriting *r)
{
    nib__writer_free(r->writer);
    nib__release(r->job->allocator, r->rewrites);
    nib__release(r->job->allocator, (void *)r->names);
    nib__text_free(&r->last_module);
    nib__arena_free(&r->arena);
}

/* ---- layers ---- */

/* The tensor whose values a layer's weight are: its own, or the one that another name leads to. */
static nib_status find_source(nib_rewriting *r, const nib_quantize_layer *l, const nib_tensor **out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    const char *module = l->source != NULL ? l->source : l->name;
    char name[512], a[160];
    const char *dialect = nib__checkpoint_dialect(cp, module);
    if (dialect != NULL && strcmp(dialect, "safetensors") != 0)
        return nib__fail(
            r->err, NIB_UNSUPPORTED,
            "%s.weight: is quantized already (%s); codes are not quantized again: give "
            "the unquantized checkpoint",
            shown(a, module), dialect);
    *out = NULL;
    if (snprintf(name, sizeof name, "%s.weight", module) < (int)sizeof name)
        *out = nib__checkpoint_find(cp, name);
    if (*out == NULL)
        return nib__fail(r->err, NIB_BAD_INPUT, "%s.weight: the checkpoint has no such tensor",
                         shown(a, module));
    if ((*out)->rank != 2 || (*out)->bytes == 0 || !nib__type_is_float((*out)->type))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s.weight: is %s with %d dimensions; a weight to quantize is a matrix of "
                         "floats",
                         shown(a, module), nib__type_stored_name((*out)->type), (*out)->rank);
    return NIB_OK;
}

static nib_type source_type(const nib_tensor *tensor)
{
    return tensor->type == NIB_TYPE_F64 ? NIB_TYPE_F32 : tensor->type;
}

static nib_stored stored_of(const nib_quantizer *q, int64_t n)
{
    return (nib_stored){.scheme = q->scheme,
                        .n = n,
                        .k = q->k,
                        .source = q->source,
                        .scale_type = q->scale_type,
                        .zero_type = q->zero_type};
}

/* The ledger's line of a layer: done is asked, for what cannot be done has failed before. */
static nib_status add_line(nib_rewriting *r, size_t i, const nib_tensor *from)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    const nib_scheme plain = {.code = nib__float_code(source_type(from)), .symmetric = true};
    char name[64];
    nib_weight w = {.n = from->shape[0], .k = from->shape[1]};
    NIB_TRY(nib__checkpoint_bias(&w, r->job->checkpoint, l->name, r->ledger, r->err));
    nib_ledger_layer *line =
        nib__ledger_add_layer(r->ledger, nib__ledger_text(r->ledger, "%s", l->name));
    if (line == NULL)
        return nib__fail_memory(r->err, sizeof *line, "the ledger");
    r->lines[i] = r->ledger->layer_count - 1;
    nib__scheme_name(name, l->choice.keep ? &plain : &l->choice.scheme);
    line->role = nib__role_name(l->role);
    line->asked = line->done = nib__ledger_text(r->ledger, "%s", name);
    line->rule =
        nib__ledger_text(r->ledger, "%s", l->choice.rule == NULL ? "recipe" : l->choice.rule);
    line->n = w.n;
    line->k = w.k;
    line->bias = w.bias != NULL;
    line->sqnr_db = NAN;
    line->bytes = 0; /* what it shares with another name is that one's */
    return NIB_OK;
}

/* Chooses the dialect: torchao's if it holds every layer. */
static nib_status choose_dialect(nib_rewriting *r, const nib_quantizer *quantizers,
                                 const nib_tensor *const *sources)
{
    const nib_quantize_job *job = r->job;
    const char *asked = job->format, *first = NULL, *reason = NULL;
    char why[160], a[160], scheme[64];
    nib_stored refused = {0};
    size_t held = 0, count = 0;
    if (asked != NULL && strcmp(asked, "torchao") != 0 && strcmp(asked, "nibble") != 0)
        return nib__fail(r->err, NIB_USAGE, "format \"%s\" is none of torchao, nibble",
                         shown(a, asked));
    for (size_t i = 0; i < job->count; i++) {
        if (!nib__layer_is_quantized(&job->layers[i]))
            continue;
        const nib_stored stored = stored_of(&quantizers[i], sources[i]->shape[0]);
        char other[160];
        const char *says = nib__torchao_refuses(first == NULL ? why : other, &stored);
        count++;
        held += says == NULL;
        if (says == NULL || first != NULL)
            continue;
        first = job->layers[i].name;
        reason = says;
        refused = stored;
    }
    r->dialect = asked != NULL && strcmp(asked, "nibble") == 0 ? NIB_DIALECT_NIBBLE
                 : first == NULL                               ? NIB_DIALECT_TORCHAO
                                                               : NIB_DIALECT_NIBBLE;
    if (first == NULL || r->dialect == NIB_DIALECT_TORCHAO || (asked != NULL && asked[0] == 'n'))
        return NIB_OK;
    nib__scheme_name(scheme, &refused.scheme);
    if (asked != NULL)
        return nib__fail(r->err, NIB_NOT_AS_ASKED,
                         "%s: torchao's format cannot hold %s at %" PRId64 " x %" PRId64
                         ": %s (%zu of %zu layers); --format nibble holds it",
                         shown(a, first), scheme, refused.n, refused.k, reason, count - held,
                         count);
    nib__ledger_add_note(r->ledger, "format",
                         "written as nibble, not as torchao, whose format cannot hold %zu of %zu "
                         "layers; the first is %s, %s at %" PRId64 " x %" PRId64 ": %s",
                         count - held, count, first, scheme, refused.n, refused.k, reason);
    return NIB_OK;
}

/* ---- the list of rewrites ---- */

static nib_rewrite *add_rewrite(nib_rewriting *r, const nib_tensor *from)
{
    void *list = r->rewrites;
    if (!nib__reserve(r->job->allocator, &list, &r->capacity, r->count + 1, sizeof *r->rewrites))
        return NULL;
    r->rewrites = list;
    r->rewrites[r->count] =
        (nib_rewrite){.from = from, .act_scale = SIZE_MAX, .act_zero = SIZE_MAX};
    return &r->rewrites[r->count++];
}

/* Tensors of one module follow each other and share a shard. */
static void begin_unit(nib_rewriting *r, const char *tensor)
{
    const char *dot = strrchr(tensor, '.');
    const size_t size = dot == NULL ? strlen(tensor) : (size_t)(dot - tensor);
    if (r->last_module.size == size && size != 0 && memcmp(r->last_module.at, tensor, size) == 0)
        return;
    nib__text_clear(&r->last_module);
    nib__text_put(&r->last_module, tensor, size);
    r->unit++;
}

/* A weight's name with its description, as torchao lists them all. */
static nib_status describe(nib_rewriting *r, const char *name, const char *description)
{
    void *names = (void *)r->names;
    const char *copy = nib__arena_copy(&r->arena, name, strlen(name));
    if (copy == NULL || !nib__reserve(r->job->allocator, &names, &r->name_capacity,
                                      r->name_count + 1, sizeof *r->names))
        return nib__fail_memory(r->err, strlen(name), "a name");
    r->names = names;
    r->names[r->name_count++] = copy;
    if (description != NULL)
        nib__writer_add_meta(r->writer, name, description);
    return NIB_OK;
}

/* The float type that a recipe asks a layer to be kept in, if it is another one than the stored. */
static nib_type cast_of(const nib_rewriting *r, size_t layer, const nib_tensor *from)
{
    if (layer == SIZE_MAX || r->job->layers[layer].choice.keep)
        return NIB_TYPE_NONE;
    const nib_type type = nib__float_type(r->job->layers[layer].choice.scheme.code);
    return type == from->type ? NIB_TYPE_NONE : type;
}

/* layer: SIZE_MAX if the tensor is no layer's weight. */
static nib_status copy_tensor(nib_rewriting *r, const nib_tensor *from, const char *name,
                              size_t layer)
{
    nib_rewrite *w = add_rewrite(r, from);
    if (w == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    begin_unit(r, name);
    w->name = name;
    w->cast = cast_of(r, layer, from);
    w->line = layer == SIZE_MAX ? SIZE_MAX : r->lines[layer];
    const nib_type type = w->cast == NIB_TYPE_NONE ? from->type : w->cast;
    w->copy = nib__writer_add_tensor(r->writer, name, type, from->shape, from->rank, r->unit);
    if (w->line != SIZE_MAX)
        r->ledger->layers[w->line].bytes =
            from->bytes * (uint64_t)nib__type_bits(type) / (uint64_t)nib__type_bits(from->type);
    /* torchao's loader takes each of its names apart at the last dot, and fails on one without */
    if (r->dialect == NIB_DIALECT_TORCHAO && strchr(name, '.') != NULL)
        return describe(r, name, "{\"_type\": \"Tensor\"}");
    return NIB_OK;
}

static size_t add_part(nib_rewriting *r, const char *module, const nib_stored_part *part)
{
    const char *name = nib__ledger_text(r->ledger, "%s%s", module, part->suffix);
    return nib__writer_add_tensor(r->writer, name == NULL ? "" : name, part->type, part->shape,
                                  part->rank, r->unit);
}

static nib_status quantize_tensor(nib_rewriting *r, size_t i, const nib_tensor *from,
                                  const nib_quantizer *q)
{
    static const nib_stored_part act_scale = {".input_scale", NIB_TYPE_F32, 1, {1}},
                                 act_zero = {".input_zero_point", NIB_TYPE_I32, 1, {1}};
    const nib_quantize_layer *l = &r->job->layers[i];
    const nib_stored stored = stored_of(q, from->shape[0]);
    nib_rewrite *w = add_rewrite(r, from);
    nib_text description;
    const char *name = nib__ledger_text(r->ledger, "%s.weight", l->name);
    if (w == NULL || name == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    begin_unit(r, name);
    w->layer = l;
    w->line = r->lines[i];
    w->quantizer = *q;
    nib__storage_of(&w->storage, r->dialect, &stored);
    w->codes = add_part(r, l->name, &w->storage.codes);
    w->scales = add_part(r, l->name, &w->storage.scales);
    if (w->storage.zeros.suffix != NULL)
        w->zeros = add_part(r, l->name, &w->storage.zeros);
    if (q->scheme.act == NIB_ACT_I8_STATIC) {
        w->act_scale = add_part(r, l->name, &act_scale);
        if (!q->scheme.act_symmetric)
            w->act_zero = add_part(r, l->name, &act_zero);
    }
    r->ledger->layers[w->line].bytes = nib__stored_part_bytes(&w->storage.codes) +
                                       nib__stored_part_bytes(&w->storage.scales) +
                                       nib__stored_part_bytes(&w->storage.zeros);
    nib__text_init(&description, r->job->allocator);
    if (r->dialect == NIB_DIALECT_TORCHAO)
        nib__torchao_describe(&description, &stored);
    else
        nib__nibble_describe(&description, &q->scheme, stored.n, stored.k);
    const nib_status status = description.failed ? nib__fail_memory(r->err, description.size, name)
                                                 : describe(r, name, description.at);
    nib__text_free(&description);
    return status;
}

/* The layer that this tensor is the weight of; SIZE_MAX: none. */
static size_t layer_of(const nib_rewriting *r, const char *tensor)
{
    char module[512];
    const size_t size = strlen(tensor);
    if (size < 7 || size - 7 >= sizeof module || strcmp(tensor + size - 7, ".weight") != 0)
        return SIZE_MAX;
    memcpy(module, tensor, size - 7);
    module[size - 7] = 0;
    return nib__names_find(&r->by_name, (const void *const *)r->layers, module);
}

static nib_status list_stored(nib_rewriting *r, const nib_quantizer *quantizers)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    for (size_t t = 0; t < nib__checkpoint_count(cp); t++) {
        const nib_tensor *from = nib__checkpoint_at(cp, t);
        const size_t i = layer_of(r, from->name);
        if (i != SIZE_MAX && nib__layer_is_quantized(&r->job->layers[i]))
            NIB_TRY(quantize_tensor(r, i, from, &quantizers[i]));
        else
            NIB_TRY(copy_tensor(r, from, from->name, i));
    }
    return NIB_OK;
}

/* Two names of one tensor stay that only while both are kept, or become the same float type. Layers
 * without a tensor of their own name get one if they are quantized or cast, or if what they shared
 * is. */
static nib_status list_shared(nib_rewriting *r, const nib_quantizer *quantizers,
                              const nib_tensor *const *sources)
{
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        const char *name = nib__ledger_text(r->ledger, "%s.weight", l->name);
        if (name == NULL)
            return nib__fail_memory(r->err, strlen(l->name), "a name");
        if (strcmp(sources[i]->name, name) == 0)
            continue;
        const size_t owner = layer_of(r, sources[i]->name);
        const bool owner_quantized =
            owner != SIZE_MAX && nib__layer_is_quantized(&r->job->layers[owner]);
        if (nib__layer_is_quantized(l))
            NIB_TRY(quantize_tensor(r, i, sources[i], &quantizers[i]));
        else if (owner_quantized || cast_of(r, i, sources[i]) != cast_of(r, owner, sources[i]))
            NIB_TRY(copy_tensor(r, sources[i], name, i));
        else
            continue;
        r->separated[r->separated_count++] = name;
        nib__ledger_add_note(r->ledger, "untied",
                             "%s was stored as %s; it is written as a tensor of its own", name,
                             sources[i]->name);
    }
    return NIB_OK;
}

/* ---- metadata ---- */

static bool was_separated(const nib_rewriting *r, const char *name)
{
    for (size_t i = 0; i < r->separated_count; i++)
        if (strcmp(r->separated[i], name) == 0)
            return true;
    return false;
}

/* Entries of the source that still hold: neither descriptions of tensors, nor aliases that ended,
 * nor what the dialects say of a whole file. */
static void keep_metadata(nib_rewriting *r)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    bool format = false;
    for (size_t i = 0; i < nib__checkpoint_meta_count(cp); i++) {
        const nib_meta *meta = nib__checkpoint_meta_at(cp, i);
        const bool alias = nib__checkpoint_alias(cp, meta->key) != NULL;
        if (strcmp(meta->key, "tensor_names") == 0 || strcmp(meta->key, "nibble") == 0 ||
            was_separated(r, meta->key) || (!alias && nib__checkpoint_find(cp, meta->key) != NULL))
            continue;
        format = format || strcmp(meta->key, "format") == 0;
        nib__writer_add_meta(r->writer, meta->key, meta->value);
    }
    if (!format)
        nib__writer_add_meta(r->writer, "format", "pt");
}

static nib_status name_weights(nib_rewriting *r)
{
    nib_text list;
    nib_jsonw w;
    if (r->dialect == NIB_DIALECT_NIBBLE) {
        nib__writer_add_meta(r->writer, "nibble", "1");
        return NIB_OK;
    }
    nib__text_init(&list, r->job->allocator);
    nib__jsonw_init(&w, &list, 0);
    nib__jsonw_array(&w);
    for (size_t i = 0; i < r->name_count; i++)
        nib__jsonw_string(&w, r->names[i]);
    nib__jsonw_array_end(&w);
    const nib_status status =
        list.failed ? nib__fail_memory(r->err, list.size, "the list of weights") : NIB_OK;
    if (status == NIB_OK)
        nib__writer_add_meta(r->writer, "tensor_names", list.at);
    nib__text_free(&list);
    return status;
}

/* ---- preparing ---- */

static nib_status take_layers(nib_rewriting *r, nib_quantizer **quantizers,
                              const nib_tensor ***sources)
{
    const nib_quantize_job *job = r->job;
    char a[160];
    r->layers = nib__arena_take(&r->arena, job->count, sizeof *r->layers);
    r->lines = nib__arena_take(&r->arena, job->count, sizeof *r->lines);
    r->separated = nib__arena_take(&r->arena, job->count, sizeof *r->separated);
    *quantizers = nib__arena_take(&r->arena, job->count, sizeof **quantizers);
    *sources = nib__arena_take(&r->arena, job->count, sizeof **sources);
    if (!r->layers || !r->lines || !r->separated || !*quantizers || !*sources ||
        !nib__names_init(&r->by_name, &r->arena, job->count))
        return nib__fail_memory(r->err, job->count * sizeof **quantizers, "the layers");
    for (size_t i = 0; i < job->count; i++) {
        const nib_quantize_layer *l = &job->layers[i];
        r->layers[i] = l;
        if (nib__names_add(&r->by_name, (const void *const *)r->layers, i) != NULL)
            return nib__fail(r->err, NIB_USAGE, "layer %s is given twice", shown(a, l->name));
        NIB_TRY(find_source(r, l, &(*sources)[i]));
        const bool quantized = nib__layer_is_quantized(l);
        if (quantized) {
            const nib_status status =
                nib__quantizer_init(&(*quantizers)[i], &l->choice.scheme,
                                    source_type((*sources)[i]), (*sources)[i]->shape[1], r->err);
            if (status != NIB_OK)
                return nib__fail_in(r->err, status, shown(a, l->name));
        }
        NIB_TRY(add_line(r, i, (*sources)[i]));
    }
    return NIB_OK;
}

nib_status nib__rewriting_list(nib_rewriting *r, uint64_t shard_limit)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    nib_quantizer *quantizers;
    const nib_tensor **sources;
    for (size_t i = 0; i < nib__checkpoint_note_count(cp); i++)
        nib__ledger_add_note(r->ledger, "checkpoint", "%s", nib__checkpoint_note(cp, i));
    NIB_TRY(take_layers(r, &quantizers, &sources));
    NIB_TRY(choose_dialect(r, quantizers, sources));
    NIB_TRY(nib__writer_make(&r->writer, r->job->allocator, r->err));
    NIB_TRY(list_stored(r, quantizers));
    NIB_TRY(list_shared(r, quantizers, sources));
    keep_metadata(r);
    NIB_TRY(name_weights(r));
    return nib__writer_layout(r->writer, shard_limit, r->err);
}
