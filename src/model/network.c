/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a network and checks that the checkpoint holds what config.json implies. Also reports where
 * a model's files contradict each other without stopping a run: what is stored is what runs.
 */
#include "network.h"

#include "arch.h"
#include "config_codes.h"
#include "config_gguf.h"
#include "config_meta.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONFIG_LIMIT = 16 << 20 };

static const char layers_prefix[] = "model.layers.";

static nib_status open_checkpoint(nib_network *net, const char *path, nib_err *err)
{
    const nib_allocator *a = &net->engine->allocator;
    return net->reads_head ? nib__checkpoint_open_draft(&net->checkpoint, path, a, err)
                           : nib__checkpoint_open(&net->checkpoint, path, a, err);
}

/* Sets the order of heads in the config that a reordered model has. */
static void reorder_config(nib_network *net, bool to_gguf)
{
    nib_config *c = &net->config;
    if (!net->reordered || nib__family_of(c)->full_interval == 0)
        return;
    c->gguf_order = to_gguf;
    c->matrix.by_turns = to_gguf && !nib__family_of(c)->joined_delta;
}

void nib__network_head_order(nib_head_order *out, const nib_config *c)
{
    const nib_family_row *family = nib__family_of(c);
    const nib_draft_names *own = family->draft, *after = &nib__draft_after;
    *out = (nib_head_order){.layers = c->layers,
                            .key_heads = c->matrix.key_heads,
                            .heads = c->matrix.heads,
                            .key_dim = c->matrix.key_dim,
                            .value_dim = c->matrix.value_dim,
                            .by_turns = !family->joined_delta,
                            .joined = family->joined_delta,
                            .drafts = !family->joined_delta,
                            .prefix = own->prefix,
                            .names = {{own->join, after->join},
                                      {own->embed_norm, after->embed_norm},
                                      {own->hidden_norm, after->hidden_norm},
                                      {own->last_norm, after->last_norm}}};
}

/* Puts the stored tensors into that order. */
static nib_status reorder_tensors(nib_network *net, nib_err *err)
{
    nib_config *c = &net->config;
    nib_head_order order;
    if (!net->reordered || nib__family_of(c)->full_interval == 0)
        return NIB_OK;
    nib__network_head_order(&order, c);
    return nib__checkpoint_reorder(net->checkpoint, &c->moe.unread_layers, &order, c->gguf_order,
                                   err);
}

/* Builds what config.json implies: the graph, and its matrices as float weights of torch_dtype. */
static nib_status list_sites(nib_network *net, nib_network_use use, nib_err *err)
{
    nib_config *c = &net->config;
    if (net->draft_head)
        NIB_TRY(nib__draft_config(c, net->path, err));
    if (use == NIB_NETWORK_TRAINED)
        NIB_TRY(nib__draft_train(c, net->path, err));
    NIB_TRY(nib__arch_build(&net->graph, c, &net->arena, &net->engine->allocator, err));
    net->site_count = net->graph.kind_count[NIB_WEIGHT_MATRIX];
    net->sites = nib__arena_take(&net->arena, net->site_count, sizeof *net->sites);
    if (!net->sites)
        return nib__fail_memory(err, net->site_count * sizeof *net->sites, "a list of layers");
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_graph_weight *matrix = nib__graph_weight(&net->graph, NIB_WEIGHT_MATRIX, i);
        net->sites[i] = (nib_site){
            .name = matrix->name,
            .role = matrix->role,
            .n = matrix->n,
            .k = matrix->k,
            .experts = matrix->experts,
            .top_k = matrix->top_k,
            .heads = matrix->heads,
            .bias = matrix->bias,
            .shares_input = matrix->shares_input,
            .bias_form = matrix->bias ? NIB_BIAS_FLOAT : NIB_BIAS_NONE,
            .stored = {.code = nib__float_code(c->dtype), .symmetric = true, .act_symmetric = true},
            .scale_type = NIB_TYPE_NONE,
            .zero_type = NIB_TYPE_NONE,
            .act_scale_type = NIB_TYPE_F32};
    }
    net->tied = c->tied;
    return NIB_OK;
}

/* One stored tensor under both names is a tied head, whatever the config says; without a stored
 * head the embedding is used as the head. Published checkpoints do both, so this is a note, not an
 * error. */
