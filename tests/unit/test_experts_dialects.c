/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts as quantization tools publish them: for each dialect and family, a small
 * model whose weights are encoded here by the definition of the format has the logits of the same
 * values in f32, with the stored codes and under --strict.
 */
#include "checkpoint_build.h"
#include "ledger_lines.h"
#include "nibble_tools.h"
#include "quantization.h"
#include "session.h"

#include <math.h>

enum { GROUP = 32, BYTES_MAX = 1 << 20, CONFIG_MAX = 4096 };

/* ---- families ---- */

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":2,"                        \
    "\"num_key_value_heads\":1,\"head_dim\":32,\"vocab_size\":40,\"hidden_act\":\"silu\","         \
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":false,"         \
    "\"rope_theta\":10000.0,\"torch_dtype\":\"float32\",\"num_experts_per_tok\":2,"

static const struct family {
    const char *name, *config, *router;
} families[] = {
    {"qwen3_moe",
     "{\"model_type\":\"qwen3_moe\"," SIZES "\"intermediate_size\":96,\"moe_intermediate_size\":32,"
     "\"num_experts\":4,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[]%"
     "s}",
     "mlp.gate"},
    {"mixtral",
     "{\"model_type\":\"mixtral\"," SIZES "\"intermediate_size\":64,\"num_local_experts\":4%s}",
     "block_sparse_moe.gate"},
    {"glm4_moe",
     "{\"model_type\":\"glm4_moe\"," SIZES "\"intermediate_size\":96,\"moe_intermediate_size\":32,"
     "\"n_routed_experts\":4,\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,"
     "\"first_k_dense_replace\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,"
     "\"partial_rotary_factor\":0.5,\"use_qk_norm\":true,\"attention_bias\":true%s}",
     "mlp.gate"},
};

/* ---- values ---- */

/* 0 to 2^31 - 1 */
static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = a * 0x9e3779b1U ^ b * 0x85ebca6bU ^ c * 0xc2b2ae35U;
    h = (h ^ h >> 15) * 0x2c1b3c6dU;
    h = (h ^ h >> 12) * 0x297a2d39U;
    return (h ^ h >> 15) >> 1;
}

/* A weight that is being encoded, and its values. seed: differs from weight to weight. */
typedef struct encoded {
    const char *module;
    int64_t n, k;
    uint32_t seed;
    float *values; /* [n][k] */
} encoded;

/* 0.0078 to 0.0146: exact in f16 and bf16 */
static float scale_of(const encoded *w, int64_t row, int64_t group)
{
    return ldexpf(1 + (float)(mix(w->seed, (uint32_t)row, (uint32_t)group) % 8) / 8, -7);
}

static int code_of(const encoded *w, int64_t row, int64_t j, int codes)
{
    return (int)(mix(w->seed + 77, (uint32_t)row, (uint32_t)j) % (uint32_t)codes);
}

/* The value of an e4m3 code, as in the OCP's 8-bit floating point specification. */
static float e4m3(uint8_t code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float value =
        exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    return code & 0x80 ? -value : value;
}

