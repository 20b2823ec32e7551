/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns layers and stored tensors into rewrites. A tensor with two names stays one tensor while
 * both are asked to become the same; otherwise each name gets its own, and the ledger reports it.
 */
#include "output_layout.h"

#include "head_norms.h"
#include "portable_math.h"
#include "renames.h"
#include "rotary.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void nib__output_layout_init(nib_output_layout *r, const nib_quantize_job *job, nib_ledger *ledger,
                             nib_err *err)
{
    *r = (nib_output_layout){.job = job, .ledger = ledger, .err = err};
    nib__arena_init(&r->arena, job->allocator, 0);
    nib__text_init(&r->last_module, job->allocator);
}

void nib__output_layout_free(nib_output_layout *r)
{
    nib__writer_free(r->writer);
    nib__release(r->job->allocator, r->rewrites);
    nib__release(r->job->allocator, (void *)r->names);
    nib__text_free(&r->last_module);
    nib__arena_free(&r->arena);
}

/* ---- the list of rewrites ---- */

nib_rewrite *nib__output_layout_add_rewrite(nib_output_layout *r, const nib_tensor *from)
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

void nib__output_layout_begin_unit(nib_output_layout *r, const char *tensor)
{
    const char *dot = strrchr(tensor, '.');
    const size_t size = dot == NULL ? strlen(tensor) : (size_t)(dot - tensor);
    if (r->last_module.size == size && size != 0 && memcmp(r->last_module.at, tensor, size) == 0)
        return;
    nib__text_clear(&r->last_module);
    nib__text_put(&r->last_module, tensor, size);
    r->unit++;
}

