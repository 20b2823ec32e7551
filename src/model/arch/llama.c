/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama, and families that differ from it in their config and weights alone: Mistral without a
 * window, Qwen2 (biases of q, k and v), Qwen3 (norms of the heads of q and k).
 */
#include "arch.h"

void nib__arch_llama(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int norm = nib__build_norm(b, layer, "input_layernorm", c->width);
        int y = nib__block_attention(b, c, layer, nib__emit_norm(b, x, norm, 1));
        x = nib__emit_add(b, x, y);
        norm = nib__build_norm(b, layer, "post_attention_layernorm", c->width);
        y = nib__block_gated_mlp(b, c, layer, nib__emit_norm(b, x, norm, 1));
        x = nib__emit_add(b, x, y);
    }
    nib__block_head(b, c, x);
}
