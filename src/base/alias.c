/* SPDX-License-Identifier: Apache-2.0
 *
 * Translates module names between the two spellings. A name is a stem, or "layers.N." and a part.
 */
#include "alias.h"

typedef struct pair {
    const char *ours, *meta;
} pair;

static const pair stems[] = {
    {"lm_head", "output"},
    {"model.embed_tokens", "tok_embeddings"},
    {"model.norm", "norm"},
};

static const pair parts[] = {
    {"self_attn.q_proj", "attention.wq"},     {"self_attn.k_proj", "attention.wk"},
    {"self_attn.v_proj", "attention.wv"},     {"self_attn.o_proj", "attention.wo"},
    {"self_attn.q_norm", "attention.q_norm"}, {"self_attn.k_norm", "attention.k_norm"},
    {"mlp.gate_proj", "feed_forward.w1"},     {"mlp.down_proj", "feed_forward.w2"},
    {"mlp.up_proj", "feed_forward.w3"},       {"input_layernorm", "attention_norm"},
    {"post_attention_layernorm", "ffn_norm"},
};

/* The rest of name after word, if word ends at the end of a component; else NULL. */
static const char *after(const char *name, const char *word)
{
    const size_t size = strlen(word);
    if (strncmp(name, word, size) != 0 || (name[size] != 0 && name[size] != '.'))
        return NULL;
    return name + size;
}

/* Writes a + b + c + d; false if it does not fit. */
static bool join(char *out, size_t size, const char *a, const char *b, size_t b_size, const char *c,
                 const char *d)
{
    const size_t a_size = strlen(a), c_size = strlen(c), d_size = strlen(d);
    if (a_size + b_size + c_size + d_size + 1 > size)
        return false;
    memcpy(out, a, a_size);
    memcpy(out + a_size, b, b_size);
    memcpy(out + a_size + b_size, c, c_size);
    memcpy(out + a_size + b_size + c_size, d, d_size + 1);
    return true;
}

static bool translate(char *out, size_t size, const char *name, bool to_meta)
{
    for (size_t i = 0; i < COUNT(stems); i++) {
        const char *rest = after(name, to_meta ? stems[i].ours : stems[i].meta);
        if (rest != NULL)
            return join(out, size, to_meta ? stems[i].meta : stems[i].ours, "", 0, "", rest);
    }
    const char *from = to_meta ? "model.layers." : "layers.",
               *to = to_meta ? "layers." : "model.layers.";
    if (strncmp(name, from, strlen(from)) != 0)
        return false;
    const char *number = name + strlen(from), *part = number;
    while (*part >= '0' && *part <= '9')
        part++;
    if (part == number || *part != '.')
        return false;
    part++;
    for (size_t i = 0; i < COUNT(parts); i++) {
        const char *rest = after(part, to_meta ? parts[i].ours : parts[i].meta);
        if (rest != NULL)
            return join(out, size, to, number, (size_t)(part - number),
                        to_meta ? parts[i].meta : parts[i].ours, rest);
    }
    return false;
}

bool nib__alias_to_meta(char *out, size_t size, const char *name)
{
    return translate(out, size, name, true);
}

bool nib__alias_from_meta(char *out, size_t size, const char *name)
{
    return translate(out, size, name, false);
}
