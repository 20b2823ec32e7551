/* SPDX-License-Identifier: Apache-2.0
 *
 * The biases of an output: the form of each, and the tensors of those whose form changes. A float
 * bias that stays float is copied like any tensor and is not listed here.
 */
#include "bias_codes.h"
#include "output_layout.h"

#include <stdio.h>

static bool is_coded(nib_bias form) { return form == NIB_BIAS_INT8 || form == NIB_BIAS_INT32; }

/* ---- forms ---- */

/* Refuses to code a bias that another name shares. */
static nib_status check_shared(const nib_output_layout *r, const char *module)
{
    char name[512], a[NIB_SHOWN];
    if (!is_coded(r->job->bias) || snprintf(name, sizeof name, "%s.bias", module) >= 512 ||
        nib__checkpoint_alias(r->job->checkpoint, name) == NULL)
        return NIB_OK;
    return nib__fail(r->err, NIB_NOT_AS_ASKED,
                     "%s.bias: shares its tensor with another name, so its form cannot change; "
                     "use --bias float",
                     nib__escape_string(a, module));
}

nib_status nib__output_bias_find(nib_output_layout *r, size_t i, const nib_scheme *scheme)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    nib_output_source *o = &r->sources[i];
    o->bias = l->recode ? o->weight : (nib_weight){.n = o->stored.n, .k = o->stored.k};
    o->bias.bias = NULL; /* a tied head has its own, not the embedding's */
    NIB_TRY(nib__checkpoint_bias(&o->bias, r->job->checkpoint, l->name,
                                 l->recode ? NULL : r->ledger, r->err));
    o->bias_form = nib__weight_bias_form(&o->bias);
    o->bias.scheme = *scheme; /* an int8 bias follows its mapping */
    if (o->bias.bias == NULL || r->job->bias == NIB_BIAS_NONE || r->job->bias == o->bias_form)
        return NIB_OK;
    NIB_TRY(check_shared(r, l->name));
    o->bias_form = r->job->bias;
    return nib__bias_allowed(&o->bias_form, l->name, scheme, o->bias.k, r->err);
}

size_t nib__output_bias_count_coded(const nib_output_layout *r)
{
    size_t count = 0;
    for (size_t i = 0; i < r->job->count; i++)
        count += is_coded(r->sources[i].bias_form);
    return count;
}

/* Reports a bias that stays float because the dialect has no quantized biases; only nibble has
 * them. */
static nib_status keep_float(nib_output_layout *r, size_t i)
{
    const char *module = r->job->layers[i].name, *form = nib__bias_names[r->sources[i].bias_form];
    const char *format = nib__dialect_name(r->dialect);
    char a[NIB_SHOWN];
    if (r->job->strict)
        return nib__fail(r->err, NIB_NOT_AS_ASKED,
                         "%s.bias: the format %s cannot hold an %s bias; --format nibble holds it",
                         nib__escape_string(a, module), format, form);
    nib_ledger_tensor *line =
        nib__ledger_add_tensor(r->ledger, nib__ledger_text(r->ledger, "%s.bias", module));
    if (line == NULL)
        return nib__fail_memory(r->err, sizeof *line, "the ledger");
    line->asked = form;
    line->done = is_coded(nib__weight_bias_form(&r->sources[i].bias)) ? "f32" : "float";
    line->reason = nib__ledger_text(r->ledger,
                                    "the format %s has no quantized biases; "
                                    "--format nibble has",
                                    format);
    return NIB_OK;
}

nib_status nib__output_bias_settle(nib_output_layout *r)
{
    for (size_t i = 0; i < r->job->count; i++) {
        nib_output_source *o = &r->sources[i];
        if (is_coded(o->bias_form) && r->dialect != NIB_DIALECT_NIBBLE) {
            NIB_TRY(keep_float(r, i));
            o->bias_form = NIB_BIAS_FLOAT;
        }
        if (o->bias_form != NIB_BIAS_NONE)
            r->ledger->layers[r->lines[i]].bias_form = nib__bias_names[o->bias_form];
    }
    return NIB_OK;
}

/* ---- tensors ---- */

/* The layer named by the first `size` bytes of name; SIZE_MAX: none. */
static size_t layer_with(const nib_output_layout *r, const char *name, size_t size)
{
    char module[512];
    if (size == 0 || size >= sizeof module)
        return SIZE_MAX;
    memcpy(module, name, size);
    module[size] = 0;
    return nib__name_index_find(&r->by_name, (const void *const *)r->layers, module);
}

size_t nib__output_bias_layer(const nib_output_layout *r, size_t t)
{
    const nib_tensor *from = nib__checkpoint_at(r->job->checkpoint, t);
    const size_t size = nib__checkpoint_owner(r->job->checkpoint, t);
    if (size == 0 || !nib__is_bias_part(from->name + size))
        return SIZE_MAX;
    const size_t i = layer_with(r, from->name, size);
    if (i == SIZE_MAX)
        return SIZE_MAX;
    const nib_output_source *o = &r->sources[i];
    return is_coded(o->bias_form) || is_coded(nib__weight_bias_form(&o->bias)) ? i : SIZE_MAX;
}