/* The value of an e2m1 code. */
static float e2m1(int code)
{
    static const float values[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

/* ---- files ---- */

typedef struct file {
    nib_text header;
    uint8_t *data;
    size_t size;
} file;

static const nib_allocator *heap(void)
{
    static nib_allocator a;
    a = nib__allocator_default();
    return &a;
}

static void begin_file(file *f)
{
    *f = (file){.data = calloc(BYTES_MAX, 1)};
    assert_non_null(f->data);
    nib__text_init(&f->header, heap());
    nib__text_str(&f->header, "{");
}

/* Adds a zeroed tensor and returns its bytes. */
static void *add_tensor(file *f, const char *module, const char *suffix, const char *type, int rank,
                        const int64_t *shape)
{
    size_t bits = (size_t)nib__type_bits(nib__type_find(type, strlen(type)));
    nib__text_format(&f->header, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[",
                     f->header.size == 1 ? "" : ",", module, suffix, type);
    for (int d = 0; d < rank; d++) {
        nib__text_format(&f->header, "%s%lld", d == 0 ? "" : ",", (long long)shape[d]);
        bits *= (size_t)shape[d];
    }
    void *const out = f->data + f->size;
    nib__text_format(&f->header, "],\"data_offsets\":[%zu,%zu]}", f->size, f->size + bits / 8);
    f->size += bits / 8;
    assert_true(f->size <= BYTES_MAX);
    return out;
}

#define ADD(f, w, suffix, type, ...)                                                               \
    add_tensor(f, (w)->module, suffix, type,                                                       \
               (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                          \
               (int64_t[]){__VA_ARGS__})

static void end_file(file *f, const char *directory, const char *name)
{
    nib__text_str(&f->header, "}");
    write_safetensors(directory, name, f->header.at, f->data, f->size);
    nib__text_free(&f->header);
    free(f->data);
}

/* Element i of a tensor whose bytes need not be aligned. */
static void put(void *at, const char *type, int64_t i, float value)
{
    const nib_type t = nib__type_find(type, strlen(type));
    nib__from_f32((uint8_t *)at + (size_t)i * (size_t)nib__type_bits(t) / 8, t, &value, 1);
}

/* Ors `bits` of a code into word i. */
static void put_bits(void *words, int64_t i, int shift, uint32_t bits)
{
    uint32_t word;
    memcpy(&word, (uint8_t *)words + 4 * i, sizeof word);
    word |= bits << shift;
    memcpy((uint8_t *)words + 4 * i, &word, sizeof word);
}

/* ---- dialects ---- */

/* (code - zero) * scale; the zero is stored less 1. The group of an input is in g_idx: of row r of
 * qweight, in any order. */
static void encode_gptq(file *f, const encoded *w)
{
    const int64_t groups = w->k / GROUP;
    void *const codes = ADD(f, w, ".qweight", "I32", w->k / 8, w->n);
    void *const zeros = ADD(f, w, ".qzeros", "I32", groups, w->n / 8);
    void *const scales = ADD(f, w, ".scales", "F16", groups, w->n);
    void *const index = ADD(f, w, ".g_idx", "I32", w->k);
    for (int64_t j = 0; j < w->k; j++) {
        const int64_t g = (j + (int64_t)w->seed) % groups; /* act-order */
        put_bits(index, j, 0, (uint32_t)g);
        for (int64_t i = 0; i < w->n; i++) {
            const int code = code_of(w, i, j, 16), zero = 1 + code_of(w, i, 1000 + g, 15);
            put_bits(codes, j / 8 * w->n + i, (int)(j % 8) * 4, (uint32_t)code);
            w->values[i * w->k + j] = (float)(code - zero) * scale_of(w, i, g);
        }
    }
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < w->n; i++) {
            put_bits(zeros, g * (w->n / 8) + i / 8, (int)(i % 8) * 4,
                     (uint32_t)code_of(w, i, 1000 + g, 15));
            put(scales, "F16", g * w->n + i, scale_of(w, i, g));
        }
}

/* The same formula; eight outputs in a word, in the order 0 2 4 6 1 3 5 7. */
static void encode_awq(file *f, const encoded *w)
{
    static const int place[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* nibble of output i % 8 */
    const int64_t groups = w->k / GROUP;
    void *const codes = ADD(f, w, ".qweight", "I32", w->k, w->n / 8);
    void *const zeros = ADD(f, w, ".qzeros", "I32", groups, w->n / 8);
    void *const scales = ADD(f, w, ".scales", "F16", groups, w->n);
    for (int64_t i = 0; i < w->n; i++) {
        const int shift = 4 * place[i % 8];
        for (int64_t g = 0; g < groups; g++) {
            put_bits(zeros, g * (w->n / 8) + i / 8, shift, (uint32_t)code_of(w, i, 1000 + g, 16));
            put(scales, "F16", g * w->n + i, scale_of(w, i, g));
        }
        for (int64_t j = 0; j < w->k; j++) {
            const int64_t g = j / GROUP;
            const int code = code_of(w, i, j, 16);
            put_bits(codes, j * (w->n / 8) + i / 8, shift, (uint32_t)code);
            w->values[i * w->k + j] =
                (float)(code - code_of(w, i, 1000 + g, 16)) * scale_of(w, i, g);
        }
    }
}

/* Kimi K2's routed experts: (code - 8) * scale, bf16 scales, eight inputs in a word. */
static void encode_packed(file *f, const encoded *w)
{
    const int64_t groups = w->k / GROUP;
    void *const codes = ADD(f, w, ".weight_packed", "I32", w->n, w->k / 8);
    void *const scales = ADD(f, w, ".weight_scale", "BF16", w->n, groups);
    void *const shape = ADD(f, w, ".weight_shape", "I32", 2);
    put_bits(shape, 0, 0, (uint32_t)w->n);
    put_bits(shape, 1, 0, (uint32_t)w->k);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->k; j++) {
            const int code = code_of(w, i, j, 16);
            put_bits(codes, (i * w->k + j) / 8, (int)(j % 8) * 4, (uint32_t)code);
            put(scales, "BF16", i * groups + j / GROUP, scale_of(w, i, j / GROUP));
            w->values[i * w->k + j] = (float)(code - 8) * scale_of(w, i, j / GROUP);
        }
}

/* e2m1 in groups of 16, low nibble first, times an e4m3 scale, times or over that of the tensor. */
static void encode_nv4(file *f, const encoded *w, const char *packed, const char *whole,
                       bool divides)
{
    const float tensor = divides ? 448 : 1 / 512.0F;
    uint8_t *const codes = ADD(f, w, packed, "U8", w->n, w->k / 2);
    uint8_t *const scales = ADD(f, w, ".weight_scale", "F8_E4M3", w->n, w->k / 16);
    put(ADD(f, w, whole, "F32", 1), "F32", 0, tensor);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->k; j++) {
            const int code = code_of(w, i, j, 16);
            const uint8_t scale = (uint8_t)(0x30 + code_of(w, i, 500 + j / 16, 24)); /* 0.5 to 4 */
            codes[(i * w->k + j) / 2] |= (uint8_t)(code << (j % 2 == 0 ? 0 : 4));
            scales[i * (w->k / 16) + j / 16] = scale;
            w->values[i * w->k + j] =
                e2m1(code) * (divides ? e4m3(scale) / tensor : e4m3(scale) * tensor);
        }
}

static void encode_compressed_nv4(file *f, const encoded *w)
{
    encode_nv4(f, w, ".weight_packed", ".weight_global_scale", true);
    put(ADD(f, w, ".input_global_scale", "F32", 1), "F32", 0, 100);
}

static void encode_modelopt_nv4(file *f, const encoded *w)
{
    encode_nv4(f, w, ".weight", ".weight_scale_2", false);
    put(ADD(f, w, ".input_scale", "F32", 1), "F32", 0, 0.01F);
}

/* Finite e4m3 codes times a scale for each block of rows and inputs. rows 0: one for the tensor. */
static void encode_e4m3(file *f, const encoded *w, const char *suffix, int64_t rows,
                        int64_t columns, bool spaced)
{
    const int64_t across = rows == 0 ? 1 : nib__ceil_div(w->n, rows),
                  groups = rows == 0 ? 1 : nib__ceil_div(w->k, columns);
    uint8_t *const codes = ADD(f, w, ".weight", "F8_E4M3", w->n, w->k);
    void *const scales = rows == 0 ? add_tensor(f, w->module, suffix, "F32", 0, NULL)
                         : spaced  ? ADD(f, w, suffix, "F32", across, 1, groups, 1)
                                   : ADD(f, w, suffix, "F32", across, groups);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->k; j++) {
            const int code = code_of(w, i, j, 2 * 0x50);
            const uint8_t byte = (uint8_t)(code >= 0x50 ? code - 0x50 + 0x80 : code); /* under 8 */
            const int64_t row = rows == 0 ? 0 : i / rows, g = rows == 0 ? 0 : j / columns;
            codes[i * w->k + j] = byte;
            put(scales, "F32", row * groups + g, scale_of(w, row, g));
            w->values[i * w->k + j] = e4m3(byte) * scale_of(w, row, g);
        }
}

static void encode_deepseek(file *f, const encoded *w)
{
    encode_e4m3(f, w, ".weight_scale_inv", 128, 128, false);
}

static void encode_small_blocks(file *f, const encoded *w)
{
    encode_e4m3(f, w, ".weight_scale_inv", 16, 32, false);
}

static void encode_rows(file *f, const encoded *w)
{
    encode_e4m3(f, w, ".weight_scale", 1, w->k, false);
}

static void encode_modelopt_blocks(file *f, const encoded *w)
{
    encode_e4m3(f, w, ".weight_scale", 128, 128, true);
}

static void encode_modelopt_fp8(file *f, const encoded *w)
{
    encode_e4m3(f, w, ".weight_scale", 0, 0, false);
    put(add_tensor(f, w->module, ".input_scale", "F32", 0, NULL), "F32", 0, 0.01F);
}

/* e4m3 in groups of 32 times a power of 2. */
static void encode_mx8(file *f, const encoded *w)
{
    uint8_t *const codes = ADD(f, w, ".weight", "F8_E4M3", w->n, w->k);
    uint8_t *const scales = ADD(f, w, ".weight_scale", "U8", w->n, w->k / 32);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->k; j++) {
            const int exponent = -9 + code_of(w, i, 500 + j / 32, 3);
            codes[i * w->k + j] = (uint8_t)code_of(w, i, j, 0x50);
            scales[i * (w->k / 32) + j / 32] = (uint8_t)(127 + exponent);
            w->values[i * w->k + j] = ldexpf(e4m3(codes[i * w->k + j]), exponent);
        }
}

