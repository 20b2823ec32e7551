/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json and generation_config.json: every key that is read, every refusal, and the
 * rope tables.
 */
#include "generation_config.h"

#include "failing.h"
#include "ledger_lines.h"
#include "parsed_config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "refused.h"

static void test_takes_sizes(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "llama", "");
    assert_int_equal(p.status, NIB_OK);
    const nib_config *c = &p.config;
    assert_int_equal(c->arch, NIB_ARCH_LLAMA);
    assert_string_equal(nib__arch_name(c->arch), "llama");
    assert_int_equal(c->width, 64);
    assert_int_equal(c->ffn, 172);
    assert_int_equal(c->layers, 2);
    assert_int_equal(c->heads, 4);
    assert_int_equal(c->kv_heads, 2);
    assert_int_equal(c->head_dim, 16);
    assert_int_equal(c->vocab, 300);
    assert_int_equal(c->context, 1024);
    assert_true(c->norm_eps == 1e-6);
    assert_true(c->rope_theta == 10000.0);
    assert_int_equal(c->rope, NIB_ROPE_PLAIN);
    assert_false(c->qkv_bias || c->o_bias || c->mlp_bias || c->qk_norm || c->tied);
    assert_int_equal(c->dtype, NIB_TYPE_NONE);
    assert_int_equal(c->bos, -1);
    assert_int_equal(c->eos_count, 0);
    assert_int_equal(p.ledger.setting_count, 0);
    close_parsed(&p);
}

static void test_takes_options(void **state)
{
    (void)state;
    parsed p;
    open_config(
        &p, "llama",
        "\"head_dim\":24,\"rms_norm_eps\":1e-5,\"rope_theta\":500000,\"hidden_act\":\"silu\","
        "\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true,"
        "\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,\"eos_token_id\":[2,5,7],"
        "\"quantization_config\": {\"quant_method\":\"torchao\",\"x\":[1,{}]}, "
        "\"use_cache\":true,\"architectures\":[\"LlamaForCausalLM\"],\"pretraining_tp\":1");
    assert_int_equal(p.status, NIB_OK);
    const nib_config *c = &p.config;
    assert_int_equal(c->head_dim, 24);
    assert_true(c->norm_eps == 1e-5);
    assert_true(c->rope_theta == 500000.0);
    assert_true(c->qkv_bias && c->o_bias && c->mlp_bias && c->tied);
    assert_int_equal(c->dtype, NIB_TYPE_BF16);
    assert_int_equal(c->bos, 1);
    assert_int_equal(c->eos_count, 3);
    assert_int_equal(c->eos[0], 2);
    assert_int_equal(c->eos[2], 7);
    assert_int_equal(p.ledger.setting_count, 0);
    close_parsed(&p);
}

static void test_architectures(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "qwen2", "");
    assert_true(p.config.qkv_bias && !p.config.o_bias && !p.config.qk_norm);
    assert_int_equal(p.config.arch, NIB_ARCH_QWEN2);
    close_parsed(&p);
    open_config(&p, "qwen3", "\"head_dim\":24");
    assert_true(!p.config.qkv_bias && !p.config.o_bias && p.config.qk_norm);
    close_parsed(&p);
    open_config(&p, "qwen3", "\"attention_bias\":true");
    assert_true(p.config.qkv_bias && p.config.o_bias);
    assert_int_equal(p.config.head_dim, 128); /* transformers' default if the key is absent */
    close_parsed(&p);
    open_config(&p, "mistral", "\"sliding_window\":null");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.config.arch, NIB_ARCH_MISTRAL);
    close_parsed(&p);
}

/* Absent keys have transformers' defaults; null means "derive it". */
static void test_absent_keys_have_defaults(void **state)
{
    (void)state;
    parsed p;
    open_text(&p, "{\"model_type\":\"llama\"," SIZES "}");
    assert_int_equal(p.config.kv_heads, 4);
    close_parsed(&p);
    open_text(&p, "{\"model_type\":\"llama\",\"num_key_value_heads\":null,\"head_dim\":null," SIZES
                  "}");
    assert_int_equal(p.config.kv_heads, 4);
    assert_int_equal(p.config.head_dim, 16);
    close_parsed(&p);
    open_text(&p, "{\"model_type\":\"mistral\"," SIZES "}");
    refused(NIB_BAD_INPUT, p.status, &p.err); /* 8 heads of keys by default */
    close_parsed(&p);
    open_text(&p, "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":172,"
                  "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":300}");
    assert_int_equal(p.config.context, 2048);
    close_parsed(&p);
}

static void test_dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        nib_type type;
    } cases[] = {
        {"\"torch_dtype\":\"float32\"", NIB_TYPE_F32},
        {"\"torch_dtype\":\"float16\"", NIB_TYPE_F16},
        {"\"torch_dtype\":\"torch.bfloat16\"", NIB_TYPE_BF16},
        {"\"dtype\":\"bfloat16\"", NIB_TYPE_BF16},
        {"\"torch_dtype\":\"auto\"", NIB_TYPE_NONE},
        {"\"torch_dtype\":null", NIB_TYPE_NONE},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, "llama", cases[i].json);
        assert_int_equal(p.status, NIB_OK);
        assert_int_equal(p.config.dtype, cases[i].type);
        close_parsed(&p);
    }
}

