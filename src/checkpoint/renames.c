/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF <-> Hugging Face names of known architectures. Looks up the part of the name before
 * ".weight" or ".bias", either all of it or what follows the layer number. Names of stacks of
 * experts become those that experts.c splits.
 */
#include "renames.h"

#include "text.h"

#include <stdio.h>

/* Traits of an architecture. Norms: BEFORE attention and the MLP, the same with the MLP's called
 * post_attention_norm (LATE), AFTER them, both (AROUND), or both under the names post_self_attn and
 * post_mlp (NAMED). MLP: GATED, PLAIN, or gate and up FUSED (fused.h). EXPERTS: also a mixture of
 * experts, with Mixtral's names (MIXTRAL), and the shared expert called shared_experts (SEVERAL).
 * LATENT: attention with projections to a smaller width. BESIDE: experts beside the MLP, and inputs
 * of each layer. LIQUID: LFM2's names, some of which stand for others elsewhere. SPARSE: those of
 * its mixtures. DELTA: gated DeltaNet. MAMBA: Mamba-2. ALONE: the MLP of all tokens, where no
 * experts are beside it. */
enum {
    BEFORE = 1 << 0,
    AFTER = 1 << 1,
    AROUND = 1 << 2,
    GATED = 1 << 3,
    PLAIN = 1 << 4,
    FUSED = 1 << 5,
    NAMED = 1 << 6,
    LATE = 1 << 7,
    EXPERTS = 1 << 8,
    MIXTRAL = 1 << 9,
    SEVERAL = 1 << 10,
    LATENT = 1 << 11,
    BESIDE = 1 << 12,
    LIQUID = 1 << 13,
    DELTA = 1 << 14,
    MAMBA = 1 << 15,
    ALONE = 1 << 16,
    SPARSE = 1 << 17,
    ANY = ~0
};

enum { EXPERT_NAME = 64 /* bytes of the longest row's name with a number */ };

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
    {"llama", BEFORE | GATED | MIXTRAL, true, 0}, /* also mistral, mixtral */
    {"qwen2", BEFORE | GATED, false, 0},
    {"qwen3", BEFORE | GATED, false, 0},
    {"smollm3", BEFORE | GATED, true, 0},
    {"olmo2", AFTER | GATED, false, 0},
    {"exaone4", AFTER | GATED, false, 0},
    {"granite", BEFORE | GATED | ALONE, true, 0},
    {"gemma", BEFORE | GATED, false, 1},
    {"gemma2", AROUND | GATED, false, 1},
    {"gemma3", AROUND | GATED, false, 1},
    {"gemma4", AROUND | GATED | BESIDE, false, 0},
    {"command-r", BEFORE | GATED, false, 0},
    {"cohere2", BEFORE | GATED, false, 0},
    {"starcoder2", BEFORE | PLAIN, false, 0},
    {"stablelm", BEFORE | GATED, false, 0},
    {"phi3", BEFORE | FUSED, false, 0},
    {"glm4", NAMED | FUSED, false, 0},
    {"qwen2moe", BEFORE | GATED | EXPERTS, false, 0},
    {"qwen3moe", BEFORE | GATED | EXPERTS, false, 0},
    {"granitemoe", BEFORE | GATED | EXPERTS, true, 0},
    {"granitehybrid", BEFORE | EXPERTS | MAMBA | ALONE, true, 0},
    {NIB_RENAME_DENSE_HYBRID, BEFORE | MAMBA | ALONE, true, 0}, /* to write one */
    {"gpt-oss", LATE | EXPERTS, false, 0},
    {"deepseek2", BEFORE | GATED | SEVERAL | LATENT, false, 0},
    {"glm4moe", LATE | GATED | SEVERAL, false, 0},
    {"llama4", BEFORE | GATED | EXPERTS, false, 0},
    {"lfm2", LIQUID, false, 0},
    {"lfm2moe", LIQUID | SPARSE, false, 0},
    {"qwen3next", LATE | EXPERTS | DELTA | GATED, false, 1},
    {"qwen35", LATE | GATED | DELTA, false, 1},
    {"qwen35moe", LATE | EXPERTS | DELTA, false, 1},
};

static const rename_row whole[] = {
    {"token_embd", "model.embed_tokens", ANY},
    {"output_norm", "model.norm", ANY},
    {"output", "lm_head", ANY},
    {"token_embd_norm", "model.embedding_norm", LIQUID},
    {"per_layer_token_embd", "model.embed_tokens_per_layer", BESIDE},
    {"per_layer_model_proj", "model.per_layer_model_projection", BESIDE},
    {"per_layer_proj_norm", "model.per_layer_projection_norm", BESIDE},
};

