/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the GGUF header, key/values and then the list of tensors, in one pass with a
 * bounds-checked cursor. Counts are checked against the bytes left before anything is allocated,
 * so memory is proportional to the file. Does not read the data.
 */
#include "gguf.h"

#include "text.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    VALUE_BYTES_MIN = 14, /* the shortest key/value: length, one letter, kind, one byte */
    TENSOR_BYTES_MIN = 33 /* length, one letter, rank, one dimension, type, offset */
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

static uint64_t bytes_left(const parser *p) { return (uint64_t)(p->end - p->at); }

static nib_status fail_cut_short(const parser *p, const char *inside)
{
    return nib__fail(p->err, NIB_BAD_INPUT,
                     "%s: the file is cut short: it ends at byte %" PRIu64 ", inside %s",
                     p->gguf->name, (uint64_t)(p->end - p->start), inside);
}

static uint64_t little_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

static nib_status read_number(parser *p, uint64_t *out, int bytes, const char *inside)
{
    if (bytes_left(p) < (uint64_t)bytes)
        return fail_cut_short(p, inside);
    *out = little_endian(p->at, bytes);
    p->at += bytes;
    return NIB_OK;
}

/* A length, then that many arbitrary bytes. */
static nib_status read_string(parser *p, const char **out, uint64_t *size, const char *inside)
{
    NIB_TRY(read_number(p, size, 8, inside));
    if (*size > NIB_GGUF_STRING_MAX)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has a string of %" PRIu64 " bytes, over the limit of %d",
                         p->gguf->name, inside, *size, NIB_GGUF_STRING_MAX);
    if (*size > bytes_left(p))
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has a string of %" PRIu64
                         " bytes, but the file ends after %" PRIu64
                         " of them: it is cut short, or its header is wrong",
                         p->gguf->name, inside, *size, bytes_left(p));
    *out = (const char *)p->at;
    p->at += *size;
    return NIB_OK;
}

/* Copies a key or tensor name into the arena as a C string. */
static nib_status read_name(parser *p, const char **out, uint64_t most, const char *what)
{
    const char *text;
    char shown[96];
    uint64_t size = 0;
    NIB_TRY(read_string(p, &text, &size, what));
    if (size == 0 || size > most)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has %" PRIu64 " bytes; 1 to %" PRIu64 " are allowed",
                         p->gguf->name, what, size, most);
    const bool has_nul = memchr(text, 0, (size_t)size) != NULL;
    if (has_nul || nib__utf8_check(text, (size_t)size) != (size_t)size)
        return nib__fail(p->err, NIB_BAD_INPUT, "%s: %s, \"%s\", %s", p->gguf->name, what,
                         nib__escape_name(shown, sizeof shown, text, (size_t)size),
                         has_nul ? "contains a NUL character" : "is not valid UTF-8");
    *out = nib__arena_copy(p->arena, text, (size_t)size);
    return *out != NULL ? NIB_OK : nib__fail_memory(p->err, size, what);
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

static nib_status read_kind(parser *p, uint8_t *out, const char *inside)
{
    uint64_t kind = 0;
    NIB_TRY(read_number(p, &kind, 4, inside));
    if (kind >= COUNT(kinds))
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has a value of type %" PRIu64 "; the format has 0 to %d",
                         p->gguf->name, inside, kind, NIB_GGUF_KIND_COUNT - 1);
    *out = (uint8_t)kind;
    return NIB_OK;
}

/* Checks the elements of a value, all of one kind, and moves the cursor past them. */
static nib_status skip_elements(parser *p, const nib_gguf_value *v, const char *inside)
{
    const uint64_t least = v->kind == NIB_GGUF_STRING ? 8 : (uint64_t)kinds[v->kind].bytes;
    if (v->count > bytes_left(p) / least)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has %" PRIu64 " values of type %s, too many for the %" PRIu64
                         " bytes left: the file is cut short, or its header is wrong",
                         p->gguf->name, inside, v->count, kinds[v->kind].name, bytes_left(p));
    if (v->kind == NIB_GGUF_STRING) {
        const char *text;
        uint64_t size = 0;
        for (uint64_t i = 0; i < v->count; i++)
            NIB_TRY(read_string(p, &text, &size, inside));
        return NIB_OK;
    }
    for (uint64_t i = 0; v->kind == NIB_GGUF_BOOL && i < v->count; i++)
        if (p->at[i] > 1)
            return nib__fail(p->err, NIB_BAD_INPUT, "%s: %s has a bool of %u; 0 or 1 is expected",
                             p->gguf->name, inside, (unsigned)p->at[i]);
    p->at += v->count * least;
    return NIB_OK;
}

