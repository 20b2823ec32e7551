/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger of one request: settings that are not done as asked but not refused either. The answer
 * lists them as `settings`; with --strict the request is refused. `notes` say what the cache did.
 */
#include "service.h"

/* Checks max_tokens against the longest prompt, which leaves the least room. */
static void record_max_tokens(nib_call *call)
{
    const nib_api_request *q = &call->request;
    size_t longest = 0;
    for (int64_t i = 0; i < call->prompt_count; i++)
        longest = call->prompts[i].count > longest ? call->prompts[i].count : longest;
    if (q->max_name != NULL)
        nib__report_max_tokens(&call->settings, q->max_name, q->max_tokens, (int64_t)longest,
                               call->service->session->plan->context, NIB_BY_REQUEST);
}

static nib_status check_strict(nib_call *call, nib_err *err)
{
    const nib_plan *plan = call->service->session->plan;
    if (call->settings.failed)
        return nib__fail_memory(err, 0, "the settings of a request");
    nib__ledger_allow(&call->settings, &plan->request.allow);
    return plan->request.strict ? nib__ledger_strict(&call->settings, err) : NIB_OK;
}

bool nib__call_settings(nib_call *call)
{
    const nib_api_request *q = &call->request;
    nib_model *model = call->service->session->model;
    nib_status status = NIB_OK;
    nib_err err;
    if (q->route == NIB_ROUTE_CHAT) {
        const nib_chat_options options = nib__call_chat_options(call);
        status = nib__chat_settings(&call->settings, model, &options, NIB_BY_REQUEST, &err);
    }
    record_max_tokens(call);
    nib__report_sampling(&call->settings, model, &q->sampling, NIB_BY_REQUEST);
    if (status == NIB_OK)
        status = check_strict(call, &err);
    if (status == NIB_OK)
        return true;
    return status == NIB_NOT_AS_ASKED ? nib__call_refuse(call, 400, "", NULL, err.text)
                                      : nib__call_refuse_status(call, "messages", &err);
}

void nib__call_note_cache(nib_call *call)
{
    const nib_token_counts t = nib__call_tokens(call);
    nib__note_recomputed(&call->settings, t.prompt, t.cached, t.recomputed, t.why);
    nib__ledger_copy_notes(&call->settings, &call->service->session->plan->assignment.ledger,
                           "keys");
}