static void find_tie(nib_network *net)
{
    const nib_tensor *embed = nib__checkpoint_find(net->checkpoint, "model.embed_tokens.weight");
    const nib_tensor *head = nib__checkpoint_find(net->checkpoint, "lm_head.weight");
    const bool stored = head || nib__checkpoint_dialect(net->checkpoint, "lm_head");
    net->tied = !stored || (head && head == embed);
    if (net->tied == net->config.tied)
        return;
    const bool same = stored && net->tied; /* the same values, whatever the config says */
    nib__ledger_add_setting(
        &net->notes,
        &(nib_ledger_setting){.code = "tie",
                              .name = "tie_word_embeddings",
                              .asked = net->config.tied ? "true" : "false",
                              .done = net->tied ? "true" : "false",
                              .by = NIB_BY_CONFIG,
                              .relation = same ? NIB_SETTING_EQUIVALENT : NIB_SETTING_OTHER},
        "%s",
        !stored ? "no head is stored, so the embedding is used as the head"
        : same  ? "the head and the embedding are one stored tensor"
                : "a head is stored beside the embedding, and it is used");
}

static nib_status read_weight(nib_weight *out, const nib_network *net, const nib_site *site,
                              nib_ledger *ledger, nib_err *err)
{
    if (site->role != NIB_ROLE_HEAD || !net->tied)
        return nib__checkpoint_weight(out, NULL, net->checkpoint, site->name, ledger, err);
    NIB_TRY(nib__checkpoint_weight(out, NULL, net->checkpoint, nib__network_embed(net)->name, NULL,
                                   err));
    out->bias = NULL; /* the embedding's bias, if any, is not the head's */
    return nib__checkpoint_bias(out, net->checkpoint, site->name, ledger, err);
}

/* Checks the shape and bias of a stored weight against the config. */
static nib_status check_site(nib_network *net, nib_site *s, nib_network_use use, nib_err *err)
{
    nib_weight w;
    const char *module =
        s->role == NIB_ROLE_HEAD && net->tied ? nib__network_embed(net)->name : s->name;
    const nib_status status = read_weight(&w, net, s, &net->notes, err);
    if (status != NIB_OK)
        return nib__fail_in(err, status, nib__checkpoint_path(net->checkpoint));
    nib__checkpoint_release_values(net->checkpoint, &w);
    if (w.k != s->k ||
        (s->role == NIB_ROLE_EMBED || s->role == NIB_ROLE_HEAD ? w.n < s->n : w.n != s->n))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s.weight is [%" PRId64 "][%" PRId64 "], but %s implies [%" PRId64
                         "][%" PRId64 "]",
                         nib__checkpoint_path(net->checkpoint), module, w.n, w.k,
                         nib__checkpoint_config_name(net->checkpoint), s->n, s->k);
    if (s->bias && !w.bias)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s.bias is missing; %s (%s) implies a bias of %" PRId64 " values",
                         nib__checkpoint_path(net->checkpoint), module,
                         nib__checkpoint_config_name(net->checkpoint),
                         nib__arch_name(net->config.arch), s->n);
    if (s->role == NIB_ROLE_EMBED && w.bias && use == NIB_NETWORK_RUN)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: %s.bias is stored, but an embedding has no bias in %s; leaving it "
                         "out would change the result",
                         nib__checkpoint_path(net->checkpoint), s->name,
                         nib__arch_name(net->config.arch));
    if (!s->bias && w.bias && s->role != NIB_ROLE_EMBED)
        nib__ledger_add_setting(&net->notes,
                                &(nib_ledger_setting){.code = "bias",
                                                      .name = s->name,
                                                      .asked = "no bias",
                                                      .done = "a bias",
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_OTHER},
                                "the checkpoint stores a bias that %s does not imply; it is "
                                "applied",
                                nib__checkpoint_config_name(net->checkpoint));
    s->weight = w;
    s->n = w.n;
    s->bias = w.bias != NULL;
    s->bias_form = nib__weight_bias_form(&w);
    s->stored = w.scheme;
    s->act = nib__weight_act(&w);
    s->order = w.order;
    s->stored_bytes = nib__weight_bytes(&w);
    s->plain = nib__weight_is_plain(&w);
    s->scale_type = nib__scheme_is_quantized(&w.scheme) ? w.scale_type : NIB_TYPE_NONE;
    s->zero_type = w.scheme.zero != NIB_ZERO_NONE ? w.zero_type : NIB_TYPE_NONE;
    return NIB_OK;
}

static void note_order(nib_network *net)
{
    size_t count = 0;
    for (size_t i = 0; i < net->site_count; i++)
        count += net->sites[i].order != NULL;
    if (count != 0)
        nib__ledger_add_note(&net->notes, "act-order",
                             "%zu weights have their columns in act-order; their inputs are "
                             "reordered first, once for layers that share the order",
                             count);
}

/* Checks that config.json and the weights agree on quantization and on the number of layers. A
 * contradiction would silently change every text. */
