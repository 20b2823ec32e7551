/* SPDX-License-Identifier: Apache-2.0
 *
 * Meta's names and row order: both directions of the table, whole files, gpt-fast's fused weight,
 * and the model in params.json.
 */
#include "checkpoint_build.h"
#include "config_meta.h"
#include "ledger_lines.h"
#include "renames_meta.h"
#include "rotary.h"
#include "skipping.h"

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *theirs, *ours;
        bool both;
    } cases[] = {
        {"tok_embeddings.weight", "model.embed_tokens.weight", true},
        {"norm.weight", "model.norm.weight", true},
        {"norm.scale", "model.norm.weight", false},
        {"output.weight", "lm_head.weight", true},
        {"output.scales", "lm_head.scales", true},
        {"layers.0.attention_norm.weight", "model.layers.0.input_layernorm.weight", true},
        {"layers.12.attention.wq.weight", "model.layers.12.self_attn.q_proj.weight", true},
        {"layers.12.attention.wq.bias", "model.layers.12.self_attn.q_proj.bias", true},
        {"layers.1.attention.wo.scales", "model.layers.1.self_attn.o_proj.scales", true},
        {"layers.1.attention.wk.adaptor.A.weight",
         "model.layers.1.self_attn.k_proj.adaptor.A.weight", true},
        {"layers.1.feed_forward.w1.weight", "model.layers.1.mlp.gate_proj.weight", true},
        {"layers.1.feed_forward.w2.zeros", "model.layers.1.mlp.down_proj.zeros", true},
        {"layers.1.feed_forward.w3.weight", "model.layers.1.mlp.up_proj.weight", true},
        {"layers.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight", true},
        {"layers.1.attention.wqkv.scales_and_zeros",
         "model.layers.1.self_attn.qkv_proj.scales_and_zeros", true},
        {"layers.1.sa_norm.scale", "model.layers.1.input_layernorm.weight", false},
        {"layers.1.mlp_norm.scale", "model.layers.1.post_attention_layernorm.weight", false},
        {"layers.1.attn.output_proj.weight", "model.layers.1.self_attn.o_proj.weight", false},
        {"layers.1.attn.q_proj.bias", "model.layers.1.self_attn.q_proj.bias", false},
        {"layers.1.mlp.w2.weight", "model.layers.1.mlp.down_proj.weight", false},
    };
    static const char *const unknown[] = {"",
                                          "norm",
                                          "layers.1.attention.wx.weight",
                                          "layers..attention.wq.weight",
                                          "freqs_cos",
                                          "layers.1x.norm",
                                          "layers.1.attention.wq",
                                          "model.norm.weight",
                                          "layers.99999999999.attention.wq.weight"};
    char out[NIB_META_NAME_MAX];
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_true(nib__rename_from_meta(out, cases[i].theirs));
        assert_string_equal(out, cases[i].ours);
        if (!cases[i].both)
            continue;
        assert_true(nib__rename_to_meta(out, cases[i].ours));
        assert_string_equal(out, cases[i].theirs);
    }
    for (size_t i = 0; i < COUNT(unknown); i++)
        assert_false(nib__rename_from_meta(out, unknown[i]));
}

/* ---- files ---- */

enum { WIDTH = 8, VOCAB = 3 };

/* tok_embeddings [3][8], wqkv [8 + 2 * 4][8] with a bias, wo [8][8] in F32; value = its index. */
static void write_fused(const char *directory, const char *prefix)
{
    static const char *const names[] = {"tok_embeddings.weight", "layers.0.attention.wqkv.weight",
                                        "layers.0.attention.wqkv.bias",
                                        "layers.0.attention.wo.weight"};
    static const int rows[] = {VOCAB, 16, 16, 8}, columns[] = {WIDTH, WIDTH, 1, WIDTH};
    float data[400];
    char header[1000];
    size_t used = 0, at = 0;
    for (size_t i = 0; i < COUNT(data); i++)
        data[i] = (float)i;
    for (size_t i = 0; i < COUNT(names); i++) {
        const size_t bytes = (size_t)(rows[i] * columns[i]) * sizeof *data;
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 columns[i] == 1 ? "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%d],"
                                                   "\"data_offsets\":[%zu,%zu]}"
                                                 : "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%d,8],"
                                                   "\"data_offsets\":[%zu,%zu]}",
                                 i == 0 ? "{" : ",", prefix, names[i], rows[i], at, at + bytes);
        at += bytes;
    }
    snprintf(header + used, sizeof header - used, "}");
    write_safetensors(directory, "m.safetensors", header, data, at);
}