static nib_status read_value(parser *p, nib_gguf_value *v)
{
    char inside[128], shown[96];
    NIB_TRY(read_name(p, &v->key, NIB_GGUF_KEY_MAX, "a key"));
    nib__escape_name(shown, sizeof shown, v->key, strlen(v->key));
    snprintf(inside, sizeof inside, "key \"%s\"", shown);
    NIB_TRY(read_kind(p, &v->kind, inside));
    v->count = 1;
    v->is_array = v->kind == NIB_GGUF_ARRAY;
    if (v->is_array) {
        NIB_TRY(read_kind(p, &v->kind, inside));
        NIB_TRY(read_number(p, &v->count, 8, inside));
        if (v->kind == NIB_GGUF_ARRAY)
            return nib__fail(p->err, NIB_UNSUPPORTED,
                             "%s: %s is an array of arrays, which no known key uses", p->gguf->name,
                             inside);
    }
    v->at = p->at;
    return skip_elements(p, v, inside);
}

/* entry_bytes: the least that an entry can have. */
static nib_status check_count(const parser *p, uint64_t count, uint64_t entry_bytes,
                              const char *what)
{
    if (count > NIB_GGUF_ENTRY_MAX)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: the header counts %" PRIu64 " %s, over the limit of %d",
                         p->gguf->name, count, what, NIB_GGUF_ENTRY_MAX);
    if (count > bytes_left(p) / entry_bytes)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: the header counts %" PRIu64 " %s, too many for the %" PRIu64
                         " bytes left: the file is cut short, or its header is wrong",
                         p->gguf->name, count, what, bytes_left(p));
    return NIB_OK;
}

static nib_status read_values(parser *p, uint64_t count)
{
    nib_gguf *g = p->gguf;
    char shown[96];
    NIB_TRY(check_count(p, count, VALUE_BYTES_MIN, "keys"));
    g->values = nib__container_items(p->arena, (size_t)count, sizeof **g->values);
    if (g->values == NULL || !nib__name_index_init(&g->by_key, p->arena, (size_t)count))
        return nib__fail_memory(p->err, count * sizeof **g->values, g->name);
    for (; g->count < count; g->count++) {
        nib_gguf_value *v = g->values[g->count];
        v->entry = p->at;
        NIB_TRY(read_value(p, v));
        v->entry_bytes = (uint64_t)(p->at - v->entry);
        if (nib__name_index_add(&g->by_key, (const void *const *)g->values, g->count) != NULL)
            return nib__fail(p->err, NIB_BAD_INPUT, "%s: key \"%s\" appears twice", g->name,
                             nib__escape_name(shown, sizeof shown, v->key, strlen(v->key)));
    }
    return NIB_OK;
}

/* The two keys that the container itself uses. */
static nib_status read_general_keys(parser *p)
{
    nib_gguf *g = p->gguf;
    const nib_gguf_value *alignment = nib__gguf_find(g, "general.alignment");
    const char *arch;
    size_t size;
    bool found;
    g->alignment = 32;
    if (alignment != NULL) {
        if (alignment->kind != NIB_GGUF_U32 || alignment->is_array)
            return nib__fail(
                p->err, NIB_BAD_INPUT, "%s: general.alignment is %s%s; u32 is expected", g->name,
                alignment->is_array ? "an array of " : "", kinds[alignment->kind].name);
        g->alignment = little_endian(alignment->at, 4);
        if (g->alignment == 0 || (g->alignment & (g->alignment - 1)) != 0 ||
            g->alignment > NIB_GGUF_ALIGNMENT_MAX)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: general.alignment is %" PRIu64
                             "; a power of two up to %d is expected",
                             g->name, g->alignment, NIB_GGUF_ALIGNMENT_MAX);
    }
    NIB_TRY(nib__gguf_string(&arch, &size, &found, g, "general.architecture", p->err));
    if (!found)
        return NIB_OK;
    if (size > 64 || memchr(arch, 0, size) != NULL)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: general.architecture has %zu bytes%s; a name of at most 64 bytes "
                         "without NUL is expected",
                         g->name, size, memchr(arch, 0, size) != NULL ? ", one of them NUL" : "");
    g->arch = nib__arena_copy(p->arena, arch, size);
    return g->arch != NULL ? NIB_OK : nib__fail_memory(p->err, size, g->name);
}

