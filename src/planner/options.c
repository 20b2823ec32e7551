/* SPDX-License-Identifier: Apache-2.0
 *
 * The options --allow, --kernel and --place. An unknown value, or a pattern that matches nothing,
 * is an error with the known values or similar names: no option may silently do nothing.
 */
#include "options.h"

typedef struct reader {
    const nib_policy *policy;
    const char *option; /* "--allow" */
    bool operations;    /* its patterns may match operations without weights, too */
    const nib_machine *machine;
    const nib_layer *layers;
    size_t count;
    const nib_allocator *a;
    nib_err *err;
} reader;

/* ---- values ---- */

static nib_status read_rung(const reader *r, nib_plan_option *out, const char *value)
{
    for (int rung = NIB_RUNG_KERNEL; rung < NIB_RUNG_COUNT; rung++) {
        if (strcmp(value, nib__rung_names[rung]) == 0) {
            out->rung = (nib_rung)rung;
            return NIB_OK;
        }
    }
    return nib__fail(r->err, NIB_USAGE,
                     "%s %s: no such rung; known are kernel, device, dequant and unquantized, and "
                     "the codes of settings (`nibble explain`)",
                     r->option, out->text);
}

static nib_status fail_unknown_kernel(const reader *r, const char *text, const char *value)
{
    const size_t count = nib__kernel_count();
    const char **names = nib__calloc(r->a, count, sizeof *names);
    nib_text near;
    if (names == NULL)
        return nib__fail_memory(r->err, count * sizeof *names, "the kernels' names");
    for (size_t i = 0; i < count; i++)
        names[i] = nib__kernel_at(i)->name;
    nib__text_init(&near, r->a);
    nib__near_names(&near, value, names, count);
    const bool has_near = near.at != NULL && near.size != 0;
    const nib_status status = nib__fail(
        r->err, NIB_USAGE, "%s %s: no kernel of that name%s%s; `nibble kernels` lists them",
        r->option, text, has_near ? "; did you mean " : "", has_near ? near.at : "");
    nib__text_free(&near);
    nib__release(r->a, names);
    return status;
}

static nib_status read_kernel(const reader *r, nib_plan_option *out, const char *value)
{
    out->kernel = nib__kernel_find(value);
    if (out->kernel == NULL)
        return fail_unknown_kernel(r, out->text, value);
    if (out->kernel->peer != NULL)
        return nib__fail(r->err, NIB_USAGE,
                         "%s %s: that row describes a kernel of %s and never runs; see --engine",
                         r->option, out->text, out->kernel->peer->engine);
    switch (out->kernel->op) {
    case NIB_OP_LINEAR:
    case NIB_OP_LINEAR_DX:
    case NIB_OP_LINEAR_DW:
    case NIB_OP_EMBED: return NIB_OK;
    default: break;
    }
    return nib__fail(
        r->err, NIB_USAGE,
        "%s %s: that kernel is for %s; only kernels of linear layers and embeddings can be chosen",
        r->option, out->text, nib__op_names[out->kernel->op]);
}

static nib_status read_place(const reader *r, nib_plan_option *out, const char *value)
{
    const nib_machine *m = r->machine;
    const char *kind = nib__device_names[m->facts.fact[NIB_FACT_DEVICE]];
    if (strcmp(value, m->name) == 0 || strcmp(value, kind) == 0) {
        out->machine = m;
        return NIB_OK;
    }
    if (m->host != NULL && (strcmp(value, m->host->name) == 0 || strcmp(value, "cpu") == 0)) {
        out->machine = m->host;
        return NIB_OK;
    }
    for (size_t i = 0; i < r->policy->other_count; i++) {
        if (strcmp(value, r->policy->others[i]->name) != 0)
            continue;
        if (m->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU)
            return nib__fail(
                r->err, NIB_USAGE,
                "%s %s: a run uses one device besides the CPU, and --device already names %s",
                r->option, out->text, m->name);
        out->machine = r->policy->others[i];
        return NIB_OK;
    }
    return nib__fail(r->err, NIB_USAGE, "%s %s: this plan has only the device %s%s%s", r->option,
                     out->text, m->name, m->host != NULL ? " and its host " : "",
                     m->host != NULL ? m->host->name : "");
}

/* ---- patterns ---- */

/* The names that a pattern may match: layers, then operations; NULL past the last. */
static const char *get_name(const reader *r, size_t i)
{
    if (i < r->count)
        return r->layers[i].name;
    return r->operations ? nib__plan_operation_name(i - r->count) : NULL;
}

static nib_status fail_no_match(const reader *r, const char *pattern)
{
    size_t count = 0;
    const char **names = nib__calloc(r->a, r->count + NIB_OPS_MAX, sizeof *names);
    nib_text near;
    if (names == NULL)
        return nib__fail_memory(r->err, r->count * sizeof *names, "the layers' names");
    for (; get_name(r, count) != NULL; count++)
        names[count] = get_name(r, count);
    nib__text_init(&near, r->a);
    nib__near_names(&near, pattern, names, count);
    const bool has_near = near.at != NULL && near.size != 0;
    char shown[128];
    const nib_status status =
        nib__fail(r->err, NIB_USAGE, "%s %s: no layer%s matches%s%s", r->option,
                  nib__escape_name(shown, sizeof shown, pattern, strlen(pattern)),
                  r->operations ? " or operation" : "", has_near ? "; did you mean " : "",
                  has_near ? near.at : "");
    nib__text_free(&near);
    nib__release(r->a, names);
    return status;
}

