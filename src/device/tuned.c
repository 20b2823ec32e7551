/* SPDX-License-Identifier: Apache-2.0
 *
 * Measured orders of kernels, in a JSON file:
 *
 *   {"schema": 1, "machines": [{"name", "isa", "threads", "version", "table", "measured",
 *     "lines": [{"key": [NIB_TUNED_KEY numbers], "kernels": [], "us": []}]}]}
 *
 * They are valid for the version and the table of kernels (its hash is `table`) that they were
 * measured with.
 */
#include "tuned.h"

#include "file.h"
#include "hash.h"
#include "kept_list.h"

#include <stdio.h>

enum { SCHEMA = 1, ENTRIES_MAX = 32, LINES_MAX = 4096, FILE_LIMIT = 16 << 20, WORDS = 96 };

const nib_fact nib__tuned_facts[NIB_TUNED_KEY] = {
    NIB_FACT_CODE,  NIB_FACT_ACT,       NIB_FACT_INPUT,      NIB_FACT_N,    NIB_FACT_K,
    NIB_FACT_GROUP, NIB_FACT_SYMMETRIC, NIB_FACT_SCALE_TYPE, NIB_FACT_ZERO, NIB_FACT_M};

typedef struct entry {
    char name[WORDS], version[32], table[40];
    int64_t isa, threads;
    nib_tuned tuned;
} entry;

/* The contents of a file: all machines. */
typedef struct kept {
    entry items[ENTRIES_MAX];
    size_t count;
    bool is_damaged; /* it exists but cannot be parsed */
    const nib_allocator *allocator;
} kept;

void nib__tuned_init(nib_tuned *tuned, const nib_allocator *a)
{
    *tuned = (nib_tuned){.allocator = a};
}

void nib__tuned_free(nib_tuned *tuned)
{
    if (tuned->allocator != NULL)
        nib__release(tuned->allocator, tuned->lines);
    nib__tuned_init(tuned, tuned->allocator);
}

static void free_kept(kept *k)
{
    for (size_t i = 0; i < k->count; i++)
        nib__tuned_free(&k->items[i].tuned);
}

char *nib__tuned_path(nib_arena *arena, const char *cache_path)
{
    const size_t folder = (size_t)(nib__path_name(cache_path) - cache_path);
    char *path = nib__arena_take(arena, folder + sizeof "tuned.json", 1);
    if (path == NULL)
        return NULL;
    memcpy(path, cache_path, folder);
    memcpy(path + folder, "tuned.json", sizeof "tuned.json");
    return path;
}

/* ---- lines ---- */

static nib_tuned_line *find_key(const nib_tuned *t, const int64_t key[NIB_TUNED_KEY])
{
    for (size_t i = 0; i < t->count; i++)
        if (memcmp(t->lines[i].key, key, sizeof t->lines[i].key) == 0)
            return &t->lines[i];
    return NULL;
}

const nib_tuned_line *nib__tuned_find(const nib_tuned *tuned, const nib_query *query)
{
    int64_t key[NIB_TUNED_KEY];
    for (size_t i = 0; i < NIB_TUNED_KEY; i++)
        key[i] = query->fact[nib__tuned_facts[i]];
    return find_key(tuned, key);
}

double nib__tuned_seconds(const nib_tuned_line *line, const nib_kernel *kernel)
{
    for (int i = 0; i < line->count; i++)
        if (line->rows[i].kernel == kernel)
            return line->rows[i].seconds;
    return 0;
}

bool nib__tuned_add(nib_tuned *t, const nib_tuned_line *line)
{
    nib_tuned_line *at = find_key(t, line->key);
    if (at == NULL) {
        void *lines = t->lines;
        const bool has_room =
            nib__reserve(t->allocator, &lines, &t->capacity, t->count + 1, sizeof *t->lines);
        t->lines = lines;
        if (!has_room)
            return false;
        at = &t->lines[t->count++];
    }
    *at = *line;
    return true;
}

/* ---- reading ---- */

