/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger as text: a table with one line for layers that are alike, every substitution and
 * denial in full below it, and the one-line summary that ends every run.
 */
#include "ledger.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { WIDTH = 100, NAME_WIDTH = 38, ASKED_WIDTH = 22, NAME_ROOM = 256 };

const char *nib__ledger_fold_name(char *out, size_t size, const char *name)
{
    size_t at = 0;
    bool start = true; /* of a dotted part */
    while (*name != 0 && at + 1 < size) {
        const size_t digits = start ? strspn(name, "0123456789") : 0;
        if (digits != 0 && (name[digits] == 0 || name[digits] == '.')) {
            out[at++] = '*';
            name += digits;
            start = false;
            continue;
        }
        start = *name == '.';
        out[at++] = *name++;
    }
    out[at] = 0;
    return out;
}

void nib__ledger_wrap(nib_text *out, const char *first, const char *rest, int width,
                      const char *words)
{
    int column = (int)strlen(first);
    bool line_start = true;
    nib__text_str(out, first);
    while (*words != 0) {
        const size_t length = strcspn(words, " ");
        if (!line_start && column + 1 + (int)length > width) {
            nib__text_format(out, "\n%s", rest);
            column = (int)strlen(rest);
            line_start = true;
        }
        if (!line_start) {
            nib__text_str(out, " ");
            column++;
        }
        nib__text_put(out, words, length);
        column += (int)length;
        line_start = false;
        words += length;
        words += strspn(words, " ");
    }
    nib__text_str(out, "\n");
}

/* ---- which layers share a line ---- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_reasons(const nib_reason *a, size_t a_count, const nib_reason *b, size_t b_count)
{
    if (a_count != b_count)
        return false;
    for (size_t i = 0; i < a_count; i++)
        if (!same_text(a[i].code, b[i].code) || !same_text(a[i].text, b[i].text))
            return false;
    return true;
}

/* Compares codes and options, not texts. */
static bool same_advice(const nib_ledger_layer *a, const nib_ledger_layer *b)
{
    bool same = a->advice_count == b->advice_count;
    for (size_t i = 0; i < a->advice_count && same; i++) {
        same = false;
        for (size_t j = 0; j < b->advice_count && !same; j++)
            same = same_text(a->advice[i].code, b->advice[j].code) &&
                   same_text(a->advice[i].option, b->advice[j].option);
    }
    return same;
}

static bool same_line(const nib_ledger_layer *a, const nib_ledger_layer *b)
{
    char a_name[NAME_ROOM], b_name[NAME_ROOM];
    if (a->n != b->n || a->k != b->k || a->bias != b->bias ||
        !same_text(a->bias_form, b->bias_form) || a->rung != b->rung || a->denied != b->denied ||
        a->use_count != b->use_count || !same_text(a->asked, b->asked) ||
        !same_text(a->done, b->done) || !same_text(a->rule, b->rule) ||
        !same_text(a->allowed, b->allowed) || !same_text(a->kept, b->kept))
        return false;
    for (size_t i = 0; i < a->use_count; i++)
        if (!same_text(a->uses[i].kernel, b->uses[i].kernel))
            return false;
    return same_advice(a, b) &&
           same_reasons(a->reasons, a->reason_count, b->reasons, b->reason_count) &&
           strcmp(nib__ledger_fold_name(a_name, sizeof a_name, a->name),
                  nib__ledger_fold_name(b_name, sizeof b_name, b->name)) == 0;
}

/* One line of the table: the first of its layers, their number and their totals. */
typedef struct line {
    const nib_ledger_layer *layer;
    size_t count;
    uint64_t bytes;
    double sqnr_db;       /* the lowest; NaN: not measured */
    char name[NAME_ROOM]; /* folded, safe for a terminal */
} line;

/* The name to print for `count` layers or tensors, safe for a terminal because it may come from a
 * file. */
static void format_folded(char out[NAME_ROOM], const char *name, size_t count)
{
    char folded[NAME_ROOM];
    if (count > 1)
        name = nib__ledger_fold_name(folded, sizeof folded, name);
    nib__escape_name(out, NAME_ROOM, name, strlen(name));
}

