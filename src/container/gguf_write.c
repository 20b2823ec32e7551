/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything is little-endian; nothing before the data is aligned.
 */
#include "gguf_write.h"

static void put_bytes(nib_text *out, uint64_t value, int size)
{
    char bytes[8];
    for (int i = 0; i < size; i++)
        bytes[i] = (char)(value >> 8 * i & 0xff);
    nib__text_put(out, bytes, (size_t)size);
}

static void put_string(nib_text *out, const char *text, size_t size)
{
    put_bytes(out, size, 8);
    nib__text_put(out, text, size);
}

static void put_key(nib_gguf_head *head, const char *key, nib_gguf_kind kind)
{
    put_string(&head->pairs, key, strlen(key));
    put_bytes(&head->pairs, (uint64_t)kind, 4);
    head->count++;
}

void nib__gguf_head_init(nib_gguf_head *head, const nib_allocator *a)
{
    nib__text_init(&head->pairs, a);
    head->count = 0;
}

void nib__gguf_head_free(nib_gguf_head *head) { nib__text_free(&head->pairs); }

/* ---- values ---- */

void nib__gguf_item_int(nib_gguf_head *head, nib_gguf_kind kind, int64_t value)
{
    static const uint8_t sizes[NIB_GGUF_KIND_COUNT] = {
        [NIB_GGUF_U8] = 1,  [NIB_GGUF_I8] = 1,  [NIB_GGUF_U16] = 2,
        [NIB_GGUF_I16] = 2, [NIB_GGUF_U32] = 4, [NIB_GGUF_I32] = 4,
        [NIB_GGUF_U64] = 8, [NIB_GGUF_I64] = 8, [NIB_GGUF_BOOL] = 1,
    };
    put_bytes(&head->pairs, (uint64_t)value, sizes[kind]);
}

void nib__gguf_item_double(nib_gguf_head *head, nib_gguf_kind kind, double value)
{
    const float single = (float)value;
    uint64_t bits = 0;
    if (kind == NIB_GGUF_F64) {
        memcpy(&bits, &value, sizeof value);
    } else {
        uint32_t low;
        memcpy(&low, &single, sizeof low);
        bits = low;
    }
    put_bytes(&head->pairs, bits, kind == NIB_GGUF_F64 ? 8 : 4);
}

void nib__gguf_item_string(nib_gguf_head *head, const char *text, size_t size)
{
    put_string(&head->pairs, text, size);
}

void nib__gguf_put_int(nib_gguf_head *head, const char *key, nib_gguf_kind kind, int64_t value)
{
    put_key(head, key, kind);
    nib__gguf_item_int(head, kind, value);
}

void nib__gguf_put_double(nib_gguf_head *head, const char *key, nib_gguf_kind kind, double value)
{
    put_key(head, key, kind);
    nib__gguf_item_double(head, kind, value);
}

void nib__gguf_put_bool(nib_gguf_head *head, const char *key, bool value)
{
    put_key(head, key, NIB_GGUF_BOOL);
    put_bytes(&head->pairs, value, 1);
}

void nib__gguf_put_string(nib_gguf_head *head, const char *key, const char *text, size_t size)
{
    put_key(head, key, NIB_GGUF_STRING);
    put_string(&head->pairs, text, size);
}

void nib__gguf_put_array(nib_gguf_head *head, const char *key, nib_gguf_kind kind, uint64_t count)
{
    put_key(head, key, NIB_GGUF_ARRAY);
    put_bytes(&head->pairs, (uint64_t)kind, 4);
    put_bytes(&head->pairs, count, 8);
}

/* ---- the file ---- */

bool nib__gguf_holds(nib_type type) { return nib__gguf_type_number(type) >= 0; }

void nib__gguf_begin(nib_text *out, const nib_gguf_head *head, uint64_t tensors)
{
    enum { VERSION = 3 };
    nib__text_str(out, "GGUF");
    put_bytes(out, VERSION, 4);
    put_bytes(out, tensors, 8);
    put_bytes(out, head->count, 8);
    nib__text_put(out, head->pairs.at, head->pairs.size);
    out->failed = out->failed || head->pairs.failed;
}

void nib__gguf_entry(nib_text *out, const char *name, nib_type type, const int64_t *shape, int rank,
                     uint64_t offset)
{
    put_string(out, name, strlen(name));
    put_bytes(out, (uint64_t)rank, 4);
    for (int i = rank; i-- > 0;) /* fastest first */
        put_bytes(out, (uint64_t)shape[i], 8);
    put_bytes(out, (uint64_t)nib__gguf_type_number(type), 4);
    put_bytes(out, offset, 8);
}