static void encode_int8_rows(file *f, const encoded *w)
{
    int8_t *const codes = ADD(f, w, ".weight", "I8", w->n, w->k);
    void *const scales = ADD(f, w, ".weight_scale", "F32", w->n);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->k; j++) {
            codes[i * w->k + j] = (int8_t)(code_of(w, i, j, 255) - 127);
            put(scales, "F32", i, scale_of(w, i, 0) / 16);
            w->values[i * w->k + j] = (float)codes[i * w->k + j] * (scale_of(w, i, 0) / 16);
        }
}

/* ModelOpt's mixed precision: attention in FP8, the rest in NVFP4. */
static void encode_mixed(file *f, const encoded *w)
{
    if (strstr(w->module, "self_attn") != NULL)
        encode_modelopt_fp8(f, w);
    else
        encode_nv4(f, w, ".weight", ".weight_scale_2", false);
}

#define CODING ",\"quantization_config\":{\"quant_method\":"
#define CT_LINEAR(format, weights, more, ignore)                                                   \
    CODING "\"compressed-tensors\",\"format\":\"" format                                           \
           "\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights     \
           "}" more "}},\"ignore\":[" ignore "]}"
#define FLOAT8 "\"num_bits\":8,\"type\":\"float\",\"symmetric\":true"
#define KIMI                                                                                       \
    "\"lm_head\",\"re:.*self_attn.*\",\"re:.*shared_experts.*\",\"re:.*mlp\\\\.(gate|up|gate_up|"  \
    "down)_proj.*\""
#define ROUTERS "\"lm_head\",\"re:.*gate$\""
#define EXCLUDED "\"lm_head\",\"model.layers.*.gate\""
#define MODELOPT(algorithm, more)                                                                  \
    "{\"producer\":{\"name\":\"modelopt\",\"version\":\"0.44.0\"},\"quantization\":{"              \
    "\"quant_algo\":\"" algorithm "\",\"kv_cache_quant_algo\":null,\"exclude_modules\":[" EXCLUDED \
    "]" more "}}"

typedef enum scope { ALL, EXPERTS_ONLY, ROUTERS_TOO } scope;

