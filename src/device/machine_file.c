/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a machine file, embedded or a user's:
 *
 *   {"schema": 1, "title": TEXT, "host": NAME,
 *    "sources": {KEY: {"title": TEXT, "date": "2022-03-22", "address": TEXT}},
 *    "facts": {FACT: {"value": ..., "words": TEXT, "derived": TEXT, "source": KEY}},
 *    "rates": {RATE: {the same, "value" a number}}}
 *
 * A FACT is one of NIB_FACTS that the device owns; its value has the fact's kind. Every fact and
 * rate names its source. Texts are printed on terminals and in tables, so control characters are
 * refused.
 */
#include "file.h"
#include "json.h"
#include "machine.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    FILE_LIMIT = 1 << 20,
    SOURCES_MAX = 32,
    TEXT_MAX = 400, /* bytes of a text */
    FACT_FIRST = NIB_FACT_DEVICE,
    FACT_LAST = NIB_FACT_DRIVER,
};

const char *const nib__rate_names[] = {
    "bytes_per_s", "memory", "launch_s", "copy_bytes_per_s", "f32",    "bf16",
    "i8",          "fp8",    "mx8",      "i8_dot",           "scalar", NULL,
};
_Static_assert(COUNT(nib__rate_names) == NIB_RATE_COUNT + 1, "a name for each rate");

typedef struct reader {
    nib_json json;
    nib_arena *arena;
    nib_machine *out;
    const char *host;
    nib_source sources[SOURCES_MAX];
    size_t source_count;
    /* [fact], then [NIB_FACT_COUNT + rate]; keys NULL: not in the file */
    nib_fact_source lines[NIB_LINES_MAX];
    const char *keys[NIB_LINES_MAX]; /* of their sources */
} reader;

/* ---- names and texts ---- */

/* Fails with `a machine has no WHAT "NAME"; did you mean ...` at the key just read. */
static bool fail_name(reader *r, const char *what, const char *const *names, size_t count)
{
    char shown[NIB_SHOWN];
    nib_text near;
    const char *name = nib__json_string(&r->json, r->arena, NULL);
    if (name == NULL)
        return false;
    nib__text_init(&near, r->arena->allocator);
    nib__near_names(&near, name, names, count);
    nib__json_fail(&r->json, "a machine has no %s \"%s\"%s%s", what,
                   nib__escape_string(shown, name), near.size != 0 ? "; did you mean " : "",
                   near.size != 0 ? near.at : "");
    nib__text_free(&near);
    return false;
}

/* The index of the key just read in names; count if it is not there. */
static size_t find_key(const reader *r, const char *const *names, size_t count)
{
    size_t i = 0;
    while (i < count && !nib__json_is(&r->json, names[i]))
        i++;
    return i;
}

static bool read_text(reader *r, const char **out)
{
    size_t size;
    const char *text = nib__json_read_string(&r->json, r->arena, &size);
    if (text == NULL)
        return false;
    if (*out != NULL) {
        nib__json_fail(&r->json, "this key is given twice");
        return false;
    }
    if (size == 0 || size > TEXT_MAX) {
        nib__json_fail(&r->json, "the text has %zu bytes; it must have 1 to %d", size, TEXT_MAX);
        return false;
    }
    for (const char *at = text; at < text + size;) {
        const uint32_t point = nib__utf8_next(&at);
        if (point < 0x20 || (point >= 0x7f && point < 0xa0)) {
            nib__json_fail(&r->json, "the text holds a control character, U+%04" PRIX32, point);
            return false;
        }
    }
    *out = text;
    return true;
}

/* At the end of an object: fails if a required member is missing. */
static bool require_member(reader *r, const char *what, const char *member, bool is_missing)
{
    if (is_missing)
        nib__json_fail(&r->json, "%s lacks \"%s\"", what, member);
    return !is_missing;
}

/* ---- sources ---- */

static const nib_source *find_source(const nib_source *sources, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(sources[i].key, key) == 0)
            return &sources[i];
    return NULL;
}

static bool is_date(const char *date)
{
    static const char form[] = "dddd-dd-dd";
    for (size_t i = 0; i < sizeof form; i++)
        if (form[i] == 'd' ? date[i] < '0' || date[i] > '9' : date[i] != form[i])
            return false;
    return true;
}

