/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of training rows, in addition to those of the forward pass (ops.h). The three
 * matmuls of a linear layer are all y = x W^T and take a nib_linear:
 *
 *   LINEAR      y [m][n]   x  = input [m][k]           W = weight [n][k]
 *   LINEAR_DX   dx [m][k]  x  = dy [m][n]              W = weight^T [k][n]
 *   LINEAR_DW   dW [n][k]  x  = dy^T [n][m]            W = input^T [k][m]
 *
 * QUANT and QUANT_T produce x, CAST and CAST_T the packed W; the _T forms read their matrix by
 * columns. Blocks and scales always run along the dimension that is summed over.
 *
 * Sums over tokens run in blocks of NIB_TRAIN_ROWS tokens, each ascending from zero with one fused
 * multiply-add (or addition) per token; block sums are added in ascending order. So the bits do not
 * depend on the number of threads. Threads split columns, so no sum is shared.
 */
#ifndef NIB_TRAIN_OPS_H
#define NIB_TRAIN_OPS_H

#include "ops.h"

enum {
    NIB_TRAIN_ROWS = 256,    /* tokens per block of a sum over tokens */
    NIB_TRAIN_PART = 1 << 16 /* elements per part of SQUARES */
};

/* QUANT_T takes a nib_quant: x is [k][ldx], its m tokens are columns; forms bf16, f32, E4M3_TOKEN
 * (always by nib__cast_factor) and MX8. Parts begin at multiples of 16 tokens. */

/* Casts f32 to a weight, in the row's packing or plain: cast.h. CAST: x is [n][ldx], k wide;
 * CAST_T: [k][ldx], n wide. */
typedef struct nib_cast {
    const float *x;
    int64_t ldx;
    const nib_weight *w; /* n, k, scheme, scale_type; no data. Codes f32, bf16, e4m3, mx8 with
                            scales none, none, F32, E8M0 */
    void *packed;        /* nib__cast_bytes; parts begin at multiples of 16 outputs */
    const float
        *amax;      /* e4m3: one scale for the tensor, from this largest |x|; NULL: one per row */
    bool two_power; /* e4m3: factors are rounded down to powers of two */
} nib_cast;

/* out[part] = max |x| over the rows of a part of NIB_TRAIN_ROWS; NaN if any x is NaN. */
typedef struct nib_amax {
    const float *x; /* [rows][ldx] */
    int64_t rows, width, ldx;
    float *out; /* [ceil(rows / NIB_TRAIN_ROWS)] */
} nib_amax;

/* With r = 1 / sqrt(mean(x^2) + eps): dx = sum + r * (w dy - x r^2 mean(x w dy)). Both means are
 * summed in lanes like the forward norm's, so r has the same bits; w dy is rounded, c = r * r *
 * mean, then two fused multiply-adds: sum + r * (w dy - x * c).
 *
 * Centered: mean(x) has the forward norm's bits, and x - mean(x), rounded, replaces x throughout.
 * After the means, mean(w dy), summed in lanes too, is subtracted from w dy, with a rounding: sum +
 * r * ((w dy - mean(w dy)) - (x - mean(x)) * c). */
typedef struct nib_norm_dx {
    const float *x, *dy; /* [rows][ldx], [rows][ldy] */
    const float *weight; /* [width] */
    float *dx;           /* [rows][lddx] */
    float *inverse;      /* [rows] r, for NORM_DW */
    int64_t rows, width, ldx, ldy, lddx;
    float eps;
    const float *sum; /* [rows][lddx], may be dx; NULL: zeros */
    bool centered;
    float *mean;     /* [rows] of x, for NORM_DW; only if centered */
    int64_t weights; /* as in nib_norm */
} nib_norm_dx;

/* dw[j] = sum over rows of dy * (x * r), overwritten; centered: of dy * ((x - mean) * r). For q and
 * k norms a row is one head of a token. */
typedef struct nib_norm_dw {
    const float *x, *dy, *inverse;
    float *dw; /* [width] */
    int64_t rows, width, ldx, ldy;
    const float *mean; /* [rows] of x, subtracted from it; NULL: not centered */
    /* Above 1: dw is [weights][width], row r adds to number r % weights, and columns count over all
     * of dw. */
    int64_t weights;
} nib_norm_dw;

