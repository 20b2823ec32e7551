/* SPDX-License-Identifier: Apache-2.0
 *
 * Joins per-head norms by copying them: a few kilobytes for each layer.
 */
#include "head_norms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *joined, *apart; /* after the layer number */
} names[] = {{".self_attn.q_norm.weight", ".self_attn.q_layernorm.norms."},
             {".self_attn.k_norm.weight", ".self_attn.k_layernorm.norms."}};

static const char layers[] = "model.layers.";

/* The name after the layer number, from the dot on; NULL: the name has another form. */
static const char *skip_layer(const char *name)
{
    const size_t start = strlen(layers);
    if (strncmp(name, layers, start) != 0)
        return NULL;
    const size_t digits = strspn(name + start, "0123456789");
    return digits > 0 ? name + start + digits : NULL;
}

bool nib__head_norm_name(char out[NIB_FUSED_NAME], const char *joined, int64_t head)
{
    const char *rest = skip_layer(joined);
    for (size_t i = 0; rest != NULL && i < COUNT(names); i++) {
        if (strcmp(rest, names[i].joined) != 0)
            continue;
        const int size = snprintf(out, NIB_FUSED_NAME, "%.*s%s%" PRId64 ".weight",
                                  (int)(rest - joined), joined, names[i].apart, head);
        return size < NIB_FUSED_NAME;
    }
    return false;
}

/* The head number in the name of a per-head norm, and the joined name; -1: another tensor. */
static int64_t parse_head(char joined[NIB_FUSED_NAME], const char *name)
{
    const char *rest = skip_layer(name);
    char again[NIB_FUSED_NAME];
    for (size_t i = 0; rest != NULL && i < COUNT(names); i++) {
        const size_t size = strlen(names[i].apart);
        if (strncmp(rest, names[i].apart, size) != 0)
            continue;
        const int64_t head = strtol(rest + size, NULL, 10);
        const int used =
            snprintf(joined, NIB_FUSED_NAME, "%.*s%s", (int)(rest - name), name, names[i].joined);
        const bool same = used < NIB_FUSED_NAME && head >= 0 &&
                          nib__head_norm_name(again, joined, head) && strcmp(again, name) == 0;
        return same ? head : -1;
    }
    return -1;
}

/* Index of a head's tensor; SIZE_MAX: missing. */
static size_t find_head(const nib_checkpoint *cp, const char *joined, int64_t head)
{
    char name[NIB_FUSED_NAME];
    return nib__head_norm_name(name, joined, head)
               ? nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, name)
               : SIZE_MAX;
}

/* Number of heads to join, from head 0 (tensor `first`) on, all of one type and length. */
static int64_t count_heads(const nib_checkpoint *cp, const char *joined, const nib_tensor *first)
{
    int64_t heads = 0;
    for (size_t i; (i = find_head(cp, joined, heads)) != SIZE_MAX; heads++) {
        const nib_tensor *t = cp->tensors[i];
        if (t->rank != 1 || t->bytes == 0 || t->type != first->type || t->bytes != first->bytes)
            break;
    }
    return heads;
}

/* The checkpoint before joining, and for each tensor of a head 0 how many heads are joined. */
typedef struct before_joining {
    nib_checkpoint cp;
    int64_t *heads; /* [cp.count] */
} before_joining;

/* Number of heads joined with this tensor, and its head; 0: it is not joined. */
static int64_t count_joined(char joined[NIB_FUSED_NAME], int64_t *head, const before_joining *from,
                            const char *name)
{
    *head = parse_head(joined, name);
    const size_t first = *head >= 0 ? find_head(&from->cp, joined, 0) : SIZE_MAX;
    return first != SIZE_MAX && *head < from->heads[first] ? from->heads[first] : 0;
}

static const nib_tensor *join_heads(nib_checkpoint *cp, const before_joining *from,
                                    const char *joined, const nib_tensor *first, int64_t heads)
{
    const size_t bytes = (size_t)first->bytes;
    nib_tensor *out = nib__arena_take(&cp->arena, 1, sizeof *out);
    uint8_t *data = nib__arena_take(&cp->arena, (uint64_t)heads, bytes);
    if (out == NULL || data == NULL)
        return NULL;
    for (int64_t h = 0; h < heads; h++)
        memcpy(data + (size_t)h * bytes, from->cp.tensors[find_head(&from->cp, joined, h)]->data,
               bytes);
    *out = *first;
    out->name = nib__arena_copy(&cp->arena, joined, strlen(joined));
    out->data = data;
    out->bytes = (uint64_t)heads * bytes;
    if (heads > 1) {
        out->rank = 2;
        out->shape[0] = heads;
        out->shape[1] = first->shape[0];
    }
    return out->name != NULL ? out : NULL;
}

/* torchao's metadata has an entry per tensor: of the entries of joined heads, the first in the file
 * is kept, under the joined name. */
static nib_status join_metas(nib_checkpoint *cp, const before_joining *from, nib_err *err)
{
    const nib_checkpoint *before = &from->cp;
    char joined[NIB_FUSED_NAME];
    int64_t head;
    NIB_TRY(nib__checkpoint_clear_metas(cp, before->meta_count, err));
    for (size_t i = 0; i < before->meta_count; i++) {
        const nib_meta *meta = before->metas[i];
        const bool is_joined = count_joined(joined, &head, from, meta->key) > 0;
        NIB_TRY(nib__checkpoint_add_meta(cp, meta, is_joined ? joined : meta->key, err));
    }
    return NIB_OK;
}

nib_status nib__head_norms_join(nib_checkpoint *cp, nib_err *err)
{
    before_joining from = {.cp = *cp};
    char joined[NIB_FUSED_NAME], note[200];
    size_t count = 0;
    int64_t head;
    from.heads = nib__arena_take(&cp->arena, cp->count, sizeof *from.heads);
    if (from.heads == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    for (size_t i = 0; i < cp->count; i++)
        if (parse_head(joined, cp->tensors[i]->name) == 0) {
            from.heads[i] = count_heads(cp, joined, cp->tensors[i]);
            count += (size_t)from.heads[i];
        }
    if (count == 0)
        return NIB_OK;
    NIB_TRY(nib__checkpoint_clear_tensors(cp, from.cp.count, err));
    for (size_t i = 0; i < from.cp.count; i++) {
        const nib_tensor *t = from.cp.tensors[i];
        const int64_t heads = count_joined(joined, &head, &from, t->name);
        if (heads > 0 && head == 0)
            t = join_heads(cp, &from, joined, t, heads);
        if (heads == 0 || head == 0)
            NIB_TRY(nib__checkpoint_add_view(cp, t, err));
    }
    NIB_TRY(join_metas(cp, &from, err));
    cp->fused |= NIB_APART_HEAD_NORMS;
    snprintf(note, sizeof note,
             "%zu stored tensors hold the norm of one head each (q_layernorm.norms.0); they are "
             "read as q_norm and k_norm",
             count);
    return nib__checkpoint_add_note(cp, note, err);
}
