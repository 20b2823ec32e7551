/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing GGUF blocks: the bytes equal those of PyPI's gguf (tests/golden/gguf_blocks.gguf) and of
 * a model quantized by llama.cpp (with NIBBLE_TEST_DATA), and written codes are read back
 * unchanged.
 */
#include "file.h"
#include "gguf.h"
#include "gguf_blocks.h"
#include "safetensors.h"
#include "skipping.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef struct opened {
    nib_map map;
    nib_container contents;
} opened;

static opened open_file(nib_arena *arena, const char *path, nib_parse *parse)
{
    opened o = {.map = {0}};
    nib_err err = {.status = NIB_OK};
    if (nib__map_open(&o.map, path, &err) != NIB_OK ||
        parse(&o.contents, o.map.at, o.map.size, path, 0, arena, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return o;
}

static const nib_tensor *find(const opened *o, const char *name)
{
    for (size_t i = 0; i < o->contents.count; i++)
        if (strcmp(o->contents.tensors[i]->name, name) == 0)
            return o->contents.tensors[i];
    fail_msg("there is no tensor %s", name);
    return NULL;
}

/* Quantizes row `from` of the floats and compares it with row `row` of the blocks. */
static void check_row(const nib_tensor *floats, int64_t from, const nib_tensor *blocks, int64_t row)
{
    const int64_t k = floats->shape[1];
    const size_t size =
        (size_t)(k / nib__type_block_elements(blocks->type) * nib__type_block_bytes(blocks->type));
    float *x = malloc((size_t)k * sizeof *x);
    uint8_t *out = malloc(size);
    assert_non_null(x);
    assert_non_null(out);
    memcpy(x, floats->data + (size_t)(from * k) * sizeof *x, (size_t)k * sizeof *x);
    assert_true(nib__blocks_quantize(out, blocks->type, x, k));
    const uint8_t *expected = blocks->data + (size_t)row * size;
    for (size_t i = 0; i < size; i++)
        if (out[i] != expected[i])
            fail_msg("%s, row %d, byte %zu: 0x%02x instead of 0x%02x", blocks->name, (int)row, i,
                     out[i], expected[i]);
    free(x);
    free(out);
}

static void test_golden(void **state)
{
    static const char *const names[] = {"Q8_0", "Q4_0", "Q4_1", "MXFP4"};
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    opened o = open_file(&arena, "tests/golden/gguf_blocks.gguf", nib__gguf_parse);
    const nib_tensor *x = find(&o, "x");
    assert_true(x->shape[0] > 30);
    for (size_t i = 0; i < COUNT(names); i++) {
        const nib_tensor *blocks = find(&o, names[i]);
        assert_string_equal(nib__type_stored_name(blocks->type), names[i]);
        for (int64_t row = 0; row < x->shape[0]; row++)
            check_row(x, row, blocks, row);
    }
    nib__map_close(&o.map);
    nib__arena_free(&arena);
}

/* llama.cpp's row order of q and k for rope: rows of a head's two halves alternate. */
static int64_t paired_row(int64_t row, int64_t heads, int64_t rows)
{
    const int64_t dim = rows / heads, head = row / dim, i = row % dim;
    return head * dim + i % 2 * (dim / 2) + i / 2;
}

/* TinyStories-656K: llama.cpp's Q8_0 against quantizing the F32 weights of the same model. */
static void test_llama_cpp(void **state)
{
    static const struct {
        const char *gguf, *ours;
        int64_t heads; /* of a weight with paired rows; 0: rows in order */
    } pairs[] = {
        {"token_embd.weight", "lm_head.weight", 0},
        {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", 8},
        {"blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight", 4},
        {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight", 0},
        {"blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight", 0},
        {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight", 0},
        {"blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight", 0},
        {"blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight", 0},
    };
    const char *data = test_data();
    const nib_allocator a = nib__allocator_default();
    char path[1024];
    nib_arena arena;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    snprintf(path, sizeof path, "%s/weights/TinyStories-656K/TinyStories-656K-Q8_0.gguf", data);
    opened blocks = open_file(&arena, path, nib__gguf_parse);
    snprintf(path, sizeof path, "%s/weights/TinyStories-656K/hf-f32/model.safetensors", data);
    opened floats = open_file(&arena, path, nib__safetensors_parse);
    for (size_t i = 0; i < COUNT(pairs); i++) {
        const nib_tensor *to = find(&blocks, pairs[i].gguf), *from = find(&floats, pairs[i].ours);
        assert_int_equal(to->type, NIB_TYPE_Q8_0);
        assert_int_equal(to->shape[0], from->shape[0]);
        assert_int_equal(to->shape[1], from->shape[1]);
        for (int64_t row = 0; row < to->shape[0]; row++)
            check_row(from,
                      pairs[i].heads == 0 ? row : paired_row(row, pairs[i].heads, from->shape[0]),
                      to, row);
    }
    nib__map_close(&blocks.map);
    nib__map_close(&floats.map);
    nib__arena_free(&arena);
}

/* ---- from codes ---- */

static void test_put_codes_exactly(void **state)
{
    int8_t codes[32];
    uint8_t block[34];
    (void)state;
    for (int j = 0; j < 32; j++)
        codes[j] = (int8_t)(8 * j - 128);
    assert_true(nib__block_put(block, NIB_TYPE_Q8_0, codes, 0.5f, 0));
    assert_int_equal(block[0] | block[1] << 8, 0x3800);
    assert_memory_equal(block + 2, codes, 32);
    for (int j = 0; j < 32; j++)
        codes[j] = (int8_t)(j % 16 - 8);
    assert_true(nib__block_put(block, NIB_TYPE_Q4_0, codes, -0.25f, 0));
    assert_int_equal(block[0] | block[1] << 8, 0xb400);
    for (int j = 0; j < 16; j++)
        assert_int_equal(block[2 + j], j | j << 4); /* elements j and j + 16 */
    assert_true(nib__block_put(block, NIB_TYPE_Q4_1, codes, 2, -16));
    assert_int_equal(block[2] | block[3] << 8, 0xcc00);
    assert_int_equal(block[4 + 15], 0xff);
    for (int j = 0; j < 32; j++)
        codes[j] = (int8_t)(j % 16);
    assert_true(nib__block_put(block, NIB_TYPE_MXFP4, codes, 0.5f, 0));
    assert_int_equal(block[0], 126);
    assert_int_equal(block[1 + 3], 0x33);
}

/* Values that the block cannot hold are rounded, and the writer reports it. */
static void test_put_rounded(void **state)
{
    const int8_t codes[32] = {0};
    uint8_t block[34];
    (void)state;
    assert_false(nib__block_put(block, NIB_TYPE_Q8_0, codes, 0.1f, 0));
    assert_int_equal(block[0] | block[1] << 8, nib__f32_to_f16(0.1f));
    assert_false(nib__block_put(block, NIB_TYPE_Q4_0, codes, 1e-9f, 0));
    assert_false(nib__block_put(block, NIB_TYPE_Q4_0, codes, 1e6f, 0));
    assert_false(nib__block_put(block, NIB_TYPE_Q4_1, codes, 1, 0.1f));
    assert_false(nib__block_put(block, NIB_TYPE_MXFP4, codes, 0.75f, 0));
    assert_false(nib__block_put(block, NIB_TYPE_MXFP4, codes, -1, 0));
    assert_false(nib__block_put(block, NIB_TYPE_MXFP4, codes, 0, 0));
    assert_true(nib__block_put(block, NIB_TYPE_MXFP4, codes, 0x1p-127f, 0));
    assert_int_equal(block[0], 0);
    assert_true(nib__block_put(block, NIB_TYPE_MXFP4, codes, 0x1p127f, 0));
    assert_int_equal(block[0], 254);
}

static void test_refuses_too_large_values(void **state)
{
    float x[32] = {0};
    uint8_t block[34];
    (void)state;
    x[3] = 1e7f;
    assert_false(nib__blocks_quantize(block, NIB_TYPE_Q8_0, x, 32));
    assert_false(nib__blocks_quantize(block, NIB_TYPE_Q4_0, x, 32));
    assert_false(nib__blocks_quantize(block, NIB_TYPE_Q4_1, x, 32));
    assert_true(nib__blocks_quantize(block, NIB_TYPE_MXFP4, x, 32));
    x[3] = 3e38f;
    assert_true(nib__blocks_quantize(block, NIB_TYPE_MXFP4, x, 32));
    x[3] = 0x1p-149f;
    assert_true(nib__blocks_quantize(block, NIB_TYPE_MXFP4, x, 32));
    assert_int_equal(block[0], 0);
    assert_true(nib__blocks_quantize(block, NIB_TYPE_Q4_1, x, 32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_llama_cpp),
        cmocka_unit_test(test_put_codes_exactly),
        cmocka_unit_test(test_put_rounded),
        cmocka_unit_test(test_refuses_too_large_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