static nib_checkpoint *open_in(const char *directory)
{
    char path[512];
    snprintf(path, sizeof path, "%s/m.safetensors", directory);
    return open_ok(path);
}

static nib_status weight(nib_weight *w, const nib_checkpoint *cp, const char *which, nib_err *err)
{
    char module[100];
    snprintf(module, sizeof module, "model.layers.0.self_attn.%s", which);
    return nib__checkpoint_weight(w, NULL, cp, module, NULL, err);
}

static void test_fused(void **state)
{
    (void)state;
    static const char *const modules[] = {"q_proj", "k_proj", "v_proj"};
    static const int first[] = {0, 8, 12}, count[] = {8, 4, 4};
    char dir[256];
    make_directory(dir);
    write_fused(dir, "_orig_mod.");
    write_text(dir, "params.json", "{\"dim\": 8, \"n_heads\": 2, \"n_kv_heads\": 1}");
    nib_checkpoint *cp = open_in(dir);
    assert_int_equal(nib__checkpoint_count(cp), 8);
    assert_int_equal(nib__checkpoint_ledger(cp)->note_count, 3);
    assert_null(nib__checkpoint_find(cp, "model.layers.0.self_attn.qkv_proj.weight"));
    for (int m = 0; m < 3; m++) {
        nib_weight w;
        nib_err err;
        float row[WIDTH], bias;
        assert_int_equal(weight(&w, cp, modules[m], &err), NIB_OK);
        assert_int_equal(w.n, count[m]);
        assert_int_equal((w.rows != NULL), (m < 2));
        for (int i = 0; i < w.n; i++) {
            /* heads of 4: rows 0 1 2 3 are Meta's rows 0 2 1 3 */
            static const int order[] = {0, 2, 1, 3};
            const int at = first[m] + (m < 2 ? i / 4 * 4 + order[i % 4] : i);
            nib__weight_row(&w, i, row);
            for (int j = 0; j < WIDTH; j++)
                assert_float_equal(row[j], VOCAB * WIDTH + at * WIDTH + j, 0);
            memcpy(&bias, (const char *)w.bias + i * 4, sizeof bias);
            assert_float_equal(bias, VOCAB * WIDTH + 16 * WIDTH + at, 0);
        }
    }
    nib__checkpoint_close(cp);
    char path[300];
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    check_memory_of_reading(path);
    drop_directory(dir);
}

