/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps measurements of machines in a JSON file between runs:
 *
 *   {"schema": 3, "machines": [{"name", "driver", "isa", "threads", "version", "measured",
 *     "disturbed", "bytes_per_s", "cache_bytes", "cache_bytes_per_s", "launch_s", "copy_s",
 *     "copy_bytes_per_s", "rates": [NIB_UNIT_COUNT numbers],
 *     "products": [{"code", "act", "weight_bytes", "memory_s",
 *                   "points": [{"kernel", "quant_s", "outputs": [], "k_s": []}]}]}]}
 *
 * A processor is identified by name, isa and threads, another device by name and driver. Products
 * are valid for the version that measured them. A missing file, or one with another schema, counts
 * as empty.
 */
#include "kept_list.h"
#include "machine.h"

#include <stdio.h>

enum {
    SCHEMA = 3,
    ENTRIES_MAX = 32,
    FILE_LIMIT = 4 << 20 /* enough for all entries */,
    WORDS = 96
};

const int64_t nib__points[NIB_POINTS] = {1, 8, 17, 64, 256};

typedef struct entry {
    char name[WORDS], driver[WORDS], version[WORDS];
    int64_t threads;
    nib_machine m; /* the measurements, and the fact ISA */
} entry;

/* ---- reading ---- */

static bool read_text(nib_json *json, nib_arena *arena, char *out, size_t size)
{
    const char *text = nib__json_read_string(json, arena, NULL);
    if (text == NULL)
        return false;
    snprintf(out, size, "%s", text);
    return true;
}

/* Reads an array of at most `most` numbers; returns the count, -1 if it is something else. */
static int read_array(nib_json *json, double *out, int most)
{
    int count = 0;
    nib_json_event event;
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return -1;
    while ((event = nib__json_next(json)) == NIB_JSON_NUMBER && count < most)
        if (!nib__json_double(json, &out[count++]))
            return -1;
    return event == NIB_JSON_ARRAY_END ? count : -1;
}

/* *counted: the number of `k_s`, which must equal that of outputs. */
static bool read_point_member(nib_json *json, nib_arena *arena, nib_point *point, int *counted)
{
    if (nib__json_is(json, "kernel")) {
        const char *name = nib__json_read_string(json, arena, NULL);
        point->row = name != NULL ? nib__kernel_find(name) : NULL;
        return name != NULL;
    }
    if (nib__json_is(json, "quant_s"))
        return nib__json_read_double(json, &point->quant_s);
    if (nib__json_is(json, "outputs"))
        return (point->size_count = read_array(json, point->outputs, NIB_SIZES)) >= 0;
    if (nib__json_is(json, "k_s"))
        return (*counted = read_array(json, point->k_s, NIB_SIZES)) >= 0;
    return nib__json_skip(json);
}

static bool read_points(nib_json *json, nib_arena *arena, nib_point points[NIB_POINTS])
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    for (int i = 0; i < NIB_POINTS; i++) {
        int counted = 0;
        nib_json_event event = NIB_JSON_ERROR;
        if (!nib__json_expect(json, NIB_JSON_OBJECT))
            return false;
        while ((event = nib__json_next(json)) == NIB_JSON_KEY)
            if (!read_point_member(json, arena, &points[i], &counted))
                return false;
        if (event != NIB_JSON_OBJECT_END)
            return false;
        points[i].size_count = counted == points[i].size_count ? counted : 0;
    }
    return nib__json_expect(json, NIB_JSON_ARRAY_END);
}

static bool read_product_member(nib_json *json, nib_arena *arena, nib_measured *p)
{
    int64_t number = 0;
    bool good;
    if (nib__json_is(json, "code")) {
        good = nib__json_read_int64(json, 0, NIB_CODE_COUNT - 1, &number);
        p->code = (nib_code)number;
        return good;
    }
    if (nib__json_is(json, "act")) {
        good = nib__json_read_int64(json, 0, NIB_ACT_COUNT - 1, &number);
        p->act = (nib_act)number;
        return good;
    }
    if (nib__json_is(json, "points"))
        return read_points(json, arena, p->at);
    if (nib__json_is(json, "weight_bytes"))
        return nib__json_read_double(json, &p->weight_bytes);
    if (nib__json_is(json, "memory_s"))
        return nib__json_read_double(json, &p->memory_s);
    return nib__json_skip(json);
}

static bool is_sane_point(const nib_point *point)
{
    bool sane =
        point->row != NULL && point->size_count > 0 && point->quant_s >= 0 && point->quant_s < 1;
    for (int i = 0; i < point->size_count; i++)
        sane = sane && point->outputs[i] > (i == 0 ? 0 : point->outputs[i - 1]) &&
               point->k_s[i] > 0 && point->k_s[i] < 1;
    return sane;
}

