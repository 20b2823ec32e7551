/* SPDX-License-Identifier: Apache-2.0
 *
 * llama.cpp's named mixes of block types as rules: which layers have more bits than the rest
 * (llama_tensor_get_type of llama-quant.cpp, version 0.3.36 of llama-cpp-python). The output and
 * an embedding tied to it are Q6_K, another embedding has the type of the rest. Left out are
 * llama.cpp's exceptions for models of 8 experts, of 70B and of Falcon.
 */
#include "recipe_rules.h"

#include <stdlib.h>

/* Which blocks of n a rule means; i counts from 0. */
typedef enum mix_blocks {
    BLOCKS_ALL,
    BLOCKS_OUTER, /* the first and last eighth, and every third one between */
    BLOCKS_EIGHTH,
    BLOCKS_SIXTEENTH,
    BLOCKS_FOUR,
    BLOCKS_TWO,
} mix_blocks;

static const char *const blocks_words[] = {
    [BLOCKS_ALL] = "every block",
    [BLOCKS_OUTER] = "the first and last eighth of the blocks and every third between",
    [BLOCKS_EIGHTH] = "the first eighth of the blocks",
    [BLOCKS_SIXTEENTH] = "the first sixteenth of the blocks",
    [BLOCKS_FOUR] = "the first 4 blocks",
    [BLOCKS_TWO] = "the first 2 blocks",
};

typedef struct mix_rule {
    nib_role role;
    mix_blocks blocks;
    const char *scheme; /* NULL: no further rule */
} mix_rule;

static const struct {
    const char *name, *rest;
    int file_type;     /* llama_ftype of llama.h */
    mix_rule rules[6]; /* the first match wins */
} mixes[] = {
    {"q3_k_s", "q3_k", 11, {{0}}},
    {"q3_k_m",
     "q3_k",
     12,
     {{NIB_ROLE_V, BLOCKS_TWO, "q5_k"},
      {NIB_ROLE_V, BLOCKS_ALL, "q4_k"},
      {NIB_ROLE_DOWN, BLOCKS_SIXTEENTH, "q5_k"},
      {NIB_ROLE_DOWN, BLOCKS_ALL, "q4_k"},
      {NIB_ROLE_O, BLOCKS_ALL, "q4_k"}}},
    {"q3_k_l",
     "q3_k",
     13,
     {{NIB_ROLE_V, BLOCKS_ALL, "q5_k"},
      {NIB_ROLE_DOWN, BLOCKS_ALL, "q5_k"},
      {NIB_ROLE_O, BLOCKS_ALL, "q5_k"}}},
    {"q4_k_s",
     "q4_k",
     14,
     {{NIB_ROLE_V, BLOCKS_FOUR, "q5_k"}, {NIB_ROLE_DOWN, BLOCKS_EIGHTH, "q5_k"}}},
    {"q4_k_m",
     "q4_k",
     15,
     {{NIB_ROLE_V, BLOCKS_OUTER, "q6_k"}, {NIB_ROLE_DOWN, BLOCKS_OUTER, "q6_k"}}},
    {"q5_k_s", "q5_k", 16, {{0}}},
    {"q5_k_m",
     "q5_k",
     17,
     {{NIB_ROLE_V, BLOCKS_OUTER, "q6_k"}, {NIB_ROLE_DOWN, BLOCKS_OUTER, "q6_k"}}},
};

/* The index of a mix; COUNT(mixes) for other names. */
static size_t find_mix(const char *name)
{
    size_t i = 0;
    while (i < COUNT(mixes) && strcmp(mixes[i].name, name) != 0)
        i++;
    return i;
}

bool nib__recipe_is_mix(const char *name) { return find_mix(name) < COUNT(mixes); }

int nib__recipe_file_type(const char *recipe)
{
    const size_t i = find_mix(recipe);
    return i < COUNT(mixes) ? mixes[i].file_type : -1;
}

