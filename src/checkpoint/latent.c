/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits kv_b_proj into views. The half for keys of head h is a transposed view of its rows, so
 * nothing is copied.
 */
#include "latent.h"

#include "fused.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE_MAX_OF_HEAD = 1 << 16 };

static const char whole[] = "self_attn.kv_b_proj";

nib_status nib__latent_sizes(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                             nib_err *err)
{
    nib_json json;
    const nib_json_limits limits = {.literals = true};
    cp->nope = cp->value = cp->layers = 0;
    nib__json_init(&json, name, text, size, &limits);
    nib__json_expect(&json, NIB_JSON_OBJECT);
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        int64_t *to = nib__json_is(&json, "qk_nope_head_dim")    ? &cp->nope
                      : nib__json_is(&json, "v_head_dim")        ? &cp->value
                      : nib__json_is(&json, "num_hidden_layers") ? &cp->layers
                                                                 : NULL;
        nib_json_value value;
        if (!nib__json_any(&json, &value))
            break; /* json holds the error */
        if (to != NULL && value.number >= 1 && value.number <= SIZE_MAX_OF_HEAD)
            *to = (int64_t)value.number;
    }
    return nib__json_status(&json, err);
}

/* Offset of the suffix of a tensor of kv_b_proj (".weight"); 0: it belongs to another module. */
static size_t find_suffix(const char *name)
{
    const size_t at = nib__skip_layer(name), size = sizeof whole - 1;
    return at > 0 && strncmp(name + at, whole, size) == 0 && name[at + size] == '.' ? at + size : 0;
}

/* The tensor with the codes of the module, whose name has `module` bytes; NULL: none. */
static const nib_tensor *find_codes(const nib_checkpoint *cp, const char *name, size_t module)
{
    char codes[NIB_FUSED_NAME];
    const int size = snprintf(codes, sizeof codes, "%.*s.weight", (int)module, name);
    const size_t at =
        size < (int)sizeof codes
            ? nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, codes)
            : SIZE_MAX;
    return at != SIZE_MAX ? cp->tensors[at] : NULL;
}

/* A tensor of kv_b_proj that can be split. */
typedef struct latent {
    size_t suffix; /* offset in its name */
    int64_t heads;
    int64_t block;      /* rows of the weight per row of the tensor */
    int64_t key, value; /* rows of the tensor for a head's keys and values */
} latent;

/* False: t is another tensor, or its module cannot be split. */
static bool find_latent(latent *out, const nib_checkpoint *cp, const nib_tensor *t)
{
    const size_t suffix = find_suffix(t->name);
    const nib_tensor *codes = suffix > 0 ? find_codes(cp, t->name, suffix) : NULL;
    const int64_t head = cp->nope + cp->value;
    if (codes == NULL || cp->nope == 0 || cp->value == 0 || codes->rank != 2 ||
        codes->shape[0] < head || codes->shape[0] % head != 0 || codes->shape[1] < 1)
        return false;
    if (cp->layers > 0 && !cp->for_draft &&
        strtoll(t->name + sizeof "model.layers." - 1, NULL, 10) >= cp->layers)
        return false; /* a draft head, which the model does not read: it stays as stored */
    const bool blocks = codes->type == NIB_TYPE_E4M3 && cp->coding != NULL &&
                        cp->coding->method == NIB_METHOD_FP8 && cp->coding->block[0] > 0,
               floats = codes->type == NIB_TYPE_F32 || codes->type == NIB_TYPE_F16 ||
                        codes->type == NIB_TYPE_BF16;
    *out = (latent){.suffix = suffix, .heads = codes->shape[0] / head, .block = 1};
    if (blocks && t != codes)
        out->block = cp->coding->block[0];
    out->key = cp->nope / out->block, out->value = cp->value / out->block;
    if (floats)
        return t == codes;
    /* transposed blocks are blocks only if they are square, and halves need whole ones */
    return blocks && cp->coding->block[0] == cp->coding->block[1] &&
           cp->nope % cp->coding->block[0] == 0 && cp->value % cp->coding->block[0] == 0 &&
           (t == codes || (strcmp(t->name + suffix, ".weight_scale_inv") == 0 && t->rank == 2 &&
                           t->shape[0] * out->block == codes->shape[0]));
}