static nib_status check_agreement(const nib_network *net, nib_err *err)
{
    const char *path = nib__checkpoint_path(net->checkpoint);
    bool quantized = !net->config.quantized;
    for (size_t i = 0; i < net->site_count && !quantized; i++)
        quantized = nib__scheme_is_quantized(&net->sites[i].stored);
    if (!quantized)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s has %s, but no weight is stored quantized; remove the key if "
                         "these are the intended weights",
                         path, nib__checkpoint_config_name(net->checkpoint),
                         nib__checkpoint_params(net->checkpoint) ? "quantization_args"
                                                                 : "a quantization_config");
    for (size_t i = 0; i < nib__checkpoint_count(net->checkpoint); i++) {
        const char *name = nib__checkpoint_at(net->checkpoint, i)->name;
        if (strncmp(name, layers_prefix, sizeof layers_prefix - 1) == 0 &&
            strtoll(name + sizeof layers_prefix - 1, NULL, 10) >=
                net->config.layers + net->config.moe.unread_layers) {
            char shown[160];
            return nib__fail(err, NIB_BAD_INPUT, "%s: %s is stored, but %s in %s is %" PRId64, path,
                             nib__escape_name(shown, sizeof shown, name, strlen(name)),
                             nib__checkpoint_gguf(net->checkpoint) != NULL ? "block_count"
                                                                           : "num_hidden_layers",
                             nib__checkpoint_config_name(net->checkpoint), net->config.layers);
        }
    }
    return NIB_OK;
}

/* ---- contradictions: ids ---- */

static void report_id(nib_network *net, const char *code, const char *key, int32_t id)
{
    const int64_t rows = nib__network_embed(net)->n;
    char asked[32];
    if (id < rows)
        return;
    snprintf(asked, sizeof asked, "%" PRId32, id);
    nib__ledger_add_overruled(&net->notes, code, key, asked, NULL,
                              "the vocabulary has only %" PRId64 " tokens", rows);
}

static void report_ids(nib_network *net)
{
    const nib_config *c = &net->config;
    const nib_generation *g = &net->generation;
    report_id(net, "config-key", "bos_token_id", c->bos);
    for (int i = 0; i < c->eos_count; i++)
        report_id(net, "config-key", "eos_token_id", c->eos[i]);
    for (int i = 0; i < g->eos_count; i++)
        report_id(net, "generation-key", "eos_token_id", g->eos[i]);
}

/* ---- contradictions: stored weights ---- */

static void report_rows(nib_network *net)
{
    char asked[32], done[32];
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        const int64_t rows = nib__graph_weight(&net->graph, NIB_WEIGHT_MATRIX, i)->n;
        const bool of_layers = s->role == NIB_ROLE_EMBED && s != nib__network_embed(net);
        if ((s->role != NIB_ROLE_EMBED && s->role != NIB_ROLE_HEAD) || s->n <= rows)
            continue;
        snprintf(asked, sizeof asked, "%" PRId64, rows);
        snprintf(done, sizeof done, "%" PRId64, s->n);
        nib__ledger_add_overruled(
            &net->notes, "config-key", of_layers ? "vocab_size_per_layer_input" : "vocab_size",
            asked, done, "%s stores %" PRId64 " rows, all of which are used", s->name, s->n);
    }
}

/* Checks GPTQ's desc_act and the zero points of GPTQ and AWQ, which other tools' kernels rely
 * on. */
static void report_codes(nib_network *net)
{
    const nib_quantization *q = nib__checkpoint_coding(net->checkpoint);
    nib_ledger *to = &net->notes;
    size_t ordered = 0, zeros = 0, indexed = 0;
    char name[512];
    if (q == NULL)
        return;
    for (size_t i = 0; i < net->site_count; i++) {
        snprintf(name, sizeof name, "%s.g_idx", net->sites[i].name);
        indexed += nib__checkpoint_find(net->checkpoint, name) != NULL;
        ordered += net->sites[i].order != NULL;
        zeros += nib__scheme_is_quantized(&net->sites[i].stored) &&
                 net->sites[i].stored.zero != NIB_ZERO_NONE;
    }
    if (strcmp(q->order, "false") == 0 && ordered != 0)
        nib__ledger_add_overruled(to, "quantization-config", "desc_act", "false", "true",
                                  "the stored g_idx is not in column order, and it is followed");
    if (strcmp(q->order, "true") == 0 && q->method == NIB_METHOD_GPTQ && indexed == 0)
        nib__ledger_add_overruled(to, "quantization-config", "desc_act", "true", "false",
                                  "no g_idx is stored, so groups are made of consecutive columns");
    if (strcmp(q->symmetric, "true") != 0 || zeros == 0)
        return;
    const bool awq = q->method == NIB_METHOD_AWQ;
    nib__ledger_add_overruled(to, "zero-point", awq ? "zero_point" : "sym", awq ? "false" : "true",
                              awq ? "true" : "false",
                              "asymmetric zero points are stored, and they are used");
}

