/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of a recipe, shared by its readers: a list of rules, the first that matches wins, and what
 * the readers add to it. Strings and patterns belong to the recipe.
 */
#ifndef NIB_RECIPE_RULES_H
#define NIB_RECIPE_RULES_H

#include "json.h"
#include "recipe.h"

/* Which layers a rule may reach. */
enum {
    NIB_REACH_BODY = 1 << 0, /* linear layers but the output */
    NIB_REACH_HEAD = 1 << 1, /* the output, stored by itself */
    NIB_REACH_TIED = 1 << 2, /* the output, one tensor with the embedding */
    NIB_REACH_EMBED = 1 << 3,
    NIB_REACH_LINEAR = NIB_REACH_BODY | NIB_REACH_HEAD,
    NIB_REACH_ANY = NIB_REACH_LINEAR | NIB_REACH_TIED | NIB_REACH_EMBED,
};

/* What a rule compares. Each spelling of a layer is tried: Hugging Face's and Meta's. */
typedef enum nib_match {
    NIB_MATCH_ALL,       /* every layer in reach */
    NIB_MATCH_NAME,      /* the pattern covers the module's or the parameter's name */
    NIB_MATCH_MODULE,    /* the module's only: one half of torchao's precedence */
    NIB_MATCH_PARAMETER, /* the module's name with ".weight": the other half */
    NIB_MATCH_SUBSTRING, /* torchtitan: text is part of the name */
    NIB_MATCH_NONE_OF,   /* not one of the patterns of its --only or "only" */
} nib_match;

typedef struct nib_rule {
    nib_match match;
    unsigned reach;
    bool exact; /* narrowed after reading: a pattern reaches an embedding or a tied output only if
                   it is exact or matches nothing else */
    const char *text;       /* of the pattern or substring; NONE_OF: whose patterns */
    nib_pattern *pattern;   /* NULL for ALL and SUBSTRING */
    bool keep, weight_only; /* as in nib_choice */
    nib_scheme scheme;
    nib_type scale_type; /* as in nib_choice */
    const char *words;   /* for the ledger */
    nib_layout_hint hint;
    const char *hint_text;
    bool may_miss; /* matching no layer is worth a line of the ledger, not an error */
    int source; /* rules of one number are one pattern of the user's: one of them has to match; 0:
                   none of his */
} nib_rule;

typedef struct nib_only {
    nib_pattern *pattern;
    const char *text;
    const char *by; /* one of the two below */
} nib_only;

/* Who gives patterns outside of which nothing is quantized: the option, or a recipe's file. A layer
 * has to be among those of both. */
#define NIB_ONLY_OPTION "--only"
#define NIB_ONLY_FILE "only"

struct nib_recipe {
    nib_allocator allocator;
    nib_arena arena;
    const char *text, *dtype, *device;
    bool untie; /* a file asks for an output of its own */
    nib_pattern_budget budget;
    nib_rule *rules;
    size_t rule_count, rule_capacity;
    nib_only *only;
    size_t only_count, only_capacity;
    nib_ledger ledger; /* settings alone */
    int sources;       /* given out */
};

/* The name of the recipe that keeps every weight and multiplies it with floats. */
#define NIB_WEIGHT_ONLY "weight-only"

/* Words in the recipe's arena, cut at 511 bytes, control characters as '?'; NULL: no memory. */
const char *nib__recipe_say(nib_recipe *r, const char *format, ...) NIB_PRINTF(2, 3);
/* A line of the recipe's ledger, asked by the recipe, or by an option where its name is one; format
 * and what follows say why. */
nib_status nib__recipe_add_setting(nib_recipe *r, nib_err *err, const nib_ledger_setting *setting,
                                   const char *format, ...) NIB_PRINTF(4, 5);
/* Adds a rule; a NAME, MODULE or PARAMETER rule has its pattern made from text. words NULL: no
 * memory was left. */
nib_status nib__recipe_add_rule(nib_recipe *r, const nib_rule *rule, nib_err *err);
nib_status nib__recipe_add_only(nib_recipe *r, const char *text, const char *by, nib_err *err);
/* The rules of a name: BASE[+head[-SCHEME]][+embed[-SCHEME]], or weight-only. */
nib_status nib__recipe_add_named(nib_recipe *r, const char *name, nib_err *err);
/* The last rules of every recipe: tied outputs and embeddings are kept. */
nib_status nib__recipe_add_tail(nib_recipe *r, nib_err *err);

/* The readers of JSON: our own form with torchtitan's filters, torchchat's, torchao's. */
nib_status nib__recipe_read_json(nib_recipe *r, const char *name, const char *text, size_t size,
                                 nib_err *err);
nib_status nib__recipe_read_torchchat(nib_recipe *r, nib_json *json, nib_err *err);
/* hf: the object is Hugging Face's quantization_config, else torchao's {"_type", "_data"}. */
nib_status nib__recipe_read_torchao(nib_recipe *r, nib_json *json, bool hf, nib_err *err);

/* Which layout a name of torchao's asks for: NONE for its plain ones, OTHER for one that Nibble has
 * no word for. */
nib_layout_hint nib__recipe_wish(const char *layout);
/* The KEY or STRING just read, as a name without NULs; NULL: json->err says why. */
char *nib__recipe_string(nib_recipe *r, nib_json *json);

/* A failure at the reader's place, with a status of its own. */
nib_status nib__recipe_fail(nib_json *json, nib_status status, nib_err *err, const char *format,
                            ...) NIB_PRINTF(4, 5);
/* "; did you mean X", or "; the KIND are A, B, C": the end of a sentence about an unknown name. */
const char *nib__recipe_suggest(nib_recipe *r, const char *wanted, const char *kind,
                                const char *const *names, size_t count);

#endif