static const struct dialect {
    const char *name;
    const char *config; /* the end of config.json */
    const char *beside; /* hf_quant_config.json, or NULL */
    void (*encode)(file *f, const encoded *w);
    scope scope;
    nib_code code;      /* of the experts */
    const char *stored; /* name of the dialect in Nibble */
    bool strict;        /* nothing to report: the stored activations are those that run */
} dialects[] = {
    {"GPTQ with act-order",
     CODING "\"gptq\",\"bits\":4,\"group_size\":32,\"desc_act\":true,\"sym\":false,"
            "\"modules_in_block_to_quantize\":[[\"self_attn.q_proj\"]]}",
     NULL, encode_gptq, ALL, NIB_CODE_I4, "gptq", true},
    {"AWQ",
     CODING "\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,\"version\":\"gemm\","
            "\"modules_to_not_convert\":[\"gate\",\"lm_head\"]}",
     NULL, encode_awq, ALL, NIB_CODE_I4, "awq", true},
    {"int4 of routed experts, as Kimi K2-Thinking",
     CT_LINEAR("pack-quantized",
               "\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\","
               "\"group_size\":32",
               ",\"input_activations\":null,\"output_activations\":null", KIMI),
     NULL, encode_packed, EXPERTS_ONLY, NIB_CODE_I4, "compressed-tensors", true},
    {"NVFP4 of compressed-tensors",
     CT_LINEAR("nvfp4-pack-quantized",
               "\"num_bits\":4,\"type\":\"float\",\"symmetric\":true,\"strategy\":\"tensor_group\","
               "\"group_size\":16",
               ",\"input_activations\":{\"num_bits\":4,\"type\":\"float\",\"symmetric\":true,"
               "\"strategy\":\"tensor_group\",\"group_size\":16,\"dynamic\":\"local\"}",
               ROUTERS),
     NULL, encode_compressed_nv4, ALL, NIB_CODE_NV4, "compressed-tensors", false},
    {"FP8 rows of compressed-tensors",
     CT_LINEAR("float-quantized", FLOAT8 ",\"strategy\":\"channel\"",
               ",\"input_activations\":{" FLOAT8 ",\"strategy\":\"token\",\"dynamic\":true}",
               ROUTERS),
     NULL, encode_rows, ALL, NIB_CODE_E4M3, "compressed-tensors", true},
    {"FP8 blocks of DeepSeek",
     CODING "\"fp8\",\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\","
            "\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"lm_head\","
            "\"model.layers.0.mlp.gate\",\"model.layers.1.mlp.gate\"]}",
     NULL, encode_deepseek, ALL, NIB_CODE_E4M3, "fp8", false},
    {"FP8 blocks within a weight",
     CODING "\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[16,32]}", NULL,
     encode_small_blocks, ALL, NIB_CODE_E4M3, "fp8", false},
    {"NVFP4 of ModelOpt",
     CODING "\"modelopt\",\"quant_algo\":\"NVFP4\",\"config_groups\":{\"group_0\":{\"targets\":["
            "\"Linear\"],\"weights\":{\"dynamic\":false,\"num_bits\":4,\"type\":\"float\","
            "\"group_size\":16},\"input_activations\":{\"dynamic\":false,\"num_bits\":4,\"type\":"
            "\"float\",\"group_size\":16}}},\"ignore\":[" EXCLUDED
            "],\"producer\":{\"name\":\"modelopt\",\"version\":\"0.44.0\"}}",
     NULL, encode_modelopt_nv4, ALL, NIB_CODE_NV4, "modelopt", false},
    {"weight-only NVFP4 of ModelOpt", "", MODELOPT("W4A16_NVFP4", ",\"group_size\":16"),
     encode_modelopt_nv4, ALL, NIB_CODE_NV4, "modelopt", true},
    {"FP8 of ModelOpt", "", MODELOPT("FP8", ""), encode_modelopt_fp8, ALL, NIB_CODE_E4M3,
     "modelopt", false},
    {"FP8 rows of ModelOpt", "", MODELOPT("FP8_PER_CHANNEL_PER_TOKEN", ""), encode_rows, ALL,
     NIB_CODE_E4M3, "modelopt", true},
    {"FP8 blocks of ModelOpt", "", MODELOPT("fp8_pb_wo", ""), encode_modelopt_blocks, ALL,
     NIB_CODE_E4M3, "modelopt", true},
    {"MXFP8 of ModelOpt", "", MODELOPT("MXFP8", ",\"group_size\":32"), encode_mx8, ALL,
     NIB_CODE_MX8, "modelopt", false},
    {"int8 of ModelOpt", "", MODELOPT("W8A16", ""), encode_int8_rows, ALL, NIB_CODE_I8, "modelopt",
     true},
    {"mixed precision of ModelOpt", "",
     MODELOPT(
         "MIXED_PRECISION",
         ",\"quantized_layers\":{\"model.layers.0.self_attn\":{\"quant_algo\":\"FP8\"},"
         "\"model.layers.1.self_attn\":{\"quant_algo\":\"FP8\"},"
         "\"model.layers.0.mlp\":{\"quant_algo\":\"W4A16_NVFP4\",\"group_size\":16},"
         "\"model.layers.1.mlp\":{\"quant_algo\":\"W4A16_NVFP4\",\"group_size\":16},"
         "\"model.layers.0.block_sparse_moe\":{\"quant_algo\":\"W4A16_NVFP4\",\"group_size\":16},"
         "\"model.layers.1.block_sparse_moe\":{\"quant_algo\":\"W4A16_NVFP4\",\"group_size\":16}}"),
     encode_mixed, ALL, NIB_CODE_NV4, "modelopt", false},
};

/* ---- models ---- */

static bool ends_with(const char *name, const char *end)
{
    const size_t size = strlen(name), tail = strlen(end);
    return size >= tail && strcmp(name + size - tail, end) == 0;
}

static bool is_coded(const struct family *family, const struct dialect *d,
                     const nib_graph_weight *w)
{
    if (w->layer < 0 || (d->scope != ROUTERS_TOO && ends_with(w->name, family->router)))
        return false;
    return d->scope != EXPERTS_ONLY || w->experts > 1;
}

static void write_floats(file *f, const char *module, const char *suffix, int64_t n, int64_t k,
                         const float *values)
{
    const int64_t shape[2] = {n, k};
    void *const to = add_tensor(f, module, suffix, "F32", k == 0 ? 1 : 2, shape);
    memcpy(to, values, sizeof *values * (size_t)(n * (k == 0 ? 1 : k)));
}

/* Values of a weight that stays floats. */
static void fill_values(float *to, int64_t count, uint32_t seed, float middle, float spread)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = middle + spread * ((float)(mix(seed, 9, (uint32_t)i) % 4096) / 2048 - 1);
}

