/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of each operation's rows. A row computes a part of the output, allocates nothing,
 * starts no thread, keeps no state and cannot fail. Float data is f32 unless noted; n = outputs, k
 * = inputs, m = tokens; ld = elements from one row to the next.
 */
#ifndef NIB_OPS_H
#define NIB_OPS_H

#include "fact.h"

enum {
    NIB_SUM_BLOCK = 2048,    /* float sums over k restart after this many elements (whole groups) */
    NIB_CODES_PAD = 64,      /* rows of activation codes are zero-padded to a multiple of this */
    NIB_LANES = 16,          /* virtual lanes of every float reduction */
    NIB_SOFTMAX_BLOCK = 256, /* absolute positions per softmax block */
    NIB_ATTN_ROWS = 8,       /* queries that the CPU's attention computes together */
    NIB_CACHE_BLOCK = 64,    /* positions per cache block; divides NIB_SOFTMAX_BLOCK */
    NIB_QUANT_LANES = 64,    /* lanes of the sums over a group of weights being quantized */
};

/* Activations in the form that a linear row reads; the form decides which pointers are set. */
typedef struct nib_input {
    int64_t m, k;
    /* FLOAT, input f32 or f16: values, already rounded to f16 for --dtype f16 */
    float *f32; /* [m][ld], ld >= k */
    /* FLOAT, input bf16; E4M3_TOKEN (codes widened, exact) */
    uint16_t *bf16; /* [m][ld], ld = round_up(k, NIB_CODES_PAD), zeros past k */
    bool e5m2;      /* E4M3_TOKEN: the codes are e5m2, for gradients in training */
    /* all I8 and I4 forms: codes; MX8, MX4, NV4: e4m3 bit patterns */
    int8_t *codes; /* [m][ld], ld = round_up(k, NIB_CODES_PAD), zeros past k */
    /* [m]; block forms: [m][ceil(k / block)], MX8: powers of two, NV4: block scale times token
     * scale. */
    float *scale;
    int32_t *zero; /* [m]; all 0 when symmetric; unused by block forms, which are symmetric */
    int32_t *sums; /* I8, I4: [m][groups] sum of the codes of each weight group; NULL on a
                      GPU if no product reads them */
    float *fsums;  /* FLOAT with float zeros: [m][groups] sum of x over each weight group, in the
                      order of a product with codes that are all 1 */
    int64_t ld, groups;
    int64_t group; /* elements of k per weight group; k for a row */
} nib_input;

typedef struct nib_quant {
    const float *x; /* [m][ldx] */
    int64_t ldx;
    nib_input out;
    bool symmetric;
    bool mx_floor;
    bool block_only; /* NV4: block scales only, no token scale */
    /* E4M3_TOKEN in training; setting any of these selects the formulas of nib__cast_factor. */
    bool e5m2;                 /* e5m2 codes instead of e4m3 */
    bool two_power;            /* factors are rounded down to powers of two */
    const float *amax;         /* one scale for all tokens, from this largest |x| */
    nib_formula formula;       /* decides eps */
    const float *static_scale; /* I8_STATIC; both in host memory, as the weight is */
    const int32_t *static_zero;
    /* If per_head is not 0, for GPU rows: the rows of heads, sorted by head. Row r is that of token
     * r % per_head and head r / per_head, which is head_step values after the head before it. */
    int64_t per_head, head_step;
} nib_quant;

struct nib_quant_w;
typedef void (*nib_quant_w_run)(const struct nib_quant_w *a, int64_t row0, int64_t row1,
                                void *scratch);