/* Gradients of out = silu(gate) * up, with s = 1 / (1 + e^-gate): dup = dy * silu(gate) with the
 * forward silu, gate / (1 + e^-gate); dgate = (dy * up) * (s * (1 + gate * (1 - s))), the inner sum
 * fused. dgate and dup may be gate and up. If the forward pass has no up, up and dup are NULL and
 * dy * up is dy.
 *
 * NIB_GELU_TANH: s = 1 / (1 + e^-2u), and the last factor is s * (1 + h * (1 - s)), the sum fused.
 * h = gate * d(2u)/dgate, where d(2u)/dgate = 2 sqrt(2 / pi) (1 + 3 * 0.044715 gate^2) is one
 * multiply-add of gate^2.
 *
 * NIB_SIGMOID: dup = dy * s, and the last factor is s * (1 / (1 + e^gate)).
 *
 * One gate for all columns: dy * up is a sum over the columns in lanes, one fused multiply-add
 * each.
 *
 * NIB_SWIGLU_CLAMPED, with the forward g, u and s = 1 / (1 + e^(-alpha g)): dup = dy * (g / (1 +
 * e^(-alpha g))),
 * and 0 if up is outside of -limit..limit; dgate = (dy * (u + 1)) * (s * (1 + alpha g * (1 - s))),
 * the last sum fused, and 0 if gate is above the limit. */
typedef struct nib_swiglu_dx {
    const float *gate, *up, *dy; /* [m][ld], [m][ldu], [m][ldy] */
    float *dgate, *dup;          /* [m][ld], [m][ldu] */
    int64_t m, width, ld, ldu, ldy;
    nib_activation activation;
    float alpha, limit; /* SWIGLU_CLAMPED */
    bool one_gate;      /* as in nib_swiglu; only column 0 of dgate is written */
} nib_swiglu_dx;

/* Gradient of a nib_scale: dx = scale * dy; with a cap, times 1 - t * t, fused, with the forward t
 * = tanh(scale * x / cap). */
typedef struct nib_scale_dx {
    const float *x, *dy; /* [m][ldx], [m][ldy]; x NULL: no cap */
    float *dx;           /* [m][lddx]; may be dy */
    int64_t m, width, ldx, ldy, lddx;
    float scale, cap;
} nib_scale_dx;

/* The gradients of causal attention over documents. A document is a sequence of the cache; its
 * tokens are consecutive rows in order of position. Sums run in blocks of NIB_CACHE_BLOCK
 * positions. Threads can split the work only into items of one document and one kv head. */
typedef struct nib_attn_dx {
    const float *q, *out, *dout; /* [m][ldq], [m][ldo], [m][ldo] */
    const float *lse;            /* [m][heads] */
    /* [m][ldq], [m][ldkv], [m][ldkv], written. If values are the first dimensions of the keys, dk
     * includes their gradients, and dv is unused. */
    float *dq, *dk, *dv;
    int64_t ldq, ldo, ldkv, m, heads, documents;
    const int32_t *start; /* [documents + 1] the first row of each; the last is m */
    nib_cache cache;      /* holds the keys and values that attention read */
    float scale;
    int64_t window; /* as in nib_attn */
    bool chunked;
    float cap;
} nib_attn_dx;

/* Gradients of the sinks of attention: dw[h] = the sum over queries of -e^(sink - lse) * (out .
 * dout). The dot product is summed in lanes; blocks of NIB_TRAIN_ROWS tokens with one fused
 * multiply-add per token. */
typedef struct nib_sinks_dw {
    const float *sinks;      /* [heads] */
    const float *out, *dout; /* [m][ldo], [m][ldd] */
    const float *lse;        /* [m][heads], with the sink */
    float *dw;               /* [heads] */
    int64_t m, heads, dim, ldo, ldd;
} nib_sinks_dw;

/* Gradient of a nib_gather: dx = sum, with dy[i][j] added to column order[j]. */
typedef struct nib_gather_dx {
    const float *dy;      /* [m][ldy] */
    const int32_t *order; /* [width] */
    const float *sum;     /* [m][lddx], may be dx; NULL: zeros */
    float *dx;            /* [m][lddx], all columns */
    int64_t m, width, ldy, lddx;
} nib_gather_dx;