/* Fills in the table line that begins with layer i; false if an earlier line covers it. */
static bool fill_line(const nib_ledger *ledger, size_t i, bool fold, line *out)
{
    const nib_ledger_layer *layer = &ledger->layers[i];
    for (size_t j = 0; fold && j < i; j++)
        if (same_line(layer, &ledger->layers[j]))
            return false;
    *out = (line){.layer = layer, .sqnr_db = NAN};
    for (size_t j = i; j < (fold ? ledger->layer_count : i + 1); j++) {
        const nib_ledger_layer *other = &ledger->layers[j];
        if (j != i && !same_line(layer, other))
            continue;
        out->count++;
        out->bytes += other->bytes;
        if (!isnan(other->sqnr_db) && !(other->sqnr_db >= out->sqnr_db))
            out->sqnr_db = other->sqnr_db;
    }
    format_folded(out->name, layer->name, out->count);
    return true;
}

/* ---- the table ---- */

static bool as_asked(const nib_ledger_layer *layer)
{
    return !layer->denied && layer->rung == NIB_RUNG_NONE;
}

const char *nib__ledger_bias_mark(const nib_ledger_layer *layer)
{
    if (!layer->bias)
        return "";
    if (layer->bias_form != NULL && strncmp(layer->bias_form, "int", 3) == 0)
        return strcmp(layer->bias_form, "int8") == 0 ? " +b8" : " +b32";
    return " +b";
}

const char *nib__ledger_shape(char out[48], const nib_ledger_layer *layer)
{
    if (layer->n == 0 && layer->k == 0) { /* an operation has no shape of its own */
        out[0] = 0;
        return out;
    }
    snprintf(out, 48, "%" PRId64 "x%" PRId64 "%s", layer->n, layer->k,
             nib__ledger_bias_mark(layer));
    return out;
}

/* A rule other than the recipe itself decided: "mxfp8 keeps the output layer". */
static bool has_own_rule(const nib_ledger_layer *layer)
{
    return layer->rule != NULL && strcmp(layer->rule, "recipe") != 0 &&
           strcmp(layer->rule, "as stored") != 0;
}

typedef struct widths {
    int name, asked;
} widths;

static void render_line(const line *l, widths w, nib_text *out)
{
    char shape[48], bytes[32];
    const nib_ledger_layer *layer = l->layer;
    nib__ledger_shape(shape, layer);
    nib__text_format(out, "%7zu  %-*s", l->count, w.name, l->name);
    if ((int)strlen(l->name) > w.name)
        nib__text_format(out, "\n%9s%-*s", "", w.name, "");
    nib__text_format(out, "  %-13s %9s  %-*s  ", shape, nib__format_bytes(bytes, l->bytes), w.asked,
                     layer->asked);
    if (layer->denied)
        nib__text_str(out, "no allowed kernel");
    else if (as_asked(layer))
        nib__text_str(out, layer->kept != NULL ? layer->kept : "as asked");
    else if (same_text(layer->asked, layer->done))
        nib__text_format(out, "rung %s", nib__rung_names[layer->rung]);
    else
        nib__text_format(out, "%s", layer->done);
    if (has_own_rule(layer))
        nib__text_format(out, " (%s)", layer->rule);
    if (isinf(l->sqnr_db))
        nib__text_str(out, " exact");
    else if (!isnan(l->sqnr_db))
        nib__text_format(out, " %.1f dB", l->sqnr_db);
    if (layer->method != NULL)
        nib__text_format(out, " by %s", layer->method);
    nib__text_str(out, "\n");
}

static int widen(int width, const char *text, int most)
{
    const int length = text == NULL ? 0 : (int)strlen(text);
    return length <= width ? width : length < most ? length : most;
}

