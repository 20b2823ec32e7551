/* SPDX-License-Identifier: Apache-2.0
 *
 * What --pack adds to an output: its weights packed for this machine, and its tokenizer's tables.
 */
#include "convert.h"
#include "packed.h"

/* Writes the tables of its tokenizer. One that does not open is reported when it is used. */
static nib_status pack_tokenizer(const nib_packing_job *w, const char *directory, nib_err *err)
{
    const nib_allocator *a = &w->model->engine->allocator;
    const char *json = nib__path_join(w->arena, directory, "tokenizer.json"),
               *config = nib__path_join(w->arena, directory, "tokenizer_config.json"),
               *tables = nib__path_join(w->arena, directory, NIB_TABLES_NAME);
    nib_err why = {NIB_OK, ""};
    uint64_t bytes = 0;
    char size[32];
    if (!json || !config || !tables)
        return nib__fail_memory(err, strlen(w->out), "a path");
    if (nib__path_kind(json) != NIB_PATH_FILE)
        return NIB_OK;
    if (nib__path_kind(config) != NIB_PATH_FILE)
        config = NULL;
    const nib_status status = nib__tokenizer_write_tables(tables, json, config, &bytes, a, &why);
    if (status == NIB_OK)
        nib__ledger_add_note(w->ledger, "packed", "%s/%s: the tokenizer, %s", w->out,
                             NIB_TABLES_NAME, nib__format_bytes(size, bytes));
    else if (status == NIB_BAD_INPUT || status == NIB_UNSUPPORTED)
        nib__ledger_add_note(w->ledger, "packed", "no tokenizer tables: %s", why.text);
    else
        return nib__fail(err, status, "%s", why.text);
    return NIB_OK;
}

nib_status nib__pack_output(const nib_packing_job *w, const char *directory, nib_err *err)
{
    nib_engine *engine = w->model->engine;
    nib_model *made = NULL;
    nib_plan *plan = NULL;
    nib_packed_report report;
    char size[32];
    const char *place = nib__path_join(w->arena, directory, NIB_PACKED_NAME);
    if (!place)
        return nib__fail_memory(err, strlen(directory), "a path");
    nib_status status = nib_model_open(&made, engine, directory, NULL, err);
    if (status == NIB_OK)
        status = nib_plan_open(&plan, made, NULL, err);
    if (status == NIB_OK)
        status = nib_plan_status(plan, err);
    if (status == NIB_OK)
        status = nib__packed_write(&report, place, &made->net, &plan->assignment, err);
    if (status == NIB_OK)
        nib__ledger_add_note(w->ledger, "packed", "%s/%s: %zu weights, %s", w->out, NIB_PACKED_NAME,
                             report.count, nib__format_bytes(size, report.bytes));
    nib_plan_close(plan);
    nib_model_close(made);
    return status == NIB_OK ? pack_tokenizer(w, directory, err) : status;
}
