/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings and notes of a training config besides its layers: keys that options or the number of
 * ranks overrule, keys without effect, and what layers are trained for.
 */
#include "plan_handle.h"

#include "fake_quant.h"
#include "training.h"

#include <inttypes.h>
#include <stdio.h>

/* Moves the layers' quantized schemes to `qat`: their products are float. */
static nib_status choose_qat(nib_plan *p, nib_err *err)
{
    const char *products = nib__type_name(p->policy.dtype);
    size_t trained = 0;
    if (!p->model->net.training || !p->model->net.train.qat)
        return NIB_OK;
    for (size_t i = 0; i < p->model->net.site_count; i++) {
        nib_layer *l = &p->layers[i];
        char name[64];
        if (!nib__scheme_is_quantized(&l->asked))
            continue;
        if (l->role != NIB_ROLE_EMBED && !nib__fake_has(&l->asked))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: quantization-aware training does not support %s; it supports "
                             "int8wo and 8da4w (symmetric) and int4wo (symmetric or with a float "
                             "zero point), by row or by group",
                             l->name, nib__scheme_name(name, &l->asked));
        trained += l->role != NIB_ROLE_EMBED;
        l->qat = l->asked;
        NIB_TRY(nib__scheme_parse(&l->asked, products, strlen(products), err));
    }
    return trained > 0
               ? NIB_OK
               : nib__fail(err, NIB_BAD_INPUT,
                           "quantize.qat is set, but the recipe quantizes no linear layer; choose "
                           "a recipe that does, such as 8da4w-g32");
}

nib_status nib__plan_check_training(nib_plan *p, nib_err *err)
{
    const nib_request *r = &p->request;
    if (p->model->net.training && r->context > 0)
        return nib__fail(err, NIB_USAGE,
                         "--context %" PRId64 " has no effect in training, whose sequences are "
                         "training.seq_len long; leave it out",
                         r->context);
    const bool on_cpu =
        p->machine.facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU && p->policy.other_count == 0;
    if (p->model->net.training && r->memory > 0 && on_cpu)
        return nib__fail(err, NIB_USAGE,
                         "--memory has no effect in training on the CPU; `nibble train --dry-run` "
                         "reports the memory needed");
    const nib_config *c = &p->model->net.config;
    if (p->model->net.training && (c->shared_layers > 0 || c->layer_inputs > 0))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: a model whose layers share keys and values, or have inputs of their "
                         "own, runs, but cannot be trained yet",
                         nib__arch_name(c->arch));
    if (p->model->net.training && c->moe.experts > 0 && !on_cpu)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: a mixture of experts trains on the CPU only, not on %s; leave out "
                         "--device and --place",
                         nib__arch_name(c->arch), p->machine.name);
    for (size_t i = 0; p->model->net.training && i < p->model->net.site_count; i++)
        if (p->layers[i].method != NIB_PTQ_RTN)
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: the recipe's method %s chooses codes once, but training rounds "
                             "weights to nearest in every step; leave \"method\" out",
                             p->layers[i].name, nib__ptq_names[p->layers[i].method]);
    return choose_qat(p, err);
}

/* ---- keys that are not done as written ---- */

static nib_ledger_setting line_of(const nib_train_asked *asked, nib_setting_relation relation)
{
    return (nib_ledger_setting){.code = "training-key",
                                .name = asked->key,
                                .asked = asked->value,
                                .by = asked->by,
                                .relation = relation};
}

/* Data parallelism is shards times replicas. Each rank holds all weights, so shards are replicas
 * that were meant to hold less. */