/* ---- tensors ---- */

enum { REMOVED = -1 };

/* ggml's types by number. NIB_TYPE_NONE: not supported; refused by name. */
static const struct {
    const char *name;
    int type;
} types[] = {
    {"F32", NIB_TYPE_F32},      {"F16", NIB_TYPE_F16},      {"Q4_0", NIB_TYPE_Q4_0},
    {"Q4_1", NIB_TYPE_Q4_1},    {"Q4_2", REMOVED},          {"Q4_3", REMOVED},
    {"Q5_0", NIB_TYPE_Q5_0},    {"Q5_1", NIB_TYPE_Q5_1},    {"Q8_0", NIB_TYPE_Q8_0},
    {"Q8_1", NIB_TYPE_NONE},    {"Q2_K", NIB_TYPE_Q2_K},    {"Q3_K", NIB_TYPE_Q3_K},
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

static nib_status read_type(parser *p, nib_tensor *tensor, const char *inside)
{
    uint64_t type = 0;
    NIB_TRY(read_number(p, &type, 4, inside));
    if (type >= COUNT(types))
        return nib__fail(p->err, NIB_UNSUPPORTED,
                         "%s: %s has type %" PRIu64 ", which GGUF does not define (0 to %zu)",
                         p->gguf->name, inside, type, COUNT(types) - 1);
    if (types[type].type == REMOVED)
        return nib__fail(p->err, NIB_UNSUPPORTED,
                         "%s: %s is %s, which was removed from GGUF; convert the model again with "
                         "llama.cpp's current converter",
                         p->gguf->name, inside, types[type].name);
    if (types[type].type == NIB_TYPE_NONE)
        return nib__fail(
            p->err, NIB_UNSUPPORTED,
            "%s: %s is %s, which llama.cpp reads and nibble does not; nibble reads F32, F16, BF16, "
            "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL and MXFP4",
            p->gguf->name, inside, types[type].name);
    tensor->type = (nib_type)types[type].type;
    return NIB_OK;
}

/* The file stores the fastest dimension first, we store it last. */
static nib_status read_shape(parser *p, nib_tensor *tensor, const char *inside)
{
    uint64_t rank = 0, elements = 1, size = 0;
    NIB_TRY(read_number(p, &rank, 4, inside));
    if (rank < 1 || rank > NIB_GGUF_RANK_MAX)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s has %" PRIu64 " dimensions; 1 to %d are allowed", p->gguf->name,
                         inside, rank, NIB_GGUF_RANK_MAX);
    tensor->rank = (int)rank;
    for (int i = tensor->rank; i-- > 0;) {
        NIB_TRY(read_number(p, &size, 8, inside));
        if (size == 0)
            return nib__fail(p->err, NIB_BAD_INPUT, "%s: %s has a dimension of 0", p->gguf->name,
                             inside);
        if (size > INT64_MAX || !nib__mul(&elements, elements, size) || elements > INT64_MAX)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: %s has more than 2^63 - 1 elements (a dimension of %" PRIu64 ")",
                             p->gguf->name, inside, size);
        tensor->shape[i] = (int64_t)size;
    }
    return NIB_OK;
}

