/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json: every prefix of a complete one is refused, every allocation fails once, and the
 * values of single families at and past their limits. config_rope.c, config_layers.c,
 * config_keys.c, config_values.c.
 */
#include "config_layers.h"

#include "failing.h"
#include "ledger_lines.h"
#include "parsed_config.h"

#include <math.h>

#include "refused.h"

#define EIGHT(last) "[1,1,1,1,1,1,1," last "]"
#define LONG(more)                                                                                 \
    "\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":4,\"short_factor\":" EIGHT(           \
        "1") ",\"long_factor\":" EIGHT("2") more "}"
#define GEMMA3(inner)                                                                              \
    "\"head_dim\":16,\"rope_parameters\":{\"full_attention\":{\"rope_theta\":10000},"              \
    "\"sliding_attention\":{" inner "}}"

/* Keys of many families at once; together with SIZES, texts that are accepted. */
static const struct {
    const char *arch, *more;
} complete[] = {
    {"llama", LONG("") ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"long_factor\":" EIGHT(
                  "3") ",\"short_factor\":null},\"architectures\":[\"LlamaForCausalLM\"],"
                       "\"quantization_config\":{\"a\":[1,\"b\"]},\"eos_token_id\":[1,2],"
                       "\"bos_token_id\":1,\"rms_norm_eps\":1e-5,\"attention_bias\":true,"
                       "\"tie_word_embeddings\":false,\"torch_dtype\":\"float32\","
                       "\"unknown\":[{\"a\":null}],\"auto_map\":{\"a\":\"b\"}"},
    {"llama", "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":false,"
              "\"original_max_position_embeddings\":64,\"beta_fast\":32,\"mscale\":1,"
              "\"mscale_all_dim\":0.5},\"rope_theta\":5e5"},
    {"smollm3", "\"use_sliding_window\":true,\"sliding_window\":8,\"no_rope_layers\":[0,1],"
                "\"no_rope_layer_interval\":2,\"layer_types\":[\"sliding_attention\","
                "\"full_attention\"]"},
    {"smollm3", "\"no_rope_layer_interval\":2"},
    {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":1,"
              "\"attention_bias\":true"},
    {"cohere2", "\"sliding_window\":8,\"sliding_window_pattern\":2,\"logit_scale\":0.5"},
    {"exaone4", "\"sliding_window\":8,\"sliding_window_pattern\":\"LG\""},
    {"gemma2", "\"head_dim\":16,\"sliding_window\":8,\"attn_logit_softcapping\":50,"
               "\"final_logit_softcapping\":null,\"query_pre_attn_scalar\":16"},
    {"gemma3_text", GEMMA3("\"rope_theta\":5000") ",\"hidden_activation\":\"gelu_pytorch_tanh\""},
    {"granite", "\"embedding_multiplier\":2,\"logits_scaling\":4,\"residual_multiplier\":0.5"},
    {"ministral3", "\"head_dim\":16,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":16,"
                   "\"original_max_position_embeddings\":64,\"llama_4_scaling_beta\":0.1}"},
    {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":0.5"},
    {"phi3", "\"original_max_position_embeddings\":256,\"rope_scaling\":{\"type\":\"su\","
             "\"short_factor\":" EIGHT("1") ",\"long_factor\":" EIGHT("2") "}"},
    {"starcoder2", "\"norm_epsilon\":1e-5,\"use_bias\":true,\"sliding_window\":8"},
};

static void write_complete(char text[4096], size_t i)
{
    snprintf(text, 4096, "{\"model_type\":\"%s\",\"num_key_value_heads\":2," SIZES ",%s}",
             complete[i].arch, complete[i].more);
}

/* A file that was cut anywhere is refused. */
static void test_prefixes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(complete); i++) {
        char text[4096];
        write_complete(text, i);
        parsed p;
        open_text(&p, text);
        if (p.status != NIB_OK)
            fail_msg("%s: %s", text, p.err.text);
        close_parsed(&p);
        for (size_t size = strlen(text); size-- > 0;) {
            text[size] = 0;
            open_text(&p, text);
            if (p.status != NIB_BAD_INPUT)
                fail_msg("%s: %s", text, nib_status_name(p.status));
            close_parsed(&p);
        }
    }
}