static void test_rope_scaling(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "llama",
                "\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,\"low_freq_factor\":1.0,"
                "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,"
                "\"rope_type\":\"llama3\",\"type\":\"llama3\"}");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.config.rope, NIB_ROPE_LLAMA3);
    assert_true(p.config.rope_factor == 32 && p.config.rope_low == 1 && p.config.rope_high == 4);
    assert_int_equal(p.config.rope_original, 8192);
    close_parsed(&p);
    /* transformers 5 nests theta */
    open_config(&p, "qwen3",
                "\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"}");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.config.rope, NIB_ROPE_PLAIN);
    assert_true(p.config.rope_theta == 1000000.0);
    close_parsed(&p);
    open_config(&p, "llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}");
    assert_int_equal(p.config.rope, NIB_ROPE_LINEAR);
    assert_true(p.config.rope_factor == 4);
    close_parsed(&p);
    open_config(&p, "llama", "\"rope_scaling\":null");
    assert_int_equal(p.status, NIB_OK);
    close_parsed(&p);
}

#define YARN "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"

/* Each sentence names the key or value, and the file: tests/cli/messages_models.out. */
static void test_refuses_with_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        nib_status status;
    } cases[] = {
        {"\"model_type\":\"gpt_neox\"", NIB_UNSUPPORTED},
        {"\"model_type\":\"gemma3\\u001b[31m\"", NIB_UNSUPPORTED},
        {"\"model_type\":null,\"model_type\":3", NIB_BAD_INPUT},
        {"\"hidden_act\":\"gelu\"", NIB_UNSUPPORTED},
        {"\"hidden_act\":\"gelu\",\"hidden_activation\":\"silu\"", NIB_UNSUPPORTED},
        {"\"partial_rotary_factor\":0.5", NIB_UNSUPPORTED},
        {"\"rope_parameters\":{\"partial_rotary_factor\":0.25}", NIB_UNSUPPORTED},
        {"\"hidden_size\":64.0", NIB_BAD_INPUT},
        {"\"hidden_size\":\"64\"", NIB_BAD_INPUT},
        {"\"hidden_size\":-64", NIB_BAD_INPUT},
        {"\"hidden_size\":0", NIB_BAD_INPUT},
        {"\"hidden_size\":1e3", NIB_BAD_INPUT},
        {"\"hidden_size\":99999999999999999999", NIB_BAD_INPUT},
        {"\"hidden_size\":1000000000", NIB_BAD_INPUT},
        {"\"hidden_size\":66", NIB_BAD_INPUT}, /* no multiple of 4 heads */
        {"\"num_hidden_layers\":-1", NIB_BAD_INPUT},
        {"\"num_hidden_layers\":1025", NIB_BAD_INPUT},
        {"\"hidden_size\":16777216,\"intermediate_size\":16777216,\"num_hidden_layers\":2,"
         "\"head_dim\":128",
         NIB_BAD_INPUT}, /* more than 2^50 weights */
        {"\"num_hidden_layers\":2147483648", NIB_BAD_INPUT},
        {"\"num_attention_heads\":0", NIB_BAD_INPUT},
        {"\"num_key_value_heads\":0", NIB_BAD_INPUT},
        {"\"head_dim\":0", NIB_BAD_INPUT},
        {"\"model_max_length\":0", NIB_BAD_INPUT},
        {"\"num_key_value_heads\":3", NIB_BAD_INPUT}, /* of 4 heads */
        {"\"num_key_value_heads\":8", NIB_BAD_INPUT},
        {"\"head_dim\":15", NIB_BAD_INPUT}, /* odd */
        {"\"vocab_size\":0", NIB_BAD_INPUT},
        {"\"intermediate_size\":null", NIB_BAD_INPUT},
        {"\"max_position_embeddings\":4611686018427387904", NIB_BAD_INPUT},
        {"\"rms_norm_eps\":0", NIB_BAD_INPUT},
        {"\"rms_norm_eps\":-1", NIB_BAD_INPUT},
        {"\"rms_norm_eps\":NaN", NIB_BAD_INPUT},
        {"\"rope_theta\":NaN", NIB_BAD_INPUT},
        {"\"rope_theta\":Infinity", NIB_BAD_INPUT},
        {"\"rope_theta\":-1", NIB_BAD_INPUT},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"beta_fast\":4}",
         NIB_BAD_INPUT},                                          /* no factor */
        {YARN "\"beta_fast\":4,\"beta_slow\":8}", NIB_BAD_INPUT}, /* fast below slow */
        {YARN "\"beta_slow\":-1}", NIB_BAD_INPUT},
        {YARN "\"attention_factor\":-2}", NIB_BAD_INPUT},
        {YARN "\"truncate\":1}", NIB_BAD_INPUT},
        {YARN "\"original_max_position_embeddings\":1}", NIB_BAD_INPUT},
        {YARN "\"rope_theta\":1}", NIB_BAD_INPUT},
        {YARN "\"llama_4_scaling_beta\":0.1}", NIB_UNSUPPORTED},
        {YARN "\"mscales\":1}", NIB_BAD_INPUT},                           /* no such key */
        {"\"rope_scaling\":{\"rope_type\":\"longrope\"}", NIB_BAD_INPUT}, /* no short_factor */
        /* 2 factors for 8 frequencies */
        {"\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1]}", NIB_BAD_INPUT},
        {"\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,-2]}",
         NIB_BAD_INPUT},
        {"\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1]}",
         NIB_BAD_INPUT}, /* no long_factor */
        {"\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,\"1\"]}", NIB_BAD_INPUT},
        {"\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}", NIB_UNSUPPORTED},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"type\":\"linear\"}",
         NIB_BAD_INPUT},                                                /* two types */
        {"\"rope_scaling\":{\"rope_type\":\"linear\"}", NIB_BAD_INPUT}, /* no factor */
        /* no low_freq_factor and no high_freq_factor */
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}", NIB_BAD_INPUT},
        {"\"rope_scaling\":[1]", NIB_BAD_INPUT},
        {"\"rope_parameters\":{\"full_attention\":{\"full_attention\":{}}}", NIB_BAD_INPUT},
        /* layers of llama share one RoPE */
        {"\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":10}}", NIB_UNSUPPORTED},
        {"\"attention_bias\":1", NIB_BAD_INPUT},
        {"\"quantization_config\":\"gptq\"", NIB_BAD_INPUT},
        {"\"tie_word_embeddings\":\"yes\"", NIB_BAD_INPUT},
        {"\"torch_dtype\":\"float8_e4m3fn\"", NIB_BAD_INPUT},
        {"\"torch_dtype\":7", NIB_BAD_INPUT},
        {"\"bos_token_id\":[1,2]", NIB_BAD_INPUT}, /* two */
        {"\"bos_token_id\":-5", NIB_BAD_INPUT},
        {"\"eos_token_id\":[1,\"2\"]", NIB_BAD_INPUT},
        /* more than 16 */
        {"\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", NIB_BAD_INPUT},
        {"\"eos_token_id\":3000000000", NIB_BAD_INPUT},
        /* they change the result, and llama does not compute them */
        {"\"attn_logit_softcapping\":50.0", NIB_BAD_INPUT},
        {"\"num_local_experts\":8", NIB_BAD_INPUT},
        {"\"logits_scaling\":2.0", NIB_BAD_INPUT},
        {"\"clip_qkv\":8", NIB_BAD_INPUT},
        {"\"qk_norm\":true", NIB_BAD_INPUT},
        {"\"no_rope_layers\":[1,0]", NIB_BAD_INPUT},
        {"\"no_rope_layers\":[1,2]", NIB_BAD_INPUT},
        {"\"no_rope_layers\":1", NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, "llama", cases[i].json);
        if (p.status == NIB_OK)
            fail_msg("taken: %s", cases[i].json);
        refused(cases[i].status, p.status, &p.err);
        close_parsed(&p);
    }
}