/* ---- RoPE tables ---- */

static bool is_known_rope_table(const nib_network *net, const nib_tensor *tensor)
{
    const double rounding = 0x1p-7; /* bf16's rounding, with some margin */
    const nib_config *c = &net->config;
    const int64_t half = c->head_dim / 2;
    nib_config plain = *c;
    plain.rope = NIB_ROPE_PLAIN;
    if (!nib__is_rotary_table(tensor->name))
        return false;
    if (nib__checkpoint_gguf(net->checkpoint) != NULL)
        return true; /* config_gguf.c has read it */
    if (tensor->rank != 1 || tensor->shape[0] != half || !nib__type_is_float(tensor->type))
        return false;
    const size_t size = (size_t)tensor->bytes / (size_t)half;
    for (int64_t i = 0; i < half; i++) {
        float stored;
        nib__to_f32(&stored, (const char *)tensor->data + (size_t)i * size, tensor->type, 1);
        /* for linear scaling transformers scaled the positions instead */
        const double scaled = nib__rope_frequency(c, i, c->rope_original), /* context: selects
                                                                         short_factor of longrope */
            unscaled = nib__rope_frequency(&plain, i, 0);
        if (!(fabs((double)stored / scaled - 1) <= rounding) &&
            !(fabs((double)stored / unscaled - 1) <= rounding))
            return false;
    }
    return true;
}

/* ---- norms and other tensors ---- */

/* Whether the graph reads this norm. */
static bool is_norm(const nib_network *net, const char *name)
{
    for (size_t i = 0; i < net->graph.kind_count[NIB_WEIGHT_NORM]; i++) {
        const nib_graph_weight *norm = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, i);
        const size_t size = strlen(norm->name);
        if (strncmp(name, norm->name, size) == 0 &&
            (strcmp(name + size, norm->bare ? "" : ".weight") == 0 ||
             (norm->bias && strcmp(name + size, ".bias") == 0)))
            return true;
    }
    return false;
}

static void report_f64(nib_network *net, const nib_tensor *norm)
{
    nib_ledger_tensor *line =
        nib__ledger_add_tensor(&net->notes, nib__ledger_text(&net->notes, "%s", norm->name));
    if (line == NULL)
        return;
    line->asked = "f64";
    line->done = "f32";
    line->max_rel_change =
        nib__measure_f64_to_f32_error(norm->data, (int64_t)(norm->bytes / sizeof(double)));
    line->reason = "norms are computed in f32";
}

/* Whether a tensor belongs to a model's encoder of images or audio, which is not read. */
static bool is_of_encoder(const char *name)
{
    static const char *const parts[] = {"model.vision_tower.", "model.embed_vision.",
                                        "model.audio_tower.", "model.embed_audio.",
                                        "model.visual."};
    bool found = false;
    for (size_t i = 0; i < COUNT(parts); i++)
        found = found || strncmp(name, parts[i], strlen(parts[i])) == 0;
    return found;
}

/* Says which stored weights are not read because a layer shares keys and values; transformers does
 * not read them either. */
static void note_shared(nib_network *net, size_t count)
{
    const nib_config *c = &net->config;
    if (count != 0)
        nib__ledger_add_note(&net->notes, "shared-keys",
                             "layers %" PRId64 " to %" PRId64
                             " share the keys and values of earlier layers, so %zu stored tensors "
                             "for their own are not read",
                             c->layers - c->shared_layers, c->layers - 1, count);
}

/* Checks tensors other than weights. An unread tensor is a note, but an unread bias is an error. */
static nib_status check_others(nib_network *net, nib_network_use use, nib_err *err)
{
    const nib_checkpoint *cp = net->checkpoint;
    const char *arch = nib__arch_name(net->config.arch), *first = NULL;
    char shown[160];
    const int64_t own = net->config.layers - net->config.shared_layers;
    size_t count = 0, shared = 0, drafts = 0;
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_tensor *tensor = nib__checkpoint_at(cp, i);
        const char *name = tensor->name;
        if (nib__checkpoint_owner(cp, i) != 0) /* part of a matrix */
            continue;
        if (own < net->config.layers && nib__makes_keys(name, own)) {
            shared++;
            continue;
        }
        if (nib__draft_has(&net->config, name)) {
            drafts++;
            continue;
        }
        const bool norm = is_norm(net, name);
        if (norm && tensor->type == NIB_TYPE_F64)
            report_f64(net, tensor);
        if (norm || is_known_rope_table(net, tensor))
            continue;
        nib__escape_name(shown, sizeof shown, name, strlen(name));
        if (nib__ends_with(name, ".bias") && use == NIB_NETWORK_RUN && !is_of_encoder(name))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: %s is stored, but %s has no such bias; leaving it out would "
                             "change the result",
                             nib__checkpoint_path(cp), shown, arch);
        first = count++ == 0 ? name : first;
    }
    note_shared(net, shared);
    if (drafts != 0)
        nib__ledger_add_note(&net->notes, "draft",
                             "a draft head is stored beside the model's layers; --draft-head "
                             "drafts with it, and it is quantized only then, by --recipe or "
                             "--draft-recipe");
    if (count != 0)
        nib__ledger_add_setting(
            &net->notes,
            &(nib_ledger_setting){.code = "extra-tensor",
                                  .name =
                                      nib__escape_name(shown, sizeof shown, first, strlen(first)),
                                  .by = NIB_BY_CHECKPOINT,
                                  .relation = NIB_SETTING_NONE},
            "%s has no such tensor (%zu stored ones are not read)", arch, count);
    return NIB_OK;
}