static bool read_source(reader *r)
{
    static const char *const members[] = {"title", "date", "address"};
    if (r->source_count == SOURCES_MAX) {
        nib__json_fail(&r->json, "more than %d sources", SOURCES_MAX);
        return false;
    }
    nib_source *s = &r->sources[r->source_count];
    *s = (nib_source){.key = nib__json_string(&r->json, r->arena, NULL)};
    if (s->key == NULL)
        return false;
    if (find_source(r->sources, r->source_count, s->key) != NULL) {
        nib__json_fail(&r->json, "this source is given twice");
        return false;
    }
    if (!nib__json_expect(&r->json, NIB_JSON_OBJECT))
        return false;
    nib_json_event event;
    while ((event = nib__json_next(&r->json)) == NIB_JSON_KEY) {
        const char **const texts[] = {&s->title, &s->date, &s->address};
        const size_t i = find_key(r, members, COUNT(members));
        if (i == COUNT(members))
            return fail_name(r, "member of a source", members, COUNT(members));
        if (!read_text(r, texts[i]))
            return false;
        if (texts[i] == &s->date && !is_date(s->date)) {
            nib__json_fail(&r->json, "\"%.40s\" is not a date; write it as 2022-03-22", s->date);
            return false;
        }
    }
    r->source_count++;
    return event == NIB_JSON_OBJECT_END &&
           require_member(r, "a source", "title", s->title == NULL) &&
           require_member(r, "a source", "date", s->date == NULL);
}

/* ---- values ---- */

static bool read_rate(reader *r, int rate)
{
    double value;
    nib_machine *m = r->out;
    if (!nib__json_read_double(&r->json, &value))
        return false;
    const double most = rate == NIB_RATE_LAUNCH ? 1 : 1e18;
    if (!(value > 0 && value <= most)) {
        nib__json_fail(&r->json, "%s is %g; it must be more than 0 and at most %g",
                       nib__rate_names[rate], value, most);
        return false;
    }
    if (rate == NIB_RATE_BYTES)
        m->bytes_per_s = value;
    else if (rate == NIB_RATE_MEMORY)
        m->memory = (uint64_t)value;
    else if (rate == NIB_RATE_LAUNCH)
        m->launch_s = value;
    else if (rate == NIB_RATE_COPY)
        m->copy_bytes_per_s = value;
    else
        m->rate[rate - NIB_RATE_UNITS] = value;
    return true;
}

/* The index of the STRING just read in the fact's names. */
static bool find_value(reader *r, nib_fact fact, int64_t *out)
{
    const char *const *names = nib__fact_info[fact].names;
    size_t count = 0;
    while (names[count] != NULL)
        count++;
    const size_t i = find_key(r, names, count);
    *out = (int64_t)i;
    return i < count || fail_name(r, nib__fact_info[fact].key, names, count);
}

static bool read_set(reader *r, nib_fact fact, int64_t *out)
{
    nib_json_event event;
    *out = 0;
    if (!nib__json_expect(&r->json, NIB_JSON_ARRAY))
        return false;
    while ((event = nib__json_next(&r->json)) == NIB_JSON_STRING) {
        int64_t bit;
        if (!find_value(r, fact, &bit))
            return false;
        *out |= NIB_BIT(bit);
    }
    if (event != NIB_JSON_ARRAY_END)
        nib__json_fail(&r->json, "%s must be a list of names", nib__fact_info[fact].key);
    return event == NIB_JSON_ARRAY_END;
}

static bool read_fact(reader *r, nib_fact fact)
{
    enum { MOST = 1000000 };
    int64_t *out = &r->out->facts.fact[fact];
    bool flag;
    switch (nib__fact_info[fact].kind) {
    case NIB_KIND_FLAG:
        if (!nib__json_read_bool(&r->json, &flag))
            return false;
        *out = flag;
        return true;
    case NIB_KIND_INT: return nib__json_read_int64(&r->json, 0, MOST, out);
    case NIB_KIND_SET: return read_set(r, fact, out);
    default: return nib__json_expect(&r->json, NIB_JSON_STRING) && find_value(r, fact, out);
    }
}

/* ---- facts and rates ---- */

