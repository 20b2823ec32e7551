/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of a model that disagree. None of this stops a run: what is stored is what runs.
 */
#include "network_said.h"

#include "checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- ids ---- */

static void say_id(nib_network *net, const char *code, const char *key, int32_t id)
{
    const int64_t rows = nib__network_embed(net)->n;
    char asked[32];
    if (id < rows)
        return;
    snprintf(asked, sizeof asked, "%" PRId32, id);
    nib__ledger_add_overruled(&net->notes, code, key, asked, NULL,
                              "there are %" PRId64 " tokens, and this is none of them", rows);
}

void nib__network_say_ids(nib_network *net)
{
    const nib_config *c = &net->config;
    const nib_generation *g = &net->generation;
    say_id(net, "config-key", "bos_token_id", c->bos);
    for (int i = 0; i < c->eos_count; i++)
        say_id(net, "config-key", "eos_token_id", c->eos[i]);
    for (int i = 0; i < g->eos_count; i++)
        say_id(net, "generation-key", "eos_token_id", g->eos[i]);
}

/* ---- what is stored ---- */

static void say_rows(nib_network *net)
{
    const int64_t vocab = net->config.vocab;
    char asked[32], done[32];
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *s = &net->sites[i];
        if ((s->role != NIB_ROLE_EMBED && s->role != NIB_ROLE_HEAD) || s->n <= vocab)
            continue;
        snprintf(asked, sizeof asked, "%" PRId64, vocab);
        snprintf(done, sizeof done, "%" PRId64, s->n);
        nib__ledger_add_overruled(&net->notes, "config-key", "vocab_size", asked, done,
                                  "%s stores %" PRId64 " rows, and all of them are used", s->name,
                                  s->n);
    }
}

/* GPTQ's desc_act and the zero points of GPTQ and AWQ, which kernels elsewhere go by. */
static void say_codes(nib_network *net)
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
                                  "g_idx is stored in another order than that of columns, and it "
                                  "is followed");
    if (strcmp(q->order, "true") == 0 && q->method == NIB_METHOD_GPTQ && indexed == 0)
        nib__ledger_add_overruled(to, "quantization-config", "desc_act", "true", "false",
                                  "no g_idx is stored, so groups are taken to be of neighbouring "
                                  "columns");
    if (strcmp(q->symmetric, "true") != 0 || zeros == 0)
        return;
    const bool awq = q->method == NIB_METHOD_AWQ;
    nib__ledger_add_overruled(to, "zero-point", awq ? "zero_point" : "sym", awq ? "false" : "true",
                              awq ? "true" : "false",
                              "zero points other than the middle are stored, and they are used");
}

void nib__network_say_stored(nib_network *net)
{
    say_rows(net);
    say_codes(net);
}

/* ---- rotation ---- */

bool nib__network_has_rotation(const nib_network *net, const nib_tensor *tensor)
{
    const double rounding = 0x1p-7; /* of bf16, with room */
    const nib_config *c = &net->config;
    const int64_t half = c->head_dim / 2;
    nib_config plain = *c;
    plain.rope = NIB_ROPE_PLAIN;
    if (!nib__is_rotary_table(tensor->name))
        return false;
    if (nib__checkpoint_gguf(net->checkpoint) != NULL)
        return true; /* it was read */
    if (tensor->rank != 1 || tensor->shape[0] != half || !nib__type_is_float(tensor->type))
        return false;
    const size_t size = tensor->bytes / (size_t)half;
    for (int64_t i = 0; i < half; i++) {
        float stored;
        nib__to_f32(&stored, (const char *)tensor->data + (size_t)i * size, tensor->type, 1);
        /* transformers scaled positions instead, where scaling is linear */
        const double scaled =
                         nib__rope_frequency(c, i, c->rope_original), /* longrope: short_factor */
            unscaled = nib__rope_frequency(&plain, i, 0);
        if (!(fabs((double)stored / scaled - 1) <= rounding) &&
            !(fabs((double)stored / unscaled - 1) <= rounding))
            return false;
    }
    return true;
}
