/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: recipes against the six layers of one small model, and the parts of torchao's JSON.
 * Include it after cmocka.h.
 */
#ifndef NIB_TESTS_RECIPE_EXPECT_H
#define NIB_TESTS_RECIPE_EXPECT_H

#include "recipe.h"
#include "refused.h"

#include <string.h>

enum { EMBED, Q, V, DOWN, Q1, HEAD, LAYERS };

static const nib_recipe_layer untied[LAYERS] = {
    {"model.embed_tokens", NIB_ROLE_EMBED, false},
    {"model.layers.0.self_attn.q_proj", NIB_ROLE_Q, false},
    {"model.layers.0.self_attn.v_proj", NIB_ROLE_V, false},
    {"model.layers.0.mlp.down_proj", NIB_ROLE_DOWN, false},
    {"model.layers.1.self_attn.q_proj", NIB_ROLE_Q, false},
    {"lm_head", NIB_ROLE_HEAD, false},
};

static inline nib_recipe *load(const char *text, const nib_recipe_layer *layers, const char *skip,
                               const char *only)
{
    const nib_allocator a = nib__allocator_default();
    nib_recipe *r = NULL;
    nib_err err = {0};
    const nib_recipe_input in = {.text = text,
                                 .skip = {&skip, skip != NULL},
                                 .only = {&only, only != NULL},
                                 .layers = layers,
                                 .count = LAYERS};
    if (nib__recipe_load(&r, &in, &a, &err) != NIB_OK)
        fail_msg("%s: %s", text, err.text);
    return r;
}

/* "keep", "weight-only" or the scheme of each layer, in order, in one string. */
static inline void expect_of(nib_recipe *r, const nib_recipe_layer *layers, const char *text,
                             const char *want)
{
    char got[512] = "";
    for (int i = 0; i < LAYERS; i++) {
        nib_choice choice;
        char name[64];
        nib__recipe_resolve(&choice, r, &layers[i]);
        assert_non_null(choice.rule);
        strncat(got, i == 0 ? "" : " ", sizeof got - strlen(got) - 1);
        strncat(got,
                choice.weight_only ? "weight-only"
                : choice.keep      ? "keep"
                                   : nib__scheme_name(name, &choice.scheme),
                sizeof got - strlen(got) - 1);
    }
    if (strcmp(got, want) != 0)
        fail_msg("%s gives\n  %s, not\n  %s", text, got, want);
}

static inline void expect(const char *text, const char *want)
{
    nib_recipe *r = load(text, untied, NULL, NULL);
    expect_of(r, untied, text, want);
    nib__recipe_free(r);
}

static inline void expect_rule(const char *text, int layer, const char *rule)
{
    nib_choice choice;
    nib_recipe *r = load(text, untied, NULL, NULL);
    nib__recipe_resolve(&choice, r, &untied[layer]);
    assert_string_equal(choice.rule, rule);
    nib__recipe_free(r);
}

static inline void expect_refused(const char *text, nib_status want)
{
    const nib_allocator a = nib__allocator_default();
    nib_recipe *r = NULL;
    nib_err err = {0};
    const nib_recipe_input in = {.text = text, .layers = untied, .count = LAYERS};
    refused(want, nib__recipe_load(&r, &in, &a, &err), &err);
    assert_null(r);
}

#define DTYPE(name) "{\"_type\":\"torch.dtype\",\"_data\":\"" name "\"}"
#define GROUP(n) "{\"_type\":\"PerGroup\",\"_version\":1,\"_data\":{\"group_size\":" n "}}"
#define ENUMERATOR(type, name) "{\"_type\":\"" type "\",\"_data\":\"" name "\"}"
#define CONFIG(type, version, data)                                                                \
    "{\"_type\":\"" type "\",\"_version\":" version ",\"_data\":{" data "}}"
#define EIGHT_DA_FOUR(extra)                                                                       \
    CONFIG("Int8DynamicActivationIntxWeightConfig", "2",                                           \
           "\"weight_dtype\":" DTYPE("int4") ",\"weight_granularity\":" GROUP("64") extra)

#define HF(extra)                                                                                  \
    "{\"quant_method\":\"torchao\",\"quant_type\":{\"default\":" EIGHT_DA_FOUR("") "}" extra "}"

#define INT8 CONFIG("Int8WeightOnlyConfig", "2", "")

#endif