const char *nib__mix_name(size_t i) { return i < COUNT(mixes) ? mixes[i].name : NULL; }

void nib__mix_words(nib_text *out, size_t i)
{
    nib__text_str(out, "llama.cpp's mix, in each layer the first that applies of ");
    for (const mix_rule *r = mixes[i].rules; r->scheme != NULL; r++)
        nib__text_format(out, "%s in %s of %s, ", r->scheme, nib__role_name(r->role),
                         blocks_words[r->blocks]);
    nib__text_format(out, "q6_k in the output layer and an embedding tied to it, %s",
                     mixes[i].rest);
}

/* The block of a layer, N of "layers.N."; -1: it is in none. */
static int64_t block_of(const char *layer)
{
    const char *at = strstr(layer, "layers.");
    return at != NULL ? strtoll(at + strlen("layers."), NULL, 10) : -1;
}

static int64_t count_blocks(const nib_recipe_layer *layers, size_t count)
{
    int64_t blocks = 0;
    for (size_t i = 0; i < count; i++)
        blocks = nib__max(blocks, block_of(layers[i].name) + 1);
    return blocks;
}

bool nib__mix_matches(const nib_rule *rule, const nib_recipe_layer *layer, int64_t blocks)
{
    const int64_t i = block_of(layer->name), eighth = blocks / 8;
    if (layer->role != rule->role || i < 0)
        return false;
    switch ((mix_blocks)rule->blocks) {
    case BLOCKS_ALL: return true;
    case BLOCKS_OUTER: return i < eighth || i >= 7 * blocks / 8 || (i - eighth) % 3 == 2;
    case BLOCKS_EIGHTH: return i < eighth;
    case BLOCKS_SIXTEENTH: return i < blocks / 16;
    case BLOCKS_FOUR: return i < 4;
    case BLOCKS_TWO: return i < 2;
    }
    return false;
}

static nib_status add_for_all(nib_recipe *r, const char *mix, unsigned reach, const char *scheme,
                              const char *what, nib_err *err)
{
    nib_rule rule = {.match = NIB_MATCH_ALL,
                     .reach = reach,
                     .words = nib__recipe_format(r, "%s: %s", mix, what)};
    NIB_TRY(nib__scheme_parse(&rule.scheme, scheme, strlen(scheme), err));
    return nib__recipe_add_rule(r, &rule, err);
}

nib_status nib__recipe_add_mix(nib_recipe *r, const nib_recipe_input *in, const char *name,
                               nib_err *err)
{
    const size_t m = find_mix(name);
    bool is_tied = false;
    for (size_t i = 0; i < in->count; i++)
        is_tied = is_tied || (in->layers[i].role == NIB_ROLE_HEAD && in->layers[i].tied);
    r->blocks = count_blocks(in->layers, in->count);
    for (const mix_rule *from = mixes[m].rules; from->scheme != NULL; from++) {
        nib_rule rule = {.match = NIB_MATCH_MIX,
                         .reach = NIB_REACH_BODY,
                         .role = from->role,
                         .blocks = (int)from->blocks,
                         .words =
                             nib__recipe_format(r, "%s: %s of %s", name, nib__role_name(from->role),
                                                blocks_words[from->blocks])};
        NIB_TRY(nib__scheme_parse(&rule.scheme, from->scheme, strlen(from->scheme), err));
        NIB_TRY(nib__recipe_add_rule(r, &rule, err));
    }
    NIB_TRY(add_for_all(r, name, NIB_REACH_HEAD | NIB_REACH_TIED, "q6_k", "the output layer", err));
    NIB_TRY(add_for_all(r, name, NIB_REACH_EMBED, is_tied ? "q6_k" : mixes[m].rest,
                        is_tied ? "the embedding is the output layer" : "the embedding", err));
    return add_for_all(r, name, NIB_REACH_BODY, mixes[m].rest, "the rest", err);
}
