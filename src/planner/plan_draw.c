/* SPDX-License-Identifier: Apache-2.0
 *
 * Drawing the next token, the last operation of a step. If the logits are on a device, a row there
 * draws, so only the token is copied back; for requests that no row can handle, the logits are
 * copied and the CPU draws. The plan covers the usual request: how tokens are drawn is known only
 * when a request comes.
 */
#include "options.h"
#include "variant.h"

/* Seconds per logit on one core: some 30 instructions (callgrind, of sample_f32__ref). */
#define LOGIT_S 3e-9

static const nib_machine *logits_device(const nib_assignment *plan)
{
    const nib_layer_plan *head = plan->count > 0 ? &plan->layers[plan->count - 1] : NULL;
    const nib_kernel *row = head != NULL && head->use_count > 0 ? head->uses[0].kernel : NULL;
    return row != NULL && row->device != NIB_DEVICE_CPU ? plan->gpu : NULL;
}

const nib_kernel *nib__plan_sampler(const nib_assignment *plan, const nib_policy *policy,
                                    int64_t top_k, bool penalty, nib_text *why)
{
    enum { FAILED_MAX = 4 };
    const nib_machine *machine = logits_device(plan);
    nib_query query;
    if (machine == NULL)
        return NULL;
    nib__plan_op_ask(&query, NIB_OP_SAMPLE, policy, machine);
    query.fact[NIB_FACT_TOP_K] = top_k;
    query.fact[NIB_FACT_PENALTY] = penalty;
    const nib_kernel *best = nib__plan_op_best(&query, machine);
    for (size_t i = 0; best == NULL && why != NULL && i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const nib_cond *failed[FAILED_MAX];
        if (row->peer != NULL || !nib__kernel_keyed(row, &query))
            continue;
        const size_t count = nib__kernel_failed(row, &query, true, failed, FAILED_MAX);
        for (size_t j = 0; j < count && j < FAILED_MAX; j++) {
            nib__text_format(why, "%s%s", why->size > 0 ? "; " : "", j == 0 ? row->name : "");
            nib__text_str(why, j == 0 ? ": " : "");
            if (failed[j]->fact == NIB_FACT_OFFERED && nib__driver_words(policy, row) != NULL)
                nib__text_str(why, nib__driver_words(policy, row));
            else
                nib__cond_say(failed[j], &query, why);
        }
    }
    if (best == NULL && why != NULL && why->size == 0)
        nib__text_format(why, "the table has no kernel that draws tokens on %s", machine->name);
    return best;
}

static nib_draw_plan draw_with(const nib_assignment *plan, const nib_kernel *device_row,
                               const nib_policy *policy)
{
    const nib_machine *device = logits_device(plan), *host = nib__plan_host(plan);
    nib_draw_plan draw = {.row = device_row, .machine = device_row != NULL ? device : host};
    if (plan->count == 0 || draw.machine == NULL)
        return draw;
    const double vocab = (double)plan->layers[plan->count - 1].layer->n;
    const nib_machine *m = draw.machine;
    if (device_row == NULL)
        draw.row = nib__plan_op(NIB_OP_SAMPLE, NIB_TYPE_F32, host, &policy->without);
    if (device != NULL) {
        draw.bytes = device_row != NULL ? sizeof(int32_t) : (uint64_t)vocab * sizeof(float);
        draw.move_s =
            device->copy_s +
            (device->copy_bytes_per_s > 0 ? (double)draw.bytes / device->copy_bytes_per_s : 0);
    }
    draw.draw_s = m->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU
                      ? vocab * LOGIT_S
                      : vocab * sizeof(float) / m->bytes_per_s + m->launch_s;
    return draw;
}

nib_draw_plan nib__plan_draw(const nib_assignment *plan, const nib_policy *policy, int64_t top_k,
                             bool penalty, const char *cpu_reason, nib_text *why)
{
    if (cpu_reason != NULL && why != NULL && logits_device(plan) != NULL)
        nib__text_str(why, cpu_reason);
    if (cpu_reason != NULL)
        return draw_with(plan, NULL, policy);
    return draw_with(plan, nib__plan_sampler(plan, policy, top_k, penalty, why), policy);
}

/* If the logits are on a device, notes what is copied: for the usual request, and for those that no
 * row of the device can handle. */
void nib__plan_drawing(nib_assignment *out, const nib_policy *policy)
{
    char bytes[32], time[32], all[32], all_time[32];
    out->samplers[0] = nib__plan_sampler(out, policy, 1, false, NULL);
    out->samplers[1] = nib__plan_sampler(out, policy, NIB_TOP_K, false, NULL);
    const nib_draw_plan draw = draw_with(out, out->samplers[1], policy);
    const nib_draw_plan on_cpu = draw_with(out, NULL, policy);
    out->draw = draw;
    if (draw.bytes == 0 || draw.row == NULL || on_cpu.row == NULL)
        return;
    nib__format_bytes(all, on_cpu.bytes);
    nib__format_seconds(all_time, on_cpu.move_s + on_cpu.draw_s);
    if (draw.machine == on_cpu.machine)
        nib__ledger_add_note(
            &out->ledger, "drawn",
            "tokens are drawn by %s on %s: %s of logits copied per token, %s predicted",
            on_cpu.row->name, on_cpu.machine->name, all, all_time);
    else
        nib__ledger_add_note(&out->ledger, "drawn",
                             "tokens are drawn by %s on %s: %s copied per token, %s predicted; "
                             "requests that it cannot handle by %s on %s: %s, %s",
                             draw.row->name, draw.machine->name,
                             nib__format_bytes(bytes, draw.bytes),
                             nib__format_seconds(time, draw.move_s + draw.draw_s), on_cpu.row->name,
                             on_cpu.machine->name, all, all_time);
}