nib_status nib__output_layout_describe(nib_output_layout *r, const char *name,
                                       const char *description)
{
    void *names = (void *)r->names;
    nib_fused_part part;
    if (r->fuses && nib__fused_part(&part, name, r->job->fused)) {
        if (part.part > 0) /* described with the first part */
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

/* The float type that a recipe casts a layer to; NONE: the stored type. */
static nib_type find_cast(const nib_output_layout *r, size_t layer, const nib_tensor *from)
{
    if (layer == SIZE_MAX || r->job->layers[layer].choice.keep)
        return NIB_TYPE_NONE;
    const nib_type type = nib__float_type(r->job->layers[layer].choice.scheme.code);
    return type == from->type ? NIB_TYPE_NONE : type;
}

/* The name of a tensor in the output format. */
static nib_status name_tensor(nib_output_layout *r, const char **out, const char *name)
{
    char other[NIB_RENAME_MAX], a[NIB_SHOWN];
    *out = name;
    if (r->dialect != NIB_DIALECT_GGUF)
        return NIB_OK;
    if (!nib__rename_to_gguf(other, r->job->gguf_arch, name) &&
        nib__checkpoint_gguf(r->job->checkpoint) != NULL)
        return NIB_OK; /* the source GGUF has this name */
    if (!nib__rename_to_gguf(other, r->job->gguf_arch, name))
        return nib__fail(r->err, NIB_NOT_AS_ASKED,
                         "%s: GGUF has no name for this tensor, and GGUF readers refuse files "
                         "with unknown names",
                         nib__escape_string(a, name));
    *out = nib__arena_copy(&r->arena, other, strlen(other));
    return *out != NULL ? NIB_OK : nib__fail_memory(r->err, strlen(other), "a name");
}

nib_status nib__output_layout_pair_rows(nib_output_layout *r, const int32_t **out, nib_role role,
                                        int64_t n)
{
    const int64_t width = r->job->paired_head;
    *out = NULL;
    if (width == 0 || (role != NIB_ROLE_Q && role != NIB_ROLE_K) || n % width != 0)
        return NIB_OK;
    int32_t *rows = nib__arena_take(&r->arena, (uint64_t)n, sizeof *rows);
    if (rows == NULL)
        return nib__fail_memory(r->err, (uint64_t)n * sizeof *rows, "the order of rows");
    for (int64_t i = 0; i < n; i++)
        rows[nib__rotary_stored_row(i, width)] = (int32_t)i;
    *out = rows;
    return NIB_OK;
}

/* Describes a copied tensor for torchao; head norms that are written apart, one by one. */
static nib_status describe_copy(nib_output_layout *r, const nib_tensor *from, const char *name)
{
    static const char plain[] = "{\"_type\": \"Tensor\"}";
    char head[NIB_FUSED_NAME];
    if ((r->job->fused & NIB_APART_HEAD_NORMS) == 0 || !nib__head_norm_name(head, name, 0))
        return nib__output_layout_describe(r, name, plain);
    for (int64_t i = 0; i < (from->rank == 2 ? from->shape[0] : 1); i++)
        if (nib__head_norm_name(head, name, i))
            NIB_TRY(nib__output_layout_describe(r, head, plain));
    return NIB_OK;
}

/* The shape of a tensor in the output; returns its rank. groups: of NIB_RENAME_GROUPS. */
static int shape_in_gguf(int64_t out[NIB_RANK_MAX], const nib_tensor *from, nib_rename_form form,
                         int64_t groups)
{
    memcpy(out, from->shape, NIB_RANK_MAX * sizeof *out);
    if (form == NIB_RENAME_TAPS && from->rank == 3) {
        out[1] = from->shape[2];
        return 2;
    }
    if (form == NIB_RENAME_ROW && from->rank == 2 && from->shape[0] == 1) {
        out[0] = from->shape[1];
        return 1;
    }
    if (from->rank != 1 || (form != NIB_RENAME_COLUMN && form != NIB_RENAME_GROUPS))
        return from->rank;
    const int64_t columns = form == NIB_RENAME_COLUMN ? 1
                            : groups > 0              ? from->shape[0] / groups
                                                      : from->shape[0];
    out[0] /= nib__max(columns, 1);
    out[1] = columns;
    return 2;
}

/* layer: SIZE_MAX if the tensor is not the weight of a layer. */
static nib_status copy_tensor(nib_output_layout *r, const nib_tensor *from, const char *name,
                              size_t layer)
{
    nib_rewrite *w = nib__output_layout_add_rewrite(r, from);
    if (w == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    const char *written;
    NIB_TRY(name_tensor(r, &written, name));
    nib__output_layout_begin_unit(r, name);
    w->kind = NIB_REWRITE_COPY;
    w->name = name;
    w->cast = find_cast(r, layer, from);
    const nib_rename_form form =
        r->dialect == NIB_DIALECT_GGUF ? nib__rename_form(name) : NIB_RENAME_SAME;
    if (r->dialect == NIB_DIALECT_GGUF && from->type != NIB_TYPE_F32 &&
        (form == NIB_RENAME_TAPS || from->rank == 1 || nib__ends_with(from->name, "_norm.weight")))
        w->cast = NIB_TYPE_F32; /* GGUF readers accept vectors and norms only as f32 */
    w->line = layer == SIZE_MAX ? SIZE_MAX : r->lines[layer];
    const nib_type type = w->cast == NIB_TYPE_NONE ? from->type : w->cast;
    int64_t shape[NIB_RANK_MAX];
    const int rank = shape_in_gguf(shape, from, form, r->job->groups);
    w->copy = nib__writer_add_tensor(r->writer, written, type, shape, rank, r->unit);
    if (w->line != SIZE_MAX && r->job->convert && w->cast == NIB_TYPE_NONE)
        r->ledger->layers[w->line].kept = "lossless";
    if (w->line != SIZE_MAX)
        r->ledger->layers[w->line].bytes =
            from->bytes * (uint64_t)nib__type_bits(type) / (uint64_t)nib__type_bits(from->type);
    /* torchao's loader splits each name at the last dot and fails on one without */
    if (r->dialect == NIB_DIALECT_TORCHAO && strchr(name, '.') != NULL)
        return describe_copy(r, from, name);
    return NIB_OK;
}

size_t nib__output_layout_add_part(nib_output_layout *r, const char *module,
                                   const nib_output_part *part)
{
    if (part->suffix == NULL)
        return SIZE_MAX;
    const char *name = nib__ledger_text(r->ledger, "%s%s", module, part->suffix);
    if (name == NULL || name_tensor(r, &name, name) != NIB_OK)
        name = ""; /* every layer has a name */
    return nib__writer_add_tensor(r->writer, name, part->type, part->shape, part->rank, r->unit);
}

/* Adds the dialect's tensors for one weight. */
static void add_weight_parts(nib_output_layout *r, nib_rewrite *w, const char *module)
{
    static const nib_output_part act_scale = {".input_scale", NIB_TYPE_F32, 1, {1}},
                                 act_zero = {".input_zero_point", NIB_TYPE_I32, 1, {1}};
    w->codes = nib__output_layout_add_part(r, module, &w->storage.codes);
    w->scales = nib__output_layout_add_part(r, module, &w->storage.scales);
    w->zeros = nib__output_layout_add_part(r, module, &w->storage.zeros);
    w->tensor = nib__output_layout_add_part(r, module, &w->storage.tensor);
    w->size = nib__output_layout_add_part(r, module, &w->storage.size);
    w->inputs = nib__output_layout_add_part(r, module, &w->storage.inputs);
    if (w->stored.scheme.act == NIB_ACT_I8_STATIC) {
        w->act_scale = nib__output_layout_add_part(r, module, &act_scale);
        if (!w->stored.scheme.act_symmetric)
            w->act_zero = nib__output_layout_add_part(r, module, &act_zero);
    }
    r->ledger->layers[w->line].bytes =
        nib__output_part_bytes(&w->storage.codes) + nib__output_part_bytes(&w->storage.scales) +
        nib__output_part_bytes(&w->storage.zeros) + nib__output_part_bytes(&w->storage.tensor) +
        nib__output_part_bytes(&w->storage.inputs);
}

/* Adds the weight's entry to __metadata__, if the dialect has such entries. */
static nib_status describe_weight(nib_output_layout *r, const nib_dialect_writer *writer,
                                  const char *name, const nib_output_weight *stored)
{
    nib_text text;
    if (writer->describe == NULL)
        return nib__output_layout_describe(
            r, name, r->dialect == NIB_DIALECT_TORCHAO ? "{\"_type\": \"Tensor\"}" : NULL);
    nib__text_init(&text, r->job->allocator);
    writer->describe(&text, stored);
    const nib_status status = text.failed ? nib__fail_memory(r->err, text.size, name)
                                          : nib__output_layout_describe(r, name, text.at);
    nib__text_free(&text);
    return status;
}

/* Adds layer i, quantized or recoded, as the dialect's tensors. */
static nib_status write_layer(nib_output_layout *r, size_t i)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    nib_output_source *o = &r->sources[i];
    nib_rewrite *w = nib__output_layout_add_rewrite(r, o->from);
    const char *name = nib__ledger_text(r->ledger, "%s.weight", l->name);
    if (w == NULL || name == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    const nib_dialect_writer *writer = nib__scheme_is_quantized(&l->choice.scheme)
                                           ? nib__dialect_writer(r->dialect)
                                           : &nib__write_float;
    nib__output_layout_begin_unit(r, name);
    w->kind = l->recode ? NIB_REWRITE_RECODE : NIB_REWRITE_QUANTIZE;
    w->layer = l;
    w->line = r->lines[i];
    w->quantizer = o->quantizer;
    w->weight = o->weight;
    nib__output_sources_fit(r, i, &w->stored);
    o->listed = true;
    NIB_TRY(nib__output_bias_add_to_weight(r, i, w));
    NIB_TRY(nib__output_layout_pair_rows(r, &w->written_rows, l->role, w->stored.n));
    writer->layout(&w->storage, &w->stored);
    add_weight_parts(r, w, l->name);
    return describe_weight(r, writer, name, &w->stored);
}

/* The layer whose weight is this tensor; SIZE_MAX: none. */
static size_t find_weight_layer(const nib_output_layout *r, const char *tensor)
{
    char module[512];
    const size_t size = strlen(tensor);
    if (size < 7 || size - 7 >= sizeof module || strcmp(tensor + size - 7, ".weight") != 0)
        return SIZE_MAX;
    memcpy(module, tensor, size - 7);
    module[size - 7] = 0;
    return nib__name_index_find(&r->by_name, (const void *const *)r->layers, module);
}

/* Reorders the rows of a tensor into a copy: out[j] is from[rows[j]]. */
static nib_status reorder_rows(nib_output_layout *r, nib_tensor *tensor, const int32_t *rows)
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

/* A layer's bias in written order: the stored tensor, or a reordered copy. */
static nib_status find_bias(nib_output_layout *r, size_t t, const nib_tensor **out)
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
        NIB_TRY(nib__output_layout_pair_rows(r, &rows, r->layers[layer]->role, w.n));
    if (w.bias == NULL || (w.bias == from->data && rows == NULL))
        return NIB_OK;
    nib_tensor *moved = nib__arena_take(&r->arena, 1, sizeof *moved);
    if (moved == NULL)
        return nib__fail_memory(r->err, sizeof *moved, "a bias");
    *moved = *from;
    moved->data = w.bias;
    *out = moved;
    return rows == NULL ? NIB_OK : reorder_rows(r, moved, rows);
}

/* The recoded layer that contains tensor t, other than as its bias; SIZE_MAX: none. */
static size_t find_recoded_layer(const nib_output_layout *r, size_t t)
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
    if (r->job->layers[i].source != NULL) /* a tied output is written as the embedding */
        i = nib__name_index_find(&r->by_name, (const void *const *)r->layers,
                                 r->job->layers[i].source);
    return i;
}

/* Shifts a norm's weight into the output format's convention, in a copy. */
static nib_status shift_norm(nib_output_layout *r, const nib_tensor **tensor)
{
    const nib_tensor *from = *tensor;
    if (r->job->norm_shift == 0 || from->rank != 1 || !nib__type_is_float(from->type) ||
        !nib__rename_is_offset(from->name))
        return NIB_OK;
    nib_tensor *shifted = nib__arena_take(&r->arena, 1, sizeof *shifted);
    float *values = nib__arena_take(&r->arena, (uint64_t)from->shape[0], sizeof *values);
    if (shifted == NULL || values == NULL)
        return nib__fail_memory(r->err, (uint64_t)from->shape[0] * sizeof *values, from->name);
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

/* Turns A_log of a recurrence into -e^A_log, as a GGUF has it, or back, in a copy. The latter can
 * miss: the ledger says how many rates are then others. */
static nib_status change_rates(nib_output_layout *r, const nib_tensor **tensor)
{
    const nib_tensor *from = *tensor;
    const bool to_gguf = r->dialect == NIB_DIALECT_GGUF;
    int64_t missed = 0;
    double most = 0;
    char a[NIB_SHOWN];
    if (to_gguf == r->job->has_rates || !nib__rename_is_rates(from->name) || from->rank != 1 ||
        !nib__type_is_float(from->type))
        return NIB_OK;
    nib_tensor *changed = nib__arena_take(&r->arena, 1, sizeof *changed);
    const size_t n = (size_t)from->shape[0];
    float *values = nib__arena_take(&r->arena, n, sizeof *values);
    if (changed == NULL || values == NULL)
        return nib__fail_memory(r->err, n * sizeof *values, from->name);
    nib__to_f32(values, from->data, from->type, from->shape[0]);
    for (size_t i = 0; i < n; i++) {
        const double rate = to_gguf ? nib__exp((double)values[i]) : -(double)values[i];
        if (!to_gguf && !(rate > 0 && rate <= FLT_MAX))
            return nib__fail(r->err, NIB_BAD_INPUT,
                             "%s: the rate of head %zu is %g; a negative number is expected, which "
                             "is -e^A_log",
                             nib__escape_string(a, from->name), i, -rate);
        values[i] = to_gguf ? (float)-rate : (float)nib__log(rate);
        const double again = to_gguf ? rate : (double)(float)nib__exp((double)values[i]);
        missed += !to_gguf && again != rate;
        most = fmax(most, to_gguf ? 0 : fabs(again / rate - 1));
    }
    if (missed > 0)
        nib__ledger_add_note(r->ledger, "checkpoint",
                             "%s: no f32 has exactly the rates of %" PRId64 " of its %zu heads as "
                             "e^A_log; they change by at most %.1g of themselves",
                             nib__escape_string(a, from->name), missed, n, most);
    *changed = *from;
    changed->type = NIB_TYPE_F32;
    changed->data = (const void *)values;
    changed->bytes = n * sizeof *values;
    *tensor = changed;
    return NIB_OK;
}

/* Gives a vector the values that a method changed, in a copy. */
static nib_status change_vector(nib_output_layout *r, const nib_tensor **tensor)
{
    const nib_tensor *from = *tensor;
    const nib_vector *v = r->job->vectors, *end = v + r->job->vector_count;
    while (v < end && strcmp(v->name, from->name) != 0)
        v++;
    if (v == end)
        return NIB_OK;
    nib_tensor *changed = nib__arena_take(&r->arena, 1, sizeof *changed);
    void *values = nib__arena_take(&r->arena, from->bytes, 1);
    if (changed == NULL || values == NULL)
        return nib__fail_memory(r->err, from->bytes, from->name);
    nib__from_f32(values, from->type, v->values, v->count);
    *changed = *from;
    changed->data = values;
    *tensor = changed;
    return NIB_OK;
}

/* Adds a source tensor that is only hashed, not written by itself. */
static nib_status add_hash_only(nib_output_layout *r, const nib_tensor *from)
{
    nib_rewrite *w = nib__output_layout_add_rewrite(r, from);
    if (w == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    w->kind = NIB_REWRITE_HASH;
    return NIB_OK;
}

/* True for a tensor of rotary frequencies, if only the source's container stores it and the
 * output's config implies it. */
static bool is_implied(const nib_output_layout *r, const nib_tensor *from)
{
    const bool in_gguf = nib__checkpoint_gguf(r->job->checkpoint) != NULL;
    return nib__is_rotary_table(from->name) &&
           (r->dialect == NIB_DIALECT_GGUF ? !in_gguf : in_gguf && r->directory);
}

static nib_status list_stored(nib_output_layout *r)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    char a[NIB_SHOWN];
    for (size_t t = 0; t < nib__checkpoint_count(cp); t++) {
        const nib_tensor *from = nib__checkpoint_at(cp, t);
        const size_t i = find_weight_layer(r, from->name), recoded = find_recoded_layer(r, t);
        const size_t bias = nib__output_bias_layer(r, t);
        if (bias != SIZE_MAX) {
            NIB_TRY(nib__output_bias_add(r, bias, from));
        } else if (recoded != SIZE_MAX && r->sources[recoded].listed) {
            NIB_TRY(add_hash_only(r, from));
        } else if (recoded != SIZE_MAX) {
            NIB_TRY(write_layer(r, recoded));
        } else if (i != SIZE_MAX && nib__layer_is_quantized(&r->job->layers[i])) {
            NIB_TRY(write_layer(r, i));
        } else if (is_implied(r, from)) {
            NIB_TRY(add_hash_only(r, from));
            nib__ledger_add_setting(r->ledger,
                                    &(nib_ledger_setting){.code = "dropped",
                                                          .name = nib__escape_string(a, from->name),
                                                          .by = NIB_BY_CHECKPOINT,
                                                          .relation = NIB_SETTING_EQUIVALENT},
                                    "it is not written: the format has no name for it, and the "
                                    "config implies its values");
        } else {
            NIB_TRY(find_bias(r, t, &from));
            NIB_TRY(change_vector(r, &from));
            NIB_TRY(shift_norm(r, &from));
            NIB_TRY(change_rates(r, &from));
            NIB_TRY(copy_tensor(r, from, from->name, i));
        }
    }
    return NIB_OK;
}

/* Two names share a tensor while both are kept, cast to the same float type or, in a dialect that
 * ties, coded alike. Otherwise a layer without a tensor of its own gets one. */
static nib_status list_shared(nib_output_layout *r)
{
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        const char *name = nib__ledger_text(r->ledger, "%s.weight", l->name);
        if (name == NULL)
            return nib__fail_memory(r->err, strlen(l->name), "a name");
        const nib_tensor *from = r->sources[i].from;
        const bool turns = l->turn != NULL; /* otherwise than the weight that it shares */
        if (strcmp(from->name, name) == 0 || (l->recode && !turns) ||
            nib__output_sources_shared(r, r->dialect, i))
            continue;
        const size_t owner = find_weight_layer(r, from->name);
        const bool owner_quantized =
            owner != SIZE_MAX && nib__layer_is_quantized(&r->job->layers[owner]);
        if (nib__layer_is_quantized(l) || turns)
            NIB_TRY(write_layer(r, i));
        else if (owner_quantized || find_cast(r, i, from) != find_cast(r, owner, from))
            NIB_TRY(copy_tensor(r, from, name, i));
        else
            continue;
        r->separated[r->separated_count++] = name;
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "untied",
                                                      .name = name,
                                                      .by = NIB_BY_CHECKPOINT,
                                                      .relation = NIB_SETTING_EQUIVALENT},
                                "it shared the tensor %s; it is written as a tensor of its own%s",
                                from->name,
                                r->sources[i].shares == SIZE_MAX
                                    ? ""
                                    : ", with the same codes: --format nibble stores them once");
    }
    return NIB_OK;
}

