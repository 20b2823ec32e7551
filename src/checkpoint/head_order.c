/* SPDX-License-Identifier: Apache-2.0
 *
 * Orders of heads as lists of rows: element i of a list is the row, or column, of the tensor as
 * stored that comes at place i. Blocks of a GGUF move as they are if each belongs to one head; else
 * the weight becomes f32.
 */
#include "head_order.h"

#include "checkpoint_inside.h"
#include "fused.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct reorder {
    nib_checkpoint *cp;
    const nib_checkpoint *before; /* with the tensors as stored */
    const nib_head_order *o;
    nib_err *err;
    bool to_gguf;
    int32_t *channels, *values, *heads; /* of q, k and v; of v; of the heads of values */
    int32_t *mixed, *apart;             /* joined: q, k and v; z */
    int64_t drafts, left_out, decoded;
} reorder;

int64_t nib__head_order_other(const nib_head_order *o, int64_t h, bool in_gguf)
{
    const int64_t each = o->heads / o->key_heads;
    if (!o->by_turns)
        return h;
    return in_gguf ? h % o->key_heads * each + h / o->key_heads
                   : h % each * o->key_heads + h / each;
}

static int64_t width_of_values(const nib_head_order *o) { return o->heads * o->value_dim; }

static int64_t width_of_keys(const nib_head_order *o) { return o->key_heads * o->key_dim; }

void nib__head_order_inputs(double *values, double *room, const nib_head_order *o,
                            const char *layer)
{
    const size_t head = (size_t)o->value_dim;
    if (!nib__ends_with(layer, ".linear_attn.out_proj"))
        return;
    memcpy(room, values, (size_t)o->heads * head * sizeof *room);
    for (int64_t h = 0; h < o->heads; h++)
        memcpy(values + (size_t)h * head, room + (size_t)nib__head_order_other(o, h, false) * head,
               head * sizeof *room);
}

/* ---- lists ---- */

/* Where the rows of in_proj_qkvz are: those of q, k and v in order, then those of z. */
static void list_joined(reorder *r)
{
    const nib_head_order *o = r->o;
    const int64_t values = width_of_values(o) / o->key_heads,
                  widths[] = {o->key_dim, o->key_dim, values, values},
                  all = 2 * (o->key_dim + values);
    int32_t *to = r->mixed;
    for (int64_t part = 0, first = 0; part < 4; first += widths[part++]) {
        to = part == 3 ? r->apart : to;
        for (int64_t g = 0; g < o->key_heads; g++)
            for (int64_t i = 0; i < widths[part]; i++)
                *to++ = (int32_t)(g * all + first + i);
    }
}

static nib_status make_lists(reorder *r)
{
    const nib_head_order *o = r->o;
    const int64_t values = width_of_values(o), keys = 2 * width_of_keys(o), all = keys + values;
    int32_t **const lists[] = {&r->channels, &r->values, &r->heads, &r->mixed, &r->apart};
    const int64_t sizes[] = {all, values, o->heads, all, values};
    for (size_t i = 0; i < COUNT(lists); i++) {
        r->cp->arena.limit += (size_t)sizes[i] * sizeof **lists[i];
        *lists[i] = nib__arena_take(&r->cp->arena, (uint64_t)sizes[i], sizeof **lists[i]);
        if (*lists[i] == NULL)
            return nib__checkpoint_no_memory(r->err, r->cp->path);
    }
    for (int64_t i = 0; i < keys; i++)
        r->channels[i] = (int32_t)i;
    for (int64_t h = 0; h < o->heads; h++) {
        const int64_t from = nib__head_order_other(o, h, r->to_gguf);
        r->heads[h] = (int32_t)from;
        for (int64_t i = 0; i < o->value_dim; i++) {
            r->values[h * o->value_dim + i] = (int32_t)(from * o->value_dim + i);
            r->channels[keys + h * o->value_dim + i] = (int32_t)(keys + from * o->value_dim + i);
        }
    }
    list_joined(r);
    return NIB_OK;
}

/* ---- tensors ---- */

