/* SPDX-License-Identifier: Apache-2.0
 *
 * Model families. Each has a file with its row (names, and the defaults of transformers for absent
 * keys of config.json) and the function that emits its forward pass as a graph.
 */
#ifndef NIB_ARCH_H
#define NIB_ARCH_H

#include "config.h"
#include "graph.h"
#include "text.h"

/* A key of config.json that changes the result and that only some families read (config_keys.h). */
typedef struct nib_family_key {
    const char *key;  /* NULL ends the list */
    const char *gguf; /* its name in GGUF, after "ARCH."; NULL: none */
    size_t at;        /* offset of a double, bool or int64_t in nib_config */
    enum {
        NIB_OWN_AS_IS,
        NIB_OWN_INVERSE,
        NIB_OWN_INVERSE_ROOT,
        NIB_OWN_FLAG,    /* most above 1: also a number, which is true unless it is 0 */
        NIB_OWN_COUNT,   /* an int64_t */
        NIB_OWN_WORD,    /* an int64_t: which of the words in text, which '|' separates. In GGUF a
                            bool: whether it is the second of two, as it is where it is absent */
        NIB_OWN_CHECKED, /* only checked against least and most, not stored */
        NIB_OWN_TEXT     /* only checked against text, not stored */
    } is;
    bool optional;      /* of a count: GGUF may leave it out, which means 0 if that is allowed; of a
                           flag: where GGUF leaves it out, it is as in transformers */
    bool none;          /* NIB_OWN_COUNT: 0 stands for null */
    bool older;         /* an older name of another key, which it overrules; absent: it does not */
    double absent;      /* default of transformers; of a flag in GGUF: false */
    double least, most; /* supported range */
    const char *text;   /* NIB_OWN_TEXT: the supported value; NIB_OWN_WORD: the supported ones;
                           NIB_OWN_COUNT: the word that stands for 0, as does no value */
    /* value with which the key has no effect, so that families that do not read it accept it,
     * besides null, false and empty lists. 0, NULL: no such value */
    double elsewhere;
    const char *elsewhere_text;
} nib_family_key;

/* A key with a whole number. */
#define NIB_COUNT_KEY(key_, gguf_, member, absent_, least_, most_)                                 \
    {                                                                                              \
        .key = key_, .gguf = gguf_, .at = offsetof(nib_config, member), .is = NIB_OWN_COUNT,       \
        .absent = absent_, .least = least_, .most = most_                                          \
    }
/* A key with a whole number that a GGUF may leave out. */
#define NIB_OPTIONAL_KEY(key_, gguf_, member, absent_, least_, most_)                              \
    {                                                                                              \
        .key = key_, .gguf = gguf_, .at = offsetof(nib_config, member), .is = NIB_OWN_COUNT,       \
        .optional = true, .absent = absent_, .least = least_, .most = most_                        \
    }
/* How many experts there are, and how many a token chooses. */
#define NIB_EXPERTS_KEY(key, absent)                                                               \
    NIB_COUNT_KEY(key, "expert_count", moe.experts, absent, 1, NIB_EXPERTS_MAX)
#define NIB_TOP_K_KEY(absent)                                                                      \
    NIB_COUNT_KEY("num_experts_per_tok", "expert_used_count", moe.top_k, absent, 1, NIB_TOP_K_MAX)

/* The name in config.json of a norm's epsilon. */
typedef enum nib_eps_key {
    NIB_EPS_RMS,
    NIB_EPS_LAYER,
    NIB_EPS_NORM,
    NIB_EPS_PLAIN,
    NIB_EPS_KEYS
} nib_eps_key;
extern const char *const nib__eps_keys[NIB_EPS_KEYS];

/* The modules of a mixture, after "model.layers.N."; %d is the expert. */
typedef struct nib_expert_names {
    const char *router, *gate, *up, *down;
    bool biases;               /* of all of them */
    const char *choice_bias;   /* NULL: none */
    float floor;               /* added to the sum that the weights are divided by; 0: what other
                                  families with a sigmoid add */
    const char *weight_scales; /* factors of the weights of chosen experts; NULL: none */
    const char *shared_gate, *shared_up, *shared_down; /* NULL: no shared experts */
    const char *shared_factor; /* [1][width]: its sigmoid multiplies the shared expert's output;
                                  NULL: none */
    /* What its load-balancing loss is over. LAYERS: transformers' loss, with `balance`, its
     * router_aux_loss_coef if the config lacks it; 0: none. SEQUENCES: aux_loss_alpha, as in
     * DeepSeek's own code. */
    nib_balance_over balance_over;
    double balance;
} nib_expert_names;
/* The names of most families. */
#define NIB_USUAL_EXPERTS                                                                          \
    .router = "mlp.gate", .gate = "mlp.experts.%d.gate_proj", .up = "mlp.experts.%d.up_proj",      \
    .down = "mlp.experts.%d.down_proj"