/* Whole files: which names are Meta's, and fused weights that cannot be split. */
static void test_files(void **state)
{
    (void)state;
    char far[100];
    memset(far, 'p', sizeof far);
    snprintf(far + 70, sizeof far - 70, ".tok_embeddings.weight");
    static const char described[] = "\"tok_embeddings.weight\":\"output.weight\"";
    char *long_value = malloc(900);
    assert_non_null(long_value);
    snprintf(long_value, 900, "\"layers.0.attention.wq.weight\":\"%0800d\"", 0);
    const struct {
        const char *metadata;
        part parts[4];
        size_t count;
        nib_status status;
        const char *name; /* of a tensor afterwards */
    } cases[] = {
        {NULL, {{far, "F32", 2, {3, 8}, NULL}}, 1, NIB_OK, far}, /* the prefix is too long */
        {NULL,
         {{"xtok_embeddings.weight", "F32", 2, {3, 8}, NULL}},
         1,
         NIB_OK,
         "xtok_embeddings.weight"},
        {NULL,
         {{"_orig_mod.model.embed_tokens.weight", "F32", 2, {3, 8}, NULL},
          {"other", "F32", 1, {3}, NULL}},
         2,
         NIB_OK,
         "model.embed_tokens.weight"},
        {long_value,
         {{"tok_embeddings.weight", "F32", 2, {3, 8}, NULL}, {"odd", "F32", 1, {3}, NULL}},
         2,
         NIB_OK,
         "model.embed_tokens.weight"},
        /* q has the rows that o has inputs, or else the width of the embedding */
        {NULL,
         {{"tok_embeddings.weight", "F32", 2, {3, 8}, NULL},
          {"layers.0.attention.wqkv.weight", "F32", 2, {16, 8}, NULL}},
         2,
         NIB_OK,
         "model.layers.0.self_attn.k_proj.weight"},
        {NULL,
         {{"tok_embeddings.weight", "F32", 1, {8}, NULL},
          {"layers.0.attention.wqkv.weight", "F32", 2, {16, 8}, NULL}},
         2,
         NIB_UNSUPPORTED,
         NULL},
        {described,
         {{"output.weight", "F32", 2, {3, 8}, NULL},
          {"layers.0.attention.wqkv.weight", "F32", 2, {16, 8}, NULL}},
         2,
         NIB_UNSUPPORTED,
         NULL},
        {NULL,
         {{"tok_embeddings.weight", "F32", 2, {3, 8}, NULL},
          {"layers.0.attention.wqkv.weight", "F32", 2, {8, 8}, NULL}},
         2,
         NIB_UNSUPPORTED,
         NULL}, /* no rows for k and v */
        {NULL,
         {{"tok_embeddings.weight", "F32", 2, {3, 8}, NULL},
          {"layers.0.attention.wqkv.weight", "F32", 2, {17, 8}, NULL}},
         2,
         NIB_UNSUPPORTED,
         NULL}, /* an odd number of them */
        {NULL,
         {{"tok_embeddings.weight", "F32", 2, {3, 8}, NULL},
          {"layers.0.attention.wqkv.weight", "F32", 0, {0}, NULL}},
         2,
         NIB_UNSUPPORTED,
         NULL},
        {NULL,
         {{"tok_embeddings.weight", "F32", 2, {3, 16}, NULL},
          {"layers.0.attention.wqkv.weight", "I32", 4, {4, 1, 32, 1}, NULL}},
         2,
         NIB_OK,
         "model.layers.0.self_attn.v_proj.weight"}, /* 32 rows: 16, 8 and 8 */
        {NULL,
         {{"tok_embeddings.weight", "F32", 2, {3, 12}, NULL},
          {"layers.0.attention.wqkv.weight", "I32", 4, {4, 1, 32, 1}, NULL}},
         2,
         NIB_UNSUPPORTED,
         NULL}, /* q would end inside a tile */
        {NULL,
         {{"tok_embeddings.weight", "F32", 2, {3, 16}, NULL},
          {"layers.0.attention.wqkv.weight", "I32", 4, {5, 1, 32, 1}, NULL}},
         2,
         NIB_UNSUPPORTED,
         NULL}, /* k would */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        made m;
        const nib_status got =
            make_described(&m, cases[i].metadata, NULL, cases[i].parts, cases[i].count);
        if (cases[i].status != NIB_OK)
            refused(cases[i].status, got, &m.err);
        else if (got != NIB_OK)
            fail_msg("case %zu: %s", i, m.err.text);
        else if (nib__checkpoint_find(m.cp, cases[i].name) == NULL)
            fail_msg("case %zu: no %s", i, cases[i].name);
        check_memory_of_reading(m.dir);
        drop_checkpoint(&m);
    }
    free(long_value);
}

/* An unknown number of heads is refused, not guessed; rows declared in Hugging Face's order keep
 * it. */