bool nib__output_bias_is_described(const nib_output_layout *r, const char *name)
{
    static const char end[] = ".bias";
    const size_t size = strlen(name);
    if (size < sizeof end || strcmp(name + size - (sizeof end - 1), end) != 0)
        return false;
    const size_t i = layer_with(r, name, size - (sizeof end - 1));
    return i != SIZE_MAX && is_coded(nib__weight_bias_form(&r->sources[i].bias));
}

static nib_status describe(nib_output_layout *r, size_t i, bool symmetric)
{
    const nib_output_source *o = &r->sources[i];
    const char *name = nib__ledger_text(r->ledger, "%s.bias", r->job->layers[i].name);
    nib_text text;
    if (name == NULL)
        return nib__fail_memory(r->err, sizeof *o, "a name");
    if (o->bias_form == NIB_BIAS_FLOAT)
        return r->dialect == NIB_DIALECT_TORCHAO
                   ? nib__output_layout_describe(r, name, "{\"_type\": \"Tensor\"}")
                   : NIB_OK;
    nib__text_init(&text, r->job->allocator);
    nib__describe_bias(&text, o->bias_form, symmetric, o->bias.n);
    const nib_status status = text.failed ? nib__fail_memory(r->err, text.size, name)
                                          : nib__output_layout_describe(r, name, text.at);
    nib__text_free(&text);
    return status;
}

static nib_output_part make_part(const char *suffix, nib_type type, int64_t count)
{
    return (nib_output_part){suffix, type, 1, {count, 1}};
}

/* True for an int32 bias of a weight that is quantized in this run: its steps need the weight's
 * scales. */
static bool needs_weight_scales(const nib_output_layout *r, size_t i)
{
    return r->sources[i].bias_form == NIB_BIAS_INT32 && !r->job->layers[i].recode;
}

nib_status nib__output_bias_add(nib_output_layout *r, size_t i, const nib_tensor *from)
{
    const nib_quantize_layer *l = &r->job->layers[i];
    nib_output_source *o = &r->sources[i];
    nib_rewrite *w = nib__output_layout_add_rewrite(r, from);
    if (w == NULL)
        return nib__fail_memory(r->err, sizeof *w, "the list of tensors");
    w->kind = NIB_REWRITE_HASH;
    if (o->bias_listed || needs_weight_scales(r, i))
        return NIB_OK;
    const bool kept = nib__weight_bias_form(&o->bias) == o->bias_form; /* codes stay */
    const bool symmetric = kept ? o->bias.bias_zeros == NULL : o->bias.scheme.symmetric;
    const int64_t n = o->bias.n, groups = nib__ceil_div(n, NIB_BIAS_GROUP);
    nib_output_part codes = make_part(".bias", NIB_TYPE_F32, n);
    nib_output_part scales = {0}, zeros = {0};
    if (o->bias_form != NIB_BIAS_FLOAT)
        codes = make_part("._bias_qdata",
                          o->bias_form == NIB_BIAS_INT8 ? NIB_TYPE_I8 : NIB_TYPE_I32, n);
    if (o->bias_form == NIB_BIAS_INT8)
        scales = make_part("._bias_scale", kept ? o->bias.bias_scale_type : NIB_TYPE_F32, groups);
    if (o->bias_form == NIB_BIAS_INT8 && !symmetric)
        zeros = make_part("._bias_zero_point", NIB_TYPE_I8, groups);
    nib__output_layout_begin_unit(r, from->name);
    o->bias_listed = true;
    w->kind = NIB_REWRITE_BIAS;
    w->layer = l;
    w->biased = &o->bias;
    w->bias_form = o->bias_form;
    NIB_TRY(nib__output_layout_pair_rows(r, &w->written_rows, l->role, n));
    w->codes = nib__output_layout_add_part(r, l->name, &codes);
    w->scales = nib__output_layout_add_part(r, l->name, &scales);
    w->zeros = nib__output_layout_add_part(r, l->name, &zeros);
    return describe(r, i, symmetric);
}

nib_status nib__output_bias_add_to_weight(nib_output_layout *r, size_t i, nib_rewrite *weight)
{
    const nib_output_source *o = &r->sources[i];
    if (!needs_weight_scales(r, i))
        return NIB_OK;
    const nib_output_part codes = make_part("._bias_qdata", NIB_TYPE_I32, o->bias.n);
    weight->biased = &o->bias;
    weight->bias_form = NIB_BIAS_INT32;
    weight->bias = nib__output_layout_add_part(r, r->job->layers[i].name, &codes);
    return describe(r, i, true);
}