/* Neutral values are accepted silently; unknown keys and keys that name code get a ledger line. */
static void test_neutral_and_noted(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "llama",
                "\"attn_logit_softcapping\":null,\"logits_scaling\":1.0,\"num_local_experts\":0,"
                "\"clip_qkv\":null,\"use_qk_norm\":false,\"no_rope_layers\":[],"
                "\"partial_rotary_factor\":1.0,\"initializer_range\":NaN,\"max_window_layers\":28");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.ledger.setting_count, 0);
    close_parsed(&p);
    open_config(&p, "llama",
                "\"auto_map\":{\"AutoModel\":\"other/repository--file.Class\"},"
                "\"_attn_implementation_internal\":\"other/kernels\",\"trust_remote_code\":true,"
                "\"my_\\u001bkey\":[[[{\"deep\":1}]]]");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.ledger.setting_count, 4);
    assert_int_equal(count_settings(&p.ledger, "config-code", "auto_map (config): "), 1);
    assert_int_equal(count_settings(&p.ledger, "config-code", ""), 3);
    assert_int_equal(count_settings(&p.ledger, "config-key", "key (config): "), 1);
    assert_int_equal(count_settings(&p.ledger, NULL, "\033"), 0);
    close_parsed(&p);
}

static void test_forms_of_text(void **state)
{
    (void)state;
    parsed p;
    open_text(&p, "\xef\xbb\xbf{\r\n\"model_type\":\"llama\",\r\n" SIZES "}\r\n");
    assert_int_equal(p.status, NIB_OK);
    close_parsed(&p);
    static const char *const broken[] = {
        "",
        "[]",
        "null",
        "{",
        "{\"model_type\":\"llama\"," SIZES "} x",
        "{\"model_type\":\"llama\"," SIZES ", // comment\n\"a\":1}",
        "{\"model_type\":\"ll\xff\"," SIZES "}",
    };
    for (size_t i = 0; i < COUNT(broken); i++) {
        open_text(&p, broken[i]);
        refused(NIB_BAD_INPUT, p.status, &p.err);
        close_parsed(&p);
    }
    open_text(&p, "{" SIZES "}");
    refused(NIB_BAD_INPUT, p.status, &p.err);
    close_parsed(&p);
}

/* Whichever allocation fails, parsing returns NIB_NO_MEMORY and leaks nothing. */
static void test_failing_allocations(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\":\"qwen2\"," SIZES ",\"layer_types\":[\"sliding_attention\"],"
        "\"quantization_config\":{\"a\":1},\"hidden_act\":\"silu\",\"x\":1}";
    bool done = false;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_config c;
        nib_arena arena;
        nib_ledger ledger;
        nib_err err;
        nib__arena_init(&arena, &a, 0);
        nib__ledger_init(&ledger, &a);
        const nib_status status =
            nib__config_parse(&c, "config.json", text, sizeof text - 1, &arena, &ledger, &err);
        done = f.left > 0;
        assert_true(status == NIB_NO_MEMORY || status == NIB_BAD_INPUT || ledger.failed);
        nib__ledger_free(&ledger);
        nib__arena_free(&arena);
        assert_int_equal(f.live, 0);
        assert_true(n < 100);
    }
}