/* Writes a model twice: as the tool stores it, and with the same values in f32. */
static void write_model(const char *coded, const char *plain, const struct family *family,
                        const struct dialect *d)
{
    char config[CONFIG_MAX];
    file f, floats;
    opened o = {0};
    nib_err err;
    snprintf(config, sizeof config, family->config, "");
    write_text(plain, "config.json", config);
    snprintf(config, sizeof config, family->config, d->config);
    write_text(coded, "config.json", config);
    if (d->beside != NULL)
        write_text(coded, "hf_quant_config.json", d->beside);
    snprintf(config, sizeof config, "%s/config.json", plain);
    const nib_engine_options options = {.threads = 1};
    assert_int_equal(nib_engine_open(&o.engine, &options, &err), NIB_OK);
    if (nib_model_open(&o.model, o.engine, config, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const nib_graph *graph = &o.model->net.graph;
    begin_file(&f);
    begin_file(&floats);
    for (size_t i = 0; i < graph->weight_count; i++) {
        const nib_graph_weight *w = &graph->weights[i];
        const bool matrix = w->kind == NIB_WEIGHT_MATRIX;
        const char *suffix = w->bare ? "" : ".weight";
        float *const values = calloc((size_t)(w->n * w->k), sizeof *values), *const bias = calloc(
                                                                                 (size_t)w->n,
                                                                                 sizeof *bias);
        assert_true(values != NULL && bias != NULL);
        fill_values(values, w->n * w->k, (uint32_t)i, matrix ? 0 : 1, matrix ? 0.2F : 0.1F);
        fill_values(bias, w->n, (uint32_t)i + 5000, 0, 0.1F);
        if (matrix && is_coded(family, d, w))
            d->encode(&f, &(encoded){w->name, w->n, w->k, (uint32_t)i, values});
        else
            write_floats(&f, w->name, suffix, w->n, matrix ? w->k : 0, values);
        write_floats(&floats, w->name, suffix, w->n, matrix ? w->k : 0, values);
        if (w->bias) {
            write_floats(&f, w->name, ".bias", w->n, 0, bias);
            write_floats(&floats, w->name, ".bias", w->n, 0, bias);
        }
        free(values), free(bias);
    }
    end_file(&f, coded, "model.safetensors");
    end_file(&floats, plain, "model.safetensors");
    close_opened(&o);
}

static nib_status try_strict(opened *o, const char *path, const char *recipe, bool strict,
                             nib_err *err)
{
    const nib_engine_options options = {.threads = 2};
    const nib_request request = {.recipe = recipe, .dtype = "f32", .strict = strict};
    *o = (opened){0};
    nib_status status = nib_engine_open(&o->engine, &options, err);
    if (status == NIB_OK) {
        o->engine->measured = true; /* rates cannot change a bit */
        status = nib_model_open(&o->model, o->engine, path, NULL, err);
    }
    if (status == NIB_OK)
        status = nib_plan_open(&o->plan, o->model, &request, err);
    if (status == NIB_OK)
        status = nib_session_open(&o->session, o->model, o->plan, 1, err);
    if (status != NIB_OK)
        close_opened(o);
    return status;
}

enum { TOKENS = 6 };

/* Logits of a few tokens at once, or one by one. */
static float *logits_of(opened *o, bool alone)
{
    static const int32_t tokens[TOKENS] = {3, 17, 39, 0, 21, 3};
    const int64_t vocab = nib_session_vocab(o->session);
    float *out = calloc((size_t)(TOKENS * vocab), sizeof *out);
    nib_slot slots[TOKENS];
    const float *logits;
    nib_err err;
    assert_non_null(out);
    assert_int_equal(nib_session_truncate(o->session, 0, 0, &err), NIB_OK);
    for (int32_t i = 0; i < TOKENS; i++)
        slots[i] = (nib_slot){0, i, tokens[i], NIB_SLOT_LOGITS};
    for (int i = 0; i < TOKENS; i += alone ? 1 : TOKENS) {
        const int count = alone ? 1 : TOKENS;
        if (nib_session_step(o->session, slots + i, (size_t)count, &logits, &err) != NIB_OK)
            fail_msg("%s", err.text);
        memcpy(out + i * vocab, logits, sizeof *out * (size_t)(count * vocab));
    }
    return out;
}

/* The largest difference over the largest value. */
static double relative_error(const float *got, const float *want, int64_t count)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        assert_true(isfinite(got[i]));
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    return off / size;
}

static void expect_codes(const opened *o, const struct family *family, const struct dialect *d)
{
    const nib_assignment *plan = &o->plan->assignment;
    for (size_t i = 0; i < plan->count; i++) {
        const nib_layer *layer = plan->layers[i].layer;
        if (layer->experts > 1) {
            assert_int_equal(plan->layers[i].done.code, d->code);
            assert_string_equal(nib__checkpoint_dialect(o->model->net.checkpoint, layer->name),
                                d->stored);
        } else if (ends_with(layer->name, family->router)) {
            assert_int_equal(plan->layers[i].done.code,
                             d->scope == ROUTERS_TOO ? d->code : NIB_CODE_F32);
        }
    }
}

static nib_status drop(void *ctx, const char *text, size_t size)
{
    (void)ctx, (void)text, (void)size;
    return NIB_OK;
}

/* Written as Nibble stores them, the codes give the same bits. */
static void check_converted(const opened *from, const float *wanted, const char *name)
{
    char directory[256], out[300];
    const nib_sink sink = {.write = drop};
    opened o;
    nib_err err;
    snprintf(out, sizeof out, "%s/converted", make_directory(directory));
    const nib_convert_options options = {.out = out, .format = "nibble"};
    if (nib_convert(from->model, &options, NIB_FORM_TEXT, &sink, &err) != NIB_OK ||
        try_strict(&o, out, "weight-only", true, &err) != NIB_OK)
        fail_msg("%s, converted: %s", name, err.text);
    float *const got = logits_of(&o, false);
    if (memcmp(got, wanted, sizeof *got * (size_t)(TOKENS * nib_session_vocab(o.session))) != 0)
        fail_msg("%s, converted: other logits", name);
    free(got);
    close_opened(&o);
    drop_directory(out);
    drop_directory(directory);
}

static void check_form(const struct family *family, const struct dialect *d)
{
    char coded[256], plain[256];
    opened want, got;
    nib_err err;
    make_directory(coded);
    make_directory(plain);
    write_model(coded, plain, family, d);
    if (try_strict(&want, plain, NULL, true, &err) != NIB_OK ||
        try_strict(&got, coded, "weight-only", true, &err) != NIB_OK)
        fail_msg("%s, %s: %s", family->name, d->name, err.text);
    expect_codes(&got, family, d);
    float *const wanted = logits_of(&want, false), *const batch = logits_of(&got, false),
                 *const alone = logits_of(&got, true);
    const int64_t count = TOKENS * nib_session_vocab(got.session);
    assert_memory_equal(batch, alone, sizeof *batch * (size_t)count);
    const double error = relative_error(batch, wanted, count);
    if (!(error <= 1e-5))
        fail_msg("%s, %s: relative error %g", family->name, d->name, error);
    check_converted(&got, batch, d->name);
    free(wanted), free(batch), free(alone);
    close_opened(&got);
    close_opened(&want);
    /* with the activations of the file: as it asks, or said */
    const nib_status status = try_strict(&got, coded, NULL, true, &err);
    if (status != (d->strict ? NIB_OK : NIB_NOT_AS_ASKED))
        fail_msg("%s, %s: %s", family->name, d->name, status == NIB_OK ? "accepted" : err.text);
    if (status == NIB_OK)
        close_opened(&got);
    else
        assert_non_null(strstr(err.text, "activations"));
    drop_directory(coded);
    drop_directory(plain);
}

static void test_forms(void **state)
{
    (void)state;
    for (size_t d = 0; d < COUNT(dialects); d++)
        for (size_t f = 0; f < COUNT(families); f++)
            check_form(&families[f], &dialects[d]);
}

/* A router that a tool has quantized runs with its stored codes. A config that says it stays floats
 * is contradicted: refused, or said where the tensors describe themselves. */
static void test_quantized_router(void **state)
{
    (void)state;
    static const struct dialect coded[] = {
        {"FP8 of a router",
         CT_LINEAR("float-quantized", FLOAT8 ",\"strategy\":\"channel\"",
                   ",\"input_activations\":{" FLOAT8 ",\"strategy\":\"token\",\"dynamic\":true}",
                   "\"lm_head\""),
         NULL, encode_rows, ROUTERS_TOO, NIB_CODE_E4M3, "compressed-tensors", true},
        {"int8 of a router", "",
         "{\"quantization\":{\"quant_algo\":\"W8A16\",\"exclude_modules\":[\"lm_head\"]}}",
         encode_int8_rows, ROUTERS_TOO, NIB_CODE_I8, "modelopt", true},
    };
    static const struct dialect contradicted[] = {
        {"FP8 of an ignored router",
         CT_LINEAR("float-quantized", FLOAT8 ",\"strategy\":\"channel\"", "", ROUTERS), NULL,
         encode_rows, ROUTERS_TOO, NIB_CODE_E4M3, "compressed-tensors", false},
        {"int8 of an excluded router", "", MODELOPT("W8A16", ""), encode_int8_rows, ROUTERS_TOO,
         NIB_CODE_I8, "modelopt", false},
    };
    for (size_t f = 0; f < COUNT(families); f++) {
        for (size_t d = 0; d < COUNT(coded); d++)
            check_form(&families[f], &coded[d]);
        for (size_t d = 0; d < COUNT(contradicted); d++) {
            char directory[256], plain[256];
            opened o;
            nib_err err;
            make_directory(directory);
            make_directory(plain);
            write_model(directory, plain, &families[f], &contradicted[d]);
            const nib_status status = try_strict(&o, directory, NULL, true, &err);
            refused(d == 0 ? NIB_BAD_INPUT : NIB_NOT_AS_ASKED, status, &err);
            assert_non_null(strstr(err.text, families[f].router));
            drop_directory(directory);
            drop_directory(plain);
        }
    }
}

/* ---- stacks ---- */

/* Stacks of e4m3: rows with blocks, as transformers keeps them, and transposed with a scale for
 * each output, as Llama 4's FP8 files. Each expert has the values of the definition. */
static void test_stacks(void **state)
{
    (void)state;
    enum { E = 2, I = 8, D = 16, BLOCK = 4 };
    static uint8_t up[E * 2 * I * D], down[E * D * I], across_up[E * 2 * I * D],
        across_down[E * D * I];
    static float up_grid[E * 2 * I / BLOCK * D / BLOCK], down_grid[E * D / BLOCK * I / BLOCK],
        up_rows[E * 2 * I], down_rows[E * D];
    for (int i = 0; i < E * 2 * I * D; i++) {
        const int e = i / (2 * I * D), row = i / D % (2 * I), k = i % D;
        up[i] = (uint8_t)(i * 5 % 0x50);
        across_up[e * 2 * I * D + k * 2 * I + row] = up[i];
    }
    for (int i = 0; i < E * D * I; i++) {
        const int e = i / (D * I), row = i / I % D, k = i % I;
        down[i] = (uint8_t)(0x80 + i * 7 % 0x50);
        across_down[e * D * I + k * D + row] = down[i];
    }
    for (size_t i = 0; i < COUNT(up_grid); i++)
        up_grid[i] = 0.5F + (float)i / 64;
    for (size_t i = 0; i < COUNT(down_grid); i++)
        down_grid[i] = 2 + (float)i / 64;
    for (size_t i = 0; i < COUNT(up_rows); i++)
        up_rows[i] = 1 + (float)i / 32;
    for (size_t i = 0; i < COUNT(down_rows); i++)
        down_rows[i] = 3 - (float)i / 32;
#define STACKS "model.layers.0.mlp.experts."
#define LLAMA4 "model.layers.0.feed_forward.experts."
    const part rows[] = {
        {STACKS "gate_up_proj", "F8_E4M3", 3, {E, 2 * I, D}, up},
        {STACKS "gate_up_proj_scale_inv", "F32", 3, {E, 2 * I / BLOCK, D / BLOCK}, up_grid},
        {STACKS "down_proj", "F8_E4M3", 3, {E, D, I}, down},
        {STACKS "down_proj_scale_inv", "F32", 3, {E, D / BLOCK, I / BLOCK}, down_grid}};
    const part across[] = {{LLAMA4 "gate_up_proj", "F8_E4M3", 3, {E, D, 2 * I}, across_up},
                           {LLAMA4 "gate_up_proj_scale", "F32", 3, {E, 1, 2 * I}, up_rows},
                           {LLAMA4 "down_proj", "F8_E4M3", 3, {E, I, D}, across_down},
                           {LLAMA4 "down_proj_scale", "F32", 3, {E, D, 1}, down_rows}};
    for (int transposed = 0; transposed < 2; transposed++) {
        static const char *const leaves[] = {"gate_proj", "up_proj", "down_proj"};
        made m;
        if (make_checkpoint(
                &m,
                transposed
                    ? "{\"model_type\":\"llama4\"" CODING
                      "\"fbgemm_fp8\",\"activation_scale_ub\":1200.0,\"modules_to_not_convert\":"
                      "[\"lm_head\"]}}"
                    : "{\"model_type\":\"qwen3_moe\"" CODING
                      "\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[4,4]}}",
                transposed ? across : rows, 4) != NIB_OK)
            fail_msg("%s", m.err.text);
        assert_int_equal(nib__checkpoint_module_count(m.cp), 3 * E);
        for (int i = 0; i < 3 * E; i++) {
            const int e = i / 3, leaf = i % 3, n = leaf == 2 ? D : I, k = leaf == 2 ? I : D;
            char module[100];
            float row[D];
            nib_weight w;
            snprintf(module, sizeof module, STACKS "%d.%s", e, leaves[leaf]);
            if (nib__checkpoint_weight(&w, NULL, m.cp, module, NULL, &m.err) != NIB_OK)
                fail_msg("%s", m.err.text);
            assert_string_equal(nib__checkpoint_dialect(m.cp, module), "fp8");
            assert_true(w.n == n && w.k == k);
            assert_int_equal(nib__weight_check_codes(&w, module, &m.err), NIB_OK);
            for (int r = 0; r < n; r++) {
                const int at = leaf == 1 ? I + r : r, all = leaf == 2 ? D : 2 * I;
                nib__weight_row(&w, r, row);
                for (int j = 0; j < k; j++) {
                    const uint8_t code = (leaf == 2 ? down : up)[(e * all + at) * k + j];
                    const float *grid = leaf == 2 ? down_grid : up_grid,
                                *whole = leaf == 2 ? down_rows : up_rows;
                    const float scale =
                        transposed ? whole[e * all + at]
                                   : grid[(e * all + at) / BLOCK * (k / BLOCK) + j / BLOCK];
                    if (row[j] != e4m3(code) * scale)
                        fail_msg("%s: row %d, column %d", module, r, j);
                }
            }
        }
        drop_checkpoint(&m);
    }
    /* a code that is not a number is found in its expert */
    across_up[1 * 2 * I * D + 5 * 2 * I + I + 3] = 0x7f; /* expert 1, row 3 of up, column 5 */
    made m;
    nib_weight w;
    if (make_checkpoint(&m, "{\"model_type\":\"llama4\"" CODING "\"fbgemm_fp8\"}}", across, 4) !=
        NIB_OK)
        fail_msg("%s", m.err.text);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, STACKS "1.up_proj", NULL, &m.err),
                     NIB_OK);
    refused(NIB_BAD_INPUT, nib__weight_check_codes(&w, STACKS "1.up_proj", &m.err), &m.err);
    assert_int_equal(nib__checkpoint_weight(&w, NULL, m.cp, STACKS "0.up_proj", NULL, &m.err),
                     NIB_OK);
    assert_int_equal(nib__weight_check_codes(&w, STACKS "0.up_proj", &m.err), NIB_OK);
    drop_checkpoint(&m);
}