/* How to quantize the weights of a tensor: docs/quantization.md has the formulas. */
typedef struct nib_quantizer {
    nib_scheme scheme;
    nib_type source; /* F32, BF16 or F16: the stored type of the rows; scales are rounded to it */
    int64_t k;
    int64_t groups;      /* scales per row; 1 for row and tensor */
    nib_type scale_type; /* of the written scales */
    nib_type zero_type;  /* NONE: no zeros */
    /* For the whole tensor, set once its range is known. */
    float scale, zero, factor; /* if it has a single scale */
    float tensor_scale;        /* NV4: the scale over the block scales; 0: none */
    nib_ptq_method method;
    /* SEARCH: [k] weight of the squared error of each input, finite, above 0; NULL: all 1 */
    const float *importance;
    nib_quant_w_run run; /* the CPU row; NULL: the reference */
} nib_quantizer;

/* Quantizes rows of weights; if codes is NULL, only computes their ranges.
 *
 * sums: of x^2 and of (x - dequantized x)^2 in f64. Element j of a group goes to lane j modulo
 * NIB_QUANT_LANES, ascending; lanes are added as a tree, 32 to 32 first; groups ascending. failed:
 * 0, or for the row's first group g that cannot be quantized, 1 + 2 * g if it has NaN or infinity,
 * 2 + 2 * g if its range has no finite scale. The row's other results are then undefined. */
typedef struct nib_quant_w {
    const nib_quantizer *q; /* in host memory, as a weight's shape is */
    const void *rows;       /* [count][k] of `type` */
    nib_type type;          /* F32, BF16 or F16; each value exact in q->source */
    int64_t count;
    int8_t *codes;     /* [count][k] one per byte: integers, or e4m3 or e2m1 bit patterns */
    void *scales;      /* [count][groups] of q->scale_type; untouched with one scale per tensor */
    void *zeros;       /* likewise, in q->zero_type; NULL without zeros */
    double *sums;      /* [count][2] */
    double *objective; /* [count][2] SEARCH, HQQ: what the method makes small, of rounding's
                          codes and of these; NULL: not wanted. Groups of the row ascending. */
    float *ranges;     /* [count][2] smallest and largest, if codes is NULL */
    int32_t *failed;   /* [count] */
    double *room;      /* [count][groups][2] scratch on the device, for GPU rows */
} nib_quant_w;

/* For a product of every row with the weight of its expert, on a device. Experts have one shape,
 * scheme and layout. Or of its head: then rows of x are sorted by head, all heads have as many, and
 * y is [tokens][ldy] with a head's outputs head_step values after those of the head before it. */
typedef struct nib_linear_experts {
    int64_t count;
    const int32_t *first, *expert; /* of nib_expert_rows; NULL for heads */
    /* [count][2]: bytes from nib_linear.packed to an expert's packed weight and to its bias */
    const int64_t *places;
    const float *factors; /* [count]: on every value of the weight besides its scale */
    int64_t head_step;    /* 0: experts */
} nib_linear_experts;

typedef struct nib_linear {
    const nib_weight
        *w; /* shape, scheme and tensor_scale; the rest only for rows without a packed layout */
    const void *packed; /* in the row's layout */
    nib_input x;
    float *y; /* [m][ldy] */
    int64_t ldy;
    const float *bias; /* [n] or NULL */
    /* Start values of the integer sums, for weights with one group per row: [n], zero-padded to a
     * multiple of NIB_CODES_PAD; or NULL. If set, bias is NULL. See linear_int.c. */
    const int32_t *int_bias;
    /* The weights of several experts, for GPU rows that are `grouped`: w is one of them, and packed
     * and bias (NULL: none) are where places count from. NULL: one weight. */
    const nib_linear_experts *experts;
} nib_linear;

typedef struct nib_embed {
    const nib_weight
        *table;         /* n = vocabulary, k = width; float or quantized; rows are dequantized */
    const void *packed; /* in the row's layout, if it has one */
    const int32_t *ids; /* [m], each below table->n */
    float *out;         /* [m][k] */
    int64_t m;
} nib_embed;

/* out = x / sqrt(mean(x^2) + eps) * weight + bias, over rows of `width` values; centered
 * (LayerNorm): with x - mean(x) instead of x. */
