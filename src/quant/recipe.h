/* SPDX-License-Identifier: Apache-2.0
 *
 * Recipes: which scheme each layer gets, and which rule says so. A recipe is a list of rules, first
 * match wins; a name ("8da4w-g64+head"), a file of rules, torchchat's JSON and torchao's config all
 * become one. Every pattern that a user wrote must match a layer. Nothing here looks at a weight.
 */
#ifndef NIB_RECIPE_H
#define NIB_RECIPE_H

#include "fact.h"
#include "ledger.h"
#include "match.h"

/* What a layer does in the model. */
typedef enum nib_role {
    NIB_ROLE_Q,
    NIB_ROLE_K,
    NIB_ROLE_V,
    NIB_ROLE_O,
    NIB_ROLE_GATE,
    NIB_ROLE_UP,
    NIB_ROLE_DOWN,
    NIB_ROLE_HEAD,  /* hidden -> vocabulary */
    NIB_ROLE_EMBED, /* the token table: looked up, not multiplied */
    NIB_ROLE_OTHER,
    NIB_ROLE_COUNT
} nib_role;

const char *nib__role_name(nib_role role); /* "q", "head", ... */

/* One layer that a recipe may speak of. */
typedef struct nib_recipe_layer {
    const char *name; /* Hugging Face module name, without .weight */
    nib_role role;
    bool tied; /* HEAD, EMBED: both are one stored tensor */
} nib_recipe_layer;

typedef struct nib_recipe_input {
    const char
        *text; /* a recipe name, the path of a JSON file, or JSON text; NULL: all as stored */
    nib_strings skip, only;         /* patterns: keep these; keep all others */
    const nib_recipe_layer *layers; /* every linear layer and the embedding */
    size_t count;
    nib_asker by; /* who names the recipe */
} nib_recipe_input;

typedef struct nib_recipe nib_recipe;

/* Reads and checks a recipe against the layers. A name or option that is wrong gives NIB_USAGE, a
 * file NIB_BAD_INPUT; a foreign setting whose meaning is not available NIB_UNSUPPORTED. */
nib_status nib__recipe_load(nib_recipe **out, const nib_recipe_input *input, const nib_allocator *a,
                            nib_err *err);
void nib__recipe_free(nib_recipe *recipe);

/* What a layer is asked to be. The texts live as long as the recipe. */
typedef struct nib_choice {
    bool keep;            /* as stored; scheme is then not set */
    bool weight_only;     /* kept, with float activations whatever its format is multiplied with */
    nib_scheme scheme;    /* of an embedding: without activations, which it has none of */
    nib_type scale_type;  /* F32, F16 or BF16: scales are to be stored in it; NONE: nothing asked */
    const char *rule;     /* "recipe", "+head", "--skip lm_head", "rules[2] \"*.mlp.*\"" */
    nib_layout_hint hint; /* a layout that a foreign recipe asks for: the planner answers it */
    const char *hint_text; /* as written there; NULL: none */
} nib_choice;

void nib__recipe_resolve(nib_choice *out, const nib_recipe *recipe, const nib_recipe_layer *layer);

/* A user's pattern over any spelling of a layer: Hugging Face's and Meta's name, the module and its
 * ".weight". One too costly on a name counts as no match and sets *err (NULL allowed). */
bool nib__layer_matches(const nib_pattern *pattern, const char *layer, nib_err *err);

/* As given: the name, or the file's path; "as stored" without one. */
const char *nib__recipe_text(const nib_recipe *recipe);
/* What torchchat's JSON sets besides: "f32", "f16" or "bf16", and a device as written there; NULL:
 * nothing. */
const char *nib__recipe_dtype(const nib_recipe *recipe);
const char *nib__recipe_device(const nib_recipe *recipe);
/* Sentences for the ledger: where a foreign recipe's setting is met in another way. */
const nib_ledger *nib__recipe_ledger(const nib_recipe *recipe);
/* Some layer has static activation scales: a calibration text is needed. */
bool nib__recipe_needs_calibration(const nib_recipe *recipe);

/* What each bare name means: formula, default group, source. */
nib_status nib__recipes_write(nib_form form, const nib_allocator *a, const nib_sink *sink,
                              nib_err *err);

#endif
