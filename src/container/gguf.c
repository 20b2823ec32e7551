/* SPDX-License-Identifier: Apache-2.0
 *
 * The GGUF header: key/values, then what tensors there are, in one pass with a cursor that never
 * passes the end. Counts are held against the bytes that are left before anything is allocated, so
 * that memory is proportional to the file. Nothing of the data is read.
 */
#include "gguf.h"

#include "text.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    VALUE_LEAST = 14, /* bytes of the shortest key/value: length, one letter, kind, one byte */
    TENSOR_LEAST = 33 /* length, one letter, rank, one dimension, type, offset */
};

typedef struct parser {
    const uint8_t *start, *at, *end;
    nib_arena *arena;
    nib_gguf *gguf;
    nib_container *out;
    nib_name_index tensors;
    uint64_t *offsets; /* [out->count], from the start of the data */
    nib_err *err;
    int file;
} parser;

/* ---- the cursor ---- */

static uint64_t left(const parser *p) { return (uint64_t)(p->end - p->at); }

static nib_status cut_short(const parser *p, const char *inside)
{
    return nib__fail(p->err, NIB_BAD_INPUT,
                     "%s: the file ends at byte %" PRIu64 ", inside %s: it is cut short",
                     p->gguf->name, (uint64_t)(p->end - p->start), inside);
}

static uint64_t little_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

static nib_status take(parser *p, uint64_t *out, int bytes, const char *inside)
{
    if (left(p) < (uint64_t)bytes)
        return cut_short(p, inside);
    *out = little_endian(p->at, bytes);
    p->at += bytes;
    return NIB_OK;
}

/* A length and that many bytes, which may be anything. */
static nib_status take_string(parser *p, const char **out, uint64_t *size, const char *inside)
{
    NIB_TRY(take(p, size, 8, inside));
    if (*size > NIB_GGUF_STRING_MAX)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has a string of %" PRIu64 " bytes, over the limit of %d",
                         p->gguf->name, inside, *size, NIB_GGUF_STRING_MAX);
    if (*size > left(p))
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has a string of %" PRIu64
                         " bytes, but the file ends after %" PRIu64
                         " of them: it is cut short, or its header lies",
                         p->gguf->name, inside, *size, left(p));
    *out = (const char *)p->at;
    p->at += *size;
    return NIB_OK;
}

/* A key or a tensor's name as a C string in the arena. */
static nib_status take_name(parser *p, const char **out, uint64_t most, const char *what)
{
    const char *text;
    char shown[96];
    uint64_t size = 0;
    NIB_TRY(take_string(p, &text, &size, what));
    if (size == 0 || size > most)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has %" PRIu64 " bytes; 1 to %" PRIu64 " are allowed",
                         p->gguf->name, what, size, most);
    if (memchr(text, 0, (size_t)size) != NULL ||
        nib__utf8_check(text, (size_t)size) != (size_t)size)
        return nib__fail(p->err, NIB_BAD_INPUT, "%s: %s \"%s\" is no UTF-8 text without NUL",
                         p->gguf->name, what,
                         nib__say_name(shown, sizeof shown, text, (size_t)size));
    *out = nib__arena_copy(p->arena, text, (size_t)size);
    return *out != NULL ? NIB_OK : nib__fail_memory(p->err, (size_t)size, what);
}

/* ---- key/values ---- */

static const struct {
    const char *name;
    int bytes; /* 0: no fixed size */
} kinds[NIB_GGUF_KIND_COUNT] = {
    [NIB_GGUF_U8] = {"u8", 1},         [NIB_GGUF_I8] = {"i8", 1},
    [NIB_GGUF_U16] = {"u16", 2},       [NIB_GGUF_I16] = {"i16", 2},
    [NIB_GGUF_U32] = {"u32", 4},       [NIB_GGUF_I32] = {"i32", 4},
    [NIB_GGUF_F32] = {"f32", 4},       [NIB_GGUF_BOOL] = {"bool", 1},
    [NIB_GGUF_STRING] = {"string", 0}, [NIB_GGUF_ARRAY] = {"array", 0},
    [NIB_GGUF_U64] = {"u64", 8},       [NIB_GGUF_I64] = {"i64", 8},
    [NIB_GGUF_F64] = {"f64", 8},
};

