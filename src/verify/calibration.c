/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights are read row by row, once.
 */
#include "calibration.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    SPAN = 256,   /* codes read at a time */
    LEVELS = 16,  /* of 4-bit codes */
    GROUPS = 16,  /* fewer say nothing of double quantization */
    WIDE = 32,    /* elements of a group with more than LEVELS distinct 8-bit codes, as a rule */
    CODES = 1024, /* fewer may well be all the same */
};

typedef struct finder {
    nib_signs *out;
    const nib_checkpoint *cp;
    const nib_entry *entries;
    size_t count;
    nib_arena *arena;
    const nib_allocator *allocator;
    nib_err *err;
} finder;

static nib_status add_sign(finder *f, bool is_problem, const char *code, const char *name,
                           const char *format, ...) NIB_PRINTF(5, 6);

static nib_status add_sign(finder *f, bool is_problem, const char *code, const char *name,
                           const char *format, ...)
{
    char text[600];
    void *list = f->out->items;
    va_list args;
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    const nib_sign sign = {is_problem, code, nib__arena_copy(f->arena, name, strlen(name)),
                           nib__arena_copy(f->arena, text, strlen(text))};
    if (sign.name == NULL || sign.text == NULL ||
        !nib__reserve(f->allocator, &list, &f->out->capacity, f->out->count + 1, sizeof sign))
        return nib__fail_memory(f->err, sizeof text, "the list of findings");
    f->out->items = list;
    f->out->items[f->out->count++] = sign;
    return NIB_OK;
}

/* ---- what config.json says ---- */

/* Layers whose codes or floats are not as quantization_config says, and its lists of modules. */
static nib_status find_mismatches(finder *f)
{
    const nib_ledger *said = nib__checkpoint_ledger(f->cp);
    const nib_quantization *coding = nib__checkpoint_coding(f->cp);
    nib_unmatched lists[2] = {{0, NULL}, {0, NULL}};
    for (size_t i = 0; i < said->setting_count; i++) {
        const nib_ledger_setting *s = &said->settings[i];
        if (strcmp(s->code, "quantization-config") == 0 && s->asked != NULL)
            NIB_TRY(add_sign(f, true, "config", s->name != NULL ? s->name : "config.json", "%s",
                             s->text));
    }
    if (coding == NULL)
        return NIB_OK;
    const size_t count = nib__checkpoint_module_count(f->cp);
    const char **modules = nib__arena_take(f->arena, count, sizeof *modules);
    if (modules == NULL)
        return nib__fail_memory(f->err, count * sizeof *modules, "the list of weights");
    for (size_t i = 0; i < count; i++)
        modules[i] = nib__checkpoint_module(f->cp, i);
    NIB_TRY(nib__quantization_unmatched(&lists[0], &lists[1], coding, modules, count, f->arena,
                                        f->err));
    for (int i = 0; i < 2; i++)
        if (lists[i].count != 0)
            NIB_TRY(add_sign(f, false, "config-list", lists[i].first,
                             "the first of %zu in quantization_config's list of modules %s that "
                             "match no weight",
                             lists[i].count,
                             i == 0 ? "to leave unquantized" : "that are quantized"));
    return NIB_OK;
}

/* An output layer in other groups than the rest. */
static nib_status find_head_group(finder *f)
{
    const nib_entry *head = NULL;
    int64_t group = -1;
    size_t others = 0;
    for (size_t i = 0; i < f->count; i++) {
        const nib_entry *e = &f->entries[i];
        if (e->module == NULL || !nib__scheme_is_quantized(&e->weight.scheme))
            continue;
        if (nib__ends_with(e->module, "lm_head")) {
            head = e;
        } else if (!nib__ends_with(e->module, "embed_tokens")) {
            if (group != -1 && group != e->weight.scheme.group)
                return NIB_OK; /* groups of several sizes anyway */
            group = e->weight.scheme.group;
            others++;
        }
    }
    if (head == NULL || others == 0 || head->weight.scheme.group == group)
        return NIB_OK;
    return add_sign(f, false, "head-group", head->name,
                    "has groups of %" PRId64 " inputs, and the other %zu weights of %" PRId64
                    " (0: a row); programs that read one group size from the config misread it",
                    head->weight.scheme.group, others, group);
}

/* ---- codes ---- */

typedef struct code_counts {
    bool seen[256];                            /* in the whole weight */
    int64_t zero_scales, groups, wide, narrow; /* narrow: of the wide groups, with few codes */
} code_counts;

static void count_group(code_counts *c, const nib_weight *w, int64_t i, int64_t k0, int64_t end)
{
    bool seen[256] = {false};
    int8_t codes[SPAN];
    int distinct = 0;
    for (int64_t at = k0; at < end; at += SPAN) {
        const int64_t some = nib__min(SPAN, end - at);
        nib__weight_codes(w, i, at, some, codes);
        for (int64_t j = 0; j < some; j++)
            seen[(uint8_t)codes[j]] = true;
    }
    for (int code = 0; code < 256; code++) {
        distinct += seen[code];
        c->seen[code] = c->seen[code] || seen[code];
    }
    c->groups++;
    c->wide += end - k0 >= WIDE && distinct > 1;
    c->narrow += end - k0 >= WIDE && distinct > 1 && distinct <= LEVELS;
}

static void count_codes(code_counts *c, const nib_weight *w)
{
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k),
                  size = nib__scheme_group_size(&w->scheme, w->k);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t g = 0; g < groups; g++) {
            c->zero_scales += nib__weight_scale(w, i, g) == 0;
            count_group(c, w, i, g * size, nib__min((g + 1) * size, w->k));
        }
}

static nib_status find_code_signs(finder *f, const nib_entry *e)
{
    const nib_weight *w = &e->weight;
    code_counts c = {.groups = 0};
    int distinct = 0;
    if (!nib__scheme_is_quantized(&w->scheme))
        return NIB_OK;
    count_codes(&c, w);
    for (int code = 0; code < 256; code++)
        distinct += c.seen[code];
    if (distinct == 1 && w->n * w->k >= CODES)
        NIB_TRY(add_sign(f, true, "default-codes", e->name,
                         "all of its %" PRId64
                         " codes are the same: a default that no weight was quantized to",
                         w->n * w->k));
    else if (c.zero_scales != 0)
        NIB_TRY(add_sign(f, false, "scale", e->name,
                         "%" PRId64 " of %" PRId64 " groups have a scale of 0", c.zero_scales,
                         c.groups));
    if (nib__code_bits(w->scheme.code) == 8 && w->layout != NIB_LAYOUT_IQ4_NL && c.wide >= GROUPS &&
        c.narrow == c.wide)
        NIB_TRY(add_sign(f, false, "double-quantized", e->name,
                         "each of its %" PRId64
                         " groups has at most %d distinct codes of 8 bits: it was made from "
                         "weights that had been quantized to 4 bits before",
                         c.wide, LEVELS));
    nib__checkpoint_release_rows(f->cp, w, 0, w->n);
    return NIB_OK;
}

nib_status nib__find_signs(nib_signs *out, const nib_checkpoint *cp, const nib_entry *entries,
                           size_t count, nib_arena *arena, const nib_allocator *a, nib_err *err)
{
    finder f = {out, cp, entries, count, arena, a, err};
    *out = (nib_signs){.count = 0};
    NIB_TRY(find_mismatches(&f));
    NIB_TRY(find_head_group(&f));
    for (size_t i = 0; i < count; i++)
        if (entries[i].module != NULL)
            NIB_TRY(find_code_signs(&f, &entries[i]));
    return NIB_OK;
}