typedef struct nib_norm {
    const float *x;      /* [rows][ldx] */
    float *out;          /* [rows][ldo]; may be x */
    const float *weight; /* [width] */
    int64_t rows, width, ldx, ldo;
    float eps;
    bool centered;
    const float *bias; /* [width] or NULL */
    int64_t weights;   /* above 1: weight is [weights][width], and row r uses number r % weights */
} nib_norm;

/* A norm whose output is quantized for linear rows, with the same bits as NORM, then QUANT. */
typedef struct nib_norm_quant {
    nib_norm norm;   /* out NULL: the normed rows are not stored */
    nib_quant quant; /* x, ldx: not read */
} nib_norm_quant;

/* Rotates pairs (i, i + dims/2) of each head, or (2i, 2i + 1), in place; channels from `dims` on
 * are unchanged. */
typedef struct nib_rope {
    float *x;                /* [m][ldx], heads of head_dim; from the first channel that rotates */
    const int32_t *position; /* [m] */
    const float *cos_sin;    /* [positions][dims]: dims/2 cosines, then dims/2 sines */
    int64_t m, heads, head_dim, dims, ldx;
    bool inverse;     /* rotate back, for gradients */
    bool interleaved; /* pairs (2i, 2i + 1) */
} nib_rope;

/* The KV cache of one layer: blocks of NIB_CACHE_BLOCK positions. Keys are
 * [block][kv_head][head_dim][position], so that one load covers one dimension of many positions;
 * values are [block][kv_head][position][head_dim].
 *
 * I8: scales, f32 [position], follow the codes of a block and head. For the head's vector x at a
 * position, s = max |x| / 127, and a code is x / s rounded to the nearest integer, ties to even;
 * both divisions round to f32. If s is not a normal number, codes are 0 and s is 1; if some x is
 * not finite, codes are 0 and s is NaN.
 *
 * Q4_1 (int4): two codes per byte, the lower channel in the low nibble: keys [(head_dim + 1) / 2]
 * [position], values [position][(head_dim + 1) / 2]. Scales and then minima follow, f16 [group]
 * [position], for groups of NIB_KV_GROUP channels. Of a group's x, l is the least rounded to f16, s
 * is (the greatest - l) / 15 rounded to f16, and a code is (x - l) / s rounded to the nearest
 * integer, ties to even, from 0 to 15; each step rounds to f32. If s is 0, codes are 0; if some x
 * is not finite, codes are 0 and s is NaN. A code q stands for fma(q, s, l). */
typedef struct nib_cache {
    void *keys;
    void *values; /* NULL: values are the first value_dim dimensions of the keys */
    nib_kv_types types;
    const int32_t *tables; /* [sequences][table_ld]: the block for each NIB_CACHE_BLOCK positions */
    int64_t table_ld, kv_heads, head_dim;
    int64_t value_dim;   /* without values of their own; else they have head_dim dimensions */
    int64_t block_bytes; /* from one block to the next, of keys as of values; GPU rows assume that
                            only their kv_heads are between */
} nib_cache;

/* Dimensions of a value. */
NIB_INLINE int64_t nib__cache_value_dim(const nib_cache *c)
{
    return c->values != NULL ? c->head_dim : c->value_dim;
}

/* Channels that are rotated together. */
NIB_INLINE int64_t nib__cache_block(const nib_cache *c)
{
    return nib__hadamard_block(c->head_dim, c->values != NULL ? 0 : c->value_dim);
}

/* Bytes of an element, which holds one value, or two codes of int4. */
NIB_INLINE int64_t nib__cache_value_bytes(nib_type type)
{
    return type == NIB_TYPE_F32 ? 4 : type == NIB_TYPE_I8 || type == NIB_TYPE_Q4_1 ? 1 : 2;
}

/* Rounds keys and values of m slots into the cache. */
typedef struct nib_store_kv {
    const float *k, *v; /* [m][ld]; v NULL: the cache has no values of their own */
    int64_t ld, m;
    const int32_t *sequence, *position; /* [m] */
    nib_cache cache;
} nib_store_kv;