/* i: a fact, or NIB_FACT_COUNT + rate */
static const char *line_name(size_t i)
{
    return i < NIB_FACT_COUNT ? nib__fact_info[i].key : nib__rate_names[i - NIB_FACT_COUNT];
}

static bool read_line(reader *r, size_t i)
{
    static const char *const members[] = {"value", "words", "derived", "source"};
    nib_fact_source *line = &r->lines[i];
    const char *const name = line_name(i);
    if (r->keys[i] != NULL) {
        nib__json_fail(&r->json, "duplicate key %s", name);
        return false;
    }
    *line = (nib_fact_source){.fact = i < NIB_FACT_COUNT ? (nib_fact)i : NIB_FACT_COUNT,
                              .rate = i < NIB_FACT_COUNT ? 0 : (int)(i - NIB_FACT_COUNT)};
    if (!nib__json_expect(&r->json, NIB_JSON_OBJECT))
        return false;
    bool valued = false;
    nib_json_event event;
    while ((event = nib__json_next(&r->json)) == NIB_JSON_KEY) {
        const char **const texts[] = {NULL, &line->words, &line->derived, &r->keys[i]};
        const size_t member = find_key(r, members, COUNT(members));
        if (member == COUNT(members))
            return fail_name(r, "member of a fact or rate", members, COUNT(members));
        if (member != 0          ? !read_text(r, texts[member])
            : i < NIB_FACT_COUNT ? !read_fact(r, (nib_fact)i)
                                 : !read_rate(r, line->rate))
            return false;
        valued = valued || member == 0;
    }
    return event == NIB_JSON_OBJECT_END && require_member(r, name, "value", !valued) &&
           require_member(r, name, "source", r->keys[i] == NULL);
}

static bool read_facts(reader *r)
{
    const char *names[NIB_FACT_COUNT];
    const size_t count = FACT_LAST - FACT_FIRST + 1;
    for (size_t i = 0; i < count; i++)
        names[i] = nib__fact_info[FACT_FIRST + i].key;
    const size_t i = find_key(r, names, count);
    return i < count ? read_line(r, FACT_FIRST + i) : fail_name(r, "fact", names, count);
}

static bool read_rates(reader *r)
{
    const size_t i = find_key(r, nib__rate_names, NIB_RATE_COUNT);
    return i < NIB_RATE_COUNT ? read_line(r, NIB_FACT_COUNT + i)
                              : fail_name(r, "rate", nib__rate_names, NIB_RATE_COUNT);
}

/* Reads an object; `each` reads the value of every key. */
static bool read_each(reader *r, bool (*each)(reader *r))
{
    nib_json_event event;
    if (!nib__json_expect(&r->json, NIB_JSON_OBJECT))
        return false;
    while ((event = nib__json_next(&r->json)) == NIB_JSON_KEY)
        if (!each(r))
            return false;
    return event == NIB_JSON_OBJECT_END;
}

static bool read_member(reader *r)
{
    static const char *const members[] = {"schema", "title", "host", "sources", "facts", "rates"};
    int64_t schema;
    switch (find_key(r, members, COUNT(members))) {
    case 0: return nib__json_read_int64(&r->json, 1, 1, &schema);
    case 1: return read_text(r, &r->out->title);
    case 2: return read_text(r, &r->host);
    case 3: return read_each(r, read_source);
    case 4: return read_each(r, read_facts);
    case 5: return read_each(r, read_rates);
    default: return fail_name(r, "member", members, COUNT(members));
    }
}

/* ---- the machine ---- */

/* Facts and rates that every plan needs or that matter for int4: unknown is not the same as no. */
static const size_t needed[] = {
    NIB_FACT_DEVICE,
    NIB_FACT_MAKER,
    NIB_FACT_DOT4,
    NIB_FACT_DOT8,
    NIB_FACT_MATRIX_UNIT,
    NIB_FACT_COUNT + NIB_RATE_BYTES,
    NIB_FACT_COUNT + NIB_RATE_MEMORY,
    NIB_FACT_COUNT + NIB_RATE_UNITS + NIB_UNIT_F32,
};

