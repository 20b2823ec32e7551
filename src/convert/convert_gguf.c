/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GGUF needs besides the weights: the model and its tokenizer as key/values, the order of
 * rotary rows, the divisors of rotary frequencies.
 */
#include "convert_gguf.h"

#include "arch.h"

#include "chat_files.h"
#include "config_gguf.h"
#include "config_gguf_shared.h"
#include "config_gguf_states.h"
#include "config_keys.h"
#include "dialects.h"
#include "gguf.h"
#include "gguf_describe.h"
#include "gguf_vocab.h"
#include "renames.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The type of most weights: the first linear layer's. */
static nib_type main_type(const nib_network *net, const nib_scheme *scheme)
{
    nib_file_layout layout;
    char why[160];
    const nib_site *site = &net->sites[1];
    nib_output_weight stored = {.scheme = *scheme,
                                .n = site->n,
                                .k = site->k,
                                .blocks = nib__weight_block_type(&site->weight)};
    if (!nib__scheme_is_quantized(scheme))
        return nib__float_type(scheme->code);
    if (nib__write_gguf.fit(why, &stored) != NULL)
        return NIB_TYPE_NONE; /* the rewrite reports why */
    nib__write_gguf.layout(&layout, &stored);
    return layout.codes.type;
}

/* Reads the chat template in a tokenizer's directory; NULL: none. A template in a file of its own,
 * which newer tools write, comes first. */
static nib_status read_template(const char **out, const char *directory, nib_arena *arena,
                                nib_ledger *ledger, nib_err *err)
{
    nib_chat_files files;
    NIB_TRY(nib__chat_files_read(&files, directory, arena, err));
    const nib_chat_source *from = files.own.text.text != NULL ? &files.own : &files.config;
    *out = from->text.text;
    if (from->tools.text != NULL)
        nib__ledger_add_setting(ledger,
                                &(nib_ledger_setting){.code = "tokenizer",
                                                      .name = "chat_template",
                                                      .by = NIB_BY_CHECKPOINT,
                                                      .relation = NIB_SETTING_NARROWER},
                                "%s has a separate template for tools, but a GGUF holds only one "
                                "template and gets %s",
                                from->text.name, *out != NULL ? "the default one" : "none");
    return NIB_OK;
}

/* Copies the tokenizer of a GGUF and its chat template. */
static nib_status copy_vocab(nib_gguf_head *head, const nib_gguf *gguf, nib_arena *arena,
                             nib_err *err)
{
    nib_vocab_source source;
    const char *template;
    size_t size;
    NIB_TRY(nib__gguf_vocab(&source, gguf, arena, err));
    NIB_TRY(nib__gguf_chat_template(&template, &size, gguf, err));
    nib__gguf_describe_vocab(head, &source);
    if (template)
        nib__gguf_put_string(head, "tokenizer.chat_template", template, size);
    return NIB_OK;
}

static nib_status copy_vocab_from_file(nib_gguf_head *head, const char *path, const nib_model *m,
                                       nib_arena *arena, nib_err *err)
{
    nib_checkpoint *cp;
    NIB_TRY(nib__checkpoint_open(&cp, path, &m->engine->allocator, err));
    const nib_status status = copy_vocab(head, nib__checkpoint_gguf(cp), arena, err);
    nib__checkpoint_close(cp);
    return status;
}

/* Writes the tokenizer: the named one, else the one inside the model, else the one beside it. */
static nib_status put_tokenizer(nib_gguf_head *head, nib_model *m, nib_arena *arena,
                                nib_ledger *ledger, nib_err *err)
{
    const nib_gguf *gguf = nib__checkpoint_gguf(m->net.checkpoint);
    const char *at = m->tokenizer_path ? m->tokenizer_path : m->net.directory, *file, *template;
    if (!m->tokenizer_path && gguf && nib__gguf_find(gguf, "tokenizer.ggml.model"))
        return copy_vocab(head, gguf, arena, err);
    NIB_TRY(nib__tokenizer_file(&file, at, arena, err));
    if (nib__path_kind(file) == NIB_PATH_NONE && !m->tokenizer_path) {
        nib__ledger_add_setting(ledger,
                                &(nib_ledger_setting){.code = "tokenizer",
                                                      .name = file,
                                                      .by = NIB_BY_DEFAULT,
                                                      .relation = NIB_SETTING_NARROWER},
                                "the file does not exist: the GGUF has no tokenizer, and programs "
                                "that need one will not open it; --tokenizer PATH names one");
        return NIB_OK;
    }
    if (nib__gguf_begins(file))
        return copy_vocab_from_file(head, file, m, arena, err);
    const size_t size = (size_t)(nib__path_name(file) - file);
    const char *directory = size == 0 ? "." : nib__arena_copy(arena, file, size);
    if (!directory)
        return nib__fail_memory(err, size, "a path");
    NIB_TRY(read_template(&template, directory, arena, ledger, err));
    return nib__gguf_describe_tokenizer(head, file, directory, &m->net.config, template,
                                        &m->engine->allocator, ledger, err);
}