const char *nib__gguf_kind_name(nib_gguf_kind kind)
{
    return (size_t)kind < COUNT(kinds) ? kinds[kind].name : "unknown";
}

static nib_status take_kind(parser *p, uint8_t *out, const char *inside)
{
    uint64_t kind = 0;
    NIB_TRY(take(p, &kind, 4, inside));
    if (kind >= COUNT(kinds))
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has a value of type %" PRIu64 "; the format has 0 to %d",
                         p->gguf->name, inside, kind, NIB_GGUF_KIND_COUNT - 1);
    *out = (uint8_t)kind;
    return NIB_OK;
}

/* The elements of a value, of one kind: over them, and they are what they say. */
static nib_status take_elements(parser *p, const nib_gguf_value *v, const char *inside)
{
    const uint64_t least = v->kind == NIB_GGUF_STRING ? 8 : (uint64_t)kinds[v->kind].bytes;
    if (v->count > left(p) / least)
        return nib__fail(
            p->err, NIB_BAD_INPUT,
            "%s: %s has %" PRIu64 " values of type %s, for which the %" PRIu64
            " bytes that are left do not do: the file is cut short, or its header lies",
            p->gguf->name, inside, v->count, kinds[v->kind].name, left(p));
    if (v->kind == NIB_GGUF_STRING) {
        const char *text;
        uint64_t size = 0;
        for (uint64_t i = 0; i < v->count; i++)
            NIB_TRY(take_string(p, &text, &size, inside));
        return NIB_OK;
    }
    for (uint64_t i = 0; v->kind == NIB_GGUF_BOOL && i < v->count; i++)
        if (p->at[i] > 1)
            return nib__fail(p->err, NIB_BAD_INPUT, "%s: %s has the byte %u as a bool; 0 and 1 are",
                             p->gguf->name, inside, (unsigned)p->at[i]);
    p->at += v->count * least;
    return NIB_OK;
}

static nib_status take_value(parser *p, nib_gguf_value *v)
{
    char inside[128], shown[96];
    NIB_TRY(take_name(p, &v->key, NIB_GGUF_KEY_MAX, "a key"));
    nib__say_name(shown, sizeof shown, v->key, strlen(v->key));
    snprintf(inside, sizeof inside, "key \"%s\"", shown);
    NIB_TRY(take_kind(p, &v->kind, inside));
    v->count = 1;
    v->is_array = v->kind == NIB_GGUF_ARRAY;
    if (v->is_array) {
        NIB_TRY(take_kind(p, &v->kind, inside));
        NIB_TRY(take(p, &v->count, 8, inside));
        if (v->kind == NIB_GGUF_ARRAY)
            return nib__fail(p->err, NIB_UNSUPPORTED,
                             "%s: %s is an array of arrays, which no known key is", p->gguf->name,
                             inside);
    }
    v->at = p->at;
    return take_elements(p, v, inside);
}

/* Entries have at least `least` bytes each. */
static nib_status check_count(const parser *p, uint64_t count, uint64_t least, const char *what)
{
    if (count > NIB_GGUF_ENTRY_MAX)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: the header counts %" PRIu64 " %s, over the limit of %d",
                         p->gguf->name, count, what, NIB_GGUF_ENTRY_MAX);
    if (count > left(p) / least)
        return nib__fail(
            p->err, NIB_BAD_INPUT,
            "%s: the header counts %" PRIu64 " %s, for which the %" PRIu64
            " bytes that are left do not do: the file is cut short, or its header lies",
            p->gguf->name, count, what, left(p));
    return NIB_OK;
}