static void test_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(complete); i++) {
        char text[4096];
        write_complete(text, i);
        bool failed = true;
        for (int left = 0; failed; left++) {
            failing f = {.left = left};
            const nib_allocator a = failing_allocator(&f);
            nib_config c;
            nib_arena arena;
            nib_ledger ledger;
            nib_err err = {NIB_OK, ""};
            nib__arena_init(&arena, &a, 0);
            nib__ledger_init(&ledger, &a);
            const nib_status status =
                nib__config_parse(&c, "config.json", text, strlen(text), &arena, &ledger, &err);
            failed = f.left == 0;
            if (status != NIB_OK && !(status == NIB_NO_MEMORY && failed))
                fail_msg("%s after %d allocations: %s", complete[i].arch, left, err.text);
            nib__ledger_free(&ledger);
            nib__arena_free(&arena);
            assert_int_equal(f.live, 0);
        }
    }
}

#define YARN(more) "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4," more "}"
#define LLAMA3(low, high, original)                                                                \
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":" low             \
    ",\"high_freq_factor\":" high ",\"original_max_position_embeddings\":" original "}"
#define BETA(value, more)                                                                          \
    "\"head_dim\":16,\"rope_parameters\":{\"rope_type\":\"default\",\"llama_4_scaling_"            \
    "beta\":" value more "}"

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *more;
        nib_status status;
    } cases[] = {
        {"llama", "\"rope_theta\":1e17", NIB_OK},
        {"llama", "\"rope_theta\":1e18", NIB_BAD_INPUT},
        {"llama", YARN("\"beta_fast\":999999999"), NIB_OK},
        {"llama", YARN("\"beta_fast\":1e9"), NIB_BAD_INPUT},
        {"llama", YARN("\"beta_fast\":NaN"), NIB_BAD_INPUT},
        {"llama", YARN("\"beta_slow\":NaN"), NIB_BAD_INPUT},
        {"llama", YARN("\"attention_factor\":1000"), NIB_OK},
        {"llama", YARN("\"attention_factor\":1001"), NIB_BAD_INPUT},
        {"llama", YARN("\"attention_factor\":NaN"), NIB_BAD_INPUT},
        {"llama", YARN("\"original_max_position_embeddings\":1073741824"), NIB_OK},
        {"llama", YARN("\"original_max_position_embeddings\":1073741825"), NIB_BAD_INPUT},
        {"llama", YARN("\"factor\":0.5"), NIB_BAD_INPUT},
        {"llama", YARN("\"factor\":1e9"), NIB_BAD_INPUT},
        {"llama", YARN("\"factor\":NaN"), NIB_BAD_INPUT},
        {"llama", LLAMA3("1", "4", "8192"), NIB_OK},
        {"llama", LLAMA3("0", "4", "8192"), NIB_BAD_INPUT},
        {"llama", LLAMA3("4", "4", "8192"), NIB_OK},
        {"llama", LLAMA3("4.1", "4", "8192"), NIB_BAD_INPUT},
        {"llama", LLAMA3("1", "NaN", "8192"), NIB_BAD_INPUT},
        {"llama", LLAMA3("1", "4", "null"), NIB_BAD_INPUT},
        {"llama", LONG(",\"short_factor\":" EIGHT("0")), NIB_BAD_INPUT},
        {"llama", LONG(",\"short_factor\":" EIGHT("NaN")), NIB_BAD_INPUT},
        {"llama", LONG(",\"long_factor\":" EIGHT("1e9")), NIB_BAD_INPUT},
        {"llama", LONG(",\"long_factor\":[1]"), NIB_BAD_INPUT},
        {"llama", LONG(",\"long_factor\":[]"), NIB_BAD_INPUT},
        {"llama", LONG(",\"long_factor\":7"), NIB_BAD_INPUT},
        {"llama", LONG(",\"long_factor\":[1,1e999]"), NIB_BAD_INPUT},
        {"llama", LONG(",\"type\":null"), NIB_OK},
        {"llama", LONG(",\"type\":7"), NIB_BAD_INPUT},
        {"llama", LONG(",\"type\":\"longrope\""), NIB_OK},
        {"llama", LONG(",\"attention_factor\":0"), NIB_BAD_INPUT},
        {"llama", LONG(",\"original_max_position_embeddings\":1"), NIB_BAD_INPUT},
        {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":0.125", NIB_OK},
        {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":0.1", NIB_BAD_INPUT},
        {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":0.2", NIB_BAD_INPUT},
        {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":0", NIB_BAD_INPUT},
        {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":1", NIB_OK},
        {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":2", NIB_BAD_INPUT},
        {"glm4", "\"head_dim\":16,\"partial_rotary_factor\":NaN", NIB_BAD_INPUT},
        {"ministral3", BETA("0", ",\"original_max_position_embeddings\":8"), NIB_OK},
        {"ministral3", BETA("10", ",\"original_max_position_embeddings\":8"), NIB_OK},
        {"ministral3", BETA("11", ",\"original_max_position_embeddings\":8"), NIB_BAD_INPUT},
        {"ministral3", BETA("-1", ",\"original_max_position_embeddings\":8"), NIB_BAD_INPUT},
        {"ministral3", BETA("NaN", ",\"original_max_position_embeddings\":8"), NIB_BAD_INPUT},
        {"ministral3", BETA("0.1", ""), NIB_BAD_INPUT},
        {"gemma3_text", GEMMA3("\"rope_theta\":1"), NIB_OK},
        {"gemma3_text", GEMMA3("\"rope_theta\":0.5"), NIB_BAD_INPUT},
        {"gemma3_text", GEMMA3("\"rope_theta\":1e18"), NIB_BAD_INPUT},
        {"gemma3_text", GEMMA3("\"rope_theta\":NaN"), NIB_BAD_INPUT},
        {"gemma3_text", GEMMA3("\"rope_type\":\"default\""), NIB_OK},
        {"gemma3_text", GEMMA3("\"rope_type\":\"linear\""), NIB_UNSUPPORTED},
        {"gemma3_text", GEMMA3("\"factor\":8"), NIB_UNSUPPORTED},
        {"gemma3_text", GEMMA3("\"short_factor\":[1]"), NIB_UNSUPPORTED},
        {"gemma3_text", GEMMA3("\"long_factor\":[1]"), NIB_UNSUPPORTED},
        {"gemma3_text", GEMMA3("\"sliding_attention\":{}"), NIB_BAD_INPUT},
        {"gemma3_text", GEMMA3("}},\"rope_scaling\":{\"full_attention\":{"), NIB_BAD_INPUT},
        /* windows and layers */
        {"smollm3", "\"no_rope_layers\":[1.5]", NIB_BAD_INPUT},
        {"smollm3", "\"no_rope_layers\":[1,0,1]", NIB_BAD_INPUT},
        {"smollm3", "\"no_rope_layers\":[1,-1]", NIB_BAD_INPUT},
        {"smollm3", "\"no_rope_layers\":null", NIB_OK},
        {"qwen2", "\"layer_types\":null", NIB_OK},
        {"qwen2", "\"layer_types\":7", NIB_BAD_INPUT},
        {"qwen2", "\"layer_types\":[7]", NIB_BAD_INPUT},
        {"qwen2", "\"layer_types\":[\"full_attention\",\"linear\"]", NIB_UNSUPPORTED},
        {"qwen2", "\"layer_types\":[\"linear\",\"other\"]", NIB_UNSUPPORTED},
        {"gemma2", "\"head_dim\":16,\"sliding_window_pattern\":0", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"sliding_window_pattern\":1.5", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"sliding_window_pattern\":true", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"sliding_window_pattern\":\"\"", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"sliding_window_pattern\":\"LX\"", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"sliding_window_pattern\":null", NIB_OK},
        {"gemma2", "\"head_dim\":16,\"sliding_window\":null", NIB_BAD_INPUT},
        {"cohere2", "\"sliding_window\":null", NIB_UNSUPPORTED},
        {"cohere2", "\"layer_types\":[\"full_attention\",\"full_attention\"]", NIB_UNSUPPORTED},
        {"exaone4", "\"sliding_window\":null", NIB_OK},
        {"exaone4", "\"sliding_window_pattern\":\"G\"", NIB_UNSUPPORTED},
        {"exaone4", "\"layer_types\":[\"full_attention\",\"full_attention\"]", NIB_UNSUPPORTED},
        {"mistral", "\"sliding_window\":0", NIB_BAD_INPUT},
        {"mistral", "\"sliding_window\":-1", NIB_BAD_INPUT},
        {"mistral", "\"sliding_window\":\"8\"", NIB_BAD_INPUT},
        /* keys of one family */
        {"gemma2", "\"head_dim\":16,\"attn_logit_softcapping\":NaN", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"attn_logit_softcapping\":-1", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"attn_logit_softcapping\":[1]", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"attn_logit_softcapping\":{\"a\":1}", NIB_BAD_INPUT},
        {"gemma2", "\"head_dim\":16,\"attn_logit_softcapping\":\"50\"", NIB_BAD_INPUT},
        {"cohere2", "\"position_embedding_type\":7", NIB_UNSUPPORTED},
        {"cohere2", "\"position_embedding_type\":null", NIB_OK},
        {"cohere2", "\"use_parallel_block\":false", NIB_BAD_INPUT},
        {"granite", "\"logits_scaling\":0", NIB_BAD_INPUT},
        {"granite", "\"logits_scaling\":1e30", NIB_BAD_INPUT},
        {"stablelm", "\"qk_layernorm\":0.5", NIB_BAD_INPUT},
        {"stablelm", "\"qk_layernorm\":2", NIB_BAD_INPUT},
        {"stablelm", "\"qk_layernorm\":true", NIB_OK},
        {"llama", "\"rms_norm_eps\":1", NIB_BAD_INPUT},
        {"llama", "\"rms_norm_eps\":[]", NIB_BAD_INPUT},
        {"llama", "\"architectures\":7", NIB_BAD_INPUT},
        {"llama", "\"architectures\":[7]", NIB_BAD_INPUT},
        {"llama", "\"architectures\":null", NIB_OK},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, cases[i].arch, cases[i].more);
        if (p.status != cases[i].status)
            fail_msg("%s, %s: %s %s", cases[i].arch, cases[i].more, nib_status_name(p.status),
                     p.err.text);
        if (p.status != NIB_OK)
            refused(cases[i].status, p.status, &p.err);
        close_parsed(&p);
    }
}

