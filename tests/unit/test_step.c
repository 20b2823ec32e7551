/* SPDX-License-Identifier: Apache-2.0
 *
 * A micro-batch against transformers in float64 (tools/golden/make_step_golden.py): the loss and
 * the gradient of every parameter, with packed documents, biases, tied and untied embeddings;
 * quantization-aware training against torchao (make_qat_golden.py). Threads, instruction sets and
 * checkpointing change no bit.
 */
#include "families.h"
#include "session.h"
#include "step_fixture.h"

static void check_golden(const setting *s, double limit)
{
    fixture f;
    open_fixture(&f, s);
    static float golden[8192];
    double wanted;
    values(&f, "loss", &wanted, sizeof wanted);
    const nib_losses losses = run_losses(&f, f.gradients);
    const double loss = losses.text;
    if (!(fabs(loss - wanted) < limit * wanted))
        fail_msg("%s %s %s: loss %.9g, not %.9g", s->name, s->dtype ? s->dtype : "f32",
                 s->recipe ? s->recipe : "", loss, wanted);
    if (nib__checkpoint_find(f.golden, "balance") != NULL) {
        const double balance = (double)*nib__load_loss(&f.params.load, f.gradients);
        values(&f, "balance", &wanted, sizeof wanted);
        if (!(fabs(balance - wanted) < limit * wanted))
            fail_msg("%s: a load-balancing loss of %.9g, not %.9g", s->name, balance, wanted);
    }
    if (nib__checkpoint_find(f.golden, "draft_loss") != NULL) {
        values(&f, "draft_loss", &wanted, sizeof wanted);
        if (!(fabs(losses.draft - wanted) < limit * wanted))
            fail_msg("%s: a draft head's loss of %.9g, not %.9g", s->name, losses.draft, wanted);
    }
    const nib_losses again = run_losses(&f, NULL);
    assert_true(again.text == loss && again.draft == losses.draft);
    for (size_t i = 0; i < f.params.count; i++) {
        const nib_param *p = &f.params.items[i];
        values(&f, p->name, golden, sizeof golden);
        const double off = nib__param_has_gradient(p)
                               ? distance(f.gradients + p->at, golden, nib__param_size(p))
                               : fabs((double)f.gradients[p->at]);
        if (!(off < limit))
            fail_msg("%s %s %s, %s: %g", s->name, s->dtype ? s->dtype : "f32",
                     s->recipe ? s->recipe : "", p->name, off);
    }
    close_fixture(&f);
}

/* Recipes for all layers but routers and the head, which stay bf16. */
#define ALL_BUT_ROUTERS(scheme)                                                                    \
    "{\"rules\": [{\"match\": \"re:.*[.](gate|shared_expert_gate|router[.]proj)\", \"scheme\": "   \
    "\"bf16\"}, "                                                                                  \
    "{\"match\": \"lm_head\", \"scheme\": \"bf16\"}], \"else\": \"" scheme "\"}"

static const char *mxfp8_of(const char *family)
{
    return strstr(family, "moe") != NULL || strcmp(family, "mixtral") == 0 ||
                   strcmp(family, "gpt_oss") == 0 || strcmp(family, "llama4") == 0 ||
                   strcmp(family, "gemma4") == 0 || strcmp(family, "qwen3_next") == 0 ||
                   strstr(family, "deepseek") != NULL
               ? ALL_BUT_ROUTERS("mxfp8")
               : "mxfp8+head";
}

/* The families that differ most: norms around each block, a parallel block, an MLP without a gate.
 * `make matrix` runs all families in all variants. */
static const char *const apart[] = {"gemma2", "cohere2", "starcoder2"};

/* With a draft head; see below for the others. */
static const char *const with_heads[] = {"qwen3_5_head", "qwen3_next_head", "deepseek_v3_head"};

/* Without experts. */
static const char *const with_states[] = {"lfm2", "qwen3_5", "granite_hybrid"};