/* Reports that --dtype does not change norms, biases and other tensors. */
static void report_kept_types(nib_output_layout *r)
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
                                count, nib__escape_string(a, first->name),
                                nib__type_name(first->type));
}

/* Reports codes that lose their quantized activations, whether from the scheme or implied by the
 * container: written as floats, or in a format that only has the scheme's. */
static void report_lost_activations(nib_output_layout *r)
{
    size_t count = 0;
    char scheme[64], a[NIB_SHOWN];
    for (size_t i = 0; i < r->job->count; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        nib_scheme was = r->sources[i].weight.scheme;
        was.act = nib__weight_act(&r->sources[i].weight);
        const bool lost = !nib__layer_is_quantized(l) ||
                          (nib__act_block(was.act) > 0 && r->dialect != NIB_DIALECT_GGUF);
        if (!l->recode || l->choice.weight_only || l->role == NIB_ROLE_EMBED || !lost ||
            !nib__scheme_is_quantized(&was) || was.act == NIB_ACT_FLOAT || count++ != 0)
            continue;
        nib__escape_string(a, l->name);
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
                                "cannot record: its readers use float activations",
                                count, nib__dialect_name(r->dialect));
}

/* Reports weights with quantized activations in a format that cannot record them. */
static void report_unrecorded_activations(nib_output_layout *r)
{
    size_t count = 0;
    char scheme[64], first[64], a[NIB_SHOWN];
    for (size_t i = 0; i < r->job->count; i++) {
        nib_output_weight stored;
        const nib_scheme *was = &r->job->layers[i].choice.scheme;
        if (!r->job->layers[i].recode)
            continue;
        nib__output_sources_fit(r, i, &stored);
        if (stored.scheme.act == was->act)
            continue;
        nib__scheme_name(scheme, &stored.scheme);
        r->ledger->layers[r->lines[i]].done = nib__ledger_text(r->ledger, "%s", scheme);
        if (count++ != 0)
            continue;
        nib__escape_string(a, r->job->layers[i].name);
        nib__scheme_name(first, was);
    }
    if (count != 0)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "activations",
                                                      .name = a,
                                                      .asked = first,
                                                      .by = NIB_BY_CHECKPOINT,
                                                      .relation = NIB_SETTING_OTHER},
                                "the format %s cannot record that activations are quantized (%zu "
                                "layers): its readers choose their own",
                                nib__dialect_name(r->dialect), count);
}