/* Gradients of nib_delta_gates, in f64 with the forward formulas and rounded once: db = dbeta *
 * beta * (1 - beta); with z = a + dt_bias, r the rate e^a_log and e = ddecay * decay, da = -e * r /
 * (1 + e^-z), which is also that of dt_bias, and dlog = -e * r * log(1 + e^z), or e * log(1 + e^z)
 * of a given rate. */
typedef struct nib_delta_gates_dx {
    const float *dgates;          /* [m][ldg] as nib_delta_gates.out */
    const float *b, *a;           /* [m][ldb], [m][lda] */
    const float *a_log, *dt_bias; /* [heads] */
    bool rates;
    float *db, *da, *dlog; /* [m][ldb], [m][lda], [m][heads]: of each token */
    int64_t m, heads, ldg, ldb, lda;
} nib_delta_gates_dx;

/* Gradients of nib_ssm_gates, likewise: dz = (dstep - e * rate) / (1 + e^-z), or 0 where the step
 * is limited; dlog = -e * rate * step. */
typedef struct nib_ssm_gates_dx {
    const float *dgates;         /* [m][ldg] as nib_ssm_gates.out */
    const float *x;              /* [m][ldx], of the heads */
    const float *rate, *dt_bias; /* [heads] */
    float *dz, *dlog;            /* [m][ldz], [m][heads]: of each token */
    double least, most;
    int64_t m, heads, ldg, ldx, ldz;
} nib_ssm_gates_dx;

/* Gradients of a recurrence over matrices (nib_recurrence) over documents, whose matrices begin at
 * zero. The states are computed again, with the bits of the forward pass. With S the state after a
 * token, P the one before it and dS carried from the last token to the first:
 *
 *   GATED_DELTA, per token: dS += q^ dout^T;  dq^ = S dout;  du = dS^T k^;  dv = beta du;
 *       dbeta = du . (v - r);  dr = -dv;  dD = dS + k^ dr^T;  dk^ = dS u + (decay P) dr;
 *       ddecay = sum of dD P;  dS = decay dD
 *   SSM: dS += C dout^T;  dC = S dout;  du = dS^T B;  dx = dt du + skip dout;  ddt = du . x;
 *       dskip = dout . x;  dB = dS (dt x);  ddecay = sum of dS P;  dS = decay dS
 *
 * Columns are taken in blocks of NIB_MATRIX_COLUMNS, those of a head ascending, heads that share a
 * key ascending. Per column, sums over the key's channels are fused multiply-adds, ascending, from
 * 0 (du, and ddecay in lanes). Sums over columns (dq^, dk^, dbeta, ddt, ddecay, dskip) run in the
 * 16 lanes of a block, first to second vector, one tree, then blocks are added. Then, with n = 1 /
 * sqrt(|k|^2 + 1e-6): dk = n * (dk^ - k * n^2 (k . dk^)), the difference fused, the dot product in
 * lanes; dq likewise, n times key_dim^-1/2. */
typedef struct nib_recurrence_dx {
    const float *x, *gates, *skip; /* [m][ldx], [m][ldg], [heads] as in nib_recurrence */
    const float *dy;               /* [m][ldy] */
    float *dx, *dgates;            /* [m][lddx], [m][lddg], in the order of x and gates */
    float *dskip;                  /* SSM: [m][heads] of each token */
    int64_t ldx, ldg, ldy, lddx, lddg;
    int64_t documents, longest; /* tokens of the longest one, at most */
    const int32_t *start;       /* [documents + 1] first row of each */
    nib_matrix_size size;
} nib_recurrence_dx;

/* Gradients of a short convolution (nib_short_conv) over documents, each of which starts at
 * position 0. The sum c over taps is computed again, with the bits of the forward pass. With silu,
 * s the sigmoid of c and the last sum fused: dsum = dy * (s * (1 + c * (1 - s))); with the gate
 * after it, dafter = dy * c and dsum = dy * after. du of a token is the sum from 0 over the tokens
 * of its document whose taps read it, ascending, of weight * dsum, fused. With the gate before it,
 * dbefore = du * x and dx = du * before; else dx = du. */