/* *out: the stored part of a norm, whose type and shape are as implied. */
static nib_status find_norm(const nib_tensor **out, const nib_network *net, size_t norm,
                            nib_norm_part part, nib_err *err)
{
    char name[NIB_NORM_NAME], found[NIB_SHAPE_SHOWN], wanted[NIB_SHAPE_SHOWN];
    nib__network_norm_name(name, net, norm, part);
    const nib_graph_weight *entry = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, norm);
    const char *path = nib__checkpoint_path(net->checkpoint),
               *config = nib__checkpoint_config_name(net->checkpoint);
    const nib_tensor *t = *out = nib__checkpoint_find(net->checkpoint, name);
    if (t == NULL)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is missing; %s (%s) implies it", path, name,
                         config, nib__arch_name(net->config.arch));
    int64_t shape[NIB_NORM_RANK];
    const int rank = nib__graph_vector_shape(shape, entry);
    const bool row = rank == 1 && t->rank == 2 && t->shape[0] == 1;
    bool fits = t->rank == rank + row && nib__type_is_float(t->type);
    for (int i = 0; i < rank && fits; i++)
        fits = t->shape[i + row] == shape[i];
    if (fits)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %s %s, but %s implies floats of shape %s", path,
                     name, nib__type_stored_name(t->type),
                     nib__format_shape(found, t->shape, t->rank), config,
                     nib__format_shape(wanted, shape, rank));
}

/* Checks that every norm is stored as implied, so that this is not found only when a run starts. */
static nib_status check_norms(const nib_network *net, nib_err *err)
{
    const nib_tensor *stored;
    for (size_t i = 0; i < net->graph.kind_count[NIB_WEIGHT_NORM]; i++) {
        const bool biased = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, i)->bias;
        for (nib_norm_part part = NIB_NORM_WEIGHT; part <= (nib_norm_part)biased; part++)
            NIB_TRY(find_norm(&stored, net, i, part, err));
    }
    return NIB_OK;
}

static nib_status read_generation(nib_network *net, const char *directory, nib_err *err)
{
    const nib_allocator *a = &net->engine->allocator;
    const char *path = nib__path_join(&net->arena, directory, "generation_config.json");
    char *text;
    size_t size;
    net->generation = nib__generation_none;
    if (!path)
        return nib__fail_memory(err, strlen(directory), "a path");
    if (nib__path_kind(path) != NIB_PATH_FILE)
        return NIB_OK;
    NIB_TRY(nib__file_read(&text, &size, path, CONFIG_LIMIT, a, err));
    const nib_status status =
        nib__generation_parse(&net->generation, path, text, size, &net->notes, err);
    nib__release(a, text);
    return status;
}

/* Reads a config.json or, if the path names a JSON file, possibly a training config. */
static nib_status read_config(nib_network *net, const char *path, bool named, nib_strings options,
                              nib_err *err)
{
    const nib_allocator *a = &net->engine->allocator;
    char *text;
    size_t size;
    nib_status status;
    NIB_TRY(nib__file_read(&text, &size, path, CONFIG_LIMIT, a, err));
    net->training = named && nib__train_config_is(text, size);
    const nib_train_source source = {.name = path,
                                     .text = text,
                                     .size = size,
                                     .options = options,
                                     .arena = &net->arena,
                                     .notes = &net->notes};
    if (net->training)
        status = nib__train_config_parse(&net->train, &net->config, &source, err);
    else
        status = nib__config_parse(&net->config, path, text, size, &net->arena, &net->notes, err);
    nib__release(a, text);
    NIB_TRY(status);
    return read_generation(net, net->directory, err);
}

