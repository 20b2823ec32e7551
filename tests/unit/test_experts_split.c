/* SPDX-License-Identifier: Apache-2.0
 *
 * Stacks of experts (experts.c): in every form each expert's matrices have the values of the stack
 * under the names of the unfused form; what is contradictory is refused with its numbers.
 */
#include "experts.h"
#include "renames.h"
#include "writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#include "checkpoint_build.h"
#include "gguf_build.h"

#define LAYER "model.layers.0."
#define EXPERTS LAYER "mlp.experts."
#define TYPE(family) "{\"model_type\":\"" family "\"}"

enum { E = 3, I = 4, D = 6 }; /* experts, rows of gate and of up, inputs */

/* The value of a row of expert e; all are exact in bf16. Rows of up follow those of gate. */
static float up_value(int e, int row, int k) { return (float)(e * 2 * I * D + row * D + k); }
static float down_value(int e, int row, int k) { return -(float)(e * I * D + row * I + k); }
static float up_bias(int e, int row) { return 0.5F + (float)(e * 2 * I + row); }
static float down_bias(int e, int row) { return -0.5F - (float)(e * D + row); }

/* Where a stack stores row `row` of gate and up. */
static int place(int row, bool alternate) { return !alternate ? row : row % I * 2 + row / I; }

typedef struct stacks {
    float up[E * 2 * I * D], down[E * D * I], up_bias[E * 2 * I], down_bias[E * D];
    uint8_t raw_up[sizeof(float) * E * 2 * I * D], raw_down[sizeof(float) * E * D * I],
        raw_up_bias[sizeof(float) * E * 2 * I], raw_down_bias[sizeof(float) * E * D];
} stacks;

/* Fills the stacks, as rows or transposed, and stores them in a type. */
static void fill_stacks(stacks *s, bool across, bool alternate, nib_type type)
{
    for (int e = 0; e < E; e++) {
        for (int row = 0; row < 2 * I; row++) {
            const int at = place(row, alternate);
            s->up_bias[e * 2 * I + at] = up_bias(e, row);
            for (int k = 0; k < D; k++)
                s->up[e * 2 * I * D + (across ? k * 2 * I + at : at * D + k)] = up_value(e, row, k);
        }
        for (int row = 0; row < D; row++) {
            s->down_bias[e * D + row] = down_bias(e, row);
            for (int k = 0; k < I; k++)
                s->down[e * D * I + (across ? k * D + row : row * I + k)] = down_value(e, row, k);
        }
    }
    nib__from_f32(s->raw_up, type, s->up, COUNT(s->up));
    nib__from_f32(s->raw_down, type, s->down, COUNT(s->down));
    nib__from_f32(s->raw_up_bias, type, s->up_bias, COUNT(s->up_bias));
    nib__from_f32(s->raw_down_bias, type, s->down_bias, COUNT(s->down_bias));
}

/* Reads P.LEAF of expert e and compares it with rows first to first + n of gate and up, or with
 * down (first < 0). */
static void expect_expert(nib_checkpoint *cp, const char *prefix, int e, const char *leaf,
                          int first, bool bias, const char *dialect)
{
    const int n = first < 0 ? D : I, k = first < 0 ? I : D;
    char module[200];
    nib_err err;
    nib_weight w;
    float row[D], piece[1];
    snprintf(module, sizeof module, "%s%d.%s", prefix, e, leaf);
    if (nib__checkpoint_weight(&w, NULL, cp, module, NULL, &err) != NIB_OK)
        fail_msg("%s: %s", module, err.text);
    assert_string_equal(nib__checkpoint_dialect(cp, module), dialect);
    assert_int_equal(w.n, n);
    assert_int_equal(w.k, k);
    assert_int_equal(nib__weight_code_bytes(&w) * 8,
                     n * k * nib__type_bits(nib__float_type(w.scheme.code)));
    assert_int_equal(nib__weight_check_codes(&w, module, &err), NIB_OK);
    for (int i = 0; i < n; i++) {
        nib__weight_row(&w, i, row);
        for (int j = 0; j < k; j++) {
            const float wanted = first < 0 ? down_value(e, i, j) : up_value(e, first + i, j);
            assert_true(row[j] == wanted);
            uint8_t stored[4];
            nib__weight_floats(&w, i, j, 1, stored);
            nib__to_f32(piece, stored, nib__float_type(w.scheme.code), 1);
            assert_true(piece[0] == wanted);
        }
    }
    assert_int_equal(w.bias != NULL, bias);
    for (int i = 0; bias && i < n; i++) {
        float value;
        const size_t size = (size_t)nib__type_bits(w.bias_type) / 8;
        nib__to_f32(&value, (const uint8_t *)w.bias + (size_t)i * size, w.bias_type, 1);
        assert_true(value == (first < 0 ? down_bias(e, i) : up_bias(e, first + i)));
    }
}

static void expect_experts(nib_checkpoint *cp, const char *prefix, const char *gate, const char *up,
                           const char *down, bool bias, const char *dialect_up,
                           const char *dialect_down)
{
    for (int e = 0; e < E; e++) {
        expect_expert(cp, prefix, e, gate, 0, bias, dialect_up);
        expect_expert(cp, prefix, e, up, I, bias, dialect_up);
        expect_expert(cp, prefix, e, down, -1, bias, dialect_down);
    }
}

static void open_made(made *m, const char *config, const part *parts, size_t count)
{
    if (make_checkpoint(m, config, parts, count) != NIB_OK)
        fail_msg("%s", m->err.text);
}

/* ---- forms ---- */

