/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices for quantizing: the one that computes codes, and the one that will run the result. The
 * first is this CPU, or a device in this machine that has a row for NIB_OP_QUANT_W. The CPU in
 * place of that device is a substitution like any other.
 */
#include "convert.h"
#include "quant_device.h"

#include "variant.h"

#include <stdio.h>

/* True if this CPU is asked for, or nothing. */
static bool is_this_cpu(const nib_engine *engine, const char *device)
{
    return device == NULL || strcmp(device, engine->here.name) == 0 || strcmp(device, "auto") == 0;
}

/* Joins the reasons of a line into one text. */
static const char *join_reasons(nib_ledger *ledger, const nib_ledger_layer *line)
{
    const char *all = "";
    for (size_t i = 0; i < line->reason_count && all != NULL; i++)
        all = nib__ledger_text(ledger, "%s%s%s", all, i == 0 ? "" : "; ", line->reasons[i].text);
    return all != NULL ? all : "";
}

/* Falls back to the CPU, if allowed: no kernel there does it, or the device does not open. */
static nib_status fall_back_to_cpu(const nib_quant_device *d, nib_ledger *ledger, nib_err *err)
{
    nib_ledger_layer *line = &ledger->layers[d->line];
    const char *there = d->machine->name, *here = d->here->name;
    if (d->strict || d->allowed == NULL)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "quantize: %sasked codes@%s: %s; %s: done codes@%s, the same bits as "
                         "without --device",
                         d->strict ? "--strict: " : "", there, join_reasons(ledger, line),
                         d->strict ? "--allow device without --strict" : "--allow device", here);
    line->rung = NIB_RUNG_DEVICE;
    line->allowed = d->allowed;
    line->done = nib__ledger_text(ledger, "codes@%s", here);
    return NIB_OK;
}

/* Finds the row and opens the device; else adds the reasons to the line. */
static bool find_row(nib_quant_device *d, nib_engine *engine, nib_ptq_method method, bool dry_run,
                     nib_ledger *ledger)
{
    const nib_policy policy = {.cache_bytes = 0};
    nib_ledger_layer *line = &ledger->layers[d->line];
    nib_err why = {NIB_OK, ""};
    nib_query query;
    nib__plan_op_query(&query, NIB_OP_QUANT_W, NIB_TYPE_F32, d->machine);
    query.fact[NIB_FACT_METHOD] = method;
    d->row = nib__plan_op_best(&query, d->machine);
    if (d->row == NULL) {
        nib__explain_operation(ledger, line, &query, &policy, d->machine);
        return false;
    }
    if (dry_run || nib__engine_gpu(&d->gpu, engine, d->machine, &why) == NIB_OK)
        return true;
    nib__ledger_add_reason(ledger, line, "refused", nib__ledger_text(ledger, "%s", why.text));
    return false;
}

nib_status nib__quantize_where(nib_quant_device **out, nib_ledger *ledger, nib_model *model,
                               const nib_quantize_options *options, nib_ptq_method method,
                               nib_err *err)
{
    const nib_request *r = options->request;
    nib_engine *engine = model->engine;
    if (is_this_cpu(engine, r->device))
        return NIB_OK;
    nib_quant_device *d = nib__arena_take(&ledger->arena, 1, sizeof *d);
    nib_machine *asked = nib__arena_take(&ledger->arena, 1, sizeof *asked);
    if (d == NULL || asked == NULL)
        return nib__fail_memory(err, sizeof *d + sizeof *asked, "a device");
    NIB_TRY(nib__engine_machine(engine, asked, r->device, &ledger->arena, err));
    if (!asked->here)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "--device %s: weights are quantized on this device, but this machine "
                         "does not have it; --for %s plans the result for it",
                         asked->name, asked->name);
    const bool allowed = nib__strings_hold(&r->allow, nib__rung_names[NIB_RUNG_DEVICE]);
    *d = (nib_quant_device){.machine = asked,
                            .here = &engine->here,
                            .allowed = allowed ? "by --allow device" : NULL,
                            .strict = r->strict,
                            .line = ledger->layer_count};
    nib_ledger_layer *line = nib__ledger_add_layer(ledger, "quantize");
    if (line == NULL)
        return nib__fail_memory(err, sizeof *line, "the ledger");
    line->role = NIB_LEDGER_OPERATION;
    line->asked = line->done = nib__ledger_text(ledger, "codes@%s", asked->name);
    if (!find_row(d, engine, method, options->dry_run, ledger))
        return fall_back_to_cpu(d, ledger, err);
    *out = d;
    return NIB_OK;
}

/* Notes a plan: "8da4w on h200: 36 linear layers: ..., 1.2 ms per token predicted". */
static void note_plan(nib_ledger *ledger, const nib_plan *plan)
{
    char time[32];
    nib_text text;
    nib__text_init(&text, ledger->arena.allocator);
    nib__ledger_summary(&plan->assignment.ledger, &text);
    nib__ledger_add_note(ledger, "for", "planned for %s: %s; %s per token predicted",
                         plan->machine.name, text.failed ? "" : text.at,
                         nib__format_seconds(time, plan->assignment.predicted_token_s));
    ledger->failed = ledger->failed || text.failed;
    nib__text_free(&text);
}

/* Refuses --allow without an effect: without a plan it only applies to --device. */
static nib_status check_allowed(const nib_engine *engine, const nib_request *r, nib_err *err)
{
    const char *useless = NULL;
    for (size_t i = 0; i < r->allow.count; i++)
        if (!nib__setting_code_is_known(r->allow.items[i]) &&
            (is_this_cpu(engine, r->device) ||
             strcmp(r->allow.items[i], nib__rung_names[NIB_RUNG_DEVICE]) != 0))
            useless = r->allow.items[i];
    return useless == NULL ? NIB_OK
                           : nib__fail(err, NIB_USAGE,
                                       "--allow %s has no effect: quantizing has only the rung "
                                       "device, for --device; the other rungs need a plan, with "
                                       "--for",
                                       useless);
}

nib_status nib__quantize_for(nib_plan **out, nib_ledger *ledger, nib_model *model,
                             const nib_quantize_options *options, nib_err *err)
{
    nib_request request = *options->request;
    char place[96];
    if (options->for_device == NULL)
        return check_allowed(model->engine, &request, err);
    request.device = options->for_device;
    nib_err why = {NIB_OK, ""};
    nib_status status = nib__plan_make(out, model, &request, NULL, &why);
    if (status == NIB_OK)
        status = nib_plan_status(*out, &why);
    if (status == NIB_OK)
        note_plan(ledger, *out);
    else
        nib__fail(err, status, "%s", why.text);
    snprintf(place, sizeof place, "--for %.80s", options->for_device);
    return status == NIB_OK ? NIB_OK : nib__fail_in(err, status, place);
}
