/* SPDX-License-Identifier: Apache-2.0
 *
 * Families of models. Each has a file with its row: what it is called, what transformers takes
 * where its config.json lacks a key, and the function that emits its forward pass as a graph.
 */
#ifndef NIB_ARCH_H
#define NIB_ARCH_H

#include "config.h"
#include "graph.h"
#include "text.h"

/* A key of config.json that changes the result, which this family reads (config_keys.h). */
typedef struct nib_family_key {
    const char *key;  /* NULL ends the list */
    const char *gguf; /* what GGUF calls it, behind "ARCH."; NULL: it does not say it */
    size_t at;        /* a double of nib_config, or a bool */
    enum {
        NIB_OWN_AS_IS,
        NIB_OWN_INVERSE,
        NIB_OWN_INVERSE_ROOT,
        NIB_OWN_FLAG,
        NIB_OWN_CHECKED, /* it is compared with what is built, and goes nowhere */
        NIB_OWN_TEXT     /* the same of a string */
    } is;
    double absent;      /* what transformers takes */
    double least, most; /* what is built */
    const char *text;   /* the same of a string */
    /* with which the key changes nothing, so that families that do not read it take it; besides
     * null, false and empty lists. 0, NULL: no other value */
    double elsewhere;
    const char *elsewhere_text;
} nib_family_key;

/* What config.json calls the number that keeps a norm from dividing by zero. */
typedef enum nib_eps_key { NIB_EPS_RMS, NIB_EPS_LAYER, NIB_EPS_NORM, NIB_EPS_KEYS } nib_eps_key;
extern const char *const nib__eps_keys[NIB_EPS_KEYS];

typedef struct nib_family_row {
    const char *name;       /* model_type of config.json */
    const char *class_name; /* of transformers */
    const char *title;      /* the models that people know it by */
    const char *limits;     /* which of them are refused; NULL: none */
    const char *gguf;       /* general.architecture of GGUF; NULL: it is not read from there */
    bool of_params;         /* models with params.json of Meta's form may be of this family */
    bool head_norms;        /* nib_config.qk_norm */
    bool own_head_norms;    /* each head's norm has a weight of its own */
    nib_norm_form norm;
    nib_activation activation;   /* of the MLP's gate */
    const char *act, *older_act; /* hidden_act, or hidden_activation; NULL: silu and swish */
    bool newer_act;              /* hidden_activation decides, whatever hidden_act is beside it */
    const nib_family_key *keys;
    unsigned fused;  /* weights that its checkpoints store as one tensor, or apart: fused.h */
    nib_eps_key eps; /* how its config.json calls it */
    enum {
        NIB_BIASES_ALL,        /* attention_bias is about q, k, v and o */
        NIB_BIASES_QKV,        /* about q, k and v; o has none */
        NIB_BIASES_QKV_ALWAYS, /* they have biases, whatever it says */
        NIB_BIASES_OWN         /* a key of its own says which there are, and it is not read */
    } biases;
    int64_t rope_interval; /* each so many-th layer does not rotate, unless no_rope_layers or
                              no_rope_layer_interval, which are read then, say others; 0: all do */
    bool rope_in_windows;  /* of a model with windows only layers with one rotate */
    bool needs_window;     /* a model without windows would have no positions at all */
    bool interleaved;      /* nib_config.rope_interleaved */
    bool partial;          /* partial_rotary_factor is read */
    bool only_longrope;    /* its scaling is longrope, under whatever name, or none */
    bool scales_queries;   /* llama_4_scaling_beta is read */
    enum {
        NIB_WINDOW_IGNORED,   /* sliding_window has no effect */
        NIB_WINDOW_IF_USED,   /* if use_sliding_window says so, from layer max_window_layers on */
        NIB_WINDOW_UNROTATED, /* if use_sliding_window says so, layers that do not rotate */
        NIB_WINDOW_ALWAYS,    /* all layers, wherever it is given */
        NIB_WINDOW_PATTERN    /* all layers but every `pattern`-th */
    } window;
    bool layer_types; /* layer_types is read, and goes before that */
    int64_t pattern;
    bool gguf_window; /* GGUF has a key for a window of all layers; 0: there is none */
    struct {          /* 0: none */
        int64_t heads, kv_heads, head_dim, vocab, context, window;
        int64_t first_window; /* max_window_layers */
        int64_t original;     /* context before scaling; 0: the context */
        double norm_eps, rope_theta, rope_partial;
        bool tied, bias; /* tie_word_embeddings and attention_bias */
    } absent;
    void (*complete)(nib_config *c);      /* what follows from the config; NULL: nothing does */
    void (*complete_gguf)(nib_config *c); /* what GGUF leaves out, as llama.cpp takes it; NULL */
    void (*build)(nib_build *b, const nib_config *c);
} nib_family_row;