static void test_row_order(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text;
        int rows; /* -1: refused, 0: unchanged, 1: from pairs */
    } cases[] = {
        {NULL, NULL, -1},
        {"params.json", "{}", -1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 0}", -1},
        {"params.json", "{\"dim\": -8, \"n_heads\": 2}", -1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 3}", -1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 65537, \"head_dim\": 2}", -1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 2, \"head_dim\": 16777216}", -1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 2, \"head_dim\": 1}", -1},
        {"params.json", "{\"dim\": null, \"n_heads\": 2, \"model_type\": null}", -1},
        {"params.json",
         "{\"dim\": 8, \"n_heads\": 4, \"use_hf_rope\": false, \"model_type\": \"q\"}", 1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 8}", -1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 4}", 1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 4, \"use_hf_rope\": true}", 0},
        {"params.json", "{\"dim\": 8, \"n_heads\": 1, \"head_dim\": 4}", -1},
        {"params.json", "{\"dim\": 8, \"n_heads\": 2, \"head_dim\": 6}", -1},
        {"config.json", "{\"model_type\": \"qwen2\", \"hidden_size\": 8}", 0},
        {"config.json",
         "{\"model_type\": \"llama\", \"hidden_size\": 8, "
         "\"num_attention_heads\": 2}",
         1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char dir[256];
        nib_weight w;
        nib_err err;
        make_directory(dir);
        write_fused(dir, "");
        if (cases[i].file != NULL)
            write_text(dir, cases[i].file, cases[i].text);
        nib_checkpoint *cp = open_in(dir);
        const nib_status status = weight(&w, cp, "q_proj", &err);
        if (cases[i].rows < 0)
            refused(NIB_BAD_INPUT, status, &err);
        else {
            assert_int_equal(status, NIB_OK);
            assert_int_equal((w.rows != NULL), cases[i].rows);
        }
        nib__checkpoint_close(cp);
        drop_directory(dir);
    }
}

/* Errors in a file beside the weights. */
static void test_bad_sizes(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "{\"dim\": 8, \"n_heads\": }", "{\"dim\": \"8\"}",     "{\"dim\": 8.5}",
        "{\"use_hf_rope\": 1}",        "{\"model_type\": []}", "{\"dim\": []}",
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const nib_allocator a = nib__allocator_default();
        char dir[256], path[300];
        nib_checkpoint *cp;
        nib_err err = {NIB_OK, ""};
        make_directory(dir);
        write_fused(dir, "");
        write_text(dir, "params.json", cases[i]);
        snprintf(path, sizeof path, "%s/m.safetensors", dir);
        refused(NIB_BAD_INPUT, nib__checkpoint_open(&cp, path, &a, &err), &err);
        drop_directory(dir);
    }
}

/* ---- params.json ---- */

static nib_status parse_with_ledger(nib_config *c, const char *params, nib_ledger *ledger,
                                    nib_err *err)
{
    char dir[256];
    make_directory(dir);
    write_fused(dir, "");
    write_text(dir, "params.json", params);
    nib_checkpoint *cp = open_in(dir);
    const nib_status status = nib__config_meta(c, cp, ledger, err);
    nib__checkpoint_close(cp);
    drop_directory(dir);
    return status;
}

static nib_status parse(nib_config *c, const char *params, nib_err *err)
{
    return parse_with_ledger(c, params, NULL, err);
}

#define SMALL "\"dim\": 8, \"n_heads\": 2, \"n_layers\": 1, "

