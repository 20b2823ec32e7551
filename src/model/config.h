/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json of a Hugging Face model: the architecture as numbers. A key that would change the
 * result in a way not built is an error that names it; a key not known is a note.
 */
#ifndef NIB_CONFIG_H
#define NIB_CONFIG_H

#include "ledger.h"
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
    NIB_ARCH_COHERE,
    NIB_ARCH_COHERE2,
    NIB_ARCH_STARCODER2,
    NIB_ARCH_STABLELM,
    NIB_ARCH_MINISTRAL,
    NIB_ARCH_MINISTRAL3,
    NIB_ARCH_PHI3,
    NIB_ARCH_GLM,
    NIB_ARCH_GLM4
} nib_arch;

typedef enum nib_rope_kind {
    NIB_ROPE_PLAIN,
    NIB_ROPE_LLAMA3,
    NIB_ROPE_LINEAR,
    NIB_ROPE_YARN,
    NIB_ROPE_LONGROPE
} nib_rope_kind;

enum { NIB_EOS_MAX = 16 };

typedef struct nib_config {
    nib_arch arch;
    int64_t layers, width, ffn, heads, kv_heads, head_dim, vocab, context;
    double norm_eps, rope_theta;
    nib_rope_kind rope;
    double rope_factor, rope_low, rope_high; /* llama3: factor, low and high frequency factors */
    int64_t rope_original;                   /* all but linear: original context */
    double rope_fast, rope_slow; /* yarn: turns within the original context of pairs that keep their
                                    frequency, and of those that are divided by the factor */
    bool rope_unrounded;         /* yarn: these pairs are not rounded to whole ones (truncate) */
    double rope_gain;            /* yarn, longrope: factor of all cosines and sines; 0: 1 */
    /* longrope: [nib__config_rope_dims / 2] divisors for a context of at most rope_original, and
     * for a longer one */
    const float *rope_short, *rope_long;
    double query_beta; /* rotated queries times 1 + beta ln(1 + floor(position / rope_original)); 0:
                          they are not scaled */
    const float *rope_divisors; /* [head_dim / 2] what each frequency is divided by; NULL: by 1 */
    const bool *rope_layers;    /* [layers] which layers rotate by positions; NULL: all */
    int64_t rope_dims;          /* leading channels of a head that rotate; 0: all */
    bool rope_interleaved;      /* pairs (2i, 2i + 1) */
    double local_theta;         /* rope_theta, without scaling, of layers with a window; 0: theirs,
                                   too, is rope_theta */
    int64_t window;             /* positions that a query sees, its own included; 0: all */
    const bool *window_layers;  /* [layers] which layers have it; NULL: all */
    double embed_scale, residual_scale, logits_scale; /* factors; 0: none */
    double attention_scale;                           /* of q.k; 0: head_dim^-1/2 */
    double attention_cap, logits_cap;                 /* nib_attn.cap, nib_scale.cap */
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    bool parallel;  /* attention and the MLP read one norm, where a config says which it is */
    bool quantized; /* it has a quantization_config; what is stored is checkpoint.c's to say */
    nib_type dtype; /* torch_dtype; NONE if absent */
    int32_t bos, eos[NIB_EOS_MAX];
    int eos_count; /* bos -1: none */
} nib_config;

NIB_INLINE bool nib__config_has_rope(const nib_config *c, int64_t layer)
{
    return c->rope_layers == NULL || c->rope_layers[layer];
}

/* Of a layer; 0: it sees all positions. */
NIB_INLINE int64_t nib__config_window(const nib_config *c, int64_t layer)
{
    return c->window_layers == NULL || c->window_layers[layer] ? c->window : 0;
}

NIB_INLINE int64_t nib__config_rope_dims(const nib_config *c)
{
    return c->rope_dims > 0 ? c->rope_dims : c->head_dim;
}

/* How many tables of rotations a model has: its own, and a second one, of layers with a window or
 * of scaled queries. No family has both. */
NIB_INLINE int nib__config_ropes(const nib_config *c)
{
    return c->local_theta > 0 || c->query_beta > 0 ? 2 : 1;
}

/* name is for messages; notes go to ledger (NULL allowed). */
nib_status nib__config_parse(nib_config *out, const char *name, const char *text, size_t size,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err);
/* Ranges of the sizes, and whether they fit each other; the sentence names the key of config.json.
 */
nib_status nib__config_check(const nib_config *config, const char *name, nib_err *err);
const char *nib__arch_name(nib_arch arch);      /* "llama" */
const char *nib__rope_name(nib_rope_kind rope); /* "llama3"; PLAIN: "default" */

/* A config.json that nib__config_parse reads back as this architecture. NIB_UNSUPPORTED: its keys
 * cannot say it. */
nib_status nib__config_write(nib_text *out, const nib_config *config, nib_err *err);

/* Of a pair, in radians per position, in a run of `context` positions; rope_divisors are not asked.
 */
double nib__rope_frequency(const nib_config *config, int64_t pair, int64_t context);
/* What scaling divides the frequency of a pair by, in the model's own context; rope_divisors are
 * not asked. */
double nib__rope_divisor(const nib_config *config, int64_t pair);
/* A line where a run of this context rotates short texts in another way than transformers. */
void nib__rope_say_context(const nib_config *config, int64_t context, nib_ledger *ledger);
/* Elements of a table for so many positions. */
uint64_t nib__rope_size(const nib_config *config, int64_t positions);
/* Cosines and sines of positions first..end-1 in a table: [end][nib__config_rope_dims], cosines
 * first. table: 0 or 1. context: positions that the run may come to, on which longrope depends. */
void nib__rope_table(float *out, const nib_config *config, int table, int64_t context,
                     int64_t first, int64_t end);

#endif