/* Products with unknown kernels or impossible times are dropped. */
static bool is_sane_product(const nib_measured *p)
{
    bool sane = p->memory_s > 0 && p->memory_s < 1 && p->weight_bytes > 0;
    for (int i = 0; i < NIB_POINTS; i++)
        sane = sane && is_sane_point(&p->at[i]);
    return sane;
}

static bool read_products(nib_json *json, nib_arena *arena, nib_machine *m)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    nib_json_event event;
    while ((event = nib__json_next(json)) == NIB_JSON_OBJECT) {
        nib_measured p = {.memory_s = 0};
        while ((event = nib__json_next(json)) == NIB_JSON_KEY)
            if (!read_product_member(json, arena, &p))
                return false;
        if (event != NIB_JSON_OBJECT_END)
            return false;
        if (m->product_count < NIB_MEASURED_MAX && is_sane_product(&p))
            m->products[m->product_count++] = p;
    }
    return event == NIB_JSON_ARRAY_END;
}

/* The member of a machine for the key just read; NULL: none. */
static double *number_of(nib_machine *m, const nib_json *json)
{
    const struct {
        const char *name;
        double *at;
    } numbers[] = {{"bytes_per_s", &m->bytes_per_s},
                   {"cache_bytes", &m->cache_bytes},
                   {"cache_bytes_per_s", &m->cache_bytes_per_s},
                   {"launch_s", &m->launch_s},
                   {"copy_s", &m->copy_s},
                   {"copy_bytes_per_s", &m->copy_bytes_per_s}};
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (nib__json_is(json, numbers[i].name))
            return numbers[i].at;
    return NULL;
}

static bool read_member(nib_json *json, nib_arena *arena, entry *e)
{
    double *number = number_of(&e->m, json);
    if (number != NULL)
        return nib__json_read_double(json, number);
    if (nib__json_is(json, "name"))
        return read_text(json, arena, e->name, sizeof e->name);
    if (nib__json_is(json, "driver"))
        return read_text(json, arena, e->driver, sizeof e->driver);
    if (nib__json_is(json, "version"))
        return read_text(json, arena, e->version, sizeof e->version);
    if (nib__json_is(json, "measured"))
        return read_text(json, arena, e->m.measured_on, sizeof e->m.measured_on);
    if (nib__json_is(json, "disturbed"))
        return nib__json_read_bool(json, &e->m.disturbed);
    if (nib__json_is(json, "isa"))
        return nib__json_read_int64(json, 0, INT64_MAX, &e->m.facts.fact[NIB_FACT_ISA]);
    if (nib__json_is(json, "threads"))
        return nib__json_read_int64(json, 0, 1 << 20, &e->threads);
    if (nib__json_is(json, "rates"))
        return read_array(json, e->m.rate, NIB_UNIT_COUNT) == NIB_UNIT_COUNT;
    if (nib__json_is(json, "products"))
        return read_products(json, arena, &e->m);
    return nib__json_skip(json);
}

static bool is_sane(const entry *e)
{
    const bool caches = e->m.cache_bytes > 0 ? e->m.cache_bytes_per_s > 0
                                             : e->m.cache_bytes == 0 && e->m.cache_bytes_per_s >= 0;
    bool sane = e->m.bytes_per_s > 1e6 && e->m.launch_s >= 0 && e->m.launch_s < 1 && caches &&
                e->m.copy_s >= 0 && e->m.copy_s < 1 && e->m.copy_bytes_per_s >= 0;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        sane = sane && e->m.rate[unit] > 1e3;
    return sane;
}

typedef struct kept {
    entry *items; /* [ENTRIES_MAX] */
    size_t count;
} kept;

static bool read_entries(nib_json *json, nib_arena *arena, void *ctx)
{
    kept *k = ctx;
    bool good = nib__json_expect(json, NIB_JSON_ARRAY);
    while (good && nib__json_next(json) == NIB_JSON_OBJECT) {
        entry e = {.threads = 0};
        nib_json_event event = NIB_JSON_KEY;
        while (good && (event = nib__json_next(json)) == NIB_JSON_KEY)
            good = read_member(json, arena, &e);
        good = good && event == NIB_JSON_OBJECT_END;
        if (good && k->count < ENTRIES_MAX && is_sane(&e))
            k->items[k->count++] = e;
    }
    return good;
}

static const nib_kept_list list = {
    .name = "machines", .schema = SCHEMA, .limit = FILE_LIMIT, .depth = 9, .indent = 2};

static size_t read_file(entry entries[ENTRIES_MAX], const char *path, const nib_allocator *a)
{
    kept k = {.items = entries};
    return nib__kept_list_read(&list, path, read_entries, &k, a) ? k.count : 0;
}

/* ---- writing ---- */

static void write_point(nib_jsonw *w, const nib_point *point)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "kernel", point->row->name);
    nib__jsonw_pair_double(w, "quant_s", point->quant_s);
    nib__jsonw_pair_doubles(w, "outputs", point->outputs, point->size_count);
    nib__jsonw_pair_doubles(w, "k_s", point->k_s, point->size_count);
    nib__jsonw_object_end(w);
}

