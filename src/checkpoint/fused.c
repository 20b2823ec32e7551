/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits fused tensors by rows. Every tensor of a module is split with its codes: tensors with a
 * value per row by rows, those with a value per block of rows by blocks; those with one value for
 * the whole weight are shared.
 */
#include "fused.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PARTS_MAX = 3, HEADS_MAX = 65536 };

typedef struct fused_row {
    unsigned of;
    const char *layers; /* prefix before the layer number */
    const char *whole, *parts[PARTS_MAX + 1];
} fused_row;

static const char our_layers[] = "model.layers.", draft_layers[] = "mtp.layers.";

static const fused_row rows[] = {
    {NIB_FUSED_QKV,
     our_layers,
     "self_attn.qkv_proj",
     {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    {NIB_FUSED_GATE_UP, our_layers, "mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj"}},
    {NIB_FUSED_EXPERTS,
     our_layers,
     "mlp.experts.#.gate_up_proj",
     {"mlp.experts.#.gate_proj", "mlp.experts.#.up_proj"}},
    {NIB_FUSED_EXPERTS,
     draft_layers,
     "mlp.experts.#.gate_up_proj",
     {"mlp.experts.#.gate_proj", "mlp.experts.#.up_proj"}},
    {NIB_FUSED_EXPERTS,
     our_layers,
     "experts.#.gate_up_proj",
     {"experts.#.gate_proj", "experts.#.up_proj"}},
    {NIB_FUSED_EXPERTS,
     our_layers,
     "block_sparse_moe.experts.#.gate_up_proj",
     {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3"}},
    {NIB_FUSED_SHARED,
     our_layers,
     "mlp.shared_expert.gate_up_proj",
     {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"}},
    {NIB_FUSED_HEADS,
     our_layers,
     "self_attn.kv_b_proj",
     {"self_attn.k_b_proj.#", "self_attn.v_b_proj.#"}},
    {NIB_FUSED_QKV, "blk.", "attn_qkv", {"attn_q", "attn_k", "attn_v"}},
    {NIB_FUSED_GATE_UP, "blk.", "ffn_up", {"ffn_gate", "ffn_up"}},
};

/* ---- names ---- */

/* Offset of the module name after the layer number; 0: the name has another form. */
static size_t skip_layer(const char *name, const char *layers)
{
    const size_t start = strlen(layers);
    if (strncmp(name, layers, start) != 0)
        return 0;
    const size_t digits = strspn(name + start, "0123456789");
    return digits > 0 && name[start + digits] == '.' ? start + digits + 1 : 0;
}

size_t nib__skip_layer(const char *name) { return skip_layer(name, our_layers); }

/* Length of the module at the start of the name, in which '#' is a number; 0: another module. */
static size_t match_module(const char *name, const char *module)
{
    const char *at = name;
    for (; *module != 0; module++) {
        const size_t digits = *module == '#' ? strspn(at, "0123456789") : 0;
        if (*module == '#' ? digits == 0 : *at != *module)
            return 0;
        at += *module == '#' ? digits : 1;
    }
    return *at == '.' || *at == 0 ? (size_t)(at - name) : 0;
}

/* Copies the name with the `size` bytes at offset `at` replaced by `to`; '#' takes their number. */
static bool replace(char out[NIB_FUSED_NAME], const char *name, size_t at, size_t size,
                    const char *to)
{
    const size_t head = strcspn(to, "#"); /* what precedes the number is the same in both */
    const char *number = to[head] == '#' ? name + at + head : "";
    const size_t digits = strspn(number, "0123456789");
    const int used = snprintf(out, NIB_FUSED_NAME, "%.*s%.*s%.*s%s%s", (int)at, name, (int)head, to,
                              (int)digits, number, to + head + (digits > 0), name + at + size);
    return used < NIB_FUSED_NAME;
}

static int count_parts(const fused_row *row)
{
    int count = 0;
    while (row->parts[count] != NULL)
        count++;
    return count;
}

/* The number in the name of a part, if the fused tensor has none: that of a head. */
static int head_of(const fused_row *row, const char *name, const char *part)
{
    const char *number = strchr(part, '#');
    if (row->of != NIB_FUSED_HEADS || number == NULL)
        return 0;
    return (int)nib__min(strtol(name + (number - part), NULL, 10), HEADS_MAX);
}

bool nib__fused_part(nib_fused_part *out, const char *name, unsigned fused)
{
    for (size_t i = 0; i < COUNT(rows); i++) {
        const size_t at = (rows[i].of & fused) != 0 ? skip_layer(name, rows[i].layers) : 0;
        for (int p = 0; at > 0 && rows[i].parts[p] != NULL; p++) {
            const size_t size = match_module(name + at, rows[i].parts[p]);
            if (size == 0)
                continue;
            out->count = count_parts(&rows[i]);
            out->part = p + out->count * head_of(&rows[i], name + at, rows[i].parts[p]);
            return replace(out->whole, name, at, size, rows[i].whole);
        }
    }
    return false;
}

/* The table row of a fused tensor; its module name has `size` bytes at `at`. NULL: not fused. */
static const fused_row *find_row(size_t *at, size_t *size, const char *name)
{
    for (size_t i = 0; i < COUNT(rows); i++) {
        *at = skip_layer(name, rows[i].layers);
        *size = *at > 0 ? match_module(name + *at, rows[i].whole) : 0;
        if (*size > 0 && rows[i].of != NIB_FUSED_HEADS)
            return &rows[i];
    }
    return NULL;
}

bool nib__fused_name(char out[NIB_FUSED_NAME], const char *whole, int part)
{
    size_t at, size;
    const fused_row *row = find_row(&at, &size, whole);
    return row != NULL && part < count_parts(row) &&
           replace(out, whole, at, size, row->parts[part]);
}

/* ---- rows ---- */

nib_status nib__fused_heads(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                            nib_err *err)
{
    nib_json json;
    const nib_json_limits limits = {.literals = true};
    cp->heads = cp->kv_heads = 0;
    nib__json_init(&json, name, text, size, &limits);
    nib__json_expect(&json, NIB_JSON_OBJECT);
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        int64_t *to = nib__json_is(&json, "num_attention_heads")   ? &cp->heads
                      : nib__json_is(&json, "num_key_value_heads") ? &cp->kv_heads
                                                                   : NULL;
        nib_json_value value;
        if (!nib__json_any(&json, &value))
            break; /* json holds the error */
        if (to != NULL && value.number >= 1 && value.number <= HEADS_MAX)
            *to = (int64_t)value.number;
    }
    return nib__json_status(&json, err);
}

/* First row and row count of part p of a tensor with n rows. False: n cannot be split like this. */
static bool compute_rows(const nib_checkpoint *cp, const fused_row *row, int64_t n, int p,
                         int64_t *first, int64_t *count)
{
    int64_t shares[PARTS_MAX] = {1, 1, 1}, all = 0, before = 0;
    if (row->of == NIB_FUSED_QKV) {
        shares[0] = cp->heads;
        shares[1] = shares[2] = cp->kv_heads > 0 ? cp->kv_heads : cp->heads;
    }
    for (int i = 0; row->parts[i] != NULL; i++) {
        if (shares[i] < 1 || shares[i] > HEADS_MAX)
            return false;
        before += i < p ? shares[i] : 0;
        all += shares[i];
    }
    *first = n / all * before;
    *count = n / all * shares[p];
    return n > 0 && n % all == 0;
}

/* The tensor with a module's codes, one row for each row of the weight; SIZE_MAX: none. */
static size_t find_codes(const nib_checkpoint *cp, const char *name, size_t module)
{
    static const char *const ends[] = {".weight", "._weight_qdata", ".weight_packed",
                                       ".weight_blocks"};
    char codes[NIB_FUSED_NAME];
    for (size_t i = 0; i < COUNT(ends); i++) {
        const int size = snprintf(codes, sizeof codes, "%.*s%s", (int)module, name, ends[i]);
        if (size >= (int)sizeof codes)
            continue;
        const size_t at =
            nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, codes);
        if (at != SIZE_MAX && cp->tensors[at]->rank == 2)
            return at;
    }
    return SIZE_MAX;
}

/* How a tensor of the module is split. */
typedef enum split_kind { SPLIT_NOT, SPLIT_ROWS, SPLIT_SHARED, SPLIT_SHAPE } split_kind;

/* n: rows of the codes. *block: rows of the codes per row of t. */
static split_kind classify(const nib_tensor *t, bool codes, int64_t n, int64_t *block)
{
    int64_t elements = 1; /* capped at 3 */
    for (int i = 0; i < t->rank; i++)
        elements = nib__min(elements * nib__min(t->shape[i], 3), 3);
    *block = 1;
    if (nib__ends_with(t->name, ".weight_shape"))
        return t->type == NIB_TYPE_I64 && elements == 2 ? SPLIT_SHAPE : SPLIT_NOT;
    if (elements == 1 || nib__ends_with(t->name, "g_idx") ||
        nib__ends_with(t->name,
                       "._weight_input_order")) /* one scale for all rows; an order of inputs */
        return SPLIT_SHARED;
    if (t->shape[0] < 1 || t->bytes % (uint64_t)t->shape[0] != 0)
        return SPLIT_NOT;
    /* a square tensor next to the codes may instead have a column for each row */
    if (t->shape[0] == n && (codes || t->rank == 1 || t->shape[1] != n))
        return SPLIT_ROWS;
    *block = n / t->shape[0];
    return strstr(t->name, ".weight_scale") != NULL && t->rank == 2 && t->shape[1] != n &&
                   *block * t->shape[0] == n
               ? SPLIT_ROWS
               : SPLIT_NOT;
}

/* A fused tensor, and how it is split. */
typedef struct fused {
    const fused_row *row;
    size_t codes; /* index of the tensor with its codes */
    int64_t n, block;
    split_kind kind;
    bool alternate; /* rows of the parts take turns, as in gpt-oss */
} fused;

/* False: the tensor is not fused, or its module has no codes. */
static bool find_fused(fused *out, const nib_checkpoint *cp, const char *name)
{
    size_t at, size;
    out->row = find_row(&at, &size, name);
    if (out->row == NULL || (out->row->layers != our_layers && out->row->layers != draft_layers))
        return false;
    out->codes = find_codes(cp, name, at + size);
    if (out->codes == SIZE_MAX)
        return false;
    out->n = cp->tensors[out->codes]->shape[0];
    out->alternate = cp->alternate && out->row->of == NIB_FUSED_EXPERTS;
    return true;
}

/* Dialects that read rows which take turns. */
static bool reads_alternate(const nib_tensor *codes)
{
    return nib__type_is_float(codes->type) || nib__ends_with(codes->name, ".weight_blocks");
}

/* Whether every part has its rows, in whole blocks, and a name that fits. */
static bool can_split(fused *f, const nib_checkpoint *cp, size_t i)
{
    char name[NIB_FUSED_NAME];
    int64_t first, count;
    bool whole = !f->alternate || (f->n <= INT32_MAX && reads_alternate(cp->tensors[f->codes]));
    f->kind = classify(cp->tensors[i], i == f->codes, f->n, &f->block);
    for (int p = 0; p < count_parts(f->row); p++)
        whole = whole && nib__fused_name(name, cp->tensors[i]->name, p) &&
                compute_rows(cp, f->row, f->n, p, &first, &count) && count % f->block == 0;
    return whole && f->kind != SPLIT_NOT;
}

/* Part p of a tensor that can be split. */
static const nib_tensor *make_view(nib_checkpoint *cp, const nib_tensor *t, const fused *f, int p)
{
    char name[NIB_FUSED_NAME];
    int64_t first, count;
    nib_tensor *out = nib__arena_take(&cp->arena, 1, sizeof *out);
    if (out == NULL)
        return NULL;
    (void)nib__fused_name(name, t->name, p);
    (void)compute_rows(cp, f->row, f->n, p, &first, &count);
    *out = *t;
    out->name = nib__arena_copy(&cp->arena, name, strlen(name));
    if (f->kind == SPLIT_ROWS) {
        const uint64_t row = t->bytes / (uint64_t)t->shape[0],
                       step = t->stored_n > 0 ? (uint64_t)nib__type_bits(t->type) / 8 : row;
        out->shape[0] = count / f->block;
        out->data = t->data + step * (uint64_t)(f->alternate ? p : first / f->block);
        out->bytes = row * (uint64_t)out->shape[0];
        out->rows = f->alternate ? cp->even : NULL;
    } else if (f->kind == SPLIT_SHAPE) { /* rows, then columns */
        int64_t *shape = nib__arena_take(&cp->arena, 2, sizeof *shape);
        if (shape == NULL)
            return NULL;
        memcpy(shape, t->data, 2 * sizeof *shape);
        if (shape[0] == f->n) /* else the dialect reports the error */
            shape[0] = count;
        out->data = (const void *)shape;
    }
    return out->name != NULL ? out : NULL;
}

/* Copies the metadata of a fused tensor to each part. */
static nib_status split_metas(nib_checkpoint *cp, const nib_checkpoint *before, const bool *whole,
                              nib_err *err)
{
    NIB_TRY(nib__checkpoint_clear_metas(cp, PARTS_MAX * before->meta_count, err));
    for (size_t i = 0; i < before->meta_count; i++) {
        const nib_meta *meta = before->metas[i];
        fused f;
        char key[NIB_FUSED_NAME];
        const bool split = find_fused(&f, before, meta->key) && !whole[f.codes] &&
                           nib__fused_name(key, meta->key, 0); /* the first part's is the longest */
        for (int p = 0; p < (split ? count_parts(f.row) : 1); p++) {
            if (split)
                (void)nib__fused_name(key, meta->key, p);
            NIB_TRY(nib__checkpoint_add_meta(cp, meta, split ? key : meta->key, err));
        }
    }
    return NIB_OK;
}

/* Makes the list of rows for parts of up to n rows that take turns. */
static nib_status list_even(nib_checkpoint *cp, int64_t n, nib_err *err)
{
    int32_t *even = nib__arena_take(&cp->arena, (uint64_t)n, sizeof *even);
    if (even == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    for (int64_t i = 0; i < n; i++)
        even[i] = (int32_t)(2 * i);
    cp->even = even;
    return NIB_OK;
}

nib_status nib__fused_split(nib_checkpoint *cp, nib_err *err)
{
    const nib_checkpoint before = *cp;
    size_t count = 0;
    int64_t alternate = 0;
    fused f;
    char note[200];
    bool *whole =
        nib__arena_take(&cp->arena, before.count, sizeof *whole); /* by index of the codes */
    if (whole == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    for (size_t i = 0; i < before.count; i++)
        if (find_fused(&f, &before, before.tensors[i]->name)) {
            whole[f.codes] = whole[f.codes] || !can_split(&f, &before, i);
            alternate = f.alternate ? nib__max(alternate, f.n / 2) : alternate;
            count++;
        }
    if (count == 0)
        return NIB_OK;
    NIB_TRY(nib__checkpoint_clear_tensors(cp, before.count + (PARTS_MAX - 1) * count, err));
    NIB_TRY(list_even(cp, alternate, err));
    count = 0;
    for (size_t i = 0; i < before.count; i++) {
        const nib_tensor *t = before.tensors[i];
        if (!find_fused(&f, &before, t->name) || whole[f.codes]) {
            NIB_TRY(nib__checkpoint_add_view(cp, t, err));
            continue;
        }
        f.kind = classify(t, i == f.codes, f.n, &f.block);
        for (int p = 0; p < count_parts(f.row); p++)
            NIB_TRY(nib__checkpoint_add_view(cp, make_view(cp, t, &f, p), err));
        if (f.row->of == NIB_FUSED_EXPERTS) /* the writer joins them only in stacks */
            continue;
        cp->fused |= f.row->of;
        count++;
    }
    NIB_TRY(split_metas(cp, &before, whole, err));
    if (count == 0)
        return NIB_OK;
    snprintf(note, sizeof note,
             "%zu stored tensors hold several weights (qkv_proj, gate_up_proj); they are read as "
             "q_proj, k_proj, v_proj, gate_proj and up_proj",
             count);
    return nib__checkpoint_add_note(cp, note, err);
}

bool nib__fused_fail(const nib_weight_query *q, nib_status *status)
{
    const nib_checkpoint *cp = q->cp;
    nib_fused_part part;
    char shown[NIB_SHOWN];
    if (!nib__fused_part(&part, q->module, NIB_FUSED_ANY))
        return false;
    const size_t size = strlen(part.whole);
    for (size_t i = 0; i < cp->count; i++) {
        const char *name = cp->tensors[i]->name;
        if (strncmp(name, part.whole, size) != 0 || name[size] != '.')
            continue;
        *status = nib__fail(q->err, NIB_UNSUPPORTED,
                            "%s: holds the rows of %s and others, and cannot be split in the form "
                            "in which it is stored; use the unquantized model, or one quantized "
                            "with scales per %s",
                            nib__escape_name(shown, sizeof shown, name, strlen(name)), q->shown,
                            nib__fused_part(&part, q->module, NIB_FUSED_HEADS)
                                ? "square block of which each half has whole ones"
                                : "row");
        return true;
    }
    return false;
}
