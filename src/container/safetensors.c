/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns the JSON header into tensor views in two passes (count, then fill), so memory is
 * proportional to the number of entries. Does not read the data.
 */
#include "safetensors.h"

#include "json.h"
#include "name_index.h"

#include <inttypes.h>

enum { PREFIX = 8, SHOWN = 160 };

typedef struct parser {
    nib_json json;
    nib_arena *arena;
    nib_container *out;
    nib_name_index tensors, metas;
    const uint8_t *data;
    uint64_t data_size;
    const char *name; /* file name, escaped for messages */
    int file;
    bool has_metadata;
} parser;

/* ---- one tensor's entry ---- */

/* Converts the number just read, an integer of 0 or more; -0 is refused. */
static bool read_size(nib_json *json, int64_t *out)
{
    if (!nib__json_int64(json, out))
        return false;
    if (json->token[0] == '-')
        nib__json_fail(json, "a size must not be negative");
    return json->event != NIB_JSON_ERROR;
}

static bool read_type(nib_json *json, nib_type *type)
{
    char shown[64];
    if (nib__json_next(json) != NIB_JSON_STRING) {
        nib__json_fail(json, "dtype must be a string");
        return false;
    }
    *type = nib__type_find(json->token, json->token_size);
    if (*type == NIB_TYPE_NONE)
        nib__json_fail(json, "dtype \"%s\" is not a safetensors type",
                       nib__escape_name(shown, sizeof shown, json->token, json->token_size));
    return *type != NIB_TYPE_NONE;
}

static bool read_shape(nib_json *json, nib_tensor *tensor)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return false;
    while (nib__json_next(json) != NIB_JSON_ARRAY_END) {
        if (tensor->rank == NIB_RANK_MAX) {
            nib__json_fail(json, "shape has more than %d dimensions", NIB_RANK_MAX);
            return false;
        }
        if (!read_size(json, &tensor->shape[tensor->rank]))
            return false;
        tensor->rank++;
    }
    return true;
}

static bool read_offsets(nib_json *json, int64_t offsets[2])
{
    return nib__json_expect(json, NIB_JSON_ARRAY) && nib__json_expect(json, NIB_JSON_NUMBER) &&
           read_size(json, &offsets[0]) && nib__json_expect(json, NIB_JSON_NUMBER) &&
           read_size(json, &offsets[1]) && nib__json_expect(json, NIB_JSON_ARRAY_END);
}

/* The object of one tensor: each of the three members exactly once, and no others. */
static bool read_entry(nib_json *json, nib_tensor *tensor, int64_t offsets[2])
{
    static const char *const members[] = {"dtype", "shape", "data_offsets"};
    bool seen[COUNT(members)] = {false};
    char shown[64];
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        size_t member = 0;
        while (member < COUNT(members) && !nib__json_is(json, members[member]))
            member++;
        if (member == COUNT(members) || seen[member]) {
            nib__json_fail(json, "member \"%s\" of a tensor %s",
                           nib__escape_name(shown, sizeof shown, json->token, json->token_size),
                           member == COUNT(members) ? "is not one of dtype, shape and data_offsets"
                                                    : "appears twice");
            return false;
        }
        seen[member] = true;
        const bool read = member == 0   ? read_type(json, &tensor->type)
                          : member == 1 ? read_shape(json, tensor)
                                        : read_offsets(json, offsets);
        if (!read)
            return false;
    }
    for (size_t i = 0; i < COUNT(members) && json->event == NIB_JSON_OBJECT_END; i++)
        if (!seen[i])
            nib__json_fail(
                json, "tensor \"%s\" lacks %s",
                nib__escape_name(shown, sizeof shown, tensor->name, strlen(tensor->name)),
                members[i]);
    return json->event == NIB_JSON_OBJECT_END;
}