static void test_params(void **state)
{
    (void)state;
    nib_config c;
    nib_err err;
    /* Llama 3.2 1B's, as Meta publishes it */
    assert_int_equal(parse(&c,
                           "{\"dim\": 2048, \"ffn_dim_multiplier\": 1.5, \"multiple_of\": 256, "
                           "\"n_heads\": 32, \"n_kv_heads\": 8, \"n_layers\": 16, \"norm_eps\": "
                           "1e-05, \"rope_theta\": 500000.0, \"use_scaled_rope\": true, "
                           "\"vocab_size\": 128256}",
                           &err),
                     NIB_OK);
    assert_int_equal(c.ffn, 8192);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.kv_heads, 8);
    assert_int_equal(c.rope, NIB_ROPE_LLAMA3);
    assert_float_equal(c.rope_factor, 32, 0);
    assert_int_equal(c.context, 131072);
    assert_int_equal(c.bos, 128000);
    assert_int_equal(c.eos_count, 3);
    assert_true(c.tied);
    /* Llama 2 7B's: the embedding gives the vocabulary */
    assert_int_equal(parse(&c,
                           "{\"dim\": 4096, \"multiple_of\": 256, \"n_heads\": 32, \"n_layers\": "
                           "32, \"norm_eps\": 1e-05, \"vocab_size\": -1}",
                           &err),
                     NIB_OK);
    assert_int_equal(c.ffn, 11008);
    assert_int_equal(c.kv_heads, 32);
    assert_int_equal(c.vocab, VOCAB);
    assert_int_equal(c.rope, NIB_ROPE_PLAIN);
    assert_int_equal(c.context, 2048);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(
        parse(&c, "{\"dim\": 8, \"n_heads\": 2, \"n_layers\": 1, \"max_seq_len\": 1}", &err),
        NIB_OK);
    assert_int_equal(c.context, 1); /* the smallest; not one derived from rope_theta */
    static const struct {
        const char *params;
        nib_status status;
    } bad[] = {
        {"{\"dim\": 8, \"n_heads\": 2}", NIB_BAD_INPUT}, /* no n_layers */
        {"{\"dim\": 8, \"n_heads\": 2, \"n_layers\": 1, \"quantization_args\": {\"spinquant\": "
         "true}}",
         NIB_UNSUPPORTED},
        {"{\"dim\": 8, \"n_heads\": 2, \"n_layers\": 1, \"sliding_window\": 100}", NIB_UNSUPPORTED},
        {"{\"dim\": 8, \"n_heads\": 2, \"n_layers\": 1, \"moe\": {}}", NIB_BAD_INPUT}, /* experts */
        {"{\"dim\": 8, \"n_heads\": 2, \"n_layers\": \"1\"}", NIB_BAD_INPUT},
        {"{\"n_kv_heads\": 0}", NIB_BAD_INPUT},
        {"{\"max_seq_len\": 0}", NIB_BAD_INPUT},
        {"{\"rope_theta\": -1}", NIB_BAD_INPUT},
        {"{\"ffn_dim_multiplier\": NaN}", NIB_BAD_INPUT},
        {"{\"vocab_size\": -2}", NIB_BAD_INPUT},
        {"{\"dim\": 8, \"n_heads\": 3}", NIB_BAD_INPUT},
        {"{\"vocab_size\": \"8\"}", NIB_BAD_INPUT},
        {"{\"vocab_size\": 1.5}", NIB_BAD_INPUT},
        {"{\"quantization_args\": 1}", NIB_BAD_INPUT},
        {"{\"quantization_args\": {\"spinquant\": 1}}", NIB_BAD_INPUT},
        {"{" SMALL "\"multiple_of\": 16777217}", NIB_BAD_INPUT},
        {"{" SMALL "\"ffn_dim_multiplier\": 0.01}", NIB_BAD_INPUT},
        {"{" SMALL "\"ffn_dim_multiplier\": 1e9}", NIB_BAD_INPUT},
        {"{\"dim\": 16777224, \"n_heads\": 2, \"n_layers\": 1}", NIB_BAD_INPUT},
        {"{\"n_heads\": 2, \"n_layers\": 1}", NIB_BAD_INPUT}, /* no dim */
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        refused(bad[i].status, parse(&c, bad[i].params, &err), &err);
}