static nib_status fail_shape(const reorder *r, const nib_tensor *t, int dimension, int64_t want)
{
    char a[NIB_SHOWN], shape[NIB_SHAPE_SHOWN];
    return nib__fail(r->err, NIB_BAD_INPUT,
                     "%s: %s has shape %s, but dimension %d has %" PRId64
                     " elements by the sizes of heads",
                     r->cp->path, nib__escape_string(a, t->name),
                     nib__format_shape(shape, t->shape, t->rank), dimension, want);
}

/* A tensor like t under this name, with room for its values unless bytes is 0; NULL: no memory. */
static nib_tensor *like(reorder *r, const nib_tensor *t, const char *name, uint64_t bytes,
                        uint8_t **room)
{
    nib_arena *arena = &r->cp->arena;
    arena->limit += (size_t)bytes;
    nib_tensor *out = nib__arena_take(arena, 1, sizeof *out);
    *room = bytes > 0 ? nib__arena_take(arena, bytes, 1) : NULL;
    if (out == NULL || (bytes > 0 && *room == NULL))
        return NULL;
    *out = *t;
    out->name = nib__arena_copy(arena, name, strlen(name));
    if (bytes > 0)
        out->data = *room, out->bytes = bytes, out->rows = NULL;
    return out->name != NULL ? out : NULL;
}

/* Adds a view of the rows of a matrix. n: those that t must have. */
static nib_status add_rows(reorder *r, const nib_tensor *t, const char *name, const int32_t *rows,
                           int64_t count, int64_t n)
{
    uint8_t *none;
    if (t->rank != 2 || t->shape[0] != n)
        return fail_shape(r, t, 0, n);
    nib_tensor *out = like(r, t, name, 0, &none);
    if (out == NULL)
        return nib__checkpoint_no_memory(r->err, r->cp->path);
    out->shape[0] = count;
    out->bytes = t->bytes / (uint64_t)n * (uint64_t)count;
    out->rows = rows;
    return nib__checkpoint_add_view(r->cp, out, r->err);
}

/* Adds a copy of a vector, or of the taps of channels. */
static nib_status add_vector(reorder *r, const nib_tensor *t, const int32_t *rows, int64_t n)
{
    uint8_t *to;
    if (t->rank < 1 || t->shape[0] != n)
        return fail_shape(r, t, 0, n);
    nib_tensor *out = like(r, t, t->name, t->bytes, &to);
    const size_t row = (size_t)(t->bytes / (uint64_t)n);
    for (int64_t i = 0; out != NULL && i < n; i++)
        memcpy(to + (size_t)i * row, t->data + (size_t)rows[i] * row, row);
    return nib__checkpoint_add_view(r->cp, out, r->err);
}

/* Whether t is of floats, or a matrix in blocks of a GGUF that can be read. */
static bool is_readable(const nib_tensor *t)
{
    nib_weight w;
    return t->bytes > 0 && t->rows == NULL && t->stored_n == 0 &&
           (nib__type_is_float(t->type) ||
            (t->rank == 2 && nib__block_weight(&w, t->type, t->shape[0], t->shape[1], t->data)));
}