/* Rotates queries and keys in place, then stores keys and values in the cache. */
typedef struct nib_rope_store_kv {
    nib_rope q, k;
    nib_store_kv store; /* its k is k.x */
} nib_rope_store_kv;

/* Causal attention of m slots over positions 0..position of their own sequences. */
typedef struct nib_attn {
    const float *q; /* [m][ldq] */
    float *out;     /* [m][ldo] */
    int64_t ldq, ldo, m, heads;
    const int32_t *sequence, *position; /* [m] */
    nib_cache cache;
    float scale;    /* of q.k */
    float *lse;     /* [m][heads] log of the sum of e^score, for the backward pass; or NULL */
    int64_t window; /* positions that a query attends to, including its own; 0: no limit */
    bool chunked;   /* from the last multiple of window on instead (Meta, Llama 4, 2025) */
    float cap;      /* a score s = scale * q.k becomes cap * tanh(s / cap); 0: no cap */
    /* [heads] scores of a position without a value, which takes its part of the softmax (OpenAI,
     * gpt-oss, 2025); NULL: none. Merged last. */
    const float *sinks;
} nib_attn;

/* The first position that the query at `position` attends to; it grows with the position. */
NIB_INLINE int64_t nib__attn_first(int64_t window, bool chunked, int64_t position)
{
    if (window <= 0)
        return 0;
    return chunked ? position - position % window : nib__max(0, position + 1 - window);
}
/* The end of the positions whose queries attend to the key at `position`, at most `length`. */
NIB_INLINE int64_t nib__attn_end(int64_t window, bool chunked, int64_t position, int64_t length)
{
    if (window <= 0 || window > length)
        return length;
    return nib__min(length, chunked ? position - position % window + window : position + window);
}

typedef enum nib_activation {
    NIB_SILU,      /* x / (1 + e^-x) */
    NIB_GELU_TANH, /* x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3): x (1 + tanh u) / 2,
                     Hendrycks and Gimpel, 2016 */
    /* with g = min(gate, limit) and u = up within -limit..limit: (u + 1) g / (1 + e^(-alpha g));
     * OpenAI, gpt-oss, 2025 */
    NIB_SWIGLU_CLAMPED,
    NIB_SIGMOID /* 1 / (1 + e^-x) */
} nib_activation;

/* out = silu(gate) * up, or another activation of the gate */
typedef struct nib_swiglu {
    const float *gate, *up; /* [m][ld], [m][ldu]; up NULL: activation(gate) alone */
    float *out;             /* [m][ldo]; may be gate, unless one_gate */
    int64_t m, width, ld, ldu, ldo;
    nib_activation activation;
    float alpha, limit; /* SWIGLU_CLAMPED */
    bool one_gate; /* the first column of `gate` is the gate of all columns of a token; not with
                           SWIGLU_CLAMPED */
} nib_swiglu;

/* out = scale * x; with a cap, cap * tanh(scale * x / cap) */
typedef struct nib_scale {
    const float *x; /* [m][ldx] */
    float *out;     /* [m][ldo]; may be x */
    int64_t m, width, ldx, ldo;
    float scale, cap; /* cap 0: none */
} nib_scale;

/* y += x */
typedef struct nib_add {
    const float *x; /* [m][ldx] */
    float *y;       /* [m][ldy] */
    int64_t m, width, ldx, ldy;
} nib_add;

enum { NIB_TAPS_MAX = 64 /* inputs that a short convolution reads */ };

/* A causal convolution of each channel by itself, over the last `taps` tokens of a sequence,
 * between two gates (Liquid AI, LFM2, 2025). u = before * x, rounded, is kept in the state; y =
 * after * the sum over taps, the oldest first, from 0, of weight * u: one fused multiply-add each.
 * The bias is added to the sum, then comes silu, then the gate. Taps before position 0 are left
 * out. Parts are channels, and a part takes the slots in order, so a token has the same bits
 * whatever else is in the pass. The slots of a sequence are in order of position. */