/* Reports weights asked for with float activations in GGUF, whose readers, Nibble included,
 * multiply them with int8 activations in blocks. */
static void report_block_activations(nib_output_layout *r)
{
    size_t count = 0;
    char first[64], a[NIB_SHOWN];
    for (size_t i = 0; i < r->job->count && r->dialect == NIB_DIALECT_GGUF; i++) {
        const nib_quantize_layer *l = &r->job->layers[i];
        const nib_output_source *o = &r->sources[i];
        const bool had_blocks =
            l->recode && !l->choice.weight_only && nib__act_block(nib__weight_act(&o->weight)) > 0;
        if (l->role == NIB_ROLE_EMBED || !nib__layer_is_quantized(l) ||
            l->choice.scheme.act != NIB_ACT_FLOAT || had_blocks || count++ != 0)
            continue;
        nib__escape_string(a, l->name);
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
            "GGUF readers multiply its codes (%zu layers) with int8 activations in blocks; "
            "--recipe weight-only makes Nibble use float activations",
            count);
}

/* Reports act-order in compressed-tensors, whose own newer versions refuse it. */
static void report_act_order(nib_output_layout *r)
{
    size_t count = 0, first = 0;
    char a[NIB_SHOWN];
    if (r->dialect != NIB_DIALECT_COMPRESSED)
        return;
    for (size_t i = r->job->count; i-- > 0;)
        if (nib__layer_is_quantized(&r->job->layers[i]) && r->sources[i].stored.ordered) {
            count++;
            first = i;
        }
    if (count != 0)
        nib__ledger_add_note(r->ledger, "act-order",
                             "%zu layers are in act-order (weight_g_idx, \"actorder\": "
                             "\"group\"), which compressed-tensors reads up to 0.18 and refuses "
                             "from 0.19 on; the first is %s",
                             count, nib__escape_string(a, r->job->layers[first].name));
}

