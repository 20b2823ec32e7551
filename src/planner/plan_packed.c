/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights beside the checkpoint or in the cache directory: how many the plan uses, or why
 * they are packed at load. They have the same bytes either way, so this is no substitution. Also
 * what a session saves there for the next one.
 */
#include "plan_handle.h"
#include "packed.h"

#include <stdio.h>

/* True if a row of the layer reads a packed weight; *in_file: the file has all its layouts. */
static bool reads_packed(const nib_plan *p, size_t i, bool *in_file)
{
    const nib_layer_plan *plan = &p->assignment.layers[i];
    bool any = false;
    *in_file = nib__scheme_same_weight(&p->layers[i].stored, &plan->done);
    for (int u = 0; u < plan->use_count; u++) {
        const nib_packing *packing = plan->uses[u].kernel ? plan->uses[u].kernel->packing : NULL;
        if (packing == NULL)
            continue;
        any = true;
        *in_file = *in_file && nib__packed_has(p->model->packed, p->layers[i].name, packing);
    }
    return any;
}

bool nib__plan_is_packed(const nib_plan *p, size_t i)
{
    bool in_file;
    return reads_packed(p, i, &in_file) && in_file;
}

/* ---- the files of --cache-dir ---- */

/* One file per model and choice of layouts, so another device or kernel has its own. NULL: no
 * stored weight is read packed; weights that a recipe quantizes are packed at load. */
static const char *packed_cache_path(const nib_plan *p)
{
    nib_model *m = p->model;
    nib_hash parts[2] = {nib__path_hash(nib__checkpoint_path(m->net.checkpoint)), {0, 0}};
    nib_text layouts;
    const char *path = NULL;
    nib__text_init(&layouts, &m->engine->allocator);
    for (size_t i = 0; i < p->assignment.count; i++) {
        const nib_layer_plan *plan = &p->assignment.layers[i];
        const bool stored = nib__scheme_same_weight(&p->layers[i].stored, &plan->done);
        for (int u = 0; u < plan->use_count && stored; u++)
            if (plan->uses[u].kernel != NULL && plan->uses[u].kernel->packing != NULL)
                nib__text_format(&layouts, "%zu %s\n", i, plan->uses[u].kernel->packing->name);
    }
    if (!layouts.failed && layouts.size != 0) {
        parts[1] = nib__hash_bytes(layouts.at, layouts.size);
        path = nib__kept_path(m, nib__hash_bytes(parts, sizeof parts), "pack");
    }
    nib__text_free(&layouts);
    return path;
}

/* Why files cannot be written there; NULL: no known reason. */
static const char *find_obstacle(const char *directory)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", directory);
    for (;;) { /* the deepest part of the path that exists */
        const nib_path_kind kind = nib__path_kind(path);
        if (kind == NIB_PATH_DIRECTORY)
            return nib__path_writable(path) ? NULL : "the directory is not writable";
        if (kind != NIB_PATH_NONE)
            return "a file of this name is in the way";
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return nib__path_writable(".") ? NULL : "the directory is not writable";
        slash[slash == path] = 0; /* the root keeps its slash */
    }
}

static nib_status open_at(nib_model *m, const char *path, const char *then)
{
    nib_err err = {NIB_OK, ""};
    const nib_engine *e = m->engine;
    const nib_status status =
        nib__packed_open(&m->packed, path, m->net.checkpoint, e->pool, &e->allocator, &err);
    if (status != NIB_OK)
        nib__ledger_add_note(&m->net.notes, "packed", "%s; %s", err.text, then);
    if (m->packed != NULL)
        m->packed_path = path;
    m->net.packed = m->packed;
    return status;
}

/* Once per model, because it reads the whole file. */
static void open_packed(nib_plan *p)
{
    nib_model *m = p->model;
    if (m->packed_asked)
        return;
    m->packed_asked = true;
    const char *beside = nib__packed_path(m->net.checkpoint, &m->net.arena);
    if (beside != NULL &&
        (open_at(m, beside, "the weights are packed at load") != NIB_OK || m->packed != NULL))
        return;
    const char *kept = m->cache_dir != NULL ? packed_cache_path(p) : NULL;
    if (kept == NULL)
        return;
    (void)open_at(m, kept, "it will be written again");
    m->packed_due = m->packed == NULL;
    m->packed_path = kept;
}

