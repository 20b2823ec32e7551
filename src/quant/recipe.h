/* SPDX-License-Identifier: Apache-2.0
 *
 * Recipes decide the scheme of each layer. A recipe is a list of rules, and the first match wins. A
 * name ("8da4w-g64+head"), a file of rules, torchchat's JSON and torchao's config all become one.
 * Every pattern that the user wrote must match a layer. Nothing here reads a weight.
 */
#ifndef NIB_RECIPE_H
#define NIB_RECIPE_H

#include "ledger.h"
#include "match.h"
#include "quant_w.h"

/* What a layer does in the model. */
typedef enum nib_role {
    NIB_ROLE_Q,
    NIB_ROLE_K,
    NIB_ROLE_V,
    NIB_ROLE_O,
    NIB_ROLE_GATE,
    NIB_ROLE_UP,
    NIB_ROLE_DOWN,
    NIB_ROLE_ROUTER, /* hidden -> experts */
    NIB_ROLE_HEAD,   /* hidden -> vocabulary */
    NIB_ROLE_EMBED,  /* the token table: looked up, not multiplied */
    NIB_ROLE_OTHER,
    NIB_ROLE_COUNT
} nib_role;

const char *nib__role_name(nib_role role); /* "q", "head", ... */

/* A layer that a recipe can match. */
typedef struct nib_recipe_layer {
    const char *name; /* Hugging Face module name, without .weight */
    nib_role role;
    bool tied; /* HEAD, EMBED: they share one stored tensor */
} nib_recipe_layer;

typedef struct nib_recipe_input {
    const char *text; /* recipe name, path of a JSON file, or JSON text; NULL: keep all as stored */
    nib_strings skip, only;         /* patterns: keep these layers; keep all others */
    const nib_recipe_layer *layers; /* every linear layer and the embedding */
    size_t count;
    nib_asker by; /* who gave the recipe */
} nib_recipe_input;

typedef struct nib_recipe nib_recipe;

/* Reads a recipe and checks it against the layers. A wrong name or option gives NIB_USAGE, a wrong
 * file NIB_BAD_INPUT, a foreign setting that Nibble cannot express NIB_UNSUPPORTED. */
nib_status nib__recipe_load(nib_recipe **out, const nib_recipe_input *input, const nib_allocator *a,
                            nib_err *err);
void nib__recipe_free(nib_recipe *recipe);

/* The recipe's answer for one layer. Texts live as long as the recipe. */
typedef struct nib_choice {
    bool keep;         /* as stored; scheme is not set */
    bool weight_only;  /* kept, and multiplied with float activations whatever its format implies */
    nib_scheme scheme; /* an embedding's has no activations */
    nib_type scale_type;   /* F32, F16 or BF16: type to store scales in; NONE: not given */
    nib_ptq_method method; /* how codes are chosen; ROUND unless the recipe says otherwise */
    bool has_method;       /* the recipe names it */
    const char *rule;      /* "recipe", "+head", "--skip lm_head", "rules[2] \"*.mlp.*\"" */
    nib_layout_hint hint;  /* layout that a foreign recipe asks for; the planner decides */
    const char *hint_text; /* as written in the recipe; NULL: none */
} nib_choice;

void nib__recipe_resolve(nib_choice *out, const nib_recipe *recipe, const nib_recipe_layer *layer);

/* Matches a user's pattern against every spelling of a layer: Hugging Face's and Meta's name, each
 * alone and with ".weight". A pattern that is too costly counts as no match and sets *err (NULL
 * allowed). */
bool nib__layer_matches(const nib_pattern *pattern, const char *layer, nib_err *err);

/* The recipe as given: its name or its file's path; "as stored" without a recipe. */
const char *nib__recipe_text(const nib_recipe *recipe);
/* The recipe itself, which nib__recipe_load accepts again: its name, or the JSON of its file. */
const char *nib__recipe_source(const nib_recipe *recipe);
/* Other settings of torchchat's JSON: "f32", "f16" or "bf16", and a device as written; NULL: not
 * given. */
const char *nib__recipe_dtype(const nib_recipe *recipe);
const char *nib__recipe_device(const nib_recipe *recipe);
/* Settings of a foreign recipe that Nibble meets in another way. */
const nib_ledger *nib__recipe_ledger(const nib_recipe *recipe);
/* True if a layer has static activation scales, which need a calibration text. */
bool nib__recipe_needs_calibration(const nib_recipe *recipe);

/* llama.cpp's number of a mix, for general.file_type of a GGUF; -1 for other recipes. */
int nib__recipe_file_type(const char *recipe);

/* Reads a method that an option names. NIB_USAGE: no method has this name; err lists them. */
nib_status nib__method_read(nib_ptq_method *out, const char *name, nib_err *err);

/* Lists the meaning of each base name and mix: formula, default group, source. */
nib_status nib__recipes_write(nib_form form, const nib_allocator *a, const nib_sink *sink,
                              nib_err *err);

#endif
