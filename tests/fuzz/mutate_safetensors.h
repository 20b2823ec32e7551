/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutates a safetensors file as structure: dtypes, shapes, offsets, names, duplicates and metadata
 * of the header; the header's length is always right.
 */
#ifndef NIB_TESTS_MUTATE_SAFETENSORS_H
#define NIB_TESTS_MUTATE_SAFETENSORS_H

#include "json.h"
#include "mutate.h"
#include "type.h"

#include <inttypes.h>
#include <stdio.h>

enum { ST_TENSORS = 64, ST_METAS = 32, ST_RANK = 9 };

typedef struct st_tensor {
    piece name, dtype; /* raw JSON text, without quotes */
    uint64_t shape[ST_RANK];
    int rank;
    uint64_t begin, end;
} st_tensor;

typedef struct st_file {
    st_tensor tensors[ST_TENSORS];
    size_t count;
    piece keys[ST_METAS], values[ST_METAS];
    size_t metas;
    piece header, data;
} st_file;

static inline piece st_token(const nib_json *json)
{
    return (piece){(const uint8_t *)json->token, json->token_size};
}

static inline uint64_t st_number(const nib_json *json)
{
    char text[32] = "";
    memcpy(text, json->token, smaller(json->token_size, sizeof text - 1));
    return strtoull(text, NULL, 10);
}

static inline void st_read_tensor(nib_json *json, st_tensor *t)
{
    if (nib__json_next(json) != NIB_JSON_OBJECT)
        return;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const bool is_shape = nib__json_is(json, "shape");
        const nib_json_event event = nib__json_next(json);
        if (event == NIB_JSON_STRING) {
            t->dtype = st_token(json);
            continue;
        }
        if (event != NIB_JSON_ARRAY)
            continue;
        for (int i = 0; nib__json_next(json) == NIB_JSON_NUMBER; i++)
            if (is_shape && t->rank < ST_RANK)
                t->shape[t->rank++] = st_number(json);
            else if (!is_shape)
                *(i == 0 ? &t->begin : &t->end) = st_number(json);
    }
}

/* False: the header is not JSON. */
static inline bool st_read(st_file *f, const uint8_t *data, size_t size)
{
    nib_json json;
    *f = (st_file){.count = 0};
    if (size < 10 || number_at(data, 8) > size - 8)
        return false;
    f->header = (piece){data + 8, (size_t)number_at(data, 8)};
    f->data = (piece){f->header.at + f->header.size, size - 8 - f->header.size};
    nib__json_init(&json, "x", (const char *)f->header.at, f->header.size, NULL);
    if (nib__json_next(&json) != NIB_JSON_OBJECT)
        return false;
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        if (!nib__json_is(&json, "__metadata__")) {
            st_tensor *t = &f->tensors[f->count];
            *t = (st_tensor){.name = st_token(&json)};
            st_read_tensor(&json, t);
            f->count += f->count + 1 < ST_TENSORS;
        } else if (nib__json_next(&json) == NIB_JSON_OBJECT) {
            while (nib__json_next(&json) == NIB_JSON_KEY) {
                f->keys[f->metas] = st_token(&json);
                nib__json_next(&json);
                f->values[f->metas] = st_token(&json);
                f->metas += f->metas + 1 < ST_METAS;
            }
        }
    }
    return json.event == NIB_JSON_OBJECT_END;
}

static inline void st_edit_tensor(mutant *m, st_file *f, st_tensor *t)
{
    static const char *const types[] = {"BOOL", "U8",   "I8",      "I16",     "I32",     "I64",
                                        "F16",  "BF16", "F32",     "F64",     "U16",     "U32",
                                        "F4",   "C64",  "F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3"};
    const size_t d = roll(m, ST_RANK);
    switch (roll(m, 9)) {
    case 0: t->dtype = piece_of(types[roll(m, COUNT(types))]); break;
    case 1: t->shape[d % (size_t)(t->rank + (t->rank == 0))] = roll_number(m, t->shape[0]); break;
    case 2:
        if (t->rank < ST_RANK)
            t->shape[t->rank++] = roll(m, 3);
        break;
    case 3: t->rank -= t->rank > 0; break;
    case 4: t->name = roll_name(m, t->name); break;
    case 5: t->name = f->tensors[roll(m, f->count)].name; break;
    case 6: t->begin = roll_number(m, t->begin); break;
    case 7: t->end = roll_number(m, t->end); break;
    default: /* swaps two dimensions */
        if (t->rank > 1) {
            const uint64_t first = t->shape[0];
            t->shape[0] = t->shape[1];
            t->shape[1] = first;
        }
    }
}

