/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes key/values in the order of llama.cpp's converter, so that dumps compare.
 */
#include "gguf_describe.h"

#include "arch.h"
#include "config_gguf.h"
#include "config_gguf_states.h"
#include "config_keys.h"
#include "config_rope.h"
#include "file.h"

#include <stdio.h>

#define KEY(name) "tokenizer.ggml." name

/* ---- the model ---- */

int nib__gguf_file_type(nib_type type)
{
    static const struct {
        nib_type type;
        int number;
    } numbers[] = {{NIB_TYPE_F32, 0},    {NIB_TYPE_F16, 1},     {NIB_TYPE_Q4_0, 2},
                   {NIB_TYPE_Q4_1, 3},   {NIB_TYPE_Q8_0, 7},    {NIB_TYPE_BF16, 32},
                   {NIB_TYPE_MXFP4, 38}, {NIB_TYPE_Q4_K, 14},   {NIB_TYPE_Q5_K, 16},
                   {NIB_TYPE_Q6_K, 18},  {NIB_TYPE_IQ4_NL, 25}, {NIB_TYPE_Q2_K, 10},
                   {NIB_TYPE_Q3_K, 12}};
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (numbers[i].type == type)
            return numbers[i].number;
    return -1;
}

/* Layers without a window may have heads of their own: then the usual keys are theirs. Layers that
 * keep a state have no heads of keys and values. */
static void put_sizes(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    const bool latent = c->latent.rank > 0, widths = c->wide_mlp && c->shared_layers > 0,
               lists_heads = c->global_kv_heads > 0 ||
                             (c->conv_layers != NULL && nib__family_of(c)->full_interval == 0);
    const int64_t widest = c->global_head_dim > 0 ? c->global_head_dim : c->head_dim,
                  windowed = c->global_head_dim > 0 ? c->head_dim : 0,
                  ffn = nib__family_of(c)->mamba && c->moe.experts > 0 ? c->moe.ffn : c->ffn;
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {
        {"block_count", c->layers + c->moe.unread_layers},
        {"context_length", c->context},
        {"embedding_length", c->width},
        {"feed_forward_length", widths ? 0 : ffn},
        {"attention.head_count", c->heads},
        {"attention.head_count_kv", latent        ? 1
                                    : lists_heads ? 0
                                                  : c->kv_heads},
        {"attention.key_length", latent ? nib__config_latent_key(c) : widest},
        {"attention.value_length", latent ? c->latent.rank : widest},
        {"attention.key_length_swa", windowed},
        {"attention.value_length_swa", windowed},
        {"rope.dimension_count", nib__config_rope_dims(c)},
        {"rope.dimension_count_swa", windowed},
        {"vocab_size", c->vocab},
    };
    char key[80];
    if (lists_heads) {
        snprintf(key, sizeof key, "%s.attention.head_count_kv", arch);
        nib__gguf_put_array(head, key, NIB_GGUF_I32, (uint64_t)c->layers);
        for (int64_t i = 0; i < c->layers; i++)
            nib__gguf_item_int(head, NIB_GGUF_I32,
                               nib__config_has_conv(c, i) ? 0 : nib__config_kv_heads(c, i));
    }
    if (widths) {
        snprintf(key, sizeof key, "%s.feed_forward_length", arch);
        nib__gguf_put_array(head, key, NIB_GGUF_I32, (uint64_t)c->layers);
        for (int64_t i = 0; i < c->layers; i++)
            nib__gguf_item_int(head, NIB_GGUF_I32, nib__config_ffn(c, i));
    }
    for (size_t i = 0; i < COUNT(sizes); i++) {
        if (sizes[i].value == 0) /* written by layer, or not a key of this model */
            continue;
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].name);
        nib__gguf_put_int(head, key, NIB_GGUF_U32, sizes[i].value);
    }
}

