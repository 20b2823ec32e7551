/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a plan's weights lie packed beside the checkpoint: what is used of them, or why they are
 * packed at load all the same. Their bytes are the same, so this is no substitution.
 */
#include "library.h"
#include "packed.h"

#include <stdio.h>

/* Once for a model: it reads all of the file. */
static void open_packed(nib_model *m)
{
    nib_err err = {NIB_OK, ""};
    const nib_engine *e = m->engine;
    if (m->packed_asked)
        return;
    m->packed_asked = true;
    if (nib__packed_open(&m->packed, m->net.checkpoint, e->pool, &e->allocator, &err) != NIB_OK)
        nib__ledger_add_note(&m->net.notes, "packed", "%s; the weights are packed at load",
                             err.text);
    m->net.packed = m->packed;
}

/* A layer that any row reads packed; *there: all of its layouts are in the file. */
static bool is_packed(const nib_plan *p, size_t i, bool *there)
{
    const nib_layer_plan *plan = &p->plan.layers[i];
    bool any = false;
    *there = nib__scheme_same_weight(&p->layers[i].stored, &plan->done);
    for (int u = 0; u < plan->use_count; u++) {
        const nib_packing *packing = plan->uses[u].kernel ? plan->uses[u].kernel->packing : NULL;
        if (packing == NULL)
            continue;
        any = true;
        *there = *there && nib__packed_has(p->model->packed, p->layers[i].name, packing);
    }
    return any;
}

void nib__plan_open_packed(nib_plan *p)
{
    if (!p->machine.here || p->policy.training || p->model->net.checkpoint == NULL)
        return;
    open_packed(p->model);
    nib__model_tables(p->model); /* now, so that the plan says what it finds */
}

void nib__session_say_packed(const nib_session *s)
{
    const nib_plan *p = s->plan;
    const nib_callbacks *c = &p->model->engine->callbacks;
    size_t others = 0;
    if (p->model->packed == NULL || c->log == NULL)
        return;
    for (size_t i = 0; i < p->plan.count; i++) {
        const nib_loaded *w = &s->runner.weights[i];
        bool there;
        others += is_packed(p, i, &there) && there && w->pack_count > 0 && !w->packs[0].mapped;
    }
    char line[160];
    snprintf(line, sizeof line,
             NIB_PACKED_NAME
             ": %zu weights there are not as their kernels pack them now; they were "
             "packed at load. `nibble quantize --pack` writes them anew",
             others);
    if (others > 0)
        c->log(c->ctx, line);
}

void nib__plan_note_packed(nib_plan *p)
{
    size_t there = 0, all = 0;
    if (p->model->packed == NULL || !p->machine.here)
        return;
    for (size_t i = 0; i < p->plan.count; i++) {
        bool is_there;
        if (!is_packed(p, i, &is_there))
            continue;
        all++;
        there += is_there;
    }
    const char *directory = nib__checkpoint_directory(p->model->net.checkpoint);
    if (all == 0)
        nib__ledger_add_note(&p->plan.ledger, "packed",
                             "packed weights in %s/" NIB_PACKED_NAME
                             ": not used, no kernel of this plan reads a packed weight",
                             directory);
    else
        nib__ledger_add_note(&p->plan.ledger, "packed",
                             "packed weights from %s/" NIB_PACKED_NAME ": %zu of %zu%s", directory,
                             there, all, there == all ? "" : "; the others are packed at load");
}