/* Rope values without effect, unread keys, token ids. */
static void test_params_without_effect(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_config c;
    nib_err err;
    nib_ledger ledger;
    static const struct {
        const char *code, *name, *asked;
    } want[] = {{"config-key", "ffn_type", "x"},
                {"rope", "rope_freq_base", "500000"},
                {"rope", "rope_scaling_factor", "4"},
                {"rope", "low_freq_factor", "2"}};
    nib__ledger_init(&ledger, &a);
    assert_int_equal(
        parse_with_ledger(&c,
                          "{\"dim\": 8, \"n_heads\": 2, \"n_layers\": 1, \"hidden_dim\": 12, "
                          "\"vocab_size\": -1, \"max_seq_len\": 64, \"ffn_type\": \"x\", "
                          "\"rope_theta\": 10000, \"rope_freq_base\": 5e5, "
                          "\"rope_scaling_factor\": 4, \"low_freq_factor\": 2, \"bos_idx\": 3, "
                          "\"eos_idx\": [4, 5], \"quantization_args\": {\"scheme\": \"x\"}}",
                          &ledger, &err),
        NIB_OK);
    assert_int_equal(ledger.setting_count, COUNT(want));
    for (size_t i = 0; i < COUNT(want); i++) {
        assert_string_equal(ledger.settings[i].code, want[i].code);
        assert_string_equal(ledger.settings[i].name, want[i].name);
        assert_string_equal(ledger.settings[i].asked, want[i].asked);
    }
    assert_float_equal(c.rope_theta, 10000, 0);
    assert_int_equal(c.bos, 3);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos[1], 5);
    assert_true(c.quantized); /* so the stored weights must be quantized */
    nib__ledger_free(&ledger);
}

/* RoPE and context as the keys give them, or as models of this size have them. */
static void test_params_of_rope(void **state)
{
    (void)state;
    static const struct {
        const char *params;
        double theta, factor, low, high; /* factor 0: plain */
        int64_t context;
        size_t notes;
    } cases[] = {
        {SMALL "\"max_seq_len\": 64", 10000, 0, 0, 0, 64, 0},
        {SMALL "\"rope_theta\": 500000", 500000, 0, 0, 0, 8192, 1},
        {SMALL "\"rope_freq_base\": 600000", 600000, 0, 0, 0, 8192, 1},
        {SMALL "\"rope_theta\": 7, \"rope_freq_base\": 7", 7, 0, 0, 0, 2048, 1},
        {SMALL "\"use_scaled_rope\": true", 10000, 8, 1, 4, 131072, 2},
        {SMALL "\"use_scaled_rope\": true, \"rope_scaling_factor\": 4, \"low_freq_factor\": 2, "
               "\"high_freq_factor\": 3",
         10000, 4, 2, 3, 131072, 1},
        {"\"dim\": 2048, \"n_heads\": 32, \"n_layers\": 16, \"use_scaled_rope\": true", 10000, 32,
         1, 4, 131072, 2},
        {"\"dim\": 2048, \"n_heads\": 32, \"n_layers\": 17, \"use_scaled_rope\": true", 10000, 8, 1,
         4, 131072, 2},
        {"\"dim\": 3072, \"n_heads\": 24, \"n_layers\": 28, \"use_scaled_rope\": true", 10000, 32,
         1, 4, 131072, 2},
        {"\"dim\": 3072, \"n_heads\": 24, \"n_layers\": 27, \"use_scaled_rope\": true", 10000, 8, 1,
         4, 131072, 2},
        {SMALL "\"max_seq_len\": 64, \"sliding_window\": 64", 10000, 0, 0, 0, 64, 0},
        /* null, false and what asks for nothing */
        {SMALL "\"max_seq_len\": 64, \"vocab_size\": null, \"moe\": null, \"qk_norm\": false, "
               "\"quantization_args\": null, \"dropout\": 0.1, \"of_tomorrow\": null, "
               "\"of_late\": {}, \"sliding_window\": null",
         10000, 0, 0, 0, 64, 0},
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        char params[400];
        nib_config c;
        nib_ledger ledger;
        nib_err err;
        nib__ledger_init(&ledger, &a);
        snprintf(params, sizeof params, "{%s}", cases[i].params);
        if (parse_with_ledger(&c, params, &ledger, &err) != NIB_OK)
            fail_msg("%s: %s", params, err.text);
        assert_float_equal(c.rope_theta, cases[i].theta, 0);
        assert_int_equal(c.rope, cases[i].factor > 0 ? NIB_ROPE_LLAMA3 : NIB_ROPE_PLAIN);
        if (cases[i].factor > 0) {
            assert_float_equal(c.rope_factor, cases[i].factor, 0);
            assert_float_equal(c.rope_low, cases[i].low, 0);
            assert_float_equal(c.rope_high, cases[i].high, 0);
        }
        assert_int_equal(c.context, cases[i].context);
        assert_int_equal(ledger.setting_count, cases[i].notes);
        assert_false(c.quantized);
        nib__ledger_free(&ledger);
    }
}