/* What llama.cpp reads of latent attention and its mixtures besides the keys of the family. */
static void put_latent(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    enum { SOFTMAX = 1, SIGMOID };
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"attention.key_length_mla", c->head_dim},
                   {"attention.value_length_mla", c->latent.value},
                   {"expert_group_count", c->moe.groups},
                   {"expert_group_used_count", c->moe.top_groups},
                   {"expert_gating_func", c->moe.sigmoid ? SIGMOID : SOFTMAX}};
    char key[80];
    for (size_t i = 0; c->latent.rank > 0 && i < COUNT(numbers); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].name);
        nib__gguf_put_int(head, key, NIB_GGUF_U32, numbers[i].value);
    }
    if (c->latent.rank == 0)
        return;
    snprintf(key, sizeof key, "%s.expert_weights_norm", arch);
    nib__gguf_put_bool(head, key, c->moe.normalize);
}

static void put_numbers(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    char key[80];
    const nib_family_key *keys = nib__family_of(c)->keys;
    snprintf(key, sizeof key, "%s.attention.layer_norm_%sepsilon", arch,
             nib__family_of(c)->norm.centered ? "" : "rms_");
    nib__gguf_put_double(head, key, NIB_GGUF_F32, c->norm_eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    nib__gguf_put_double(head, key, NIB_GGUF_F32, c->rope_theta);
    for (size_t i = 0; keys != NULL && keys[i].key != NULL; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, keys[i].gguf != NULL ? keys[i].gguf : "");
        if (keys[i].none && nib__keys_value(c, &keys[i]) == 0)
            continue;
        if (keys[i].gguf != NULL && (keys[i].is == NIB_OWN_FLAG || keys[i].is == NIB_OWN_WORD))
            nib__gguf_put_bool(head, key, nib__keys_value(c, &keys[i]) != 0);
        else if (keys[i].gguf != NULL && keys[i].is == NIB_OWN_COUNT)
            nib__gguf_put_int(head, key, NIB_GGUF_U32, (int64_t)nib__keys_value(c, &keys[i]));
        else if (keys[i].gguf != NULL)
            nib__gguf_put_double(head, key, NIB_GGUF_F32, nib__keys_value(c, &keys[i]));
        if (keys[i].is == NIB_OWN_FLAG && keys[i].at == offsetof(nib_config, parallel)) {
            snprintf(key, sizeof key, "%s.use_parallel_residual", arch);
            nib__gguf_put_bool(head, key, c->parallel);
        }
    }
}

/* What the family implies, and llama.cpp reads. */
static void put_experts(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    char key[80];
    const int gating = nib__family_of(c)->gguf_gating;
    snprintf(key, sizeof key, "%s.expert_gating_func", arch);
    if (gating != 0)
        nib__gguf_put_int(head, key, NIB_GGUF_U32, gating);
    snprintf(key, sizeof key, "%s.nextn_predict_layers", arch);
    if (c->moe.unread_layers > 0)
        nib__gguf_put_int(head, key, NIB_GGUF_U32, c->moe.unread_layers);
    snprintf(key, sizeof key, "%s.expert_feed_forward_length", arch);
    if (c->moe.experts > 0 && !nib__gguf_has_key(c, offsetof(nib_config, moe.ffn)))
        nib__gguf_put_int(head, key, NIB_GGUF_U32, c->moe.ffn);
}

/* Sizes of recurrences that the family's keys do not cover. Families with Mamba-2 also get the
 * width of the MLP that every token passes through. */
static void put_states(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    char key[80];
    if (c->matrix.heads == 0)
        return;
    snprintf(key, sizeof key, "%s.ssm.inner_size", arch);
    nib__gguf_put_int(head, key, NIB_GGUF_U32, c->matrix.heads * c->matrix.value_dim);
    snprintf(key, sizeof key, "%s.expert_shared_feed_forward_length", arch);
    if (nib__family_of(c)->mamba)
        nib__gguf_put_int(head, key, NIB_GGUF_U32, c->ffn);
    snprintf(key, sizeof key, "%s.full_attention_interval", arch);
    if (nib__family_of(c)->full_interval > 0)
        nib__gguf_put_int(head, key, NIB_GGUF_U32, nib__gguf_full_interval(c));
}