void nib__plan_open_packed(nib_plan *p)
{
    nib_model *m = p->model;
    const bool whole = m->net.checkpoint != NULL && !m->net.draft_head; /* as packs are */
    if (!p->machine.here || p->policy.training || !whole)
        return;
    open_packed(p);
    nib__model_tables(m); /* now, so the plan can note what it finds */
    const char *why = m->cache_dir != NULL ? find_obstacle(m->cache_dir) : NULL;
    if (why == NULL)
        return;
    m->packed_due = false, m->tables = NULL;
    nib__ledger_add_setting(&p->assignment.ledger,
                            &(nib_ledger_setting){.code = "cache",
                                                  .name = "--cache-dir",
                                                  .asked = m->cache_dir,
                                                  .by = NIB_BY_OPTION,
                                                  .relation = NIB_SETTING_NONE},
                            "%s", why);
}

static void log_kept(const nib_model *m, const char *path, const char *what, uint64_t bytes)
{
    const nib_callbacks *c = &m->engine->callbacks;
    char line[4352], size[32];
    if (c->log == NULL)
        return;
    snprintf(line, sizeof line, "kept: %s: %s, %s", path, what, nib__format_bytes(size, bytes));
    c->log(c->ctx, line);
}

static nib_status keep_packed(nib_model *m, const nib_plan *p, nib_err *err)
{
    nib_packed_report report;
    char what[64];
    const nib_engine *e = m->engine;
    NIB_TRY(nib__packed_write(&report, m->packed_path, &m->net, &p->assignment, err));
    NIB_TRY(nib__packed_open(&m->packed, m->packed_path, m->net.checkpoint, e->pool, &e->allocator,
                             err));
    m->net.packed = m->packed;
    snprintf(what, sizeof what, "%zu packed weights", report.count);
    log_kept(m, m->packed_path, what, report.bytes);
    return NIB_OK;
}

static nib_status keep_tables(nib_model *m, nib_err *err)
{
    nib_arena *arena = &m->net.arena;
    const char *json = nib__path_join(arena, m->net.directory, "tokenizer.json"),
               *config = nib__path_join(arena, m->net.directory, "tokenizer_config.json");
    uint64_t bytes = 0;
    if (json == NULL || config == NULL)
        return nib__fail_memory(err, strlen(m->net.directory), "a path");
    if (nib__path_kind(config) != NIB_PATH_FILE)
        config = NULL;
    const nib_status status =
        nib__tokenizer_write_tables(m->tables, json, config, &bytes, &m->engine->allocator, err);
    if (status == NIB_OK)
        log_kept(m, m->tables, "the tokenizer's tables", bytes);
    return status == NIB_BAD_INPUT || status == NIB_UNSUPPORTED ? NIB_OK : status;
}

nib_status nib__plan_keep(nib_model *m, const nib_plan *p, nib_err *err)
{
    nib_err why = {NIB_OK, ""};
    const nib_callbacks *c = &m->engine->callbacks;
    if (!m->packed_due && m->tables == NULL)
        return NIB_OK;
    nib_status status = nib__directories_make(m->cache_dir, &why);
    if (status == NIB_OK && m->packed_due)
        status = keep_packed(m, p, &why);
    if (status == NIB_OK && m->tables != NULL)
        status = keep_tables(m, &why);
    m->packed_due = false, m->tables = NULL;
    if (status == NIB_OK)
        return NIB_OK;
    if (status == NIB_CANCELLED || (p->request.strict && status != NIB_EXISTS))
        return nib__fail(err, status, "%s", why.text);
    if (c->log != NULL)
        c->log(c->ctx, why.text);
    return NIB_OK;
}

/* ---- notes ---- */

void nib__plan_note_packed(nib_plan *p)
{
    size_t found = 0, all = 0;
    if (p->model->packed_due)
        nib__ledger_add_note(&p->assignment.ledger, "packed",
                             "packed weights are not in %s yet: a run writes them there",
                             p->model->cache_dir);
    if (p->model->packed == NULL || !p->machine.here)
        return;
    for (size_t i = 0; i < p->assignment.count; i++) {
        bool in_file;
        if (!reads_packed(p, i, &in_file))
            continue;
        all++;
        found += in_file;
    }
    if (all == 0)
        nib__ledger_add_note(&p->assignment.ledger, "packed",
                             "packed weights in %s: not used, no kernel of this plan reads a "
                             "packed weight",
                             p->model->packed_path);
    else
        nib__ledger_add_note(&p->assignment.ledger, "packed",
                             "packed weights from %s: %zu of %zu%s", p->model->packed_path, found,
                             all, found == all ? "" : "; the others are packed at load");
}