/* The scaling of llama3, longrope and proportional is a tensor in a GGUF; a source GGUF has that of
 * the last two already. */
static nib_status put_divisors(nib_quantize_job *job, const nib_config *c, nib_arena *arena,
                               bool from_gguf, nib_err *err)
{
    const int64_t pairs = nib__config_rope_dims(c) / 2;
    if (c->rope == NIB_ROPE_LONGROPE && !from_gguf) {
        job->extras[0] = (struct nib_extra){NIB_GGUF_ROPE_LONG, c->rope_long, pairs};
        job->extras[1] = (struct nib_extra){NIB_GGUF_ROPE_SHORT, c->rope_short, pairs};
    }
    if (c->rope != NIB_ROPE_LLAMA3 && (c->rope != NIB_ROPE_PROPORTIONAL || from_gguf))
        return NIB_OK;
    float *divisors = nib__arena_take(arena, (uint64_t)pairs, sizeof *divisors);
    if (!divisors)
        return nib__fail_memory(err, (uint64_t)pairs * 4, "the divisors of frequencies");
    for (int64_t i = 0; i < pairs; i++) /* of a pair that does not rotate: 1e30 */
        divisors[i] = (float)fmin(nib__rope_divisor(c, i), 1e30);
    job->extras[0] = (struct nib_extra){"rope_freqs.weight", divisors, pairs};
    return NIB_OK;
}

/* Checks the family's keys that GGUF has none for against what a reader has. */
static nib_status check_keys(const nib_config *c, const nib_config *read, const char *directory,
                             nib_err *err)
{
    const nib_family_key *keys = nib__family_of(c)->keys;
    for (size_t i = 0; keys != NULL && keys[i].key != NULL; i++) {
        const double asked = nib__keys_value(c, &keys[i]), done = nib__keys_value(read, &keys[i]);
        if (keys[i].gguf == NULL && asked != done)
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: %s is %g, but a GGUF of %s has no key for it, so readers use %g; "
                             "--format nibble keeps config.json beside the weights",
                             directory, keys[i].key, asked, nib__arch_name(c->arch), done);
    }
    return NIB_OK;
}

/* Checks that experts are in the layers, and weighed, as GGUF readers assume. */
static nib_status check_experts(const nib_config *c, const char *directory, nib_err *err)
{
    char without[48] = "";
    if (!nib__gguf_expert_layers_match(c))
        for (int64_t i = c->layers - 1; i >= 0; i--)
            if (!nib__config_has_experts(c, i))
                snprintf(without, sizeof without, "layer %" PRId64 " has no experts", i);
    if (without[0] == 0 && nib__gguf_expert_weights_match(c))
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "%s: %s, which a GGUF of %s cannot record; --format nibble keeps config.json "
                     "beside the weights",
                     directory, without[0] != 0 ? without : "norm_topk_prob is false",
                     nib__arch_name(c->arch));
}

/* Checks what llama.cpp's Granite 4 implies: Mamba-2 in some layers, a bias of the convolution and
 * none of projections, and steps without limits. */
static nib_status check_mamba(const nib_config *c, const char *directory, nib_err *err)
{
    const bool limited = c->least_step > 0 || c->most_step < (double)INFINITY;
    if (!nib__family_of(c)->mamba ||
        (c->conv_layers != NULL && c->conv_bias && !c->mamba_bias && !limited))
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "%s: %s, which a GGUF of %s cannot record; --format nibble keeps config.json "
                     "beside the weights",
                     directory,
                     c->conv_layers == NULL ? "no layer has Mamba-2"
                     : !c->conv_bias        ? "mamba_conv_bias is false"
                     : c->mamba_bias        ? "mamba_proj_bias is true"
                                            : "time_step_limit limits the steps",
                     nib__arch_name(c->arch));
}