static nib_status read_tensor(parser *p, nib_tensor *tensor, uint64_t *offset)
{
    char inside[128], shown[96];
    NIB_TRY(read_name(p, &tensor->name, NIB_GGUF_NAME_MAX, "a tensor name"));
    nib__escape_name(shown, sizeof shown, tensor->name, strlen(tensor->name));
    snprintf(inside, sizeof inside, "tensor \"%s\"", shown);
    NIB_TRY(read_shape(p, tensor, inside));
    NIB_TRY(read_type(p, tensor, inside));
    NIB_TRY(read_number(p, offset, 8, inside));
    if (tensor->shape[tensor->rank - 1] % nib__type_block_elements(tensor->type) != 0)
        return nib__fail(
            p->err, NIB_BAD_INPUT,
            "%s: %s has rows of %" PRId64 " elements, but %s comes in blocks of %" PRId64,
            p->gguf->name, inside, tensor->shape[tensor->rank - 1],
            nib__type_stored_name(tensor->type), nib__type_block_elements(tensor->type));
    if (!nib__tensor_bytes(&tensor->bytes, tensor->type, tensor->shape, tensor->rank))
        return nib__fail(p->err, NIB_BAD_INPUT, "%s: %s: its size in bytes does not fit in 64 bits",
                         p->gguf->name, inside);
    if (*offset % p->gguf->alignment != 0)
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %s begins at byte %" PRIu64
                         " of the data, which is not a multiple of the alignment %" PRIu64,
                         p->gguf->name, inside, *offset, p->gguf->alignment);
    tensor->file = p->file;
    return NIB_OK;
}

static nib_status read_tensors(parser *p, uint64_t count)
{
    nib_container *out = p->out;
    char shown[96];
    NIB_TRY(check_count(p, count, TENSOR_BYTES_MIN, "tensors"));
    out->tensors = nib__container_items(p->arena, (size_t)count, sizeof **out->tensors);
    p->offsets = nib__arena_take(p->arena, count, sizeof *p->offsets);
    if (out->tensors == NULL || p->offsets == NULL ||
        !nib__name_index_init(&p->tensors, p->arena, (size_t)count))
        return nib__fail_memory(p->err, count * sizeof **out->tensors, p->gguf->name);
    for (; out->count < count; out->count++) {
        nib_tensor *tensor = out->tensors[out->count];
        NIB_TRY(read_tensor(p, tensor, &p->offsets[out->count]));
        if (nib__name_index_add(&p->tensors, (const void *const *)out->tensors, out->count) != NULL)
            return nib__fail(
                p->err, NIB_BAD_INPUT, "%s: tensor \"%s\" appears twice", p->gguf->name,
                nib__escape_name(shown, sizeof shown, tensor->name, strlen(tensor->name)));
    }
    return NIB_OK;
}

/* ---- tensor data ---- */

/* Rounds a position in the file up to a multiple of a power of two. */
static uint64_t align_up(uint64_t at, uint64_t alignment)
{
    return (at + alignment - 1) & ~(alignment - 1);
}

static nib_status locate_tensors(parser *p)
{
    const nib_container *out = p->out;
    const uint64_t header = (uint64_t)(p->at - p->start), size = header + bytes_left(p);
    char shown[96];
    const uint64_t data = align_up(header, p->gguf->alignment);
    uint64_t end;
    if (data > size)
        return out->count == 0 ? NIB_OK : fail_cut_short(p, "the padding before the data");
    for (size_t i = 0; i < out->count; i++) {
        nib_tensor *tensor = out->tensors[i];
        if (!nib__add(&end, p->offsets[i], tensor->bytes) || end > size - data)
            return nib__fail(
                p->err, NIB_BAD_INPUT,
                "%s: tensor \"%s\" has %" PRIu64 " bytes from byte %" PRIu64
                " of the data, which ends at %" PRIu64
                ": the file is cut short, or its header is wrong",
                p->gguf->name,
                nib__escape_name(shown, sizeof shown, tensor->name, strlen(tensor->name)),
                tensor->bytes, p->offsets[i], size - data);
        tensor->data = p->start + data + p->offsets[i];
    }
    return NIB_OK;
}

/* Checks that every byte of the data belongs to exactly one tensor or to the padding before the
 * next. */