/* Checks shape, type and offsets against each other and against the data, and sets the view. */
static void locate_tensor(parser *p, nib_tensor *tensor, const int64_t offsets[2])
{
    nib_json *json = &p->json;
    char name[SHOWN];
    uint64_t bytes = 0;
    const uint64_t begin = (uint64_t)offsets[0], end = (uint64_t)offsets[1];
    nib__escape_name(name, sizeof name, tensor->name, strlen(tensor->name));
    if (!nib__tensor_bytes(&bytes, tensor->type, tensor->shape, tensor->rank))
        nib__json_fail(
            json,
            "tensor \"%s\": the size of this shape times %d bits of %s is not a whole number of "
            "bytes below 2^64",
            name, nib__type_bits(tensor->type), nib__type_stored_name(tensor->type));
    else if (end < begin)
        nib__json_fail(
            json, "tensor \"%s\": data_offsets end at %" PRIu64 ", before they begin at %" PRIu64,
            name, end, begin);
    else if (end > p->data_size)
        nib__json_fail(json,
                       "tensor \"%s\": data_offsets end at %" PRIu64 ", the data at %" PRIu64
                       ": the file is cut short or its header is wrong",
                       name, end, p->data_size);
    else if (bytes != end - begin)
        nib__json_fail(json,
                       "tensor \"%s\": %s and its shape need %" PRIu64
                       " bytes, data_offsets span %" PRIu64,
                       name, nib__type_stored_name(tensor->type), bytes, end - begin);
    else {
        tensor->data = p->data + begin;
        tensor->bytes = bytes;
        tensor->file = p->file;
    }
}

/* ---- the header ---- */

/* The key just read, as a C string in the arena. */
static const char *read_name(parser *p)
{
    size_t size = 0;
    char *name = nib__json_string(&p->json, p->arena, &size);
    if (name != NULL && strlen(name) != size) {
        nib__json_fail(&p->json, "a name contains a NUL character");
        return NULL;
    }
    return name;
}

static void read_tensor(parser *p)
{
    nib_container *out = p->out;
    nib_tensor *tensor = out->tensors[out->count];
    int64_t offsets[2] = {0, 0};
    char shown[SHOWN];
    tensor->name = read_name(p);
    if (tensor->name == NULL)
        return;
    if (nib__name_index_add(&p->tensors, (const void *const *)out->tensors, out->count) != NULL) {
        nib__json_fail(&p->json, "tensor \"%s\" appears twice",
                       nib__escape_name(shown, sizeof shown, tensor->name, strlen(tensor->name)));
        return;
    }
    if (read_entry(&p->json, tensor, offsets))
        locate_tensor(p, tensor, offsets);
    out->count++;
}

static void read_metadata(parser *p)
{
    nib_container *out = p->out;
    nib_json *json = &p->json;
    char shown[SHOWN];
    if (p->has_metadata)
        nib__json_fail(json, "__metadata__ appears twice");
    p->has_metadata = true;
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        nib_meta *meta = out->metas[out->meta_count];
        meta->key = read_name(p);
        if (meta->key == NULL)
            return;
        nib__escape_name(shown, sizeof shown, meta->key, strlen(meta->key));
        if (nib__name_index_add(&p->metas, (const void *const *)out->metas, out->meta_count) !=
            NULL)
            nib__json_fail(json, "__metadata__ entry \"%s\" appears twice", shown);
        else if (nib__json_next(json) != NIB_JSON_STRING)
            nib__json_fail(json, "__metadata__ entry \"%s\" is not a string", shown);
        else
            meta->value = nib__json_string(json, p->arena, NULL);
        out->meta_count++;
    }
}

/* First pass: counts tensors and metadata entries. */
static nib_status count_entries(nib_json json, size_t *tensors, size_t *metas, nib_err *err)
{
    *tensors = *metas = 0;
    nib__json_expect(&json, NIB_JSON_OBJECT);
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        if (!nib__json_is(&json, "__metadata__")) {
            ++*tensors;
            nib__json_skip(&json);
        } else if (nib__json_expect(&json, NIB_JSON_OBJECT)) {
            while (nib__json_next(&json) == NIB_JSON_KEY && nib__json_skip(&json))
                ++*metas;
        }
        if (*tensors > NIB_SAFETENSORS_ENTRY_MAX || *metas > NIB_SAFETENSORS_ENTRY_MAX)
            nib__json_fail(&json, "more than %d %s", NIB_SAFETENSORS_ENTRY_MAX,
                           *tensors > *metas ? "tensors" : "__metadata__ entries");
    }
    if (json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&json);
    return nib__json_status(&json, err);
}

/* After the last JSON event: only spaces may follow. */
static nib_status check_padding(const parser *p, nib_err *err)
{
    for (const char *at = p->json.at; at < p->json.end; at++)
        if (*at != ' ')
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: byte 0x%02x after the header's JSON; only spaces may pad it",
                             p->name, (unsigned)(unsigned char)*at);
    return NIB_OK;
}