/* Decodes the rows of a weight in floats or blocks, [n][k], as f32. */
static void decode(float *out, const nib_tensor *t)
{
    nib_weight w;
    const int64_t n = t->shape[0], k = t->shape[1];
    if (!nib__block_weight(&w, t->type, n, k, t->data)) {
        nib__to_f32(out, t->data, t->type, n * k);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        nib__weight_row(&w, i, out + i * k);
}

/* The tensor as f32, [n][k]; NULL: no memory. */
static nib_tensor *as_f32(reorder *r, const nib_tensor *t)
{
    uint8_t *to;
    nib_tensor *out =
        like(r, t, t->name, (uint64_t)(t->shape[0] * t->shape[1]) * sizeof(float), &to);
    if (out == NULL)
        return NULL;
    decode((void *)to, t);
    out->type = NIB_TYPE_F32;
    r->decoded += t->type != NIB_TYPE_F32;
    return out;
}

/* Adds a copy of a matrix whose columns are those of the heads of values. */
static nib_status add_columns(reorder *r, const nib_tensor *t)
{
    uint8_t *to;
    const int64_t k = width_of_values(r->o), n = t->shape[0];
    if (t->rank != 2 || t->shape[1] != k)
        return fail_shape(r, t, 1, k);
    if (r->o->value_dim % nib__type_block_elements(t->type) != 0 && (t = as_f32(r, t)) == NULL)
        return nib__checkpoint_no_memory(r->err, r->cp->path);
    nib_tensor *out = like(r, t, t->name, t->bytes, &to);
    const size_t row = (size_t)(t->bytes / (uint64_t)n), head = row / (size_t)r->o->heads;
    for (int64_t i = 0; out != NULL && i < n; i++)
        for (int64_t h = 0; h < r->o->heads; h++)
            memcpy(to + (size_t)i * row + (size_t)h * head,
                   t->data + (size_t)i * row + (size_t)r->heads[h] * head, head);
    return nib__checkpoint_add_view(r->cp, out, r->err);
}

/* Adds in_proj_qkvz from in_proj_qkv, which t is, and in_proj_z. */
static nib_status add_joined(reorder *r, const nib_tensor *t, const char *name)
{
    char z_name[NIB_FUSED_NAME];
    uint8_t *to;
    const int64_t z_rows = width_of_values(r->o), rows = z_rows + 2 * width_of_keys(r->o);
    const size_t before = strlen(name) - (sizeof "qkvz.weight" - 1);
    snprintf(z_name, sizeof z_name, "%.*sz.weight", (int)before, name);
    const nib_tensor *z = nib__checkpoint_find(r->before, z_name);
    if (t->rank != 2 || t->shape[0] != rows)
        return fail_shape(r, t, 0, rows);
    if (z == NULL || !is_readable(z) || z->rank != 2 || z->shape[0] != z_rows ||
        z->shape[1] != t->shape[1])
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s is missing, or not a matrix of %" PRId64 " x %" PRId64,
                         r->cp->path, z_name, z_rows, t->shape[1]);
    const bool same = z->type == t->type;
    if (!same && ((z = as_f32(r, z)) == NULL || (t = as_f32(r, t)) == NULL))
        return nib__checkpoint_no_memory(r->err, r->cp->path);
    nib_tensor *out = like(r, t, name, t->bytes + z->bytes, &to);
    if (out == NULL)
        return nib__checkpoint_no_memory(r->err, r->cp->path);
    const size_t row = (size_t)(t->bytes / (uint64_t)rows);
    out->shape[0] = rows + z_rows;
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + (size_t)r->mixed[i] * row, t->data + (size_t)i * row, row);
    for (int64_t i = 0; i < z_rows; i++)
        memcpy(to + (size_t)r->apart[i] * row, z->data + (size_t)i * row, row);
    return nib__checkpoint_add_view(r->cp, out, r->err);
}

/* ---- which tensor ---- */

enum place { KEPT, CHANNELS, VALUES, HEADS, COLUMNS, VECTOR, TAPS, WHOLE, MIXED, APART };

/* By the name after that of the layer. */
static const struct place_row {
    const char *name;
    enum place place;
    bool joined; /* of models with in_proj_qkvz elsewhere */
} places[] = {{"in_proj_qkv.weight", CHANNELS, false},
              {"in_proj_z.weight", VALUES, false},
              {"in_proj_b.weight", HEADS, false},
              {"in_proj_a.weight", HEADS, false},
              {"out_proj.weight", COLUMNS, false},
              {"conv1d.weight", TAPS, false},
              {"A_log", VECTOR, false},
              {"dt_bias", VECTOR, false},
              {"norm.weight", KEPT, false},
              {"in_proj_qkvz.weight", WHOLE, true},
              {"in_proj_qkv.weight", MIXED, true},
              {"in_proj_z.weight", APART, true},
              {"in_proj_ba.weight", KEPT, true},
              {"out_proj.weight", KEPT, true},
              {"conv1d.weight", KEPT, true},
              {"A_log", KEPT, true},
              {"dt_bias", KEPT, true},
              {"norm.weight", KEPT, true}};

