/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run does: written down, and compared among its ranks.
 */
#include "train_settings.h"

#include "ranks.h"

#include <stdio.h>

/* The config as the plan follows it: an option may ask for another recipe. */
static nib_train_config planned(const nib_trainer *t)
{
    nib_train_config c = *t->config;
    if (t->plan->request.recipe)
        c.recipe = t->plan->request.recipe;
    c.dtype = t->plan->policy.dtype;
    c.wgrad_with_hp = t->plan->policy.wgrad_with_hp;
    return c;
}

/* One text, since lists are not compared item by item; null: it was not given. */
static void put_patterns(nib_jsonw *w, const char *key, const nib_strings *patterns,
                         const nib_allocator *a)
{
    nib_text text;
    nib__text_init(&text, a);
    for (size_t i = 0; i < patterns->count; i++)
        nib__text_format(&text, "%s%s", i > 0 ? "," : "", patterns->items[i]);
    w->text->failed |= text.failed;
    nib__jsonw_pair_string(w, key, text.at);
    nib__text_free(&text);
}

void nib__trainer_settings(nib_jsonw *w, const nib_trainer *t)
{
    const nib_train_config c = planned(t);
    char hash[33];
    nib__jsonw_object(w);
    nib__train_config_put(w, &c);
    put_patterns(w, "--skip", &t->plan->request.skip, &t->engine->allocator);
    put_patterns(w, "--only", &t->plan->request.only, &t->engine->allocator);
    nib__jsonw_pair_string(w, "schemes", nib__hash_text(hash, nib__trainer_schemes(t)));
    nib__jsonw_object_end(w);
}

nib_hash nib__trainer_schemes(const nib_trainer *t)
{
    const nib_assignment *plan = &t->plan->assignment;
    nib_hash all = {0};
    for (size_t i = 0; i < plan->count; i++) {
        const nib_layer_plan *l = &plan->layers[i];
        char done[64], qat[64] = "", line[512];
        nib__scheme_name(done, &l->done);
        if (nib__scheme_is_quantized(&l->layer->qat))
            nib__scheme_name(qat, &l->layer->qat);
        snprintf(line, sizeof line, "%s %s %s", l->layer->name, done, qat);
        const nib_hash both[] = {all, nib__hash_bytes(line, strlen(line))};
        all = nib__hash_bytes(both, sizeof both);
    }
    return all;
}

nib_hash nib__text_hash(const nib_documents *text)
{
    return nib__hash_bytes(text->text, text->size);
}

/* ---- among ranks ---- */

/* Hosts may keep their files in other places: a path is none of it, but whether there is one. */
static nib_status hash_settings(nib_hash *out, const nib_trainer *t, bool exports, nib_err *err)
{
    nib_train_config c = planned(t);
    nib_text text;
    nib_jsonw w;
    c.dataset = c.initial_load = c.recipe = NULL; /* what they hold is compared */
    nib__text_init(&text, &t->engine->allocator);
    nib__jsonw_init(&w, &text, 0);
    nib__jsonw_object(&w);
    nib__train_config_put(&w, &c);
    nib__jsonw_pair_bool(&w, "save", c.save);
    nib__jsonw_pair_int(&w, "interval", c.interval);
    nib__jsonw_pair_int(&w, "load_step", c.load_step);
    nib__jsonw_pair_bool(&w, "export", exports);
    nib__jsonw_pair_bool(&w, "export_last", c.export_last);
    nib__jsonw_pair_int(&w, "export_dtype", c.export_dtype);
    nib__jsonw_pair_int(&w, "log_every", c.log_every);
    nib__jsonw_pair_bool(&w, "count_casts", c.count_casts);
    nib__jsonw_pair_double(&w, "spike", c.spike);
    nib__jsonw_pair_double(&w, "norm_spike", c.norm_spike);
    nib__jsonw_pair_bool(&w, "skip_bad_steps", c.skip_bad_steps);
    nib__jsonw_pair_bool(&w, "validation", c.validation != NULL);
    nib__jsonw_pair_int(&w, "validation_every", c.validation_every);
    nib__jsonw_pair_int(&w, "validation_steps", c.validation_steps);
    nib__jsonw_object_end(&w);
    const nib_status status =
        text.failed ? nib__fail_memory(err, text.size, "the settings") : NIB_OK;
    if (status == NIB_OK)
        *out = nib__hash_bytes(text.at, text.size);
    nib__text_free(&text);
    return status;
}

