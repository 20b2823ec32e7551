/* SPDX-License-Identifier: Apache-2.0
 *
 * Typed look-ups in the key/values of a GGUF file. The parser has checked that every value lies
 * within the file; here kinds and ranges are checked.
 */
#include "gguf.h"

#include <inttypes.h>

const nib_gguf_value *nib__gguf_find(const nib_gguf *g, const char *key)
{
    if (g->count == 0)
        return NULL;
    const size_t i = nib__name_index_find(&g->by_key, (const void *const *)g->values, key);
    return i == SIZE_MAX ? NULL : g->values[i];
}

static uint64_t bits_at(const uint8_t *at, int bytes)
{
    uint64_t bits = 0;
    while (bytes-- > 0)
        bits = bits << 8 | at[bytes];
    return bits;
}

/* ---- one element ---- */

static bool is_whole(nib_gguf_kind kind)
{
    return kind != NIB_GGUF_F32 && kind != NIB_GGUF_F64 && kind != NIB_GGUF_BOOL &&
           kind != NIB_GGUF_STRING;
}

static bool is_number(nib_gguf_kind kind)
{
    return is_whole(kind) || kind == NIB_GGUF_F32 || kind == NIB_GGUF_F64;
}

/* U64 above the greatest int64_t becomes that: whoever asks checks its own, lower limit. */
static int64_t whole_at(const uint8_t *at, nib_gguf_kind kind)
{
    switch (kind) {
    case NIB_GGUF_U8: return at[0];
    case NIB_GGUF_I8: return (int8_t)at[0];
    case NIB_GGUF_U16: return (int64_t)bits_at(at, 2);
    case NIB_GGUF_I16: return (int16_t)bits_at(at, 2);
    case NIB_GGUF_U32: return (int64_t)bits_at(at, 4);
    case NIB_GGUF_I32: return (int32_t)bits_at(at, 4);
    case NIB_GGUF_U64: {
        const uint64_t bits = bits_at(at, 8);
        return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
    }
    default: return (int64_t)bits_at(at, 8);
    }
}

static double number_at(const uint8_t *at, nib_gguf_kind kind)
{
    if (kind == NIB_GGUF_F32) {
        const uint32_t bits = (uint32_t)bits_at(at, 4);
        float value;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    if (kind == NIB_GGUF_F64) {
        const uint64_t bits = bits_at(at, 8);
        double value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    return (double)whole_at(at, kind);
}

static bool fits(nib_gguf_kind kind, nib_gguf_kind wanted)
{
    return wanted == NIB_GGUF_I64   ? is_whole(kind)
           : wanted == NIB_GGUF_F64 ? is_number(kind)
                                    : kind == wanted;
}

/* ---- look-ups ---- */

/* *out = NULL: there is none, which is allowed. */
static nib_status look_up(const nib_gguf_value **out, bool *found, const nib_gguf *g,
                          const char *key, nib_gguf_kind wanted, bool array, nib_err *err)
{
    const nib_gguf_value *v = *out = nib__gguf_find(g, key);
    if (found != NULL)
        *found = v != NULL;
    if (v == NULL)
        return found != NULL
                   ? NIB_OK
                   : nib__fail(err, NIB_BAD_INPUT, "%s: key \"%s\" is missing", g->name, key);
    if (v->is_array == array && fits((nib_gguf_kind)v->kind, wanted))
        return NIB_OK;
    const char *words = wanted == NIB_GGUF_I64   ? "whole number"
                        : wanted == NIB_GGUF_F64 ? "number"
                                                 : nib__gguf_kind_name(wanted);
    return nib__fail(err, NIB_BAD_INPUT, "%s: key \"%s\" is %s%s; %s%s%s is wanted", g->name, key,
                     v->is_array ? "an array of " : "", nib__gguf_kind_name((nib_gguf_kind)v->kind),
                     array ? "an array of " : "a ", words, array ? "s" : "");
}

nib_status nib__gguf_int(int64_t *out, bool *found, const nib_gguf *g, const char *key,
                         nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(look_up(&v, found, g, key, NIB_GGUF_I64, false, err));
    if (v != NULL)
        *out = whole_at(v->at, (nib_gguf_kind)v->kind);
    return NIB_OK;
}

nib_status nib__gguf_double(double *out, bool *found, const nib_gguf *g, const char *key,
                            nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(look_up(&v, found, g, key, NIB_GGUF_F64, false, err));
    if (v != NULL)
        *out = number_at(v->at, (nib_gguf_kind)v->kind);
    return NIB_OK;
}

nib_status nib__gguf_bool(bool *out, bool *found, const nib_gguf *g, const char *key, nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(look_up(&v, found, g, key, NIB_GGUF_BOOL, false, err));
    if (v != NULL)
        *out = v->at[0] != 0;
    return NIB_OK;
}

nib_status nib__gguf_string(const char **out, size_t *size, bool *found, const nib_gguf *g,
                            const char *key, nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(look_up(&v, found, g, key, NIB_GGUF_STRING, false, err));
    if (v != NULL) {
        *size = (size_t)bits_at(v->at, 8);
        *out = (const char *)v->at + 8;
    }
    return NIB_OK;
}

/* ---- arrays ---- */

nib_status nib__gguf_array_of(nib_gguf_array *out, bool *found, const nib_gguf *g, const char *key,
                              nib_gguf_kind wanted, nib_err *err)
{
    const nib_gguf_value *v;
    NIB_TRY(look_up(&v, found, g, key, wanted, true, err));
    if (v != NULL)
        *out = (nib_gguf_array){.at = v->at, .count = v->count, .left = v->count, .kind = v->kind};
    return NIB_OK;
}

static int element_bytes(nib_gguf_kind kind)
{
    static const uint8_t bytes[NIB_GGUF_KIND_COUNT] = {
        [NIB_GGUF_U8] = 1,  [NIB_GGUF_I8] = 1,  [NIB_GGUF_U16] = 2, [NIB_GGUF_I16] = 2,
        [NIB_GGUF_U32] = 4, [NIB_GGUF_I32] = 4, [NIB_GGUF_F32] = 4, [NIB_GGUF_BOOL] = 1,
        [NIB_GGUF_U64] = 8, [NIB_GGUF_I64] = 8, [NIB_GGUF_F64] = 8};
    return bytes[kind];
}

bool nib__gguf_next_string(nib_gguf_array *a, const char **out, size_t *size)
{
    if (a->left == 0)
        return false;
    *size = (size_t)bits_at(a->at, 8);
    *out = (const char *)a->at + 8;
    a->at += 8 + *size;
    a->left--;
    return true;
}

/* The element that was next; NULL past the last. */
static const uint8_t *step(nib_gguf_array *a)
{
    const uint8_t *at = a->at;
    if (a->left == 0)
        return NULL;
    a->at += element_bytes((nib_gguf_kind)a->kind);
    a->left--;
    return at;
}

bool nib__gguf_next_int(nib_gguf_array *a, int64_t *out)
{
    const uint8_t *at = step(a);
    if (at != NULL)
        *out = a->kind == NIB_GGUF_BOOL ? at[0] : whole_at(at, (nib_gguf_kind)a->kind);
    return at != NULL;
}

bool nib__gguf_next_double(nib_gguf_array *a, double *out)
{
    const uint8_t *at = step(a);
    if (at != NULL)
        *out = number_at(at, (nib_gguf_kind)a->kind);
    return at != NULL;
}