static void test_golden_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(families); i++)
        check_golden(&(setting){.name = families[i]}, 1e-4);
    for (size_t i = 0; i < COUNT(with_heads); i++)
        check_golden(&(setting){.name = with_heads[i]}, 1e-4);
    check_golden(&(setting){.name = "qwen2", .isa = "ref"}, 1e-4);
}

/* DeepSeek's load-balancing loss over whole micro-batches, and the gradients of the routers. */
static void test_balance_of_micro_batches(void **state)
{
    static const char *const names[] = {"deepseek_v2", "deepseek_v3"};
    static float golden[8192];
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        fixture f;
        double wanted;
        size_t routers = 0;
        open_fixture(&f, &(setting){.name = names[i], .whole_batches = true});
        run(&f, f.gradients);
        const double balance = (double)*nib__load_loss(&f.params.load, f.gradients);
        values(&f, "whole.balance", &wanted, sizeof wanted);
        assert_true(fabs(balance - wanted) < 1e-6 * wanted);
        for (size_t p = 0; p < f.params.count; p++) {
            const nib_param *gate = &f.params.items[p];
            char name[192];
            if (gate->entry->role != NIB_ROLE_ROUTER || gate->role != NIB_PARAM_WEIGHT)
                continue;
            snprintf(name, sizeof name, "whole.%s", gate->name);
            values(&f, name, golden, sizeof golden);
            const double off = distance(f.gradients + gate->at, golden, nib__param_size(gate));
            if (!(off < 1e-4))
                fail_msg("%s, %s: %g", names[i], gate->name, off);
            routers++;
        }
        assert_int_equal(routers, 1);
        close_fixture(&f);
    }
}

/* The cosine between the gradient of a model and the golden one. */
static double gradient_cosine(const setting *s)
{
    fixture f;
    static float golden[8192];
    double both = 0, own = 0, other = 0;
    open_fixture(&f, s);
    run(&f, f.gradients);
    for (size_t i = 0; i < f.params.count; i++) {
        const nib_param *p = &f.params.items[i];
        values(&f, p->name, golden, sizeof golden);
        for (size_t j = 0; j < nib__param_size(p); j++) {
            const double a = (double)f.gradients[p->at + j], b = (double)golden[j];
            both += a * b, own += a * a, other += b * b;
        }
    }
    close_fixture(&f);
    return both / sqrt(own * other);
}

/* Layers that share an input use different forms: k and up stay bf16. */
#define KEPT(scheme)                                                                               \
    "{\"rules\": [{\"match\": \"*k_proj\", \"scheme\": \"bf16\"}, "                                \
    "{\"match\": \"*up_proj\", \"scheme\": \"bf16\"}], "                                           \
    "\"else\": \"" scheme "\"}"

/* Products of rounded inputs give gradients in nearly the same direction. */
static void test_golden_low(void **state)
{
    (void)state;
    check_golden(&(setting){.name = "qwen2", .dtype = "bf16", .recipe = "bf16"}, 0.05);
    static const char *const recipes[] = {"fp8dq+head",       "fp8dq-tensor+head",  "mxfp8+head",
                                          "mxfp8-floor+head", KEPT("fp8dq-tensor"), KEPT("mxfp8")};
    for (size_t i = 0; i < COUNT(families); i++) {
        const double low = gradient_cosine(
            &(setting){.name = families[i], .dtype = "bf16", .recipe = mxfp8_of(families[i])});
        if (!(low > 0.9))
            fail_msg("%s in mxfp8: %g", families[i], low);
    }
    for (size_t i = 0; i < COUNT(recipes); i++) {
        setting s = {.name = "qwen2", .dtype = "bf16", .recipe = recipes[i]};
        const double low = gradient_cosine(&s);
        s.wgrad_with_hp = true;
        const double high = gradient_cosine(&s);
        if (!(low > 0.97 && high > low))
            fail_msg("%s: %g, with gradients of weights in bf16 %g", recipes[i], low, high);
    }
}

/* In bf16 a value near the middle of two codes may get the other one, which moves it by a step and
 * changes the gradients. */
