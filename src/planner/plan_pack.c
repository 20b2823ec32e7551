/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing weights for a device, before the first token: on the device, from the stored form, if it
 * has a row that reads this form; else on the host, which copies the packed form.
 */
#include "options.h"
#include "variant.h"

#include <stdio.h>

typedef struct packing {
    uint64_t room; /* free bytes on the device, for a weight in its stored form */
    size_t on_device, on_host, on_host_for_room;
    uint64_t device_bytes, host_bytes, host_for_room_bytes; /* copied */
    double seconds;
    const nib_kernel *row;
} packing;

static const nib_kernel *find_row(const nib_layer *layer, const nib_layer_plan *plan,
                                  const nib_machine *machine, const nib_policy *policy)
{
    nib_query query;
    nib__plan_op_ask(&query, NIB_OP_PACK, policy, machine);
    query.fact[NIB_FACT_PLAIN] =
        layer->plain || !nib__scheme_same_weight(&layer->stored, &plan->done);
    const nib_kernel *row = nib__plan_op_best(&query, machine);
    return row != NULL && row->packing == plan->uses[0].kernel->packing ? row : NULL;
}

static double copy_seconds(const nib_machine *m, double bytes)
{
    return m->copy_s + (m->copy_bytes_per_s > 0 ? bytes / m->copy_bytes_per_s : 0);
}

static void add_layer(packing *p, const nib_layer *layer, nib_layer_plan *plan,
                      const nib_machine *machine, const nib_policy *policy)
{
    const double packed = (double)nib__row_bytes(plan->uses[0].kernel, layer, &plan->done);
    const double stored = (double)nib__upload_bytes(layer, &plan->done);
    const nib_machine *host = machine->host;
    plan->pack = find_row(layer, plan, machine, policy);
    const bool has_room = nib__staging_bytes(layer, &plan->done) <= p->room;
    if (plan->pack != NULL && has_room) {
        p->on_device++;
        p->row = plan->pack;
        p->device_bytes += (uint64_t)stored;
        p->seconds += copy_seconds(machine, stored) + (stored + packed) / machine->bytes_per_s +
                      machine->launch_s;
        return;
    }
    *(plan->pack != NULL ? &p->on_host_for_room : &p->on_host) += 1;
    *(plan->pack != NULL ? &p->host_for_room_bytes : &p->host_bytes) += (uint64_t)packed;
    plan->pack = NULL;
    p->seconds += copy_seconds(machine, packed);
    if (host != NULL && host->bytes_per_s > 0)
        p->seconds += (stored + packed) / host->bytes_per_s;
}

/* How many weights the host packs, and why: `why` is the text before and after the device's
 * name. */
static const char *describe_host(char out[192], size_t count, uint64_t bytes,
                                 const char *const why[2], const char *device, bool first)
{
    char size[32];
    out[0] = 0;
    if (count != 0)
        snprintf(out, 192, "%s%zu on the host because %s%s %s, %s", first ? "" : "; ", count,
                 why[0], device, why[1], nib__format_bytes(size, bytes));
    return out;
}

static void add_note(nib_assignment *out, const packing *p)
{
    static const char *const no_kernel[] = {"no kernel of ", "reads them as stored"};
    static const char *const no_room[] = {"",
                                          "has no room for them as stored beside the packed ones"};
    char there[32], time[32], first[128] = "", second[192], third[192];
    const char *device = out->gpu->name;
    if (p->on_device != 0)
        snprintf(first, sizeof first, "%zu weight%s on %s by %s, %s as stored", p->on_device,
                 p->on_device == 1 ? "" : "s", device, p->row->name,
                 nib__format_bytes(there, p->device_bytes));
    describe_host(second, p->on_host, p->host_bytes, no_kernel, device, p->on_device == 0);
    describe_host(third, p->on_host_for_room, p->host_for_room_bytes, no_room, device,
                  p->on_device + p->on_host == 0);
    nib__ledger_add_note(&out->ledger, "packing",
                         "packed before the first token: %s%s%s; %s predicted with the copies",
                         first, second, third, nib__format_seconds(time, p->seconds));
}

void nib__plan_packing(nib_assignment *out, const nib_layer *layers, size_t count,
                       const nib_policy *policy)
{
    packing p = {0};
    if (policy->training || out->gpu == NULL)
        return;
    p.room = nib__plan_room(policy, out->machine, out->gpu);
    p.room -= p.room < out->gpu_bytes ? p.room : out->gpu_bytes;
    for (size_t i = 0; i < count; i++) {
        nib_layer_plan *plan = &out->layers[i];
        const nib_kernel *row = plan->use_count > 0 ? plan->uses[0].kernel : NULL;
        if (row != NULL && row->device != NIB_DEVICE_CPU && row->packing != NULL)
            add_layer(&p, &layers[i], plan, out->gpu, policy);
    }
    if (p.on_device + p.on_host + p.on_host_for_room != 0)
        add_note(out, &p);
}
