/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists what a checkpoint stores; the tensors of a quantized weight share one line.
 */
#include "info.h"

#include "name_index.h"

#include <inttypes.h>
#include <stdio.h>

size_t nib__info_memory_limit(const nib_checkpoint *cp)
{
    const uint64_t bytes = nib__checkpoint_bytes(cp);
    return bytes > SIZE_MAX / 4 ? SIZE_MAX / 2 : 2 * (size_t)bytes + (64 << 20);
}

/* ---- the list ---- */

/* The modules that were read as weights, by name. */
typedef struct modules {
    const nib_checkpoint *cp;
    nib_arena *arena;
    nib_name_index names;
    const char ***items; /* pointers to pointers to names, as nib_name_index requires */
    nib_entry *entries;
    size_t count;
} modules;

static const nib_entry *find_owner(const modules *m, size_t tensor)
{
    char module[512];
    const size_t size = nib__checkpoint_owner(m->cp, tensor);
    if (size == 0 || size >= sizeof module)
        return NULL;
    memcpy(module, nib__checkpoint_at(m->cp, tensor)->name, size);
    module[size] = 0;
    const size_t at = nib__name_index_find(&m->names, (const void *const *)m->items, module);
    return at == SIZE_MAX ? NULL : &m->entries[at];
}

/* The dialect; for plain floats the file format; for GGUF blocks also the block type, because
 * several types map to one scheme. NULL: none. */
static const char *choose_format(const modules *m, const char *module, const char *weight)
{
    char text[32];
    const char *dialect = nib__checkpoint_dialect(m->cp, module);
    const nib_tensor *tensor = nib__checkpoint_find(m->cp, weight);
    if (dialect != NULL && strcmp(dialect, "safetensors") == 0)
        return nib__checkpoint_container(m->cp); /* plain floats */
    if (dialect == NULL || tensor == NULL || !nib__type_is_block(tensor->type))
        return dialect;
    snprintf(text, sizeof text, "%s %s", dialect, nib__type_name(tensor->type));
    const char *both = nib__arena_copy(m->arena, text, strlen(text));
    return both != NULL ? both : dialect;
}

static nib_status read_module(modules *m, const char *module, nib_ledger *ledger, nib_err *err)
{
    char text[512], scheme[64];
    nib_err problem = {NIB_OK, ""};
    nib_entry *e = &m->entries[m->count];
    *e = (nib_entry){.module = module, .rank = 2};
    if (snprintf(text, sizeof text, "%s.weight", module) >= (int)sizeof text)
        return NIB_OK; /* name too long: not indexed, so its tensors are listed singly */
    const nib_status status =
        nib__checkpoint_weight(&e->weight, NULL, m->cp, module, ledger, &problem);
    if (status == NIB_NO_MEMORY)
        return nib__fail(err, status, "%s", problem.text);
    e->name = nib__arena_copy(m->arena, text, strlen(text));
    e->format = choose_format(m, module, text);
    if (status != NIB_OK) {
        e->problem = nib__arena_copy(m->arena, problem.text, strlen(problem.text));
        e->scheme = "";
    } else {
        nib__scheme_name(scheme, &e->weight.scheme);
        e->scheme = nib__arena_copy(m->arena, scheme, strlen(scheme));
        e->shape[0] = e->weight.n;
        e->shape[1] = e->weight.k;
        e->group = nib__scheme_is_quantized(&e->weight.scheme) && e->weight.scheme.group > 0
                       ? e->weight.scheme.group
                       : 0;
        e->bias = e->weight.bias != NULL;
    }
    const char **item = nib__arena_take(m->arena, 1, sizeof *item);
    if (e->name == NULL || e->scheme == NULL || item == NULL || (status != NIB_OK && !e->problem))
        return nib__fail_memory(err, strlen(text), "the list of weights");
    *item = module;
    m->items[m->count] = item;
    if (nib__name_index_add(&m->names, (const void *const *)m->items, m->count) == NULL)
        m->count++;
    return NIB_OK;
}

static nib_entry make_plain_entry(const nib_checkpoint *cp, const nib_tensor *t)
{
    nib_entry e = {.name = t->name,
                   .rank = t->rank,
                   .format = nib__checkpoint_container(cp),
                   .scheme = nib__type_name(t->type),
                   .bytes = t->bytes,
                   .tensor = t};
    memcpy(e.shape, t->shape, sizeof e.shape);
    return e;
}

/* Lists weights, each at the position of its first tensor, and other tensors, in file order; then
 * unreadable weights without a tensor of their own.
 * line_of_module: [m->count] zeroed; 1 + the index of a module's latest line in `out`. */