/* transformers 5, Granite, and Mixtral in memory: rows as in a linear layer, read in place. */
static void test_rows(void **state)
{
    (void)state;
    static const struct {
        const char *config, *up, *down, *prefix, *gate, *up_leaf, *down_leaf;
    } cases[] = {
        {TYPE("qwen3_5_moe"), EXPERTS "gate_up_proj", EXPERTS "down_proj", EXPERTS, "gate_proj",
         "up_proj", "down_proj"},
        {"{}", EXPERTS "gate_up_proj.weight", EXPERTS "down_proj.weight", EXPERTS, "gate_proj",
         "up_proj", "down_proj"},
        {TYPE("granitemoe"), LAYER "block_sparse_moe.input_linear.weight",
         LAYER "block_sparse_moe.output_linear.weight", EXPERTS, "gate_proj", "up_proj",
         "down_proj"},
        {TYPE("mixtral"), EXPERTS "gate_up_proj", EXPERTS "down_proj",
         LAYER "block_sparse_moe.experts.", "w1", "w3", "w2"},
    };
    static stacks s;
    fill_stacks(&s, false, false, NIB_TYPE_BF16);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const part parts[] = {{cases[i].up, "BF16", 3, {E, 2 * I, D}, s.raw_up},
                              {cases[i].down, "BF16", 3, {E, D, I}, s.raw_down}};
        made m;
        open_made(&m, cases[i].config, parts, COUNT(parts));
        assert_int_equal(nib__checkpoint_module_count(m.cp), 3 * E);
        assert_int_equal(nib__checkpoint_fused(m.cp), 0); /* the writer leaves them apart */
        expect_experts(m.cp, cases[i].prefix, cases[i].gate, cases[i].up_leaf, cases[i].down_leaf,
                       false, "safetensors", "safetensors");
        check_memory_of_reading(m.dir);
        drop_checkpoint(&m);
    }
}

/* gpt-oss and Llama 4 store x @ W: read in place, each row across the columns of the file. */
static void test_transposed(void **state)
{
    (void)state;
    static const struct {
        const char *config, *prefix;
        bool alternate, bias;
    } cases[] = {
        {TYPE("gpt_oss"), EXPERTS, true, true},
        {TYPE("llama4"), LAYER "feed_forward.experts.", false, false},
        {"{\"model_type\":\"llama4\",\"text_config\":{\"x\":[{}],\"model_type\":\"llama4_text\"}}",
         LAYER "feed_forward.experts.", false, false},
    };
    static const char *const types[] = {"F32", "F16", "BF16"};
    static stacks s;
    for (size_t i = 0; i < COUNT(cases) * COUNT(types); i++) {
        const size_t c = i / COUNT(types);
        const char *type = types[i % COUNT(types)];
        char up[100], down[100];
        fill_stacks(&s, true, cases[c].alternate, nib__type_find(type, strlen(type)));
        snprintf(up, sizeof up, "%sgate_up_proj", cases[c].prefix);
        snprintf(down, sizeof down, "%sdown_proj", cases[c].prefix);
        const part parts[] = {
            {up, type, 3, {E, D, 2 * I}, s.raw_up},
            {down, type, 3, {E, I, D}, s.raw_down},
            {cases[c].bias ? EXPERTS "gate_up_proj_bias" : NULL,
             type,
             2,
             {E, 2 * I},
             s.raw_up_bias},
            {cases[c].bias ? EXPERTS "down_proj_bias" : NULL, type, 2, {E, D}, s.raw_down_bias},
        };
        made m;
        open_made(&m, cases[c].config, parts, COUNT(parts));
        expect_experts(m.cp, EXPERTS, "gate_proj", "up_proj", "down_proj", cases[c].bias, "stacked",
                       "stacked");
        drop_checkpoint(&m);
    }
}

/* gate_up_proj of one expert: its rows are ordered as in the family's stacks; codes whose rows
 * cannot take turns stay whole. */
static void test_fused_expert(void **state)
{
    (void)state;
    static stacks s;
    static const float scales[2 * I] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int alternate = 0; alternate < 2; alternate++) {
        const char *family = alternate ? TYPE("gpt_oss") : TYPE("qwen3_moe");
        const part one[] = {{EXPERTS "0.gate_up_proj.weight", "F32", 2, {2 * I, D}, s.raw_up}};
        made m;
        fill_stacks(&s, false, alternate, NIB_TYPE_F32);
        open_made(&m, family, one, 1);
        expect_expert(m.cp, EXPERTS, 0, "gate_proj", 0, false,
                      alternate ? "stacked" : "safetensors");
        expect_expert(m.cp, EXPERTS, 0, "up_proj", I, false, alternate ? "stacked" : "safetensors");
        drop_checkpoint(&m);
    }
    const part codes[] = {{EXPERTS "0.gate_up_proj.weight", "F8_E4M3", 2, {2 * I, D}, NULL},
                          {EXPERTS "0.gate_up_proj.weight_scale", "F32", 2, {2 * I, 1}, scales}};
    made m;
    nib_weight w;
    open_made(&m, "{\"model_type\":\"gpt_oss\",\"quantization_config\":{\"quant_method\":\"fp8\"}}",
              codes, COUNT(codes));
    refused(NIB_UNSUPPORTED,
            nib__checkpoint_weight(&w, NULL, m.cp, EXPERTS "0.up_proj", NULL, &m.err), &m.err);
    drop_checkpoint(&m);
}

/* A value that is not finite is found in the row that holds it. */
static void test_not_finite(void **state)
{
    (void)state;
    static stacks s;
    fill_stacks(&s, true, true, NIB_TYPE_F32);
    const float wrong = INFINITY;
    memcpy(s.raw_up + sizeof wrong * (1 * 2 * I * D + 5 * 2 * I + place(I + 2, true)), &wrong,
           sizeof wrong); /* expert 1, row 2 of up, column 5 */
    memcpy(s.raw_up_bias + sizeof wrong * (2 * 2 * I + place(1, true)), &wrong, sizeof wrong);
    const part parts[] = {{EXPERTS "gate_up_proj", "F32", 3, {E, D, 2 * I}, s.raw_up},
                          {EXPERTS "gate_up_proj_bias", "F32", 2, {E, 2 * I}, s.raw_up_bias}};
    made m;
    nib_weight w;
    open_made(&m, TYPE("gpt_oss"), parts, COUNT(parts));
    for (int e = 0; e < 2; e++)
        for (int up = 0; up < 2; up++) {
            char module[100];
            snprintf(module, sizeof module, EXPERTS "%d.%s", e, up ? "up_proj" : "gate_proj");
            assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, module, NULL, &m.err), NIB_OK);
            const nib_status status = nib__weight_check_codes(&w, module, &m.err);
            if (e == 1 && up == 1)
                refused(NIB_BAD_INPUT, status, &m.err);
            else
                assert_int_equal(status, NIB_OK);
        }
    refused(NIB_BAD_INPUT,
            nib__checkpoint_weight(&w, NULL, m.cp, EXPERTS "2.gate_proj", NULL, &m.err), &m.err);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, EXPERTS "2.up_proj", NULL, &m.err),
                     NIB_OK);
    drop_checkpoint(&m);
}

