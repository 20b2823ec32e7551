/* SPDX-License-Identifier: Apache-2.0
 *
 * RoPE by GGUF keys. Llama 3's scaling is stored as a tensor, rope_freqs.weight: the divisor of
 * each frequency.
 */
#include "arch.h"
#include "config_gguf_inside.h"
#include "config_rope.h"

#include <inttypes.h>
#include <math.h>

static void report_factor(nib_gguf_reader *r, double asked, const char *text)
{
    char value[32];
    nib__format(value, sizeof value, "%g", asked);
    nib__ledger_add_overruled(r->ledger, "rope", r->key, value, NULL, "%s", text);
}

/* rope.scaling.factor takes precedence over its older name, as in llama.cpp. */
static nib_status read_factor(nib_gguf_reader *r, bool linear)
{
    double older = 1;
    bool found, found_older;
    r->c->rope_factor = 1;
    NIB_TRY(nib__gguf_double(&r->c->rope_factor, &found, r->g,
                             nib__gguf_key(r, "rope.scaling.factor"), r->err));
    if (!linear && r->c->rope_factor != 1)
        report_factor(r, r->c->rope_factor, "rope.scaling.type is \"none\"");
    NIB_TRY(nib__gguf_double(&older, &found_older, r->g, nib__gguf_key(r, "rope.scale_linear"),
                             r->err));
    if (found && found_older && older != r->c->rope_factor)
        report_factor(r, older, "rope.scaling.factor, its newer name, takes precedence");
    else if (found_older && !linear && older != 1)
        report_factor(r, older, "rope.scaling.type is \"none\"");
    if (!found)
        r->c->rope_factor = older;
    return NIB_OK;
}

/* Reads divisors of frequencies: F32 [count], all positive. *out NULL: absent. */
static nib_status read_divisors(const float **out, nib_gguf_reader *r, const char *name,
                                int64_t count)
{
    const nib_tensor *t = nib__checkpoint_find(r->cp, name);
    *out = NULL;
    if (t == NULL)
        return NIB_OK;
    if (t->rank != 1 || t->type != NIB_TYPE_F32 || t->shape[0] != count)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s is %s of %" PRId64 " values; %" PRId64
                         " F32 values are expected, one for each pair of channels",
                         r->g->name, name, nib__type_stored_name(t->type), t->shape[t->rank - 1],
                         count);
    float *values = nib__arena_take(r->arena, (uint64_t)count, sizeof *values);
    if (values == NULL)
        return nib__fail_memory(r->err, (uint64_t)count * sizeof *values, name);
    nib__to_f32(values, t->data, t->type, count);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]) || values[i] <= 0)
            return nib__fail(r->err, NIB_BAD_INPUT,
                             "%s: %s[%" PRId64 "] is %g; a positive number is expected", r->g->name,
                             name, i, (double)values[i]);
    *out = values;
    return NIB_OK;
}

/* As llama.cpp's converter writes Phi-3: two tensors of factors, without a scaling type. */
static nib_status read_longrope(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    const int64_t pairs = nib__config_rope_dims(c) / 2;
    const double most = 1000;
    bool found;
    NIB_TRY(read_divisors(&c->rope_short, r, NIB_GGUF_ROPE_SHORT, pairs));
    NIB_TRY(read_divisors(&c->rope_long, r, NIB_GGUF_ROPE_LONG, pairs));
    if (c->rope_short == NULL && c->rope_long == NULL)
        return NIB_OK;
    if (c->rope_short == NULL || c->rope_long == NULL)
        return nib__fail(r->err, NIB_BAD_INPUT, "%s: %s is stored, but %s is missing", r->g->name,
                         c->rope_short != NULL ? NIB_GGUF_ROPE_SHORT : NIB_GGUF_ROPE_LONG,
                         c->rope_short != NULL ? NIB_GGUF_ROPE_LONG : NIB_GGUF_ROPE_SHORT);
    c->rope = NIB_ROPE_LONGROPE;
    NIB_TRY(nib__gguf_int(&c->rope_original, NULL, r->g,
                          nib__gguf_key(r, "rope.scaling.original_context_length"), r->err));
    if (c->rope_original < 2 || c->rope_original > c->context)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s is %" PRId64 "; 2 to context_length, %" PRId64 ", is expected",
                         r->g->name, r->key, c->rope_original, c->context);
    c->rope_factor = (double)c->context / (double)c->rope_original;
    c->rope_gain = 1;
    NIB_TRY(nib__gguf_double(&c->rope_gain, &found, r->g,
                             nib__gguf_key(r, "rope.scaling.attn_factor"), r->err));
    if (!(c->rope_gain > 0) || !(c->rope_gain <= most))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s is %g; a number above 0 and at most %g is expected", r->g->name,
                         r->key, c->rope_gain, most);
    return NIB_OK;
}

