/* SPDX-License-Identifier: Apache-2.0
 *
 * Joins what other programs expect as one tensor: parts of fused weights, halves of heads, experts.
 */
#include "writer_inside.h"

#include "head_norms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- fused tensors ---- */

/* Whether a and b can be parts of one tensor. */
static bool can_join(const nib_writer_entry *a, const nib_writer_entry *b)
{
    bool same = a->type == b->type && a->rank == b->rank;
    for (int i = 1; same && i < a->rank; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

/* Joins the parts of which entry i is the first into one tensor. */
static nib_status join_tensor(nib_writer *w, size_t i, const nib_fused_part *first,
                              const nib_name_index *names, const void *const *items, nib_err *err)
{
    size_t parts[4] = {i};
    char name[NIB_FUSED_NAME] = "", shown[160];
    for (int p = 1; p < first->count; p++) {
        parts[p] = nib__fused_name(name, first->whole, p) ? nib__name_index_find(names, items, name)
                                                          : SIZE_MAX;
        if (parts[p] != SIZE_MAX && can_join(&w->entries[i], &w->entries[parts[p]]))
            continue;
        if (w->gguf == NULL)
            return NIB_OK;
        return nib__fail(
            err, NIB_NOT_AS_ASKED,
            "%s: a GGUF of this architecture stores it in one tensor with %s, so both must have "
            "the same type; use the same recipe for both, or --format nibble",
            nib__escape_name(shown, sizeof shown, w->entries[i].name, strlen(w->entries[i].name)),
            name);
    }
    nib_writer_entry *e = &w->entries[i];
    e->stored = nib__arena_copy(&w->arena, first->whole, strlen(first->whole));
    if (e->stored == NULL)
        return nib__fail_memory(err, strlen(first->whole), "a name");
    for (int p = 1; p < first->count; p++) {
        w->entries[parts[p - 1]].next = parts[p];
        w->entries[parts[p]].follows = true;
    }
    return NIB_OK;
}

/* ---- interleaved parts ---- */

/* Adds entry i to the parts of a tensor. *last: the part before; NULL: none. */
static void append_part(nib_writer *w, nib_writer_entry **last, size_t i)
{
    w->entries[i].follows = *last != NULL;
    if (*last != NULL)
        (*last)->next = i;
    *last = &w->entries[i];
}

/* `bytes` bytes of interleaved parts, the first of them entry i; NULL: no memory. */
static nib_interleaved *collect(nib_writer *w, size_t i, uint64_t bytes)
{
    nib_interleaved *c = nib__arena_take(&w->arena, 1, sizeof *c);
    if (c != NULL)
        *c = (nib_interleaved){.bytes = bytes, .first = i};
    return c;
}

/* Of e as it is put, [..][columns], element (i, j) is number start + i * down + j * across of c. */
static void place_interleaved(nib_writer_entry *e, nib_interleaved *c, int64_t start, int64_t down,
                              int64_t across)
{
    e->in = c;
    e->columns = e->rank > 1 ? e->shape[e->rank - 1] : 1;
    e->start = start, e->down = down, e->across = across;
}

/* ---- halves of heads ---- */

/* The entry of a half of head h, beside that of the keys' half of head 0; SIZE_MAX: none. */
static size_t find_half(const nib_writer *w, size_t first, const char *half, int64_t h,
                        const nib_name_index *names, const void *const *items)
{
    static const char mark[] = "k_b_proj.0";
    char name[NIB_FUSED_NAME];
    const char *of = w->entries[first].name, *at = strstr(of, mark);
    const int size = snprintf(name, sizeof name, "%.*s%s_b_proj.%" PRId64 "%s", (int)(at - of), of,
                              half, h, at + sizeof mark - 1);
    return size < (int)sizeof name ? nib__name_index_find(names, items, name) : SIZE_MAX;
}

/* Joins all halves of heads into one tensor, [heads][nope + value][rank], if they are floats of one
 * type that fit. Entry i is the keys' half of head 0, [rank][nope], which is stored transposed. */
static nib_status join_heads(nib_writer *w, size_t i, const char *whole,
                             const nib_name_index *names, const void *const *items, nib_err *err)
{
    nib_writer_entry *const first = &w->entries[i];
    const int64_t rank = first->shape[0];
    int64_t heads = 0;
    if (strstr(first->name, "k_b_proj.0.") == NULL || first->rank != 2 || first->bytes == 0)
        return NIB_OK;
    for (;; heads++) {
        const size_t k = find_half(w, i, "k", heads, names, items),
                     v = find_half(w, i, "v", heads, names, items);
        if (k == SIZE_MAX && v == SIZE_MAX)
            break;
        if (k == SIZE_MAX || v == SIZE_MAX || !nib__type_is_float(first->type) ||
            !can_join(first, &w->entries[k]) || w->entries[k].shape[0] != rank ||
            w->entries[v].type != first->type || w->entries[v].rank != 2 ||
            w->entries[v].shape[1] != rank) {
            w->unjoined_heads++;
            return NIB_OK;
        }
    }
    if (heads == 0) /* a name too long for its neighbours */
        return NIB_OK;
    nib_writer_entry *last = NULL;
    for (int64_t h = 0; h < 2 * heads; h++) {
        const bool keys = h % 2 == 0;
        const size_t next = find_half(w, i, keys ? "k" : "v", h / 2, names, items);
        nib_writer_entry *e = &w->entries[next];
        if (keys) {
            const int64_t nope = e->shape[1];
            nib_interleaved *c = collect(w, next, e->bytes);
            if (c == NULL)
                return nib__fail_memory(err, sizeof *c, "a tensor");
            place_interleaved(e, c, 0, 1, rank);
            e->shape[0] = nope, e->shape[1] = rank;
        }
        append_part(w, &last, next);
    }
    first->stored = nib__arena_copy(&w->arena, whole, strlen(whole));
    return first->stored != NULL ? NIB_OK : nib__fail_memory(err, strlen(whole), "a name");
}

/* What the shares of a GGUF's stacks belong to, by the end of the stack's name. */
static const struct share_row {
    const char *mark, *of;
} shares[] = {{"_exps.", "expert"}, {".attn_k_b.", "head"}, {".attn_v_b.", "head"}};

static const struct share_row *find_mark(const char **at, const char *name)
{
    for (size_t i = 0; i < COUNT(shares); i++)
        if ((*at = strstr(name, shares[i].mark)) != NULL)
            return &shares[i];
    return NULL;
}

/* What a share's number counts: "expert". */
static const char *owner_of(const char *name)
{
    const char *at;
    return find_mark(&at, name)->of;
}

/* The name of a GGUF's stack, if the name is that of a share of one (renames.h), and its number;
 * -1: it is not. beside: the name of share number `other`. */
static int64_t find_share(char whole[NIB_FUSED_NAME], char beside[NIB_FUSED_NAME], int64_t other,
                          const char *name)
{
    const char *found;
    const struct share_row *row = find_mark(&found, name);
    if (row == NULL)
        return -1;
    const char *number = found + strlen(row->mark);
    const size_t digits = strspn(number, "0123456789"), before = (size_t)(number - name);
    if (digits == 0 || digits > 9 || number[digits] != '.' || strlen(name) >= NIB_FUSED_NAME - 12)
        return -1;
    snprintf(whole, NIB_FUSED_NAME, "%.*s%s", (int)(before - 1), name, number + digits);
    snprintf(beside, NIB_FUSED_NAME, "%.*s%" PRId64 "%s", (int)before, name, other,
             number + digits);
    return strtol(number, NULL, 10);
}

/* Joins the shares of which entry i is the first into one stack. */
static nib_status join_experts(nib_writer *w, size_t i, const nib_name_index *names,
                               const void *const *items, nib_err *err)
{
    char whole[NIB_FUSED_NAME], share[NIB_FUSED_NAME], shown[160];
    nib_writer_entry *e = &w->entries[i], *last = e;
    for (e->experts = 1;; e->experts++) {
        (void)find_share(whole, share, e->experts, e->name);
        const size_t next = nib__name_index_find(names, items, share);
        if (next == SIZE_MAX)
            break;
        if (!can_join(e, &w->entries[next]) || e->shape[0] != w->entries[next].shape[0])
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "%s: a GGUF stores all %ss in one tensor, so this one must have "
                             "the type and shape of %s 0; use the same recipe for all of them, "
                             "or --format nibble",
                             nib__escape_name(shown, sizeof shown, share, strlen(share)),
                             owner_of(e->name), owner_of(e->name));
        last->next = next;
        last = &w->entries[next];
        last->follows = true;
    }
    e->stored = nib__arena_copy(&w->arena, whole, strlen(whole));
    return e->stored != NULL ? NIB_OK : nib__fail_memory(err, strlen(whole), "a name");
}

/* Joins the experts of a GGUF's stacks. */
static nib_status join_stacks(nib_writer *w, const nib_name_index *names, const void *const *items,
                              nib_err *err)
{
    char whole[NIB_FUSED_NAME], share[NIB_FUSED_NAME], shown[160];
    for (size_t i = 0; i < w->count; i++)
        if (find_share(whole, share, 0, w->entries[i].name) == 0)
            NIB_TRY(join_experts(w, i, names, items, err));
    for (size_t i = 0; i < w->count; i++) {
        const nib_writer_entry *e = &w->entries[i];
        if (find_share(whole, share, 0, e->name) > 0 && !e->follows)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: a GGUF stores all %ss in one tensor, and one before this is "
                             "missing",
                             nib__escape_name(shown, sizeof shown, e->name, strlen(e->name)),
                             owner_of(e->name));
    }
    return NIB_OK;
}