/* Of what a device does, which may have refused some of it on one rank alone; rows of the CPU are
 * of one contract on every host. */
static nib_status hash_plan(nib_hash *out, const nib_assignment *plan, nib_engine *engine,
                            nib_err *err)
{
    nib_text rows;
    nib__text_init(&rows, &engine->allocator);
    for (size_t i = 0; i < plan->count; i++)
        for (int u = 0; u < plan->layers[i].use_count; u++) {
            const nib_kernel *row = plan->layers[i].uses[u].kernel;
            if (row->device != NIB_DEVICE_CPU)
                nib__text_format(&rows, "%zu %s\n", i, row->name);
        }
    *out = nib__hash_bytes(rows.at != NULL ? rows.at : "", rows.size);
    const bool failed = rows.failed;
    nib__text_free(&rows);
    return failed ? nib__fail_memory(err, 4096, "the names of kernels") : NIB_OK;
}

typedef struct compared {
    nib_hash settings, schemes, text, tokenizer, plan;
    int64_t micro_batches, lines;
} compared;

static nib_status gather(compared *out, const nib_trainer *t, bool exports, nib_err *err)
{
    *out = (compared){.schemes = nib__trainer_schemes(t),
                      .text = nib__text_hash(&t->data.documents),
                      .lines = t->data.documents.lines,
                      .tokenizer = t->tokenizer,
                      .micro_batches = t->micro_batches};
    NIB_TRY(hash_plan(&out->plan, &t->plan->assignment, t->engine, err));
    return hash_settings(&out->settings, t, exports, err);
}

static nib_status compare(const compared *first, const compared *mine, nib_err *err)
{
    static const char same_files[] = "every host needs the same files and the same options";
    if (!nib__hash_equal(first->settings, mine->settings) ||
        first->micro_batches != mine->micro_batches)
        return nib__fail(err, NIB_BAD_INPUT, "this rank has another config than rank 0; %s",
                         same_files);
    if (!nib__hash_equal(first->schemes, mine->schemes))
        return nib__fail(err, NIB_BAD_INPUT,
                         "this rank has layers in other schemes than rank 0's, by another recipe "
                         "or another plan; %s",
                         same_files);
    if (!nib__hash_equal(first->text, mine->text) || first->lines != mine->lines)
        return nib__fail(err, NIB_BAD_INPUT, "this rank reads another text than rank 0; %s",
                         same_files);
    if (!nib__hash_equal(first->tokenizer, mine->tokenizer))
        return nib__fail(err, NIB_BAD_INPUT, "this rank has another tokenizer than rank 0; %s",
                         same_files);
    if (!nib__hash_equal(first->plan, mine->plan))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "its device does other layers, or with other kernels, than rank 0's; "
                         "--without and --place give all ranks one plan");
    return NIB_OK;
}

nib_status nib__ranks_same_settings(const nib_trainer *t, bool exports, nib_err *err)
{
    compared mine, first;
    if (!t->ranks)
        return NIB_OK;
    NIB_TRY(nib_ranks_agree(t->ranks, gather(&mine, t, exports, err), err));
    first = mine;
    NIB_TRY(nib__ranks_share(t->ranks, &first, sizeof first, "the settings of rank 0", err));
    return nib_ranks_agree(t->ranks, compare(&first, &mine, err), err);
}

nib_status nib__ranks_same_start(const nib_trainer *t, const nib_documents *validation,
                                 nib_err *err)
{
    struct {
        nib_hash weights, text;
        int64_t taken, lines;
    } mine = {.taken = t->optimizer.steps}, first;
    if (!t->ranks)
        return NIB_OK;
    mine.weights = nib__hash_bytes(t->weights, t->params.total * sizeof *t->weights);
    if (validation) {
        mine.text = nib__text_hash(validation);
        mine.lines = validation->lines;
    }
    first = mine;
    NIB_TRY(nib__ranks_share(t->ranks, &first, sizeof first, "the start of rank 0", err));
    const char *what = NULL;
    if (!nib__hash_equal(first.weights, mine.weights) || first.taken != mine.taken)
        what = "starts with other weights than rank 0";
    else if (!nib__hash_equal(first.text, mine.text) || first.lines != mine.lines)
        what = "validates another text than rank 0";
    return nib_ranks_agree(
        t->ranks,
        what == NULL ? NIB_OK
                     : nib__fail(err, NIB_BAD_INPUT,
                                 "this rank %s; every host needs the same files and the same "
                                 "program",
                                 what),
        err);
}