/* ---- lists of modules ---- */

/* ModelOpt's wildcards cross dots; a name stands for the modules below it, never for one that only
 * begins like it. An entry that matches no module gets a line in the ledger. */
static void test_lists(void **state)
{
    (void)state;
    static const struct {
        const char *family, *entry, *module;
        bool kept;
    } cases[] = {
        {"qwen3_moe", "model.layers.0.mlp.gate", "model.layers.0.mlp.gate", true},
        {"qwen3_moe", "model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", false},
        {"qwen3_moe", "model.layers.0.mlp.gate", STACKS "0.gate_proj", false},
        {"qwen3_moe", "*gate_proj", "model.layers.0.mlp.gate", false},
        {"qwen3_moe", "*gate_proj", STACKS "0.gate_proj", true},
        {"qwen3_moe", "*.mlp.gate*", "model.layers.0.mlp.gate_proj", true}, /* as it is written */
        {"qwen3_moe", "model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj", true},
        {"qwen3_moe", "model.layers.0.self_attn", "model.layers.0.self_attn.q_proj", true},
        {"qwen3_moe", "model.layers.0*", "model.layers.0.mlp.gate", true},
        {"qwen3_moe", "model.layers.1*", "model.layers.0.mlp.gate", false},
        {"qwen3_moe", "model.layers.0.mlp.experts", STACKS "11.up_proj", true},
        {"qwen3_moe", "model.layers.0.mlp.experts.1", STACKS "11.up_proj", false},
        {"llama4", "*.router", "model.layers.0.mlp.gate", true},
        {"mixtral", "*block_sparse_moe.gate", "model.layers.0.block_sparse_moe.gate", true},
        {"mixtral", "*.mlp.gate", "model.layers.0.block_sparse_moe.gate", true}, /* its new name */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const bool mixtral = strcmp(cases[i].family, "mixtral") == 0;
        const part one[] = {{mixtral ? "model.layers.0.block_sparse_moe.gate.weight"
                                     : "model.layers.0.mlp.gate.weight",
                             "BF16",
                             2,
                             {4, 32},
                             NULL}};
        char config[400];
        made m;
        bool kept, said = false;
        snprintf(config, sizeof config,
                 "{\"model_type\":\"%s\"" CODING
                 "\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"%s\"]}}",
                 cases[i].family, cases[i].entry);
        if (make_checkpoint(&m, config, one, 1) != NIB_OK)
            fail_msg("%s", m.err.text);
        const nib_quantization *coding = nib__checkpoint_coding(m.cp);
        assert_int_equal(nib__quantization_keeps(&kept, coding, cases[i].module, &m.err), NIB_OK);
        if (kept != cases[i].kept)
            fail_msg("%s in \"%s\"", cases[i].module, cases[i].entry);
        const nib_ledger *ledger = nib__checkpoint_ledger(m.cp);
        for (size_t n = 0; n < ledger->note_count; n++)
            said = said || (strstr(ledger->notes[n].text, "no weight") != NULL &&
                            strstr(ledger->notes[n].text, cases[i].entry) != NULL);
        assert_int_equal(nib__quantization_keeps(&kept, coding,
                                                 mixtral ? "model.layers.0.block_sparse_moe.gate"
                                                         : "model.layers.0.mlp.gate",
                                                 &m.err),
                         NIB_OK);
        if (said == kept)
            fail_msg("\"%s\": a note that it matches nothing is %s", cases[i].entry,
                     said ? "wrong" : "missing");
        drop_checkpoint(&m);
    }
}