static nib_status read_header(parser *p, nib_err *err)
{
    size_t tensors, metas;
    nib_status status = count_entries(p->json, &tensors, &metas, err);
    if (status != NIB_OK)
        return nib__fail_in(err, status, p->name);
    p->out->tensors = nib__container_items(p->arena, tensors, sizeof(nib_tensor));
    p->out->metas = nib__container_items(p->arena, metas, sizeof(nib_meta));
    if (p->out->tensors == NULL || p->out->metas == NULL ||
        !nib__name_index_init(&p->tensors, p->arena, tensors) ||
        !nib__name_index_init(&p->metas, p->arena, metas))
        return nib__fail_memory(err, (tensors + metas) * sizeof(nib_tensor), p->name);
    nib__json_expect(&p->json, NIB_JSON_OBJECT);
    while (nib__json_next(&p->json) == NIB_JSON_KEY) {
        if (nib__json_is(&p->json, "__metadata__"))
            read_metadata(p);
        else
            read_tensor(p);
    }
    status = nib__json_status(&p->json, err);
    return status == NIB_OK ? check_padding(p, err) : nib__fail_in(err, status, p->name);
}

/* ---- coverage ---- */

/* Checks that every byte of the data belongs to exactly one tensor. */
static nib_status check_coverage(const parser *p, nib_err *err)
{
    const nib_container *out = p->out;
    char name[SHOWN];
    uint64_t at = 0;
    for (size_t i = 0; i < out->count; i++) {
        const nib_tensor *tensor = out->tensors[i];
        const uint64_t begin = (uint64_t)(tensor->data - p->data);
        nib__escape_name(name, sizeof name, tensor->name, strlen(tensor->name));
        if (begin > at)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: bytes %" PRIu64 " to %" PRIu64
                             " of the data belong to no tensor (a hole before \"%s\")",
                             p->name, at, begin, name);
        if (begin < at)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: tensor \"%s\" begins at byte %" PRIu64
                             " of the data, inside the tensor before it, which ends at %" PRIu64,
                             p->name, name, begin, at);
        at = begin + tensor->bytes;
    }
    if (at != p->data_size)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %" PRIu64 " bytes after the last tensor belong to no tensor", p->name,
                         p->data_size - at);
    return NIB_OK;
}

/* ---- the file ---- */

static nib_status check_prefix(const uint8_t *bytes, uint64_t size, const char *name,
                               uint64_t *header, nib_err *err)
{
    uint64_t n = 0;
    if (size < PREFIX)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %" PRIu64 " bytes are too few for a safetensors file, which "
                         "begins with 8 bytes of header size",
                         name, size);
    for (int i = PREFIX; i-- > 0;)
        n = n << 8 | bytes[i];
    if (n > NIB_SAFETENSORS_HEADER_MAX)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: header of %" PRIu64 " bytes, over the format's %d: not a safetensors "
                         "file, or damaged",
                         name, n, NIB_SAFETENSORS_HEADER_MAX);
    if (n > size - PREFIX)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: header of %" PRIu64 " bytes in a file of %" PRIu64
                         ": the file is cut short",
                         name, n, size);
    if (n < 2 || bytes[PREFIX] != '{')
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: header of %" PRIu64 " bytes does not begin with {", name, n);
    *header = n;
    return NIB_OK;
}

nib_status nib__safetensors_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                                  const char *name, int file, nib_arena *arena, nib_err *err)
{
    static const nib_json_limits limits = {.depth = 8};
    char shown[256];
    uint64_t header = 0;
    nib_container result = {0};
    nib__escape_name(shown, sizeof shown, name, strlen(name));
    NIB_TRY(check_prefix(bytes, size, shown, &header, err));
    parser p = {.arena = arena, .out = &result, .name = shown, .file = file};
    p.data = bytes + PREFIX + header;
    p.data_size = size - PREFIX - header;
    nib__json_init(&p.json, "header", (const char *)bytes + PREFIX, (size_t)header, &limits);
    NIB_TRY(read_header(&p, err));
    if (!nib__container_sort(result.tensors, result.count, arena))
        return nib__fail_memory(err, result.count * sizeof *result.tensors, shown);
    NIB_TRY(check_coverage(&p, err));
    *out = result;
    return NIB_OK;
}