/* Lists that grow without end, and as long as is supported. */
static void test_long_lists(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *start, *item;
        size_t most;
        nib_status status; /* of a list of the most */
        const char *end;
    } cases[] = {
        {"qwen2", "\"layer_types\":[", "\"full_attention\"", NIB_LAYERS_MAX, NIB_BAD_INPUT, "]"},
        {"llama", "\"layer_types\":[", "\"full_attention\"", NIB_LAYERS_MAX, NIB_OK, "]"},
        {"smollm3", "\"no_rope_layers\":[", "1", NIB_LAYERS_MAX, NIB_BAD_INPUT, "]"},
        {"llama", "\"rope_scaling\":{\"short_factor\":[", "1", 1 << 15, NIB_OK, "]}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t more = 0; more < 2; more++) {
            const size_t count = cases[i].most + more;
            char *text = malloc(1000 + count * (strlen(cases[i].item) + 1));
            assert_non_null(text);
            size_t at = (size_t)sprintf(text, "{\"model_type\":\"%s\"," SIZES ",%s", cases[i].arch,
                                        cases[i].start);
            for (size_t j = 0; j < count; j++)
                at += (size_t)sprintf(text + at, "%s%s", j == 0 ? "" : ",", cases[i].item);
            sprintf(text + at, "%s}", cases[i].end);
            parsed p;
            open_text(&p, text);
            assert_int_equal(p.status, more ? NIB_BAD_INPUT : cases[i].status);
            if (more) {
                refused(NIB_BAD_INPUT, p.status, &p.err);
                assert_non_null(strstr(p.err.text, "at most"));
            }
            close_parsed(&p);
            free(text);
        }
}