/* MXFP4: even rows are gate's, odd ones up's. Compared with a stack of the same bytes that has no
 * parts. A bad scale is found in the weight that it belongs to. */
static void test_blocks(void **state)
{
    (void)state;
    enum { K = 64 };
    static uint8_t codes[E * 2 * I * K / 2], scales[E * 2 * I * K / 32];
    static float bias[E * 2 * I];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i * 37 + 11);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(120 + i % 11);
    for (size_t i = 0; i < COUNT(bias); i++)
        bias[i] = (float)i;
    for (int bad = 0; bad < 2; bad++) {
        if (bad)
            scales[(2 * I + 7) * K / 32 + 1] = 0xff; /* expert 1: row 3 of up */
        const part parts[] = {
            {EXPERTS "gate_up_proj_blocks", "U8", 4, {E, 2 * I, K / 32, 16}, codes},
            {EXPERTS "gate_up_proj_scales", "U8", 3, {E, 2 * I, K / 32}, scales},
            {EXPERTS "gate_up_proj_bias", "F32", 2, {E, 2 * I}, bias},
            {"x.whole_blocks", "U8", 4, {E, 2 * I, K / 32, 16}, codes},
            {"x.whole_scales", "U8", 3, {E, 2 * I, K / 32}, scales},
        };
        made m;
        open_made(&m, NULL, parts, COUNT(parts));
        for (int e = 0; e < E; e++)
            for (int up = 0; up < 2; up++) {
                char module[100];
                float got[K], want[K];
                nib_weight w, whole;
                snprintf(module, sizeof module, EXPERTS "%d.%s", e, up ? "up_proj" : "gate_proj");
                const nib_status status =
                    nib__checkpoint_weight(&w, NULL, m.cp, module, NULL, &m.err);
                if (bad && e == 1 && up) {
                    refused(NIB_BAD_INPUT, status, &m.err);
                    continue;
                }
                assert_int_equal(status, NIB_OK);
                assert_string_equal(nib__checkpoint_dialect(m.cp, module), "mxfp4");
                assert_int_equal(w.n, I);
                if (bad)
                    continue;
                snprintf(module, sizeof module, "x.%d.whole", e);
                assert_int_equal(nib__checkpoint_weight(&whole, NULL, m.cp, module, NULL, &m.err),
                                 NIB_OK);
                assert_int_equal(whole.n, 2 * I);
                for (int i = 0; i < I; i++) {
                    nib__weight_row(&w, i, got);
                    nib__weight_row(&whole, 2 * i + up, want);
                    assert_memory_equal(got, want, sizeof got);
                    assert_true(((const float *)w.bias)[i] == bias[e * 2 * I + 2 * i + up]);
                }
            }
        check_memory_of_reading(m.dir);
        drop_checkpoint(&m);
    }
}

/* ---- experts stored one by one ---- */