/* The same for whichever piece of the arena does not fit. */
static void test_full_arena(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":{\"rope_type\":\"linear\","
        "\"factor\":2},\"eos_token_id\":[1,2],\"quantization_config\":{\"a\":1},\"x\":1}",
        "{\"model_type\":\"smollm3\"," SIZES ",\"no_rope_layer_interval\":4}",
        "{\"model_type\":\"smollm3\"," SIZES ",\"no_rope_layers\":[1,0]}",
        "{\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SIZES
        ",\"layer_types\":[\"full_attention\","
        "\"full_attention\"]}",
        "{\"model_type\":\"gemma2\",\"head_dim\":16,\"num_key_value_heads\":2," SIZES
        ",\"sliding_window\":8}",
        "{\"model_type\":\"mistral\",\"num_key_value_heads\":2," SIZES ",\"sliding_window\":8}",
        "{\"model_type\":\"gemma3_text\",\"head_dim\":16,\"num_key_value_heads\":2," SIZES
        ",\"sliding_window\":8,\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":10}}}",
        "{\"model_type\":\"phi3\",\"num_key_value_heads\":2," SIZES
        ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],"
        "\"long_factor\":[1,1,1,1,1,1,1,1]}}",
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(texts); i++) {
        size_t needed = SIZE_MAX;
        for (size_t limit = 0; limit < needed; limit += limit == 0 ? 1 : 3) { /* 0: none */
            nib_config c;
            nib_arena arena;
            nib_ledger ledger;
            nib_err err = {NIB_OK, ""};
            nib__arena_init(&arena, &a, limit);
            nib__ledger_init(&ledger, &a);
            const nib_status status = nib__config_parse(&c, "config.json", texts[i],
                                                        strlen(texts[i]), &arena, &ledger, &err);
            if (status != (limit == 0 ? NIB_OK : NIB_NO_MEMORY))
                fail_msg("%s: with %zu of %zu bytes: %s %s", texts[i], limit, needed,
                         nib_status_name(status), err.text);
            if (limit == 0)
                needed = arena.total;
            nib__ledger_free(&ledger);
            nib__arena_free(&arena);
        }
    }
}

/* ---- generation_config.json ---- */

static nib_status generation(nib_generation *out, const char *text, nib_err *err)
{
    return nib__generation_parse(out, "generation_config.json", text, strlen(text), NULL, err);
}

/* An unsupported setting that would change tokens gets a ledger line. */
static void test_unsupported_generation_keys(void **state)
{
    (void)state;
    static const char text[] =
        "{\"max_length\":20,\"max_new_tokens\":null,\"transformers_version\":\"5\","
        "\"typical_p\":null,"
        "\"renormalize_logits\":false,\"no_repeat_ngram_size\":3,\"temperature\":1}";
    const nib_allocator a = nib__allocator_default();
    nib_generation g;
    nib_ledger ledger;
    nib_err err;
    nib__ledger_init(&ledger, &a);
    assert_int_equal(
        nib__generation_parse(&g, "generation_config.json", text, sizeof text - 1, &ledger, &err),
        NIB_OK);
    assert_int_equal(ledger.setting_count, 1);
    assert_int_equal(g.max_length, 20);
    assert_int_equal(g.max_new_tokens, -1);
    assert_int_equal(count_settings(&ledger, "generation-key", "no_repeat_ngram_size"), 1);
    assert_int_equal(ledger.settings[0].relation, NIB_SETTING_NONE);
    assert_true(g.temperature == 1.0);
    nib__ledger_free(&ledger);
}

/* The value of each unsupported setting that changes no token, the default of transformers, is
 * accepted without a line; any other gets one. */
static void test_neutral_generation_keys(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int neutral;
    } keys[] = {{"diversity_penalty", 0},
                {"encoder_no_repeat_ngram_size", 0},
                {"encoder_repetition_penalty", 1},
                {"epsilon_cutoff", 0},
                {"eta_cutoff", 0},
                {"guidance_scale", 1},
                {"length_penalty", 1},
                {"min_length", 0},
                {"min_new_tokens", 0},
                {"no_repeat_ngram_size", 0},
                {"num_beam_groups", 1},
                {"num_beams", 1},
                {"num_return_sequences", 1},
                {"penalty_alpha", 0},
                {"typical_p", 1}};
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(keys); i++)
        for (int value = 0; value <= 2; value++) {
            char text[80];
            nib_generation g;
            nib_ledger ledger;
            nib_err err;
            const int size = snprintf(text, sizeof text, "{\"%s\":%d}", keys[i].key, value);
            nib__ledger_init(&ledger, &a);
            assert_int_equal(nib__generation_parse(&g, "generation_config.json", text, (size_t)size,
                                                   &ledger, &err),
                             NIB_OK);
            if ((ledger.setting_count == 0) != (value == keys[i].neutral))
                fail_msg("%s: %d lines", text, (int)ledger.setting_count);
            nib__ledger_free(&ledger);
        }
}

static void test_generation(void **state)
{
    (void)state;
    nib_generation g;
    nib_err err;
    assert_int_equal(generation(&g, "{}", &err), NIB_OK);
    assert_true(g.temperature < 0 && g.top_p < 0 && g.min_p < 0 && g.repeat_penalty < 0);
    assert_true(g.top_k < 0 && !g.do_sample_given && g.eos_count == 0);
    assert_int_equal(generation(&g,
                                "{\"temperature\":0.6,\"top_p\":0.9,\"min_p\":0.1,"
                                "\"repetition_penalty\":1.1,\"top_k\":20,\"do_sample\":true,"
                                "\"eos_token_id\":[3,4],\"transformers_version\":\"4.40\"}",
                                &err),
                     NIB_OK);
    assert_true(g.temperature == 0.6 && g.top_p == 0.9 && g.min_p == 0.1);
    assert_true(g.repeat_penalty == 1.1 && g.top_k == 20 && g.do_sample && g.do_sample_given);
    assert_true(g.eos_count == 2 && g.eos[0] == 3 && g.eos[1] == 4);
    assert_int_equal(generation(&g, "{\"eos_token_id\":7,\"do_sample\":false}", &err), NIB_OK);
    assert_true(g.eos_count == 1 && g.eos[0] == 7 && g.do_sample_given && !g.do_sample);
    assert_int_equal(
        generation(&g, "{\"eos_token_id\":null,\"do_sample\":null,\"top_k\":null}", &err), NIB_OK);
    assert_true(g.eos_count == 0 && !g.do_sample_given && g.top_k < 0);
    refused(NIB_BAD_INPUT, generation(&g, "{\"top_k\":2.5}", &err), &err);
    refused(NIB_BAD_INPUT, generation(&g, "{\"temperature\":\"hot\"}", &err), &err);
    refused(NIB_BAD_INPUT, generation(&g, "{\"temperature\":NaN}", &err), &err);
    refused(NIB_BAD_INPUT, generation(&g, "[]", &err), &err);
}