/* Reading and writing take the first row that applies. */
static const rename_row in_layer[] = {
    {"attn_output", "self_attn.out_proj", LIQUID},
    {"attn_q_norm", "self_attn.q_layernorm", LIQUID},
    {"attn_k_norm", "self_attn.k_layernorm", LIQUID},
    {"attn_norm", "operator_norm", LIQUID},
    {"ffn_norm", "ffn_norm", LIQUID},
    {"ffn_gate", "feed_forward.w1", LIQUID},
    {"ffn_up", "feed_forward.w3", LIQUID},
    {"ffn_down", "feed_forward.w2", LIQUID},
    {"shortconv.in_proj", "conv.in_proj", LIQUID},
    {"shortconv.conv", "conv.conv", LIQUID},
    {"shortconv.out_proj", "conv.out_proj", LIQUID},
    {"attn_qkv", "linear_attn.in_proj_qkv", DELTA},
    {"attn_gate", "linear_attn.in_proj_z", DELTA},
    {"ssm_beta", "linear_attn.in_proj_b", DELTA},
    {"ssm_alpha", "linear_attn.in_proj_a", DELTA},
    {"ssm_ba", "linear_attn.in_proj_ba", DELTA},
    {"ssm_conv1d", "linear_attn.conv1d", DELTA},
    {"ssm_norm", "linear_attn.norm", DELTA},
    {"ssm_out", "linear_attn.out_proj", DELTA},
    {"ssm_in", "mamba.in_proj", MAMBA},
    {"ssm_conv1d", "mamba.conv1d", MAMBA},
    {"ssm_norm", "mamba.norm", MAMBA},
    {"ssm_out", "mamba.out_proj", MAMBA},
    {"attn_q", "self_attn.q_proj", ANY},
    {"attn_k", "self_attn.k_proj", ANY},
    {"attn_v", "self_attn.v_proj", ANY},
    {"attn_output", "self_attn.o_proj", ANY},
    {"attn_q_norm", "self_attn.q_norm", ANY},
    {"attn_k_norm", "self_attn.k_norm", ANY},
    {"attn_qkv", "self_attn.qkv_proj", FUSED},
    {"ffn_up", "mlp.gate_up_proj", FUSED}, /* must precede mlp.up_proj */
    {"ffn_gate", "mlp.gate_proj", GATED | FUSED},
    {"ffn_up", "mlp.up_proj", GATED | FUSED},
    {"ffn_down", "mlp.down_proj", GATED | FUSED},
    {"ffn_up", "mlp.c_fc", PLAIN},
    {"ffn_down", "mlp.c_proj", PLAIN},
    {"attn_norm", "input_layernorm", BEFORE | LATE | AROUND | NAMED},
    {"ffn_norm", "post_attention_layernorm", BEFORE | NAMED},
    {"ffn_norm", "pre_feedforward_layernorm", AROUND},
    {"post_attention_norm", "post_attention_layernorm", LATE | AFTER | AROUND},
    {"post_ffw_norm", "post_feedforward_layernorm", AFTER | AROUND},
    {"post_attention_norm", "post_self_attn_layernorm", NAMED},
    {"post_ffw_norm", "post_mlp_layernorm", NAMED},
    {"ffn_gate_inp", "mlp.gate", EXPERTS | SEVERAL},
    {"ffn_gate_exps", "mlp.experts.gate_proj", EXPERTS | SEVERAL},
    {"ffn_up_exps", "mlp.experts.up_proj", EXPERTS | SEVERAL},
    {"ffn_down_exps", "mlp.experts.down_proj", EXPERTS | SEVERAL},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj", EXPERTS | SEVERAL},
    {"ffn_gate_inp", "block_sparse_moe.gate", MIXTRAL},
    {"ffn_gate_exps", "block_sparse_moe.experts.w1", MIXTRAL},
    {"ffn_up_exps", "block_sparse_moe.experts.w3", MIXTRAL},
    {"ffn_down_exps", "block_sparse_moe.experts.w2", MIXTRAL},
    {"ffn_gate_up_exps", "block_sparse_moe.experts.gate_up_proj", MIXTRAL},
    {"ffn_gate_inp", "feed_forward.gate", SPARSE},
    {"ffn_gate_exps", "feed_forward.experts.w1", SPARSE},
    {"ffn_up_exps", "feed_forward.experts.w3", SPARSE},
    {"ffn_down_exps", "feed_forward.experts.w2", SPARSE},
    {"ffn_gate_inp", "router.proj", BESIDE},
    {"ffn_gate_exps", "experts.gate_proj", BESIDE},
    {"ffn_up_exps", "experts.up_proj", BESIDE},
    {"ffn_down_exps", "experts.down_proj", BESIDE},
    {"ffn_gate_up_exps", "experts.gate_up_proj", BESIDE},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2", BESIDE},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1", BESIDE},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2", BESIDE},
    {"inp_gate", "per_layer_input_gate", BESIDE},
    {"proj", "per_layer_projection", BESIDE},
    {"post_norm", "post_per_layer_input_norm", BESIDE},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", EXPERTS},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj", EXPERTS},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj", EXPERTS},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj", EXPERTS},
    {"ffn_gate", "mlp.shared_expert.gate_proj", ALONE},
    {"ffn_up", "mlp.shared_expert.up_proj", ALONE},
    {"ffn_down", "mlp.shared_expert.down_proj", ALONE},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", SEVERAL},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj", SEVERAL},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj", SEVERAL},
    /* of layers that predict further tokens */
    {"nextn.eh_proj", "eh_proj", SEVERAL | DELTA},
    {"nextn.embed_tokens", "embed_tokens", SEVERAL | DELTA},
    {"nextn.enorm", "enorm", SEVERAL | DELTA},
    {"nextn.hnorm", "hnorm", SEVERAL | DELTA},
    {"nextn.shared_head_head", "shared_head.head", SEVERAL | DELTA},
    {"nextn.shared_head_norm", "shared_head.norm", SEVERAL | DELTA},
    {"attn_q_a", "self_attn.q_a_proj", LATENT},
    {"attn_q_a_norm", "self_attn.q_a_layernorm", LATENT},
    {"attn_q_b", "self_attn.q_b_proj", LATENT},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", LATENT},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm", LATENT},
    {"attn_kv_b", "self_attn.kv_b_proj", LATENT},
    {"attn_k_b", "self_attn.k_b_proj", LATENT},
    {"attn_v_b", "self_attn.v_b_proj", LATENT},
};

