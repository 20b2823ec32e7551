/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine that a plan is for: this machine's CPU, one of its devices, or another machine; and
 * the kernels that the plan must not use.
 */
#include "plan_handle.h"
#include "match.h"
#include "variant.h"

#include <math.h>

/* Caps the machine's memory at --memory. */
static void limit_memory(const nib_plan *p, nib_machine *m)
{
    const uint64_t most = p->request.memory;
    if (most != 0 && (m->memory == 0 || m->memory > most))
        m->memory = most;
}

/* Lists this machine's devices, which --place may name. */
static nib_status offer_gpus(nib_plan *p, nib_err *err)
{
    nib_engine *engine = p->model->engine;
    NIB_TRY(nib__engine_find_gpus(engine, err));
    const nib_machine **others = nib__arena_take(&p->arena, NIB_GPUS_MAX, sizeof *others);
    nib_machine *copies = nib__arena_take(&p->arena, NIB_GPUS_MAX, sizeof *copies);
    if (others == NULL || copies == NULL)
        return nib__fail_memory(err, NIB_GPUS_MAX * (sizeof *others + sizeof *copies),
                                "the list of devices");
    for (size_t i = 0; i < engine->gpu_count; i++) {
        copies[i] = engine->gpus[i].machine;
        limit_memory(p, &copies[i]);
        others[i] = &copies[i];
    }
    p->policy.others = others;
    p->policy.other_count = engine->gpu_count;
    return NIB_OK;
}

bool nib__plan_is_auto(const nib_plan *p)
{
    return p->request.device != NULL && strcmp(p->request.device, "auto") == 0;
}

/* torchchat's "mps", PyTorch's name for an Apple GPU: this machine's, if it has one. */
static nib_status find_mps(const char **name, nib_engine *engine, nib_err *err)
{
    NIB_TRY(nib__engine_find_gpus(engine, err));
    for (size_t i = 0; i < engine->gpu_count; i++)
        if (engine->gpus[i].machine.facts.fact[NIB_FACT_MAKER] == NIB_MAKER_APPLE) {
            *name = engine->gpus[i].name;
            return NIB_OK;
        }
    return nib__fail(err, NIB_USAGE,
                     "the recipe's executor is mps, an Apple GPU, but this machine has none: "
                     "--device cpu runs the recipe here, --device apple-m1 to apple-m4 plan it");
}

nib_status nib__choose_machine(nib_plan *p, nib_err *err)
{
    nib_engine *engine = p->model->engine;
    const char *name = p->request.device ? p->request.device : nib__recipe_device(p->recipe);
    if (!p->request.device && name && strcmp(name, "mps") == 0)
        NIB_TRY(find_mps(&name, engine, err));
    if (nib__plan_is_auto(p)) {
        name = engine->here.name;
        NIB_TRY(offer_gpus(p, err));
    }
    NIB_TRY(
        nib__engine_machine(engine, &p->machine, name ? name : engine->here.name, &p->arena, err));
    limit_memory(p, &p->machine);
    p->policy.declared = !p->machine.here;
    return p->machine.here && p->request.place.count != 0 ? offer_gpus(p, err) : NIB_OK;
}

/* ---- the fastest device ---- */

/* "opencl: 3.2 ms per token" (in training, per micro-batch), or why the device is not chosen. */
static void say_candidate(const nib_plan *p, bool fits, nib_text *out)
{
    char time[32];
    nib__text_format(out, "%s%s: ", out->size != 0 ? ", " : "", p->machine.name);
    if (p->assignment.denied.status != NIB_OK)
        nib__text_str(out, "parts have no kernel there");
    else if (!fits)
        nib__text_str(out, "does not fit");
    else
        nib__text_format(out, "%s per %s",
                         nib__format_seconds(time, p->assignment.predicted_token_s),
                         nib__policy_unit(&p->policy));
}

static nib_status plan_layers(nib_plan *p, nib_err *err)
{
    return nib__plan_layers(&p->assignment, p->layers, p->model->net.site_count, &p->machine,
                            &p->policy, &p->model->engine->allocator, err);
}

nib_status nib__plan_machines(nib_plan *p, nib_err *err)
{
    const nib_machine host = p->machine;
    double best_s = INFINITY;
    nib_machine best = host;
    nib_text said;
    if (!nib__plan_is_auto(p))
        return plan_layers(p, err);
    nib__text_init(&said, &p->model->engine->allocator);
    for (size_t i = 0; i <= p->policy.other_count; i++) {
        p->machine = i == 0 ? host : *p->policy.others[i - 1];
        const nib_status status = plan_layers(p, err);
        if (status != NIB_OK) {
            nib__text_free(&said);
            return status;
        }
        const bool fits = nib__plan_fits(p);
        say_candidate(p, fits, &said);
        if (p->assignment.denied.status == NIB_OK && fits &&
            p->assignment.predicted_token_s < best_s) {
            best_s = p->assignment.predicted_token_s;
            best = p->machine;
        }
        nib__assignment_free(&p->assignment);
    }
    p->machine = best;
    const nib_status status = plan_layers(p, err);
    if (status == NIB_OK && !said.failed)
        nib__ledger_add_note(&p->assignment.ledger, "auto",
                             "--device auto chooses %s, predicted: %s", best.name, said.at);
    nib__text_free(&said);
    return status;
}

/* ---- excluded kernels ---- */

static nib_status fail_no_kernel(const char *pattern, const nib_allocator *a, nib_err *err)
{
    enum { NAMES_MAX = 2048 };
    const char **names = nib__calloc(a, NAMES_MAX, sizeof *names);
    nib_text near;
    size_t count = 0;
    char shown[128];
    if (names == NULL)
        return nib__fail_memory(err, NAMES_MAX * sizeof *names, "the kernels' names");
    for (size_t i = 0; i < nib__kernel_count() && count < NAMES_MAX; i++)
        names[count++] = nib__kernel_at(i)->name;
    nib__text_init(&near, a);
    nib__near_names(&near, pattern, names, count);
    const nib_status status = nib__fail(
        err, NIB_USAGE, "--without %s: no kernel matches%s%s; `nibble kernels` lists them",
        nib__escape_name(shown, sizeof shown, pattern, strlen(pattern)),
        near.size ? "; did you mean " : "", near.size ? near.at : "");
    nib__text_free(&near);
    nib__release(a, names);
    return status;
}

nib_status nib__choose_without(nib_strings *out, const nib_strings *patterns, nib_arena *arena,
                               const nib_allocator *a, nib_err *err)
{
    const size_t kernels = patterns->count != 0 ? nib__kernel_count() : 0;
    const char **names = nib__arena_take(arena, kernels + 1, sizeof *names);
    size_t count = 0;
    if (names == NULL)
        return nib__fail_memory(err, kernels * sizeof *names, "the kernels' names");
    for (size_t i = 0; i < patterns->count; i++) {
        nib_pattern *pattern;
        bool any = false;
        NIB_TRY(nib__pattern_of_option(&pattern, "--without", patterns->items[i], a, err));
        for (size_t j = 0; j < kernels; j++) {
            const nib_kernel *row = nib__kernel_at(j);
            if (row->peer != NULL || !nib__pattern_matches(pattern, row->name, NULL))
                continue;
            any = true;
            if (count < kernels)
                names[count++] = row->name;
        }
        nib__pattern_free(pattern);
        if (!any)
            return fail_no_kernel(patterns->items[i], a, err);
    }
    *out = (nib_strings){names, count};
    return NIB_OK;
}
