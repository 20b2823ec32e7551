/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes how a plan computes keys and values.
 */
#include "state_basis.h"

#include <inttypes.h>

/* ---- how a plan computes ---- */

static const char *arithmetic_name(nib_arithmetic arithmetic)
{
    return nib__arithmetic_names[arithmetic];
}

/* The contract of a layer's products; OTHER if quantizing their input has none. */
static nib_arithmetic contract_of(const nib_layer_plan *plan)
{
    for (int i = 0; i < plan->use_count; i++)
        if (plan->uses[i].quant != NULL && plan->uses[i].quant->arithmetic == NIB_ARITHMETIC_OTHER)
            return NIB_ARITHMETIC_OTHER;
    return plan->uses[0].kernel->arithmetic;
}

static void put_layer(nib_text *out, const nib_layer_plan *plan)
{
    char name[64];
    const nib_layer *layer = plan->layer;
    const nib_type scales = nib__layer_scale_type(layer, &plan->done),
                   zeros = nib__layer_zero_type(layer, &plan->done);
    const nib_bias bias = nib__layer_bias(layer, &plan->done);
    nib__text_format(out, "%s\t%s", layer->name, nib__scheme_name(name, &plan->done));
    if (scales != NIB_TYPE_NONE)
        nib__text_format(out, ", scales %s", nib__type_name(scales));
    if (zeros != NIB_TYPE_NONE)
        nib__text_format(out, ", zeros %s", nib__type_name(zeros));
    if (bias != NIB_BIAS_NONE)
        nib__text_format(out, ", bias %s", nib__bias_names[bias]);
    nib__text_format(out, "\t%s\n", arithmetic_name(contract_of(plan)));
}

void nib__basis_write(nib_text *out, const nib_session *session)
{
    const nib_assignment *plan = &session->plan->assignment;
    const nib_config *c = &session->model->net.config;
    nib__text_format(out, "--dtype\t%s\t\n", nib__type_name(plan->dtype));
    char cache[NIB_KV_NAME];
    nib__text_format(out, "--cache-type\t%s\t\n", nib__kv_name(cache, plan->cache));
    if (c->rope == NIB_ROPE_LONGROPE)
        nib__text_format(out, "--context\t%s %" PRId64 "\t\n",
                         session->plan->context > c->rope_original ? "over" : "at most",
                         c->rope_original);
    for (int i = 0; i < plan->op_count; i++)
        if (plan->ops[i].op != NIB_OP_ROPE_COPY) /* the same as its parts, which are listed */
            nib__text_format(out, "%s\t\t%s\n", nib__op_names[plan->ops[i].op],
                             arithmetic_name(plan->ops[i].row->arithmetic));
    for (size_t i = 0; i + 1 < plan->count; i++) /* no key or value depends on the output layer */
        put_layer(out, &plan->layers[i]);
}

enum { NAME, HOW, CONTRACT, FIELDS };

typedef struct field {
    const char *at;
    int size;
} field;

static const field nothing = {"nothing", 7};

static bool same(field a, field b)
{
    return a.size == b.size && memcmp(a.at, b.at, (size_t)a.size) == 0;
}

/* Takes the next line apart; past the last one, all fields are `nothing`. */
static const char *next_line(const char *at, const char *end, field line[FIELDS])
{
    for (int i = 0; i < FIELDS; i++) {
        const char *stop = memchr(at, i + 1 < FIELDS ? '\t' : '\n', (size_t)(end - at));
        if (stop == NULL) {
            for (int j = 0; j < FIELDS; j++)
                line[j] = nothing;
            return end;
        }
        line[i] = (field){at, (int)(stop - at)};
        at = stop + 1;
    }
    return at;
}

static nib_status check_line(const field saved[FIELDS], const field own[FIELDS], nib_err *err)
{
    static const char then[] = "run the tokens again, or load it into a session like the one that "
                               "saved it";
    const field other = {arithmetic_name(NIB_ARITHMETIC_OTHER), 5};
    if (!same(saved[NAME], own[NAME]))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the state has %.*s where this session has %.*s; %s", saved[NAME].size,
                         saved[NAME].at, own[NAME].size, own[NAME].at, then);
    if (!same(saved[HOW], own[HOW]))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the state was computed with %.*s: %.*s, but this session has %.*s; %s",
                         saved[NAME].size, saved[NAME].at, saved[HOW].size, saved[HOW].at,
                         own[HOW].size, own[HOW].at, then);
    if (!same(saved[CONTRACT], own[CONTRACT]) && !same(own[CONTRACT], other))
        return nib__fail(
            err, NIB_NOT_AS_ASKED,
            "the state was computed with the arithmetic %.*s in %.*s, but this session "
            "promises the bits of %.*s; %s",
            saved[CONTRACT].size, saved[CONTRACT].at, saved[NAME].size, saved[NAME].at,
            own[CONTRACT].size, own[CONTRACT].at, then);
    return NIB_OK;
}

nib_status nib__basis_check(const char *saved, size_t size, const nib_text *own, nib_err *err)
{
    const char *a = saved, *b = own->at;
    while (a < saved + size || b < own->at + own->size) {
        field theirs[FIELDS], ours[FIELDS];
        a = next_line(a, saved + size, theirs);
        b = next_line(b, own->at + own->size, ours);
        NIB_TRY(check_line(theirs, ours, err));
    }
    return NIB_OK;
}