static nib_status take_values(parser *p, uint64_t count)
{
    nib_gguf *g = p->gguf;
    char shown[96];
    NIB_TRY(check_count(p, count, VALUE_LEAST, "keys"));
    g->values = nib__container_items(p->arena, (size_t)count, sizeof **g->values);
    if (g->values == NULL || !nib__name_index_init(&g->by_key, p->arena, (size_t)count))
        return nib__fail_memory(p->err, (size_t)count * sizeof **g->values, g->name);
    for (; g->count < count; g->count++) {
        nib_gguf_value *v = g->values[g->count];
        v->entry = p->at;
        NIB_TRY(take_value(p, v));
        v->entry_bytes = (uint64_t)(p->at - v->entry);
        if (nib__name_index_add(&g->by_key, (const void *const *)g->values, g->count) != NULL)
            return nib__fail(p->err, NIB_BAD_INPUT, "%s: key \"%s\" comes twice", g->name,
                             nib__say_name(shown, sizeof shown, v->key, strlen(v->key)));
    }
    return NIB_OK;
}

/* The two keys that the container itself means. */
static nib_status read_general(parser *p)
{
    nib_gguf *g = p->gguf;
    const nib_gguf_value *alignment = nib__gguf_find(g, "general.alignment");
    const char *arch;
    size_t size;
    bool found;
    g->alignment = 32;
    if (alignment != NULL) {
        if (alignment->kind != NIB_GGUF_U32 || alignment->is_array)
            return nib__fail(p->err, NIB_BAD_INPUT, "%s: general.alignment is %s%s; u32 is wanted",
                             g->name, alignment->is_array ? "an array of " : "",
                             kinds[alignment->kind].name);
        g->alignment = little_endian(alignment->at, 4);
        if (g->alignment == 0 || (g->alignment & (g->alignment - 1)) != 0 ||
            g->alignment > NIB_GGUF_ALIGNMENT_MAX)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: general.alignment is %" PRIu64
                             "; a power of two up to %d is wanted",
                             g->name, g->alignment, NIB_GGUF_ALIGNMENT_MAX);
    }
    NIB_TRY(nib__gguf_string(&arch, &size, &found, g, "general.architecture", p->err));
    if (!found)
        return NIB_OK;
    if (size > 64 || memchr(arch, 0, size) != NULL)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: general.architecture has %zu bytes, or a NUL; a name is wanted",
                         g->name, size);
    g->arch = nib__arena_copy(p->arena, arch, size);
    return g->arch != NULL ? NIB_OK : nib__fail_memory(p->err, size, g->name);
}

/* ---- tensors ---- */

enum { REMOVED = -1 };

/* ggml's types by number. Those without a type of ours are refused by name. */
static const struct {
    const char *name;
    int type;
} types[] = {
    {"F32", NIB_TYPE_F32},      {"F16", NIB_TYPE_F16},      {"Q4_0", NIB_TYPE_Q4_0},
    {"Q4_1", NIB_TYPE_Q4_1},    {"Q4_2", REMOVED},          {"Q4_3", REMOVED},
    {"Q5_0", NIB_TYPE_Q5_0},    {"Q5_1", NIB_TYPE_Q5_1},    {"Q8_0", NIB_TYPE_Q8_0},
    {"Q8_1", NIB_TYPE_NONE},    {"Q2_K", NIB_TYPE_NONE},    {"Q3_K", NIB_TYPE_NONE},
    {"Q4_K", NIB_TYPE_Q4_K},    {"Q5_K", NIB_TYPE_Q5_K},    {"Q6_K", NIB_TYPE_Q6_K},
    {"Q8_K", NIB_TYPE_NONE},    {"IQ2_XXS", NIB_TYPE_NONE}, {"IQ2_XS", NIB_TYPE_NONE},
    {"IQ3_XXS", NIB_TYPE_NONE}, {"IQ1_S", NIB_TYPE_NONE},   {"IQ4_NL", NIB_TYPE_IQ4_NL},
    {"IQ3_S", NIB_TYPE_NONE},   {"IQ2_S", NIB_TYPE_NONE},   {"IQ4_XS", NIB_TYPE_NONE},
    {"I8", NIB_TYPE_I8},        {"I16", NIB_TYPE_I16},      {"I32", NIB_TYPE_I32},
    {"I64", NIB_TYPE_I64},      {"F64", NIB_TYPE_F64},      {"IQ1_M", NIB_TYPE_NONE},
    {"BF16", NIB_TYPE_BF16},    {"Q4_0_4_4", REMOVED},      {"Q4_0_4_8", REMOVED},
    {"Q4_0_8_8", REMOVED},      {"TQ1_0", NIB_TYPE_NONE},   {"TQ2_0", NIB_TYPE_NONE},
    {"IQ4_NL_4_4", REMOVED},    {"IQ4_NL_4_8", REMOVED},    {"IQ4_NL_8_8", REMOVED},
    {"MXFP4", NIB_TYPE_MXFP4},  {"NVFP4", NIB_TYPE_NONE},   {"Q1_0", NIB_TYPE_NONE},
    {"Q2_0", NIB_TYPE_NONE},
};