/* Values at and past their limits, and what is noted. */
static void test_params_limits(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        nib_status status;
        const char *words; /* of the only note; NULL: none */
    } cases[] = {
        {"\"hidden_dim\":12", NIB_OK, NULL},
        {"\"multiple_of\":16777216", NIB_OK, NULL},
        {"\"multiple_of\":1", NIB_OK, NULL},
        {"\"multiple_of\":0", NIB_BAD_INPUT, NULL},
        {"\"ffn_dim_multiplier\":798915.0477,\"multiple_of\":16777215", NIB_BAD_INPUT,
         NULL}, /* 16,777,216 rounded up */
        {"\"hidden_dim\":16777217", NIB_BAD_INPUT, NULL},
        {"\"ffn_dim_multiplier\":1e-9", NIB_BAD_INPUT, NULL},
        {"\"ffn_dim_multiplier\":null", NIB_OK, NULL},
        {"\"ffn_dim_multiplier\":Infinity", NIB_BAD_INPUT, NULL},
        {"\"ffn_dim_multiplier\":\"1\"", NIB_BAD_INPUT, NULL},
        {"\"vocab_size\":0", NIB_BAD_INPUT, NULL},
        {"\"sliding_window\":63", NIB_UNSUPPORTED, NULL},
        {"\"quantization_args\":{\"spinquant\":false,\"x\":[1]}", NIB_OK, NULL},
        {"\"partial_rotary_factor\":1", NIB_BAD_INPUT, NULL},
        {"\"dropout\":0.5,\"lora_args\":{\"a\":[1]}", NIB_OK, NULL},
        {"\"unknown\":[1]", NIB_OK, "unknown"},
        {"\"rope_theta\":500000,\"rope_freq_base\":500000", NIB_OK, NULL},
        {"\"rope_theta\":500000,\"rope_freq_base\":5", NIB_OK, "takes precedence"},
        {"\"high_freq_factor\":4", NIB_OK, "use_scaled_rope is not true"},
        {"\"use_scaled_rope\":true", NIB_OK, "8 is used"},
        {"\"use_scaled_rope\":true,\"rope_scale_factor\":16", NIB_OK, NULL},
        {"\"use_scaled_rope\":true,\"rope_scale_factor\":16,\"low_freq_factor\":2,"
         "\"high_freq_factor\":8",
         NIB_OK, NULL},
        {"\"use_scaled_rope\":7", NIB_BAD_INPUT, NULL},
        {"\"max_seq_len\":null,\"rope_theta\":500000", NIB_OK, "8192 is used"},
        {"\"max_seq_len\":null,\"use_scaled_rope\":true,\"rope_scale_factor\":8", NIB_OK,
         "131072 is used"},
        {"\"bos_idx\":[3,4]", NIB_BAD_INPUT, NULL},
        {"\"norm_eps\":1", NIB_BAD_INPUT, NULL},
        {"\"head_dim\":3", NIB_BAD_INPUT, NULL},
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[500];
        nib_config c;
        nib_ledger notes;
        nib_err err = {NIB_OK, ""};
        nib__ledger_init(&notes, &a);
        snprintf(text, sizeof text, "{" SMALL "\"vocab_size\":-1,%s%s}", cases[i].more,
                 strstr(cases[i].more, "max_seq_len") != NULL ? "" : ",\"max_seq_len\":64");
        const nib_status status = parse_with_ledger(&c, text, &notes, &err);
        const size_t wanted = cases[i].words != NULL;
        if (status != cases[i].status || (status == NIB_OK && notes.setting_count != wanted) ||
            (wanted && count_settings(&notes, NULL, cases[i].words) != 1))
            fail_msg("%s: %s %s, %zu notes", text, nib_status_name(status), err.text,
                     notes.setting_count);
        if (status != NIB_OK)
            refused(cases[i].status, status, &err);
        nib__ledger_free(&notes);
    }
}

