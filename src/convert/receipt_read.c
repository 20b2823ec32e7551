/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the receipt in a manifest. Unknown members are refused: they might change the output.
 */
#include "learn.h"
#include "manifest.h"
#include "receipt_options.h"

enum { STRINGS_MAX = 10000, DIGESTS_MAX = 1 << 22 };

typedef struct reader {
    nib_json json;
    nib_read_receipt *out;
    nib_arena *arena;
    const nib_allocator *allocator;
} reader;

/* A string or null. */
static bool read_text(reader *r, const char **to)
{
    *to = NULL;
    const nib_json_event event = nib__json_next(&r->json);
    if (event == NIB_JSON_NULL)
        return true;
    if (event != NIB_JSON_STRING) {
        nib__json_fail(&r->json, "a string or null is expected");
        return false;
    }
    *to = nib__json_string(&r->json, r->arena, NULL);
    return *to != NULL;
}

static bool read_strings(reader *r, nib_strings *to)
{
    const char **items = nib__arena_take(r->arena, STRINGS_MAX, sizeof *items);
    size_t count = 0;
    if (items == NULL) {
        nib__json_fail_memory(&r->json, STRINGS_MAX * sizeof *items);
        return false;
    }
    if (!nib__json_expect(&r->json, NIB_JSON_ARRAY))
        return false;
    while (nib__json_next(&r->json) == NIB_JSON_STRING) {
        if (count == STRINGS_MAX) {
            nib__json_fail(&r->json, "more than %d strings", STRINGS_MAX);
            return false;
        }
        items[count] = nib__json_string(&r->json, r->arena, NULL);
        if (items[count++] == NULL)
            return false;
    }
    if (r->json.event != NIB_JSON_ARRAY_END && r->json.event != NIB_JSON_ERROR)
        nib__json_fail(&r->json, "a list of strings is expected");
    *to = (nib_strings){.items = items, .count = count};
    return r->json.event == NIB_JSON_ARRAY_END;
}

static bool read_digest(reader *r, nib_digest *to)
{
    if (!nib__json_expect(&r->json, NIB_JSON_STRING))
        return false;
    if (nib__digest_parse(to, r->json.token, r->json.token_size))
        return true;
    nib__json_fail(&r->json, "a hash must have 64 hexadecimal digits, in small letters");
    return false;
}

static bool read_digests(reader *r, nib_digests *to)
{
    if (!nib__json_expect(&r->json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(&r->json) == NIB_JSON_KEY) {
        const char *name = nib__json_string(&r->json, r->arena, NULL);
        nib_digest digest;
        if (name == NULL || !read_digest(r, &digest))
            return false;
        if (to->count == DIGESTS_MAX ||
            nib__digests_add(to, name, &digest, r->allocator, NULL) != NIB_OK) {
            nib__json_fail_memory(&r->json, to->count * sizeof *to->items);
            return false;
        }
    }
    return r->json.event == NIB_JSON_OBJECT_END;
}

static bool refuse_key(reader *r, const char *where)
{
    char shown[NIB_SHOWN];
    const char *key = nib__json_string(&r->json, r->arena, NULL);
    if (key != NULL)
        nib__json_fail(&r->json, "%s has no member \"%s\" in version %d", where,
                       nib__escape_string(shown, key), NIB_RECEIPT_VERSION);
    return false;
}

static bool read_option(reader *r, nib_asked *asked)
{
    const struct {
        const char *key;
        const char **to;
    } texts[] = {{"recipe", &asked->recipe},
                 {"method", &asked->method},
                 {"format", &asked->format},
                 {"bias", &asked->bias},
                 {"dtype", &asked->dtype}};
    for (size_t i = 0; i < COUNT(texts); i++)
        if (nib__json_is(&r->json, texts[i].key))
            return read_text(r, texts[i].to);
    if (nib__json_is(&r->json, "skip"))
        return read_strings(r, &asked->skip);
    if (nib__json_is(&r->json, "only"))
        return read_strings(r, &asked->only);
    if (nib__json_is(&r->json, "context"))
        return nib__json_read_int64(&r->json, 0, INT64_MAX, &asked->context);
    return refuse_key(r, "\"options\"");
}

static bool read_options(reader *r)
{
    bool ok = nib__json_expect(&r->json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&r->json) == NIB_JSON_KEY)
        ok = read_option(r, &r->out->asked);
    return ok && r->json.event == NIB_JSON_OBJECT_END;
}

