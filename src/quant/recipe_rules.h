/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a recipe, shared by its readers: a list of rules, where the first match wins. The
 * recipe owns all strings and patterns.
 */
#ifndef NIB_RECIPE_RULES_H
#define NIB_RECIPE_RULES_H

#include "json.h"
#include "recipe.h"

/* Kinds of layers that a rule may reach. */
enum {
    NIB_REACH_BODY = 1 << 0, /* linear layers except the output */
    NIB_REACH_HEAD = 1 << 1, /* the output layer, a tensor of its own */
    NIB_REACH_TIED = 1 << 2, /* the output layer, tied to the embedding */
    NIB_REACH_EMBED = 1 << 3,
    NIB_REACH_ROUTER = 1 << 4, /* chooses experts */
    NIB_REACH_LINEAR = NIB_REACH_BODY | NIB_REACH_HEAD,
    NIB_REACH_ANY = NIB_REACH_LINEAR | NIB_REACH_TIED | NIB_REACH_EMBED | NIB_REACH_ROUTER,
};

/* What a rule compares with each spelling of a layer (Hugging Face's and Meta's). */
typedef enum nib_match {
    NIB_MATCH_ALL,       /* every layer in reach */
    NIB_MATCH_NAME,      /* pattern against the name of the module and of the parameter */
    NIB_MATCH_MODULE,    /* the module's name only: one half of torchao's precedence */
    NIB_MATCH_PARAMETER, /* the module's name with ".weight": the other half */
    NIB_MATCH_SUBSTRING, /* torchtitan: text is a substring of the name */
    NIB_MATCH_NONE_OF,   /* matches none of the patterns of --only or "only" */
    NIB_MATCH_MIX,       /* role and block, of one of llama.cpp's mixes */
} nib_match;

typedef struct nib_rule {
    nib_match match;
    unsigned reach;
    /* text has no wildcards. Other patterns reach an embedding, a router or a tied output only if
     * they match no other linear layer. */
    bool exact;
    const char *text;       /* the pattern or substring; NONE_OF: which list */
    nib_pattern *pattern;   /* NULL for ALL, SUBSTRING and MIX */
    nib_role role;          /* MIX */
    int blocks;             /* MIX: which blocks, of recipe_mixes.c */
    bool keep, weight_only; /* as in nib_choice */
    nib_scheme scheme;
    nib_type scale_type;   /* as in nib_choice */
    nib_ptq_method method; /* as in nib_choice */
    bool has_method;
    const char *words; /* names the rule in the ledger */
    nib_layout_hint hint;
    const char *hint_text;
    bool may_miss; /* matching no layer is a line in the ledger, not an error */
    int source;    /* pattern of the user; one of the rules with this number must match; 0: none */
} nib_rule;

typedef struct nib_only {
    nib_pattern *pattern;
    const char *text;
    const char *by; /* NIB_ONLY_OPTION or NIB_ONLY_FILE */
} nib_only;

/* Sources of patterns outside of which nothing is quantized: the option and the recipe's file. A
 * layer must match both lists. */
#define NIB_ONLY_OPTION "--only"
#define NIB_ONLY_FILE "only"

struct nib_recipe {
    nib_allocator allocator;
    nib_arena arena;
    const char *text, *source, *dtype, *device; /* source: as nib__recipe_source */
    bool untie;                                 /* the file asks for an untied output */
    nib_ptq_method method;                      /* of rules without one, if has_method */
    bool has_method;
    nib_pattern_budget budget;
    nib_rule *rules;
    size_t rule_count, rule_capacity;
    nib_only *only;
    size_t only_count, only_capacity;
    nib_ledger ledger; /* only settings */
    int sources;       /* numbers used so far */
    int64_t blocks;    /* of the model, for MIX */
};

/* The recipe that keeps every weight and multiplies it with float activations. */
#define NIB_WEIGHT_ONLY "weight-only"

/* Formats text into the recipe's arena, cut at 511 bytes, with '?' for control characters; NULL:
 * out of memory. */
const char *nib__recipe_format(nib_recipe *r, const char *format, ...) NIB_PRINTF(2, 3);
/* Adds a line to the recipe's ledger, asked by the recipe, or by an option if the name is one;
 * format and its arguments give the reason. */
nib_status nib__recipe_add_setting(nib_recipe *r, nib_err *err, const nib_ledger_setting *setting,
                                   const char *format, ...) NIB_PRINTF(4, 5);
/* Adds a rule, and compiles text for NAME, MODULE and PARAMETER. words NULL: out of memory. */
nib_status nib__recipe_add_rule(nib_recipe *r, const nib_rule *rule, nib_err *err);
nib_status nib__recipe_add_only(nib_recipe *r, const char *text, const char *by, nib_err *err);
/* Adds the rules of a name: BASE[+head[-SCHEME]][+embed[-SCHEME]], or weight-only. */
nib_status nib__recipe_add_named(nib_recipe *r, const char *name, nib_err *err);
/* Whether a recipe is one of llama.cpp's mixes ("q4_k_m"). */
bool nib__recipe_is_mix(const char *name);
/* Their names, in order; NULL past the last. */
const char *nib__mix_name(size_t i);
/* Adds what mix i does, for `nibble recipes`. */
void nib__mix_words(nib_text *out, size_t i);
/* Adds the rules of a mix, for the model of these layers. */
nib_status nib__recipe_add_mix(nib_recipe *r, const nib_recipe_input *in, const char *name,
                               nib_err *err);
/* Whether a rule of a mix means this layer of a model with `blocks` blocks. */
bool nib__mix_matches(const nib_rule *rule, const nib_recipe_layer *layer, int64_t blocks);
/* Adds the last rules of every recipe, which keep tied outputs and embeddings. */
nib_status nib__recipe_add_tail(nib_recipe *r, nib_err *err);

/* JSON readers: Nibble's own form with torchtitan's filters, torchchat's, torchao's. */
nib_status nib__recipe_read_json(nib_recipe *r, const char *name, const char *text, size_t size,
                                 nib_err *err);
nib_status nib__recipe_read_torchchat(nib_recipe *r, nib_json *json, nib_err *err);
/* hf: the object is Hugging Face's quantization_config; else torchao's {"_type", "_data"}. */
nib_status nib__recipe_read_torchao(nib_recipe *r, nib_json *json, bool hf, nib_err *err);

/* The layout that a name of torchao's asks for: NONE for its plain ones, OTHER if Nibble does not
 * have it. */
nib_layout_hint nib__recipe_layout_hint(const char *layout);
/* The KEY or STRING just read, as a name without NULs; NULL: json->err has the reason. */
char *nib__recipe_string(nib_recipe *r, nib_json *json);

/* Fails at the reader's position with a status of its own. */
nib_status nib__recipe_fail(nib_json *json, nib_status status, nib_err *err, const char *format,
                            ...) NIB_PRINTF(4, 5);
/* "; did you mean X", or "; the KIND are A, B, C": ends an error about an unknown name. */
const char *nib__recipe_suggest(nib_recipe *r, const char *wanted, const char *kind,
                                const char *const *names, size_t count);

#endif
