/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a GGUF file. If it opens, all its weights are read, its keys are read as every type,
 * and a config is made from them.
 */
#include "mutate_gguf.h"
#include "use_checkpoint.h"

#include "config_gguf.h"
#include "gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned seen; /* keeps reads from being optimized out */

static void use_array(nib_gguf_array array)
{
    const char *text;
    size_t size;
    int64_t whole;
    double number;
    uint64_t count = 0;
    if (array.kind == NIB_GGUF_STRING) {
        for (; nib__gguf_next_string(&array, &text, &size); count++)
            seen += size > 0 ? (unsigned)text[size - 1] : 0;
    } else if (array.kind == NIB_GGUF_F32 || array.kind == NIB_GGUF_F64) {
        for (; nib__gguf_next_double(&array, &number); count++)
            seen += number > 0;
    } else {
        for (; nib__gguf_next_int(&array, &whole); count++)
            seen += (unsigned)whole;
    }
    require(count == array.count && array.left == 0);
}

static void use_key(const nib_gguf *g, const nib_gguf_value *v)
{
    static const nib_gguf_kind wanted[] = {NIB_GGUF_STRING, NIB_GGUF_I64, NIB_GGUF_F64,
                                           NIB_GGUF_BOOL};
    const char *text;
    size_t size;
    int64_t whole;
    double number;
    bool flag, found;
    nib_err err;
    nib_gguf_array array;
    require(nib__gguf_find(g, v->key) == v);
    int fits = nib__gguf_int(&whole, &found, g, v->key, &err) == NIB_OK;
    fits += nib__gguf_double(&number, &found, g, v->key, &err) == NIB_OK;
    fits += nib__gguf_bool(&flag, &found, g, v->key, &err) == NIB_OK;
    if (nib__gguf_string(&text, &size, &found, g, v->key, &err) == NIB_OK) {
        fits++;
        seen += size > 0 ? (unsigned)text[size - 1] : 0;
    }
    for (size_t i = 0; i < COUNT(wanted); i++)
        if (nib__gguf_array_of(&array, &found, g, v->key, wanted[i], &err) == NIB_OK) {
            fits++;
            use_array(array);
        }
    require(fits > 0 && found);
}

static void use_config(const nib_checkpoint *cp, const nib_allocator *a)
{
    nib_config config;
    nib_arena arena;
    nib_err err = {NIB_OK, ""};
    nib__arena_init(&arena, a, 0);
    if (nib__config_gguf(&config, cp, &arena, NULL, &err) != NIB_OK)
        require(err.status != NIB_OK && err.text[0] != 0);
    else
        require(config.layers > 0 && config.heads % config.kv_heads == 0 &&
                config.head_dim % 2 == 0 && config.eos_count <= 3);
    nib__arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    if (size < 4 || memcmp(data, "GGUF", 4) != 0)
        return 0;
    nib_checkpoint *cp = open_bytes(data, size, &a);
    const nib_gguf *g = cp == NULL ? NULL : nib__checkpoint_gguf(cp);
    for (size_t i = 0; g != NULL && i < g->count; i++)
        use_key(g, g->values[i]);
    if (cp != NULL) {
        use_config(cp, &a);
        use_checkpoint(cp, &a);
    }
    nib__checkpoint_close(cp);
    return 0;
}
