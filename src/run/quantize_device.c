/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices of quantizing: the one that computes codes, and the one that will run them. Weights are
 * quantized by the CPU; the table has no quantizer of weights for another device, so that is a
 * substitution like any other.
 */
#include "library.h"

#include "way.h"

#include <stdio.h>

/* No other device than this CPU is asked for. */
static bool is_here(const nib_engine *engine, const char *device)
{
    return device == NULL || strcmp(device, engine->here.name) == 0 || strcmp(device, "auto") == 0;
}

static bool allows_device(const nib_strings *allow)
{
    for (size_t i = 0; i < allow->count; i++)
        if (strcmp(allow->items[i], nib__rung_names[NIB_RUNG_DEVICE]) == 0)
            return true;
    return false;
}

static void write_line(nib_ledger *ledger, const nib_machine *asked, const nib_machine *here,
                       const char *why)
{
    nib_ledger_layer *line = nib__ledger_add_layer(ledger, "quantize");
    if (line == NULL)
        return;
    line->role = NIB_LEDGER_OPERATION;
    line->rung = NIB_RUNG_DEVICE;
    line->asked = nib__ledger_text(ledger, "codes@%s", asked->name);
    line->done = nib__ledger_text(ledger, "codes@%s", here->name);
    line->allowed = "by --allow device";
    nib__ledger_add_reason(ledger, line, "no-row", nib__ledger_text(ledger, "%s", why));
}

nib_status nib__quantize_where(nib_ledger *ledger, nib_model *model,
                               const nib_quantize_options *options, nib_err *err)
{
    const nib_request *r = &options->request;
    nib_engine *engine = model->engine;
    const nib_machine *here = &engine->here;
    nib_machine asked;
    char why[128];
    if (is_here(engine, r->device))
        return NIB_OK;
    NIB_TRY(nib__engine_machine(engine, &asked, r->device, &ledger->arena, err));
    if (!asked.here)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "--device %s says where weights are quantized, and that machine is not "
                         "here; --for %s plans the result for it",
                         asked.name, asked.name);
    snprintf(why, sizeof why, "no kernel: the table has no quantizer of weights on %s", asked.name);
    if (r->strict || !allows_device(&r->allow))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "quantize: %sasked codes@%s: %s; %s: done codes@%s, the same bits as "
                         "without --device",
                         r->strict ? "--strict: " : "", asked.name, why,
                         r->strict ? "without --strict --allow device" : "--allow device",
                         here->name);
    write_line(ledger, &asked, here, why);
    return NIB_OK;
}

/* "8da4w on h200: 36 linear layers: ..., 1.2 ms per token predicted" */
static void note_plan(nib_ledger *ledger, const nib_plan *plan)
{
    char time[32];
    nib_text text;
    nib__text_init(&text, ledger->arena.allocator);
    nib__ledger_summary(&plan->plan.ledger, &text);
    nib__ledger_add_note(ledger, "for", "planned for %s: %s; %s per token predicted",
                         plan->machine.name, text.failed ? "" : text.at,
                         nib__say_seconds(time, plan->plan.predicted_token_s));
    ledger->failed = ledger->failed || text.failed;
    nib__text_free(&text);
}

/* Without a plan, only another device than this CPU can be allowed for. */
static nib_status check_allowed(const nib_engine *engine, const nib_request *r, nib_err *err)
{
    const char *useless = NULL;
    for (size_t i = 0; i < r->allow.count; i++)
        if (is_here(engine, r->device) ||
            strcmp(r->allow.items[i], nib__rung_names[NIB_RUNG_DEVICE]) != 0)
            useless = r->allow.items[i];
    return useless == NULL ? NIB_OK
                           : nib__fail(err, NIB_USAGE,
                                       "--allow %s has no effect: of the rungs, quantizing has "
                                       "device, for --device; all are for the plan of --for",
                                       useless);
}

nib_status nib__quantize_for(nib_plan **out, nib_ledger *ledger, nib_model *model,
                             const nib_quantize_options *options, nib_err *err)
{
    nib_request request = options->request;
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
