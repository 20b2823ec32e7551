/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF <-> Hugging Face names of known architectures. Looks up the part of the name before
 * ".weight" or ".bias", either all of it or what follows the layer number.
 */
#include "renames.h"

#include <stdio.h>

/* Traits of an architecture. Norms: BEFORE attention and the MLP, AFTER them, both (AROUND), or
 * both under the names post_self_attn and post_mlp (NAMED). MLP: GATED, PLAIN, or gate and up FUSED
 * (fused.h). */
enum { BEFORE = 1, AFTER = 2, AROUND = 4, GATED = 8, PLAIN = 16, FUSED = 32, NAMED = 64, ANY = ~0 };

typedef struct rename_row {
    const char *gguf, *ours;
    int of; /* applies to architectures with any of these traits */
} rename_row;

typedef struct arch_row {
    const char *name;
    int has;
    bool pairs;         /* rows of q and k are stored in pairs */
    double norm_offset; /* see nib__rename_norm_offset */
} arch_row;

static const arch_row archs[] = {
    {"llama", BEFORE | GATED, true, 0}, /* also mistral */
    {"qwen2", BEFORE | GATED, false, 0},    {"qwen3", BEFORE | GATED, false, 0},
    {"smollm3", BEFORE | GATED, true, 0},   {"olmo2", AFTER | GATED, false, 0},
    {"exaone4", AFTER | GATED, false, 0},   {"granite", BEFORE | GATED, true, 0},
    {"gemma", BEFORE | GATED, false, 1},    {"gemma2", AROUND | GATED, false, 1},
    {"gemma3", AROUND | GATED, false, 1},   {"command-r", BEFORE | GATED, false, 0},
    {"cohere2", BEFORE | GATED, false, 0},  {"starcoder2", BEFORE | PLAIN, false, 0},
    {"stablelm", BEFORE | GATED, false, 0}, {"phi3", BEFORE | FUSED, false, 0},
    {"glm4", NAMED | FUSED, false, 0},
};

static const rename_row whole[] = {
    {"token_embd", "model.embed_tokens", ANY},
    {"output_norm", "model.norm", ANY},
    {"output", "lm_head", ANY},
};

static const rename_row in_layer[] = {
    {"attn_q", "self_attn.q_proj", ANY},
    {"attn_k", "self_attn.k_proj", ANY},
    {"attn_v", "self_attn.v_proj", ANY},
    {"attn_output", "self_attn.o_proj", ANY},
    {"attn_q_norm", "self_attn.q_norm", ANY},
    {"attn_k_norm", "self_attn.k_norm", ANY},
    {"attn_qkv", "self_attn.qkv_proj", FUSED},
    {"ffn_up", "mlp.gate_up_proj",
     FUSED}, /* must precede mlp.up_proj: reading picks the first row */
    {"ffn_gate", "mlp.gate_proj", GATED | FUSED},
    {"ffn_up", "mlp.up_proj", GATED | FUSED},
    {"ffn_down", "mlp.down_proj", GATED | FUSED},
    {"ffn_up", "mlp.c_fc", PLAIN},
    {"ffn_down", "mlp.c_proj", PLAIN},
    {"attn_norm", "input_layernorm", BEFORE | AROUND | NAMED},
    {"ffn_norm", "post_attention_layernorm", BEFORE | NAMED},
    {"ffn_norm", "pre_feedforward_layernorm", AROUND},
    {"post_attention_norm", "post_attention_layernorm", AFTER | AROUND},
    {"post_ffw_norm", "post_feedforward_layernorm", AFTER | AROUND},
    {"post_attention_norm", "post_self_attn_layernorm", NAMED},
    {"post_ffw_norm", "post_mlp_layernorm", NAMED},
};

static const char gguf_layers[] = "blk.", our_layers[] = "model.layers.";

static const arch_row *find_arch(const char *name)
{
    for (size_t i = 0; name != NULL && i < COUNT(archs); i++)
        if (strcmp(archs[i].name, name) == 0)
            return &archs[i];
    return NULL;
}

bool nib__rename_knows(const char *arch) { return find_arch(arch) != NULL; }

bool nib__rename_pairs(const char *arch)
{
    const arch_row *row = find_arch(arch);
    return row != NULL && row->pairs;
}

double nib__rename_norm_offset(const char *arch)
{
    const arch_row *row = find_arch(arch);
    return row != NULL ? row->norm_offset : 0;
}

static bool equals(const char *name, size_t size, const char *part)
{
    return strlen(part) == size && memcmp(name, part, size) == 0;
}

/* Number of digits of the layer number at name; 0: none, or it has leading zeros. */
static size_t count_digits(const char *name)
{
    size_t size = 0;
    while (name[size] >= '0' && name[size] <= '9')
        size++;
    return size > 9 || (size > 1 && name[0] == '0') ? 0 : size;
}

/* The architecture's row whose `gguf` (or `ours`) equals the first `size` bytes of name. */
static const rename_row *find_row(const rename_row *rows, size_t count, const arch_row *arch,
                                  const char *name, size_t size, bool from_gguf)
{
    for (size_t i = 0; i < count; i++)
        if ((rows[i].of & arch->has) != 0 &&
            equals(name, size, from_gguf ? rows[i].gguf : rows[i].ours))
            return &rows[i];
    return NULL;
}

static bool rename_any(char out[NIB_RENAME_MAX], const char *arch_name, const char *name,
                       bool from_gguf)
{
    const arch_row *arch = find_arch(arch_name);
    const char *from = from_gguf ? gguf_layers : our_layers,
               *to = from_gguf ? our_layers : gguf_layers, *end = strrchr(name, '.');
    size_t digits = 0;
    if (arch == NULL || end == NULL || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0))
        return false;
    const char *part = name;
    if (strncmp(name, from, strlen(from)) == 0) {
        digits = count_digits(name + strlen(from));
        part = name + strlen(from) + digits + 1;
        if (digits == 0 || part[-1] != '.' || part > end)
            return false;
    }
    const rename_row *row =
        digits > 0
            ? find_row(in_layer, COUNT(in_layer), arch, part, (size_t)(end - part), from_gguf)
            : find_row(whole, COUNT(whole), arch, part, (size_t)(end - part), from_gguf);
    if (row == NULL)
        return false;
    const char *renamed = from_gguf ? row->ours : row->gguf;
    if (digits > 0)
        snprintf(out, NIB_RENAME_MAX, "%s%.*s.%s%s", to, (int)digits, name + strlen(from), renamed,
                 end);
    else
        snprintf(out, NIB_RENAME_MAX, "%s%s", renamed, end);
    return true;
}

bool nib__rename_from_gguf(char out[NIB_RENAME_MAX], const char *arch, const char *name)
{
    return rename_any(out, arch, name, true);
}

bool nib__rename_to_gguf(char out[NIB_RENAME_MAX], const char *arch, const char *name)
{
    return rename_any(out, arch, name, false);
}