/* {NAME: count, ...} */
static bool read_counts(reader *r, const char *where, const char *const *names, size_t *to,
                        size_t count)
{
    bool ok = nib__json_expect(&r->json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&r->json) == NIB_JSON_KEY) {
        int64_t value = 0;
        size_t i = 0;
        while (i < count && !nib__json_is(&r->json, names[i]))
            i++;
        ok =
            i < count ? nib__json_read_int64(&r->json, 0, INT64_MAX, &value) : refuse_key(r, where);
        if (ok)
            to[i] = (size_t)value;
    }
    return ok && r->json.event == NIB_JSON_OBJECT_END;
}

/* null, or {"path", "bytes", "sha256"} */
static bool read_file(reader *r, nib_asked_file *file)
{
    int64_t bytes = 0;
    bool ok = true;
    const nib_json_event event = nib__json_next(&r->json);
    if (event == NIB_JSON_NULL)
        return true;
    if (event != NIB_JSON_OBJECT) {
        nib__json_fail(&r->json, "an object or null is expected");
        return false;
    }
    while (ok && nib__json_next(&r->json) == NIB_JSON_KEY) {
        if (nib__json_is(&r->json, "path"))
            ok = (file->path = nib__json_read_string(&r->json, r->arena, NULL)) != NULL;
        else if (nib__json_is(&r->json, "bytes"))
            ok = nib__json_read_int64(&r->json, 0, INT64_MAX, &bytes);
        else
            ok = nib__json_is(&r->json, "sha256") ? read_digest(r, &file->digest)
                                                  : refuse_key(r, "a file");
    }
    file->size = (uint64_t)bytes;
    if (ok && r->json.event == NIB_JSON_OBJECT_END && file->path == NULL) {
        nib__json_fail(&r->json, "the file has no \"path\"");
        return false;
    }
    return ok && r->json.event == NIB_JSON_OBJECT_END;
}

static bool read_source(reader *r)
{
    bool ok = nib__json_expect(&r->json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&r->json) == NIB_JSON_KEY) {
        if (nib__json_is(&r->json, "files"))
            ok = read_digests(r, &r->out->files);
        else
            ok = nib__json_is(&r->json, "tensors") ? read_digests(r, &r->out->tensors)
                                                   : refuse_key(r, "\"source\"");
    }
    return ok && r->json.event == NIB_JSON_OBJECT_END;
}

static bool read_command(reader *r)
{
    const char *command = nib__json_read_string(&r->json, r->arena, NULL);
    if (command == NULL)
        return false;
    r->out->asked.convert = strcmp(command, "convert") == 0;
    if (r->out->asked.convert || strcmp(command, "quantize") == 0)
        return true;
    nib__json_fail(&r->json, "the command is not quantize or convert");
    return false;
}

static bool read_version(reader *r)
{
    int64_t version;
    return nib__json_read_int64(&r->json, NIB_RECEIPT_VERSION, NIB_RECEIPT_VERSION, &version);
}

/* A number, or null if no method drew any. */
static bool read_seed(reader *r)
{
    nib_asked *asked = &r->out->asked;
    int64_t seed;
    const nib_json_event event = nib__json_next(&r->json);
    if (event == NIB_JSON_NULL)
        return true;
    if (event != NIB_JSON_NUMBER || !nib__json_int64(&r->json, &seed)) {
        nib__json_fail(&r->json, "a seed must be an integer or null");
        return false;
    }
    asked->has_seed = true;
    asked->seed = (uint64_t)seed;
    return true;
}

