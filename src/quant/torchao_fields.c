/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses a torchao config from JSON into a flat list of fields. torchao_config.c interprets them.
 * recipe_json.c has read the whole text before, so every value ends and can be skipped.
 */
#include "torchao_config.h"

/* ---- one field ---- */

/* Refuses a KEY beside "_type" and "_data", where torchao has no settings. */
static nib_status fail_stray_key(nib_recipe *r, nib_json *json, nib_err *err)
{
    const char *key = nib__recipe_string(r, json);
    if (key == NULL)
        return nib__json_status(json, err);
    return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                            "\"%s\" is beside \"_type\"; settings belong in \"_data\"", key);
}

/* The settings of an object in a field, whose OBJECT was just read. */
static nib_status read_inner(nib_recipe *r, nib_json *json, nib_ao_field *f, nib_err *err)
{
    size_t count = 0;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const bool fast = nib__json_is(json, "use_fast_accum");
        if (count < COUNT(f->inner) && (f->inner[count++] = nib__recipe_string(r, json)) == NULL)
            return nib__json_status(json, err);
        const nib_json_event value = nib__json_next(json);
        f->has_other_flag |= value == (fast ? NIB_JSON_FALSE : NIB_JSON_TRUE);
        if (value == NIB_JSON_NUMBER && !f->has_number) /* the first number is the value */
            f->has_number = nib__json_int64(json, &f->number);
        else
            (void)nib__json_skip(json);
    }
    return NIB_OK;
}

/* The members of an object in a field, whose OBJECT was just read. */
static nib_status read_nested(nib_recipe *r, nib_json *json, nib_ao_field *f, nib_err *err)
{
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const bool is_type = nib__json_is(json, "_type"), is_data = nib__json_is(json, "_data");
        if (!is_type && !is_data && !nib__json_is(json, "_version"))
            return fail_stray_key(r, json, err);
        const nib_json_event event = nib__json_next(json);
        if (event == NIB_JSON_STRING && (is_type || is_data)) {
            const char *text = nib__recipe_string(r, json);
            if (text == NULL)
                return nib__json_status(json, err);
            if (is_type)
                f->type = text;
            else
                f->text = text;
        } else if (is_data && event == NIB_JSON_OBJECT) {
            NIB_TRY(read_inner(r, json, f, err));
        } else {
            (void)nib__json_skip(json);
        }
    }
    return NIB_OK;
}

/* One value, whose first event was just read; read_field reads lists. */
static nib_status read_value(nib_recipe *r, nib_json *json, nib_ao_field *f, nib_err *err)
{
    switch (json->event) {
    case NIB_JSON_NULL: f->is_null = true; return NIB_OK;
    case NIB_JSON_TRUE: f->is_true = true; return NIB_OK;
    case NIB_JSON_FALSE: return NIB_OK;
    case NIB_JSON_STRING:
        f->text = nib__recipe_string(r, json);
        return f->text == NULL ? nib__json_status(json, err) : NIB_OK;
    case NIB_JSON_OBJECT: return read_nested(r, json, f, err);
    case NIB_JSON_NUMBER: {
        double value;
        if (!nib__json_double(json, &value))
            return nib__json_status(json, err);
        /* sizes are whole numbers; others are bounds, of which only the presence counts */
        f->has_number = value >= -0x1p62 && value <= 0x1p62 && value == (double)(int64_t)value;
        f->number = f->has_number ? (int64_t)value : 0;
        return NIB_OK;
    }
    default: (void)nib__json_skip(json); return NIB_OK;
    }
}

static nib_status read_field(nib_recipe *r, nib_json *json, nib_ao_field *f, nib_err *err)
{
    if (nib__json_next(json) != NIB_JSON_ARRAY)
        return read_value(r, json, f, err);
    const char *first = NULL;
    for (int i = 0; nib__json_next(json) != NIB_JSON_ARRAY_END; i++) {
        if (i == 2)
            return nib__recipe_fail(json, NIB_BAD_INPUT, err,
                                    "%s is a list of more than two items; it takes one for "
                                    "activations and one for weights",
                                    f->key);
        *f = (nib_ao_field){.key = f->key};
        NIB_TRY(read_value(r, json, f, err));
        if (i == 0)
            first = f->type;
    }
    f->first_type = first;
    return NIB_OK;
}

/* ---- the whole ---- */

nib_status nib__ao_read_data(nib_ao_config *c, nib_recipe *r, nib_json *json, nib_err *err)
{
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return nib__json_status(json, err);
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (c->count == NIB_AO_FIELDS_MAX)
            return nib__recipe_fail(json, NIB_BAD_INPUT, err, "a config has more than %d settings",
                                    NIB_AO_FIELDS_MAX);
        nib_ao_field *f = &c->fields[c->count++];
        *f = (nib_ao_field){.key = nib__recipe_string(r, json)};
        if (f->key == NULL)
            return nib__json_status(json, err);
        NIB_TRY(read_field(r, json, f, err));
    }
    return NIB_OK;
}

nib_status nib__ao_read(nib_ao_config *out, nib_recipe *r, nib_json *json, nib_json *data,
                        nib_err *err)
{
    nib_ao_config *const c = out;
    bool has_data = false;
    *c = (nib_ao_config){.version = 1, .at = *json};
    if (json->event == NIB_JSON_NULL)
        return NIB_OK;
    if (json->event != NIB_JSON_OBJECT) {
        nib__json_fail(json, "a config is neither an object nor null");
        return nib__json_status(json, err);
    }
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (nib__json_is(json, "_type")) {
            c->type = nib__json_expect(json, NIB_JSON_STRING) ? nib__recipe_string(r, json) : NULL;
            if (c->type == NULL)
                return nib__json_status(json, err);
        } else if (nib__json_is(json, "_version")) {
            if (!nib__json_read_int64(json, 0, INT64_MAX, &c->version))
                return nib__json_status(json, err);
        } else if (nib__json_is(json, "_data")) {
            has_data = true;
            *data = *json;
            (void)nib__json_skip(json);
        } else {
            return fail_stray_key(r, json, err);
        }
    }
    if (c->type == NULL || !has_data)
        return nib__recipe_fail(json, NIB_BAD_INPUT, err, "a torchao config lacks \"%s\"",
                                c->type == NULL ? "_type" : "_data");
    return NIB_OK;
}