int nib__gguf_type_number(nib_type type)
{
    for (size_t i = 0; i < COUNT(types); i++)
        if (types[i].type == (int)type && type != NIB_TYPE_NONE)
            return (int)i;
    return -1;
}

static nib_status take_type(parser *p, nib_tensor *tensor, const char *inside)
{
    uint64_t type = 0;
    NIB_TRY(take(p, &type, 4, inside));
    if (type >= COUNT(types))
        return nib__fail(p->err, NIB_UNSUPPORTED,
                         "%s: %s has type %" PRIu64 ", which is none that GGUF has (0 to %zu)",
                         p->gguf->name, inside, type, COUNT(types) - 1);
    if (types[type].type == REMOVED)
        return nib__fail(p->err, NIB_UNSUPPORTED,
                         "%s: %s is %s, which was taken out of GGUF; convert the model again with "
                         "llama.cpp's converter of today",
                         p->gguf->name, inside, types[type].name);
    if (types[type].type == NIB_TYPE_NONE)
        return nib__fail(
            p->err, NIB_UNSUPPORTED,
            "%s: %s is %s, which llama.cpp reads and nibble does not; F32, F16, BF16, "
            "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL and MXFP4 are read",
            p->gguf->name, inside, types[type].name);
    tensor->type = (nib_type)types[type].type;
    return NIB_OK;
}

/* The file has the fastest dimension first, we have it last. */
static nib_status take_shape(parser *p, nib_tensor *tensor, const char *inside)
{
    uint64_t rank = 0, elements = 1, size = 0;
    NIB_TRY(take(p, &rank, 4, inside));
    if (rank < 1 || rank > NIB_GGUF_RANK_MAX)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has %" PRIu64 " dimensions; 1 to %d are allowed", p->gguf->name,
                         inside, rank, NIB_GGUF_RANK_MAX);
    tensor->rank = (int)rank;
    for (int i = tensor->rank; i-- > 0;) {
        NIB_TRY(take(p, &size, 8, inside));
        if (size == 0 || size > INT64_MAX || !nib__mul(&elements, elements, size) ||
            elements > INT64_MAX)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: %s has a dimension of %" PRIu64
                             ", which is 0 or too much: the elements must be 1 to 2^63 - 1",
                             p->gguf->name, inside, size);
        tensor->shape[i] = (int64_t)size;
    }
    return NIB_OK;
}

