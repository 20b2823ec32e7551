/* SPDX-License-Identifier: Apache-2.0
 *
 * Models of the public interface: opening and closing, checks of their files.
 */
#include "model_handle.h"
#include "public_struct.h"

#include "packed.h"

#include <inttypes.h>
#include <stdio.h>

/* Copies a path, or keeps NULL. */
static nib_status copy_path(char **out, nib_model *m, const char *path, nib_err *err)
{
    *out = path != NULL ? nib__arena_copy(&m->net.arena, path, strlen(path)) : NULL;
    return *out != NULL || path == NULL ? NIB_OK : nib__fail_memory(err, strlen(path), "a path");
}

nib_status nib__model_reordered(nib_model **out, const nib_model *like, nib_err *err)
{
    nib_engine *engine = like->engine;
    nib_model *m = nib__calloc(&engine->allocator, 1, sizeof *m);
    if (m == NULL)
        return nib__fail_memory(err, sizeof *m, "the model");
    m->engine = engine;
    nib__engine_hold(engine);
    nib_status status =
        nib__network_open(&m->net, engine, like->net.path, NIB_NETWORK_REORDERED, err);
    if (status == NIB_OK)
        status = nib__report_stored_config(m, err);
    if (status == NIB_OK)
        status = copy_path(&m->tokenizer_path, m, like->tokenizer_path, err);
    if (status == NIB_OK)
        *out = m;
    else
        nib_model_close(m);
    return status;
}

nib_status nib_model_open(nib_model **out, nib_engine *engine, const char *path,
                          const nib_model_options *options, nib_err *err)
{
    NIB_NEED(err, "out, engine, path", out, engine, path);
    NIB_OPTIONS(nib_model_options, o, options, err);
    NIB_TRY(nib__strings_check("nib_model_options.overrides", &o.overrides, err));
    if (o.draft_head < 0 || o.draft_head > 1)
        return nib__fail(err, NIB_USAGE,
                         "nib_model_options.draft_head is %" PRId64
                         "; 1 opens the draft head, 0 the model",
                         o.draft_head);
    NIB_TRY(nib__engine_check(engine, err));
    nib_model *m = nib__calloc(&engine->allocator, 1, sizeof *m);
    if (!m)
        return nib__fail_memory(err, sizeof *m, "the model");
    m->engine = engine;
    nib__engine_hold(engine);
    nib_status status = nib__network_open_with(&m->net, engine, path,
                                               o.inspect           ? NIB_NETWORK_INSPECT
                                               : o.convert         ? NIB_NETWORK_CONVERT
                                               : o.draft_head == 1 ? NIB_NETWORK_DRAFT
                                               : o.config_only     ? NIB_NETWORK_CONFIG
                                                                   : NIB_NETWORK_RUN,
                                               o.overrides, err);
    if (status == NIB_OK)
        status = nib__report_stored_config(m, err);
    if (status != NIB_OK) {
        nib_model_close(m);
        return status;
    }
    status =
        copy_path(&m->tokenizer_path, m, o.tokenizer ? o.tokenizer : m->net.train.tokenizer, err);
    if (status != NIB_OK) {
        nib_model_close(m);
        return status;
    }
    if (o.cache_dir) {
        m->cache_dir = nib__arena_copy(&m->net.arena, o.cache_dir, strlen(o.cache_dir));
        if (!m->cache_dir) {
            nib_model_close(m);
            return nib__fail_memory(err, strlen(o.cache_dir), "a path");
        }
    }
    /* open a named tokenizer at once, so that a wrong one also fails commands that do not use it */
    const nib_tokenizer *named;
    if (o.tokenizer && !o.inspect && !o.convert)
        status = nib_model_tokenizer(&named, m, err);
    if (status != NIB_OK) {
        nib_model_close(m);
        return status;
    }
    *out = m;
    return NIB_OK;
}

void nib__model_hold(nib_model *model) { nib__holders_add(&model->holders); }

void nib_model_close(nib_model *model)
{
    if (!model || !nib__holders_leave(&model->holders))
        return;
    nib_engine *engine = model->engine;
    nib__chat_close(model->chat);
    nib__tokenizer_close(model->tokenizer);
    nib__packed_close(model->packed);
    nib__network_close(&model->net);
    nib__release(&engine->allocator, model);
    nib_engine_close(engine);
}

nib_status nib__model_runs(const nib_model *model, nib_err *err)
{
    if (!model->net.inspected && !model->net.unknown)
        return NIB_OK;
    if (!model->net.inspected)
        return nib__fail(err, NIB_USAGE,
                         "%s: the model's architecture is unknown: it was opened only for "
                         "conversion (nib_model_options.convert)",
                         model->net.directory);
    return nib__fail(err, NIB_USAGE,
                     "%s: the model was opened only for inspection (nib_model_options.inspect)",
                     model->net.directory);
}

const char *nib__kept_path(nib_model *m, nib_hash what, const char *end)
{
    char text[33], name[64];
    snprintf(name, sizeof name, "%s.%s", nib__hash_text(text, what), end);
    return nib__path_join(&m->net.arena, m->cache_dir, name);
}

nib_status nib__model_check_files(nib_model *m, nib_status status, nib_err *err)
{
    status = nib__checkpoint_check_files(m->net.checkpoint, status, err);
    if (m->packed != NULL)
        status = nib__packed_check(m->packed, status, err);
    return m->tokenizer != NULL ? nib__tokenizer_read(m->tokenizer, status, err) : status;
}

void nib__log_settings(const nib_engine *engine, const nib_ledger *ledger, size_t first)
{
    const nib_callbacks *c = &engine->callbacks;
    nib_ledger rest = *ledger;
    nib_text text;
    if (c->log == NULL || first >= ledger->setting_count)
        return;
    rest.settings += first;
    rest.setting_count -= first;
    nib__text_init(&text, &engine->allocator);
    nib__ledger_render_settings(&rest, NIB_SETTING_EQUIVALENT, &text);
    if (text.size > 0 && !text.failed) {
        text.at[text.size - 1] = '\0'; /* the log ends lines itself */
        c->log(c->ctx, text.at);
    }
    nib__text_free(&text);
}
