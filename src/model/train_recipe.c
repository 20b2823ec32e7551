/* SPDX-License-Identifier: Apache-2.0
 *
 * The quantization of linear layers that a training config asks for, as one recipe in JSON: from
 * the converters mx and float8, or from the section quantize.
 */
#include "train_values.h"

#include "file.h"

static void put_list(nib_jsonw *w, const char *key, const nib_train_list *list)
{
    if (!list->given)
        return;
    nib__jsonw_key(w, key);
    nib__jsonw_array(w);
    for (size_t i = 0; i < list->count; i++)
        nib__jsonw_string(w, list->items[i]);
    nib__jsonw_array_end(w);
}

static void put_text(nib_jsonw *w, const char *key, const char *text)
{
    if (text)
        nib__jsonw_pair_string(w, key, text);
}

static nib_status put_recipe(const char **out, const nib_train_recipe *part, nib_arena *arena,
                             nib_err *err)
{
    nib_text text;
    nib_jsonw w;
    nib__text_init(&text, arena->allocator);
    nib__jsonw_init(&w, &text, 0);
    nib__jsonw_object(&w);
    put_list(&w, "skip", &part->skip);
    put_list(&w, "only", &part->only);
    put_text(&w, "recipe", part->recipe);
    put_text(&w, "recipe_name", part->recipe_name);
    put_list(&w, "filter_fqns", &part->filter_fqns);
    put_list(&w, "fqns", &part->fqns);
    put_text(&w, "else", part->other);
    if (part->rules) { /* JSON already */
        nib__text_str(&text, w.need_comma ? ", \"rules\": " : "\"rules\": ");
        nib__text_str(&text, part->rules);
    }
    nib__jsonw_object_end(&w);
    *out = text.failed ? NULL : nib__arena_copy(arena, text.at, text.size);
    const nib_status status = *out ? NIB_OK : nib__fail_memory(err, text.size, "the recipe");
    nib__text_free(&text);
    return status;
}

/* ---- converters ---- */

static bool is_mx(const char *name)
{
    return strcmp(name, "mx") == 0 || strcmp(name, "quantize.linear.mx") == 0;
}

static bool is_float8(const char *name)
{
    return strcmp(name, "float8") == 0 || strcmp(name, "quantize.linear.float8") == 0;
}

/* Sets bf16 weight gradients for a converter; the section quantize must not contradict it. */
static nib_status set_wgrad_with_hp(nib_train_reader *r, const char *key, nib_err *err)
{
    nib_train_config *c = &r->draft.out;
    if (nib__train_given(r, "quantize.wgrad_with_hp") && !c->wgrad_with_hp)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s asks for gradients of weights in bf16, and "
                         "quantize.wgrad_with_hp is false; keep one",
                         r->source->name, key);
    c->wgrad_with_hp = true;
    c->asked.wgrad_with_hp = nib__train_asked(r, key);
    return NIB_OK;
}

/* torchao's recipes; without a name tensorwise. Only the last two omit a weight's scales. */
static nib_status float8_recipe(const char **out, nib_train_reader *r, nib_err *err)
{
    nib_train_recipe part = r->draft.float8;
    char shown[NIB_SHOWN];
    const char *name = part.recipe_name ? part.recipe_name : "tensorwise";
    const bool hp = strcmp(name, "rowwise_with_gw_hp") == 0;
    if (strcmp(name, "tensorwise") == 0) {
        part.recipe_name = NULL;
        part.recipe = "fp8dq-tensor+head";
    } else if (strcmp(name, "rowwise") == 0 || hp) {
        part.recipe_name = "rowwise";
        if (hp)
            NIB_TRY(set_wgrad_with_hp(r, "float8.recipe_name", err));
    } else {
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: float8.recipe_name \"%s\" is not one of tensorwise, rowwise, "
                         "rowwise_with_gw_hp",
                         r->source->name, nib__escape_string(shown, name));
    }
    return put_recipe(out, &part, r->source->arena, err);
}

static nib_status mx_recipe(const char **out, nib_train_reader *r, nib_err *err)
{
    nib_train_recipe part = r->draft.mx;
    if (part.wgrad_with_hp)
        NIB_TRY(set_wgrad_with_hp(r, "mx.wgrad_with_hp", err));
    if (!part.recipe_name)
        part.recipe_name = "mxfp8";
    return put_recipe(out, &part, r->source->arena, err);
}