static nib_status fail_source(const reader *r, const char *file, size_t line, nib_err *err)
{
    const char *keys[SOURCES_MAX];
    char shown[NIB_SHOWN];
    nib_text near;
    for (size_t i = 0; i < r->source_count; i++)
        keys[i] = r->sources[i].key;
    nib__text_init(&near, r->arena->allocator);
    nib__near_names(&near, r->keys[line], keys, r->source_count);
    const nib_status status =
        nib__fail(err, NIB_BAD_INPUT, "%s: %s: source \"%s\" is not in \"sources\"%s%s", file,
                  line_name(line), nib__escape_string(shown, r->keys[line]),
                  near.size != 0 ? "; did you mean " : "", near.size != 0 ? near.at : "");
    nib__text_free(&near);
    return status;
}

/* Facts that cannot all be true of one machine; NULL: none. */
static const char *find_contradiction(const reader *r)
{
    const int64_t *fact = r->out->facts.fact;
    const char *const *has = r->keys;
    const bool is_cpu = fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU;
    if (!is_cpu && has[NIB_FACT_ISA] != NULL)
        return "isa is a fact of CPUs, but device is not a CPU";
    if (is_cpu && r->host != NULL)
        return "a CPU has no host";
    if (has[NIB_FACT_SM] != NULL && (is_cpu || fact[NIB_FACT_MAKER] != NIB_MAKER_NVIDIA))
        return "sm is a fact of NVIDIA GPUs, but maker and device say otherwise";
    if (has[NIB_FACT_CDNA] != NULL && (is_cpu || fact[NIB_FACT_MAKER] != NIB_MAKER_AMD))
        return "cdna is a fact of AMD GPUs, but maker and device say otherwise";
    if (has[NIB_FACT_FP8_UNIT] != NULL && fact[NIB_FACT_FP8_UNIT] == 0 &&
        r->out->rate[NIB_UNIT_FP8] > 0)
        return "it has the rate fp8, but fp8_unit is false";
    if (has[NIB_FACT_MX_UNIT] != NULL && fact[NIB_FACT_MX_UNIT] == 0 &&
        r->out->rate[NIB_UNIT_MX8] > 0)
        return "it has the rate mx8, but mx_unit is false";
    return NULL;
}

/* Checks the file and copies it into the arena. */
static nib_status finish_machine(reader *r, const char *file, nib_err *err)
{
    nib_machine *m = r->out;
    if (m->title == NULL)
        return nib__fail(err, NIB_BAD_INPUT, "%s: the machine has no \"title\"", file);
    for (size_t i = 0; i < COUNT(needed); i++)
        if (r->keys[needed[i]] == NULL)
            return nib__fail(err, NIB_BAD_INPUT, "%s: the machine lacks the %s %s", file,
                             needed[i] < NIB_FACT_COUNT ? "fact" : "rate", line_name(needed[i]));
    nib_source *sources = nib__arena_take(r->arena, r->source_count, sizeof *sources);
    nib_fact_source *lines = nib__arena_take(r->arena, NIB_LINES_MAX, sizeof *lines);
    if (sources == NULL || lines == NULL)
        return nib__fail_memory(err, sizeof r->lines, "a machine");
    memcpy(sources, r->sources, r->source_count * sizeof *sources);
    m->sources = lines;
    for (size_t i = 0; i < NIB_LINES_MAX; i++) {
        if (r->keys[i] == NULL)
            continue;
        lines[m->source_count] = r->lines[i];
        lines[m->source_count].source = find_source(sources, r->source_count, r->keys[i]);
        if (lines[m->source_count++].source == NULL)
            return fail_source(r, file, i, err);
    }
    const char *wrong = find_contradiction(r);
    if (wrong != NULL)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s", file, wrong);
    const bool is_cpu = m->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU;
    if (m->launch_s == 0) /* waking a pool that spins; starting a kernel */
        m->launch_s = is_cpu ? 2e-6 : 5e-6;
    if (!is_cpu)
        m->copy_s = NIB_CAUTIOUS_COPY_S;
    if (!is_cpu && m->copy_bytes_per_s == 0)
        m->copy_bytes_per_s = NIB_CAUTIOUS_COPY_BYTES_PER_S;
    return NIB_OK;
}

