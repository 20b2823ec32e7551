/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a quantization_config. An accepted one is within what the dialects rely on, every
 * refusal has an error text, and looking up a module's group always returns.
 */
#include "quantization.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_word(const char word[NIB_WORD]) { require(strlen(word) < NIB_WORD); }

static void require_coding(const nib_coding *c)
{
    require_word(c->type);
    require_word(c->strategy);
    require_word(c->order);
    require_word(c->dynamic);
}

static void require_quantization(const nib_quantization *q)
{
    static const char *const modules[] = {"lm_head", "model.layers.3.mlp.experts.0.gate_proj", ""};
    require(q->method == NIB_METHOD_NONE || q->method_name != NULL);
    if (q->method == NIB_METHOD_GPTQ || q->method == NIB_METHOD_AWQ) {
        require(q->bits == 4 || (q->bits == 8 && q->method == NIB_METHOD_GPTQ));
        require(q->group == -1 || (q->group >= 1 && q->group <= 1 << 30));
    }
    if (q->method == NIB_METHOD_FP8)
        require((q->block[0] == 0) == (q->block[1] == 0) && q->block[0] >= 0 && q->block[1] >= 0);
    if (nib__quantization_has_groups(q))
        require(q->group_count > 0);
    for (size_t i = 0; i < q->group_count; i++) {
        require(q->groups[i].name != NULL);
        require_word(q->groups[i].format);
        require_coding(&q->groups[i].weights);
        require_coding(&q->groups[i].inputs);
    }
    for (size_t i = 0; i < COUNT(modules); i++) {
        const nib_coding_group *group;
        require(nib__quantization_group(&group, q, modules[i], NULL) == NIB_OK || group == NULL);
        require(group == NULL || (group >= q->groups && group < q->groups + q->group_count));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_quantization *q = NULL;
    nib_err err = {.status = NIB_OK};
    nib__arena_init(&arena, &a, 4 << 20);
    if (nib__quantization_parse(&q, "fuzz", (const char *)data, size, NULL, &arena, &a, NULL,
                                &err) == NIB_OK) {
        require_quantization(q);
        nib__quantization_free(q);
    } else {
        require(err.status != NIB_OK && err.text[0] != 0);
    }
    nib__arena_free(&arena);
    return 0;
}