static nib_status converter_recipe(const char **out, nib_train_reader *r, nib_err *err)
{
    static const char *const names[] = {"mx", "float8"};
    const nib_train_list *list = &r->draft.converters;
    char shown[NIB_SHOWN];
    nib_text near;
    if (list->count > 1)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: model.converters names %zu; a layer is converted once, so one of mx, "
                         "float8 is expected",
                         r->source->name, list->count);
    const char *name = list->items[0];
    if (is_mx(name))
        return mx_recipe(out, r, err);
    if (is_float8(name))
        return float8_recipe(out, r, err);
    nib__text_init(&near, r->source->arena->allocator);
    nib__near_names(&near, name, names, COUNT(names));
    const nib_status status =
        nib__fail(err, NIB_BAD_INPUT, "%s: model.converters: \"%s\" is not one of mx, float8%s%s",
                  r->source->name, nib__escape_string(shown, name),
                  near.size ? "; did you mean " : "", near.size ? near.at : "");
    nib__text_free(&near);
    return status;
}

/* Notes keys of a section whose converter is not in use. */
static void note_unused_section(const nib_train_reader *r, const char *section, bool used)
{
    const size_t size = strlen(section);
    for (size_t i = 0; !used && i < nib__train_key_count; i++) {
        const nib_train_key *k = &nib__train_keys[i];
        if (strncmp(k->name, section, size) == 0 && k->name[size] == '.' &&
            k->at != NIB_KEY_NOWHERE && r->given[i] != 0)
            nib__ledger_add_setting(r->source->notes,
                                    &(nib_ledger_setting){.code = "training-key",
                                                          .name = k->name,
                                                          .by = nib__train_asker(r, i),
                                                          .relation = NIB_SETTING_NONE},
                                    "model.converters does not name %s", section);
    }
}

/* ---- the section quantize ---- */

static bool has_recipe(const nib_train_recipe *q)
{
    return q->recipe || q->recipe_name || q->other || q->rules || q->filter_fqns.given ||
           q->fqns.given || q->skip.given || q->only.given;
}

/* A recipe file is complete by itself. */
static nib_status file_recipe(const char **out, const nib_train_reader *r, nib_err *err)
{
    nib_train_recipe rest = r->draft.quantize;
    const char *path = rest.recipe;
    rest.recipe = NULL;
    if (has_recipe(&rest))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: quantize.recipe names the file %s, which is complete by itself; "
                         "remove the other keys of the section",
                         r->source->name, path);
    const bool in_file =
        (r->given[nib__train_key_find("quantize.recipe")] & NIB_GIVEN_AS_OPTION) == 0;
    *out = in_file && *path != '/' ? nib__path_join(r->source->arena, r->directory, path)
                                   : nib__arena_copy(r->source->arena, path, strlen(path));
    return *out ? NIB_OK : nib__fail_memory(err, strlen(path), "a path");
}

nib_status nib__train_recipe(const char **out, nib_train_reader *r, nib_err *err)
{
    const nib_train_recipe *q = &r->draft.quantize;
    const nib_train_list *converters = &r->draft.converters;
    const char *first = converters->count > 0 ? converters->items[0] : "";
    *out = NULL;
    note_unused_section(r, "mx", is_mx(first));
    note_unused_section(r, "float8", is_float8(first));
    note_unused_section(r, "quantize.linear.mx", is_mx(first));
    note_unused_section(r, "quantize.linear.float8", is_float8(first));
    if (converters->count > 0 && (q->whole || has_recipe(q)))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: model.converters and the section quantize both ask for a recipe; "
                         "keep one",
                         r->source->name);
    if (converters->count > 0)
        return converter_recipe(out, r, err);
    if (q->whole && has_recipe(q))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the section quantize is another tool's config, which is complete by "
                         "itself; remove the other keys of the section",
                         r->source->name);
    if (q->whole) {
        *out = nib__arena_copy(r->source->arena, q->whole, strlen(q->whole));
        return *out ? NIB_OK : nib__fail_memory(err, strlen(q->whole), "the recipe");
    }
    if (q->recipe && nib__ends_with(q->recipe, ".json"))
        return file_recipe(out, r, err);
    return has_recipe(q) ? put_recipe(out, q, r->source->arena, err) : NIB_OK;
}