/* Every dialect finds an expert like any other module, and leaves the router alone. */
static void test_one_by_one(void **state)
{
    (void)state;
#define GATE EXPERTS "2.gate_proj"
#define ROUTER                                                                                     \
    {                                                                                              \
        LAYER "mlp.gate.weight", "BF16", 2, {E, 32}, NULL                                          \
    }
    static const float one[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const struct {
        const char *dialect, *config;
        part parts[5];
        nib_code code;
    } cases[] = {
        {"gptq",
         "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,"
         "\"desc_act\":false,\"sym\":true}}",
         {{GATE ".qweight", "I32", 2, {4, 8}, NULL},
          {GATE ".qzeros", "I32", 2, {1, 1}, NULL},
          {GATE ".scales", "F16", 2, {1, 8}, NULL},
          ROUTER},
         NIB_CODE_I4},
        {"awq",
         "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,"
         "\"zero_point\":true,\"version\":\"gemm\",\"modules_to_not_convert\":[\"mlp.gate\"]}}",
         {{GATE ".qweight", "I32", 2, {32, 1}, NULL},
          {GATE ".qzeros", "I32", 2, {1, 1}, NULL},
          {GATE ".scales", "F16", 2, {1, 8}, NULL},
          ROUTER},
         NIB_CODE_I4},
        {"compressed-tensors",
         "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
         "\"nvfp4-pack-quantized\",\"ignore\":[\"re:.*mlp.gate$\"],\"config_groups\":{\"a\":{"
         "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"float\","
         "\"strategy\":\"tensor_group\",\"group_size\":16,\"symmetric\":true}}}}}",
         {{GATE ".weight_packed", "U8", 2, {8, 16}, NULL},
          {GATE ".weight_scale", "F8_E4M3", 2, {8, 2}, NULL},
          {GATE ".weight_global_scale", "F32", 1, {1}, one},
          ROUTER},
         NIB_CODE_NV4},
        {"fp8",
         "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
         "\"modules_to_not_convert\":[\"mlp.gate\"]}}",
         {{GATE ".weight", "F8_E4M3", 2, {8, 32}, NULL},
          {GATE ".weight_scale_inv", "F32", 2, {1, 1}, one},
          ROUTER},
         NIB_CODE_E4M3},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        made m;
        nib_weight w;
        bool kept;
        open_made(&m, cases[i].config, cases[i].parts, COUNT(cases[i].parts));
        const nib_quantization *coding = nib__checkpoint_coding(m.cp);
        if (nib__checkpoint_weight(&w, NULL, m.cp, GATE, NULL, &m.err) != NIB_OK)
            fail_msg("%s", m.err.text);
        assert_int_equal(w.scheme.code, cases[i].code);
        assert_string_equal(nib__checkpoint_dialect(m.cp, GATE), cases[i].dialect);
        assert_int_equal(nib__quantization_keeps(&kept, coding, GATE, &m.err), NIB_OK);
        assert_false(kept);
        assert_string_equal(nib__checkpoint_dialect(m.cp, LAYER "mlp.gate"), "safetensors");
        assert_int_equal(nib__quantization_keeps(&kept, coding, LAYER "mlp.gate", &m.err), NIB_OK);
        assert_int_equal(kept, i > 0); /* GPTQ's config does not say it */
        drop_checkpoint(&m);
    }
}

/* Lists of modules may have a family's own names, or that of a stack; a name does not match one
 * that only begins like it. */
static void test_lists(void **state)
{
    (void)state;
    static const struct {
        const char *family, *list, *module;
        bool kept;
    } cases[] = {
        {"gpt_oss", "model.layers.0.mlp.router", LAYER "mlp.gate", true},
        {"llama4", "re:.*router", LAYER "mlp.gate", true},
        {"llama4", "re:.*router", EXPERTS "0.gate_proj", false},
        {"llama4", LAYER "feed_forward.experts.0.up_proj", EXPERTS "0.up_proj", true},
        {"qwen3_moe", "re:.*router", LAYER "mlp.gate", false}, /* not its name for it */
        {"llama4", "re:.*feed_forward.experts.0.*", EXPERTS "0.gate_proj", true},
        {"granitemoe", LAYER "block_sparse_moe.router.layer", LAYER "mlp.gate", true},
        {"granitemoeshared", LAYER "shared_mlp.input_linear", LAYER "mlp.shared_expert.up_proj",
         true},
        {"gemma4_text", "model.language_model.layers.0.mlp.up_proj", LAYER "mlp.up_proj", true},
        {"llama4", "language_model." LAYER "feed_forward.router", LAYER "mlp.gate", true},
        {"llama4", "re:language_model.*gate", LAYER "mlp.gate", true},
        {"qwen3_moe", LAYER "mlp.gate", LAYER "mlp.gate", true},
        {"qwen3_moe", LAYER "mlp.gate", LAYER "mlp.gate_proj", false},
        {"qwen3_moe", LAYER "mlp.gate", EXPERTS "0.gate_proj", false},
        {"qwen3_moe", "re:.*gate_proj", LAYER "mlp.gate", false},
        {"qwen3_moe", EXPERTS "1.gate_proj", EXPERTS "11.gate_proj", false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const part one[] = {ROUTER};
        char config[600];
        made m;
        bool kept;
        snprintf(config, sizeof config,
                 "{\"model_type\":\"%s\",\"quantization_config\":{\"quant_method\":"
                 "\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"%s\"],"
                 "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,"
                 "\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":true}}}}}",
                 cases[i].family, cases[i].list);
        open_made(&m, config, one, 1);
        assert_int_equal(
            nib__quantization_keeps(&kept, nib__checkpoint_coding(m.cp), cases[i].module, &m.err),
            NIB_OK);
        if (kept != cases[i].kept)
            fail_msg("%s in \"%s\"", cases[i].module, cases[i].list);
        /* only the router is stored; an entry without it gets the note that it matches nothing */
        bool said = false;
        const nib_ledger *ledger = nib__checkpoint_ledger(m.cp);
        for (size_t n = 0; n < ledger->note_count; n++)
            said = said || strstr(ledger->notes[n].text, "match no weight") != NULL ||
                   strstr(ledger->notes[n].text, "matches no weight") != NULL;
        nib__quantization_keeps(&kept, nib__checkpoint_coding(m.cp), LAYER "mlp.gate", &m.err);
        if (said == kept)
            fail_msg("\"%s\" matches the router, or lacks the note that it matches nothing",
                     cases[i].list);
        drop_checkpoint(&m);
    }
}

/* ---- GGUF ---- */

/* One tensor of a GGUF file, of f32 unless `type` says Q8_0 (8). d: as in the file. */
typedef struct gguf_part {
    const char *name;
    uint64_t d[3];
    const void *data;
    uint32_t type;
} gguf_part;

static uint64_t gguf_bytes(const gguf_part *p)
{
    const uint64_t count = p->d[0] * nib__max(p->d[1], 1) * nib__max(p->d[2], 1);
    return p->type == 8 ? count / 32 * 34 : count * 4;
}

static void write_gguf(const char *path, const char *arch, int no, int parts,
                       const gguf_part *tensors, size_t count)
{
    static gguf_file f;
    uint64_t at = 0;
    put_header(&f, 3, count, parts > 1 ? 3 : 1);
    put_key_text(&f, "general.architecture", arch);
    if (parts > 1) {
        put_key_int(&f, "split.no", NIB_GGUF_U16, (uint64_t)no, 2);
        put_key_int(&f, "split.count", NIB_GGUF_U16, (uint64_t)parts, 2);
    }
    for (size_t i = 0; i < count; i++) {
        const gguf_part *p = &tensors[i];
        if (p->d[2] != 0)
            put_tensor_3d(&f, p->name, p->type, p->d[0], p->d[1], p->d[2], at);
        else
            put_tensor(&f, p->name, p->type, p->d[0], p->d[1], at);
        at = (at + gguf_bytes(p) + 31) / 32 * 32;
    }
    put_padding(&f, 32);
    for (size_t i = 0; i < count; i++) {
        put_bytes(&f, tensors[i].data, gguf_bytes(&tensors[i]));
        put_padding(&f, 32);
    }
    write_bytes(path, f.bytes, f.size);
}