static nib_status check_coverage(const parser *p)
{
    const nib_container *out = p->out;
    const char *name = p->gguf->name;
    char shown[96];
    uint64_t at = (uint64_t)(p->at - p->start), begin;
    for (size_t i = 0; i < out->count; i++) {
        const nib_tensor *tensor = out->tensors[i];
        nib__escape_name(shown, sizeof shown, tensor->name, strlen(tensor->name));
        begin = (uint64_t)(tensor->data - p->start);
        if (begin < at)
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: tensor \"%s\" begins at byte %" PRIu64
                             " of the file, inside the tensor before it, which ends at %" PRIu64,
                             name, shown, begin, at);
        if (begin != align_up(at, p->gguf->alignment))
            return nib__fail(p->err, NIB_BAD_INPUT,
                             "%s: bytes %" PRIu64 " to %" PRIu64
                             " of the file belong to no tensor (a hole before \"%s\")",
                             name, at, begin, shown);
        at = begin + tensor->bytes;
    }
    if ((uint64_t)(p->end - p->start) > align_up(at, p->gguf->alignment))
        return nib__fail(p->err, NIB_BAD_INPUT,
                         "%s: %" PRIu64 " bytes after the last tensor belong to no tensor", name,
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
    return nib__fail(p->err, NIB_UNSUPPORTED,
                     "%s: GGUF version %" PRIu32 "; nibble reads 2 and 3%s", p->gguf->name, version,
                     version == 1 ? "; convert the model again: no current tool reads 1"
                     : version > 3 && version < 100 ? ": the file was made by a newer tool"
                                                    : ": the file is damaged");
}

static nib_status parse_header(parser *p)
{
    uint64_t version = 0, tensors = 0, values = 0;
    p->at += 4; /* the magic was checked by the caller */
    NIB_TRY(read_number(p, &version, 4, "the version"));
    p->gguf->version = (uint32_t)version;
    NIB_TRY(check_version(p, p->gguf->version));
    NIB_TRY(read_number(p, &tensors, 8, "the count of tensors"));
    NIB_TRY(read_number(p, &values, 8, "the count of keys"));
    NIB_TRY(read_values(p, values));
    NIB_TRY(read_general_keys(p));
    return read_tensors(p, tensors);
}