/* As llama.cpp computes it: the paper's factor of cosines and sines, times attn_factor. */
static nib_status read_yarn(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    double attn_factor = 1;
    bool found;
    c->rope = NIB_ROPE_YARN;
    c->rope_original = c->context;
    c->rope_fast = 32, c->rope_slow = 1;
    NIB_TRY(read_factor(r, true));
    NIB_TRY(nib__gguf_int(&c->rope_original, &found, r->g,
                          nib__gguf_key(r, "rope.scaling.original_context_length"), r->err));
    const struct {
        const char *key;
        double *to;
    } numbers[] = {{"rope.scaling.yarn_beta_fast", &c->rope_fast},
                   {"rope.scaling.yarn_beta_slow", &c->rope_slow},
                   {"rope.scaling.attn_factor", &attn_factor}};
    for (size_t i = 0; i < COUNT(numbers); i++)
        NIB_TRY(nib__gguf_double(numbers[i].to, &found, r->g, nib__gguf_key(r, numbers[i].key),
                                 r->err));
    c->rope_gain = attn_factor * nib__rope_yarn_gain(c->rope_factor, 1);
    if (c->latent.rope > 0) /* llama.cpp takes the paper's factor back, and scales scores */
        c->rope_gain = 1;
    return nib__rope_check(c, r->g->name, r->err);
}

bool nib__gguf_is_of_rope(const nib_config *c, const char *name)
{
    if (strcmp(name, "rope.scaling.attn_factor") == 0)
        return (c->rope == NIB_ROPE_LONGROPE || c->rope == NIB_ROPE_YARN) && c->latent.rope == 0;
    if (strcmp(name, NIB_GGUF_YARN_LOG) == 0)
        return c->rope == NIB_ROPE_YARN && c->latent.rope > 0;
    return c->rope == NIB_ROPE_YARN && strncmp(name, "rope.scaling.yarn_beta_", 23) == 0;
}

nib_status nib__gguf_read_rope(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    const char *type = "linear"; /* the default; without a factor it means none */
    char shown[64];
    size_t size = 6;
    bool found;
    const int64_t head = nib__config_rope_dims(c);
    int64_t width = head;
    NIB_TRY(nib__gguf_int(&width, &found, r->g, nib__gguf_key(r, "rope.dimension_count"), r->err));
    if (nib__family_of(c)->partial && width > 1 && width < head && width % 2 == 0)
        c->rope_dims = width;
    else if (width != head)
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: %s is %" PRId64 ", but a head has %" PRId64
                         " elements; rotating only some of them in this way is not supported",
                         r->g->name, r->key, width, head);
    if (!(c->rope_theta > 0) || !(c->rope_theta < 1e18))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s.rope.freq_base is %g; a number above 0 and below 1e18 is expected",
                         r->g->name, r->arch, c->rope_theta);
    NIB_TRY(nib__gguf_string(&type, &size, &found, r->g, nib__gguf_key(r, "rope.scaling.type"),
                             r->err));
    const bool linear = nib__gguf_text_is(type, size, "linear"),
               longrope = nib__family_of(c)->only_longrope &&
                          (!found || nib__gguf_text_is(type, size, "longrope"));
    if (longrope)
        return read_longrope(r);
    if (!nib__family_of(c)->only_longrope && nib__gguf_text_is(type, size, "yarn"))
        return read_yarn(r);
    if (!linear && !nib__gguf_text_is(type, size, "none"))
        return nib__fail(
            r->err, NIB_UNSUPPORTED,
            "%s: %s is \"%s\", which is not supported; none, linear, yarn and llama3's "
            "tensor rope_freqs are",
            r->g->name, r->key, nib__escape_name(shown, sizeof shown, type, size));
    NIB_TRY(read_factor(r, linear));
    if (!(c->rope_factor >= 1) || !(c->rope_factor < 1e9))
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: the factor of %s.rope.scaling.factor, or its older name "
                         "rope.scale_linear, is %g; at least 1 and below 1e9 is expected",
                         r->g->name, r->arch, c->rope_factor);
    if (linear && c->rope_factor != 1)
        c->rope = NIB_ROPE_LINEAR;
    NIB_TRY(read_divisors(&c->rope_divisors, r, "rope_freqs.weight", head / 2));
    if (nib__family_of(c)->proportional && c->rope == NIB_ROPE_PLAIN)
        nib__rope_find_proportional(c, head / 2);
    return NIB_OK;
}

nib_status nib__gguf_fill_rope_layers(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    const int64_t every = nib__family_of(c)->rope_interval;
    if (every == 0)
        return NIB_OK;
    bool *layers = nib__arena_take(r->arena, (uint64_t)c->layers, sizeof *layers);
    if (layers == NULL)
        return nib__fail_memory(r->err, (uint64_t)c->layers, "a list of layers");
    for (int64_t i = 0; i < c->layers; i++)
        layers[i] = (i + 1) % every != 0;
    c->rope_layers = layers;
    return NIB_OK;
}