static void render_table(const nib_ledger *ledger, bool fold, nib_text *out)
{
    widths w = {5, 5};
    line l;
    for (size_t i = 0; i < ledger->layer_count; i++) {
        char folded[NAME_ROOM];
        const char *name = ledger->layers[i].name;
        w.name = widen(w.name, fold ? nib__ledger_fold_name(folded, sizeof folded, name) : name,
                       NAME_WIDTH);
        w.asked = widen(w.asked, ledger->layers[i].asked, ASKED_WIDTH);
    }
    nib__text_format(out, "%7s  %-*s  %-13s %9s  %-*s  %s\n", "count", w.name, "layer", "n x k",
                     "bytes", w.asked, "asked", "done");
    for (size_t i = 0; i < ledger->layer_count; i++)
        if (fill_line(ledger, i, fold, &l))
            render_line(&l, w, out);
}

/* ---- what differs, in full ---- */

/* Do both differ from the request in the same way for the same reasons? Names do not matter. */
static bool same_difference(const nib_ledger_layer *a, const nib_ledger_layer *b)
{
    return a->rung == b->rung && a->denied == b->denied && same_text(a->asked, b->asked) &&
           same_text(a->done, b->done) && same_text(a->allowed, b->allowed) && same_advice(a, b) &&
           same_reasons(a->reasons, a->reason_count, b->reasons, b->reason_count);
}

void nib__ledger_render_advice(const nib_ledger_layer *layer, nib_text *out)
{
    char words[1024];
    for (size_t i = 0; i < layer->advice_count; i++) {
        const nib_ledger_advice *a = &layer->advice[i];
        if (a->option == NULL) {
            nib__ledger_wrap(out, "  - ", "    ", WIDTH, a->text);
            continue;
        }
        snprintf(words, sizeof words, "%s: %s", a->option, a->text);
        nib__ledger_wrap(out, "  > ", "    ", WIDTH, words);
    }
}

static void render_difference(const nib_ledger_layer *layer, nib_text *out)
{
    if (layer->denied)
        nib__text_format(out, "\ndenied: asked %s, no allowed kernel\n", layer->asked);
    else if (layer->rung == NIB_RUNG_NONE)
        nib__text_format(out, "\nas asked, %s, but\n", layer->asked);
    else
        nib__text_format(out, "\nsubstituted: asked %s, done %s; rung %s, allowed %s\n",
                         layer->asked, layer->done, nib__rung_names[layer->rung],
                         layer->allowed != NULL ? layer->allowed : "by nothing");
}

/* Each kind of difference once: its layers, reasons and advice. */
static void render_differences(const nib_ledger *ledger, bool fold, nib_text *out)
{
    for (size_t i = 0; i < ledger->layer_count; i++) {
        const nib_ledger_layer *layer = &ledger->layers[i];
        bool seen = as_asked(layer) && layer->advice_count == 0;
        for (size_t j = 0; j < i && !seen; j++)
            seen = same_difference(layer, &ledger->layers[j]);
        if (seen)
            continue;
        render_difference(layer, out);
        for (size_t j = i; j < ledger->layer_count; j++) {
            char shape[48];
            line l;
            if (same_difference(layer, &ledger->layers[j]) && fill_line(ledger, j, fold, &l))
                nib__text_format(out, "  %5zu  %s  %s\n", l.count, l.name,
                                 nib__ledger_shape(shape, l.layer));
        }
        for (size_t r = 0; r < layer->reason_count; r++)
            nib__ledger_wrap(out, "  - ", "    ", WIDTH, layer->reasons[r].text);
        nib__ledger_render_advice(layer, out);
    }
}

/* ---- tensors whose type changes on the way ---- */

static bool same_tensor(const nib_ledger_tensor *a, const nib_ledger_tensor *b)
{
    char a_name[NAME_ROOM], b_name[NAME_ROOM];
    return same_text(a->asked, b->asked) && same_text(a->done, b->done) &&
           same_text(a->reason, b->reason) &&
           strcmp(nib__ledger_fold_name(a_name, sizeof a_name, a->name),
                  nib__ledger_fold_name(b_name, sizeof b_name, b->name)) == 0;
}