/* What another key, the family or transformers overrules is reported, and nothing else. */
static void test_notes(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *more;
        const char *words; /* of the only note; NULL: no note */
    } cases[] = {
        {"llama",
         "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},"
         "\"rope_parameters\":{\"factor\":4}",
         NULL},
        {"llama",
         "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},"
         "\"rope_parameters\":{\"factor\":8}",
         "rope_scaling says 4 and takes precedence"},
        {"llama", "\"rope_theta\":5,\"rope_parameters\":{\"rope_theta\":6}",
         "rope_parameters says 6 and takes precedence"},
        {"llama", "\"original_max_position_embeddings\":64", "does not use it"},
        {"llama", YARN("\"mscale_all_dim\":1"), "it has no effect unless"},
        {"llama", YARN("\"mscale\":1"), "it has no effect unless"},
        {"llama", YARN("\"mscale\":1,\"mscale_all_dim\":1"), NULL},
        {"llama", YARN("\"attention_factor\":2,\"mscale_all_dim\":1"), "takes precedence"},
        {"llama", YARN("\"beta_slow\":0"), "treats 0 as absent"},
        {"phi3",
         "\"rope_scaling\":{\"type\":\"su\",\"original_max_position_embeddings\":256,"
         "\"short_factor\":" EIGHT("1") ",\"long_factor\":" EIGHT("2") "}",
         "so transformers uses the class's"},
        {"phi3",
         "\"rope_scaling\":{\"type\":\"su\",\"original_max_position_embeddings\":4096,"
         "\"short_factor\":" EIGHT("1") ",\"long_factor\":" EIGHT("2") "}",
         NULL},
        /* windows */
        {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":2",
         "because of max_window_layers"},
        {"smollm3", "\"use_sliding_window\":true,\"sliding_window\":8,\"no_rope_layers\":[1,1]",
         "because of no_rope_layers"},
        {"qwen2",
         "\"use_sliding_window\":true,\"sliding_window\":8,"
         "\"layer_types\":[\"full_attention\",\"full_attention\"]",
         "because of layer_types"},
        {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":null",
         "because of sliding_window"},
        {"llama", "\"use_sliding_window\":true", "use_sliding_window"},
        {"mistral",
         "\"sliding_window\":8,\"layer_types\":[\"sliding_attention\","
         "\"sliding_attention\"]",
         NULL},
        {"mistral",
         "\"sliding_window\":8,\"layer_types\":[\"sliding_attention\","
         "\"full_attention\"]",
         "whose layers have a sliding window"},
        {"mistral", "\"sliding_window\":8,\"layer_types\":[\"sliding_attention\"]",
         "whose layers have a sliding window"},
        {"llama", "\"layer_types\":[\"full_attention\",\"linear\"]",
         "whose layers have no sliding window"},
        {"granite", "\"sliding_window\":1023", "granite has no window"},
        {"granite", "\"sliding_window\":1024", NULL},
        {"smollm3", "\"no_rope_layers\":[1,1],\"no_rope_layer_interval\":2",
         "no_rope_layers names other layers"},
        {"smollm3", "\"no_rope_layers\":[1,0],\"no_rope_layer_interval\":2", NULL},
        /* values that ask for nothing */
        {"llama", "\"unknown\":null", NULL},
        {"llama", "\"unknown\":[]", NULL},
        {"llama", "\"unknown\":{}", NULL},
        {"llama", "\"unknown\":false", "unknown"},
        {"llama", "\"trust_remote_code\":false", NULL},
        {"llama", "\"trust_remote_code\":true", "which is not run"},
        {"llama", "\"attn_implementation\":\"kernels/flash\"", "which is not run"},
        {"llama", "\"attn_implementation\":\"sdpa\"", "attn_implementation"},
        {"llama", "\"attn_implementation\":7", "attn_implementation"},
        {"llama", "\"quantization_config\":null", NULL},
        {"llama", "\"quantization_config\":false", NULL},
        {"llama", "\"logits_scaling\":1,\"clip_qkv\":[],\"alibi\":false", NULL},
        {"llama", "\"position_embedding_type\":\"rope\"", NULL},
        {"granite", "\"logits_scaling\":null", NULL},
        /* two names */
        {"gemma2",
         "\"head_dim\":16,\"hidden_act\":\"silu\","
         "\"hidden_activation\":\"gelu_pytorch_tanh\"",
         "hidden_activation decides"},
        {"llama", "\"model_max_length\":1024", NULL},
        {"llama", "\"model_max_length\":99", "max_position_embeddings sets"},
        {"llama", "\"dtype\":\"float16\",\"torch_dtype\":\"float16\"", NULL},
        {"llama", "\"dtype\":\"float16\",\"torch_dtype\":\"float32\"", "its newer name"},
        {"qwen2", "\"attention_bias\":true", "but not on o"},
        {"qwen2", "\"attention_bias\":false", "always has biases"},
        {"starcoder2", "\"attention_bias\":true", "attention_bias"},
        {"starcoder2", "\"attention_bias\":false", NULL},
        {"llama", "\"architectures\":[\"LlamaForCausalLM\"]", NULL},
        {"llama", "\"architectures\":[\"Qwen2ForCausalLM\"]", "which selects LlamaForCausalLM"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        open_config(&p, cases[i].arch, cases[i].more);
        const size_t wanted = cases[i].words != NULL;
        if (p.status != NIB_OK || p.ledger.setting_count != wanted ||
            (wanted && count_settings(&p.ledger, NULL, cases[i].words) != 1)) {
            for (size_t j = 0; j < p.ledger.setting_count; j++)
                print_error("%s: %s\n", p.ledger.settings[j].name, p.ledger.settings[j].text);
            fail_msg("%s, %s: %s", cases[i].arch, cases[i].more, p.err.text);
        }
        close_parsed(&p);
    }
}

