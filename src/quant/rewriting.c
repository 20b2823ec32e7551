/* SPDX-License-Identifier: Apache-2.0
 *
 * From layers and stored tensors to rewrites. A tensor under two names stays one tensor while the
 * same is asked of both; otherwise each gets its own, and the ledger says so.
 */
#include "rewriting.h"

#include "head_norms.h"
#include "renames.h"
#include "rotary.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

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

/* ---- the list of rewrites ---- */

nib_rewrite *nib__rewriting_add(nib_rewriting *r, const nib_tensor *from)
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
                                          .tensor = SIZE_MAX,
                                          .size = SIZE_MAX,
                                          .inputs = SIZE_MAX,
                                          .bias = SIZE_MAX,
                                          .act_scale = SIZE_MAX,
                                          .act_zero = SIZE_MAX};
    return &r->rewrites[r->count++];
}

void nib__rewriting_begin_unit(nib_rewriting *r, const char *tensor)
{
    const char *dot = strrchr(tensor, '.');
    const size_t size = dot == NULL ? strlen(tensor) : (size_t)(dot - tensor);
    if (r->last_module.size == size && size != 0 && memcmp(r->last_module.at, tensor, size) == 0)
        return;
    nib__text_clear(&r->last_module);
    nib__text_put(&r->last_module, tensor, size);
    r->unit++;
}