/* ---- bad input ---- */

static void expect_modelopt(nib_status wanted, const char *coding, const char *module,
                            const part *parts, size_t count)
{
    char config[700];
    made m;
    nib_weight w;
    snprintf(config, sizeof config, "{\"model_type\":\"qwen3_moe\"" CODING "\"modelopt\"%s}}",
             coding);
    nib_status status = make_checkpoint(&m, config, parts, count);
    if (status == NIB_OK)
        status = nib__checkpoint_weight(&w, NULL, m.cp, module, NULL, &m.err);
    if (wanted == NIB_OK && status != NIB_OK)
        fail_msg("%s", m.err.text);
    if (wanted != NIB_OK)
        refused(wanted, status, &m.err);
    drop_checkpoint(&m);
}

/* What a ModelOpt file lacks, or what contradicts its config, is refused with its names. */
static void test_bad_modelopt(void **state)
{
    (void)state;
#define GATE STACKS "2.gate_proj"
#define FOURS                                                                                      \
    {                                                                                              \
        GATE ".weight", "U8", 2, {8, 16}, NULL                                                     \
    }
#define BLOCKS                                                                                     \
    {                                                                                              \
        GATE ".weight_scale", "F8_E4M3", 2, {8, 2}, NULL                                           \
    }
    static const float one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const float nan_scale[1] = {NAN};
    static const char nv4[] = ",\"quant_algo\":\"NVFP4\"";
    const part whole = {GATE ".weight_scale_2", "F32", 1, {1}, one},
               scalar = {GATE ".weight_scale_2", "F32", 0, {0}, one},
               no_number = {GATE ".weight_scale_2", "F32", 1, {1}, nan_scale},
               smooth = {GATE ".pre_quant_scale", "F32", 1, {32}, NULL},
               eights = {GATE ".weight", "F8_E4M3", 2, {8, 32}, NULL},
               scale = {GATE ".weight_scale", "F32", 0, {0}, one},
               rows = {GATE ".weight_scale", "F32", 1, {8}, one},
               few = {GATE ".weight_scale", "F32", 1, {7}, one},
               narrow = {GATE ".weight_scale", "F8_E4M3", 2, {8, 1}, NULL};
    const struct {
        nib_status status;
        const char *coding;
        part parts[4];
    } cases[] = {
        {NIB_OK, nv4, {FOURS, BLOCKS, whole}},
        {NIB_OK, nv4, {FOURS, BLOCKS, scalar}},
        {NIB_UNSUPPORTED, nv4, {FOURS, BLOCKS, {NULL}}},
        {NIB_BAD_INPUT, nv4, {FOURS, narrow, whole}},
        {NIB_BAD_INPUT, nv4, {FOURS, BLOCKS, no_number}},
        {NIB_UNSUPPORTED, nv4, {FOURS, BLOCKS, whole, smooth}},
        {NIB_BAD_INPUT, nv4, {eights, scale}},
        {NIB_BAD_INPUT, ",\"quant_algo\":\"FP8\"", {FOURS, BLOCKS, whole}},
        {NIB_BAD_INPUT, ",\"quant_algo\":\"NVFP4\",\"group_size\":32", {FOURS, BLOCKS, whole}},
        {NIB_OK, ",\"quant_algo\":\"FP8\"", {eights, scale}},
        {NIB_OK, ",\"quant_algo\":\"fp8_per_channel_per_token\"", {eights, rows}},
        {NIB_BAD_INPUT, ",\"quant_algo\":\"FP8\"", {eights, few}},
        {NIB_OK, nv4, {{GATE ".weight", "BF16", 2, {8, 32}, NULL}}}, /* said when it is opened */
        /* the config */
        {NIB_BAD_INPUT, "", {FOURS, BLOCKS, whole}},
        {NIB_BAD_INPUT, ",\"quant_algo\":\"MIXED_PRECISION\"", {FOURS, BLOCKS, whole}},
        {NIB_UNSUPPORTED, ",\"quant_algo\":\"W4A16_AWQ\"", {FOURS, BLOCKS, whole}},
        {NIB_UNSUPPORTED,
         ",\"quantized_layers\":{\"lm_head\":{\"quant_algo\":\"NVFP9\"}}",
         {FOURS, BLOCKS, whole}},
        {NIB_BAD_INPUT, ",\"quantized_layers\":[\"lm_head\"]", {FOURS, BLOCKS, whole}},
        {NIB_BAD_INPUT, ",\"quantized_layers\":{\"lm_head\":\"NVFP4\"}", {FOURS, BLOCKS, whole}},
        {NIB_BAD_INPUT, ",\"quant_algo\":\"NVFP4\",\"ignore\":\"lm_head\"", {FOURS, BLOCKS, whole}},
        {NIB_BAD_INPUT, ",\"quant_algo\":7", {FOURS, BLOCKS, whole}},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_modelopt(cases[i].status, cases[i].coding, GATE, cases[i].parts, 4);
    /* codes of a module that the config leaves alone: read as stored, and said */
    made m;
    const part parts[] = {FOURS, BLOCKS, whole};
    if (make_checkpoint(&m,
                        "{\"model_type\":\"qwen3_moe\"" CODING
                        "\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"*experts*\"]}}",
                        parts, 3) != NIB_OK)
        fail_msg("%s", m.err.text);
    assert_int_equal(count_settings(nib__checkpoint_ledger(m.cp), "quantization-config", GATE), 1);
    drop_checkpoint(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms),
                                       cmocka_unit_test(test_quantized_router),
                                       cmocka_unit_test(test_stacks), cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_bad_modelopt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
