/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a plan fits: weights as they are done, keys and values of the whole context, against the
 * memory of the machine.
 */
#include "library.h"
#include "way.h"

#include <stdio.h>

/* Bytes of all weights, those that are stored as floats in this scheme. */
static uint64_t bytes_with(const nib_plan *p, const nib_scheme *scheme, bool tables)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->plan.count; i++) {
        const nib_layer *layer = &p->layers[i];
        const bool is_table = layer->role == NIB_ROLE_EMBED || layer->role == NIB_ROLE_HEAD;
        const bool kept = nib__scheme_is_quantized(&layer->stored) || (is_table && !tables);
        const nib_weight w = nib__layer_weight(layer, kept ? &layer->stored : scheme);
        sum += nib__weight_bytes(&w);
    }
    return sum;
}

/* The mildest recipe with which weights and cache fit, and what they then are; NULL: none. */
static const char *what_fits(const nib_plan *p, uint64_t *bytes)
{
    static const struct {
        const char *recipe, *scheme;
        bool tables; /* embedding and output, too */
    } recipes[] = {{"int8wo", "int8wo", false},
                   {"8da4w", "8da4w", false},
                   {"8da4w+head+embed", "8da4w", true}};
    for (size_t i = 0; i < COUNT(recipes); i++) {
        nib_scheme scheme;
        if (nib__scheme_parse(&scheme, recipes[i].scheme, strlen(recipes[i].scheme), NULL) !=
            NIB_OK)
            continue;
        *bytes = bytes_with(p, &scheme, recipes[i].tables) + p->cache_bytes;
        if (*bytes < p->weight_bytes + p->cache_bytes && *bytes <= p->machine.memory)
            return recipes[i].recipe;
    }
    return NULL;
}

/* What to do: a recipe, or else a shorter context, where that is what is too large. */
static void say_remedy(const nib_plan *p, char *out, size_t size)
{
    uint64_t bytes;
    char text[32];
    const char *recipe = what_fits(p, &bytes);
    if (recipe != NULL)
        snprintf(out, size, "; --recipe %s has %s and fits", recipe, nib__say_bytes(text, bytes));
    else if (p->weight_bytes < p->machine.memory)
        snprintf(out, size, "; --context less than %lld fits", (long long)p->context);
    else
        snprintf(out, size, "; no recipe of weights in 4 bits fits either");
}

static void say_too_large(nib_plan *p)
{
    const nib_machine *m = &p->machine;
    const uint64_t need = p->weight_bytes + p->cache_bytes;
    char needed[32], there[32], over[32], remedy[128];
    nib__say_bytes(needed, need);
    nib__say_bytes(there, m->memory);
    nib__say_bytes(over, need - m->memory);
    say_remedy(p, remedy, sizeof remedy);
    nib__ledger_add_note(&p->plan.ledger, "too-large",
                         "weights, keys and values are %s, %s more than %s has (%s)%s", needed,
                         over, m->name, there, remedy);
    if (p->plan.denied.status == NIB_OK && !(m->here && m->host == NULL))
        nib__fail(&p->plan.denied, NIB_NO_MEMORY,
                  "weights, keys and values are %s, %s more than %s has (%s)%s", needed, over,
                  m->name, there, remedy);
}

void nib__plan_memory(nib_plan *p)
{
    char weights[32], cache[32], context[32];
    for (size_t i = 0; i < p->plan.count; i++)
        p->weight_bytes += p->plan.ledger.layers[i].bytes;
    if (p->policy.training) {
        nib__ledger_add_note(&p->plan.ledger, "memory", "weights %s",
                             nib__say_bytes(weights, p->weight_bytes));
        return;
    }
    nib__ledger_add_note(
        &p->plan.ledger, "memory", "weights %s, keys and values of %s positions %s",
        nib__say_bytes(weights, p->weight_bytes), nib__say_count(context, (uint64_t)p->context),
        nib__say_bytes(cache, p->cache_bytes));
    if (p->machine.memory != 0 && p->weight_bytes + p->cache_bytes > p->machine.memory)
        say_too_large(p);
}