nib_status nib__rewriting_describe(nib_rewriting *r, const char *name, const char *description)
{
    void *names = (void *)r->names;
    nib_fused_part part;
    if (r->fuses && nib__fused_part(&part, name, r->job->fused)) {
        if (part.part > 0) /* it is described with the first */
            return NIB_OK;
        name = part.whole;
    }
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

/* A tensor's name as the format has it. */
static nib_status name_tensor(nib_rewriting *r, const char **out, const char *name)
{
    char other[NIB_RENAME_MAX], a[NIB_SHOWN];
    *out = name;
    if (r->dialect != NIB_DIALECT_GGUF)
        return NIB_OK;
    if (!nib__rename_to_gguf(other, r->job->gguf_arch, name) &&
        nib__checkpoint_gguf(r->job->checkpoint) != NULL)
        return NIB_OK; /* a GGUF had it under this name */
    if (!nib__rename_to_gguf(other, r->job->gguf_arch, name))
        return nib__fail(r->err, NIB_NOT_AS_ASKED,
                         "%s: GGUF has no name for this tensor, and a file with a name that its "
                         "readers do not know is refused by them",
                         nib__shown(a, name));
    *out = nib__arena_copy(&r->arena, other, strlen(other));
    return *out != NULL ? NIB_OK : nib__fail_memory(r->err, strlen(other), "a name");
}

nib_status nib__rewriting_pair_rows(nib_rewriting *r, const int32_t **out, nib_role role, int64_t n)
{
    const int64_t width = r->job->paired_head;
    *out = NULL;
    if (width == 0 || (role != NIB_ROLE_Q && role != NIB_ROLE_K) || n % width != 0)
        return NIB_OK;
    int32_t *rows = nib__arena_take(&r->arena, (size_t)n, sizeof *rows);
    if (rows == NULL)
        return nib__fail_memory(r->err, (size_t)n * sizeof *rows, "the order of rows");
    for (int64_t i = 0; i < n; i++)
        rows[nib__rotary_place(i, width)] = (int32_t)i;
    *out = rows;
    return NIB_OK;
}

/* A tensor that stays as it is, for torchao; of norms of heads that are written apart, each. */
static nib_status describe_copy(nib_rewriting *r, const nib_tensor *from, const char *name)
{
    static const char plain[] = "{\"_type\": \"Tensor\"}";
    char head[NIB_FUSED_NAME];
    if ((r->job->fused & NIB_APART_HEAD_NORMS) == 0 || !nib__head_norm_name(head, name, 0))
        return nib__rewriting_describe(r, name, plain);
    for (int64_t i = 0; i < (from->rank == 2 ? from->shape[0] : 1); i++)
        if (nib__head_norm_name(head, name, i))
            NIB_TRY(nib__rewriting_describe(r, head, plain));
    return NIB_OK;
}

/* layer: SIZE_MAX if the tensor is no layer's weight. */
static nib_status copy_tensor(nib_rewriting *r, const nib_tensor *from, const char *name,
                              size_t layer)
{
    nib_rewrite *w = nib__rewriting_add(r, from);
    if (w == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    const char *written;
    NIB_TRY(name_tensor(r, &written, name));
    nib__rewriting_begin_unit(r, name);
    w->kind = NIB_REWRITE_COPY;
    w->name = name;
    w->cast = cast_of(r, layer, from);
    if (r->dialect == NIB_DIALECT_GGUF && from->type != NIB_TYPE_F32 &&
        (from->rank == 1 || nib__ends_with(from->name, "_norm.weight")))
        w->cast = NIB_TYPE_F32; /* its readers know vectors, and norms, of no other type */
    w->line = layer == SIZE_MAX ? SIZE_MAX : r->lines[layer];
    const nib_type type = w->cast == NIB_TYPE_NONE ? from->type : w->cast;
    w->copy = nib__writer_add_tensor(r->writer, written, type, from->shape, from->rank, r->unit);
    if (w->line != SIZE_MAX && r->job->convert && w->cast == NIB_TYPE_NONE)
        r->ledger->layers[w->line].kept = "lossless";
    if (w->line != SIZE_MAX)
        r->ledger->layers[w->line].bytes =
            from->bytes * (uint64_t)nib__type_bits(type) / (uint64_t)nib__type_bits(from->type);
    /* torchao's loader takes each of its names apart at the last dot, and fails on one without */
    if (r->dialect == NIB_DIALECT_TORCHAO && strchr(name, '.') != NULL)
        return describe_copy(r, from, name);
    return NIB_OK;
}

size_t nib__rewriting_part(nib_rewriting *r, const char *module, const nib_output_part *part)
{
    if (part->suffix == NULL)
        return SIZE_MAX;
    const char *name = nib__ledger_text(r->ledger, "%s%s", module, part->suffix);
    if (name == NULL || name_tensor(r, &name, name) != NIB_OK)
        name = ""; /* a layer always has one */
    return nib__writer_add_tensor(r->writer, name, part->type, part->shape, part->rank, r->unit);
}

/* The dialect's tensors of one weight. */
static void add_parts(nib_rewriting *r, nib_rewrite *w, const char *module)
{
    static const nib_output_part act_scale = {".input_scale", NIB_TYPE_F32, 1, {1}},
                                 act_zero = {".input_zero_point", NIB_TYPE_I32, 1, {1}};
    w->codes = nib__rewriting_part(r, module, &w->storage.codes);
    w->scales = nib__rewriting_part(r, module, &w->storage.scales);
    w->zeros = nib__rewriting_part(r, module, &w->storage.zeros);
    w->tensor = nib__rewriting_part(r, module, &w->storage.tensor);
    w->size = nib__rewriting_part(r, module, &w->storage.size);
    w->inputs = nib__rewriting_part(r, module, &w->storage.inputs);
    if (w->stored.scheme.act == NIB_ACT_I8_STATIC) {
        w->act_scale = nib__rewriting_part(r, module, &act_scale);
        if (!w->stored.scheme.act_symmetric)
            w->act_zero = nib__rewriting_part(r, module, &act_zero);
    }
    r->ledger->layers[w->line].bytes =
        nib__output_part_bytes(&w->storage.codes) + nib__output_part_bytes(&w->storage.scales) +
        nib__output_part_bytes(&w->storage.zeros) + nib__output_part_bytes(&w->storage.tensor) +
        nib__output_part_bytes(&w->storage.inputs);
}

/* The weight's entry of __metadata__, if the dialect has such. */
static nib_status describe_weight(nib_rewriting *r, const nib_dialect_writer *writer,
                                  const char *name, const nib_output_weight *stored)
{
    nib_text text;
    if (writer->describe == NULL)
        return nib__rewriting_describe(
            r, name, r->dialect == NIB_DIALECT_TORCHAO ? "{\"_type\": \"Tensor\"}" : NULL);
    nib__text_init(&text, r->job->allocator);
    writer->describe(&text, stored);
    const nib_status status = text.failed ? nib__fail_memory(r->err, text.size, name)
                                          : nib__rewriting_describe(r, name, text.at);
    nib__text_free(&text);
    return status;
}

/* Layer i, quantized or recoded, as the dialect's tensors. */
static nib_status write_layer(nib_rewriting *r, size_t i)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    nib_origin *o = &r->origins[i];
    nib_rewrite *w = nib__rewriting_add(r, o->from);
    const char *name = nib__ledger_text(r->ledger, "%s.weight", l->name);
    if (w == NULL || name == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    const nib_dialect_writer *writer = nib__scheme_is_quantized(&l->choice.scheme)
                                           ? nib__dialect_writer(r->dialect)
                                           : &nib__write_float;
    nib__rewriting_begin_unit(r, name);
    w->kind = l->recode ? NIB_REWRITE_RECODE : NIB_REWRITE_QUANTIZE;
    w->layer = l;
    w->line = r->lines[i];
    w->quantizer = o->quantizer;
    w->weight = o->weight;
    nib__origins_fit(r, i, &w->stored);
    o->listed = true;
    NIB_TRY(nib__rewriting_bias_with(r, i, w));
    NIB_TRY(nib__rewriting_pair_rows(r, &w->written_rows, l->role, w->stored.n));
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
    return nib__name_index_find(&r->by_name, (const void *const *)r->layers, module);
}

/* Values of the tensor's type with rows in another order: out[j] is from[rows[j]]. */
static nib_status gather(nib_rewriting *r, nib_tensor *tensor, const int32_t *rows)
{
    const size_t n = (size_t)tensor->shape[0], width = (size_t)nib__type_bits(tensor->type) / 8;
    uint8_t *values = nib__arena_take(&r->arena, n, width);
    if (values == NULL)
        return nib__fail_memory(r->err, n * width, tensor->name);
    for (size_t j = 0; j < n; j++)
        memcpy(values + j * width, tensor->data + (size_t)rows[j] * width, width);
    tensor->data = values;
    return NIB_OK;
}

/* The bias of a layer in the order in which it is written: where that is another than the stored
 * one, a tensor of its own. */
static nib_status find_bias(nib_rewriting *r, size_t t, const nib_tensor **out)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    const nib_tensor *from = nib__checkpoint_at(cp, t);
    const size_t size = nib__checkpoint_owner(cp, t);
    char module[512];
    const int32_t *rows = NULL;
    nib_weight w = {.n = from->shape[0]};
    *out = from;
    if (size == 0 || size >= sizeof module || strcmp(from->name + size, ".bias") != 0)
        return NIB_OK;
    memcpy(module, from->name, size);
    module[size] = 0;
    NIB_TRY(nib__checkpoint_bias(&w, cp, module, NULL, r->err));
    const size_t layer = nib__name_index_find(&r->by_name, (const void *const *)r->layers, module);
    if (layer != SIZE_MAX)
        NIB_TRY(nib__rewriting_pair_rows(r, &rows, r->layers[layer]->role, w.n));
    if (w.bias == NULL || (w.bias == from->data && rows == NULL))
        return NIB_OK;
    nib_tensor *moved = nib__arena_take(&r->arena, 1, sizeof *moved);
    if (moved == NULL)
        return nib__fail_memory(r->err, sizeof *moved, "a bias");
    *moved = *from;
    moved->data = w.bias;
    *out = moved;
    return rows == NULL ? NIB_OK : gather(r, moved, rows);
}

/* The recoded layer that tensor t is a part of, other than its bias; SIZE_MAX: none. */
static size_t recoded_with(const nib_rewriting *r, size_t t)
{
    const nib_tensor *from = nib__checkpoint_at(r->job->checkpoint, t);
    const size_t size = nib__checkpoint_owner(r->job->checkpoint, t);
    char module[512];
    if (size == 0 || size >= sizeof module || nib__is_bias_part(from->name + size))
        return SIZE_MAX;
    memcpy(module, from->name, size);
    module[size] = 0;
    size_t i = nib__name_index_find(&r->by_name, (const void *const *)r->layers, module);
    if (i == SIZE_MAX || !r->job->layers[i].recode)
        return SIZE_MAX;
    if (r->job->layers[i].source != NULL) /* an output that is the embedding is written as that */
        i = nib__name_index_find(&r->by_name, (const void *const *)r->layers,
                                 r->job->layers[i].source);
    return i;
}

/* A norm's weight as the format has it: a tensor of its own. */
static nib_status shift_norm(nib_rewriting *r, const nib_tensor **tensor)
{
    const nib_tensor *from = *tensor;
    const size_t size = strlen(from->name);
    if (r->job->norm_shift == 0 || from->rank != 1 || !nib__type_is_float(from->type) ||
        size < 11 || strcmp(from->name + size - 11, "norm.weight") != 0)
        return NIB_OK;
    nib_tensor *shifted = nib__arena_take(&r->arena, 1, sizeof *shifted);
    float *values = nib__arena_take(&r->arena, (size_t)from->shape[0], sizeof *values);
    if (shifted == NULL || values == NULL)
        return nib__fail_memory(r->err, (size_t)from->shape[0] * sizeof *values, from->name);
    nib__to_f32(values, from->data, from->type, from->shape[0]);
    for (int64_t i = 0; i < from->shape[0]; i++)
        values[i] += (float)r->job->norm_shift;
    *shifted = *from;
    shifted->type = NIB_TYPE_F32;
    shifted->data = (const void *)values;
    shifted->bytes = (uint64_t)from->shape[0] * sizeof *values;
    *tensor = shifted;
    return NIB_OK;
}

/* A tensor of the source that is not written by itself. */
static nib_status pass_over(nib_rewriting *r, const nib_tensor *from)
{
    nib_rewrite *w = nib__rewriting_add(r, from);
    if (w == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    w->kind = NIB_REWRITE_HASH;
    return NIB_OK;
}

/* A tensor of rotary frequencies that one container has, and the other's config implies. */
static bool is_described(const nib_rewriting *r, const nib_tensor *from)
{
    const bool in_gguf = nib__checkpoint_gguf(r->job->checkpoint) != NULL;
    return nib__is_rotary_table(from->name) &&
           (r->dialect == NIB_DIALECT_GGUF ? !in_gguf : in_gguf && r->directory);
}

static nib_status list_stored(nib_rewriting *r)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    char a[NIB_SHOWN];
    for (size_t t = 0; t < nib__checkpoint_count(cp); t++) {
        const nib_tensor *from = nib__checkpoint_at(cp, t);
        const size_t i = layer_of(r, from->name), recoded = recoded_with(r, t);
        const size_t bias = nib__rewriting_bias_of(r, t);
        if (bias != SIZE_MAX) {
            NIB_TRY(nib__rewriting_write_bias(r, bias, from));
        } else if (recoded != SIZE_MAX && r->origins[recoded].listed) {
            NIB_TRY(pass_over(r, from));
        } else if (recoded != SIZE_MAX) {
            NIB_TRY(write_layer(r, recoded));
        } else if (i != SIZE_MAX && nib__layer_is_quantized(&r->job->layers[i])) {
            NIB_TRY(write_layer(r, i));
        } else if (is_described(r, from)) {
            NIB_TRY(pass_over(r, from));
            nib__ledger_add_setting(r->ledger,
                                    &(nib_ledger_setting){.code = "dropped",
                                                          .name = nib__shown(a, from->name),
                                                          .by = NIB_BY_CHECKPOINT,
                                                          .relation = NIB_SETTING_EQUIVALENT},
                                    "it is not written: the format has no name for it, and the "
                                    "config says what it holds");
        } else {
            NIB_TRY(find_bias(r, t, &from));
            NIB_TRY(shift_norm(r, &from));
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
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "untied",
                                                      .name = name,
                                                      .by = NIB_BY_CHECKPOINT,
                                                      .relation = NIB_SETTING_EQUIVALENT},
                                "it was stored as %s; it is written as a tensor of its own",
                                from->name);
    }
    return NIB_OK;
}