static nib_status check_matches(const reader *r, const nib_pattern *pattern)
{
    for (size_t i = 0; get_name(r, i) != NULL; i++) {
        nib_err err = {NIB_OK, ""};
        if (nib__layer_matches(pattern, get_name(r, i), &err))
            return NIB_OK;
        if (err.status != NIB_OK)
            return nib__fail(r->err, err.status, "%s: %s", r->option, err.text);
    }
    return fail_no_match(r, nib__pattern_text(pattern));
}

/* The pattern is before the last '=': values have no '='. */
static nib_status read_pattern(const reader *r, nib_plan_option *out, const char **value)
{
    const char *equals = strrchr(out->text, '=');
    *value = equals == NULL ? out->text : equals + 1;
    if (equals == NULL)
        return NIB_OK;
    if (equals == out->text)
        return nib__fail(r->err, NIB_USAGE, "%s %s: the pattern before = is empty", r->option,
                         out->text);
    const size_t size = (size_t)(equals - out->text);
    char *text = nib__calloc(r->a, size + 1, 1);
    if (text == NULL)
        return nib__fail_memory(r->err, size + 1, "a pattern");
    memcpy(text, out->text, size);
    const nib_status status = nib__pattern_of_option(&out->pattern, r->option, text, r->a, r->err);
    nib__release(r->a, text);
    if (status != NIB_OK)
        return status;
    return check_matches(r, out->pattern);
}

typedef nib_status (*read_value)(const reader *r, nib_plan_option *out, const char *value);

static nib_status read_list(reader *r, const char *option, const nib_strings *strings,
                            read_value read, nib_plan_option **list, size_t *count)
{
    r->option = option;
    if (strings->count == 0)
        return NIB_OK;
    *list = nib__calloc(r->a, strings->count, sizeof **list);
    if (*list == NULL)
        return nib__fail_memory(r->err, strings->count * sizeof **list, "options");
    for (size_t i = 0; i < strings->count; i++) {
        if (read == read_rung && nib__setting_code_is_known(strings->items[i]))
            continue; /* not about a layer: nib__ledger_allow reads it */
        nib_plan_option *item = &(*list)[(*count)++];
        const char *value;
        item->text = strings->items[i];
        NIB_TRY(read_pattern(r, item, &value));
        NIB_TRY(read(r, item, value));
    }
    return NIB_OK;
}

static nib_status read_all(reader *r, nib_plan_options *out, const nib_policy *policy)
{
    r->operations = !policy->training;
    NIB_TRY(read_list(r, "--allow", &policy->allow, read_rung, &out->allow, &out->allow_count));
    r->operations = false;
    NIB_TRY(
        read_list(r, "--kernel", &policy->kernel, read_kernel, &out->kernel, &out->kernel_count));
    NIB_TRY(read_list(r, "--place", &policy->place, read_place, &out->place, &out->place_count));
    r->option = "--layer";
    if (policy->detail == NULL)
        return NIB_OK;
    NIB_TRY(nib__pattern_of_option(&out->detail, r->option, policy->detail, r->a, r->err));
    return check_matches(r, out->detail);
}

static nib_status check_engine(const char *engine, const nib_allocator *a, nib_err *err)
{
    char shown[64];
    nib_text known;
    if (engine == NULL)
        return NIB_OK;
    nib__text_init(&known, a);
    for (size_t i = 0; nib__engine_at(i) != NULL; i++) {
        if (strcmp(engine, nib__engine_at(i)) == 0) {
            nib__text_free(&known);
            return NIB_OK;
        }
        nib__text_format(&known, "%s%s", i == 0 ? "" : ", ", nib__engine_at(i));
    }
    const nib_status status =
        nib__fail(err, NIB_USAGE, "--engine %s: no such engine; known are %s",
                  nib__escape_name(shown, sizeof shown, engine, strlen(engine)),
                  known.failed ? "those of `nibble kernels`" : known.at);
    nib__text_free(&known);
    return status;
}

nib_status nib__plan_options_read(nib_plan_options *out, const nib_policy *policy,
                                  const nib_machine *machine, const nib_layer *layers, size_t count,
                                  const nib_allocator *a, nib_err *err)
{
    reader r = {
        .policy = policy, .machine = machine, .layers = layers, .count = count, .a = a, .err = err};
    *out = (nib_plan_options){.allocator = a};
    NIB_TRY(check_engine(policy->engine, a, err));
    const nib_status status = read_all(&r, out, policy);
    if (status != NIB_OK)
        nib__plan_options_free(out);
    return status;
}

static void free_list(const nib_allocator *a, nib_plan_option *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        nib__pattern_free(list[i].pattern);
    nib__release(a, list);
}

void nib__plan_options_free(nib_plan_options *options)
{
    free_list(options->allocator, options->allow, options->allow_count);
    free_list(options->allocator, options->kernel, options->kernel_count);
    free_list(options->allocator, options->place, options->place_count);
    nib__pattern_free(options->detail);
    *options = (nib_plan_options){.allocator = options->allocator};
}

nib_plan_option *nib__plan_option_find(nib_plan_option *options, size_t count, const char *layer)
{
    for (size_t i = 0; i < count; i++)
        if (options[i].pattern == NULL || nib__layer_matches(options[i].pattern, layer, NULL))
            return &options[i];
    return NULL;
}

static nib_status check_used(const char *name, const nib_plan_option *options, size_t count,
                             nib_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (options[i].layers == 0)
            return nib__fail(err, NIB_USAGE, "%s %s: applies to no layer; %s", name,
                             options[i].text,
                             i == 0 ? "no layer has such a product"
                                    : "the first option that matches a layer wins, so give the "
                                      "narrower pattern first");
    return NIB_OK;
}

nib_status nib__plan_options_used(const nib_plan_options *options, nib_err *err)
{
    NIB_TRY(check_used("--kernel", options->kernel, options->kernel_count, err));
    return check_used("--place", options->place, options->place_count, err);
}