typedef struct nib_short_conv {
    const float *x;              /* [m][ldx] */
    const float *before, *after; /* [m][ldx]; NULL: no such gate */
    const float *weight;         /* [taps][channels], that of the newest token last */
    const float *bias;           /* [channels] or NULL */
    bool silu;
    float *out; /* [m][ldo]; not x */
    int64_t m, channels, taps, ldx, ldo;
    const int32_t *sequence, *position; /* [m] */
    /* [sequences][room][channels]: u of position p is in row p % room. A part reads the rows of the
     * taps - 1 positions before each slot, and writes its own. */
    float *state;
    int64_t room; /* at least taps */
} nib_short_conv;

/* The gates of the gated delta rule, computed in f64 and rounded once: beta = 1 / (1 + e^-b), and
 * the decay e^(-e^a_log * log(1 + e^(a + dt_bias))), which multiplies the state. */
typedef struct nib_delta_gates {
    const float *b, *a;           /* [m][ldb], [m][lda], of the heads */
    const float *a_log, *dt_bias; /* [heads] */
    bool rates;                   /* a_log has -e^a_log, as a GGUF does */
    float *out;                   /* [m][ldo]: beta of all heads, then their decays */
    int64_t m, heads, ldb, lda, ldo;
} nib_delta_gates;

/* The gates of SSM, computed in f64 and rounded once: dt = log(1 + e^(x + dt_bias)), at least
 * `least` and at most `most`, and the decay e^(-rate * dt), which multiplies the state. */
typedef struct nib_ssm_gates {
    const float *x;              /* [m][ldx], of the heads */
    const float *rate, *dt_bias; /* [heads] */
    float *out;                  /* [m][ldo]: dt of all heads, then their decays */
    double least, most;
    int64_t m, heads, ldx, ldo;
} nib_ssm_gates;

enum {
    NIB_MATRIX_COLUMNS = 32,                /* a state has room for whole blocks of them */
    NIB_DELTA_COLUMNS = NIB_MATRIX_COLUMNS, /* of a value head, which a part of the gated delta rule
                                               computes: in L1 for 256 keys */
    NIB_SSM_COLUMNS = 64,                   /* likewise of SSM */
    NIB_MATRIX_KEYS_MAX = 256,              /* channels of a key */
};

/* A recurrence over matrices: a matrix [key_dim][value_dim] for each head of values. Heads of keys
 * serve equally many heads of values: consecutive ones, or by turns, so that head h of values is
 * served by head h % key_heads of keys. In Mamba-2, B is the key, C the query and x the value. */
typedef struct nib_matrix_size {
    int64_t key_heads, heads; /* of keys and queries; of values */
    int64_t key_dim, value_dim;
    bool by_turns;
} nib_matrix_size;

/* Values of a state. SSM: [heads][key_dim][value_dim]. GATED_DELTA: [heads][blocks][key_dim]
 * [NIB_DELTA_COLUMNS], so that a part's are in one piece; columns after value_dim are zeros. */
NIB_INLINE int64_t nib__matrix_values(const nib_matrix_size *s)
{
    return s->heads * s->key_dim * nib__round_up(s->value_dim, NIB_MATRIX_COLUMNS);
}
/* Columns of q, k and v. */
NIB_INLINE int64_t nib__matrix_columns(const nib_matrix_size *s)
{
    return 2 * s->key_heads * s->key_dim + s->heads * s->value_dim;
}
/* Values of a token that runs again: keys and values, in the order of its columns, and gates. */
NIB_INLINE int64_t nib__matrix_token_values(const nib_matrix_size *s)
{
    return s->key_heads * s->key_dim + s->heads * s->value_dim + 2 * s->heads;
}
/* Blocks of `columns` columns of a value head. */
NIB_INLINE int64_t nib__matrix_blocks(const nib_matrix_size *s, int64_t columns)
{
    return nib__ceil_div(s->value_dim, columns);
}