#define NIB_USUAL_SHARED                                                                           \
    .shared_gate = "mlp.shared_experts.gate_proj", .shared_up = "mlp.shared_experts.up_proj",      \
    .shared_down = "mlp.shared_experts.down_proj"

/* The modules of a layer, after "model.layers.N.", and the last norm. */
typedef struct nib_block_names {
    const char *output; /* of attention */
    const char *q_norm, *k_norm;
    const char *gate, *up, *down;
    const char *last_norm;
} nib_block_names;

/* The modules of a draft head. */
typedef struct nib_draft_names {
    const char *prefix; /* of its layer: "mtp.layers.", outside of which the others are; NULL: its
                           layer follows the model's, and all are in it */
    const char *join;   /* reads the token's embedding, then the hidden state */
    const char *embed_norm, *hidden_norm, *last_norm;
    const char *count; /* key of config.json with the number of heads, which nothing reads; NULL:
                          num_nextn_predict_layers, of the family's keys */
} nib_draft_names;
/* Those of DeepSeek-V3, and of every head in a GGUF. */
extern const nib_draft_names nib__draft_after;

typedef struct nib_family_row {
    const char *name;       /* model_type of config.json */
    const char *class_name; /* class in transformers */
    const char *outer;   /* model_type of models with images whose text_config it is; NULL: none */
    const char *title;   /* its well-known models */
    const char *limits;  /* which of them are refused; NULL: none */
    const char *gguf;    /* general.architecture of GGUF; NULL: not supported from GGUF */
    int gguf_gating;     /* expert_gating_func of its GGUF: 2 for sigmoid; 0: no such key */
    bool gguf_plain_weights; /* llama.cpp divides the experts' weights by their sum, and ignores
                                the keys for it and for their factor */
    bool listed_merges;      /* its tokenizers in GGUF are of the model "gemma4" */
    bool of_params;          /* models with Meta's params.json may be of this family */
    bool head_norms;         /* nib_config.qk_norm */
    bool own_head_norms;     /* each head's norm has its own weight */
    bool bare_head_norms;    /* they have none, and follow RoPE; layers without it have no norms */
    bool value_norms;        /* heads of v have norms, too, without a weight */
    nib_norm_form norm;
    nib_activation activation;   /* of the MLP */
    const char *act, *older_act; /* hidden_act or hidden_activation; NULL: silu, also called
                                    swish */
    bool newer_act;              /* hidden_activation takes precedence over hidden_act */
    const nib_family_key *keys;
    const char *const *ignored;      /* keys of its published models that transformers does not read
                                   either; ends with NULL. NULL: none */
    const nib_expert_names *experts; /* NULL: no mixture */
    const nib_block_names *names;    /* NULL: those of most families */
    const nib_draft_names *draft;    /* NULL: no draft heads */
    const char *state_type; /* in layer_types, of layers with a short convolution in place of
                               attention; NULL: none */
    int64_t full_interval;  /* every so many layers one has attention, unless layer_types or
                               full_attention_interval choose others; 0: all have */
    bool mamba;             /* these layers have Mamba-2; layer_types, or layers_block_type, may
                               also call them linear_attention, and the others attention */
    bool joined_delta;      /* the projections of the gated delta rule are two, in_proj_qkvz and
                               in_proj_ba, with rows by head of keys; else four */
    bool output_gate;       /* q_proj has, after each head of queries, gates of what attention
                               returns */
    bool mrope;             /* rope_parameters may have sections for images, in which text has the
                               same positions */
    bool lists_experts;     /* reads moe_layers */
    unsigned fused;         /* weights that its checkpoints store fused, or split: fused.h */
    nib_eps_key eps;        /* its name in config.json */
    enum {
        NIB_BIASES_ALL,        /* attention_bias covers q, k, v and o */
        NIB_BIASES_QKV,        /* attention_bias covers q, k and v; o has no bias */
        NIB_BIASES_QKV_ALWAYS, /* q, k and v always have biases */
        NIB_BIASES_OWN         /* a key of the family covers them; attention_bias is not read */
    } biases;
    int64_t rope_interval; /* every n-th layer has no RoPE, unless no_rope_layers or
                              no_rope_layer_interval, which are then read, choose others; 0: all
                              have RoPE */
    bool rope_in_windows;  /* in a model with windows only layers with a window have RoPE */
    bool needs_window;     /* without windows no layer would have RoPE */
    bool sinks;            /* attention has a sink for each head */
    bool interleaved;      /* nib_config.rope_interleaved */
    bool partial;          /* reads partial_rotary_factor */
    bool proportional;     /* the rope type "proportional", its default, reads it, too */
    bool only_longrope;    /* its only RoPE scaling is longrope, under any of its names */
    bool scales_queries;   /* reads llama_4_scaling_beta */
    enum {
        NIB_WINDOW_IGNORED,     /* ignores sliding_window */
        NIB_WINDOW_IF_USED,     /* if use_sliding_window is true: from layer max_window_layers on */
        NIB_WINDOW_ALL_IF_USED, /* if use_sliding_window is true: all layers */
        NIB_WINDOW_UNROTATED,   /* if use_sliding_window is true: layers without RoPE */
        NIB_WINDOW_ALWAYS,      /* all layers, if sliding_window is given */
        NIB_WINDOW_PATTERN,     /* all layers but every `pattern`-th */
        NIB_WINDOW_CHUNKS       /* layers with RoPE, in chunks of attention_chunk_size instead */
    } window;
    bool layer_types; /* reads layer_types, which takes precedence over `window` */
    int64_t pattern;
    bool last_full;   /* the last layer has no window, whatever layer_types says */
    bool gguf_window; /* GGUF has a key for a window of all layers; 0 means none */
    struct {          /* defaults for absent keys; 0: none */
        int64_t heads, kv_heads, head_dim, vocab, context, window;
        int64_t first_window; /* max_window_layers */
        int64_t original;     /* context before RoPE scaling; 0: the context */
        double norm_eps, rope_theta, rope_partial;
        bool tied, bias; /* tie_word_embeddings and attention_bias */
    } absent;
    void (*complete)(nib_config *c);      /* sets values derived from the config; NULL: none */
    void (*complete_gguf)(nib_config *c); /* sets values absent from GGUF as llama.cpp does; NULL:
                                             none */
    void (*build)(nib_build *b, const nib_config *c);
} nib_family_row;