/* Sections of RoPE, which llama.cpp requires of families that may have them: if config.json gives
 * none, the numbers that it takes then. */
static void put_sections(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    static const int64_t usual[NIB_ROPE_SECTIONS] = {11, 11, 10, 0};
    char key[80];
    const int64_t *sections = nib__config_has_sections(c) ? c->rope_sections : usual;
    if (!nib__family_of(c)->mrope)
        return;
    snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
    nib__gguf_put_array(head, key, NIB_GGUF_I32, NIB_ROPE_SECTIONS);
    for (int i = 0; i < NIB_ROPE_SECTIONS; i++)
        nib__gguf_item_int(head, NIB_GGUF_I32, sections[i]);
}

/* Factors of llama3 and longrope are tensors, not keys. */
static void put_rope(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    const bool yarn = c->rope == NIB_ROPE_YARN, longrope = c->rope == NIB_ROPE_LONGROPE,
               latent = c->latent.rank > 0;
    const double paper = yarn ? nib__rope_yarn_gain(c->rope_factor, 1) : 1;
    const struct {
        const char *name;
        bool is_written;
        double value;
    } numbers[] = {{"factor", yarn || c->rope == NIB_ROPE_LINEAR, c->rope_factor},
                   {"attn_factor", (yarn && !latent) || longrope, c->rope_gain / paper},
                   {"yarn_log_multiplier", yarn && latent, 0.1 * c->latent.mscale},
                   {"yarn_beta_fast", yarn, c->rope_fast},
                   {"yarn_beta_slow", yarn, c->rope_slow}};
    char key[80];
    if (yarn || c->rope == NIB_ROPE_LINEAR) {
        const char *type = nib__rope_name(c->rope);
        snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
        nib__gguf_put_string(head, key, type, strlen(type));
    }
    if (yarn || longrope) {
        snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
        nib__gguf_put_int(head, key, NIB_GGUF_U32, c->rope_original);
    }
    for (size_t i = 0; i < COUNT(numbers); i++) {
        snprintf(key, sizeof key, "%s.rope.scaling.%s", arch, numbers[i].name);
        if (numbers[i].is_written)
            nib__gguf_put_double(head, key, NIB_GGUF_F32, numbers[i].value);
    }
}