/* ---- rope tables ---- */

/* Frequencies of Llama 3.2 1B as transformers 5.23 computes them (LlamaRotaryEmbedding.inv_freq).
 */
static void test_llama3_frequencies(void **state)
{
    (void)state;
    static const struct {
        int pair;
        double frequency;
    } golden[] = {
        {0, 0x1.0p+0},        {1, 0x1.53c38cp-1},   {5, 0x1.078d4p-3},    {10, 0x1.0f5386p-6},
        {14, 0x1.a4ee4p-9},   {15, 0x1.524f36p-10}, {16, 0x1.c26c4p-12},  {17, 0x1.9731eep-14},
        {18, 0x1.46831ap-16}, {19, 0x1.b15902p-17}, {25, 0x1.280d96p-20}, {31, 0x1.948360p-24},
    };
    const nib_config c = {.head_dim = 64,
                          .rope = NIB_ROPE_LLAMA3,
                          .rope_theta = 500000,
                          .rope_factor = 32,
                          .rope_low = 1,
                          .rope_high = 4,
                          .rope_original = 8192};
    static float table[2 * 64];
    nib__rope_table(table, &c, 0, 1, 0, 1);
    nib__rope_table(table, &c, 0, 2, 1, 2); /* the remaining position */
    for (size_t i = 0; i < COUNT(golden); i++) {
        const float *at_1 = table + 64; /* the angle at position 1 is the frequency */
        const double angle = atan2((double)at_1[32 + golden[i].pair], (double)at_1[golden[i].pair]);
        /* theirs is computed in f32, with cancellation where two frequencies blend */
        assert_true(fabs(angle / golden[i].frequency - 1.0) < 4e-7);
        assert_true(table[golden[i].pair] == 1.0f && table[32 + golden[i].pair] == 0.0f);
    }
}

#define SHORT "\"short_factor\":[1,1,1.05,1.1,1.2,1.3,1.5,2],"
#define LONG "\"long_factor\":[1,1.5,2.25,4,8,16,30,60.5],"

/* Scaled frequencies of a head of 16 channels and the factor of cosines and sines, as
 * ROPE_INIT_FUNCTIONS of transformers 5.23 gives them for a LlamaConfig of 4096 positions and the
 * same keys, with seq_len = context. */
static void test_scaled_frequencies(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int64_t context;
        double gain, frequency[8];
    } golden[] = {
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8.0,"
         "\"original_max_position_embeddings\":512}",
         4096,
         0x1.353bd3fd8bbe4p+0,
         {0x1p+0, 0x1.f9f6e4p-3, 0x1.ccccce0p-5, 0x1.6432fp-7, 0x1.47ae14p-10, 0x1.9e7c7p-12,
          0x1.0624dep-13, 0x1.4b96cp-15}},
        /* the top-level key overrides the nested one */
        {"\"original_max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"yarn\","
         "\"factor\":8.0,\"original_max_position_embeddings\":999}",
         4096,
         0x1.353bd3fd8bbe4p+0,
         {0x1p+0, 0x1.f9f6e4p-3, 0x1.ccccce0p-5, 0x1.6432fp-7, 0x1.47ae14p-10, 0x1.9e7c7p-12,
          0x1.0624dep-13, 0x1.4b96cp-15}},
        {"\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":150000.0,\"factor\":32.0,"
         "\"original_max_position_embeddings\":128,\"truncate\":false,\"beta_fast\":16,"
         "\"beta_slow\":2}",
         4096,
         0x1.58b90bfbe8e7cp+0,
         {0x1p+0, 0x1.82645cp-4, 0x1.a04328p-10, 0x1.775504p-12, 0x1.526d2cp-14, 0x1.312650p-16,
          0x1.132518p-18, 0x1.f02e5p-21}},
        {"\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":10000.0,\"factor\":40,"
         "\"original_max_position_embeddings\":100,\"mscale\":0.707,\"mscale_all_dim\":1.2}",
         4096,
         0x1.bf751fa83edd8p-1,
         {0x1p+0, 0x1.b5273ap-3, 0x1.1eb85p-5, 0x1.9e7c7p-11, 0x1.0624dep-12, 0x1.4b96cp-14,
          0x1.a36e2ep-16, 0x1.0945660p-17}},
        {"\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":10000.0,\"factor\":4.0,"
         "\"attention_factor\":1.5}", /* original: 4096 */
         4096,
         1.5,
         {0x1p+0, 0x1.43d136p-2, 0x1.99999ap-4, 0x1.a4f66p-6, 0x1.999998p-8, 0x1.6aace2p-10,
          0x1.0624dep-12, 0x1.4b96cp-14}},
        {"\"original_max_position_embeddings\":512,\"rope_scaling\":{" SHORT LONG
         "\"type\":\"longrope\"}",
         512,
         0x1.279a74590331cp+0,
         {0x1p+0, 0x1.43d136p-2, 0x1.861862p-4, 0x1.d701c4p-6, 0x1.11111p-7, 0x1.3ed5ep-9,
          0x1.5d867cp-11, 0x1.4b96cp-13}},
        {"\"original_max_position_embeddings\":512,\"rope_scaling\":{" SHORT LONG
         "\"type\":\"longrope\"}",
         513,
         0x1.279a74590331cp+0,
         {0x1p+0, 0x1.afc19cp-3, 0x1.6c16c2p-5, 0x1.030dc6p-7, 0x1.47ae14p-10, 0x1.9e7c7p-13,
          0x1.179ecap-15, 0x1.5ec58cp-18}},
        {"\"rope_parameters\":{" SHORT LONG "\"rope_type\":\"longrope\",\"factor\":16.0,"
         "\"original_max_position_embeddings\":512}",
         4096,
         0x1.33ac782eb914dp+0,
         {0x1p+0, 0x1.afc19cp-3, 0x1.6c16c2p-5, 0x1.030dc6p-7, 0x1.47ae14p-10, 0x1.9e7c7p-13,
          0x1.179ecap-15, 0x1.5ec58cp-18}},
    };
    for (size_t i = 0; i < COUNT(golden); i++) {
        float table[2 * 16];
        char json[512];
        parsed p;
        snprintf(json, sizeof json, "\"max_position_embeddings\":4096,%s", golden[i].json);
        open_config(&p, "llama", json);
        if (p.status != NIB_OK)
            fail_msg("%s", p.err.text);
        nib__rope_table(table, &p.config, 0, golden[i].context, 0, 2);
        for (int pair = 0; pair < 8; pair++) {
            const double c = (double)table[16 + pair], s = (double)table[16 + 8 + pair],
                         is = nib__rope_frequency(&p.config, pair, golden[i].context);
            /* theirs are computed in f32 */
            if (!(fabs(is / golden[i].frequency[pair] - 1) < 4e-7))
                fail_msg("%s: pair %d has %g, not %g", golden[i].json, pair, is,
                         golden[i].frequency[pair]);
            assert_true(fabs(atan2(s, c) / golden[i].frequency[pair] - 1) < 4e-7);
            assert_true(fabs(sqrt(c * c + s * s) / golden[i].gain - 1) < 2e-7);
            assert_true(fabs((double)table[pair] / golden[i].gain - 1) < 1e-7);
        }
        close_parsed(&p);
    }
}