static bool read_text(nib_json *json, nib_arena *arena, char *out, size_t size)
{
    const char *text = nib__json_read_string(json, arena, NULL);
    if (text != NULL)
        snprintf(out, size, "%s", text);
    return text != NULL;
}

static bool read_key(nib_json *json, nib_tuned_line *line)
{
    bool good = nib__json_expect(json, NIB_JSON_ARRAY);
    for (int i = 0; good && i < NIB_TUNED_KEY; i++)
        good = nib__json_read_int64(json, INT64_MIN, INT64_MAX, &line->key[i]);
    return good && nib__json_expect(json, NIB_JSON_ARRAY_END);
}

/* Reads names; a kernel that no longer exists becomes NULL. */
static bool read_kernels(nib_json *json, nib_arena *arena, nib_tuned_line *line)
{
    nib_json_event event = NIB_JSON_ERROR;
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    while (line->count < NIB_TUNED_ROWS && (event = nib__json_next(json)) == NIB_JSON_STRING) {
        const char *name = nib__json_string(json, arena, NULL);
        if (name == NULL)
            return false;
        line->rows[line->count++].kernel = nib__kernel_find(name);
    }
    return event == NIB_JSON_ARRAY_END || nib__json_expect(json, NIB_JSON_ARRAY_END);
}

static bool read_times(nib_json *json, nib_tuned_line *line, int *count)
{
    nib_json_event event = NIB_JSON_ERROR;
    *count = 0;
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    while (*count < NIB_TUNED_ROWS && (event = nib__json_next(json)) == NIB_JSON_NUMBER) {
        double us;
        if (!nib__json_double(json, &us))
            return false;
        line->rows[(*count)++].seconds = us * 1e-6;
    }
    return event == NIB_JSON_ARRAY_END || nib__json_expect(json, NIB_JSON_ARRAY_END);
}

/* All kernels exist; times are possible and ascend. */
static bool is_sane(const nib_tuned_line *line, int times)
{
    bool sane = line->count > 0 && line->count == times;
    for (int i = 0; sane && i < line->count; i++)
        sane = line->rows[i].kernel != NULL && line->rows[i].seconds > 0 &&
               line->rows[i].seconds < 1000 &&
               (i == 0 || line->rows[i].seconds >= line->rows[i - 1].seconds);
    return sane;
}

static bool read_line(nib_json *json, nib_arena *arena, nib_tuned *out)
{
    nib_tuned_line line = {.count = 0};
    int times = 0;
    nib_json_event event;
    bool good = true;
    while (good && (event = nib__json_next(json)) == NIB_JSON_KEY) {
        if (nib__json_is(json, "key"))
            good = read_key(json, &line);
        else if (nib__json_is(json, "kernels"))
            good = line.count == 0 && read_kernels(json, arena, &line);
        else if (nib__json_is(json, "us"))
            good = read_times(json, &line, &times);
        else
            good = nib__json_skip(json);
    }
    if (!good || json->event != NIB_JSON_OBJECT_END)
        return false;
    return !is_sane(&line, times) || out->count == LINES_MAX || nib__tuned_add(out, &line);
}

static bool read_lines(nib_json *json, nib_arena *arena, nib_tuned *out)
{
    bool good = nib__json_expect(json, NIB_JSON_ARRAY);
    while (good && nib__json_next(json) == NIB_JSON_OBJECT)
        good = read_line(json, arena, out);
    return good && json->event == NIB_JSON_ARRAY_END;
}

static bool read_member(nib_json *json, nib_arena *arena, entry *e)
{
    if (nib__json_is(json, "name"))
        return read_text(json, arena, e->name, sizeof e->name);
    if (nib__json_is(json, "version"))
        return read_text(json, arena, e->version, sizeof e->version);
    if (nib__json_is(json, "table"))
        return read_text(json, arena, e->table, sizeof e->table);
    if (nib__json_is(json, "measured"))
        return read_text(json, arena, e->tuned.measured_on, sizeof e->tuned.measured_on);
    if (nib__json_is(json, "isa"))
        return nib__json_read_int64(json, 0, INT64_MAX, &e->isa);
    if (nib__json_is(json, "threads"))
        return nib__json_read_int64(json, 0, 1 << 20, &e->threads);
    if (nib__json_is(json, "lines"))
        return read_lines(json, arena, &e->tuned);
    return nib__json_skip(json);
}

