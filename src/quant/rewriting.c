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

/* The first tensor of a module's weight, once that was read. */
static nib_status find_first(const nib_rewriting *r, const char *module, nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    const size_t size = strlen(module);
    for (size_t t = 0; t < nib__checkpoint_count(cp) && out->from == NULL; t++) {
        const nib_tensor *tensor = nib__checkpoint_at(cp, t);
        if (nib__checkpoint_owner(cp, t) == size && memcmp(tensor->name, module, size) == 0 &&
            strcmp(tensor->name + size, ".bias") != 0)
            out->from = tensor;
    }
    return out->from != NULL
               ? NIB_OK
               : nib__fail(r->err, NIB_FAILED, "%s: no tensor of it is found", module);
}

/* Floats of another container, whose rows may lie in another order. */
static nib_status find_floats(nib_rewriting *r, const char *module, const char *dialect,
                              nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    char a[160];
    NIB_TRY(nib__checkpoint_weight(&out->weight, NULL, cp, module, r->ledger, r->err));
    if (out->weight.store != NIB_STORE_FLOAT)
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s.weight: is quantized already (%s); codes are not quantized again: "
                         "give the unquantized checkpoint, or change its format with nibble "
                         "convert",
                         shown(a, module), dialect);
    out->stored.n = out->weight.n;
    out->stored.k = out->weight.k;
    return find_first(r, module, out);
}

/* A weight that becomes other codes, or stays as it is stored: a matrix of floats. */
static nib_status find_plain(nib_rewriting *r, const char *module, nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    char name[512], a[160];
    const char *dialect = nib__checkpoint_dialect(cp, module);
    if (dialect != NULL && strcmp(dialect, "safetensors") != 0)
        return find_floats(r, module, dialect, out);
    if (snprintf(name, sizeof name, "%s.weight", module) < (int)sizeof name)
        out->from = nib__checkpoint_find(cp, name);
    const nib_tensor *from = out->from;
    if (from == NULL)
        return nib__fail(r->err, NIB_BAD_INPUT, "%s.weight: the checkpoint has no such tensor",
                         shown(a, module));
    if (from->rank != 2 || from->bytes == 0 || !nib__type_is_float(from->type))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s.weight: is %s with %d dimensions; a weight to quantize is a matrix of "
                         "floats",
                         shown(a, module), nib__type_stored_name(from->type), from->rank);
    out->stored.n = from->shape[0];
    out->stored.k = from->shape[1];
    return NIB_OK;
}

/* The float type that dequantized values of a weight fit best: that of its scales. */
static nib_type float_like(const nib_weight *w)
{
    if (w->store == NIB_STORE_FLOAT)
        return nib__float_type(w->scheme.code);
    return w->scale_type == NIB_TYPE_BF16 || w->scale_type == NIB_TYPE_F16 ? w->scale_type
                                                                           : NIB_TYPE_F32;
}

/* The weight of a recoded layer, in whatever dialect; `from` is found with the tensors. */
static nib_status find_weight(nib_rewriting *r, const nib_quantize_layer *l, const char *module,
                              nib_origin *out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    const nib_weight *w = &out->weight;
    NIB_TRY(nib__checkpoint_weight(&out->weight, NULL, cp, module, r->ledger, r->err));
    out->stored = (nib_stored){.scheme = w->scheme,
                               .n = w->n,
                               .k = w->k,
                               .embedding = l->role == NIB_ROLE_EMBED,
                               .source = nib__scheme_is_quantized(&l->choice.scheme)
                                             ? float_like(w)
                                             : nib__float_type(l->choice.scheme.code),
                               .scale_type = w->scale_type,
                               .zero_type = w->zeros != NULL ? w->zero_type : NIB_TYPE_NONE};
    if (w->scheme.zero != NIB_ZERO_NONE && w->zeros == NULL)
        out->stored.zero_type = w->scheme.zero == NIB_ZERO_INT ? NIB_TYPE_I8 : w->scale_type;
    return find_first(r, module, out);
}