/* NULL past the last family. */
const nib_family_row *nib__family_at(size_t i);
NIB_INLINE const nib_family_row *nib__family_of(const nib_config *config)
{
    return nib__family_at((size_t)config->arch);
}
NIB_INLINE const char *nib__family_act(const nib_family_row *family)
{
    return family->act != NULL ? family->act : "silu";
}
/* The family of a model that has only a params.json or sizes, no config.json. */
nib_arch nib__family_of_params(bool qkv_bias, bool qk_norm);
/* Lists all families: "llama, mistral and qwen2". size: NIB_FAMILY_NAMES. */
enum { NIB_FAMILY_NAMES = 1024 };
const char *nib__family_names(char *out, size_t size);

/* Prints all families, for `nibble models`. */
void nib__families_render(nib_form form, nib_text *out);

nib_status nib__arch_build(nib_graph *out, const nib_config *config, nib_arena *arena,
                           const nib_allocator *a, nib_err *err);
/* Turns a model's config into that of its draft head. NIB_UNSUPPORTED, NIB_BAD_INPUT: it has none.
 */
nib_status nib__draft_config(nib_config *config, const char *path, nib_err *err);

/* Adds a draft head to a model in training: sets trains_head. NIB_UNSUPPORTED: its family has none;
 * NIB_BAD_INPUT: it has several. */
nib_status nib__draft_train(nib_config *config, const char *path, nib_err *err);

/* Whether a stored tensor belongs to a draft head of the model, not to the model itself. */
bool nib__draft_has(const nib_config *config, const char *tensor);

/* ---- blocks.c: shared by families ---- */

typedef enum nib_qk_norm {
    NIB_QK_PLAIN, /* none */
    NIB_QK_HEADS, /* each head is normalized, with one weight for all heads */
    NIB_QK_EACH,  /* each head is normalized, with its own weight: [heads][head_dim] */
    NIB_QK_WHOLE, /* all heads are normalized together */
    NIB_QK_BARE   /* each head is normalized after RoPE, without a weight */
} nib_qk_norm;