static size_t merge_entries(nib_entry *out, const modules *m, size_t *line_of_module)
{
    size_t count = 0;
    for (size_t i = 0; i < nib__checkpoint_count(m->cp); i++) {
        const nib_tensor *t = nib__checkpoint_at(m->cp, i);
        const nib_entry *owner = find_owner(m, i);
        if (owner == NULL) {
            out[count++] = make_plain_entry(m->cp, t);
            continue;
        }
        size_t *at = &line_of_module[owner - m->entries];
        const bool first = *at == 0;
        if (owner->problem != NULL) { /* list its tensors separately, the first with the reason */
            out[count++] = make_plain_entry(m->cp, t);
            out[count - 1].problem = first ? owner->problem : NULL;
            out[count - 1].part_of = owner->module;
            *at = count;
            continue;
        }
        if (first) {
            out[count++] = *owner;
            *at = count;
        }
        out[*at - 1].bytes += t->bytes;
    }
    /* refused for a tensor that has another name (an alias): no tensor has shown the reason */
    for (size_t i = 0; i < m->count; i++)
        if (m->entries[i].problem != NULL && line_of_module[i] == 0) {
            out[count] = m->entries[i];
            out[count].format = nib__checkpoint_container(m->cp);
            out[count].part_of = out[count].module;
            out[count++].module = NULL;
        }
    return count;
}

nib_status nib__entries_list(nib_entry **out, size_t *count, const nib_checkpoint *cp,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    const size_t module_count = nib__checkpoint_module_count(cp),
                 tensors = nib__checkpoint_count(cp);
    modules m = {.cp = cp, .arena = arena};
    m.entries = nib__arena_take(arena, module_count, sizeof *m.entries);
    m.items = nib__arena_take(arena, module_count, sizeof *m.items);
    size_t *line_of_module = nib__arena_take(arena, module_count, sizeof *line_of_module);
    *out = nib__arena_take(arena, tensors + module_count, sizeof **out);
    if (!m.entries || !m.items || !line_of_module || !*out ||
        !nib__name_index_init(&m.names, arena, module_count))
        return nib__fail_memory(err, tensors * sizeof **out, "the list of tensors");
    for (size_t i = 0; i < module_count; i++)
        NIB_TRY(read_module(&m, nib__checkpoint_module(cp, i), ledger, err));
    *count = merge_entries(*out, &m, line_of_module);
    return NIB_OK;
}

uint64_t nib__entries_weights(const nib_entry *entries, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        const nib_entry *e = &entries[i];
        uint64_t weights = 1;
        for (int d = 0; d < e->rank; d++)
            weights *= (uint64_t)e->shape[d];
        sum += weights + (e->bias ? (uint64_t)e->shape[0] : 0);
    }
    return sum;
}

/* ---- rendering ---- */

const char *nib__format_entry_shape(char out[256], const nib_entry *e)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < e->rank; i++)
        used +=
            (size_t)snprintf(out + used, 256 - used, "%s%" PRId64, i == 0 ? "" : "x", e->shape[i]);
    return e->rank == 0 ? "scalar" : out;
}

static nib_bias entry_bias(const nib_entry *e)
{
    return e->bias ? nib__weight_bias_form(&e->weight) : NIB_BIAS_NONE;
}

static bool same_line(const nib_entry *a, const nib_entry *b)
{
    char a_name[256], b_name[256];
    return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           strcmp(a->scheme, b->scheme) == 0 && strcmp(a->format, b->format) == 0 &&
           entry_bias(a) == entry_bias(b) && a->problem == NULL && b->problem == NULL &&
           strcmp(nib__ledger_fold_name(a_name, sizeof a_name, a->name),
                  nib__ledger_fold_name(b_name, sizeof b_name, b->name)) == 0;
}

enum { FOLD_MAX = 4096 }; /* longer lists are not folded, as folding compares all pairs of lines */

static const char *const bias_words[NIB_BIAS_COUNT] = {"", "  with a bias", "  with an int8 bias",
                                                       "  with an int32 bias"};

static void render_lines(const nib_entry *entries, size_t count, nib_text *out)
{
    const bool fold = count <= FOLD_MAX;
    int width = 12;
    for (size_t i = 0; i < count; i++)
        width = (int)nib__max(width, (int64_t)strlen(entries[i].scheme));
    nib__text_format(out, "%7s  %-46s %-12s %-*s %-11s %s\n", "count", "tensor", "shape", width,
                     "scheme", "format", "bytes");
    for (size_t i = 0; i < count; i++) {
        char name[256], folded[256], shape[256], bytes[32];
        size_t same = 0, before = 0;
        uint64_t total = 0;
        for (size_t j = fold ? 0 : i; j < (fold ? count : i + 1); j++) {
            if (j != i && !same_line(&entries[i], &entries[j]))
                continue;
            before += j < i;
            same++;
            total += entries[j].bytes;
        }
        if (before != 0)
            continue;
        const char *shown = same == 1
                                ? entries[i].name
                                : nib__ledger_fold_name(folded, sizeof folded, entries[i].name);
        nib__text_format(out, "%7zu  %-46s %-12s %-*s %-11s %s%s\n", same,
                         nib__escape_name(name, sizeof name, shown, strlen(shown)),
                         nib__format_entry_shape(shape, &entries[i]), width, entries[i].scheme,
                         entries[i].format, nib__format_bytes(bytes, total),
                         bias_words[entry_bias(&entries[i])]);
        if (entries[i].problem != NULL)
            nib__ledger_wrap(out, "         ! ", "           ", 100, entries[i].problem);
    }
}