/* Reports separate weights that other programs expect fused. */
static void report_unfused(const nib_output_layout *r)
{
    size_t count = 0;
    char a[NIB_SHOWN];
    nib_fused_part first = {.count = 0}, part;
    for (size_t i = 0; i < r->job->count && !r->fuses; i++)
        if (nib__fused_part(&part, r->job->layers[i].name, r->job->fused) && count++ == 0)
            first = part;
    if (count != 0)
        nib__ledger_add_note(r->ledger, "checkpoint",
                             "%zu weights are written as separate tensors, as Nibble reads them; "
                             "other programs expect them fused, for example as %s",
                             count, nib__escape_string(a, first.whole));
}

/* Reports experts and heads that other programs expect in one tensor. */
static void report_unstacked(const nib_output_layout *r)
{
    const size_t heads = nib__writer_unjoined_heads(r->writer);
    if (heads != 0)
        nib__ledger_add_note(
            r->ledger, "checkpoint",
            "%zu kv_b_proj are written as k_b_proj and v_b_proj of each head, whose "
            "types differ; other programs expect kv_b_proj",
            heads);
    const size_t stacks = r->dialect == NIB_DIALECT_FLOAT && r->job->family != NULL
                              ? nib__writer_unjoined(r->writer)
                              : nib__checkpoint_stacks(r->job->checkpoint);
    if (stacks != 0 && r->dialect != NIB_DIALECT_GGUF)
        nib__ledger_add_note(r->ledger, "checkpoint",
                             "%zu stack%s of experts %s written expert by expert, as Nibble reads "
                             "them; other programs may expect %s",
                             stacks, stacks > 1 ? "s" : "", stacks > 1 ? "are" : "is",
                             stacks > 1 ? "the stacks" : "the stack");
}