/* Biases that config.json cannot name, and a text without memory. */
static void test_write_refused(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        bool qkv, o, refused;
    } cases[] = {
        {"llama", true, true, false},       {"llama", false, false, false},
        {"llama", true, false, true},       {"llama", false, true, true},
        {"qwen2", true, false, false},      {"qwen2", false, false, true},
        {"qwen2", true, true, true},        {"glm", true, false, false},
        {"glm", false, true, true},         {"glm", false, false, false},
        {"starcoder2", true, false, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        nib_text text;
        nib_err err = {NIB_OK, ""};
        open_config(&p, cases[i].arch, "");
        assert_int_equal(p.status, NIB_OK);
        p.config.qkv_bias = cases[i].qkv;
        p.config.o_bias = cases[i].o;
        nib__text_init(&text, &allocator);
        const nib_status status = nib__config_write(&text, &p.config, &err);
        if (cases[i].refused)
            refused(NIB_UNSUPPORTED, status, &err);
        else
            assert_int_equal(status, NIB_OK);
        nib__text_free(&text);
        for (int left = 0; !cases[i].refused; left++) {
            failing f = {.left = left};
            const nib_allocator a = failing_allocator(&f);
            nib__text_init(&text, &a);
            const nib_status got = nib__config_write(&text, &p.config, &err);
            nib__text_free(&text);
            assert_int_equal(f.live, 0);
            if (got == NIB_OK)
                break;
            assert_true(got == NIB_NO_MEMORY && f.left == 0);
        }
        close_parsed(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_limits),   cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_notes),    cmocka_unit_test(test_write_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
