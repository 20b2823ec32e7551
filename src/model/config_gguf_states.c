/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF keys of families some of whose layers keep a state in place of keys and values: which they
 * are, and the sizes of their recurrences.
 */
#include "config_gguf_states.h"

#include "arch.h"
#include "config_gguf_heads.h"

#include "renames.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char inner_size[] = "ssm.inner_size",
                  shared_width[] = "expert_shared_feed_forward_length";

enum { KEY_MAX = 128 };

/* Formats ARCH.name. */
static const char *key_of(char out[KEY_MAX], const char *arch, const char *name)
{
    snprintf(out, KEY_MAX, "%s.%s", arch, name);
    return out;
}

bool nib__gguf_is_of_states(const nib_config *c, const char *name)
{
    static const char *const of_delta[] = {inner_size, "full_attention_interval",
                                           "rope.dimension_sections"},
                             *const of_mamba[] = {inner_size, shared_width};
    const nib_family_row *family = nib__family_of(c);
    for (size_t i = 0; i < COUNT(of_delta) && family->full_interval > 0; i++)
        if (strcmp(of_delta[i], name) == 0)
            return true;
    for (size_t i = 0; i < COUNT(of_mamba) && family->mamba; i++)
        if (strcmp(of_mamba[i], name) == 0)
            return true;
    return false;
}

/* Width of a head of values, from that of all `heads`. */
static nib_status read_value_dim(nib_config *c, int64_t heads, const nib_gguf *g, const char *arch,
                                 nib_err *err)
{
    char key[KEY_MAX];
    int64_t width;
    NIB_TRY(nib__gguf_int(&width, NULL, g, key_of(key, arch, inner_size), err));
    if (width < heads || width > 1 << 24 || width % heads != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s is %" PRId64 "; a multiple of ssm.time_step_rank is expected, "
                         "which is %" PRId64,
                         g->name, key, width, heads);
    c->matrix.value_dim = width / heads;
    return NIB_OK;
}

/* Sections of positions for images, which are the same in text. */
static nib_status read_sections(nib_config *c, const nib_gguf *g, const char *arch, nib_err *err)
{
    nib_gguf_array sections;
    char key[KEY_MAX];
    int64_t pairs = 0;
    bool found;
    if (!nib__family_of(c)->mrope)
        return NIB_OK;
    NIB_TRY(nib__gguf_array_of(&sections, &found, g, key_of(key, arch, "rope.dimension_sections"),
                               NIB_GGUF_I64, err));
    for (size_t i = 0; found && nib__gguf_next_int(&sections, &pairs); i++) {
        if (i >= NIB_ROPE_SECTIONS || pairs < 0 || pairs > 1 << 16)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s[%zu] is %" PRId64 "; at most %d numbers of pairs from 0 to %d "
                             "are expected",
                             g->name, key, i, pairs, NIB_ROPE_SECTIONS, 1 << 16);
        c->rope_sections[i] = pairs;
    }
    return NIB_OK;
}

/* Every full_attention_interval-th layer has attention; the others have gated DeltaNet, for whose
 * values GGUF has the width of all heads. */
static nib_status read_delta(nib_config *c, const nib_gguf *g, const char *arch, nib_arena *arena,
                             nib_err *err)
{
    int64_t every = nib__family_of(c)->full_interval, heads, groups;
    char key[KEY_MAX];
    bool found;
    NIB_TRY(nib__gguf_int(&heads, NULL, g, key_of(key, arch, "ssm.time_step_rank"), err));
    NIB_TRY(nib__gguf_int(&groups, NULL, g, key_of(key, arch, "ssm.group_count"), err));
    if (heads < 1 || heads > 1 << 16 || groups < 1 || heads % groups != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: ssm.time_step_rank is %" PRId64
                         "; 1 to 65536 heads of values are expected, as many for each of the "
                         "%" PRId64 " heads of keys (ssm.group_count)",
                         g->name, heads, groups);
    NIB_TRY(read_value_dim(c, heads, g, arch, err));
    NIB_TRY(nib__gguf_int(&every, &found, g, key_of(key, arch, "full_attention_interval"), err));
    if (every < 1 || every > c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s is %" PRId64 ", but there are %" PRId64 " layers, some of which "
                         "must have attention",
                         g->name, key, every, c->layers);
    bool *has = nib__arena_take(arena, (uint64_t)c->layers, sizeof *has);
    if (has == NULL)
        return nib__fail_memory(err, (uint64_t)c->layers, "a list of layers");
    for (int64_t i = 0; i < c->layers; i++)
        has[i] = (i + 1) % every != 0;
    c->conv_layers = every > 1 ? has : NULL;
    c->matrix.by_turns = !nib__family_of(c)->joined_delta;
    c->delta_converted = c->gguf_order = true;
    return read_sections(c, g, arch, err);
}