/* Writes windows if the family's readers know them. */
static void put_windows(nib_gguf_head *head, const nib_config *c, const char *arch)
{
    char key[80];
    const bool pattern = nib__family_of(c)->window == NIB_WINDOW_PATTERN && c->window > 0;
    if (!pattern && !nib__family_of(c)->gguf_window && !nib__gguf_lacks_chunks(c))
        return;
    snprintf(key, sizeof key, "%s.attention.sliding_window", arch);
    nib__gguf_put_int(head, key, NIB_GGUF_U32, c->window);
    if (!pattern)
        return;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
    nib__gguf_put_array(head, key, NIB_GGUF_BOOL, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        nib__gguf_item_int(head, NIB_GGUF_BOOL, nib__config_window(c, i) > 0);
}

void nib__gguf_describe_config(nib_gguf_head *head, const nib_config *c, const char *name,
                               int file_type)
{
    enum { BLOCKS_VERSION = 2 };
    const char *arch = nib__family_of(c)->gguf;
    nib__gguf_put_string(head, "general.architecture", arch, strlen(arch));
    nib__gguf_put_string(head, "general.type", "model", 5);
    nib__gguf_put_string(head, "general.name", name, strlen(name));
    put_sizes(head, c, arch);
    put_numbers(head, c, arch);
    put_experts(head, c, arch);
    put_states(head, c, arch);
    put_latent(head, c, arch);
    put_rope(head, c, arch);
    put_sections(head, c, arch);
    put_windows(head, c, arch);
    if (file_type >= 0)
        nib__gguf_put_int(head, "general.file_type", NIB_GGUF_U32, file_type);
    nib__gguf_put_int(head, "general.quantization_version", NIB_GGUF_U32, BLOCKS_VERSION);
}

/* ---- the tokenizer ---- */

static void put_text(nib_gguf_head *head, const char *key, const nib_vocab_text *text)
{
    if (text->at != NULL)
        nib__gguf_put_string(head, key, text->at, text->size);
}

static void put_texts(nib_gguf_head *head, const char *key, const nib_vocab_text *texts,
                      size_t count)
{
    if (texts == NULL)
        return;
    nib__gguf_put_array(head, key, NIB_GGUF_STRING, count);
    for (size_t i = 0; i < count; i++)
        nib__gguf_item_string(head, texts[i].at, texts[i].size);
}

static void put_id(nib_gguf_head *head, const char *key, int64_t id)
{
    if (id >= 0)
        nib__gguf_put_int(head, key, NIB_GGUF_U32, id);
}

static void put_flag(nib_gguf_head *head, const char *key, nib_vocab_flag flag)
{
    if (flag != NIB_VOCAB_FLAG_UNSET)
        nib__gguf_put_bool(head, key, flag == NIB_VOCAB_FLAG_TRUE);
}

void nib__gguf_describe_vocab(nib_gguf_head *head, const nib_vocab_source *s)
{
    put_text(head, KEY("model"), &s->model);
    put_text(head, KEY("pre"), &s->pre);
    put_texts(head, KEY("tokens"), s->tokens, s->token_count);
    if (s->scores != NULL) {
        nib__gguf_put_array(head, KEY("scores"), NIB_GGUF_F32, s->score_count);
        for (size_t i = 0; i < s->score_count; i++)
            nib__gguf_item_double(head, NIB_GGUF_F32, (double)s->scores[i]);
    }
    if (s->types != NULL) {
        nib__gguf_put_array(head, KEY("token_type"), NIB_GGUF_I32, s->type_count);
        for (size_t i = 0; i < s->type_count; i++)
            nib__gguf_item_int(head, NIB_GGUF_I32, s->types[i]);
    }
    put_texts(head, KEY("merges"), s->merges, s->merge_count);
    put_id(head, KEY("bos_token_id"), s->bos);
    put_id(head, KEY("eos_token_id"), s->eos);
    put_id(head, KEY("unknown_token_id"), s->unk);
    put_flag(head, KEY("add_bos_token"), s->add_bos);
    put_flag(head, KEY("add_eos_token"), s->add_eos);
    put_flag(head, KEY("add_space_prefix"), s->add_space_prefix);
}

nib_status nib__gguf_describe_tokenizer(nib_gguf_head *head, const char *file,
                                        const char *directory, const nib_config *c,
                                        const char *chat_template, const nib_allocator *a,
                                        nib_ledger *ledger, nib_err *err)
{
    nib_vocab_source source;
    nib_tokenizer *t = NULL;
    nib_arena arena;
    nib__arena_init(&arena, a, 0);
    const char *config = nib__path_join(&arena, directory, "tokenizer_config.json");
    nib_status status =
        config == NULL
            ? nib__fail_memory(err, strlen(directory), "a path")
            : nib__tokenizer_open(&t, file, nib__path_kind(config) == NIB_PATH_FILE ? config : NULL,
                                  a, err);
    if (status == NIB_OK)
        status = nib__tokenizer_to_vocab(&source, t, file, c->vocab,
                                         nib__family_of(c)->listed_merges, &arena, ledger, err);
    if (status == NIB_OK) {
        source.bos = source.bos < 0 ? c->bos : source.bos;
        source.eos = source.eos < 0 && c->eos_count != 0 ? c->eos[0] : source.eos;
        nib__gguf_describe_vocab(head, &source);
        if (chat_template != NULL)
            nib__gguf_put_string(head, "tokenizer.chat_template", chat_template,
                                 strlen(chat_template));
    }
    nib__tokenizer_close(t);
    nib__arena_free(&arena);
    return status;
}