static void render_tensors(const nib_ledger *ledger, bool fold, nib_text *out)
{
    for (size_t i = 0; i < ledger->tensor_count; i++) {
        const nib_ledger_tensor *tensor = &ledger->tensors[i];
        bool seen = false;
        for (size_t j = 0; fold && j < i && !seen; j++)
            seen = same_tensor(tensor, &ledger->tensors[j]);
        if (seen)
            continue;
        size_t count = 1;
        double change = tensor->max_rel_change;
        for (size_t j = i + 1; fold && j < ledger->tensor_count; j++) {
            if (!same_tensor(tensor, &ledger->tensors[j]))
                continue;
            count++;
            change = fmax(change, ledger->tensors[j].max_rel_change);
        }
        char name[NAME_ROOM], words[1024];
        format_folded(name, tensor->name, count);
        nib__format(words, sizeof words, "%zu x %s: %s -> %s, largest relative change %.2g%s%s",
                    count, name, tensor->asked, tensor->done, change,
                    tensor->reason != NULL ? ": " : "",
                    tensor->reason != NULL ? tensor->reason : "");
        nib__ledger_wrap(out, i == 0 ? "\ntensor: " : "tensor: ", "    ", WIDTH, words);
    }
}

/* ---- settings ---- */

/* Do both differ in the name alone, so that one line can cover both? */
static bool same_setting(const nib_ledger_setting *a, const nib_ledger_setting *b)
{
    return a->relation == b->relation && a->by == b->by && same_text(a->code, b->code) &&
           same_text(a->asked, b->asked) && same_text(a->text, b->text);
}

void nib__ledger_render_settings(const nib_ledger *ledger, nib_setting_relation least,
                                 nib_text *out)
{
    static const char *const labels[] = {
        "equivalent: ", "in part: ", "not as asked: ", "without effect: "};
    nib_text words, names;
    nib__text_init(&words, ledger->arena.allocator);
    nib__text_init(&names, ledger->arena.allocator);
    for (size_t i = 0; i < ledger->setting_count; i++) {
        nib_ledger_setting s = ledger->settings[i];
        bool seen = s.relation < least;
        for (size_t j = 0; j < i && !seen; j++)
            seen = same_setting(&s, &ledger->settings[j]);
        if (seen)
            continue;
        nib__text_clear(&names);
        nib__text_str(&names, s.name);
        for (size_t j = i + 1; j < ledger->setting_count; j++)
            if (same_setting(&s, &ledger->settings[j]))
                nib__text_format(&names, ", %s", ledger->settings[j].name);
        nib__text_put(&names, "", 0);
        nib__text_clear(&words);
        if (names.failed)
            break;
        s.name = names.at;
        nib__ledger_setting_sentence(&s, &words);
        if (!words.failed)
            nib__ledger_wrap(out, labels[s.relation], "    ", WIDTH, words.at);
    }
    out->failed = out->failed || words.failed || names.failed || ledger->failed;
    nib__text_free(&words);
    nib__text_free(&names);
}

void nib__ledger_render(const nib_ledger *ledger, bool fold, nib_text *out)
{
    if (ledger->failed)
        out->failed = true;
    if (ledger->layer_count != 0)
        render_table(ledger, fold, out);
    render_differences(ledger, fold, out);
    render_tensors(ledger, fold, out);
    if (ledger->setting_count != 0)
        nib__text_str(out, "\n");
    nib__ledger_render_settings(ledger, NIB_SETTING_EQUIVALENT, out);
    for (size_t i = 0; i < ledger->note_count; i++)
        nib__ledger_wrap(out, i == 0 ? "\nnote: " : "note: ", "    ", WIDTH, ledger->notes[i].text);
}

/* ---- the summary ---- */

/* The scheme of "8da4w-g32@cpu". */
static size_t scheme_length(const char *asked) { return asked == NULL ? 0 : strcspn(asked, "@"); }

static bool same_scheme(const char *a, const char *b)
{
    const size_t length = scheme_length(a);
    return length == scheme_length(b) && (length == 0 || memcmp(a, b, length) == 0);
}

/* "avx512vnni" of "linear_a8t_w4g_f32__avx512vnni_6x32", "ocl_gfx90a" likewise: the part of the
 * name after "__", up to a part that begins with a digit. */