/* The tensor whose values a layer's weight are: its own, or the one that another name leads to. */
static nib_status find_origin(nib_rewriting *r, const nib_quantize_layer *l, nib_origin *out)
{
    const char *module = l->source != NULL ? l->source : l->name;
    char a[160];
    if (l->recode)
        return find_weight(r, l, module, out);
    NIB_TRY(find_plain(r, module, out));
    if (!nib__layer_is_quantized(l))
        return NIB_OK;
    nib_quantizer *q = &out->quantizer;
    const nib_type type = out->from->type == NIB_TYPE_F64 ? NIB_TYPE_F32 : out->from->type;
    const nib_status status =
        nib__quantizer_init(q, &l->choice.scheme, type, out->stored.k, r->err);
    if (status != NIB_OK)
        return nib__fail_in(r->err, status, shown(a, l->name));
    out->stored = (nib_stored){.scheme = q->scheme,
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
    nib_weight w = {.n = o->stored.n, .k = o->stored.k};
    NIB_TRY(nib__checkpoint_bias(&w, r->job->checkpoint, l->name, l->recode ? NULL : r->ledger,
                                 r->err));
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
    line->n = w.n;
    line->k = w.k;
    line->bias = w.bias != NULL;
    line->sqnr_db = NAN;
    line->bytes = 0; /* what it shares with another name is that one's */
    return NIB_OK;
}

/* ---- the dialect ---- */

static bool has_parts(const nib_quantize_layer *l)
{
    return l->recode || nib__layer_is_quantized(l);
}

/* Whether a dialect can hold a layer: NULL, or the end of a sentence. Types of *stored change. */
static const char *refuses(char why[160], nib_dialect dialect, const nib_quantize_layer *l,
                           const nib_origin *o, nib_stored *stored)
{
    *stored = o->stored;
    if (!nib__scheme_is_quantized(&l->choice.scheme))
        return nib__write_float.refuses(why, stored);
    if (l->recode && o->weight.order != NULL)
        return "its columns are in the order of their groups (act-order)";
    return nib__dialect_writer(dialect)->refuses(why, stored);
}

/* How many layers a dialect cannot hold; *first: the first of them. */
static size_t count_refused(const nib_rewriting *r, nib_dialect dialect, size_t *first,
                            const char **reason, char why[160])
{
    size_t refused = 0;
    char other[160];
    for (size_t i = 0; i < r->job->count; i++) {
        nib_stored stored;
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

/* The asked one, which has to hold every layer; else torchao's if it does, else our own. */
static nib_status choose_dialect(nib_rewriting *r)
{
    const char *asked = r->job->format, *reason = NULL;
    char why[160], a[160], scheme[64], list[200];
    size_t first = 0;
    r->dialect = NIB_DIALECT_TORCHAO;
    if (asked != NULL && !nib__dialect_find(&r->dialect, asked))
        return nib__fail(r->err, NIB_USAGE, "format \"%s\" is none of %s", shown(a, asked),
                         list_dialects(list));
    const size_t refused = count_refused(r, r->dialect, &first, &reason, why);
    if (refused == 0)
        return NIB_OK;
    const nib_stored *stored = &r->origins[first].stored;
    const char *name = r->job->layers[first].name;
    nib__scheme_name(scheme, &stored->scheme);
    if (asked != NULL)
        return nib__fail(r->err, NIB_NOT_AS_ASKED,
                         "%s: the format %s cannot hold %s at %" PRId64 " x %" PRId64
                         ": %s (%zu of %zu layers)%s",
                         shown(a, name), asked, scheme, stored->n, stored->k, reason, refused,
                         count_parts(r),
                         r->dialect == NIB_DIALECT_NIBBLE ? "" : "; --format nibble holds it");
    r->dialect = NIB_DIALECT_NIBBLE;
    nib__ledger_add_note(r->ledger, "format",
                         "written as nibble, not as torchao, whose format cannot hold %zu of %zu "
                         "layers; the first is %s, %s at %" PRId64 " x %" PRId64 ": %s",
                         refused, count_parts(r), name, scheme, stored->n, stored->k, reason);
    size_t own = 0;
    if (count_refused(r, NIB_DIALECT_NIBBLE, &own, &reason, why) == 0)
        return NIB_OK;
    return nib__fail(r->err, NIB_NOT_AS_ASKED, "%s: neither torchao nor nibble can hold it: %s",
                     shown(a, r->job->layers[own].name), reason);
}

/* ---- the list of rewrites ---- */

static nib_rewrite *add_rewrite(nib_rewriting *r, const nib_tensor *from)
{
    void *list = r->rewrites;
    if (!nib__reserve(r->job->allocator, &list, &r->capacity, r->count + 1, sizeof *r->rewrites))
        return NULL;
    r->rewrites = list;
    r->rewrites[r->count] = (nib_rewrite){.from = from,
                                          .line = SIZE_MAX,
                                          .copy = SIZE_MAX,
                                          .codes = SIZE_MAX,
                                          .scales = SIZE_MAX,
                                          .zeros = SIZE_MAX,
                                          .size = SIZE_MAX,
                                          .act_scale = SIZE_MAX,
                                          .act_zero = SIZE_MAX};
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
    w->kind = NIB_REWRITE_COPY;
    w->name = name;
    w->cast = cast_of(r, layer, from);
    w->line = layer == SIZE_MAX ? SIZE_MAX : r->lines[layer];
    const nib_type type = w->cast == NIB_TYPE_NONE ? from->type : w->cast;
    w->copy = nib__writer_add_tensor(r->writer, name, type, from->shape, from->rank, r->unit);
    if (w->line != SIZE_MAX && r->job->convert && w->cast == NIB_TYPE_NONE)
        r->ledger->layers[w->line].kept = "lossless";
    if (w->line != SIZE_MAX)
        r->ledger->layers[w->line].bytes =
            from->bytes * (uint64_t)nib__type_bits(type) / (uint64_t)nib__type_bits(from->type);
    /* torchao's loader takes each of its names apart at the last dot, and fails on one without */
    if (r->dialect == NIB_DIALECT_TORCHAO && strchr(name, '.') != NULL)
        return describe(r, name, "{\"_type\": \"Tensor\"}");
    return NIB_OK;
}

/* SIZE_MAX for a part that the dialect does not store. */
static size_t add_part(nib_rewriting *r, const char *module, const nib_stored_part *part)
{
    if (part->suffix == NULL)
        return SIZE_MAX;
    const char *name = nib__ledger_text(r->ledger, "%s%s", module, part->suffix);
    return nib__writer_add_tensor(r->writer, name == NULL ? "" : name, part->type, part->shape,
                                  part->rank, r->unit);
}

/* The dialect's tensors of one weight. */
static void add_parts(nib_rewriting *r, nib_rewrite *w, const char *module)
{
    static const nib_stored_part act_scale = {".input_scale", NIB_TYPE_F32, 1, {1}},
                                 act_zero = {".input_zero_point", NIB_TYPE_I32, 1, {1}};
    w->codes = add_part(r, module, &w->storage.codes);
    w->scales = add_part(r, module, &w->storage.scales);
    w->zeros = add_part(r, module, &w->storage.zeros);
    w->size = add_part(r, module, &w->storage.size);
    if (w->stored.scheme.act == NIB_ACT_I8_STATIC) {
        w->act_scale = add_part(r, module, &act_scale);
        if (!w->stored.scheme.act_symmetric)
            w->act_zero = add_part(r, module, &act_zero);
    }
    r->ledger->layers[w->line].bytes = nib__stored_part_bytes(&w->storage.codes) +
                                       nib__stored_part_bytes(&w->storage.scales) +
                                       nib__stored_part_bytes(&w->storage.zeros);
}

/* The weight's entry of __metadata__, if the dialect has such. */
static nib_status describe_weight(nib_rewriting *r, const nib_dialect_writer *writer,
                                  const char *name, const nib_stored *stored)
{
    nib_text text;
    if (writer->describe == NULL)
        return describe(r, name,
                        r->dialect == NIB_DIALECT_TORCHAO ? "{\"_type\": \"Tensor\"}" : NULL);
    nib__text_init(&text, r->job->allocator);
    writer->describe(&text, stored);
    const nib_status status =
        text.failed ? nib__fail_memory(r->err, text.size, name) : describe(r, name, text.at);
    nib__text_free(&text);
    return status;
}

/* Layer i, quantized or recoded, as the dialect's tensors. */
static nib_status write_layer(nib_rewriting *r, size_t i)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    nib_origin *o = &r->origins[i];
    nib_rewrite *w = add_rewrite(r, o->from);
    const char *name = nib__ledger_text(r->ledger, "%s.weight", l->name);
    char why[160];
    if (w == NULL || name == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    const nib_dialect_writer *writer = nib__scheme_is_quantized(&l->choice.scheme)
                                           ? nib__dialect_writer(r->dialect)
                                           : &nib__write_float;
    begin_unit(r, name);
    w->kind = l->recode ? NIB_REWRITE_RECODE : NIB_REWRITE_QUANTIZE;
    w->layer = l;
    w->line = r->lines[i];
    w->quantizer = o->quantizer;
    w->weight = o->weight;
    if (l->recode)
        (void)refuses(why, r->dialect, l, o, &w->stored); /* asked before: for the types */
    else
        w->stored = o->stored; /* the quantizer's own */
    o->listed = true;
    writer->storage(&w->storage, &w->stored);
    add_parts(r, w, l->name);
    return describe_weight(r, writer, name, &w->stored);
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

/* The bias of a layer as it is read: where its rows lie in another order, a tensor of its own. */
static nib_status find_bias(nib_rewriting *r, size_t t, const nib_tensor **out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    const nib_tensor *from = nib__checkpoint_at(cp, t);
    const size_t size = nib__checkpoint_owner(cp, t);
    char module[512];
    nib_weight w = {.n = from->shape[0]};
    *out = from;
    if (size == 0 || size >= sizeof module || strcmp(from->name + size, ".bias") != 0)
        return NIB_OK;
    memcpy(module, from->name, size);
    module[size] = 0;
    NIB_TRY(nib__checkpoint_bias(&w, cp, module, NULL, r->err));
    if (w.bias == NULL || w.bias == from->data)
        return NIB_OK;
    nib_tensor *moved = nib__arena_take(&r->arena, 1, sizeof *moved);
    if (moved == NULL)
        return nib__fail_memory(r->err, sizeof *moved, "a bias");
    *moved = *from;
    moved->data = w.bias;
    *out = moved;
    return NIB_OK;
}

/* The recoded layer that tensor t is a part of, other than its bias; SIZE_MAX: none. */
static size_t recoded_with(const nib_rewriting *r, size_t t)
{
    const nib_tensor *from = nib__checkpoint_at(r->job->checkpoint, t);
    const size_t size = nib__checkpoint_owner(r->job->checkpoint, t);
    char module[512];
    if (size == 0 || size >= sizeof module || strcmp(from->name + size, ".bias") == 0)
        return SIZE_MAX;
    memcpy(module, from->name, size);
    module[size] = 0;
    const size_t i = nib__names_find(&r->by_name, (const void *const *)r->layers, module);
    return i != SIZE_MAX && r->job->layers[i].recode ? i : SIZE_MAX;
}

static nib_status list_stored(nib_rewriting *r)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    for (size_t t = 0; t < nib__checkpoint_count(cp); t++) {
        const nib_tensor *from = nib__checkpoint_at(cp, t);
        const size_t i = layer_of(r, from->name), recoded = recoded_with(r, t);
        if (recoded != SIZE_MAX && r->origins[recoded].listed) {
            nib_rewrite *part = add_rewrite(r, from);
            if (part == NULL)
                return nib__fail_memory(r->err, sizeof *part, "the list of tensors");
            part->kind = NIB_REWRITE_HASH;
        } else if (recoded != SIZE_MAX) {
            NIB_TRY(write_layer(r, recoded));
        } else if (i != SIZE_MAX && nib__layer_is_quantized(&r->job->layers[i])) {
            NIB_TRY(write_layer(r, i));
        } else {
            NIB_TRY(find_bias(r, t, &from));
            NIB_TRY(copy_tensor(r, from, from->name, i));
        }
    }
    return NIB_OK;
}

/* Two names of one tensor stay that only while both are kept, or become the same float type. Layers
 * without a tensor of their own name get one if they are quantized or cast, or if what they shared
 * is. */
static nib_status list_shared(nib_rewriting *r)
{
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        const char *name = nib__ledger_text(r->ledger, "%s.weight", l->name);
        if (name == NULL)
            return nib__fail_memory(r->err, strlen(l->name), "a name");
        const nib_tensor *from = r->origins[i].from;
        if (strcmp(from->name, name) == 0 || l->recode)
            continue;
        const size_t owner = layer_of(r, from->name);
        const bool owner_quantized =
            owner != SIZE_MAX && nib__layer_is_quantized(&r->job->layers[owner]);
        if (nib__layer_is_quantized(l))
            NIB_TRY(write_layer(r, i));
        else if (owner_quantized || cast_of(r, i, from) != cast_of(r, owner, from))
            NIB_TRY(copy_tensor(r, from, name, i));
        else
            continue;
        r->separated[r->separated_count++] = name;
        nib__ledger_add_note(r->ledger, "untied",
                             "%s was stored as %s; it is written as a tensor of its own", name,
                             from->name);
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
        const size_t layer = layer_of(r, meta->key);
        const bool described = layer != SIZE_MAX && r->job->layers[layer].recode && !alias;
        if (described || strcmp(meta->key, "tensor_names") == 0 ||
            strcmp(meta->key, "nibble") == 0 || was_separated(r, meta->key) ||
            (!alias && nib__checkpoint_find(cp, meta->key) != NULL))
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
    if (r->dialect == NIB_DIALECT_NIBBLE)
        nib__writer_add_meta(r->writer, "nibble", "1");
    if (r->dialect != NIB_DIALECT_TORCHAO)
        return NIB_OK;
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

static nib_status take_layers(nib_rewriting *r)
{
    const nib_quantize_job *job = r->job;
    char a[160];
    r->layers = nib__arena_take(&r->arena, job->count, sizeof *r->layers);
    r->lines = nib__arena_take(&r->arena, job->count, sizeof *r->lines);
    r->separated = nib__arena_take(&r->arena, job->count, sizeof *r->separated);
    r->origins = nib__arena_take(&r->arena, job->count, sizeof *r->origins);
    if (!r->layers || !r->lines || !r->separated || !r->origins ||
        !nib__names_init(&r->by_name, &r->arena, job->count))
        return nib__fail_memory(r->err, job->count * sizeof *r->origins, "the layers");
    for (size_t i = 0; i < job->count; i++) {
        r->layers[i] = &job->layers[i];
        if (nib__names_add(&r->by_name, (const void *const *)r->layers, i) != NULL)
            return nib__fail(r->err, NIB_USAGE, "layer %s is given twice",
                             shown(a, job->layers[i].name));
        NIB_TRY(find_origin(r, &job->layers[i], &r->origins[i]));
        NIB_TRY(add_line(r, i));
    }
    return NIB_OK;
}

void nib__rewriting_share(nib_rewriting *r)
{
    nib_ledger_layer *lines = r->ledger->layers;
    for (size_t i = 0; i < r->job->count; i++)
        for (size_t j = 0; j < r->job->count && lines[r->lines[i]].kept == NULL; j++)
            if (r->origins[j].from == r->origins[i].from)
                lines[r->lines[i]].kept = lines[r->lines[j]].kept;
}

nib_status nib__rewriting_list(nib_rewriting *r, uint64_t shard_limit)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    for (size_t i = 0; i < nib__checkpoint_note_count(cp); i++)
        nib__ledger_add_note(r->ledger, "checkpoint", "%s", nib__checkpoint_note(cp, i));
    NIB_TRY(take_layers(r));
    NIB_TRY(choose_dialect(r));
    NIB_TRY(nib__writer_make(&r->writer, r->job->allocator, r->err));
    NIB_TRY(list_stored(r));
    NIB_TRY(list_shared(r));
    keep_metadata(r);
    NIB_TRY(name_weights(r));
    return nib__writer_layout(r->writer, shard_limit, r->err);
}