/* Norms, biases and other tensors that are not weights of layers keep their type. */
static void tell_types(nib_rewriting *r)
{
    size_t count = 0;
    char a[NIB_SHOWN];
    const nib_tensor *first = NULL;
    for (size_t i = 0; i < r->count && r->job->dtype != NULL; i++) {
        const nib_rewrite *w = &r->rewrites[i];
        if (w->kind != NIB_REWRITE_COPY || w->cast != NIB_TYPE_NONE || w->line != SIZE_MAX ||
            !nib__type_is_float(w->from->type) ||
            strcmp(nib__type_name(w->from->type), r->job->dtype) == 0)
            continue;
        if (count++ == 0)
            first = w->from;
    }
    if (first != NULL)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "dtype",
                                                      .name = "--dtype",
                                                      .asked = r->job->dtype,
                                                      .by = NIB_BY_OPTION,
                                                      .relation = NIB_SETTING_NARROWER},
                                "%zu norms, biases and other tensors keep their own type; the "
                                "first is %s, %s",
                                count, nib__shown(a, first->name), nib__type_name(first->type));
}

/* Codes that run with quantized activations, by themselves or as their container's readers have it,
 * and that are written without: as floats, or where only the scheme says what activations are. */
static void tell_float_activations(nib_rewriting *r)
{
    size_t count = 0;
    char scheme[64], a[NIB_SHOWN];
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        nib_scheme was = r->origins[i].weight.scheme;
        was.act = nib__weight_act(&r->origins[i].weight);
        const bool lost = !nib__layer_is_quantized(l) ||
                          (nib__act_block(was.act) > 0 && r->dialect != NIB_DIALECT_GGUF);
        if (!l->recode || l->choice.weight_only || l->role == NIB_ROLE_EMBED || !lost ||
            !nib__scheme_is_quantized(&was) || was.act == NIB_ACT_FLOAT || count++ != 0)
            continue;
        nib__shown(a, l->name);
        nib__scheme_name(scheme, &was);
    }
    if (count != 0)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "activations",
                                                      .name = a,
                                                      .asked = scheme,
                                                      .done = "floats",
                                                      .by = NIB_BY_CHECKPOINT,
                                                      .relation = NIB_SETTING_NARROWER},
                                "activations of %zu layers are quantized, which the format %s "
                                "cannot say: what reads it multiplies floats",
                                count, nib__dialect_writer(r->dialect)->name);
}

