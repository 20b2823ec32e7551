/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json of a Hugging Face model: the architecture as numbers. A key that would change the
 * result in an unsupported way is an error that names it; an unknown key is a note.
 */
#ifndef NIB_CONFIG_H
#define NIB_CONFIG_H

#include "ledger.h"
#include "ops.h"
#include "type.h"

typedef enum nib_arch {
    NIB_ARCH_LLAMA,
    NIB_ARCH_MISTRAL,
    NIB_ARCH_QWEN2,
    NIB_ARCH_QWEN3,
    NIB_ARCH_SMOLLM3,
    NIB_ARCH_OLMO2,
    NIB_ARCH_EXAONE4,
    NIB_ARCH_GRANITE,
    NIB_ARCH_GEMMA,
    NIB_ARCH_GEMMA2,
    NIB_ARCH_GEMMA3,
    NIB_ARCH_GEMMA4,
    NIB_ARCH_COHERE,
    NIB_ARCH_COHERE2,
    NIB_ARCH_STARCODER2,
    NIB_ARCH_STABLELM,
    NIB_ARCH_MINISTRAL,
    NIB_ARCH_MINISTRAL3,
    NIB_ARCH_PHI3,
    NIB_ARCH_GLM,
    NIB_ARCH_GLM4,
    NIB_ARCH_QWEN3_MOE,
    NIB_ARCH_MIXTRAL,
    NIB_ARCH_GRANITE_MOE,
    NIB_ARCH_GLM4_MOE,
    NIB_ARCH_GPT_OSS,
    NIB_ARCH_LLAMA4,
    NIB_ARCH_DEEPSEEK_V2,
    NIB_ARCH_DEEPSEEK_V3,
    NIB_ARCH_KIMI_K2,
    NIB_ARCH_LFM2,
    NIB_ARCH_QWEN3_NEXT,
    NIB_ARCH_QWEN3_5,
    NIB_ARCH_QWEN3_5_MOE,
    NIB_ARCH_GRANITE_HYBRID,
    NIB_ARCH_LFM2_MOE
} nib_arch;

typedef enum nib_rope_kind {
    NIB_ROPE_PLAIN,
    NIB_ROPE_LLAMA3,
    NIB_ROPE_LINEAR,
    NIB_ROPE_YARN,
    NIB_ROPE_LONGROPE,
    NIB_ROPE_PROPORTIONAL
} nib_rope_kind;

enum { NIB_EOS_MAX = 16, NIB_ROPE_SECTIONS = 4 };

/* Layers whose MLP is a mixture of experts. Only for families that have them. */
typedef struct nib_mixture {
    int64_t same_top_k;          /* top_k under another key, which must agree; 0: absent */
    int64_t experts, top_k, ffn; /* experts 0: none; ffn: width of one expert */
    int64_t interval;            /* every interval-th layer is one, from layer interval - 1 on */
    int64_t first;               /* layers before this one are none */
    const bool *dense;          /* [layers] layers that are none nonetheless; NULL: no such layer */
    int64_t shared;             /* experts that every token has besides, as one MLP */
    int64_t shared_ffn;         /* width of this MLP; 0: shared * ffn */
    bool enabled;               /* enable_moe_block, in families with that key */
    bool normalize;             /* the chosen weights are divided by their sum */
    bool chosen_softmax;        /* softmax over the chosen logits alone */
    bool sigmoid;               /* instead of softmax; and a bias that only chooses */
    bool scaled_inputs;         /* sigmoids of the chosen logits multiply the experts' inputs */
    double scale;               /* of the weights; 0: 1 */
    double balance;             /* in training: coefficient of the load-balancing loss; 0: none */
    bool whole_batches;         /* it covers whole micro-batches: DeepSeek's seq_aux false */
    int64_t groups, top_groups; /* as in nib_routing; 0: 1 */
    int64_t method;             /* DeepSeek-V2's topk_method: 1: by groups */
    int64_t unread_layers;      /* draft heads after the model's layers, which it does not read */
} nib_mixture;

/* Multi-head latent attention (DeepSeek-AI, 2024): keys and values of all heads are made from one
 * vector per token. A head of a query has `nope` channels that do not rotate, then `rope` that
 * do. */
typedef struct nib_latent {
    int64_t rank;       /* width of the vector; 0: the usual attention */
    int64_t query_rank; /* width of the vector that queries are made from; 0: the hidden state */
    int64_t nope, rope, value; /* channels of a head: of queries and keys, and of values */
    int64_t head;              /* nope + rope as config.json gives it; 0: absent */
    double mscale;             /* yarn's mscale_all_dim, which also scales scores; 0: absent */
} nib_latent;