/* NULL past the last. */
const nib_family_row *nib__family_at(size_t i);
NIB_INLINE const nib_family_row *nib__family_of(const nib_config *config)
{
    return nib__family_at((size_t)config->arch);
}
NIB_INLINE const char *nib__family_act(const nib_family_row *family)
{
    return family->act != NULL ? family->act : "silu";
}
/* The family of a model without config.json, of params.json or sizes alone. */
nib_arch nib__family_of_params(bool qkv_bias, bool qk_norm);
/* "llama, mistral and qwen2": all of them. */
const char *nib__family_names(char *out, size_t size);

/* All of them, for `nibble models`. */
void nib__families_render(nib_form form, nib_text *out);

nib_status nib__arch_build(nib_graph *out, const nib_config *config, nib_arena *arena,
                           const nib_allocator *a, nib_err *err);

/* ---- blocks.c: what families share ---- */

typedef enum nib_qk_norm {
    NIB_QK_PLAIN, /* none */
    NIB_QK_HEADS, /* each head is normalized; one weight for all heads */
    NIB_QK_EACH,  /* each head is normalized and has a weight of its own: [heads][head_dim] */
    NIB_QK_WHOLE, /* all heads together */
} nib_qk_norm;

/* What the config says of them. */
nib_qk_norm nib__block_qk_norm(const nib_config *c);
/* The table of tokens, [vocab][width]; returns the residual. */
int nib__block_embed(nib_build *b, const nib_config *c);
/* A norm of [width] values. */
int nib__block_norm(nib_build *b, const nib_config *c, int64_t layer, const char *part, int x);
/* Attention over x: projections, norms of queries and keys, rotary positions, and the output
 * projection. */
int nib__block_attention(nib_build *b, const nib_config *c, int64_t layer, int x, nib_qk_norm norm);
/* x plus what a branch makes of it. */
int nib__block_add(nib_build *b, const nib_config *c, int x, int branch);
/* down(silu(gate(x)) * up(x)), or with the family's activation */
int nib__block_gated_mlp(nib_build *b, const nib_config *c, int64_t layer, int x);
/* down(activation(up(x))), under the names that the family gives to both */
int nib__block_plain_mlp(nib_build *b, const nib_config *c, int64_t layer, int x, const char *up,
                         const char *down);
/* Llama's order: a norm before attention and one before the MLP. */
void nib__build_llama(nib_build *b, const nib_config *c);
/* Cohere's order: attention and the MLP read the same norm, and both are added. */
void nib__build_parallel(nib_build *b, const nib_config *c);
/* The last norm and the head; its value is the logits. */
int nib__block_head(nib_build *b, const nib_config *c, int x);

/* ---- the families ---- */

extern const nib_family_row nib__family_llama, nib__family_mistral, nib__family_qwen2,
    nib__family_qwen3, nib__family_smollm3, nib__family_olmo2, nib__family_exaone4,
    nib__family_granite, nib__family_gemma, nib__family_gemma2, nib__family_gemma3,
    nib__family_cohere, nib__family_cohere2, nib__family_starcoder2, nib__family_stablelm,
    nib__family_ministral, nib__family_ministral3, nib__family_phi3, nib__family_glm,
    nib__family_glm4;

#endif