/* The tokens of one sequence in a pass. */
typedef struct nib_matrix_run {
    float *state; /* [nib__matrix_values], before the first of these tokens */
    bool empty;   /* it is all zeros, whatever memory holds */
    /* [again][nib__matrix_token_values]: tokens of earlier passes that the state does not have yet.
     * They run first, without output. */
    const float *earlier;
    int64_t again;
    int64_t kept; /* the state after so many tokens, earlier ones first, is written; 0: none */
    int64_t first, end; /* in `slots` */
} nib_matrix_run;

/* A pass of a recurrence over matrices. Lanes are columns of a value head, and a part takes a block
 * of them through all tokens in order, so a token has the same bits whatever else is in the pass.
 * Sums are fused multiply-adds, other products round. The two recurrences:
 *
 * GATED_DELTA, the gated delta rule (Yang, Kautz and Hatamizadeh, 2024), with k^ = k / sqrt(|k|^2 +
 * 1e-6), and q^ likewise, times key_dim^-1/2:
 *
 *   S = decay S;  u = beta (v - S^T k^);  S = S + k^ u^T;  out = S^T q^
 *
 * Column by column, channels of the key ascending: r = the sum from 0 of (decay S) k^, u = beta *
 * (v - r), S = k^ u + (decay S), out = the sum from 0 of S q^. |k|^2 is a sum in lanes, as in a
 * norm.
 *
 * SSM, the state-space recurrence of Mamba-2 (Dao and Gu, 2024):
 *
 *   S = decay S + B (dt x)^T;  out = S^T C + skip x
 *
 * Column by column, rows n of S ascending: S = (dt x) B + (decay S), out = the sum from 0 of S C;
 * then out = skip x + out. */
typedef struct nib_recurrence {
    /* [m][ldx]. GATED_DELTA: q [key_heads][key_dim], k likewise, v [heads][value_dim].
     * SSM: x [heads][value_dim], B [key_heads][key_dim], C likewise. */
    const float *x;
    const float *gates; /* [m][ldg]: nib_delta_gates.out, nib_ssm_gates.out */
    const float *skip;  /* SSM: [heads] */
    float *out;         /* [m][ldo]: [heads][value_dim]; not x */
    int64_t ldx, ldg, ldo;
    int64_t logged; /* the first of the columns of x that a token brings when it runs again */
    nib_matrix_size size;
    const int32_t *slots; /* [m] indices of rows, by run, in order within each */
    const nib_matrix_run *runs;
    int64_t count; /* of runs */
} nib_recurrence;

/* out[i][j] = x[i][order[j]]: inputs in the order of a weight's stored columns */
typedef struct nib_gather {
    const float *x;       /* [m][ldx] */
    float *out;           /* [m][ldo] */
    const int32_t *order; /* [width] */
    int64_t m, width, ldx, ldo;
} nib_gather;

enum { NIB_EXPERTS_MAX = 1024, NIB_TOP_K_MAX = 64 };

typedef enum nib_score {
    NIB_SCORE_SOFTMAX, /* softmax over all experts */
    NIB_SCORE_CHOSEN,  /* logits choose; softmax over the chosen ones */
    NIB_SCORE_SIGMOID,
    NIB_SCORE_CHOSEN_SIGMOID /* logits choose; sigmoid of each chosen one */
} nib_score;

/* The tokens of a load-balancing loss. */
typedef enum nib_balance_over {
    NIB_BALANCE_LAYERS,     /* those of a micro-batch in all layers: Fedus et al., 2021 */
    NIB_BALANCE_SEQUENCES,  /* each sequence in each layer: DeepSeek-AI, 2024 */
    NIB_BALANCE_MICRO_BATCH /* those of a micro-batch in each layer */
} nib_balance_over;