/* With a head of its own a model is not tied. */
static void test_params_of_a_head(void **state)
{
    (void)state;
    static const float data[32] = {0};
    char dir[256];
    nib_config c;
    nib_err err = {NIB_OK, ""};
    make_directory(dir);
    write_safetensors(dir, "m.safetensors",
                      "{\"output.weight\":{\"dtype\":\"F32\",\"shape\":[2,8],"
                      "\"data_offsets\":[0,64]},\"tok_embeddings.weight\":{\"dtype\":\"F32\","
                      "\"shape\":[2,8],\"data_offsets\":[64,128]}}",
                      data, sizeof data);
    write_text(dir, "params.json", "{" SMALL "\"vocab_size\":-1,\"max_seq_len\":64}");
    nib_checkpoint *cp = open_in(dir);
    assert_int_equal(nib__config_meta(&c, cp, NULL, &err), NIB_OK);
    assert_true(!c.tied && c.vocab == 2);
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

/* A file that was cut anywhere is refused, by the checkpoint or by the config. */
static void test_params_prefixes(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char text[] =
        "{" SMALL "\"vocab_size\":-1,\"norm_eps\":1e-5,\"quantization_args\":{\"spinquant\":false,"
        "\"x\":[1]},\"eos_idx\":[4,5],\"moe\":null,\"unknown\":{\"a\":\"b\"},"
        "\"dropout\":0,\"use_qk_norm\":false}";
    char dir[256], path[300];
    make_directory(dir);
    write_fused(dir, "");
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    for (size_t size = sizeof text; size-- > 0;) {
        nib_checkpoint *cp;
        nib_config c;
        nib_err err = {NIB_OK, ""};
        text[size] = 0;
        write_text(dir, "params.json", text);
        nib_status status = nib__checkpoint_open(&cp, path, &a, &err);
        if (status == NIB_OK) {
            status = nib__config_meta(&c, cp, NULL, &err);
            nib__checkpoint_close(cp);
        }
        if (status != (size == sizeof text - 1 ? NIB_OK : NIB_BAD_INPUT))
            fail_msg("%s: %s %s", text, nib_status_name(status), err.text);
    }
    drop_directory(dir);
}

/* karpathy's stories260K: 45 tensors of five layers, tied, arguments inside. */
static void test_stories(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    const char *data = test_data();
    char path[512];
    nib_checkpoint *cp = NULL;
    nib_config c;
    nib_err err;
    snprintf(path, sizeof path, "%s/weights/stories260K/stories260K.pt", data);
    assert_int_equal(nib__checkpoint_open(&cp, path, &a, &err), NIB_OK);
    assert_int_equal(nib__checkpoint_count(cp), 47);
    assert_string_equal(nib__checkpoint_alias(cp, "lm_head.weight")->value,
                        "model.embed_tokens.weight");
    assert_int_equal(nib__config_meta(&c, cp, NULL, &err), NIB_OK);
    assert_int_equal(c.layers, 5);
    assert_int_equal(c.ffn, 172);
    assert_int_equal(c.context, 512);
    assert_true(c.tied);
    nib_weight w;
    assert_int_equal(weight(&w, cp, "q_proj", &err), NIB_OK);
    assert_int_equal(w.rows[1], 2);
    assert_int_equal(w.rows[4], 1);
    nib__checkpoint_close(cp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_row_order),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_params_without_effect),
        cmocka_unit_test(test_params_of_rope),
        cmocka_unit_test(test_params_limits),
        cmocka_unit_test(test_params_of_a_head),
        cmocka_unit_test(test_params_prefixes),
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_bad_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