static nib_checkpoint *open_path(const char *path)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp;
    nib_err err;
    if (nib__checkpoint_open(&cp, path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return cp;
}

/* Stacks of gate, up and down, fused ones, biases, routers and shared experts, in one file and in
 * two. */
static void test_gguf(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *prefix, *gate, *up, *down, *router, *bias;
    } cases[] = {
        {"qwen3moe", EXPERTS, "gate_proj", "up_proj", "down_proj", LAYER "mlp.gate.weight", NULL},
        {"gpt-oss", EXPERTS, "gate_proj", "up_proj", "down_proj", LAYER "mlp.gate.weight",
         LAYER "mlp.gate.bias"},
        {"llama", LAYER "block_sparse_moe.experts.", "w1", "w3", "w2",
         LAYER "block_sparse_moe.gate.weight", NULL},
        {"glm4moe", EXPERTS, "gate_proj", "up_proj", "down_proj", LAYER "mlp.gate.weight",
         LAYER "mlp.gate.e_score_correction_bias"},
    };
    static stacks s;
    static float gate[E * I * D], up[E * I * D], gate_bias[E * I], up_biases[E * I];
    char dir[256], one[300], two[300];
    fill_stacks(&s, false, false, NIB_TYPE_F32);
    for (int e = 0; e < E; e++) {
        memcpy(gate + e * I * D, s.up + e * 2 * I * D, sizeof(float) * I * D);
        memcpy(up + e * I * D, s.up + (2 * e + 1) * I * D, sizeof(float) * I * D);
        memcpy(gate_bias + e * I, s.up_bias + e * 2 * I, sizeof(float) * I);
        memcpy(up_biases + e * I, s.up_bias + (2 * e + 1) * I, sizeof(float) * I);
    }
    make_directory(dir);
    snprintf(one, sizeof one, "%s/m-00001-of-00002.gguf", dir);
    snprintf(two, sizeof two, "%s/m-00002-of-00002.gguf", dir);
    for (size_t i = 0; i < 3 * COUNT(cases); i++) {
        const size_t c = i / 3;
        const bool fused = i % 3 == 1, split = i % 3 == 2;
        const bool bias = strcmp(cases[c].arch, "gpt-oss") == 0 && !fused;
        const gguf_part tensors[] = {
            {"blk.0.ffn_down_exps.weight", {I, D, E}, s.down, 0},
            {"blk.0.ffn_gate_inp.weight", {D, E}, s.up, 0},
            {bias ? "blk.0.ffn_gate_inp.bias" : "blk.0.exp_probs_b.bias", {E}, s.up, 0},
            {fused ? "blk.0.ffn_gate_up_exps.weight" : "blk.0.ffn_gate_exps.weight",
             {D, fused ? 2 * I : I, E},
             fused ? s.up : gate,
             0},
            {"blk.0.ffn_up_exps.weight", {D, I, E}, up, 0},
            {"blk.0.ffn_gate_exps.bias", {I, E}, gate_bias, 0},
            {"blk.0.ffn_up_exps.bias", {I, E}, up_biases, 0},
            {"blk.0.ffn_down_exps.bias", {D, E}, s.down_bias, 0},
        };
        const size_t count = fused ? 4 : bias ? 8 : 5, first = split ? 3 : count;
        write_gguf(one, cases[c].arch, 0, split ? 2 : 1, tensors, first);
        if (split)
            write_gguf(two, cases[c].arch, 1, 2, tensors + first, count - first);
        nib_checkpoint *cp = open_path(one);
        expect_experts(cp, cases[c].prefix, cases[c].gate, cases[c].up, cases[c].down, bias, "gguf",
                       "gguf");
        assert_non_null(nib__checkpoint_find(cp, cases[c].router));
        if (cases[c].bias != NULL && (bias || strcmp(cases[c].arch, "gpt-oss") != 0))
            assert_non_null(nib__checkpoint_find(cp, cases[c].bias));
        nib__checkpoint_close(cp);
    }
    drop_directory(dir);
}