void nib__entry_json(nib_jsonw *w, const nib_entry *e)
{
    nib__jsonw_pair_string(w, "name", e->name);
    nib__jsonw_key(w, "shape");
    nib__jsonw_array(w);
    for (int i = 0; i < e->rank; i++)
        nib__jsonw_int(w, e->shape[i]);
    nib__jsonw_array_end(w);
    nib__jsonw_pair_string(w, "format", e->format);
    nib__jsonw_pair_string(w, "scheme", e->scheme);
    if (e->group != 0) {
        nib__jsonw_pair_int(w, "group", e->group);
    } else {
        nib__jsonw_key(w, "group");
        nib__jsonw_null(w);
    }
    nib__jsonw_pair_bool(w, "bias", e->bias);
    nib__jsonw_pair_string(w, "bias_form", e->bias ? nib__bias_names[entry_bias(e)] : NULL);
    nib__jsonw_pair_int(w, "bytes", (int64_t)e->bytes);
    if (e->problem != NULL)
        nib__jsonw_pair_string(w, "problem", e->problem);
}

/* Adds the checkpoint's own ledger and its aliases. Aliases are stored as metadata, not as tensors,
 * so they appear only as notes. */
static void add_notes(const nib_checkpoint *cp, nib_ledger *ledger)
{
    nib__ledger_append(ledger, nib__checkpoint_ledger(cp));
    for (size_t i = 0; i < nib__checkpoint_meta_count(cp); i++) {
        const nib_meta *meta = nib__checkpoint_meta_at(cp, i);
        char name[160], target[160];
        if (nib__checkpoint_alias(cp, meta->key) != NULL)
            nib__ledger_add_note(
                ledger, "alias", "%s is stored as %s",
                nib__escape_name(name, sizeof name, meta->key, strlen(meta->key)),
                nib__escape_name(target, sizeof target, meta->value, strlen(meta->value)));
    }
}

static void render_json(const nib_entry *entries, size_t count, const nib_checkpoint *cp,
                        const nib_ledger *ledger, nib_text *out)
{
    const uint64_t weights = nib__entries_weights(entries, count),
                   bytes = nib__checkpoint_bytes(cp);
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_int(&w, "bytes", (int64_t)bytes);
    nib__jsonw_pair_int(&w, "weights", (int64_t)weights);
    nib__jsonw_pair_double(&w, "bits_per_weight", 8.0 * (double)bytes / (double)weights);
    nib__jsonw_key(&w, "tensors");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < count; i++) {
        nib__jsonw_object(&w);
        nib__entry_json(&w, &entries[i]);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_key(&w, "conversions");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < ledger->tensor_count; i++) {
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "name", ledger->tensors[i].name);
        nib__jsonw_pair_string(&w, "asked", ledger->tensors[i].asked);
        nib__jsonw_pair_string(&w, "done", ledger->tensors[i].done);
        nib__jsonw_pair_double(&w, "max_rel_change", ledger->tensors[i].max_rel_change);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__ledger_settings_json(ledger, &w);
    nib__jsonw_key(&w, "notes");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < ledger->note_count; i++)
        nib__jsonw_string(&w, ledger->notes[i].text);
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

nib_status nib__info_render(const nib_checkpoint *cp, const nib_allocator *a, nib_form form,
                            nib_text *out, nib_err *err)
{
    char bytes[32], number[32], shown[160];
    nib_entry *entries;
    size_t count;
    nib_arena arena;
    nib_ledger ledger;
    nib__arena_init(&arena, a, nib__info_memory_limit(cp));
    nib__ledger_init(&ledger, a);
    const nib_status status = nib__entries_list(&entries, &count, cp, &arena, &ledger, err);
    if (status == NIB_OK)
        add_notes(cp, &ledger);
    if (status == NIB_OK && form == NIB_FORM_JSON) {
        render_json(entries, count, cp, &ledger, out);
    } else if (status == NIB_OK) {
        const char *path = nib__checkpoint_path(cp);
        const uint64_t weights = nib__entries_weights(entries, count);
        nib__text_format(out, "%s: %zu tensors, %s, %s weights",
                         nib__escape_name(shown, sizeof shown, path, strlen(path)),
                         nib__checkpoint_count(cp),
                         nib__format_bytes(bytes, nib__checkpoint_bytes(cp)),
                         nib__format_count(number, weights));
        if (weights != 0)
            nib__text_format(out, ", %.2f bits per weight",
                             8.0 * (double)nib__checkpoint_bytes(cp) / (double)weights);
        nib__text_str(out, "\n");
        render_lines(entries, count, out);
        nib__ledger_render(&ledger, true, out);
    }
    out->failed = out->failed || ledger.failed;
    nib__ledger_free(&ledger);
    nib__arena_free(&arena);
    return status;
}