static bool read_entries(nib_json *json, nib_arena *arena, void *ctx)
{
    kept *out = ctx;
    bool good = nib__json_expect(json, NIB_JSON_ARRAY);
    while (good && nib__json_next(json) == NIB_JSON_OBJECT && out->count < ENTRIES_MAX) {
        entry *e = &out->items[out->count++];
        nib__tuned_init(&e->tuned, out->allocator);
        while (good && nib__json_next(json) == NIB_JSON_KEY)
            good = read_member(json, arena, e);
        good = good && json->event == NIB_JSON_OBJECT_END;
    }
    return good && json->event == NIB_JSON_ARRAY_END;
}

static const nib_kept_list list = {
    .name = "machines", .schema = SCHEMA, .limit = FILE_LIMIT, .depth = 8, .indent = 1};

/* A file that does not exist or cannot be parsed counts as empty. */
static void read_file(kept *out, const char *path, const nib_allocator *a)
{
    out->allocator = a;
    out->is_damaged = !nib__kept_list_read(&list, path, read_entries, out, a);
    if (!out->is_damaged)
        return;
    free_kept(out);
    out->count = 0;
}

/* ---- writing ---- */

static void write_line(nib_jsonw *w, const nib_tuned_line *line)
{
    nib__jsonw_object(w);
    nib__jsonw_key(w, "key");
    nib__jsonw_array(w);
    for (int i = 0; i < NIB_TUNED_KEY; i++)
        nib__jsonw_int(w, line->key[i]);
    nib__jsonw_array_end(w);
    nib__jsonw_key(w, "kernels");
    nib__jsonw_array(w);
    for (int i = 0; i < line->count; i++)
        nib__jsonw_string(w, line->rows[i].kernel->name);
    nib__jsonw_array_end(w);
    double us[NIB_TUNED_ROWS];
    for (int i = 0; i < line->count; i++)
        us[i] = line->rows[i].seconds * 1e6;
    nib__jsonw_pair_doubles(w, "us", us, line->count);
    nib__jsonw_object_end(w);
}