static size_t find_target(const char *kernel, const char **target)
{
    const char *at = kernel == NULL ? NULL : strstr(kernel, "__");
    *target = at == NULL ? "" : at + 2;
    size_t length = strcspn(*target, "_");
    while ((*target)[length] == '_' &&
           !((*target)[length + 1] >= '0' && (*target)[length + 1] <= '9'))
        length += 1 + strcspn(*target + length + 1, "_");
    return length;
}

static const char *format_where(char out[96], const nib_ledger_layer *layer)
{
    if (layer->use_count == 0)
        return "";
    const char *target;
    const size_t length = find_target(layer->uses[0].kernel, &target);
    snprintf(out, 96, "%s/%.*s", layer->uses[0].device, (int)length, target);
    return out;
}

/* Whether two linear layers count together in the summary. */
typedef bool (*alike)(const nib_ledger_layer *a, const nib_ledger_layer *b);

static bool asked_alike(const nib_ledger_layer *a, const nib_ledger_layer *b)
{
    return nib__ledger_is_linear(b) && same_scheme(a->asked, b->asked);
}

static bool done_alike(const nib_ledger_layer *a, const nib_ledger_layer *b)
{
    char where[96], other[96];
    return nib__ledger_is_linear(b) && as_asked(b) &&
           strcmp(format_where(where, a), format_where(other, b)) == 0;
}

/* The number of layers like number i; 0: an earlier one counted them. */
static size_t count_alike(const nib_ledger *ledger, size_t i, alike is_alike)
{
    const nib_ledger_layer *layers = ledger->layers;
    size_t count = 0, first = 0;
    while (first < i && !is_alike(&layers[i], &layers[first]))
        first++;
    for (size_t j = i; first == i && j < ledger->layer_count; j++)
        count += is_alike(&layers[i], &layers[j]);
    return count;
}

static void append_asked(const nib_ledger *ledger, nib_text *out)
{
    for (size_t i = 0; i < ledger->layer_count; i++) {
        const nib_ledger_layer *layer = &ledger->layers[i];
        const size_t count = nib__ledger_is_linear(layer) ? count_alike(ledger, i, asked_alike) : 0;
        if (count != 0)
            nib__text_format(out, ", %zu asked %.*s", count, (int)scheme_length(layer->asked),
                             layer->asked);
    }
}

static void append_done(const nib_ledger *ledger, nib_text *out)
{
    char buffer[96];
    for (size_t i = 0; i < ledger->layer_count; i++) {
        const nib_ledger_layer *layer = &ledger->layers[i];
        const bool counts = nib__ledger_is_linear(layer) && as_asked(layer);
        const size_t count = counts ? count_alike(ledger, i, done_alike) : 0;
        if (count == 0)
            continue;
        const char *where = format_where(buffer, layer);
        nib__text_format(out, ", %zu done%s%s", count, *where != 0 ? " on " : "", where);
    }
}

void nib__ledger_summary(const nib_ledger *ledger, nib_text *out)
{
    const nib_ledger_counts counts = nib__ledger_count(ledger);
    if (ledger->failed)
        out->failed = true;
    nib__text_format(out, "%zu linear layer%s:", counts.asked, counts.asked == 1 ? "" : "s");
    const size_t start = out->size;
    append_asked(ledger, out);
    append_done(ledger, out);
    /* ":, 225 asked" -> ": 225 asked" */
    if (!out->failed && out->size > start && out->at[start] == ',') {
        memmove(out->at + start, out->at + start + 1, out->size - start);
        out->size--;
    }
    nib__text_format(out, "%s %zu substituted", counts.asked != 0 ? "," : "", counts.substituted);
    if (counts.denied != 0)
        nib__text_format(out, ", %zu denied", counts.denied);
    if (counts.embeddings != 0)
        nib__text_format(out, "; %zu embedding%s not as asked", counts.embeddings,
                         counts.embeddings == 1 ? "" : "s");
    if (counts.operations != 0)
        nib__text_format(out, "; %zu operation%s without weights not as asked", counts.operations,
                         counts.operations == 1 ? "" : "s");
    const size_t other = counts.settings[NIB_SETTING_OTHER] + counts.settings[NIB_SETTING_NONE];
    if (other != 0)
        nib__text_format(out, "; %zu setting%s not as asked", other, other == 1 ? "" : "s");
}