/* The norms of q and k that the config implies. */
nib_qk_norm nib__block_qk_norm(const nib_config *c);
/* Emits the embedding, [vocab][width]; returns the residual. */
int nib__block_embed(nib_build *b, const nib_config *c);
/* Emits the embedding of the token after each: nib_graph_node.ahead. */
int nib__block_embed_ahead(nib_build *b, const nib_config *c);
/* Emits a norm of [width] values. */
int nib__block_norm(nib_build *b, const nib_config *c, int64_t layer, const char *part, int x);
/* Emits attention over x: projections, norms of queries and keys, RoPE, and the output projection;
 * latent attention if the config has it. */
int nib__block_attention(nib_build *b, const nib_config *c, int64_t layer, int x, nib_qk_norm norm);
/* Emits latent attention over x (deepseek.c). */
int nib__block_latent(nib_build *b, const nib_config *c, int64_t layer, int x);
/* Emits a short convolution over x, between its two projections. */
int nib__block_short_conv(nib_build *b, const nib_config *c, int64_t layer, int x);
/* Emits the gated delta rule over x, between its projections (qwen3_next.c). */
int nib__block_gated_delta(nib_build *b, const nib_config *c, int64_t layer, int x);
/* Emits x plus the output of a branch. */
int nib__block_add(nib_build *b, const nib_config *c, int x, int branch);
/* Emits down(silu(gate(x)) * up(x)), or with the family's activation. */
int nib__block_gated_mlp(nib_build *b, const nib_config *c, int64_t layer, int x);
/* Emits the inputs of all layers, [layers * layer_inputs]: from the scaled embedding x, and from a
 * table of their own. */
int nib__block_layer_inputs(nib_build *b, const nib_config *c, int x);
/* Emits x plus what a layer makes of its part of these inputs. */
int nib__block_layer_input(nib_build *b, const nib_config *c, int64_t layer, int x, int inputs);
/* Emits a mixture of experts over x, each a gated MLP of the width c->moe.ffn, or in layers without
 * one a gated MLP. */
int nib__block_experts(nib_build *b, const nib_config *c, int64_t layer, int x);
/* Emits the experts of a mixture alone, of which the router chooses by `seen`. */
int nib__block_routed_experts(nib_build *b, const nib_config *c, int64_t layer, int x, int seen);
/* Emits down(activation(up(x))), with the family's names for both weights. */
int nib__block_plain_mlp(nib_build *b, const nib_config *c, int64_t layer, int x, const char *up,
                         const char *down);
/* Emits a layer in Llama's order: a norm before attention and one before the MLP. */
int nib__block_llama(nib_build *b, const nib_config *c, int64_t layer, int x);
void nib__build_llama(nib_build *b, const nib_config *c);
void nib__build_draft_head(nib_build *b, const nib_config *c);
/* Emits the draft head of a model in training, as one more layer over its hidden states, up to the
 * head's last norm. */
int nib__block_draft_head(nib_build *b, const nib_config *c, int hidden);
/* Cohere's order: attention and the MLP read the same norm, and both are added. */
void nib__build_parallel(nib_build *b, const nib_config *c);
/* Emits the last norm and the head; returns the logits. In training, a draft head's before them. */
int nib__block_head(nib_build *b, const nib_config *c, int x);
/* Emits the head alone. */
int nib__block_logits(nib_build *b, const nib_config *c, int x);

/* Sets the factors of embeddings: the root of their width, rounded to the weights' type. */
void nib__gemma_complete(nib_config *c);

/* ---- the families ---- */

extern const nib_family_row nib__family_llama, nib__family_mistral, nib__family_qwen2,
    nib__family_qwen3, nib__family_smollm3, nib__family_olmo2, nib__family_exaone4,
    nib__family_granite, nib__family_gemma, nib__family_gemma2, nib__family_gemma3,
    nib__family_gemma4, nib__family_cohere, nib__family_cohere2, nib__family_starcoder2,
    nib__family_stablelm, nib__family_ministral, nib__family_ministral3, nib__family_phi3,
    nib__family_glm, nib__family_glm4, nib__family_qwen3_moe, nib__family_mixtral,
    nib__family_granite_moe, nib__family_glm4_moe, nib__family_gpt_oss, nib__family_llama4,
    nib__family_deepseek_v2, nib__family_deepseek_v3, nib__family_kimi_k2, nib__family_lfm2,
    nib__family_qwen3_next, nib__family_qwen3_5, nib__family_qwen3_5_moe,
    nib__family_granite_hybrid, nib__family_lfm2_moe;

#endif