/* Sets net->directory to that of config.json: the path itself, or the directory of the file. */
static nib_status set_directory(nib_network *net, const char *path, nib_err *err)
{
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, path, err));
    net->directory = kind == NIB_PATH_DIRECTORY ? nib__arena_copy(&net->arena, path, strlen(path))
                                                : nib__path_directory(&net->arena, path);
    return net->directory != NULL ? NIB_OK : nib__fail_memory(err, strlen(path), "a path");
}

/* If the path cannot be a model, the error names the path, not a config.json that does not
 * exist. */
static nib_status check_path(nib_network *net, const char *path, const char *config, bool is_json,
                             nib_err *err)
{
    char shown[160];
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, path, err));
    nib__escape_name(shown, sizeof shown, path, strlen(path));
    if (kind == NIB_PATH_NONE)
        return nib__fail(err, NIB_IO, "%s: there is no such file or directory",
                         *path ? shown : "\"\"");
    if (kind == NIB_PATH_OTHER)
        return nib__fail(err, NIB_IO, "%s: is neither a file nor a directory", shown);
    if (kind == NIB_PATH_DIRECTORY || is_json)
        return NIB_OK;
    if (nib__ends_with(path, ".toml"))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: a training config is read as JSON, with the sections and keys of "
                         "TOML: python3 -c 'import json, sys, tomllib; "
                         "print(json.dumps(tomllib.load(sys.stdin.buffer)))' <CONFIG.toml "
                         ">CONFIG.json",
                         shown);
    if (nib__path_kind(config) != NIB_PATH_NONE || net->inspected)
        return NIB_OK;
    /* opening it may give a better error for an unsupported format */
    NIB_TRY(open_checkpoint(net, path, err));
    if (nib__checkpoint_params(net->checkpoint) != NULL)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: there is no config.json beside it; a model is a Hugging Face directory, "
                     "a .gguf file, or a file of weights with its config.json or params.json",
                     shown);
}

static nib_status detect_gguf(bool *out, const char *path, nib_err *err)
{
    nib_map map;
    *out = false;
    if (nib__path_kind(path) != NIB_PATH_FILE)
        return NIB_OK;
    NIB_TRY(nib__map_open(&map, path, err));
    *out = map.size >= 4 && memcmp(map.at, "GGUF", 4) == 0;
    nib__map_close(&map);
    return NIB_OK;
}

/* Checks that every table that tokens look up has a row for each of them. */
static nib_status check_tables(const nib_network *net, nib_err *err)
{
    const nib_site *embed = nib__network_embed(net);
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        if (s->role == NIB_ROLE_EMBED && s->n < embed->n)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s.weight has %" PRId64 " rows, but %s.weight has %" PRId64
                             "; each token needs a row",
                             nib__checkpoint_path(net->checkpoint), s->name, s->n, embed->name,
                             embed->n);
    }
    return NIB_OK;
}

static nib_status check_sites(nib_network *net, nib_network_use use, nib_err *err)
{
    nib_status status = NIB_OK;
    find_tie(net);
    nib__checkpoint_use_pool(net->checkpoint, net->engine->pool);
    for (size_t i = 0; i < net->site_count && status == NIB_OK; i++)
        status = check_site(net, &net->sites[i], use, err);
    nib__checkpoint_use_pool(net->checkpoint, NULL);
    NIB_TRY(status);
    NIB_TRY(check_tables(net, err));
    NIB_TRY(check_norms(net, err));
    if (net->draft_head) /* the rest is about the whole checkpoint; opening the model reports it */
        return NIB_OK;
    note_order(net);
    NIB_TRY(check_agreement(net, err));
    report_rows(net);
    report_codes(net);
    return check_others(net, use, err);
}

/* Whether the weights are Meta's, with a params.json instead of a config.json. */
static nib_status detect_meta(bool *out, nib_network *net, const char *path, nib_err *err)
{
    const char *params = nib__path_join(&net->arena, net->directory, "params.json");
    if (params == NULL)
        return nib__fail_memory(err, strlen(path), "a path");
    *out = net->checkpoint != NULL || nib__path_kind(params) == NIB_PATH_FILE;
    return NIB_OK;
}

static nib_status open_meta(nib_network *net, const char *path, nib_network_use use, nib_err *err)
{
    char shown[160];
    if (net->checkpoint == NULL)
        NIB_TRY(open_checkpoint(net, path, err));
    if (nib__checkpoint_params(net->checkpoint) == NULL)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: has a params.json, but the names of its tensors are not Meta's; it "
                         "needs a config.json",
                         nib__escape_name(shown, sizeof shown, path, strlen(path)));
    NIB_TRY(nib__config_meta(&net->config, net->checkpoint, &net->notes, err));
    NIB_TRY(read_generation(net, net->directory, err));
    NIB_TRY(list_sites(net, use, err));
    if (use != NIB_NETWORK_CONFIG && use != NIB_NETWORK_INSPECT)
        return check_sites(net, use, err);
    nib__checkpoint_close(net->checkpoint);
    net->checkpoint = NULL;
    return NIB_OK;
}