/* Weights whose activations were quantized, in a format that has no words for those. */
static void tell_activations(nib_rewriting *r)
{
    size_t count = 0;
    char scheme[64], first[64], a[NIB_SHOWN];
    for (size_t i = 0; i < r->job->count; i++) {
        nib_output_weight stored;
        const nib_scheme *was = &r->job->layers[i].choice.scheme;
        if (!r->job->layers[i].recode)
            continue;
        nib__origins_fit(r, i, &stored);
        if (stored.scheme.act == was->act)
            continue;
        nib__scheme_name(scheme, &stored.scheme);
        r->ledger->layers[r->lines[i]].done = nib__ledger_text(r->ledger, "%s", scheme);
        if (count++ != 0)
            continue;
        nib__shown(a, r->job->layers[i].name);
        nib__scheme_name(first, was);
    }
    if (count != 0)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "activations",
                                                      .name = a,
                                                      .asked = first,
                                                      .by = NIB_BY_CHECKPOINT,
                                                      .relation = NIB_SETTING_OTHER},
                                "the format %s cannot say that activations are quantized (%zu "
                                "layers): its readers choose their own",
                                nib__dialect_writer(r->dialect)->name, count);
}

/* Weights that were asked for with float activations, in a format whose readers multiply them with
 * int8 ones in blocks, as Nibble does, too. */
