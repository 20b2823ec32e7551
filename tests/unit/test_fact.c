/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts and conditions: when each relation holds, its code, its sentence and its description.
 */
#include "fact.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static nib_allocator allocator;

typedef struct cond_case {
    nib_cond cond;
    int64_t value;
    bool holds;
    const char *code, *sentence;
} cond_case;

#define BF16_F32 (NIB_BIT(NIB_TYPE_F32) | NIB_BIT(NIB_TYPE_BF16))

static const cond_case cases[] = {
    {NIB_IS(BIAS, 0, "it adds none"), 1, false, "bias=no", "the layer has a bias: it adds none"},
    {NIB_IS(BIAS, 0, NULL), 0, true, "bias=no", NULL},
    {NIB_IS(SYMMETRIC, 1, NULL), 0, false, "symmetric=yes", "the layer lacks symmetric weights"},
    {NIB_IS(DOT4, 1, NULL), 0, false, "dot4=yes", "the device lacks a 4-bit dot product"},
    {NIB_IS(BUILT, 1, NULL), 0, false, "built=yes", "this program lacks this kernel"},
    {NIB_IS(MAKER, NIB_MAKER_NVIDIA, NULL), NIB_MAKER_APPLE, false, "maker=nvidia",
     "the device's maker is apple, not nvidia"},
    {NIB_IS(GROUP, 0, NULL), 32, false, "group=row", "the group size is 32, not row"},
    {NIB_ONE_OF(SCALE_TYPE, BF16_F32, "why"), NIB_TYPE_F64, false, "scale_type:bf16,f32",
     "the scale type is f64, not one of bf16, f32: why"},
    {NIB_ONE_OF(SCALE_TYPE, BF16_F32, NULL), NIB_TYPE_F32, true, "scale_type:bf16,f32", NULL},
    {NIB_ONE_OF(GROUP, 32 | 64 | 128 | 256, NULL), 96, false, "group:32,64,128,256",
     "the group size is 96, not one of 32, 64, 128, 256"},
    {NIB_ONE_OF(GROUP, 32 | 64 | 128 | 256, NULL), 64, true, "group:32,64,128,256", NULL},
    {NIB_ONE_OF(GROUP, 32 | 64 | 128 | 256, NULL), 0, false, "group:32,64,128,256",
     "the group size is row, not one of 32, 64, 128, 256"},
    {NIB_AT_LEAST(SM, 80, "mma.m16n8k16"), 75, false, "sm>=80",
     "the compute capability is 75, below 80: mma.m16n8k16"},
    {NIB_AT_LEAST(SM, 80, NULL), 0, false, "sm>=80", "the compute capability is none, below 80"},
    {NIB_AT_MOST(M, 16, NULL), 17, false, "m<=16", "the number of tokens m is 17, above 16"},
    {NIB_AT_MOST(M, 16, NULL), 16, true, "m<=16", NULL},
    {NIB_MULTIPLE(N, 128, NULL), 2256, false, "n%128",
     "the output width n is 2256, not a multiple of 128 (next: 2304)"},
    {NIB_MULTIPLE(N, 128, NULL), 2304, true, "n%128", NULL},
    {NIB_MULTIPLE(GROUP, 32, NULL), NIB_GROUP_TENSOR, true, "group%32", NULL},
    {NIB_DIVIDES(GROUP, K, NULL), 32, false, "group|k",
     "the group size 32 does not divide the input width k 172 (next: 192, or the group size 4)"},
    {NIB_DIVIDES(GROUP, K, NULL), 43, true, "group|k", NULL},
    {NIB_DIVIDES(GROUP, K, NULL), NIB_GROUP_ROW, true, "group|k", NULL},
    {NIB_HAS(ISA, NIB_ISA_AVX2 | NIB_ISA_AVX512VNNI, NULL), NIB_ISA_AVX2, false,
     "isa+avx2+avx512vnni", "the instruction set lacks avx512vnni"},
    {NIB_HAS(ISA, NIB_ISA_AVX2, NULL), NIB_ISA_AVX2 | NIB_ISA_AVX512, true, "isa+avx2", NULL},
};

static void codes_and_sentences(void **state)
{
    (void)state;
    nib_text text;
    nib__text_init(&text, &allocator);
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_query query = {.fact = {0}};
        query.fact[NIB_FACT_K] = 172;
        query.fact[cases[i].cond.fact] = cases[i].value;
        assert_int_equal(nib__cond_holds(&cases[i].cond, &query), cases[i].holds);
        nib__text_clear(&text);
        nib__cond_code(&cases[i].cond, &text);
        assert_string_equal(text.at, cases[i].code);
        nib__text_clear(&text);
        nib__cond_describe(&cases[i].cond, &text);
        assert_true(text.size > 4);
        if (cases[i].sentence == NULL)
            continue;
        nib__text_clear(&text);
        nib__cond_say(&cases[i].cond, &query, &text);
        assert_string_equal(text.at, cases[i].sentence);
    }
    nib__text_free(&text);
}

/* Sizes come from files: advice for two large primes takes no longer than for other sizes. */
static void divisors_are_found_at_once(void **state)
{
    (void)state;
    static const struct {
        int64_t group, k;
        const char *says;
    } large[] = {
        {2147483646, 2147483647, "or the group size 1)"},
        {100, 97 * 89, "or the group size 97)"},
        {48, 32, "or the group size 32)"},
    };
    const nib_cond cond = NIB_DIVIDES(GROUP, K, NULL);
    nib_text text;
    nib__text_init(&text, &allocator);
    for (size_t i = 0; i < COUNT(large); i++) {
        nib_query query = {.fact = {0}};
        query.fact[NIB_FACT_GROUP] = large[i].group;
        query.fact[NIB_FACT_K] = large[i].k;
        nib__text_clear(&text);
        nib__cond_say(&cond, &query, &text);
        if (strstr(text.at, large[i].says) == NULL)
            fail_msg("%s", text.at);
    }
    nib__text_free(&text);
}

static void facts_have_descriptions(void **state)
{
    (void)state;
    nib_text text;
    nib__text_init(&text, &allocator);
    for (int f = 0; f < NIB_FACT_COUNT; f++) {
        const nib_fact_info *info = &nib__fact_info[f];
        assert_true(strlen(info->key) > 0 && strlen(info->noun) > 0 && strlen(info->owner) > 0);
        assert_int_equal(info->names != NULL,
                         info->kind == NIB_KIND_ENUM || info->kind == NIB_KIND_SET);
        for (int g = 0; g < f; g++)
            assert_string_not_equal(info->key, nib__fact_info[g].key);
        nib__text_clear(&text);
        nib__fact_say((nib_fact)f, 1, &text);
        assert_true(text.size > 0);
    }
    nib__text_clear(&text);
    nib__fact_say(NIB_FACT_DEVICE, 99, &text);
    assert_string_equal(text.at, "99 (unknown)");
    nib__text_clear(&text);
    nib__fact_say(NIB_FACT_ISA, 0, &text);
    assert_string_equal(text.at, "none");
    nib__text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_and_sentences),
        cmocka_unit_test(divisors_are_found_at_once),
        cmocka_unit_test(facts_have_descriptions),
    };
    allocator = nib__allocator_default();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