/* Whatever rope does other than config.json says gets a ledger line. */
static void test_rope_lines(void **state)
{
    (void)state;
    parsed p;
    open_config(&p, "llama",
                "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"beta_fast\":32," SHORT
                "\"max_position_embeddings\":1024}");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(count_settings(&p.ledger, "rope", "rope_scaling.beta_fast"), 1);
    assert_int_equal(count_settings(&p.ledger, "rope", "rope_scaling.short_factor"), 1);
    assert_int_equal(p.ledger.setting_count, 2);
    close_parsed(&p);
    open_config(&p, "llama", YARN "\"beta_fast\":0,\"beta_slow\":0,\"mscale\":0.7}");
    assert_true(p.config.rope_fast == 32 && p.config.rope_slow == 1);
    assert_int_equal(count_settings(&p.ledger, "rope", "rope_scaling.beta_"), 2);
    assert_int_equal(count_settings(&p.ledger, "rope", "rope_scaling.mscale"), 1);
    close_parsed(&p);
    open_config(&p, "llama", YARN "\"mscale\":0.7,\"mscale_all_dim\":1,\"attention_factor\":1}");
    assert_true(p.config.rope_gain == 1);
    assert_int_equal(count_settings(&p.ledger, "rope", "rope_scaling.mscale"), 2);
    close_parsed(&p);
    open_config(&p, "llama",
                "\"rope_scaling\":{" SHORT LONG "\"type\":\"longrope\"},"
                "\"rope_parameters\":{\"short_factor\":[2]},"
                "\"original_max_position_embeddings\":512");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.ledger.setting_count, 1);
    assert_int_equal(count_settings(&p.ledger, "rope", "rope_parameters.short_factor"), 1);
    nib__rope_report_context(&p.config, 512, &p.ledger);
    assert_int_equal(p.ledger.setting_count, 1);
    nib__rope_report_context(&p.config, 513, &p.ledger);
    assert_int_equal(p.ledger.setting_count, 2);
    close_parsed(&p);
    open_config(&p, "ministral3",
                "\"rope_parameters\":{\"rope_type\":\"default\",\"llama_4_scaling_beta\":0.1}");
    refused(NIB_BAD_INPUT, p.status, &p.err); /* of which length? */
    close_parsed(&p);
    open_config(&p, "llama", /* null is the default, and later keys are read */
                "\"rope_theta\":null,\"rms_norm_eps\":0.25");
    assert_int_equal(p.status, NIB_OK);
    assert_true(p.config.norm_eps == 0.25);
    close_parsed(&p);
    open_config(&p, "llama", /* the same numbers twice, and another one */
                "\"rope_scaling\":{" SHORT LONG "\"type\":\"longrope\"},"
                "\"rope_parameters\":{" SHORT "\"long_factor\":[1,1.5,2.25,4,8,16,30,61]},"
                "\"original_max_position_embeddings\":512");
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.ledger.setting_count, 1);
    assert_int_equal(count_settings(&p.ledger, "rope", "rope_parameters.long_factor"), 1);
    close_parsed(&p);
}