static void tell_blocks(nib_rewriting *r)
{
    size_t count = 0;
    char first[64], a[NIB_SHOWN];
    for (size_t i = 0; i < r->job->count && r->dialect == NIB_DIALECT_GGUF; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        const nib_origin *o = &r->origins[i];
        const bool had_blocks =
            l->recode && !l->choice.weight_only && nib__act_block(nib__weight_act(&o->weight)) > 0;
        if (l->role == NIB_ROLE_EMBED || !nib__layer_is_quantized(l) ||
            l->choice.scheme.act != NIB_ACT_FLOAT || had_blocks || count++ != 0)
            continue;
        nib__shown(a, l->name);
        nib__scheme_name(first, &l->choice.scheme);
    }
    if (count != 0)
        nib__ledger_add_setting(
            r->ledger,
            &(nib_ledger_setting){.code = "activations",
                                  .name = a,
                                  .asked = first,
                                  .done = "int8-block32",
                                  .by = r->job->convert ? NIB_BY_CHECKPOINT : NIB_BY_RECIPE,
                                  .relation = NIB_SETTING_OTHER},
            "readers of GGUF multiply its codes (%zu layers) with int8 activations in blocks; "
            "--recipe weight-only runs them here with floats",
            count);
}

/* Act-order in words that their own reader has dropped: a file that only others open. */
static void tell_order(nib_rewriting *r)
{
    size_t count = 0, first = 0;
    char a[NIB_SHOWN];
    if (r->dialect != NIB_DIALECT_COMPRESSED)
        return;
    for (size_t i = r->job->count; i-- > 0;)
        if (nib__layer_is_quantized(&r->job->layers[i]) && r->origins[i].stored.ordered) {
            count++;
            first = i;
        }
    if (count != 0)
        nib__ledger_add_note(r->ledger, "act-order",
                             "%zu layers are in act-order (weight_g_idx, \"actorder\": \"group\"), "
                             "which compressed-tensors reads up to 0.18; from 0.19 on it refuses "
                             "that config by name; the first is %s",
                             count, nib__shown(a, r->job->layers[first].name));
}