static const struct place_row *find_place(const reorder *r, const char *part)
{
    for (size_t i = 0; i < COUNT(places); i++)
        if (places[i].joined == r->o->joined && strcmp(places[i].name, part) == 0)
            return &places[i];
    return NULL;
}

static nib_status add_whole(reorder *r, const nib_tensor *t)
{
    char name[NIB_FUSED_NAME];
    const int64_t z = width_of_values(r->o), mixed = z + 2 * width_of_keys(r->o);
    const int before = (int)(strlen(t->name) - (sizeof "qkvz.weight" - 1));
    snprintf(name, sizeof name, "%.*sqkv.weight", before, t->name);
    NIB_TRY(add_rows(r, t, name, r->mixed, mixed, mixed + z));
    snprintf(name, sizeof name, "%.*sz.weight", before, t->name);
    return add_rows(r, t, name, r->apart, z, mixed + z);
}

/* Adds a tensor of gated DeltaNet. part: its name after "linear_attn.". */
static nib_status add_delta(reorder *r, const nib_tensor *t, const char *part)
{
    char name[NIB_FUSED_NAME], a[NIB_SHOWN];
    const struct place_row *row = find_place(r, part);
    const int64_t values = width_of_values(r->o), channels = values + 2 * width_of_keys(r->o);
    if (row == NULL || strlen(t->name) + 2 > sizeof name || !is_readable(t))
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: %s has no place in the order of heads that %s has; give the model "
                         "with floats in these layers",
                         r->cp->path, nib__escape_string(a, t->name),
                         r->to_gguf ? "a GGUF" : "a config.json's model");
    switch (row->place) {
    case CHANNELS: return add_rows(r, t, t->name, r->channels, channels, channels);
    case VALUES: return add_rows(r, t, t->name, r->values, values, values);
    case HEADS: return add_rows(r, t, t->name, r->heads, r->o->heads, r->o->heads);
    case COLUMNS: return add_columns(r, t);
    case VECTOR: return add_vector(r, t, r->heads, r->o->heads);
    case TAPS: return add_vector(r, t, r->channels, channels);
    case WHOLE: return add_whole(r, t);
    case MIXED:
        snprintf(name, sizeof name, "%.*sqkvz.weight",
                 (int)(strlen(t->name) - (sizeof "qkv.weight" - 1)), t->name);
        return add_joined(r, t, name);
    case APART: return NIB_OK; /* with in_proj_qkv */
    case KEPT: break;
    }
    return nib__checkpoint_add_view(r->cp, t, r->err);
}

/* ---- draft heads ---- */

/* The name in the other order of what a draft head has; false: none. layer: of the tensor, past
 * those of the model in a GGUF, and `part` what follows its number, if it has one. */
static bool rename_draft(char out[NIB_FUSED_NAME], const reorder *r, const char *name,
                         int64_t layer, const char *part)
{
    const nib_head_order *o = r->o;
    char module[NIB_FUSED_NAME];
    int size = NIB_FUSED_NAME;
    for (size_t i = 0; i < COUNT(o->names); i++) {
        snprintf(module, sizeof module, "%s.weight", o->names[i][r->to_gguf ? 0 : 1]);
        if (strcmp(r->to_gguf ? name : part, module) == 0) {
            part = r->to_gguf ? o->names[i][1] : o->names[i][0];
            size = r->to_gguf ? snprintf(out, NIB_FUSED_NAME, "model.layers.%" PRId64 ".%s.weight",
                                         o->layers, part)
                              : snprintf(out, NIB_FUSED_NAME, "%s.weight", part);
            return size < NIB_FUSED_NAME;
        }
    }
    if (part[0] != 0 && r->to_gguf)
        size =
            snprintf(out, NIB_FUSED_NAME, "model.layers.%" PRId64 ".%s", o->layers + layer, part);
    else if (part[0] != 0)
        size =
            snprintf(out, NIB_FUSED_NAME, "%s%" PRId64 ".%s", o->prefix, layer - o->layers, part);
    return size < NIB_FUSED_NAME;
}