/* Checks that gated DeltaNet is in the layers that full_attention_interval gives. */
static nib_status check_delta(const nib_config *c, const char *directory, nib_err *err)
{
    if (nib__family_of(c)->full_interval == 0 || nib__gguf_full_interval(c) > 0)
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "%s: layer_types has attention in other layers than every so many, which a "
                     "GGUF of %s cannot record; --format nibble keeps config.json beside the "
                     "weights",
                     directory, nib__arch_name(c->arch));
}

/* Notes a factor that transformers rounds to the weights' type. */
static void note_factor(nib_ledger *ledger, const char *key, double asked, double done,
                        const char *what)
{
    char from[32], to[32];
    if (asked != done)
        nib__ledger_add_overruled(ledger, "config-key", key, nib__format_double(from, asked),
                                  nib__format_double(to, done),
                                  "GGUF readers multiply %s by the root of %s; transformers rounds "
                                  "that root to the weights' type",
                                  what, key);
}

/* Notes keys of the experts' weights that llama.cpp does not follow. */
static void note_weights(nib_ledger *ledger, const nib_config *c)
{
    char asked[32];
    const nib_family_row *family = nib__family_of(c);
    if (!family->gguf_plain_weights)
        return;
    if (!c->moe.normalize)
        nib__ledger_add_overruled(ledger, "config-key", "norm_topk_prob", "false", NULL,
                                  "a GGUF of %s records it, but llama.cpp divides the weights of "
                                  "experts by their sum",
                                  family->gguf);
    if (c->moe.scale != 1)
        nib__ledger_add_overruled(ledger, "config-key", "routed_scaling_factor",
                                  nib__format_double(asked, c->moe.scale), NULL,
                                  "a GGUF of %s records it, but llama.cpp takes 1", family->gguf);
}

/* Checks values that GGUF has no keys for: its readers derive them from sizes, and must get the
 * model's. */
static nib_status check_implied(const nib_config *c, const char *directory, nib_ledger *ledger,
                                nib_err *err)
{
    const nib_family_row *family = nib__family_of(c);
    nib_config read = *c;
    read.dtype = NIB_TYPE_NONE;
    read.rope_unrounded = false;
    if (family->complete != NULL)
        family->complete(&read);
    if (family->complete_gguf != NULL)
        family->complete_gguf(&read);
    const double scale = read.attention_scale;
    if (fabs(scale - c->attention_scale) > 1e-6 * scale)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: attention scores are scaled by %g, but a GGUF of %s has no key for "
                         "that, so readers use %g; --format nibble keeps config.json beside the "
                         "weights",
                         directory, c->attention_scale, nib__arch_name(c->arch), scale);
    if (c->rope == NIB_ROPE_YARN && read.rope_unrounded != c->rope_unrounded)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: truncate is %s, but readers of a GGUF of %s %s the range of pairs "
                         "that yarn changes; --format nibble keeps config.json beside the weights",
                         directory, c->rope_unrounded ? "false" : "true", nib__arch_name(c->arch),
                         c->rope_unrounded ? "round" : "do not round");
    if (c->rope_unrounded)
        nib__ledger_add_overruled(ledger, "rope", "truncate", "false", "true",
                                  "a GGUF has no key for it: nibble takes it as false for %s, but "
                                  "llama.cpp rounds the range of pairs that yarn changes",
                                  nib__arch_name(c->arch));
    NIB_TRY(check_keys(c, &read, directory, err));
    note_factor(ledger, "hidden_size", c->embed_scale, read.embed_scale, "the embedding");
    note_factor(ledger, "hidden_size_per_layer_input", c->layer_embed_scale, read.layer_embed_scale,
                "the inputs of layers");
    return NIB_OK;
}

/* The model's config, as the output holds it: with the layers that predict further tokens only if
 * they are stored, as they are copied, but not read; and Granite 4 without Mamba-2 or experts as
 * Granite, as llama.cpp's converter has it. */