/* Slices of blocks are views; the gate of a shared expert, a vector in the file, is one row. */
static void test_gguf_blocks(void **state)
{
    (void)state;
    enum { K = 64, N = 5, BYTES = K / 32 * 34 };
    static uint8_t blocks[E * N * BYTES];
    static const float shared[K] = {1, 2, 3};
    char dir[256], path[300];
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (uint8_t)(i % 34 == 1 ? 0x3c : i % 34 == 0 ? i / 34 : i * 29 + 3);
    make_directory(dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    const gguf_part tensors[] = {{"blk.0.ffn_up_exps.weight", {K, N, E}, blocks, 8},
                                 {"blk.0.attn_q.weight", {K, N * E}, blocks, 8},
                                 {"blk.0.ffn_gate_inp_shexp.weight", {K}, shared, 0}};
    write_gguf(path, "qwen2moe", 0, 1, tensors, COUNT(tensors));
    nib_checkpoint *cp = open_path(path);
    nib_weight all, w;
    nib_err err;
    float got[K], want[K];
    assert_int_equal(nib__checkpoint_weight(&all, NULL, cp, LAYER "self_attn.q_proj", NULL, &err),
                     NIB_OK);
    for (int e = 0; e < E; e++) {
        char module[100];
        snprintf(module, sizeof module, EXPERTS "%d.up_proj", e);
        assert_int_equal(nib__checkpoint_weight(&w, NULL, cp, module, NULL, &err), NIB_OK);
        assert_int_equal(w.layout, NIB_LAYOUT_Q8_0);
        assert_int_equal(w.n, N);
        for (int i = 0; i < N; i++) {
            nib__weight_row(&w, i, got);
            nib__weight_row(&all, e * N + i, want);
            assert_memory_equal(got, want, sizeof got);
        }
    }
    assert_int_equal(
        nib__checkpoint_weight(&w, NULL, cp, LAYER "mlp.shared_expert_gate", NULL, &err), NIB_OK);
    assert_int_equal(w.n, 1);
    assert_int_equal(w.k, K);
    nib__weight_row(&w, 0, got);
    assert_memory_equal(got, shared, sizeof got);
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

/* The writer takes experts one by one, in any order, and joins them. */
static void test_write_gguf(void **state)
{
    (void)state;
    static const struct {
        const char *leaf;
        int first;
    } leaves[] = {{"gate_proj", 0}, {"up_proj", I}, {"down_proj", -1}};
    static stacks s;
    const nib_allocator a = nib__allocator_default();
    nib_gguf_head head;
    nib_writer *w;
    nib_err err;
    char dir[256], path[300], ours[200], theirs[NIB_RENAME_MAX];
    fill_stacks(&s, false, false, NIB_TYPE_F32);
    make_directory(dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    nib__gguf_head_init(&head, &a);
    nib__gguf_put_string(&head, "general.architecture", "gpt-oss", 7);
    assert_int_equal(nib__writer_make(&w, &a, &err), NIB_OK);
    for (int e = E - 1; e >= 0; e--)
        for (size_t l = 0; l < COUNT(leaves); l++)
            for (int bias = 0; bias < 2; bias++) {
                const int64_t shape[2] = {leaves[l].first < 0 ? D : I, leaves[l].first < 0 ? I : D};
                snprintf(ours, sizeof ours, EXPERTS "%d.%s.%s", e, leaves[l].leaf,
                         bias ? "bias" : "weight");
                assert_true(nib__rename_to_gguf(theirs, "gpt-oss", ours));
                nib__writer_add_tensor(w, theirs, NIB_TYPE_F32, shape, bias ? 1 : 2, 0);
            }
    nib__writer_use_gguf(w, &head);
    assert_int_equal(nib__writer_layout(w, 0, &err), NIB_OK);
    assert_int_equal(nib__writer_begin(w, NULL, path, &err), NIB_OK);
    size_t t = 0;
    for (int e = E - 1; e >= 0; e--)
        for (size_t l = 0; l < COUNT(leaves); l++)
            for (int bias = 0; bias < 2; bias++) {
                const int first = leaves[l].first, n = first < 0 ? D : I,
                          k = bias        ? 1
                              : first < 0 ? I
                                          : D;
                const float *from = first < 0 ? (bias ? s.down_bias : s.down) + e * n * k
                                              : (bias ? s.up_bias : s.up) + (e * 2 * I + first) * k;
                assert_int_equal(
                    nib__writer_put(w, t++, from, sizeof *from * (size_t)(n * k), &err), NIB_OK);
            }
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    nib__gguf_head_free(&head);
    nib_checkpoint *cp = open_path(path);
    expect_experts(cp, EXPERTS, "gate_proj", "up_proj", "down_proj", true, "gguf", "gguf");
    assert_int_equal(nib__checkpoint_count(cp), 2 * 3 * E);
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

/* ---- names ---- */

/* Routers and shared experts have one name in all families, in metadata too. */
static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *config, *theirs, *ours;
    } cases[] = {
        {TYPE("gpt_oss"), "mlp.router.weight", "mlp.gate.weight"},
        {TYPE("gpt_oss"), "mlp.router.bias", "mlp.gate.bias"},
        {TYPE("llama4_text"), "feed_forward.router.weight", "mlp.gate.weight"},
        {TYPE("llama4"), "feed_forward.shared_expert.up_proj.weight",
         "mlp.shared_expert.up_proj.weight"},
        {TYPE("llama4"), "feed_forward.experts.7.up_proj.weight_packed",
         "mlp.experts.7.up_proj.weight_packed"},
        {TYPE("granitemoeshared"), "block_sparse_moe.router.layer.weight", "mlp.gate.weight"},
        {TYPE("gemma4_text"), "router.proj.weight", "router.proj.weight"},
        {TYPE("granitemoeshared"), "shared_mlp.output_linear.weight",
         "mlp.shared_expert.down_proj.weight"},
        {TYPE("mixtral"), "mlp.gate.weight", "block_sparse_moe.gate.weight"},
        /* the names of others stay */
        {TYPE("mixtral"), "mlp.gate_proj.weight", "mlp.gate_proj.weight"},
        {TYPE("mixtral"), "block_sparse_moe.experts.0.w1.weight",
         "block_sparse_moe.experts.0.w1.weight"},
        {TYPE("llama4"), "feed_forward.gate_proj.weight", "mlp.gate_proj.weight"},
        {TYPE("lfm2_moe"), "feed_forward.experts.0.w1.weight", "feed_forward.experts.0.w1.weight"},
        {TYPE("qwen3_moe"), "mlp.router.weight", "mlp.router.weight"},
        {"{\"model_type\":7}", "mlp.router.weight", "mlp.router.weight"},
        {TYPE("deepseek_v3"), "mlp.shared_experts.up_proj.weight",
         "mlp.shared_experts.up_proj.weight"},
        {TYPE("deepseek_v3"), "mlp.gate.e_score_correction_bias",
         "mlp.gate.e_score_correction_bias"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char theirs[100], ours[100], metadata[200];
        snprintf(theirs, sizeof theirs, LAYER "%s", cases[i].theirs);
        snprintf(ours, sizeof ours, LAYER "%s", cases[i].ours);
        snprintf(metadata, sizeof metadata, "\"%s\":\"described\"", theirs);
        const part one[] = {{theirs, "F32", 2, {E, D}, NULL}};
        made m;
        if (make_described(&m, metadata, cases[i].config, one, 1) != NIB_OK)
            fail_msg("%s", m.err.text);
        assert_string_equal(nib__checkpoint_at(m.cp, 0)->name, ours);
        assert_non_null(nib__checkpoint_find(m.cp, ours));
        assert_string_equal(nib__checkpoint_meta_at(m.cp, 0)->key, ours);
        drop_checkpoint(&m);
    }
    /* a text model among others */
    static const struct {
        const char *config, *theirs, *ours;
    } whole[] = {
        {"{\"model_type\":\"gemma4\",\"text_config\":{\"model_type\":\"gemma4_text\"}}",
         "model.language_model.norm.weight", "model.norm.weight"},
        {"{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\"}}",
         "language_model." LAYER "feed_forward.router.weight", LAYER "mlp.gate.weight"},
        {TYPE("gemma4_text"), "model.vision_tower.a.weight", "model.vision_tower.a.weight"},
        {TYPE("qwen3_moe"), "model.language_model.norm.weight", "model.language_model.norm.weight"},
    };
    for (size_t i = 0; i < COUNT(whole); i++) {
        const part one[] = {{whole[i].theirs, "F32", 1, {D}, NULL}};
        made m;
        open_made(&m, whole[i].config, one, 1);
        assert_non_null(nib__checkpoint_find(m.cp, whole[i].ours));
        drop_checkpoint(&m);
    }
    /* Granite's shared expert is fused */
    static stacks s;
    fill_stacks(&s, false, false, NIB_TYPE_F32);
    const part shared[] = {
        {LAYER "shared_mlp.input_linear.weight", "F32", 2, {2 * I, D}, s.raw_up}};
    made m;
    nib_weight w;
    float row[D];
    open_made(&m, TYPE("granitemoeshared"), shared, 1);
    for (int up = 0; up < 2; up++) {
        assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp,
                                                up ? LAYER "mlp.shared_expert.up_proj"
                                                   : LAYER "mlp.shared_expert.gate_proj",
                                                NULL, &m.err),
                         NIB_OK);
        assert_int_equal(w.n, I);
        nib__weight_row(&w, 1, row);
        assert_true(row[2] == up_value(0, up * I + 1, 2));
    }
    drop_checkpoint(&m);
}

/* ---- bad input ---- */

/* Opening must fail as bad input. */
static void expect_refused(const char *config, const part *parts, size_t count)
{
    made m;
    refused(NIB_BAD_INPUT, make_checkpoint(&m, config, parts, count), &m.err);
    drop_checkpoint(&m);
}

static void test_bad_stacks(void **state)
{
    (void)state;
#define UP EXPERTS "gate_up_proj"
#define DOWN EXPERTS "down_proj"
    static const struct {
        const char *config;
        part parts[2];
    } cases[] = {
        /* another number of experts */
        {TYPE("a"), {{UP, "F32", 3, {3, 8, 6}, NULL}, {DOWN, "F32", 3, {2, 6, 4}, NULL}}},
        {TYPE("a"), {{UP ".weight", "F32", 3, {3, 8, 6}, NULL}, {DOWN, "F32", 3, {2, 6, 4}, NULL}}},
        {TYPE("a"), {{UP, "F32", 3, {3, 8, 6}, NULL}, {UP "_bias", "F32", 2, {2, 8}, NULL}}},
        {TYPE("a"), {{UP, "F32", 3, {3, 8, 6}, NULL}, {UP "_bias", "F32", 2, {3, 4}, NULL}}},
        {TYPE("a"), {{UP, "F32", 3, {3, 8, 6}, NULL}, {UP "_bias", "F32", 1, {24}, NULL}}},
        {TYPE("gpt_oss"), {{UP, "F32", 3, {3, 6, 8}, NULL}, {UP "_bias", "F32", 2, {3, 6}, NULL}}},
        {NULL,
         {{UP "_blocks", "U8", 4, {3, 8, 1, 16}, NULL},
          {DOWN "_blocks", "U8", 4, {2, 8, 1, 16}, NULL}}},
        /* shapes */
        {TYPE("a"), {{UP, "F32", 3, {3, 5, 6}, NULL}, {NULL}}},
        {TYPE("gpt_oss"), {{UP, "F32", 3, {3, 6, 5}, NULL}, {NULL}}},
        {NULL, {{UP "_blocks", "U8", 4, {3, 7, 1, 16}, NULL}, {NULL}}},
        {NULL, {{UP "_blocks", "U8", 4, {3, 8, 1, 8}, NULL}, {NULL}}},
        {NULL, {{UP "_blocks", "U8", 3, {3, 8, 16}, NULL}, {NULL}}},
        {TYPE("a"), {{UP, "F32", 2, {24, 6}, NULL}, {NULL}}},
        {TYPE("a"), {{UP, "F32", 3, {3, 0, 6}, NULL}, {NULL}}},
        {TYPE("a"), {{UP, "F32", 3, {0, 8, 6}, NULL}, {NULL}}},
        {TYPE("a"), {{EXPERTS "up_proj.weight", "U8", 3, {65537, 1, 1}, NULL}, {NULL}}},
        {TYPE("a"), {{UP, "F32", 3, {3, 8, 6}, NULL}, {DOWN, "F32", 3, {3, 6, 5}, NULL}}},
        /* which form it is cannot be told, or not as the family stores it */
        {NULL, {{UP, "F32", 3, {3, 8, 6}, NULL}, {NULL}}},
        {"{}", {{DOWN, "F32", 3, {3, 6, 4}, NULL}, {NULL}}},
        {TYPE("a"), {{UP, "F32", 3, {3, 6, 8}, NULL}, {DOWN, "F32", 3, {3, 4, 6}, NULL}}},
        {NULL, {{UP, "F32", 3, {3, 6, 8}, NULL}, {DOWN, "F32", 3, {3, 4, 6}, NULL}}},
        {TYPE("gpt_oss"), {{UP, "F32", 3, {3, 8, 6}, NULL}, {DOWN, "F32", 3, {3, 6, 4}, NULL}}},
        /* two spellings of one expert, or of the router */
        {TYPE("a"),
         {{UP, "F32", 3, {3, 8, 6}, NULL}, {EXPERTS "1.up_proj.weight", "F32", 2, {4, 6}, NULL}}},
        {TYPE("a"),
         {{UP, "F32", 3, {3, 8, 6}, NULL},
          {EXPERTS "gate_proj.weight", "F32", 3, {3, 4, 6}, NULL}}},
        {TYPE("gpt_oss"),
         {{LAYER "mlp.router.weight", "F32", 2, {3, 6}, NULL},
          {LAYER "mlp.gate.weight", "F32", 2, {3, 6}, NULL}}},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_refused(cases[i].config, cases[i].parts, 2);
    made m;
    nib_weight w;
    const part eights[] = {{UP, "U8", 3, {3, 6, 8}, NULL}};
    refused(NIB_UNSUPPORTED, make_checkpoint(&m, TYPE("gpt_oss"), eights, 1), &m.err);
    drop_checkpoint(&m);
    /* two forms of one stack, and an expert that is missing */
    const part both[] = {{UP, "F32", 3, {3, 8, 32}, NULL},
                         {UP "_blocks", "U8", 4, {3, 8, 1, 16}, NULL},
                         {EXPERTS "0.o_proj.weight", "F32", 2, {1, 1}, NULL}};
    open_made(&m, TYPE("a"), both, COUNT(both));
    refused(NIB_BAD_INPUT,
            nib__checkpoint_weight(&w, NULL, m.cp, EXPERTS "1.up_proj", NULL, &m.err), &m.err);
    refused(NIB_BAD_INPUT,
            nib__checkpoint_weight(&w, NULL, m.cp, EXPERTS "3.up_proj", NULL, &m.err), &m.err);
    drop_checkpoint(&m);
}

/* An expert that the index puts into a shard which does not hold it, and a stack whose parts are in
 * two shards. */
static void test_shards(void **state)
{
    (void)state;
    static const char one[] = "model-00001-of-00002.safetensors",
                      two[] = "model-00002-of-00002.safetensors";
    static const uint8_t data[2 * 4 * 3 * 4];
    const nib_allocator a = nib__allocator_default();
    char dir[256];
    nib_checkpoint *cp;
    nib_err err;
    make_directory(dir);
    write_text(dir, "config.json", TYPE("a"));
    write_safetensors(dir, one,
                      "{\"" UP "\":{\"dtype\":\"F32\",\"shape\":[2,4,3],\"data_offsets\":[0,96]}}",
                      data, 96);
    write_safetensors(
        dir, two, "{\"" DOWN "\":{\"dtype\":\"F32\",\"shape\":[2,3,2],\"data_offsets\":[0,48]}}",
        data, 48);
    for (int missing = 0; missing < 2; missing++) {
        char index[600];
        snprintf(index, sizeof index,
                 "{\"weight_map\":{\"" UP "\":\"%s\",\"" DOWN "\":\"%s\"%s%s%s}}", one, two,
                 missing ? ",\"" EXPERTS "2.up_proj.weight\":\"" : "", missing ? two : "",
                 missing ? "\"" : "");
        write_text(dir, "model.safetensors.index.json", index);
        const nib_status status = nib__checkpoint_open(&cp, dir, &a, &err);
        if (missing) {
            refused(NIB_BAD_INPUT, status, &err);
            continue;
        }
        assert_int_equal(status, NIB_OK);
        assert_int_equal(nib__checkpoint_module_count(cp), 6);
        nib__checkpoint_close(cp);
    }
    drop_directory(dir);
}

/* 48 layers of 128 experts, in stacks and one by one: no search over all tensors for each. Half a
 * second for `nibble info` of such a checkpoint, so the limit is far. */
static void test_many(void **state)
{
    (void)state;
    enum { LAYERS = 48, EACH = 128, BYTES = 4 };
    const nib_allocator a = nib__allocator_default();
    for (int stacked = 0; stacked < 2; stacked++) {
        nib_text header;
        nib_checkpoint *cp;
        nib_err err;
        char dir[256];
        size_t at = 0;
        nib__text_init(&header, &a);
        nib__text_str(&header, "{");
        for (int i = 0; i < LAYERS * (stacked ? 1 : EACH); i++)
            for (int leaf = 0; leaf < 3; leaf++) {
                static const char *const leaves[] = {"gate_proj", "up_proj", "down_proj"};
                const size_t bytes = BYTES * (stacked ? EACH : 1);
                nib__text_format(&header, "%s\"model.layers.%d.mlp.experts.", at == 0 ? "" : ",",
                                 stacked ? i : i / EACH);
                if (!stacked)
                    nib__text_format(&header, "%d.", i % EACH);
                nib__text_format(&header,
                                 "%s.weight\":{\"dtype\":\"F32\",\"shape\":[%s1,1],"
                                 "\"data_offsets\":[%zu,%zu]}",
                                 leaves[leaf], stacked ? "128," : "", at, at + bytes);
                at += bytes;
            }
        nib__text_str(&header, "}");
        make_directory(dir);
        uint8_t *data = calloc(at, 1);
        assert_non_null(data);
        write_safetensors(dir, "model.safetensors", header.at, data, at);
        const clock_t begin = clock();
        if (nib__checkpoint_open(&cp, dir, &a, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 20);
        assert_int_equal(nib__checkpoint_module_count(cp), LAYERS * EACH * 3);
        assert_non_null(nib__checkpoint_find(cp, "model.layers.47.mlp.experts.127.up_proj.weight"));
        nib__checkpoint_close(cp);
        drop_directory(dir);
        free(data);
        nib__text_free(&header);
    }
}

/* Other tensors with such names are left alone. */
static void test_no_stacks(void **state)
{
    (void)state;
    char long_name[700];
    snprintf(long_name, sizeof long_name, "%0600d.experts.up_proj.weight", 0);
    const part parts[] = {
        {"xexperts.up_proj.weight", "F32", 2, {2, 3}, NULL},
        {LAYER "mlp.shared_experts.up_proj.weight", "F32", 2, {2, 3}, NULL},
        {EXPERTS "3.weight", "F32", 3, {2, 3, 1}, NULL},
        {EXPERTS "scale", "F32", 1, {3}, NULL},
        {EXPERTS "up_proj_bias", "F32", 2, {3, 4}, NULL}, /* without its stack */
        {long_name, "F32", 3, {2, 3, 1}, NULL},
    };
    made m;
    open_made(&m, TYPE("a"), parts, COUNT(parts));
    assert_int_equal(nib__checkpoint_count(m.cp), COUNT(parts));
    drop_checkpoint(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_transposed),
        cmocka_unit_test(test_fused_expert), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_blocks),       cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_lists),        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_blocks),  cmocka_unit_test(test_write_gguf),
        cmocka_unit_test(test_names),        cmocka_unit_test(test_bad_stacks),
        cmocka_unit_test(test_no_stacks),    cmocka_unit_test(test_shards),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