typedef struct nib_short_conv_dx {
    const float *x, *before, *after; /* [m][ldx] as in nib_short_conv; gates may be NULL */
    const float *weight;             /* [taps][channels] */
    const float *bias;               /* [channels] or NULL */
    const float *dy;                 /* [m][ldy] */
    float *dx, *dbefore, *dafter;    /* [m][lddx]; NULL without such a gate */
    float *dsum;                     /* [m][ldd] the gradients of c */
    int64_t m, channels, taps, ldx, ldy, lddx, ldd;
    const int32_t *position; /* [m] */
    bool silu;
} nib_short_conv_dx;

/* dw[channel][tap] = the sum over tokens of dsum * u of the token that the tap reads, u as in
 * nib_short_conv, in blocks of NIB_TRAIN_ROWS tokens, fused. Taps before position 0 add nothing. */
typedef struct nib_short_conv_dw {
    const float *x, *before; /* [m][ldx] as in nib_short_conv_dx */
    const float *dsum;       /* [m][ldd] */
    float *dw;               /* [channels][taps] as stored, the newest token's last */
    int64_t m, channels, taps, ldx, ldd;
    const int32_t *position; /* [m] */
} nib_short_conv_dw;

/* Gradient of a router's logits, from those of the weights w_j = c q_j of the chosen experts, where
 * c is the rule's scale. If the weights have factors, dw_j is the given gradient times the factor:
 *
 *   weights that add up to c (softmax over the chosen, or normalized softmax):
 *       dx_i = w_i * (dw_i - (sum of w_j dw_j) / c), 0 for the others
 *   softmax p over all experts, not normalized: dx_e = -(p_e * sum of w_j dw_j), and for the chosen
 *       w_i dw_i is added, fused
 *   sigmoid s, normalized: ds_i = (c / S) * (dw_i - (sum of w_j dw_j) / c), S as in the forward
 *       pass; not normalized: ds_i = c * dw_i. dx_i = ds_i * (s_i * (1 - s_i)), 0 for the others
 *
 * The sums run over the chosen experts ascending, one fused multiply-add each. With `load`, f, the
 * gradient of the load-balancing loss is added for all experts: dx_e += (balance * p_e) * (f_e -
 * sum of f p), fused, where p is the softmax over all experts and the sum is one in lanes. With
 * sigmoids s, p_e = s_e / (sum of s, in lanes), and the first factor is (balance * p_e) *
 * (1 - s_e). */
typedef struct nib_route_dx {
    const nib_routing *rule;
    const float *logits;  /* [m][ldx] */
    const float *routing; /* [m][ldr] as ROUTE wrote it */
    const float *dweight; /* [m][top_k] */
    float *dx;            /* [m][lddx] */
    int64_t m, ldx, ldr, lddx;
    const float *load; /* [m / sequence][experts]; NULL: none */
    int64_t sequence;  /* tokens that share a row of `load` */
    float balance;
    const float *weight_scales; /* [experts] as in nib_route_tokens; NULL: none */
    float *weights;             /* [m][top_k] w before these factors, written if there are any */
} nib_route_dx;

/* Gradients of the factors of the experts' weights: dw[e] = the sum over the tokens of expert e of
 * dweight * weight, with the weight before its factor: in blocks of NIB_TRAIN_ROWS tokens, one
 * fused multiply-add per token. */
typedef struct nib_route_dw {
    const float *routing;           /* [m][ldr] as ROUTE wrote it */
    const float *dweight, *weights; /* [m][top_k] */
    float *dw;                      /* [experts] */
    int64_t m, top_k, ldr;
} nib_route_dw;

/* dweight[i][j] = dy[i] . y[row[i][j]], summed in lanes: the gradients of a nib_combine's weights.
 * Of a weight on an expert's input: dy is that input, y the gradient of the expert's row. */
typedef struct nib_combine_dw {
    const float *dy;    /* [m][ldy] */
    const float *y;     /* [m * top_k][width] */
    const int32_t *row; /* [m][top_k] */
    float *dweight;     /* [m][top_k] */
    int64_t m, top_k, width, ldy;
} nib_combine_dw;