/* ---- stacks of experts ---- */

/* The matrices of an expert that a stack holds together. */
static const struct leaf_row {
    const char *whole, *parts[2]; /* parts[1] NULL: one alone */
} leaves[] = {{"gate_up_proj", {"gate_proj", "up_proj"}}, {"down_proj", {"down_proj", NULL}}};

/* A stack that is to be written: the tensors P.EXPERT.PART.END of every expert. */
typedef struct stack {
    const nib_experts_form *form;
    const struct leaf_row *leaf;
    const char *first; /* "model.layers.0.mlp.experts.0.gate_proj.weight" */
    int before;        /* length of P. */
    const char *end;   /* ".weight", ".bias" */
    int parts;
    int64_t experts;
} stack;

/* Whether the name is the first of a stack. */
static bool begin_stack(stack *s, const nib_writer *w, const char *name)
{
    static const char mark[] = "experts.0.";
    const bool fits = nib__skip_layer(name) > 0 && strlen(name) < NIB_FUSED_NAME - 20;
    const char *at = fits ? strstr(name, mark) : NULL;
    *s = (stack){.form = nib__experts_form(w->family), .first = name};
    if (at == NULL || s->form == NULL)
        return false;
    const char *leaf = at + sizeof mark - 1, *dot = strchr(leaf, '.');
    for (size_t i = 0; dot != NULL && i < COUNT(leaves); i++)
        if (strncmp(leaves[i].parts[0], leaf, (size_t)(dot - leaf)) == 0 &&
            leaves[i].parts[0][dot - leaf] == 0) {
            s->leaf = &leaves[i];
            s->parts = leaves[i].parts[1] != NULL ? 2 : 1;
        }
    s->before = (int)(leaf - 2 - name);
    s->end = dot;
    return s->leaf != NULL && (strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0);
}