typedef struct nib_config {
    nib_arch arch;
    nib_mixture moe;
    nib_latent latent;
    int64_t layers, width, ffn, heads, kv_heads, head_dim, vocab, context;
    int64_t global_kv_heads, global_head_dim; /* of layers without a window; 0: the same */
    bool keys_are_values;  /* layers without a window have no v_proj: values are those of k_proj */
    int64_t shared_layers; /* so many last layers read keys and values of earlier ones */
    bool wide_mlp;         /* their MLPs are twice as wide */
    int64_t layer_inputs;  /* values looked up per token for each layer; 0: none */
    int64_t layer_vocab;   /* rows of the table of these */
    double norm_eps, rope_theta;
    nib_rope_kind rope;
    double rope_factor, rope_low, rope_high; /* llama3: factor, low and high frequency factors */
    int64_t rope_original;                   /* original context, of all kinds but linear */
    double rope_fast, rope_slow; /* yarn: pairs with more turns within the original context than
                                    rope_fast keep their frequency; pairs with fewer than rope_slow
                                    are divided by the factor */
    bool rope_unrounded;         /* yarn: these bounds are not rounded to whole pairs (truncate) */
    double rope_gain;            /* yarn, longrope: factor of all cosines and sines; 0: 1 */
    /* longrope: [nib__config_rope_dims / 2] divisors for contexts up to rope_original, and for
     * longer ones */
    const float *rope_short, *rope_long;
    int64_t rope_sections[NIB_ROPE_SECTIONS]; /* mrope_section: pairs by kind of position in images,
                                                 the same in text; all 0: not given */
    int64_t rope_pairs; /* proportional: leading pairs that rotate; the others have frequency 0 */
    /* Queries are multiplied by 1 + beta ln(1 + floor((position + first) / step)); beta 0: not. */
    double query_beta;
    int64_t query_step, query_first;
    bool query_unrotated;       /* those of layers without RoPE; else those of layers with it */
    const float *rope_divisors; /* [head_dim / 2] divisor of each frequency; NULL: all 1 */
    const bool *rope_layers;    /* [layers] layers that use RoPE; NULL: all */
    int64_t position_type;      /* position_embedding_type of Granite 4: 0: no layer uses RoPE */
    bool unrotated;             /* no layer uses RoPE */
    int64_t rope_dims;          /* leading channels of a head that rotate; 0: all */
    bool rope_interleaved;      /* rotates pairs (2i, 2i + 1) */
    double local_theta;         /* rope_theta of layers with a window, without scaling; 0: the same
                                   rope_theta */
    int64_t window;             /* positions a query sees, including its own; 0: all */
    bool chunked;               /* nib_attn.chunked, of layers that have the window */
    const bool *window_layers;  /* [layers] layers that have the window; NULL: all */
    double embed_scale, residual_scale, logits_scale; /* factors; 0: none */
    double layer_embed_scale;                         /* of the table of inputs of layers */
    double attention_scale;                           /* of q.k; 0: head_dim^-1/2 */
    double attention_cap, logits_cap;                 /* nib_attn.cap, nib_scale.cap */
    double swiglu_limit;                              /* nib_swiglu.limit */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    /* [layers] layers with a short convolution in place of attention, which keep no keys; NULL:
     * none */
    const bool *conv_layers;
    int64_t conv_taps;      /* inputs that it reads */
    nib_matrix_size matrix; /* of the recurrence after it; heads 0: none */
    /* Mamba-2: what config.json says that heads * value_dim is, as a multiple of the width; biases
     * of the convolution and of the projections; the range of dt, 0 and infinity unless given */
    int64_t mamba_expand;
    bool conv_bias, mamba_bias;
    double least_step, most_step;
    bool delta_converted;  /* recurrences have -e^A_log in place of A_log, as in a GGUF */
    bool gguf_order;       /* gated DeltaNet and draft heads are as head_order.h says of a GGUF */
    int64_t full_interval; /* every so many layers one has attention, unless layer_types is given;
                              0: the family's default */
    /* LFM2: the MLPs are two thirds of ffn wide, times ffn_factor, rounded up to ffn_multiple; with
     * ffn_factor 0 neither is done */
    bool ffn_adjusted;
    double ffn_factor;
    int64_t ffn_multiple;
    bool draft_head; /* of a draft head alone, whose layer is called number draft_layer */
    int64_t draft_layer;
    bool trains_head; /* in training: the model has a draft head, whose layer follows its own */
    bool parallel;    /* attention and the MLP read one norm; only for families whose config
                       chooses */
    bool quantized;   /* has a quantization_config; checkpoint.c says what is stored */
    nib_type dtype;   /* torch_dtype; NONE if absent */
    int32_t bos, eos[NIB_EOS_MAX];
    int eos_count; /* bos -1: none */
} nib_config;

NIB_INLINE bool nib__config_has_sections(const nib_config *c)
{
    bool given = false;
    for (int i = 0; i < NIB_ROPE_SECTIONS; i++)
        given = given || c->rope_sections[i] != 0;
    return given;
}

NIB_INLINE bool nib__config_has_rope(const nib_config *c, int64_t layer)
{
    return !c->unrotated && (c->rope_layers == NULL || c->rope_layers[layer]);
}

/* Layers with the draft head's in training, the last one. */
NIB_INLINE int64_t nib__config_trained_layers(const nib_config *c)
{
    return c->layers + (c->trains_head ? 1 : 0);
}