static nib_status take_tensor(parser *p, nib_tensor *tensor, uint64_t *offset)
{
    char inside[128], shown[96];
    NIB_TRY(take_name(p, &tensor->name, NIB_GGUF_NAME_MAX, "a tensor's name"));
    nib__say_name(shown, sizeof shown, tensor->name, strlen(tensor->name));
    snprintf(inside, sizeof inside, "tensor \"%s\"", shown);
    NIB_TRY(take_shape(p, tensor, inside));
    NIB_TRY(take_type(p, tensor, inside));
    NIB_TRY(take(p, offset, 8, inside));
    if (tensor->shape[tensor->rank - 1] % nib__type_block(tensor->type) != 0)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has rows of %" PRId64
                         " elements, but %s comes in blocks of %" PRId64,
                         p->gguf->name, inside, tensor->shape[tensor->rank - 1],
                         nib__type_stored_name(tensor->type), nib__type_block(tensor->type));
    if (!nib__tensor_bytes(&tensor->bytes, tensor->type, tensor->shape, tensor->rank))
        return nib__fail(p->err, NIB_BAD_INPUT, "%s: %s: its bytes do not fit 64 bits",
                         p->gguf->name, inside);
    if (*offset % p->gguf->alignment != 0)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s begins at byte %" PRIu64
                         " of the data, which is no multiple of the alignment %" PRIu64,
                         p->gguf->name, inside, *offset, p->gguf->alignment);
    tensor->file = p->file;
    return NIB_OK;
}

static nib_status take_tensors(parser *p, uint64_t count)
{
    nib_container *out = p->out;
    char shown[96];
    NIB_TRY(check_count(p, count, TENSOR_LEAST, "tensors"));
    out->tensors = nib__container_items(p->arena, (size_t)count, sizeof **out->tensors);
    p->offsets = nib__arena_take(p->arena, (size_t)count, sizeof *p->offsets);
    if (out->tensors == NULL || p->offsets == NULL ||
        !nib__name_index_init(&p->tensors, p->arena, (size_t)count))
        return nib__fail_memory(p->err, (size_t)count * sizeof **out->tensors, p->gguf->name);
    for (; out->count < count; out->count++) {
        nib_tensor *tensor = out->tensors[out->count];
        NIB_TRY(take_tensor(p, tensor, &p->offsets[out->count]));
        if (nib__name_index_add(&p->tensors, (const void *const *)out->tensors, out->count) != NULL)
            return nib__fail(
                p->err, NIB_BAD_INPUT, "%s: tensor \"%s\" comes twice", p->gguf->name,
                nib__say_name(shown, sizeof shown, tensor->name, strlen(tensor->name)));
    }
    return NIB_OK;
}

/* ---- where they lie ---- */

/* To a multiple of a power of two; false: too much. */
static bool align(uint64_t *out, uint64_t value, uint64_t alignment)
{
    if (!nib__add(&value, value, alignment - 1))
        return false;
    *out = value & ~(alignment - 1);
    return true;
}

static nib_status place(parser *p)
{
    const nib_container *out = p->out;
    const uint64_t header = (uint64_t)(p->at - p->start), size = header + left(p);
    char shown[96];
    uint64_t data, end;
    if (!align(&data, header, p->gguf->alignment) || data > size)
        return out->count == 0 ? NIB_OK : cut_short(p, "the padding before the data");
    for (size_t i = 0; i < out->count; i++) {
        nib_tensor *tensor = out->tensors[i];
        if (!nib__add(&end, p->offsets[i], tensor->bytes) || end > size - data)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: tensor \"%s\" has %" PRIu64 " bytes from byte %" PRIu64
                             " of the data, which ends at %" PRIu64
                             ": the file is cut short, or its header lies",
                             p->gguf->name,
                             nib__say_name(shown, sizeof shown, tensor->name, strlen(tensor->name)),
                             tensor->bytes, p->offsets[i], size - data);
        tensor->data = p->start + data + p->offsets[i];
    }
    return NIB_OK;
}