static void test_golden_qat(void **state)
{
    static const setting settings[] = {
        {.recipe = "8da4w-g8+head", .qat = "qat_8da4w"},
        {.recipe = "int4wo-g8", .qat = "qat_int4wo"},
        {.recipe = "int8wo+head", .qat = "qat_int8wo"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        setting s = settings[i];
        s.name = "qwen2";
        check_golden(&s, 1e-4);
        s.dtype = "bf16";
        check_golden(&s, 0.2);
    }
}

/* A draft head whose loss has no weight changes nothing: not the loss of the text, nor a gradient
 * of the model, also of the table and the output layer that both read. */
static void check_idle_head(setting s)
{
    fixture f, g;
    s.idle_head = true;
    open_fixture(&f, &s);
    s.no_head = true;
    open_fixture(&g, &s);
    assert_true(f.params.count > g.params.count + 9);
    const nib_losses with = run_losses(&f, f.gradients), without = run_losses(&g, g.gradients);
    assert_true(with.text == without.text && with.draft > 1 && without.draft == 0);
    for (size_t i = 0, at = 0; i < f.params.count; i++) {
        const nib_param *p = &f.params.items[i], *q = &g.params.items[at];
        const bool own = at == g.params.count || strcmp(p->name, q->name) != 0;
        at += !own;
        for (size_t j = 0; j < nib__param_size(p); j++)
            if (f.gradients[p->at + j] != (own ? 0 : g.gradients[q->at + j]))
                fail_msg("%s, %s: another gradient with an idle head", s.name, p->name);
        assert_true(i + 1 < f.params.count || at == g.params.count);
    }
    close_fixture(&f);
    close_fixture(&g);
}

static void test_idle_heads(void **state)
{
    (void)state;
    check_idle_head((setting){.name = "qwen3_5_head"});
    check_idle_head((setting){.name = "qwen3_5_head", .checkpointing = NIB_AC_FULL});
    check_idle_head(
        (setting){.name = "qwen3_5_head", .dtype = "bf16", .recipe = "fp8dq-tensor+head"});
    check_idle_head(
        (setting){.name = "qwen3_5_head", .recipe = "int4wo-g8+head", .qat = "qat_int4wo"});
    check_idle_head((setting){.name = "qwen3_5_head", .checkpointing = NIB_AC_SELECTIVE});
}

static double loss_for(const char *recipe)
{
    fixture f;
    open_fixture(&f, &(setting){.name = "qwen2", .recipe = recipe, .qat = "qat_8da4w"});
    const double loss = run(&f, f.gradients);
    close_fixture(&f);
    return loss;
}

#define WITH_SCALES(type)                                                                          \
    "{\"_type\":\"Int8DynamicActivationIntxWeightConfig\",\"_version\":2,\"_data\":{"              \
    "\"weight_dtype\":{\"_type\":\"torch.dtype\",\"_data\":\"int4\"},"                             \
    "\"weight_granularity\":{\"_type\":\"PerGroup\",\"_data\":{\"group_size\":8}},"                \
    "\"weight_scale_dtype\":{\"_type\":\"torch.dtype\",\"_data\":\"" type "\"}}}"

/* Training simulates the scale type that the recipe requests; the weights are f32. */
static void test_qat_scale_types(void **state)
{
    (void)state;
    const double own = loss_for("8da4w-g8");
    assert_true(loss_for(WITH_SCALES("float32")) == own);
    assert_true(loss_for(WITH_SCALES("bfloat16")) != own);
}

static void check_same(const setting *a, const setting *b)
{
    fixture f, g;
    open_fixture(&f, a);
    open_fixture(&g, b);
    const double loss = run(&f, f.gradients), other = run(&g, g.gradients);
    assert_true(loss == other);
    assert_memory_equal(f.gradients, g.gradients, nib__load_block(&f.params.load) * sizeof(float));
    close_fixture(&f);
    close_fixture(&g);
}

/* Every variant of the step of `base` gives the same bits. */
static void check_variants(const setting *base)
{
    static const char *const isas[] = {"ref", "avx2", "avx512"};
    setting other = *base;
    other.threads = 3;
    check_same(base, &other);
    other = *base;
    other.watched = true;
    check_same(base, &other);
    other = *base;
    other.checkpointing = NIB_AC_SELECTIVE;
    check_same(base, &other);
    other.checkpointing = NIB_AC_FULL;
    check_same(base, &other);
    for (size_t i = 0; i < COUNT(isas); i++) {
        other = *base;
        other.isa = isas[i];
        if (isa_is_here(isas[i]))
            check_same(base, &other);
    }
}

/* All round the output layer, which the head shares. */
static const char *recipe_of_head(size_t i)
{
    static const char *const recipes[] = {"fp8dq-tensor+head", "mxfp8+head+router",
                                          "fp8dq+head+router"};
    return recipes[i];
}

static void test_same_bits(void **state)
{
    static const char *const recipes[] = {
        "bf16",       "mxfp8+head",  "fp8dq+head", "fp8dq-tensor+head", KEPT("fp8dq-tensor"),
        "mxfp8+head", KEPT("fp8dq"), "fp8dq+head"};
    (void)state;
    for (size_t r = 0; r < 1 + COUNT(recipes); r++) {
        const char *recipe = r > 0 ? recipes[r - 1] : NULL, *dtype = r > 0 ? "bf16" : "f32";
        const setting base = {
            .name = "qwen2", .dtype = dtype, .recipe = recipe, .wgrad_with_hp = r > 5};
        check_variants(&base);
    }
    for (size_t i = 0; i < COUNT(apart); i++)
        check_variants(&(setting){.name = apart[i], .dtype = "bf16", .recipe = "mxfp8+head"});
    for (size_t i = 0; i < COUNT(with_states); i++)
        check_variants(&(setting){.name = with_states[i]});
    for (size_t i = 0; i < COUNT(with_heads); i++)
        check_variants(
            &(setting){.name = with_heads[i], .dtype = "bf16", .recipe = recipe_of_head(i)});
    check_variants(
        &(setting){.name = "qwen3_5_head", .recipe = "8da4w-g8+head", .qat = "qat_8da4w"});
}

/* Groups of 10 do not divide 24; layers that share an input use different forms. */
static void test_same_bits_mixtures(void **state)
{
    static const char *const mixtures[] = {"qwen3_moe", "qwen3_moe_plain", "glm4_moe",
                                           "gpt_oss",   "deepseek_v2",     "deepseek_v3",
                                           "gemma4",    "qwen3_next",      "granite_hybrid_moe"};
    static const char *const recipes[] = {ALL_BUT_ROUTERS("mxfp8"), ALL_BUT_ROUTERS("fp8dq"),
                                          ALL_BUT_ROUTERS("fp8dq-tensor"), ALL_BUT_ROUTERS("bf16")};
    (void)state;
    for (size_t i = 0; i < COUNT(mixtures); i++) {
        check_variants(&(setting){.name = mixtures[i]});
        check_variants(&(setting){.name = mixtures[i],
                                  .dtype = "bf16",
                                  .recipe = recipes[i % COUNT(recipes)],
                                  .wgrad_with_hp = i % 2 != 0});
        check_variants(
            &(setting){.name = mixtures[i], .recipe = "8da4w-g8+head", .qat = "qat_8da4w"});
    }
}

static void test_same_bits_qat(void **state)
{
    static const char *const recipes[] = {
        "8da4w-g10+head", "int4wo-g10",
        ("{\"rules\": [{\"match\": \"*k_proj\", \"scheme\": \"bf16\"}, {\"match\": \"*up_proj\", "
         "\"scheme\": \"int8dq\"}], \"else\": \"8da4w-g8\"}")};
    (void)state;
    for (size_t r = 0; r < COUNT(recipes); r++)
        check_variants(
            &(setting){.name = "qwen2", .dtype = "bf16", .recipe = recipes[r], .qat = "qat_8da4w"});
    for (size_t i = 0; i < COUNT(apart); i++)
        check_variants(&(setting){.name = apart[i], .recipe = "8da4w-g8+head", .qat = "qat_8da4w"});
    for (size_t i = 0; i < COUNT(with_states); i++)
        check_variants(&(setting){.name = with_states[i],
                                  .dtype = "bf16",
                                  .recipe = "8da4w-g8+head",
                                  .qat = "qat_8da4w"});
}

/* The first and last operation before `end` that touches a buffer. */
static void find_touches(const nib_step *s, int place, size_t end, size_t *first, size_t *last)
{
    *first = SIZE_MAX;
    for (size_t i = 0; i < end; i++) {
        bool touches = false;
        for (int j = 0; j < NIB_TRAINING_INPUTS; j++)
            touches = touches || s->nodes[i].in[j] == place;
        for (int j = 0; j < NIB_TRAINING_OUTPUTS; j++)
            touches = touches || s->nodes[i].out[j] == place;
        if (!touches)
            continue;
        *first = *first == SIZE_MAX ? i : *first;
        *last = i;
    }
}

/* Chains cover the list in order, and only one chain uses a scratch buffer. */
static void check_chains(const nib_step *s, int list, size_t end)
{
    const nib_chains *chains = &s->chains[list];
    size_t at = 0, longest = 0, in_rooms = 0;
    for (size_t i = 0; i < chains->count; at = chains->items[i++].end) {
        const nib_chain *c = &chains->items[i];
        assert_true(c->first == at && c->end > at && c->end <= end);
        longest = c->end - at > longest ? c->end - at : longest;
        for (size_t p = 0; p < s->buffer_count; p++) {
            size_t first, last;
            if (s->buffers[p].scratch_at[list] == NIB_CHAIN_NONE)
                continue;
            find_touches(s, (int)p, end, &first, &last);
            if (first < c->first || first >= c->end)
                continue;
            assert_true(last < c->end && (int)p != s->loss);
            assert_true(s->buffers[p].scratch_at[list] < c->scratch_bytes &&
                        c->scratch_bytes <= nib__step_chain_scratch(s));
            in_rooms++;
        }
    }
    assert_true(at == end && longest >= 8); /* o to down is longer */
    assert_true(in_rooms > 0);
}

/* Buffers whose bytes overlap are never live at the same time, and every buffer is written before
 * it is read. */
static void check_buffers(const nib_step *s)
{
    for (size_t p = 0; p < s->buffer_count; p++) {
        const nib_step_buffer *a = &s->buffers[p];
        size_t first, last, other_first, other_last;
        find_touches(s, (int)p, s->count, &first, &last);
        assert_true(first == a->first && (last == a->last[1] || (int)p == s->loss));
        bool writes = false;
        for (int j = 0; j < NIB_TRAINING_OUTPUTS; j++)
            writes = writes || s->nodes[first].out[j] == (int)p;
        assert_true(writes);
        for (size_t q = 0; q < p; q++) {
            const nib_step_buffer *b = &s->buffers[q];
            const uint64_t wide = (uint64_t)(s->m * b->columns) * sizeof(float);
            if (a->columns == 0 || b->columns == 0 || a->at < b->at || a->at >= b->at + wide)
                continue;
            find_touches(s, (int)q, s->count, &other_first, &other_last);
            assert_true(last < other_first || other_last < first);
            assert_true((int)q != s->loss);
        }
    }
}

static void test_chains(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3 * COUNT(families); i++) {
        const nib_ac ac = (nib_ac)(i % 3);
        fixture f;
        open_fixture(&f, &(setting){.name = families[i / 3],
                                    .dtype = "bf16",
                                    .recipe = mxfp8_of(families[i / 3]),
                                    .threads = 2,
                                    .checkpointing = ac});
        check_chains(&f.step, 0, f.step.forward_end);
        check_chains(&f.step, 1, f.step.count);
        check_buffers(&f.step);
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_f32),    cmocka_unit_test(test_golden_low),
        cmocka_unit_test(test_golden_qat),    cmocka_unit_test(test_idle_heads),
        cmocka_unit_test(test_same_bits),     cmocka_unit_test(test_qat_scale_types),
        cmocka_unit_test(test_same_bits_qat), cmocka_unit_test(test_balance_of_micro_batches),
        cmocka_unit_test(test_chains),        cmocka_unit_test(test_same_bits_mixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