static void tell_ranks(nib_plan *p)
{
    const nib_train_config *c = &p->model->net.train;
    const int64_t ranks = p->request.ranks > 0 ? p->request.ranks : 1;
    const int64_t replicas = nib__max(c->replicas, 1), shards = nib__max(c->shards, 1);
    const int64_t wanted = replicas > INT64_MAX / shards ? INT64_MAX : replicas * shards;
    const bool fits = c->shards == -1 ? ranks % replicas == 0 : wanted == ranks;
    const bool is_sharded = c->shards > 1 || (c->shards == -1 && ranks > replicas);
    const nib_train_asked *asked =
        is_sharded || !c->asked.replicas.key ? &c->asked.shards : &c->asked.replicas;
    static const char all_weights[] =
        "each rank holds all weights and trains on its own part of the data";
    if (!asked->key || (fits && !is_sharded))
        return;
    /* -1 is torchtitan's default, so it does not request any number of shards */
    nib_ledger_setting line = line_of(asked, !fits             ? NIB_SETTING_OTHER
                                             : c->shards == -1 ? NIB_SETTING_NARROWER
                                                               : NIB_SETTING_NONE);
    char count[24];
    snprintf(count, sizeof count, "%" PRId64, ranks);
    if (fits) {
        nib__ledger_add_setting(&p->assignment.ledger, &line, "%s", all_weights);
        return;
    }
    line.done = count;
    nib__ledger_add_setting(&p->assignment.ledger, &line,
                            "this run has %" PRId64 " rank%s; start %" PRId64
                            " with `mpirun -n %" PRId64 " nibble train`%s%s",
                            ranks, ranks == 1 ? "" : "s", wanted, wanted, is_sharded ? "; " : "",
                            is_sharded ? all_weights : "");
}

/* Options of the command that overrule a key of the config. */
static void tell_options(nib_plan *p)
{
    const nib_train_config *c = &p->model->net.train;
    nib_ledger *to = &p->assignment.ledger;
    nib_ledger_setting dtype = line_of(&c->asked.dtype, NIB_SETTING_OTHER);
    nib_ledger_setting tokenizer = line_of(&c->asked.tokenizer, NIB_SETTING_OTHER);
    const nib_ledger_setting recipe = {
        .code = "recipe", .name = "recipe", .asked = c->recipe, .by = NIB_BY_CONFIG};
    dtype.code = "dtype";
    dtype.asked = c->asked.dtype.key ? nib__type_name(c->dtype) : NULL;
    tokenizer.asked = c->asked.tokenizer.key ? c->tokenizer : NULL;
    nib__report_overruled(to, &dtype, "--dtype", p->request.dtype);
    nib__report_overruled(to, &tokenizer, "--tokenizer", p->model->tokenizer_path);
    nib__report_overruled(to, &recipe, "--recipe", p->request.recipe);
}

void nib__plan_tell_training(nib_plan *p)
{
    const nib_train_config *c = &p->model->net.train;
    if (!p->model->net.training)
        return;
    tell_options(p);
    tell_ranks(p);
    if (!c->asked.export_dtype.key || c->export_last || c->qat || p->request.exports)
        return;
    const nib_ledger_setting line = line_of(&c->asked.export_dtype, NIB_SETTING_NONE);
    nib__ledger_add_setting(
        &p->assignment.ledger, &line,
        "no model is written; checkpoint.last_save_in_hf or `nibble train --export` writes one");
}

/* ---- quantization-aware training ---- */

static void note_qat(nib_plan *p)
{
    nib_ledger *to = &p->assignment.ledger;
    size_t layers = 0, tables = 0;
    for (size_t i = 0; i < p->model->net.site_count; i++) {
        const bool is_table = p->layers[i].role == NIB_ROLE_EMBED;
        layers += !is_table && nib__scheme_is_quantized(&p->layers[i].qat);
        tables += is_table && nib__scheme_is_quantized(&p->layers[i].qat);
    }
    if (layers == 0)
        return;
    nib__ledger_add_note(to, "qat",
                         "%zu linear layers have quantization-aware training: weights, and inputs "
                         "if the recipe quantizes them, are quantized and dequantized before each "
                         "product in %s; gradients ignore the rounding",
                         layers, nib__type_name(p->policy.dtype));
    if (tables > 0)
        nib__ledger_add_note(to, "qat",
                             "the embedding is trained unquantized, and quantized at the end");
}

/* wgrad_with_hp affects only quantized products. */
static void note_wgrad(nib_plan *p)
{
    const nib_train_config *c = &p->model->net.train;
    if (!p->policy.training || !p->policy.wgrad_with_hp)
        return;
    for (size_t i = 0; i < p->assignment.count; i++)
        if (p->layers[i].role != NIB_ROLE_EMBED &&
            nib__scheme_is_quantized(&p->assignment.layers[i].done))
            return;
    const nib_ledger_setting line = line_of(&c->asked.wgrad_with_hp, NIB_SETTING_NONE);
    nib__ledger_add_setting(&p->assignment.ledger, &line,
                            "no linear layer has quantized products%s",
                            c->qat ? "; quantize.qat trains with float products" : "");
}

void nib__plan_note_training(nib_plan *p)
{
    note_qat(p);
    note_wgrad(p);
}