/* Which layers keep a state: llama.cpp lists 0 heads of keys and values for them. */
static nib_status read_states(nib_config *c, const nib_gguf *g, const char *arch, nib_arena *arena,
                              nib_err *err)
{
    nib_gguf_array heads;
    char key[KEY_MAX];
    int64_t count = 0, states = 0;
    bool found;
    if (!nib__gguf_lists_heads(c, g, key_of(key, arch, "attention.head_count_kv")))
        return NIB_OK;
    NIB_TRY(nib__gguf_array_of(&heads, &found, g, key, NIB_GGUF_I64, err));
    if ((int64_t)heads.count != c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s has %zu values; %" PRId64 " are expected, one for each layer",
                         g->name, key, (size_t)heads.count, c->layers);
    bool *has = nib__arena_take(arena, (uint64_t)c->layers, sizeof *has);
    if (has == NULL)
        return nib__fail_memory(err, (uint64_t)c->layers, "a list of layers");
    for (size_t i = 0; nib__gguf_next_int(&heads, &count); i++) {
        has[i] = count == 0;
        states += has[i];
        if (count < 0 || count > 1 << 16 || (count > 0 && c->kv_heads > 0 && c->kv_heads != count))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s[%zu] is %" PRId64
                             "; 0 is expected for a layer without attention, and the same number, "
                             "1 to 65536, for all others",
                             g->name, key, i, count);
        c->kv_heads = count > 0 ? count : c->kv_heads;
    }
    if (states == c->layers)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: %s is 0 for all layers; a model without any attention is not "
                         "supported",
                         g->name, key);
    c->conv_layers = states > 0 ? has : NULL;
    return NIB_OK;
}

/* Mamba-2 of Granite: heads, and the width of the MLP that all tokens have. Where there are
 * experts, the usual key has their width. */
static nib_status read_mamba(nib_config *c, const nib_gguf *g, const char *arch, nib_err *err)
{
    char key[KEY_MAX];
    int64_t heads, shared = c->moe.enabled ? 0 : c->ffn;
    bool found;
    NIB_TRY(nib__gguf_int(&heads, NULL, g, key_of(key, arch, "ssm.time_step_rank"), err));
    if (heads < 1 || heads > 1 << 16)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %" PRId64 "; 1 to 65536 is expected",
                         g->name, key, heads);
    NIB_TRY(read_value_dim(c, heads, g, arch, err));
    c->mamba_expand = heads * c->matrix.value_dim / c->width;
    if (c->mamba_expand * c->width != heads * c->matrix.value_dim)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s is %" PRId64 "; a multiple of embedding_length is expected, which "
                         "is %" PRId64,
                         g->name, key_of(key, arch, inner_size), heads * c->matrix.value_dim,
                         c->width);
    NIB_TRY(nib__gguf_int(&shared, &found, g, key_of(key, arch, shared_width), err));
    if (shared < 1 || shared > 1 << 24 || (!c->moe.enabled && shared != c->ffn))
        return nib__fail(
            err, NIB_BAD_INPUT, "%s: %s is %" PRId64 "; %s is expected", g->name, key, shared,
            c->moe.enabled ? "a width from 1 on" : "feed_forward_length, as there are no experts,");
    c->moe.ffn = c->ffn;
    c->ffn = shared;
    c->delta_converted = true;
    c->most_step = (double)INFINITY;
    return NIB_OK;
}

nib_status nib__gguf_read_states(nib_config *c, const nib_gguf *g, const char *arch,
                                 nib_arena *arena, nib_err *err)
{
    const nib_family_row *family = nib__family_of(c);
    if (family->full_interval > 0)
        return read_delta(c, g, arch, arena, err);
    if (family->state_type == NULL)
        return NIB_OK;
    NIB_TRY(read_states(c, g, arch, arena, err));
    return family->mamba ? read_mamba(c, g, arch, err) : NIB_OK;
}

int64_t nib__gguf_full_interval(const nib_config *c)
{
    int64_t every = 1;
    while (every <= c->layers && nib__config_has_conv(c, every - 1))
        every++;
    for (int64_t i = 0; i < c->layers; i++)
        if (every > c->layers || nib__config_has_conv(c, i) != ((i + 1) % every != 0))
            return 0;
    return every;
}

const char *nib__gguf_names(const nib_config *c)
{
    const nib_family_row *family = nib__family_of(c);
    return family->mamba && c->moe.experts == 0 ? NIB_RENAME_DENSE_HYBRID : family->gguf;
}