/* How a router chooses experts: Shazeer et al., 2017 (softmax over the chosen), Fedus et al., 2021
 * (softmax over all), DeepSeek-AI, 2024 (groups; sigmoid and a bias that only chooses). A lower
 * index wins ties. */
typedef struct nib_routing {
    int64_t experts, top_k;
    nib_score score;
    /* Only experts of the top_groups best groups can be chosen; groups 1: all. A group's score is
     * its largest, or the sum of its two largest. */
    int64_t groups, top_groups;
    bool group_pairs;
    bool normalize; /* weights are divided by their sum, plus `floor` */
    float floor;
    float scale;        /* of the weights, at last */
    bool weight_scales; /* then by a number of each expert (Gemma 4, 2026) */
    bool on_input; /* the weight multiplies the expert's input instead of its output (Llama 4) */
    float balance; /* coefficient of the load-balancing loss in training; 0: none */
    nib_balance_over balance_over;
} nib_routing;

/* The experts of each token and their weights, experts ascending. If a logit is not finite, the
 * first expert is -1 - the index of the first such logit. */
typedef struct nib_route_tokens {
    const nib_routing *rule;
    const float *logits;        /* [m][ldx], of the experts */
    const float *bias;          /* [experts] added to a score to choose, not to weigh; or NULL */
    const float *weight_scales; /* [experts] factors of the weights of chosen experts; or NULL */
    float *out;                 /* [m][ldo]: top_k experts, then their weights */
    int64_t m, ldx, ldo;
} nib_route_tokens;

/* The rows of m tokens, sorted by expert, within an expert by token. */
typedef struct nib_expert_rows {
    int32_t *first;          /* [experts + 1] first row of each expert */
    int32_t *token, *expert; /* [m * top_k] of each row */
    float *weight;           /* [m * top_k] of each row */
    int32_t *row;            /* [m][top_k] the rows of each token, experts ascending */
} nib_expert_rows;

typedef struct nib_sort_rows {
    const nib_routing *rule;
    const float *choice; /* [m][ldc]: the output of ROUTE */
    int64_t m, ldc;
    nib_expert_rows to;
    /* 0; or if some token's logits are not finite, 1 + t * NIB_EXPERTS_MAX + e for the first such
     * token t and its first such logit e. Such a token is listed under experts 0 to top_k - 1. */
    int32_t *failed;
} nib_sort_rows;

/* out[i] = x[token[i]], times weight[i] if there are weights */
typedef struct nib_dispatch {
    const float *x;       /* [tokens][ldx] */
    const int32_t *token; /* [rows] */
    const float *weight;  /* [rows] or NULL */
    float *out;           /* [rows][width] */
    int64_t rows, width, ldx;
} nib_dispatch;

/* out = the sum over a token's experts, ascending, of weight * y: one fused multiply-add each */
typedef struct nib_combine {
    const float *y;      /* [m * top_k][width]: rows of the experts */
    const int32_t *row;  /* [m][top_k] a token's rows, experts ascending */
    const float *weight; /* [m][ldw], in that order; NULL: all are 1 */
    float *out;          /* [m][ldo] */
    int64_t m, top_k, width, ldw, ldo;
} nib_combine;

/* Packs a weight in the layout of a row's packing. */
typedef struct nib_pack_rows {
    const nib_weight *w; /* codes, scales and zeros on the row's device */
    void *out;
} nib_pack_rows;

/* Samples a token from one row of logits: keeps the top_k best, filters them by top_p and min_p,
 * and draws one by its probability at the temperature. The lower id wins ties. */
typedef struct nib_draw {
    const float *logits;  /* [vocab] */
    int64_t vocab, top_k; /* top_k: 1: the best; 0: all */
    double temperature, top_p, min_p;
    double random;  /* in [0, 1) */
    int32_t *token; /* or, if a logit is NaN, -1 - the index of the first */
} nib_draw;

#endif