static void write_product(nib_jsonw *w, const nib_measured *p)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "code", p->code);
    nib__jsonw_pair_int(w, "act", p->act);
    nib__jsonw_pair_double(w, "weight_bytes", p->weight_bytes);
    nib__jsonw_pair_double(w, "memory_s", p->memory_s);
    nib__jsonw_key(w, "points");
    nib__jsonw_array(w);
    for (int i = 0; i < NIB_POINTS; i++)
        write_point(w, &p->at[i]);
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static void write_entry(nib_jsonw *w, const void *ctx, size_t i)
{
    const entry *e = (const entry *)ctx + i;
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", e->name);
    nib__jsonw_pair_string(w, "driver", e->driver);
    nib__jsonw_pair_int(w, "isa", e->m.facts.fact[NIB_FACT_ISA]);
    nib__jsonw_pair_int(w, "threads", e->threads);
    nib__jsonw_pair_string(w, "version", e->version);
    nib__jsonw_pair_string(w, "measured", e->m.measured_on);
    nib__jsonw_pair_bool(w, "disturbed", e->m.disturbed);
    nib__jsonw_pair_double(w, "bytes_per_s", e->m.bytes_per_s);
    nib__jsonw_pair_double(w, "cache_bytes", e->m.cache_bytes);
    nib__jsonw_pair_double(w, "cache_bytes_per_s", e->m.cache_bytes_per_s);
    nib__jsonw_pair_double(w, "launch_s", e->m.launch_s);
    nib__jsonw_pair_double(w, "copy_s", e->m.copy_s);
    nib__jsonw_pair_double(w, "copy_bytes_per_s", e->m.copy_bytes_per_s);
    nib__jsonw_pair_doubles(w, "rates", e->m.rate, NIB_UNIT_COUNT);
    nib__jsonw_key(w, "products");
    nib__jsonw_array(w);
    for (int j = 0; j < e->m.product_count; j++)
        write_product(w, &e->m.products[j]);
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

/* ---- finding and keeping ---- */

static entry entry_of(const nib_machine *m, const char *driver)
{
    entry e = {.m = *m};
    snprintf(e.name, sizeof e.name, "%s", nib__machine_title(m));
    snprintf(e.driver, sizeof e.driver, "%s", driver);
    snprintf(e.version, sizeof e.version, "%s", NIB_VERSION);
    e.threads = m->threads;
    return e;
}

static entry *find_entry(entry *entries, size_t count, const entry *like)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].name, like->name) == 0 &&
            strcmp(entries[i].driver, like->driver) == 0 && entries[i].threads == like->threads &&
            entries[i].m.facts.fact[NIB_FACT_ISA] == like->m.facts.fact[NIB_FACT_ISA])
            return &entries[i];
    return NULL;
}

static void apply_entry(nib_machine *m, const entry *e)
{
    m->bytes_per_s = e->m.bytes_per_s;
    m->cache_bytes = e->m.cache_bytes;
    m->cache_bytes_per_s = e->m.cache_bytes_per_s;
    m->launch_s = e->m.launch_s;
    m->copy_s = e->m.copy_s;
    m->copy_bytes_per_s = e->m.copy_bytes_per_s;
    m->disturbed = e->m.disturbed;
    m->measured = true;
    memcpy(m->rate, e->m.rate, sizeof m->rate);
    memcpy(m->measured_on, e->m.measured_on, sizeof m->measured_on);
    m->product_count = strcmp(e->version, NIB_VERSION) == 0 ? e->m.product_count : 0;
    memcpy(m->products, e->m.products, sizeof m->products);
}

bool nib__measured_find(nib_machine *m, const char *driver, const char *path,
                        const nib_allocator *a)
{
    entry *entries = nib__calloc(a, ENTRIES_MAX, sizeof *entries);
    if (entries == NULL)
        return false;
    const entry like = entry_of(m, driver);
    const entry *found = find_entry(entries, read_file(entries, path, a), &like);
    if (found != NULL)
        apply_entry(m, found);
    nib__release(a, entries);
    return found != NULL;
}

nib_status nib__measured_keep(const nib_machine *m, const char *driver, const char *path,
                              const nib_allocator *a, nib_err *err)
{
    entry *entries = nib__calloc(a, ENTRIES_MAX, sizeof *entries);
    if (entries == NULL)
        return nib__fail_memory(err, ENTRIES_MAX * sizeof *entries, "what was measured");
    const entry own = entry_of(m, driver);
    size_t count = read_file(entries, path, a);
    entry *at = find_entry(entries, count, &own);
    if (at == NULL)
        at = &entries[count < ENTRIES_MAX ? count++ : 0];
    *at = own;
    const nib_status status =
        nib__kept_list_write(&list, path, count, write_entry, entries, a, err);
    nib__release(a, entries);
    return status;
}