static void write_entry(nib_jsonw *w, const void *ctx, size_t i)
{
    const entry *e = &((const kept *)ctx)->items[i];
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", e->name);
    nib__jsonw_pair_int(w, "isa", e->isa);
    nib__jsonw_pair_int(w, "threads", e->threads);
    nib__jsonw_pair_string(w, "version", e->version);
    nib__jsonw_pair_string(w, "table", e->table);
    nib__jsonw_pair_string(w, "measured", e->tuned.measured_on);
    nib__jsonw_key(w, "lines");
    nib__jsonw_array(w);
    for (size_t j = 0; j < e->tuned.count; j++)
        write_line(w, &e->tuned.lines[j]);
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static nib_status write_file(const kept *k, const char *path, const nib_allocator *a, nib_err *err)
{
    return nib__kept_list_write(&list, path, k->count, write_entry, k, a, err);
}

/* ---- one machine ---- */

static void hash_kernel_names(char out[40])
{
    char text[33] = "";
    nib_hasher *hasher = nib__hasher_open();
    for (size_t i = 0; hasher != NULL && i < nib__kernel_count(); i++) {
        const char *name = nib__kernel_at(i)->name;
        nib__hasher_add(hasher, name, strlen(name) + 1);
    }
    if (hasher != NULL)
        nib__hash_text(text, nib__hasher_finish(hasher));
    snprintf(out, 40, "%s", text);
}

static entry entry_of(const nib_machine *m)
{
    entry e = {.isa = m->facts.fact[NIB_FACT_ISA], .threads = m->threads};
    snprintf(e.name, sizeof e.name, "%s", nib__machine_title(m));
    snprintf(e.version, sizeof e.version, "%s", NIB_VERSION);
    hash_kernel_names(e.table);
    return e;
}

static bool is_same(const entry *a, const entry *b)
{
    return strcmp(a->name, b->name) == 0 && a->isa == b->isa && a->threads == b->threads;
}

/* Says why orders for this processor in the file are not used, if it has any. */
static void explain_unused(nib_tuned *out, const kept *k, const entry *own, const char *path)
{
    if (k->is_damaged)
        snprintf(out->why, sizeof out->why, "%.160s cannot be parsed, so it is not used", path);
    for (size_t i = 0; i < k->count && out->why[0] == 0; i++)
        if (strcmp(k->items[i].name, own->name) == 0)
            snprintf(out->why, sizeof out->why,
                     "the measured order of kernels is for %lld thread%s and %s, not for %lld and "
                     "%s, so it is not used",
                     (long long)k->items[i].threads, k->items[i].threads == 1 ? "" : "s",
                     nib__cpu_isa_name(k->items[i].isa), (long long)own->threads,
                     nib__cpu_isa_name(own->isa));
}

void nib__tuned_load(nib_tuned *out, const nib_machine *machine, const char *path,
                     const nib_allocator *a)
{
    nib__tuned_init(out, a);
    kept *k = nib__calloc(a, 1, sizeof *k);
    if (k == NULL)
        return;
    const entry own = entry_of(machine);
    read_file(k, path, a);
    for (size_t i = 0; i < k->count; i++) {
        entry *e = &k->items[i];
        if (!is_same(e, &own))
            continue;
        if (strcmp(e->version, own.version) == 0 && strcmp(e->table, own.table) == 0) {
            *out = e->tuned;
            nib__tuned_init(&e->tuned, a);
        } else {
            snprintf(out->why, sizeof out->why,
                     "the order of kernels measured on %s is for other kernels, of version %s, so "
                     "it is not used",
                     e->tuned.measured_on, e->version);
        }
        break;
    }
    if (out->count == 0 && out->why[0] == 0)
        explain_unused(out, k, &own, path);
    free_kept(k);
    nib__release(a, k);
}

nib_status nib__tuned_keep(const nib_tuned *tuned, const nib_machine *machine, const char *path,
                           const nib_allocator *a, nib_err *err)
{
    kept *k = nib__calloc(a, 1, sizeof *k);
    if (k == NULL)
        return nib__fail_memory(err, sizeof *k, "what was measured");
    entry own = entry_of(machine);
    read_file(k, path, a);
    size_t at = 0;
    while (at < k->count && !is_same(&k->items[at], &own))
        at++;
    at = at < ENTRIES_MAX ? at : 0;
    if (at < k->count)
        nib__tuned_free(&k->items[at].tuned);
    else
        k->count++;
    own.tuned = *tuned; /* its lines belong to the caller */
    k->items[at] = own;
    const nib_status status = write_file(k, path, a, err);
    nib__tuned_init(&k->items[at].tuned, a);
    free_kept(k);
    nib__release(a, k);
    return status;
}

nib_status nib__tuned_forget(bool *found, const nib_machine *machine, const char *path,
                             const nib_allocator *a, nib_err *err)
{
    kept *k = nib__calloc(a, 1, sizeof *k);
    if (k == NULL)
        return nib__fail_memory(err, sizeof *k, "what was measured");
    const entry own = entry_of(machine);
    read_file(k, path, a);
    const size_t before = k->count;
    *found = k->is_damaged;
    for (size_t i = 0; i < k->count;) {
        if (strcmp(k->items[i].name, own.name) != 0) {
            i++;
            continue;
        }
        nib__tuned_free(&k->items[i].tuned);
        k->items[i] = k->items[--k->count];
        *found = true;
    }
    nib_status status = NIB_OK;
    if (*found && k->count == 0)
        status = nib__path_remove(path, err);
    else if (k->count < before)
        status = write_file(k, path, a, err);
    free_kept(k);
    nib__release(a, k);
    return status;
}