/* Adds a tensor of a draft head under its other name. part: after the number of its layer. */
static nib_status add_draft(reorder *r, const nib_tensor *t, int64_t layer, const char *part)
{
    char name[NIB_FUSED_NAME], a[NIB_SHOWN];
    uint8_t *none;
    r->drafts = nib__max(r->drafts, 1 + (r->to_gguf ? layer : layer - r->o->layers));
    if (!r->o->drafts && r->to_gguf) {
        r->left_out++;
        return NIB_OK;
    }
    if (!rename_draft(name, r, t->name, layer, part))
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: %s of a draft head has no name in the other format", r->cp->path,
                         nib__escape_string(a, t->name));
    return nib__checkpoint_add_view(r->cp, like(r, t, name, 0, &none), r->err);
}

/* Adds one tensor, or those that it becomes. */
static nib_status add(reorder *r, const nib_tensor *t)
{
    static const char ours[] = "model.layers.", delta[] = "linear_attn.";
    const nib_head_order *o = r->o;
    const size_t before = strcspn(o->prefix, ".") + 1, prefix = strlen(o->prefix),
                 at = nib__skip_layer(t->name);
    if (r->to_gguf && strncmp(t->name, o->prefix, prefix) == 0) {
        char *part;
        const int64_t layer = strtoll(t->name + prefix, &part, 10);
        return add_draft(r, t, nib__max(nib__min(layer, INT16_MAX), 0),
                         part[0] == '.' ? part + 1 : "");
    }
    if (r->to_gguf && strncmp(t->name, o->prefix, before) == 0)
        return add_draft(r, t, 0, "");
    if (at == 0)
        return nib__checkpoint_add_view(r->cp, t, r->err);
    const int64_t layer = strtoll(t->name + sizeof ours - 1, NULL, 10);
    if (!r->to_gguf && layer >= o->layers)
        return add_draft(r, t, layer, t->name + at);
    if (strncmp(t->name + at, delta, sizeof delta - 1) == 0)
        return add_delta(r, t, t->name + at + sizeof delta - 1);
    return nib__checkpoint_add_view(r->cp, t, r->err);
}

static nib_status say(const reorder *r)
{
    char note[200];
    if (r->left_out > 0)
        nib__ledger_add_setting(&r->cp->ledger,
                                &(nib_ledger_setting){.code = "dropped",
                                                      .name = "draft head",
                                                      .by = NIB_BY_CHECKPOINT,
                                                      .relation = NIB_SETTING_OTHER},
                                "its %" PRId64 " tensors are not written: llama.cpp has no names "
                                "for a draft head of this family",
                                r->left_out);
    if (r->decoded == 0)
        return r->cp->ledger.failed ? nib__checkpoint_no_memory(r->err, r->cp->path) : NIB_OK;
    snprintf(note, sizeof note,
             "%" PRId64 " weights of gated DeltaNet become f32: their blocks do not fit heads of "
             "%" PRId64 " values, or q, k, v and z have two types",
             r->decoded, r->o->value_dim);
    return nib__checkpoint_add_note(r->cp, note, r->err);
}

nib_status nib__checkpoint_reorder(nib_checkpoint *cp, int64_t *draft_layers,
                                   const nib_head_order *order, bool to_gguf, nib_err *err)
{
    const nib_checkpoint before = *cp;
    reorder r = {.cp = cp, .before = &before, .o = order, .err = err, .to_gguf = to_gguf};
    NIB_TRY(make_lists(&r));
    NIB_TRY(nib__checkpoint_clear_tensors(cp, 2 * before.count, err));
    for (size_t i = 0; i < before.count; i++)
        NIB_TRY(add(&r, before.tensors[i]));
    *draft_layers = to_gguf && !order->drafts ? 0 : r.drafts;
    NIB_TRY(say(&r));
    return nib__checkpoint_index(cp, err);
}