static bool read_member(reader *r)
{
    nib_json *json = &r->json;
    nib_asked *asked = &r->out->asked;
    const struct {
        const char *key;
        nib_asked_file *to;
    } files[] = {{"calibrate", &asked->text},
                 {"imatrix", &asked->imatrix},
                 {"tokenizer", &asked->tokenizer}};
    for (size_t i = 0; i < COUNT(files); i++)
        if (nib__json_is(json, files[i].key))
            return read_file(r, files[i].to);
    if (nib__json_is(json, "version"))
        return read_version(r);
    if (nib__json_is(json, "program"))
        return (r->out->program = nib__json_read_string(json, r->arena, NULL)) != NULL;
    if (nib__json_is(json, "command"))
        return read_command(r);
    if (nib__json_is(json, "options"))
        return read_options(r);
    if (nib__json_is(json, "source"))
        return read_source(r);
    if (nib__json_is(json, "outputs"))
        return read_digests(r, &r->out->outputs);
    if (nib__json_is(json, "device"))
        return read_text(r, &asked->device);
    if (nib__json_is(json, "layers"))
        return read_counts(r, "\"layers\"", nib__ptq_names, asked->layers, NIB_PTQ_COUNT);
    if (nib__json_is(json, "orders")) {
        r->out->has_orders = true;
        return read_counts(r, "\"orders\"", nib__order_names, asked->orders, NIB_INPUTS_ORDERS);
    }
    if (nib__json_is(json, "rounding_steps"))
        return nib__json_read_int64(json, NIB_LEARN_ROUNDING, NIB_LEARN_ROUNDING,
                                    &asked->rounding_steps);
    if (nib__json_is(json, "held_out"))
        return nib__json_read_int64(json, 1, INT64_MAX, &asked->held_out);
    if (nib__json_is(json, "checked"))
        return nib__json_read_int64(json, 1, INT64_MAX, &asked->checked);
    if (nib__json_is(json, "seed"))
        return read_seed(r);
    return refuse_key(r, "a receipt");
}

static bool read_receipt(reader *r)
{
    bool ok = nib__json_expect(&r->json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&r->json) == NIB_JSON_KEY)
        ok = read_member(r);
    if (!ok || r->json.event != NIB_JSON_OBJECT_END)
        return false;
    const nib_read_receipt *out = r->out;
    const char *missing = out->program == NULL                               ? "program"
                          : out->outputs.count == 0                          ? "outputs"
                          : out->tensors.count == 0                          ? "source"
                          : !out->asked.convert && out->asked.recipe == NULL ? "recipe"
                          : out->asked.convert && out->asked.format == NULL  ? "format"
                                                                             : NULL;
    if (missing != NULL)
        nib__json_fail(&r->json, "the receipt does not have its \"%s\"", missing);
    r->out->found = missing == NULL;
    return r->out->found;
}

nib_status nib__receipt_read(nib_read_receipt *out, const nib_checkpoint *cp, nib_arena *arena,
                             const nib_allocator *a, nib_err *err)
{
    reader r = {.out = out, .arena = arena, .allocator = a};
    const char *written = NULL; /* the format that was chosen where none was asked for */
    char *text;
    size_t size;
    *out = (nib_read_receipt){.found = false};
    NIB_TRY(nib__manifest_find(&out->manifest, cp, arena, err));
    if (out->manifest == NULL)
        return NIB_OK;
    NIB_TRY(nib__file_read(&text, &size, out->manifest, NIB_MANIFEST_MAX, a, err));
    nib__json_init(&r.json, out->manifest, text, size, NULL);
    bool ok = nib__json_expect(&r.json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&r.json) == NIB_JSON_KEY)
        ok = nib__json_is(&r.json, "receipt")  ? read_receipt(&r)
             : nib__json_is(&r.json, "format") ? read_text(&r, &written)
                                               : nib__json_skip(&r.json);
    if (ok && r.json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&r.json);
    if (out->asked.format == NULL)
        out->asked.format = written;
    const nib_status status = nib__json_status(&r.json, err);
    nib__release(a, text);
    return status;
}

void nib__receipt_free(nib_read_receipt *receipt, const nib_allocator *a)
{
    nib__digests_free(&receipt->files, a);
    nib__digests_free(&receipt->tensors, a);
    nib__digests_free(&receipt->outputs, a);
}