/* Whether a layer's MLP is a mixture of experts. */
NIB_INLINE bool nib__config_has_experts(const nib_config *c, int64_t layer)
{
    const nib_mixture *moe = &c->moe;
    return moe->experts > 0 && layer >= moe->first && (layer + 1) % moe->interval == 0 &&
           (moe->dense == NULL || !moe->dense[layer]);
}

/* Width of the vector that the cache keeps of a token, for latent attention: the latent vector,
 * then the rotated channels of the key. */
NIB_INLINE int64_t nib__config_latent_key(const nib_config *c)
{
    return c->latent.rank + c->latent.rope;
}

/* Whether a layer has a short convolution in place of attention. */
NIB_INLINE bool nib__config_has_conv(const nib_config *c, int64_t layer)
{
    return c->conv_layers != NULL && c->conv_layers[layer];
}

/* Channels of the convolution: the hidden state, or q, k and v of the recurrence. */
NIB_INLINE int64_t nib__config_conv_channels(const nib_config *c)
{
    return c->matrix.heads == 0 ? c->width : nib__matrix_columns(&c->matrix);
}

/* Window of a layer; 0: it sees all positions. */
NIB_INLINE int64_t nib__config_window(const nib_config *c, int64_t layer)
{
    return c->window_layers == NULL || c->window_layers[layer] ? c->window : 0;
}

/* The layer whose keys and values `layer` reads: itself, or, for a layer that shares them, the last
 * layer with its own that has a window exactly if `layer` has one. -1: none. */
NIB_INLINE int64_t nib__config_kv_layer(const nib_config *c, int64_t layer)
{
    const int64_t own = c->layers - c->shared_layers;
    int64_t source = layer < own ? layer : own - 1;
    while (source >= 0 && (nib__config_window(c, source) > 0) != (nib__config_window(c, layer) > 0))
        source--;
    return source;
}

/* Width of a layer's MLP. */
NIB_INLINE int64_t nib__config_ffn(const nib_config *c, int64_t layer)
{
    return c->wide_mlp && layer >= c->layers - c->shared_layers ? 2 * c->ffn : c->ffn;
}

/* Elements of a head, and heads of keys and values, in a layer. */
NIB_INLINE int64_t nib__config_head_dim(const nib_config *c, int64_t layer)
{
    return c->global_head_dim > 0 && nib__config_window(c, layer) == 0 ? c->global_head_dim
                                                                       : c->head_dim;
}
NIB_INLINE int64_t nib__config_kv_heads(const nib_config *c, int64_t layer)
{
    return c->global_kv_heads > 0 && nib__config_window(c, layer) == 0 ? c->global_kv_heads
                                                                       : c->kv_heads;
}

/* Channels of a head that the main RoPE table rotates. */
NIB_INLINE int64_t nib__config_rope_dims(const nib_config *c)
{
    return c->rope_dims > 0         ? c->rope_dims
           : c->global_head_dim > 0 ? c->global_head_dim
                                    : c->head_dim;
}
/* Those that a table rotates: 0, or the second one, 1. */
NIB_INLINE int64_t nib__config_table_dims(const nib_config *c, int table)
{
    return table == 1 && c->local_theta > 0 && c->global_head_dim > 0 ? c->head_dim
                                                                      : nib__config_rope_dims(c);
}

/* Number of RoPE tables: the main one, and a second for layers with a window or for scaled queries,
 * which it does not rotate in layers without RoPE. No family has both. */
NIB_INLINE int nib__config_ropes(const nib_config *c)
{
    return c->local_theta > 0 || c->query_beta > 0 ? 2 : 1;
}

/* `name` is for messages; notes go to ledger (NULL allowed). */
nib_status nib__config_parse(nib_config *out, const char *name, const char *text, size_t size,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err);
const char *nib__arch_name(nib_arch arch);      /* "llama" */
const char *nib__rope_name(nib_rope_kind rope); /* "llama3"; PLAIN: "default" */

/* Writes a config.json that nib__config_parse reads back as this architecture. NIB_UNSUPPORTED:
 * config.json has no keys for it. */
nib_status nib__config_write(nib_text *out, const nib_config *config, nib_err *err);

/* Frequency of a pair in radians per position, in a run of `context` positions; ignores
 * rope_divisors. */
double nib__rope_frequency(const nib_config *config, int64_t pair, int64_t context);
/* What scaling divides the frequency of a pair by, in the model's own context; ignores
 * rope_divisors. */
double nib__rope_divisor(const nib_config *config, int64_t pair);
/* Adds a line if a run with this context rotates short texts differently from transformers. */
void nib__rope_report_context(const nib_config *config, int64_t context, nib_ledger *ledger);
/* Elements of a table for `positions` positions; of the larger one, if there are two. */
uint64_t nib__rope_size(const nib_config *config, int64_t positions);
/* Writes cosines and sines of positions first..end-1 into a table: [end][nib__config_table_dims],
 * cosines first. table: 0 or 1. context: the most positions the run may reach, on which longrope
 * depends. */
void nib__rope_table(float *out, const nib_config *config, int table, int64_t context,
                     int64_t first, int64_t end);

#endif