/* The entry of part p of an expert; SIZE_MAX: none. */
static size_t find_expert(const stack *s, int64_t expert, int p, const nib_name_index *names,
                          const void *const *items)
{
    char name[NIB_FUSED_NAME];
    const int size = snprintf(name, sizeof name, "%.*s%" PRId64 ".%s%s", s->before, s->first,
                              expert, s->leaf->parts[p], s->end);
    return size < (int)sizeof name ? nib__name_index_find(names, items, name) : SIZE_MAX;
}

/* Counts the experts. False: some part is missing or unlike the first, so they stay apart. */
static bool count_experts(stack *s, const nib_writer *w, const nib_name_index *names,
                          const void *const *items)
{
    const nib_writer_entry *first = &w->entries[find_expert(s, 0, 0, names, items)];
    for (;; s->experts++) {
        int found = 0;
        for (int p = 0; p < s->parts; p++) {
            const size_t at = find_expert(s, s->experts, p, names, items);
            if (at == SIZE_MAX)
                continue;
            if (!can_join(first, &w->entries[at]) || w->entries[at].shape[0] != first->shape[0])
                return false;
            found++;
        }
        if (found == 0)
            break;
        if (found < s->parts)
            return false;
    }
    return nib__type_is_float(first->type) && first->rank >= 1 && first->rank <= 2 &&
           first->bytes > 0;
}

/* The shape of the whole stack. */
static void set_whole(nib_writer_entry *first, const stack *s)
{
    const int64_t n = s->parts * first->shape[0], k = first->rank > 1 ? first->shape[1] : 0;
    first->whole_rank = first->rank + 1;
    first->whole[0] = s->experts;
    first->whole[1] = s->form->across && k > 0 ? k : n;
    first->whole[2] = s->form->across ? n : k;
}