/* Compares the lists of both, then clears them so that the rest can be compared. */
static void same_lists(nib_config *a, nib_config *b)
{
    const size_t layers = (size_t)a->layers, pairs = (size_t)nib__config_rope_dims(a) / 2;
    const struct {
        const void **a, **b;
        size_t size;
    } lists[] = {
        {(const void **)&a->window_layers, (const void **)&b->window_layers, layers},
        {(const void **)&a->rope_layers, (const void **)&b->rope_layers, layers},
        {(const void **)&a->conv_layers, (const void **)&b->conv_layers, layers},
        {(const void **)&a->rope_short, (const void **)&b->rope_short, pairs * sizeof(float)},
        {(const void **)&a->rope_long, (const void **)&b->rope_long, pairs * sizeof(float)},
    };
    for (size_t i = 0; i < COUNT(lists); i++) {
        assert_true((*lists[i].a == NULL) == (*lists[i].b == NULL));
        if (*lists[i].a != NULL)
            assert_memory_equal(*lists[i].a, *lists[i].b, lists[i].size);
        *lists[i].a = *lists[i].b = NULL;
    }
}

static void expect_round_trip(const char *type, const char *more)
{
    parsed p, q;
    nib_text text;
    nib_err err;
    const nib_allocator a = nib__allocator_default();
    open_config(&p, type, more);
    assert_int_equal(p.status, NIB_OK);
    nib__text_init(&text, &a);
    if (nib__config_write(&text, &p.config, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__arena_init(&q.arena, &a, 0);
    nib__ledger_init(&q.ledger, &a);
    if (nib__config_parse(&q.config, "again", text.at, text.size, &q.arena, &q.ledger, &err) !=
        NIB_OK)
        fail_msg("%s in %s", err.text, text.at);
    q.config.quantized = p.config.quantized;
    same_lists(&p.config, &q.config);
    assert_memory_equal(&p.config, &q.config, sizeof p.config);
    assert_int_equal(q.ledger.note_count, 0);
    nib__text_free(&text);
    close_parsed(&p);
    nib__ledger_free(&q.ledger);
    nib__arena_free(&q.arena);
}

/* A written config is read back as the same architecture. */
static void test_config_round_trip(void **state)
{
    (void)state;
    expect_round_trip("llama", "");
    expect_round_trip("llama", "\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":24,"
                               "\"tie_word_embeddings\":true,\"torch_dtype\":\"float16\","
                               "\"bos_token_id\":1,\"eos_token_id\":[2,5]");
    expect_round_trip("llama", "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                               "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                               "\"original_max_position_embeddings\":8192}");
    expect_round_trip("llama", "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.5}");
    expect_round_trip("mistral", "\"eos_token_id\":2,\"sliding_window\":null");
    expect_round_trip("qwen2", "\"rms_norm_eps\":1e-5,\"rope_theta\":1000000.0");
    expect_round_trip("qwen3", "\"head_dim\":32,\"torch_dtype\":\"float32\"");
    expect_round_trip("llama", "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                               "\"original_max_position_embeddings\":64,\"beta_fast\":20,"
                               "\"truncate\":false}");
    expect_round_trip("llama", "\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":4,"
                               "\"original_max_position_embeddings\":256,"
                               "\"short_factor\":[1,1.5,2,2.5,3,3.5,4,4.5],"
                               "\"long_factor\":[1,2,3,4,5,6,7,8.25]}");
    expect_round_trip("mistral", "\"sliding_window\":77");
    expect_round_trip("exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":2");
    expect_round_trip("granite", "\"embedding_multiplier\":12,\"attention_multiplier\":0.015625,"
                                 "\"residual_multiplier\":0.22,\"logits_scaling\":8");
    expect_round_trip("granitemoehybrid",
                      "\"layer_types\":[\"mamba\",\"attention\"],\"mamba_n_heads\":8,"
                      "\"mamba_n_groups\":2,\"time_step_limit\":[0.125,0.7],"
                      "\"mamba_conv_bias\":false,\"num_experts_per_tok\":3,"
                      "\"shared_intermediate_size\":96");
    expect_round_trip("granitemoehybrid",
                      "\"layer_types\":[\"linear_attention\",\"full_attention\"],"
                      "\"mamba_n_heads\":4,\"num_local_experts\":0,\"mamba_proj_bias\":true,"
                      "\"time_step_limit\":[0.25,Infinity]");
    expect_round_trip("granitemoehybrid", "\"layer_types\":[\"attention\",\"attention\"],"
                                          "\"num_local_experts\":0,\"num_experts_per_tok\":0,"
                                          "\"position_embedding_type\":\"rope\"");
    expect_round_trip("gemma", "");
    expect_round_trip("gemma2", "\"query_pre_attn_scalar\":144,\"attn_logit_softcapping\":null,"
                                "\"torch_dtype\":\"bfloat16\"");
    expect_round_trip("gemma3_text", "\"rope_local_base_freq\":5000,\"sliding_window\":64,"
                                     "\"sliding_window_pattern\":2");
    expect_round_trip("cohere", "\"logit_scale\":0.25");
    expect_round_trip("cohere", "\"use_qk_norm\":true,\"attention_bias\":true");
    expect_round_trip("cohere2", "\"sliding_window_pattern\":2");
    expect_round_trip(
        "gemma2",
        "\"sliding_window\":8,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]");
    expect_round_trip("qwen3",
                      "\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":0");
    expect_round_trip("smollm3",
                      "\"use_sliding_window\":true,\"sliding_window\":8,\"no_rope_layers\":[0,1]");
    expect_round_trip(
        "ministral",
        "\"sliding_window\":8,\"layer_types\":[\"full_attention\",\"sliding_attention\"]");
    expect_round_trip("starcoder2", "\"sliding_window\":100");
    expect_round_trip("stablelm", "\"use_qkv_bias\":true,\"partial_rotary_factor\":0.5");
    expect_round_trip("stablelm", "\"qk_layernorm\":true,\"use_parallel_residual\":true");
    expect_round_trip("phi3", "\"sliding_window\":77");
    expect_round_trip("phi3", "\"partial_rotary_factor\":0.5,\"tie_word_embeddings\":true,"
                              "\"original_max_position_embeddings\":256,"
                              "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1.5,2,2.5],"
                              "\"long_factor\":[1,2,3,4]}");
    expect_round_trip("glm", "\"attention_bias\":false");
    expect_round_trip("glm4", "\"partial_rotary_factor\":0.75");
    expect_round_trip("ministral3",
                      "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":16,"
                      "\"original_max_position_embeddings\":64,\"llama_4_scaling_beta\":0.1}");
}

/* The divisors of a GGUF's rope_freqs become llama3 parameters, if any produce them. */
static void test_write_divisors(void **state)
{
    (void)state;
    parsed p;
    nib_text text;
    nib_err err;
    float divisors[8];
    const nib_allocator a = nib__allocator_default();
    open_config(&p, "llama",
                "\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\","
                "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                "\"original_max_position_embeddings\":8192}");
    assert_int_equal(p.status, NIB_OK);
    for (int64_t i = 0; i < 8; i++)
        divisors[i] = (float)nib__rope_divisor(&p.config, i);
    assert_true(divisors[0] == 1 && divisors[7] == 32);
    p.config.rope = NIB_ROPE_PLAIN;
    p.config.rope_divisors = divisors;
    nib__text_init(&text, &a);
    assert_int_equal(nib__config_write(&text, &p.config, &err), NIB_OK);
    assert_non_null(strstr(text.at, "\"rope_type\": \"llama3\""));
    assert_non_null(strstr(text.at, "\"factor\": 32.0,"));
    p.config.rope = NIB_ROPE_LINEAR; /* also scaled */
    nib__text_clear(&text);
    refused(NIB_UNSUPPORTED, nib__config_write(&text, &p.config, &err), &err);
    p.config.rope = NIB_ROPE_PLAIN;
    divisors[3] = 7;
    nib__text_clear(&text);
    refused(NIB_UNSUPPORTED, nib__config_write(&text, &p.config, &err), &err);
    nib__text_free(&text);
    close_parsed(&p);
}

/* Biases that a family's config.json has no key for, a beta without scaling, and no memory. */
static void test_what_is_not_written(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *more;
        bool qkv, o;
        nib_status status;
    } cases[] = {
        {"qwen2", "", true, false, NIB_OK},
        {"qwen2", "", false, false, NIB_UNSUPPORTED},
        {"qwen2", "", true, true, NIB_UNSUPPORTED},
        {"llama", "", true, true, NIB_OK},
        {"llama", "", true, false, NIB_UNSUPPORTED},
        {"llama", "", false, true, NIB_UNSUPPORTED},
        {"ministral3",
         "\"rope_parameters\":{\"rope_type\":\"default\",\"llama_4_scaling_beta\":0.1,"
         "\"original_max_position_embeddings\":64}",
         false, false, NIB_OK},
        {"stablelm", "", true, false, NIB_OK},
        {"smollm3", "\"no_rope_layers\":[1,0]", false, false, NIB_OK},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, cases[i].arch, cases[i].more);
        assert_int_equal(p.status, NIB_OK);
        p.config.qkv_bias = cases[i].qkv, p.config.o_bias = cases[i].o;
        nib_status status = NIB_NO_MEMORY;
        for (int n = 0; status == NIB_NO_MEMORY; n++) { /* each allocation fails once */
            failing f = {.left = n};
            const nib_allocator a = failing_allocator(&f);
            nib_text text;
            nib_err err = {NIB_OK, ""};
            nib__text_init(&text, &a);
            status = nib__config_write(&text, &p.config, &err);
            assert_int_equal(err.status, status);
            if (status == NIB_OK && p.config.query_beta > 0)
                assert_non_null(strstr(text.at, "\"llama_4_scaling_beta\": 0.1"));
            nib__text_free(&text);
            assert_int_equal(f.live, 0);
        }
        assert_int_equal(status, cases[i].status);
        close_parsed(&p);
    }
}

static void test_rotations_at_large_positions(void **state)
{
    (void)state;
    enum { DIM = 8, COUNT_OF = 40000 };
    const nib_config c = {
        .head_dim = DIM, .rope = NIB_ROPE_LINEAR, .rope_theta = 10000, .rope_factor = 2};
    float *table = malloc(sizeof(float) * DIM * COUNT_OF);
    assert_non_null(table);
    nib__rope_table(table, &c, 0, COUNT_OF, 0, COUNT_OF);
    for (int p = 0; p < COUNT_OF; p += 13)
        for (int i = 0; i < DIM / 2; i++) {
            const float frequency = (float)(pow(10000.0, -2.0 * i / DIM) / 2.0);
            const double angle = (double)((float)p * frequency);
            assert_true(fabs((double)table[p * DIM + i] - cos(angle)) < 1e-7);
            assert_true(fabs((double)table[p * DIM + DIM / 2 + i] - sin(angle)) < 1e-7);
        }
    free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_sizes),
        cmocka_unit_test(test_takes_options),
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_absent_keys_have_defaults),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_refuses_with_the_key),
        cmocka_unit_test(test_neutral_and_noted),
        cmocka_unit_test(test_forms_of_text),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_full_arena),
        cmocka_unit_test(test_unsupported_generation_keys),
        cmocka_unit_test(test_neutral_generation_keys),
        cmocka_unit_test(test_llama3_frequencies),
        cmocka_unit_test(test_scaled_frequencies),
        cmocka_unit_test(test_rope_lines),
        cmocka_unit_test(test_what_is_not_written),
        cmocka_unit_test(test_rotations_at_large_positions),
        cmocka_unit_test(test_config_round_trip),
        cmocka_unit_test(test_write_divisors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
