/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a recipe, a name or JSON, against three layers: it is refused with an error text, or
 * every layer gets a choice with a rule, whose scheme parses back from its name.
 */
#include "recipe.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_choice(const nib_recipe *recipe, const nib_recipe_layer *layer)
{
    nib_choice choice;
    nib_scheme again;
    char name[64];
    nib__recipe_resolve(&choice, recipe, layer);
    require(choice.rule != NULL);
    if (choice.keep)
        return;
    nib__scheme_name(name, &choice.scheme);
    require(nib__scheme_parse(&again, name, strlen(name), NULL) == NIB_OK);
    require(nib__scheme_equal(&again, &choice.scheme));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const nib_recipe_layer layers[] = {
        {"model.embed_tokens", NIB_ROLE_EMBED, false},
        {"model.layers.0.self_attn.q_proj", NIB_ROLE_Q, false},
        {"lm_head", NIB_ROLE_HEAD, false},
    };
    const nib_allocator a = nib__allocator_default();
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    const bool json = text[strspn(text, " \t\r\n")] == '{';
    const bool path = !json && (strchr(text, '/') != NULL || strstr(text, ".json") != NULL);
    nib_recipe *recipe = NULL;
    nib_err err = {0};
    const nib_recipe_input input = {.text = text, .layers = layers, .count = COUNT(layers)};
    if (!path && nib__recipe_load(&recipe, &input, &a, &err) == NIB_OK)
        for (size_t i = 0; i < COUNT(layers); i++)
            check_choice(recipe, &layers[i]);
    else if (!path)
        require(recipe == NULL && err.status != NIB_OK && err.text[0] != 0);
    nib__recipe_free(recipe);
    free(text);
    return 0;
}