/* Parts that other readers of the model expect as one tensor. */
static void tell_parts(const nib_rewriting *r)
{
    size_t count = 0;
    char a[NIB_SHOWN];
    nib_fused_part first = {.count = 0}, part;
    for (size_t i = 0; i < r->job->count && !r->fuses; i++)
        if (nib__fused_part(&part, r->job->layers[i].name, r->job->fused) && count++ == 0)
            first = part;
    if (count != 0)
        nib__ledger_add_note(r->ledger, "checkpoint",
                             "%zu weights are written by themselves, as Nibble reads them; other "
                             "programs expect them in one tensor with others, such as %s",
                             count, nib__shown(a, first.whole));
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
        const bool described = (layer != SIZE_MAX && r->job->layers[layer].recode) ||
                               nib__rewriting_describes_bias(r, meta->key);
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

/* ---- the whole ---- */

void nib__rewriting_share(nib_rewriting *r)
{
    nib_ledger_layer *lines = r->ledger->layers;
    for (size_t i = 0; i < r->job->count; i++)
        for (size_t j = 0; j < r->job->count && lines[r->lines[i]].kept == NULL; j++)
            if (r->origins[j].from == r->origins[i].from)
                lines[r->lines[i]].kept = lines[r->lines[j]].kept;
}

/* Plain floats are fused as their readers have them; where torchao's metadata names each of them,
 * if they are all of one type. Codes are fused in a GGUF only: elsewhere each part may have its own
 * scheme. */
static bool fuses(const nib_rewriting *r)
{
    const nib_choice *first = &r->job->layers[0].choice;
    bool plain = true, alike = true;
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_choice *choice = &r->job->layers[i].choice;
        plain = plain && !nib__layer_is_quantized(&r->job->layers[i]);
        alike = alike && choice->keep == first->keep &&
                (first->keep || choice->scheme.code == first->scheme.code);
    }
    return r->job->fused != 0 && (r->dialect == NIB_DIALECT_GGUF ||
                                  (plain && (alike || r->dialect != NIB_DIALECT_TORCHAO)));
}

nib_status nib__rewriting_list(nib_rewriting *r, uint64_t shard_limit)
{
    NIB_TRY(nib__origins_find(r));
    NIB_TRY(nib__origins_choose(r));
    NIB_TRY(nib__rewriting_settle_biases(r));
    NIB_TRY(nib__writer_make(&r->writer, r->job->allocator, r->err));
    r->fuses = fuses(r);
    nib__writer_fuse(r->writer, r->fuses ? r->job->fused : r->job->fused & NIB_APART_HEAD_NORMS);
    if (r->dialect == NIB_DIALECT_GGUF)
        nib__writer_use_gguf(r->writer, r->job->gguf);
    NIB_TRY(list_stored(r));
    NIB_TRY(list_shared(r));
    tell_types(r);
    tell_float_activations(r);
    tell_activations(r);
    tell_blocks(r);
    tell_order(r);
    tell_parts(r);
    for (int i = 0; i < NIB_EXTRAS && r->job->extras[i].values != NULL; i++)
        r->extras[i] = nib__writer_add_tensor(r->writer, r->job->extras[i].name, NIB_TYPE_F32,
                                              &r->job->extras[i].count, 1, ++r->unit);
    keep_metadata(r);
    NIB_TRY(name_weights(r));
    return nib__writer_layout(r->writer, shard_limit, r->err);
}