nib_status nib__gguf_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                           const char *name, int file, nib_arena *arena, nib_err *err)
{
    char shown[256];
    nib_container result = {0};
    nib_gguf *gguf = nib__arena_take(arena, 1, sizeof *gguf);
    nib__escape_name(shown, sizeof shown, name, strlen(name));
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
        return nib__fail(err, NIB_BAD_INPUT, "%s: not a GGUF file: does not begin with \"GGUF\"",
                         shown);
    NIB_TRY(parse_header(&p));
    NIB_TRY(locate_tensors(&p));
    if (!nib__container_sort(result.tensors, result.count, arena))
        return nib__fail_memory(err, result.count * sizeof *result.tensors, shown);
    NIB_TRY(check_coverage(&p));
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

const nib_gguf_value *nib__gguf_find(const nib_gguf *g, const char *key)
{
    if (g->count == 0)
        return NULL;
    const size_t i = nib__name_index_find(&g->by_key, (const void *const *)g->values, key);
    return i == SIZE_MAX ? NULL : g->values[i];
}

/* ---- typed look-ups: the parser has checked that every value lies within the file ---- */

static bool is_whole(nib_gguf_kind kind)
{
    return kind != NIB_GGUF_F32 && kind != NIB_GGUF_F64 && kind != NIB_GGUF_BOOL &&
           kind != NIB_GGUF_STRING;
}

static bool is_number(nib_gguf_kind kind)
{
    return is_whole(kind) || kind == NIB_GGUF_F32 || kind == NIB_GGUF_F64;
}

/* U64 values saturate at INT64_MAX: callers check lower limits of their own. */
static int64_t whole_at(const uint8_t *at, nib_gguf_kind kind)
{
    switch (kind) {
    case NIB_GGUF_U8: return at[0];
    case NIB_GGUF_I8: return (int8_t)at[0];
    case NIB_GGUF_U16: return (int64_t)little_endian(at, 2);
    case NIB_GGUF_I16: return (int16_t)little_endian(at, 2);
    case NIB_GGUF_U32: return (int64_t)little_endian(at, 4);
    case NIB_GGUF_I32: return (int32_t)little_endian(at, 4);
    case NIB_GGUF_U64: {
        const uint64_t bits = little_endian(at, 8);
        return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
    }
    default: return (int64_t)little_endian(at, 8);
    }
}

static double number_at(const uint8_t *at, nib_gguf_kind kind)
{
    if (kind == NIB_GGUF_F32) {
        const uint32_t bits = (uint32_t)little_endian(at, 4);
        float value;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    if (kind == NIB_GGUF_F64) {
        const uint64_t bits = little_endian(at, 8);
        double value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    return (double)whole_at(at, kind);
}

static bool is_kind(nib_gguf_kind kind, nib_gguf_kind wanted)
{
    return wanted == NIB_GGUF_I64   ? is_whole(kind)
           : wanted == NIB_GGUF_F64 ? is_number(kind)
                                    : kind == wanted;
}

/* ---- look-ups ---- */

/* *out = NULL: an optional key is missing. */
static nib_status find_value(const nib_gguf_value **out, bool *found, const nib_gguf *g,
                             const char *key, nib_gguf_kind wanted, bool array, nib_err *err)
{
    const nib_gguf_value *v = *out = nib__gguf_find(g, key);
    if (found != NULL)
        *found = v != NULL;
    if (v == NULL)
        return found != NULL
                   ? NIB_OK
                   : nib__fail(err, NIB_BAD_INPUT, "%s: key \"%s\" is missing", g->name, key);
    if (v->is_array == array && is_kind((nib_gguf_kind)v->kind, wanted))
        return NIB_OK;
    const char *words = wanted == NIB_GGUF_I64   ? "whole number"
                        : wanted == NIB_GGUF_F64 ? "number"
                                                 : nib__gguf_kind_name(wanted);
    return nib__fail(err, NIB_BAD_INPUT, "%s: key \"%s\" is %s%s; %s%s%s is expected", g->name, key,
                     v->is_array ? "an array of " : "", nib__gguf_kind_name((nib_gguf_kind)v->kind),
                     array ? "an array of " : "a ", words, array ? "s" : "");
}

nib_status nib__gguf_int(int64_t *out, bool *found, const nib_gguf *g, const char *key,
                         nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(find_value(&v, found, g, key, NIB_GGUF_I64, false, err));
    if (v != NULL)
        *out = whole_at(v->at, (nib_gguf_kind)v->kind);
    return NIB_OK;
}

nib_status nib__gguf_double(double *out, bool *found, const nib_gguf *g, const char *key,
                            nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(find_value(&v, found, g, key, NIB_GGUF_F64, false, err));
    if (v != NULL)
        *out = number_at(v->at, (nib_gguf_kind)v->kind);
    return NIB_OK;
}

nib_status nib__gguf_bool(bool *out, bool *found, const nib_gguf *g, const char *key, nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(find_value(&v, found, g, key, NIB_GGUF_BOOL, false, err));
    if (v != NULL)
        *out = v->at[0] != 0;
    return NIB_OK;
}

nib_status nib__gguf_string(const char **out, size_t *size, bool *found, const nib_gguf *g,
                            const char *key, nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(find_value(&v, found, g, key, NIB_GGUF_STRING, false, err));
    if (v != NULL) {
        *size = (size_t)little_endian(v->at, 8);
        *out = (const char *)v->at + 8;
    }
    return NIB_OK;
}

/* ---- arrays ---- */

nib_status nib__gguf_array_of(nib_gguf_array *out, bool *found, const nib_gguf *g, const char *key,
                              nib_gguf_kind wanted, nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(find_value(&v, found, g, key, wanted, true, err));
    if (v != NULL)
        *out = (nib_gguf_array){.at = v->at, .count = v->count, .left = v->count, .kind = v->kind};
    return NIB_OK;
}

bool nib__gguf_next_string(nib_gguf_array *a, const char **out, size_t *size)
{
    if (a->left == 0)
        return false;
    *size = (size_t)little_endian(a->at, 8);
    *out = (const char *)a->at + 8;
    a->at += 8 + *size;
    a->left--;
    return true;
}

/* Steps to the next element and returns it; NULL past the last. */
static const uint8_t *next_element(nib_gguf_array *a)
{
    const uint8_t *at = a->at;
    if (a->left == 0)
        return NULL;
    a->at += kinds[a->kind].bytes;
    a->left--;
    return at;
}

bool nib__gguf_next_int(nib_gguf_array *a, int64_t *out)
{
    const uint8_t *at = next_element(a);
    if (at != NULL)
        *out = a->kind == NIB_GGUF_BOOL ? at[0] : whole_at(at, (nib_gguf_kind)a->kind);
    return at != NULL;
}

bool nib__gguf_next_double(nib_gguf_array *a, double *out)
{
    const uint8_t *at = next_element(a);
    if (at != NULL)
        *out = number_at(at, (nib_gguf_kind)a->kind);
    return at != NULL;
}