/* ---- metadata ---- */

static bool was_separated(const nib_output_layout *r, const char *name)
{
    for (size_t i = 0; i < r->separated_count; i++)
        if (strcmp(r->separated[i], name) == 0)
            return true;
    return false;
}

/* Copies the source's metadata that still holds: not descriptions of tensors, ended aliases, or
 * entries about the whole file. */
static void keep_metadata(nib_output_layout *r)
{
    const nib_checkpoint *cp = r->job->checkpoint;
    bool format = false;
    for (size_t i = 0; i < nib__checkpoint_meta_count(cp); i++) {
        const nib_meta *meta = nib__checkpoint_meta_at(cp, i);
        const bool alias = nib__checkpoint_alias(cp, meta->key) != NULL;
        const size_t layer = find_weight_layer(r, meta->key);
        const bool described = (layer != SIZE_MAX && r->job->layers[layer].recode) ||
                               nib__output_bias_is_described(r, meta->key);
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

static nib_status name_weights(nib_output_layout *r)
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

void nib__output_layout_share_kept(nib_output_layout *r)
{
    nib_ledger_layer *lines = r->ledger->layers;
    for (size_t i = 0; i < r->job->count; i++)
        for (size_t j = 0; j < r->job->count && lines[r->lines[i]].kept == NULL; j++)
            if (r->sources[j].from == r->sources[i].from)
                lines[r->lines[i]].kept = lines[r->lines[j]].kept;
    for (size_t i = 0; i < r->job->count; i++)
        if (nib__output_sources_shared(r, r->dialect, i))
            lines[r->lines[i]].sqnr_db = lines[r->lines[r->sources[i].shares]].sqnr_db;
}

/* Plain floats are fused as readers expect them; for torchao, whose metadata names each tensor,
 * only if all have one type. Codes are fused only in GGUF: elsewhere each part may have its own
 * scheme. */
static bool should_fuse(const nib_output_layout *r)
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

nib_status nib__output_layout_make(nib_output_layout *r, uint64_t shard_limit)
{
    NIB_TRY(nib__output_sources_find(r));
    NIB_TRY(nib__output_sources_choose_dialect(r));
    NIB_TRY(nib__output_bias_settle(r));
    NIB_TRY(nib__writer_make(&r->writer, r->job->allocator, r->err));
    r->fuses = should_fuse(r);
    nib__writer_fuse(r->writer, r->fuses ? r->job->fused : r->job->fused & NIB_APART_HEAD_NORMS);
    if (r->dialect == NIB_DIALECT_GGUF)
        nib__writer_use_gguf(r->writer, r->job->gguf);
    if (r->dialect == NIB_DIALECT_FLOAT && r->job->family != NULL)
        nib__writer_family(r->writer, r->job->family, nib__checkpoint_prefixed(r->job->checkpoint));
    NIB_TRY(list_stored(r));
    NIB_TRY(list_shared(r));
    report_kept_types(r);
    report_lost_activations(r);
    report_unrecorded_activations(r);
    report_block_activations(r);
    report_act_order(r);
    report_unfused(r);
    for (int i = 0; i < NIB_EXTRAS && r->job->extras[i].values != NULL; i++)
        r->extras[i] = nib__writer_add_tensor(r->writer, r->job->extras[i].name, NIB_TYPE_F32,
                                              &r->job->extras[i].count, 1, ++r->unit);
    keep_metadata(r);
    NIB_TRY(name_weights(r));
    NIB_TRY(nib__writer_layout(r->writer, shard_limit, r->err));
    report_unstacked(r);
    return NIB_OK;
}