/* out[block] = the sums of p, as in nib_route_dx, over NIB_TRAIN_ROWS tokens of a sequence,
 * ascending; the last block of a sequence may be shorter. counts[block]: how many tokens have each
 * expert; with sigmoids, how many have it among their top_k largest (DeepSeek-AI, "DeepSeek-V3
 * Technical Report", 2024, equation 18, where neither a bias nor groups take part). */
typedef struct nib_route_sums {
    const nib_routing *rule;
    const float *logits;  /* [m][ldx] */
    const float *routing; /* [m][ldr] as ROUTE wrote it; unused without counts */
    int64_t m, ldx, ldr, sequence;
    float *out;    /* [m / sequence][ceil(sequence / NIB_TRAIN_ROWS)][experts] */
    float *counts; /* the same; NULL: not wanted */
} nib_route_sums;

/* The load-balancing loss (Fedus et al., 2021; over all layers as in transformers): experts * sum
 * over e of f_e P_e, with f and P the sums over the layers of counts and probabilities, ascending,
 * divided by `tokens`; the last sum in f64, ascending, rounded once. */
typedef struct nib_balance {
    const float *counts, *sums;      /* [layers][experts] */
    int64_t layers, experts, tokens; /* tokens: of all layers */
    float *load;                     /* [experts] f */
    float *loss;                     /* [1] */
} nib_balance;

/* d[id] += dx over tokens in ascending order, not in blocks. */
typedef struct nib_embed_dw {
    const int32_t *ids; /* [m] */
    const float *dx;    /* [m][width] */
    float *d;           /* [vocab][width], added to */
    int64_t m, width;
} nib_embed_dw;

/* db[j] = sum over tokens of dy, overwritten. */
typedef struct nib_bias_dw {
    const float *dy; /* [m][ldy] */
    float *db;       /* [n] */
    int64_t m, n, ldy;
} nib_bias_dw;

/* loss = log(sum of e^x) - x[target] per token, in nats; x becomes its gradient times `scale`. A
 * target of -1 is ignored: loss and gradient are 0, even if x is NaN. Otherwise a NaN in a row
 * makes the whole row NaN.
 *
 * e = e^(x - largest) in f32, at least e^-87.33; sums of NIB_SUM_BLOCK values in lanes, added in
 * f64 in ascending order; loss = log(sum) + (largest - x[target]) in f64, rounded once. The
 * gradient is e * (scale / sum), the factor rounded from f64; for the target, (e / sum - 1) * scale
 * in f64, rounded once. */
typedef struct nib_xent {
    float *x;              /* [m][ldx] logits, then gradients */
    const int32_t *target; /* [m] */
    float *loss;           /* [m] */
    int64_t m, vocab, ldx;
    float scale;
    bool gradient; /* false: only the loss; x is unchanged */
} nib_xent;

/* out[part] = the sum of x^2 in f64 over NIB_TRAIN_PART elements: 16 lanes, added as a tree. The
 * squares are exact. */
typedef struct nib_squares {
    const float *x; /* [count] */
    int64_t count;
    double *out; /* [ceil(count / NIB_TRAIN_PART)] */
} nib_squares;

/* AdamW (Loshchilov and Hutter, 2019) as PyTorch computes it, with g = gradient * clip:
 *   m = m + (g - m) * rest1                                fused
 *   v = (rest2 * g) * g + v * beta2                        fused, after both inner products
 *   p = p * shrink - step * (m / (sqrt(v) / root + eps))   fused, after p * shrink
 * step = rate / (1 - beta1^t), root = sqrt(1 - beta2^t). Constants are rounded from f64: 1 minus
 * the rounded 0.999 would be off by 1.3e-5. */
typedef struct nib_adamw {
    float *p, *m, *v; /* [count] */
    const float *g;   /* [count] */
    int64_t count;
    float clip, shrink /* 1 - rate * decay */, rest1 /* 1 - beta1 */;
    float beta2, rest2 /* 1 - beta2 */, step, root, eps;
} nib_adamw;

#endif