/* Every byte of the data belongs to exactly one tensor or pads up to the next. */
static nib_status check_cover(const parser *p)
{
    const nib_container *out = p->out;
    const char *name = p->gguf->name;
    char shown[96];
    uint64_t at = (uint64_t)(p->at - p->start), begin, next;
    for (size_t i = 0; i < out->count; i++) {
        const nib_tensor *tensor = out->tensors[i];
        nib__say_name(shown, sizeof shown, tensor->name, strlen(tensor->name));
        begin = (uint64_t)(tensor->data - p->start);
        if (begin < at)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: tensor \"%s\" begins at byte %" PRIu64
                             " of the file, inside the tensor before it, which ends at %" PRIu64,
                             name, shown, begin, at);
        if (!align(&next, at, p->gguf->alignment) || begin != next)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: bytes %" PRIu64 " to %" PRIu64
                             " of the file belong to no tensor (a hole before \"%s\")",
                             name, at, begin, shown);
        at = begin + tensor->bytes;
    }
    if (align(&next, at, p->gguf->alignment) && (uint64_t)(p->end - p->start) > next)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %" PRIu64 " bytes behind the last tensor belong to none", name,
                         (uint64_t)(p->end - p->start) - at);
    return NIB_OK;
}

/* ---- the file ---- */

static nib_status check_version(const parser *p, uint32_t version)
{
    if (version == 2 || version == 3)
        return NIB_OK;
    if (version != 0 && (version & 0xffff) == 0)
        return nib__fail(p->err, NIB_UNSUPPORTED,
                         "%s: a big-endian GGUF file; convert the model for little-endian machines",
                         p->gguf->name);
    return nib__fail(p->err, NIB_UNSUPPORTED, "%s: GGUF version %" PRIu32 "; 2 and 3 are read%s",
                     p->gguf->name, version,
                     version == 1 ? ". Convert the model again: no tool of today reads 1" : "");
}

static nib_status parse_header(parser *p)
{
    uint64_t version = 0, tensors = 0, values = 0;
    p->at += 4; /* the magic, by which the file was found to be GGUF */
    NIB_TRY(take(p, &version, 4, "the version"));
    p->gguf->version = (uint32_t)version;
    NIB_TRY(check_version(p, p->gguf->version));
    NIB_TRY(take(p, &tensors, 8, "the count of tensors"));
    NIB_TRY(take(p, &values, 8, "the count of keys"));
    NIB_TRY(take_values(p, values));
    NIB_TRY(read_general(p));
    return take_tensors(p, tensors);
}

nib_status nib__gguf_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                           const char *name, int file, nib_arena *arena, nib_err *err)
{
    char shown[256];
    nib_container result = {0};
    nib_gguf *gguf = nib__arena_take(arena, 1, sizeof *gguf);
    nib__say_name(shown, sizeof shown, name, strlen(name));
    if (gguf == NULL || (gguf->name = nib__arena_copy(arena, shown, strlen(shown))) == NULL)
        return nib__fail_memory(err, sizeof *gguf, "a GGUF file");
    result.gguf = gguf;
    parser p = {.start = bytes,
                .at = bytes,
                .end = bytes + size,
                .arena = arena,
                .gguf = gguf,
                .out = &result,
                .err = err,
                .file = file};
    if (size < 4 || memcmp(bytes, "GGUF", 4) != 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: is no GGUF file, which begins with \"GGUF\"",
                         shown);
    NIB_TRY(parse_header(&p));
    NIB_TRY(place(&p));
    if (!nib__container_sort(result.tensors, result.count, arena))
        return nib__fail_memory(err, result.count * sizeof *result.tensors, shown);
    NIB_TRY(check_cover(&p));
    *out = result;
    return NIB_OK;
}

void nib__gguf_keys(const nib_gguf *gguf, nib_text *out)
{
    uint64_t header[3] = {0, 0, 0}; /* magic and version, tensors, keys */
    memcpy(header, "GGUF\3", 5);
    for (size_t i = 0; i < gguf->count; i++)
        header[2] += strncmp(gguf->values[i]->key, "split.", 6) != 0;
    nib__text_put(out, (const char *)header, sizeof header);
    for (size_t i = 0; i < gguf->count; i++)
        if (strncmp(gguf->values[i]->key, "split.", 6) != 0)
            nib__text_put(out, (const char *)gguf->values[i]->entry,
                          (size_t)gguf->values[i]->entry_bytes);
    const size_t past = out->size % (size_t)gguf->alignment;
    for (size_t i = past; past != 0 && i < gguf->alignment; i++)
        nib__text_put(out, "", 1);
}