/* Reads config.json. For inspection and conversion an unsupported architecture is not an error:
 * *why says so, and the weights can still be used. */
static nib_status read_described_config(nib_network *net, const char *config, bool is_json,
                                        nib_network_use use, nib_strings options, nib_err *why,
                                        nib_err *err)
{
    const bool lenient = use == NIB_NETWORK_CONVERT || use == NIB_NETWORK_INSPECT;
    nib_status status = read_config(net, config, is_json, options, why);
    if (status == NIB_OK)
        reorder_config(net, true);
    if (status == NIB_OK)
        status = list_sites(net, use, why);
    if (status == NIB_OK)
        return NIB_OK;
    if (status != NIB_UNSUPPORTED || !lenient || is_json)
        return nib__fail(err, status, "%s", why->text);
    net->config = (nib_config){0};
    net->site_count = 0;
    net->unknown = true;
    return NIB_OK;
}

/* Sites of an unsupported architecture: every stored matrix. */
static nib_status list_stored(nib_network *net, nib_err *err)
{
    const nib_checkpoint *cp = net->checkpoint;
    const size_t count = nib__checkpoint_module_count(cp);
    net->sites = nib__arena_take(&net->arena, count, sizeof *net->sites);
    if (!net->sites)
        return nib__fail_memory(err, count * sizeof *net->sites, "a list of layers");
    for (size_t i = 0; i < count; i++) {
        nib_site *s = &net->sites[net->site_count++];
        nib_weight w;
        s->name = nib__checkpoint_module(cp, i);
        s->role = NIB_ROLE_OTHER;
        NIB_TRY(nib__checkpoint_weight(&w, NULL, cp, s->name, &net->notes, err));
        s->n = w.n, s->k = w.k;
        s->bias = w.bias != NULL;
        s->stored = w.scheme;
    }
    return NIB_OK;
}

static nib_status note_unread(nib_network *net, const nib_err *why, nib_err *err)
{
    char note[sizeof why->text + 80];
    if (why->text[0] == 0)
        return NIB_OK;
    snprintf(note, sizeof note, "what %s implies is not checked: %s",
             nib__checkpoint_config_name(net->checkpoint), why->text);
    return nib__checkpoint_add_note(net->checkpoint, note, err);
}

/* Opens a GGUF file, which describes its model itself. For inspection it may be of any
 * architecture, or a vocabulary without weights. */
static nib_status open_gguf(nib_network *net, const char *path, nib_network_use use, nib_err *err)
{
    NIB_TRY(open_checkpoint(net, path, err));
    net->described = net->checkpoint;
    nib_err why;
    const nib_status status =
        nib__config_gguf(&net->config, net->checkpoint, &net->arena, &net->notes, &why);
    const bool tolerable = status == NIB_UNSUPPORTED ||
                           (status == NIB_BAD_INPUT && nib__checkpoint_count(net->checkpoint) == 0);
    if (status != NIB_OK)
        return net->inspected && tolerable ? note_unread(net, &why, err)
                                           : nib__fail(err, status, "%s", why.text);
    NIB_TRY(nib__generation_gguf(&net->generation, nib__checkpoint_gguf(net->checkpoint),
                                 &net->notes, err));
    nib__gguf_report_tokenizer(nib__checkpoint_gguf(net->checkpoint), &net->notes);
    reorder_config(net, false);
    NIB_TRY(reorder_tensors(net, err));
    NIB_TRY(list_sites(net, use, err));
    if (use != NIB_NETWORK_CONFIG && use != NIB_NETWORK_INSPECT)
        return check_sites(net, use, err);
    if (use == NIB_NETWORK_CONFIG)
        net->checkpoint = NULL;
    return NIB_OK;
}