/* Joins all experts into one tensor, in the family's order. */
static nib_status join_stack(nib_writer *w, const stack *s, const nib_name_index *names,
                             const void *const *items, nib_err *err)
{
    char whole[NIB_FUSED_NAME], theirs[NIB_FUSED_NAME];
    nib_writer_entry *first = &w->entries[find_expert(s, 0, 0, names, items)], *last = NULL;
    const bool matrix = first->rank > 1, alternate = s->form->alternate && s->parts > 1;
    const int64_t rows = first->shape[0], n = rows * s->parts;
    set_whole(first, s);
    for (int64_t expert = 0; expert < s->experts; expert++) {
        nib_interleaved *c = NULL;
        if ((matrix && s->form->across) || alternate) {
            c = collect(w, find_expert(s, expert, 0, names, items),
                        first->bytes * (uint64_t)s->parts);
            if (c == NULL)
                return nib__fail_memory(err, sizeof *c, "a stack of experts");
        }
        for (int p = 0; p < s->parts; p++) {
            const size_t at = find_expert(s, expert, p, names, items);
            if (c != NULL)
                place_interleaved(&w->entries[at], c, alternate ? p : p * rows,
                                  alternate ? s->parts : 1, n);
            append_part(w, &last, at);
        }
    }
    const bool bias = strcmp(s->end, ".bias") == 0;
    const char *end = s->form->dotted ? s->end : bias ? "_bias" : "";
    snprintf(whole, sizeof whole, "%.*s%s%s", s->before, s->first, s->leaf->whole, end);
    if (!nib__experts_written_name(theirs, w->family, w->prefixed, whole))
        memcpy(theirs, whole, sizeof theirs);
    first->stored = nib__arena_copy(&w->arena, theirs, strlen(theirs));
    return first->stored != NULL ? NIB_OK : nib__fail_memory(err, strlen(theirs), "a name");
}

/* Writes the names and stacks of the family. */
static nib_status follow_family(nib_writer *w, const nib_name_index *names,
                                const void *const *items, nib_err *err)
{
    char theirs[NIB_FUSED_NAME];
    for (size_t i = 0; i < w->count; i++) {
        nib_writer_entry *e = &w->entries[i];
        stack s;
        if (begin_stack(&s, w, e->name)) {
            if (count_experts(&s, w, names, items))
                NIB_TRY(join_stack(w, &s, names, items, err));
            else
                w->unjoined++;
        } else if (!e->follows &&
                   nib__experts_written_name(theirs, w->family, w->prefixed, e->stored)) {
            e->stored = nib__arena_copy(&w->arena, theirs, strlen(theirs));
            if (e->stored == NULL)
                return nib__fail_memory(err, strlen(theirs), "a name");
        }
    }
    return NIB_OK;
}

nib_status nib__writer_join(nib_writer *w, nib_err *err)
{
    nib_name_index names;
    const void **items = nib__arena_take(&w->arena, w->count, sizeof *items);
    if (items == NULL || !nib__name_index_init(&names, &w->arena, w->count))
        return nib__fail_memory(err, w->count * sizeof *items, "the list of tensors");
    for (size_t i = 0; i < w->count; i++) {
        items[i] = &w->entries[i];
        nib__name_index_add(&names, items, i);
    }
    for (size_t i = 0; i < w->count && w->fused != 0; i++) {
        nib_fused_part first;
        char name[NIB_FUSED_NAME];
        const char *of = w->entries[i].name;
        if (nib__fused_part(&first, of, w->fused & NIB_FUSED_HEADS) && first.part == 0)
            NIB_TRY(join_heads(w, i, first.whole, &names, items, err));
        else if (nib__fused_part(&first, of, w->fused & ~(unsigned)NIB_FUSED_HEADS) &&
                 first.part == 0)
            NIB_TRY(join_tensor(w, i, &first, &names, items, err));
        w->entries[i].apart = (w->fused & NIB_APART_HEAD_NORMS) != 0 && w->gguf == NULL &&
                              nib__head_norm_name(name, w->entries[i].name, 0);
    }
    if (w->gguf != NULL)
        NIB_TRY(join_stacks(w, &names, items, err));
    else if (w->family != NULL)
        NIB_TRY(follow_family(w, &names, items, err));
    for (size_t i = 0; i < w->count; i++)
        w->stored += !w->entries[i].follows;
    return NIB_OK;
}