nib_status nib__machine_parse(nib_machine *out, const char **host, const char *name,
                              const char *file, const char *text, size_t size, nib_arena *arena,
                              nib_err *err)
{
    const nib_json_limits limits = {.depth = 8, .events = 100000};
    *out = (nib_machine){.name = name};
    reader *r = nib__calloc(arena->allocator, 1, sizeof *r);
    if (r == NULL)
        return nib__fail_memory(err, sizeof *r, "the reader of a machine");
    r->arena = arena;
    r->out = out;
    nib__json_init(&r->json, file, text, size, &limits);
    if (read_each(r, read_member))
        (void)nib__json_expect(&r->json, NIB_JSON_END);
    nib_status status = nib__json_status(&r->json, err);
    if (status == NIB_OK)
        status = finish_machine(r, file, err);
    *host = r->host;
    nib__release(arena->allocator, r);
    return status;
}

/* ---- a user's file ---- */

bool nib__machine_is_path(const char *name)
{
    return strchr(name, '/') != NULL || nib__ends_with(name, ".json");
}

/* "my-gpu" of "machines/my-gpu.json". Plans and --place contain it, so it must be a plain word. */
static nib_status name_from_path(const char **out, const char *path, nib_arena *arena, nib_err *err)
{
    char shown[NIB_SHOWN];
    const char *name = nib__path_name(path);
    size_t size = strlen(name);
    size -= nib__ends_with(name, ".json") ? strlen(".json") : 0;
    bool is_plain = size != 0 && size < 64;
    for (size_t i = 0; i < size; i++)
        is_plain =
            is_plain && ((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
                         (name[i] >= '0' && name[i] <= '9') || strchr("-_.", name[i]) != NULL);
    if (!is_plain)
        return nib__fail(err, NIB_USAGE,
                         "%s: a machine is named after its file, whose name must have 1 to 63 "
                         "letters, digits, -, _ and .",
                         nib__escape_string(shown, path));
    *out = nib__arena_copy(arena, name, size);
    if (*out == NULL)
        return nib__fail_memory(err, size, "a machine's name");
    if (strcmp(*out, "cpu") == 0 || strcmp(*out, "auto") == 0)
        return nib__fail(err, NIB_USAGE,
                         "%s: a machine is named after its file, and \"%s\" is taken; rename the "
                         "file",
                         nib__escape_string(shown, path), *out);
    return NIB_OK;
}

static nib_status find_host(nib_machine *m, const char *path, const char *host,
                            const nib_machines *known, nib_arena *arena, nib_err *err)
{
    char shown[NIB_SHOWN];
    m->host = nib__machines_find(known, host);
    if (m->host != NULL && m->host->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU)
        return nib__fail(err, NIB_BAD_INPUT, "%s: its host \"%s\" is a GPU; it must be a CPU", path,
                         nib__escape_string(shown, host));
    if (m->host != NULL)
        return NIB_OK;
    nib_text near;
    const char **names = nib__arena_take(arena, known->count, sizeof *names);
    if (names == NULL)
        return nib__fail_memory(err, known->count * sizeof *names, "names of machines");
    for (size_t i = 0; i < known->count; i++)
        names[i] = known->items[i].name;
    nib__text_init(&near, arena->allocator);
    nib__near_names(&near, host, names, known->count);
    const nib_status status =
        nib__fail(err, NIB_BAD_INPUT, "%s: its host \"%s\" is not known%s%s", path,
                  nib__escape_string(shown, host), near.size != 0 ? "; did you mean " : "",
                  near.size != 0 ? near.at : "; `nibble devices` lists the machines");
    nib__text_free(&near);
    return status;
}

nib_status nib__machine_read(nib_machine *out, const char *path, const nib_machines *known,
                             nib_arena *arena, nib_err *err)
{
    const char *name = NULL, *host = NULL;
    char *text;
    size_t size;
    NIB_TRY(name_from_path(&name, path, arena, err));
    NIB_TRY(nib__file_read(&text, &size, path, FILE_LIMIT, arena->allocator, err));
    nib_status status = nib__machine_parse(out, &host, name, path, text, size, arena, err);
    nib__release(arena->allocator, text);
    if (status == NIB_OK && host != NULL)
        status = find_host(out, path, host, known, arena, err);
    return status;
}