static nib_status open_parts(nib_network *net, const char *path, nib_network_use use,
                             nib_strings options, nib_err *err)
{
    bool gguf;
    net->path = nib__arena_copy(&net->arena, path, strlen(path));
    if (!net->path)
        return nib__fail_memory(err, strlen(path), "a path");
    NIB_TRY(set_directory(net, path, err));
    const size_t length = strlen(path);
    const bool is_json = length >= 5 && strcmp(path + length - 5, ".json") == 0;
    const char *config = nib__path_join(&net->arena, net->directory, "config.json");
    if (config == NULL)
        return nib__fail_memory(err, strlen(path), "a path");
    NIB_TRY(detect_gguf(&gguf, path, err));
    if (gguf)
        return open_gguf(net, path, use, err);
    NIB_TRY(check_path(net, path, config, is_json, err));
    const bool described = is_json || nib__path_kind(config) != NIB_PATH_NONE;
    bool meta = false;
    if (!described && !net->inspected)
        NIB_TRY(detect_meta(&meta, net, path, err));
    if (meta)
        return open_meta(net, path, use, err);
    nib_err why = {NIB_OK, ""};
    if (!net->inspected || described)
        NIB_TRY(
            read_described_config(net, is_json ? path : config, is_json, use, options, &why, err));
    if (use == NIB_NETWORK_CONFIG || is_json) {
        if (net->config.quantized)
            NIB_TRY(nib__config_codes(net, is_json ? path : config, err));
        return NIB_OK;
    }
    NIB_TRY(open_checkpoint(net, path, err));
    if (net->unknown)
        NIB_TRY(note_unread(net, &why, err));
    if (net->unknown && use == NIB_NETWORK_CONVERT)
        return list_stored(net, err);
    NIB_TRY(reorder_tensors(net, err));
    return net->inspected ? NIB_OK : check_sites(net, use, err);
}

nib_status nib__network_open(nib_network *out, nib_engine *engine, const char *path,
                             nib_network_use use, nib_err *err)
{
    return nib__network_open_with(out, engine, path, use, (nib_strings){0}, err);
}

nib_status nib__network_open_with(nib_network *out, nib_engine *engine, const char *path,
                                  nib_network_use use, nib_strings options, nib_err *err)
{
    *out = (nib_network){.engine = engine,
                         .inspected = use == NIB_NETWORK_INSPECT,
                         .draft_head = use == NIB_NETWORK_DRAFT,
                         .reordered = use == NIB_NETWORK_REORDERED,
                         .reads_head = use == NIB_NETWORK_DRAFT || use == NIB_NETWORK_TRAINED};
    nib__arena_init(&out->arena, &engine->allocator, 0);
    nib__ledger_init(&out->notes, &engine->allocator);
    if (out->reordered)
        use = NIB_NETWORK_RUN;
    nib_status status = open_parts(out, path, use, options, err);
    if (status == NIB_OK && options.count > 0 && !out->training)
        status = nib__fail(err, NIB_USAGE,
                           "--%s overrides a key of a training config, but %s is a model",
                           options.items[0], path);
    if (status == NIB_OK && !out->training && !out->unknown && out->site_count != 0)
        report_ids(out);
    if (status != NIB_OK)
        nib__network_close(out);
    return status;
}

void nib__network_close(nib_network *network)
{
    if (network->described != network->checkpoint)
        nib__checkpoint_close(network->described);
    nib__checkpoint_close(network->checkpoint);
    nib__ledger_free(&network->notes);
    nib__arena_free(&network->arena);
    *network = (nib_network){0};
}

uint64_t nib__network_weights(const nib_network *net)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *site = &net->sites[i];
        const bool shared = net->tied && i != 0 && site->role == NIB_ROLE_HEAD;
        sum += (shared ? 0 : (uint64_t)site->n * (uint64_t)site->k) +
               (site->bias ? (uint64_t)site->n : 0);
    }
    for (size_t i = 0; i < net->graph.weight_count; i++) {
        const nib_graph_weight *w = &net->graph.weights[i];
        if (w->kind == NIB_WEIGHT_NORM)
            sum += (uint64_t)w->n * (w->bias ? 2 : 1);
    }
    return sum;
}

const char *nib__network_norm_name(char out[NIB_NORM_NAME], const nib_network *net, size_t norm,
                                   nib_norm_part part)
{
    const nib_graph_weight *entry = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, norm);
    snprintf(out, NIB_NORM_NAME, "%s%s", entry->name,
             entry->bare             ? ""
             : part == NIB_NORM_BIAS ? ".bias"
                                     : ".weight");
    return out;
}

nib_status nib__network_norm(float *out, const nib_network *net, size_t norm, nib_norm_part part,
                             nib_err *err)
{
    const nib_tensor *t;
    const nib_graph_weight *entry = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, norm);
    const bool has_offset = nib__checkpoint_gguf(net->checkpoint) != NULL,
               wants_offset = part == NIB_NORM_WEIGHT;
    NIB_TRY(find_norm(&t, net, norm, part, err));
    nib__to_f32(out, t->data, t->type, entry->n);
    if (part == NIB_NORM_BIAS || entry->offset == 0 || has_offset == wants_offset)
        return NIB_OK;
    for (int64_t i = 0; i < entry->n; i++)
        out[i] += wants_offset ? (float)entry->offset : -(float)entry->offset;
    return NIB_OK;
}