static nib_config written_config(const nib_model *m)
{
    nib_config c = m->net.config;
    if (nib__family_of(&c)->mamba && c.conv_layers == NULL && c.moe.experts == 0 && !c.unrotated) {
        c.arch = NIB_ARCH_GRANITE;
        c.matrix = (nib_matrix_size){.heads = 0};
    }
    char layer[40];
    const int size = snprintf(layer, sizeof layer, "model.layers.%" PRId64 ".", c.layers);
    bool stored = false;
    for (size_t i = 0; i < nib__checkpoint_count(m->net.checkpoint) && !stored; i++)
        stored = strncmp(nib__checkpoint_at(m->net.checkpoint, i)->name, layer, (size_t)size) == 0;
    c.moe.unread_layers = stored ? c.moe.unread_layers : 0;
    return c;
}

nib_status nib__convert_gguf(nib_quantize_job *job, nib_gguf_head *head, nib_model *m,
                             const nib_scheme *first, nib_arena *arena, nib_ledger *ledger,
                             nib_err *err)
{
    const nib_config written = written_config(m), *const c = &written;
    const bool from_gguf = nib__checkpoint_gguf(m->net.checkpoint) != NULL;
    char window[32];
    if (m->net.unknown)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: the model's architecture is unknown, and a GGUF has to describe it; "
                         "--format nibble keeps config.json beside the weights",
                         m->net.directory);
    if (nib__family_of(c)->gguf == NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: cannot write a GGUF of %s; --format nibble keeps config.json beside "
                         "the weights",
                         m->net.directory, nib__arch_name(c->arch));
    if (c->rope == NIB_ROPE_LONGROPE && !nib__family_of(c)->only_longrope)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: cannot write a GGUF with the rope type \"%s\"; --format nibble "
                         "keeps config.json beside the weights",
                         m->net.directory, nib__rope_name(c->rope));
    if (!nib__gguf_rope_layers_match(c))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: no_rope_layers names layers other than every fourth, which a GGUF "
                         "of %s cannot record; --format nibble keeps config.json beside the "
                         "weights",
                         m->net.directory, nib__arch_name(c->arch));
    if (!nib__gguf_chunks_match(c))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: attention_chunk_size or layer_types give other chunks than a GGUF of "
                         "%s implies, which are %d positions in layers with RoPE; --format nibble "
                         "keeps config.json beside the weights",
                         m->net.directory, nib__arch_name(c->arch),
                         (int)nib__family_of(c)->absent.window);
    if (c->latent.rank > 0 && (!c->rope_interleaved || (c->rope_gain > 0 && c->rope_gain != 1)))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: %s, which a GGUF of %s cannot record; --format nibble keeps "
                         "config.json beside the weights",
                         m->net.directory,
                         c->rope_interleaved ? "mscale and mscale_all_dim differ"
                                             : "rope_interleave is false",
                         nib__arch_name(c->arch));
    NIB_TRY(check_experts(c, m->net.directory, err));
    NIB_TRY(check_mamba(c, m->net.directory, err));
    NIB_TRY(check_delta(c, m->net.directory, err));
    if (!nib__gguf_shared_match(c))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: layers that share keys and values would read those of other layers "
                         "in a GGUF of %s; --format nibble keeps config.json beside the weights",
                         m->net.directory, nib__arch_name(c->arch));
    const int mix = nib__recipe_file_type(job->recipe);
    nib__gguf_describe_config(head, c, nib__path_name(nib__checkpoint_path(m->net.checkpoint)),
                              mix >= 0 ? mix : nib__gguf_file_type(main_type(&m->net, first)));
    NIB_TRY(check_implied(c, m->net.directory, ledger, err));
    if (c->window > 0 && c->window < c->context && nib__family_of(c)->window < NIB_WINDOW_PATTERN)
        nib__ledger_add_overruled(
            ledger, "config-key", "sliding_window", nib__format_double(window, (double)c->window),
            NULL,
            nib__family_of(c)->gguf_window
                ? "a GGUF of %s records it, but llama.cpp attends to all positions"
                : "a GGUF of %s has no key for it, so readers attend to all positions",
            nib__family_of(c)->gguf);
    note_weights(ledger, c);
    NIB_TRY(put_tokenizer(head, m, arena, ledger, err));
    NIB_TRY(put_divisors(job, c, arena, from_gguf, err));
    job->gguf = head;
    job->gguf_arch = nib__gguf_names(c);
    job->norm_shift = from_gguf ? 0 : nib__rename_norm_offset(job->gguf_arch);
    job->groups = c->matrix.key_heads;
    job->paired_head = nib__rename_pairs(job->gguf_arch) ? c->head_dim : 0;
    return NIB_OK;
}
