/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt-oss: MXFP4 weights of experts, stacked in one tensor and read expert by expert. A file has,
 * for P.gate_up_proj and P.down_proj:
 *
 *   P.NAME_blocks  U8 [experts][n][k/32][16]   two codes per byte, low first
 *   P.NAME_scales  U8 [experts][n][k/32]       e8m0
 *   P.NAME_bias    float [experts][n]
 *
 * nib__experts_split replaces them by views of each expert; expert 3 is the module P.3.NAME:
 * .weight_blocks [n][k/2], .weight_scales [n][k/32] and .bias [n].
 */
#include "dialect_common.h"

#include <inttypes.h>
#include <stdio.h>

enum { EXPERTS_MAX = 1 << 16 };

static const char blocks[] = ".weight_blocks", scales[] = ".weight_scales";

nib_status nib__weight_mxfp4(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    w->scheme = (nib_scheme){.code = NIB_CODE_MX4, .group = 32, .symmetric = true};
    NIB_TRY(nib__weight_read_bytes(q, blocks, NIB_TYPE_U8));
    w->k *= 2;
    w->layout = NIB_LAYOUT_NIBBLE;
    return nib__weight_read_grid(q, scales, NIB_TYPE_E8M0);
}

/* ---- stacks ---- */

/* One of the three tensors of a stack. */
typedef struct stack_part {
    const char *end, *suffix;
    int rank; /* as stored */
} stack_part;

static const stack_part stack_parts[] = {
    {"_blocks", ".weight_blocks", 4},
    {"_scales", ".weight_scales", 3},
    {"_bias", ".bias", 2},
};

static bool is_stack(const nib_tensor *t)
{
    const size_t size = strlen(t->name), end = strlen("_blocks");
    return size > end && strcmp(t->name + size - end, "_blocks") == 0 && t->type == NIB_TYPE_U8 &&
           t->rank == 4 && t->shape[3] == 16 && t->bytes > 0 && t->shape[0] <= EXPERTS_MAX;
}

/* The blocks of the stack that t belongs to; *which: its row in stack_parts. NULL: none. */
static const nib_tensor *find_stack(const nib_checkpoint *cp, const nib_tensor *t, size_t *which)
{
    char name[512];
    const size_t size = strlen(t->name);
    for (size_t i = 0; i < COUNT(stack_parts); i++) {
        const size_t end = strlen(stack_parts[i].end);
        if (size <= end || strcmp(t->name + size - end, stack_parts[i].end) != 0 ||
            snprintf(name, sizeof name, "%.*s_blocks", (int)(size - end), t->name) >=
                (int)sizeof name)
            continue;
        const size_t at =
            nib__name_index_find(&cp->by_name, (const void *const *)cp->tensors, name);
        if (at != SIZE_MAX && is_stack(cp->tensors[at])) {
            *which = i;
            return cp->tensors[at];
        }
    }
    return NULL;
}

/* Checks the rank of a stack's tensor and that its leading dimensions equal those of the blocks. */
static nib_status check_part(const nib_tensor *t, const nib_tensor *stack, size_t which,
                             nib_err *err)
{
    char shown[NIB_SHOWN];
    bool fits = t->rank == stack_parts[which].rank;
    for (int i = 0; fits && i < t->rank && i < 3; i++)
        fits = t->shape[i] == stack->shape[i];
    if (fits)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: its shape does not match its blocks, which are [%" PRId64 ", %" PRId64
                     ", %" PRId64 ", 16]",
                     nib__escape_name(shown, sizeof shown, t->name, strlen(t->name)),
                     stack->shape[0], stack->shape[1], stack->shape[2]);
}

/* A view of expert e of a stacked tensor. */
static const nib_tensor *make_view(nib_checkpoint *cp, const nib_tensor *t, size_t which, int64_t e)
{
    const stack_part *part = &stack_parts[which];
    const size_t base = strlen(t->name) - strlen(part->end);
    size_t leaf = base;
    char name[600]; /* fits: find_stack took names of under 512 bytes */
    while (leaf > 0 && t->name[leaf - 1] != '.')
        leaf--;
    const int size = snprintf(name, sizeof name, "%.*s%" PRId64 ".%.*s%s", (int)leaf, t->name, e,
                              (int)(base - leaf), t->name + leaf, part->suffix);
    nib_tensor *out = nib__arena_take(&cp->arena, 1, sizeof *out);
    if (out == NULL)
        return NULL;
    *out = *t;
    out->name = nib__arena_copy(&cp->arena, name, (size_t)size);
    out->bytes = t->bytes / (uint64_t)t->shape[0];
    out->data = t->data + (uint64_t)e * out->bytes;
    out->rank = which == 2 ? 1 : 2;
    memset(out->shape, 0, sizeof out->shape); /* other code compares all entries */
    out->shape[0] = t->shape[1];
    out->shape[1] = which == 0 ? 16 * t->shape[2] : t->shape[2];
    return out->name == NULL ? NULL : out;
}

nib_status nib__experts_split(nib_checkpoint *cp, nib_err *err)
{
    const nib_checkpoint before = *cp;
    size_t count = before.count, stacks = 0, which;
    for (size_t i = 0; i < before.count; i++) {
        const nib_tensor *stack = find_stack(&before, before.tensors[i], &which);
        if (stack == NULL)
            continue;
        NIB_TRY(check_part(before.tensors[i], stack, which, err));
        count += (size_t)stack->shape[0];
        stacks += which == 0;
    }
    if (stacks == 0)
        return NIB_OK;
    cp->tensors = nib__arena_take(&cp->arena, count, sizeof *cp->tensors);
    cp->count = 0;
    if (cp->tensors == NULL || !nib__name_index_init(&cp->by_name, &cp->arena, count))
        return nib__fail_memory(err, count * sizeof *cp->tensors, "the experts of a stack");
    for (size_t i = 0; i < before.count; i++) {
        const nib_tensor *t = before.tensors[i], *stack = find_stack(&before, t, &which);
        if (stack == NULL)
            NIB_TRY(nib__checkpoint_add_view(cp, t, err));
        for (int64_t e = 0; stack != NULL && e < t->shape[0]; e++)
            NIB_TRY(nib__checkpoint_add_view(cp, make_view(cp, t, which, e), err));
    }
    char note[200];
    snprintf(note, sizeof note,
             "%zu stacks of experts (names that end in _blocks) are read expert by expert", stacks);
    return nib__checkpoint_add_note(cp, note, err);
}
