/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks that families share. A block emits its weights beside the operations that read them, so
 * the order here is the order of weights in plans, checkpoints and parameters, too.
 */
#include "arch.h"

int nib__block_embed(nib_build *b, const nib_config *c)
{
    return nib__emit_embed(b, nib__build_matrix(b, NIB_ROLE_EMBED, -1, "model.embed_tokens",
                                                c->vocab, c->width, false));
}

/* A linear layer of its own. */
static int linear(nib_build *b, int x, nib_role role, int64_t layer, const char *part, int64_t n,
                  int64_t k, bool bias)
{
    return nib__emit_linear(b, x, nib__build_matrix(b, role, layer, part, n, k, bias));
}

int nib__block_norm(nib_build *b, const nib_config *c, int64_t layer, const char *part, int x)
{
    return nib__emit_norm(b, x, nib__build_norm(b, layer, part, c->width), 1);
}

static int norm_heads(nib_build *b, const nib_config *c, int x, int64_t layer, const char *part,
                      int64_t heads, nib_qk_norm norm)
{
    const bool whole = norm == NIB_QK_WHOLE;
    const int64_t n = whole ? heads * c->head_dim : c->head_dim;
    return norm == NIB_QK_PLAIN
               ? x
               : nib__emit_norm(b, x, nib__build_norm(b, layer, part, n), whole ? 1 : heads);
}

int nib__block_attention(nib_build *b, const nib_config *c, int64_t layer, int x, nib_qk_norm norm,
                         bool rope)
{
    const int64_t width = c->width, wide = c->heads * c->head_dim,
                  narrow = c->kv_heads * c->head_dim;
    int q = linear(b, x, NIB_ROLE_Q, layer, "self_attn.q_proj", wide, width, c->qkv_bias);
    int k = linear(b, x, NIB_ROLE_K, layer, "self_attn.k_proj", narrow, width, c->qkv_bias);
    int v = linear(b, x, NIB_ROLE_V, layer, "self_attn.v_proj", narrow, width, c->qkv_bias);
    q = norm_heads(b, c, q, layer, "self_attn.q_norm", c->heads, norm);
    k = norm_heads(b, c, k, layer, "self_attn.k_norm", c->kv_heads, norm);
    if (rope) {
        q = nib__emit_rope(b, q, c->heads);
        k = nib__emit_rope(b, k, c->kv_heads);
    }
    nib__emit_store(b, k, v);
    const int attended = nib__emit_attention(b, q, c->heads);
    return linear(b, attended, NIB_ROLE_O, layer, "self_attn.o_proj", width, wide, c->o_bias);
}

int nib__block_gated_mlp(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const int64_t width = c->width, ffn = c->ffn;
    const bool bias = c->mlp_bias;
    int gate = linear(b, x, NIB_ROLE_GATE, layer, "mlp.gate_proj", ffn, width, bias);
    int up = linear(b, x, NIB_ROLE_UP, layer, "mlp.up_proj", ffn, width, bias);
    int h = nib__emit_swiglu(b, gate, up);
    return linear(b, h, NIB_ROLE_DOWN, layer, "mlp.down_proj", width, ffn, bias);
}

int nib__block_head(nib_build *b, const nib_config *c, int x)
{
    x = nib__block_norm(b, c, -1, "model.norm", x);
    return linear(b, x, NIB_ROLE_HEAD, -1, "lm_head", c->vocab, c->width, false);
}