/* Names that end otherwise than in the same suffix. */
static const rename_row whole_in_layer[] = {
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", EXPERTS | SEVERAL},
    {"exp_probs_b.bias", "feed_forward.expert_bias", SPARSE},
    {"attn_sinks.weight", "self_attn.sinks", EXPERTS},
    {"ffn_gate_inp.scale", "router.scale", BESIDE},
    {"ffn_down_exps.scale", "router.per_expert_scale", BESIDE},
    {"layer_output_scale.weight", "layer_scalar", BESIDE},
    {"ssm_a", "linear_attn.A_log", DELTA}, /* its value is -e^A_log */
    {"ssm_dt.bias", "linear_attn.dt_bias", DELTA},
    {"ssm_a", "mamba.A_log", MAMBA}, /* likewise */
    {"ssm_d", "mamba.D", MAMBA},
    {"ssm_dt.bias", "mamba.dt_bias", MAMBA},
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

bool nib__rename_is_offset(const char *name)
{
    static const char *const ends[] = {"norm.weight", ".pre_fc_norm_embedding.weight",
                                       ".pre_fc_norm_hidden.weight"};
    bool found = false;
    for (size_t i = 0; i < COUNT(ends); i++)
        found = found || nib__ends_with(name, ends[i]);
    return found && !nib__ends_with(name, ".linear_attn.norm.weight");
}

nib_rename_form nib__rename_form(const char *name)
{
    static const struct {
        const char *end;
        nib_rename_form form;
    } forms[] = {{".conv.conv.weight", NIB_RENAME_TAPS},
                 {".linear_attn.conv1d.weight", NIB_RENAME_TAPS},
                 {".mamba.conv1d.weight", NIB_RENAME_TAPS},
                 {".mamba.A_log", NIB_RENAME_COLUMN},
                 {".mamba.D", NIB_RENAME_COLUMN},
                 {".mamba.norm.weight", NIB_RENAME_GROUPS},
                 {".shared_expert_gate.weight", NIB_RENAME_ROW}};
    for (size_t i = 0; i < COUNT(forms); i++)
        if (nib__ends_with(name, forms[i].end))
            return forms[i].form;
    return NIB_RENAME_SAME;
}

bool nib__rename_is_rates(const char *name) { return nib__ends_with(name, ".A_log"); }

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

/* The name after "blk.3." or "model.layers.3.", and the digits of its number; NULL: it begins so
 * but goes on otherwise. digits 0: it does not begin so, and all of it is returned. */
static const char *skip_layer(const char *name, const char *layers, size_t *digits)
{
    const size_t start = strlen(layers);
    *digits = 0;
    if (strncmp(name, layers, start) != 0)
        return name;
    *digits = count_digits(name + start);
    return *digits > 0 && name[start + *digits] == '.' ? name + start + *digits + 1 : NULL;
}

/* The part of a name without the number of an expert, which is after "experts." here, and at the
 * end in GGUF for its share of a stack. Returns the digits of the number; 0: there is none. */
static size_t take_expert(char out[NIB_RENAME_MAX], const char **number, const char *part,
                          size_t size, bool from_gguf)
{
    const char *mark = from_gguf ? "_exps." : "experts.", *found = strstr(part, mark);
    if (found == NULL || (!from_gguf && found > part && found[-1] != '.') || size >= NIB_RENAME_MAX)
        return 0;
    *number = found + strlen(mark);
    const size_t before = (size_t)(*number - part), digits = count_digits(*number),
                 past = before + digits;
    if (digits == 0 || (from_gguf ? past != size : past + 1 >= size || part[past] != '.'))
        return 0;
    if (from_gguf)
        snprintf(out, NIB_RENAME_MAX, "%.*s", (int)(before - 1), part);
    else
        snprintf(out, NIB_RENAME_MAX, "%.*s%.*s", (int)before, part, (int)(size - past - 1),
                 part + past + 1);
    return digits;
}

/* The part of a name without the number of a head, which is at the end in both. Returns the digits
 * of the number; 0: there is none. */
static size_t take_head(char out[NIB_RENAME_MAX], const char **number, const char *part,
                        size_t size, bool from_gguf)
{
    size_t digits = 0;
    while (digits < size && part[size - digits - 1] >= '0' && part[size - digits - 1] <= '9')
        digits++;
    if (digits == 0 || digits == size || part[size - digits - 1] != '.' || size >= NIB_RENAME_MAX)
        return 0;
    snprintf(out, NIB_RENAME_MAX, "%.*s", (int)(size - digits - 1), part);
    *number = part + size - digits;
    return nib__ends_with(out, from_gguf ? "_b" : "_b_proj") ? count_digits(*number) : 0;
}

/* Puts the number of an expert back into a name of the table. False: it is not that of a stack. */
static bool put_expert(char out[EXPERT_NAME], const char *renamed, const char *number,
                       size_t digits, bool from_gguf)
{
    const char *mark = from_gguf ? "experts." : "_exps", *found = strstr(renamed, mark);
    if (found == NULL)
        return false;
    const size_t before = (size_t)(found - renamed) + strlen(mark);
    snprintf(out, EXPERT_NAME, "%.*s%s%.*s%s%s", (int)before, renamed, from_gguf ? "" : ".",
             (int)digits, number, from_gguf ? "." : "", renamed + before);
    return true;
}

static bool rename_any(char out[NIB_RENAME_MAX], const char *arch_name, const char *name,
                       bool from_gguf)
{
    const arch_row *arch = find_arch(arch_name);
    const char *from = from_gguf ? gguf_layers : our_layers,
               *to = from_gguf ? our_layers : gguf_layers;
    char stack[NIB_RENAME_MAX], expert[EXPERT_NAME];
    size_t digits, expert_digits = 0, head_digits = 0;
    const char *part = skip_layer(name, from, &digits), *number = NULL;
    if (arch == NULL || part == NULL)
        return false;
    const char *end = part + strlen(part);
    const rename_row *row = digits > 0 ? find_row(whole_in_layer, COUNT(whole_in_layer), arch, part,
                                                  strlen(part), from_gguf)
                                       : NULL;
    if (row == NULL) {
        end = strrchr(part, '.');
        if (end == NULL || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0))
            return false;
        const size_t size = (size_t)(end - part);
        expert_digits = digits > 0 ? take_expert(stack, &number, part, size, from_gguf) : 0;
        if (digits > 0 && expert_digits == 0)
            head_digits = take_head(stack, &number, part, size, from_gguf);
        row = expert_digits + head_digits > 0
                  ? find_row(in_layer, COUNT(in_layer), arch, stack, strlen(stack), from_gguf)
              : digits > 0 ? find_row(in_layer, COUNT(in_layer), arch, part, size, from_gguf)
                           : find_row(whole, COUNT(whole), arch, part, size, from_gguf);
    }
    if (row == NULL)
        return false;
    const char *renamed = from_gguf ? row->ours : row->gguf;
    if (expert_digits > 0 && !put_expert(expert, renamed, number, expert_digits, from_gguf))
        return false;
    if (head_digits > 0)
        snprintf(expert, sizeof expert, "%s.%.*s", renamed, (int)head_digits, number);
    renamed = expert_digits + head_digits > 0 ? expert : renamed;
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