/* Adds the view of a half of head h. */
static nib_status add_half(nib_checkpoint *cp, const nib_tensor *t, const latent *l, int64_t h,
                           bool keys, nib_err *err)
{
    char name[NIB_FUSED_NAME];
    nib_tensor *out = nib__arena_take(&cp->arena, 1, sizeof *out);
    const size_t prefix = l->suffix - (sizeof "kv_b_proj" - 1);
    const int size = snprintf(name, sizeof name, "%.*s%s_b_proj.%" PRId64 "%s", (int)prefix,
                              t->name, keys ? "k" : "v", h, t->name + l->suffix);
    if (out == NULL || size >= (int)sizeof name)
        return nib__checkpoint_no_memory(err, cp->path);
    const int64_t rows = keys ? l->key : l->value,
                  first = h * (l->key + l->value) + (keys ? 0 : l->key);
    const uint64_t row = t->bytes / (uint64_t)t->shape[0];
    *out = *t;
    out->name = nib__arena_copy(&cp->arena, name, strlen(name));
    if (out->name == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    out->data = t->data + (uint64_t)first * row;
    out->bytes = (uint64_t)rows * row;
    out->shape[0] = keys ? t->shape[1] : rows;
    out->shape[1] = keys ? rows : t->shape[1];
    out->stored_n = keys ? t->shape[1] : 0;
    return nib__checkpoint_add_view(cp, out, err);
}

/* The stack of GGUF that t is, [heads][n][k]: the length of its module's name; 0: none. */
static size_t find_stack(const nib_tensor *t)
{
    static const char *const stacks[] = {"self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight"};
    const size_t at = nib__skip_layer(t->name);
    for (size_t i = 0; i < COUNT(stacks); i++)
        if (at > 0 && strcmp(t->name + at, stacks[i]) == 0 && t->rank == 3 && t->shape[0] > 0 &&
            t->shape[0] <= SIZE_MAX_OF_HEAD && t->bytes % (uint64_t)t->shape[0] == 0)
            return strlen(t->name) - (sizeof ".weight" - 1);
    return 0;
}

/* Adds a view of each head's matrix of a stack. */
static nib_status add_stack(nib_checkpoint *cp, const nib_tensor *t, size_t module, nib_err *err)
{
    for (int64_t h = 0; h < t->shape[0]; h++) {
        char name[NIB_FUSED_NAME];
        nib_tensor *out = nib__arena_take(&cp->arena, 1, sizeof *out);
        const int size =
            snprintf(name, sizeof name, "%.*s.%" PRId64 ".weight", (int)module, t->name, h);
        if (out == NULL || size >= (int)sizeof name)
            return nib__checkpoint_no_memory(err, cp->path);
        *out = *t;
        out->name = nib__arena_copy(&cp->arena, name, strlen(name));
        out->rank = 2;
        memset(out->shape, 0, sizeof out->shape); /* other code compares all entries */
        out->shape[0] = t->shape[1], out->shape[1] = t->shape[2];
        out->bytes = t->bytes / (uint64_t)t->shape[0];
        out->data = t->data + (uint64_t)h * out->bytes;
        NIB_TRY(nib__checkpoint_add_view(cp, out->name != NULL ? out : NULL, err));
    }
    return NIB_OK;
}

static nib_status add_halves(nib_checkpoint *cp, const nib_tensor *t, const latent *l, nib_err *err)
{
    for (int64_t h = 0; h < l->heads; h++) {
        NIB_TRY(add_half(cp, t, l, h, true, err));
        NIB_TRY(add_half(cp, t, l, h, false, err));
    }
    return NIB_OK;
}

nib_status nib__latent_split(nib_checkpoint *cp, nib_err *err)
{
    const nib_checkpoint before = *cp;
    size_t room = before.count, count = 0;
    bool stacked = false;
    latent l;
    for (size_t i = 0; i < before.count; i++) {
        const nib_tensor *t = before.tensors[i];
        const bool stack = find_stack(t) > 0, halves = find_latent(&l, &before, t);
        room += stack ? (size_t)t->shape[0] : halves ? 2 * (size_t)l.heads : 0;
        count += stack || (halves && strcmp(t->name + l.suffix, ".weight") == 0);
        stacked = stacked || stack;
    }
    if (count == 0)
        return NIB_OK;
    NIB_TRY(nib__checkpoint_clear_tensors(cp, room, err));
    for (size_t i = 0; i < before.count; i++) {
        const nib_tensor *t = before.tensors[i];
        const size_t stack = find_stack(t);
        NIB_TRY(stack > 0                     ? add_stack(cp, t, stack, err)
                : find_latent(&l, &before, t) ? add_halves(cp, t, &l, err)
                                              : nib__checkpoint_add_view(cp, t, err));
    }
    if (!stacked)
        cp->fused |= NIB_FUSED_HEADS;
    char note[200];
    snprintf(
        note, sizeof note,
        "%zu stored tensors hold the keys' or values' matrices of all heads (%s); they are read "
        "as k_b_proj and v_b_proj of each head",
        count, stacked ? "attn_k_b, attn_v_b" : "kv_b_proj");
    return nib__checkpoint_add_note(cp, note, err);
}

bool nib__latent_fail(const nib_weight_query *q, nib_status *status)
{
    const nib_checkpoint *cp = q->cp;
    const int64_t head = cp->nope + cp->value;
    nib_fused_part part;
    if (!nib__fused_part(&part, q->module, NIB_FUSED_HEADS) || head == 0)
        return false;
    const nib_tensor *codes = find_codes(cp, part.whole, strlen(part.whole));
    if (codes == NULL || codes->rank != 2 || codes->shape[0] % head == 0)
        return false;
    *status = nib__fail(q->err, NIB_BAD_INPUT,
                        "%s: has %" PRId64 " rows, which are not those of whole heads of %" PRId64
                        " for keys (qk_nope_head_dim) and %" PRId64 " for values (v_head_dim)",
                        codes->name, codes->shape[0], cp->nope, cp->value);
    return true;
}
