/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF <-> Hugging Face names of the architectures llama (mistral, too), qwen2 and qwen3. The part
 * before ".weight" or ".bias" is looked up, whole or behind the number of its layer.
 */
#include "renames.h"

#include <stdio.h>

typedef struct rename_row {
    const char *gguf, *ours;
} rename_row;

static const rename_row whole[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static const rename_row in_layer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

static const char gguf_layers[] = "blk.", our_layers[] = "model.layers.";

bool nib__rename_knows(const char *arch)
{
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(known[i], arch) == 0)
            return true;
    return false;
}

static bool is_part(const char *name, size_t size, const char *part)
{
    return strlen(part) == size && memcmp(name, part, size) == 0;
}

/* Digits of a layer's number at name, without leading zeros; 0: none. */
static size_t digits_of(const char *name)
{
    size_t size = 0;
    while (name[size] >= '0' && name[size] <= '9')
        size++;
    return size > 9 || (size > 1 && name[0] == '0') ? 0 : size;
}

/* The row whose `gguf` (or ours) is the first `size` bytes of name. */
static const rename_row *find(const rename_row *rows, size_t count, const char *name, size_t size,
                              bool from_gguf)
{
    for (size_t i = 0; i < count; i++)
        if (is_part(name, size, from_gguf ? rows[i].gguf : rows[i].ours))
            return &rows[i];
    return NULL;
}

static bool rename_any(char out[NIB_RENAME_MAX], const char *name, bool from_gguf)
{
    const char *from = from_gguf ? gguf_layers : our_layers,
               *to = from_gguf ? our_layers : gguf_layers, *end = strrchr(name, '.');
    size_t digits = 0;
    if (end == NULL || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0))
        return false;
    const char *part = name;
    if (strncmp(name, from, strlen(from)) == 0) {
        digits = digits_of(name + strlen(from));
        part = name + strlen(from) + digits + 1;
        if (digits == 0 || part[-1] != '.' || part > end)
            return false;
    }
    const rename_row *row =
        digits > 0 ? find(in_layer, COUNT(in_layer), part, (size_t)(end - part), from_gguf)
                   : find(whole, COUNT(whole), part, (size_t)(end - part), from_gguf);
    if (row == NULL)
        return false;
    const char *said = from_gguf ? row->ours : row->gguf;
    if (digits > 0)
        snprintf(out, NIB_RENAME_MAX, "%s%.*s.%s%s", to, (int)digits, name + strlen(from), said,
                 end);
    else
        snprintf(out, NIB_RENAME_MAX, "%s%s", said, end);
    return true;
}

bool nib__rename_from_gguf(char out[NIB_RENAME_MAX], const char *name)
{
    return rename_any(out, name, true);
}

bool nib__rename_to_gguf(char out[NIB_RENAME_MAX], const char *name)
{
    return rename_any(out, name, false);
}