static inline void st_edit(mutant *m, st_file *f)
{
    const size_t i = f->count > 0 ? roll(m, f->count) : 0;
    const size_t k = f->metas > 0 ? roll(m, f->metas) : 0;
    switch (roll(m, 12)) {
    case 0: /* a tensor twice, or under another name */
        if (f->count > 0 && f->count + 1 < ST_TENSORS) {
            st_tensor *t = &f->tensors[f->count++];
            *t = f->tensors[i];
            if (roll(m, 4) > 0)
                t->name = roll_name(m, t->name);
        }
        break;
    case 1:
        if (f->count > 0)
            f->tensors[i] = f->tensors[--f->count];
        break;
    case 2:
        f->values[k] = f->metas > 0 ? scramble(m, f->values[k]) : piece_of("pt");
        f->keys[k] = f->metas > 0 ? f->keys[k] : piece_of("format");
        f->metas += f->metas == 0;
        break;
    case 3:
        if (f->metas > 0 && f->metas + 1 < ST_METAS && f->count > 0) { /* an alias */
            f->keys[f->metas] = roll_name(m, f->tensors[i].name);
            f->values[f->metas++] = f->tensors[roll(m, f->count)].name;
        }
        break;
    case 4:
        if (f->metas > 0) {
            f->keys[k] = f->keys[--f->metas];
            f->values[k] = f->values[f->metas];
        }
        break;
    case 5: f->data = scramble(m, f->data); break;
    default:
        if (f->count > 0)
            st_edit_tensor(m, f, &f->tensors[i]);
    }
}

/* Bytes that dtype and shape need; those of the offsets if they need no number. */
static inline uint64_t st_bytes(const st_tensor *t)
{
    int64_t shape[ST_RANK];
    uint64_t bytes = 0;
    const nib_type type = nib__type_find((const char *)t->dtype.at, t->dtype.size);
    for (int i = 0; i < t->rank; i++)
        shape[i] = (int64_t)t->shape[i];
    return type != NIB_TYPE_NONE && nib__tensor_bytes(&bytes, type, shape, t->rank)
               ? bytes
               : t->end - t->begin;
}

static inline void st_put_tensor(mutant *m, const st_tensor *t, uint64_t begin, uint64_t end)
{
    char text[128];
    put_string(m, "\"");
    put_piece(m, t->name.at, t->name.size);
    put_string(m, "\":{\"dtype\":\"");
    put_piece(m, t->dtype.at, t->dtype.size);
    put_string(m, "\",\"shape\":[");
    for (int i = 0; i < t->rank; i++) {
        snprintf(text, sizeof text, "%s%" PRIu64, i > 0 ? "," : "", t->shape[i]);
        put_string(m, text);
    }
    snprintf(text, sizeof text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
    put_string(m, text);
}

static inline void st_put_metas(mutant *m, const st_file *f)
{
    put_string(m, "\"__metadata__\":{");
    for (size_t i = 0; i < f->metas; i++) {
        put_string(m, i > 0 ? ",\"" : "\"");
        put_piece(m, f->keys[i].at, f->keys[i].size);
        put_string(m, "\":\"");
        put_piece(m, f->values[i].at, f->values[i].size);
        put_string(m, "\"");
    }
    put_string(m, "}");
}

/* fitting: tensors lie one after the other, each of the bytes that it needs. */
static inline void st_write(mutant *m, const st_file *f, bool fitting)
{
    uint64_t at = 0;
    put_number(m, 0, 8);
    put_string(m, "{");
    if (f->metas > 0)
        st_put_metas(m, f);
    for (size_t i = 0; i < f->count; i++) {
        const st_tensor *t = &f->tensors[i];
        const uint64_t bytes = st_bytes(t);
        put_string(m, i > 0 || f->metas > 0 ? "," : "");
        st_put_tensor(m, t, fitting ? at : t->begin, fitting ? at + bytes : t->end);
        at += bytes;
    }
    put_string(m, "}");
    const size_t header = m->size - 8;
    for (int i = 0; i < 8 && m->size >= 8; i++)
        m->out[i] = (uint8_t)((uint64_t)header >> 8 * i);
    for (size_t i = 0; fitting && i < f->count; i++) {
        const st_tensor *t = &f->tensors[i];
        const uint64_t bytes = st_bytes(t);
        const size_t from = smaller(t->begin, f->data.size);
        const size_t kept = smaller(bytes, f->data.size - from);
        put_piece(m, f->data.at + from, kept);
        if (bytes - kept > m->most)
            m->full = true;
        else
            put_zeros(m, (size_t)bytes - kept);
    }
    if (!fitting)
        put_piece(m, f->data.at, f->data.size);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    mutant m;
    st_file file;
    mutant_init(&m, most, seed);
    uint8_t *const edits = m.edits;
    const bool whole = st_read(&file, data, size);
    if (roll(&m, 8) == 0) {                  /* any byte */
    } else if (!whole || roll(&m, 8) == 0) { /* any byte of the header, its length made right */
        const piece header = size > 8
                                 ? scramble(&m, whole ? file.header : (piece){data + 8, size - 8})
                                 : piece_of("{}");
        put_number(&m, header.size, 8);
        put_piece(&m, header.at, header.size);
        put_piece(&m, file.data.at, file.data.size);
    } else {
        for (size_t left = 1 + roll(&m, 3); left > 0; left--)
            st_edit(&m, &file);
        st_write(&m, &file, roll(&m, 6) > 0);
    }
    return mutant_done(&m, data, size, most, edits);
}

#endif
